"""Ctrl-C at any moment: the interrupted caller leaves, and nothing stays locked or taken."""

import asyncio
import contextlib
import gc
import inspect
import random
import sys
import threading
import warnings

import pytest

from headgate import Dispatch
from headgate.gate.audience import Audience
from headgate.gate.parking import LoopParker, ThreadParker
from headgate.testing import ManualClock
from patience import eventually
from stress.interrupts import Interrupted, interrupt_everywhere


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_line(alarm):
    gate = Dispatch("gate", concurrency=1)
    holder = gate.try_admit()
    alarm.set(0.02)
    with pytest.raises(Interrupted), gate.admit():
        pass
    assert gate.snapshot().waiting == 0
    holder.settle()
    with gate.admit(timeout=5):
        pass


@pytest.mark.parametrize(
    ("kind", "moment"), [(ThreadParker, "retire"), (Dispatch, "claim"), (Audience, "admitted")]
)
@pytest.mark.parametrize("world", ["thread", "task"])
def test_a_caller_interrupted_just_after_its_admission_gives_its_place_back_at_once(
    monkeypatch, kind, moment, world
):
    """Not only when the garbage collector runs: other callers wait for the place."""
    kind = LoopParker if kind is ThreadParker and world == "task" else kind
    gate = Dispatch("gate", concurrency=1, observer=lambda _event: None)
    holder = gate.try_admit()
    before = getattr(kind, moment)

    def interrupted(*args):
        monkeypatch.setattr(kind, moment, before)
        raise Interrupted

    def leave():
        eventually(lambda: gate.snapshot().waiting == 1, "a caller waits")
        monkeypatch.setattr(kind, moment, interrupted)
        holder.settle()

    def visit():
        with gate.admit(timeout=60):
            pass

    async def visit_in_a_task():
        async with gate.admit(timeout=60):  # its alarm is retired
            pass

    thread = threading.Thread(target=leave)
    thread.start()
    gc.disable()
    try:
        with pytest.raises(Interrupted):
            visit() if world == "thread" else asyncio.run(visit_in_a_task())
        assert gate.snapshot().in_flight == 0
        visit()
    finally:
        gc.enable()
        thread.join()


def deep(levels, act):
    return deep(levels - 1, act) if levels else act()


@pytest.mark.parametrize("room", range(40))
def test_the_next_caller_repairs_what_a_recursion_error_interrupted(room):
    """With `room` frames left, the error strikes while settling or while waking callers."""

    async def main():
        gate = Dispatch("gate", concurrency=1)
        holder = gate.try_admit()

        async def visit():
            async with gate.admit():
                pass

        tasks = [asyncio.create_task(visit()) for _ in range(3)]
        await asyncio.sleep(0)
        with contextlib.suppress(RecursionError):
            deep(sys.getrecursionlimit() - len(inspect.stack(0)) - room, holder.settle)
        holder.settle()
        gate.try_admit()
        await asyncio.wait(tasks, timeout=20)
        assert all(task.done() for task in tasks)
        assert gate.snapshot().in_flight == gate.snapshot().waiting == 0

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_no_lock_held_no_place_taken_and_no_caller_waiting(alarm):
    """Five hundred interrupts at random moments, while other threads contend for the same places."""
    gate = Dispatch("gate", concurrency=2, byte_budget=1000, rates=["1_000_000/s", "1_000_000_000 tokens/s"])
    stop = threading.Event()
    served = [0, 0]

    def contend(i):
        while not stop.is_set():
            with gate.admit(bytes=7):
                served[i] += 1

    threads = [threading.Thread(target=contend, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    dice = random.Random(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # an interrupted admission recovers its permit
        for _ in range(500):
            try:
                alarm.set(0.0002 + dice.random() * 0.002)
                while not alarm.rang:
                    with gate.admit(bytes=5, tokens=3, timeout=5) as permit:
                        permit.settle(tokens=1)
            except Interrupted:
                pass
            permit = None
        stop.set()
        for thread in threads:
            thread.join(20)
        gc.collect()
    assert not any(thread.is_alive() for thread in threads), "a thread was left waiting"
    assert not gate._lock.locked()
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight, snapshot.waiting) == (0, 0, 0)
    assert min(served) > 0


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_loses_no_place_that_was_granted_to_a_closed_loop():
    """Nor does it keep later callers out of a gate at which no caller waits."""

    def scenario(interrupt):
        gate = Dispatch("gate", concurrency=1)
        holder = gate.try_admit()

        async def visit():
            async with gate.admit():
                pass

        async def begin():
            task = asyncio.ensure_future(visit())
            await asyncio.sleep(0)
            task._log_destroy_pending = False
            return task

        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(begin())
        loop.close()
        with interrupt:
            holder.settle()
        del holder
        permit = gate.try_admit() or gate.try_admit()  # the first may find something to repair
        assert permit is not None
        permit.settle()
        del task

    interrupt_everywhere(scenario)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_loses_no_place_of_a_gate_that_is_shared():
    gate = Dispatch("shared", store="memory:interrupts", concurrency=1, rates="1000/s burst 1000")
    try:

        def scenario(interrupt):
            with gate.admit(timeout=5):
                pass
            for rate in gate.rules.rates:
                rate.ahead = 10**6  # so that units run out
            with interrupt:
                permit = gate.try_admit()
                if permit is not None:
                    permit.settle()
            permit = None
            assert gate.snapshot().in_flight == 0

        interrupt_everywhere(scenario)
    finally:
        gate.close()


@pytest.mark.filterwarnings("ignore:a permit of:ResourceWarning")
@pytest.mark.parametrize("way", ["try_admit", "admit"])
def test_an_interrupt_on_the_way_in_counts_no_call_that_took_nothing(way):
    """As many calls are counted as units were taken, at whichever call the interrupt strikes."""
    gate = Dispatch(
        "counting", rates="1000/hour burst 1000", concurrency=None, byte_budget=None, clock=ManualClock()
    )

    def scenario(interrupt):
        with contextlib.suppress(Interrupted), interrupt:
            permit = gate.try_admit() if way == "try_admit" else gate.admit().enter()
            permit.settle()
        seen = gate.snapshot()
        assert seen.totals.admitted == 1000 - seen.rates[0].level
        assert seen.totals.refused == 0

    interrupt_everywhere(scenario)
    assert gate.snapshot().totals.admitted > 3
