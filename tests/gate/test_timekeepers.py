"""Timekeepers: one waiting caller of each world looks when the first in line is due.

A world is one event loop, or all threads together. A loop that is busy, stopped or closed delays only its
own callers. These tests run in real time: a loop that does not run is the point.
"""

import asyncio
import contextlib
import gc
import threading
import time
import weakref

from headgate import Dispatch, WaitTimeout
from patience import PATIENCE, eventually


async def pass_through(gate):
    async with gate.admit():
        pass


async def begin(gate):
    """Start a task that waits at the gate."""
    before = gate.snapshot().waiting
    task = asyncio.ensure_future(pass_through(gate))
    while gate.snapshot().waiting == before:  # noqa: ASYNC110 - a gate has no such event
        await asyncio.sleep(0.001)
    return task


def emptied(rates):
    gate = Dispatch("api", rates=rates, concurrency=None, throttled_concurrency=None, byte_budget=None)
    with gate.admit():
        pass
    return gate


@contextlib.contextmanager
def stopped_loop_with_a_waiting_task(gate):
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin(gate))  # now the loop is stopped, not closed
    try:
        yield
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()


def in_a_thread(act):
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "still waiting"


def test_a_task_of_a_running_loop_is_not_delayed_by_a_stopped_loop_in_front_of_it():
    gate = emptied("10/s burst 1")
    with stopped_loop_with_a_waiting_task(gate):
        in_a_thread(lambda: asyncio.run(pass_through(gate)))


def test_a_thread_is_not_delayed_by_a_stopped_loop_in_front_of_it():
    gate = emptied("10/s burst 1")

    def wait():
        with gate.admit():
            pass

    with stopped_loop_with_a_waiting_task(gate):
        in_a_thread(wait)


def test_a_task_is_not_delayed_by_a_loop_that_a_callback_blocks():
    gate = emptied("10/s burst 1")
    blocked, release = threading.Event(), threading.Event()

    async def block():
        task = await begin(gate)
        blocked.set()
        release.wait(PATIENCE)  # the loop stands still
        await task

    blocking = threading.Thread(target=lambda: asyncio.run(block()), daemon=True)
    blocking.start()
    assert blocked.wait(PATIENCE)
    try:
        in_a_thread(lambda: asyncio.run(pass_through(gate)))
    finally:
        release.set()
        blocking.join(PATIENCE)


def test_a_closed_loop_in_front_delays_nothing():
    gate = emptied("10/s burst 1")
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin(gate))
    loop.close()
    in_a_thread(lambda: asyncio.run(pass_through(gate)))
    with contextlib.suppress(RuntimeError):  # its loop is closed
        task.cancel()
    task._log_destroy_pending = False


def test_the_thread_behind_a_timekeeper_that_gives_up_is_served():
    """The timekeeper of all threads times out while the loop of the first in line waits for a thread."""
    gate = emptied("5/s burst 1")

    def give_up():
        with contextlib.suppress(WaitTimeout), gate.admit(timeout=0.05):
            pass

    async def main():
        first = await begin(gate)
        thread = threading.Thread(target=give_up, daemon=True)
        thread.start()
        eventually(lambda: gate.snapshot().waiting == 2 or not thread.is_alive(), "the thread waits")
        behind = threading.Thread(target=lambda: gate.admit().__enter__().settle(), daemon=True)
        behind.start()
        behind.join()  # in the loop's own thread, which therefore cannot keep the time
        await first

    in_a_thread(lambda: asyncio.run(main()))


def test_a_timekeeper_that_is_cancelled_is_followed_by_the_next_task_of_its_loop():
    gate = emptied("5/s burst 1")

    def other_loop():
        async def main():
            keeper = await begin(gate)
            behind = await begin(gate)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await behind

        asyncio.run(main())

    with stopped_loop_with_a_waiting_task(gate):
        in_a_thread(other_loop)


def test_the_rate_is_kept_while_callers_of_three_worlds_wait():
    """Several timekeepers look at about the same time: none of them may let in more than the rate."""
    gate = emptied("50/s burst 1")
    times, lock = [], threading.Lock()

    def note():
        with lock:
            times.append(time.monotonic())

    async def task():
        async with gate.admit():
            note()

    async def tasks():
        await asyncio.gather(*(task() for _ in range(8)))

    def thread():
        with gate.admit():
            note()

    began = time.monotonic()
    threads = [threading.Thread(target=lambda: asyncio.run(tasks()), daemon=True) for _ in range(2)]
    threads += [threading.Thread(target=thread, daemon=True) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert len(times) == 24
    assert max(times) - began >= 24 / 50 - 0.02 - 1 / 50  # the bucket was empty at most one interval before


def test_a_line_that_never_empties_does_not_keep_closed_event_loops_alive():
    gate = Dispatch("api", concurrency=1)
    holder = gate.try_admit()

    def wait():
        with gate.admit():
            pass

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    eventually(lambda: gate.snapshot().waiting, "the thread waits")
    loops = []

    async def give_up():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with contextlib.suppress(WaitTimeout):
            async with gate.admit(timeout=0.001):
                pass

    for _ in range(60):
        asyncio.run(give_up())
    gc.collect()
    assert (
        sum(loop() is not None for loop in loops) < 30
    )  # the line forgets tickets that left a few at a time
    holder.settle()
    thread.join(PATIENCE)
