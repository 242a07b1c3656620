"""Events: what observers are told.

An observer is a plain function of one event. It is called in the thread that caused the event, never under
a lock. If it raises, the error is logged by the logger `headgate` and changes nothing. It must not be async
and should not block: let it put the event on a queue and return.
"""

from __future__ import annotations

from .frozen import Frozen
from .hints import Any, Callable, Hashable


class Event(Frozen):
    """Something that happened; `key` names the gate, window or breaker, `at` is in seconds on its clock."""

    __slots__ = ("at", "key")
    key: Hashable
    at: float


class Admitted(Event):
    """A call was admitted after `waited` seconds. `rule` is the limit it waited for, if any."""

    __slots__ = ("rule", "tenant", "throttled", "waited")
    waited: float
    rule: str | None
    throttled: bool
    tenant: Hashable


class Refused(Event):
    """A call was refused: `error` names the exception, `rule` the limit that refused it."""

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


class Retuned(Event):
    """The rates of a gate were changed while it was running."""

    __slots__ = ("rates",)
    rates: tuple[str, ...]


class CapacityReduced(Event):
    """It was announced that the API allows less than was configured."""

    __slots__ = ("reason",)
    reason: str


class CapacityChanged(Event):
    """The total of a swarm changed, or this agent's share of it. `reason` says why it was cut."""

    __slots__ = ("reason", "share", "total")
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
    agent_id: str


class BusLost(Event):
    """The bus lost its connection: the agent keeps its share until its lease ends, then follows `on_loss`."""

    __slots__ = ()


class BusRegained(Event):
    """The bus has its connection back."""

    __slots__ = ()


class WindowEvent(Event):
    """Something happened to a backoff window."""

    __slots__ = ("generation",)
    generation: int


class WindowSet(WindowEvent):
    """A backoff window started: calls are held back for `duration` seconds."""

    __slots__ = ("duration", "reason")
    duration: float
    reason: str


class WindowExtended(WindowEvent):
    """An active backoff window was extended: it ends in `duration` seconds."""

    __slots__ = ("duration", "reason")
    duration: float
    reason: str


class WindowCleared(WindowEvent):
    """A backoff window was cleared, `remaining` seconds before its end."""

    __slots__ = ("remaining",)
    remaining: float


class WindowEnded(WindowEvent):
    """A backoff window ended. Told by the next call that looks at the window: no timer runs for it."""

    __slots__ = ()


class Retrying(Event):
    """A call failed with `error` and is tried again in `delay` seconds.

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
    """A circuit opened: no call goes through for `duration` seconds. `error` is the last failure."""

    __slots__ = ("duration", "error", "reason")
    duration: float
    reason: str
    error: BaseException | None


class CircuitProbing(CircuitEvent):
    """A single call goes through an open circuit whose time is up: the probe."""

    __slots__ = ()


class CircuitClosed(CircuitEvent):
    """A circuit closed, because a probe succeeded or by `reset()`."""

    __slots__ = ()


class StoreLost(Event):
    """The shared store cannot be reached: this process goes on alone, as `on_loss` says."""

    __slots__ = ("reason",)
    reason: str


class StoreRegained(Event):
    """The shared store answers again, and knows what this process has used in the meantime."""

    __slots__ = ()


def tell(observer: Callable[[Any], object] | None, event: Event) -> None:
    """Call the observer, if there is one, with the event. An error that it raises is logged."""
    if observer is None:
        return
    try:
        observer(event)
    except Exception:
        import logging  # noqa: PLC0415 - importing it takes as long as importing headgate

        logging.getLogger("headgate").exception("the observer %r raised on %r", observer, event)
