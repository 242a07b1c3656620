"""What the budgets of one tree or book have used, in a store: by all processes that share them together.

What is reserved is written before the caller goes on, at every level or at none. What was used is told, once,
as soon as the store can be asked. Questions are answered from what was last heard and what is not told yet.
"""

from __future__ import annotations

import json
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from ...arguments import SECOND
from ...budgets.windows import Allowance, Charge, Cost, Plan, Refusal, charge_all
from ...errors import StoreError
from ...gate.forks import reset_in_child
from ...typing import Clock
from ..store import AnyStore
from .client import Change, RecordClient, look
from .record import DAMAGE, Record, Times, contents

# A time further in the future was written by a clock that has been put back since, and counts from now.
_TOLERATED = SECOND


class BudgetRecord(Record):
    """The record of what one budget has used, and the plan that this process goes by."""

    def __init__(self, name: str, plan: Plan) -> None:
        super().__init__(name)
        self.plan = plan
        self._known: tuple[tuple[str, str], Plan, Allowance] | None = None

    def read(self, written: Any, times: Times) -> Allowance:
        known = [] if written is None else written
        return Allowance.after(known, self.plan, times.late, times.walls[1], _TOLERATED)

    def write(self, state: Allowance, times: Times) -> tuple[Any, int]:
        late, wall = times.late, times.walls[1]
        return state.saved(late, wall), max(0, state.forgotten_at(late, wall) - late)

    def is_needed(self, times: Times) -> bool:
        if super().is_needed(times):
            return True
        try:  # what counts is in the store for as long as it does, however long ago it was written
            return self.known(times).counts(times.early, times.walls[0])
        except StoreError:  # it makes no sense
            return False

    def known(self, times: Times) -> Allowance:
        """What was last heard, to be looked at only."""
        known, kept, plan = self._known, self.kept, self.plan
        if known is None or known[0] != kept or known[1] is not plan:
            try:
                known = self._known = (kept, plan, self.read(contents(kept[1])[1], times))
            except DAMAGE as error:
                raise self.damaged(error) from error
        return known[2]


class _Settlement(Change):
    """An estimate becomes a fact. The estimate is nothing where nothing was reserved."""

    def __init__(self, levels: Sequence[BudgetRecord], estimate: Charge, actual: Cost) -> None:
        super().__init__(levels, self._settle)
        self._estimate = estimate
        self.adds = (actual[0] - estimate.cost[0], actual[1] - estimate.cost[1])
        reserved = any(estimate.cost) or bool(estimate.begins)
        self.sum_key = None if reserved else tuple(level.name for level in levels)

    def add(self, other: _Settlement) -> None:
        self.adds = (self.adds[0] + other.adds[0], self.adds[1] + other.adds[1])

    def _settle(self, levels: Sequence[Allowance], times: Times) -> tuple[None, bool]:
        # What was used was used before it is told: of two periods of the calendar, it is of the earlier one.
        estimate, at, wall = self._estimate, _latest(levels, times.late), times.walls[0]
        actual = (estimate.cost[0] + self.adds[0], estimate.cost[1] + self.adds[1])
        for i, level in enumerate(levels):
            level.settle(estimate.cost, actual, estimate.at, at, wall, estimate.begins_of(i))
        return None, True


