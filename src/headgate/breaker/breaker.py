"""Stop calling what is failing, and find out carefully when it is well again.

Rules of this room: the lock is held to count, never while a call runs. One outcome for each outermost
call. What is not the far side's fault does not count: its "slow down", our own refusals, cancellation.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from contextvars import ContextVar
from enum import Enum

from .. import events
from ..arguments import (
    SECOND,
    Coroutine,
    is_async,
    never_awaited,
    not_awaitable,
    positive_seconds_to_ns,
    ratio,
)
from ..errors import CircuitBreakerOpen, HeadgateError, InvalidCapacity, InvalidConfig
from ..gate.clock import SYSTEM, default_random
from ..gate.forks import reset_in_child
from ..gate.keyed import KeyedObjects
from ..retries.classify import verdict_of
from .circuit import CLOSED, HALF_OPEN, OPEN, Circuit, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable
    from typing import Any, ClassVar, ParamSpec, TypeAlias, TypeVar

    from ..sharing.records.circuit import CircuitLink
    from ..sharing.records.shared_circuit import CircuitRecord, SharedCircuit
    from ..sharing.store import Store
    from ..typing import Clock, Observer, Seconds

    P = ParamSpec("P")
    R = TypeVar("R")
    Kinds: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]

# A probe that takes longer than this is no longer waited for.
_SHORTEST_LEASE = 30 * SECOND


class CircuitState(Enum):
    """How a circuit breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_STATES = {CLOSED: CircuitState.CLOSED, OPEN: CircuitState.OPEN, HALF_OPEN: CircuitState.HALF_OPEN}


# A call under way, so that calls it makes through the same breaker are not counted again: its breaker,
# None once it is over, and the call around it. A list, because making one takes half as long.
if TYPE_CHECKING:
    _Inside: TypeAlias = list["CircuitBreaker | _Inside | None"]

_inside: ContextVar[_Inside | None] = ContextVar("headgate_inside_breakers", default=None)


def _still_running(inside: _Inside | None) -> _Inside | None:
    # A task inherits what its parent was inside of, and may outlive it.
    while inside is not None and inside[0] is None:
        inside = inside[1]  # type: ignore[assignment]  # the call around it
    return inside


