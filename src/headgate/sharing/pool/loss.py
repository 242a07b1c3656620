"""Pure. What a gate goes by while its store cannot be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...arguments import NS_PER_US, SECOND
from ...gate.bucket import RateRule
from ...gate.decision import FAR_OFF
from ...gate.leased import LeasedRate
from ...gate.supply import Grant
from ...hints import AnyRate
from ...limits import Rate, columns_for
from .grants import CALLS, granted_ahead
from .parts import WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...limits import Columns
    from .question import Answer, PoolLimits, Question

# How soon a member asks again for its part, and how seldom in the end.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# How long after a store is back nothing is granted, besides the time in which the one that is farthest away
# hears of it.
_REUNION = 350_000_000
# How often a process tells what it uses until then.
TELL = 20_000_000
# After how long a question that hangs is given up for lost.
_LONGEST_WAIT = 2_250_000_000
# An event loop is that exact: a timer may ring this much before its time.
_EXACTLY = 0.000_001
_EXACTLY_NS = 1_000


class OwnPart:
    """The part of the limits that one process goes by without the store, as its pool has told it."""

    __slots__ = (
        "_pause",
        "ask_at",
        "begins",
        "granted_for",
        "hangs",
        "places",
        "rates",
        "returns_at",
        "used",
    )

    def __init__(self) -> None:
        self.rates = 0  # of WHOLE
        self.places = 0
        self.granted_for = 0  # how long members may use what they were granted, in microseconds
        self.begins = 0  # without the store: from when on it may be used, in nanoseconds
        self.hangs = False  # questions get no answer, instead of errors, and members use their parts
        self.used = False  # without the store, and not told yet that nothing is saved up
        self.returns_at: int | None = None  # when this process goes by a store that is back
        self.ask_at: float | None = None  # when to ask for it again, in seconds; None: it is final
        self._pause = _FIRST_PAUSE

    def take(self, answer: Answer, now: float) -> None:
        """The pool has told what it is from now on."""
        before = self.rates, self.places
        self.granted_for = answer["granted_for"]
        self.rates, self.places, final = answer["part"]
        if final:
            self.ask_at, self._pause = None, _FIRST_PAUSE
        elif self.rates < before[0] or self.places < before[1]:
            self.ask_at, self._pause = now, _FIRST_PAUSE  # the others wait to hear that it is smaller
        else:
            self.ask_at, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)

    def asks(self, now: float) -> bool:
        """Whether it is time to ask again."""
        return self.ask_at is not None and now >= self.ask_at - _EXACTLY

    def tell(self, question: Question) -> None:
        """Tell the pool what this process goes by. Another one may follow, if the store loses the pool."""
        question["part"], question["granted_for"] = [self.rates, self.places], self.granted_for

    def lose(self, asked_at: int, now: int) -> float:
        """A question of that moment had no answer. Return in how many seconds this process begins with it.

        The others should have used by then what they were granted until that moment.
        """
        others_use = self.granted_for * NS_PER_US if self.rates < WHOLE else 0
        self.begins = max(now, asked_at + others_use)
        self.hangs, self.returns_at = False, None
        return (self.begins - now) / SECOND

    def returns(self, now: int, rates: Sequence[Rate], trip: int) -> int:
        """The store answers again. Return when all members have had time to tell what they used.

        That takes two round trips of the one that is farthest away, less two `trip`s of this one, which has
        heard of it so much later. If questions hung, that of another member may have hung since a moment ago:
        it is given up first, and asked again.
        """
        if self.returns_at is None:
            hung = _LONGEST_WAIT if self.hangs else 0
            farther = max(0, self._longest_trip(rates) - trip)
            self.returns_at = now + _REUNION + hung + 2 * farther
        return self.returns_at

    def _longest_trip(self, rates: Sequence[Rate]) -> int:
        """Return what `granted_for` says of the member that is farthest away, in nanoseconds."""
        times = [rate.per_ns // NS_PER_US * CALLS // rate.amount for rate in rates]
        ahead = granted_ahead(min(times, default=0) * self.processes)
        kept = [0 if rate.strict else rate.per_ns * (rate.burst // 10) // rate.amount for rate in rates]
        more = max(0, ahead // 2 - min(kept, default=0) // NS_PER_US)
        return max(0, self.granted_for - ahead - more) * NS_PER_US

    @property
    def processes(self) -> int:
        """How many processes there are at most, by the part of each."""
        return WHOLE // max(1, self.rates)

    def of_burst(self, rate: Rate) -> int:
        """The part of a burst, rounded up."""
        return -(-rate.burst * self.rates // WHOLE)


class CountedRate(RateRule):
    """A rate that remembers how much was taken, to tell the pool when the store is back."""

    __slots__ = ("taken",)

    def __init__(self, rate: Rate, column: int) -> None:
        super().__init__(rate, column)
        self.taken = 0

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        entered = super().enter(cost, now)
        if entered:
            self.taken += cost[self.column]
        return entered


def grant_without_store(
    rates: Sequence[Rate],
    limits: PoolLimits,
    columns: Columns,
    on_loss: str,
    part: OwnPart,
    held: Sequence[int] | None,
    now: int,
) -> Grant:
    """What to go by, according to `on_loss`, when a question has no answer.

    What was granted ("lease"), all places and no rates ("open"), nothing ("closed"), or the part of this
    process ("share"), and not more than these places and bytes if others are `held`. Until the part of the
    rates begins, that is what was granted of them.
    """
    if on_loss == "lease":
        return Grant()
    if on_loss == "open":
        return Grant(rates=(), places=limits.places or None, bytes=limits.bytes or None, valid_until=FAR_OFF)
    closed = on_loss == "closed"
    share, places = (0, 0) if closed else (part.rates, part.places)
    load = limits.bytes * share // WHOLE
    if held is not None:
        places, load = min(places, held[0]), min(load, held[1])
    grant = Grant(
        places=places if limits.places else None, bytes=load if limits.bytes else None, valid_until=FAR_OFF
    )
    if not closed and now < part.begins - _EXACTLY_NS:
        return grant
    columns = columns_for(rates, columns, learned=True)
    begins = max(now, part.begins)
    own = [_share_of(rate, columns[rate.unit], share, begins) for rate in rates]
    return replace(grant, rates=own, columns=columns)


def _share_of(rate: Rate, column: int, share: int, begins: int) -> AnyRate:
    """The share of a rate, of which nothing is saved up: how much was left is unknown.

    The share of a strict rate is even: it has a burst of one.
    """
    if not share:
        return LeasedRate(rate, column)  # to which nothing is granted
    per_ns = -(-rate.per_ns * WHOLE // share)
    burst = 1 if rate.strict else max(1, rate.burst * share // WHOLE)
    counted = CountedRate(Rate.of_ns(rate.amount, per_ns, burst, rate.unit, strict=False), column)
    counted.lower(0, begins)
    return counted


def used_without_store(rules: Sequence[AnyRate], rates: Sequence[Rate], part: OwnPart) -> list[int]:
    """How much of each rate to tell a pool. It has filled up before it hears the first of it.

    So that is at most our part of a burst.
    """
    owed = [0] * len(rates)
    for i, (rule, rate) in enumerate(zip(rules, rates, strict=False)):
        if isinstance(rule, CountedRate):
            first = part.returns_at is None
            owed[i] = min(rule.taken, part.of_burst(rate)) if first else rule.taken
            part.used |= rule.taken > 0
            rule.taken = 0
    return owed


def lease_rates(rates: Sequence[Rate], columns: Columns, part: OwnPart, now: int) -> list[AnyRate]:
    """Rates of which the pool grants units. If the part was used, the pool is told that nothing is saved up.

    Other members may have told later than this one what they used: the pool has earned that again meanwhile.
    """
    leased: list[AnyRate] = []
    for rate in rates:
        leased.append(rule := LeasedRate(rate, columns[rate.unit]))
        if part.used and not rate.strict:
            rule.tell(0, 0, now)
    part.used = False
    return leased
