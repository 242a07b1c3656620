"""Allowances: so many tokens, so much money, for each user, organisation and stretch of time.

A budget says yes or no and does not wait for more. A request is charged to every window of every level at
once, or to none; what it is thought to cost is reserved before the call and becomes what it did cost
after it.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections import deque
from sys import maxsize

from ..arguments import SECOND, amount, positive_int, positive_seconds_to_ns
from ..errors import BudgetExceeded, Closed, InvalidConfig, InvalidWindow, UnknownName
from ..gate.clock import SYSTEM
from ..gate.forks import reset_in_child
from ..gate.keyed import KeyedObjects
from ..limits import Rate
from .windows import MONEY, TOKENS, Allowance, Limit, Plan, binding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import Any, Self, TypeAlias, TypeVar

    from ..sharing.records.usage import BudgetPage, SharedTally, Taken
    from ..sharing.store import Store
    from ..typing import Clock, Seconds
    from .windows import Cost, Shortage

    Levels: TypeAlias = tuple["TokenBudget", ...]

    T = TypeVar("T")

_HOUR = 3600
_TOKENS_PER_HOUR = 100_000
_TOKENS_PER_REQUEST = 10_000


class TokenBudget:
    """At most so many tokens in any hour and in one request; or in any windows you like.

    >>> budget = TokenBudget(max_tokens_per_hour=10_000, name="ann")
    >>> with budget.reserve(4_000) as reservation:    # raises BudgetExceeded if it does not fit
    ...     reservation.settle(2_500)                 # what the reply says was used
    >>> budget.remaining_budget
    7500

    `windows={60: 1_000, 3600: 5_000}`, by seconds, replaces the hour. `money` limits money in the
    same way, in whole millionths of whatever you pay in. With a `parent`, say the organisation's
    budget, everything is charged to both; a parent may have a parent. None means no limit.

    With a `store` (`"sqlite:///usage.db"`, `"redis://limits.internal/0"`) what was used is that of everybody
    who is given the same store and `name`, and survives restarts. Below a shared parent all are shared.
    """

    __slots__ = (
        "__weakref__",
        "_allowance",
        "_asleep",
        "_era",
        "_name",
        "_page",
        "_parent",
        "_path",
        "_tally",
        "_woken",
    )

    def __init__(
        self,
        max_tokens_per_hour: int | None = _TOKENS_PER_HOUR,
        max_tokens_per_request: int | None = _TOKENS_PER_REQUEST,
        *,
        windows: Mapping[Seconds, int] | None = None,
        money: Mapping[Seconds, int] | None = None,
        max_money_per_request: int | None = None,
        parent: TokenBudget | None = None,
        name: str = "",
        store: Store | str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        plan = _read_plan(max_tokens_per_hour, max_tokens_per_request, windows, money, max_money_per_request)
        if not isinstance(name, str):
            raise InvalidConfig(f'name={name!r} is not a name; write a string, e.g. name="ann"')
        path: tuple[str, ...] = (name,)
        if parent is None:
            tally = _Tally(clock) if store is None else _shared(store, f"budget {name}", clock)
        elif not isinstance(parent, TokenBudget):
            raise InvalidConfig(f"parent={parent!r} is not a TokenBudget; write e.g. parent=TokenBudget()")
        elif parent._tally.clock is not clock:
            raise InvalidConfig(
                f"clock={clock!r} is not the clock of the parent; one request cannot happen at two times: "
                "write the same clock= for both"
            )
        elif store is not None:
            raise InvalidConfig("a budget is kept where its parent is; write store= for the topmost one only")
        else:
            tally = parent._tally
            path = (*parent._path, name)
        if not name and not isinstance(tally, _Tally):
            raise InvalidConfig('a shared budget needs a name to be found by; write e.g. name="ann"')
        self._set_up(plan, name, parent, tally, path)
        if store is not None:
            assert self._page is not None
            tally.greet([self._page])  # type: ignore[union-attr]  # it is a shared one

    def _set_up(
        self,
        plan: Plan,
        name: str,
        parent: TokenBudget | None,
        tally: _Tally | SharedTally,
        path: tuple[str, ...],
    ) -> Self:
        self._allowance = Allowance(plan)
        self._name = name
        self._parent = parent
        self._tally = tally
        self._path = path  # in a store
        self._page: BudgetPage | None = None  # what the store says: that counts then, not the allowance
        self._era = 0
        if isinstance(tally, _Tally):
            self._era = tally.era
        else:
            self._page = tally.page(plan, *path)
        self._asleep = False  # its book has let it go, because nothing counted
        self._woken: deque[TokenBudget] | None = None  # where it says that something counts again
        return self

    @property
    def name(self) -> str:
        """How errors call this budget."""
        return self._name

    # -- questions: they change nothing

    def check_budget(self, estimated_tokens: int, *, money: int = 0) -> bool:
        """Would a request of this size fit now: its own maximum, all windows, all levels?

        Of a shared budget: as last heard from the store, a second ago at most unless it is just being asked.
        """
        cost = _read_cost(estimated_tokens, money, "estimated_tokens")
        return self._tally.fits(self._levels(), cost)

    @property
    def remaining_budget(self) -> int:
        """Tokens that could be used now, never below 0: the least over all windows and levels.

        Where nothing limits them it is `sys.maxsize`. Of a shared budget: as last heard, as above.
        """
        left = self._tally.left(self._levels(), TOKENS)
        return maxsize if left is None else left

    @property
    def remaining_money(self) -> int | None:
        """Likewise for money; None if nothing limits it."""
        return self._tally.left(self._levels(), MONEY)

    # -- changes

    def record_usage(self, tokens_used: int, *, money: int = 0) -> None:
        """Count what was used, at every level. Asks for no leave: it has happened. Never waits."""
        self._tally.charge(self._levels(), _read_cost(tokens_used, money, "tokens_used"))

    def reserve(self, estimated_tokens: int, *, money: int = 0) -> Reservation:
        """Charge what a request is thought to cost, at every level or, if it does not fit, at none.

        Raises BudgetExceeded, which names the budget and the limit that refused. The estimate should cover
        the longest reply. A shared budget is asked for in its store, which takes a moment: in an event loop
        write `await budget.reserve_async(...)`. StoreError if the store does not answer: nothing is guessed.
        """
        cost = _read_cost(estimated_tokens, money, "estimated_tokens")
        levels = self._levels_to_charge()
        return self._reserved(levels, cost, self._tally.take(levels, cost))

    async def reserve_async(self, estimated_tokens: int, *, money: int = 0) -> Reservation:
        """The same for tasks. Only a shared budget has anything to wait for."""
        cost = _read_cost(estimated_tokens, money, "estimated_tokens")
        levels = self._levels_to_charge()
        return self._reserved(levels, cost, await self._tally.take_async(levels, cost))

    def _reserved(self, levels: Levels, cost: Cost, taken: Taken) -> Reservation:
        if isinstance(taken, int):
            return Reservation(levels, cost, taken)
        i, short, now = taken
        raise _refusal(levels[i]._name, short, cost, now)

    def _levels_to_charge(self) -> Levels:
        if self._tally.closed:
            raise _closed(self._name)
        return self._levels()

    def _levels(self) -> Levels:
        """This budget and all above it."""
        levels = []
        level: TokenBudget | None = self
        while level is not None:
            levels.append(level)
            level = level._parent
        return tuple(levels)

    def _mend_locked(self) -> None:
        assert isinstance(self._tally, _Tally)
        if self._era != self._tally.era:  # somebody was interrupted half way, perhaps here
            self._allowance.mend()
            self._era = self._tally.era

    def _charge_locked(self, cost: Cost, now: int) -> None:
        self._allowance.charge(cost, now)
        self._wake_locked()

    def _wake_locked(self) -> None:
        if self._asleep and self._woken is not None:
            # Nobody but its holder keeps it. From here on it must not be forgotten.
            self._asleep = False
            self._woken.append(self)

    # -- for the book

    def _retune(self, plan: Plan, parent: TokenBudget | None) -> None:
        tally = self._tally
        if self._allowance.plan is plan and self._parent is parent:
            return

        def change(_now: int) -> None:
            self._mend_locked()
            if self._allowance.plan is not plan:
                self._allowance.retune(plan)
            self._parent = parent

        if isinstance(tally, _Tally):
            tally.ask(change)
        else:
            assert self._page is not None
            self._page.plan = self._allowance.plan = plan
            self._parent = parent

    def _fall_asleep(self) -> bool:
        """If nothing counts any more, the book may let it go."""
        tally = self._tally
        if not isinstance(tally, _Tally):
            assert self._page is not None
            return tally.idle(self._page)

        def look(now: int) -> bool:
            self._mend_locked()
            if not self._allowance.idle(now):
                return False
            self._asleep = True
            return True

        return tally.ask(look)

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        left = "shared" if self._page is not None else f"{self.remaining_budget} tokens remaining"
        return f"<TokenBudget{name}, {left}>"


class Reservation:
    """What a request was thought to cost, charged until it is settled.

    Leaving the `with` block does not settle it: the estimate stays charged, also after an
    exception, for the call may have been billed. If you know that it was not, `refund()`.
    """

    __slots__ = ("_estimate", "_levels", "_member", "_open", "_taken_at")

    def __init__(self, levels: Levels, estimate: Cost, taken_at: int) -> None:
        self._levels = levels
        self._estimate = estimate
        self._taken_at = taken_at
        self._member = levels[0]._tally.member  # who made it, where that matters
        self._open = [True]  # a list, because taking something out of one happens once

    def settle(self, tokens: int | None = None, *, money: int | None = None) -> None:
        """The estimate becomes the fact: the rest comes back, more is charged even beyond the limit.

        Once; later calls do nothing. What is left out was as estimated. What has left a window
        meanwhile does not come back to it. Never waits.
        """
        estimate = self._estimate
        actual = (
            estimate[TOKENS] if tokens is None else amount(tokens, "tokens"),
            estimate[MONEY] if money is None else amount(money, "money"),
        )
        self._levels[0]._tally.settle(self, actual)

    def refund(self) -> None:
        """The call was not billed: nothing was used."""
        self.settle(0, money=0)

    def _settle_locked(self, actual: Cost, now: int) -> None:
        if not self._open:
            return
        self._open.clear()
        if actual == self._estimate:
            return
        for level in self._levels:
            level._mend_locked()
            level._allowance.settle(self._estimate, actual, self._taken_at, now)
            level._wake_locked()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __repr__(self) -> str:
        state = "open" if self._open else "settled"
        return f"<Reservation of {self._estimate[TOKENS]} tokens, {state}>"


class BudgetBook:
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
    `store="redis://limits.internal/0"` what was used is that of all processes that keep a book of this `name`
    there, and survives restarts; close the book when you are done. Users of whom nothing counts any more are
    forgotten.
    """

    __slots__ = ("__weakref__", "_keeper", "_organizations", "_tally", "_tiers", "_woken")

    def __init__(
        self,
        tiers: Mapping[str, Mapping[str, Any]],
        *,
        organizations: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "default",
        store: Store | str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        plans = _read_plans(tiers, "tiers", "free")
        if not plans:
            raise InvalidConfig('tiers={} leaves no tier to ask for; write e.g. tiers={"free": {}}')
        above = {} if organizations is None else _read_plans(organizations, "organizations", "acme")
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f'name={name!r} is not a name; write a string, e.g. name="chat"')
        # Whatever the tier, a user's usage is counted over the windows of all tiers: who changes
        # to another finds there what was used under the one before.
        every = [limit for plan in plans.values() for limit in plan.limits]
        self._tiers = {name: plan.counting(every) for name, plan in plans.items()}
        self._tally = _Tally(clock) if store is None else _shared(store, f"book {name}", clock)
        self._woken: deque[TokenBudget] = deque()
        self._organizations = {name: self._new("organization", name, plan) for name, plan in above.items()}
        self._keeper: KeyedObjects[TokenBudget] = KeyedObjects(self._make, TokenBudget._fall_asleep)
        if not isinstance(self._tally, _Tally):
            self._tally.greet([self._tally.page(next(iter(plans.values())), "greeting")])

    def for_user(self, user: str, *, tier: str = "free", organization: str | None = None) -> TokenBudget:
        """The budget of that user: the same object for everyone who asks.

        Asked with another tier or organisation than before, it goes by those from now on, and
        what was used stays used. Say both each time: without `organization` there is none.
        """
        if not isinstance(user, str) or not user:
            raise InvalidConfig(f'user={user!r} is not a user; write a name, e.g. "ann"')
        plan = _known(self._tiers, tier, "tier")
        parent = None if organization is None else _known(self._organizations, organization, "organization")
        if self._tally.closed:
            raise _closed(user)
        budget = self._keeper.get(user)
        budget._retune(plan, parent)
        while self._woken:
            self._keeper.get(self._woken.popleft()._name)
        return budget

    def __len__(self) -> int:
        """How many users are remembered."""
        return len(self._keeper)

    def close(self) -> None:
        """Nothing can be reserved any more. What was used is in the store when this returns.

        StoreError if the store cannot be asked: it is told when it can, if this process is still there.
        """
        self._tally.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BudgetBook of {len(self)} users>"

    # -- making budgets

    def _new(self, kind: str, name: str, plan: Plan) -> TokenBudget:
        return TokenBudget.__new__(TokenBudget)._set_up(plan, name, None, self._tally, (kind, name))

    def _make(self, user: Hashable) -> TokenBudget:
        # Of any tier: `for_user` sees to it before anybody gets it.
        assert isinstance(user, str)
        budget = self._new("user", user, next(iter(self._tiers.values())))
        budget._woken = self._woken
        return budget


