"""The one who travels: a daemon thread with an event loop, for everything that is shared over a network.

Rules of this room: callers never wait here. They leave work and go back to their gate; answers come
through the gate's own lock. It starts with the first work, is joined at exit, and a forked child begins
without one.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from sys import is_finalizing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Errand = Callable[[], Coroutine[Any, Any, None]]

# How long the end of the process waits for what is on its way, e.g. leases that go back.
_FAREWELL = 2.0


class Courier:
    """One for each process: `courier.send(errand)` runs a coroutine function on its loop, and never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._partings: set[asyncio.Task[None]] = set()

    def send(self, errand: Errand) -> None:
        """Have it done. What it raises is reported to the log: it should deal with its errors itself."""
        self.soon(lambda: self._start(errand))

    def part(self, errand: Errand) -> None:
        """The same, for a goodbye: the end of the process waits for it, for a moment."""
        self.soon(lambda: self._partings.add(self._start(errand)))

    def soon(self, act: Callable[[], object]) -> None:
        """Call a plain function on the loop."""
        # While the interpreter ends, finalizers still bring work. No other thread runs any more: whoever
        # starts one, or wants a lock that one has, waits for ever.
        if not is_finalizing():
            self._running_loop().call_soon_threadsafe(act)

    def wait_for(self, errand: Callable[[], Coroutine[Any, Any, Any]], timeout: float) -> Any:
        """For closing and for tests: run it and wait, from any thread but the courier's own."""
        return asyncio.run_coroutine_threadsafe(errand(), self._running_loop()).result(timeout)

    @property
    def here(self) -> bool:
        """Is this the courier's own thread?"""
        return threading.current_thread() is self._thread

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():  # forked: the thread stayed with the parent
            self.__init__()  # type: ignore[misc]  # it begins anew, as the same object
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # Threads that look up names: ours, by their own name too, as `headgate.testing` has to know.
                self._loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="headgate errands"))
                self._thread = threading.Thread(
                    target=self._travel, args=(self._loop,), name="headgate courier", daemon=True
                )
                self._thread.start()
            return self._loop

    def _travel(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _start(self, errand: Errand) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(errand())
        self._errands.add(task)  # a loop alone does not keep its tasks alive
        task.add_done_callback(self._is_back)
        return task

    def _is_back(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        self._partings.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logging.getLogger("headgate").error("an errand of the courier failed", exc_info=error)

    def retire(self) -> None:
        """Let what is on its way arrive, for a moment, and stop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._last_errands(), loop).result(_FAREWELL)
        except Exception:  # whatever has not arrived by now is lost; leases run out by themselves
            logging.getLogger("headgate").debug("the courier left something behind", exc_info=True)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_FAREWELL)
        if not thread.is_alive():
            loop.close()

    async def _last_errands(self) -> None:
        if self._partings:
            await asyncio.wait(set(self._partings), timeout=_FAREWELL / 4)
        for _ in range(3):  # one that is cancelled may start another, to say goodbye
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_FAREWELL / 4)


COURIER = Courier()
atexit.register(COURIER.retire)
