"""How a run is shown on stderr: a picture on a terminal, plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from .figures import RunView

_LINE_EVERY = 5.0  # seconds
_OBJECT_EVERY = 1.0


class Progress:
    """Shows messages and nothing else, for --quiet; its subclasses also show how the run stands."""

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

    _next = 0.0  # in seconds of the run

    def show(self, view: RunView) -> None:
        if view.tally.seconds >= self._next:
            self._next = view.tally.seconds + _LINE_EVERY
            if view.tally.sent:
                self.tell(view.line())

    def end(self, view: RunView, ending: Mapping[str, Any]) -> None:  # noqa: ARG002 - told in words afterwards
        self.tell(view.line())


class Machine(Progress):
    """An object a line, for programs."""

    _next = 0.0  # in seconds of the run

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
