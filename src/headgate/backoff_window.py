"""One shared deadline per key: when the API says "slow down", everyone hears it once.

A window does not stop anybody by itself; whoever asks it, waits at it, or is admitted by a
Dispatch that uses it, obeys.
"""

from __future__ import annotations

from _thread import allocate_lock
from heapq import heappop, heappush
from math import isfinite
from weakref import WeakSet, WeakValueDictionary

from . import events
from .errors import CapacityExhausted, InvalidConfig, InvalidWindow, WaitTimeout
from .gate import Gate, start_clean_after_fork
from .limits import SECOND, positive_seconds_to_ns, seconds_to_ns
from .rules.layers import Layers
from .rules.window import Reentry, Window
from .waiting import SYSTEM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import ClassVar, Self

    from .events import Event, Observer
    from .limits import Seconds
    from .waiting import Clock


class BackoffWindow:
    """Until when nobody should go, shared by all who hold the same object.

    >>> from headgate import BackoffWindow
    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock()
    >>> window = BackoffWindow(clock=clock)
    >>> window.set(30, reason="429")
    >>> window.set(5)                      # never moves the end earlier
    >>> window.should_backoff(), window.remaining
    (True, 30.0)
    >>> clock.advance(30)
    >>> window.should_backoff()            # at its end it is over
    False

    `ceiling` clamps how long any signal may close the window. With `spread`, those who wait
    are let go one by one over so many seconds after the end, instead of all at once.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_gate",
        "_kept",
        "_key",
        "_observer",
        "_registry",
        "_watchers",
        "_window",
        "spread",
    )

    def __init__(
        self,
        *,
        ceiling: Seconds | None = None,
        spread: Seconds = 0.0,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._window = Window(None if ceiling is None else positive_seconds_to_ns(ceiling, "ceiling"))
        self.spread = seconds_to_ns(spread, "spread") / SECOND
        self._clock = clock
        self._observer = observer
        self._key: Hashable = None
        self._registry: WindowRegistry | None = None
        self._kept = False  # by its registry, because the window is open
        self._watchers: WeakSet[Gate] | None = None
        self._gate = Gate(
            "window", Layers(window=self._window, reentry=self._reentry()), observer=None, clock=clock
        )

    @classmethod
    def for_key(cls, key: Hashable, *, registry: WindowRegistry | str | None = None) -> BackoffWindow:
        """The window of that key: the same object for everyone who asks.

        Without a registry, a default one for the whole process is used; a string names one.
        """
        if registry is None:
            registry = WindowRegistry.named("default")
        elif not isinstance(registry, WindowRegistry):
            registry = WindowRegistry.named(registry)
        return registry.for_key(key)

    # -- signals

    def set(self, duration: Seconds, *, reason: str = "", sent_at: float | None = None) -> None:
        """Nobody should go for so many seconds from now. Only ever moves the end later.

        `sent_at`, on the window's clock (`time.monotonic()`), is when the call that was
        refused had been sent: refusals of calls sent before the window opened are echoes of
        the same episode, not new ones.
        """
        duration_ns = seconds_to_ns(duration, "duration")
        sent_ns = None if sent_at is None else _moment(sent_at)
        window = self._window

        def close(now: int) -> tuple[bool, str | None, int, int]:
            ended = window.ended(now)
            change = window.set(duration_ns, now, sent_at=sent_ns)
            return ended, change, now, window.generation

        ended, change, now, generation = self._gate._change(close)
        if ended:
            self._tell(events.WindowEnded(key=self._key, at=now / SECOND, generation=generation - 1))
        if change is None:
            return
        if self._registry is not None:
            self._registry._keep(self)
        kind = events.WindowSet if change == "set" else events.WindowExtended
        left = max(0, (window.until or now) - now) / SECOND
        self._tell(kind(key=self._key, at=now / SECOND, generation=generation, duration=left, reason=reason))

    def clear(self, *, generation: int | None = None) -> bool:
        """End the window now and wake everybody who waits for it. True if it was open.

        With a generation, as read before a call was sent: only if no newer signal came since,
        so that a slow success cannot erase it.
        """
        window = self._window

        def open_up(now: int) -> tuple[bool, int, int]:
            left = (window.until or now) - now
            return window.clear(now, generation=generation), now, left

        cleared, now, left = self._gate._change(open_up)
        if cleared:
            for gate in self._watching():
                gate._look_again()
            self._tell(
                events.WindowCleared(
                    key=self._key, at=now / SECOND, generation=window.generation, remaining=left / SECOND
                )
            )
        return cleared

    # -- looking

    def should_backoff(self) -> bool:
        """Is the window open: should nobody go?"""
        now = self._clock.now()
        if self._window.closed(now):
            return True
        self._notice_end(now)
        return False

    @property
    def remaining(self) -> float:
        """Seconds until the end; 0.0 when there is no window."""
        now = self._clock.now()
        until = self._window.until
        if until is not None and now < until:
            return (until - now) / SECOND
        self._notice_end(now)
        return 0.0

    @property
    def generation(self) -> int:
        """Grows each time a window opens or is extended."""
        return self._window.generation

    # -- waiting

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Sleep until no window is open. False: it still was at the timeout."""
        try:
            with self._gate.admit(timeout=timeout):
                self._notice_end(self._clock.now())
                return True
        except (WaitTimeout, CapacityExhausted):
            return False

    async def wait_async(self, timeout: Seconds | None = None) -> bool:  # noqa: ASYNC109 - the twin of `wait`
        """The same for a task."""
        try:
            async with self._gate.admit(timeout=timeout):
                self._notice_end(self._clock.now())
                return True
        except (WaitTimeout, CapacityExhausted):
            return False

    # -- for Dispatch and the registry

    def _reentry(self) -> Reentry:
        return Reentry(self._window, round(self.spread * SECOND))

    def _watch(self, gate: Gate) -> None:
        """That gate's line depends on this window, and its observer wants to hear of it."""
        if self._watchers is None:
            self._watchers = WeakSet()
        self._watchers.add(gate)

    def _watching(self) -> list[Gate]:
        return [] if self._watchers is None else list(self._watchers)

    def _notice_end(self, now: int) -> None:
        if self._window.unended and self._gate._change(self._window.ended):
            self._tell(events.WindowEnded(key=self._key, at=now / SECOND, generation=self._window.generation))

    def _tell(self, event: Event) -> None:
        told: list[Observer] = []
        for observer in (self._observer, *(gate._observer for gate in self._watching())):
            if observer is not None and observer not in told:
                told.append(observer)
                events.tell(observer, event)

    def __repr__(self) -> str:
        return f"<BackoffWindow {self._key!r}, {self.remaining:.3f} s remaining>"


