"""Backoff windows by key, kept while they are held or active."""

from __future__ import annotations

from _thread import allocate_lock
from heapq import heappop, heappush
from weakref import WeakValueDictionary

from ..arguments import check_hashable
from ..errors import InvalidConfig
from ..gate.clock import SYSTEM
from ..gate.forks import reset_in_child
from ..gate.pickling import only_here
from ..hints import ClassVar, Clock, Hashable, Observer, Seconds
from .backoff_window import BackoffWindow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


# Windows that end within the same 10 ms are forgotten together.
_SLICE = 10_000_000


class WindowRegistry:
    """Backoff windows by key. The same key in two registries is two windows.

    >>> from headgate import WindowRegistry
    >>> stripe = WindowRegistry.named("payments").for_key("stripe")
    >>> stripe is WindowRegistry.named("payments").for_key("stripe")
    True

    A window that is neither held nor active is forgotten. `ceiling`, `spread`, `observer` and `clock` are
    those of each `BackoffWindow` that it makes. Raises InvalidWindow or InvalidConfig if these cannot work.
    """

    __slots__ = (
        "__weakref__",
        "_active",
        "_ceiling",
        "_clock",
        "_generation",
        "_lock",
        "_observer",
        "_slices",
        "_spread",
        "_windows",
    )

    _named: ClassVar[dict[str, WindowRegistry]] = {}

    __reduce__ = only_here("make one per process, or share windows by BackoffWindow(store=..., key=...)")

    def __init__(
        self,
        *,
        ceiling: Seconds | None = None,
        spread: Seconds = 0.0,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._ceiling = ceiling
        self._spread = spread
        self._observer = observer
        self._clock = clock
        self._make()  # raises at once if the arguments cannot make a window
        self._windows: WeakValueDictionary[Hashable, BackoffWindow] = WeakValueDictionary()
        # Active windows are kept alive. They are grouped by the time slice in which they end, so that one of
        # them is let go in a step; the heap has each slice once, also if all of its windows were cleared.
        self._active: dict[int, set[BackoffWindow]] = {}
        self._slices: list[int] = []
        self._generation = 0  # of the latest signal: a window that is made again goes on from there
        self._lock = allocate_lock()
        reset_in_child(self)

    def _make(self) -> BackoffWindow:
        return BackoffWindow(
            ceiling=self._ceiling, spread=self._spread, observer=self._observer, clock=self._clock
        )

    @classmethod
    def named(cls, name: str) -> WindowRegistry:
        """The registry of that `name`, made on first use and kept for the life of the process.

        Its windows have no ceiling, spread or observer. Raises InvalidConfig if `name` is not a string.
        """
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f'registry name {name!r} is not a name; write a string, e.g. "payments"')
        known = cls._named.get(name)
        # setdefault is one step: all threads get the registry of the first.
        return known if known is not None else cls._named.setdefault(name, cls())

    def for_key(self, key: Hashable) -> BackoffWindow:
        """The window of that `key`, any hashable value: every caller that asks gets the same object.

        >>> from headgate import WindowRegistry
        >>> registry = WindowRegistry(ceiling=60)
        >>> registry.for_key("stripe") is registry.for_key("stripe")
        True

        Raises InvalidConfig for a key that cannot be hashed.
        """
        check_hashable(key, "key")
        with self._lock:
            if self._slices:
                self._forget_ended_locked()
            window = self._windows.get(key)
            if window is None:
                window = self._make()
                window.identify(key, self, self._generation)
                self._windows[key] = window
            return window

    def __len__(self) -> int:
        """How many windows are remembered."""
        with self._lock:
            self._forget_ended_locked()
            return len(self._windows)

    def keep(self, window: BackoffWindow) -> None:
        """A window has started: it must survive even if no code holds it."""
        with self._lock:
            self._forget_ended_locked()
            self._generation = max(self._generation, window.generation)
            until = window.rule.until
            if window.kept is None and until is not None:
                self._keep_locked(window, until)

    def let_go(self, window: BackoffWindow) -> None:
        """A window was cleared: it need not be kept any longer."""
        with self._lock:
            if window.kept is not None:
                self._active[window.kept].discard(window)
                window.kept = None

    def _keep_locked(self, window: BackoffWindow, until: int) -> None:
        window.kept = ends_in = -(-until // _SLICE)
        windows = self._active.get(ends_in)
        if windows is None:
            windows = self._active[ends_in] = set()
            heappush(self._slices, ends_in)
        windows.add(window)

    def _forget_ended_locked(self) -> None:
        now = self._clock.now()
        while self._slices and self._slices[0] * _SLICE <= now:
            for window in self._active.pop(heappop(self._slices)):
                window.kept = None
                until = window.rule.until
                if until is not None and until > now:  # it was extended since
                    self._keep_locked(window, until)

    def after_fork(self) -> None:
        """In a forked child: the lock is free."""
        self._lock = allocate_lock()
