"""Budgets: how many tokens and how much money a user or an organisation may use in a stretch of time.

A budget says yes or no and does not wait for more. A request is charged to every window of every level at
once, or to none. Its estimate is reserved before the call, and replaced by what it did cost after it.
"""

from __future__ import annotations

from sys import maxsize

from ..errors import InvalidConfig, UnknownName
from ..gate.clock import SYSTEM
from ..gate.closing import Closing
from ..gate.keyed import KeyedObjects
from ..gate.pickling import only_here
from ..hints import Any, AnyStore, Clock, Hashable, Mapping, Seconds, Self, Sequence, T, later
from .account import Account, usage_in
from .plans import (
    NO_MONEY,
    TOKENS_PER_HOUR,
    TOKENS_PER_REQUEST,
    check_one_currency,
    check_prices,
    check_timezone,
    check_timezone_counts,
    read_cost,
    read_estimate,
    read_plan,
    read_plans,
    what_is_left,
)
from .refusals import closed, exceeded, named
from .windows import MONEY, TOKENS, Charge, Cost, Plan, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import BudgetOptions
    from .prices import Prices
else:
    BudgetOptions = later("headgate.budgets.options", "BudgetOptions")
    Prices = later("headgate.budgets.prices", "Prices")

# What a budget charges that was not reserved: the estimate was nothing.
_NOTHING = Charge((0, 0), 0)


