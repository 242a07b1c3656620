"""What the budgets of one tree or book have used, in this process.

All of them have one lock and one time, so that a request is charged to every level or to none. What a shared
tree has used is in `sharing.records.usage`, which has the same methods.
"""

from __future__ import annotations

from _thread import get_ident

from ..gate.forks import reset_in_child
from ..gate.guard import Guard
from ..hints import Callable, Clock, Sequence, T
from .windows import Allowance, Charge, Cost, Plan, Refusal, charge_all


class LocalUsage:
    """Usage in this process. A level is an Allowance."""

    shared = False
    member = ""

    __slots__ = ("__weakref__", "_busy", "_guard", "_latest", "_levels", "clock", "closed")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.closed = False
        self._latest: int | None = None
        self._levels: Sequence[
            Allowance
        ] = ()  # what the last change was about: an interrupt may have torn it
        self._busy: set[int] = set()  # threads that are asking or telling
        self._guard = Guard(self._now, self._take_back, repair=self._repair)
        reset_in_child(self)

    def level(self, plan: Plan, _path: tuple[str, ...]) -> Allowance:
        """What a new budget of that plan has used."""
        return Allowance(plan)

    def greet(self, level: Allowance) -> None:
        """There is no store to ask."""

    # -- questions

    def fits(self, levels: Sequence[Allowance], cost: Cost) -> bool:
        """Whether a request of this cost fits every level now."""
        return self._ask(levels, lambda now: all(level.fits(cost, now) for level in levels))

    def left(self, levels: Sequence[Allowance], column: int) -> int | None:
        """The least that any level has left of tokens or money. None: no level limits it."""

        def least(now: int) -> int | None:
            lefts = [level.left(column, now) for level in levels]
            return min((max(0, left) for left in lefts if left is not None), default=None)

        return self._ask(levels, least)

    def idle(self, level: Allowance) -> bool:
        """Whether nothing of what was used counts any more."""
        return self._ask((level,), level.idle) and not self._guard.pending

    # -- changes

    def take(self, levels: Sequence[Allowance], cost: Cost) -> Charge | Refusal:
        """Charge every level, or, if it does not fit one of them, none."""
        return self._ask(levels, lambda now: charge_all(levels, cost, now, now))

    async def take_async(self, levels: Sequence[Allowance], cost: Cost) -> Charge | Refusal:
        """Charge every level or none. There is nothing to wait for."""
        return self.take(levels, cost)

    def charge(self, levels: Sequence[Allowance], cost: Cost) -> None:
        """Charge every level, whether or not it fits. Never waits: finalizers may call this."""

        def charge(now: int) -> None:
            for level in levels:
                level.charge(cost, now)

        self._tell(levels, charge)

    def settle(self, levels: Sequence[Allowance], charge: Charge, actual: Cost) -> None:
        """Replace what was charged by what was really used. Never waits: finalizers may call this."""

        def settle(now: int) -> None:
            for level in levels:
                level.settle(charge.cost, actual, charge.at, now)

        self._tell(levels, settle)

    def retune(self, level: Allowance, plan: Plan) -> None:
        """Go by another plan. What was used stays used."""
        self._ask((level,), lambda _now: level.retune(plan))

    def close(self) -> None:
        """Let nothing be reserved any more."""
        self.closed = True

    async def close_async(self) -> None:
        """Let nothing be reserved any more. There is nothing to wait for."""
        self.closed = True

    # -- the lock

    def _ask(self, levels: Sequence[Allowance], question: Callable[[int], T]) -> T:
        me = get_ident()
        if me in self._busy:
            raise RuntimeError(
                "a finalizer asked a budget while the same thread was busy with it; in a finalizer "
                "only record_usage, settle and refund are possible"
            )

        def act(now: int) -> T:
            self._levels = levels
            return question(now)

        self._busy.add(me)
        try:
            return self._guard.run(act)
        finally:
            self._busy.discard(me)

    def _tell(self, levels: Sequence[Allowance], change: Callable[[int], None]) -> None:
        me = get_ident()
        in_finalizer = me in self._busy
        self._busy.add(me)
        try:
            self._guard.leave([(levels, change)])
        finally:
            if not in_finalizer:
                self._busy.discard(me)

    def _take_back(self, left: list[tuple[Sequence[Allowance], Callable[[int], None]]], now: int) -> None:
        if left:  # taken out first: a change that an interrupt broke off is not made twice
            self._levels, change = left.pop()
            change(now)

    def _repair(self, _now: int) -> None:
        for level in self._levels:
            level.mend()

    def _now(self) -> int:
        now = self.clock.now()
        if self._latest is None or now > self._latest:
            self._latest = now
        return self._latest  # a clock that goes back stands still

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and a change of another thread was broken off."""
        self._busy.clear()
        self._guard.after_fork()
        self._guard.interrupted = True
