"""Facts that observers receive.

An observer is a plain function of one event. It is called in the thread of whoever caused the
event, never under a lock; one that raises is reported to the `headgate` logger and changes
nothing. It may not be async and should not block: put the event on a queue and return.
"""

from __future__ import annotations

from .frozen import Frozen
from .hints import Any, Callable, Hashable


class Event(Frozen):
    """Something that happened at a gate or to a window, `at` seconds on its clock."""

    __slots__ = ("at", "key")
    key: Hashable
    at: float


class Admitted(Event):
    """A call may go. `rule` is what it waited for, None if it did not wait."""

    __slots__ = ("rule", "tenant", "throttled", "waited")
    waited: float
    rule: str | None
    throttled: bool
    tenant: Hashable


class Refused(Event):
    """A call was not started: `error` names the exception, `rule` what stood in the way."""

    __slots__ = ("error", "rule", "tenant", "waited")
    waited: float
    rule: str
    error: str
    tenant: Hashable


class Settled(Event):
    """A call is over. `cost` is what it was taken to cost, by unit, and `actual` what it did."""

    __slots__ = ("actual", "cost", "held")
    held: float
    cost: dict[str, int]
    actual: dict[str, int]


class Retuned(Event):
    """The rates of a gate were changed while it was running."""

    __slots__ = ("rates",)
    rates: tuple[str, ...]


class CapacityReduced(Event):
    """Somebody announced that the API gives less than was configured."""

    __slots__ = ("reason",)
    reason: str


class CapacityChanged(Event):
    """The total that a swarm shares is another now, or this agent's share of it. `reason`: why it was cut."""

    __slots__ = ("reason", "share", "total")
    total: int
    share: int
    reason: str


class UpdateIgnored(Event):
    """A message of a swarm changed nothing; `reason` is why, and `agent_id` who says to have sent it."""

    __slots__ = ("agent_id", "reason")
    agent_id: str
    reason: str


class DuplicateAgent(Event):
    """Two agents of a swarm use the same `agent_id`."""

    __slots__ = ("agent_id",)
    agent_id: str


class BusLost(Event):
    """The bus is deaf: the agent goes by its lease, and then as `on_loss` says."""

    __slots__ = ()


class BusRegained(Event):
    """The bus hears again."""

    __slots__ = ()


class WindowEvent(Event):
    """Something happened to a backoff window."""

    __slots__ = ("generation",)
    generation: int


class WindowSet(WindowEvent):
    """A window opened: nobody should go for `duration` seconds."""

    __slots__ = ("duration", "reason")
    duration: float
    reason: str


class WindowExtended(WindowEvent):
    """The end of an open window moved later: `duration` seconds from now."""

    __slots__ = ("duration", "reason")
    duration: float
    reason: str


class WindowCleared(WindowEvent):
    """A window was ended by hand, `remaining` seconds before its time."""

    __slots__ = ("remaining",)
    remaining: float


class WindowEnded(WindowEvent):
    """A window ran out. Told when somebody next looks; nothing runs just to tell it."""

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
    """Nobody is let through for `duration` seconds: too much failed, and `error` was the last."""

    __slots__ = ("duration", "error", "reason")
    duration: float
    reason: str
    error: BaseException | None


class CircuitProbing(CircuitEvent):
    """The time is up: a call is let through to see how things are."""

    __slots__ = ()


class CircuitClosed(CircuitEvent):
    """All is well again, by a probe that succeeded or by hand."""

    __slots__ = ()


class StoreLost(Event):
    """The shared store cannot be asked: the gate goes on by itself, as `on_loss` says."""

    __slots__ = ("reason",)
    reason: str


class StoreRegained(Event):
    """The shared store answers again, and has been told what was used meanwhile."""

    __slots__ = ()


def tell(observer: Callable[[Any], object] | None, event: Event) -> None:
    """Give the event to the observer, who cannot do any harm by raising."""
    if observer is None:
        return
    try:
        observer(event)
    except Exception:
        import logging  # noqa: PLC0415 - importing it takes as long as importing headgate

        logging.getLogger("headgate").exception("the observer %r raised on %r", observer, event)
