"""Trying again: `retry` decorates a function, `retry_with_backoff` calls one, `retrying` repeats a block.

A call that succeeds at once costs next to nothing. What is raised in the end is what the last attempt raised,
with a note. Cancellation and interrupts are never held up.
"""

from __future__ import annotations

from sys import _getframe
from types import TracebackType

from ..arguments import Coroutine, is_async, name_of, never_awaited, not_awaitable
from ..backoff import Backoff
from ..errors import InvalidConfig
from ..gate.clock import sleep, sleep_async
from ..hints import Awaitable, Callable, Clock, P, R, Seconds, Self, T, Unpack, later
from .call import RetriedCall
from .policy import RetryPolicy, delays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import Exceptions, OnRetry, RetryOptions
else:
    Exceptions = later("headgate.retries.options", "Exceptions")
    OnRetry = later("headgate.retries.options", "OnRetry")
    RetryOptions = later("headgate.retries.options", "RetryOptions")

_GENERATOR = 0x20 | 0x200  # the flags of generators and of asynchronous ones, as in `inspect`


def retry(
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    exceptions: Exceptions = None,
    *,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    backoff: Backoff | None = None,
    **options: Unpack[RetryOptions],
) -> Retries:
    """Decorate a function, sync or async, to be tried again when it fails for a passing reason.

    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock(auto_advance=True)
    >>> answers = iter([ConnectionResetError(), TimeoutError(), "hello"])
    >>> @retry(jitter=False, clock=clock)
    ... def ask():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> ask(), clock.sleeps
    ('hello', [1.0, 2.0])

    `max_retries` retries are at most that many calls and one; None is no limit. Without `exceptions`
    only what may pass is retried: lost connections, timeouts, and exceptions that carry a retryable HTTP
    status or a Retry-After. `exceptions` may be a type, several, or a function of the exception.
    Each delay is `exponential_base` times the last, from `base_delay` up to `max_delay`, and each is between
    half and one and a half times as long with `jitter`; `backoff`, a `Backoff`, replaces these four. The far
    side is never asked earlier than it said.

    Further options: with `idempotent=False`, what may have been carried out is not tried again. No attempt
    starts after `deadline` seconds. A `retry_budget`, shared by several functions, keeps retries a part of
    all their calls. `on_retry` is given an `events.Retrying` before each retry, which is also logged to the
    logger `headgate`. `clock` and `random` replace the time and the draws. In the end the last exception is
    raised as it was, with a note.

    Raises InvalidCapacity, InvalidWindow or InvalidConfig for options that cannot work, and InvalidConfig for
    what it cannot decorate, e.g. a generator.
    """
    backoff = delays(backoff, base_delay, max_delay, exponential_base, jitter)
    return Retries(RetryPolicy(max_retries, exceptions=exceptions, backoff=backoff, **options))


def retrying(
    max_retries: int | None = 3,
    *,
    exceptions: Exceptions = None,
    backoff: Backoff | None = None,
    progress_timeout: Seconds | None = None,
    **options: Unpack[RetryOptions],
) -> Retries:
    """Repeat a block until it succeeds: `for attempt in retrying(): with attempt: ...`, or `async for`.

    >>> from headgate.testing import ManualClock
    >>> for attempt in retrying(backoff=Backoff(1), clock=ManualClock(auto_advance=True)):
    ...     with attempt:
    ...         if attempt.number < 3:
    ...             raise ConnectionResetError
    >>> attempt.number
    3

    `max_retries`, `exceptions` and the further options are those of `retry`, with `backoff`, a `Backoff`, for
    the delays. With `progress_timeout`, no attempt is made after that many seconds without progress, which a
    long job reports by `attempt.progress()`. The last exception is raised as it was, with a note. Raises
    InvalidCapacity, InvalidWindow or InvalidConfig for options that cannot work.
    """
    policy = RetryPolicy(
        max_retries, exceptions=exceptions, backoff=backoff, progress_timeout=progress_timeout, **options
    )
    return Retries(policy)


def retry_with_backoff(
    func: Callable[[], T],
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    *,
    exceptions: Exceptions = None,
    backoff: Backoff | None = None,
    **options: Unpack[RetryOptions],
) -> T:
    """Call `func` without arguments, and again if it fails for a passing reason, and return what it returned.

    >>> retry_with_backoff(lambda: "hello")
    'hello'

    `max_retries`, `base_delay`, `max_delay`, `exponential_base`, `jitter`, `exceptions`, `backoff` and the
    further options are those of `retry`, and so are the exceptions. InvalidConfig if `func` is async.
    """
    backoff = delays(backoff, base_delay, max_delay, exponential_base, jitter)
    retries = Retries(RetryPolicy(max_retries, exceptions=exceptions, backoff=backoff, **options))
    if is_async(func, "retry_with_backoff"):
        raise InvalidConfig(
            f"{name_of(func)} is async; write `await retry_with_backoff_async({name_of(func)}, ...)`"
        )
    return retries(func)()


