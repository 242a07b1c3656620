"""Waiting at a MemoryLimiter: time-outs, cancellation, order, closing and removal."""

import asyncio
import functools
import threading
from datetime import timedelta

import pytest

from headgate import (
    Capacity,
    CapacityExhausted,
    Closed,
    MemoryLimiter,
    RateLimiter,
    UnknownResource,
    WaitTimeout,
)
from headgate.testing import ManualClock, run
from limiters.looking import available, in_flight, waiting
from patience import PATIENCE, eventually


def test_an_unknown_resource_is_named_with_what_to_write(api):
    with pytest.raises(UnknownResource) as caught:
        api.acquire("opnai")
    assert str(caught.value) == "no limit was set for 'opnai'; write e.g. set_capacity('opnai', 60, 60)"
    assert isinstance(caught.value, KeyError)
    with pytest.raises(UnknownResource), api.slot("opnai"):
        pass


def test_a_task_that_acquires_an_unknown_resource_is_told_so():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        with pytest.raises(UnknownResource):
            await limiter.acquire_async("opnai")
        with pytest.raises(UnknownResource):
            async with limiter.slot("opnai"):
                pass

    run(main)


def test_a_wait_ends_at_its_time_out_and_spends_nothing():
    """The bucket gives one token every 60 s, then every 120 s: the first waiter has the token of 110 s."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        limiter.acquire("api")
        ahead = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(0)
        clock.at(10, lambda: limiter.set_capacity("api", 1, 120))
        with pytest.raises(WaitTimeout) as caught:
            await limiter.acquire_async("api", timeout=130)
        await ahead
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.rule == "requests/120s"
        assert caught.value.retry_after == 100.0
        ended = clock.seconds()
        await asyncio.sleep(100)
        return ended, limiter.try_acquire("api")

    assert run(main) == (130.0, True)


def test_a_wait_that_the_line_makes_hopeless_is_refused_at_once():
    """The token of 60 s is for the first waiter, that of 120 s comes too late."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        limiter.acquire("api")
        ahead = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(0)
        with pytest.raises(WaitTimeout) as caught:
            await limiter.acquire_async("api", timeout=119.9)
        assert (caught.value.rule, caught.value.retry_after) == ("requests/minute", 120.0)
        assert clock.seconds() == 0.0
        await limiter.acquire_async("api", timeout=120)
        await ahead
        return clock.seconds()

    assert run(main) == 120.0


def test_a_time_out_may_be_a_timedelta_and_is_long_enough_if_the_token_comes_at_that_instant():
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 60)
    limiter.acquire("api")
    limiter.acquire("api", timeout=timedelta(seconds=60))
    assert clock.seconds() == 60.0


def test_a_task_that_is_cancelled_while_it_waits_spends_nothing():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        limiter.acquire("api")
        waiter = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(30)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await asyncio.sleep(30)
        return limiter.try_acquire("api"), limiter.try_acquire("api"), in_flight(limiter)

    assert run(main) == (True, False, 1)


def test_a_token_that_was_granted_to_a_task_cancelled_in_that_instant_goes_to_the_next():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        limiter.acquire("api")
        first = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(0)
        clock.at(60, first.cancel)  # due after the alarm of the first: granted, then cancelled
        await second
        return first.cancelled(), clock.seconds()

    assert run(main) == (True, 60.0)


