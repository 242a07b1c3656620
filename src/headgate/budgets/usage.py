"""What the budgets of one tree or book have used, in this process.

All of them have one lock and one time, so that a request is charged to every level or to none. What a shared
tree has used is in `sharing.records.usage`, which has the same methods.
"""

from __future__ import annotations

from _thread import get_ident

from ..gate.forks import reset_in_child
from ..gate.guard import Guard
from ..hints import Any, Callable, Clock, Sequence, T
from .windows import Allowance, Charge, Cost, Plan, Refusal, charge_all


class LocalUsage:
    """Usage in this process. A level is an Allowance."""

    shared = False
    member = ""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.closed = False
        self._read_clock = clock.now
        self._latest = clock.now()
        self._levels: Sequence[Allowance] = ()  # of the last change, which an interrupt may have broken off
        self._busy: set[int] = set()  # threads that are asking or telling
        self._guard = Guard(self._now, self._settle_locked, repair=self._repair)
        reset_in_child(self)

    def level(self, plan: Plan, _path: tuple[str, ...]) -> Allowance:
        """What a new budget of that plan has used."""
        return Allowance(plan)

    def greet(self, level: Allowance) -> None:
        """There is no store to ask."""

    # -- questions

    def fits(self, levels: Sequence[Allowance], cost: Cost) -> bool:
        """Whether a request of this cost fits every level now."""

        def fit(now: int) -> bool:
            wall = self._wall(levels)
            return all(level.fits(cost, now, wall=wall) for level in levels)

        return self._run(fit)

    def left(self, levels: Sequence[Allowance], column: int) -> int | None:
        """The least that any level has left of tokens or money. None: no level limits it."""

        def leave(now: int) -> list[int | None]:
            wall = self._wall(levels)
            return [level.left(column, now, wall) for level in levels]

        lefts = self._run(leave)
        return min((max(0, left) for left in lefts if left is not None), default=None)

    def idle(self, level: Allowance) -> bool:
        """Whether nothing of what was used counts any more."""
        return self._run(lambda now: level.idle(now, self._wall((level,)))) and not self._guard.pending

    # -- changes

    def take(self, levels: Sequence[Allowance], cost: Cost) -> Charge | Refusal:
        """Charge every level, or, if it does not fit one of them, none."""

        def charge(now: int) -> Charge | Refusal:
            self._levels = levels
            wall = self._wall(levels)
            return charge_all(levels, cost, now, now, walls=(wall, wall))

        return self._run(charge)

    async def take_async(self, levels: Sequence[Allowance], cost: Cost) -> Charge | Refusal:
        """Charge every level or none. There is nothing to wait for."""
        return self.take(levels, cost)

    def settle(self, levels: Sequence[Allowance], charge: Charge, actual: Cost) -> None:
        """Replace what was charged by what was really used. Never waits: finalizers may call this."""
        me, busy, guard = get_ident(), self._busy, self._guard
        in_finalizer = me in busy
        try:  # an interrupt comes after a call, and that must not leave the thread noted as busy
            busy.add(me)
            guard.pending.append([levels, charge, actual])  # as `guard.leave`, without the call
            guard.finish()
        finally:
            if not in_finalizer:
                busy.discard(me)

    def retune(self, level: Allowance, plan: Plan) -> None:
        """Go by another plan. What was used stays used."""

        def retune(now: int) -> None:
            self._levels = (level,)
            level.retune(plan, now, self.clock.wall() if plan.by_calendar else 0)

        self._run(retune)

    def close(self) -> None:
        """Let nothing be reserved any more."""
        self.closed = True

    async def close_async(self) -> None:
        """Let nothing be reserved any more. There is nothing to wait for."""
        self.closed = True

    # -- the lock

    def _run(self, act: Callable[[int], T]) -> T:
        me = get_ident()
        if me in self._busy:
            raise RuntimeError(
                "a finalizer asked a budget while the same thread was busy with it; in a finalizer "
                "only record_usage, settle and refund are possible"
            )
        try:  # as in `settle`
            self._busy.add(me)
            return self._guard.run(act)
        finally:
            self._busy.discard(me)

    def _settle_locked(self, left: list[Any], now: int) -> None:
        if left:  # emptied first: a change that an interrupt broke off is not made twice
            self._levels, charge, actual = left
            left.clear()
            estimate, taken_at, _by, begins = charge
            wall = 0
            for i, level in enumerate(self._levels):
                if level.by_calendar:
                    wall = wall or self.clock.wall()
                    level.settle(estimate, actual, taken_at, now, wall, begins[i] if begins else {})
                else:
                    level.settle(estimate, actual, taken_at, now)

    def _repair(self, _now: int) -> None:
        for level in self._levels:
            level.mend()

    def _now(self) -> int:
        now = self._read_clock()
        if now < self._latest:
            return self._latest  # a clock that goes back stands still
        self._latest = now
        return now

    def _wall(self, levels: Sequence[Allowance]) -> int:
        """The wall time, if one of these goes by it."""
        for level in levels:
            if level.by_calendar:
                return self.clock.wall()
        return 0

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and a change of another thread was broken off."""
        self._busy.clear()
        self._guard.after_fork()
        self._guard.interrupted = True
