"""How a run goes: its figures, and how they are shown on stderr.

On a terminal they are a picture, elsewhere plain lines, and for programs JSON.
"""

import json
from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self, TextIO

from ...dispatch.snapshot import DispatchSnapshot
from ...typing import Clock
from ...words import duration, soon

_JOBS_OVER = 30.0  # seconds over which the speed of the run is measured
_FIRST_ESTIMATE = 2.0  # seconds: before that, the speed is that of a few jobs
LONG_WAIT = 5.0  # seconds: a wait whose end is told
_LINE_EVERY, _OBJECT_EVERY = 5.0, 1.0  # seconds
_COUNTERS = ("seconds", "total", "done", "kept", "answered", "failed", "sent", "refused", "retried", "tokens")


class Speed:
    """How fast counters grow: units a second, over the last `over` seconds."""

    def __init__(self, clock: Clock, over: float) -> None:
        self._clock = clock
        self._over = over
        self._recent: deque[tuple[float, Mapping[str, int]]] = deque()
        self._looked_at = clock.seconds()

    def of(self, counters: Mapping[str, int], *, paused: bool = False) -> Mapping[str, float]:
        """The speed of each counter; nothing before half a second has passed.

        While it is paused, no time passes.
        """
        now = self._clock.seconds()
        recent = self._recent
        if paused:
            since = now - self._looked_at
            self._recent = recent = deque((then + since, before) for then, before in recent)
        self._looked_at = now
        if not recent or now - recent[-1][0] >= 0.2:
            recent.append((now, dict(counters)))
        while len(recent) > 2 and now - recent[1][0] > self._over:
            recent.popleft()
        then, before = recent[0]
        elapsed = now - then
        if elapsed < 0.5:
            return {}
        return {unit: (count - before.get(unit, 0)) / elapsed for unit, count in counters.items()}


