"""Budgets: how many tokens and how much money a user or an organisation may use in a stretch of time.

A budget says yes or no and does not wait for more. A request is charged to every window of every level at
once, or to none. Its estimate is reserved before the call, and replaced by what it did cost after it.
"""

from __future__ import annotations

from sys import maxsize

from ..arguments import SECOND, amount
from ..errors import BudgetExceeded, Closed, InvalidConfig
from ..gate.clock import SYSTEM
from ..gate.closing import Closing
from ..hints import Any, Clock, Mapping, Seconds, Self, Sequence, Store
from .plans import TOKENS_PER_HOUR, TOKENS_PER_REQUEST, read_cost, read_plan
from .usage import LocalUsage
from .windows import MONEY, TOKENS, Charge, Cost, Plan, Refusal, Shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sharing.records.usage import SharedUsage


class Account:
    """Where the usage of a budget is kept, and which account is charged together with it."""

    __slots__ = ("key", "level", "parent", "path", "usage")

    def __init__(
        self,
        usage: LocalUsage | SharedUsage,
        plan: Plan,
        path: tuple[str, ...],
        parent: Account | None = None,
    ) -> None:
        self.usage = usage
        self.path = path
        self.key = path[-1]
        self.parent = parent
        self.level: Any = usage.level(plan, path)

    def chain(self) -> tuple[Account, ...]:
        """This account and all above it."""
        return (self,) if self.parent is None else (self, *self.parent.chain())

    def retune(self, plan: Plan, parent: Account | None) -> None:
        """Go by another plan and another parent from now on. What was used stays used."""
        if self.level.plan is not plan:
            self.usage.retune(self.level, plan)
        self.parent = parent


