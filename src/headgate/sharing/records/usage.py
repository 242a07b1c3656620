"""What budgets have used, kept in a store: by all who share them together.

Rules of this room: what is reserved is written before anybody may go by it, at every level or at none. What
was used is told, once, when the store can be asked. Questions are answered from what was last heard and what
is not told yet. The arithmetic is that of `rules.budget`, on the store's clock: what is charged counts from
the latest moment that it may be now, and what is asked is of the earliest: no window ever holds too much.
"""

from __future__ import annotations

import json
from _thread import allocate_lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ...arguments import SECOND
from ...budgets.windows import Allowance, binding
from ...errors import StoreError
from .client import DAMAGE, Entry, Ledger, Page, contents, look

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from ...budgets.budget import Reservation, TokenBudget
    from ...budgets.windows import Cost, Plan, Shortage
    from ...typing import Clock
    from ..store import Store

    # When it was charged, or which level refused it, why, and when.
    Taken: TypeAlias = int | tuple[int, Shortage, int]

# What lies further in the future was written by a clock that has been put back since, and counts from now.
_TOLERATED = SECOND


class BudgetPage(Page):
    """What one budget has used, and what it may."""

    __slots__ = ("_known", "plan")

    def __init__(self, name: str, plan: Plan) -> None:
        super().__init__(name)
        self.plan = plan
        self._known: tuple[str, Plan, Allowance] | None = None

    def read(self, written: Any, late: int) -> Allowance:
        return Allowance.after([] if written is None else written, self.plan, late + _TOLERATED)

    def write(self, state: Allowance, late: int) -> tuple[Any, int]:
        return state.saved(late), max(0, state.forgotten_at() - late)

    def known(self, late: int) -> Allowance:
        """As last heard, to be looked at."""
        known, (mark, text), plan = self._known, self.record, self.plan
        if known is None or known[0] != mark or known[1] is not plan:
            try:
                known = self._known = (mark, plan, self.read(contents(text)[1], late))
            except DAMAGE as error:
                raise self.damaged(error) from error
        return known[2]


class _Change(Entry):
    """An estimate becomes a fact. Where nobody reserved anything the estimate was nothing."""

    __slots__ = ("_estimate", "_taken_at", "adds", "sum_key")

    def __init__(self, pages: Sequence[BudgetPage], estimate: Cost, actual: Cost, taken_at: int) -> None:
        super().__init__(pages, self._settle)
        self._estimate = estimate
        self._taken_at = taken_at
        self.adds = (actual[0] - estimate[0], actual[1] - estimate[1])
        self.sum_key = None if any(estimate) else tuple(page.name for page in pages)

    def add(self, other: _Change) -> None:
        self.adds = (self.adds[0] + other.adds[0], self.adds[1] + other.adds[1])

    def _settle(self, levels: Sequence[Allowance], _early: int, late: int) -> tuple[None, bool]:
        at = max(late, *(level.latest for level in levels))
        actual = (self._estimate[0] + self.adds[0], self._estimate[1] + self.adds[1])
        for level in levels:
            level.settle(self._estimate, actual, self._taken_at, at)
        return None, True


