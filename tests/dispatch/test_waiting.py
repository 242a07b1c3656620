"""Waiting at a Dispatch: order, time-outs, priorities, tenants, changed rates and cancellation."""

import asyncio
from itertools import count

import pytest

from dispatch.gates import only_places, only_rates
from headgate import (
    CapacityExhausted,
    CostTooLarge,
    Dispatch,
    LineFull,
    WaitTimeout,
    events,
)
from headgate.http import read_signal
from headgate.testing import ManualClock, Recorder, run

# -- order


def test_a_freed_place_goes_to_the_longest_waiting_call_at_that_instant():
    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        order = []

        async def visitor(i):
            async with dispatch.admit():
                order.append((i, clock.seconds()))

        visitors = [asyncio.ensure_future(visitor(i)) for i in range(5)]
        await asyncio.sleep(3)
        holder.settle()
        assert dispatch.try_admit() is None
        await asyncio.gather(*visitors)
        return order

    assert run(main) == [(i, 3.0) for i in range(5)]


def test_a_thousand_calls_waiting_for_a_place_set_no_timer_and_are_not_woken():
    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        visitors = [asyncio.ensure_future(dispatch.admit().__aenter__()) for _ in range(1000)]
        await asyncio.sleep(0)
        timers = clock.next_due()
        await asyncio.sleep(3600)
        waiting = dispatch.snapshot().waiting
        for visitor in visitors:
            visitor.cancel()
        await asyncio.gather(*visitors, return_exceptions=True)
        holder.settle()
        return timers, waiting, dispatch.snapshot().waiting

    assert run(main) == (None, 1000, 0)


def test_a_call_may_wait_an_hour_for_a_place():
    async def main(clock):
        dispatch = only_places(1, clock=clock)
        clock.at(3600, dispatch.try_admit().settle)
        async with dispatch.admit() as permit:
            return permit.waited

    assert run(main) == 3600.0


def test_a_call_larger_than_the_whole_budget_runs_alone():
    """Earlier calls finish before it; later ones wait for it, however small they are."""

    async def main(clock):
        dispatch = Dispatch(byte_budget=10, clock=clock)
        log = []

        async def visitor(size, duration):
            async with dispatch.admit(bytes=size):
                log.append((size, clock.seconds()))
                await asyncio.sleep(duration)

        await asyncio.gather(visitor(3, 1), visitor(25, 1), visitor(2, 1), visitor(3, 1))
        return log

    assert run(main) == [(3, 0.0), (25, 1.0), (2, 2.0), (3, 2.0)]


def test_a_heavy_call_is_not_starved_by_light_ones():
    async def main(clock):
        dispatch = Dispatch(byte_budget=100, concurrency=None, throttled_concurrency=None, clock=clock)
        done = asyncio.Event()

        async def light():
            while not done.is_set():
                async with dispatch.admit(bytes=20):
                    await asyncio.sleep(1)

        async def heavy():
            await asyncio.sleep(5.5)
            async with dispatch.admit(bytes=100) as permit:
                done.set()
                return permit.waited

        *_, waited = await asyncio.gather(*(light() for _ in range(12)), heavy())
        return waited

    assert run(main) <= 4.0


def test_a_higher_priority_goes_first():
    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        order = []

        async def visitor(priority):
            async with dispatch.admit(priority=priority):
                order.append(priority)

        waiters = asyncio.gather(*(visitor(p) for p in (0, -1, 5, 0, 5)))
        await asyncio.sleep(0)
        holder.settle()
        await waiters
        return order

    assert run(main) == [5, 5, 0, 0, -1]


def test_a_tenant_with_a_thousand_waiting_calls_does_not_delay_the_first_of_another():
    async def main(clock):
        dispatch = only_rates("10/s burst 1", clock=clock)
        order = []

        async def visitor(tenant):
            async with dispatch.admit(tenant=tenant):
                order.append(tenant)

        crowd = [asyncio.ensure_future(visitor("big")) for _ in range(1000)]
        await asyncio.sleep(0.05)
        ahead = len(order)
        await visitor("small")
        position = order.index("small") - ahead
        for task in crowd:
            task.cancel()
        return position

    assert run(main) <= 1


