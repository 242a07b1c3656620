"""Pure. A strict rate of a shared pool: never more than its amount in any stretch of its period.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...hints import later
from .rate import NOT_KNOWN, STRICT

if TYPE_CHECKING:
    from .state import AnyPoolRate
else:
    AnyPoolRate = later("headgate.sharing.pool.state", "AnyPoolRate")

# How many groups of batches there are in a period: those that start closer together count as one.
GROUPS = 128
# A batch may be used until then after its start: a part of the period, within these bounds. A member uses it
# for half of that time only; the rest is for the way of the answer.
LIFE_PART, SHORTEST_LIFE, LONGEST_LIFE = 64, 100_000, 1_000_000


@dataclass(slots=True)
class StrictPoolRate:
    """`amount` units in any stretch of `period` µs.

    What was granted is remembered in groups of batches that start close together: when the first and the last
    of them start, the stamp of the last, and the units. A group counts until its last batch, used as late as
    possible, has left the period. Until `capped_until` no more than `cap` may count: the far side said so.
    """

    amount: int
    period: int
    burst: int
    kind: int = STRICT
    gone: int = 0  # the stamp of the last batch that counts no longer
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    heard_at: int = 0  # when the call was sent whose answer told the newest; 0: none did
    capped_until: int = 0
    cap: int = 0

    @property
    def terms(self) -> list[int]:
        """Amount, period, burst and kind, as a question and an answer give them."""
        return [self.amount, self.period, self.burst, self.kind]

    @property
    def most(self) -> int:
        """How many units there are at once."""
        return self.amount

    @property
    def _life(self) -> int:
        """For how long after its start a batch may be used."""
        return min(LONGEST_LIFE, max(SHORTEST_LIFE, self.period // LIFE_PART))

    @property
    def counts_for(self) -> int:
        """How long a batch counts from its start."""
        return self.period + self._life

    def time_for(self, units: int) -> int:
        """Return how long these units take at the rate, rounded up."""
        return -(-units * self.period // self.amount)

    def missing(self, now: int) -> int:
        """Return how many units count."""
        gone = now - self.counts_for
        return sum(units for last, units in zip(self.lasts, self.units, strict=True) if last > gone)

    def fits_at(self, units: int, now: int, less: int = 0, *, apart: bool = False) -> int:  # noqa: ARG002 - of a method of every rate
        """Return when these units fit."""
        units = min(units, self.amount)
        at = self._down_to(self.amount - units, now)
        if at < self.capped_until:
            at = min(max(at, self._down_to(self.cap - units, now)), self.capped_until)
        return at

    def room(self, at: int) -> int:
        """Return how many units there are at that moment, if nothing else is taken."""
        return max(0, self.amount - self.missing(at))

    def _down_to(self, most: int, now: int) -> int:
        """Return when no more than `most` will count, if nothing else is taken."""
        if most < 0:
            return max(now, self.capped_until)
        excess = sum(self.units) - most
        at = now
        for last, units in zip(self.lasts, self.units, strict=True):
            if excess <= 0:
                break
            excess -= units
            at = max(now, last + self.counts_for)
        return at

    def advance(self, now: int, _next_stamp: Callable[[], int]) -> None:
        """Forget what has left the period."""
        gone = now - self.counts_for
        count = sum(last <= gone for last in self.lasts)
        if count:
            self.gone = self.stamps[count - 1]
            for column in (self.firsts, self.lasts, self.stamps, self.units):
                del column[:count]

    def resume(self, until: int, next_stamp: Callable[[], int]) -> None:
        """Nothing changes at the end of a window: what was used still counts, and nothing is saved up."""

    def flow_by(self, since: int, time: int) -> None:
        """Nothing is kept for flows: where a rate is strict, there are none."""

    def begin_empty(self, now: int, next_stamp: Callable[[], int]) -> None:
        """Have all units used, if they are those of a minute or less: how much was used is not known."""
        if self.period <= NOT_KNOWN:
            self.charge(self.amount, now, next_stamp())

    def charge(self, units: int, start: int, stamp: int, doubt: int = 0, *, small: bool = False) -> None:  # noqa: ARG002 - of a method of every rate
        """Take these units at that moment. They count for longer if they may be used much later: `doubt`."""
        if not units:
            return
        start += max(0, doubt - self._life // 2)
        firsts, lasts = self.firsts, self.lasts
        if lasts and (start <= lasts[-1] or start < firsts[-1] + self.period // GROUPS):
            lasts[-1] = max(lasts[-1], start)
            self.stamps[-1] = stamp
            self.units[-1] += units
        else:
            firsts.append(start)
            lasts.append(start)
            self.stamps.append(stamp)
            self.units.append(units)

    def tell_taken(self, units: int, start: int, doubt: int = 0) -> None:
        """Nothing is remembered besides what counts."""

    def take_back(self, units: int, stamp: int, now: int) -> None:  # noqa: ARG002 - a method of every rate
        """Return units of the batch with that stamp, if they still count."""
        if stamp <= self.gone:
            return
        for i, last in enumerate(self.stamps):
            if stamp <= last:
                self.units[i] -= min(units, self.units[i])
                return

    def hear(self, remaining: int, allowed: int, at: int, now: int) -> bool:  # noqa: ARG002 - as above
        """A call that was sent at `at` was told what remains: for a period no more is left. Always False."""
        if at >= self.heard_at:
            self.heard_at = at
            cap = self.missing(now) + remaining
            self.capped_until = now + self.period if cap < self.amount else 0
            self.cap = min(cap, self.amount)
        return False

    def follow(self, old: AnyPoolRate, now: int) -> None:
        """Continue where the rate that this one replaces stands. A change of limits creates no units."""
        if isinstance(old, StrictPoolRate):
            self.gone = old.gone
            # Copies: two rates may follow one.
            self.firsts, self.lasts = [*old.firsts], [*old.lasts]
            self.stamps, self.units = [*old.stamps], [*old.units]
            self.heard_at, self.capped_until, self.cap = old.heard_at, old.capped_until, old.cap
        else:
            self.charge(self.amount - min(self.amount, old.left(now)), now, self.gone)

    def left(self, now: int) -> int:
        """Return how many units a rate that replaces this one may go on with."""
        return max(0, self.amount - self.missing(now))

    def idle_from(self) -> int:
        """Return from when on it is like a new one."""
        return max([self.capped_until, *(last + self.counts_for for last in self.lasts[-1:])])

    def idle_after(self, until: int) -> int:
        """Return from when on it is like a new one, if it has yet to come back from a window of that end."""
        return max(until, self.idle_from())
