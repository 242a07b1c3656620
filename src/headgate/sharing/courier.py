"""The courier: one daemon thread with an event loop, which does all I/O with stores and buses.

Callers never wait for it. They leave an errand and go back to their gate, and answers come through the lock
of the gate. The thread starts with the first errand and is joined at exit. A forked child starts without one.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from sys import is_finalizing
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from ..gate.clock import OWN_THREADS
from ..gate.forks import after_executors, never_free, reset_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Errand = Callable[[], Coroutine[Any, Any, None]]

# How many seconds the end of the process waits for errands, e.g. for leases that are returned.
_LAST_WAIT = 2.0


class Connected(Protocol):
    """What has connections on the loop where it is used."""

    async def let_go(self) -> None:
        """Close the connections. Later use makes others."""


class Courier:
    """The courier of this process. `send` runs a coroutine function on its loop, and never waits."""

    def __init__(self) -> None:
        self._is_in_child = False
        self._start_clean()
        after_executors()
        reset_in_child(self, first=True)

    def _start_clean(self) -> None:
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._last_errands: set[asyncio.Task[None]] = set()
        self._connected: WeakSet[Connected] = WeakSet()

    def after_fork(self) -> None:
        if self._loop is not None:
            never_free((self._loop, self._errands))
        self._is_in_child = True
        self._start_clean()

    def send(self, errand: Errand) -> None:
        """Have the errand done. It handles its errors itself; what it raises is only logged."""
        self.soon(lambda: self.start(errand))

    def send_last(self, errand: Errand) -> None:
        """Have the errand done, and let the end of the process wait for it, for a moment."""
        self.soon(lambda: self.start(errand, last=True))

    def soon(self, act: Callable[[], object]) -> None:
        """Call a plain function on the loop."""
        # While the interpreter ends, finalizers still bring work. No other thread runs then: to start one, or
        # to wait for a lock that one has, would never end.
        if not is_finalizing():
            self._running_loop().call_soon_threadsafe(act)

    def wait_for(self, errand: Callable[[], Coroutine[Any, Any, Any]], timeout: float) -> Any:
        """Run the errand and wait for its result, from any thread but the courier's own."""
        return asyncio.run_coroutine_threadsafe(errand(), self._running_loop()).result(timeout)

    def start(self, errand: Errand, *, last: bool = False) -> None:
        """Do what `send` does, or `send_last` if `last`, at once: on the courier's thread only."""
        task = asyncio.get_running_loop().create_task(errand())
        self._errands.add(task)  # a loop alone does not keep its tasks alive
        if last:
            self._last_errands.add(task)
        task.add_done_callback(self._done)

    def let_go_at_end(self, what: Connected) -> None:
        """When the process ends, close what connections this has on the loop of the courier.

        Python warns of connections that are left open. An exit handler that runs later may still use them.
        A forked child leaves them to the system: the last one to close a file of SQLite takes its journal.
        """
        if self.here and not self._is_in_child:
            self._connected.add(what)

    @property
    def here(self) -> bool:
        """Whether this is the courier's own thread."""
        return threading.current_thread() is self._thread

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None:
            return loop
        with self._lock:
            if self._loop is not None:
                return self._loop
            loop = asyncio.new_event_loop()
            # The threads in which asyncio looks up host names.
            loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{OWN_THREADS}lookups"))
            return self._adopt(loop)

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        """Run this loop, unless a finalizer in this thread has left an errand meanwhile, and started one."""
        thread = threading.Thread(target=loop.run_forever, name=f"{OWN_THREADS}courier", daemon=True)
        if self._loop is not None:
            loop.close()
            return self._loop
        self._loop, self._thread = loop, thread
        thread.start()
        return loop

    def _done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        self._last_errands.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logging.getLogger("headgate").error("an errand of the courier failed", exc_info=error)

    def retire(self) -> None:
        """Give the last errands a moment, cancel the others, and end the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._finish(), loop).result(_LAST_WAIT)
        except Exception:  # errands that have not arrived are lost; leases end by themselves
            logging.getLogger("headgate").debug("the courier left errands undone", exc_info=True)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LAST_WAIT)
        if not thread.is_alive():
            loop.close()

    async def _finish(self) -> None:
        if self._last_errands:
            await asyncio.wait(set(self._last_errands), timeout=_LAST_WAIT / 4)
        for _ in range(3):  # a cancelled errand may start another, e.g. to return its leases
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_LAST_WAIT / 5)
        closing = [asyncio.ensure_future(each.let_go()) for each in self._connected]
        if closing:
            await asyncio.wait(closing, timeout=_LAST_WAIT / 10)


async def stop(*tasks: asyncio.Task[Any], again: float = 0.25) -> None:
    """Cancel tasks and wait until they have ended.

    Some libraries lose a cancellation that comes while they connect: so tasks that have not ended after that
    time are cancelled `again`. A task that stops others in the end needs more of it.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=again)
    await asyncio.gather(*tasks, return_exceptions=True)


def settle(future: asyncio.Future[Any], given: object) -> None:
    """Give a future its result or its exception, unless it was cancelled."""
    if future.done():
        return
    if isinstance(given, BaseException):
        future.set_exception(given)
    else:
        future.set_result(given)


COURIER = Courier()
atexit.register(COURIER.retire)
