"""Pure. One member of a swarm: which share of the total it may use, who leads, when it is a candidate.

Rules of this room: no clock, no randomness, no bus; messages to send lie in the member's outbox. One member
leads and leases shares of the whole. A member uses its share for `hold` after it sent the last report that
the leader answered, and after that its safe share. While there is no leader, every member has its safe share.
"""

from __future__ import annotations

from .leadership import Leadership, Member, Settings
from .messages import (
    ALL,
    GREETERS,
    LEADERS,
    MOST_MEMBERS,
    NO_TERM,
    Bye,
    Grant,
    Handover,
    Heartbeat,
    Hello,
    Here,
    Message,
    Report,
    StepDown,
    Term,
)
from .rules import NEVER
from .shares import HALF, Held

_NOT_YET = 1 << 62

# How many members that left are remembered.
_MOST_LEFT = 1_000
# How soon a newcomer asks again whether there is a swarm, and about how many members answer it.
_ASK_AGAIN = 200_000_000
_ANSWERS = 8


class Membership:
    """One member's view of the swarm. `place` is where in a round of all members it comes, if it was told."""

    def __init__(self, key: str, settings: Settings) -> None:
        self.member = Member(key, settings)
        self.term: Term = NO_TERM
        self.place: int | None = None
        self._settings = settings
        self._size = 1  # how many members there are, as far as this one knows
        # What the leader granted: both shares, the number of the grant, and when the report it answers was
        # sent.
        self._share = self._safe = 0
        self._granted = 0
        self._lease_from = NEVER
        # The leader: when it was last heard, whether it left, its successor, and its last heartbeat.
        self._leader_at = NEVER
        self._leader_left = False
        self._successor = ""
        self._heartbeat = 0
        # Reports: the number of the last one, when those still of interest were sent, when the next is due.
        self._seq = 0
        self._sent: dict[int, int] = {}
        self._report_at = _NOT_YET
        # A newcomer: when it founds a swarm of its own, who else might, and when it was told of a swarm.
        self._found_at = _NOT_YET
        self._rivals: dict[str, int] = {}
        self._swarm_heard_at = NEVER
        self._leadership: Leadership | None = None  # while this member is a candidate or the leader
        self._left: dict[str, None] = {}  # members that left for good, the latest last

    # -- what it may use

    def share(self, now: int) -> int:
        """The share it may use, in parts of the WHOLE."""
        on_loss = self._settings.on_loss
        if now < self.until(now) or on_loss == "open":
            return self._share
        return 0 if on_loss == "closed" else self._safe

    def until(self, now: int) -> int:
        """When the share it may use becomes smaller by itself; in the past if it has."""
        if self._leadership is not None and self._leadership.is_leader:
            return self._leadership.supported_until(now)
        return self._lease_from + self._settings.hold

    @property
    def joined(self) -> bool:
        """Whether it knows, or once knew, who leads."""
        return self.term != NO_TERM

    @property
    def candidate(self) -> bool:
        """Whether it would lead: it does, or waits for support."""
        return self._leadership is not None

    @property
    def is_leader(self) -> bool:
        return self._leadership is not None and self._leadership.is_leader

    def follows(self, message: Message) -> bool:
        """Whether the leader that this member follows says this."""
        if isinstance(message, Heartbeat) and not message.is_leader:
            return False  # a candidate
        return isinstance(message, (Heartbeat, Grant)) and message.term == self.term and not self.is_leader

    def out_of_touch(self, now: int) -> bool:
        """Whether it lost the leader it had."""
        return self.joined and not self.is_leader and now >= self.until(now)

    # -- what it does by itself

    def start(self, now: int) -> None:
        """Ask whether there is a swarm."""
        self._found_at = now + self._settings.settle
        self._send_hello(now)

    def tick(self, now: int) -> None:
        """Do what is due by now."""
        if self._leadership is not None:
            self._leadership.tick(now)
        elif not self.joined:
            self._found_if_alone(now)
        elif now >= self._candidate_at():
            self._begin_leadership(now).send_heartbeat(now)
        self._follow_leadership(now)
        if self._leadership is not None:
            if now >= self._leadership.heartbeat_at:
                self._leadership.send_heartbeat(now)
        elif now >= self._report_at:
            if not self.joined:
                self._send_hello(now)
                return
            silent = now - self._leader_at > self._settings.interval * 9 // 10
            report = self._send_report(now)
            if silent:  # or this member is not on the bus: an own message tells
                self.member.send(self.member.key, report)

    def next_at(self, now: int) -> int:
        """When `tick` has something to do next."""
        moments = [self.until(now)]
        if self._leadership is not None:
            moments += [self._leadership.heartbeat_at, self._leadership.next_at()]
        else:
            moments += [self._report_at, self._candidate_at() if self.joined else self._found_at]
        return min((at for at in moments if at > now), default=now + self._settings.interval)

    def hurry(self, now: int) -> None:
        """Have it speak at the next tick, e.g. because the bus is back."""
        self._report_at = now
        if self._leadership is not None:
            self._leadership.heartbeat_at = now

    def leave(self, now: int) -> None:
        """Leave the swarm and say so: others may have the share at once."""
        leadership, self._leadership = self._leadership, None
        self.member.send(ALL if leadership is not None else LEADERS, Bye(self.member.key, self.term))
        if leadership is not None:
            leadership.hand_over(now)
        self.term = NO_TERM
        self.place = None
        self._share = self._safe = 0
        self._lease_from = self._leader_at = NEVER
        self._report_at = self._found_at = _NOT_YET

    # -- what it hears

    def hear(self, message: Message, now: int) -> None:
        """A message of the swarm, its own included."""
        match message:
            case Report():  # a Hello too
                self._hear_report(message, now)
            case Here():
                self._hear_here(message, now)
            case Heartbeat():
                self._hear_heartbeat(message, now)
            case Grant():
                self._hear_grant(message, now)
            case Bye():
                self._hear_bye(message, now)
            case StepDown():
                self._hear_step_down(message, now)
            case Handover():
                self._hear_handover(message, now)
        self._follow_leadership(now)

    # -- finding the others

    @property
    def greets(self) -> bool:
        """Whether it answers newcomers. In a large swarm some members are enough."""
        few = self._settings.turn * self._size < _ANSWERS * 1_000_000
        return self.candidate or not self.joined or few

    def _hear_report(self, report: Report, now: int) -> None:
        leadership = self._leadership
        if report.key == self.member.key:
            sent_at = self._sent.get(report.seq)
            if sent_at is not None and leadership is not None:
                leadership.hear_itself(sent_at, now)
            elif sent_at is not None:
                self.member.hear_itself(sent_at)
            return
        if leadership is not None and report.key not in self._left and report.term in (self.term, NO_TERM):
            leadership.hear_report(report, now)
        if isinstance(report, Hello):
            self._greet(report.key, now)

    def _greet(self, newcomer: str, now: int) -> None:
        if not self.joined:
            if len(self._rivals) < MOST_MEMBERS:
                self._rivals[newcomer] = now
        elif self.greets and not self.is_leader:  # some leader will let it in, if only later
            self.member.send(newcomer, Here(newcomer))

    def _hear_here(self, here: Here, now: int) -> None:
        if here.to == self.member.key and not self.joined:
            self._swarm_heard_at = now
            # If those members vanish, the bus may have split, or they lost it and go on with safe shares.
            wait = self._settings.forget if self._settings.splits else self._settings.patience
            self._found_at = max(self._found_at, now + wait)

    def _found_if_alone(self, now: int) -> None:
        patience = self._settings.patience
        on_bus = now - self.member.echo_at < patience
        first = not any(key < self.member.key and now - at < patience for key, at in self._rivals.items())
        if now >= self._found_at and on_bus and first:
            known_of = now - self._swarm_heard_at < self._settings.forget
            if known_of and now < self.member.present_since + patience:
                return
            self._begin_leadership(now).lead(now, unknown=HALF if known_of else 0)

    # -- following

    def _hear_heartbeat(self, heartbeat: Heartbeat, now: int) -> None:
        term, leadership = heartbeat.term, self._leadership
        if term[1] == self.member.key:
            if leadership is not None and term == self.term:
                leadership.hear_own_heartbeat(heartbeat.number, now)
            return
        if leadership is not None:
            self._hear_rival(leadership, heartbeat, now)
        if self._leadership is None and self._follows(term, now) and heartbeat.number > self._heartbeat:
            self._leader_at = now
            self._heartbeat = heartbeat.number
            self._size, self._successor = heartbeat.size, heartbeat.successor

    def _follows(self, term: Term, now: int) -> bool:
        """Whether the leader of this term is followed: from now on, if there is none or its term is later."""
        if term == self.term:
            return not self._leader_left
        lost = self._leader_left or now - self._leader_at >= self._settings.patience
        if not lost and not (term[1] == self.term[1] and term[0] > self.term[0]):
            return False
        if term[1] in self._left:
            return False  # an old heartbeat of a member that left
        self._begin_term(term, now)
        self._send_report(now)
        return True

    def _begin_term(self, term: Term, now: int) -> None:
        self.term = term
        self._granted = self._heartbeat = 0
        self._leader_left, self._leader_at = False, now

    def _hear_grant(self, grant: Grant, now: int) -> None:
        if grant.to != self.member.key or self.candidate or not self._follows(grant.term, now):
            return
        if grant.number < self._granted:
            return  # a later one came before
        answers = self._sent.get(grant.seq, NEVER)
        if answers > self._lease_from or grant.number > self._granted:
            self._leader_at = now  # what was said before does not show that the leader is there
        self._size = grant.size
        if grant.place is not None:
            self.place = grant.place
        self._lease_from = max(self._lease_from, answers)
        if grant.number > self._granted:
            less = grant.share < self._share or grant.safe < self._safe
            self._granted, self._share, self._safe = grant.number, grant.share, grant.safe
            if less:
                self._send_report(now)  # others wait for what is no longer in use here

    def _hear_bye(self, bye: Bye, now: int) -> None:
        if bye.key == self.member.key:
            return
        self._rivals.pop(bye.key, None)
        self._left[bye.key] = None
        if len(self._left) > _MOST_LEFT:
            del self._left[next(iter(self._left))]
        if self._leadership is not None:
            self._leadership.remove(bye.key, now)
        elif bye.term == self.term and bye.key == self.term[1]:
            self._leader_left, self._leader_at = True, now

    def _hear_step_down(self, message: StepDown, now: int) -> None:
        """The leader follows another one, which may not know what it granted."""
        if message.term == self.term and self.term[1] != self.member.key:
            self._leader_left, self._leader_at = True, now
            if message.void:
                self._share = self._safe = 0

    # -- leading

    def _candidate_at(self) -> int:
        """When it becomes a candidate: once the leader is certainly lost, one member after the other."""
        interval, turn = self._settings.interval, self._settings.turn
        wait = 0 if self._successor == self.member.key else interval + 2 * interval * turn // 1_000_000
        return self._leader_at + self._settings.patience + wait

    def _begin_leadership(self, now: int, held: Held | None = None, floor: int = NEVER) -> Leadership:
        """Become a candidate of the next term."""
        held = held or {self.member.key: (self.share(now), self._safe)}
        self._begin_term((self.term[0] + 1, self.member.key), now)
        self._leadership = Leadership(self.member, self.term, held, self._size, now, floor)
        return self._leadership

    def _follow_leadership(self, now: int) -> None:
        """Take the own share from what the leader, which is this member, planned; or stop if it is lost."""
        leadership = self._leadership
        if leadership is None:
            return
        if leadership.lost:
            self._stop_leading(now)
        elif leadership.is_leader:
            self._share, self._safe = leadership.own.offer
            self.place = leadership.own.place

    def _hear_rival(self, leadership: Leadership, heartbeat: Heartbeat, now: int) -> None:
        """Another leader or candidate. A leader stays; among equals, the later term or the first by name."""
        term, own = heartbeat.term, self.term
        if leadership.is_leader and not heartbeat.is_leader:
            leadership.send_heartbeat(now)  # the other has missed the last ones
        elif heartbeat.is_leader and not leadership.is_leader:
            self._step_down(now, void=False)
        elif (-term[0], term[1]) < (-own[0], own[1]):
            self._step_down(now, void=leadership.is_leader)

    def _step_down(self, now: int, *, void: bool) -> None:
        """Leave it to another. If both led, the other reserved nothing for what was granted here."""
        self.member.send(ALL, StepDown(self.term, void))
        self._stop_leading(now)
        if void:
            self._share = self._safe = 0
        self._leader_left = True

    def _stop_leading(self, now: int) -> None:
        assert self._leadership is not None
        self._report_at = self._leadership.heartbeat_at
        self._size = self._leadership.size
        self._leadership = None
        self._lease_from = NEVER
        self._leader_at = now - self._settings.patience  # as if the leader were lost

    def _hear_handover(self, handover: Handover, now: int) -> None:
        """The leader leaves, and this member is its successor."""
        floor = self.until(now)
        if handover.to != self.member.key or self.candidate or handover.term != self.term or now >= floor:
            return  # without a lease it is unknown whether the other still led
        held = {self.member.key: (0, 0), **handover.held}
        self._begin_leadership(now, held, floor).lead(now, unknown=handover.unknown)

    # -- reporting

    def _send_hello(self, now: int) -> None:
        self._report_at = now + min(self._settings.interval, _ASK_AGAIN)
        self.member.send(GREETERS, self._report(Hello, now))

    def _send_report(self, now: int) -> Report:
        self._report_at = now + self._settings.interval
        report = self._report(Report, now)
        self.member.send(LEADERS, report)
        return report

    def _report(self, kind: type[Report], now: int) -> Report:
        self._seq += 1
        self._sent = {seq: at for seq, at in self._sent.items() if now - at < self._settings.hold}
        self._sent[self._seq] = now
        return kind(
            key=self.member.key,
            term=self.term,
            seq=self._seq,
            wants=self.member.wants,
            weight=self._settings.weight,
            granted=self._granted,
            share=self._share if now < self.until(now) else 0,
            safe=self._safe,
            heartbeat=self._heartbeat,
        )
