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
from .parts import WHOLE
from .reunion import BY_POOL, HUNG, LATE, REUNION, WAITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...limits import Columns
    from .places import HeldPlaces
    from .question import Answer, PoolLimits, Question

# How soon a member asks again for its part, and how seldom in the end.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# How often a process that goes by its part asks; a crowd less often, so that its store can answer all.
_TELL = 20_000_000
_CROWD = 16
# An event loop is that exact: a timer may ring this much before its time.
_EXACTLY = 0.000_001
_EXACTLY_NS = 1_000


class OwnPart:
    """The part of the limits that a process goes by while it does not go by the pool, as that has told it."""

    __slots__ = (
        "_failed",
        "_farthest",
        "_hangs",
        "_lost_at",
        "_on_loss",
        "_pause",
        "active",
        "ask_at",
        "begins",
        "granted_for",
        "missed",
        "places",
        "rates",
        "returns_at",
    )

    def __init__(self, on_loss: str) -> None:
        self._on_loss = on_loss
        self.active = False  # this process does not go by the pool
        self.missed = False  # because it could not ask
        self.rates = 0  # of WHOLE
        self.places = 0
        self.granted_for = 0  # how long members may use what they were granted, in microseconds
        self._farthest = 0  # the longest round trip of a member, in microseconds
        self._lost_at: int | None = None  # when a question was asked that had no answer
        self.begins = 0  # without the store: from when on it may be used, in nanoseconds
        self._failed = False  # a question had no answer, and will have none
        self._hangs = False  # there was no error either, and members use their parts
        self.returns_at: int | None = None  # when this process goes by a store that is back
        self.ask_at: float | None = None  # when to ask for it again, in seconds; None: it is final
        self._pause = _FIRST_PAUSE

    def take(self, answer: Answer, now: float) -> None:
        """The pool has told what it is from now on."""
        before = self.rates, self.places
        self.granted_for, self._farthest = answer["granted_for"], answer["farthest"]
        self.rates, self.places, final = answer["part"]
        if final:
            self.ask_at, self._pause = None, _FIRST_PAUSE
        elif self.rates < before[0] or self.places < before[1]:
            self.ask_at, self._pause = now, _FIRST_PAUSE  # the others wait to hear that it is smaller
        else:
            self.ask_at, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)

    def asks(self, now: float) -> bool:
        """Whether it is time to ask again: for the part, or whether the store is back."""
        return self.active or (self.ask_at is not None and now >= self.ask_at - _EXACTLY)

    def look_in(self, now: float) -> float | None:
        """In how many seconds to look whether it is time. None: that is not known, or told in time."""
        if self.active:
            return _TELL / SECOND if self.returns_at is None else None
        return None if self.ask_at is None else max(0.001, self.ask_at - now)

    def tell(self, question: Question, now: int) -> None:
        """Tell the pool what this process goes by. Another one may follow, if the store loses the pool."""
        question["part"], question["granted_for"] = [self.rates, self.places], self.granted_for
        if self._lost_at is not None:
            self._tell_loss(question, now, self._lost_at)

    def tell_again(self, question: Question, now: int) -> None:
        """The same question is asked later: the loss that it tells of is longer ago."""
        if self.asked(question) and self._lost_at is not None:
            self._tell_loss(question, now, self._lost_at)

    def _tell_loss(self, question: Question, now: int, lost_at: int) -> None:
        """Tell since when this process goes by its part, and how long others may not hear of the store.

        Each of them asks again after a moment, and hears the answer a round trip later. If questions hung,
        that of another member may have hung since a moment ago: it is given up first. If no question has
        failed, and one was answered late, others have heard of the store, too.
        """
        question["lost_for"] = max(0, (now - lost_at) // NS_PER_US)
        hung = HUNG + 2 * self._farthest if self._hangs else 0
        if self._on_loss not in ("share", "open") or self.rates >= WHOLE or self.returns_at is not None:
            question["apart"] = WAITS
        else:
            question["apart"] = REUNION + self._farthest + hung if self._failed else LATE

    def asked(self, question: Question) -> bool:
        """Whether the pool was told with that question that this process goes by its part."""
        return question["apart"] != BY_POOL

    def lose(self, asked_at: int, now: int) -> float:
        """A question of that moment had no answer. Return in how many seconds this process begins with it.

        The others should have used by then what they were granted until that moment.
        """
        self.missed = True
        self._failed = self._hangs = False
        self.returns_at = None
        return self._go_apart(asked_at, now)

    def _go_apart(self, since: int, now: int) -> float:
        others_use = self.granted_for * NS_PER_US if self.rates < WHOLE else 0
        self.begins, self._lost_at = max(now, since + others_use), since
        self.active = True
        return (self.begins - now) / SECOND

    def fail(self, *, hung: bool) -> None:
        """One more question had no answer. It `hung`, or there was an error."""
        self._failed = True
        self._hangs |= hung and self._on_loss == "share"

    def join(self, answer: Answer, seconds: float, now: int) -> float:
        """Go by it, although the store was there: others could not ask. Return the same as `lose`."""
        self.take(answer, seconds)
        return self._go_apart(now, now)

    def meet(self, until: int, now: int) -> None:
        """Go by it until then: from that moment on all members go by the pool."""
        self.returns_at = max(until, now)

    def left(self, now: int) -> float | None:
        """In how many seconds all members go by the pool. None: that is not known, or this one does."""
        if not self.active or self.returns_at is None:
            return None
        return max(0, self.returns_at - now) / SECOND

    def end(self) -> bool:
        """This process goes by the pool from now on. Return whether it could not ask before."""
        missed = self.missed
        self._lost_at = self.returns_at = None
        self.active = self.missed = self._failed = self._hangs = False
        return missed

    def pause(self, asked_at: int, members: int, now: int) -> float:
        """How many seconds to wait with the next question, while this process goes by its part."""
        return max(0, asked_at + _TELL * max(1, members // _CROWD) - now) / SECOND if self.active else 0

    def grant(
        self,
        rates: Sequence[Rate],
        limits: PoolLimits,
        columns: Columns,
        held: HeldPlaces,
        now: int,
    ) -> Grant:
        """What to go by, according to `on_loss`: also for a member that missed nothing and waits for others.

        What was granted ("lease"), all places and no rates ("open"), nothing ("closed"), or the part of this
        process ("share"), and no more places and bytes than were `held` until their lease ends: others may
        use theirs until then. Until the part of the rates begins, that is what was granted of them.
        """
        on_loss = self._on_loss if self.missed or self._on_loss == "share" else "closed"
        if on_loss == "lease":
            return Grant()
        if on_loss == "open":
            return Grant(
                rates=(), places=limits.places or None, bytes=limits.bytes or None, valid_until=FAR_OFF
            )
        closed = on_loss == "closed"
        share, places = (0, 0) if closed else (self.rates, self.places)
        load = limits.bytes * share // WHOLE
        if now < held.valid_until:
            places, load = min(places, held.granted[0]), min(load, held.granted[1])
        grant = Grant(  # a member that missed nothing goes on by what it is granted of these
            places=places if limits.places and self.missed else None,
            bytes=load if limits.bytes and self.missed else None,
            valid_until=FAR_OFF if self.missed else None,
        )
        if not closed and now < self.begins - _EXACTLY_NS:
            return grant
        columns = columns_for(rates, columns, learned=True)
        begins = max(now, self.begins)
        own = [_share_of(rate, columns[rate.unit], share, begins) for rate in rates]
        return replace(grant, rates=own, columns=columns)

    def used(self, rules: Sequence[AnyRate], rates: Sequence[Rate]) -> list[int]:
        """How much of each rate to tell a pool. It has filled up before it hears the first of it.

        So that is at most our part of a burst.
        """
        owed = [0] * len(rates)
        for i, (rule, rate) in enumerate(zip(rules, rates, strict=False)):
            if isinstance(rule, CountedRate):
                first = self.returns_at is None
                owed[i] = min(rule.taken, self.of_burst(rate)) if first else rule.taken
                rule.taken = 0
        return owed

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
