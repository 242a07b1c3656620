"""How time passes, and how a waiter of each world sleeps and is woken.

Rules of this room: time is integer nanoseconds that never run backwards. A parker is woken
from any thread, any number of times, and says so if its sleeper can no longer be reached.
Another world (trio, say) is one more parker class here and one more method on the clock.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, TimerHandle
    from collections.abc import Callable, Generator
    from typing import Any, Protocol

    class Parker(Protocol):
        """Where one waiter sleeps."""

        on_loop: bool  # does its alarm need an event loop that runs?

        def wake(self) -> bool:
            """End the sleep. False: the sleeper can no longer be reached."""

        def alarm(self, at: int) -> bool:
            """Ring at that moment, or earlier if told so already. False as for `wake`."""

        def retire(self) -> None:
            """The sleep is over: no more alarms."""

    class ThreadParking(Parker, Protocol):
        def park(self) -> None:
            """Sleep until woken."""

    class LoopParking(Parker, Protocol):
        def __await__(self) -> Generator[object, None, None]:
            """Sleep until woken."""

    class Clock(Protocol):
        """Everything that waits or reads time does it through one of these."""

        quantum: int  # nanoseconds that a timer may be late for the sake of fewer timers

        def now(self) -> int:
            """Nanoseconds since some fixed moment."""

        def seconds(self) -> float:
            """The same in seconds."""

        def thread_parker(self, ring: Callable[[Any], object], ticket: object) -> ThreadParking:
            """A place for the calling thread to sleep; its alarm calls `ring(ticket)`."""

        def loop_parker(self, ring: Callable[[Any], object], ticket: object) -> LoopParking:
            """The same for the running task."""


# The longest a thread sleeps before it looks at the clock again; longer timeouts overflow.
_LONGEST_SLEEP = 86_400.0


class ThreadParker:
    """A thread sleeps on a lock that others release. It keeps its own alarm by a time-out."""

    on_loop = False

    __slots__ = ("_alarm_at", "_latch", "_now", "_owner", "_ring", "_ticket", "_woken")

    def __init__(self, now: Callable[[], int], ring: Callable[[Any], object], ticket: object) -> None:
        self._now = now
        self._ring = ring
        self._ticket = ticket
        self._owner = get_ident()
        self._alarm_at: int | None = None
        self._woken = False
        self._latch = allocate_lock()
        self._latch.acquire()

    def park(self) -> None:
        while not self._woken:
            at = self._alarm_at
            if at is None:
                self._latch.acquire()
                continue
            left = at - self._now()
            if left > 0:
                self._latch.acquire(timeout=min(left / 1e9, _LONGEST_SLEEP))
                continue
            self._alarm_at = None
            self._ring(self._ticket)

    def wake(self) -> bool:
        self._woken = True
        self._nudge()
        return True

    def alarm(self, at: int) -> bool:
        if self._alarm_at is None or at < self._alarm_at:
            self._alarm_at = at
            if get_ident() != self._owner:
                self._nudge()  # it sleeps for longer, or for ever
        return True

    def retire(self) -> None:
        pass

    def _nudge(self) -> None:
        try:  # noqa: SIM105 - contextlib would double the time of importing headgate
            self._latch.release()
        except RuntimeError:
            pass  # nudged already


class LoopParker:
    """A task sleeps on a future. Its loop keeps the alarm by a timer, without waking the task."""

    on_loop = True

    __slots__ = ("_alarm_at", "_future", "_loop", "_now", "_ring", "_thread", "_ticket", "_timer")

    def __init__(
        self, loop: AbstractEventLoop, now: Callable[[], int], ring: Callable[[Any], object], ticket: object
    ) -> None:
        self._loop = loop
        self._now = now
        self._ring = ring
        self._ticket = ticket
        self._thread = get_ident()
        self._alarm_at: int | None = None
        self._timer: TimerHandle | None = None
        self._future: Future[None] = loop.create_future()

    def __await__(self) -> Generator[object, None, None]:
        return self._future.__await__()

    def wake(self) -> bool:
        if get_ident() != self._thread:
            return self._on_loop(self._finish)
        try:
            if not self._future.done():
                self._future.set_result(None)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def alarm(self, at: int) -> bool:
        if self._alarm_at is not None and at >= self._alarm_at:
            return not self._loop.is_closed()  # an alarm that was set there will never ring
        self._alarm_at = at
        return self._on_loop(self._set_timer)

    def retire(self) -> None:
        self._alarm_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_loop(self, act: Callable[[], None]) -> bool:
        try:
            if get_ident() == self._thread:
                act()
            else:
                self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed: nobody will ever wake up there
            return False
        return True

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._alarm_at is not None:
            left = self._alarm_at - self._now()
            self._timer = self._loop.call_later(max(0.0, left / 1e9), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._alarm_at = None
        self._ring(self._ticket)


class SystemClock:
    """The machine's monotonic clock."""

    __slots__ = ()

    # With a long line, one timer for a hundred calls costs a fraction of a timer for each.
    quantum = 50_000_000

    now = staticmethod(monotonic_ns)

    def seconds(self) -> float:
        return monotonic_ns() / 1e9

    def thread_parker(self, ring: Callable[[Any], object], ticket: object) -> ThreadParker:
        return ThreadParker(monotonic_ns, ring, ticket)

    def loop_parker(self, ring: Callable[[Any], object], ticket: object) -> LoopParker:
        from asyncio import get_running_loop  # noqa: PLC0415 - whoever gets here has loaded it

        return LoopParker(get_running_loop(), monotonic_ns, ring, ticket)

    def __repr__(self) -> str:
        return "SYSTEM"


SYSTEM = SystemClock()


def sleep(clock: Clock, duration: int) -> None:
    """Let so many nanoseconds pass on that clock, for the calling thread alone."""
    parker = clock.thread_parker(lambda _ticket: parker.wake(), None)
    try:
        parker.alarm(clock.now() + duration)
        parker.park()
    finally:
        parker.retire()


async def sleep_async(clock: Clock, duration: int) -> None:
    """The same for the running task."""
    parker = clock.loop_parker(lambda _ticket: parker.wake(), None)
    try:
        parker.alarm(clock.now() + duration)
        await parker
    finally:
        parker.retire()


def chance() -> float:
    """The dice of whoever brings none: a number from 0 to 1."""
    from random import random  # noqa: PLC0415 - importing it takes longer than importing headgate

    return random()  # noqa: S311 - nobody gains anything by guessing it
