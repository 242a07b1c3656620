"""How far a run has come, in figures, and how fast it goes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from ...events import Admitted, Event, Settled
from ...typing import Clock

_JOBS_OVER = 30.0  # seconds over which the speed of the run is measured
_LIMITS_OVER = 15.0  # seconds over which the use of a limit is measured


class Speed:
    """How fast counters grow: units a second, over the last `over` seconds."""

    def __init__(self, clock: Clock, over: float) -> None:
        self._clock = clock
        self._over = over
        self._recent: deque[tuple[float, Mapping[str, int]]] = deque()

    def of(self, counters: Mapping[str, int]) -> Mapping[str, float]:
        """The speed of each counter; nothing before half a second has passed."""
        now = self._clock.seconds()
        recent = self._recent
        if not recent or now - recent[-1][0] >= 0.2:
            recent.append((now, dict(counters)))
        while len(recent) > 2 and now - recent[1][0] > self._over:
            recent.popleft()
        then, before = recent[0]
        elapsed = now - then
        if elapsed < 0.5:
            return {}
        return {unit: (count - before.get(unit, 0)) / elapsed for unit, count in counters.items()}


class Meter:
    """An observer for a gate that measures how much of each unit goes through it."""

    def __init__(self, clock: Clock) -> None:
        self._sums: Counter[str] = Counter()
        self._speed = Speed(clock, _LIMITS_OVER)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Admitted):
            self._sums["requests"] += 1
        elif isinstance(event, Settled):
            for unit, amount in event.actual.items():
                if unit != "requests":
                    self._sums[unit] += amount

    def rates(self) -> Mapping[str, float]:
        """Units a second, lately."""
        return self._speed.of(self._sums)


class Tally:
    """The counters of a run. `total` is None until the number of jobs is known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._speed = Speed(clock, _JOBS_OVER)
        self.began = clock.seconds()
        self.total: int | None = None
        self.read = 0  # lines, bad ones included
        self.kept = 0  # jobs with an answer of an earlier run
        self.answered = 0
        self.failed = 0
        self.sent = 0  # requests
        self.refused = 0  # requests answered with 429 or the like
        self.retried = 0
        self.input_tokens = 0
        self.output_tokens = 0

    @property
    def seconds(self) -> float:
        return self._clock.seconds() - self.began

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.failed

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def speed(self) -> tuple[float, float]:
        """Jobs and tokens a second, lately."""
        speed = self._speed.of({"jobs": self.answered + self.failed, "tokens": self.tokens})
        return speed.get("jobs", 0.0), speed.get("tokens", 0.0)

    def left(self, speed: float) -> float | None:
        """Seconds to go at `speed` jobs a second; None if that cannot be told."""
        if self.total is None or speed <= 0:
            return None
        return max(0, self.total - self.done) / speed