class Tally:
    """The counters of a run. `total` is None until the number of jobs is known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._speed = Speed(clock, _JOBS_OVER)
        self.began = clock.seconds()
        self._total: int | None = None
        self.read = 0  # lines, bad ones included
        self.kept = 0  # jobs with an answer of an earlier run
        self.answered = 0
        self.failures: Counter[str] = Counter()  # by their codes
        self.sent = 0  # requests
        self.refused = 0  # requests answered with 429 or the like
        self.retried = 0
        self.input_tokens = self.output_tokens = 0

    @property
    def total(self) -> int | None:
        """The number of jobs, None until it is known; a file may have grown since it was counted."""
        return None if self._total is None else max(self._total, self.read)

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def seconds(self) -> float:
        return self._clock.seconds() - self.began

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.failed

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def speed(self, *, paused: bool = False) -> tuple[float, float]:
        """Jobs and tokens a second, lately; not counting the time while all jobs had to wait."""
        speed = self._speed.of({"jobs": self.answered + self.failed, "tokens": self.tokens}, paused=paused)
        return speed.get("jobs", 0.0), speed.get("tokens", 0.0)

    def left(self, speed: float) -> float | None:
        """Seconds to go at `speed` jobs a second; None if that cannot be told, also in the beginning."""
        if self.total is None or speed <= 0 or self.seconds < _FIRST_ESTIMATE:
            return None
        return max(0, self.total - self.done) / speed


class Use(NamedTuple):
    """How much of one limit is used. `now` and `limit` are for `period`, e.g. a minute.

    A burst may go beyond the limit for a moment; then it counts as used up.
    """

    unit: str
    period: str
    now: float
    limit: int


class RunView(NamedTuple):
    """How a run stands. `left` is the time to go in seconds, `waits` what the next job waits for."""

    tally: Tally
    in_flight: int
    concurrency: int
    speed: float  # answers a second
    tokens_per_minute: float
    cost: float | None
    left: float | None
    uses: tuple[Use, ...]
    waits: str
    stopping: bool

    def at_the_end(self) -> Self:
        """The same, where nothing is under way or waits, and no time is left."""
        return self._replace(waits="", left=None, stopping=False)

    @property
    def share(self) -> float | None:
        return self.tally.done / self.tally.total if self.tally.total else None

    @property
    def counts_tokens(self) -> bool:
        """Whether a limit counts tokens. Its figure, which includes reserved tokens, is shown alone."""
        return any(use.unit == "tokens" for use in self.uses)

    def facts(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        counters = {name: getattr(self.tally, name) for name in _COUNTERS}
        facts = {**counters, **self._asdict(), "uses": [use._asdict() for use in self.uses]}
        del facts["tally"]
        return {name: round(fact, 3) if isinstance(fact, float) else fact for name, fact in facts.items()}

    def line(self) -> str:
        """The same in one line."""
        tally = self.tally
        share = "?" if self.share is None else percent(self.share)
        total = "?" if tally.total is None else f"{tally.total:,}"
        parts = [
            f"{share:>4}  {tally.done:,}/{total}",
            f"{self.speed:.1f}/s",
            *([] if self.counts_tokens else [f"{self.tokens_per_minute:,.0f} tokens/min"]),
            f"{self.in_flight} in flight",
            f"{tally.refused} × 429",
            f"{tally.failed} failed",
        ]
        if self.left is not None and tally.done != tally.total:
            parts.append(f"{duration(max(1, self.left))} left")
        if self.waits:
            parts.append(self.waits)
        return "  ".join(parts)


def percent(part: float) -> str:
    """A part in whole percent, rounded down: 100 % is all of it.

    >>> percent(0.29), percent(0.996), percent(1)
    ('29%', '99%', '100%')
    """
    return f"{int(part * 100 + 1e-9)}%"


def until(seconds: float, now: datetime | None = None) -> str:
    """The time of day after these seconds, with the date if it is another day.

    >>> until(90, datetime(2026, 3, 1, 23, 58, 45)), until(60, datetime(2026, 3, 1, 12))
    ('2026-03-02 00:00:15', '12:01:00')
    """
    began = datetime.now().astimezone() if now is None else now
    then = began + timedelta(seconds=seconds)
    return f"{then:%H:%M:%S}" if then.date() == began.date() else f"{then:%Y-%m-%d %H:%M:%S}"


def why_it_waits(now: DispatchSnapshot, at: float, trouble: str = "told to slow down") -> str:
    """What the next job waits for, in words; empty if no job waits."""
    if now.binding is None:
        return ""
    left = None if now.next_at is None else max(0.0, now.next_at - at)
    if now.binding == "window":
        end = f", until {until(left)}" if left is not None and left >= LONG_WAIT else ""
        return f"all jobs wait {soon(left or 0)}{end}: {trouble}"
    if now.binding.endswith("concurrency"):
        return f"all {now.in_flight} places are taken: waiting for an answer"
    if now.binding == "bytes":
        return "enough bytes are in flight: waiting for an answer"
    if left is None:  # the rate is shared, and the store has not answered yet
        return f"{now.binding}: at the limit, which is shared"
    if left < 0.2 and any(rate.name == now.binding for rate in now.rates):
        return f"{now.binding}: at the limit"
    return f"{now.binding}: next slot in {soon(left)}"


# -- showing them


class Progress:
    """Shows messages and nothing else, for --quiet; its subclasses also show how the run stands."""

    _next = 0.0  # when a subclass shows that again, in seconds of the run

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, text: str) -> None:
        """Show one line of text now."""
        print(text, file=self._out, flush=True)

    def show(self, view: RunView) -> None:
        """Show how the run stands. Called often."""

    def end(self, view: RunView, ending: Mapping[str, Any]) -> None:
        """Show how the run ended; `ending` is empty after a crash."""


class Plain(Progress):
    """A line every few seconds, for logs."""

    def show(self, view: RunView) -> None:
        if view.tally.seconds >= self._next:
            self._next = view.tally.seconds + _LINE_EVERY
            if view.tally.sent:
                self.tell(view.line())

    def end(self, view: RunView, ending: Mapping[str, Any]) -> None:  # noqa: ARG002 - told in words afterwards
        self.tell(view.line())


class Machine(Progress):
    """An object a line, for programs."""

    def _write(self, event: str, facts: Mapping[str, Any]) -> None:
        print(json.dumps({"event": event, **facts}), file=self._out, flush=True)

    def tell(self, text: str) -> None:
        self._write("message", {"text": text})

    def show(self, view: RunView) -> None:
        if view.tally.seconds >= self._next:
            self._next = view.tally.seconds + _OBJECT_EVERY
            self._write("progress", view.facts())

    def end(self, view: RunView, ending: Mapping[str, Any]) -> None:
        self._write("end", {**view.facts(), **ending})


def progress_for(out: TextIO, title: str, *, as_json: bool = False, quiet: bool = False) -> Progress:
    """The way of showing progress that suits `out`."""
    if as_json:
        return Machine(out)
    if quiet:
        return Progress(out)
    if not out.isatty():
        return Plain(out)
    from ..picture import RunPicture  # noqa: PLC0415 - loads rich, which only a terminal needs

    return RunPicture(out, title)
