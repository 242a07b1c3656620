"""Events: what observers are told.

An observer is a plain function of one event. It is called in the thread that caused the event, never under
a lock. If it raises, the error is logged by the logger `headgate` and changes nothing. It must not be async
and should not block: let it put the event on a queue and return.
"""

from __future__ import annotations

from .frozen import Frozen
from .hints import ClassVar, Hashable

_DEBUG, _INFO, _WARNING = 10, 20, 30


class Event(Frozen):
    """Something that happened; `key` names the gate, window or breaker, `at` is in seconds on its clock.

    `level` is that of its log line, as `logging` has it. An observer is called with every event. Calls have a
    `tenant`, the user that they belong to, if `admit` was told one.
    """

    __slots__ = ("at", "key")
    level: ClassVar[int] = _DEBUG
    key: Hashable
    at: float


class Admitted(Event):
    """A call was admitted after `waited` seconds. `rule` is the limit it waited for, if any.

    `throttled` says whether it goes under the tighter rules that follow a backoff signal, and `tenant` to
    which user it belongs.
    """

    __slots__ = ("rule", "tenant", "throttled", "waited")
    waited: float
    rule: str | None
    throttled: bool
    tenant: Hashable


class Waiting(Event):
    """A caller started to wait, at `position` in line (1: it is next), because of `rule`.

    `estimate` is in about how many seconds it can go, None if that depends on when other calls end.
    `priority` and `tenant` are those of the call.
    """

    __slots__ = ("estimate", "position", "priority", "rule", "tenant")
    rule: str
    position: int
    estimate: float | None
    priority: int
    tenant: Hashable


class LongWait(Event):
    """Callers wait for longer than `headgate.observers.logs(slow_after=...)` says.

    The one of them that came first has waited for `waited` seconds, and is at `position` in line. It waits
    for `rule`, for about `estimate` more seconds. `waiting` is how many callers wait in all.
    """

    __slots__ = ("estimate", "position", "rule", "waited", "waiting")
    level = _WARNING
    waited: float
    rule: str
    position: int
    estimate: float | None
    waiting: int


class Cancelled(Event):
    """A caller left the line after `waited` seconds: its task was cancelled or its thread interrupted.

    `rule` is the limit it waited for, and `tenant` the user that the call belongs to.
    """

    __slots__ = ("rule", "tenant", "waited")
    waited: float
    rule: str | None
    tenant: Hashable


class Refused(Event):
    """A call was refused: `error` names the exception, `rule` the limit that refused it.

    Its caller had waited for `waited` seconds. `tenant` is the user that the call belongs to.
    """

    __slots__ = ("error", "rule", "tenant", "waited")
    waited: float
    rule: str
    error: str
    tenant: Hashable


class Settled(Event):
    """A call ended after `held` seconds. `cost` is its estimated cost by unit, `actual` its real cost."""

    __slots__ = ("actual", "cost", "held")
    held: float
    cost: dict[str, int]
    actual: dict[str, int]


class ResponseObserved(Event):
    """A response of the API was given to `observe`. `reason` is what it says about limits, "ok" for nothing.

    `status` is None if `observe` was not told; `retry_after` is how many seconds it asks to wait, if any.
    """

    __slots__ = ("reason", "retry_after", "status")
    status: int | None
    reason: str
    retry_after: float | None


class Retuned(Event):
    """The rates of a gate were changed while it was running; `rates` are the new ones, as texts."""

    __slots__ = ("rates",)
    level = _INFO
    rates: tuple[str, ...]


class CapacityReduced(Event):
    """It was announced that the API allows less than was configured, because of `reason`."""

    __slots__ = ("reason",)
    level = _INFO
    reason: str


class CapacityChanged(Event):
    """The `total` of a swarm changed, or the `share` of this agent of it. `reason` says why it was cut."""

    __slots__ = ("reason", "share", "total")
    level = _INFO
    total: int
    share: int
    reason: str


