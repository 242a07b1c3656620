"""Callers that are threads, tasks, or both in turn, so that one scenario can be run by each of them."""

import asyncio
import threading

import pytest

from headgate.testing import ManualClock
from patience import PATIENCE, eventually


class Visit:
    """One caller: it waits at the gate and keeps its permit until it is told to leave."""

    def __init__(self, name):
        self.name = name
        self.permit = None
        self.error = None
        self.over = threading.Event()

    @property
    def inside(self):
        return self.permit is not None and not self.over.is_set()


class Visitors:
    def __init__(self, kind, clock):
        self.kind = kind
        self.clock = clock
        self._count = 0
        self._loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._loop.run_forever)
        self._loop_thread.start()
        self._threads = []
        self._tasks = []

    def join(self, gate, count=1, **arguments):
        """Start callers one after the other; each waits or is admitted before the next one starts."""
        visits = []
        for _ in range(count):
            self._count += 1
            visit = Visit(self._count)
            before = gate.snapshot().waiting
            if self.kind == "threads" or (self.kind == "both" and self._count % 2):
                self._start_thread(gate, visit, arguments)
            else:
                self._start_task(gate, visit, arguments)
            eventually(
                lambda visit=visit, before=before: (
                    visit.permit or visit.error or gate.snapshot().waiting > before
                ),
                "the visitor reaches the gate",
            )
            visits.append(visit)
        return visits

    def leave(self, visit):
        """Have an admitted caller leave, and wait until it has left."""
        visit.let_go()
        assert visit.over.wait(PATIENCE)

    def cancel(self, visit):
        """Cancel a waiting task. Threads cannot be cancelled; they need a timeout."""
        self._loop.call_soon_threadsafe(visit.task.cancel)
        assert visit.over.wait(PATIENCE)

    def _start_thread(self, gate, visit, arguments):
        gone = threading.Event()
        visit.let_go = gone.set

        def body():
            try:
                with gate.admit(**arguments) as permit:
                    visit.permit = permit
                    assert gone.wait(PATIENCE)
            except BaseException as error:  # noqa: BLE001 - any error is a result
                visit.error = error
            finally:
                visit.over.set()

        thread = threading.Thread(target=body)
        thread.start()
        self._threads.append(thread)

    def _start_task(self, gate, visit, arguments):
        async def body():
            gone = asyncio.Event()
            visit.let_go = lambda: self._loop.call_soon_threadsafe(gone.set)
            try:
                async with gate.admit(**arguments) as permit:
                    visit.permit = permit
                    await asyncio.wait_for(gone.wait(), PATIENCE)
            except BaseException as error:  # noqa: BLE001 - any error is a result
                visit.error = error
            finally:
                visit.over.set()

        async def start():
            visit.task = asyncio.ensure_future(body())
            self._tasks.append(visit.task)

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(PATIENCE)

    def close(self):
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread was left waiting"

        async def finish():
            _done, pending = await asyncio.wait(self._tasks, timeout=PATIENCE) if self._tasks else ((), ())
            return pending

        pending = asyncio.run_coroutine_threadsafe(finish(), self._loop).result(2 * PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join(PATIENCE)
        self._loop.close()
        assert not pending, "a task was left waiting"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["threads", "asyncio", "both"])
def visitors(request, clock):
    crowd = Visitors(request.param, clock)
    yield crowd
    crowd.close()
