"""How tasks sleep at a gate and wake: cancelled, interrupted and abandoned as if they awaited a future."""

import asyncio
import gc
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from weakref import ref

import pytest

from headgate import BackoffWindow, CapacityExhausted, Dispatch, MemoryLimiter, RateLimiter, WaitTimeout
from headgate.gate.line import Ticket
from headgate.gate.parking import LoopParker
from headgate.testing import run
from patience import PATIENCE, eventually

KINDS_OF_TASK = {
    "compiled": asyncio.Task,
    "in Python": asyncio.tasks._PyTask,  # the task class of PyPy, also used by some debuggers
}


# What asyncio is asked about tasks. Since Python 3.14 the compiled functions do not know of tasks in Python.
ABOUT_TASKS = ("current_task", "_enter_task", "_leave_task", "_swap_current_task")


@pytest.fixture(params=KINDS_OF_TASK)
def loop(request, monkeypatch):
    """A loop that creates its tasks with the given class."""
    kind = KINDS_OF_TASK[request.param]
    if kind is not asyncio.Task and sys.version_info >= (3, 14):
        for name in ABOUT_TASKS:
            for place in (asyncio, asyncio.tasks):
                monkeypatch.setattr(
                    place, name, getattr(asyncio.tasks, f"_py_{name.removeprefix('_')}"), raising=False
                )
    loop = asyncio.new_event_loop()
    loop.set_task_factory(lambda loop, coroutine, **more: kind(coroutine, loop=loop, **more))
    yield loop
    if not loop.is_closed():
        loop.close()


async def visit(gate, seen=None, name=None):
    async with gate.admit():
        if seen is not None:
            seen.append(name)


async def until_waiting(gate, count):
    """Run the tasks created just now until each of them waits."""
    await asyncio.sleep(0)
    assert gate.snapshot().waiting == count


def test_tasks_admitted_together_take_one_callback_of_their_loop(loop):
    window = BackoffWindow()
    gate = Dispatch(window=window, pause=True)
    calls, seen = [], []
    call_soon = loop.call_soon

    def counting(callback, *args, context=None):
        calls.append(callback)
        return call_soon(callback, *args, context=context)

    async def main():
        window.set(60)
        tasks = [asyncio.create_task(visit(gate, seen, i)) for i in range(50)]
        await until_waiting(gate, 50)
        loop.call_soon = counting
        window.clear()
        del loop.call_soon
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    assert len(calls) == 1
    assert seen == list(range(50))


def test_each_admitted_task_continues_in_its_own_context(loop):
    gate = Dispatch(concurrency=1)
    who = ContextVar("who", default="nobody")
    found = []

    async def visitor(name):
        who.set(name)
        async with gate.admit():
            found.append((name, who.get()))

    async def main():
        holder = gate.try_admit()
        tasks = [asyncio.create_task(visitor(i)) for i in range(5)]
        await until_waiting(gate, 5)
        who.set("the task that left")
        holder.settle()
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    assert found == [(i, i) for i in range(5)]


def test_a_cancelled_task_gets_its_message_and_the_others_move_up(loop):
    gate = Dispatch(concurrency=1)

    async def main():
        holder = gate.try_admit()
        first, second = (asyncio.create_task(visit(gate)) for _ in range(2))
        await until_waiting(gate, 2)
        first.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await first
        assert gate.snapshot().waiting == 1
        holder.settle()
        await second

    loop.run_until_complete(main())
    assert gate.snapshot().in_flight == 0


def test_a_task_that_cancels_itself_before_it_joins_does_not_stay_in_line(loop):
    gate = Dispatch(concurrency=1)

    async def visitor():
        asyncio.current_task().cancel()
        await visit(gate)

    async def main():
        holder = gate.try_admit()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(visitor())
        assert gate.snapshot().waiting == 0
        holder.settle()

    loop.run_until_complete(main())
    assert gate.snapshot().in_flight == 0


@pytest.mark.parametrize("first", ["cancelled", "let in"])
def test_a_task_cancelled_in_the_moment_of_its_admission_keeps_no_place(loop, first):
    gate = Dispatch(concurrency=1)

    async def main():
        holder = gate.try_admit()
        task = asyncio.create_task(visit(gate))
        await until_waiting(gate, 1)
        for act in (task.cancel, holder.settle)[:: 1 if first == "cancelled" else -1]:
            act()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(visit(gate), PATIENCE)

    loop.run_until_complete(main())
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


