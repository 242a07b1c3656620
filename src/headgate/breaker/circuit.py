"""Pure. The circuit as a transition table.

    closed     → open        too many calls failed in a row, or too many of a window failed or were slow
    open       → half-open   its time is up, and a call arrives
    half-open  → closed      a probe succeeded
    half-open  → open        a probe failed

A call carries the generation in which it was let in, and its outcome counts in that generation only.
A probe is a lease: one that does not end in time makes room for another.
"""

from __future__ import annotations

from collections import deque

from ..arguments import SECOND
from ..events import CircuitClosed, CircuitOpened, CircuitProbing, Event
from ..hints import Any, Callable, Hashable
from ..light import NamedTuple

CLOSED, OPEN, HALF_OPEN = 0, 1, 2
_EVENTS = {CLOSED: CircuitClosed, OPEN: CircuitOpened, HALF_OPEN: CircuitProbing}

# A window is counted in this many slots. The calls of the oldest slot leave the window together.
_SLOTS = 10

# Failures this old no longer matter, if no call was made since. Ten recovery times if those are longer.
FORGET_AFTER = 600 * SECOND


class Probe:
    """The right of one call to find out whether the far side works again."""

    __slots__ = ("generation",)

    def __init__(self, generation: int) -> None:
        self.generation = generation


class CircuitSettings(NamedTuple):
    """When a circuit opens, and for how long. Times are nanoseconds, rates are ratios of integers.

    `threshold` failures in a row open it, or `failure_rate` of at least `minimum` calls within `window`
    failing, or `slow_rate` of them being slow. It stays open for `recovery`, twice as long each time a
    probe fails, up to `max_recovery`, and longer by up to `jitter` of that. Then `probes` calls are let
    through at a time, and each has `lease` to end.
    """

    threshold: int | None
    recovery: int
    max_recovery: int
    jitter: float
    probes: int
    lease: int
    failure_rate: tuple[int, int] | None
    slow_rate: tuple[int, int] | None
    window: int
    minimum: int


