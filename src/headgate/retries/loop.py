"""Trying again: as a decorator, a function, or a loop.

Rules of this room: a call that succeeds at once pays for nothing. What is raised in the end is what
the function raised last, with a note. Cancellation and interrupts are never held up.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar

from .. import events
from ..arguments import (
    SECOND,
    Coroutine,
    is_async,
    must_be_plain,
    name_of,
    never_awaited,
    not_awaitable,
    positive_int,
    positive_seconds_to_ns,
    ratio,
    seconds_to_ns,
)
from ..backoff import Backoff
from ..errors import InvalidCapacity, InvalidConfig, InvalidLimit, InvalidWindow
from ..gate.gate import reset_in_child
from ..gate.parking import SYSTEM, chance, sleep, sleep_async
from .classify import asked_to_wait, verdict_of
from .state import Allowance, Attempts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Any, ParamSpec, Self, TypeAlias, TypeVar

    from ..gate.parking import Clock
    from ..typing import Seconds

    P = ParamSpec("P")
    R = TypeVar("R")
    T = TypeVar("T")
    Worth: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] | None
    OnRetry: TypeAlias = Callable[[events.Retrying], Any]


# The budgets that the call under way has earned for: layers of retries around one call count it once.
_earning: ContextVar[tuple[RetryBudget, ...]] = ContextVar("headgate_earning_budgets", default=())


class RetryBudget:
    """Retries as a part of all calls, shared by everybody who is given the same object.

    >>> budget = RetryBudget(0.2)
    >>> @retry(budget=budget)
    ... def ask(): ...

    When everything fails, retrying everything multiplies the load by four; with this, by 1.2. At most
    `ratio` of the calls are retried, or `burst` of them where that is more. A retry that helps is free.
    """

    __slots__ = ("__weakref__", "_allowance", "_burst", "_lock", "_ratio")

    def __init__(self, ratio_of_calls: float = 0.2, *, burst: int = 10) -> None:
        parts = ratio(ratio_of_calls, "ratio_of_calls", low=0, high=float("inf"), example=0.2)
        positive_int(burst, "burst", example=10)
        self._ratio = ratio_of_calls
        self._burst = burst
        self._allowance = Allowance(parts, burst)
        self._lock = allocate_lock()
        reset_in_child(self)

    @property
    def available(self) -> int:
        """Retries that could be made right now."""
        return self._allowance.available()

    def _earn(self) -> None:
        if self not in _earning.get():  # a call within a call that has earned already is the same one
            with self._lock:
                self._allowance.earn()

    def _spend(self) -> bool:
        with self._lock:
            return self._allowance.spend()

    def _refund(self) -> None:
        with self._lock:
            self._allowance.refund()

    def after_fork(self) -> None:
        self._lock = allocate_lock()

    def __repr__(self) -> str:
        return f"<RetryBudget of {self._ratio:g}, {self.available} retries available>"


class RetryPlan:
    """When to try again. Made by `retrying`, `retry` and `retry_with_backoff`."""

    __slots__ = (
        "_backoff",
        "_budget",
        "_clock",
        "_deadline",
        "_idempotent",
        "_listed",
        "_max_retries",
        "_on_retry",
        "_plain",
        "_progress_timeout",
        "_random",
        "_worth",
    )

    def __init__(
        self,
        max_retries: int | None = 3,
        base_delay: Seconds = 1.0,
        exceptions: Worth = None,
        *,
        max_delay: Seconds = 60.0,
        exponential_base: float = 2.0,
        jitter: bool = True,
        backoff: Backoff | None = None,
        idempotent: bool = True,
        deadline: Seconds | None = None,
        progress_timeout: Seconds | None = None,
        budget: RetryBudget | None = None,
        on_retry: OnRetry | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = chance,
    ) -> None:
        if callable(max_retries):
            raise InvalidConfig("retry takes options first; write @retry() with parentheses")
        self._max_retries = None if max_retries is None else whole_retries(max_retries)
        if backoff is None:
            backoff = seed_backoff(base_delay, max_delay, exponential_base, jitter=jitter)
        elif (base_delay, max_delay, exponential_base, jitter) != (1.0, 60.0, 2.0, True):
            raise InvalidConfig(
                "backoff= says all about delays; leave out base_delay, max_delay, exponential_base and jitter"
            )
        elif not isinstance(backoff, Backoff):
            raise InvalidConfig(
                f"backoff={backoff!r} is not a Backoff; write e.g. backoff=Backoff(0.5, cap=10)"
            )
        self._backoff = backoff
        self._listed, self._worth = _read_worth(exceptions)
        self._idempotent = bool(idempotent)
        self._deadline = None if deadline is None else seconds_to_ns(deadline, "deadline")
        self._progress_timeout = (
            None if progress_timeout is None else positive_seconds_to_ns(progress_timeout, "progress_timeout")
        )
        if budget is not None and not isinstance(budget, RetryBudget):
            raise InvalidConfig(f"budget={budget!r} is not a RetryBudget; write e.g. budget=RetryBudget(0.2)")
        self._budget = budget
        if on_retry is not None:
            must_be_plain(on_retry, "on_retry", "one event")
        if not callable(random):
            raise InvalidConfig(f"random={random!r} cannot be called; give a function that draws from 0 to 1")
        self._on_retry = on_retry
        self._clock = clock
        self._random = random
        # A call that nothing has to be written down for before it starts.
        self._plain = budget is None and deadline is None and progress_timeout is None

    # -- running a function

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async."""
        wait_async = is_async(fn, "retry")
        from functools import wraps  # noqa: PLC0415 - decorating is rare, importing headgate is not

        plain = self._plain
        if wait_async:

            @wraps(fn)
            async def retried_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                if not plain:
                    return await self._go_on_async(self._begin(fn), fn, args, kwargs)  # type: ignore[arg-type]
                try:
                    return await fn(*args, **kwargs)  # type: ignore[misc]  # it is one, if in disguise
                except Exception as error:
                    run = self._begin(fn)
                    if not run.goes_on_after(error):
                        raise
                return await self._go_on_async(run, fn, args, kwargs)  # type: ignore[arg-type]  # likewise

            return retried_async  # type: ignore[return-value]  # the coroutine function it was

        @wraps(fn)
        def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            if not plain:
                return self._go_on(self._begin(fn), fn, args, kwargs)
            try:
                result = fn(*args, **kwargs)
            except Exception as error:
                run = self._begin(fn)
                if not run.goes_on_after(error):
                    raise
            else:
                if result.__class__ is Coroutine:
                    raise never_awaited(result, "retry_with_backoff")
                return result
            return self._go_on(run, fn, args, kwargs)

        return retried

    def _begin(self, fn: object) -> _Run:
        return _Run(self, fn)

    def _go_on(self, run: _Run, fn: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        while True:
            if run.wait:
                sleep(self._clock, run.wait)
            within = begin_earning(self._budget)
            try:
                result = fn(*args, **kwargs)
            except Exception as error:
                if not run.goes_on_after(error):
                    raise
            else:
                if result.__class__ is Coroutine:
                    raise never_awaited(result, "retry_with_backoff")
                run.succeeded()
                return result
            finally:
                end_earning(within)

    async def _go_on_async(
        self, run: _Run, fn: Callable[..., Awaitable[R]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        while True:
            if run.wait:
                await sleep_async(self._clock, run.wait)
            within = begin_earning(self._budget)
            try:
                coming = fn(*args, **kwargs)
                if coming.__class__ is not Coroutine and not hasattr(coming, "__await__"):
                    raise not_awaitable(fn, "retry_with_backoff_async")  # noqa: TRY301 - never retried
                result = await coming
            except Exception as error:
                if not run.goes_on_after(error):
                    raise
            else:
                run.succeeded()
                return result
            finally:
                end_earning(within)

    # -- running a block

    def __iter__(self) -> _Loop:
        return _Loop(self)

    def __aiter__(self) -> _Loop:
        return _Loop(self)

    def __repr__(self) -> str:
        most = "any number of" if self._max_retries is None else self._max_retries
        return f"<RetryPlan, {most} retries, {self._backoff!r}>"


class _Run:
    """One call under way, from its first try to its last."""

    __slots__ = ("_attempts", "_fn", "_plan", "wait")

    def __init__(self, plan: RetryPlan, fn: object) -> None:
        self._plan = plan
        self._fn = fn
        self.wait = 0  # before the next try, in nanoseconds
        self._attempts = Attempts(
            plan._backoff,
            plan._max_retries,
            plan._clock.now(),
            deadline=plan._deadline,
            progress_timeout=plan._progress_timeout,
        )
        if plan._budget is not None:
            plan._budget._earn()

    def goes_on_after(self, error: Exception) -> bool:
        """Try again after this? If so, `wait` says when."""
        plan, attempts = self._plan, self._attempts
        if isinstance(error, InvalidLimit):
            return False  # a mistake in the program: it will be the same the next time
        verdict = verdict_of(error)
        if plan._listed is not None:
            worth = isinstance(error, plan._listed)
        elif plan._worth is not None:
            worth = bool(plan._worth(error))
        else:
            worth = verdict.again
        if not worth:
            return False
        if not plan._idempotent and verdict.may_have_run:
            self._note(error, "it may have been carried out, and doing it twice is not allowed")
            return False
        told = told_by(error, verdict.retry_after)
        wait = attempts.again(plan._clock.now(), plan._random(), told)
        if isinstance(wait, int) and plan._budget is not None and not plan._budget._spend():
            wait = "the retry budget is used up"
        if isinstance(wait, str):
            self._note(error, wait)
            return False
        attempts.retry(wait)
        self.wait = wait
        report(
            plan._on_retry,
            events.Retrying(
                key=self._fn if isinstance(self._fn, str) else name_of(self._fn),
                at=plan._clock.now() / SECOND,
                retry=attempts.retries,
                max_retries=plan._max_retries,
                delay=wait / SECOND,
                error=error,
            ),
        )
        return True

    def succeeded(self) -> None:
        if self._plan._budget is not None and self._attempts.retries:
            self._plan._budget._refund()

    @property
    def budget(self) -> RetryBudget | None:
        return self._plan._budget

    @property
    def tries(self) -> int:
        return self._attempts.retries + 1

    def progress(self) -> None:
        self._attempts.progress(self._plan._clock.now())

    def _note(self, error: Exception, why: str) -> None:
        note_giving_up(error, self.tries, why)


class Attempt:
    """One try of a `retrying` loop: put the work into `with attempt:`."""

    __slots__ = ("_run", "_state", "_within", "number")

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._within: tuple[RetryBudget, ...] | None = None
        self._state = "waiting"
        self.number = run.tries

    def progress(self) -> None:
        """The work gets somewhere: count `progress_timeout` from now."""
        self._run.progress()

    def __enter__(self) -> Self:
        if self._state != "waiting":
            raise RuntimeError("an attempt is entered once; the loop gives another for every try")
        self._state = "running"
        self._within = begin_earning(self._run.budget)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self._state = "over"
        end_earning(self._within)
        if error is None:
            self._run.succeeded()
            return False
        if isinstance(error, Exception) and self._run.goes_on_after(error):
            self._state = "again"
            return True
        return False

    def __repr__(self) -> str:
        return f"<Attempt {self.number}, {self._state}>"


class _Loop:
    """What `for` and `async for` go through."""

    __slots__ = ("_attempt", "_plan", "_run")

    def __init__(self, plan: RetryPlan) -> None:
        self._plan = plan
        self._run: _Run | None = None
        self._attempt: Attempt | None = None

    def __iter__(self) -> _Loop:
        return self

    def __aiter__(self) -> _Loop:
        return self

    def __next__(self) -> Attempt:
        wait = self._wait()
        if wait is None:
            raise StopIteration
        if wait:
            sleep(self._plan._clock, wait)
        return self._next()

    async def __anext__(self) -> Attempt:
        wait = self._wait()
        if wait is None:
            raise StopAsyncIteration
        if wait:
            await sleep_async(self._plan._clock, wait)
        return self._next()

    def _wait(self) -> int | None:
        """How long before the next try; None: there is none."""
        if self._run is None or self._attempt is None:
            self._run = _Run(self._plan, "block")
            return 0
        if self._attempt._state in ("waiting", "running"):
            raise RuntimeError(
                "this attempt was never run; write `with attempt:` around the work in the loop"
            )
        return self._run.wait if self._attempt._state == "again" else None

    def _next(self) -> Attempt:
        assert self._run is not None
        self._attempt = Attempt(self._run)
        return self._attempt


def retry(
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    exceptions: Worth = None,
    *,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    backoff: Backoff | None = None,
    idempotent: bool = True,
    deadline: Seconds | None = None,
    budget: RetryBudget | None = None,
    on_retry: OnRetry | None = None,
    clock: Clock = SYSTEM,
    random: Callable[[], float] = chance,
) -> RetryPlan:
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
    only what may pass is retried: lost connections, time-outs, and exceptions that carry a retryable HTTP
    status or a Retry-After. `exceptions` may be a type, several, or a function of the exception.
    Waits double from `base_delay` up to `max_delay`, each between half and one and a half times as long
    with `jitter`; `backoff` replaces these four. The far side is never asked earlier than it said.
    With `idempotent=False`, what may have been carried out is not tried again.

    No try starts after `deadline` seconds; a `budget` shared by many keeps retries a part of all calls;
    `on_retry` is told of each as an `events.Retrying`, and so is the logger `headgate`. In the end the last
    exception is raised as it was, with a note.
    """
    return RetryPlan(
        max_retries,
        base_delay,
        exceptions,
        max_delay=max_delay,
        exponential_base=exponential_base,
        jitter=jitter,
        backoff=backoff,
        idempotent=idempotent,
        deadline=deadline,
        budget=budget,
        on_retry=on_retry,
        clock=clock,
        random=random,
    )


def retrying(
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    exceptions: Worth = None,
    *,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    backoff: Backoff | None = None,
    idempotent: bool = True,
    deadline: Seconds | None = None,
    progress_timeout: Seconds | None = None,
    budget: RetryBudget | None = None,
    on_retry: OnRetry | None = None,
    clock: Clock = SYSTEM,
    random: Callable[[], float] = chance,
) -> RetryPlan:
    """The same for a block: `for attempt in retrying(): with attempt: ...`, or `async for`.

    >>> from headgate.testing import ManualClock
    >>> for attempt in retrying(jitter=False, clock=ManualClock(auto_advance=True)):
    ...     with attempt:
    ...         if attempt.number < 3:
    ...             raise ConnectionResetError
    >>> attempt.number
    3

    It takes what `retry` takes, and `progress_timeout`: stop if nothing got any further for so many seconds.
    A long job says that it does by `attempt.progress()`.
    """
    return RetryPlan(
        max_retries,
        base_delay,
        exceptions,
        max_delay=max_delay,
        exponential_base=exponential_base,
        jitter=jitter,
        backoff=backoff,
        idempotent=idempotent,
        deadline=deadline,
        progress_timeout=progress_timeout,
        budget=budget,
        on_retry=on_retry,
        clock=clock,
        random=random,
    )


def retry_with_backoff(
    func: Callable[[], T],
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    **options: Any,
) -> T:
    """Call a function, and again if it fails for a passing reason. The further options are those of `retry`.

    >>> retry_with_backoff(lambda: "hello")
    'hello'
    """
    plan = retry(
        max_retries,
        base_delay,
        max_delay=max_delay,
        exponential_base=exponential_base,
        jitter=jitter,
        **options,
    )
    if is_async(func, "retry_with_backoff"):
        raise InvalidConfig(
            f"{name_of(func)} is async; write `await retry_with_backoff_async({name_of(func)}, ...)`"
        )
    return plan(func)()


async def retry_with_backoff_async(
    func: Callable[[], Awaitable[T]],
    max_retries: int | None = 3,
    base_delay: Seconds = 1.0,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
    **options: Any,
) -> T:
    """The same for a function whose result is awaited."""
    plan = retry(
        max_retries,
        base_delay,
        max_delay=max_delay,
        exponential_base=exponential_base,
        jitter=jitter,
        **options,
    )
    is_async(func, "retry_with_backoff_async")  # it may be either kind, as long as it is a function
    return await plan._go_on_async(plan._begin(func), func, (), {})


# -- what the client that combines everything shares with the loops above


def seed_backoff(
    base_delay: Seconds, max_delay: Seconds, exponential_base: float, *, jitter: bool
) -> Backoff:
    """Waits that grow from base to max, each between half and one and a half times as long."""
    base = positive_seconds_to_ns(base_delay, "base_delay")
    if seconds_to_ns(max_delay, "max_delay") < base:
        raise InvalidWindow(
            f"max_delay={max_delay!r} is less than base_delay={base_delay!r}, which is the first delay; "
            "raise the one or lower the other"
        )
    if not isinstance(jitter, bool):
        raise InvalidConfig(
            f"jitter={jitter!r} is neither True nor False; for another kind write backoff=Backoff(jitter=...)"
        )
    if (
        isinstance(exponential_base, bool)
        or not isinstance(exponential_base, (int, float))
        or not (1 <= exponential_base < float("inf"))
    ):
        raise InvalidConfig(
            f"exponential_base={exponential_base!r} would not make delays grow; write at least 1, e.g. 2.0"
        )
    spread = ("range", 0.5, 1.5) if jitter else "none"
    return Backoff(base_delay, max_delay, factor=exponential_base, jitter=spread)


def begin_earning(budget: RetryBudget | None) -> tuple[RetryBudget, ...] | None:
    """A try begins: what is called within it earns nothing more for the same budget."""
    if budget is None:
        return None
    within = _earning.get()
    _earning.set((*within, budget))
    return within


def end_earning(within: tuple[RetryBudget, ...] | None) -> None:
    if within is not None:
        _earning.set(within)


def whole_retries(value: object) -> int:
    """How often to try again: a whole number, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidCapacity(
            f"max_retries={value!r} is not a number of retries; write 0 or more, e.g. max_retries=3"
        )
    return value


def told_by(error: BaseException, retry_after: float | None) -> int | None:
    """How long the far side, or a gate of ours, asked to wait, in nanoseconds."""
    told = asked_to_wait(error) if retry_after is None else retry_after
    return None if told is None else round(told * SECOND)


def report(on_retry: OnRetry | None, event: events.Retrying) -> None:
    """Tell the hook and the log."""
    import logging  # noqa: PLC0415 - a call that fails has time for it

    logging.getLogger("headgate").warning(
        "%s failed (%r); retry %d%s in %.2f s",
        event.key,
        event.error,
        event.retry,
        "" if event.max_retries is None else f" of {event.max_retries}",
        event.delay,
    )
    events.tell(on_retry, event)


def note_giving_up(error: BaseException, tries: int, why: str) -> None:
    """Say on the exception itself why nobody tries any longer."""
    note = f"headgate: gave up after {tries} {'call' if tries == 1 else 'calls'}: {why}"
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:  # noqa: BLE001, S110 - one that takes no notes is raised without
        pass


def _read_worth(
    exceptions: Worth,
) -> tuple[tuple[type[Exception], ...] | None, Callable[[Exception], bool] | None]:
    """The listed types, or the question to ask."""
    if exceptions is None:
        return None, None
    listed = exceptions if isinstance(exceptions, tuple) else (exceptions,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in listed):
        return listed, None  # type: ignore[return-value]  # all of them are types
    if callable(exceptions) and not isinstance(exceptions, type):
        return None, exceptions
    raise InvalidConfig(
        f"exceptions={exceptions!r} is no kind of Exception; write e.g. exceptions=(TimeoutError, KeyError)"
    )