def test_a_task_admitted_while_it_goes_to_sleep_is_woken(loop, monkeypatch):
    """The garbage collector may run at any moment and find a permit that was dropped."""
    gate = Dispatch(concurrency=1)
    fall_asleep = LoopParker.add_done_callback

    def drop_first(parker, step, *, context):
        dropped.clear()
        fall_asleep(parker, step, context=context)

    async def main():
        await asyncio.wait([asyncio.create_task(visit(gate))], timeout=PATIENCE)

    dropped = [gate.try_admit()]
    monkeypatch.setattr(LoopParker, "add_done_callback", drop_first)
    with pytest.warns(ResourceWarning, match="dropped without settle"):
        loop.run_until_complete(main())
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_task_that_ends_the_program_leaves_no_task_asleep_that_was_woken_with_it(loop, end):
    window = BackoffWindow()
    gate = Dispatch(window=window, pause=True)
    seen = []

    async def ends():
        async with gate.admit():
            raise end

    async def main():
        window.set(60)
        tasks = [asyncio.create_task(visit(gate, seen, i)) for i in range(2)]
        await until_waiting(gate, 2)
        ending = asyncio.create_task(ends())
        await until_waiting(gate, 3)
        tasks += [asyncio.create_task(visit(gate, seen, i)) for i in range(2, 5)]
        await until_waiting(gate, 6)
        loop.call_soon(window.clear)
        return tasks, ending

    tasks, ending = loop.run_until_complete(main())
    with pytest.raises(end):
        loop.run_until_complete(tasks[-1])
    assert seen == [0, 1]
    loop.run_until_complete(asyncio.gather(*tasks))  # the error was caught, and the loop runs again
    assert seen == [0, 1, 2, 3, 4]
    assert type(ending.exception()) is end


def run_from_within(loop, task):
    """A task runs its own loop until another task is done, as notebooks do with nest_asyncio."""
    current = asyncio.current_task()
    asyncio.tasks._leave_task(loop, current)
    try:
        for _ in range(1000):
            if task.done():
                return
            loop.call_soon(lambda: None)  # so that the loop does not sleep
            loop._run_once()
    finally:
        asyncio.tasks._enter_task(loop, current)
    raise AssertionError("the task was woken and never ran")


@pytest.mark.parametrize("waits_for", [2, 5], ids=["one woken with it", "one woken later"])
def test_a_task_that_runs_the_loop_from_within_does_not_keep_the_others_asleep(loop, waits_for):
    gate = Dispatch(concurrency=3)
    holders = [gate.try_admit() for _ in range(3)]
    tasks, seen = [], []

    async def first():
        async with gate.admit():
            run_from_within(loop, tasks[waits_for])
            seen.append("the first")

    async def main():
        tasks.append(asyncio.create_task(first()))
        tasks.extend(asyncio.create_task(visit(gate, seen, i)) for i in range(1, 8))
        await until_waiting(gate, 8)
        for holder in holders:
            holder.settle()
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    assert sorted(seen, key=str) == [*range(1, 8), "the first"]
    assert seen.index(waits_for) < seen.index("the first")


def test_a_chain_of_calls_that_never_wait_lets_other_tasks_of_the_loop_run(loop):
    """A place that is handed from task to task hundreds of times must not delay a reply."""
    gate = Dispatch(concurrency=1)
    seen, ticks = [], []

    def tick():
        ticks.append(len(seen))
        loop.call_soon(tick)

    async def main():
        holder = gate.try_admit()
        tasks = [asyncio.create_task(visit(gate, seen, i)) for i in range(400)]
        await until_waiting(gate, 400)
        loop.call_soon(tick)
        holder.settle()
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    assert seen == list(range(400))
    longest = max(later - earlier for earlier, later in pairwise(ticks))
    assert longest < 20


def forget(tasks):
    """Drop the last references to these tasks."""
    for task in tasks:
        task._log_destroy_pending = False
    tasks.clear()
    gc.collect()


class Thread:
    """A thread that waits at the gate."""

    def __init__(self, gate):
        self.served = threading.Event()
        self._thread = threading.Thread(target=self._visit, args=(gate,))
        waiting = gate.snapshot().waiting
        self._thread.start()
        eventually(lambda: gate.snapshot().waiting > waiting, "the thread waits, too")

    def _visit(self, gate):
        with gate.admit():
            self.served.set()

    def join(self):
        assert self.served.wait(PATIENCE)
        self._thread.join(PATIENCE)


async def join(gate, count):
    tasks = [asyncio.create_task(visit(gate)) for _ in range(count)]
    await until_waiting(gate, count)
    return tasks