async def retry_with_backoff_async(
    func: Callable[[], Awaitable[T]],
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    *,
    exceptions: Exceptions = None,
    backoff: Backoff | None = None,
    **options: Unpack[RetryOptions],
) -> T:
    """Call `func` without arguments and await what it returns, and again if that fails for a passing reason.

    >>> import asyncio
    >>> async def ask():
    ...     return "answer"
    >>> asyncio.run(retry_with_backoff_async(ask, max_retries=5))
    'answer'

    `max_retries`, `base_delay`, `max_delay`, `exponential_base`, `jitter`, `exceptions`, `backoff` and the
    further options are those of `retry`, and so are the exceptions. InvalidConfig if `func` is not async.
    """
    backoff = delays(backoff, base_delay, max_delay, exponential_base, jitter)
    retries = Retries(RetryPolicy(max_retries, exceptions=exceptions, backoff=backoff, **options))
    is_async(func, "retry_with_backoff_async")  # refuses generators and what cannot be called
    return await retries.around_async(func)()


class Retries:
    """What `retry` and `retrying` return: it decorates functions, and loops go through its attempts."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async."""
        if is_async(fn, "retry"):
            return self.around_async(fn)  # type: ignore[arg-type,return-value]  # a coroutine function
        policy, name, counts = self.policy, name_of(fn), self.policy.counts_from_the_start

        from functools import wraps  # noqa: PLC0415 - for decorators only

        @wraps(fn)
        def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            call = RetriedCall(policy, name) if counts else None
            while True:
                if call is not None:
                    call.begin_attempt()
                try:
                    result = fn(*args, **kwargs)
                except Exception as error:
                    call = RetriedCall(policy, name) if call is None else call
                    if not call.is_retried_after(error):
                        raise
                else:
                    if result.__class__ is Coroutine:
                        raise never_awaited(result, "retry_with_backoff")
                    if call is not None:
                        call.succeeded()
                    return result
                finally:
                    if call is not None:
                        call.end_attempt()
                if call.delay:
                    sleep(policy.clock, call.delay)

        return retried

    def around_async(self, fn: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorate a function whose result is awaited."""
        policy, name, counts = self.policy, name_of(fn), self.policy.counts_from_the_start

        from functools import wraps  # noqa: PLC0415 - as above

        @wraps(fn)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            call = RetriedCall(policy, name) if counts else None
            while True:
                if call is not None:
                    call.begin_attempt()
                try:
                    coming = fn(*args, **kwargs)
                    if coming.__class__ is not Coroutine and not hasattr(coming, "__await__"):
                        raise not_awaitable(fn, "retry_with_backoff_async")  # noqa: TRY301 - never retried
                    result = await coming
                except Exception as error:
                    call = RetriedCall(policy, name) if call is None else call
                    if not call.is_retried_after(error):
                        raise
                else:
                    if call is not None:
                        call.succeeded()
                    return result
                finally:
                    if call is not None:
                        call.end_attempt()
                if call.delay:
                    await sleep_async(policy.clock, call.delay)

        return retried

    def __iter__(self) -> _Attempts:
        return _Attempts(self.policy)

    def __aiter__(self) -> _Attempts:
        return _Attempts(self.policy)

    def __repr__(self) -> str:
        return f"<Retries by {self.policy!r}>"


class Attempt:
    """One attempt of a `retrying` loop: put the work into `with attempt:`."""

    def __init__(self, call: RetriedCall, clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self.number = call.state.retries + 1
        self.state = "waiting"  # then "running", and "over" or "again"

    def progress(self) -> None:
        """Count `progress_timeout` from now on: the work is getting further."""
        self._call.state.progress(self._clock.now())

    def __enter__(self) -> Self:
        if self.state != "waiting":
            raise RuntimeError("an attempt is entered once; the loop gives another for every try")
        self.state = "running"
        block = _getframe().f_back
        # Between the pieces of a generator its reader makes calls of its own, in the same context.
        if block is None or not block.f_code.co_flags & _GENERATOR:
            self._call.begin_attempt()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self.state = "over"
        self._call.end_attempt()
        if error is None:
            self._call.succeeded()
        elif isinstance(error, Exception) and self._call.is_retried_after(error):
            self.state = "again"
        return self.state == "again"

    def __repr__(self) -> str:
        return f"<Attempt {self.number}, {self.state}>"


class _Attempts:
    """The attempts that `for` and `async for` go through."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._call: RetriedCall | None = None
        self._attempt: Attempt | None = None

    def __iter__(self) -> _Attempts:
        return self

    def __aiter__(self) -> _Attempts:
        return self

    def __next__(self) -> Attempt:
        call = self._next_call()
        if call is None:
            raise StopIteration
        if call.delay:
            sleep(self._policy.clock, call.delay)
        return self._begin(call)

    async def __anext__(self) -> Attempt:
        call = self._next_call()
        if call is None:
            raise StopAsyncIteration
        if call.delay:
            await sleep_async(self._policy.clock, call.delay)
        return self._begin(call)

    def _next_call(self) -> RetriedCall | None:
        """The call, if it is to be tried for the first time or again."""
        if self._attempt is None:
            self._call = RetriedCall(self._policy, "block")
        elif self._attempt.state in ("waiting", "running"):
            raise RuntimeError(
                "this attempt was never run; write `with attempt:` around the work in the loop"
            )
        return None if self._attempt is not None and self._attempt.state == "over" else self._call

    def _begin(self, call: RetriedCall) -> Attempt:
        self._attempt = Attempt(call, self._policy.clock)
        return self._attempt
