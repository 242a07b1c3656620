"""Showing how a run goes, on stderr: a picture on a terminal, plain lines elsewhere, JSON for programs.

No colour carries a meaning alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from ...words import duration

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console, RenderableType

    from .outcome import Outcome
    from .view import RunView

_LINE_EVERY = 5.0  # seconds
_OBJECT_EVERY = 1.0


class Progress(Protocol):
    def tell(self, text: str) -> None:
        """Show one line of text now."""

    def show(self, view: RunView) -> None:
        """Show how the run stands. Called often."""

    def end(self, view: RunView, outcome: Outcome | None) -> None:
        """Show how the run ended; `outcome` is None after a crash."""


class Silent:
    """Shows trouble only."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, view: RunView) -> None:
        pass

    def end(self, view: RunView, outcome: Outcome | None) -> None:
        pass


class Plain(Silent):
    """A line every few seconds, for logs."""

    _next = 0.0  # in seconds of the run

    def show(self, view: RunView) -> None:
        if view.seconds >= self._next:
            self._next = view.seconds + _LINE_EVERY
            if view.sent:
                self.tell(view.line())

    def end(self, view: RunView, outcome: Outcome | None) -> None:  # noqa: ARG002 - told in words afterwards
        self.tell(view.line())


class Machine:
    """An object a line, for programs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next = 0.0  # in seconds of the run

    def _write(self, event: str, facts: dict[str, Any]) -> None:
        print(json.dumps({"event": event, **facts}), file=self._out, flush=True)

    def tell(self, text: str) -> None:
        self._write("message", {"text": text})

    def show(self, view: RunView) -> None:
        if view.seconds >= self._next:
            self._next = view.seconds + _OBJECT_EVERY
            self._write("progress", view.facts())

    def end(self, view: RunView, outcome: Outcome | None) -> None:
        facts = view.facts()
        if outcome is not None:
            stop = outcome.stop
            facts |= {"stopped": stop and stop.reason, "why": (stop and stop.why) or None}
        self._write("end", facts)


class Picture:
    """A few lines on a terminal that keep changing."""

    def __init__(self, out: TextIO, title: str) -> None:
        from rich.console import Console  # noqa: PLC0415 - needed on a terminal only
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(file=out)
        self._title = title
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def tell(self, text: str) -> None:
        self._console.print(text, style="yellow", highlight=False, markup=False)

    def show(self, view: RunView) -> None:
        self._live.update(_picture_of(view, self._title, self._console), refresh=True)

    def end(self, view: RunView, outcome: Outcome | None) -> None:  # noqa: ARG002 - told in words afterwards
        self.show(view._replace(waits="", left=None))
        self._live.stop()


def progress_for(out: TextIO, title: str, *, as_json: bool = False, quiet: bool = False) -> Progress:
    """The way of showing progress that suits `out`."""
    if as_json:
        return Machine(out)
    if quiet:
        return Silent(out)
    return Picture(out, title) if out.isatty() else Plain(out)


def _picture_of(view: RunView, title: str, console: Console) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from ..bars import Bars  # noqa: PLC0415

    stopping = "   stopping: waiting for what is in flight" if view.stopping else ""
    head = Text.assemble((title, "bold"), (f"   {duration(view.seconds)}", "dim"), (stopping, "yellow"))
    bars = Bars(max(16, min(console.width - 52, 48)))
    done = Text(f"{view.done:,}", "bold")
    if view.total is not None:
        left = "" if view.left is None else f"   {duration(view.left)} left"
        done = Text.assemble((f"{view.done:,} of {view.total:,}", "bold"), f"   {view.share or 0:.0%}{left}")
    bars.add(Text("jobs", "bold"), view.share or 0, done, "green")
    for use in view.uses:
        part = use.now / use.limit if use.limit else 0.0
        words = Text.assemble(f"{use.now:,.0f} of {use.limit:,}", (f" a {use.period}   {part:.0%}", "dim"))
        bars.add(Text(use.unit.replace("_", " "), "dim"), part, words, "cyan")
    figures = Text()
    for name, value, style in (
        ("in flight", f"{view.in_flight}", ""),
        ("answers/s", f"{view.speed:.1f}", ""),
        ("tokens/min", f"{view.tokens_per_minute:,.0f}", ""),
        ("429s", f"{view.refused}", "bold yellow" if view.refused else ""),
        ("failed", f"{view.failed}", "bold red" if view.failed else ""),
        *((("kept", f"{view.kept:,}", ""),) if view.kept else ()),
        *((("cost", f"{view.cost:,.4f}", ""),) if view.cost is not None else ()),
    ):
        figures.append(f"{name} ", "dim").append(value, style).append("   ")
    waits = Text(view.waits or " ", style="italic dim", no_wrap=True, overflow="ellipsis")
    return Group(head, bars.table, figures, waits)
