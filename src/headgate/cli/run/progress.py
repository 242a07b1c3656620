"""Telling people how it goes: a picture on a terminal, plain lines elsewhere, JSON for machines.

Rules of this room: looking changes nothing and everything goes to stderr. No colour carries a meaning alone.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...events import Admitted, Settled
from ...gate.clock import SYSTEM

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console, RenderableType

    from ...dispatch.dispatch import DispatchSnapshot
    from ...events import Event
    from .runner import Outcome, Runner

_OVER = 15.0  # seconds over which the use of a limit is measured
_FRAMES = 8  # a second
_LINES_EVERY = 5.0


class Meter:
    """What goes through a gate, by unit: an observer for it."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._recent: deque[tuple[float, Counter[str]]] = deque()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Admitted):
            self._sums["requests"] += 1
        elif isinstance(event, Settled):
            for unit, amount in event.actual.items():
                if unit != "requests":
                    self._sums[unit] += amount

    def rates(self) -> dict[str, float]:
        """Units a second, lately."""
        now = monotonic()
        recent = self._recent
        if not recent or now - recent[-1][0] >= 0.2:
            recent.append((now, self._sums.copy()))
        while len(recent) > 2 and now - recent[1][0] > _OVER:
            recent.popleft()
        then, sums = recent[0]
        elapsed = now - then
        if elapsed < 0.5:
            return {}
        return {unit: (total - sums[unit]) / elapsed for unit, total in self._sums.items()}


class Use(NamedTuple):
    """How much of one limit is used. `now` and `limit` are for `period`, e.g. a minute."""

    unit: str
    period: str
    now: float
    limit: int


class Look(NamedTuple):
    """One look at a run."""

    seconds: float
    total: int | None
    kept: int
    answered: int
    failed: int
    sent: int
    refused: int
    retried: int
    in_flight: int
    concurrency: int
    speed: float  # answers a second
    tokens: int
    tokens_per_minute: float
    cost: float | None
    left: float | None
    uses: tuple[Use, ...]
    waits: str
    stopping: bool

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.failed

    @property
    def share(self) -> float | None:
        return self.done / self.total if self.total else None


def look(runner: Runner, meter: Meter) -> Look:
    tally, now = runner.tally, runner.gate.snapshot()
    rates = meter.rates()
    speed, tokens = tally.speed()
    return Look(
        seconds=tally.seconds,
        total=tally.total,
        kept=tally.kept,
        answered=tally.answered,
        failed=tally.failed,
        sent=tally.sent,
        refused=tally.refused,
        retried=tally.retried,
        in_flight=now.in_flight or 0,
        concurrency=now.concurrency or 0,
        speed=speed,
        tokens=tally.tokens,
        tokens_per_minute=tokens * 60,
        cost=runner.spending.cost,
        left=tally.left(),
        uses=tuple(
            Use(rate.unit, rate.name.partition("/")[2], rates.get(rate.unit, 0.0) * rate.per, rate.limit)
            for rate in now.rates
        ),
        waits=why_it_waits(now, SYSTEM.seconds(), runner.trouble),
        stopping=runner.stopping,
    )


def why_it_waits(now: DispatchSnapshot, at: float, trouble: str = "") -> str:
    """In words, what the next job waits for; nothing if none does."""
    if now.binding is None:
        return ""
    left = None if now.next_at is None else max(0.0, now.next_at - at)
    if now.binding == "window":
        because = f" ({trouble})" if trouble else ""
        return f"told to slow down{because}: everybody waits {_soon(left or 0)}"
    if now.binding.endswith("concurrency"):
        return f"all {now.in_flight} places are taken: waiting for an answer"
    if now.binding == "bytes":
        return "enough bytes are under way: waiting for an answer"
    rate = next((rate for rate in now.rates if rate.name == now.binding), None)
    if left is None:  # a shared one, and the store has not said yet
        return f"{now.binding}: at the limit, which is shared"
    if left < 0.2 and rate is not None:
        return f"{now.binding}: at the limit"
    return f"{now.binding}: next slot in {_soon(left)}"


# -- the three ways to tell it


class Progress(Protocol):
    def tell(self, text: str) -> None:
        """Something happened that is worth a line."""

    def show(self, look: Look) -> None:
        """This is how it stands. Called often."""

    def end(self, look: Look, outcome: Outcome | None) -> None:
        """This is how it stood at last."""


