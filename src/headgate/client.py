"""All of it around one function call: breaker, window, admission, budget, retries.

Rules of this room: an open circuit costs no place and no wait; nobody holds a place while backing off;
what really went wrong is never lost.
"""

from __future__ import annotations

from .arguments import (
    SECOND,
    Coroutine,
    amount,
    is_async,
    name_of,
    never_awaited,
    not_awaitable,
    positive_int,
    positive_seconds_to_ns,
)
from .breaker.breaker import BreakerRegistry
from .budgets.budget import TokenBudget
from .dispatch.backoff_window import BackoffWindow
from .dispatch.dispatch import Dispatch
from .errors import CircuitBreakerOpen, InvalidConfig, Refused
from .frozen import Frozen
from .gate.clock import SYSTEM, default_random, sleep, sleep_async
from .limits import Rate
from .retries.budget import RetryBudget
from .retries.call import RetriedCall
from .retries.classify import retry_after_of, verdict_of
from .retries.policy import RetryPolicy, default_backoff, number_of_retries
from .retries.state import Stop, Wait
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable
    from typing import Any, ParamSpec, TypeVar

    from .breaker.breaker import CircuitBreaker, _Inside
    from .breaker.circuit import Probe
    from .budgets.budget import Reservation
    from .gate.admission import Permit
    from .sharing.store import Store
    from .typing import Clock, Observer, Seconds

    P = ParamSpec("P")
    R = TypeVar("R")

# Those who waited for the end of a window are let in over this long after it.
_SPREAD = 1.0


