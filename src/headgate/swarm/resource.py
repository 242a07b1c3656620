"""One resource as one agent of the swarm has it: its gate, its share, and how its calls went.

Rules of this room: what is decided here is arithmetic, under the agent's lock; `apply` brings the gate to it
afterwards, under the gate's own lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .. import events
from ..arguments import SECOND
from ..gate.admission import Permit
from ..gate.decision import successors
from ..gate.gate import Gate
from ..gate.slots import ConcurrencyRule
from ..gate.strict import StrictRule
from ..gate.window import Reentry
from ..limiters.resource import Capacity, Resource
from ..limits import REQUESTS, Rate, columns_for
from ..typing import Clock, Observer
from ..verdict import Verdict
from .leadership import Settings
from .membership import Membership
from .messages import Envelope, Grant, Heartbeat, Message, Report
from .recovery import Cubic, Level, Stepwise, Total
from .rules import NEVER, ROUND, LeasedRules, TurnRule, rule_of_share, share_of_rate, turn_in
from .shares import WHOLE, agent_of

_ALWAYS = 1 << 62

# How many pauses are remembered, so that each counts once.
_MOST_PAUSES = 64


@dataclass(frozen=True, slots=True)
class Options:
    """How one agent takes part in a swarm, as its limiter was told."""

    agent_id: str
    namespace: str
    secret: bytes | None
    settings: Settings  # as far as they do not depend on the bus
    curve: Cubic | Stepwise
    each: bool  # whether every agent has the whole total
    wall: Callable[[], int]  # nanoseconds since 1970
    observer: Observer | None
    clock: Clock


class Target(NamedTuple):
    """What a gate is to go by."""

    rates: tuple[Rate, ...]
    wholes: tuple[Rate, ...]  # the rates that those are shares of
    share: int  # of WHOLE
    expires: int
    open_from: int  # the end of the pause for this agent
    cuts: int  # after each cut, all agents that go in turns begin a new round
    turn: int  # where in that round this agent comes, from 0 to ROUND


class SharedResource(Resource):
    """One resource of a swarm in one agent."""

    def __init__(
        self,
        name: str,
        rates: tuple[Rate, ...],
        membership: Membership,
        options: Options,
        learn: Callable[[Verdict, int], None],
    ) -> None:
        clock, columns, places = options.clock, columns_for(rates), ConcurrencyRule(None, None)
        self._rules = LeasedRules(places, successors((), rates, columns, 0))
        super().__init__(
            Gate(name, self._rules, columns=columns, observer=options.observer, clock=clock, learn=learn),
            places,
        )
        now = clock.now()
        self.name = name
        self.membership = membership
        self.rates = rates
        self.total = Total(rates[0].amount, options.curve, now)
        self.reason = ""  # why the total was cut, until an event has told it
        self._turn = membership.member.settings.turn
        self._each = options.each
        # What the gate is to go by, and the rates it goes by.
        self.target = Target((), rates, 0, NEVER, NEVER, 0, self._turn)
        self._applied: tuple[Rate, ...] = ()
        self._round = 0
        self._basis: tuple[int, tuple[Rate, ...]] = (0, ())  # what the rates of the target were computed from
        self._paused_until = NEVER
        self._pause = ("", 0)  # name and duration of the pause that is on
        self._pauses: dict[str, None] = {}  # names of pauses that were heard of, the latest last
        # Calls acquired without a block since the last measurement and before it, and calls that succeeded.
        self._admitted_now = self._admitted_before = self._succeeded = 0
        self._reported = self._measured = 0  # how many admitted calls were reported, and counted as demand
        self._measured_at = self.measure_at = now
        self.due = now  # when there is something to do next
        # The level that was last retained on the bus for agents that come when no other is there.
        self.retained: Level | None = None
        self.retained_at = NEVER
        # For the leader: the runs heard of each agent, and the agents of which two runs are alive.
        self.runs: dict[str, list[str]] = {}
        self.duplicates: set[str] = set()

    def configure(self, rates: tuple[Rate, ...]) -> None:
        self.rates = rates
        self.total.base = rates[0].amount

    # -- how calls went

    def keep(self, permit: Permit) -> None:
        super().keep(permit)
        self._admitted_now += 1

    def block_succeeded(self, permit: Permit) -> None:
        if permit.taken_at > self.total.cut_at:
            self._succeeded += 1

    def measure(self, now: int) -> None:
        """Measure, once an interval, how much of the whole is wanted here.

        A call that was acquired without a block, and not complained of for an interval, has succeeded.
        """
        elapsed = now - self._measured_at
        if elapsed <= 0:
            return
        admitted = self._rules.admitted - self._measured
        self._measured, self._measured_at = self._rules.admitted, now
        waiting = self.gate.waiting
        used = (admitted + waiting) * self.rates[0].per_ns * WHOLE * 6 // (5 * elapsed * self.total.amount)
        if waiting:
            used = max(used, 2 * self.membership.share(now))
        member = self.membership.member
        member.wants = min(WHOLE, max(used, (3 * member.wants + used) // 4))
        self._succeeded += self._admitted_before
        self._admitted_before, self._admitted_now = self._admitted_now, 0

    def counts(self) -> tuple[int, int]:
        """How many calls were admitted and how many succeeded since this was last asked."""
        admitted, self._reported = self._rules.admitted - self._reported, self._rules.admitted
        succeeded, self._succeeded = self._succeeded, 0
        return admitted, succeeded

    def begin_episode(self, reason: str) -> None:
        """The total was just cut: calls admitted before say nothing about it."""
        self._admitted_now = self._admitted_before = self._succeeded = 0
        self._reported = self._rules.admitted
        self.reason = reason

    def grow(self, now: int) -> None:
        """Let the total grow. The leader calls this, and a member that lost it."""
        self.total.count(*self.counts())
        interval = self.membership.member.settings.interval
        self.total.grow(self.rates[0].per_ns, interval, now, paused=now < self._paused_until)

    def next_at(self, now: int) -> int:
        """When there is something to do next."""
        membership, total = self.membership, self.total
        due = membership.next_at(now)
        if total.reduced and (membership.is_leader or membership.out_of_touch(now)):
            looks_at = total.looks_at(membership.member.settings.interval)
            if looks_at > now:  # otherwise it waits for a call to succeed: the next report may tell
                due = min(due, looks_at)
        return due

    def envelope(self, message: Message, now: int) -> Envelope:
        """A message of the member, with what else there is to tell of the resource."""
        if not isinstance(message, (Report, Heartbeat, Grant)):
            return Envelope(self.name, message)
        admitted, succeeded = self.counts() if isinstance(message, Report) else (0, 0)
        duplicate = isinstance(message, Grant) and agent_of(message.to) in self.duplicates
        pause = None if now >= self._paused_until else (self._paused_until - now, self._pause[0])
        return Envelope(self.name, message, self.total.level, pause, admitted, succeeded, duplicate)

    # -- a pause for all agents

    def pause(self, duration: int, name: str, now: int) -> bool:
        """Admit no call for `duration`. The same pause is heard of several times, and counts once."""
        if name in self._pauses:
            return False
        self._pauses[name] = None
        if len(self._pauses) > _MOST_PAUSES:
            del self._pauses[next(iter(self._pauses))]
        if now + duration <= max(now, self._paused_until):
            return False
        self._paused_until = now + duration
        self._pause = (name, duration)
        return True

    def _reentry(self) -> int:
        """Over how long waiting calls come back after the pause."""
        return min(max(self._pause[1] // 2, 2 * SECOND), 30 * SECOND)

    def _open_from(self) -> int:
        """When the pause is over for this agent: for one agent after the other."""
        if self._paused_until == NEVER:
            return NEVER
        return self._paused_until + self._reentry() * self._turn // (2 * ROUND)

    # -- what the gate is to go by

    def share(self, now: int) -> int:
        """The share of the total that this agent may use, in units."""
        return self.total.amount * self._share(now) // WHOLE

    def _share(self, now: int) -> int:
        if self._each:
            return WHOLE if self.membership.joined else 0
        return self.membership.share(now)

    def decide(self, now: int) -> bool:
        """Compute the target from now on. True: it is another than before."""
        share = self._share(now)
        until = self.membership.until(now)
        if not share:
            expires = NEVER
        elif self._each or until <= now:
            expires = _ALWAYS
        else:
            expires = until
        basis = (self.total.amount * share, self.rates)
        rates = self.target.rates
        if basis != self._basis:
            self._basis = basis
            whole = self.rates[0].amount * WHOLE
            rates = tuple(share_of_rate(rate, basis[0], whole) for rate in self.rates) if share else ()
        cuts, place = self.total.epoch, self.membership.place
        turn = turn_in(cuts, self._turn if place is None else place)
        before = self.target
        self.target = Target(rates, self.rates, share, expires, self._open_from(), cuts, turn)
        return self.target != before

    def apply(self) -> None:
        """Bring the gate to the target, which may be newer than the decision that led here."""
        self.gate.change(self._apply_locked)

    def _apply_locked(self, now: int) -> None:
        target, rules = self.target, self._rules
        rules.expires_at = target.expires
        rules.whole = target.share == WHOLE
        new_round, self._round = target.cuts != self._round, target.cuts
        if target.open_from > now and target.open_from != rules.pause.until:
            rules.pause.until = target.open_from
            rules.reentry = Reentry(rules.pause, self._reentry())
        if not target.rates or target.rates == self._applied:
            return
        columns = columns_for(target.rates, self.gate.columns, learned=True)
        # The burst belongs to the swarm and may be spent: an agent that joins one begins without.
        joins = not self._applied and not (self._each or self.membership.is_leader)
        left = list(rules.rates)
        new = []
        for rate, whole in zip(target.rates, target.wholes, strict=True):
            rule = rule_of_share(rate, whole, columns, target.turn)
            before = next((before for before in left if before.column == rule.column), None)
            if before is not None:
                left.remove(before)
                rule.follow(before, now)
                if isinstance(rule, StrictRule) and before.rate.amount < rate.amount:
                    rule.keep_to(before.rate.amount, now)  # the agents that had the rest may have used it
            if new_round and isinstance(rule, TurnRule):
                rule.begin_round_after(now, rate.per_ns * target.share // (rate.amount * WHOLE))
            if joins:
                rule.lower(0, now)
            new.append(rule)
        self._applied = target.rates
        self.gate.set_rate_rules(new, columns)

    # -- looking

    def capacity(self, total: int, share: int) -> Capacity:
        def look(now: int) -> Capacity:
            rules = self._rules
            counting = [rule for rule in rules.rates if rule.column == REQUESTS] or list(rules.rates)
            admits = now < rules.expires_at and not rules.pause.active(now)
            return Capacity(
                resource=self.name,
                available=max(0, min(rule.level(now) for rule in counting)) if admits else 0,
                total=total,
                window=self.rates[0].per,
                in_flight=self.places.in_flight + self.acquired,
                share=share,
            )

        return self.gate.look(look)

    def changed(self, now: int) -> events.CapacityChanged:
        """The event that tells of a new total or share."""
        reason, self.reason = self.reason, ""
        return events.CapacityChanged(
            key=self.name, at=now / SECOND, total=self.total.amount, share=self.share(now), reason=reason
        )
