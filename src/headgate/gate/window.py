"""Pure. Until when nobody goes, and how the crowd is let back in.

Rules of this room: an end only moves later, until it is cleared; at the end itself the window
is over. None means there never was one: no moment of time does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class Window:
    """One deadline that everyone who calls the same API shares.

    `generation` grows with every signal that moved the end. `episode` grows only when a
    signal answers a call that was made after the last episode began: a hundred refusals of
    one burst are one episode.
    """

    __slots__ = ("before", "ceiling", "episode", "generation", "opened_at", "unended", "until")

    def __init__(self, ceiling: int | None = None) -> None:
        self.ceiling = ceiling
        self.until: int | None = None
        self.opened_at: int | None = None
        self.before: int | None = None  # the end of the episode before this one
        self.generation = 0
        self.episode = 0
        self.unended = False  # a window ran, or runs, whose end nobody has noticed yet

    def closed(self, now: int) -> bool:
        """Is the window on: should nobody go?"""
        return self.until is not None and now < self.until

    def set(
        self, duration: int, now: int, *, sent_at: int | None = None
    ) -> Literal["set", "extended"] | None:
        """Nobody goes for so long from now. Answers what that changed, None for nothing."""
        if self.ceiling is not None:
            duration = min(duration, self.ceiling)
        was_closed = self.closed(now)
        if self.opened_at is None or (sent_at > self.opened_at if sent_at is not None else not was_closed):
            self.episode += 1
            self.opened_at = now
            self.before = self.until
        end = now + duration
        if self.until is not None and end <= self.until:
            return None
        self.until = end
        self.generation += 1
        self.unended = end > now
        return "extended" if was_closed else "set"

    def clear(self, now: int, *, generation: int | None = None) -> bool:
        """End the window now, unless a newer signal came than the one of that generation."""
        if not self.closed(now) or (generation is not None and generation != self.generation):
            return False
        self.until = now
        self.unended = False
        return True

    def ended(self, now: int) -> bool:
        """Has the window run out since this was last asked? True once a window."""
        if not self.unended or self.closed(now):
            return False
        self.unended = False
        return True


class Reentry:
    """Lets those who waited for a window back in one by one, over `spread` after its end.

    Evenly, from the end on and never before it; whoever joins meanwhile goes last.
    """

    __slots__ = ("_crowd", "_next", "_spread", "_window", "_window_end")

    def __init__(self, window: Window, spread: int) -> None:
        self._window = window
        self._spread = spread
        self._window_end: int | None = None  # the end whose crowd is being let in
        self._crowd = 1
        self._next = 0  # how many of them have gone

    def earliest(self, now: int, waiting: int) -> int:
        """When may the first in line go? At or before now: at once."""
        until = self._window.until
        if until is None:
            return now
        if now < until:
            return until
        if until != self._window_end:
            self._window_end, self._crowd, self._next = until, max(1, waiting), 0
        if now >= until + self._spread:
            return now
        return until + min(self._spread, self._spread * self._next // self._crowd)

    def take(self) -> None:
        self._next += 1