class SharedUsage:
    """Usage in a store. A level is a BudgetRecord."""

    shared = True

    def __init__(self, store: AnyStore, group: str, clock: Clock) -> None:
        self.clock = clock
        self.closed = False
        self.client = RecordClient(store, group, clock)
        self._records: WeakValueDictionary[str, BudgetRecord] = WeakValueDictionary()
        self._lock = allocate_lock()  # guards the records by name
        reset_in_child(self)

    @property
    def member(self) -> str:
        """The name of this process in the store. A forked child has another."""
        return self.client.member

    def level(self, plan: Plan, path: tuple[str, ...]) -> BudgetRecord:
        """The record of that path: the same one for all budgets, by the plan of the last that asked."""
        name = json.dumps(path)
        with self._lock:
            record = self._records.get(name)
            if record is None:
                record = self._records[name] = BudgetRecord(name, plan)
            record.plan = plan
            return record

    def greet(self, level: BudgetRecord) -> None:
        """StoreError if the store does not answer."""
        self.client.ask(look([level]))

    # -- questions

    def fits(self, levels: Sequence[BudgetRecord], cost: Cost) -> bool:
        """Whether a request of this cost fits every level, as far as is known."""
        times, untold = self._hear(levels)
        early, wall = times.early, times.walls[0]
        return all(level.known(times).fits(cost, early, untold(level), wall) for level in levels)

    def left(self, levels: Sequence[BudgetRecord], column: int) -> int | None:
        """The least that any level is known to have left of tokens or money. None: no level limits it."""
        times, untold = self._hear(levels)
        early, wall = times.early, times.walls[0]
        lefts = [(level.known(times).left(column, early, wall), untold(level)[column]) for level in levels]
        return min((max(0, left - more) for left, more in lefts if left is not None), default=None)

    def idle(self, level: BudgetRecord) -> bool:
        """Whether nothing counts, as far as is known, and nothing is to be told."""
        if any(level in change.records for change in self.client.untold()):
            return False
        times = self.client.times()
        try:
            return level.heard_at is None or level.known(times).idle(times.early, times.walls[0])
        except StoreError:  # the next caller that asks is told
            return True

    def _hear(self, levels: Sequence[BudgetRecord]) -> tuple[Times, Callable[[BudgetRecord], Cost]]:
        """The time, and what each level has used that is not told yet. What was never heard is waited for."""
        now = self.clock.now()
        heard = [level.heard_at for level in levels]
        if None in heard:
            self.client.ask(look(levels))
        elif any(now - at > self.client.fresh_for for at in heard if at is not None):
            self.client.tell(look(levels))
            self.client.flush()
        settlements = [change for change in self.client.untold() if isinstance(change, _Settlement)]

        def untold(level: BudgetRecord) -> Cost:
            mine = [settlement.adds for settlement in settlements if level in settlement.records]
            return sum(tokens for tokens, _ in mine), sum(money for _, money in mine)

        return self.client.times(), untold

    # -- changes

    def take(self, levels: Sequence[BudgetRecord], cost: Cost) -> Charge | Refusal:
        """Charge every level, or none. StoreError if the store cannot be asked: a limit is never guessed."""
        taken: Charge | Refusal = self.client.ask(self._taking(levels, cost))
        return taken

    async def take_async(self, levels: Sequence[BudgetRecord], cost: Cost) -> Charge | Refusal:
        """Charge every level, or none, in an event loop. StoreError if the store cannot be asked."""
        taken: Charge | Refusal = await self.client.ask_async(self._taking(levels, cost))
        return taken

    def settle(self, levels: Sequence[BudgetRecord], charge: Charge, actual: Cost) -> None:
        """Replace what was charged by what was really used. Never waits: finalizers may call this."""
        self.client.tell(_Settlement(levels, charge, actual))
        self.client.flush()

    def retune(self, level: BudgetRecord, plan: Plan) -> None:
        """Go by another plan. What was used stays used."""
        level.plan = plan

    def _taking(self, levels: Sequence[BudgetRecord], cost: Cost) -> Change:
        def act(states: Sequence[Allowance], times: Times) -> tuple[Charge | Refusal, bool]:
            late = _latest(states, times.late)
            taken = charge_all(states, cost, times.early, late, self.member, times.walls)
            return taken, isinstance(taken, Charge) and any(cost)

        def undo(taken: Charge | Refusal | None) -> None:
            if isinstance(taken, Charge) and any(cost):
                self.settle(levels, taken, (0, 0))

        return Change(levels, act, undo=undo)

    # -- the end

    def close(self) -> None:
        """Let nothing be reserved any more. Returns when all is told; StoreError if it cannot be."""
        if not self.closed:
            self.closed = True
            self.client.ask(look([]))
            self.client.rest()

    async def close_async(self) -> None:
        """Let nothing be reserved any more, as `close` does, in an event loop."""
        if not self.closed:
            self.closed = True
            await self.client.ask_async(look([]))
            self.client.rest()

    def after_fork(self) -> None:
        """In a forked child: the lock is free."""
        self._lock = allocate_lock()


def _latest(states: Sequence[Allowance], late: int) -> int:
    """The latest moment that it may be now: not before anything that was charged."""
    return max(late, *(state.latest for state in states))
