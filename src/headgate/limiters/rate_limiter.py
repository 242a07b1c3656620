"""RateLimiter: one rate, as an object, a `with` block or a decorator."""

from __future__ import annotations

from types import TracebackType

from ..arguments import Coroutine, is_async, never_awaited, positive_int, read_observer
from ..errors import CapacityExhausted, InvalidConfig
from ..gate.clock import SYSTEM
from ..gate.decision import Rules, successors
from ..gate.gate import Gate
from ..gate.pickling import only_here
from ..hints import Any, Callable, Clock, Observer, P, R, Seconds
from ..limits import COLUMNS, Rate, read_rates
from .resource import Acquisition


class RateLimiter:
    """Never more than that many calls in any window of that length: object, `with` block, or decorator.

    `requests_per_minute` is calls a minute, or a rate as text; `rate` says the same by a clearer name:
    `RateLimiter(60)` and `RateLimiter(rate="60/minute")` are the same, and `RateLimiter("10/s")` is never
    more than ten in any second.

    >>> from headgate import RateLimiter
    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock(auto_advance=True)
    >>> limiter = RateLimiter(2, clock=clock)
    >>> @limiter
    ... def call(n):
    ...     return n, clock.seconds()
    >>> [call(n) for n in range(3)]
    [(0, 0.0), (1, 0.0), (2, 60.0)]

    Calls are not paced: all calls of a window may come at once. To pace them, write how many may come at
    once, e.g. `RateLimiter("100/s burst 20")`. A `Rate` is taken as it is, with the burst that it has. An
    `observer` is told how long each call waited. `clock` replaces the time in tests.

    Raises InvalidCapacity if the number is not a whole number above 0, InvalidLimit for what is not a rate,
    and InvalidConfig for both arguments, several rates, or a rate that does not count requests.
    """

    __slots__ = ("_gate",)

    __reduce__ = only_here("make one per process, or share a limit by Dispatch(store=...)")

    def __init__(
        self,
        requests_per_minute: int | str | Rate = 60,
        *,
        rate: Rate | str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if rate is not None and requests_per_minute != 60:
            raise InvalidConfig(
                f"requests_per_minute={requests_per_minute!r} and rate={rate!r} are two limits; "
                'write one of them, e.g. rate="100/s"'
            )
        if rate is None:
            if isinstance(requests_per_minute, Rate) or (
                isinstance(requests_per_minute, str) and not requests_per_minute.isdigit()
            ):
                rate = requests_per_minute
            else:
                amount = positive_int(requests_per_minute, "requests_per_minute", example=60)
                rate = Rate(amount, 60, strict=True)
        given = read_rates(rate)
        if len(given) != 1:
            raise InvalidConfig(f'rate={rate!r} is not one rate; write e.g. rate="100/s burst 20"')
        (read,) = given
        if isinstance(rate, str) and "burst" not in rate.lower():
            read = Rate.of_ns(read.amount, read.per_ns, None, read.unit, strict=True)
        if read.unit != "requests":
            raise InvalidConfig(
                f'rate={str(read)!r} counts {read.unit}; a RateLimiter counts requests, e.g. "100/s"'
            )
        rates = successors((), (read,), COLUMNS, 0)
        self._gate = Gate(
            read.name, Rules(rates=rates, final=True), observer=read_observer(observer), clock=clock
        )

    def acquire(self, *, timeout: Seconds | None = None) -> None:
        """Wait for a place, in line, for `timeout` at most: seconds or a timedelta, None without end.

        Raises WaitTimeout, at once if it can be foreseen, CapacityExhausted with `timeout=0`, InvalidWindow
        if `timeout` is not a time, and RuntimeError if it would wait in a thread that runs an event loop.

        >>> from headgate import RateLimiter
        >>> RateLimiter("10/s").acquire(timeout=2)
        """
        with self._gate.admit(timeout=timeout):
            pass

    async def acquire_async(self, *, timeout: Seconds | None = None) -> None:  # noqa: ASYNC109 - the twin
        """Wait for a place, in line, without blocking the event loop, for `timeout` at most.

        The argument and the exceptions are those of `acquire`.

        >>> import asyncio
        >>> from headgate import RateLimiter
        >>> asyncio.run(RateLimiter("10/s").acquire_async(timeout=2))
        """
        async with self._gate.admit(timeout=timeout):
            pass

    def try_acquire(self) -> bool:
        """Take a place if there is one now and no caller waits for it; False if not. Never waits.

        >>> from headgate import RateLimiter
        >>> limiter = RateLimiter(1)
        >>> limiter.try_acquire(), limiter.try_acquire()
        (True, False)
        """
        return self._gate.try_admit() is not None

    def ask(self) -> Acquisition:
        """As `try_acquire`, and the answer, an `Acquisition`, says when to come again if there is no place.

        >>> from headgate import RateLimiter
        >>> limiter = RateLimiter(1)
        >>> bool(limiter.ask()), bool(limiter.ask())
        (True, False)
        >>> 59 < limiter.ask().retry_after <= 60
        True
        """
        try:
            self._gate.admit(timeout=0).enter()
        except CapacityExhausted as refusal:
            return Acquisition(acquired=False, rule=refusal.rule, retry_after=refusal.retry_after)
        return Acquisition(acquired=True, rule=None, retry_after=None)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> None:
        await self.acquire_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async: each call waits for a place first."""
        wait_async = is_async(fn, "RateLimiter")
        from functools import wraps  # noqa: PLC0415 - decorating is rare, importing headgate is not

        if wait_async:

            @wraps(fn)
            async def wait_then_await(*args: P.args, **kwargs: P.kwargs) -> Any:
                await self.acquire_async()
                return await fn(*args, **kwargs)  # type: ignore[misc]  # it returns a coroutine

            return wait_then_await  # type: ignore[return-value]  # R is a coroutine here

        @wraps(fn)
        def wait_then_call(*args: P.args, **kwargs: P.kwargs) -> R:
            self.acquire()
            result = fn(*args, **kwargs)
            if result.__class__ is Coroutine:
                raise never_awaited(result, "RateLimiter", "an `async def` function around it")
            return result

        return wait_then_call

    def __repr__(self) -> str:
        return f"<RateLimiter {self._gate.rules.rates[0].rate}>"
