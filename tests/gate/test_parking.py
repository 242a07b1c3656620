"""How a task sleeps at a gate: it is cancelled, interrupted and left behind as if on a future."""

import asyncio
import gc
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from weakref import ref

import pytest

from headgate import BackoffWindow, CapacityExhausted, Dispatch, WaitTimeout
from headgate.gate.line import Ticket
from headgate.gate.parking import LoopParker
from headgate.testing import run
from patience import PATIENCE, eventually

KINDS_OF_TASK = {
    "compiled": asyncio.Task,
    "in Python": asyncio.tasks._PyTask,  # what PyPy has, and debuggers put in place
}


@pytest.fixture(params=KINDS_OF_TASK)
def loop(request):
    """A loop that makes its tasks of either kind."""
    kind = KINDS_OF_TASK[request.param]
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
    """Let the tasks made just now come as far as they can."""
    await asyncio.sleep(0)
    assert gate.snapshot().waiting == count


def test_those_let_in_together_take_one_callback_of_their_loop(loop):
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


def test_each_goes_on_in_its_own_context(loop):
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
        who.set("the one who left")
        holder.settle()
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    assert found == [(i, i) for i in range(5)]


def test_a_cancelled_one_hears_what_it_was_told_and_the_others_move_up(loop):
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


def test_one_that_cancels_itself_on_its_way_to_the_line_does_not_stay_there(loop):
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
def test_cancelled_and_let_in_at_one_moment_it_keeps_no_place(loop, first):
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


def test_one_that_is_let_in_while_its_task_goes_to_sleep_is_woken(loop, monkeypatch):
    """The collector may run at any moment, and find a place that somebody dropped."""
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
def test_one_that_ends_the_program_leaves_nobody_asleep_who_was_woken_with_it(loop, end):
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
    loop.run_until_complete(asyncio.gather(*tasks))  # somebody caught it and goes on
    assert seen == [0, 1, 2, 3, 4]
    assert type(ending.exception()) is end


def run_from_within(loop, task):
    """What notebooks do, with the help of nest_asyncio: a task runs its own loop until another is done."""
    current = asyncio.current_task()
    asyncio.tasks._leave_task(loop, current)
    try:
        for _ in range(1000):
            if task.done():
                return
            loop.call_soon(lambda: None)  # so that it does not sleep, for ever perhaps
            loop._run_once()
    finally:
        asyncio.tasks._enter_task(loop, current)
    raise AssertionError("it was woken at the same moment, or later, and never ran")


@pytest.mark.parametrize("waits_for", [2, 5], ids=["one woken with it", "one woken later"])
def test_one_that_runs_the_loop_from_within_does_not_keep_the_others_asleep(loop, waits_for):
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


def test_a_chain_of_calls_that_never_wait_lets_others_of_the_loop_run_in_between(loop):
    """A place that is handed on from task to task, hundreds of times, must not hold up a reply."""
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
    """Nobody knows those tasks any more."""
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


def test_a_place_that_comes_free_after_a_loop_closed_passes_by_those_who_slept_there(loop):
    """One was woken on the loop before it closed and never ran; a second grant must not follow it."""
    gate = Dispatch(concurrency=2)
    holders = [gate.try_admit(), gate.try_admit()]
    tasks = loop.run_until_complete(join(gate, 2))
    thread = Thread(gate)
    holders[0].settle()  # nobody runs the loop: the first of its tasks is woken, and does not get to run
    loop.close()
    holders[1].settle()
    thread.join()
    forget(tasks)
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


def test_what_was_given_to_a_loop_that_closed_comes_back_though_others_of_it_still_wait(loop):
    """Those who wait stand in the line and so are remembered; whom it let in must not be for that."""
    gate = Dispatch(concurrency=1)
    holder = gate.try_admit()
    tasks = loop.run_until_complete(join(gate, 3))
    thread = Thread(gate)
    holder.settle()  # to the first task, which does not get to run
    loop.close()
    forget(tasks)  # so its place is free, for the second, who cannot be reached; nor can the third
    thread.join()
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


@pytest.mark.parametrize("debug", [False, True])
def test_a_loop_may_be_run_by_one_thread_after_another(loop, debug):
    """Whoever ran it last, or joined there last: it is woken where it runs now, and at once."""
    gate, other = Dispatch(concurrency=1), Dispatch(concurrency=1)
    holder, other_holder = gate.try_admit(), other.try_admit()
    loop.set_debug(debug)
    [here] = loop.run_until_complete(join(gate, 1))
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.extend(loop.run_until_complete(join(other, 1))))
    thread.start()
    thread.join(PATIENCE)

    def leave():
        eventually(loop.is_running, "it runs again, in the thread it began in")
        holder.settle()
        other_holder.settle()

    thread = threading.Thread(target=leave)
    thread.start()
    done, _ = loop.run_until_complete(asyncio.wait([here, *elsewhere], timeout=PATIENCE))
    thread.join(PATIENCE)
    assert done == {here, *elsewhere}


def test_a_loop_closed_while_its_error_is_at_hand_does_not_keep_a_place(loop):
    """The error knows the frames of the callback, and so those whom it was about to run."""
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
        tasks[0].exception()  # so that nobody complains about it
        forget(tasks)
    thread.join()
    gc.collect()
    assert gate.snapshot().in_flight == gate.snapshot().waiting == 0


def test_ctrl_c_just_when_the_loop_takes_up_those_who_were_woken_leaves_them_to_be_cancelled(loop):
    """What asyncio.run does then: it cancels everybody, and waits until they are done."""
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


def test_a_loop_that_has_ended_is_let_go():
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


def test_a_loop_that_remembers_what_it_has_run_wakes_the_next_all_the_same(loop):
    """As debuggers and profilers make it: what it was given to run does not vanish with having run."""
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
    """What a caller has in hand."""


async def with_one_waiting(gate):
    """Who holds its only place, and who is first in line."""
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
def test_one_that_is_gone_leaves_nothing_of_its_context(end):
    """Contexts hold requests, spans and sessions. Its ticket may lie in the line for a while."""
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
def test_one_that_is_refused_leaves_nothing_of_its_caller_in_the_line(timeout):
    """Its ticket may stay there for a while; its error, and with it the caller's frames, may not."""

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
def test_one_that_was_served_leaves_no_ticket_to_the_collector(world):
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
