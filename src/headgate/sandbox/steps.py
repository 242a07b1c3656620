"""Pure. What happens to one request, as steps that a server or a test in virtual time carries out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from .styles.values import Pairs


@dataclass(slots=True)
class Pause:
    """Wait until that moment, in nanoseconds of the clock."""

    until: int


@dataclass(slots=True)
class Head:
    """Send status and headers. Without a length, the body comes in pieces."""

    status: int
    headers: Pairs
    length: int | None


@dataclass(slots=True)
class Data:
    """Send a piece of the body."""

    data: bytes


@dataclass(slots=True)
class Cut:
    """End the connection here: *reset* it, or merely close it."""

    reset: bool


Step: TypeAlias = Pause | Head | Data | Cut
Steps: TypeAlias = Generator[Step, int, None]


class Scenario:
    """The steps of one request. Ask for steps until there are none, then close it, whatever happened."""

    def __init__(self, steps: Steps, on_close: Callable[[bool], None] | None = None) -> None:
        self._steps = steps
        self._on_close = on_close
        self._begun = False
        self._finished = False  # all steps have been taken

    def step(self, now: int) -> Step | None:
        """The next step; None when there is no more."""
        try:
            step = self._steps.send(now) if self._begun else next(self._steps)
        except StopIteration:
            self._finished = True
            return None
        self._begun = True
        self._finished = isinstance(step, Cut)
        return step

    def close(self) -> None:
        """End it, because the last byte is sent or because the client has left."""
        self._steps.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self._finished)