class _Tally:
    """What the budgets of one tree share: the lock and the time.

    The lock is held for arithmetic only. A finalizer may run inside it, in the very thread that
    holds it: what such a one has to tell is left in the tray, and done before the lock is free.
    """

    __slots__ = ("__weakref__", "_latest", "_lock", "_owner", "_tray", "clock", "closed", "era", "member")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.era = 0  # grows when a change was broken off half way
        self.closed = False
        self.member = ""  # nobody else is here
        self._latest: int | None = None
        self._owner = 0  # which thread holds the lock
        self._tray: deque[Callable[[int], object]] = deque()
        self._lock = allocate_lock()
        reset_in_child(self)

    # -- what budgets ask and tell

    def fits(self, levels: Levels, cost: Cost) -> bool:
        def look(now: int) -> bool:
            _mend_locked(levels)
            return all(level._allowance.fits(cost, now) for level in levels)

        return self.ask(look)

    def left(self, levels: Levels, column: int) -> int | None:
        def least(now: int) -> int | None:
            _mend_locked(levels)
            lefts = [level._allowance.left(column, now) for level in levels]
            return min((max(0, left) for left in lefts if left is not None), default=None)

        return self.ask(least)

    def take(self, levels: Levels, cost: Cost) -> Taken:
        """When it was charged at every level; or which one refuses, why, and when."""

        def take(now: int) -> Taken:
            _mend_locked(levels)
            refused = binding([level._allowance for level in levels], cost, now)
            if refused is not None:
                return *refused, now
            for level in levels:
                level._charge_locked(cost, now)
            return now

        return self.ask(take)

    async def take_async(self, levels: Levels, cost: Cost) -> Taken:
        return self.take(levels, cost)

    def charge(self, levels: Levels, cost: Cost) -> None:
        def charge(now: int) -> None:
            _mend_locked(levels)
            for level in levels:
                level._charge_locked(cost, now)

        self.tell(charge)

    def settle(self, reservation: Reservation, actual: Cost) -> None:
        self.tell(lambda now: reservation._settle_locked(actual, now))

    def close(self) -> None:
        self.closed = True

    # -- the lock

    def ask(self, question: Callable[[int], T]) -> T:
        """Have something done under the lock, at one moment, and get its answer."""
        if self._owner == get_ident():
            raise RuntimeError(
                "a finalizer asked a budget while the same thread was busy with it; in a finalizer "
                "only record_usage, settle and refund are possible"
            )
        with self._lock:
            try:
                self._owner = get_ident()
                now = self._now_locked()
                while self._tray:
                    self._tray.popleft()(now)
                answer = question(now)
                while self._tray:
                    self._tray.popleft()(now)
            except BaseException:
                self.era += 1
                raise
            finally:
                self._owner = 0
        return answer

    def tell(self, change: Callable[[int], None]) -> None:
        """Have something changed."""
        if self._owner == get_ident():
            self._tray.append(change)
        else:
            self.ask(change)

    def _now_locked(self) -> int:
        now = self.clock.now()
        if self._latest is None or now > self._latest:
            self._latest = now
        return self._latest  # a clock that goes back stands still

    def after_fork(self) -> None:
        """In a forked child: the lock is free."""
        self._lock = allocate_lock()
        self._owner = 0
        self.era += 1  # whoever held the lock will never come to an end here


