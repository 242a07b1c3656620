"""One shared deadline per key: when the API says "slow down", every caller hears it once.

A window does not stop a call by itself; code that asks it, waits at it, or is admitted by a
Dispatch that uses it, obeys.
"""

from __future__ import annotations

from .. import telling
from ..arguments import SECOND, moment_to_ns, positive_seconds_to_ns, read_observer, seconds_to_ns
from ..errors import CapacityExhausted, InvalidConfig, WaitTimeout
from ..gate.clock import SYSTEM
from ..gate.closing import Closing
from ..gate.decision import Rules
from ..gate.gate import Gate
from ..gate.pickling import only_here
from ..gate.window import Reentry, Window, WindowSignal
from ..hints import AnyStore, Clock, Hashable, Observer, Seconds, later
from ..light import LazyModule, ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import events
    from ..sharing.pool.window import WindowMember
    from .window_registry import WindowRegistry
else:
    events = LazyModule("headgate.events")
    WindowRegistry = later("headgate.dispatch.window_registry", "WindowRegistry")


class BackoffWindow(Closing):
    """Until when calls should be held back, shared by all code that holds the same object.

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

    `ceiling` clamps how long any signal may hold calls back. With `spread`, callers that wait are let go one
    by one over that many seconds after the end, instead of all at once. An `observer` is called with each
    event of the window. `clock` replaces the time in tests.

    With a `store`, the window of a `key` is the same for every process that names both:
    `BackoffWindow(store="redis://limits.internal/0", key="openai")`. A Dispatch of that store and key
    shares it too. Close such a window when it is no longer used, or use it as a `with` block.

    Raises InvalidWindow if `ceiling` or `spread` is not a time, InvalidConfig if one of `store` and `key` is
    missing, and StoreError if the store cannot be asked.
    """

    __slots__ = (
        "__weakref__",
        "_gate",
        "_member",
        "_observer",
        "_registry",
        "_spread",
        "_watchers",
        "clock",
        "kept",
        "key",
        "rule",
    )

    __reduce__ = only_here()

    def __init__(
        self,
        *,
        ceiling: Seconds | None = None,
        spread: Seconds = 0.0,
        store: AnyStore | None = None,
        key: str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.rule = Window(None if ceiling is None else positive_seconds_to_ns(ceiling, "ceiling"))
        self.clock = clock
        self.key: Hashable = key
        self.kept: int | None = None  # while it is active: when its registry looks at it
        self._spread = seconds_to_ns(spread, "spread")
        self._observer = read_observer(observer)
        self._registry: WindowRegistry | None = None
        self._watchers: tuple[ref[Gate], ...] = ()
        self._gate = Gate(
            "window", Rules(window=self.rule, reentry=self.reentry()), observed=False, clock=clock
        )
        self._member: WindowMember | None = None
        if (store is None) != (key is None) or (key is not None and (not isinstance(key, str) or not key)):
            raise InvalidConfig(
                f"key={key!r}: a window in a store has a key, and only there; "
                'write both, e.g. BackoffWindow(store="sqlite:///limits.db", key="openai")'
            )
        if store is not None and key is not None:
            from ..sharing.pool.window import WindowMember  # noqa: PLC0415 - only for a window that is shared

            self._member = WindowMember(self.rule, self.clock, self.hear, self._tell, store, key)
            self._member.start()

    @classmethod
    def for_key(cls, key: Hashable, *, registry: WindowRegistry | str | None = None) -> BackoffWindow:
        """The window of that `key`, any hashable value: every caller that asks gets the same object.

        Without a `registry`, a `WindowRegistry` or its name, a default one for the whole process is used.
        Raises InvalidConfig if the registry is neither, and for a key that cannot be hashed.

        >>> from headgate import BackoffWindow
        >>> BackoffWindow.for_key("openai") is BackoffWindow.for_key("openai")
        True
        """
        from .window_registry import WindowRegistry  # noqa: PLC0415 - it imports this file

        if registry is None:
            registry = WindowRegistry.named("default")
        elif not isinstance(registry, WindowRegistry):
            registry = WindowRegistry.named(registry)
        return registry.for_key(key)

    # -- signals

    def set(self, duration: Seconds, *, reason: str = "", sent_at: float | None = None) -> None:
        """Hold calls back for `duration`, seconds or a timedelta, from now. Only ever moves the end later.

        `reason` is for observers and logs. `sent_at`, on the window's clock (`time.monotonic()`), is when the
        call that was refused had been sent: refusals of calls sent before the window started are echoes of
        the same episode, not new ones. Raises InvalidWindow if `duration` is not a time or `sent_at` not a
        moment.

        >>> from headgate import BackoffWindow
        >>> window = BackoffWindow()
        >>> window.set(30, reason="429")
        >>> window.should_backoff()
        True
        """
        sent = None if sent_at is None else moment_to_ns(sent_at, "sent_at")
        self.signal(seconds_to_ns(duration, "duration"), reason, sent)

    def signal(
        self,
        duration: int,
        reason: str,
        sent_at: int | None,
        *,
        origin: object = None,
        gentle: bool = False,
    ) -> None:
        """As `set`, in nanoseconds. `origin` is what brought the signal from another process.

        After a `gentle` window calls come back at the full rate at once, and are not throttled.
        """
        rule = self.rule
        before = rule.generation

        def start(now: int) -> tuple[bool, str | None, int, int]:
            ended = rule.ended(now)
            change = rule.set(duration, now, sent_at=sent_at, origin=origin, gentle=gentle)
            assert rule.until is not None
            return ended, change, now, rule.until - now

        try:
            ended, change, now, left = self._gate.change(start)
        finally:
            self._pass_on()
        if ended:
            self._tell(events.WindowEnded(key=self.key, at=now / SECOND, generation=before))
        if change is None:
            return
        if self._registry is not None:
            self._registry.keep(self)
        kind = events.WindowSet if change == "set" else events.WindowExtended
        self._tell(
            kind(
                key=self.key,
                at=now / SECOND,
                generation=rule.generation,
                duration=max(0, left) / SECOND,
                reason=reason,
            )
        )

    def clear(self, *, generation: int | None = None) -> bool:
        """End the window now and wake the callers that wait for it. True if it was active.

        With a `generation`, as read before a call was sent: only if no newer signal came since,
        so that a slow success cannot erase it.

        >>> from headgate import BackoffWindow
        >>> window = BackoffWindow()
        >>> window.set(30)
        >>> before = window.generation
        >>> window.set(60)                     # a newer signal
        >>> window.clear(generation=before), window.clear()
        (False, True)
        """
        return self._clear(generation, None)

    def _clear(self, generation: int | None, origin: object) -> bool:
        rule = self.rule

        def clear(now: int) -> tuple[bool, int, int]:
            left = 0 if rule.until is None else rule.until - now
            return rule.clear(now, generation=generation, origin=origin), now, left

        try:
            cleared, now, left = self._gate.change(clear)
        finally:
            self._pass_on()
        if cleared:
            if self._registry is not None:
                self._registry.let_go(self)
            self._tell(
                events.WindowCleared(
                    key=self.key, at=now / SECOND, generation=rule.generation, remaining=left / SECOND
                )
            )
        return cleared

    def hear(self, signal: WindowSignal) -> None:
        """Another process started, extended or cleared the window."""
        now, until = self.clock.now(), self.rule.until
        if signal.until is None:
            if self.rule.active(now):
                self._clear(None, signal.origin)
        elif until is None or signal.until > max(until, now):
            left = signal.until - now
            self.signal(left, "shared", None, origin=signal.origin, gentle=signal.gentle)

    # -- looking

    def should_backoff(self) -> bool:
        """Whether the window is active, so that calls should be held back.

        >>> from headgate import BackoffWindow
        >>> BackoffWindow().should_backoff()
        False
        """
        now = self.clock.now()
        if self.rule.active(now):
            return True
        self.notice_end(now)
        return False

    @property
    def remaining(self) -> float:
        """Seconds until the end of the window; 0.0 when it is not active."""
        now = self.clock.now()
        until = self.rule.until
        if until is not None and now < until:
            return (until - now) / SECOND
        self.notice_end(now)
        return 0.0

    @property
    def generation(self) -> int:
        """A number that grows each time the window starts or is extended."""
        return self.rule.generation

    # -- waiting

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Sleep until the window is not active and, with `spread`, the caller's turn has come.

        True, or False if `timeout` has passed before or will have: seconds or a timedelta, None for no limit.
        Raises InvalidWindow if `timeout` is not a time, and RuntimeError if it would wait in a thread that
        runs an event loop: write `await window.wait_async()` there.

        >>> from headgate import BackoffWindow
        >>> window = BackoffWindow()
        >>> window.wait()
        True
        >>> window.set(30)
        >>> window.wait(timeout=0)
        False
        """
        try:
            with self._gate.admit(timeout=timeout):
                self.notice_end(self.clock.now())
                return True
        except (WaitTimeout, CapacityExhausted):
            return False

    async def wait_async(self, timeout: Seconds | None = None) -> bool:  # noqa: ASYNC109 - as `wait`
        """Sleep, in a task, until the window is not active and, with `spread`, it is the caller's turn.

        True, or False if `timeout` has passed before or will have, as for `wait`. Raises InvalidWindow if
        `timeout` is not a time.

        >>> import asyncio
        >>> from headgate import BackoffWindow
        >>> asyncio.run(BackoffWindow().wait_async(timeout=5))
        True
        """
        try:
            async with self._gate.admit(timeout=timeout):
                self.notice_end(self.clock.now())
                return True
        except (WaitTimeout, CapacityExhausted):
            return False

    # -- closing

    def close(self) -> None:
        """Share the window no longer. Without a store this does nothing, and so does a second call."""
        if self._member is not None:
            self._member.close()

    # -- for Dispatch and the registry

    def identify(self, key: Hashable, registry: WindowRegistry | None = None, generation: int = 0) -> None:
        """Before it is used: the key of its events, and the registry that keeps it."""
        self.key = key
        self._registry = registry
        self.rule.generation = generation

    def reentry(self) -> Reentry:
        """How waiting callers come back after this window."""
        return Reentry(self.rule, self._spread)

    def watch(self, gate: Gate) -> None:
        """The line of that gate depends on this window, and its observer is told of it."""

        def add(_now: int) -> None:
            # A new tuple each time: a thread that reads the old one is not disturbed.
            living = (watcher for watcher in self._watchers if watcher() is not None)
            self._watchers = (*living, ref(gate))

        self._gate.look(add)

    def _watching(self) -> list[Gate]:
        return [gate for watcher in self._watchers if (gate := watcher()) is not None]

    def _pass_on(self) -> None:
        """The lines of the watching gates may move, or must wait for longer; other processes hear it."""
        for gate in self._watching():
            gate.hear_window()
        if self._member is not None:
            self._member.hear_window()

    def notice_end(self, now: int) -> None:
        """Report the end of a window that has run out, once."""
        if self.rule.unended and self._gate.change(self.rule.ended):
            self._tell(events.WindowEnded(key=self.key, at=now / SECOND, generation=self.rule.generation))

    def _tell(self, event: events.Event) -> None:
        telling.tell(telling.together(self._observer, *(gate.observer for gate in self._watching())), event)

    def __repr__(self) -> str:
        return f"<BackoffWindow {self.key!r}, {self.remaining:.3f} s remaining>"


def read_window(window: BackoffWindow | None, key: Hashable, clock: Clock) -> BackoffWindow:
    """The window that a Dispatch was given, or a new one of its own."""
    if window is None:
        window = BackoffWindow(clock=clock)
        window.identify(key)
    elif not isinstance(window, BackoffWindow):
        raise InvalidConfig(f'window={window!r} is not a BackoffWindow; write BackoffWindow.for_key("api")')
    elif window.clock is not clock:
        raise InvalidConfig(
            "a Dispatch and its window must tell time by the same clock; give both the same clock="
        )
    return window
