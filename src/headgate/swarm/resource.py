"""One resource as one agent of the swarm has it: its gate, its part, and what was done with it.

Rules of this room: what is decided here is arithmetic, under the limiter's lock; the gate is brought to it
afterwards, under its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .. import events
from ..arguments import SECOND
from ..gate.bucket import rule_for
from ..gate.decision import REFUSED, Rules
from ..gate.gate import Gate
from ..gate.window import Reentry, Window
from ..limiters.resource import Capacity, Resource, Slot
from ..limits import REQUESTS, Rate
from .recovery import Total
from .rounds import ROUND, TurnRule, turn_in
from .shares import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from ..gate.admission import Permit
    from ..gate.decision import AnyRate
    from ..gate.slots import ConcurrencyRule
    from ..verdict import Verdict
    from .membership import Council
    from .recovery import Cubic, Level, Stepwise

_LONG_AGO = -(1 << 62)
_NEVER = 1 << 62

# Of so many pauses it is remembered that they were heard of.
_MOST_PAUSES = 64


class LeasedRules(Rules):
    """Admits as long as the part is ours, and counts whom it admits."""

    __slots__ = ("expires_at", "granted", "whole")

    def __init__(self, places: ConcurrencyRule, rates: Sequence[AnyRate]) -> None:
        window = Window()
        super().__init__(window=window, reentry=Reentry(window, 0), places=places, rates=rates, final=True)
        self.expires_at = _LONG_AGO
        self.whole = False  # does all of it belong to us?
        self.granted = 0

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        if now >= self.expires_at:
            return REFUSED  # a process that was stopped for a while wakes up with a part that is not its own
        mode = super().enter(cost, now)
        if mode:
            self.granted += cost[REQUESTS] or 1
        return mode

    def held_by(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        return ("share", None) if now >= self.expires_at else super().held_by(cost, now)

    def certain_wait(self, cost: tuple[int, ...], now: int) -> tuple[str, int] | None:
        # Whoever waits makes its part grow, so nothing is certain unless there is no more to have.
        return super().certain_wait(cost, now) if self.whole and now < self.expires_at else None


class SwarmGate(Gate):
    """Tells the limiter what outcomes say."""

    __slots__ = ("heed",)
    heed: Callable[[Verdict, int], None]

    def _learn(self, verdict: Verdict, sent_at: int) -> None:
        self.heed(verdict, sent_at)


class SwarmSlot(Slot):
    """A place at a resource. A block that ends without an error has ended well."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._note(kind)
        super().__exit__(kind, error, tb)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._note(kind)
        await super().__aexit__(kind, error, tb)

    def _note(self, kind: type[BaseException] | None) -> None:
        if kind is None and self._permit is not None:
            known = self._known
            assert isinstance(known, Pool)
            known.ended_well(self._permit._taken_at)


class _Desired(NamedTuple):
    """What a gate is to go by."""

    rates: tuple[Rate, ...]
    wholes: tuple[Rate, ...]  # what each of them is a part of
    part: int  # how much of the whole
    expires: int
    open_from: int
    round: int  # how many cuts there were: after each, all who go in turns begin anew
    turn: int  # where in that round this agent comes, of ROUND


