"""Stop calling what is failing, and find out carefully when it works again.

The lock is held to count, never while a call runs. The outermost call through a breaker has one outcome.
An outcome that is not the far side's fault does not count: its "slow down", our own refusals, cancellation.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum
from weakref import ref

from .. import telling
from ..arguments import (
    SECOND,
    Coroutine,
    check_hashable,
    is_async,
    never_awaited,
    not_a_function,
    not_awaitable,
    positive_seconds_to_ns,
    read_observer,
    read_random,
)
from ..errors import CircuitBreakerOpen, HeadgateError, InvalidConfig
from ..gate.clock import SYSTEM, default_random, read_clock
from ..gate.closing import Closing
from ..gate.forks import reset_in_child
from ..gate.guard import Guard
from ..gate.keyed import KeyedObjects
from ..gate.pickling import only_here
from ..hints import Any, AnyStore, Awaitable, Callable, Clock, Hashable, Observer, P, R, Seconds, later
from ..nesting import Inside, come_out, go_in, is_around, still_running
from ..retries.classify import refusal_of, verdict_of
from .circuit import CLOSED, HALF_OPEN, OPEN, Circuit, Counter, Probe
from .settings import kinds_of, read_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sharing.records.member import CircuitMember
    from .registry import BreakerRegistry
else:
    BreakerRegistry = later("headgate.breaker.registry", "BreakerRegistry")

# The calls through breakers that the running code is part of.
_inside: ContextVar[Inside | None] = ContextVar("headgate_inside_breakers", default=None)


class CircuitState(Enum):
    """The state of a circuit breaker, as `breaker.state` returns it.

    CLOSED: calls go through. OPEN: calls are refused. HALF_OPEN: probes find out whether the far side works.

    >>> CircuitBreaker().state is CircuitState.CLOSED
    True
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_STATES = {CLOSED: CircuitState.CLOSED, OPEN: CircuitState.OPEN, HALF_OPEN: CircuitState.HALF_OPEN}