class UpdateIgnored(Event):
    """A message of a swarm was ignored because of `reason`; `agent_id` is the sender that it names."""

    __slots__ = ("agent_id", "reason")
    agent_id: str
    reason: str


class DuplicateAgent(Event):
    """Two agents of a swarm use the same `agent_id`."""

    __slots__ = ("agent_id",)
    level = _WARNING
    agent_id: str


class BusLost(Event):
    """The bus lost its connection: the agent keeps its share until its lease ends, then follows `on_loss`."""

    __slots__ = ()
    level = _INFO


class BusRegained(Event):
    """The bus has its connection back."""

    __slots__ = ()
    level = _INFO


class WindowEvent(Event):
    """Something happened to a backoff window. `generation` grows each time a window starts or is extended."""

    __slots__ = ("generation",)
    generation: int


class WindowSet(WindowEvent):
    """A backoff window started: calls are held back for `duration` seconds, because of `reason`."""

    __slots__ = ("duration", "reason")
    level = _INFO
    duration: float
    reason: str


class WindowExtended(WindowEvent):
    """An active backoff window was extended: it ends in `duration` seconds, because of `reason`."""

    __slots__ = ("duration", "reason")
    duration: float
    reason: str


class WindowCleared(WindowEvent):
    """A backoff window was cleared, `remaining` seconds before its end."""

    __slots__ = ("remaining",)
    level = _INFO
    remaining: float


class WindowEnded(WindowEvent):
    """A backoff window ended. Told by the next call that looks at the window: no timer runs for it."""

    __slots__ = ()
    level = _INFO


class Retrying(Event):
    """A call failed with `error` and is tried again in `delay` seconds.

    An HTTP adapter has no delay of its own while its gate pauses in a backoff window: the retry waits there.
    `retry` counts from 1; `max_retries` is None if there is no limit. `key` is the function's name.
    """

    __slots__ = ("delay", "error", "max_retries", "retry")
    retry: int
    max_retries: int | None
    delay: float
    error: Exception


class CircuitEvent(Event):
    """Something happened to a circuit breaker. `generation` counts its openings and closings."""

    __slots__ = ("generation",)
    generation: int


class CircuitOpened(CircuitEvent):
    """A circuit opened: no call goes through for `duration` seconds. `error` is the last failure.

    `reason` says what opened it, e.g. how many calls failed.
    """

    __slots__ = ("duration", "error", "reason")
    level = _INFO
    duration: float
    reason: str
    error: BaseException | None


class CircuitProbing(CircuitEvent):
    """A single call goes through an open circuit whose time is up: the probe."""

    __slots__ = ()


class CircuitClosed(CircuitEvent):
    """A circuit closed, because a probe succeeded or by `reset()`."""

    __slots__ = ()
    level = _INFO


class StoreAsked(Event):
    """A shared store answered after `duration` seconds; `members` is how many processes share the limit.

    `store` is its kind: "redis", "sqlite", "memory". `members` is None if it did not answer.
    """

    __slots__ = ("duration", "members", "store")
    duration: float
    members: int | None
    store: str


class StoreLost(Event):
    """The shared store cannot be reached: this process goes on alone, as `on_loss` says.

    `store` is its kind: "redis", "sqlite", "memory". `reason` says what went wrong.
    """

    __slots__ = ("reason", "store")
    level = _INFO
    reason: str
    store: str


class StoreRegained(Event):
    """The shared store answers again, and knows what this process has used in the meantime.

    `store` is its kind: "redis", "sqlite", "memory".
    """

    __slots__ = ("store",)
    level = _INFO
    store: str


class StoreForgot(Event):
    """The shared store has lost what it knew of the key, e.g. by FLUSHALL or a restart without data.

    An active backoff window goes on, and is told to the store again. What was used before is not known there.
    `store` is its kind: "redis", "sqlite", "memory".
    """

    __slots__ = ("store",)
    level = _WARNING
    store: str