class TokenBudget(Closing):
    """Limits the tokens of any hour and of one request; or of any windows you like.

    >>> budget = TokenBudget(max_tokens_per_hour=10_000, key="ann")
    >>> with budget.reserve(4_000) as reservation:    # raises BudgetExceeded if it does not fit
    ...     reservation.settle(2_500)                 # what the reply says was used
    >>> budget.remaining_budget
    7500

    `windows={60: 1_000, 3600: 5_000}`, by seconds, replaces the hour. `money` limits money in the same way,
    in whole millionths of the currency you pay in. With a `parent`, say the organisation's budget, everything
    is charged to both; a parent may have a parent. None means no limit.

    With a `store` (`"sqlite:///usage.db"`, `"redis://limits.internal/0"`) all budgets of the same store and
    `key` share what was used, and it survives restarts. Budgets below a shared parent are shared with it.
    """

    __slots__ = ("__weakref__", "account")

    def __init__(
        self,
        max_tokens_per_hour: int | None = TOKENS_PER_HOUR,
        max_tokens_per_request: int | None = TOKENS_PER_REQUEST,
        *,
        windows: Mapping[Seconds, int] | None = None,
        money: Mapping[Seconds, int] | None = None,
        max_money_per_request: int | None = None,
        parent: TokenBudget | None = None,
        key: str = "",
        store: Store | str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        plan = read_plan(max_tokens_per_hour, max_tokens_per_request, windows, money, max_money_per_request)
        if not isinstance(key, str):
            raise InvalidConfig(f'key={key!r} is not a key; write a string, e.g. key="ann"')
        above = None if parent is None else _account_above(parent, store, clock)
        usage = usage_in(store, f"budget {key}", clock) if above is None else above.usage
        if usage.shared and not key:
            raise InvalidConfig('a shared budget needs a key to be found by; write e.g. key="ann"')
        self.account = Account(usage, plan, (key,) if above is None else (*above.path, key), above)
        if above is None:
            usage.greet(self.account.level)

    @property
    def key(self) -> str:
        """The name of this budget in errors and in a store."""
        return self.account.key

    # -- questions: they change nothing

    def check_budget(self, estimated_tokens: int, *, money: int = 0) -> bool:
        """Whether a request of this size would fit now: its own maximum, all windows, all levels.

        For a shared budget that is as last heard from the store, which is asked again every second.
        """
        cost = read_cost(estimated_tokens, money, "estimated_tokens")
        return self.account.usage.fits(self._levels(), cost)

    @property
    def remaining_budget(self) -> int:
        """The tokens that could be used now, never below 0: the least over all windows and levels.

        `sys.maxsize` where nothing limits them. For a shared budget that is as last heard from the store.
        """
        left = self.account.usage.left(self._levels(), TOKENS)
        return maxsize if left is None else left

    @property
    def remaining_money(self) -> int | None:
        """The money that could be used now; None where nothing limits it."""
        return self.account.usage.left(self._levels(), MONEY)

    # -- changes

    def record_usage(self, tokens_used: int, *, money: int = 0) -> None:
        """Count what was used, at every level, whether or not it fits: it has happened. Never waits."""
        self.account.usage.charge(self._levels(), read_cost(tokens_used, money, "tokens_used"))
        self.remember()

    def reserve(self, estimated_tokens: int, *, money: int = 0) -> Reservation:
        """Charge what a request is thought to cost, at every level or, if it does not fit, at none.

        Raises BudgetExceeded, which names the budget and the limit that refused. The estimate should cover
        the longest reply. A shared budget is asked for in its store, which takes a moment: in an event loop
        write `await budget.reserve_async(...)`. StoreError if the store does not answer: nothing is guessed.
        """
        cost = read_cost(estimated_tokens, money, "estimated_tokens")
        accounts = self._accounts_to_charge()
        return self._reserved(accounts, cost, self.account.usage.take(_levels(accounts), cost))

    async def reserve_async(self, estimated_tokens: int, *, money: int = 0) -> Reservation:
        """Charge what a request is thought to cost, as `reserve` does, in an event loop.

        Only a shared budget has anything to wait for.
        """
        cost = read_cost(estimated_tokens, money, "estimated_tokens")
        accounts = self._accounts_to_charge()
        return self._reserved(accounts, cost, await self.account.usage.take_async(_levels(accounts), cost))

    def close(self) -> None:
        """Nothing can be reserved any more. What was used is in the store when this returns.

        StoreError if the store cannot be asked: it is told when it can, if this process is still there. A
        budget with a parent is closed with its parent.
        """
        if self.account.parent is None:
            self.account.usage.close()

    async def __aexit__(self, *_error: object) -> None:
        if self.account.parent is None:
            await self.account.usage.close_async()

    def remember(self) -> None:
        """Something counts from now on. A budget of a book must not be forgotten then."""

    def _reserved(self, accounts: Sequence[Account], cost: Cost, taken: Charge | Refusal) -> Reservation:
        if isinstance(taken, Charge):
            self.remember()
            return Reservation(self, _levels(accounts), taken)
        raise _exceeded(accounts[taken.level].key, taken.shortage, cost, taken.at)

    def _accounts_to_charge(self) -> tuple[Account, ...]:
        if self.account.usage.closed:
            raise closed(self.key)
        return self.account.chain()

    def _levels(self) -> list[Any]:
        return _levels(self.account.chain())

    def __repr__(self) -> str:
        key = f" {self.key!r}" if self.key else ""
        left = "shared" if self.account.usage.shared else f"{self.remaining_budget} tokens remaining"
        return f"<TokenBudget{key}, {left}>"


class Reservation:
    """What a request was thought to cost, charged until it is settled.

    Leaving the `with` block does not settle it: the estimate stays charged, also after an exception, because
    the call may have been billed. If you know that it was not, call `refund()`.
    """

    __slots__ = ("_budget", "_charge", "_levels", "_open")

    def __init__(self, budget: TokenBudget, levels: Sequence[Any], charge: Charge) -> None:
        self._budget = budget
        self._levels = levels
        self._charge = charge
        self._open = [True]  # emptied by `pop`, which succeeds for one of several threads only

    def settle(self, tokens: int | None = None, *, money: int | None = None) -> None:
        """Replace the estimate by what was used: the rest comes back, more is charged even beyond the limit.

        Once; later calls do nothing. An amount that is left out was as estimated. An amount that has left a
        window by now does not come back to it. Never waits.
        """
        estimate = self._charge.cost
        actual = (
            estimate[TOKENS] if tokens is None else amount(tokens, "tokens"),
            estimate[MONEY] if money is None else amount(money, "money"),
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
        """The call was not billed: nothing was used."""
        self.settle(0, money=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __repr__(self) -> str:
        state = "open" if self._open else "settled"
        return f"<Reservation of {self._charge.cost[TOKENS]} tokens, {state}>"


def _levels(accounts: Sequence[Account]) -> list[Any]:
    return [account.level for account in accounts]


def _account_above(parent: object, store: Store | str | None, clock: Clock) -> Account:
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


def usage_in(store: Store | str | None, group: str, clock: Clock) -> LocalUsage | SharedUsage:
    """Where a tree or a book of budgets keeps what was used: in a store, or in this process."""
    if store is None:
        return LocalUsage(clock)
    from ..sharing.records.usage import SharedUsage  # noqa: PLC0415 - loaded only with a store

    return SharedUsage(store, group, clock)


def closed(key: str) -> Closed:
    """The error for a reservation after closing."""
    return Closed(f"the book of {key!r} was closed; make a new one", rule="closed")


def _exceeded(key: str, short: Shortage, cost: Cost, now: int) -> BudgetExceeded:
    needed = cost[short.column]
    if short.column == MONEY:
        what, does = f"money={needed}", "does not"
    else:
        what, does = ("1 token", "does not") if needed == 1 else (f"{needed} tokens", "do not")
    budget = f"the budget of {key!r}" if key else "the budget"
    if short.name.endswith("/request"):
        why = f"{what} can never fit {budget}: one request may take {short.limit}"
    elif short.at is None:
        why = f"{what} can never fit {budget}: it has {short.limit} {short.name} in all"
    else:
        why = f"{what} {does} fit {budget}: {short.remaining} of {short.limit} {short.name} left"
    return BudgetExceeded(
        why,
        rule=short.name,
        budget=key,
        remaining=short.remaining,
        retry_after=None if short.at is None else (short.at - now) / SECOND,
    )
