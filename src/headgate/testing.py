"""For testing code that waits: a clock that the test moves, and a record of events.

Every object of headgate that waits or reads time takes `clock=`. Give it a ManualClock, and an hour
passes when the test says so; threads and tasks that are due wake up in order.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

from .arguments import NS_PER_US, SECOND, moment_to_ns, must_be_plain, seconds_to_ns, yes_or_no
from .errors import InvalidConfig
from .events import Event
from .gate.clock import SystemTimer, is_own_thread
from .gate.parking import LoopParker, ThreadParker, in_trio
from .sandbox.fake import FakeProvider
from .sharing.memory import MemoryStore
from .swarm.bus.unreliable import UnreliableBus
from .typing import LoopParking, Seconds

__all__ = ["FakeProvider", "ManualClock", "MemoryStore", "Recorder", "UnreliableBus", "run"]

T = TypeVar("T")
E = TypeVar("E", bound="Event")


class ManualClock:
    """A clock that moves only when it is told to. It begins at `start` seconds.

    >>> from headgate import BackoffWindow
    >>> clock = ManualClock()
    >>> window = BackoffWindow(clock=clock)
    >>> window.set(60)
    >>> clock.advance(59.5)
    >>> window.remaining
    0.5

    With `auto_advance=True` a single caller that must wait moves the time itself, so that code
    which sleeps runs without a second thread; `sleeps` lists how long it would have slept.

    >>> clock = ManualClock(auto_advance=True)
    >>> window = BackoffWindow(clock=clock)
    >>> window.set(60)
    >>> window.wait()
    True
    >>> clock.seconds(), clock.sleeps
    (60.0, [60.0])

    Budgets with limits like "$5/calendar day" ask for the wall time, which advances with the clock. It begins
    with `wall`, in seconds since 1970 or as a datetime with a time zone, and `set_wall` sets it at any time.

    >>> from datetime import datetime, timezone
    >>> clock = ManualClock(wall=datetime(2026, 11, 18, 23, 59, tzinfo=timezone.utc))
    >>> clock.advance(60)
    >>> clock.wall() // 1_000_000_000 == datetime(2026, 11, 19, tzinfo=timezone.utc).timestamp()
    True
    """

    quantum = 0  # exact to the nanosecond

    def __init__(
        self, start: float = 0.0, *, auto_advance: bool = False, wall: float | datetime | None = None
    ) -> None:
        self.auto_advance = yes_or_no(auto_advance, "auto_advance")
        self.sleeps: list[float] = []
        self.timers_set = 0  # how many timers were ever set
        self.on_timer: Callable[[], object] | None = None  # called after a timer was set
        self._now = moment_to_ns(start, "start")
        self._wall_ahead = 0  # of the time: 0 is 1970
        self._lock = threading.RLock()  # a finalizer may set a timer while its thread is in here
        self._due: list[tuple[int, int, ManualTimer]] = []
        if wall is not None:
            self.set_wall(wall)

    def now(self) -> int:
        """The time of the clock in integer nanoseconds."""
        return self._now

    def seconds(self) -> float:
        """The time of the clock in seconds."""
        return self._now / SECOND

    def wall(self) -> int:
        """The wall time of the clock in nanoseconds since 1970."""
        return self._now + self._wall_ahead

    def set_wall(self, when: float | datetime) -> None:
        """Set the wall time to `when`, earlier or later, as a person or a server of the time would.

        `when` is seconds since 1970 or a datetime with a time zone. Raises InvalidConfig for a datetime
        without one, and InvalidWindow for what is not a moment.

        >>> clock = ManualClock()
        >>> clock.set_wall(86_400)
        >>> clock.wall()
        86400000000000
        """
        self._wall_ahead = _wall_to_ns(when) - self._now

    def advance(self, seconds: Seconds) -> None:
        """Let `seconds` (or a timedelta) pass. What is due meanwhile happens at its own moment, in order.

        Raises InvalidWindow if that is not a time, and what an act given to `at` or `call_at` raises.

        >>> clock = ManualClock()
        >>> clock.advance(59.5)
        >>> clock.seconds()
        59.5
        """
        self.advance_to_ns(self._now + seconds_to_ns(seconds, "seconds"))

    def advance_to_ns(self, target: int) -> None:
        """Let time pass until the nanosecond `target`, as `advance` does."""
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > target:
                    self._now = max(self._now, target)
                    return
                at, _, timer = heappop(self._due)
                self._now = max(self._now, at)
            timer.fire()

    def set_ns(self, now: int) -> None:
        """Set the time to the nanosecond `now`, earlier or later, without doing what would be due."""
        self._now = now

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Have `act()` called when the clock reaches `when`, in seconds; at once if it is past that.

        >>> clock = ManualClock()
        >>> clock.at(5, lambda: print("five"))
        >>> clock.advance(10)
        five
        """
        must_be_plain(act, "act", "no arguments")
        self.call_at(moment_to_ns(when, "when"), act)

    def call_at(self, at: int, act: Callable[[], object]) -> ManualTimer:
        """Have `act()` called when the clock reaches the nanosecond `at`. `advance` raises its errors.

        Returns a timer, whose `cancel()` prevents it.
        """
        timer = ManualTimer(at, act)
        with self._lock:
            waits = timer.at > self._now
            if waits:
                self.timers_set += 1
                heappush(self._due, (timer.at, self.timers_set, timer))
        if not waits:
            timer.fire()
        elif self.on_timer is not None:
            self.on_timer()
        return timer

    @property
    def timers(self) -> int:
        """How many timers are set on the clock."""
        with self._lock:
            return sum(not timer.cancelled for _, _, timer in self._due)

    def next_due(self) -> int | None:
        """The nanosecond of the next timer, or None."""
        with self._lock:
            while self._due and self._due[0][2].cancelled:
                heappop(self._due)
            return self._due[0][0] if self._due else None

    def jump(self) -> bool:
        """Advance to the next moment at which something is due. False if there is none.

        >>> clock = ManualClock()
        >>> clock.at(5, lambda: print("five"))
        >>> clock.jump(), clock.jump()
        five
        (True, False)
        """
        at = self.next_due()
        if at is None:
            return False
        if at > self._now:
            self.sleeps.append((at - self._now) / SECOND)
        self.advance_to_ns(at)
        return True

    def thread_parker(self, ring: Callable[[Any], object], ticket: object) -> _ThreadParker:
        return _ThreadParker(self, ring, ticket)

    def loop_parker(self, ring: Callable[[Any], object], ticket: object) -> LoopParking:
        if in_trio():
            from .gate.trio_parker import TrioParker  # noqa: PLC0415 - it needs trio

            if self.auto_advance:
                raise RuntimeError(
                    "ManualClock(auto_advance=True) does not advance in trio; write ManualClock() and call "
                    "advance(), or use the clock of the machine"
                )
            return TrioParker(self, ring, ticket)
        return _LoopParker(self, ring, ticket)

    def __repr__(self) -> str:
        return f"<ManualClock at {self.seconds():g} s>"


