"""Pure. The part of a shared rate that was granted to this process and is not used yet.

Only what was granted is used: not before its start, and not later than TTL after it. What was not needed is
returned to the pool, and what was used without a grant is owed to it; both are told with the next question.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

from ..arguments import SECOND
from ..limits import Rate
from .decision import FAR_OFF

# How long after its start a batch may be used: a process that was stopped for longer must not use it.
TTL = SECOND
# A batch of a strict rate counts for as long as it could be used. So that is a part of the period, within
# these bounds: half of what the pool counts with, because the answer of the pool is on its way for a while.
_STRICT_PART, _STRICT_SHORTEST, _STRICT_LONGEST = 128, SECOND // 20, SECOND // 2
# How long all units of batches that have started may lie unused: a twentieth of the time in which the burst
# is earned, within these bounds, and no more than a quarter of it.
_SHORTEST_MOMENT, _LONGEST_MOMENT = 10_000_000, 100_000_000
# How many batches are remembered for returns by calls that used them.
_MOST_KNOWN = 256


class LeasedRate:
    """One rate of a gate that is shared. It has the methods of every rate; times are nanoseconds."""

    __slots__ = (
        "_batches",
        "_moment",
        "_returned",
        "_scheduled",
        "_stale_at",
        "_stamps",
        "_used_at",
        "ahead",
        "awaited",
        "column",
        "in_vain",
        "kept",
        "name",
        "owed",
        "rate",
        "scheduled",
        "stated",
        "taken",
        "ttl",
        "units",
    )

    def __init__(self, rate: Rate, column: int) -> None:
        self.rate = rate
        self.column = column
        self.name = rate.name
        self.units = 0  # that may be used now
        self.taken = 0  # since it was made: the pool's member measures the demand by it
        self.in_vain = 0  # granted to callers that had gone, since it was made
        self.ahead = 0  # how many unused units should be there for callers to come
        self.owed = 0  # used without a grant, and not told yet
        self.kept = rate.burst // 10  # how many unused units may be there for longer than a moment
        self.awaited = True  # whether callers are in line: then one batch at least is left for them
        burst = rate.burst * rate.per_ns // rate.amount
        self._moment = min(_LONGEST_MOMENT, max(burst // 20, min(_SHORTEST_MOMENT, burst // 4)))
        self.ttl = TTL  # for how long a batch may be used
        if rate.strict:
            self.ttl = min(_STRICT_LONGEST, max(_STRICT_SHORTEST, rate.per_ns // _STRICT_PART))
        # What a call was told to remain, up to which burst that may raise the level of the pool, and when the
        # call was sent: the newest that was not told yet.
        self.stated: tuple[int, int, int] | None = None
        self._batches: deque[list[int]] = deque()  # [stamp, end, units] of `units`
        self._scheduled: list[tuple[int, int, int]] = []  # (start, stamp, units), the next one first
        self.scheduled = 0  # how many units these are
        self._stale_at = 0  # when `release_due` has to look at `_batches` again
        self._returned: list[tuple[int, int]] = []  # (units, stamp), not told yet
        # For returns: from `_used_at[i]` on, calls used units of the batch `_stamps[i]`.
        self._used_at: list[int] = []
        self._stamps: list[int] = []

    # -- the methods of every rate

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and return 1, or change nothing and return 0."""
        need = cost[self.column]
        if need > self.units or now >= self._stale_at or self._scheduled:
            self.release_due(now)
            if need > self.units:
                return 0
        self.units -= need
        self.taken += need
        if need:
            batches = self._batches
            oldest = batches[0][0]
            while batches[0][2] <= need:
                stamp, _end, units = batches.popleft()
                oldest = min(oldest, stamp)
                need -= units
                if not need:
                    break
            else:
                batches[0][2] -= need
                oldest = min(oldest, batches[0][0])
            if not self._stamps or self._stamps[-1] != oldest:
                self._remember(oldest, now)
        return 1

    def _remember(self, stamp: int, now: int) -> None:
        """Note that from now on calls use the batch of that stamp."""
        used_at, stamps = self._used_at, self._stamps
        used_at.append(now)
        stamps.append(stamp)
        if len(used_at) > _MOST_KNOWN:
            # Merge pairs of the older half. Calls of both then count as users of the older batch.
            half = _MOST_KNOWN // 2
            stamps[:half] = map(min, stamps[0:half:2], stamps[1:half:2])
            used_at[:half] = used_at[0:half:2]

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Return whether `enter` would take it."""
        self.release_due(now)
        return cost[self.column] <= self.units

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """Return when the cost could be taken: now, at the start of a batch, or FAR_OFF if it is unknown."""
        self.release_due(now)
        missing = cost[self.column] - self.units
        if missing <= 0:
            return now
        for start, _stamp, units in self._scheduled:
            missing -= units
            if missing <= 0:
                return start
        return now + FAR_OFF

    def slack(self, cost: tuple[int, ...], now: int) -> int:  # noqa: ARG002 - a method of every rate
        """Return how much lateness costs nothing: none, because batches expire."""
        return 0

    def refusal(self, cost: tuple[int, ...]) -> str | None:
        """Return why the cost can never be taken, or None."""
        most = max(self.rate.amount, self.rate.burst)
        if cost[self.column] <= most:
            return None
        return f"a call of {cost[self.column]} {self.rate.unit} can never fit a limit of {most}"

    def settle(self, estimate: int, actual: int, taken_at: int, now: int) -> None:  # noqa: ARG002 - as above
        """Replace what was estimated at `taken_at` by the actual units."""
        if actual > estimate:
            self.owed += actual - estimate
        elif actual < estimate:
            self._returned.append((estimate - actual, self._stamp_of(taken_at)))

    def give_back(self, amount: int, now: int) -> None:
        """Return units to the pool that were taken a moment ago."""
        self._returned.append((amount, self._stamp_of(now)))

    def level(self, now: int) -> int:
        """Return how many units this process could take at once."""
        self.release_due(now)
        return self.units

    def full(self, now: int) -> bool:  # noqa: ARG002 - as above
        """Return False: a member does not know whether the pool is full."""
        return False

    def lower(self, level: int, now: int) -> None:
        """Drop units beyond that level. In a bucket they count as used: the pool is told nothing."""
        self.release_due(now)
        while self.units > level:
            batch = self._batches[0]
            dropped = min(batch[2], self.units - level)
            batch[2] -= dropped
            self.units -= dropped
            self._lapse(dropped, batch[0])
            if not batch[2]:
                self._batches.popleft()

    def hold_until(self, at: int, now: int, units: int = 1) -> None:  # noqa: ARG002 - as above
        """Drop every batch that starts before that moment: more is asked for after it."""
        self.release_due(now)
        for start, stamp, count in self._scheduled:
            if start < at:
                self._lapse(count, stamp)
        for stamp, end, count in self._batches:
            if end < at + self.ttl:
                self._lapse(count, stamp)
        self._schedule([batch for batch in self._scheduled if batch[0] >= at])
        self._batches = deque(batch for batch in self._batches if batch[1] >= at + self.ttl)
        self.units = sum(batch[2] for batch in self._batches)

    def follow(self, old: object, now: int) -> None:  # noqa: ARG002 - as above
        """Go on with what may be used of the rate before, unless that was a faster one, or strict.

        What was granted for later is a debt of the pool, which a change of its limits forgets.
        """
        if not isinstance(old, LeasedRate) or self.rate.strict or old.rate.strict:
            return
        if self.rate.amount * old.rate.per_ns >= old.rate.amount * self.rate.per_ns:
            for name in ("_batches", "_used_at", "_stamps", "_returned", "units", "stated"):
                setattr(self, name, getattr(old, name))

    # -- grants and returns

    def tell(self, remaining: int, allowed: int, sent: int) -> None:
        """Have the pool hear what a call that was sent then was told to remain.

        It may raise the burst of the pool up to `allowed`. 0: it may not; -1: what was raised was too much.
        """
        self.stated = (remaining, allowed, sent)

    def keep(self, units: int) -> None:
        """Leave that many unused units for longer than a moment."""
        self.kept, self._stale_at = units, 0

    def wait_for(self, *, callers: bool) -> None:
        """Whether callers are in line now."""
        self.awaited, self._stale_at = callers, 0

    def low_after(self, cost: tuple[int, ...]) -> bool:
        """Whether less than half of what should be there is left once the cost is taken."""
        return (self.units - cost[self.column]) * 2 < self.ahead

    def grant(self, units: int, start: int, stamp: int) -> None:
        """Add a batch that may be used from `start` on, which may be sooner than that of earlier grants."""
        insort(self._scheduled, (start, stamp, units))
        self.scheduled += units

    def move(self, by: int) -> None:
        """All batches start sooner by that much than was told: the clock of the pool is known better now."""
        self._stale_at = 0
        self._scheduled = [(start - by, stamp, units) for start, stamp, units in self._scheduled]
        for batch in self._batches:
            batch[1] -= by

    def drop_scheduled(self, stamp: int, now: int) -> None:
        """Drop batches that were granted before that stamp and have not started: others start sooner."""
        self.release_due(now)
        for _start, mark, units in self._scheduled:
            if mark < stamp:
                self._lapse(units, mark)
        self._schedule([batch for batch in self._scheduled if batch[1] >= stamp])

    def _schedule(self, batches: list[tuple[int, int, int]]) -> None:
        """Have no other batches start later."""
        self._scheduled, self.scheduled = batches, sum(units for _start, _stamp, units in batches)

    def release_due(self, now: int) -> None:
        """Make batches usable whose start has come, and drop those whose time is over."""
        scheduled, batches = self._scheduled, self._batches
        while scheduled and scheduled[0][0] <= now:
            start, stamp, units = scheduled.pop(0)
            self.scheduled -= units
            if start + self.ttl > now:
                batches.append([stamp, start + self.ttl, units])
                self.units += units
            else:
                self._lapse(units, stamp)
        while batches and batches[0][1] <= now:
            stamp, _end, units = batches.popleft()
            self.units -= units
            self._lapse(units, stamp)
        # Callers for which these were granted have gone. If they came back, more would be used at once than
        # the pool knows of. Callers in line may be late because this process was: a batch is left for them.
        stale = now + self.ttl - self._moment
        while self.units > self.kept and batches[0][1] <= stale and (len(batches) > 1 or not self.awaited):
            stamp, end, units = batches.popleft()
            kept = 0 if self.awaited else max(0, self.kept - self.units + units)
            if kept:  # of the last batches only what is too much
                batches.appendleft([stamp, end, kept])
                units -= kept
            self.units -= units
            self._returned.append((units, stamp))
            self.in_vain += units
        if batches:
            self._stale_at = batches[0][1] - (self.ttl - self._moment if self.units > self.kept else 0)

    def _lapse(self, units: int, stamp: int) -> None:
        """These units will not be used. To a strict rate they go back; in a bucket they count as used."""
        if self.rate.strict:
            self._returned.append((units, stamp))

    def return_unused(self, keep: int, now: int) -> None:
        """Return usable units beyond that many to the pool, the newest first."""
        self.release_due(now)
        batches = self._batches
        while self.units > keep:
            batch = batches[-1]
            units = min(batch[2], self.units - keep)
            batch[2] -= units
            self.units -= units
            self._returned.append((units, batch[0]))
            if not batch[2]:
                batches.pop()

    def _stamp_of(self, taken_at: int) -> int:
        """Return the stamp of the batch that a call of that moment used: the oldest, if it was several."""
        before = max(0, bisect_left(self._used_at, taken_at) - 1)
        return min(self._stamps[before : bisect_right(self._used_at, taken_at)], default=0)

    def report(self) -> tuple[list[list[int]], int]:
        """Return the `returned` and `owed` of the next question, once."""
        returned, owed = [list(each) for each in self._returned], self.owed
        self._returned, self.owed = [], 0
        return returned, owed
