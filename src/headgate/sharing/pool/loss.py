"""Pure. What a gate goes by while its store cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...arguments import NS_PER_US
from ...gate.bucket import RateRule
from ...gate.decision import FAR_OFF
from ...gate.leased import LeasedRate
from ...gate.supply import Grant
from ...hints import AnyRate
from ...limits import Rate, columns_for
from .parts import WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...limits import Columns
    from .question import Answer, PoolLimits, Question

# How soon a member asks again for its part, and how seldom in the end.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# An event loop is that exact: a timer may ring this much before its time.
_EXACTLY = 0.000_001


class OwnPart:
    """The part of the limits that one process goes by without the store, as its pool has told it."""

    __slots__ = ("_pause", "ask_at", "granted_for", "members", "places", "rates")

    def __init__(self) -> None:
        self.rates = 0  # of WHOLE
        self.places = 0
        self.members = 0  # of the pool, by the latest answer
        self.granted_for = 0  # how long these may use what they were granted, in microseconds
        self.ask_at: float | None = None  # when to ask for it again, in seconds; None: it is final
        self._pause = _FIRST_PAUSE

    def take(self, answer: Answer, now: float) -> None:
        """The pool has told what it is from now on."""
        before = self.rates, self.places
        self.members, self.granted_for = answer["members"], answer["granted_for"]
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
    asked_at: int,
) -> Grant:
    """What to go by, according to `on_loss`, when a question that was asked at that moment has no answer.

    What was granted ("lease"), all places and no rates ("open"), nothing ("closed"), or the part of this
    process ("share"), and not more than these places and bytes if others are `held`.
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
    columns = columns_for(rates, columns, learned=True)
    others_use = part.granted_for * NS_PER_US if part.members > 1 else 0
    begins = max(now, asked_at + others_use)
    return Grant(
        rates=[_share_of(rate, columns[rate.unit], share, begins) for rate in rates],
        columns=columns,
        places=places if limits.places else None,
        bytes=load if limits.bytes else None,
        valid_until=FAR_OFF,
    )


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
    """How much of each rate to tell a pool that has filled up since: at most our part of a burst."""
    owed = [0] * len(rates)
    for i, (rule, rate) in enumerate(zip(rules, rates, strict=False)):
        if isinstance(rule, CountedRate):
            owed[i] = min(rule.taken, part.of_burst(rate))
            rule.taken = 0
    return owed
