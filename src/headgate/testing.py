"""For testing code that waits: time you move yourself, and a record of what happened.

Every object of headgate that waits or reads time takes `clock=`. Give it a ManualClock and an
hour passes when you say so; threads and tasks that are due wake up, in order.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar

from .arguments import SECOND, seconds_to_ns
from .gate.clock import SystemTimer
from .gate.parking import LoopParker
from .sandbox.fake import FakeProvider
from .sharing.memory import MemoryStore
from .swarm.bus.unreliable import UnreliableBus

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping

    from .events import Event
    from .typing import Seconds, Timer

__all__ = ["FakeProvider", "ManualClock", "MemoryStore", "Recorder", "UnreliableBus", "run"]

T = TypeVar("T")
E = TypeVar("E", bound="Event")


class ManualClock:
    """A clock that moves only when told to.

    >>> from headgate import BackoffWindow
    >>> clock = ManualClock()
    >>> window = BackoffWindow(clock=clock)
    >>> window.set(60)
    >>> clock.advance(59.5)
    >>> window.remaining
    0.5

    With `auto_advance=True` a lone caller that must wait moves the time itself, so that code
    which sleeps runs straight through; `sleeps` lists how long it would have slept.

    >>> clock = ManualClock(auto_advance=True)
    >>> window = BackoffWindow(clock=clock)
    >>> window.set(60)
    >>> window.wait()
    True
    >>> clock.seconds(), clock.sleeps
    (60.0, [60.0])
    """

    quantum = 0  # exact to the nanosecond

    def __init__(self, start: float = 0.0, *, auto_advance: bool = False) -> None:
        self.auto_advance = auto_advance
        self.sleeps: list[float] = []
        self._now = round(start * SECOND)
        self._lock = threading.Lock()
        self._due: list[tuple[int, int, Callable[[int], object]]] = []
        self._serial = 0
        self._nudge: Callable[[], object] | None = None  # wakes the loop that waits for something due

    def now(self) -> int:
        """Integer nanoseconds, as every clock."""
        return self._now

    def seconds(self) -> float:
        """The same in seconds."""
        return self._now / SECOND

    def advance(self, seconds: Seconds) -> None:
        """Let time pass. Whatever falls due on the way happens at its own moment, in order."""
        self._advance_to(self._now + seconds_to_ns(seconds, "seconds"))

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Have something done when the clock reaches that many seconds."""
        self._call_at(round(when * SECOND), lambda _at: act())

    def call_at(self, at: int, act: Callable[[], object]) -> Timer:
        """Have `act()` called when the clock reaches that many nanoseconds."""
        timer = SystemTimer(at, act)
        self._call_at(at, lambda _at: timer.fire())
        return timer

    def _call_at(self, at: int, act: Callable[[int], object] | None) -> None:
        with self._lock:
            if at > self._now:
                self._serial += 1
                heappush(self._due, (at, self._serial, act))  # type: ignore[misc]  # not None yet
                act = None
        if act is not None:
            act(at)
        elif self._nudge is not None:
            self._nudge()

    def _advance_to(self, target: int) -> None:
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > target:
                    self._now = max(self._now, target)
                    return
                at, _, act = heappop(self._due)
                self._now = max(self._now, at)
            act(at)

    def _next_due(self) -> int | None:
        with self._lock:
            while self._due:
                at, _, act = self._due[0]
                alarm = getattr(act, "__self__", None)
                if not isinstance(alarm, _Alarm) or alarm.is_set_to(at):
                    return at
                heappop(self._due)  # an alarm that was cancelled, or set to ring earlier
            return None

    def _jump(self) -> bool:
        """Go to the next moment at which something is due. False: there is none."""
        at = self._next_due()
        if at is None:
            return False
        if at > self._now:
            self.sleeps.append((at - self._now) / SECOND)
        self._advance_to(at)
        return True

    def thread_parker(self, ring: Callable[[Any], object], ticket: object) -> _ThreadParker:
        return _ThreadParker(self, ring, ticket)

    def loop_parker(self, ring: Callable[[Any], object], ticket: object) -> _LoopParker:
        return _LoopParker(self, ring, ticket)

    def __repr__(self) -> str:
        return f"<ManualClock at {self.seconds():g} s>"


