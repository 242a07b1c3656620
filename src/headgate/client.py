"""ResilientClient: circuit breaker, budget, backoff window, admission and retries around one function call.

An open circuit refuses a call before it waits. A call holds no permit during a delay. What is raised in the
end is the failure of the far side, or has it as its cause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from .arguments import (
    SECOND,
    Coroutine,
    amount,
    check_hashable,
    is_async,
    must_be_plain,
    name_of,
    never_awaited,
    not_a_function,
    not_awaitable,
    positive_int,
    positive_seconds_to_ns,
    seconds_to_ns,
)
from .backoff import Backoff
from .breaker.breaker import CircuitBreaker
from .breaker.registry import BreakerRegistry
from .budgets.budget import Reservation, TokenBudget
from .dispatch.backoff_window import BackoffWindow
from .dispatch.dispatch import Dispatch
from .dispatch.options import CallOptions, current_options
from .errors import BudgetExceeded, CircuitBreakerOpen, HeadgateError, InvalidConfig, Refused
from .gate.admission import Admission, Permit
from .gate.clock import SYSTEM, default_random, sleep, sleep_async
from .gate.closing import Closing
from .gate.pickling import only_here
from .hints import AnyStore
from .limits import Rate
from .nesting import Inside
from .retries.budget import RetryBudget
from .retries.call import RetriedCall
from .retries.classify import retry_after_of, verdict_of
from .retries.policy import RetryPolicy, delays, number_of_retries
from .retries.state import Failure, Stop, Wait
from .typing import Clock, Observer, P, R, Seconds
from .verdict import Verdict

if TYPE_CHECKING:
    from .breaker.circuit import Probe

# The calls that waited for the end of a backoff window are admitted over this many seconds after it.
_SPREAD = 1.0


@dataclass(frozen=True, slots=True)
class ResilienceConfig:
    """The limits, retries and circuit breakers of a ResilientClient. A limit of None is no limit.

    >>> ResilienceConfig(requests_per_minute=20, tokens_per_minute=40_000).max_retries
    3

    `requests_per_minute` and `tokens_per_minute` are rates, and `concurrency` is how many calls run at once.
    There are at most `max_retries` retries, each after `base_delay` seconds, doubled each time up to
    `max_delay`, or after the delays of `backoff`. `circuit_failure_threshold` failures in a row open the
    circuit of a target for `circuit_recovery_timeout` seconds. No attempt starts `deadline` seconds after the
    first or later. `retry_budget` is a RetryBudget. Raises InvalidConfig, InvalidCapacity or InvalidWindow
    for what cannot work.
    """

    max_retries: int = 3
    base_delay: Seconds = 1.0
    max_delay: Seconds = 60.0
    requests_per_minute: int | None = 60
    circuit_failure_threshold: int = 5
    circuit_recovery_timeout: Seconds = 30.0
    _: KW_ONLY
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    deadline: Seconds | None = None
    backoff: Backoff | None = None
    retry_budget: RetryBudget | None = None

    def __post_init__(self) -> None:
        number_of_retries(self.max_retries)
        delays(self.backoff, self.base_delay, self.max_delay)
        positive_int(self.circuit_failure_threshold, "circuit_failure_threshold", example=5)
        positive_seconds_to_ns(self.circuit_recovery_timeout, "circuit_recovery_timeout")
        limits = {"requests_per_minute": 60, "tokens_per_minute": 40_000, "concurrency": 20}
        for name, example in limits.items():
            if getattr(self, name) is not None:
                positive_int(getattr(self, name), name, example=example)
        if self.deadline is not None:
            positive_seconds_to_ns(self.deadline, "deadline")
        RetryBudget.checked(self.retry_budget)

    def rates(self, *, shared: bool) -> list[Rate]:
        """The rates of a gate. In a store with a burst: it would be asked more often for a strict rate."""
        rates = []
        if self.requests_per_minute is not None:
            burst = max(1, self.requests_per_minute // 10) if shared else None
            rates.append(Rate(self.requests_per_minute, 60, burst=burst, strict=not shared))
        if self.tokens_per_minute is not None:
            rates.append(Rate(self.tokens_per_minute, 60, unit="tokens"))
        return rates


@dataclass(frozen=True, slots=True)
class _KindOfCall:
    """What a client reads from the arguments and the result of a call."""

    tokens: int | Callable[..., int]
    target: Hashable | Callable[..., Hashable]
    usage: Callable[[Any], int | None] | None
    budget: TokenBudget | Callable[..., TokenBudget | None] | None

    def __post_init__(self) -> None:
        for name in ("tokens", "target", "budget"):
            if callable(given := getattr(self, name)):
                must_be_plain(given, name, "the call")
        if self.usage is not None:
            must_be_plain(self.usage, "usage", "the result")
        amount(0 if callable(self.tokens) else self.tokens, "tokens")
        check_hashable(self.target, "target")
        if not (callable(budget := self.budget) or isinstance(budget, TokenBudget | None)):
            raise InvalidConfig(f"budget={budget!r} is not a TokenBudget; write e.g. TokenBudget(100_000)")


class ResilientClient(Closing):
    """Calls functions within limits, retries what may pass, and stops calling a target that is down.

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

    Each attempt checks the circuit, reserves from the budget, waits for the end of a backoff window and for
    admission, and calls. A failure that may pass is retried after a delay, during which the call holds no
    permit. If the far side says "slow down", a backoff window starts for all calls of this client.

    `tokens` estimates what a call costs and `target` names what it is sent to, each a value or a function of
    the call's arguments; every target has a circuit breaker of its own (the default target is `key`). `usage`
    reads the tokens that were really used from the result. `budget` is a TokenBudget, or a function of the
    arguments that finds one. `classify` turns an exception into a `headgate.verdict.Verdict`. `config` has
    the limits, and an `observer` is told what happens; `clock` and `random` are for tests.

    With a `store`, clients of the same store and `key` share limits, window and circuits, wherever they run.
    Raises InvalidConfig or InvalidCapacity for arguments that cannot work, and StoreError without the store.
    """

    __reduce__ = only_here()

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
        store: AnyStore | None = None,
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
        self._kind = _KindOfCall(tokens, target, usage, budget)
        self.config = config
        self.key = key
        self._classify = verdict_of if classify is None else classify
        must_be_plain(self._classify, "classify", "an exception")
        self._clock = clock
        self.dispatch = Dispatch(
            key,
            window=BackoffWindow(spread=_SPREAD, clock=clock),
            concurrency=config.concurrency,
            throttled_concurrency=None,
            byte_budget=None,
            rates=config.rates(shared=store is not None),
            pause=True,
            store=store,
            observer=observer,
            clock=clock,
        )
        self.dispatch.window.identify(key)
        self.breakers = BreakerRegistry(
            failure_threshold=config.circuit_failure_threshold,
            recovery_timeout=config.circuit_recovery_timeout,
            key=key,
            store=store,
            observer=observer,
            clock=clock,
            random=random,
        )
        self._policy = RetryPolicy(
            config.max_retries,
            backoff=delays(config.backoff, config.base_delay, config.max_delay),
            deadline=config.deadline,
            retry_budget=config.retry_budget,
            on_retry=observer,
            clock=clock,
            random=random,
        )

    def using(
        self,
        *,
        tokens: int | Callable[..., int] = 0,
        target: Hashable | Callable[..., Hashable] = None,
        usage: Callable[[Any], int | None] | None = None,
        budget: TokenBudget | Callable[..., TokenBudget | None] | None = None,
    ) -> ResilientClient:
        """A client for another kind of call, with the same limits, window and circuits.

        `tokens`, `target`, `usage` and `budget` are those of the class, and so are the exceptions.

        >>> client = ResilientClient(key="openai")
        >>> @client.using(tokens=lambda prompt: len(prompt) // 4 + 500, target="chat")
        ... def chat(prompt): ...
        """
        other = ResilientClient.__new__(ResilientClient)
        vars(other).update(vars(self), _kind=_KindOfCall(tokens, target, usage, budget))
        return other

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` with these arguments, and return its result.

        Raises what `fn` raised last, with a note; CircuitBreakerOpen, whose cause is the failure of the far
        side; BudgetExceeded; WaitTimeout at the deadline; Closed; or InvalidConfig if `fn` is a coroutine
        function.
        """
        call = self._begin(fn, args, kwargs)
        while True:
            with call:
                call.check_circuit()
                if call.budget is not None:
                    call.reservation = call.budget.reserve(call.tokens)
                with call.admission(self.dispatch) as permit:
                    call.begin_attempt(permit)
                    try:
                        result = fn(*args, **kwargs)
                    except BaseException as error:
                        if not call.is_retried_after(error):
                            raise
                    else:
                        if result.__class__ is Coroutine:
                            raise never_awaited(result, "call")
                        call.succeeded(result)
                        return result
            if call.delay:
                sleep(self._clock, call.delay)

    async def call_async(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` with these arguments and await its result. Raises what `call` raises."""
        call = self._begin(fn, args, kwargs)
        while True:
            with call:
                call.check_circuit()
                if call.budget is not None:
                    call.reservation = await call.budget.reserve_async(call.tokens)
                async with call.admission(self.dispatch) as permit:
                    call.begin_attempt(permit)
                    try:
                        coming = fn(*args, **kwargs)
                        if not hasattr(coming, "__await__"):
                            raise not_awaitable(fn, "call_async")  # noqa: TRY301 - it is not retried
                        result = await coming
                    except BaseException as error:
                        if not call.is_retried_after(error):
                            raise
                    else:
                        call.succeeded(result)
                        return result
            if call.delay:
                await sleep_async(self._clock, call.delay)

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async."""
        if is_async(fn, "ResilientClient"):

            @wraps(fn)
            async def resilient_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.call_async(fn, *args, **kwargs)  # type: ignore[arg-type]  # it is async

            return resilient_async  # type: ignore[return-value]  # a coroutine function, like `fn`

        @wraps(fn)
        def resilient(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(fn, *args, **kwargs)

        return resilient

    def close(self) -> None:
        """Refuse the calls that wait and those that come later, and leave the store."""
        self.dispatch.close()
        self.breakers.close()

    def _begin(self, fn: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        if not callable(fn):
            raise not_a_function(fn, "call")
        tokens, target, budget = self._kind.tokens, self._kind.target, self._kind.budget
        target = target(*args, **kwargs) if callable(target) else target
        options = current_options()
        if options is not None:
            tokens, budget = options.costs().get("tokens", tokens), options.budget or budget
        if budget is not None and not isinstance(budget, TokenBudget):
            budget = budget(*args, **kwargs)
        if budget is not None and budget.limits_money and not budget.limits_tokens:
            raise InvalidConfig(
                f"{budget!r} limits money, and a ResilientClient charges tokens, so it would refuse no call; "
                "give it a limit of tokens, or call through an adapter of headgate.http"
            )
        return _Call(
            RetriedCall(self._policy, name_of(fn)),
            self.breakers.for_key(self.key if target is None else target),
            self.dispatch.window,
            self._clock,
            self._classify,
            tokens(*args, **kwargs) if callable(tokens) else tokens,
            self._kind.usage,
            budget,
            options,
        )

    def __repr__(self) -> str:
        return f"<ResilientClient {self.key!r}, {self.dispatch!r}>"


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a client, from its first attempt to its last. A `with` block is one attempt."""

    retried: RetriedCall
    breaker: CircuitBreaker
    window: BackoffWindow
    clock: Clock
    classify: Callable[[Exception], Verdict]
    tokens: int
    usage: Callable[[Any], int | None] | None
    budget: TokenBudget | None
    options: CallOptions | None
    last_failure: Exception | None = None
    delay: int = 0  # before the next attempt, in nanoseconds
    # What belongs to the running attempt:
    permit: Permit | None = None
    reservation: Reservation | None = None
    entry: int | Probe | None = None
    inside: Inside | None = None
    sent_at: int = 0

    # -- before an attempt

    def __enter__(self) -> None:
        """Begin to wait for the budget and for a permit."""

    def check_circuit(self) -> None:
        """Raise if the circuit is open, before the call waits for anything."""
        self.delay = 0
        self.permit = None
        self.breaker.check()

    def left(self) -> float | None:
        """Seconds until the deadline; None if there is none."""
        left = self.retried.state.left(self.clock.now())
        return None if left is None else left / SECOND

    def admission(self, dispatch: Dispatch) -> Admission:
        """The place in line for the next attempt, as `headgate.call_options` says."""
        left, options = self.left(), self.options
        if options is None:
            return dispatch.admit(tokens=self.tokens, timeout=left)
        if options.timeout is not None:
            wait = seconds_to_ns(options.timeout, "timeout") / SECOND
            left = wait if left is None else min(left, wait)
        known = dispatch.columns.keys() - {"tokens"}
        return dispatch.admit(
            tokens=self.tokens,
            cost={unit: units for unit, units in options.costs().items() if unit in known},
            timeout=left,
            priority=options.priority,
            tenant=options.tenant,
        )

    def begin_attempt(self, permit: Permit) -> None:
        """The call is admitted. Raise if the circuit opened while it waited."""
        self.inside = self.breaker.go_in()
        if self.inside is not None:
            try:
                self.entry = self.breaker.enter()
            except CircuitBreakerOpen:
                permit.settle(tokens=0, cost=0)
                raise
        self.permit = permit
        self.retried.begin_attempt()
        self.sent_at = self.clock.now()

    # -- after an attempt

    def succeeded(self, result: object) -> None:
        self._report_to_breaker("succeeded", None)
        used = None if self.usage is None else self.usage(result)
        if used is not None and self.permit is not None:
            self.permit.settle(tokens=used)
        if self.reservation is not None:
            self.reservation.settle(used)
        self.retried.succeeded()

    def is_retried_after(self, error: BaseException) -> bool:
        """Whether the call is tried again after this error, and then `delay` is how long to wait."""
        if not isinstance(error, Exception):
            return False  # cancelled or interrupted: `end_attempt` gives everything back
        verdict = self.classify(error)
        if not isinstance(verdict, Verdict):
            raise InvalidConfig(
                f"classify returned {verdict!r}; return a Verdict, e.g. headgate.verdict.failed()"
            ) from error
        self._report_to_breaker(verdict.kind, error)
        if self.reservation is not None and not verdict.may_have_run:
            self.reservation.refund()
        retry_after = retry_after_of(error, verdict)
        decision = self.retried.decide(Failure(error, verdict.again, retry_after=retry_after))
        held = self._start_backoff(verdict, retry_after, decision.delay)
        if isinstance(decision, Wait):
            try:
                self.breaker.check()
            except CircuitBreakerOpen as refusal:
                self.retried.withdraw()
                raise refusal from error
            self.last_failure = error
            # While a backoff window is active, the gate holds the retry back.
            self.delay = 0 if held else decision.delay
            decision = decision._replace(held=held)
        self.retried.announce(decision)
        return isinstance(decision, Wait)

    def _report_to_breaker(self, kind: str, error: Exception | None) -> None:
        entry, self.entry = self.entry, None
        if entry is None:
            return
        if kind == "succeeded":
            self.breaker.succeeded(entry, self.sent_at)
        elif kind in ("failed", "overloaded") and error is not None:
            self.breaker.failed(entry, error, self.sent_at)
        else:
            self.breaker.ignored(entry)

    def _start_backoff(self, verdict: Verdict, retry_after: int | None, delay: int | None) -> bool:
        """Start a backoff window if the far side said "slow down". Returns whether one was started."""
        duration = delay if retry_after is None and verdict.kind == "throttled" else retry_after
        if duration is None or verdict.kind not in ("throttled", "overloaded"):
            return False
        assert self.permit is not None
        self.window.signal(duration, verdict.kind, self.permit.taken_at)
        return True

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        """Give back what the attempt still holds.

        If the gate refused a retry, raise what made the retry necessary. If the budget, its store or the
        breaker did, that is the cause of the refusal.
        """
        self.retried.end_attempt()
        if self.inside is not None:
            self.breaker.come_out(self.inside)
            self.inside = None
        if self.entry is not None:
            self.breaker.abandoned(self.entry)
            self.entry = None
        if self.reservation is not None:
            if self.permit is None:  # never sent
                self.reservation.refund()
            self.reservation = None
        if self.permit is not None or self.last_failure is None or not isinstance(error, HeadgateError):
            return
        if isinstance(error, Refused) and not isinstance(error, (BudgetExceeded, CircuitBreakerOpen)):
            Stop(self.last_failure, self.retried.state.retries, f"no place for another: {error}").annotate()
            raise self.last_failure
        error.__cause__ = self.last_failure

    def __del__(self) -> None:
        inside = self.inside
        if inside is not None:  # Ctrl-C struck on the way into `__exit__`
            inside[0] = None