class ResilienceConfig(Frozen):
    """What a ResilientClient goes by. A limit of None is no limit.

    >>> ResilienceConfig(requests_per_minute=20, tokens_per_minute=40_000).max_retries
    3
    """

    __slots__ = (
        "base_delay",
        "circuit_failure_threshold",
        "circuit_recovery_timeout",
        "concurrency",
        "deadline",
        "max_delay",
        "max_retries",
        "requests_per_minute",
        "retry_budget",
        "tokens_per_minute",
    )
    max_retries: int
    base_delay: Seconds
    max_delay: Seconds
    requests_per_minute: int | None
    circuit_failure_threshold: int
    circuit_recovery_timeout: Seconds
    tokens_per_minute: int | None
    concurrency: int | None
    deadline: Seconds | None
    retry_budget: RetryBudget | None

    def __init__(
        self,
        max_retries: int = 3,
        base_delay: Seconds = 1.0,
        max_delay: Seconds = 60.0,
        requests_per_minute: int | None = 60,
        circuit_failure_threshold: int = 5,
        circuit_recovery_timeout: Seconds = 30.0,
        *,
        tokens_per_minute: int | None = None,
        concurrency: int | None = None,
        deadline: Seconds | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> None:
        number_of_retries(max_retries)
        default_backoff(base_delay, max_delay)
        if requests_per_minute is not None:
            positive_int(requests_per_minute, "requests_per_minute", example=60)
        positive_int(circuit_failure_threshold, "circuit_failure_threshold", example=5)
        positive_seconds_to_ns(circuit_recovery_timeout, "circuit_recovery_timeout")
        if tokens_per_minute is not None:
            positive_int(tokens_per_minute, "tokens_per_minute", example=40_000)
        if concurrency is not None:
            positive_int(concurrency, "concurrency", example=20)
        if deadline is not None:
            positive_seconds_to_ns(deadline, "deadline")
        RetryBudget.checked(retry_budget)
        super().__init__(
            max_retries=max_retries,
            base_delay=base_delay,
            max_delay=max_delay,
            requests_per_minute=requests_per_minute,
            circuit_failure_threshold=circuit_failure_threshold,
            circuit_recovery_timeout=circuit_recovery_timeout,
            tokens_per_minute=tokens_per_minute,
            concurrency=concurrency,
            deadline=deadline,
            retry_budget=retry_budget,
        )

    def _rates(self, *, shared: bool) -> list[Rate]:
        rates = []
        if self.requests_per_minute is not None and shared:
            # A strict rate cannot be shared: with a small burst, a minute holds a tenth more at most.
            burst = max(1, self.requests_per_minute // 10)
            rates.append(Rate(self.requests_per_minute, 60, burst=burst))
        elif self.requests_per_minute is not None:
            rates.append(Rate(self.requests_per_minute, 60, strict=True))
        if self.tokens_per_minute is not None:
            rates.append(Rate(self.tokens_per_minute, 60, unit="tokens"))
        return rates


class ResilientClient:
    """Calls a function as often as its limits allow, again when that may help, and not while it is down.

    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock(auto_advance=True)
    >>> client = ResilientClient(ResilienceConfig(requests_per_minute=20), clock=clock, random=lambda: 0.5)
    >>> answers = iter([ConnectionResetError(), "hello"])
    >>> def ask(prompt):
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> client.call(ask, "Hi"), clock.sleeps
    ('hello', [1.0])

    For each try, in this order: is the circuit open; is a backoff window; is there a place within the limits;
    call. A failure that may pass is tried again after a delay, during which no place is held. An answer of
    "slow down" closes the window for everybody who uses this client, for as long as the far side said.

    `tokens` estimates what a call costs and `target` says whom it goes to, each a value or a function of the
    call's arguments; every target has a circuit breaker of its own (the default target is `key`). `usage`
    reads the tokens that were really used from the result. `budget` is a TokenBudget, or a function of the
    arguments that finds one. `classify` turns an exception into a `headgate.verdict.Verdict`.

    With a `store`, clients of the same store and `key` share limits, window and circuits, wherever they run.
    """

    __slots__ = (
        "_budget",
        "_classify",
        "_clock",
        "_key",
        "_observer",
        "_policy",
        "_target",
        "_tokens",
        "_usage",
        "breakers",
        "config",
        "dispatch",
    )

    def __init__(
        self,
        config: ResilienceConfig | None = None,
        *,
        key: str = "default",
        tokens: int | Callable[..., int] = 0,
        target: Hashable | Callable[..., Hashable] = None,
        usage: Callable[[Any], int | None] | None = None,
        budget: TokenBudget | Callable[..., TokenBudget | None] | None = None,
        classify: Callable[[Exception], Verdict] | None = None,
        store: Store | str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = default_random,
    ) -> None:
        if config is None:
            config = ResilienceConfig()
        elif not isinstance(config, ResilienceConfig):
            raise InvalidConfig(
                f"config={config!r} is not a ResilienceConfig; write e.g. ResilienceConfig(max_retries=5)"
            )
        if classify is not None and not callable(classify):
            raise InvalidConfig(f"classify={classify!r} cannot be called; give a function of an exception")
        self.config = config
        self._key = key
        self._classify = verdict_of if classify is None else classify
        self._clock = clock
        self._observer = observer
        self._policy = RetryPolicy(
            config.max_retries,
            backoff=default_backoff(config.base_delay, config.max_delay),
            deadline=config.deadline,
            retry_budget=config.retry_budget,
            clock=clock,
            random=random,
        )
        self.dispatch = Dispatch(
            key,
            window=BackoffWindow(spread=_SPREAD, clock=clock),
            concurrency=config.concurrency,
            throttled_concurrency=None,
            byte_budget=None,
            rates=config._rates(shared=store is not None),
            pause=True,
            store=store,
            observer=observer,
            clock=clock,
        )
        self.dispatch.window._key = key
        self.breakers = BreakerRegistry(
            failure_threshold=config.circuit_failure_threshold,
            recovery_timeout=config.circuit_recovery_timeout,
            store=store,
            observer=observer,
            clock=clock,
            random=random,
        )
        self.breakers._within = f"{key}/"  # a target is one of this client
        self._set_options(tokens, target, usage, budget)

    def using(
        self,
        *,
        tokens: int | Callable[..., int] = 0,
        target: Hashable | Callable[..., Hashable] = None,
        usage: Callable[[Any], int | None] | None = None,
        budget: TokenBudget | Callable[..., TokenBudget | None] | None = None,
    ) -> ResilientClient:
        """The same client, limits and circuits and all, for another kind of call.

        >>> client = ResilientClient(key="openai")
        >>> @client.using(tokens=lambda prompt: len(prompt) // 4 + 500, target="chat")
        ... def chat(prompt): ...
        """
        other = ResilientClient.__new__(ResilientClient)
        for name in ResilientClient.__slots__:
            setattr(other, name, getattr(self, name))
        other._set_options(tokens, target, usage, budget)
        return other

    def _set_options(
        self,
        tokens: int | Callable[..., int],
        target: Hashable | Callable[..., Hashable],
        usage: Callable[[Any], int | None] | None,
        budget: TokenBudget | Callable[..., TokenBudget | None] | None,
    ) -> None:
        if not callable(tokens):
            amount(tokens, "tokens")
        if usage is not None and not callable(usage):
            raise InvalidConfig(f"usage={usage!r} cannot be called; give a function of the result")
        if budget is not None and not isinstance(budget, TokenBudget) and not callable(budget):
            raise InvalidConfig(f"budget={budget!r} is not a TokenBudget; write e.g. TokenBudget(100_000)")
        self._tokens = tokens
        self._target = target
        self._usage = usage
        self._budget = budget

    # -- calls

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with these arguments, and return what it returns.

        Raises what it raised last, with a note; CircuitBreakerOpen, whose cause is what the far side did;
        BudgetExceeded; or WaitTimeout at the deadline.
        """
        run = _Run(self, fn, args, kwargs)
        while True:
            run.prepare()
            if run.budget is not None:
                run.reservation = run.budget.reserve(run.tokens)
            try:
                with self.dispatch.admit(tokens=run.tokens, timeout=run.left()) as permit:
                    run.send(permit)
                    try:
                        result = fn(*args, **kwargs)
                    except BaseException as error:
                        if not run.goes_on_after(error):
                            raise
                    else:
                        if result.__class__ is Coroutine:
                            raise never_awaited(result, "call")
                        run.succeeded(result)
                        return result
            except Refused as refusal:
                run.raise_what_came_before(refusal)
                raise
            finally:
                run.clear_up()
            if run.wait:
                sleep(self._clock, run.wait)

    async def call_async(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for a function whose result is awaited."""
        run = _Run(self, fn, args, kwargs)
        while True:
            run.prepare()
            if run.budget is not None:
                run.reservation = await run.budget.reserve_async(run.tokens)
            try:
                async with self.dispatch.admit(tokens=run.tokens, timeout=run.left()) as permit:
                    run.send(permit)
                    try:
                        coming = fn(*args, **kwargs)
                        if not hasattr(coming, "__await__"):
                            raise not_awaitable(fn, "call_async")  # noqa: TRY301 - it is not retried
                        result = await coming
                    except BaseException as error:
                        if not run.goes_on_after(error):
                            raise
                    else:
                        run.succeeded(result)
                        return result
            except Refused as refusal:
                run.raise_what_came_before(refusal)
                raise
            finally:
                run.clear_up()
            if run.wait:
                await sleep_async(self._clock, run.wait)

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async."""
        wait_async = is_async(fn, "ResilientClient")
        from functools import wraps  # noqa: PLC0415 - decorating is rare, importing headgate is not

        if wait_async:

            @wraps(fn)
            async def resilient_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.call_async(fn, *args, **kwargs)  # type: ignore[arg-type]  # it is one

            return resilient_async  # type: ignore[return-value]  # the coroutine function it was

        @wraps(fn)
        def resilient(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(fn, *args, **kwargs)

        return resilient

    def close(self) -> None:
        """Refuse everybody who waits and everybody who comes."""
        self.dispatch.close()

    def __repr__(self) -> str:
        return f"<ResilientClient {self._key!r}, {self.dispatch!r}>"


class _Run:
    """One call under way, from its first try to its last."""

    __slots__ = (
        "_breaker",
        "_client",
        "_entry",
        "_inside",
        "_last",
        "_permit",
        "_retried",
        "_sent_at",
        "budget",
        "reservation",
        "tokens",
        "wait",
    )

    def __init__(
        self, client: ResilientClient, fn: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._client = client
        tokens, target, budget = client._tokens, client._target, client._budget
        self.tokens = tokens(*args, **kwargs) if callable(tokens) else tokens
        whom = target(*args, **kwargs) if callable(target) else target
        self._breaker: CircuitBreaker = client.breakers.for_key(client._key if whom is None else whom)
        if budget is not None and not isinstance(budget, TokenBudget):
            budget = budget(*args, **kwargs)
        self.budget = budget
        self._retried = RetriedCall(client._policy, name_of(fn), on_retry=client._observer)
        self._last: Exception | None = None  # what the far side did, the time before
        self._permit: Permit | None = None
        self.reservation: Reservation | None = None
        self._entry: int | Probe | None = None
        self._inside: _Inside | None = None
        self._sent_at = 0
        self.wait = 0  # before the next try, in nanoseconds

    # -- the way in

    def prepare(self) -> None:
        """An open circuit is found out before anybody waits, and so is an empty budget, after this."""
        self.wait = 0
        self._permit = None
        try:
            self._breaker._check()
        except CircuitBreakerOpen as refusal:
            raise self._because_of_last(refusal) from refusal.__cause__

    def left(self) -> float | None:
        """How many seconds there are until the deadline."""
        left = self._retried.state.left(self._client._clock.now())
        return None if left is None else left / SECOND

    def send(self, permit: Permit) -> None:
        """There is a place: go, unless the circuit opened while we waited for it."""
        inside = self._breaker._go_in()
        self._inside = inside
        if inside is not None:
            try:
                self._entry = self._breaker._enter()
            except CircuitBreakerOpen as refusal:
                permit.settle(tokens=0, cost=0)
                raise self._because_of_last(refusal) from refusal.__cause__
        self._permit = permit
        self._retried.begin_attempt()
        self._sent_at = self._client._clock.now()

    def raise_what_came_before(self, refusal: Refused) -> None:
        """No place was to be had for another try: that is not what went wrong."""
        if self._permit is None and self._last is not None and not isinstance(refusal, CircuitBreakerOpen):
            Stop(self._last, self._retried.state.retries, f"no place for another: {refusal}").annotate()
            raise self._last

    def _because_of_last(self, refusal: CircuitBreakerOpen) -> CircuitBreakerOpen:
        if self._last is not None:
            refusal.__cause__ = self._last
        return refusal

    # -- what became of it

    def succeeded(self, result: object) -> None:
        self._report_to_breaker("succeeded", None)
        used = None if self._client._usage is None else self._client._usage(result)
        if used is not None and self._permit is not None:
            self._permit.settle(tokens=used)
        if self.reservation is not None:
            self.reservation.settle(used)
        self._retried.succeeded()

    def goes_on_after(self, error: BaseException) -> bool:
        """Try again after this? If so, `wait` says when."""
        if not isinstance(error, Exception):
            return False  # cancelled or interrupted: `clear_up` gives everything back
        client = self._client
        verdict = client._classify(error)
        if not isinstance(verdict, Verdict):
            raise InvalidConfig(
                f"classify returned {verdict!r}; return a Verdict, e.g. headgate.verdict.failed()"
            ) from error
        self._report_to_breaker(verdict.kind, error)
        if self.reservation is not None and not verdict.may_have_run:
            self.reservation.refund()
        retry_after = retry_after_of(error, verdict)
        decision = self._retried.decide(error, again=verdict.again, retry_after=retry_after)
        held = self._start_backoff(verdict, retry_after, decision.delay)
        if isinstance(decision, Wait):
            self._stop_if_open(error)
            self._last = error
            # While a backoff window is active, its end is waited for in the line of the gate.
            self.wait = 0 if held else decision.delay
        self._retried.announce(decision)
        return isinstance(decision, Wait)

    def _report_to_breaker(self, kind: str, error: Exception | None) -> None:
        entry, self._entry = self._entry, None
        if entry is None:
            return
        if kind == "succeeded":
            self._breaker._succeeded(entry, self._sent_at)
        elif kind in ("failed", "overloaded") and error is not None:
            self._breaker._count_failure(entry, error, self._sent_at)
        else:
            self._breaker._ignored(entry)

    def _start_backoff(self, verdict: Verdict, retry_after: int | None, delay: int | None) -> bool:
        """Start the backoff window if the far side said "slow down". Does one hold further calls back?"""
        if verdict.kind not in ("throttled", "overloaded"):
            return False
        duration = delay if retry_after is None and verdict.kind == "throttled" else retry_after
        if duration is None:
            return False
        assert self._permit is not None
        self._client.dispatch.window._signal(duration, verdict.kind, self._permit._taken_at)
        return True

    def _stop_if_open(self, error: Exception) -> None:
        try:
            self._breaker._check()
        except CircuitBreakerOpen as refusal:
            self._retried.withdraw()
            raise refusal from error

    def clear_up(self) -> None:
        """Whatever happened, nothing is kept that belongs to a try that is over."""
        self._retried.end_attempt()
        if self._inside is not None:
            self._breaker._come_out(self._inside)
            self._inside = None
        if self._entry is not None:
            self._breaker._ignored(self._entry)
            self._entry = None
        if self.reservation is not None:
            if self._permit is None:  # never sent
                self.reservation.refund()
            self.reservation = None
