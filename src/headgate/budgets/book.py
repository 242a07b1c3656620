"""A budget for every user, by tier, and for every organisation."""

from __future__ import annotations

from ..errors import InvalidConfig, UnknownName
from ..gate.clock import SYSTEM
from ..gate.closing import Closing
from ..gate.keyed import KeyedObjects
from ..hints import Clock, Hashable, Mapping, Store, T
from .budget import Account, TokenBudget, closed, usage_in
from .plans import BudgetOptions, read_plans


class BudgetBook(Closing):
    """A budget for every user, by tier, and for every organisation.

    >>> book = BudgetBook({
    ...     "free": {"max_tokens_per_hour": 50_000, "max_tokens_per_request": 4_000},
    ...     "pro": {"max_tokens_per_hour": 500_000},
    ... })
    >>> book.for_user("ann") is book.for_user("ann")
    True
    >>> book.for_user("ann", tier="pro").remaining_budget
    500000

    Tiers and organisations are options of TokenBudget. With `store="sqlite:////var/lib/app/usage.db"` or
    `store="redis://limits.internal/0"` all books of the same store and `key` share what was used, and it
    survives restarts; close the book when you are done. A user is forgotten when no usage counts any more.
    """

    __slots__ = ("__weakref__", "_keyed", "_organizations", "_tiers", "_usage")

    def __init__(
        self,
        tiers: Mapping[str, BudgetOptions],
        *,
        organizations: Mapping[str, BudgetOptions] | None = None,
        key: str = "default",
        store: Store | str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        plans = read_plans(tiers, "tiers", "free")
        if not plans:
            raise InvalidConfig('tiers={} leaves no tier to ask for; write e.g. tiers={"free": {}}')
        above = {} if organizations is None else read_plans(organizations, "organizations", "acme")
        if not isinstance(key, str) or not key:
            raise InvalidConfig(f'key={key!r} is not a key; write a string, e.g. key="chat"')
        # Every tier counts over the windows of all tiers: a user that changes to another tier finds there
        # what was used under the one before.
        every = [limit for plan in plans.values() for limit in plan.limits]
        self._tiers = {name: plan.counting(every) for name, plan in plans.items()}
        self._usage = usage_in(store, f"book {key}", clock)
        self._organizations = {
            name: Account(self._usage, plan, ("organization", name)) for name, plan in above.items()
        }
        self._keyed: KeyedObjects[_UserBudget] = KeyedObjects(self._make, _UserBudget.is_idle)
        self._usage.greet(Account(self._usage, next(iter(plans.values())), ("greeting",)).level)

    def for_user(self, user: str, *, tier: str = "free", organization: str | None = None) -> TokenBudget:
        """The budget of that user: every caller that asks gets the same object.

        Asked with another tier or organisation than before, it goes by those from now on, and
        what was used stays used. Say both each time: without `organization` there is none.
        """
        if not isinstance(user, str) or not user:
            raise InvalidConfig(f'user={user!r} is not a user; write a name, e.g. "ann"')
        plan = _known(self._tiers, tier, "tier")
        parent = None if organization is None else _known(self._organizations, organization, "organization")
        if self._usage.closed:
            raise closed(user)
        budget = self._keyed.get(user)
        budget.account.retune(plan, parent)
        return budget

    def __len__(self) -> int:
        """How many users are remembered."""
        return len(self._keyed)

    def close(self) -> None:
        """Nothing can be reserved any more. What was used is in the store when this returns.

        StoreError if the store cannot be asked: it is told when it can, if this process is still there.
        """
        self._usage.close()

    async def __aexit__(self, *_error: object) -> None:
        await self._usage.close_async()

    def _make(self, user: Hashable) -> _UserBudget:
        assert isinstance(user, str)
        any_tier = next(iter(self._tiers.values()))  # `for_user` gives it the right one
        return _UserBudget(Account(self._usage, any_tier, ("user", user)), self._keyed)

    def __repr__(self) -> str:
        return f"<BudgetBook of {len(self)} users>"


class _UserBudget(TokenBudget):
    """A budget of a book, which is forgotten when nothing counts any more."""

    __slots__ = ("_keyed",)

    def __init__(self, account: Account, keyed: KeyedObjects[_UserBudget]) -> None:
        self.account = account
        self._keyed = keyed

    def is_idle(self) -> bool:
        return self.account.usage.idle(self.account.level)

    def remember(self) -> None:
        self._keyed.keep(self.account.key, self)

    def close(self) -> None:
        """A budget of a book is closed with the book."""


def _known(things: Mapping[str, T], name: str, what: str) -> T:
    if isinstance(name, str) and name in things:
        return things[name]
    known = ", ".join(map(repr, things)) or "none"
    raise UnknownName(f"no {what} is called {name!r}; known: {known}")