def _mend_locked(levels: Levels) -> None:
    for level in levels:
        level._mend_locked()


def _shared(store: Store | str, group: str, clock: Clock) -> SharedTally:
    from ..sharing.records.usage import SharedTally  # noqa: PLC0415 - only those who share load what it takes

    tally = SharedTally(store, group, clock)
    reset_in_child(tally)
    return tally


# -- what is said


def _refusal(name: str, short: Shortage, cost: Cost, now: int) -> BudgetExceeded:
    needed = cost[short.column]
    if short.column == MONEY:
        what, does, can = f"money={needed}", "does not", "can never"
    else:
        what = "1 token" if needed == 1 else f"{needed} tokens"
        does, can = ("does not" if needed == 1 else "do not"), "can never"
    budget = f"the budget of {name!r}" if name else "the budget"
    if short.name.endswith("/request"):
        why = f"{what} {can} fit {budget}: one request may take {short.limit}"
    elif short.at is None:
        why = f"{what} {can} fit {budget}: it has {short.limit} {short.name} in all"
    else:
        why = f"{what} {does} fit {budget}: {short.remaining} of {short.limit} {short.name} left"
    return BudgetExceeded(
        why,
        rule=short.name,
        budget=name,
        remaining=short.remaining,
        retry_after=None if short.at is None else (short.at - now) / SECOND,
    )


