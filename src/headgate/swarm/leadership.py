"""Pure. What a member knows of itself; and as candidate or leader, who supports it and what it grants.

Rules of this room: where a bus cannot split, a leader leads as long as its own heartbeats come back to it.
Where it may, a leader needs answers of members that hold more than half of all safe shares, and two leaders
cannot both have those. All safe shares together are never more than half of the whole, so a new leader knows
how much the members it has not heard yet may be using: half, less the safe shares it was told of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import ALL, MOST_MEMBERS, Grant, Handover, Heartbeat, Message, Report, Term
from .rules import NEVER
from .shares import HALF, WHOLE, Held, MemberShare, Shares

# Up to this many members shares are divided again with every report; beyond it, for several at a time.
_FEW = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """How a swarm keeps its members; times are nanoseconds.

    `settle` is within which every member that is there has received a question and answered it. After
    `forget` a silent member is taken for dead. `splits` says whether the bus may fall into parts. `turn`,
    from 0 to a million, spreads members that would otherwise act at the same moment.
    """

    lease: int
    forget: int
    settle: int = 0
    splits: bool = False
    turn: int = 0
    weight: int = 1
    on_loss: str = "share"

    # Others get a member's share within a lease: first the member stops using it, then the leader takes it
    # for free, then the leader offers it. The gap between the first two allows for clocks of different
    # speeds.

    @property
    def interval(self) -> int:
        """How often the leader sends a heartbeat and a member reports."""
        return max(1, self.lease // 10)

    @property
    def hold(self) -> int:
        """How long a member uses its share after it sent the last report that the leader answered."""
        return self.lease * 7 // 10

    @property
    def patience(self) -> int:
        """How long the leader takes a share for used after it last heard the member."""
        return self.lease * 8 // 10


@dataclass(slots=True)
class Member:
    """What one member knows of itself, shared by its `Membership` and its `Leadership`."""

    key: str
    settings: Settings
    wants: int = WHOLE  # how much of the whole it has a use for
    outbox: list[tuple[str, Message]] = field(default_factory=list)  # messages to send, and where
    echo_at: int = NEVER  # when the last own message was sent that came back over the bus
    present_since: int = NEVER  # since when own messages have come back without a gap

    def send(self, where: str, message: Message) -> None:
        self.outbox.append((where, message))

    def take_outbox(self) -> list[tuple[str, Message]]:
        """The messages to send; the outbox is empty afterwards."""
        taken, self.outbox = self.outbox, []
        return taken

    def hear_itself(self, sent_at: int) -> None:
        """A message that this member sent then came back: it is on the bus."""
        if sent_at - self.echo_at > 2 * self.settings.interval:
            self.present_since = sent_at
        self.echo_at = max(self.echo_at, sent_at)


class Leadership:
    """A member while it is a candidate, and while it is the leader (`is_leader`), of one term.

    `lost` says that the support is gone. `floor` is until when a previous leader left it the support.
    """

    def __init__(self, member: Member, term: Term, held: Held, size: int, now: int, floor: int) -> None:
        settings = member.settings
        self.term = term
        self.size = size  # how many members there are
        self.is_leader = self.lost = False
        self.heartbeat_at = now  # when the next one is due
        self._member = member
        self._shares = Shares(member.key, settings.patience, settings.forget)
        for key, (share, safe) in held.items():
            self._shares.members[key] = MemberShare(share, safe, now)
        self.own = self._shares.members[member.key]
        self.own.weight = settings.weight
        self._began_at = now
        self._number = 0
        self._heartbeats: dict[int, int] = {}  # when each was sent, by number
        self._floor = floor
        self._supported_since: int | None = None
        self._waived = False  # candidate until the others are forgotten: their support is not needed
        self._planned_at = self._exactly_at = NEVER

    def tick(self, now: int) -> None:
        """Become the leader, stay it, or lose the support."""
        settings = self._member.settings
        if settings.splits and now - self._began_at >= settings.forget and settings.on_loss != "closed":
            # Members that were not heard for that long are dead.
            self._waived = self._waived or not self.is_leader
        supported = now < self.supported_until(now)
        if self.is_leader:
            if not supported:
                self.is_leader, self.lost = False, True
                return
            self._shares.remove_dead(now)
            self.plan(now, demand=now - self._planned_at >= settings.interval)
        elif not supported:
            self._supported_since = None
        else:
            if self._supported_since is None:
                self._supported_since = now
            leads_at = self._leads_at(self._supported_since)
            if self._member.echo_at >= leads_at:  # this member and all that are there have heard a heartbeat
                known = sum(member.claim for member in self._shares.members.values())
                self.lead(now, unknown=0 if self._waived else max(0, HALF - known))
            elif now >= leads_at > self._heartbeats.get(self._number, NEVER):
                self.send_heartbeat(now)

    def next_at(self) -> int:
        """When the candidate may become the leader, if it is supported."""
        since = self._supported_since
        return NEVER if since is None or self.is_leader else self._leads_at(since)

    def lead(self, now: int, *, unknown: int) -> None:
        """Be the leader from now on. `unknown`: safe shares of members it has not heard yet."""
        self.is_leader = True
        self._shares.unknown, self._shares.unknown_until = unknown, now + self._member.settings.forget
        self.send_heartbeat(now)
        self.plan(now)

    # -- support

    def supported_until(self, now: int) -> int:
        """Until when no other member can be the leader."""
        member, hold = self._member, self._member.settings.hold
        if not self.is_leader and member.echo_at < self._began_at:
            return NEVER  # perhaps no member has heard of this candidate
        if not member.settings.splits or self._waived:
            return max(self._floor, member.echo_at + hold)
        answered = [(member.echo_at, self.own.claim)]
        answered += [
            (self._heartbeats[other.answered], other.claim)
            for other in self._shares.members.values()
            if other.answered in self._heartbeats
        ]
        support = 0
        for at, claim in sorted(answered, reverse=True):
            support += claim
            if 2 * support > HALF:
                return max(self._floor, min(at, member.echo_at) + hold)
        return self._floor if now < self._floor else NEVER

    def _leads_at(self, supported_since: int) -> int:
        """When it may lead: all members that are there have answered, and leases of other leaders are over.

        On a bus that cannot split this member would have heard another leader while it was present.
        """
        settings = self._member.settings
        listens = settings.patience if settings.splits else settings.settle
        return max(supported_since + listens, self._member.present_since + settings.patience)

    def hear_own_heartbeat(self, number: int, now: int) -> None:
        """An own heartbeat came back."""
        sent_at = self._heartbeats.get(number)
        if sent_at is not None:
            self.hear_itself(sent_at, now)

    def hear_itself(self, sent_at: int, now: int) -> None:
        """A message that this member sent then came back."""
        silenced = self.is_leader and not self._may_grant(now)
        self._member.hear_itself(sent_at)
        self.tick(now)
        if silenced and self.is_leader:
            for key in self._shares.present(now):
                self._grant(key, now)

    # -- granting

    def hear_report(self, report: Report, now: int) -> None:
        """A member reports what it holds and what it wants."""
        members = self._shares.members
        if report.key not in members and len(members) >= MOST_MEMBERS:
            return
        member = self._shares.hear(report.key, report.seq, (report.share, report.safe), now)
        if member is None:
            return
        member.wants, member.weight = report.wants, report.weight
        if report.term == self.term:
            member.answered = max(member.answered, report.heartbeat)
            member.accept(report.granted)
        if not self.is_leader:
            self.tick(now)
        elif report.key not in self.plan(now):
            self._grant(report.key, now)

    def remove(self, key: str, now: int) -> None:
        """A member left for good."""
        self._shares.members.pop(key, None)
        self.plan(now)

    def plan(self, now: int, *, demand: bool = False) -> list[str]:
        """Divide again if there is need, and tell the members with a new offer. Returns their keys."""
        shares, interval = self._shares, self._member.settings.interval
        many = len(shares.members) > _FEW
        if not self.is_leader or (many and now - self._planned_at < interval // 4):
            return []
        # What counts as support are safe shares, and they may be offered to other members now: the support
        # of this moment stays.
        self._floor = max(self._floor, self.supported_until(now))
        self.own.wants = self._member.wants
        self.own.heard_at = now
        if demand or many:
            self._planned_at = now
        exactly = demand and now - self._exactly_at >= 10 * interval
        if exactly:
            self._exactly_at = now
        told = shares.plan_if_due(now, demand=demand, exactly=exactly)
        for key in told:
            self._grant(key, now)
        self.own.claim = self.own.offer[1]
        self.size = len(shares.members)
        return told

    def _may_grant(self, now: int) -> bool:
        """No lease may outlast this leader: the next one waits only for leases of before its loss."""
        if self._member.settings.splits and not self._waived:
            return now < self.supported_until(now)
        return now - self._member.echo_at <= 3 * self._member.settings.interval // 2

    def _grant(self, key: str, now: int) -> None:
        if key == self._member.key or not self._may_grant(now):
            return
        member = self._shares.members[key]
        share, safe = member.offer
        grant = Grant(
            to=key,
            term=self.term,
            seq=max(0, member.seq),
            number=member.number,
            share=share,
            safe=safe,
            size=len(self._shares.members),
            place=member.place,
        )
        self._member.send(key, grant)

    # -- heartbeats and the end

    def send_heartbeat(self, now: int) -> None:
        settings = self._member.settings
        self.heartbeat_at = now + settings.interval
        self._number += 1
        self._heartbeats = {key: at for key, at in self._heartbeats.items() if now - at < settings.patience}
        self._heartbeats[self._number] = now
        successor = self.successor(now)
        heartbeat = Heartbeat(self.term, self._number, self.is_leader, self.size, successor)
        self._member.send(ALL, heartbeat)

    def successor(self, now: int) -> str:
        """The member that would lead if this one left: one of those heard lately.

        It is the first by its run, which is random: agents that are closed in the order of their names do
        not lead one after the other.
        """
        others = (key for key in self._shares.present(now) if key != self._member.key)
        return min(others, key=lambda key: key.rpartition("#")[2], default="")

    def hand_over(self, now: int) -> None:
        """Leave what every member may be using to the successor, if there is one."""
        successor = self.successor(now)
        if self.is_leader and successor:
            held = {
                key: (member.largest(), member.largest_safe())
                for key, member in self._shares.members.items()
                if key != self._member.key
            }
            handover = Handover(to=successor, term=self.term, unknown=self._shares.unknown, held=held)
            self._member.send(successor, handover)
