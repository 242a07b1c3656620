"""One shared deadline per key: when the API says "slow down", everyone hears it once.

A window does not stop anybody by itself; whoever asks it, waits at it, or is admitted by a
Dispatch that uses it, obeys.
"""

from __future__ import annotations

from _thread import allocate_lock
from heapq import heapify, heappop, heappush
from math import isfinite
from weakref import WeakValueDictionary, ref

from .. import events
from ..arguments import SECOND, positive_seconds_to_ns, seconds_to_ns
from ..errors import CapacityExhausted, InvalidConfig, InvalidWindow, WaitTimeout
from ..gate.clock import SYSTEM
from ..gate.decision import Rules
from ..gate.forks import reset_in_child
from ..gate.gate import Gate
from ..gate.window import Reentry, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import ClassVar, Self

    from ..events import Event
    from ..sharing.pool.window import WindowTie
    from ..sharing.store import Store
    from ..typing import Clock, Observer, Seconds


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

    With a `store`, the window of a `key` is one and the same for all who name both, in whatever process:
    `BackoffWindow(store="redis://limits.internal/0", key="openai")`. So it is for a Dispatch of that key.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_gate",
        "_kept",
        "_key",
        "_observer",
        "_registry",
        "_spread",
        "_tie",
        "_watchers",
        "_window",
    )

    def __init__(
        self,
        *,
        ceiling: Seconds | None = None,
        spread: Seconds = 0.0,
        store: Store | str | None = None,
        key: str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._window = Window(None if ceiling is None else positive_seconds_to_ns(ceiling, "ceiling"))
        self._spread = seconds_to_ns(spread, "spread")
        self._clock = clock
        self._observer = observer
        self._key: Hashable = key
        self._registry: WindowRegistry | None = None
        self._kept = False  # by its registry, because the window is open
        self._watchers: tuple[ref[Gate], ...] = ()
        self._gate = Gate(
            "window", Rules(window=self._window, reentry=self._reentry()), observer=None, clock=clock
        )
        self._tie: WindowTie | None = None
        if (store is None) != (key is None) or (key is not None and (not isinstance(key, str) or not key)):
            raise InvalidConfig(
                f"key={key!r}: a window in a store has a key, and only there; "
                'write both, e.g. BackoffWindow(store="sqlite:///limits.db", key="openai")'
            )
        if store is not None and key is not None:
            from ..sharing.pool.window import WindowTie  # noqa: PLC0415 - only those who share

            self._tie = WindowTie(self, store, key)
            self._tie.start()
            reset_in_child(self._tie)

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
        self._signal(
            seconds_to_ns(duration, "duration"), reason, None if sent_at is None else _moment(sent_at)
        )

    def _signal(self, duration: int, reason: str, sent_at: int | None) -> None:
        window = self._window
        before = window.generation

        def close(now: int) -> tuple[bool, str | None, int, int]:
            ended = window.ended(now)
            change = window.set(duration, now, sent_at=sent_at)
            assert window.until is not None
            return ended, change, now, window.until - now

        try:
            ended, change, now, left = self._gate._change(close)
        finally:
            self._have_them_look()
        if ended:
            self._tell(events.WindowEnded(key=self._key, at=now / SECOND, generation=before))
        if change is None:
            return
        if self._tie is not None:
            self._tie.tell(window.until)
        if self._registry is not None:
            self._registry._keep(self)
        kind = events.WindowSet if change == "set" else events.WindowExtended
        self._tell(
            kind(
                key=self._key,
                at=now / SECOND,
                generation=window.generation,
                duration=max(0, left) / SECOND,
                reason=reason,
            )
        )

    def clear(self, *, generation: int | None = None) -> bool:
        """End the window now and wake everybody who waits for it. True if it was open.

        With a generation, as read before a call was sent: only if no newer signal came since,
        so that a slow success cannot erase it.
        """
        window = self._window

        def open_up(now: int) -> tuple[bool, int, int]:
            left = 0 if window.until is None else window.until - now
            return window.clear(now, generation=generation), now, left

        try:
            cleared, now, left = self._gate._change(open_up)
        finally:
            self._have_them_look()
        if cleared:
            if self._tie is not None:
                self._tie.tell(None)
            if self._registry is not None:
                self._registry._let_go(self)
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
        """Sleep until no window is open and it is one's turn. False: that took longer than the timeout."""
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
        return Reentry(self._window, self._spread)

    def _watch(self, gate: Gate) -> None:
        """That gate's line depends on this window, and its observer wants to hear of it."""

        def add(_now: int) -> None:
            # A new tuple each time: whoever is reading the old one is not disturbed.
            living = (watcher for watcher in self._watchers if watcher() is not None)
            self._watchers = (*living, ref(gate))

        self._gate._under_lock(add)

    def _watching(self) -> list[Gate]:
        return [gate for watcher in self._watchers if (gate := watcher()) is not None]

    def _have_them_look(self) -> None:
        """The lines of those gates may move, or must wait for longer."""
        for gate in self._watching():
            gate._look_again()

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
        "_generation",
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
        self._generation = 0  # of the latest signal: a window that is made anew goes on from there
        self._lock = allocate_lock()
        reset_in_child(self)

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
                window._window.generation = self._generation
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
            self._generation = max(self._generation, window.generation)
            until = window._window.until
            if not window._kept and until is not None:
                window._kept = True
                self._serial += 1
                heappush(self._open, (until, self._serial, window))

    def _let_go(self, window: BackoffWindow) -> None:
        """A cleared window need not be kept any longer."""
        with self._lock:
            if window._kept:
                window._kept = False
                self._open = [entry for entry in self._open if entry[2] is not window]
                heapify(self._open)

    def _forget_ended_locked(self) -> None:
        now = self._clock.now()
        while self._open and self._open[0][0] <= now:
            _, serial, window = heappop(self._open)
            until = window._window.until
            if until is not None and until > now:  # extended meanwhile
                heappush(self._open, (until, serial, window))
            else:
                window._kept = False

    def after_fork(self) -> None:
        self._lock = allocate_lock()
