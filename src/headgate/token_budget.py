"""Allowances: so many tokens, so much money, for each user, organisation and stretch of time.

A budget says yes or no and never waits. A request is charged to every window of every level at
once, or to none; what it is thought to cost is reserved before the call and becomes what it did
cost after it.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections import deque
from sys import maxsize

from .errors import BudgetExceeded, Closed, InvalidConfig, InvalidWindow, StoreError, UnknownName
from .gate import start_clean_after_fork
from .limits import SECOND, Rate, amount, positive_int, positive_seconds_to_ns
from .registry import Keeper
from .rules.budget import MONEY, TOKENS, Allowance, Limit, Plan, binding, still_counts
from .waiting import SYSTEM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import Any, Self, TypeVar

    from .limits import Seconds
    from .rules.budget import Cost, Saved, Shortage
    from .sharing.usage_file import Row, UsageFile
    from .waiting import Clock

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
    """

    __slots__ = (
        "__weakref__",
        "_allowance",
        "_asleep",
        "_era",
        "_name",
        "_parent",
        "_row",
        "_tally",
        "_woken",
        "_written",
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
        clock: Clock = SYSTEM,
    ) -> None:
        plan = _read_plan(max_tokens_per_hour, max_tokens_per_request, windows, money, max_money_per_request)
        if not isinstance(name, str):
            raise InvalidConfig(f'name={name!r} is not a name; write a string, e.g. name="ann"')
        if parent is None:
            tally = _Tally(clock)
        elif not isinstance(parent, TokenBudget):
            raise InvalidConfig(f"parent={parent!r} is not a TokenBudget; write e.g. parent=TokenBudget()")
        elif parent._tally.clock is not clock:
            raise InvalidConfig(
                f"clock={clock!r} is not the clock of the parent; one request cannot happen at two times: "
                "write the same clock= for both"
            )
        else:
            tally = parent._tally
        self._set_up(plan, name, parent, tally)

    def _set_up(self, plan: Plan, name: str, parent: TokenBudget | None, tally: _Tally) -> Self:
        self._allowance = Allowance(plan)
        self._name = name
        self._parent = parent
        self._tally = tally
        self._era = tally.era
        self._row: Row | None = None  # of a book that keeps a file
        self._written = False  # is there such a row?
        self._asleep = False  # its book has let it go, because nothing counted
        self._woken: deque[TokenBudget] | None = None  # where it says that something counts again
        return self

    @property
    def name(self) -> str:
        """How errors call this budget."""
        return self._name

    # -- questions: they change nothing

    def check_budget(self, estimated_tokens: int, *, money: int = 0) -> bool:
        """Would a request of this size fit now: its own maximum, all windows, all levels?"""
        cost = _read_cost(estimated_tokens, money, "estimated_tokens")
        return self._tally.ask(
            lambda now: all(level._allowance.fits(cost, now) for level in self._levels_locked())
        )

    @property
    def remaining_budget(self) -> int:
        """Tokens that could be used now, never below 0: the least over all windows and levels.

        Where nothing limits them it is `sys.maxsize`.
        """
        left = self._left(TOKENS)
        return maxsize if left is None else left

    @property
    def remaining_money(self) -> int | None:
        """Likewise for money; None if nothing limits it."""
        return self._left(MONEY)

    def _left(self, column: int) -> int | None:
        def least(now: int) -> int | None:
            lefts = [level._allowance.left(column, now) for level in self._levels_locked()]
            return min((max(0, left) for left in lefts if left is not None), default=None)

        return self._tally.ask(least)

    # -- changes

    def record_usage(self, tokens_used: int, *, money: int = 0) -> None:
        """Count what was used, at every level. Asks for no leave: it has happened."""
        cost = _read_cost(tokens_used, money, "tokens_used")

        def charge(now: int) -> None:
            for level in self._levels_locked():
                level._charge_locked(cost, now)

        self._tally.tell(charge)

    def reserve(self, estimated_tokens: int, *, money: int = 0) -> Reservation:
        """Charge what a request is thought to cost, at every level or, if it does not fit, at none.

        Raises BudgetExceeded, which names the budget and the limit that refused. The estimate
        should cover the longest reply. Never waits: the same for threads and tasks.
        """
        cost = _read_cost(estimated_tokens, money, "estimated_tokens")
        tally = self._tally

        def take(now: int) -> Reservation | Exception:
            if tally.trouble is not None:
                return tally.trouble(self._name)
            levels = self._levels_locked()
            refused = binding([level._allowance for level in levels], cost, now)
            if refused is not None:
                return _refusal(levels[refused[0]]._name, refused[1], cost, now)
            for level in levels:
                level._charge_locked(cost, now)
            return Reservation(levels, cost, now)

        taken = tally.ask(take)
        if not isinstance(taken, Reservation):
            raise taken
        try:
            tally.write_through()
        except BaseException:
            # The caller gets no reservation, so nothing is taken. The file hears of it later.
            tally.ask(lambda now: taken._settle_locked((0, 0), now))
            raise
        return taken

    def _levels_locked(self) -> tuple[TokenBudget, ...]:
        """This budget and all above it, each in good order."""
        levels = []
        level: TokenBudget | None = self
        while level is not None:
            level._mend_locked()
            levels.append(level)
            level = level._parent
        return tuple(levels)

    def _mend_locked(self) -> None:
        if self._era != self._tally.era:  # somebody was interrupted half way, perhaps here
            self._allowance.mend()
            self._era = self._tally.era

    def _charge_locked(self, cost: Cost, now: int) -> None:
        self._allowance.charge(cost, now)
        self._changed_locked()

    def _changed_locked(self) -> None:
        if self._row is not None:
            self._tally.mark_locked(self)
        if self._asleep and self._woken is not None:
            # Nobody but its holder keeps it. From here on it must not be forgotten.
            self._asleep = False
            self._woken.append(self)

    # -- for the book

    def _retune(self, plan: Plan, parent: TokenBudget | None) -> None:
        if self._allowance.plan is plan and self._parent is parent:
            return

        def change(_now: int) -> None:
            self._mend_locked()
            if self._allowance.plan is not plan:
                self._allowance.retune(plan)
            self._parent = parent

        self._tally.ask(change)

    def _fall_asleep(self) -> bool:
        """If nothing counts any more, the book may let it go."""

        def look(now: int) -> bool:
            self._mend_locked()
            if not self._allowance.idle(now):
                return False
            self._asleep = True
            if self._written:
                self._tally.mark_locked(self)
            return True

        return self._tally.ask(look)

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        return f"<TokenBudget{name}, {self.remaining_budget} tokens remaining>"


