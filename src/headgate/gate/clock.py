"""What time it is, how to sleep, and how to have something done at a moment.

Time is integer nanoseconds that never run backwards. Everything that waits or reads time does it
through a clock, so that a test can hand in one that it moves by itself.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from heapq import heapify, heappop, heappush
from sys import modules
from time import monotonic_ns, time_ns

from ..errors import InvalidConfig
from ..hints import Any, Callable, Clock, Timer, later
from ..light import LazyModule, deque
from .forks import reset_in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..typing import LoopParking
    from . import parking
    from .parking import ThreadParker
else:
    parking = LazyModule("headgate.gate.parking")
    ThreadParker = later("headgate.gate.parking", "ThreadParker")
    LoopParking = later("headgate.typing", "LoopParking")

# The names of all threads of headgate begin with this, so that `headgate.testing.run` can tell them from
# threads of the program that may still wake an event loop.
OWN_THREADS = "headgate "

# How long the thread that keeps the timers stays without one, in seconds, before it ends.
_LINGER = 1.0

# The longest that the thread sleeps at once; a longer time-out would overflow.
_LONGEST_SLEEP = 86_400.0


class SystemClock:
    """The machine's monotonic clock, and its wall clock for periods of the calendar."""

    __slots__ = ()

    # With a long line, one timer for a hundred calls costs a fraction of a timer for each.
    quantum = 50_000_000

    now = staticmethod(monotonic_ns)
    wall = staticmethod(time_ns)

    def seconds(self) -> float:
        return monotonic_ns() / 1e9

    def thread_parker(self, ring: Callable[[Any], object], ticket: object) -> ThreadParker:
        return parking.ThreadParker(monotonic_ns, ring, ticket)

    def loop_parker(self, ring: Callable[[Any], object], ticket: object) -> LoopParking:
        if "trio" in modules and parking.in_trio():
            from .trio_parker import TrioParker  # noqa: PLC0415 - it needs trio

            return TrioParker(self, ring, ticket)
        from asyncio import get_running_loop  # noqa: PLC0415 - a caller on an event loop has loaded it

        return parking.LoopParker(get_running_loop(), monotonic_ns, ring, ticket)

    def call_at(self, at: int, act: Callable[[], object]) -> Timer:
        return _TIMERS.add(at, act)

    def __repr__(self) -> str:
        return "SYSTEM"


class SystemTimer:
    """One thing to be done at a moment."""

    __slots__ = ("_act", "at")

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.at = at
        self._act: Callable[[], object] | None = act

    def cancel(self) -> None:
        """Do not do it. What is being done already goes on."""
        self._act = None

    @property
    def cancelled(self) -> bool:
        return self._act is None

    def fire(self) -> None:
        """Do it now, once. An error is logged: the thread that keeps the timers goes on."""
        act, self._act = self._act, None
        if act is None:
            return
        try:
            act()
        except BaseException:  # also SystemExit and a cancelled future: they would end all timers
            from logging import getLogger  # noqa: PLC0415 - importing it takes longer than importing headgate

            getLogger("headgate").exception("a timer of headgate failed")

    def __lt__(self, other: SystemTimer) -> bool:
        return self.at < other.at


class _Timers:
    """All timers of this process, kept by one daemon thread that ends when there is none left.

    Finalizers add and cancel timers at any moment, so neither waits for a lock: new timers go into
    a queue that the thread reads, and only the thread touches the heap.
    """

    __slots__ = ("__weakref__", "_added", "_latch", "_on_duty", "thread")
    thread: int  # the identity of the last one that was started

    def __init__(self) -> None:
        self.after_fork()
        reset_in_child(self, first=True)

    def add(self, at: int, act: Callable[[], object]) -> SystemTimer:
        timer = SystemTimer(at, act)
        self._added.append(timer)
        if not self._on_duty:
            self._start()
        self._nudge()
        return timer

    def after_fork(self) -> None:
        """In a forked child: the thread and its timers stayed with the parent."""
        self.thread = 0
        self._added: deque[SystemTimer] = deque()
        self._on_duty: dict[str, object] = {}  # one entry while the thread runs; writing it is one step
        self._latch = allocate_lock()
        self._latch.acquire()

    def _start(self) -> None:
        mine = object()
        try:
            if self._on_duty.setdefault("thread", mine) is mine:
                self.thread = start_new_thread(self._keep, ())
        except BaseException as error:
            # If Ctrl-C struck after the start, another thread will start: two of them do no harm.
            if self._on_duty.get("thread") is mine:
                self._on_duty.pop("thread", None)
            # The interpreter is shutting down, or there are too many threads.
            if not isinstance(error, RuntimeError):
                raise

    def _nudge(self) -> None:
        try:  # noqa: SIM105 - contextlib would double the time of importing headgate
            self._latch.release()
        except RuntimeError:
            pass  # nudged already

    def _keep(self) -> None:
        heap: list[SystemTimer] = []
        compact_at = 64
        while True:
            while self._added:
                try:
                    heappush(heap, self._added.popleft())
                except IndexError:
                    break  # another thread was quicker
            if len(heap) > compact_at:
                heap = [timer for timer in heap if not timer.cancelled]
                heapify(heap)
                compact_at = max(64, 2 * len(heap))
            now = monotonic_ns()
            while heap and (heap[0].cancelled or heap[0].at <= now):
                heappop(heap).fire()
            if self._added:
                continue
            left = (heap[0].at - monotonic_ns()) / 1e9 if heap else _LINGER
            nudged = self._latch.acquire(timeout=min(max(left, 0.0), _LONGEST_SLEEP))
            if heap or nudged or self._added:
                continue
            self._on_duty.pop("thread", None)
            # A timer that was added before this line found the thread on duty, and is read by it now.
            if not self._added:
                return
            mine = object()
            if self._on_duty.setdefault("thread", mine) is not mine:
                return  # another thread has begun


SYSTEM = SystemClock()
_TIMERS = _Timers()


def is_own_thread(name: str, identity: int | None) -> bool:
    """Is a thread of that name and identity one of headgate?

    The thread that keeps the timers has no name of its own. `threading` calls it "Dummy-1" as soon as what a
    timer does asks for the current thread. When it has ended, a thread of another name may get its identity.
    """
    return name.startswith(OWN_THREADS) or (identity == _TIMERS.thread and name.startswith("Dummy-"))


def sleep(clock: Clock, duration: int) -> None:
    """Let `duration` nanoseconds pass on that clock, in the calling thread."""
    parker = clock.thread_parker(lambda _ticket: parker.wake(), None)
    try:
        parker.alarm(clock.now() + duration)
        parker.park()
    finally:
        parker.retire()


async def sleep_async(clock: Clock, duration: int) -> None:
    """Let `duration` nanoseconds pass on that clock, in the running task."""
    parker = clock.loop_parker(lambda _ticket: parker.wake(), None)
    try:
        parker.alarm(clock.now() + duration)
        await parker
    finally:
        parker.retire()


def default_random() -> float:
    """A random number from 0 to 1, for objects that are not given `random=`."""
    from random import random  # noqa: PLC0415 - importing it takes longer than importing headgate

    return random()  # noqa: S311 - spreads waiting callers; guessing it gains nothing


def read_clock(clock: Clock) -> Clock:
    """The clock as it is. Raises for a function that tells the time, and for a class of clocks."""
    if isinstance(clock, type) or not hasattr(clock, "now"):
        raise InvalidConfig(
            f"clock={clock!r} is not a clock; write headgate.testing.ManualClock(), or leave clock out"
        )
    return clock