class CircuitBreaker:
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
    succeed closes it, the first to fail opens it again. A probe not heard of for `probe_timeout` seconds
    (30, or `recovery_timeout` if that is more) makes room for another.

    Only `expected_exceptions` count, and of those not the ones in `ignore`, an answer of "slow down" (429),
    or a refusal by headgate itself.

    With a `store`, everybody who is given the same store and `name` goes by one circuit: opened by one it is
    open for all, also after a restart, and the probes are those of all together. Failures are counted by each
    for itself, so that one that has lost its network does not speak for all before it has failed enough.
    """

    __slots__ = (
        "__weakref__",
        "_cause",
        "_circuit",
        "_clock",
        "_counts_all",
        "_expected",
        "_ignore",
        "_jitters",
        "_keeper",
        "_key",
        "_link",
        "_lock",
        "_name",
        "_now",
        "_observer",
        "_random",
        "_returns",
        "_slow_after",
    )

    def __init__(
        self,
        failure_threshold: int | None = 5,
        recovery_timeout: Seconds = 30.0,
        expected_exceptions: Kinds = (Exception,),
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
        ignore: Kinds = (),
        name: str = "",
        store: Store | str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = default_random,
    ) -> None:
        if failure_threshold is not None:
            _at_least_one(failure_threshold, "failure_threshold", example=5)
        elif failure_rate is None and slow_after is None:
            raise InvalidConfig(
                "with failure_threshold=None nothing would ever open the circuit; write e.g. failure_rate=0.5"
            )
        recovery = positive_seconds_to_ns(recovery_timeout, "recovery_timeout")
        longest = recovery
        if max_recovery_timeout is not None:
            longest = positive_seconds_to_ns(max_recovery_timeout, "max_recovery_timeout")
            if longest < recovery:
                raise InvalidConfig(
                    f"max_recovery_timeout={max_recovery_timeout!r} is less than "
                    f"recovery_timeout={recovery_timeout!r}, where it starts; write e.g. 300"
                )
        self._jitters = recovery_jitter != 0
        if self._jitters:
            ratio(recovery_jitter, "recovery_jitter", low=0, high=float("inf"), example=0.2)
        self._slow_after = None if slow_after is None else positive_seconds_to_ns(slow_after, "slow_after")
        lease = (
            max(recovery, _SHORTEST_LEASE)
            if probe_timeout is None
            else positive_seconds_to_ns(probe_timeout, "probe_timeout")
        )
        slow_part = _part(slow_rate, "slow_rate")
        self._circuit = Circuit(
            threshold=failure_threshold,
            recovery=recovery,
            max_recovery=longest,
            jitter=recovery_jitter,
            probes=_at_least_one(half_open_probes, "half_open_probes", example=1),
            lease=lease,
            failure_rate=None if failure_rate is None else _part(failure_rate, "failure_rate"),
            slow_rate=None if slow_after is None else slow_part,
            window=positive_seconds_to_ns(window, "window"),
            minimum=_at_least_one(minimum_calls, "minimum_calls", example=10),
        )
        # With a rate to watch every call counts, not only those after a failure.
        self._counts_all = failure_rate is not None or slow_after is not None
        self._expected = _kinds(expected_exceptions, "expected_exceptions")
        if not any(issubclass(kind, Exception) or issubclass(Exception, kind) for kind in self._expected):
            raise InvalidConfig(
                f"expected_exceptions={expected_exceptions!r}: nothing would count; write e.g. (Exception,)"
            )
        self._ignore = _kinds(ignore, "ignore")
        if observer is not None and not callable(observer):
            raise InvalidConfig(f"observer={observer!r} cannot be called; give a function of one event")
        if not callable(random):
            raise InvalidConfig(f"random={random!r} cannot be called; give a function that draws from 0 to 1")
        self._name = name
        self._observer = observer
        self._clock = clock
        self._now = clock.now
        self._random = random
        self._cause: BaseException | None = None  # the failure that opened it
        # Outcomes on their way. One may come from a finalizer, while this very thread holds the lock, so
        # handing one in never waits for it.
        self._returns: deque[tuple[int | Probe, str, BaseException | None, bool, int, float]] = deque()
        self._keeper: KeyedObjects[CircuitBreaker] | None = None  # of the registry that made it
        self._key: Hashable = name
        self._lock = allocate_lock()
        reset_in_child(self)
        if store is not None:
            self._share(store, name).begin(wait=True)

    def _share(self, store: Store | str, key: object, within: str = "") -> CircuitLink:
        """From now on this is one of many that go by the record of that key."""
        if not isinstance(key, str) or not key:
            raise InvalidConfig(f'{key!r} is no name for a store: write a string, e.g. name="stripe"')
        from ..sharing.records.circuit import CircuitLink  # noqa: PLC0415 - as above
        from ..sharing.records.shared_circuit import SharedCircuit  # noqa: PLC0415 - only those who share load it

        self._circuit = SharedCircuit(self._circuit)
        self.__class__ = _SharedBreaker  # the same, and it tells the link what happens
        self._link = CircuitLink(self, store, within + key)  # type: ignore[arg-type]  # it is one now
        return self._link

    @classmethod
    def for_key(cls, key: Hashable, *, registry: BreakerRegistry | str | None = None) -> CircuitBreaker:
        """The breaker of that key: the same object for everyone who asks.

        Without a registry, a default one for the whole process is used; a string names one.
        """
        if not isinstance(registry, BreakerRegistry):
            registry = BreakerRegistry.named("default" if registry is None else registry)
        return registry.for_key(key)

    # -- calls

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, unless the circuit is open: then raise CircuitBreakerOpen at once."""
        return self._run(fn, args, kwargs)

    async def call_async(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for a function whose result is awaited."""
        return await self._run_async(fn, args, kwargs)

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

    def _run(self, fn: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        outer = _inside.get()
        if outer is not None:
            outer = _still_running(outer)
            if self._is_around(outer):
                return fn(*args, **kwargs)
        circuit = self._circuit
        idle = circuit.state == CLOSED and not self._returns
        entry = circuit.generation if idle else self._enter()
        here: _Inside = [self, outer]
        started = 0 if self._slow_after is None else self._now()
        try:
            _inside.set(here)
            result = fn(*args, **kwargs)
        except BaseException as error:
            self._failed(entry, error, started)
            raise
        finally:
            here[0] = None
            if _inside.get() is here:  # a task that is destroyed may end in the context of another
                _inside.set(outer)
            if outer is not None:
                here[1] = _still_running(outer)
        if result.__class__ is Coroutine:
            self._ignored(entry)
            raise never_awaited(result, "call")
        if self._counts_all or circuit.failures or self._returns or entry.__class__ is not int:
            self._hand_in(entry, "succeeded", None, started)
        return result

    async def _run_async(
        self, fn: Callable[..., Awaitable[R]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        outer = _inside.get()
        if outer is not None:
            outer = _still_running(outer)
            if self._is_around(outer):
                return await fn(*args, **kwargs)
        circuit = self._circuit
        idle = circuit.state == CLOSED and not self._returns
        entry = circuit.generation if idle else self._enter()
        here: _Inside = [self, outer]
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
        finally:
            here[0] = None
            if _inside.get() is here:  # a task that is destroyed may end in the context of another
                _inside.set(outer)
            if outer is not None:
                here[1] = _still_running(outer)
        if self._counts_all or circuit.failures or self._returns or entry.__class__ is not int:
            self._hand_in(entry, "succeeded", None, started)
        return result

    # -- looking, and setting right

    @property
    def state(self) -> CircuitState:
        """How it stands. An open circuit whose time is up is half-open."""
        return _STATES[self._circuit.state_at(self._now())]

    def reset(self) -> None:
        """Close it by hand and forget what was counted."""
        with self._lock:
            was_open = self._circuit.state != CLOSED
            self._circuit.close()
            self._cause = None
            event = self._event(CLOSED, self._now())
        self._take_in()
        if was_open:
            events.tell(self._observer, event)

    # -- for those who count outcomes their own way

    def _check(self) -> None:
        """Raise if a call would be refused now."""
        circuit = self._circuit
        if circuit.state != CLOSED and not circuit.would_admit(self._now()):
            raise self._refusal()

    def _enter(self) -> int | Probe:
        if self._circuit.state == CLOSED and not self._returns:
            return self._circuit.generation
        told: list[events.Event] = []
        with self._lock:
            self._take_in_locked(told)
            now = self._now()
            was = self._circuit.state
            entry = self._circuit.enter(now)
            if was == OPEN and entry is not None and self._observer is not None:
                told.append(self._event(HALF_OPEN, now))
        for event in told:
            events.tell(self._observer, event)
        self._take_in()
        if entry is None:
            raise self._refusal()
        return entry

    def _refusal(self) -> CircuitBreakerOpen:
        circuit = self._circuit
        with self._lock:
            after = circuit.opens_in(self._now()) / SECOND
            reason = circuit.reason or "it has just closed"
            cause = self._cause
        self._take_in()
        name = f" {self._name!r}" if self._name else ""
        refusal = CircuitBreakerOpen(
            f"the circuit{name} is open: {reason}", rule="circuit breaker", retry_after=after
        )
        refusal.__cause__ = cause
        return refusal

    def _go_in(self) -> _Inside | None:
        """What is called from now on belongs to this call. None: it belongs to another already."""
        outer = _still_running(_inside.get())
        if self._is_around(outer):
            return None
        here: _Inside = [self, outer]
        _inside.set(here)
        return here

    def _come_out(self, here: _Inside) -> None:
        here[0] = None
        if _inside.get() is here:
            _inside.set(here[1])  # type: ignore[arg-type]  # the call around it

    def _succeeded(self, entry: int | Probe, started: int) -> None:
        if self._counts_all or self._circuit.failures or self._returns or entry.__class__ is not int:
            self._hand_in(entry, "succeeded", None, started)
        # Otherwise there is nothing that a success would change.

    def _failed(self, entry: int | Probe, error: BaseException, started: int) -> None:
        if self._counts(error):
            self._count_failure(entry, error, started)
        else:
            self._ignored(entry)

    def _count_failure(self, entry: int | Probe, error: BaseException, started: int) -> None:
        self._hand_in(entry, "failed", error, started)

    def _ignored(self, entry: int | Probe) -> None:
        if entry.__class__ is not int:
            self._hand_in(entry, "ignored", None, 0)

    def _hand_in(self, entry: int | Probe, what: str, error: BaseException | None, started: int) -> None:
        now = self._now()
        self._returns.append((entry, what, error, self._was_slow(started, now), now, self._draw()))
        self._take_in()
        if what == "failed" or self._counts_all:
            self._stay_known()

    def _take_in(self) -> None:
        """Count what was handed in. Whoever holds the lock does so once it is free: nothing is left lying."""
        told: list[events.Event] = []
        while self._returns and not self._lock.locked():
            with self._lock:
                self._take_in_locked(told)
        for event in told:
            events.tell(self._observer, event)

    def _take_in_locked(self, told: list[events.Event]) -> None:
        circuit, returns = self._circuit, self._returns
        while returns:
            # Taken out first: an interrupt may lose one, and a probe its lease, but nothing counts twice.
            entry, what, error, slow, now, draw = returns.popleft()
            if what == "ignored":
                circuit.ignored(entry)
            else:
                outcome = circuit.succeeded if what == "succeeded" else circuit.failed
                if outcome(entry, slow, now, draw):
                    self._cause = None if circuit.state == CLOSED else error
                    if self._observer is not None:
                        told.append(self._event(circuit.state, now))

    def _stay_known(self) -> None:
        """There is something to remember: the registry may have let go of what was idle."""
        if self._keeper is not None:
            self._keeper.get(self._key)

    def _draw(self) -> float:
        return self._random() if self._jitters else 0.0

    def _was_slow(self, started: int, now: int) -> bool:
        return self._slow_after is not None and now - started > self._slow_after

    def _counts(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return any(map(self._counts, error.exceptions))
        return (
            isinstance(error, Exception)
            and isinstance(error, self._expected)
            and not isinstance(error, (HeadgateError, *self._ignore))
            and verdict_of(error).kind not in ("throttled", "exhausted")
        )

    def _is_around(self, inside: _Inside | None) -> bool:
        """Is this call made by one that the breaker counts already?"""
        while inside is not None:
            if inside[0] is self:
                return True
            inside = inside[1]  # type: ignore[assignment]  # the call around it
        return False

    def _is_idle(self) -> bool:
        with self._lock:
            idle = self._circuit.pristine(self._now())
        self._take_in()
        return idle and not self._returns

    def _event(self, state: int, now: int) -> events.Event:
        circuit = self._circuit
        facts: dict[str, Any] = {"key": self._key, "at": now / SECOND, "generation": circuit.generation}
        if state == OPEN:
            return events.CircuitOpened(
                **facts, duration=circuit.opens_in(now) / SECOND, reason=circuit.reason, error=self._cause
            )
        return (events.CircuitClosed if state == CLOSED else events.CircuitProbing)(**facts)

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and probes of the parent are the parent's."""
        self._lock = allocate_lock()
        self._returns.clear()
        self._circuit.release_probes()

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        return f"<CircuitBreaker{name}, {self.state.value}>"


class _SharedBreaker(CircuitBreaker):
    """A breaker that goes by a circuit which others go by too."""

    __slots__ = ()
    _circuit: SharedCircuit

    def reset(self) -> None:
        with self._lock:
            self._circuit.letters.append(("reset", 0, None))
        super().reset()

    def _check(self) -> None:
        circuit, now = self._circuit, self._now()
        if circuit.state == CLOSED or circuit.would_admit(now):
            return
        with self._lock:
            circuit.want(now)
        self._take_in()
        super()._check()  # a store in this very process has answered by now

    def _enter(self) -> int | Probe:
        try:
            return super()._enter()
        except CircuitBreakerOpen:
            if self._circuit.state != CLOSED and not self._circuit.would_admit(self._now()):
                raise
        return super()._enter()  # as above

    def _take_in(self) -> None:
        super()._take_in()
        circuit = self._circuit
        while circuit.letters and not self._lock.locked():
            with self._lock:
                letters, circuit.letters = circuit.letters, []
            self._link.post(letters)

    # -- what the link brings

    def _hear(self, record: CircuitRecord, ahead: int) -> None:
        """So it stands with the circuit, by a clock that is so far ahead of ours."""
        told: list[events.Event] = []
        with self._lock:
            self._take_in_locked(told)
            now = self._now()
            if self._circuit.follow(record, ahead, now):
                self._cause = None
                told.append(self._event(self._circuit.state, now))
        for event in told:
            events.tell(self._observer, event)
        self._take_in()

    def _hear_of_probe(self, seen: int, who: str, due: int | None) -> None:
        with self._lock:
            self._circuit.lent(seen, who, due)
        self._take_in()

    def _hand_back_probe(self, who: str) -> None:
        with self._lock:
            self._circuit.hand_back(who)
        self._take_in()

    def _hear_of_store(self, why: str | None) -> None:
        with self._lock:
            self._circuit.alone = why is not None
        facts: dict[str, Any] = {"key": self._key, "at": self._now() / SECOND}
        event = events.StoreRegained(**facts) if why is None else events.StoreLost(**facts, reason=why)
        events.tell(self._observer, event)
        self._take_in()

    def after_fork(self) -> None:
        super().after_fork()
        self._circuit.alone = False
        self._link.after_fork()


class BreakerRegistry:
    """Circuit breakers by key, all made with the same options.

    >>> targets = BreakerRegistry(failure_threshold=3)
    >>> targets.for_key("stripe") is targets.for_key("stripe")
    True

    A breaker that nobody holds and that has nothing to remember is forgotten. With a `store`, equal keys of
    all who are given the same store go by one circuit.
    """

    __slots__ = ("__weakref__", "_keeper", "_options", "_store", "_within")

    _named: ClassVar[dict[str, BreakerRegistry]] = {}

    def __init__(self, *, store: Store | str | None = None, **options: Any) -> None:
        possible = CircuitBreaker(**options)  # or it raises
        self._options = options
        self._store = store
        self._within = ""  # of whom these are, where a store is shared by several registries
        if store is not None:
            from ..sharing.records.circuit import greet  # noqa: PLC0415 - only those who share load it

            greet(store, possible._clock)
            self.__class__ = _SharedRegistry
        self._keeper: KeyedObjects[CircuitBreaker] = KeyedObjects(self._make, CircuitBreaker._is_idle)

    @classmethod
    def named(cls, name: str, **options: Any) -> BreakerRegistry:
        """The registry of that name, made on first use and kept for the life of the process.

        Options that differ from those it was made with raise InvalidConfig.
        """
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f'registry name {name!r} is not a name; write a string, e.g. "payments"')
        known = cls._named.get(name)
        if known is None:
            known = cls._named.setdefault(name, cls(**options))  # one step, whoever comes first
        store = options.pop("store", known._store)
        if (options and options != known._options) or store != known._store:
            raise InvalidConfig(
                f"the registry {name!r} exists already, with {known._options or 'the defaults'}; "
                f"leave the options out, or write another name for {options}"
            )
        return known

    def for_key(self, key: Hashable) -> CircuitBreaker:
        """The breaker of that key: the same object for everyone who asks."""
        return self._keeper.get(key)

    def state(self, key: Hashable) -> CircuitState:
        """How that one stands; closed if nobody has called there."""
        breaker = self._keeper.peek(key)
        return CircuitState.CLOSED if breaker is None else breaker.state

    def states(self) -> dict[Hashable, CircuitState]:
        """How each one that is remembered stands."""
        return {key: breaker.state for key, breaker in self._keeper.items()}

    def reset(self, key: Hashable) -> None:
        """Close that one by hand. One that does not exist is closed already."""
        breaker = self._keeper.peek(key)
        if breaker is not None:
            breaker.reset()

    def forget(self, key: Hashable) -> None:
        """Whoever asks for that one next gets a new one."""
        self._keeper.forget(key)

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._keeper)

    def _make(self, key: Hashable) -> CircuitBreaker:
        breaker = CircuitBreaker(**{"name": str(key), **self._options})
        breaker._key = key
        breaker._keeper = self._keeper
        return breaker

    def __repr__(self) -> str:
        return f"<BreakerRegistry of {len(self)} circuit breakers>"


class _SharedRegistry(BreakerRegistry):
    """A registry whose breakers go by circuits which others go by too."""

    __slots__ = ()

    def for_key(self, key: Hashable) -> CircuitBreaker:
        breaker = self._keeper.get(key)
        breaker._link.begin()  # out of the keeper's lock: what is heard is told to observers
        return breaker

    def _make(self, key: Hashable) -> CircuitBreaker:
        breaker = super()._make(key)
        assert self._store is not None
        breaker._share(self._store, key, self._within)
        return breaker


def _kinds(given: Kinds, what: str) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidConfig(
                f"{what}={given!r}: {kind!r} is no kind of exception; write e.g. {what}=(TimeoutError,)"
            )
    return kinds


def _part(value: float, what: str) -> tuple[int, int]:
    """A part of all calls: more than none, at most all."""
    if value == 1 and not isinstance(value, bool):
        return 1, 1
    return ratio(value, what, low=0, high=1, example=0.5)


def _at_least_one(value: object, what: str, *, example: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCapacity(f"{what}={value!r} is not a whole number; write e.g. {what}={example}")
    if value < 1:
        raise InvalidCapacity(f"{what}={value!r} is less than one; write e.g. {what}={example}")
    return value