class Reservation:
    """What a request was thought to cost, charged until it is settled.

    Leaving the `with` block does not settle it: the estimate stays charged, also after an
    exception, for the call may have been billed. If you know that it was not, `refund()`.
    """

    __slots__ = ("_estimate", "_levels", "_open", "_taken_at")

    def __init__(self, levels: tuple[TokenBudget, ...], estimate: Cost, taken_at: int) -> None:
        self._levels = levels
        self._estimate = estimate
        self._taken_at = taken_at
        self._open = True

    def settle(self, tokens: int | None = None, *, money: int | None = None) -> None:
        """The estimate becomes the fact: the rest comes back, more is charged even beyond the limit.

        Once; later calls do nothing. What is left out was as estimated. What has left a window
        meanwhile does not come back to it.
        """
        estimate = self._estimate
        actual = (
            estimate[TOKENS] if tokens is None else amount(tokens, "tokens"),
            estimate[MONEY] if money is None else amount(money, "money"),
        )
        self._levels[0]._tally.tell(lambda now: self._settle_locked(actual, now))

    def refund(self) -> None:
        """The call was not billed: nothing was used."""
        self.settle(0, money=0)

    def _settle_locked(self, actual: Cost, now: int) -> None:
        if not self._open:
            return
        self._open = False
        if actual == self._estimate:
            return
        for level in self._levels:
            level._mend_locked()
            level._allowance.settle(self._estimate, actual, self._taken_at, now)
            level._changed_locked()

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

    Tiers and organisations are options of TokenBudget. With `store="sqlite:////var/lib/app/usage.db"` what
    was used survives a restart; close the book when you are done. Users of whom nothing counts any
    more are forgotten.
    """

    __slots__ = ("__weakref__", "_keeper", "_organizations", "_restored", "_tally", "_tiers", "_woken")

    def __init__(
        self,
        tiers: Mapping[str, Mapping[str, Any]],
        *,
        organizations: Mapping[str, Mapping[str, Any]] | None = None,
        store: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        plans = _read_plans(tiers, "tiers", "free")
        if not plans:
            raise InvalidConfig('tiers={} leaves no tier to ask for; write e.g. tiers={"free": {}}')
        above = {} if organizations is None else _read_plans(organizations, "organizations", "acme")
        # Whatever the tier, a user's usage is counted over the windows of all tiers: who changes
        # to another finds there what was used under the one before.
        every = [limit for plan in plans.values() for limit in plan.limits]
        self._tiers = {name: plan.counting(every) for name, plan in plans.items()}
        self._tally = _Tally(clock)
        self._woken: deque[TokenBudget] = deque()
        self._organizations = {name: self._new("organization", name, plan) for name, plan in above.items()}
        self._restored: dict[str, Saved] = {}
        self._keeper: Keeper[TokenBudget] = Keeper(self._make, TokenBudget._fall_asleep)
        if store is not None:
            self._open(store)

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
        """Write what is not written, and let the file go. Nothing can be reserved any more."""
        self._tally.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BudgetBook of {len(self)} users>"

    # -- making budgets

    def _new(self, kind: str, name: str, plan: Plan) -> TokenBudget:
        budget = TokenBudget.__new__(TokenBudget)._set_up(plan, name, None, self._tally)
        if self._tally.keeps_file:
            budget._row = kind, name
        return budget

    def _make(self, user: Hashable) -> TokenBudget:
        # Of any tier: `for_user` sees to it before anybody gets it.
        assert isinstance(user, str)
        budget = self._new("user", user, next(iter(self._tiers.values())))
        budget._woken = self._woken
        saved = self._restored.pop(user, None)
        if saved is not None:
            self._tally.restore(budget, saved)
        return budget

    def _open(self, store: str) -> None:
        """Go on from what the file says. Whatever no longer counts is deleted from it."""
        from .sharing.usage_file import UsageFile, read_store  # noqa: PLC0415 - only who keeps one loads it

        tally = self._tally
        path = read_store(store)
        now = tally.clock.now()
        file = UsageFile(path, now=now)
        gone: dict[Row, Saved] = {}
        try:
            for row, saved in file.load().items():
                try:
                    live = still_counts(saved, file.shift, now)
                except ValueError as error:
                    raise file.damaged(f"the row of {row[1]!r} is no usage: {error}") from None
                kind, name = row
                if not live:
                    gone[row] = []
                elif kind == "user":
                    self._restored[name] = saved
                elif name in self._organizations:
                    self._organizations[name]._allowance.restore(saved, file.shift, now)
                    self._organizations[name]._written = True
                # An organisation nobody knows today may be back tomorrow: it is left as it is.
            if gone:
                file.write(gone)
        except BaseException:
            file.close()
            raise
        tally.keep_in(file)
        for name, budget in self._organizations.items():
            budget._row = "organization", name
        for user in list(self._restored):
            self._keeper.get(user)


class _Tally:
    """What the budgets of one tree share: the lock, the time, and the file if they keep one.

    The lock is held for arithmetic only. A finalizer may run inside it, in the very thread that
    holds it: what such a one has to tell is left in the tray, and done before the lock is free.

    Writing is in order because a row is the whole of what a budget remembers: whoever writes takes
    everything that has changed so far along, and those who came meanwhile find it done.
    """

    __slots__ = (
        "__weakref__",
        "_changed",
        "_file",
        "_late",
        "_latest",
        "_lock",
        "_marks",
        "_owner",
        "_tray",
        "_turn",
        "_writer",
        "_written",
        "clock",
        "closed",
        "era",
        "keeps_file",
        "trouble",
    )

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.era = 0  # grows when a change was broken off half way
        self.closed = False
        self.trouble: Callable[[str], Exception] | None = None  # why nothing can be reserved
        self.keeps_file = False
        self._latest: int | None = None
        self._owner = 0  # which thread holds the lock
        self._tray: deque[Callable[[int], object]] = deque()
        self._file: UsageFile | None = None
        self._changed: dict[Row, TokenBudget] = {}
        self._marks = 0  # how many changes there were,
        self._written = 0  # and how many of them the file knows
        self._writer = 0  # which thread writes
        self._late = False  # it changed something while it was writing
        self._lock = allocate_lock()
        self._turn = allocate_lock()
        start_clean_after_fork(self)

    # -- the lock

    def ask(self, question: Callable[[int], T]) -> T:
        """Have something done under the lock, at one moment, and get its answer."""
        if self._owner == get_ident():
            raise RuntimeError(
                "a finalizer asked a budget while the same thread was busy with it; in a finalizer "
                "only record_usage, settle and refund are possible"
            )
        late = False
        with self._lock:
            try:
                self._owner = get_ident()
                now = self._now_locked()
                if self._tray:
                    late = self._catch_up_locked(now)
                answer = question(now)
                if self._tray:
                    late = self._catch_up_locked(now)
            except BaseException:
                self.era += 1
                raise
            finally:
                self._owner = 0
        if late:
            self.write_through()
        return answer

    def tell(self, change: Callable[[int], None]) -> None:
        """Have something changed. When it returns, the file knows."""
        if self._owner == get_ident():
            self._tray.append(change)
            return
        self.ask(change)
        self.write_through()

    def _catch_up_locked(self, now: int) -> bool:
        while self._tray:
            self._tray.popleft()(now)
        return True

    def _now_locked(self) -> int:
        now = self.clock.now()
        if self._latest is None or now > self._latest:
            self._latest = now
        return self._latest  # a clock that goes back stands still

    # -- the file

    def keep_in(self, file: UsageFile) -> None:
        """From now on, every change is written to this file."""
        self._file = file
        self.keeps_file = True

    def restore(self, budget: TokenBudget, saved: Saved) -> None:
        """A budget that was just made goes on from what the file said at the opening."""
        assert self._file is not None
        budget._allowance.restore(saved, self._file.shift, self.clock.now())
        budget._written = True

    def mark_locked(self, budget: TokenBudget) -> None:
        """This budget has changed, or has nothing to say any more."""
        if self.keeps_file:
            assert budget._row is not None
            self._changed[budget._row] = budget
            self._marks += 1

    def write_through(self) -> None:
        """Return when everything that was changed so far is on disk."""
        upto = self._marks
        if self._written >= upto:
            return
        if self._writer == get_ident():  # a finalizer, inside the writing of this very thread
            self._late = True
            return
        with self._turn:
            try:
                self._writer = get_ident()
                while self._written < upto or self._late:
                    self._late = False
                    self._write()
            finally:
                self._writer = 0

    def _write(self) -> None:
        file = self._file
        if file is None:
            raise StoreError("the book was closed: what was used since is counted, but not kept")
        changed: dict[Row, TokenBudget] = {}
        shift = file.shift

        def take(now: int) -> tuple[dict[Row, Saved], int]:
            rows: dict[Row, Saved] = {}
            changed.update(self._changed)
            self._changed.clear()
            for row, budget in changed.items():
                budget._mend_locked()
                rows[row] = [] if budget._allowance.idle(now) else budget._allowance.saved(shift)
                budget._written = bool(rows[row])
            return rows, self._marks

        try:
            rows, marks = self.ask(take)
            file.write(rows)
        except BaseException:
            # What could not be written now is written next time, as it will be then.
            self.ask(lambda _now: [self._changed.setdefault(*item) for item in changed.items()])
            raise
        self._written = marks

    def close(self) -> None:
        def shut(_now: int) -> None:
            self.closed = True
            if self.trouble is None:
                self.trouble = _closed

        self.ask(shut)
        if self._file is None:
            return
        try:
            self.write_through()
        finally:
            with self._turn:
                file, self._file = self._file, None
                if file is not None:
                    file.close()

    def _start_clean(self) -> None:
        """In a forked child: the locks are free, and the file is the parent's."""
        self._lock = allocate_lock()
        self._turn = allocate_lock()
        self._owner = self._writer = 0
        self.era += 1  # whoever held the lock will never come to an end here
        if self.keeps_file:
            self.keeps_file = self._late = False
            self._changed.clear()
            self._written = self._marks
            self.trouble = _forked
            if self._file is not None:
                self._file.abandon()
                self._file = None


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


def _forked(name: str) -> StoreError:
    return StoreError(
        f"nothing can be reserved for {name!r} in a forked process: the file of the book belongs to its "
        "parent; open the book after forking, in one process"
    )


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