def test_a_task_that_was_cancelled_before_it_began_spends_nothing():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        task = asyncio.ensure_future(limiter.acquire_async("api"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return available(limiter)

    assert run(main) == 1


@pytest.mark.parametrize("kind", ["memory", "template", "rate"])
def test_a_deadline_that_cannot_be_met_is_refused_at_once(kind):
    """The refusal says after how many seconds it is worth another try."""
    clock = ManualClock(auto_advance=True)
    if kind == "rate":
        acquire = RateLimiter(1, clock=clock).acquire
    else:
        limiter = MemoryLimiter(rates="1/minute" if kind == "template" else (), clock=clock)
        if kind == "memory":
            limiter.set_capacity("api", 1, 60)
        acquire = functools.partial(limiter.acquire, "api")
    acquire()
    clock.advance(20)
    with pytest.raises(WaitTimeout) as caught:
        acquire(timeout=39.999)
    assert clock.seconds() == 20.0
    assert caught.value.retry_after == 40.0
    acquire(timeout=40)
    assert clock.seconds() == 60.0


def test_with_a_time_out_of_zero_an_empty_bucket_raises_capacity_exhausted(api):
    api.acquire("api", cost=2, timeout=0)
    with pytest.raises(CapacityExhausted) as caught:
        api.acquire("api", timeout=0)
    assert caught.value.rule == "requests/minute"
    assert caught.value.retry_after == 30.0


def test_try_acquire_is_false_for_an_unknown_resource_and_a_closed_limiter(api):
    assert not api.try_acquire("opnai")
    api.close()
    assert not api.try_acquire("api")
    assert not api.try_acquire("opnai")


def test_close_refuses_the_callers_that_wait_and_those_that_come_later():
    async def main(clock):
        limiter = MemoryLimiter(rates="1/minute", clock=clock)
        limiter.set_capacity("api", 1, 60)
        waiters = []
        for resource in ("api", "user"):
            limiter.acquire(resource)
            waiters += [asyncio.ensure_future(limiter.acquire_async(resource)) for _ in range(3)]
        await asyncio.sleep(1)
        limiter.close()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        for resource in ("api", "user", "newcomer"):
            with pytest.raises(Closed, match="the limiter was closed"):
                await limiter.acquire_async(resource)
            with pytest.raises(Closed), limiter.slot(resource):
                pass
            assert not limiter.try_acquire(resource)
        return {type(result) for result in results}, clock.seconds()

    assert run(main) == ({Closed}, 1.0)


def test_a_second_close_does_nothing(api):
    api.close()
    api.close()
    with pytest.raises(Closed):
        api.acquire("api")


@pytest.mark.parametrize("colour", ["with", "async with"])
def test_a_memory_limiter_closes_itself_at_the_end_of_its_block(colour):
    async def main(clock):
        limiter = MemoryLimiter(rates="2/minute", clock=clock)
        if colour == "with":
            with limiter as inside:
                limiter.acquire("api")
        else:
            async with limiter as inside:
                await limiter.acquire_async("api")
        assert inside is limiter
        with pytest.raises(Closed):
            limiter.acquire("api")

    run(main)


def test_a_closed_limiter_can_be_released_announced_to_and_looked_at(api):
    api.acquire("api")
    api.close()
    api.release("api")
    api.release("api")
    api.announce_reduced("api", "429")
    api.remove("unknown")
    assert api.get_capacity("api") == Capacity(
        resource="api", available=2, total=2, window=60.0, in_flight=0, share=2
    )


def test_a_closed_limiter_refuses_new_limits_and_keeps_the_old(api):
    api.close()
    with pytest.raises(Closed):
        api.set_capacity("api", 100, 1)
    with pytest.raises(Closed):
        api.set_rates("other", "5/s")
    assert api.get_capacity("api").total == 2
    assert api.get_capacity("other") is None


def test_callers_that_wait_for_a_resource_that_is_removed_are_told_so():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        limiter.acquire("api")
        waiters = [asyncio.ensure_future(limiter.acquire_async("api")) for _ in range(3)]
        await asyncio.sleep(1)
        limiter.remove("api")
        results = await asyncio.gather(*waiters, return_exceptions=True)
        return [str(result) for result in results], clock.seconds()

    assert run(main) == (["'api' was removed while this call waited for it"] * 3, 1.0)


def test_tasks_that_wait_go_on_at_a_resource_that_was_removed_and_added_again():
    """They go on at the new bucket, which is full."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 3600)
        limiter.acquire("api")
        order = []

        async def visit(i):
            await limiter.acquire_async("api")
            order.append((i, clock.seconds()))

        visits = [asyncio.ensure_future(visit(i)) for i in range(3)]
        await asyncio.sleep(5)
        limiter.remove("api")
        limiter.set_capacity("api", 2, 60)
        await asyncio.gather(*visits)
        return order

    assert run(main) == [(0, 5.0), (1, 5.0), (2, 35.0)]


def test_a_task_goes_on_waiting_when_the_bucket_of_the_resource_added_again_is_empty():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 3600)
        limiter.acquire("api")
        waiter = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(5)
        limiter.remove("api")
        limiter.set_capacity("api", 1, 60)
        assert limiter.try_acquire("api")
        await waiter
        return clock.seconds()

    assert run(main) == 65.0


def test_a_time_out_goes_on_counting_when_the_resource_is_removed_and_added_again():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 10)
        limiter.acquire("api")
        waiter = asyncio.ensure_future(limiter.acquire_async("api", timeout=10))
        await asyncio.sleep(9)
        limiter.remove("api")
        limiter.set_capacity("api", 1, 10)
        assert limiter.try_acquire("api")
        with pytest.raises(WaitTimeout):
            await waiter
        return clock.seconds()

    assert run(main) <= 10.0


def test_threads_that_wait_go_on_at_a_resource_that_was_removed_and_added_again(threads, clock):
    """A thread that looks between the two steps is told that the resource is gone."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 3600)
    limiter.acquire("api")
    for _ in range(4):
        threads.start(limiter.acquire, "api")
    eventually(lambda: waiting(limiter) == 4, "all wait")
    limiter.remove("api")
    limiter.set_capacity("api", 4, 3600)
    results = threads.join()
    assert all(result is None or isinstance(result, UnknownResource) for result in results)
    assert available(limiter) == sum(isinstance(result, UnknownResource) for result in results)


def test_a_hundred_waiters_share_one_timer():
    """No timer is left when the waiters have gone."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 1)
        limiter.acquire("api")
        waiters = [asyncio.ensure_future(limiter.acquire_async("api")) for _ in range(100)]
        await asyncio.sleep(0)
        at_first = clock.timers
        most = 0
        for _ in range(50):
            await asyncio.sleep(1)
            most = max(most, clock.timers)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        return at_first, most, sum(waiter.cancelled() for waiter in waiters)

    at_first, most, cancelled = run(main)
    assert at_first == 1
    assert most <= 2  # one that was just moved on may still lie there, void
    assert cancelled in (49, 50)


def test_wake_ups_grow_with_admissions_and_not_with_waiters():
    """A thousand waiters for a hundred admissions set about a hundred timers."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 1)
        limiter.acquire("api")
        waiters = [asyncio.ensure_future(limiter.acquire_async("api")) for _ in range(1000)]
        await asyncio.sleep(0)
        before = clock.timers_set  # counts the timers that were ever set
        await asyncio.sleep(100.5)
        rung = clock.timers_set - before
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        return rung

    assert run(main) <= 202


@pytest.mark.parametrize("kind", ["configured", "template", "rate limiter"])
def test_waiters_go_first_come_first_served(kind):
    async def main(clock):
        if kind == "rate limiter":
            acquire = RateLimiter(rate="1/s burst 1", clock=clock).acquire_async
        else:
            limiter = MemoryLimiter(rates="1/s" if kind == "template" else (), clock=clock)
            if kind == "configured":
                limiter.set_capacity("api", 1, 1)
            acquire = functools.partial(limiter.acquire_async, "api")
        order = []

        async def visit(i):
            await acquire()
            order.append((i, clock.seconds()))

        await asyncio.gather(*(visit(i) for i in range(30)))
        return order

    assert run(main) == [(i, float(i)) for i in range(30)]


@pytest.mark.parametrize("kind", ["configured", "template"])
def test_try_acquire_takes_nothing_from_a_waiter_that_needs_more(kind):
    """The waiter needs five and three are there: another call must not take one of them."""

    async def main(clock):
        limiter = MemoryLimiter(rates="5/minute burst 5" if kind == "template" else (), clock=clock)
        if kind == "configured":
            limiter.set_capacity("api", 5, 60)
        limiter.acquire("api", cost=5)
        waiter = asyncio.ensure_future(limiter.acquire_async("api", cost=5))
        await asyncio.sleep(36)
        there = available(limiter), limiter.try_acquire("api"), limiter.try_acquire("api", cost=0)
        with pytest.raises(CapacityExhausted):
            await limiter.acquire_async("api", timeout=0)
        with pytest.raises(CapacityExhausted):
            async with limiter.slot("api", timeout=0):
                pass
        await waiter
        return there, clock.seconds()

    assert run(main) == ((3, False, False), 60.0)


def test_a_newcomer_stands_behind_the_callers_that_wait():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 5, 60)
        limiter.acquire("api", cost=5)
        moments = {}

        async def visit(name, cost):
            await limiter.acquire_async("api", cost=cost)
            moments[name] = clock.seconds()

        large = asyncio.ensure_future(visit("large", 5))
        await asyncio.sleep(36)
        small = asyncio.ensure_future(visit("small", 1))
        await asyncio.gather(large, small)
        return moments

    assert run(main) == {"large": 60.0, "small": 72.0}


def test_threads_and_tasks_stand_in_one_line(threads, clock):
    """In the order in which they came."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 1)
    limiter.acquire("api")
    admitted = []
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever)
    runner.start()

    def in_thread(i):
        with limiter.slot("api"):
            admitted.append(i)

    async def in_task(i):
        async with limiter.slot("api"):
            admitted.append(i)

    tasks = []
    for i in range(12):
        if i % 2:
            tasks.append(asyncio.run_coroutine_threadsafe(in_task(i), loop))
        else:
            threads.start(in_thread, i)
        eventually(lambda i=i: waiting(limiter) == i + 1, "it waits")
    for i in range(12):
        clock.advance(1)
        eventually(lambda i=i: len(admitted) == i + 1, "one is let in")
    threads.join()
    for task in tasks:
        task.result(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    runner.join(PATIENCE)
    loop.close()
    assert admitted == list(range(12))
    eventually(lambda: in_flight(limiter) == 0 or in_flight(limiter) == 1, "all are out")
