"""Pure. One rate of a shared pool: when units fit, what is charged, and what a return is worth.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# How many low-water marks a rate remembers for returns.
MOST_MARKS = 32


@dataclass(slots=True)
class PoolRate:
    """`amount` units in `period` µs, and at most `burst` at once.

    The level is one number: `full_at`, the moment at which everything that was taken will have been earned
    back. A return may not lift the level above what it would be had the units not been taken. So the rate
    remembers the stamp at which it was last full, `full_stamp`, and marks since: `lows[i]` is the least that
    was missing at any charge after `stamps[i]`, as time to earn it.
    """

    amount: int
    period: int
    burst: int
    full_at: int = 0
    full_stamp: int = 0
    stamps: list[int] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)

    @property
    def terms(self) -> list[int]:
        """Amount, period and burst, as a question and an answer give them."""
        return [self.amount, self.period, self.burst]

    def time_for(self, units: int) -> int:
        """Return how long these units take to be earned, rounded up."""
        return -(-units * self.period // self.amount)

    def tolerance(self) -> int:
        """Return how far `full_at` may be ahead. A tenth of the burst is kept back for unused grants."""
        return self.time_for(self.burst - self.burst // 10)

    def missing(self, now: int) -> int:
        """Return how many units are missing to be full, rounded up."""
        return -(-max(0, self.full_at - now) * self.amount // self.period)

    def fits_at(self, units: int, now: int) -> int:
        """Return when these units fit. More than the burst fits when the rate is full."""
        return max(now, self.full_at + self.time_for(min(units, self.burst)) - self.tolerance())

    def fill(self, stamp: int) -> None:
        """Note that nothing is missing: what was taken before cannot be returned any more."""
        self.full_stamp = stamp
        self.stamps, self.lows = [], []

    def charge(self, units: int, start: int, stamp: int) -> None:
        """Take these units at that moment, and mark how much was missing then: no return is worth more."""
        missing = self.full_at - start
        stamps, lows = self.stamps, self.lows
        if missing <= 0:
            self.fill(stamp)
        else:
            while lows and lows[-1] >= missing:
                lows.pop()
                stamps.pop()
            stamps.append(stamp)
            lows.append(missing)
            if len(lows) > MOST_MARKS:  # merge the two oldest: the lower one holds for the longer time
                lows.pop(1)
                stamps.pop(0)
        self.full_at = max(self.full_at, start) + self.time_for(units)

    def take_back(self, units: int, stamp: int, now: int) -> None:
        """Return units of the batch with that stamp, as far as they would still be missing."""
        stamps, lows = self.stamps, self.lows
        if self.full_stamp > stamp or self.full_at <= now:
            return
        later = next((i for i, mark in enumerate(stamps) if mark > stamp), len(stamps))
        lowest = min([self.full_at - now, *lows[later:]])
        credit = min(units * self.period // self.amount, lowest)
        self.full_at -= credit
        lows[later:] = [low - credit for low in lows[later:]]
        while 0 < later < len(lows) and lows[later - 1] >= lows[later]:  # an earlier mark must be lower
            later -= 1
            del stamps[later], lows[later]
