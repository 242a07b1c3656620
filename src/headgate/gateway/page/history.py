"""Pure. What happened at the gates in the last hour, in steps of ten seconds, made of their events."""

from __future__ import annotations

from collections import deque

from ...events import Admitted, Event, ResponseObserved, Settled, Waiting

STEP = 10  # seconds
STEPS = 360
_MOST_WAITS = 256  # of a step, beyond which every second one is forgotten


class Step:
    """Ten seconds: how many calls were admitted and refused by the API, their waits, the most in flight."""

    __slots__ = ("admitted", "in_flight", "number", "refused", "waits")

    def __init__(self, number: int, in_flight: int) -> None:
        self.number = number
        self.admitted = 0
        self.refused = 0
        self.in_flight = in_flight
        self.waits: list[float] = []

    def wait(self, part: float) -> float:
        """How long the calls waited that waited longer than `part` of all; 0 if there were none."""
        waits = sorted(self.waits)
        return waits[min(len(waits) - 1, int(part * len(waits)))] if waits else 0.0


class History:
    """The steps of the last hour, and since when each gate has had callers waiting."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._in_flight = 0
        self._limited: dict[str, float] = {}

    def hear(self, event: Event) -> None:
        """An observer of gates."""
        if isinstance(event, Admitted):
            self._in_flight += 1
            step = self.step(event.at)
            step.admitted += 1
            step.in_flight = max(step.in_flight, self._in_flight)
            step.waits.append(event.waited)
            if len(step.waits) > _MOST_WAITS:
                del step.waits[::2]
        elif isinstance(event, Settled):
            self._in_flight = max(0, self._in_flight - 1)
        elif isinstance(event, ResponseObserved):
            if event.reason != "ok":
                self.step(event.at).refused += 1
        elif isinstance(event, Waiting):
            key = str(event.key)
            if event.position == 1 or key not in self._limited:
                self._limited[key] = event.at

    def limited_since(self, key: str) -> float | None:
        """When the first caller of the present line of a gate began to wait."""
        return self._limited.get(key)

    def count_in_flight(self, in_flight: int) -> None:
        """How many calls are in flight, by the gates themselves."""
        self._in_flight = in_flight

    def step(self, at: float) -> Step:
        """The step of that moment; it begins if it is newer than the last."""
        number = int(at // STEP)
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(Step(number, self._in_flight))
        return self._steps[-1]

    def series(self, now: float) -> dict[str, list[float]]:
        """A value for each step of the last hour, the oldest first; those of calls are per minute."""
        last = int(now // STEP)
        steps = {step.number: step for step in self._steps}
        rows: dict[str, list[float]] = {"admitted": [], "refused": [], "p50": [], "p95": [], "in_flight": []}
        for number in range(last - STEPS + 1, last + 1):
            step = steps.get(number)
            rows["admitted"].append(0 if step is None else step.admitted * 60 // STEP)
            rows["refused"].append(0 if step is None else step.refused * 60 // STEP)
            rows["p50"].append(0 if step is None else round(step.wait(0.5), 3))
            rows["p95"].append(0 if step is None else round(step.wait(0.95), 3))
            rows["in_flight"].append(0 if step is None else step.in_flight)
        rows["in_flight"][-1] = max(rows["in_flight"][-1], self._in_flight)
        return rows
