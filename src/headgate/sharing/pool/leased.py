"""Pure. What a process has been given of a shared rate, and has not used yet.

Rules of this room: only what was given is used, not before its start and not long after. What was not needed
goes back, what was used beyond the estimate is owed; both are told with the next question.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

from ...arguments import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...limits import Rate

# What has not been used so long after its start is no longer used: a process that was stopped for a
# while must not come back with what it held.
_KEEPS = SECOND
# How many gifts are remembered for refunds of calls that used them.
_MOST_KNOWN = 256
# When nobody can tell: further off than any rate makes anybody wait.
FAR_OFF = 1 << 62


class LeasedRule:
    """The stock of one shared rate."""

    __slots__ = (
        "_coming",
        "_lots",
        "_stamps",
        "_used",
        "back",
        "column",
        "extra",
        "name",
        "rate",
        "taken",
        "units",
    )

    def __init__(self, rate: Rate, column: int) -> None:
        self.rate = rate
        self.column = column
        self.name = rate.name
        self.units = 0  # to be used now
        self.taken = 0  # ever: how the demand is seen
        self._lots: deque[list[int]] = deque()  # [stamp, keeps until, units] of those units
        self._coming: list[tuple[int, int, int]] = []  # (start, stamp, units), the next first
        # For refunds: from which moment on calls used what was given under which stamp, in two lists.
        self._used: list[int] = []
        self._stamps: list[int] = []
        self.back: list[tuple[int, int]] = []  # (units, stamp) that were not needed
        self.extra = 0  # used without having been given

    # -- the questions of every rate

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and answer 1, or change nothing and answer 0."""
        need = cost[self.column]
        if need > self.units or (self._lots and self._lots[0][1] <= now) or self._coming:
            self.mature(now)
            if need > self.units:
                return 0
        self.units -= need
        self.taken += need
        if need:
            lots = self._lots
            oldest = lots[0][0]
            while lots[0][2] <= need:
                stamp, _keeps, units = lots.popleft()
                oldest = min(oldest, stamp)
                need -= units
                if not need:
                    break
            else:
                lots[0][2] -= need
                oldest = min(oldest, lots[0][0])
            if not self._stamps or self._stamps[-1] != oldest:
                self._remember(oldest, now)
        return 1

    def _remember(self, stamp: int, now: int) -> None:
        """From now on calls use what was given under that stamp."""
        used, stamps = self._used, self._stamps
        used.append(now)
        stamps.append(stamp)
        if len(used) > _MOST_KNOWN:
            # Of the older half every second is forgotten: what used it is taken for as old as its neighbour.
            half = _MOST_KNOWN // 2
            stamps[:half] = map(min, stamps[0:half:2], stamps[1:half:2])
            used[:half] = used[0:half:2]

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Would `enter` take it?"""
        self.mature(now)
        return cost[self.column] <= self.units

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """When could the cost be taken? At or before now: at once."""
        self.mature(now)
        missing = cost[self.column] - self.units
        if missing <= 0:
            return now
        for start, _stamp, units in self._coming:
            missing -= units
            if missing <= 0:
                return start
        return now + FAR_OFF

    def slack(self, cost: tuple[int, ...], now: int) -> int:  # noqa: ARG002 - the question of every rate
        """How much lateness costs nothing: what was given keeps for a moment only."""
        return 0

    def refusal(self, cost: tuple[int, ...]) -> str | None:
        """Why the cost can never be taken, or None."""
        most = max(self.rate.amount, self.rate.burst)
        if cost[self.column] <= most:
            return None
        return f"a call of {cost[self.column]} {self.rate.unit} can never fit a limit of {most}"

    def settle(self, estimate: int, actual: int, taken_at: int, now: int) -> None:  # noqa: ARG002 - likewise
        """Replace what was estimated at `taken_at` by what it was."""
        if actual > estimate:
            self.extra += actual - estimate
        elif actual < estimate:
            self.back.append((estimate - actual, self._stamp_of(taken_at)))

    def give_back(self, amount: int, now: int) -> None:
        """Put units back that were taken."""
        self.back.append((amount, self._stamp_of(now)))

    def level(self, now: int) -> int:
        """Units that this process could take at once."""
        self.mature(now)
        return self.units

    def full(self, now: int) -> bool:  # noqa: ARG002 - likewise
        """Is nothing missing? Nobody here can tell."""
        return False

    def lower(self, level: int, now: int) -> None:
        """At most so many units are left: the rest is as good as used."""
        self.mature(now)
        while self.units > level:
            lot = self._lots[0]
            gone = min(lot[2], self.units - level)
            lot[2] -= gone
            self.units -= gone
            if not lot[2]:
                self._lots.popleft()

    def hold_until(self, at: int, now: int, units: int = 1) -> None:  # noqa: ARG002 - of every rate
        """Nothing is left of what starts before that moment, and nothing comes."""
        self.mature(now)
        self._coming = [lot for lot in self._coming if lot[0] >= at]
        self._lots = deque(lot for lot in self._lots if lot[1] >= at + _KEEPS)
        self.units = sum(lot[2] for lot in self._lots)

    def follow(self, old: object, now: int) -> None:
        """Whatever was held before belongs to the pool."""

    # -- what comes and goes

    def given(self, units: int, start: int, stamp: int) -> None:
        """So many, to be used from that moment on."""
        insort(
            self._coming, (start, stamp, units)
        )  # others may have given back, so a later one may be sooner

    def mature(self, now: int) -> None:
        """Those whose time has come are there; those whose time is over are not."""
        coming, lots = self._coming, self._lots
        while coming and coming[0][0] <= now:
            start, stamp, units = coming.pop(0)
            if start + _KEEPS > now:
                lots.append([stamp, start + _KEEPS, units])
                self.units += units
        while lots and lots[0][1] <= now:
            self.units -= lots.popleft()[2]

    def expected(self) -> int:
        """Units on their way."""
        return sum(units for _start, _stamp, units in self._coming)

    def hand_back(self, keep: int, now: int) -> None:
        """What is there beyond that much goes back."""
        self.mature(now)
        lots = self._lots
        while self.units > keep:
            lot = lots[-1]
            units = min(lot[2], self.units - keep)
            lot[2] -= units
            self.units -= units
            self.back.append((units, lot[0]))
            if not lot[2]:
                lots.pop()

    def _stamp_of(self, taken_at: int) -> int:
        """Under which stamp was given what a call of that moment used? The oldest, if there were several."""
        before = max(0, bisect_left(self._used, taken_at) - 1)
        return min(self._stamps[before : bisect_right(self._used, taken_at)], default=0)

    def report(self) -> tuple[list[list[int]], int]:
        """What to tell the pool: units that go back, each with the stamp they were given under; and debts."""
        back, extra = [list(each) for each in self.back], self.extra
        self.back, self.extra = [], 0
        return back, extra
