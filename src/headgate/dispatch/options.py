"""call_options: what the HTTP requests and calls of a block are to be told at their gates.

The options stand in a context variable, so they reach every adapter and every ResilientClient below the
block, however many frameworks lie in between. A task takes the options of the code that started it. So does
the thread of `asyncio.to_thread`; one that a ThreadPoolExecutor started has none.
"""

from __future__ import annotations

from _contextvars import ContextVar

from ..arguments import amount, check_hashable, is_async, read_priority, seconds_to_ns
from ..errors import InvalidCapacity, InvalidConfig
from ..gate.pickling import only_here
from ..hints import Any, Callable, Hashable, Mapping, P, R, Seconds, later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..budgets.budget import TokenBudget
else:
    TokenBudget = later("headgate.budgets.budget", "TokenBudget")

# Stands for an option that is not given: those of the block around it hold.
_AS_BEFORE: Any = type("AsBefore", (), {"__repr__": lambda _self: "as before"})()


class CallOptions:
    """The options in force. Made by `call_options` and never changed."""

    __slots__ = ("block", "budget", "cost", "outer", "priority", "tenant", "timeout")

    def __init__(self, block: call_options, outer: CallOptions | None, given: Mapping[str, Any]) -> None:
        self.block = block
        self.outer = outer
        self.tenant: Hashable = None if outer is None else outer.tenant
        self.priority: int = 0 if outer is None else outer.priority
        self.timeout: Seconds | None = None if outer is None else outer.timeout
        self.budget: TokenBudget | None = None if outer is None else outer.budget
        self.cost: int | Mapping[str, int] | None = None if outer is None else outer.cost
        for name, value in given.items():
            setattr(self, name, value)

    def costs(self) -> dict[str, int]:
        """The stated cost by unit, empty if none is stated."""
        cost = self.cost
        if cost is None:
            return {}
        return {"requests": cost} if isinstance(cost, int) else dict(cost)

    def waits(self, timeout: Seconds | None) -> Seconds | None:
        """How long a call may wait that would otherwise wait as long as `timeout` says."""
        return timeout if self.timeout is None else self.timeout


_current: ContextVar[CallOptions | None] = ContextVar("headgate.call_options", default=None)

# The options in force where it is called; None if there are none, which is found out in a few nanoseconds.
current_options = _current.get


class call_options:  # noqa: N801 - it is used like a function
    """Say for all calls of a block to whom they belong, and how they are to be treated.

    >>> with call_options(tenant="ann", priority=5):
    ...     with call_options(timeout=2.0):                 # tenant and priority hold here too
    ...         options = current_options()
    >>> options.tenant, options.priority, options.timeout
    ('ann', 5, 2.0)

    Every adapter of `headgate.http` and every `ResilientClient` obeys them. Calls of different `tenant`s
    share fairly, and a higher `priority` goes first. `timeout` is how long a call may wait at its gate,
    instead of the adapter's. A call is charged to `budget`, a TokenBudget, by what the adapter estimates, and
    then by what the response says it used: in tokens, and in money by the `prices` of the budget. (A
    ResilientClient does not know the model, and charges tokens only.) `cost` replaces estimates: how many
    requests a call counts for, or amounts by unit.

    It is a decorator too, of functions and coroutine functions:

    >>> @call_options(tenant="batch", priority=-1)
    ... def summarise(text): ...

    None ends an option of the block outside. A generator that yields inside such a block, like a dependency
    of FastAPI, has to be `async`: frameworks run other generators in a context of their own.

    Raises InvalidConfig for a tenant, priority or budget of another kind, InvalidWindow if `timeout` is not a
    time, and InvalidCapacity if `cost` is not an amount.
    """

    __slots__ = ("_given",)

    __reduce__ = only_here("say the options in the process that makes the calls")

    def __init__(
        self,
        *,
        tenant: Hashable = _AS_BEFORE,
        priority: int = _AS_BEFORE,
        timeout: Seconds | None = _AS_BEFORE,
        budget: TokenBudget | None = _AS_BEFORE,
        cost: int | Mapping[str, int] | None = _AS_BEFORE,
    ) -> None:
        given: dict[str, Any] = {}
        if tenant is not _AS_BEFORE:
            check_hashable(tenant, "tenant")
            given["tenant"] = tenant
        if priority is not _AS_BEFORE:
            given["priority"] = read_priority(priority)
        if timeout is not _AS_BEFORE:
            if timeout is not None:
                seconds_to_ns(timeout, "timeout")
            given["timeout"] = timeout
        if budget is not _AS_BEFORE:
            if budget is not None and not hasattr(budget, "reserve_async"):
                raise InvalidConfig(
                    f"budget={budget!r} is not a TokenBudget; write e.g. TokenBudget(100_000)"
                )
            if budget is not None:
                budget.check_prices()
            if budget is not None and not budget.limits_tokens and not budget.limits_money:
                raise InvalidConfig(
                    f"{budget!r} limits neither tokens nor money, so it would refuse no call; give it a "
                    'limit such as "50_000 tokens/hour"'
                )
            given["budget"] = budget
        if cost is not _AS_BEFORE:
            given["cost"] = _read_cost(cost)
        self._given = given

    def __enter__(self) -> None:
        _current.set(CallOptions(self, _current.get(), self._given))

    def __exit__(self, *_error: object) -> None:
        # Not by the token of the variable: one object may be entered by several tasks at the same time, and
        # an abandoned generator leaves its block in another context, where the block is not found.
        options = _current.get()
        while options is not None:
            if options.block is self:
                _current.set(options.outer)
                return
            options = options.outer

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async. Every call of it is such a block."""
        from functools import wraps  # noqa: PLC0415 - a decorated function is one that can wait for it

        if is_async(fn, "call_options"):

            @wraps(fn)
            async def with_options_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self:
                    return await fn(*args, **kwargs)  # type: ignore[misc]  # it is async

            return with_options_async  # type: ignore[return-value]  # a coroutine function, like `fn`

        @wraps(fn)
        def with_options(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return fn(*args, **kwargs)

        return with_options

    def __repr__(self) -> str:
        return f"call_options({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"


def _read_cost(cost: Any) -> int | dict[str, int] | None:
    if cost is None:
        return None
    if isinstance(cost, int):
        return amount(cost, "cost")
    if not hasattr(cost, "items"):
        raise InvalidCapacity(
            f'cost={cost!r} is neither a whole number nor units; write cost=2 or cost={{"tokens": 2_000}}'
        )
    return {unit: amount(units, f"cost[{unit!r}]") for unit, units in cost.items()}