def test_a_place_freed_after_a_loop_closed_is_not_given_to_the_tasks_of_that_loop(loop):
    """One task was woken before its loop closed and never ran; a second grant must not go there too."""
    gate = Dispatch(concurrency=2)
    holders = [gate.try_admit(), gate.try_admit()]
    tasks = loop.run_until_complete(join(gate, 2))
    thread = Thread(gate)
    holders[0].settle()  # the loop is not running: its first task is woken and never runs
    loop.close()
    holders[1].settle()
    thread.join()
    forget(tasks)
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


def test_a_place_given_to_a_closed_loop_comes_back_though_other_tasks_of_it_are_still_in_line(loop):
    """Waiting tickets keep each other alive in the line; an admitted one must not be kept alive by them."""
    gate = Dispatch(concurrency=1)
    holder = gate.try_admit()
    tasks = loop.run_until_complete(join(gate, 3))
    thread = Thread(gate)
    holder.settle()  # granted to the first task, which never runs
    loop.close()
    forget(
        tasks
    )  # its place goes to the second and the third task, which cannot be reached, and to the thread
    thread.join()
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


@pytest.mark.parametrize("debug", [False, True])
def test_a_loop_may_be_run_by_one_thread_after_another(loop, debug):
    """The loop is woken at once in the thread that runs it now, whichever thread ran it before."""
    gate, other = Dispatch(concurrency=1), Dispatch(concurrency=1)
    holder, other_holder = gate.try_admit(), other.try_admit()
    loop.set_debug(debug)
    [here] = loop.run_until_complete(join(gate, 1))
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.extend(loop.run_until_complete(join(other, 1))))
    thread.start()
    thread.join(PATIENCE)

    def leave():
        eventually(loop.is_running, "the loop runs again in its first thread")
        holder.settle()
        other_holder.settle()

    thread = threading.Thread(target=leave)
    thread.start()
    done, _ = loop.run_until_complete(asyncio.wait([here, *elsewhere], timeout=PATIENCE))
    thread.join(PATIENCE)
    assert done == {here, *elsewhere}


def test_a_loop_closed_while_an_error_refers_to_its_tasks_keeps_no_place(loop):
    """The error refers to the frames of the callback, and so to the tasks that it was about to run."""
    window = BackoffWindow()
    gate = Dispatch(window=window, pause=True, concurrency=3)

    async def ends():
        async with gate.admit():
            raise KeyboardInterrupt

    async def main():
        window.set(60)
        tasks = [asyncio.create_task(ends())]
        await until_waiting(gate, 1)
        tasks += [asyncio.create_task(visit(gate)) for _ in range(4)]
        await until_waiting(gate, 5)
        loop.call_soon(window.clear)
        return tasks

    tasks = loop.run_until_complete(main())
    try:
        loop.run_until_complete(tasks[-1])
    except KeyboardInterrupt:
        thread = Thread(gate)
        loop.close()
        tasks[0].exception()  # so that no warning is given
        forget(tasks)
    thread.join()
    gc.collect()
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


def test_ctrl_c_while_the_loop_runs_woken_tasks_leaves_them_to_be_cancelled(loop):
    """As asyncio.run does then: it cancels every task and waits until they are done."""
    window = BackoffWindow()
    gate, other = Dispatch(window=window, pause=True), Dispatch(concurrency=1)
    holder = other.try_admit()
    call_soon = loop.call_soon

    def interrupting(callback, *args, context=None):
        if getattr(callback, "__name__", "") == "run":
            loop.call_soon = call_soon
            raise KeyboardInterrupt
        return call_soon(callback, *args, context=context)

    async def main():
        window.set(60)
        tasks = [asyncio.create_task(visit(gate)) for _ in range(5)]
        await until_waiting(gate, 5)
        tasks += [asyncio.create_task(visit(other)) for _ in range(5)]
        await until_waiting(other, 5)
        loop.call_soon(begin)
        return tasks

    def begin():
        window.clear()
        loop.call_soon = interrupting

    async def cancel_all(tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=PATIENCE)

    tasks = loop.run_until_complete(main())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.wait(tasks))
    loop.run_until_complete(cancel_all(tasks))
    assert all(task.done() for task in tasks)
    holder.settle()
    assert gate.snapshot().in_flight == other.snapshot().in_flight == 0


def test_a_closed_loop_is_not_kept_alive():
    gate = Dispatch(concurrency=1)
    holder = gate.try_admit()

    async def main():
        task = asyncio.create_task(visit(gate))
        await until_waiting(gate, 1)
        holder.settle()
        await task

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    gone = ref(loop)
    del loop
    gc.collect()
    assert gone() is None