def _closed(name: str) -> Closed:
    return Closed(f"the book of {name!r} was closed; make a new one", rule="closed")


# -- what is given


def _read_cost(tokens: int, money: int, what: str) -> Cost:
    return amount(tokens, what), amount(money, "money")


def _read_plan(
    max_tokens_per_hour: int | None,
    max_tokens_per_request: int | None,
    windows: Mapping[Seconds, int] | None,
    money: Mapping[Seconds, int] | None,
    max_money_per_request: int | None,
) -> Plan:
    if windows is None:
        if max_tokens_per_hour is None:
            limits = []
        else:
            most = positive_int(max_tokens_per_hour, "max_tokens_per_hour", example=_TOKENS_PER_HOUR)
            limits = [Limit(most, TOKENS, Rate(most, _HOUR, unit="tokens", strict=True))]
    else:
        limits = _read_windows(windows, "windows", TOKENS)
        # The hour that nobody mentioned is replaced. One that somebody did must not vanish.
        if max_tokens_per_hour not in (None, _TOKENS_PER_HOUR):
            raise InvalidConfig(
                f"max_tokens_per_hour={max_tokens_per_hour!r} and windows={windows!r}: the windows replace "
                f"the hour; write it as one of them, windows={{3600: {max_tokens_per_hour!r}, ...}}"
            )
    if money is not None:
        limits += _read_windows(money, "money", MONEY)
    caps = (
        None
        if max_tokens_per_request is None
        else positive_int(max_tokens_per_request, "max_tokens_per_request", example=_TOKENS_PER_REQUEST),
        None
        if max_money_per_request is None
        else positive_int(max_money_per_request, "max_money_per_request", example=50_000),
    )
    return Plan(caps, limits)


