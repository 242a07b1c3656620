"""Pure. The backoff window: until when calls are held back, and how they come back after it.

An end only moves later, until the window is cleared; at the end itself the window is over. None means
that there never was a window.
"""

from __future__ import annotations

from ..frozen import Frozen
from ..hints import Literal


class WindowSignal(Frozen):
    """A change of a window that travels between processes.

    `until` is the end on the clock of the gate, None if the window was cleared. `origin` is what
    brought the news here, None for a signal of this process: only such a signal is passed on.
    A window of this process may have `probes`, of which one process at a time sends some.
    """

    __slots__ = ("gentle", "origin", "probes", "until")
    until: int | None
    origin: object
    gentle: bool
    probes: Probes | None


class Window:
    """One deadline that all callers of the same API share.

    `generation` grows with every signal that moved the end. `episode` grows only when a
    signal answers a call that was made after the last episode began: a hundred refusals of
    one burst are one episode.

    `gentle` is true of a window after which calls come back at the full rate at once: they were held back
    because the far side was out of order, or until a single call has found out more.
    """

    __slots__ = (
        "before",
        "ceiling",
        "episode",
        "generation",
        "gentle",
        "signalled",
        "started",
        "started_at",
        "unended",
        "until",
    )

    def __init__(self, ceiling: int | None = None) -> None:
        self.ceiling = ceiling
        self.until: int | None = None
        self.started_at: int | None = None
        self.before: int | None = None  # the end of the episode before this one
        self.generation = 0
        self.started = 0  # how many windows started since the beginning
        self.episode = 0
        self.signalled = self.state  # after the last change that was made in this process
        self.unended = False  # a window ran, or runs, whose end was not reported yet
        self.gentle = False

    def active(self, now: int) -> bool:
        """Whether calls are held back."""
        return self.until is not None and now < self.until

    @property
    def state(self) -> tuple[int, int | None]:
        """What is different after every change."""
        return self.generation, self.until

    def signal(self, now: int, probes: Probes | None = None) -> WindowSignal:
        """The window as it is now, to be passed on."""
        until = self.until if self.active(now) else None
        return WindowSignal(until=until, origin=None, gentle=self.gentle, probes=probes)

    def set(
        self,
        duration: int,
        now: int,
        *,
        sent_at: int | None = None,
        origin: object = None,
        gentle: bool = False,
    ) -> Literal["set", "extended"] | None:
        """Hold calls back for `duration` from now. Answers what that changed, None for nothing."""
        if self.ceiling is not None:
            duration = min(duration, self.ceiling)
        was_active = self.active(now)
        if self.started_at is None or (sent_at > self.started_at if sent_at is not None else not was_active):
            self.episode += 1
            self.started_at = now
            self.before = self.until
        end = now + duration
        if self.until is not None and end <= self.until:
            self.gentle = self.gentle and gentle
            return None
        self.gentle = gentle and (self.gentle or not was_active)
        self.until = end
        self.generation += 1
        if origin is None:
            self.signalled = (self.generation, end)
        self.unended = end > now
        self.started += not was_active
        return "extended" if was_active else "set"

    def clear(self, now: int, *, generation: int | None = None, origin: object = None) -> bool:
        """End the window now, unless a newer signal came than the one of that generation."""
        if not self.active(now) or (generation is not None and generation != self.generation):
            return False
        self.until = now
        if origin is None:
            self.signalled = (self.generation, now)
        self.unended = False
        return True

    def ended(self, now: int) -> bool:
        """Whether the window has run out since this was last asked. True once a window."""
        if not self.unended or self.active(now):
            return False
        self.unended = False
        return True


# As many calls as will ever come.
_FREELY = 1 << 62


class Probes:
    """Lets single calls through until it is known that calls go well again.

    A call that was not refused within `patience`, the time that refusals take, is a good sign: then two
    go, then four. Where refusals take longer than `pause`, one call goes after each pause, which each
    of them makes longer by `growth` percent, up to `longest`. If none of them was refused in three times the
    patience, calls go freely: perhaps only refusals are told here, and no success ever will be.
    """

    __slots__ = ("_first_at", "_growth", "_left", "_longest", "_number", "_patience", "_pause", "next_at")

    def __init__(
        self, next_at: int, pause: int, patience: int, *, growth: int = 0, longest: int = 1 << 62
    ) -> None:
        self.next_at = next_at
        self._pause = pause
        self._patience = patience
        self._growth = growth
        self._longest = longest
        self._number = self._left = 1  # of calls that go together, and still may
        self._first_at: int | None = None

    @property
    def left(self) -> int:
        """How many calls may go together next."""
        return self._left

    @property
    def over(self) -> bool:
        """Whether calls go freely by now."""
        return self._left > _FREELY // 2

    def take(self, now: int) -> None:
        """One of them goes."""
        self._left -= 1
        if self._left:
            return
        if self._first_at is None:
            self._first_at = now
        if now - self._first_at > 3 * self._patience:
            self._left = _FREELY
        elif self._patience < self._pause:
            self._number = self._left = 2 * self._number
            self.next_at = now + self._patience
        else:
            self._left = 1
            self.next_at = now + self._pause
            self._pause = min(self._longest, self._pause * (100 + self._growth) // 100)


class Reentry:
    """Lets the callers that waited for a window back in one by one, over `spread` after its end.

    Evenly, from the end on and never before it; callers that join in that time go last.
    """

    __slots__ = ("_next", "_spread", "_waiting", "_window", "_window_end")

    def __init__(self, window: Window, spread: int) -> None:
        self._window = window
        self._spread = spread
        self._window_end: int | None = None  # the end whose waiting callers are being let in
        self._waiting = 1
        self._next = 0  # how many of them have been let in

    def earliest(self, now: int, waiting: int) -> int:
        """When the first in line may go. At or before now: at once."""
        until = self._window.until
        if until is None:
            return now
        if now < until:
            return until
        if until != self._window_end:
            self._window_end, self._waiting, self._next = until, max(1, waiting), 0
        if now >= until + self._spread:
            return now
        return until + min(self._spread, self._spread * self._next // self._waiting)

    def take(self) -> None:
        """One of them goes."""
        self._next += 1