def test_a_loop_that_keeps_references_to_callbacks_still_wakes_the_next_task(loop):
    """Debuggers and profilers keep callbacks after they have run."""
    gate = Dispatch(concurrency=1)
    kept, seen = [], []
    call_soon = loop.call_soon

    def keeping(callback, *args, context=None):
        kept.append(call_soon(callback, *args, context=context))
        return kept[-1]

    async def main():
        for name in range(3):
            holder = gate.try_admit()
            task = asyncio.create_task(visit(gate, seen, name))
            await until_waiting(gate, 1)
            holder.settle()
            await asyncio.wait([task], timeout=PATIENCE)
            assert task.done()

    loop.call_soon = keeping
    loop.run_until_complete(main())
    assert seen == [0, 1, 2]


class Thing:
    """An object in the context of a caller."""


async def with_one_waiting(gate):
    """The permit that holds the only place of the gate, and the first task in line."""
    holder = gate.try_admit()
    first = asyncio.create_task(visit(gate))
    await until_waiting(gate, 1)
    return holder, first


@contextmanager
def no_collector():
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["served", "cancelled"])
def test_a_cancelled_task_leaves_nothing_of_its_context_behind(end):
    """Contexts hold requests, spans and sessions; a ticket that left may stay in the line for a while."""
    who = ContextVar("who")

    async def main(clock):
        gate = Dispatch(concurrency=1, clock=clock)
        holder, first = await with_one_waiting(gate)

        async def visitor():
            thing = Thing()
            who.set(thing)
            gone.append(ref(thing))
            del thing
            await visit(gate)

        gone = []
        task = asyncio.create_task(visitor())
        await until_waiting(gate, 2)
        if end == "cancelled":
            task.cancel()
        else:
            holder.settle()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert gone[0]() is None
        holder.settle()
        await first

    with no_collector():
        run(main)


@pytest.mark.parametrize("timeout", [0, 1])
def test_a_refused_caller_leaves_none_of_its_frames_in_the_line(timeout):
    """A ticket may stay in the line for a while; its error, which refers to the caller's frames, must not."""

    async def main(clock):
        gate = Dispatch(concurrency=1, clock=clock)
        holder, first = await with_one_waiting(gate)

        async def refused():
            thing = Thing()
            with pytest.raises(WaitTimeout if timeout else CapacityExhausted):
                async with gate.admit(timeout=timeout):
                    pass
            return ref(thing)

        gone = await asyncio.create_task(refused())
        assert gone() is None
        holder.settle()
        await first

    with no_collector():
        run(main)


@pytest.mark.parametrize("world", ["thread", "task"])
def test_an_admitted_task_leaves_no_ticket_to_the_garbage_collector(world):
    def tickets():
        return sum(type(thing) is Ticket for thing in gc.get_objects())

    async def in_task(gate):
        holder, first = await with_one_waiting(gate)
        holder.settle()
        await first

    def in_thread(gate):
        holder = gate.try_admit()
        thread = Thread(gate)
        holder.settle()
        thread.join()

    gc.collect()
    with no_collector():
        before = tickets()
        gate = Dispatch(concurrency=1)
        asyncio.run(in_task(gate)) if world == "task" else in_thread(gate)
        del gate
        assert tickets() == before


@pytest.mark.parametrize("timeout", [None, 60])
def test_tasks_that_are_admitted_together_leave_no_ticket_to_the_garbage_collector(timeout):
    def tickets():
        return sum(type(thing) is Ticket for thing in gc.get_objects())

    async def main():
        window = BackoffWindow()
        gate = Dispatch(window=window, pause=True)
        window.set(60)

        async def wait():
            async with gate.admit(timeout=timeout):
                pass

        tasks = [asyncio.create_task(wait()) for _ in range(5)]
        await until_waiting(gate, 5)
        window.clear()
        await asyncio.gather(*tasks)
        del tasks
        assert tickets() == before

    gc.collect()
    with no_collector():
        before = tickets()
        asyncio.run(main())


def test_an_alarm_that_another_thread_sets_when_a_task_was_just_woken_rings_for_no_ticket_and_keeps_nothing():
    async def main():
        rung = []
        parker = LoopParker(asyncio.get_running_loop(), time.monotonic_ns, rung.append, "ticket")
        waiting = asyncio.ensure_future(sleep_at(parker))
        await asyncio.sleep(0)
        parker.wake()
        thread = threading.Thread(target=parker.alarm, args=(time.monotonic_ns(),))
        thread.start()
        thread.join()
        await waiting
        await asyncio.sleep(0.01)
        assert rung == []

    async def keeps_nothing():
        owner = type("Owner", (), {"ring": lambda _self, _ticket: None})()
        parker = LoopParker(asyncio.get_running_loop(), time.monotonic_ns, owner.ring, "ticket")
        waiting = asyncio.ensure_future(sleep_at(parker))
        await asyncio.sleep(0)
        parker.wake()
        thread = threading.Thread(target=parker.alarm, args=(time.monotonic_ns() + 3600 * 10**9,))
        thread.start()
        thread.join()
        await waiting
        await asyncio.sleep(0)
        gone = ref(owner)
        del owner, parker, thread, waiting
        gc.collect()
        assert gone() is None

    asyncio.run(main())
    asyncio.run(keeps_nothing())


