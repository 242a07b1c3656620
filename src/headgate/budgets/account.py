"""Account: where the usage of one budget is kept, in this process or in a store."""

from __future__ import annotations

from ..gate.clock import read_clock
from ..hints import Any, AnyStore, Clock, later
from .usage import LocalUsage
from .windows import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sharing.records.usage import SharedUsage
    from .prices import Prices
else:
    Prices = later("headgate.budgets.prices", "Prices")
    SharedUsage = later("headgate.sharing.records.usage", "SharedUsage")


class Account:
    """Where the usage of a budget is kept, and which account is charged together with it."""

    __slots__ = ("key", "level", "parent", "path", "prices", "usage")

    def __init__(
        self,
        usage: LocalUsage | SharedUsage,
        plan: Plan,
        path: tuple[str, ...],
        parent: Account | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.usage = usage
        self.prices = prices
        self.path = path
        self.key = path[-1]
        self.parent = parent
        self.level: Any = usage.level(plan, path)

    def chain(self) -> tuple[list[Account], list[Any]]:
        """This account and all above it, and the level of each."""
        accounts: list[Account] = []
        levels = []
        account: Account | None = self
        while account is not None:
            accounts.append(account)
            levels.append(account.level)
            account = account.parent
        return accounts, levels

    def levels(self) -> list[Any]:
        """The level of this account and of all above it."""
        levels, above = [self.level], self.parent
        while above is not None:
            levels.append(above.level)
            above = above.parent
        return levels

    def retune(self, plan: Plan, parent: Account | None) -> None:
        """Go by another plan and another parent from now on. What was used stays used."""
        if self.level.plan is not plan:
            self.usage.retune(self.level, plan)
        self.parent = parent


def usage_in(store: AnyStore | None, group: str, clock: Clock) -> LocalUsage | SharedUsage:
    """Where a tree or a book of budgets keeps what was used: in a store, or in this process."""
    read_clock(clock)
    if store is None:
        return LocalUsage(clock)
    from ..sharing.records.usage import SharedUsage  # noqa: PLC0415 - loaded only with a store

    return SharedUsage(store, group, clock)