class Recent:
    """How many calls ended within the window, and how many of them failed or were slow."""

    def __init__(self, window: int) -> None:
        self._slot_ns = -(-window // _SLOTS)
        self._slots = [(0, 0, 0)] * _SLOTS
        self._turn: int | None = None  # the number of the slot being filled
        self.calls = self.failed = self.slow = 0

    def add(self, failed: bool, slow: bool, now: int) -> None:
        if now // self._slot_ns != self._turn:
            self.move_to(now)
        assert self._turn is not None
        i = self._turn % _SLOTS
        calls, failures, slows = self._slots[i]
        self._slots[i] = (calls + 1, failures + failed, slows + slow)
        self.calls += 1
        self.failed += failed
        self.slow += slow

    def move_to(self, now: int) -> None:
        """Forget what has left the window. Time that runs backwards forgets nothing."""
        turn = now // self._slot_ns
        if self._turn is None:
            self._turn = turn
        for passed in range(self._turn + 1, min(turn, self._turn + _SLOTS) + 1):
            i = passed % _SLOTS
            calls, failures, slows = self._slots[i]
            self._slots[i] = (0, 0, 0)
            self.calls -= calls
            self.failed -= failures
            self.slow -= slows
        self._turn = max(self._turn, turn)


class Circuit:
    """Decides whether a call may go, and what its outcome changes."""

    def __init__(self, settings: CircuitSettings) -> None:
        self.settings = settings
        self.state = CLOSED
        self.generation = 0
        self.failures = 0  # in a row
        self.reason = ""  # why it is open
        counts_calls = settings.failure_rate is not None or settings.slow_rate is not None
        self._recent = Recent(settings.window) if counts_calls else None
        self._until = 0  # when an open circuit lets a probe through
        self._touched = 0  # when a call last failed or the state last changed
        self._reopened = 0  # how many probes have failed since it was last closed
        self._probes: dict[Probe, int] = {}  # running probes, and when the lease of each ends

    # -- may it go?

    def enter(self, now: int) -> int | Probe | None:
        """Let a call in: what to hand in again with its outcome. None: the call is refused."""
        if self.state == CLOSED:
            return self.generation
        if not self.would_admit(now):
            return None
        self.state = HALF_OPEN
        self._probes = {probe: due for probe, due in self._probes.items() if due > now}
        probe = Probe(self.generation)
        self._probes[probe] = now + self.settings.lease
        return probe

    def would_admit(self, now: int) -> bool:
        """Whether a call could go. Changes nothing."""
        if self.state == OPEN:
            return now >= self._until
        return self.state == CLOSED or self._outstanding(now) < self.settings.probes

    def want_probe(self, now: int) -> None:
        """A call came that may not go: a shared circuit asks for a probe, a local one has its own."""

    def opens_in(self, now: int) -> int:
        """How long until a call could go, if no outcome changes the state before."""
        if self.state == OPEN:
            return max(0, self._until - now)
        if self.state == CLOSED or self._outstanding(now) < self.settings.probes:
            return 0
        return min(due for due in self._probes.values() if due > now) - now

    def state_at(self, now: int) -> int:
        """The state as callers see it: an open circuit whose time is up is half-open, called or not."""
        return HALF_OPEN if self.state == OPEN and now >= self._until else self.state

    def _outstanding(self, now: int) -> int:
        return sum(due > now for due in self._probes.values())

    # -- outcomes

    def succeeded(self, entry: int | Probe, slow: bool, now: int, draw: float) -> bool:
        """The call succeeded. True: that changed the state."""
        if isinstance(entry, Probe):
            if not self._gave_back(entry):
                return False
            if slow and self.settings.slow_rate is not None:
                self._open("a probe succeeded, but too slowly", now, draw)
            else:
                self.close()
            return True
        if self.state != CLOSED or entry != self.generation:
            return False
        self.failures = 0
        return self._count(False, slow, now, draw)

    def failed(self, entry: int | Probe, slow: bool, now: int, draw: float) -> bool:
        """The call failed in a way that counts. True: that changed the state."""
        if isinstance(entry, Probe):
            if not self._gave_back(entry):
                return False
            self._open("a probe failed", now, draw)
            return True
        if self.state != CLOSED or entry != self.generation:
            return False
        self.failures += 1
        self._touched = now
        threshold = self.settings.threshold
        if threshold is not None and self.failures >= threshold:
            many = "call" if self.failures == 1 else "calls in a row"
            self._open(f"{self.failures} {many} failed", now, draw)
            return True
        return self._count(True, slow, now, draw)

    def ignored(self, entry: int | Probe) -> None:
        """The outcome says nothing about the far side, or the call was cancelled: it counts as not made."""
        if isinstance(entry, Probe):
            self._gave_back(entry)

    def _gave_back(self, probe: Probe) -> bool:
        """Take a probe back. True: its outcome decides how the circuit goes on."""
        self._probes.pop(probe, None)
        return self.state == HALF_OPEN and probe.generation == self.generation

    def _count(self, failed: bool, slow: bool, now: int, draw: float) -> bool:
        recent, settings = self._recent, self.settings
        if recent is None:
            return False
        recent.add(failed, slow, now)
        if not (failed or slow) or recent.calls < settings.minimum:
            return False  # a call that succeeds in time raises neither rate
        for part, rate, what in (
            (recent.failed, settings.failure_rate, "failed"),
            (recent.slow, settings.slow_rate, "were slow"),
        ):
            if rate is not None and part * rate[1] >= rate[0] * recent.calls:
                span = f"{settings.window / 1e9:g} s"
                self._open(f"{part} of {recent.calls} calls within {span} {what}", now, draw)
                return True
        return False

    # -- changes of state

    def _open(self, reason: str, now: int, draw: float) -> None:
        self._reopened = self._reopened + 1 if self.state == HALF_OPEN else 0
        lasting = min(self.settings.recovery << min(self._reopened, 62), self.settings.max_recovery)
        self._forget()
        self.state = OPEN
        self._touched = now
        self.reason = reason
        self._until = now + lasting + int(lasting * self.settings.jitter * draw)

    def close(self) -> None:
        """Close the circuit, and forget what was counted."""
        self._forget()
        self.state = CLOSED
        self.reason = ""

    def reset(self) -> None:
        """Close the circuit by hand, whatever its state."""
        self.close()

    def release_probes(self) -> None:
        """In a forked child: the calls that hold the probes are the parent's."""
        self._probes = {}

    def pristine(self, now: int) -> bool:
        """Whether the circuit is as good as new: no failure counts, or none since FORGET_AFTER."""
        if self._recent is not None:
            self._recent.move_to(now)
            if self._recent.calls:
                return False
        if self.state == CLOSED and self.failures == 0:
            return True
        return now - self._touched > max(FORGET_AFTER, 10 * self.settings.max_recovery)

    def _forget(self) -> None:
        self.generation += 1
        self.failures = 0
        self._probes = {}
        if self._recent is not None:
            self._recent = Recent(self.settings.window)


class Counter:
    """A circuit, the failure that opened it, and the events that the observer is yet to be told.

    It does not know the breaker: a breaker that is no longer used goes without waiting for a collector.
    """

    def __init__(self, circuit: Circuit, key: Hashable) -> None:
        self.circuit = circuit
        self._key = key
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

    def note(self, state: int, now: int) -> None:
        """Have the observer told that the circuit is in this state now."""
        circuit = self.circuit
        facts: dict[str, Any] = {"key": self._key, "at": now / SECOND, "generation": circuit.generation}
        if state == OPEN:
            facts |= {
                "duration": circuit.opens_in(now) / SECOND,
                "reason": circuit.reason,
                "error": self.cause,
            }
        self.events.append(_EVENTS[state](**facts))