async def sleep_at(parker):
    await parker


# -- a thread that runs an event loop must not sleep


def emptied(clock=None, **options):
    """A gate whose next caller has to wait."""
    gate = Dispatch("api", **options) if clock is None else Dispatch("api", clock=clock, **options)
    return gate, gate.try_admit()


def at_a_full_gate(clock, wait, **options):
    gate, holder = emptied(clock, **options)

    def act():
        wait(gate)
        holder.settle()  # not before

    return act


SYNC_WAITS = {
    "admit": lambda clock: at_a_full_gate(clock, lambda gate: gate.admit().enter(), concurrency=1),
    "timeout": lambda clock: at_a_full_gate(clock, lambda gate: gate.admit(timeout=9).enter(), concurrency=1),
    "rate": lambda clock: at_a_full_gate(clock, lambda gate: gate.admit().enter(), rates="1/minute"),
    "fn": lambda clock: at_a_full_gate(clock, lambda gate: gate.with_rate_limit(1, print), concurrency=1),
    "RateLimiter": lambda clock: used(RateLimiter(1, clock=clock)).acquire,
    "RateLimiter as a decorator": lambda clock: used(RateLimiter(1, clock=clock))(print),
    "MemoryLimiter": lambda clock: lambda: used_up(clock).acquire("api"),
    "MemoryLimiter.slot": lambda clock: lambda: used_up(clock).slot("api").__enter__(),
    "BackoffWindow": lambda clock: active(clock).wait,
}


def used(limiter):
    limiter.acquire()
    return limiter


def used_up(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 60)
    limiter.acquire("api")
    return limiter


def active(clock):
    window = BackoffWindow(clock=clock)
    window.set(60)
    return window


@pytest.mark.parametrize("kind", SYNC_WAITS)
def test_a_sync_wait_in_the_thread_of_a_running_loop_says_what_to_write(kind):
    async def main(clock):
        wait = SYNC_WAITS[kind](clock)
        with pytest.raises(RuntimeError, match=r"would block the event loop.*write `async with`"):
            wait()
        return clock.seconds()

    assert run(main) == 0.0


def test_a_refused_sync_wait_leaves_no_trace_in_the_line():
    async def main(clock):
        gate, holder = emptied(clock, concurrency=1)
        with pytest.raises(RuntimeError, match=r"this call has to wait \(concurrency\)"), gate.admit():
            pass
        waiting = gate.snapshot().waiting
        holder.settle()
        async with gate.admit():
            return waiting

    assert run(main) == 0


def test_calls_on_a_loop_that_need_not_wait_may_be_sync():
    async def main(clock):
        gate = Dispatch("api", concurrency=1, clock=clock)
        with gate.admit():
            with pytest.raises(CapacityExhausted), gate.admit(timeout=0):
                pass
            assert gate.try_admit() is None
        with gate.admit(timeout=5):
            pass

    run(main)


def test_a_thread_may_wait_while_a_loop_runs_in_another_thread():
    async def main():
        gate = Dispatch("api", rates="100/s burst 1")

        def several():
            for _ in range(3):
                with gate.admit():
                    pass

        await asyncio.to_thread(several)

    asyncio.run(main())


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)


def test_a_cell_of_a_notebook_may_wait_for_a_time_but_not_for_a_task(notebook):
    """A kernel runs every cell inside its event loop, also that of a sync client."""

    async def main():
        gate = Dispatch("api", rates="100/s burst 1")
        for _ in range(3):
            with gate.admit():
                pass
        one_at_a_time, holder = emptied(concurrency=1)
        with pytest.raises(RuntimeError, match="would block the event loop"), one_at_a_time.admit():
            pass
        holder.settle()

    asyncio.run(main())


def test_a_cell_of_a_notebook_may_not_wait_behind_a_task(notebook):
    async def main():
        gate, holder = emptied(rates="50/s burst 1")
        waiting = asyncio.create_task(gate.admit().__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="would block the event loop"), gate.admit():
            pass
        (await waiting).settle()
        holder.settle()

    asyncio.run(main())
