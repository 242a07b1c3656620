"""Pure. One rate of a shared pool: when units fit, what is charged, and what a return is worth.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from ...hints import later

if TYPE_CHECKING:
    from .state import AnyPoolRate
else:
    AnyPoolRate = later("headgate.sharing.pool.state", "AnyPoolRate")

# Kinds of rates: a bucket with a burst that was configured, one whose burst the far side may state, and a
# rate that never allows more than its amount in any stretch of its period.
BUCKET, GROWING, STRICT = 0, 1, 2

# How many low-water marks a rate remembers for returns, and how many moments for `spent_since`.
MOST_MARKS = 32
# How far apart these moments are at least.
SPACING = 10_000
# Members are near if what is earned while units may be used later is a smaller part of the burst than this.
# For that time units of callers that have gone may lie unused (gate/leased.py).
NEAR_PART = 20
# For so long at least they may, if that is not more than a FEW_PART of the time (gate/leased.py).
SHORTEST_MOMENT = 10_000
# Units are few if they are no more than that part of the burst.
FEW_PART = 4
# A batch may be used for so long after its start (`TTL` of gate/leased.py).
USED_WITHIN = 1_000_000
# What was taken longer ago is unknown, and more than any far side has.
LONG_AGO = 600_000_000
UNKNOWN = 1 << 50
# If a store has lost a rate, what was used in this time is taken to be all that it earned in it.
NOT_KNOWN = 60_000_000


@dataclass(slots=True)
class PoolRate:
    """`amount` units in `period` µs, and at most `burst` at once.

    The level is one number: `full_at`, the moment at which everything that was taken will have been earned
    back. A return may not lift the level above what it would be had the units not been taken. So the rate
    remembers the stamp at which it was last full, `full_stamp`, and marks since: `lows[i]` is the least that
    was missing at any charge after `stamps[i]`, as time to earn it.

    A member that is far from the store may use units later than from their start on: it cannot know the clock
    of the store better. So they are in `doubts` for that long, and that many units at least are missing
    meanwhile. Otherwise they would have been earned back, and granted again, before they are used.

    A far side may state that it has more. Then the burst is `raised`, and to know what members may have sent
    since an answered call was sent, the rate remembers how much was `taken[i]` in batches that start at
    `moments[i]` or later.
    """

    amount: int
    period: int
    burst: int
    kind: int = BUCKET
    full_at: int = 0
    full_stamp: int = 0
    stamps: list[int] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    raised: int = 0  # the burst by what was stated, if that is more
    heard_at: int = 0  # when the call was sent whose answer told the newest; 0: none did
    facts_at: int = 0  # as `full_at`, by charges alone, whatever was stated
    moments: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    doubts: list[list[int]] = field(default_factory=list)  # [until, from, units], the first one first
    unused: int = 0  # what may lie unused beyond a tenth of the burst, as time of the rate
    held: int = 0  # the same if some members are not near: a return leaves it missing if there are doubts
    gap: int = 0  # by how much `full_at` is later for all but the member whose shift it is (shift.py)

    @property
    def terms(self) -> list[int]:
        """Amount, period, burst, and the kind if it is not the usual one, as questions give them."""
        return [self.amount, self.period, self.burst, *([self.kind] if self.kind else ())]

    @property
    def most(self) -> int:
        """How many units there are at once. A tenth of the burst is kept back for unused grants."""
        burst = max(self.burst, self.raised)
        return burst - burst // 10

    def time_for(self, units: int) -> int:
        """Return how long these units take to be earned, rounded up."""
        return -(-units * self.period // self.amount)

    def earned_in(self, time: int) -> int:
        """Return how many units are earned in that time, rounded up."""
        return -(-max(0, time) * self.amount // self.period)

    def missing(self, now: int) -> int:
        """Return how many units are missing to be full, rounded up."""
        return self.earned_in(self.full_at + self.gap - now)

    def fits_at(self, units: int, now: int, less: int = 0, *, apart: bool = False) -> int:
        """Return when these units fit. More than the burst fits when the rate is full.

        `less`: what has to be left, as time of the rate. `apart`: for the member whose shift it is.
        """
        full_at = self.full_at if apart else self.full_at + self.gap
        burst = max(self.burst, self.raised)
        less += self.time_for(min(units, burst)) - self.time_for(self.most)
        unused = 0 if self.doubts else self.unused  # what may be used later is missing anyway
        return max(now, full_at + less + max(0, min(unused, -less)))

    def keep_back(self, reaches: list[int], resting: int) -> None:
        """Keep back what may lie unused beyond a tenth of the burst, with members of these reaches.

        Each of them has its part of the tenth, or one unit if it asked for no caller in line: so many are
        `resting`. If a unit of each of these is the whole burst, there is none for them. If the burst is
        earned so soon that no twentieth of it takes a moment, what started in the last moment is kept back
        too, and in the time by which near members may be late; of a member alone the larger of both.
        """
        burst, many, latest, far = max(self.burst, self.raised), len(reaches), 0, 0
        near_for = self.time_for(burst) // NEAR_PART
        if many and near_for < SHORTEST_MOMENT:
            moment = max(near_for, min(SHORTEST_MOMENT, self.time_for(burst) // FEW_PART))
            latest = moment + max((reach for reach in reaches if reach <= near_for), default=0)
            far = moment + max(reaches) if 2 * max(reaches) > near_for else 0
        each = self.burst // 10 // max(1, many)
        units = many * each if each else resting * (resting < self.most)
        # One more unit may start in a stretch of time than is earned in it.
        time, one, tenth = self.time_for(units), self.time_for(1), self.time_for(burst - self.most)
        self.unused = max(0, (max(time, latest) if many == 1 else time + latest + one * (latest > 0)) - tenth)
        self.held = max(0, min(time + far + one - tenth, self.time_for(self.most) // 2)) if far else 0

    def flow_by(self, since: int, time: int) -> None:
        """Take what was kept for flows since then, as time of the rate."""
        self.full_at = max(self.full_at, since) + time
        self.doubts = [[until + time, start + time, units] for until, start, units in self.doubts]

    def advance(self, now: int, next_stamp: Callable[[], int]) -> None:
        """Note whether nothing is missing by now."""
        if self.doubts:
            self._miss(now, next_stamp())
        if self.full_at + self.gap <= now:
            self.gap = 0
            self._fill(next_stamp())

    def _fill(self, stamp: int) -> None:
        """Note that nothing is missing: what was taken before cannot be returned any more."""
        self.full_stamp = stamp
        self.stamps, self.lows = [], []

    def resume(self, until: int, next_stamp: Callable[[], int]) -> None:
        """Have nothing saved up at the end of a window."""
        self.charge(0, until + self.time_for(self.most), next_stamp())

    def begin_empty(self, now: int, next_stamp: Callable[[], int]) -> None:
        """Have nothing saved up, or less by what a minute earns: how much was used is not known."""
        self.charge(0, now + min(self.time_for(self.most), NOT_KNOWN), next_stamp())

    def _miss(self, at: int, stamp: int, room: int = 0) -> None:
        """Go on to that moment: units that may be used later were missing all the time.

        But so many are there then: `room`.
        """
        doubts = self.doubts
        latest = at + self.time_for(self.most) - self.time_for(min(room, self.most))
        while doubts:
            until = doubts[0][0]
            then = min(until, at)
            units = sum(units for _, start, units in doubts if start <= then)
            least = min(then + self.time_for(min(units, self.most)), latest)
            if least > self.full_at:
                self._fill(stamp)
                self.full_at = least
            if until > at:
                break
            del doubts[0]

    @property
    def doubted(self) -> int:
        """How many units may be used later than from their start on."""
        return sum(units for _, _, units in self.doubts)

    def _doubt(self, units: int, start: int, time: int) -> None:
        """Remember that these units may be used so much later."""
        spacing = max(1, time // 8, min(SPACING, self.time_for(self.most) // 8))
        doubts = self.doubts
        i = bisect_left(doubts, start + time, key=itemgetter(0))
        if i < len(doubts) and doubts[i][0] < start + time + spacing:
            until, first, others = doubts[i]
            doubts[i] = [until, min(start, first), others + units]
        else:
            doubts.insert(i, [-(-(start + time) // spacing) * spacing, start, units])

    def charge(self, units: int, start: int, stamp: int, doubt: int = 0) -> None:
        """Take these units at that moment, and mark how much was missing then: no return is worth more.

        `doubt`: by how much later they may be used. If the burst is of a few such calls it would not be used
        up if those that may be used later were waited for.
        """
        self._miss(start, stamp, units if FEW_PART * units > self.most else 0)
        moment = self.time_for(max(self.burst, self.raised)) // NEAR_PART
        if units and doubt > moment:
            self._doubt(units, start, doubt + moment)
        missing = self.full_at - start
        stamps, lows = self.stamps, self.lows
        if missing <= 0:
            self._fill(stamp)
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

    def tell_taken(self, units: int, start: int, doubt: int = 0) -> None:
        """Remember what members may use from then on, where the far side may state that it has more."""
        if self.kind == GROWING and units:
            self.facts_at = max(self.facts_at, start) + self.time_for(units)
            if self.moments:
                self._count(units, start + doubt)

    def _count(self, units: int, start: int) -> None:
        """Remember for `spent_since` that these units may be used from `start` on."""
        moments, taken = self.moments, self.taken
        if start >= moments[-1] + SPACING:
            moments.append(start)
            taken.append(0)
            if len(moments) > MOST_MARKS:  # of those that are further back, every other one
                del moments[1 : MOST_MARKS // 2 : 2], taken[1 : MOST_MARKS // 2 : 2]
        for i, moment in enumerate(moments):
            if moment <= start:
                taken[i] = min(UNKNOWN, taken[i] + units)

    def _uncount(self, units: int, stamp: int, now: int) -> None:
        """These units of a batch were not used. Its stamp is not before the moment of its grant."""
        for i, moment in enumerate(self.moments):
            if moment <= stamp and self.taken[i] < UNKNOWN:
                self.taken[i] = max(0, self.taken[i] - units)
        self.facts_at -= min(max(0, self.facts_at - now), units * self.period // self.amount)

    def spent_since(self, at: int) -> int:
        """Return at most how many units members have used after that moment, or may yet use."""
        return next(
            (
                units
                for moment, units in zip(reversed(self.moments), reversed(self.taken), strict=True)
                if moment <= at - USED_WITHIN
            ),
            UNKNOWN,
        )

    def take_back(self, units: int, stamp: int, now: int) -> None:
        """Return units of the batch with that stamp, as far as they would still be missing."""
        stamps, lows = self.stamps, self.lows
        if self.kind == GROWING:
            self._uncount(units, stamp, now)
        if self.full_stamp > stamp or self.full_at <= now:
            return
        later = next((i for i, mark in enumerate(stamps) if mark > stamp), len(stamps))
        lowest = min([self.full_at - now, *lows[later:]]) - (self.held if self.doubts else 0)
        credit = min(units * self.period // self.amount, max(0, lowest))
        self.full_at -= credit
        lows[later:] = [low - credit for low in lows[later:]]
        while 0 < later < len(lows) and lows[later - 1] >= lows[later]:  # an earlier mark must be lower
            later -= 1
            del stamps[later], lows[later]

    # -- what the far side says is left

    def hear(self, remaining: int, allowed: int, at: int, now: int) -> bool:
        """A call that was sent at `at` was told what remains. True: there is much more now than before.

        The level is lowered to what remains. If the burst was not configured it is raised as well, less what
        members may have sent since, up to the `allowed` units that the far side states for a period (0: not
        at all; -1: what was raised was too much), and to no more than a bucket of twice as many would have
        left. Only the newest counts.
        """
        if at < self.heard_at or self.full_at - now > LONG_AGO:
            return False  # a newer one has told already, or all that remains is owed
        growing = self.kind == GROWING
        if growing and not self.moments:
            since = at - USED_WITHIN
            known = now - since <= LONG_AGO
            self.moments = [since]
            self.taken = [self.missing(now) + self.earned_in(now - since) if known else UNKNOWN]
        self.heard_at = at
        level = self.most - self.missing(now)
        if allowed < 0 and self.raised:
            self.raised = 0
            level = min(level, self.most)
            self.full_at = now + self.time_for(self.most - level)
        has = remaining + self.earned_in(min(now - at, self.time_for(self.most)))
        if has < level:
            self.full_at = now + self.time_for(self.most - has)
        elif growing and allowed > 0:
            allowed = min(allowed, self.amount)
            room = 2 * allowed - self.facts(now)
            units = min(remaining - self.spent_since(at), allowed, room)
            if units > max(0, level):
                much = 2 * (units - level) > self.most
                if units > self.most:
                    self.raised = burst_for(units)
                self.full_at = now + self.time_for(self.most - units)
                # Returns of what counts as sent since the answered call are still worth something.
                self._fill(max(self.full_stamp, at - USED_WITHIN))
                return much
        return False

    def facts(self, now: int) -> int:
        """Return how many units are missing by charges alone: two periods' worth, if it is more."""
        return self.earned_in(min(self.facts_at - now, 2 * self.period))

    # -- other limits

    def follow(self, old: AnyPoolRate, now: int) -> None:
        """Continue where the rate that this one replaces stands. A change of limits creates no units."""
        left = old.left(now)
        if isinstance(old, PoolRate) and self.kind == old.kind == GROWING:
            self.raised = min(old.raised, burst_for(self.amount))
            self.heard_at = old.heard_at
            self.facts_at = now + self.time_for(min(2 * self.amount, old.facts(now)))
            self.moments, self.taken = [*old.moments], [*old.taken]  # two rates may follow one
        if isinstance(old, PoolRate):
            self.doubts = [*old.doubts]
        self.full_at = now + self.time_for(max(0, max(self.burst, self.raised) - left))

    def left(self, now: int) -> int:
        """Return how many units a rate that replaces this one may go on with."""
        return max(0, max(self.burst, self.raised) - self.missing(now))

    def idle_from(self) -> int:
        """Return from when on it is like a new one."""
        burst = max(self.burst, self.raised)
        full_at = max(self.full_at + self.gap, self.facts_at)
        return full_at + self.time_for(burst) - self.time_for(self.most)

    def idle_after(self, until: int) -> int:
        """Return from when on it is like a new one, if it has yet to come back from a window of that end."""
        return until + self.time_for(max(self.burst, self.raised))


def burst_for(units: int) -> int:
    """Return the burst of which so many units are there at once."""
    return units + units // 9