def _wall_to_ns(when: float | datetime) -> int:
    """A moment that a caller writes, in nanoseconds since 1970."""
    if not isinstance(when, datetime):
        return moment_to_ns(when, "wall")
    if when.tzinfo is None:
        raise InvalidConfig(
            f"wall={when!r} has no time zone; write e.g. datetime(2026, 11, 18, tzinfo=timezone.utc)"
        )
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since // timedelta(microseconds=1)) * NS_PER_US


class ManualTimer(SystemTimer):
    """A call that a ManualClock makes at a moment, unless it is cancelled before."""

    __slots__ = ()

    def fire(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


class _Alarm:
    """The alarm of one parker: a timer at the earliest moment it was set to."""

    __slots__ = ("_clock", "_ring", "_ticket", "_timer")

    def __init__(self, clock: ManualClock, ring: Callable[[Any], object], ticket: object) -> None:
        self._clock = clock
        self._ring = ring
        self._ticket = ticket
        self._timer: ManualTimer | None = None

    def set(self, at: int) -> None:
        timer = self._timer
        if timer is not None and not timer.cancelled:
            if timer.at <= at:
                return
            timer.cancel()
        self._timer = self._clock.call_at(at, partial(self._ring, self._ticket))

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ThreadParker(ThreadParker):
    __slots__ = ("_alarm", "_clock")

    def __init__(self, clock: ManualClock, ring: Callable[[Any], object], ticket: object) -> None:
        super().__init__(clock.now, ring, ticket)
        self._clock = clock
        self._alarm = _Alarm(clock, ring, ticket)

    def park(self) -> None:
        while not self._woken:
            if not (self._clock.auto_advance and self._clock.jump()):
                self._latch.acquire()  # released when the thread is woken or an alarm is set

    def alarm(self, at: int) -> bool:
        self._alarm.set(at)
        self._nudge()
        return True

    def retire(self) -> None:
        self._alarm.cancel()


class _LoopParker(LoopParker):
    __slots__ = ("_alarm", "_clock")

    def __init__(self, clock: ManualClock, ring: Callable[[Any], object], ticket: object) -> None:
        super().__init__(asyncio.get_running_loop(), clock.now, ring, ticket)
        self.world = None  # the clock keeps its alarm, not the loop
        self._clock = clock
        self._alarm = _Alarm(clock, ring, ticket)

    def __await__(self) -> Generator[object, None, None]:
        if self._clock.auto_advance:
            self.wakeups.soon(self._jump)
        return super().__await__()

    def _jump(self) -> None:
        if not self.over and self._clock.jump():
            self.wakeups.soon(self._jump)

    def alarm(self, at: int) -> bool:
        if self._loop.is_closed():
            return False
        self.alarm_at = at
        self._alarm.set(at)
        return not self._clock.auto_advance or self.wakeups.soon(self._jump)

    def retire(self) -> None:
        self._alarm.cancel()


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that lets virtual time jump where a loop would sleep."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        clock = self._clock
        due = clock.next_due()
        if timeout is not None:
            timer = max(round((clock.seconds() + timeout) * SECOND), clock.now() + 1)
            due = timer if due is None else min(due, timer)
        if due is not None:
            clock.advance_to_ns(due)
            return ready
        others = [thread for thread in threading.enumerate() if not is_own_thread(thread.name, thread.ident)]
        if len(others) > 1:  # one of them may still wake the loop; threads of headgate do so only when asked
            return super().select(None)
        ready = super().select(0)  # a thread that has just ended may have woken the loop
        if not ready:
            raise RuntimeError("every task waits, and nothing is due on the clock: nothing can ever happen")
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        super().__init__(_JumpingSelector(clock))
        clock.on_timer = self._timer_set
        self._owner = threading.get_ident()

    def _timer_set(self) -> None:
        if threading.get_ident() != self._owner and not self.is_closed():
            self.call_soon_threadsafe(lambda: None)  # another thread waits on this clock: time may pass

    def time(self) -> float:
        return self._clock.seconds()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's
        """Wait for threads without a limit: they end in real time, and the limit would be virtual."""
        await super().shutdown_default_executor()


def run(main: Callable[[ManualClock], Coroutine[Any, Any, T]]) -> T:
    """Await `main(clock)` on an event loop whose time is virtual, and return what it returned.

    When no task can run, time jumps to the next timer, so an hour of a thousand tasks takes a
    moment. `asyncio.sleep` and time-outs follow it too. Work in threads is not waited for. Raises what `main`
    raises, and RuntimeError if every task waits and nothing is due.

    >>> async def main(clock):
    ...     await asyncio.sleep(3600)
    ...     return clock.seconds()
    >>> run(main)
    3600.0
    """
    clock = ManualClock()
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(clock)) as runner:
        return runner.run(main(clock))


class Recorder:
    """An observer that keeps every event.

    >>> from headgate import Dispatch, events
    >>> seen = Recorder()
    >>> api = Dispatch("api", observer=seen)
    >>> with api.admit():
    ...     pass
    >>> [type(event).__name__ for event in seen.events]
    ['Admitted', 'Settled']
    >>> seen.of(events.Admitted)[0].waited
    0.0
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one `kind`, a class of `headgate.events`, in order."""
        if not isinstance(kind, type) or not issubclass(kind, Event):
            raise InvalidConfig(
                f"kind={kind!r} is not a class of headgate.events; write e.g. events.Admitted"
            )
        return [event for event in self.events if isinstance(event, kind)]

    def __repr__(self) -> str:
        return f"<Recorder of {len(self.events)} events>"
