"""Threads and event loops at one gate, with random failures around them.

After any cancellation, time-out, closed loop or collected coroutine no permit is lost or invented, no
caller is left waiting, and callers were admitted in order. Every seed can be run again.
"""

import asyncio
import gc
import random
import threading
from collections import deque

import pytest

from headgate import BackoffWindow, Dispatch, Refused
from headgate.gate.line import Line
from patience import eventually

PLACES = 3
BUDGET = 100
PATIENCE = 30.0


class WatchedLine(Line):
    """A line that is compared with the plainest model of one: a list of tickets in order of arrival."""

    __slots__ = ("came", "overtaken")

    def __init__(self):
        super().__init__()
        self.came = deque()
        self.overtaken = 0

    def join(self, ticket):
        self.came.append(ticket)
        super().join(ticket)

    def admit(self, ticket):
        if self.came[0] is not ticket:
            self.overtaken += 1
        self.came.remove(ticket)
        return super().admit(ticket)

    def leave(self, ticket):
        self.came.remove(ticket)
        super().leave(ticket)


class Crowd:
    """All callers of one gate in one run."""

    def __init__(self, seed):
        self.seed = seed
        self.gate = Dispatch("fuzz", concurrency=PLACES, byte_budget=BUDGET, rates="50_000/s burst 20")
        self.line = self.gate.callers.line = WatchedLine()
        self.inside = 0
        self.most_inside = 0
        self.served = 0
        self.count = threading.Lock()

    def enter(self):
        with self.count:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)

    def leave(self):
        with self.count:
            self.inside -= 1
            self.served += 1

    def thread(self, number):
        dice = random.Random(f"{self.seed} thread {number}")
        for _ in range(25):
            timeout = None if dice.random() < 0.5 else dice.random() * 0.003
            try:
                if dice.random() < 0.2:
                    permit = self.gate.try_admit(bytes=dice.randrange(60))
                    if permit is not None:
                        self.enter()
                        self.leave()
                        permit.settle(bytes=dice.randrange(60))
                    continue
                with self.gate.admit(bytes=dice.randrange(60), timeout=timeout):
                    self.enter()
                    try:
                        if dice.random() < 0.1:
                            raise ZeroDivisionError
                    finally:
                        self.leave()
            except (Refused, ZeroDivisionError):
                pass
            if dice.random() < 0.03:
                gc.collect()

    async def task(self, dice):
        for _ in range(6):
            timeout = None if dice.random() < 0.6 else dice.random() * 0.003
            try:
                async with self.gate.admit(bytes=dice.randrange(60), timeout=timeout):
                    self.enter()
                    try:
                        await asyncio.sleep(dice.random() * 0.001)
                    finally:
                        self.leave()
            except Refused:
                pass

    def loop(self, number, dies):
        self.run_loop(number, dies)
        gc.collect()  # frees the tasks of a loop that was closed

    def run_loop(self, number, dies):
        """Run a loop with twenty tasks, most of them cancelled; if it `dies` it is closed while they wait."""
        dice = random.Random(f"{self.seed} loop {number}")
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # "task was destroyed" is expected

        async def main():
            tasks = [asyncio.ensure_future(self.task(dice)) for _ in range(20)]
            for task in tasks:
                if dice.random() < 0.6:
                    loop.call_later(dice.random() * 0.02, task.cancel)
            if dies:
                await asyncio.sleep(dice.random() * 0.01)
                return
            await asyncio.gather(*tasks, return_exceptions=True)

        loop.run_until_complete(main())
        loop.close()


@pytest.mark.parametrize("seed", range(100))
def test_no_permit_is_lost_or_invented_and_no_caller_is_left_waiting(seed):
    crowd = Crowd(seed)
    threads = [threading.Thread(target=crowd.thread, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=crowd.loop, args=(i, i == 1 and seed % 2 == 0)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1)
    gc.collect()  # the collection in `loop` did nothing if another thread was collecting at that moment
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a caller was left waiting"
    gc.collect()
    snapshot = crowd.gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight, snapshot.waiting) == (0, 0, 0)
    assert crowd.inside == 0
    assert crowd.most_inside <= PLACES
    assert crowd.served > 0
    assert crowd.line.overtaken == 0
    assert not crowd.line.came
    # The gate still works: all places can be taken, and not one more.
    permits = [crowd.gate.admit().__enter__() for _ in range(PLACES)]
    assert crowd.gate.try_admit() is None
    for permit in permits:
        permit.settle()