class Pool(Resource):
    """One resource."""

    __slots__ = (
        "_aged",
        "_basis",
        "_fresh",
        "_measured",
        "_measured_at",
        "_pause",
        "_pauses",
        "_round",
        "_told",
        "_well",
        "applied",
        "beat_at",
        "council",
        "desired",
        "due",
        "each",
        "name",
        "noted",
        "noted_at",
        "paused_until",
        "rates",
        "reason",
        "rules",
        "speakers",
        "total",
        "turn",
        "twins",
    )

    def __init__(
        self,
        gate: Gate,
        rules: LeasedRules,
        council: Council,
        *,
        rates: tuple[Rate, ...],
        curve: Cubic | Stepwise,
        turn: int,
        each: bool,
        now: int,
    ) -> None:
        assert rules.places is not None
        super().__init__(gate, rules.places)
        self.name = str(gate._key)
        self.rules = rules
        self.council = council
        self.rates = rates
        self.total = Total(rates[0].amount, curve, now)
        self.turn = turn  # where in a round of all agents this one comes, in millionths
        self.each = each
        self.reason = ""  # why it has less, until somebody was told
        # What the gate is to go by, and the rates it does go by.
        self.desired = _Desired((), rates, 0, _LONG_AGO, _LONG_AGO, 0, turn)
        self.applied: tuple[Rate, ...] = ()
        self._round = 0
        self._basis: tuple[int, tuple[Rate, ...]] = (0, ())  # what the rates were made of
        self.paused_until = _LONG_AGO
        self._pause = ("", 0)  # the one that is on: its name, and how long it takes
        self._pauses: dict[str, None] = {}  # those that were heard of, the latest last
        # Calls admitted here just now, a beat ago without complaint, and those known to have ended well.
        self._fresh = self._aged = self._well = 0
        self._told = self._measured = 0  # of those granted, how many were told of, and were counted as demand
        self._measured_at = self.beat_at = now
        self.due = now  # when something is worth doing next
        self.noted: Level | None = None  # what was left on the bus for those who come when nobody is there
        self.noted_at = _LONG_AGO
        # For whoever leads: which runs of an agent were heard, and which agents have two that live.
        self.speakers: dict[str, list[str]] = {}
        self.twins: set[str] = set()

    def configure(self, rates: tuple[Rate, ...]) -> None:
        self.rates = rates
        self.total.base = rates[0].amount

    # -- what was done

    def keep(self, permit: Permit) -> None:
        super().keep(permit)
        self._fresh += 1

    def ended_well(self, taken_at: int) -> None:
        if not self.total.began_after(taken_at):
            self._well += 1

    def measure(self, now: int) -> None:
        """Once a beat: how much of the whole is wanted here? What was admitted before ended well by now."""
        elapsed = now - self._measured_at
        if elapsed <= 0:
            return
        granted = self.rules.granted - self._measured
        self._measured, self._measured_at = self.rules.granted, now
        waiting = self.gate._line.waiting
        rate = self.rates[0]
        used = (granted + waiting) * rate.per_ns * WHOLE * 6 // (5 * elapsed * self.total.amount)
        council = self.council
        if waiting:
            used = max(used, 2 * council.part(now))
        council.wants = min(WHOLE, max(used, (3 * council.wants + used) // 4))
        self._well += self._aged
        self._aged, self._fresh = self._fresh, 0

    def report(self) -> tuple[int, int]:
        """How many were granted and how many ended well since this was last asked."""
        granted, self._told = self.rules.granted - self._told, self.rules.granted
        well, self._well = self._well, 0
        return granted, well

    def begin_episode(self, reason: str) -> None:
        """The total was just cut: what was admitted before says nothing about it."""
        self._fresh = self._aged = self._well = 0
        self._told = self.rules.granted
        self.reason = reason

    def grow(self, now: int) -> None:
        """For whoever leads, or is alone."""
        self.total.count(*self.report())
        if now < self.paused_until:
            self.total.hold(now)
        self.total.grow(self.rates[0].per_ns, self.council.beat, now)

    # -- a pause for all

    def pause(self, duration: int, name: str, now: int) -> bool:
        """Nobody goes for so long. The same pause is heard of many times, and ever later: once counts."""
        if name in self._pauses:
            return False
        self._pauses[name] = None
        if len(self._pauses) > _MOST_PAUSES:
            del self._pauses[next(iter(self._pauses))]
        if now + duration <= max(now, self.paused_until):
            return False
        self.paused_until = now + duration
        self._pause = (name, duration)
        return True

    def pause_left(self, now: int) -> list[Any] | None:
        """What to tell others of the pause, while there is one."""
        if now >= self.paused_until:
            return None
        return [self.paused_until - now, self._pause[0]]

    def _reentry(self) -> int:
        """Over how long the crowd comes back after a pause."""
        return min(max(self._pause[1] // 2, 2 * SECOND), 30 * SECOND)

    def _open_from(self) -> int:
        """When the pause is over for this agent: first one, then another."""
        if self.paused_until == _LONG_AGO:
            return _LONG_AGO
        return self.paused_until + self._reentry() * self.turn // (2 * ROUND)

    # -- what the gate is to go by

    def share(self, now: int) -> int:
        return self.total.amount * self._part(now) // WHOLE

    def _part(self, now: int) -> int:
        if self.each:
            return WHOLE if self.council.joined else 0
        return self.council.part(now)

    def settle(self, now: int) -> bool:
        """Note what the gate is to go by from now on. True: something else than before."""
        part = self._part(now)
        until = self.council.until(now)
        if not part:
            expires = _LONG_AGO
        elif self.each or until <= now:
            expires = _NEVER
        else:
            expires = until
        basis = (self.total.amount * part, self.rates)
        if basis != self._basis:
            self._basis = basis
            whole = self.rates[0].amount * WHOLE
            rates = tuple(_shared(rate, basis[0], whole) for rate in self.rates) if part else ()
        else:
            rates = self.desired.rates
        level, place = self.total.level, self.council.place
        cuts = 0 if level is None else level.epoch
        turn = turn_in(cuts, self.turn if place is None else place)
        desired = _Desired(rates, self.rates, part, expires, self._open_from(), cuts, turn)
        changed = desired != self.desired
        self.desired = desired
        return changed

    def apply(self) -> None:
        """Bring the gate to it: to what is noted by now, which may be newer than what made us come here."""
        self.gate._change(self._apply_locked)

    def _apply_locked(self, now: int) -> None:
        rates, wholes, part, self.rules.expires_at, open_from, cuts, turn = self.desired
        self.rules.whole = part == WHOLE
        begins, self._round = cuts != self._round, cuts
        window = self.rules.window
        assert window is not None
        if open_from > now and open_from != window.until:
            window.until = open_from
            self.rules.reentry = Reentry(window, self._reentry())
        if not rates or rates == self.applied:
            return
        gate = self.gate
        columns = dict(gate._columns)
        for rate in rates:
            columns.setdefault(rate.unit, len(columns))
        rules = [_rule(rate, whole, columns, turn) for rate, whole in zip(rates, wholes, strict=True)]
        # The burst is the swarm's, and may be spent: whoever joins one has nothing yet.
        joins = not self.applied and not (self.each or self.council.reigns)
        left = list(self.rules.rates)
        for rate, rule in zip(rates, rules, strict=True):
            before = next((before for before in left if before.column == rule.column), None)
            if before is not None:
                left.remove(before)
                rule.follow(before, now)
            if begins and isinstance(rule, TurnRule):
                rule.begin_round_after(now, rate.per_ns * part // (rate.amount * WHOLE))
            if joins:
                rule.lower(0, now)
        self.applied = rates
        gate._columns = columns
        self.rules.set_rates(rules)
        gate._follow_rules()
        for ticket in gate._line.tickets():
            ticket.cost = gate._at_full_length(ticket.cost)

    # -- looking

    def capacity(self, total: int, share: int) -> Capacity:
        def look(now: int) -> Capacity:
            rules = self.rules
            assert rules.window is not None
            rates = [rule for rule in rules.rates if rule.column == REQUESTS] or list(rules.rates)
            opened = now < rules.expires_at and not rules.window.closed(now)
            return Capacity(
                resource=self.name,
                available=max(0, min(rule.level(now) for rule in rates)) if opened else 0,
                total=total,
                window=self.rates[0].per,
                in_flight=self.places.in_flight + self.acquired,
                share=share,
            )

        return self.gate._under_lock(look)

    def changed(self, now: int) -> events.CapacityChanged:
        reason, self.reason = self.reason, ""
        return events.CapacityChanged(
            key=self.name, at=now / SECOND, total=self.total.amount, share=self.share(now), reason=reason
        )


def _rule(rate: Rate, whole: Rate, columns: dict[str, int], turn: int) -> AnyRate:
    if rate.strict or whole.burst * whole.per_ns >= rate.per_ns:
        return rule_for(rate, columns)
    return TurnRule(rate, columns[rate.unit], turn)  # its part of the burst is less than a call


def _shared(rate: Rate, numerator: int, denominator: int) -> Rate:
    """That part of a rate. Fractions of a call are kept by taking longer for the same amount."""
    if numerator == denominator:
        return rate
    if rate.strict:
        amount = rate.amount * numerator // denominator
        if amount:
            return Rate.of_ns(amount, rate.per_ns, None, rate.unit, strict=True)
        per_ns = -(-rate.per_ns * denominator // (numerator * rate.amount))
        return Rate.of_ns(1, per_ns, None, rate.unit, strict=True)
    per_ns = -(-rate.per_ns * denominator // numerator)
    burst = max(1, rate.burst * numerator // denominator)
    return Rate.of_ns(rate.amount, per_ns, burst, rate.unit, strict=False)