class Silent:
    """Trouble only."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, look: Look) -> None:
        pass

    def end(self, look: Look, outcome: Outcome | None) -> None:
        pass


class Plain:
    """A line from time to time, for logs."""

    def __init__(self, out: TextIO, every: float = _LINES_EVERY) -> None:
        self._out = out
        self._every = every
        self._next = 0.0

    def tell(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, look: Look) -> None:
        now = monotonic()
        if now >= self._next:
            self._next = now + self._every
            if look.sent:
                self.tell(line_of(look))

    def end(self, look: Look, outcome: Outcome | None) -> None:  # noqa: ARG002 - it is told afterwards
        self.tell(line_of(look))


class Machine:
    """An object a line."""

    def __init__(self, out: TextIO, every: float = 1.0) -> None:
        self._out = out
        self._every = every
        self._next = 0.0

    def _write(self, event: str, facts: dict[str, Any]) -> None:
        print(json.dumps({"event": event, **facts}), file=self._out, flush=True)

    def tell(self, text: str) -> None:
        self._write("message", {"text": text})

    def show(self, look: Look) -> None:
        now = monotonic()
        if now >= self._next:
            self._next = now + self._every
            self._write("progress", facts_of(look))

    def end(self, look: Look, outcome: Outcome | None) -> None:
        facts = facts_of(look)
        if outcome is not None:
            facts |= {"stopped": outcome.stopped, "why": outcome.why or None}
        self._write("end", facts)


class Picture:
    """A few lines on a terminal that keep changing."""

    def __init__(self, out: TextIO, title: str) -> None:
        from rich.console import Console  # noqa: PLC0415 - only who has a terminal needs it
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(file=out)
        self._title = title
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def tell(self, text: str) -> None:
        self._console.print(text, style="yellow", highlight=False, markup=False)

    def show(self, look: Look) -> None:
        self._live.update(picture_of(look, self._title, self._console), refresh=True)

    def end(self, look: Look, outcome: Outcome | None) -> None:  # noqa: ARG002 - likewise
        self.show(look._replace(waits="", left=None))
        self._live.stop()


def progress_for(out: TextIO, title: str, *, as_json: bool = False, quiet: bool = False) -> Progress:
    """What suits where it goes."""
    if as_json:
        return Machine(out)
    if quiet:
        return Silent(out)
    return Picture(out, title) if out.isatty() else Plain(out)


# -- in words


def line_of(look: Look) -> str:
    share = f"{look.share:4.0%}" if look.share is not None else "   ?"
    total = "?" if look.total is None else f"{look.total:,}"
    parts = [
        f"{share}  {look.done:,}/{total}",
        f"{look.speed:.1f}/s",
        f"{look.tokens_per_minute:,.0f} tokens/min",
        f"{look.in_flight} in flight",
        f"{look.refused} × 429",
        f"{look.failed} failed",
    ]
    if look.left is not None and look.done != look.total:
        parts.append(f"{duration(look.left)} left")
    if look.waits:
        parts.append(look.waits)
    return "  ".join(parts)


def facts_of(look: Look) -> dict[str, Any]:
    facts = look._asdict()
    facts["done"] = look.done
    facts["uses"] = [use._asdict() for use in look.uses]
    return {name: round(fact, 3) if isinstance(fact, float) else fact for name, fact in facts.items()}


def duration(seconds: float) -> str:
    """As people say it.

    >>> duration(8.2), duration(95), duration(7_322)
    ('8 s', '1:35', '2:02:02')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _soon(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


# -- as a picture


def picture_of(look: Look, title: str, console: Console) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    width = max(16, min(console.width - 52, 48))
    stopping = "   stopping: waiting for what is under way" if look.stopping else ""
    head = Text.assemble((title, "bold"), (f"   {duration(look.seconds)}", "dim"), (stopping, "yellow"))

    bars = Table.grid(padding=(0, 2))
    bars.add_column(min_width=8, no_wrap=True)
    bars.add_column(width=width)
    bars.add_column(no_wrap=True)
    done = Text(f"{look.done:,}", "bold")
    if look.total is not None:
        left = "" if look.left is None else f"   {duration(look.left)} left"
        done = Text.assemble((f"{look.done:,} of {look.total:,}", "bold"), f"   {look.share or 0:.0%}{left}")
    bars.add_row(
        Text("jobs", style="bold"),
        ProgressBar(
            total=look.total or 1,
            completed=look.done if look.total else 0,
            width=width,
            complete_style="green",
            finished_style="green",
        ),
        done,
    )
    for use in look.uses:
        part = use.now / use.limit if use.limit else 0.0
        bars.add_row(
            Text(use.unit.replace("_", " "), style="dim"),
            ProgressBar(
                total=1, completed=min(1.0, part), width=width, complete_style="cyan", finished_style="cyan"
            ),
            Text.assemble(f"{use.now:,.0f} of {use.limit:,}", (f" a {use.period}   {part:.0%}", "dim")),
        )
    figures = Text()
    for name, value, style in (
        ("in flight", f"{look.in_flight}", ""),
        ("answers/s", f"{look.speed:.1f}", ""),
        ("tokens/min", f"{look.tokens_per_minute:,.0f}", ""),
        ("429s", f"{look.refused}", "bold yellow" if look.refused else ""),
        ("failed", f"{look.failed}", "bold red" if look.failed else ""),
        *((("kept", f"{look.kept:,}", ""),) if look.kept else ()),
        *((("cost", f"{look.cost:,.4f}", ""),) if look.cost is not None else ()),
    ):
        figures.append(f"{name} ", "dim").append(value, style).append("   ")
    waits = Text(look.waits or " ", style="italic dim", no_wrap=True, overflow="ellipsis")
    return Group(head, bars, figures, waits)
