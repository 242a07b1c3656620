"""Permits that are dropped without being settled give their place back, and run no code of the user."""

import asyncio
import gc
import threading
import warnings
import weakref
from contextlib import AsyncExitStack, ExitStack

import pytest

from headgate import Dispatch, events
from headgate.testing import Recorder
from patience import PATIENCE


@pytest.fixture(autouse=True, scope="module")
def _small_heap():
    """Set apart what earlier tests left: these tests collect hundreds of times, each in a moment then."""
    gc.collect()
    gc.freeze()


def settled(gate):
    """How many calls hold a place, after what finalizers left was told."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return gate.snapshot().in_flight


def test_an_async_generator_that_is_abandoned_in_its_block_gives_its_place_back():
    gate = Dispatch("api", concurrency=2)

    async def stream():
        async with gate.admit():
            yield 1

    async def main():
        generator = stream()
        await anext(generator)
        return generator

    loop = asyncio.new_event_loop()
    generator = loop.run_until_complete(main())
    loop.close()
    assert gate.snapshot().in_flight == 1
    del generator
    assert settled(gate) == 0


def test_an_async_exit_stack_that_is_dropped_gives_its_place_back():
    gate = Dispatch("api", concurrency=2)

    async def main():
        await AsyncExitStack().enter_async_context(gate.admit())

    asyncio.run(main())
    assert settled(gate) == 0


def test_an_exit_stack_that_is_dropped_gives_its_place_back():
    gate = Dispatch("api", concurrency=2)
    ExitStack().enter_context(gate.admit())
    assert settled(gate) == 0


def test_a_task_that_is_abandoned_with_its_loop_gives_its_place_back_once():
    gate = Dispatch("api", concurrency=2)

    async def hold():
        async with gate.admit():
            await asyncio.sleep(3600)

    async def main():
        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        task._log_destroy_pending = False

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    assert gate.snapshot().in_flight == 1
    del loop
    assert settled(gate) == 0
    first, second = gate.try_admit(), gate.try_admit()
    assert first is not None
    assert second is not None
    assert gate.try_admit() is None
    first.settle()
    second.settle()


def test_a_dropped_permit_lets_a_waiting_caller_in_although_no_other_call_follows():
    gate = Dispatch("api", concurrency=1)
    permit = gate.try_admit()
    served = threading.Event()

    def wait():
        with gate.admit():
            served.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not gate.snapshot().waiting:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del permit
        assert served.wait(PATIENCE)
        thread.join(PATIENCE)


def test_the_observer_hears_of_a_dropped_permit_at_the_end_of_the_next_call_not_from_the_finalizer():
    seen = Recorder()
    gate = Dispatch("api", concurrency=2, observer=seen)
    permit = gate.try_admit()
    del permit
    assert seen.of(events.Settled) == []
    with pytest.warns(ResourceWarning, match="dropped without settle"):
        other = gate.try_admit()
    assert other is not None
    assert len(seen.of(events.Settled)) == 1
    other.settle()
    assert len(seen.of(events.Settled)) == 2


@pytest.mark.filterwarnings("ignore:a permit of:ResourceWarning")
def test_the_observer_of_one_gate_may_use_another_although_a_collection_runs_in_its_lock():
    """The collector runs inside the lock of one gate, and finds a dropped permit of another."""
    first = Dispatch("first", concurrency=5)
    second = Dispatch("second", concurrency=5, observer=lambda _event: first.snapshot())

    class Holder:
        pass

    def drop_in_a_cycle():
        holder = Holder()
        holder.me, holder.permit = holder, second.try_admit()

    def run():
        for step in range(1, 120):
            gc.disable()
            gc.collect()
            drop_in_a_cycle()
            gc.set_threshold(gc.get_count()[0] + step, 1000, 1000)
            gc.enable()
            for _ in range(20):
                first.snapshot()

    thresholds = gc.get_threshold()
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "deadlock"
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert settled(second) == 0


@pytest.mark.filterwarnings("ignore:a permit of:ResourceWarning")
def test_one_collection_gives_back_every_permit_that_it_finds_and_skips_no_other_callback():
    gate = Dispatch("api", concurrency=8)

    class Holder:
        pass

    for _ in range(8):
        holder = Holder()
        holder.me, holder.permit = holder, gate.try_admit()
    del holder
    before = gc.callbacks[:]
    gc.collect()
    assert gate.snapshot().in_flight == 0
    assert gc.callbacks == before


def test_a_warning_that_is_raised_as_an_error_does_not_keep_later_callers_out():
    gate = Dispatch("api", concurrency=2)
    permit = gate.try_admit()
    del permit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResourceWarning):
            gate.try_admit()
    with gate.try_admit():
        pass


def test_the_observer_hears_of_a_call_that_ends_while_another_thread_holds_the_lock():
    seen = Recorder()
    gate = Dispatch("api", concurrency=2, observer=seen)
    permit = gate.try_admit()

    def settle_in_another_thread(_now):
        thread = threading.Thread(target=permit.settle)
        thread.start()
        thread.join(PATIENCE)

    gate.look(settle_in_another_thread)
    assert len(seen.of(events.Settled)) == 1


def test_a_dispatch_with_units_of_its_own_goes_without_the_collector():
    gate = Dispatch("api", rates="5 images/s")
    with gate.admit(cost={"images": 1}):
        pass
    gone = weakref.ref(gate)
    gc.disable()
    try:
        del gate
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("block", ["admission", "permit"])
def test_a_generator_that_is_collected_inside_the_lock_of_another_gate_calls_no_observer_there(block):
    """The collector ends the block of a generator that refers to itself."""
    first = Dispatch("first", concurrency=5)
    seen = []

    def observe(event):
        seen.append(type(event))
        first.snapshot()  # would wait for the lock that its own thread holds

    second = Dispatch("second", concurrency=5, observer=observe)

    def stream():
        with second.admit() if block == "admission" else second.try_admit():
            _me = yield
            yield

    def run():
        generator = stream()
        next(generator)
        generator.send(generator)
        del generator
        first.look(lambda _now: gc.collect())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "deadlock"
    assert settled(second) == 0
    assert seen == [events.Admitted, events.Settled]