def test_a_place_granted_to_a_closed_loop_passes_to_the_next_caller():
    """A task whose loop has been closed cannot be woken: its place must not be lost with it."""
    gate = Dispatch("gate", concurrency=1)
    holder = gate.try_admit()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    tasks = []

    async def main():
        tasks.append(asyncio.ensure_future(gate.admit().__aenter__()))
        await asyncio.sleep(0.001)

    loop.run_until_complete(main())
    loop.close()
    got = []
    thread = threading.Thread(target=lambda: got.append(gate.admit(timeout=PATIENCE).__enter__()))
    thread.start()
    eventually(lambda: gate.snapshot().waiting == 2, "both are in line")
    holder.settle()
    thread.join(PATIENCE)
    assert got
    got[0].settle()
    assert gate.snapshot().in_flight == 0
    tasks.clear()
    gc.collect()
    assert gate.snapshot().in_flight == 0


def test_callers_are_admitted_on_time_though_the_loop_of_the_first_in_line_was_closed():
    gate = Dispatch("gate", rates="20/s burst 1")
    gate.try_admit().settle()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    tasks = []

    async def main():
        tasks.append(asyncio.ensure_future(gate.admit().__aenter__()))
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    loop.close()
    with gate.admit(timeout=PATIENCE):
        pass
    tasks.clear()
    gc.collect()


def test_a_permit_returned_by_a_finalizer_while_the_lock_is_held_neither_blocks_nor_is_lost():
    """The garbage collector may run anywhere, also under the lock."""
    gate = Dispatch("gate", concurrency=2)
    permit = gate.try_admit()

    async def abandoned():
        async with gate.admit():
            await asyncio.get_running_loop().create_future()

    async def main():
        task = asyncio.ensure_future(abandoned())
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    task = loop.run_until_complete(main())
    loop.close()
    assert gate.snapshot().in_flight == 2
    with gate._lock:
        permit.settle()
        del task
        gc.collect()
    assert gate.snapshot().in_flight in (0, 2)
    gate.try_admit().settle()
    assert gate.snapshot().in_flight == 0


def test_a_loop_closed_with_thousands_of_waiting_tasks_blocks_no_other_caller():
    gate = Dispatch("gate", concurrency=1)
    holder = gate.try_admit()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    tasks = []

    async def main():
        tasks.extend(asyncio.ensure_future(gate.admit().__aenter__()) for _ in range(3000))
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    loop.close()
    assert gate.snapshot().waiting == 3000
    holder.settle()
    assert (gate.snapshot().waiting, gate.snapshot().in_flight) == (0, 0)
    tasks.clear()
    gc.collect()
    assert (gate.snapshot().waiting, gate.snapshot().in_flight) == (0, 0)


def test_a_sync_wait_inside_the_loop_of_the_first_in_line_is_refused_and_leaves_no_trace():
    """It would wait for a task that cannot run meanwhile."""
    gate = Dispatch("gate", rates="50/s burst 1")

    async def main():
        gate.try_admit().settle()
        task = asyncio.ensure_future(gate.admit().__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="write `async with`"), gate.admit(timeout=PATIENCE):
            pass
        (await task).settle()
        async with gate.admit(timeout=PATIENCE) as permit:
            return permit.waited

    assert asyncio.run(main()) < PATIENCE


def test_an_admission_that_is_entered_twice_at_once_is_refused_and_leaks_nothing():
    gate = Dispatch("gate", concurrency=1)

    async def main():
        holder = gate.try_admit()
        admission = gate.admit()

        async def enter():
            async with admission:
                pass

        first = asyncio.ensure_future(enter())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="in use already"):
            await enter()
        holder.settle()
        await first

    asyncio.run(main())
    assert gate.snapshot().in_flight == 0


def test_a_window_may_be_set_while_dispatches_of_it_are_made_in_another_thread():
    window = BackoffWindow()
    stop = threading.Event()
    kept = []

    def watch():
        while not stop.is_set():
            kept.append(Dispatch(window=window))
            if len(kept) > 50:
                kept.clear()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for _ in range(300):
            window.set(0.001)
            window.clear()
    finally:
        stop.set()
        thread.join(PATIENCE)


def test_a_ticket_that_was_granted_and_never_claimed_is_given_back_once():
    """The finalizers of the tasks of a closed loop run in any order."""
    gate = Dispatch("gate", concurrency=1)
    holder = gate.try_admit()
    visit = gate.admit().__aenter__()

    async def main():
        visit.send(None)  # joins the line
        ticket = gate.callers.line.first()
        holder.settle()  # grants it; the task does not know it yet
        assert gate.snapshot().in_flight == 1
        gate.give_back(ticket)
        assert gate.snapshot().in_flight == 0
        gate.give_back(ticket)  # once more
        visit.close()  # the task that is closed gives back nothing twice

    asyncio.run(main())
    assert gate.snapshot().in_flight == 0