def test_tenants_share_by_cost():
    """A tenant of 900-token calls and one of 100-token calls get the same tokens, not the same calls."""

    async def main(clock):
        dispatch = only_rates("1000 tokens/s burst 1000", clock=clock)
        used = {"large": 0, "small": 0}

        async def visitor(tenant, tokens):
            async with dispatch.admit(tokens=tokens, tenant=tenant):
                used[tenant] += tokens

        tasks = [asyncio.ensure_future(visitor("large", 900)) for _ in range(200)]
        tasks += [asyncio.ensure_future(visitor("small", 100)) for _ in range(1000)]
        await asyncio.sleep(100)
        for task in tasks:
            task.cancel()
        return used

    used = run(main)
    assert abs(used["large"] - used["small"]) <= 2 * 900


# -- time-outs, and a bounded line


def test_a_wait_ends_at_its_timeout_and_leaves_the_line():
    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        with pytest.raises(WaitTimeout, match=r"waited 1.0 s for a place \(concurrency\)") as caught:
            async with dispatch.admit(timeout=1):
                pass
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.rule, caught.value.retry_after) == ("concurrency", None)
        holder.settle()
        return clock.seconds(), dispatch.snapshot().waiting

    assert run(main) == (1.0, 0)


def test_a_timeout_of_zero_refuses_at_once_and_says_when_to_try_again(clock):
    dispatch = only_rates("1/s burst 1", clock=clock)
    dispatch.try_admit()
    with pytest.raises(CapacityExhausted) as caught, dispatch.admit(timeout=0):
        pass
    assert (caught.value.rule, caught.value.retry_after) == ("requests/second", 1.0)


def test_a_timeout_that_cannot_be_met_is_refused_at_once():
    """No call is in flight that could be refunded."""
    clock = ManualClock(auto_advance=True)
    dispatch = Dispatch(rates="1/minute", clock=clock)
    dispatch.try_admit().settle()
    with pytest.raises(WaitTimeout) as caught, dispatch.admit(timeout=5):
        pass
    assert caught.value.retry_after == 60.0
    assert clock.seconds() == 0.0


def test_a_timeout_that_a_refund_could_meet_is_waited_for():
    async def main(clock):
        dispatch = Dispatch(rates="60 tokens/minute burst 60", clock=clock)
        holder = dispatch.try_admit(tokens=60)
        clock.at(2, lambda: holder.settle(tokens=1))
        async with dispatch.admit(tokens=30, timeout=5):
            return clock.seconds()

    assert run(main) == 2.0


