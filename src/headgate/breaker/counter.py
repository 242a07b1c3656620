"""What the lock of a circuit breaker guards."""

from __future__ import annotations

from collections import deque

from ..arguments import SECOND
from ..events import CircuitClosed, CircuitOpened, CircuitProbing, Event
from ..hints import Any, Callable, Hashable
from .circuit import CLOSED, HALF_OPEN, OPEN, Circuit, Probe

_EVENTS = {CLOSED: CircuitClosed, OPEN: CircuitOpened, HALF_OPEN: CircuitProbing}


class Counter:
    """A circuit, the failure that opened it, and the events that the observer is yet to be told.

    It does not know the breaker: a breaker that is no longer used goes without waiting for a collector.
    """

    __slots__ = ("__weakref__", "_key", "_observed", "cause", "circuit", "events")

    def __init__(self, circuit: Circuit, key: Hashable, *, observed: bool) -> None:
        self.circuit = circuit
        self._key = key
        self._observed = observed
        self.cause: BaseException | None = None
        self.events: deque[Event] = deque()

    def enter(self, now: int) -> int | Probe | None:
        """Let a call in. None: it is refused."""
        was = self.circuit.state
        entry = self.circuit.enter(now)
        if was == OPEN and entry is not None:
            self.note(HALF_OPEN, now)
        return entry

    def count(self, outcome: list[Any], _now: int) -> None:
        """Count one outcome: entry, what became of it, error, whether it was slow, when, a random number."""
        if not outcome:
            return  # counted before an interrupt
        entry, what, error, slow, now, draw = outcome
        outcome.clear()
        circuit = self.circuit
        if what == "ignored":
            circuit.ignored(entry)
        elif (circuit.succeeded if what == "succeeded" else circuit.failed)(entry, slow, now, draw):
            self.cause = None if circuit.state == CLOSED else error
            self.note(circuit.state, now)

    def follow(self, news: Callable[[Any, int], bool | None], now: int) -> None:
        """Change the circuit as a store says. True from `news`: that changed its state."""
        if news(self.circuit, now):
            self.cause = None
            self.note(self.circuit.state, now)

    def reset(self, now: int) -> None:
        """Close the circuit by hand."""
        was = self.circuit.state
        self.circuit.reset()
        self.cause = None
        if was != CLOSED:
            self.note(CLOSED, now)

    def why_refused(self, now: int) -> tuple[int, str, BaseException | None]:
        """In how many nanoseconds another call could go, why none may, and the failure behind it."""
        return self.circuit.opens_in(now), self.circuit.reason or "it has just closed", self.cause

    def note(self, state: int, now: int) -> None:
        """Have the observer told that the circuit is in this state now."""
        if not self._observed:
            return
        circuit = self.circuit
        facts: dict[str, Any] = {"key": self._key, "at": now / SECOND, "generation": circuit.generation}
        if state == OPEN:
            facts |= {
                "duration": circuit.opens_in(now) / SECOND,
                "reason": circuit.reason,
                "error": self.cause,
            }
        self.events.append(_EVENTS[state](**facts))