class SharedTally:
    """What the budgets of one tree or book share with those of others, under one name in a store."""

    def __init__(self, store: Store | str, group: str, clock: Clock) -> None:
        self.clock = clock
        self.closed = False
        self._ledger = Ledger(store, group, clock)
        self._pages: WeakValueDictionary[str, BudgetPage] = WeakValueDictionary()
        self._lock = allocate_lock()  # of the pages

    @property
    def member(self) -> str:
        """Who we are. Another in a forked child."""
        return self._ledger.member

    def page(self, plan: Plan, *path: str) -> BudgetPage:
        """The page of that name: one for all who ask, by the plan of who asked last."""
        name = json.dumps(path)
        with self._lock:
            page = self._pages.get(name)
            if page is None:
                page = self._pages[name] = BudgetPage(name, plan)
            page.plan = plan
            return page

    def greet(self, pages: Sequence[BudgetPage]) -> None:
        """Is there a store at all? StoreError if it does not answer."""
        self._ledger.ask(look(pages))

    # -- questions

    def fits(self, levels: Sequence[TokenBudget], cost: Cost) -> bool:
        early, late, untold = self._hear(levels)
        return all(page.known(late).fits(cost, early, untold(page)) for page in _pages(levels))

    def left(self, levels: Sequence[TokenBudget], column: int) -> int | None:
        early, late, untold = self._hear(levels)
        lefts = [(page.known(late).left(column, early), untold(page)[column]) for page in _pages(levels)]
        return min((max(0, left - more) for left, more in lefts if left is not None), default=None)

    def idle(self, page: BudgetPage) -> bool:
        """Is there nothing that counts, as far as we know, and nothing to tell?"""
        if any(page in entry.pages for entry in self._ledger.untold()):
            return False
        early, late = self._ledger.times()
        try:
            return page.heard_at is None or page.known(late).idle(early)
        except StoreError:  # whoever asks for it is told
            return True

    def _hear(self, levels: Sequence[TokenBudget]) -> tuple[int, int, Any]:
        """The time, and what is known but not told yet. What was never heard is waited for."""
        pages = _pages(levels)
        now = self.clock.now()
        heard = [page.heard_at for page in pages]
        if None in heard:
            self._ledger.ask(look(pages))
        elif any(now - at > self._ledger.fresh_for for at in heard if at is not None):
            self._ledger.tell(look(pages))
        changes = [entry for entry in self._ledger.untold() if isinstance(entry, _Change)]

        def untold(page: BudgetPage) -> Cost:
            mine = [change.adds for change in changes if page in change.pages]
            return sum(tokens for tokens, _ in mine), sum(money for _, money in mine)

        return *self._ledger.times(), untold

    # -- changes

    def take(self, levels: Sequence[TokenBudget], cost: Cost) -> Taken:
        """Charge every level, or none. StoreError if the store cannot be asked: a limit is never guessed."""
        taken: Taken = self._ledger.ask(self._taking(_pages(levels), cost))
        return taken

    async def take_async(self, levels: Sequence[TokenBudget], cost: Cost) -> Taken:
        taken: Taken = await self._ledger.ask_async(self._taking(_pages(levels), cost))
        return taken

    def charge(self, levels: Sequence[TokenBudget], cost: Cost) -> None:
        self._change(_pages(levels), (0, 0), cost, 0)

    def settle(self, reservation: Reservation, actual: Cost) -> None:
        if reservation._member != self.member:
            return  # made before a fork: it is the parent's
        try:
            reservation._open.pop()
        except IndexError:
            return
        self._change(_pages(reservation._levels), reservation._estimate, actual, reservation._taken_at)

    def _taking(self, pages: Sequence[BudgetPage], cost: Cost) -> Entry:
        def act(levels: Sequence[Allowance], early: int, late: int) -> tuple[Taken, bool]:
            refused = binding(levels, cost, early)
            if refused is not None:
                return (*refused, early), False
            at = max(late, *(level.latest for level in levels))
            for level in levels:
                level.charge(cost, at)
            return at, any(cost)

        def undo(taken: Taken | None) -> None:
            if isinstance(taken, int):
                self._change(pages, cost, (0, 0), taken)

        return Entry(pages, act, undo=undo)

    def _change(self, pages: Sequence[BudgetPage], estimate: Cost, actual: Cost, taken_at: int) -> None:
        if estimate != actual:
            self._ledger.tell(_Change(pages, estimate, actual, taken_at))

    # -- the end

    def close(self) -> None:
        """Return when all that was used is told. StoreError if it cannot be, for now."""
        if not self.closed:
            self.closed = True
            self._ledger.ask(look([]))
            self._ledger.rest()

    def after_fork(self) -> None:
        self._lock = allocate_lock()
        self._ledger.after_fork()


def _pages(levels: Sequence[TokenBudget]) -> list[BudgetPage]:
    return [level._page for level in levels if level._page is not None]
