"""How a thread and a task sleep and are woken.

A parker is woken from any thread, any number of times, and says so if its sleeper can no longer be
reached. The parker for tasks of trio is in trio_parker.py.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from sys import modules
from weakref import WeakValueDictionary

from ..hints import Any, Callable, Generator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, TimerHandle
    from contextvars import Context
    from typing import Protocol, TypeVar

    class Sleeper(Protocol):
        """A ticket, whose waiter sleeps at its parker."""

        parker: Any

    S = TypeVar("S", bound=Sleeper)

# The longest a thread sleeps before it looks at the clock again; longer timeouts overflow.
_LONGEST_SLEEP = 86_400.0


def runs_event_loop() -> bool:
    """Whether this thread runs an event loop now, of asyncio or trio. Loops of other threads do not count."""
    if in_trio():
        return True
    if "asyncio" not in modules:
        return False
    from asyncio import _get_running_loop  # noqa: PLC0415 - it is loaded

    return _get_running_loop() is not None


def in_trio() -> bool:
    """Whether a task of trio runs now in this thread."""
    trio = modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def in_notebook() -> bool:
    """Whether this is the thread in which a Jupyter kernel runs all cells, inside its event loop."""
    if "ipykernel" not in modules:
        return False
    from threading import main_thread  # noqa: PLC0415 - a notebook has loaded it

    return get_ident() == main_thread().ident


def _nothing(_ticket: object) -> None:
    pass


class ThreadParker:
    """A thread sleeps on a lock that others release. It keeps its own alarm by a time-out."""

    world = None
    wakeups = None

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
                self._nudge()  # it sleeps for longer, or without end
        return True

    def retire(self) -> None:
        self._ring, self._ticket = _nothing, None  # leave no circle for the collector

    def _nudge(self) -> None:
        try:  # noqa: SIM105 - contextlib would double the time of importing headgate
            self._latch.release()
        except RuntimeError:
            pass  # nudged already


class Wakeups:
    """How the sleepers of one event loop are woken: those woken together, by one callback.

    Futures would take a callback for each, and the loop longer for it than a gate does for all the rest.
    """

    __slots__ = ("__weakref__", "_running", "loop", "over")

    def __init__(self, loop: AbstractEventLoop) -> None:
        from asyncio import _get_running_loop  # noqa: PLC0415 - a caller on an event loop has loaded it

        self.loop = loop
        self.over: Future[None] = loop.create_future()  # what a task is told when it is woken
        self.over.set_result(None)
        self._running = _get_running_loop

    @staticmethod
    def of(loop: AbstractEventLoop) -> Wakeups:
        wakeups = _wakeups.get(id(loop))
        if wakeups is None:
            wakeups = _wakeups[id(loop)] = Wakeups(loop)
        return wakeups

    def here(self) -> bool:
        """Is it this thread that runs the loop?"""
        return self._running() is self.loop

    def soon(self, act: Callable[..., object], *args: object) -> bool:
        """Do it on the loop, wherever that runs. False: it is closed."""
        loop = self.loop
        if self.here():
            loop.call_soon(act, *args)
            return True
        try:
            loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            if not loop.is_closed():
                raise
        return not loop.is_closed()

    def run(self, parkers: list[LoopParker]) -> None:
        if len(parkers) > 1:
            # First of all, so that none stays asleep if one raises Ctrl-C or runs the loop from within.
            self.loop.call_soon(self.run, parkers)
        parker = step = context = None
        for parker in parkers:
            step, context = parker.step, parker.context
            if step is not None:
                parker.step = parker.context = parker.ticket = None
                context.run(step, parker.told)
        parkers.clear()
        parker = step = context = None  # an error that one of them keeps knows this frame


# By the identity of the loop, which each keeps alive as long as a task sleeps there.
_wakeups: WeakValueDictionary[int, Wakeups] = WeakValueDictionary()


def wake_all(sleepers: list[S]) -> list[S]:
    """End the sleep of all of them, in order. Who can no longer be reached?"""
    if len(sleepers) == 1:
        return [] if sleepers[0].parker.wake() else sleepers
    together: dict[Wakeups, list[LoopParker]] = {}
    lost = []
    latest, parkers = None, []
    for sleeper in sleepers:
        parker = sleeper.parker
        wakeups = parker.wakeups
        if wakeups is None:
            if not parker.wake():
                lost.append(sleeper)
            continue
        if wakeups is not latest:
            latest, parkers = wakeups, together.setdefault(wakeups, [])
        parker.over = True
        parkers.append(parker)
    for wakeups, parkers in together.items():
        if not wakeups.soon(wakeups.run, parkers):
            lost += [sleeper for sleeper in sleepers if sleeper.parker.wakeups is wakeups]
    return lost


class LoopParker:
    """A task sleeps on its parker as on a future: the parker answers what a task asks of one.

    The loop keeps the alarm by a timer, without waking the task.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_loop",
        "_now",
        "_ring",
        "_timer",
        "alarm_at",
        "context",
        "over",
        "step",
        "ticket",
        "told",
        "wakeups",
        "world",
    )

    def __init__(
        self, loop: AbstractEventLoop, now: Callable[[], int], ring: Callable[[Any], object], ticket: object
    ) -> None:
        self._loop = loop  # where a task looks for it, too
        self.wakeups = wakeups = Wakeups.of(loop)
        self.world: Wakeups | None = wakeups
        self._now = now
        self._ring = ring
        self.ticket = ticket  # until it is woken: there is to be no circle for the collector
        self.alarm_at: int | None = None  # when its alarm rings
        self._timer: TimerHandle | None = None
        self.over = False  # woken or cancelled
        self.told = wakeups.over
        self.step: Callable[[Future[None]], object] | None = None  # makes the task go on ...
        self.context: Any = None  # ... in its context
        self._asyncio_future_blocking = False

    # -- what a task asks of a future

    def __await__(self) -> Generator[object, None, None]:
        # To await takes an iterator, whatever its type says; this one needs no frame to run in.
        if self.over:
            self.ticket = None
            return iter(())  # type: ignore[return-value]  # see above
        self._asyncio_future_blocking = True
        return iter((self,))  # type: ignore[return-value]  # see above

    def add_done_callback(self, step: Callable[[Future[None]], object], *, context: Context) -> None:
        self.context = context
        self.step = step
        if self.over:  # since it was awaited: a finalizer may give a place back between any two steps
            self.wake()

    def cancel(self, msg: object = None) -> bool:
        woken = self.over
        if not woken:
            self.told = self._loop.create_future()
            self.told.cancel(msg)
        # Even if it was woken: Ctrl-C may have struck just when the loop took up the woken ones.
        return self.wake() and not woken

    def _go_on(self) -> None:
        step = self.step
        if step is not None:  # it may have been told twice
            self.step = self.context = self.ticket = None
            step(self.told)
            del step  # as in `Wakeups.run`

    # -- what a gate asks of a parker

    def wake(self) -> bool:
        self.over = True
        wakeups = self.wakeups
        if not wakeups.here():
            return wakeups.soon(wakeups.run, [self])
        if self.step is not None:
            self._loop.call_soon(self._go_on, context=self.context)
        return True

    def alarm(self, at: int) -> bool:
        if self.alarm_at is not None and at >= self.alarm_at:
            return not self._loop.is_closed()  # an alarm that was set there will never ring
        self.alarm_at = at
        if not self.wakeups.here():
            return self.wakeups.soon(self._set_timer)
        self._set_timer()
        return True

    def retire(self) -> None:
        self.alarm_at = None
        self._ring, self.ticket = _nothing, None  # leave no circle for the collector
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.alarm_at is not None and not self.over:
            left = self.alarm_at - self._now()
            self._timer = self._loop.call_later(max(0.0, left / 1e9), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.alarm_at = None
        if not self.over:  # else another thread set the alarm just when the task was woken
            self._ring(self.ticket)