def _read_windows(windows: Mapping[Seconds, int], what: str, column: int) -> list[Limit]:
    example = f"write seconds and amounts, e.g. {what}={{3600: 100_000}}"
    if not hasattr(windows, "items") or not windows:
        raise InvalidConfig(f"{what}={windows!r} names no window; {example}, or None for no limit")
    limits: dict[tuple[int, int], Limit] = {}
    for period, most in windows.items():
        try:
            positive_seconds_to_ns(period, what)
        except InvalidWindow:
            raise InvalidWindow(
                f"{what}={windows!r}: {period!r} is not a stretch of time; {example}"
            ) from None
        most = positive_int(most, f"{what}[{period!r}]", example=100_000)  # noqa: PLW2901 - the same, checked
        limit = Limit(most, column, Rate(most, period, unit="tokens", strict=True))
        if limits.setdefault(limit.key, limit) is not limit:
            raise InvalidConfig(f"{what}={windows!r} has the window of {period!r} twice; write it once")
    return list(limits.values())


_DEFAULTS: dict[str, Any] = {
    "max_tokens_per_hour": _TOKENS_PER_HOUR,
    "max_tokens_per_request": _TOKENS_PER_REQUEST,
    "windows": None,
    "money": None,
    "max_money_per_request": None,
}


def _read_plans(named: Mapping[str, Mapping[str, Any]], what: str, example: str) -> dict[str, Plan]:
    right = f'write e.g. {what}={{"{example}": {{"max_tokens_per_hour": 50_000}}}}'
    if not hasattr(named, "items"):
        raise InvalidConfig(f"{what}={named!r} is not a mapping of names to options; {right}")
    plans = {}
    for name, options in named.items():
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f"{what}: {name!r} is not a name; {right}")
        if not hasattr(options, "items"):
            raise InvalidConfig(f"{what}[{name!r}]={options!r} is not a mapping of options; {right}")
        unknown = [option for option in options if option not in _DEFAULTS]
        if unknown:
            raise InvalidConfig(
                f"{what}[{name!r}] has no option {unknown[0]!r}; the options are {', '.join(_DEFAULTS)}"
            )
        plans[name] = _read_plan(**{**_DEFAULTS, **options})
    return plans


def _known(things: Mapping[str, T], name: str, what: str) -> T:
    if isinstance(name, str) and name in things:
        return things[name]
    known = ", ".join(map(repr, things)) or "none"
    raise UnknownName(f"no {what} is called {name!r}; known: {known}")