def _moment(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not isfinite(seconds):
        raise InvalidWindow(
            f"sent_at={seconds!r} is not a moment; write clock.seconds(), e.g. time.monotonic()"
        )
    return round(seconds * SECOND)


class WindowRegistry:
    """Windows by key. The same key in two registries is two windows.

    >>> from headgate import WindowRegistry
    >>> stripe = WindowRegistry.named("payments").for_key("stripe")
    >>> stripe is WindowRegistry.named("payments").for_key("stripe")
    True

    A window that nobody holds and that is not open is forgotten. The arguments are those of
    the windows it makes.
    """

    __slots__ = (
        "__weakref__",
        "_ceiling",
        "_clock",
        "_lock",
        "_observer",
        "_open",
        "_serial",
        "_spread",
        "_windows",
    )

    _named: ClassVar[dict[str, WindowRegistry]] = {}

    def __init__(
        self,
        *,
        ceiling: Seconds | None = None,
        spread: Seconds = 0.0,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        BackoffWindow(ceiling=ceiling, spread=spread, observer=observer, clock=clock)  # is it possible?
        self._ceiling = ceiling
        self._spread = spread
        self._observer = observer
        self._clock = clock
        self._windows: WeakValueDictionary[Hashable, BackoffWindow] = WeakValueDictionary()
        self._open: list[tuple[int, int, BackoffWindow]] = []  # kept alive until their end, by end
        self._serial = 0
        self._lock = allocate_lock()
        start_clean_after_fork(self)

    @classmethod
    def named(cls, name: str) -> Self | WindowRegistry:
        """The registry of that name, made on first use and kept for the life of the process."""
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f'registry name {name!r} is not a name; write a string, e.g. "payments"')
        known = cls._named.get(name)
        # setdefault is one step: whoever comes first, all get the same registry.
        return known if known is not None else cls._named.setdefault(name, cls())

    def for_key(self, key: Hashable) -> BackoffWindow:
        """The window of that key: the same object for everyone who asks."""
        with self._lock:
            if self._open:
                self._forget_ended_locked()
            window = self._windows.get(key)
            if window is None:
                window = BackoffWindow(
                    ceiling=self._ceiling, spread=self._spread, observer=self._observer, clock=self._clock
                )
                window._key = key
                window._registry = self
                self._windows[key] = window
            return window

    def __len__(self) -> int:
        """How many windows are remembered."""
        with self._lock:
            self._forget_ended_locked()
            return len(self._windows)

    def _keep(self, window: BackoffWindow) -> None:
        """An open window must survive even if nobody holds it."""
        with self._lock:
            self._forget_ended_locked()
            until = window._window.until
            if not window._kept and until is not None:
                window._kept = True
                self._serial += 1
                heappush(self._open, (until, self._serial, window))

    def _forget_ended_locked(self) -> None:
        now = self._clock.now()
        while self._open and self._open[0][0] <= now:
            _, serial, window = heappop(self._open)
            until = window._window.until
            if until is not None and until > now:  # extended meanwhile
                heappush(self._open, (until, serial, window))
            else:
                window._kept = False

    def _start_clean(self) -> None:
        self._lock = allocate_lock()