class CircuitBreaker(Closing):
    """Lets calls through until too many fail; then refuses them at once, and tries again later.

    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock()
    >>> breaker = CircuitBreaker(failure_threshold=2, recovery_timeout=30, clock=clock)
    >>> def broken():
    ...     raise ConnectionResetError
    >>> for _ in range(3):
    ...     try:
    ...         breaker.call(broken)
    ...     except Exception as error:
    ...         print(type(error).__name__)
    ConnectionResetError
    ConnectionResetError
    CircuitBreakerOpen
    >>> clock.advance(30)
    >>> breaker.call(lambda: "hello"), breaker.state
    ('hello', <CircuitState.CLOSED: 'closed'>)

    `failure_threshold` failures in a row open it (None: any number), or `failure_rate` of at least
    `minimum_calls` calls within `window` seconds; with `slow_after`, also `slow_rate` of them taking longer
    than that many seconds. It stays open for `recovery_timeout` seconds, twice as long each time a probe
    fails if there is a `max_recovery_timeout`, and longer by up to `recovery_jitter` of it, so that a fleet
    does not come back in one instant. Then `half_open_probes` calls at a time are let through: the first to
    succeed closes it, the first to fail opens it again. A probe that has not ended after `probe_timeout`
    seconds (30, or `recovery_timeout` if that is more) makes room for another.

    Only `expected_exceptions` count, except those in `ignore`, an answer of "slow down" (429), and refusals
    by headgate itself.

    With a `store`, all breakers of the same store and `key` share one circuit: opened by one it is open for
    all, also after a restart, and the probes are those of all together. Each process counts its own
    failures, so that one that has lost its network does not open the circuit for the others at once.

    An `observer` is told each change; `clock` and `random` are for tests. Raises InvalidConfig,
    InvalidCapacity or InvalidWindow for options that cannot work, and StoreError without the store.
    """

    __reduce__ = only_here()

    def __init__(
        self,
        failure_threshold: int | None = 5,
        recovery_timeout: Seconds = 30.0,
        expected_exceptions: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
        *,
        half_open_probes: int = 1,
        probe_timeout: Seconds | None = None,
        failure_rate: float | None = None,
        slow_after: Seconds | None = None,
        slow_rate: float = 0.8,
        window: Seconds = 60.0,
        minimum_calls: int = 10,
        max_recovery_timeout: Seconds | None = None,
        recovery_jitter: float = 0.0,
        ignore: type[BaseException] | tuple[type[BaseException], ...] = (),
        key: Hashable = "",
        store: AnyStore | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = default_random,
    ) -> None:
        settings = read_settings(
            failure_threshold,
            recovery_timeout,
            half_open_probes=half_open_probes,
            probe_timeout=probe_timeout,
            failure_rate=failure_rate,
            slow_after=slow_after,
            slow_rate=slow_rate,
            window=window,
            minimum_calls=minimum_calls,
            max_recovery_timeout=max_recovery_timeout,
            recovery_jitter=recovery_jitter,
        )
        self._slow_after = None if slow_after is None else positive_seconds_to_ns(slow_after, "slow_after")
        # With a rate to watch every call counts, not only those after a failure.
        self._counts_all = failure_rate is not None or slow_after is not None
        self._expected = kinds_of(expected_exceptions, "expected_exceptions")
        if not any(issubclass(kind, Exception) or issubclass(Exception, kind) for kind in self._expected):
            raise InvalidConfig(
                f"expected_exceptions={expected_exceptions!r}: nothing would count; write e.g. (Exception,)"
            )
        self._ignore = kinds_of(ignore, "ignore")
        check_hashable(key, "key")
        self.key = key
        self._name = f" {str(key)!r}" if key != "" else ""  # in errors
        self._observer = read_observer(observer)
        self._clock = read_clock(clock)
        self._now = clock.now
        self._random = read_random(random)
        self._keyed: KeyedObjects[CircuitBreaker] | None = None  # the objects of the registry that made it
        self._member: CircuitMember | None = None  # told of changes where the circuit is shared
        self._go_by(Circuit(settings), None)
        reset_in_child(self)
        if store is not None:
            self.share(store, key)
            self.begin(wait=True)

    @classmethod
    def for_key(cls, key: Hashable, *, registry: BreakerRegistry | str | None = None) -> CircuitBreaker:
        """The breaker of that `key`, any hashable value: every caller that asks gets the same object.

        Without a `registry`, a `BreakerRegistry` or its name, a default one for the whole process is used.
        Raises InvalidConfig if the registry is neither, and for a key that cannot be hashed.

        >>> CircuitBreaker.for_key("stripe") is CircuitBreaker.for_key("stripe")
        True
        """
        from .registry import BreakerRegistry  # noqa: PLC0415 - it imports this module

        if not isinstance(registry, BreakerRegistry):
            registry = BreakerRegistry.named("default" if registry is None else registry)
        return registry.for_key(key)

    # -- calls

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` with these arguments and return what it returned, unless the circuit is open.

        Raises CircuitBreakerOpen at once if it is, what `fn` raises, and InvalidConfig if `fn` is a coroutine
        function.

        >>> CircuitBreaker().call(len, "four")
        4
        """
        if not callable(fn):
            raise not_a_function(fn, "call")
        return self._run(fn, args, kwargs)

    async def call_async(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` with these arguments and await what it returns, unless the circuit is open.

        Raises CircuitBreakerOpen at once if it is, what `fn` raises, and InvalidConfig if `fn` is not async.

        >>> import asyncio
        >>> async def ask():
        ...     return "answer"
        >>> asyncio.run(CircuitBreaker().call_async(ask))
        'answer'
        """
        if not callable(fn):
            raise not_a_function(fn, "call_async")
        return await self._run_async(fn, args, kwargs)

    # As tuple and dict: a decorated function has both already, and unpacking them again takes a fifth longer.
    def _run(self, fn: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        outer = _inside.get()
        if outer is not None:
            outer = still_running(outer)
            if is_around(self, outer):
                return fn(*args, **kwargs)
        circuit = self._circuit
        idle = circuit.state == CLOSED and not self._pending
        entry = circuit.generation if idle else self.enter()
        here: Inside = [self, outer]
        started = 0 if self._slow_after is None else self._now()
        try:
            _inside.set(here)
            result = fn(*args, **kwargs)
        except BaseException as error:
            self._failed(entry, error, started)
            raise
        finally:  # as `come_out` does, without another call
            here[0] = None
            if _inside.get() is here:
                _inside.set(outer)
            if outer is not None:
                here[1] = still_running(outer)
        if result.__class__ is Coroutine:
            self.ignored(entry)
            raise never_awaited(result, "call")
        if self._counts_all or circuit.failures or self._pending or entry.__class__ is not int:
            self._hand_in(entry, "succeeded", None, started)
        return result

    async def _run_async(
        self, fn: Callable[..., Awaitable[R]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        outer = _inside.get()
        if outer is not None:
            outer = still_running(outer)
            if is_around(self, outer):
                return await fn(*args, **kwargs)
        circuit = self._circuit
        idle = circuit.state == CLOSED and not self._pending
        entry = circuit.generation if idle else self.enter()
        here: Inside = [self, outer]
        started = 0 if self._slow_after is None else self._now()
        try:
            _inside.set(here)
            coming = fn(*args, **kwargs)
            if coming.__class__ is not Coroutine and not hasattr(coming, "__await__"):
                raise not_awaitable(fn, "call_async")  # noqa: TRY301 - it must not count as a failure
            result = await coming
        except BaseException as error:
            self._failed(entry, error, started)
            raise
        finally:  # as `come_out` does, without another call
            here[0] = None
            if _inside.get() is here:
                _inside.set(outer)
            if outer is not None:
                here[1] = still_running(outer)
        if self._counts_all or circuit.failures or self._pending or entry.__class__ is not int:
            self._hand_in(entry, "succeeded", None, started)
        return result

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async."""
        wait_async = is_async(fn, "CircuitBreaker")
        from functools import wraps  # noqa: PLC0415 - decorating is rare, importing headgate is not

        run, run_async = self._run, self._run_async
        if wait_async:

            @wraps(fn)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await run_async(fn, args, kwargs)  # type: ignore[arg-type]  # it is one

            return guarded_async  # type: ignore[return-value]  # the coroutine function it was

        @wraps(fn)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            return run(fn, args, kwargs)

        return guarded

    # -- looking, and setting right

    @property
    def state(self) -> CircuitState:
        """The state of the circuit now, a `CircuitState`. An open circuit whose time is up is half-open."""
        return _STATES[self._circuit.state_at(self._now())]

    def reset(self) -> None:
        """Close the circuit by hand and forget what was counted.

        >>> breaker = CircuitBreaker()
        >>> breaker.reset()
        >>> breaker.state
        <CircuitState.CLOSED: 'closed'>
        """
        self._guard.run(self._counter.reset)
        self._finish()

    def close(self) -> None:
        """Leave the store, which is still told what it does not know. The breaker goes on by itself.

        Without a store this does nothing, and so does a second call.
        """
        if self._member is not None:
            self._member.close()

    # -- for callers that count outcomes their own way: a client, say

    def check(self) -> None:
        """Raise CircuitBreakerOpen if a call would be refused now. No call is counted, and no probe begins.

        >>> CircuitBreaker().check()
        """
        circuit = self._circuit
        if circuit.state == CLOSED or circuit.would_admit(self._now()):
            return
        self._guard.run(circuit.want_probe)
        self._finish()
        if not circuit.would_admit(self._now()):
            raise self._refusal()

    def go_in(self) -> Inside | None:
        """Calls made from now on belong to this one. None: it belongs to an outer call of this breaker."""
        return go_in(_inside, self)

    @staticmethod
    def come_out(inside: Inside) -> None:
        """The call that went in is over."""
        come_out(_inside, inside)

    def enter(self) -> int | Probe:
        """Let a call in, or raise CircuitBreakerOpen. The answer is to be handed in with the outcome."""
        if self._circuit.state == CLOSED and not self._pending:
            return self._circuit.generation
        while True:
            entry = self._guard.run(self._counter.enter)
            self._finish()
            if entry is not None:
                return entry
            # A store in this process has answered by now, if it was asked for a probe.
            if not self._circuit.would_admit(self._now()):
                raise self._refusal()

    def succeeded(self, entry: int | Probe, started: int) -> None:
        """The call that was let in by `entry` succeeded; it began at `started`, in nanoseconds."""
        if self._counts_all or self._circuit.failures or self._pending or entry.__class__ is not int:
            self._hand_in(entry, "succeeded", None, started)

    def failed(self, entry: int | Probe, error: BaseException, started: int) -> None:
        """The call failed in a way that counts, whatever the error."""
        self._hand_in(entry, "failed", error, started)

    def ignored(self, entry: int | Probe) -> None:
        """The outcome says nothing about the far side."""
        if entry.__class__ is not int:
            self.abandoned(entry)
            self._finish()

    def abandoned(self, entry: int | Probe) -> None:
        """The call has no outcome. Never waits and calls no observer: finalizers may call this."""
        if entry.__class__ is not int:
            self._guard.leave([entry, "ignored", None, False, 0, 0.0])

    # -- counting

    def _failed(self, entry: int | Probe, error: BaseException, started: int) -> None:
        if _is_being_closed(error):
            self.abandoned(entry)
        elif self._counts(error):
            self._hand_in(entry, "failed", error, started)
        else:
            self.ignored(entry)

    def _hand_in(self, entry: int | Probe, what: str, error: BaseException | None, started: int) -> None:
        now = self._now()
        slow = self._slow_after is not None and now - started > self._slow_after
        draw = self._random() if self._circuit.settings.jitter else 0.0
        self._guard.leave([entry, what, error, slow, now, draw])
        if self._keyed is not None and (error is not None or self._counts_all):
            self._keyed.keep(self.key, self)  # the registry may have let go of it while it was idle
        self._finish()

    def _counts(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return any(map(self._counts, error.exceptions))
        return (
            isinstance(error, Exception)
            and isinstance(error, self._expected)
            and not isinstance(error, (HeadgateError, *self._ignore))
            and refusal_of(error) is None
            and verdict_of(error).kind not in ("throttled", "exhausted")
        )

    def _finish(self) -> None:
        """The end of a public call: tell the observer, and the others that share the circuit."""
        told = self._counter.events
        while told:
            try:
                event = told.popleft()
            except IndexError:  # another thread was faster
                break
            telling.tell(self._observer, event)
        if self._member is not None:
            self._member.flush()

    def _refusal(self) -> CircuitBreakerOpen:
        circuit, counter = self._circuit, self._counter
        after, reason, cause = self._guard.run(
            lambda now: (circuit.opens_in(now), circuit.reason or "it has just closed", counter.cause)
        )
        refusal = CircuitBreakerOpen(
            f"the circuit{self._name} is open: {reason}", rule="circuit breaker", retry_after=after / SECOND
        )
        refusal.__cause__ = cause
        return refusal

    # -- for a registry

    def keep_in(self, keyed: KeyedObjects[CircuitBreaker]) -> None:
        """Tell these objects from now on when there is something to remember."""
        self._keyed = keyed

    def is_idle(self) -> bool:
        """Whether there is nothing to remember: a new breaker would be as good."""
        idle = self._guard.run(self._circuit.pristine)
        self._finish()  # another thread may have left the outcome of its call to this one
        return idle and not self._pending

    # -- for a store

    def share(self, store: AnyStore, key: object, *, within: str = "") -> None:
        """Go by the circuit that the store keeps under this key, among those of a registry's own key."""
        if not isinstance(key, str) or not key:
            raise InvalidConfig(f'{key!r} is not a key for a store: write a string, e.g. key="stripe"')
        from ..sharing.records.circuit import SharedCircuit  # noqa: PLC0415 - loaded only with a store
        from ..sharing.records.client import RecordClient  # noqa: PLC0415 - as above
        from ..sharing.records.member import CircuitMember  # noqa: PLC0415 - as above

        circuit = SharedCircuit(self._circuit.settings)
        client = RecordClient(store, f"breaker {within}{key}", self._clock)
        self._member = CircuitMember(ref(self), circuit, client, self.key, self._observer)
        self._go_by(circuit, self._member.send)

    def begin(self, *, wait: bool = False) -> None:
        """Hear of the shared circuit from now on. With `wait`, StoreError if there is no store."""
        if self._member is not None:
            self._member.begin(wait=wait)

    def apply(self, news: Callable[[Any, int], bool | None]) -> None:
        """What the store says: `news(circuit, now)` changes the circuit. True: that changed its state."""
        self._guard.run(lambda now: self._counter.follow(news, now))
        self._finish()

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and the probes and events are the parent's."""
        self._guard.after_fork()
        self._counter.events.clear()
        self._circuit.release_probes()

    def _go_by(self, circuit: Circuit, effects: Callable[[], None] | None) -> None:
        self._circuit = circuit
        self._counter = Counter(circuit, self.key)
        self._guard = Guard(self._now, self._counter.count, effects=effects)
        self._pending = self._guard.pending

    def __repr__(self) -> str:
        return f"<CircuitBreaker{self._name}, {self.state.value}>"


def _is_being_closed(error: BaseException | None) -> bool:
    """Whether the error was raised while its coroutine was closed, perhaps by a finalizer."""
    for _ in range(100):  # a chain of contexts may be a circle
        if error is None or isinstance(error, GeneratorExit):
            break
        error = error.__context__
    return isinstance(error, GeneratorExit)