def test_a_call_beyond_max_waiting_is_refused():
    async def main(clock):
        dispatch = only_places(1, max_waiting=2, clock=clock)
        holder = dispatch.try_admit()
        waiters = [asyncio.ensure_future(dispatch.admit().__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LineFull, match="2 are waiting already"):
            async with dispatch.admit():
                pass
        holder.settle()
        for waiter in waiters:
            (await waiter).settle()
        return dispatch.snapshot().waiting

    assert run(main) == 0


def test_with_max_waiting_zero_no_call_waits(clock):
    dispatch = only_places(1, max_waiting=0, clock=clock)
    permit = dispatch.try_admit()
    with pytest.raises(LineFull), dispatch.admit():
        pass
    permit.settle()
    with dispatch.admit():
        pass


# -- rates that change


def test_a_lowered_rate_takes_effect_for_waiting_calls():
    async def main(clock):
        seen = Recorder()
        dispatch = only_rates("10/s burst 1", clock=clock, observer=seen)
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        visitors = asyncio.gather(*(visitor() for _ in range(5)))
        await asyncio.sleep(0.15)
        dispatch.set_rates("1/s burst 1")
        await visitors
        return times, seen.of(events.Retuned)

    times, retuned = run(main)
    assert times == [0.0, 0.1, 0.65, 1.65, 2.65]
    assert retuned[0].rates == ("1 requests/second burst 1",)


def test_a_raised_rate_admits_waiting_calls_sooner_and_creates_nothing():
    async def main(clock):
        dispatch = only_rates("1/minute", clock=clock)
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        visitors = asyncio.gather(*(visitor() for _ in range(3)))
        await asyncio.sleep(30)
        dispatch.set_rates("1/s")
        await visitors
        return times

    assert run(main) == [0.0, 30.5, 31.5]


def test_new_rates_that_a_waiting_call_can_never_fit_refuse_it():
    async def main(clock):
        dispatch = only_rates("100 tokens/s burst 100", clock=clock)
        dispatch.try_admit(tokens=100)
        waiter = asyncio.ensure_future(dispatch.admit(tokens=80).__aenter__())
        await asyncio.sleep(0)
        dispatch.set_rates("50 tokens/s burst 50")
        with pytest.raises(CostTooLarge, match="80 tokens can never fit a limit of 50"):
            await waiter

    run(main)


def test_rates_may_count_units_of_their_own_also_after_a_change_of_rates():
    async def main(clock):
        dispatch = only_rates(["100/s", "4 images/minute burst 4"], clock=clock)
        assert dispatch.try_admit(cost={"images": 4}) is not None
        assert dispatch.try_admit(cost={"images": 1}) is None
        assert dispatch.try_admit() is not None
        waiter = asyncio.ensure_future(dispatch.admit(cost={"images": 1}).__aenter__())
        await asyncio.sleep(0)
        dispatch.set_rates(["100/s", "4 images/minute burst 4", "10 voices/minute burst 10"])
        assert dispatch.try_admit(cost={"voices": 1}) is None  # another call waits
        permit = await waiter
        assert clock.seconds() == 15.0
        permit.settle(cost={"images": 1})
        assert dispatch.try_admit(cost={"voices": 10}) is not None

    run(main)


# -- cancellation


def test_cancelling_a_waiting_or_running_call_gives_everything_back():
    async def main(clock):
        dispatch = Dispatch(concurrency=1, rates="10/s", clock=clock)

        async def body():
            async with dispatch.admit(bytes=10):
                await asyncio.sleep(1000)

        runs, waits = asyncio.ensure_future(body()), asyncio.ensure_future(body())
        await asyncio.sleep(1)
        waits.cancel()
        await asyncio.sleep(1)
        assert dispatch.snapshot().waiting == 0
        runs.cancel()
        await asyncio.sleep(1)
        return dispatch.snapshot()

    snapshot = run(main)
    assert (snapshot.in_flight, snapshot.bytes_in_flight, snapshot.waiting) == (0, 0, 0)
    assert snapshot.rates[0].level == 10


def test_a_place_granted_to_a_task_cancelled_in_that_instant_passes_to_the_next():
    """The tokens charged to the first come back."""

    async def main(clock):
        dispatch = Dispatch(concurrency=1, rates="100 tokens/s burst 100", clock=clock)
        holder = dispatch.try_admit()
        first = asyncio.ensure_future(dispatch.admit(tokens=100).__aenter__())
        second = asyncio.ensure_future(dispatch.admit(tokens=100).__aenter__())
        await asyncio.sleep(1)
        holder.settle()
        first.cancel()
        permit = await second
        assert first.cancelled()
        permit.settle()
        return clock.seconds(), dispatch.snapshot().in_flight

    assert run(main) == (1.0, 0)


# -- returns that find the lock held


def hold_the_lock_meanwhile(gate, n, meanwhile):
    """While the lock of the gate is held for the n-th time, another call ends, which cannot take it."""

    def locking():
        for times in count(1):
            gate._lock.acquire()
            if times == n:
                meanwhile()
            yield

    gate._locking = locking()


def observe_a_response(gate, _waiter):
    gate.observe(read_signal(200, {}))


def cancel_a_caller_that_waits(_gate, waiter):
    waiter.cancel()


def refuse_a_call_that_is_too_large(gate, _waiter):
    with pytest.raises(CostTooLarge):
        gate.try_admit(tokens=1001)


@pytest.mark.parametrize(
    ("act", "n"),
    [(observe_a_response, 1), (cancel_a_caller_that_waits, 2), (refuse_a_call_that_is_too_large, 2)],
)
def test_a_call_that_ends_while_another_thread_counts_something_lets_the_next_one_in_at_once(act, n):
    async def main(clock):
        dispatch = only_places(1, clock=clock, rates="1000 tokens/s")
        holder = dispatch.try_admit(tokens=1)
        waiters = [asyncio.ensure_future(dispatch.admit(tokens=1, tenant=i).__aenter__()) for i in range(2)]
        await asyncio.sleep(1)
        hold_the_lock_meanwhile(dispatch, n, holder.settle)
        act(dispatch, waiters[1])
        await asyncio.sleep(1)
        assert holder.mode < 0
        assert waiters[0].done()
        waiters[1].cancel()
        waiters[0].result().settle()

    run(main)
