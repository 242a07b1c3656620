"""Tasks of trio wait at a gate in one line with threads and tasks of asyncio."""

import asyncio
import threading

import pytest

from headgate import BackoffWindow, Dispatch, MemoryLimiter, RateLimiter, WaitTimeout, retry
from headgate.gate.parking import in_trio, runs_event_loop
from headgate.testing import ManualClock
from patience import eventually

trio = pytest.importorskip("trio")
pytest.importorskip("trio.testing")


async def until_waiting(gate, many):
    while gate.snapshot().waiting < many:
        await trio.sleep(0)


def test_tasks_wait_for_a_place_in_the_order_they_came():
    order = []

    async def call(gate, n):
        async with gate.admit():
            order.append(n)
            await trio.sleep(0)

    async def main():
        gate = Dispatch("api", concurrency=1)
        async with trio.open_nursery() as nursery, gate.admit():
            for n in range(5):
                nursery.start_soon(call, gate, n)
                await until_waiting(gate, n + 1)
        return gate.snapshot()

    left = trio.run(main)
    assert order == [0, 1, 2, 3, 4]
    assert (left.in_flight, left.waiting) == (0, 0)


def test_tasks_wait_for_a_rate_on_the_clock_of_the_gate():
    went = []

    async def main():
        clock = ManualClock()
        gate = Dispatch("api", rates="1/s burst 1", clock=clock)

        async def call():
            async with gate.admit():
                went.append(clock.seconds())

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call)
            await until_waiting(gate, 3)
            while len(went) < 4:
                clock.advance(0.5)
                await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert went == [0.0, 1.0, 2.0, 3.0]


def test_a_time_out_ends_the_wait():
    async def main():
        clock = ManualClock()
        gate = Dispatch("api", concurrency=1, clock=clock)

        async def wait():
            with pytest.raises(WaitTimeout, match=r"waited 5.0 s for a place \(concurrency\)"):
                async with gate.admit(timeout=5):
                    pass

        async with gate.admit(), trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until_waiting(gate, 1)
            clock.advance(5)
        return gate.snapshot().waiting

    assert trio.run(main) == 0


def test_a_cancelled_wait_leaves_the_line_and_has_taken_nothing():
    async def main():
        gate = Dispatch("api", concurrency=1)
        async with gate.admit():
            with trio.move_on_after(0.01) as scope:
                async with gate.admit():
                    pass
        assert scope.cancelled_caught
        async with gate.admit():
            return gate.snapshot()

    left = trio.run(main)
    assert (left.in_flight, left.waiting) == (1, 0)


def test_a_place_granted_to_a_task_that_was_cancelled_meanwhile_goes_to_the_next():
    async def main():
        gate = Dispatch("api", concurrency=1)
        went = []

        async def call(n):
            async with gate.admit():
                went.append(n)

        async with trio.open_nursery() as outer:
            holder = gate.try_admit()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, "cancelled")
                await until_waiting(gate, 1)
                outer.start_soon(call, "next")
                await until_waiting(gate, 2)
                holder.settle()  # grants, and wakes at the next turn of the loop
                nursery.cancel_scope.cancel()
        return went, gate.snapshot().in_flight

    assert trio.run(main) == (["next"], 0)


def test_a_thread_gives_a_place_to_a_task_of_trio_and_one_of_asyncio_gets_it_next():
    gate = Dispatch("api", concurrency=1)
    holder = gate.try_admit()
    order = []

    async def in_trio_run():
        async with gate.admit():
            order.append("trio")
            await trio.sleep(0.01)

    async def in_asyncio():
        async with gate.admit():
            order.append("asyncio")

    threads = [threading.Thread(target=trio.run, args=(in_trio_run,))]
    threads.append(threading.Thread(target=lambda: asyncio.run(in_asyncio())))
    for n, thread in enumerate(threads):
        thread.start()
        eventually(lambda n=n: gate.snapshot().waiting == n + 1, "it waits")
    holder.settle()
    for thread in threads:
        thread.join()
    assert order == ["trio", "asyncio"]
    assert gate.snapshot().in_flight == 0


def test_a_place_granted_to_a_run_that_is_over_goes_to_the_next():
    """The run ended while its task waited, and nothing of it was given back."""
    gate = Dispatch("api", concurrency=1)
    holder = gate.try_admit()
    abandoned = []

    async def main():
        admission = gate.admit()
        abandoned.append(admission)
        coroutine = admission.__aenter__()
        abandoned.append(coroutine)
        coroutine.send(None)  # it waits, and is never resumed

    trio.run(main)
    assert gate.snapshot().waiting == 1
    holder.settle()
    assert gate.snapshot().waiting == 0
    with gate.admit(timeout=1):
        pass
    abandoned[1].close()
    assert gate.snapshot().in_flight == 0


def test_limiters_windows_and_retries_wait_in_trio():
    async def main():
        limiter = RateLimiter("100/s burst 1")
        many = MemoryLimiter(rates="100/s burst 1")
        window = BackoffWindow()
        window.set(0.01)
        calls = []

        @retry(max_retries=1, base_delay=0.001)
        async def flaky():
            calls.append(1)
            if len(calls) == 1:
                raise ConnectionError

        for _ in range(3):
            await limiter.acquire_async()
            await many.acquire_async("user")
        assert await window.wait_async()
        await flaky()
        return len(calls)

    assert trio.run(main) == 2


def test_a_sync_wait_inside_a_run_of_trio_is_an_error():
    async def main():
        gate = Dispatch("api", concurrency=1)
        async with gate.admit():
            with pytest.raises(RuntimeError, match="write `async with`"), gate.admit():
                pass
        return in_trio(), runs_event_loop()

    assert trio.run(main) == (True, True)
    assert (in_trio(), runs_event_loop()) == (False, False)


def test_a_clock_that_advances_by_itself_says_that_it_does_not_in_trio():
    async def main():
        gate = Dispatch("api", rates="1/s burst 1", clock=ManualClock(auto_advance=True))
        async with gate.admit():
            pass
        with pytest.raises(RuntimeError, match="does not advance in trio"):
            async with gate.admit():
                pass

    trio.run(main)