class _Alarm:
    """The alarm of one parker on a manual clock: the earliest moment it was told."""

    def __init__(self, clock: ManualClock, ring: Callable[[Any], object], ticket: object) -> None:
        self._clock = clock
        self._ring = ring
        self._ticket = ticket
        self._at: int | None = None

    def set(self, at: int) -> None:
        if self._at is None or at < self._at:
            self._at = at
            self._clock._call_at(at, self._fire)

    def _fire(self, at: int) -> None:
        if self._at == at:
            self._at = None
            self._ring(self._ticket)

    def is_set_to(self, at: int) -> bool:
        return self._at == at

    def cancel(self) -> None:
        self._at = None


class _ThreadParker:
    on_loop = False
    wakeups = None

    def __init__(self, clock: ManualClock, ring: Callable[[Any], object], ticket: object) -> None:
        self._clock = clock
        self._alarm = _Alarm(clock, ring, ticket)
        self._woken = False
        self._stirred = threading.Event()  # woken, or there is something to jump to

    def park(self) -> None:
        while not self._woken:
            if self._clock.auto_advance and self._clock._jump():
                continue
            self._stirred.wait()
            self._stirred.clear()

    def wake(self) -> bool:
        self._woken = True
        self._stirred.set()
        return True

    def alarm(self, at: int) -> bool:
        self._alarm.set(at)
        self._stirred.set()
        return True

    def retire(self) -> None:
        self._alarm.cancel()


class _LoopParker(LoopParker):
    on_loop = False  # the clock keeps its alarm, whatever the loop does

    __slots__ = ("_alarm", "_clock")

    def __init__(self, clock: ManualClock, ring: Callable[[Any], object], ticket: object) -> None:
        super().__init__(asyncio.get_running_loop(), clock.now, ring, ticket)
        self._clock = clock
        self._alarm = _Alarm(clock, ring, ticket)

    def __await__(self) -> Generator[object, None, None]:
        if self._clock.auto_advance:
            self.wakeups.soon(self._jump)
        return super().__await__()

    def _jump(self) -> None:
        if not self.over and self._clock._jump():
            self.wakeups.soon(self._jump)

    def alarm(self, at: int) -> bool:
        if self._loop.is_closed():
            return False
        self._alarm.set(at)
        return not self._clock.auto_advance or self.wakeups.soon(self._jump)

    def retire(self) -> None:
        self._alarm.cancel()


class _JumpingSelector(selectors.BaseSelector):
    """Where a loop would sleep, time jumps instead."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        clock = self._clock
        due = clock._next_due()
        if timeout is not None:
            timer = max(round((clock.seconds() + timeout) * SECOND), clock.now() + 1)
            due = timer if due is None else min(due, timer)
        if due is not None:
            clock._advance_to(due)
            return ready
        others = [thread for thread in threading.enumerate() if not thread.name.startswith("headgate")]
        if len(others) == 1:  # those of our own only serve others
            ready = self._real.select(0)  # one that has just ended may have had something to say
            if ready:
                return ready
            raise RuntimeError("every task waits, and nothing is due on the clock: nothing can ever happen")
        return self._real.select(None)  # a thread may still have something to say

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        super().__init__(_JumpingSelector(clock))
        clock._nudge = self._nudged
        self._owner = threading.get_ident()

    def _nudged(self) -> None:
        if threading.get_ident() != self._owner and not self.is_closed():
            self.call_soon_threadsafe(lambda: None)  # a thread waits on our clock: time may pass

    def time(self) -> float:
        return self._clock.seconds()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's
        """Threads end in real time, so none of ours limits how long they take."""
        await super().shutdown_default_executor()


def run(main: Callable[[ManualClock], Coroutine[Any, Any, T]]) -> T:
    """Await `main(clock)` on an event loop whose time is virtual.

    When nothing can run, time jumps to the next timer, so an hour of a thousand tasks takes a
    moment. `asyncio.sleep` and time-outs obey too. Work in threads is not waited for.

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
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def __repr__(self) -> str:
        return f"<Recorder of {len(self.events)} events>"
