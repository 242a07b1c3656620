"""Callers that are threads, tasks of asyncio or trio, or all in turn, so that each can run one scenario."""

import asyncio
import importlib.util
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
        self._run_of_trio = RunOfTrio() if kind in ("trio", "all") else None

    def join(self, gate, count=1, **arguments):
        """Start callers one after the other; each waits or is admitted before the next one starts."""
        visits = []
        for _ in range(count):
            self._count += 1
            visit = Visit(self._count)
            before = gate.snapshot().waiting
            self._starters()[self._count % len(self._starters())](gate, visit, arguments)
            eventually(
                lambda visit=visit, before=before: (
                    visit.permit or visit.error or gate.snapshot().waiting > before
                ),
                "the visitor reaches the gate",
            )
            visits.append(visit)
        return visits

    def _starters(self):
        """How callers of this kind are started, in turn."""
        thread, task = self._start_thread, self._start_task
        starters = {"threads": [thread], "asyncio": [task], "both": [task, thread]}
        if self._run_of_trio is not None:
            by_trio = self._run_of_trio.start
            starters |= {"trio": [by_trio], "all": [task, thread, by_trio]}
        return starters[self.kind]

    def leave(self, visit):
        """Have an admitted caller leave, and wait until it has left."""
        visit.let_go()
        assert visit.over.wait(PATIENCE)

    def cancel(self, visit):
        """Cancel a waiting task. Threads cannot be cancelled; they need a timeout."""
        if self.kind == "trio":
            self._run_of_trio.soon(visit.scope.cancel)
        else:
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
        if self._run_of_trio is not None:
            self._run_of_trio.close()
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


class RunOfTrio:
    """A run of trio in a thread of its own, whose tasks are callers."""

    def __init__(self):
        import trio

        self._trio = trio
        self._began = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        assert self._began.wait(PATIENCE)

    async def _main(self):
        async with self._trio.open_nursery() as self._nursery:
            self._over = self._trio.Event()
            self._token = self._trio.lowlevel.current_trio_token()
            self._began.set()
            await self._over.wait()

    def soon(self, act, *args):
        """Do it in the thread of the run."""
        self._token.run_sync_soon(act, *args)

    def start(self, gate, visit, arguments):
        gone, visit.scope = self._trio.Event(), self._trio.CancelScope()
        visit.let_go = lambda: self.soon(gone.set)

        async def body():
            try:
                with visit.scope, self._trio.fail_after(PATIENCE):
                    async with gate.admit(**arguments) as permit:
                        visit.permit = permit
                        await gone.wait()
            except BaseException as error:  # noqa: BLE001 - any error is a result
                visit.error = error
            finally:
                visit.over.set()

        self.soon(self._nursery.start_soon, body)

    def close(self):
        self.soon(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a task of trio was left waiting"


KINDS = ["threads", "asyncio", "both", *(["trio", "all"] if importlib.util.find_spec("trio") else [])]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=KINDS)
def visitors(request, clock):
    crowd = Visitors(request.param, clock)
    yield crowd
    crowd.close()