class TokenBudget(Closing):
    """Limits the tokens of any hour and of one request; or of any windows and periods of the calendar.

    >>> budget = TokenBudget(max_tokens_per_hour=10_000, key="ann")
    >>> with budget.reserve(4_000) as reservation:    # raises BudgetExceeded if it does not fit
    ...     reservation.settle(2_500)                 # what the reply says was used
    >>> budget.remaining_budget
    7500

    `TokenBudget()` allows 100,000 tokens in any hour, `max_tokens_per_hour`, and 10,000 in one request,
    `max_tokens_per_request`. Each stays in force until another figure or None, which is no limit, is
    given, also beside `windows` and `money`; only `limits` has no defaults.

    `limits="$5/day"`, or a list like `["$5/day", "$0.20/request", "50_000 tokens/hour"]`, says all at once:
    what it does not name is not limited. Windows slide; a `"calendar day"`, week or month is one of UTC or of
    `timezone="Europe/Berlin"`. In figures, `windows={60: 1_000, 3600: 5_000}`, by seconds, replaces
    `max_tokens_per_hour`, and `money` and `max_money_per_request` are what `windows` and
    `max_tokens_per_request` are for tokens, in whole millionths of the currency. With a `parent`, say the
    organisation's budget, everything is charged to both; a parent may have a parent.

    With `prices`, a `Prices`, calls below `headgate.call_options(budget=...)` are charged money by their
    model. `clock` replaces the time in tests.

    With a `store` (`"sqlite:///usage.db"`, `"redis://limits.internal/0"`) all budgets of the same store and
    `key` share what was used, and it survives restarts. Budgets below a shared parent are shared with it.

    Raises InvalidCapacity for amounts, InvalidWindow for times, InvalidLimit for texts and InvalidConfig for
    options that cannot work, and StoreError if the store cannot be asked.
    """

    __slots__ = ("__weakref__", "account")

    __reduce__ = only_here()

    def __init__(
        self,
        max_tokens_per_hour: int | None = TOKENS_PER_HOUR,
        max_tokens_per_request: int | None = TOKENS_PER_REQUEST,
        *,
        windows: Mapping[Seconds, int] | None = None,
        money: Mapping[Seconds, int] | None = None,
        max_money_per_request: int | None = None,
        limits: str | Sequence[str] | None = None,
        timezone: str | None = None,
        prices: Prices | None = None,
        parent: TokenBudget | None = None,
        key: str = "",
        store: AnyStore | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        plan = read_plan(
            *(max_tokens_per_hour, max_tokens_per_request, windows, money, max_money_per_request, limits),
            timezone,
        )
        if not isinstance(key, str):
            raise InvalidConfig(f'key={key!r} is not a key; write a string, e.g. key="ann"')
        above = None if parent is None else _account_above(parent, store, clock)
        _check_currency(plan, key, above)
        if prices is None and above is not None:
            prices = above.prices
        if prices is not None:
            plans = [plan] if above is None else [plan, *(level.plan for level in above.levels())]
            check_prices(prices, plans)
        usage = usage_in(store, f"budget {key}", clock) if above is None else above.usage
        if usage.shared and not key:
            raise InvalidConfig('a shared budget needs a key to be found by; write e.g. key="ann"')
        path = (key,) if above is None else (*above.path, key)
        self.account = Account(usage, plan, path, above, prices)
        if above is None:
            usage.greet(self.account.level)

    @property
    def key(self) -> str:
        """The name of this budget in errors and in a store."""
        return self.account.key

    @property
    def limits_tokens(self) -> bool:
        """Whether this budget, or one above it, limits tokens and not money alone."""
        return any(level.plan.limits_column(TOKENS) for level in self.account.levels())

    @property
    def limits_money(self) -> bool:
        """Whether this budget, or one above it, limits money."""
        return any(level.plan.limits_column(MONEY) for level in self.account.levels())

    @property
    def prices(self) -> Prices | None:
        """The prices by which calls of a block with this budget are charged money; None: they are not."""
        return self.account.prices

    def check_prices(self) -> None:
        """Raise InvalidConfig if a call of a block could not be charged the money that this budget limits."""
        if self.account.prices is None and self.limits_money:
            raise InvalidConfig(
                f"{self!r} limits money, and a call of a block is charged money by the price of its model; "
                "write prices=Prices.shipped() where the budget or its book is made, or use "
                "budget.reserve(tokens, money=...)"
            )

    # -- questions: they change nothing

    def check_budget(self, estimated_tokens: int, *, money: int = NO_MONEY) -> bool:
        """Whether a request of this size would fit now: its own maximum, all windows, all levels.

        `estimated_tokens` and `money`, in whole millionths of the currency, are what it may cost. For a
        shared budget that is as last heard from the store, which is asked again every second. Raises
        InvalidCapacity for what is not an amount, and InvalidConfig without `money` where only money is
        limited.

        >>> budget = TokenBudget(max_tokens_per_hour=10_000)
        >>> budget.check_budget(8_000), budget.check_budget(12_000)
        (True, False)
        """
        levels = self.account.levels()
        return self.account.usage.fits(levels, read_estimate(levels, estimated_tokens, money))

    @property
    def remaining_budget(self) -> int:
        """The tokens that could be used now, never below 0: the least over all windows and levels.

        `sys.maxsize` where nothing limits them. For a shared budget that is as last heard from the store.
        """
        left = self.account.usage.left(self.account.levels(), TOKENS)
        return maxsize if left is None else left

    @property
    def remaining_money(self) -> int | None:
        """The money that could be used now, in whole millionths of the currency; None: without a limit."""
        return self.account.usage.left(self.account.levels(), MONEY)

    # -- changes

    def record_usage(self, tokens_used: int, *, money: int = 0) -> None:
        """Count what was used, at every level, whether or not it fits: it has happened. Never waits.

        `tokens_used` and `money`, in whole millionths of the currency, are the amounts. Raises
        InvalidCapacity for what is not an amount.

        >>> budget = TokenBudget(max_tokens_per_hour=10_000)
        >>> budget.record_usage(2_500)
        >>> budget.remaining_budget
        7500
        """
        cost = read_cost(tokens_used, money, "tokens_used")
        if cost != _NOTHING.cost:
            account = self.account
            # Most budgets have none above them, and need no call to find that out.
            levels = [account.level] if account.parent is None else account.levels()
            account.usage.settle(levels, _NOTHING, cost)
            self.remember()

    def reserve(self, estimated_tokens: int, *, money: int = NO_MONEY) -> Reservation:
        """Charge what a request is thought to cost, at every level or, if it does not fit, at none.

        `estimated_tokens` should cover the longest reply, and so should `money`, in whole millionths of the
        currency. A shared budget is asked for in its store, which takes a moment: in an event loop write
        `await budget.reserve_async(...)`.

        Raises BudgetExceeded, which names the budget and the limit that refused; Closed; StoreError if the
        store does not answer: nothing is guessed; InvalidCapacity for what is not an amount; and
        InvalidConfig without `money` where only money is limited.

        >>> budget = TokenBudget(max_tokens_per_hour=10_000)
        >>> reservation = budget.reserve(4_000)
        >>> reservation.settle(2_500)
        """
        accounts, levels, cost = self._to_charge(estimated_tokens, money)
        return self._reserved(accounts, levels, cost, self.account.usage.take(levels, cost))

    async def reserve_async(self, estimated_tokens: int, *, money: int = NO_MONEY) -> Reservation:
        """Charge what a request is thought to cost, as `reserve` does, in an event loop.

        `estimated_tokens`, `money` and the exceptions are those of `reserve`. Only a shared budget has
        anything to wait for.

        >>> import asyncio
        >>> async def ask(budget):
        ...     with await budget.reserve_async(4_000) as reservation:
        ...         reservation.settle(2_500)
        >>> asyncio.run(ask(TokenBudget()))
        """
        accounts, levels, cost = self._to_charge(estimated_tokens, money)
        return self._reserved(accounts, levels, cost, await self.account.usage.take_async(levels, cost))

    def close(self) -> None:
        """Refuse further reservations, with Closed. What was used is in the store when this returns.

        Raises StoreError if the store cannot be asked: it is told when it can, if this process is still
        there. A budget with a parent is closed with its parent. A second call does nothing.
        """
        if self.account.parent is None:
            self.account.usage.close()

    async def __aexit__(self, *_error: object) -> None:
        if self.account.parent is None:
            await self.account.usage.close_async()

    def remember(self) -> None:
        """Something counts from now on. A budget of a book must not be forgotten then."""

    def _to_charge(self, tokens: int, money: int) -> tuple[list[Account], list[Any], Cost]:
        accounts, levels = self.account.chain()
        if self.account.usage.closed:
            raise closed(self.key, with_book=isinstance(self, _UserBudget))
        return accounts, levels, read_estimate(levels, tokens, money)

    def _reserved(
        self, accounts: Sequence[Account], levels: Sequence[Any], cost: Cost, taken: Charge | Refusal
    ) -> Reservation:
        if isinstance(taken, Charge):
            self.remember()
            return Reservation(self, levels, taken)
        refused = accounts[taken.level]
        raise exceeded(refused.key, refused.level.plan.currency, taken.shortage, cost, taken.at)

    def __repr__(self) -> str:
        key = f" {self.key!r}" if self.key else ""
        if self.account.usage.shared:
            return f"<TokenBudget{key}, shared>"
        return f"<TokenBudget{key}, {what_is_left(self.remaining_budget, self.remaining_money)}>"


class Reservation:
    """What a request was thought to cost, charged until it is settled. `TokenBudget.reserve` makes it.

    Leaving the `with` block does not settle it: the estimate stays charged, also after an exception, because
    the call may have been billed. If you know that it was not, call `refund()`.

    >>> budget = TokenBudget(1000)
    >>> with budget.reserve(400) as reservation:
    ...     reservation.settle(250)
    >>> budget.remaining_budget
    750
    """

    __slots__ = ("_budget", "_charge", "_levels", "_open")

    __reduce__ = only_here("reserve in the process that makes the call")

    def __init__(self, budget: TokenBudget, levels: Sequence[Any], charge: Charge) -> None:
        self._budget = budget
        self._levels = levels
        self._charge = charge
        self._open = [True]  # emptied by `pop`, which succeeds for one of several threads only

    def settle(self, tokens: int | None = None, *, money: int | None = None) -> None:
        """Replace the estimate by what was used: the rest comes back, more is charged even beyond the limit.

        `tokens` and `money`, in whole millionths of the currency, are what was used; an amount that is left
        out was as estimated. Once; later calls do nothing. An amount that has left a window by now does not
        come back to it. In a period of the calendar all of it counts in the one in which it was reserved.
        Never waits. Raises InvalidCapacity for what is not an amount.
        """
        estimate = self._charge.cost
        actual = read_cost(
            estimate[TOKENS] if tokens is None else tokens,
            estimate[MONEY] if money is None else money,
            "tokens",
        )
        usage = self._budget.account.usage
        if self._charge.by != usage.member:
            return  # it was made before a fork, and is the parent's
        try:
            self._open.pop()
        except IndexError:
            return
        if actual != estimate:
            usage.settle(self._levels, self._charge, actual)
            self._budget.remember()

    def refund(self) -> None:
        """Give all of it back: the call was not billed. After `settle` this does nothing.

        >>> budget = TokenBudget(1000)
        >>> budget.reserve(400).refund()
        >>> budget.remaining_budget
        1000
        """
        self.settle(0, money=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __repr__(self) -> str:
        state = "open" if self._open else "settled"
        return f"<Reservation of {self._charge.cost[TOKENS]} tokens, {state}>"


class BudgetBook(Closing):
    """A budget for every user, by tier, and for every organisation.

    >>> book = BudgetBook({
    ...     "free": ["50_000 tokens/hour", "4_000 tokens/request", "$5/day"],
    ...     "pro": "500_000 tokens/hour",
    ... })
    >>> book.for_user("ann") is book.for_user("ann")
    True
    >>> book.for_user("ann", tier="pro").remaining_budget
    500000

    `tiers` and `organizations` are limits as texts, or options of `TokenBudget` with its defaults; `timezone`
    is that of their calendar days, weeks and months, UTC if it is not given. `prices` are as for
    `TokenBudget`, and `clock` replaces the time in tests. With a store,
    `store="sqlite:////var/lib/app/usage.db"` or `store="redis://limits.internal/0"`, all books of the same
    store and `key` share what was used, and it survives restarts; close the book when you are done. A user is
    forgotten when no usage counts any more.

    Raises InvalidLimit for texts and InvalidConfig for options that cannot work, and StoreError if the store
    cannot be asked.
    """

    __reduce__ = only_here()

    def __init__(
        self,
        tiers: Mapping[str, BudgetOptions | str | Sequence[str]],
        *,
        organizations: Mapping[str, BudgetOptions | str | Sequence[str]] | None = None,
        timezone: str | None = None,
        prices: Prices | None = None,
        key: str = "default",
        store: AnyStore | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if timezone is not None:
            check_timezone(timezone)
        zone = timezone or "UTC"
        plans = read_plans(tiers, "tiers", "free", zone)
        if not plans:
            raise InvalidConfig('tiers={} leaves no tier to ask for; write e.g. tiers={"free": "$5/day"}')
        above = {} if organizations is None else read_plans(organizations, "organizations", "acme", zone)
        check_timezone_counts(timezone, [*plans.values(), *above.values()])
        if prices is not None:
            check_prices(prices, [*plans.values(), *above.values()])
        check_one_currency(
            [(f"tier {name!r}", plan) for name, plan in plans.items()]
            + [(f"organization {name!r}", plan) for name, plan in above.items()],
            "the plans of a book",
        )
        if not isinstance(key, str) or not key:
            raise InvalidConfig(f'key={key!r} is not a key; write a string, e.g. key="chat"')
        self.key = key
        self._prices = prices
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
        """The budget of that `user`: every caller that asks gets the same object.

        `tier` is one of the tiers of the book, "free" unless another is given, and `organization` one of its
        organizations. Asked with another tier or organisation than before, it goes by those from now on, and
        what was used stays used. Say both each time: without `organization` there is none.

        Raises UnknownName for a tier or organisation that the book does not have, InvalidConfig if `user` is
        not a name, and Closed.
        """
        if not isinstance(user, str) or not user:
            raise InvalidConfig(f'user={user!r} is not a user; write a name, e.g. "ann"')
        plan = _known(self._tiers, tier, "tier")
        parent = None if organization is None else _known(self._organizations, organization, "organization")
        if self._usage.closed:
            raise closed(user, with_book=True)
        budget = self._keyed.get(user)
        budget.account.retune(plan, parent)
        return budget

    def __len__(self) -> int:
        """How many users are remembered."""
        return len(self._keyed)

    def close(self) -> None:
        """Refuse further reservations, with Closed. What was used is in the store when this returns.

        Raises StoreError if the store cannot be asked: it is told when it can, if this process is still
        there. A second call does nothing.
        """
        self._usage.close()

    async def __aexit__(self, *_error: object) -> None:
        await self._usage.close_async()

    def _make(self, user: Hashable) -> _UserBudget:
        assert isinstance(user, str)
        any_tier = next(iter(self._tiers.values()))  # `for_user` gives it the right one
        account = Account(self._usage, any_tier, ("user", user), prices=self._prices)
        return _UserBudget(account, self._keyed)

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


def _account_above(parent: object, store: AnyStore | None, clock: Clock) -> Account:
    if not isinstance(parent, TokenBudget):
        raise InvalidConfig(f"parent={parent!r} is not a TokenBudget; write e.g. parent=TokenBudget()")
    if parent.account.usage.clock is not clock:
        raise InvalidConfig(
            f"clock={clock!r} is not the clock of the parent; one request cannot happen at two times: "
            "write the same clock= for both"
        )
    if store is not None:
        raise InvalidConfig("a budget is kept where its parent is; write store= for the topmost one only")
    return parent.account


def _check_currency(plan: Plan, key: str, above: Account | None) -> None:
    """Raise if a budget counts money in another currency than one above it."""
    plans = [(named(key), plan)]
    while above is not None:
        plans.append((f"{named(above.key)} above it", above.level.plan))
        above = above.parent
    check_one_currency(plans, "budgets that are charged together")


def _known(things: Mapping[str, T], name: str, what: str) -> T:
    if isinstance(name, str) and name in things:
        return things[name]
    known = ", ".join(map(repr, things)) or "none"
    raise UnknownName(f"no {what} is called {name!r}; known: {known}")
