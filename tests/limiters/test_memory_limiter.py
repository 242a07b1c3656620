"""What SPEC parts 14 and 17.3, D-50 to D-61 and D-85 to D-89 say about the limiters, case by case."""

import asyncio
import contextlib
import functools
import gc
import inspect
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forks import in_a_child, needs_fork
from headgate import (
    Capacity,
    CapacityExhausted,
    Closed,
    CostTooLarge,
    DistributedLimiter,
    HeadgateError,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    MemoryLimiter,
    Rate,
    RateLimiter,
    Refused,
    UnknownResource,
    WaitTimeout,
    events,
)
from headgate.limiters.resource import Resource, Slot
from headgate.testing import ManualClock, Recorder, run
from patience import PATIENCE, eventually

SECOND = 1_000_000_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def api(clock):
    """Two a minute, called "api"."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 2, 60)
    return limiter


def available(limiter, resource="api"):
    return limiter.get_capacity(resource).available


def in_flight(limiter, resource="api"):
    return limiter.get_capacity(resource).in_flight


def waiting(limiter, resource="api"):
    """How many stand in line: the limiter does not say, its gate does."""
    known = limiter._resources.get(resource)
    return 0 if known is None else known.gate._line.waiting


class InThreads:
    """Threads that are all joined at the end, and whose results or errors are kept."""

    def __init__(self):
        self.threads = []
        self.results = []

    def start(self, act, *args):
        def body():
            try:
                self.results.append(act(*args))
            except BaseException as error:  # noqa: BLE001 - whatever befell it is the result
                self.results.append(error)

        thread = threading.Thread(target=body, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self):
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread was left waiting"
        return self.results


@pytest.fixture
def threads():
    crowd = InThreads()
    yield crowd
    crowd.join()


# -- ML-01 to ML-05: buckets by name


def test_resources_are_independent_of_each_other(clock):
    """ML-01."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("one", 1, 60)
    limiter.set_capacity("two", 1, 60)
    assert limiter.try_acquire("one")
    assert not limiter.try_acquire("one")
    assert limiter.try_acquire("two")


def test_capacity_is_so_many_tokens_a_window(clock):
    """ML-02: sixty a minute is one a second once they are gone."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 60, 60)
    assert sum(limiter.try_acquire("api") for _ in range(100)) == 60
    clock.advance(0.999999999)
    assert not limiter.try_acquire("api")
    clock.advance(0.000000001)
    assert limiter.try_acquire("api")
    assert not limiter.try_acquire("api")


def test_a_window_may_be_a_timedelta(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 60, timedelta(minutes=1))
    assert limiter.get_capacity("api").window == 60.0


@pytest.mark.parametrize("start", [0.0, 1e-9, 86400.0, 1e9])
def test_a_new_bucket_starts_full_whatever_the_clock_says(start):
    """ML-03."""
    limiter = MemoryLimiter(clock=ManualClock(start))
    limiter.set_capacity("api", 7, 60)
    assert available(limiter) == 7


def test_half_a_second_after_ten_a_second_ran_dry_there_are_exactly_five(clock):
    """ML-04."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 1)
    assert limiter.try_acquire("api", cost=10)
    clock.advance(0.5)
    assert available(limiter) == 5
    assert sum(limiter.try_acquire("api") for _ in range(10)) == 5


def test_tokens_never_gather_above_capacity(clock):
    """ML-04, B18: not even after ten years."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 1)
    limiter.try_acquire("api", cost=10)
    clock.advance(10 * 365 * 86400)
    assert available(limiter) == 10
    assert sum(limiter.try_acquire("api") for _ in range(100)) == 10


def test_acquire_takes_one_token_and_waits_for_the_next():
    """ML-05: two a minute: 0, 0, then every thirty seconds."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 2, 60)
    moments = []
    for _ in range(5):
        limiter.acquire("api")
        moments.append(clock.seconds())
    assert moments == [0.0, 0.0, 30.0, 60.0, 90.0]


def test_acquire_async_does_the_same_for_a_task_and_leaves_the_loop_free():
    """ML-05, D-83: the loop goes on while one waits."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 2, 60)
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(1)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        moments = []
        for _ in range(4):
            await limiter.acquire_async("api")
            moments.append(clock.seconds())
        ticking.cancel()
        return moments, ticks

    moments, ticks = run(main)
    assert moments == [0.0, 0.0, 30.0, 60.0]
    assert ticks >= 59


def test_try_acquire_answers_at_once(api):
    """ML-05."""
    assert [api.try_acquire("api") for _ in range(4)] == [True, True, False, False]


# -- ML-06, ML-07, ML-13: the ways a wait can end


def test_an_unknown_resource_is_named_with_what_to_write(api):
    """ML-06."""
    with pytest.raises(UnknownResource) as caught:
        api.acquire("opnai")
    assert str(caught.value) == "no limit was set for 'opnai'; write e.g. set_capacity('opnai', 60, 60)"
    assert isinstance(caught.value, KeyError)
    with pytest.raises(UnknownResource), api.slot("opnai"):
        pass


def test_an_unknown_resource_is_named_to_a_task_too():
    """ML-06."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        with pytest.raises(UnknownResource):
            await limiter.acquire_async("opnai")
        with pytest.raises(UnknownResource):
            async with limiter.slot("opnai"):
                pass

    run(main)


def test_a_wait_ends_at_its_time_out_and_spends_nothing():
    """ML-06: the bucket gives one at 60; a second waiter that would wait 70 goes at 60 + 60."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 60)
        limiter.acquire("api")
        ahead = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(0)
        with pytest.raises(WaitTimeout) as caught:
            await limiter.acquire_async("api", timeout=70)
        await ahead
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.rule == "requests/minute"
        ended = clock.seconds()
        await asyncio.sleep(50)
        return ended, limiter.try_acquire("api")

    assert run(main) == (70.0, True)


def test_a_time_out_may_be_a_timedelta_and_is_long_enough_if_the_token_comes_at_that_instant():
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 60)
    limiter.acquire("api")
    limiter.acquire("api", timeout=timedelta(seconds=60))
    assert clock.seconds() == 60.0


def test_a_task_that_is_cancelled_while_it_waits_spends_nothing():
    """ML-06, D-56."""

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
    """D-56: cancelled means no token spent."""

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
    """D-56: an already cancelled context gets no token."""

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
    """D-56: with the seconds after which it is worth another try."""
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


def test_a_caller_who_would_not_wait_is_told_that_capacity_is_exhausted(api):
    """ML-14: `timeout=0`."""
    api.acquire("api", cost=2, timeout=0)
    with pytest.raises(CapacityExhausted) as caught:
        api.acquire("api", timeout=0)
    assert caught.value.rule == "requests/minute"
    assert caught.value.retry_after == 30.0


def test_try_acquire_says_false_of_what_is_unknown_or_closed(api):
    """ML-07."""
    assert not api.try_acquire("opnai")
    api.close()
    assert not api.try_acquire("api")
    assert not api.try_acquire("opnai")


def test_everybody_who_waits_or_comes_is_told_that_the_limiter_was_closed():
    """ML-06, ML-13."""

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


def test_what_comes_after_closing_is_harmless(api):
    """ML-13, ML-09: release does nothing bad, and the capacity can still be read."""
    api.acquire("api")
    api.close()
    api.release("api")
    api.release("api")
    api.announce_reduced("api", "429")
    api.remove("unknown")
    assert api.get_capacity("api") == Capacity(
        resource="api", available=2, total=2, window=60.0, in_flight=0, share=2
    )


def test_setting_on_a_closed_limiter_is_refused_and_changes_nothing(api):
    """ML-11."""
    api.close()
    with pytest.raises(Closed):
        api.set_capacity("api", 100, 1)
    with pytest.raises(Closed):
        api.set_rates("other", "5/s")
    assert api.get_capacity("api").total == 2
    assert api.get_capacity("other") is None


def test_a_resource_removed_while_someone_waits_is_unknown_to_them():
    """ML-06, D-55."""

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


def test_whoever_waits_goes_on_at_a_resource_that_was_removed_and_added_again():
    """D-55: at the new bucket, which is full."""

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


def test_whoever_waits_goes_on_although_the_new_bucket_is_empty():
    """D-55: where the seed crashed."""

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
    """D-55, ML-06: ten seconds are ten seconds, whatever happened to the bucket meanwhile."""

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


def test_a_thread_that_waits_goes_on_at_a_resource_that_was_removed_and_added_again(threads, clock):
    """D-55: or it is told that the resource is gone; never anything else."""
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


# -- ML-08, R-1, R-5, D-50, D-58: release


def test_release_gives_the_token_back(api):
    """ML-08, R-1: as the seed says."""
    api.acquire("api")
    assert (available(api), in_flight(api)) == (1, 1)
    api.release("api")
    assert (available(api), in_flight(api)) == (2, 0)


def test_release_without_a_refund_only_ends_the_call(api):
    """R-1."""
    api.acquire("api")
    api.release("api", refund=False)
    assert (available(api), in_flight(api)) == (1, 0)


def test_a_slot_keeps_its_token_spent(api):
    """R-1: the form that holds the rate."""
    with api.slot("api"):
        assert (available(api), in_flight(api)) == (1, 1)
    assert (available(api), in_flight(api)) == (1, 0)


def test_the_trap_acquire_and_release_in_turn_abolish_the_rate(clock):
    """R-1, D-50: a hundred calls in a second pass "two a minute", for each gives its token back."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 2, 60)
    admitted = 0
    for _ in range(100):
        if limiter.try_acquire("api"):
            admitted += 1
            limiter.release("api")
        clock.advance(0.01)
    assert admitted == 100


@pytest.mark.parametrize("form", ["slot", "release without refund"])
def test_a_hundred_calls_in_a_second_on_two_a_minute_admit_two(form, clock):
    """D-50: both ways that hold the rate."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 2, 60)
    admitted = 0
    for _ in range(100):
        try:
            if form == "slot":
                with limiter.slot("api", timeout=0):
                    pass
            else:
                limiter.acquire("api", timeout=0)
                limiter.release("api", refund=False)
            admitted += 1
        except CapacityExhausted:
            pass
        clock.advance(0.01)
    assert admitted == 2


def test_release_of_an_unknown_resource_does_nothing(api):
    """ML-08."""
    api.release("opnai")
    assert api.get_capacity("opnai") is None


def test_release_with_nothing_under_way_changes_nothing(api):
    """D-58: it mints no token."""
    with api.slot("api", cost=2):
        pass
    assert (available(api), in_flight(api)) == (0, 0)
    for _ in range(5):
        api.release("api")
    assert (available(api), in_flight(api)) == (0, 0)


def test_release_at_capacity_ends_the_call_and_adds_no_token(api, clock):
    """R-5."""
    api.acquire("api")
    clock.advance(60)
    api.release("api")
    assert (available(api), in_flight(api)) == (2, 0)


def test_release_lets_one_who_waits_in_at_that_instant():
    """ML-08: one token, one waiter."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 3600)
        limiter.acquire("api")
        moments = []

        async def visit():
            await limiter.acquire_async("api")
            moments.append(clock.seconds())

        visits = [asyncio.ensure_future(visit()) for _ in range(2)]
        await asyncio.sleep(7)
        limiter.release("api")
        await asyncio.gather(*visits)
        return moments

    assert run(main) == [7.0, 3607.0]


def test_a_release_that_matches_no_acquire_does_not_end_somebody_elses_slot(api):
    """ML-08, D-58: in flight never goes below zero, and an unmatched release changes nothing."""
    with api.slot("api"):
        api.release("api")
        assert (available(api), in_flight(api)) == (1, 1)
    assert (available(api), in_flight(api)) == (1, 0)


def test_calls_that_are_never_released_are_not_counted_for_ever(clock):
    """D-58: in flight is bounded by live grants, and there cannot be more than there are tokens."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 3, 1)
    for _ in range(100):
        limiter.try_acquire("api")
        clock.advance(0.5)
        assert 0 <= in_flight(limiter) <= 3


def test_slots_that_outlive_their_window_are_all_counted_and_end_at_zero(clock):
    """ML-08, D-58: also when others acquire and never release."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 1)
    slots = [limiter.slot("api") for _ in range(3)]
    for slot in slots:
        slot.__enter__()
        clock.advance(1)
    limiter.acquire("api")
    most = in_flight(limiter)
    for slot in slots:
        slot.__exit__(None, None, None)
    assert most >= 3
    assert 0 <= in_flight(limiter) <= 1


@given(
    steps=st.lists(st.sampled_from(["acquire", "release", "forget", "enter", "leave", "second"]), max_size=40)
)
@settings(max_examples=150, deadline=None)
@example(steps=["enter", "release", "leave"])
def test_in_flight_is_what_is_under_way_in_any_order_of_coming_and_going(steps):
    """ML-08, D-58: slots that are open, and acquires not yet released as far as tokens are out."""
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 3, 3)
    slots = []

    def act(step):
        if step == "acquire":
            limiter.try_acquire("api")
        elif step == "release":
            limiter.release("api")
        elif step == "forget":
            limiter.release("api", refund=False)
        elif step == "second":
            clock.advance(1)
        elif step == "enter":
            slot = limiter.slot("api", timeout=0)
            with contextlib.suppress(CapacityExhausted):
                slot.__enter__()
                slots.append(slot)
        elif slots:
            slots.pop().__exit__(None, None, None)

    try:
        for step in steps:
            act(step)
            seen = limiter.get_capacity("api")
            assert len(slots) <= seen.in_flight <= len(slots) + 3
            assert 0 <= seen.available <= 3
    finally:
        for slot in slots:
            slot.__exit__(None, None, None)
    assert 0 <= limiter.get_capacity("api").in_flight <= 3


# -- ML-09: the record


def test_the_record_says_how_a_resource_stands(api, clock):
    """ML-09: it refills first."""
    api.acquire("api")
    api.acquire("api")
    clock.advance(30)
    assert api.get_capacity("api") == Capacity(
        resource="api", available=1, total=2, window=60.0, in_flight=2, share=2
    )


def test_there_is_no_record_of_an_unknown_resource(api):
    """ML-09."""
    assert api.get_capacity("opnai") is None


def test_a_record_cannot_be_changed(api):
    with pytest.raises(AttributeError, match="cannot change"):
        api.get_capacity("api").available = 5


def test_reading_the_record_changes_nothing(api, clock):
    """ML-09."""
    api.acquire("api", cost=2)
    for _ in range(300):
        clock.advance(0.1)
        api.get_capacity("api")
    assert available(api) == 1


def test_in_debt_nothing_is_available(clock):
    """ML-09: never a negative number."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 60, 60, burst=5)
    limiter.acquire("api", cost=50)
    assert available(limiter) == 0


def test_what_the_record_calls_available_could_really_go(clock):
    """ML-09, D-61: with several windows it is the tightest that counts."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_rates("api", ["10/s burst 10", "3/minute burst 3"])
    assert available(limiter) == 3
    limiter.acquire("api", cost=3)
    clock.advance(1)
    assert not limiter.try_acquire("api")
    assert available(limiter) == 0


def test_a_call_that_ended_while_the_record_was_read_is_counted_out():
    """The rule of the gate: whoever holds the lock gives back what others could not meanwhile."""

    class Interrupted(ManualClock):
        act = None

        def now(self):
            act, self.act = self.act, None
            if act is not None:
                act()
            return super().now()

    clock = Interrupted()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 5, 60)
    slot = limiter.slot("api")
    slot.__enter__()
    clock.act = lambda: slot.__exit__(None, None, None)  # another thread, in effect
    limiter.get_capacity("api")
    assert in_flight(limiter) == 0


# -- ML-10, ML-11, R-11, D-52: changing


def test_a_lower_capacity_cuts_what_is_there_and_a_higher_one_adds_nothing(clock):
    """ML-10: 100 with 50 left, set to 30: 30 of 30; set to 1000: still 30."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 100, 60)
    limiter.acquire("api", cost=50)
    limiter.set_capacity("api", 30, 60)
    assert (available(limiter), limiter.get_capacity("api").total) == (30, 30)
    limiter.set_capacity("api", 1000, 60)
    assert (available(limiter), limiter.get_capacity("api").total) == (30, 1000)


def test_time_that_has_passed_is_credited_at_the_rate_of_that_time(clock):
    """D-52: ten a minute, idle for 30 s, set to 600 a minute: five at once, then ten a second."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api", cost=10)
    clock.advance(30)
    limiter.set_capacity("api", 600, 60)
    assert sum(limiter.try_acquire("api") for _ in range(600)) == 5
    clock.advance(1)
    assert sum(limiter.try_acquire("api") for _ in range(600)) == 10


def test_setting_the_same_capacity_a_thousand_times_creates_nothing(clock):
    """ML-10, P6."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 7, 60)
    limiter.acquire("api", cost=7)
    for _ in range(1000):
        clock.advance(0.001)
        limiter.set_capacity("api", 7, 60)
    assert available(limiter) == 0
    clock.advance(7.572)
    assert available(limiter) in (0, 1)  # 60/7 s after it ran dry, less what was rounded off


def test_those_who_wait_wait_for_the_new_capacity():
    """ML-10."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 3600)
        limiter.acquire("api")
        waiter = asyncio.ensure_future(limiter.acquire_async("api"))
        await asyncio.sleep(36)  # a hundredth of a token
        limiter.set_capacity("api", 1, 100)
        await waiter
        return clock.seconds()

    assert run(main) == 36.0 + 99.0


def test_one_who_waits_for_more_than_the_new_capacity_is_told_that_it_can_never_fit():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 10, 60)
        limiter.acquire("api", cost=10)
        waiter = asyncio.ensure_future(limiter.acquire_async("api", cost=8))
        await asyncio.sleep(1)
        limiter.set_capacity("api", 5, 60)
        with pytest.raises(CostTooLarge):
            await waiter
        return clock.seconds()

    assert run(main) == 1.0


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "60", None, True, float("nan"), float("inf")])
def test_a_capacity_that_cannot_work_is_refused_and_removes_nothing(capacity, api):
    """R-11, D-60, B27."""
    with pytest.raises(InvalidCapacity) as caught:
        api.set_capacity("api", capacity, 60)
    assert f"capacity={capacity!r}" in str(caught.value)
    assert "write" in str(caught.value)
    assert api.get_capacity("api").total == 2


@pytest.mark.parametrize("window", [0, -1, 1e-12, "60", None, True, float("nan"), float("inf")])
def test_a_window_that_cannot_work_is_refused_by_its_name_and_removes_nothing(window, api):
    """R-11, D-60."""
    with pytest.raises(InvalidWindow) as caught:
        api.set_capacity("api", 60, window)
    assert api.get_capacity("api").total == 2
    assert f"window={window!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize("burst", [0, -1, 2.5, "60", True, float("nan")])
def test_a_burst_that_cannot_work_is_refused(burst, api):
    with pytest.raises(InvalidCapacity) as caught:
        api.set_capacity("api", 60, 60, burst=burst)
    assert f"burst={burst!r}" in str(caught.value)
    assert "write" in str(caught.value)


def test_a_burst_and_strict_together_are_refused_as_they_are_in_a_string(api):
    """A strict rate has no burst: "10/s strict burst 5" is an error, and so is this."""
    with pytest.raises(InvalidLimit):
        api.set_rates("api", "60/minute strict burst 5")
    with pytest.raises(InvalidLimit):
        api.set_capacity("api", 60, 60, burst=5, strict=True)


@pytest.mark.parametrize("resource", ["", 7, None, b"api", ("a", "b"), ["api"]])
def test_a_resource_that_is_no_name_is_refused(resource, api):
    with pytest.raises(InvalidConfig) as caught:
        api.set_capacity(resource, 60, 60)
    assert repr(resource) in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize("ask", ["acquire", "try_acquire", "slot"])
@pytest.mark.parametrize("resource", [None, ["api"]])
def test_a_resource_that_is_no_name_is_refused_when_it_is_made_on_first_use(ask, resource, clock):
    """Otherwise all callers whose user was not looked up share one bucket, called None."""
    limiter = MemoryLimiter(rates="10/s", clock=clock)

    def asking():
        if ask == "slot":
            with limiter.slot(resource):
                pass
        else:
            getattr(limiter, ask)(resource)

    with pytest.raises(HeadgateError) as caught:
        asking()
    assert repr(resource) in str(caught.value)


@pytest.mark.parametrize(
    ("rates", "error"),
    [
        ("60", InvalidLimit),
        ("60/minutte", InvalidLimit),
        ("sixty/minute", InvalidLimit),
        ("0/minute", InvalidLimit),
        ("60/minute burst", InvalidLimit),
        ("60/minute strict burst 5", InvalidLimit),
        ("", InvalidLimit),
        ([60], InvalidLimit),
        (60, InvalidConfig),
        ([], InvalidConfig),
        (None, InvalidConfig),
    ],
)
def test_rates_that_cannot_be_read_are_refused_with_what_was_given_and_what_to_write(rates, error, api):
    with pytest.raises(error) as caught:
        api.set_rates("api", rates)
    given_value = rates[0] if isinstance(rates, list) and rates else rates
    assert repr(given_value) in str(caught.value)
    assert "write" in str(caught.value)
    if rates != []:  # an empty template is no template
        with pytest.raises(error):
            MemoryLimiter(rates=rates)


def test_a_complaint_about_a_rate_names_it_once(api):
    with pytest.raises(InvalidLimit) as caught:
        api.set_rates("api", "60/minutte")
    assert str(caught.value).count("'60/minutte'") == 1


@pytest.mark.parametrize("cost", [-1, 2.5, "2", True, float("nan"), {"images": 1}, {"requests": -1}, [1]])
@pytest.mark.parametrize("kind", ["configured", "template"])
def test_a_cost_that_is_no_amount_is_refused_and_takes_nothing(cost, kind, clock):
    limiter = MemoryLimiter(rates="5/s" if kind == "template" else (), clock=clock)
    if kind == "configured":
        limiter.set_rates("api", "5/s")
    for ask in (limiter.acquire, limiter.try_acquire):
        with pytest.raises(InvalidLimit) as caught:
            ask("api", cost=cost)
        assert repr(cost) in str(caught.value) or "-1" in str(caught.value)
    with pytest.raises(InvalidLimit), limiter.slot("api", cost=cost):
        pass
    assert available(limiter) == 5


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), float("inf"), True])
@pytest.mark.parametrize("kind", ["configured", "template"])
def test_a_time_out_that_is_no_time_is_refused_even_if_nobody_has_to_wait(timeout, kind, clock):
    """A mistake shows when it is made, not when the traffic comes."""
    limiter = MemoryLimiter(rates="5/s" if kind == "template" else (), clock=clock)
    if kind == "configured":
        limiter.set_rates("api", "5/s")
    with pytest.raises(InvalidWindow, match="timeout="):
        limiter.slot("api", timeout=timeout)
    with pytest.raises(InvalidWindow, match="timeout="):
        limiter.acquire("api", timeout=timeout)
    with pytest.raises(InvalidWindow, match="timeout="):
        asyncio.run(limiter.acquire_async("api", timeout=timeout))
    assert available(limiter) == 5


@pytest.mark.parametrize("observer", ["print", 5, []])
def test_an_observer_that_cannot_be_called_is_refused(observer):
    with pytest.raises(InvalidConfig, match="observer="):
        MemoryLimiter(observer=observer)


def test_what_can_never_fit_is_refused_at_once(api, clock):
    """B18: 2⁶³ too."""
    for cost in (3, 2**63):
        for ask in (api.acquire, api.try_acquire):
            with pytest.raises(CostTooLarge, match=f"{cost} requests can never fit a limit of 2"):
                ask("api", cost=cost)
    template = MemoryLimiter(rates="2/minute", clock=clock)
    for ask in (template.acquire, template.try_acquire):
        with pytest.raises(CostTooLarge):
            ask("user", cost=3)
    assert available(api) == 2


@pytest.mark.parametrize("amount", [1, 10**9])
@pytest.mark.parametrize("window", [0.001, 1, 10**6])
def test_rates_of_any_size_keep_exact_edges(amount, window, clock):
    """B18: from one in eleven days to a million million a second."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", amount, window)
    limiter.acquire("api", cost=amount)
    assert available(limiter) == 0
    window_ns = round(window * SECOND)
    clock._advance_to(window_ns - 1)
    assert available(limiter) == amount * (window_ns - 1) // window_ns
    clock._advance_to(window_ns)
    assert available(limiter) == amount


def test_remove_forgets_a_resource(api):
    """R-11."""
    api.try_acquire("api")
    api.remove("api")
    assert api.get_capacity("api") is None
    assert not api.try_acquire("api")
    with pytest.raises(UnknownResource):
        api.acquire("api")
    api.remove("api")
    api.set_capacity("api", 2, 60)
    assert (available(api), in_flight(api)) == (2, 0)


def test_a_slot_of_a_resource_that_was_removed_ends_without_a_trace(api):
    with api.slot("api"):
        api.remove("api")
        api.set_capacity("api", 2, 60)
        assert in_flight(api) == 0
    assert in_flight(api) == 0


# -- ML-12, R-2, D-59: announcing


def test_announcing_a_reduction_tells_observers_and_changes_nothing(clock):
    """ML-12, R-2, D-59."""
    seen = Recorder()
    limiter = MemoryLimiter(observer=seen, clock=clock)
    limiter.set_capacity("api", 100, 60)
    before = limiter.get_capacity("api")
    clock.advance(3)
    limiter.announce_reduced("api", "got a 429")
    assert limiter.get_capacity("api") == before
    assert seen.of(events.CapacityReduced) == [events.CapacityReduced(key="api", at=3.0, reason="got a 429")]
    limiter.close()
    limiter.announce_reduced("api", "too late")
    assert len(seen.of(events.CapacityReduced)) == 1


def test_announcing_without_an_observer_does_nothing(api):
    """ML-12."""
    api.announce_reduced("api", "got a 429")
    assert available(api) == 2


# -- ML-14, D-60: every error of the seed can be reached


def test_every_named_error_of_the_seed_is_reachable():
    """ML-14, D-60: closed, unknown resource, exhausted, capacity, window, configuration."""
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 60)
    limiter.acquire("api")
    reached = []
    for act in (
        lambda: limiter.acquire("unknown"),
        lambda: limiter.acquire("api", timeout=0),
        lambda: limiter.acquire("api", timeout=1),
        lambda: limiter.acquire("api", cost=2),
        lambda: limiter.set_capacity("api", 0, 60),
        lambda: limiter.set_capacity("api", 60, 0),
        lambda: limiter.set_rates("api", []),
        limiter.close,
        lambda: limiter.acquire("api"),
    ):
        try:
            act()
        except HeadgateError as error:
            reached.append(type(error))
    assert reached == [
        UnknownResource,
        CapacityExhausted,
        WaitTimeout,
        CostTooLarge,
        InvalidCapacity,
        InvalidWindow,
        InvalidConfig,
        Closed,
    ]


@pytest.mark.parametrize("kind", [MemoryLimiter, DistributedLimiter])
def test_limiters_of_resources_have_the_same_methods(kind):
    for name in [
        "set_capacity",
        "set_rates",
        "acquire",
        "acquire_async",
        "try_acquire",
        "slot",
        "release",
        "get_capacity",
        "announce_reduced",
        "remove",
        "close",
    ]:
        assert callable(getattr(kind, name))


# -- ML-16, D-53: nobody polls


def test_those_who_wait_need_one_timer_between_them():
    """ML-16, D-53: a hundred waiters, one timer; and none is left when they have gone."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 1)
        limiter.acquire("api")
        waiters = [asyncio.ensure_future(limiter.acquire_async("api")) for _ in range(100)]
        await asyncio.sleep(0)
        at_first = len(clock._due)
        most = 0
        for _ in range(50):
            await asyncio.sleep(1)
            most = max(most, len(clock._due))
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        return at_first, most, sum(waiter.cancelled() for waiter in waiters)

    at_first, most, cancelled = run(main)
    assert at_first == 1
    assert most <= 2  # one that was just moved on may still lie there, void
    assert cancelled in (49, 50)


def test_wake_ups_grow_with_admissions_and_not_with_waiters():
    """D-53: a thousand waiters for a hundred admissions ring about a hundred times."""

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 1)
        limiter.acquire("api")
        waiters = [asyncio.ensure_future(limiter.acquire_async("api")) for _ in range(1000)]
        await asyncio.sleep(0)
        before = clock._serial  # counts the timers that were ever set
        await asyncio.sleep(100.5)
        rung = clock._serial - before
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        return rung

    assert run(main) <= 202


# -- D-51: exact refill, whoever looks how often


class Bucket:
    """The definition: a level in fractions that grows with time, up to the burst."""

    def __init__(self, amount, window_ns, burst):
        self.amount, self.window_ns, self.burst = amount, window_ns, burst
        self.level = Fraction(burst)
        self.now = 0

    def pass_to(self, now):
        earned = Fraction((now - self.now) * self.amount, self.window_ns)
        self.level = min(Fraction(self.burst), self.level + earned)
        self.now = now

    def fits(self, cost):
        return not cost or self.level >= min(cost, self.burst)

    def take(self, cost):
        self.level -= cost

    def change(self, amount, window_ns, burst):
        """Continue from where it stands, cut to the new burst: nothing is created."""
        self.amount, self.window_ns, self.burst = amount, window_ns, burst
        self.level = min(self.level, Fraction(burst))


amounts = st.one_of(st.integers(1, 12), st.integers(1, 1000))
windows = st.one_of(st.sampled_from([1, 7, 60, 3600]), st.integers(1, 100_000))  # in milliseconds
bursts = st.one_of(st.none(), st.integers(1, 30))
# Gaps are told in 12ths of what one token takes, so that they fall around the edges.
gaps = st.tuples(st.integers(0, 40), st.integers(-1, 1))
a_look = st.tuples(gaps, st.sampled_from(["try", "try", "try", "look", "slot", "many"]), st.integers(0, 4))


@pytest.mark.parametrize("kind", ["configured", "template"])
@given(amount=amounts, window=windows, burst=bursts, looks=st.lists(a_look, max_size=60))
@settings(max_examples=150, deadline=None)
def test_what_is_granted_is_exactly_what_was_earned_under_any_pattern_of_polling(
    kind, amount, window, burst, looks
):
    """D-51, P2: against a bucket in fractions; looking, trying in vain and other keys change nothing."""
    window_ns = window * 1_000_000
    rate = Rate(amount, timedelta(milliseconds=window), burst=amount if burst is None else burst)
    assert rate.per_ns == window_ns
    clock = ManualClock()
    limiter = MemoryLimiter(rates=rate if kind == "template" else (), clock=clock)
    if kind == "configured":
        limiter.set_capacity("api", amount, window / 1000, burst=burst)
    model = Bucket(amount, window_ns, rate.burst)
    for (parts, little), what, cost in looks:
        clock._advance_to(clock.now() + max(0, parts * window_ns // (12 * amount) + little))
        model.pass_to(clock.now())
        if kind == "template":
            limiter.try_acquire(f"other {parts}")
        if what == "look":
            assert available(limiter) == max(0, model.level // 1)
            continue
        cost = min(cost if what == "many" else 1, max(amount, rate.burst))
        fits = model.fits(cost)
        if what == "slot":
            try:
                with limiter.slot("api", cost=cost, timeout=0):
                    admitted = True
            except CapacityExhausted:
                admitted = False
        else:
            admitted = limiter.try_acquire("api", cost=cost)
        assert admitted == fits
        if admitted:
            model.take(cost)
    assert available(limiter) == max(0, model.level // 1)


@pytest.mark.parametrize("kind", ["configured", "template"])
@pytest.mark.parametrize("every", [0.15, 0.199, 0.05, 0.0999999, 0.3, 1.9])
def test_ten_a_second_are_ten_a_second_however_they_are_polled(kind, every):
    """D-51: where the seed granted 6.7 and 5.0; the tokens granted by t are floor(rate · t)."""
    clock = ManualClock()
    limiter = MemoryLimiter(rates="10/s burst 100" if kind == "template" else (), clock=clock)
    if kind == "configured":
        limiter.set_capacity("api", 10, 1, burst=100)
    limiter.acquire("api", cost=10)
    while limiter.try_acquire("api"):
        pass
    granted = 0
    for _ in range(200):
        clock.advance(every)
        while limiter.try_acquire("api"):
            granted += 1
        assert granted == clock.now() * 10 // SECOND


# -- no retroactive credit


a_change = st.tuples(
    st.sampled_from(["try", "try", "many", "set", "look"]),
    st.tuples(st.integers(0, 40), st.integers(-1, 1)),
    amounts,
    windows.filter(lambda window: window >= 100),
    bursts,
)


@given(changes=st.lists(a_change, max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_change_of_capacity_creates_anything(changes):
    """D-52, ML-10, P6: against a bucket in fractions that is told of every change."""
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 1)
    model = Bucket(10, SECOND, 10)
    for what, (parts, little), amount, window, burst in changes:
        step = parts * model.window_ns // (12 * model.amount)
        clock._advance_to(clock.now() + max(0, step + little))
        model.pass_to(clock.now())
        if what == "set":
            limiter.set_capacity("api", amount, window / 1000, burst=burst)
            model.change(amount, window * 1_000_000, amount if burst is None else burst)
        elif what in {"try", "many"}:
            cost = 1 if what == "try" else min(3, max(model.amount, model.burst))
            if limiter.try_acquire("api", cost=cost):
                assert model.fits(cost), "more was granted than had been earned"
                model.take(cost)
        # Each change may round off less than a ten-thousandth of a token, never up.
        here = available(limiter)
        assert max(0, (model.level - Fraction(1, 100)) // 1) <= here <= max(0, model.level // 1)


def test_going_over_to_strict_and_back_creates_nothing(clock):
    """P6: over every kind of change."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api", cost=8)
    for _ in range(10):
        limiter.set_capacity("api", 10, 60, strict=True)
        assert available(limiter) == 2
        limiter.set_capacity("api", 10, 60)
        assert available(limiter) == 2


# -- D-57: burst and strict


def admitted_before(clock, limiter, end):
    """Take all that can be had, as soon as it can be had, until then."""
    moments = []
    while True:
        limiter.acquire("api")
        if clock.seconds() >= end:
            return moments
        moments.append(clock.seconds())


@pytest.mark.parametrize(
    ("options", "admitted"), [({}, 119), ({"burst": 1}, 60), ({"burst": 10}, 69), ({"strict": True}, 60)]
)
def test_a_burst_of_its_own_or_strict_keeps_the_first_window_near_the_limit(options, admitted):
    """D-57: the whole capacity at once and the refill make 119 of sixty a minute."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 60, 60, **options)
    assert len(admitted_before(clock, limiter, 60)) == admitted


def test_a_template_without_a_burst_gives_one_seconds_worth_at_once(clock):
    """D-57, issue 3: the default burst of a rate that is written down."""
    limiter = MemoryLimiter(rates="600/minute", clock=clock)
    assert sum(limiter.try_acquire("user") for _ in range(100)) == 10


def most_in_any_window(moments, window):
    """Of moments in order, each with a cost: the most within any half-open window."""
    most = inside = 0
    recent = deque()
    for at, cost in moments:
        recent.append((at, cost))
        inside += cost
        while recent[0][0] <= at - window:
            inside -= recent.popleft()[1]
        most = max(most, inside)
    return most


# Gaps in 64ths of the window, give or take a nanosecond, with a liking for the edges.
adversary = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, 16, 31, 32, 33, 60, 62, 63, 64, 65]),
        st.integers(-1, 1),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=120,
)


@pytest.mark.parametrize("kind", ["rate limiter", "configured", "template"])
@given(amount=st.one_of(st.integers(1, 6), st.sampled_from([60, 127, 128, 129, 500])), arrivals=adversary)
@settings(max_examples=150, deadline=None)
def test_a_strict_window_is_never_exceeded_however_the_calls_arrive(kind, amount, arrivals):
    """D-57, D-86, B6, RL-02: in any stretch of a minute, wherever it begins; and up to 128 no
    call is refused that a log would admit."""
    clock = ManualClock()
    window = 60 * SECOND
    if kind == "rate limiter":
        limiter = RateLimiter(amount, clock=clock)
    else:
        limiter = MemoryLimiter(rates=f"{amount}/minute strict" if kind == "template" else (), clock=clock)
        if kind == "configured":
            limiter.set_capacity("api", amount, 60, strict=True)
    admitted = []
    for parts, little, cost in arrivals:
        clock._advance_to(clock.now() + max(0, parts * window // 64 + little))
        cost = 1 if kind == "rate limiter" else min(cost * max(1, amount // 5), amount)
        if kind == "rate limiter":
            entered = limiter.try_acquire()
        elif kind == "configured":
            entered = limiter.try_acquire("api", cost=cost)
        else:
            try:
                limiter.acquire("api", cost=cost, timeout=0)
                entered = True
            except CapacityExhausted:
                entered = False
        used = sum(spent for at, spent in admitted if at > clock.now() - window)
        if entered:
            admitted.append((clock.now(), cost))
        elif amount <= 128:
            assert used + cost > amount
    assert most_in_any_window(admitted, window) <= amount


@pytest.mark.parametrize("amount", [1, 3, 100, 1000])
def test_a_strict_window_is_never_exceeded_by_those_who_wait(amount):
    """D-57, D-86: everybody goes as soon as they may, for five windows."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", amount, 60, strict=True)
    dice = random.Random(amount)
    admitted = []
    while clock.seconds() < 300:
        if dice.random() < 0.2:
            clock.advance(dice.choice([0.1, 1, 30, 59.999999999, 60]))
        limiter.acquire("api")
        admitted.append((clock.now(), 1))
    assert most_in_any_window(admitted, 60 * SECOND) <= amount


# -- D-54: order


@pytest.mark.parametrize("kind", ["configured", "template", "rate limiter"])
def test_waiters_go_first_come_first_served(kind):
    """D-54."""

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
def test_try_acquire_fails_while_someone_waits_although_there_would_be_enough_for_it(kind):
    """D-54: the waiter needs five, three are there, and one more call must not take one of them."""

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


def test_a_newcomer_stands_behind_those_who_wait():
    """D-54: no fast path past the line."""

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
    """D-54, ML-01: in the order in which they came, whatever world they wait in."""
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


# -- D-61: several windows and units


def test_a_call_fits_all_windows_or_takes_from_none(clock):
    """D-61: refused by any, none charged."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_rates("api", ["100/minute burst 10", "1000 tokens/minute burst 100", "5/day burst 5"])
    rules = limiter._resources["api"].gate._rules.rates

    def levels():
        return [rule.level(clock.now()) for rule in rules]

    assert limiter.try_acquire("api", cost={"tokens": 80})
    assert levels() == [9, 20, 4]
    assert not limiter.try_acquire("api", cost={"tokens": 30})  # tokens refuse
    assert not limiter.try_acquire("api", cost={"requests": 5, "tokens": 1})  # the day refuses
    assert levels() == [9, 20, 4]
    assert limiter.try_acquire("api", cost={"requests": 4, "tokens": 20})
    assert levels() == [5, 0, 0]


def test_one_who_waits_for_several_windows_goes_when_the_last_of_them_has_room():
    """D-61: ten a minute and 100 tokens a minute; the tokens are what takes time."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_rates("api", ["10/minute burst 10", "100 tokens/minute burst 100"])
    limiter.acquire("api", cost={"tokens": 100})
    limiter.acquire("api", cost={"tokens": 50})
    assert clock.seconds() == 30.0
    with pytest.raises(CapacityExhausted) as caught:
        limiter.acquire("api", cost={"tokens": 10}, timeout=0)
    assert (caught.value.rule, caught.value.retry_after) == ("tokens/minute", 6.0)


def test_resources_may_count_different_units(clock):
    """D-61: and a unit that a resource does not count is taken for a mistake."""
    limiter = MemoryLimiter(rates="10 images/s", clock=clock)
    limiter.set_rates("video", ["2 frames/minute burst 2", "1000 tokens/s"])
    assert limiter.try_acquire("video", cost={"frames": 2})
    assert not limiter.try_acquire("video", cost={"frames": 1})
    assert limiter.try_acquire("user", cost={"images": 10})
    assert not limiter.try_acquire("user", cost={"images": 1})
    assert limiter.try_acquire("user")  # costs no image
    with pytest.raises(InvalidLimit, match="nothing here counts 'frames'"):
        limiter.try_acquire("user", cost={"frames": 1})


@given(
    rates=st.lists(
        st.tuples(
            st.integers(1, 9),
            st.sampled_from([1, 7, 60]),
            st.integers(1, 9),
            st.sampled_from(["requests", "tokens"]),
        ),
        min_size=1,
        max_size=4,
    ),
    steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 4), st.integers(0, 6)), max_size=40),
)
@settings(max_examples=150, deadline=None)
def test_several_windows_are_one_decision(rates, steps):
    """D-61: against one bucket in fractions for each window."""
    clock = ManualClock()
    written = [Rate(amount, per, burst=burst, unit=unit) for amount, per, burst, unit in rates]
    limiters = MemoryLimiter(clock=clock), MemoryLimiter(rates=written, clock=clock)
    limiters[0].set_rates("api", written)
    models = [(Bucket(rate.amount, rate.per_ns, rate.burst), rate.unit) for rate in written]
    for gap, requests, tokens in steps:
        clock._advance_to(clock.now() + gap * 1_000_000)
        cost = {"requests": requests, "tokens": tokens}
        for model, _ in models:
            model.pass_to(clock.now())
        possible = all(cost[rate.unit] <= max(rate.amount, rate.burst) for rate in written)
        fits = all(model.fits(cost[unit]) for model, unit in models)
        for limiter in limiters:
            try:
                assert limiter.try_acquire("api", cost=cost) == fits
            except CostTooLarge:
                assert not possible
        if possible and fits:
            for model, unit in models:
                model.take(cost[unit])


# -- many keys: the template


def test_a_resource_of_the_template_is_made_on_first_use(clock):
    """Issue 3, 4."""
    limiter = MemoryLimiter(rates="2/minute burst 2", clock=clock)
    assert len(limiter) == 0
    assert [limiter.try_acquire("ann") for _ in range(3)] == [True, True, False]
    assert limiter.try_acquire("bob")
    assert len(limiter) == 2
    assert limiter.get_capacity("ann").available == 0
    assert limiter.get_capacity("carol") == Capacity(
        resource="carol", available=2, total=2, window=60.0, in_flight=0, share=2
    )


def test_looking_at_a_resource_does_not_make_it(clock):
    limiter = MemoryLimiter(rates="2/minute burst 2", clock=clock)
    for i in range(100):
        limiter.get_capacity(f"user {i}")
        limiter.release(f"user {i}")
    assert len(limiter) == 0


@pytest.mark.parametrize("rates", ["2/minute strict", ["2/minute strict", "10/s"]])
def test_a_strict_resource_of_the_template_is_made_on_first_use_too(rates, clock):
    """Issue 3, 4: whoever asks first, and however."""
    limiter = MemoryLimiter(rates=rates, clock=clock)
    assert limiter.get_capacity("ann").available == 2
    assert [limiter.try_acquire("ann") for _ in range(3)] == [True, True, False]
    limiter.acquire("bob")
    assert limiter.try_acquire("bob")
    assert not limiter.try_acquire("bob")


def test_a_resource_that_was_configured_goes_by_its_own_rates(clock):
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    limiter.set_capacity("vip", 5, 60)
    assert limiter.get_capacity("vip").total == 5
    assert limiter.get_capacity("user").total == 1
    limiter.remove("vip")
    assert limiter.get_capacity("vip").total == 1


def test_a_resource_that_is_configured_before_anybody_used_it_starts_full(clock):
    """ML-03: the template has nothing to do with it."""
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    limiter.set_capacity("vip", 1000, 60)
    assert limiter.get_capacity("vip").available == 1000


def test_configuring_a_resource_in_use_creates_nothing(clock):
    """ML-10, P6: what the template left is what there is."""
    limiter = MemoryLimiter(rates="4/minute burst 4", clock=clock)
    limiter.acquire("user", cost=3)
    limiter.set_capacity("user", 100, 60)
    assert limiter.get_capacity("user").available == 1


@pytest.mark.parametrize("waited", [False, True])
def test_removing_a_resource_of_the_template_makes_it_new(waited):
    """Whether or not somebody ever had to wait there: the caller cannot know."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    limiter.acquire("user")
    if waited:
        limiter.acquire("user")
    assert limiter.get_capacity("user").available == 0
    limiter.remove("user")
    assert limiter.get_capacity("user").available == 1
    assert limiter.try_acquire("user")


def test_whoever_waits_at_a_template_resource_that_is_removed_goes_on_at_a_new_one():
    """D-55: the template makes it again."""

    async def main(clock):
        limiter = MemoryLimiter(rates="1/hour", clock=clock)
        limiter.acquire("user")
        waiter = asyncio.ensure_future(limiter.acquire_async("user"))
        await asyncio.sleep(5)
        limiter.remove("user")
        await waiter
        return clock.seconds()

    assert run(main) == 5.0


def test_a_hundred_thousand_keys_touched_once_are_forgotten_when_they_are_full_again(clock):
    """Issue 3, 4."""
    limiter = MemoryLimiter(rates="10/minute", clock=clock)
    for i in range(100_000):
        assert limiter.try_acquire(f"user {i}")
    assert len(limiter) == 100_000
    clock.advance(120)
    limiter.try_acquire("somebody")
    clock.advance(120)
    limiter.try_acquire("somebody")
    assert len(limiter) <= 2


def test_a_steady_stream_of_new_keys_is_bounded_by_those_not_yet_full(clock):
    """A thousand a second, each full again after six: never more than a few windows of them."""
    limiter = MemoryLimiter(rates="10/minute", clock=clock)
    most = 0
    for second in range(400):
        for i in range(20):
            limiter.try_acquire(f"user {second} {i}")
        clock.advance(1)
        most = max(most, len(limiter))
    assert most <= 20 * 60 * 3


def test_a_key_that_is_not_full_is_never_forgotten(clock):
    """Issue 3, 4: never while a window is open. One token comes back after an hour, not before."""
    limiter = MemoryLimiter(rates="1/hour burst 1", clock=clock)
    assert limiter.try_acquire("user")
    for i in range(3599):
        clock.advance(1)
        limiter.try_acquire(f"other {i}")
        assert not limiter.try_acquire("user")
    clock.advance(1)
    assert limiter.try_acquire("user")


def test_keys_that_had_to_wait_are_forgotten_when_they_are_idle_and_full():
    """Issue 3, 4: also after a wait, which takes a gate of its own."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="60/minute", clock=clock)
    for i in range(300):
        for _ in range(2):
            with limiter.slot(f"user {i}"):
                pass
        assert len(limiter) <= 10


def test_keys_that_had_to_wait_are_forgotten_although_their_calls_were_never_released():
    """Issue 3, 4; D-58: release is optional, so a limiter must not keep a gate for each forgotten one."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="60/minute", clock=clock)
    for i in range(300):
        limiter.acquire(f"user {i}")
        limiter.acquire(f"user {i}")
    clock.advance(86400)
    for i in range(300):
        limiter.acquire(f"late {i}")
        limiter.acquire(f"late {i}")
    assert len(limiter) <= 310


def test_a_key_is_not_forgotten_while_somebody_waits_or_is_under_way():
    """Issue 3, 4."""

    async def main(clock):
        limiter = MemoryLimiter(rates="1/minute", clock=clock)
        waiters = []
        for i in range(5):
            limiter.acquire(f"busy {i}")
            waiters.append(asyncio.ensure_future(limiter.acquire_async(f"busy {i}")))
        async with limiter.slot("inside"):
            await asyncio.sleep(0)
            for i in range(50):  # every newcomer looks for somebody to forget
                async with limiter.slot(f"other {i}"):
                    pass
            assert limiter.get_capacity("inside").in_flight == 1
            for i in range(5):
                assert waiting(limiter, f"busy {i}") == 1
            await asyncio.sleep(3600)
            for i in range(50):
                async with limiter.slot(f"later {i}"):
                    pass
            in_flight_after_an_hour = limiter.get_capacity("inside").in_flight
        await asyncio.gather(*waiters)
        return in_flight_after_an_hour

    assert run(main) == 1


def test_try_acquire_is_not_misled_when_its_resource_is_forgotten_in_that_instant(clock):
    """A full bucket says yes, also to one who found its old gate just before it was retired."""
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)

    class Meanwhile(Mapping):
        """A cost; while it is first read, another thread (in effect) makes the limiter forget the user."""

        read = False

        def __iter__(self):
            return iter(["requests"])

        def __len__(self):
            return 1

        def __getitem__(self, unit):
            if not self.read:
                self.read = True
                with limiter.slot("another"):
                    pass
            return 1

    assert limiter.try_acquire("user", cost=Meanwhile())


def test_trying_in_vain_leaves_a_key_the_number_that_it_is(clock):
    """Issue 3, 4: only waiting takes a gate. Those who are refused most often must not cost most."""
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    for i in range(1000):
        assert limiter.try_acquire(f"user {i}")
        assert not limiter.try_acquire(f"user {i}")
        with pytest.raises(CapacityExhausted):
            limiter.acquire(f"user {i % 10}", timeout=0)
    assert len(limiter._resources) <= 10


def test_a_key_that_is_configured_while_it_is_being_forgotten_keeps_its_configuration(clock, monkeypatch):
    """Issue 3, 4: whichever comes first, what was set afterwards is what counts."""
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)
    crowd = InThreads()
    retire = Resource.retire

    def retire_and_be_late(self):
        retired = retire(self)
        crowd.start(limiter.set_capacity, "user", 100, 60)
        crowd.threads[-1].join(0.2)  # as far as it gets, in between
        return retired

    monkeypatch.setattr(Resource, "retire", retire_and_be_late)
    with limiter.slot("another"):  # looks whom to forget
        pass
    monkeypatch.undo()
    assert crowd.join() == [None]
    assert limiter.get_capacity("user").total == 100
    assert limiter.try_acquire("user", cost=50)


@pytest.mark.parametrize("ask", ["try_acquire", "acquire"])
def test_ctrl_c_while_a_key_is_being_forgotten_leaves_it_usable(ask, clock, monkeypatch):
    """The rule of the gate: what was begun is found again. So it is after a fork at that instant."""
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)
    retire = Resource.retire

    def interrupted(self):
        retire(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Resource, "retire", interrupted)
    with pytest.raises(KeyboardInterrupt), limiter.slot("another"):
        pass
    monkeypatch.undo()
    crowd = InThreads()
    crowd.start(getattr(limiter, ask), "user")
    crowd.threads[0].join(1)
    spinning = crowd.threads[0].is_alive()
    limiter.close()  # ends it
    crowd.join()
    assert not spinning


TEMPLATES = {
    "a bucket": "10/minute burst 3",
    "a fast bucket": "7/s burst 7",
    "no burst": "4/minute",
    "two windows": ["5/s burst 5", "12/minute burst 12"],
    "two units": ["6/minute burst 6", "9 tokens/minute burst 4"],
    "strict": "3/minute strict",
}
a_visit = st.tuples(
    st.sampled_from(["ann", "bob", "carol"]),
    st.sampled_from(["try", "try", "try", "acquire", "enter", "leave", "look"]),
    st.sampled_from([0, 0, 0, 1, 100, 999, 6000, 20_000, 60_000, 70_000, 400_000]),  # milliseconds
    st.integers(0, 3),
)


@pytest.mark.parametrize("name", TEMPLATES)
@given(visits=st.lists(a_visit, max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_resource_of_the_template_behaves_like_a_configured_one(name, visits):
    """Issue 3, 4: on any timeline: admissions, levels and moments at which to try again."""
    clock = ManualClock()
    template = MemoryLimiter(rates=TEMPLATES[name], clock=clock)
    configured = MemoryLimiter(clock=clock)
    for user in ("ann", "bob", "carol"):
        configured.set_rates(user, TEMPLATES[name])
    inside = {template: [], configured: []}

    def visit(limiter, user, what, cost):
        if what == "try":
            return limiter.try_acquire(user, cost=cost)
        if what == "look":
            seen = limiter.get_capacity(user)
            return seen.available, seen.total, seen.window, seen.share
        if what == "leave":
            if inside[limiter]:
                inside[limiter].pop(0).__exit__(None, None, None)
            return None
        try:
            if what == "acquire":
                return limiter.acquire(user, cost=cost, timeout=0)
            slot = limiter.slot(user, cost=cost, timeout=0)
            slot.__enter__()
            inside[limiter].append(slot)
        except Refused as refused:
            return type(refused), refused.rule, refused.retry_after
        return "inside"

    try:
        for user, what, gap, cost in visits:
            clock._advance_to(clock.now() + gap * 1_000_000)
            assert visit(template, user, what, cost) == visit(configured, user, what, cost)
    finally:
        for slots in inside.values():
            for slot in slots:
                slot.__exit__(None, None, None)


@pytest.mark.parametrize("waited", [False, True])
def test_acquire_and_release_at_a_template_resource_do_what_they_do_at_a_configured_one(waited):
    """R-1, ML-08: under way until released, and the token comes back."""
    clock = ManualClock(auto_advance=True)
    template = MemoryLimiter(rates="2/minute burst 2", clock=clock)
    configured = MemoryLimiter(clock=clock)
    configured.set_rates("user", "2/minute burst 2")
    seen = []
    for limiter in (template, configured):
        if waited:
            for _ in range(3):
                with limiter.slot("user"):
                    pass
            clock.advance(60)
        limiter.acquire("user")
        during = limiter.get_capacity("user")
        limiter.release("user")
        seen.append((during, limiter.get_capacity("user")))
        clock.advance(600)
    assert seen[0] == seen[1]


def test_an_observer_hears_of_admissions_at_template_resources_as_at_configured_ones(clock):
    """Issue 3: one behaviour for both."""
    heard = []
    for rates in ("10/s", ()):
        seen = Recorder()
        limiter = MemoryLimiter(rates=rates, observer=seen, clock=clock)
        if not rates:
            limiter.set_rates("user", "10/s")
        limiter.acquire("user")
        limiter.try_acquire("user")
        with pytest.raises(CostTooLarge):
            limiter.try_acquire("user", cost=11)
        heard.append([type(event).__name__ for event in seen.events])
    assert heard[0] == heard[1]


def test_an_observer_may_look_at_the_limiter_whenever_it_is_called(clock):
    """The rule of events: never under a lock. Here a slot ended while its gate was being looked at."""
    locked = []

    def observer(event):
        locked.append((type(event).__name__, limiter._lock.locked()))

    limiter = MemoryLimiter(rates="1/s", observer=observer, clock=clock)
    slot = limiter.slot("user")
    slot.__enter__()
    with limiter._resources["user"].gate._lock:  # another thread holds it for a moment
        slot.__exit__(None, None, None)
    with limiter.slot("another"):  # looks whom to forget
        pass
    assert ("Settled", True) not in locked
    assert ("Admitted", True) not in locked


def test_a_call_that_goes_on_at_a_new_gate_is_not_reported_as_refused(clock):
    """What is forgotten inside the limiter is nothing to tell an observer."""
    seen = Recorder()
    limiter = MemoryLimiter(rates="1/s", observer=seen, clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)
    gate = limiter._entrance("user")  # one who is about to ask ...
    with limiter.slot("another"):  # ... when the gate is retired
        pass
    assert gate.gate._closed
    slot = limiter.slot("user")
    entrances = iter([gate, limiter._entrance("user")])
    original = MemoryLimiter._entrance
    try:
        MemoryLimiter._entrance = lambda _self, _resource: next(entrances)
        with slot:
            pass
    finally:
        MemoryLimiter._entrance = original
    assert seen.of(events.Refused) == []


# -- threads, on the real clock


def race(count, act):
    """Have so many threads begin at the same instant. What each of them returned."""
    ready = threading.Barrier(count)
    crowd = InThreads()

    def body(i):
        ready.wait(PATIENCE)
        return act(i)

    for i in range(count):
        crowd.start(body, i)
    results = crowd.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("rates", ["5/hour burst 5", ["5/hour burst 5", "100/s"], "5/hour strict"])
@pytest.mark.parametrize("ask", ["try", "acquire", "slot", "all"])
def test_eight_threads_at_one_template_key_never_take_more_than_there_is(rates, ask):
    """Issue 3, 4: on the real clock, at a key that is being made, moved and made again."""
    for turn in range(5):
        limiter = MemoryLimiter(rates=rates)

        def visit(i, limiter=limiter, turn=turn):
            dice = random.Random(i + 100 * turn)
            admitted = 0
            for _ in range(60):
                how = dice.choice(["try", "acquire", "slot"]) if ask == "all" else ask
                try:
                    if how == "try":
                        admitted += limiter.try_acquire("key")
                    elif how == "acquire":
                        limiter.acquire("key", timeout=0)
                        admitted += 1
                    else:
                        with limiter.slot("key", timeout=0):
                            admitted += 1
                except CapacityExhausted:
                    pass
            return admitted

        assert sum(race(8, visit)) == 5


def test_eight_threads_at_keys_that_come_and_go_never_get_more_than_the_rate():
    """Issue 3, 4: buckets of a millisecond, so that keys are forgotten and made all the time."""
    limiter = MemoryLimiter(rates="1000/s burst 1")
    keys = [f"key {i}" for i in range(6)]
    began = time.monotonic_ns()

    def visit(i):
        dice = random.Random(i)
        admitted = dict.fromkeys(keys, 0)
        for _ in range(400):
            key = dice.choice(keys)
            try:
                if dice.random() < 0.5:
                    with limiter.slot(key, timeout=0):
                        admitted[key] += 1
                else:
                    admitted[key] += limiter.try_acquire(key)
            except CapacityExhausted:
                pass
        return admitted

    results = race(8, visit)
    allowed = 1 + (time.monotonic_ns() - began) // 1_000_000
    for key in keys:
        assert sum(admitted[key] for admitted in results) <= allowed


def test_threads_that_wait_at_template_keys_on_the_real_clock_all_get_there():
    """Nobody is lost between the number a key is and the gate it becomes."""
    limiter = MemoryLimiter(rates="500/s burst 1")

    def visit(i):
        for turn in range(10):
            limiter.acquire(f"key {(i + turn) % 3}")
        return 10

    began = time.monotonic_ns()
    assert sum(race(8, visit)) == 80
    allowed = 3 * (1 + (time.monotonic_ns() - began) * 500 // SECOND)
    assert allowed >= 80


def test_threads_configuring_removing_and_acquiring_at_once_meet_only_named_errors():
    """D-55, on the real clock."""
    limiter = MemoryLimiter(rates="1000/s burst 10")
    limiter.set_capacity("api", 10, 0.001)

    def visit(i):
        dice = random.Random(i)
        for _ in range(150):
            resource = dice.choice(["api", "user"])
            act = dice.randrange(5)
            try:
                if act == 0:
                    limiter.remove(resource)
                elif act == 1:
                    limiter.set_capacity(resource, dice.randint(1, 20), 0.001)
                elif act == 2:
                    limiter.try_acquire(resource)
                elif act == 3:
                    with limiter.slot(resource, timeout=0.01):
                        pass
                else:
                    limiter.acquire(resource, timeout=0.01)
                    limiter.release(resource)
            except Refused:
                pass
        return True

    assert all(race(8, visit))


@needs_fork
def test_a_forked_child_may_use_a_limiter_whose_lock_was_taken():
    """A child must not inherit a lock that nobody there will ever release."""
    limiter = MemoryLimiter(rates="1/minute")
    limiter.set_capacity("api", 1, 60)

    def check():
        assert limiter.try_acquire("user")
        assert limiter.try_acquire("api")
        assert not limiter.try_acquire("api")

    with limiter._lock:
        assert in_a_child(check) == 0


# -- slots


def test_a_slot_gives_the_place_back_when_the_block_raises_and_the_error_is_untouched(api):
    boom = RuntimeError("boom")
    with pytest.raises(RuntimeError) as caught, api.slot("api"):
        raise boom
    assert caught.value is boom
    assert (available(api), in_flight(api)) == (1, 0)


def test_a_slot_of_a_task_that_is_cancelled_inside_ends():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 2, 60)

        async def visit():
            async with limiter.slot("api"):
                await asyncio.sleep(3600)

        task = asyncio.ensure_future(visit())
        await asyncio.sleep(1)
        inside = in_flight(limiter)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return inside, in_flight(limiter), available(limiter)

    assert run(main) == (1, 0, 1)


def test_a_slot_tells_how_long_it_waited():
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 1, 60)
    with limiter.slot("api") as first, limiter.slot("api") as second:
        assert (first.waited, second.waited) == (0.0, 60.0)


def test_a_slot_can_be_used_again_but_not_twice_at_once(api):
    slot = api.slot("api")
    assert isinstance(slot, Slot)
    with slot, pytest.raises(RuntimeError, match="in use already"), slot:
        pass
    with slot:
        assert in_flight(api) == 1
    assert (available(api), in_flight(api)) == (0, 0)


def test_a_slot_may_turn_out_to_have_cost_less(api):
    """What its permit settles goes back, and the place is given back once."""
    with api.slot("api", cost=2) as permit:
        permit.settle(cost=1)
        assert (available(api), in_flight(api)) == (1, 0)
    assert (available(api), in_flight(api)) == (1, 0)


def test_acquiring_leaves_nothing_for_the_collector_to_complain_about(clock):
    """An acquired call has no permit to lose: warnings are errors here."""

    async def in_a_task(limiter):
        await limiter.acquire_async("api")

    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api")
    limiter.try_acquire("api")
    asyncio.run(in_a_task(limiter))
    gc.collect()
    assert (available(limiter), in_flight(limiter)) == (7, 3)


def test_a_limiter_and_its_gates_are_freed_when_nobody_uses_them():
    """No registry keeps a million resources alive."""
    import weakref

    limiter = MemoryLimiter(rates="1/s")
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api")
    limiter.acquire("user")
    trace = weakref.ref(limiter)
    del limiter
    gc.collect()
    assert trace() is None


def test_a_limiter_says_what_it_is(api):
    assert repr(api) == "<MemoryLimiter of 1 resources>"
    assert repr(RateLimiter(5)) == "<RateLimiter 5 requests/minute strict>"


# -- RL-01 to RL-06, D-85 to D-89: RateLimiter


def test_sixty_a_minute_is_the_default(clock):
    """RL-01."""
    limiter = RateLimiter(clock=clock)
    assert sum(limiter.try_acquire() for _ in range(100)) == 60


def test_acquire_returns_when_there_is_a_place():
    """RL-01."""
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(1, clock=clock)
    limiter.acquire()
    assert clock.seconds() == 0.0
    limiter.acquire()
    assert clock.seconds() == 60.0
    assert clock.sleeps == [60.0]


def test_inside_the_window_calls_are_not_paced(clock):
    """RL-02, R-12: a burst of all of them."""
    limiter = RateLimiter(30, clock=clock)
    assert sum(limiter.try_acquire() for _ in range(100)) == 30


def test_each_waits_until_the_oldest_is_a_minute_old():
    """RL-03: three a minute, calls at 0, 10, 20, 20: the fourth at 60, the fifth at 70."""
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(3, clock=clock)
    moments = []
    for at in (0, 10, 20, 20, 20):
        clock._advance_to(at * SECOND)
        limiter.acquire()
        moments.append(clock.seconds())
    assert moments == [0.0, 10.0, 20.0, 60.0, 70.0]


def test_a_decorated_function_takes_a_place_before_each_call():
    """RL-04."""
    clock = ManualClock(auto_advance=True)

    @RateLimiter(2, clock=clock)
    def call(n, *, twice=False):
        return (n * (1 + twice), clock.seconds())

    assert [call(1), call(2, twice=True), call(n=3)] == [(1, 0.0), (4, 0.0), (3, 60.0)]


def test_a_decorated_coroutine_function_is_awaited_and_the_loop_stays_free():
    """RL-04, D-83."""

    async def main(clock):
        limiter = RateLimiter(2, clock=clock)
        ticks = []

        @limiter
        async def call(n):
            await asyncio.sleep(1)
            return n, clock.seconds()

        async def tick():
            while True:
                await asyncio.sleep(10)
                ticks.append(clock.seconds())

        assert inspect.iscoroutinefunction(call)
        ticking = asyncio.ensure_future(tick())
        results = await asyncio.gather(*(call(n) for n in range(3)))
        ticking.cancel()
        return results, ticks

    results, ticks = run(main)
    assert results == [(0, 1.0), (1, 1.0), (2, 61.0)]
    assert ticks == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def test_coroutine_functions_in_disguise_are_awaited_too():
    """D-83: methods, partials and objects whose call is async."""

    async def main(clock):
        limiter = RateLimiter(2, clock=clock)

        class Client:
            @limiter
            async def method(self, n):
                return self, n

            async def __call__(self, n):
                return n, clock.seconds()

        client = Client()
        assert await client.method(1) == (client, 1)
        assert await limiter(functools.partial(client.method.__wrapped__, client))(2) == (client, 2)
        # If it were taken for a plain function, calling it now would stop the whole loop for a minute.
        assert inspect.iscoroutinefunction(limiter(client))
        return await limiter(client)(3)

    assert run(main) == (3, 60.0)


def test_a_decorated_function_keeps_its_metadata():
    """RL-04."""
    limiter = RateLimiter()

    def call(n: int = 5) -> str:
        """Call it."""

    async def call_async(n: int = 5) -> str:
        """Call it."""

    for fn in (call, call_async):
        decorated = limiter(fn)
        assert (decorated.__name__, decorated.__doc__) == (fn.__name__, "Call it.")
        assert decorated.__qualname__ == fn.__qualname__
        assert decorated.__wrapped__ is fn
        assert inspect.signature(decorated) == inspect.signature(fn)


def test_a_call_that_fails_has_used_its_place():
    """RL-04, in every form."""

    async def main(clock):
        limiter = RateLimiter(4, clock=clock)

        @limiter
        def fails():
            raise RuntimeError("boom")

        @limiter
        async def fails_async():
            raise RuntimeError("boom")

        with pytest.raises(RuntimeError):
            fails()
        with pytest.raises(RuntimeError):
            await fails_async()
        with pytest.raises(RuntimeError), limiter:
            raise RuntimeError("boom")
        with pytest.raises(RuntimeError):
            async with limiter:
                raise RuntimeError("boom")
        return limiter.try_acquire()

    assert run(main) is False


def test_every_form_of_one_limiter_shares_one_budget():
    """RL-05: decorator, with, async with, acquire, acquire_async, try_acquire."""

    async def main(clock):
        limiter = RateLimiter(7, clock=clock)

        @limiter
        def call():
            pass

        @limiter
        async def call_async():
            pass

        call()
        await call_async()
        with limiter:
            pass
        async with limiter:
            pass
        limiter.acquire()
        await limiter.acquire_async()
        return limiter.try_acquire(), limiter.try_acquire(), clock.seconds()

    assert run(main) == (True, False, 0.0)


def test_any_number_of_threads_share_the_budget():
    """RL-05: on the real clock."""
    limiter = RateLimiter(20)
    assert sum(race(8, lambda _i: sum(limiter.try_acquire() for _ in range(50)))) == 20


def test_threads_that_wait_go_as_places_come_free(threads, clock):
    """RL-05: two a minute, six threads: two at once, two at 60, two at 120."""
    limiter = RateLimiter(2, clock=clock)
    admitted = []

    def visit():
        with limiter:
            admitted.append(clock.seconds())

    for _ in range(6):
        threads.start(visit)
    line = limiter._gate._line
    eventually(lambda: line.waiting == 4, "four wait")
    clock.advance(60)
    eventually(lambda: len(admitted) == 4, "two more go")
    clock.advance(60)
    threads.join()
    assert sorted(admitted) == [0.0, 0.0, 60.0, 60.0, 120.0, 120.0]


def test_while_one_waits_others_may_try_and_wait_with_a_time_out_of_their_own(threads, clock):
    """D-85: nothing is held while waiting."""
    limiter = RateLimiter(1, clock=clock)
    limiter.acquire()
    threads.start(limiter.acquire)
    eventually(lambda: limiter._gate._line.waiting == 1, "one waits")
    others = InThreads()
    others.start(limiter.try_acquire)
    others.start(lambda: limiter.acquire(timeout=0))
    others.start(lambda: limiter.acquire(timeout=5))
    others.start(lambda: repr(limiter))
    results = others.join()
    assert sorted(type(result).__name__ for result in results) == [
        "CapacityExhausted",
        "WaitTimeout",
        "bool",
        "str",
    ]
    assert clock.seconds() == 0.0
    clock.advance(60)


def test_at_exactly_sixty_seconds_two_go_and_the_next_at_a_hundred_and_twenty():
    """D-86: where the seed let fifty of fifty through."""
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(2, clock=clock)
    assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]
    clock.advance(59.999999999)
    assert not limiter.try_acquire()
    clock.advance(0.000000001)
    assert sum(limiter.try_acquire() for _ in range(50)) == 2
    limiter.acquire()
    assert clock.seconds() == 120.0


@pytest.mark.parametrize("step", [-3600, 3600])
def test_steps_of_the_wall_clock_change_nothing(step, monkeypatch):
    """D-87."""
    limiter = RateLimiter(2)
    assert limiter.try_acquire()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    monkeypatch.setattr(time, "time_ns", lambda: round((real() + step) * SECOND))
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    with pytest.raises(WaitTimeout) as caught:
        limiter.acquire(timeout=1)
    assert 59 < caught.value.retry_after <= 60


def test_a_clock_that_goes_back_grants_nothing_and_holds_nobody_longer():
    """D-87, P5."""
    clock = ManualClock(10_000)
    limiter = RateLimiter(2, clock=clock)
    assert limiter.try_acquire()
    clock._now -= 3600 * SECOND
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    clock._now = 10_060 * SECOND
    assert sum(limiter.try_acquire() for _ in range(5)) == 2


def test_what_a_limiter_remembers_does_not_grow_with_its_limit(clock):
    """D-88, R-12: a log of a million would be a million entries."""
    limiter = RateLimiter(1_000_000, clock=clock)
    (rule,) = limiter._gate._rules.rates
    for _ in range(5000):
        clock.advance(0.01)
        assert limiter.try_acquire()
    assert len(rule._groups) <= 130


def test_pacing_is_an_option_of_its_own(clock):
    """D-88, R-12."""
    limiter = RateLimiter(rate="60/minute burst 1", clock=clock)
    assert [limiter.try_acquire() for _ in range(2)] == [True, False]
    clock.advance(1)
    assert [limiter.try_acquire() for _ in range(2)] == [True, False]
    assert RateLimiter(rate=Rate(5, 3600, strict=True), clock=clock).try_acquire()


@pytest.mark.parametrize("rpm", [0, -1, 2.5, "60", None, True, float("nan")])
def test_a_limit_that_cannot_work_is_refused_when_it_is_made(rpm):
    """D-89: ValueError, with what was given and what to write."""
    with pytest.raises(ValueError) as caught:
        RateLimiter(rpm)
    assert isinstance(caught.value, InvalidCapacity)
    assert f"requests_per_minute={rpm!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize(
    "rate", ["", "60", "60/minutte", "0/s", "5 tokens/s", 60, ["1/s", "2/s"], [], Rate(5, unit="bytes")]
)
def test_a_rate_that_a_rate_limiter_cannot_keep_is_refused_by_a_named_error(rate):
    """D-89 in spirit: never a bare ValueError about unpacking."""
    with pytest.raises(InvalidLimit) as caught:
        RateLimiter(rate=rate)
    assert "e.g." in str(caught.value)


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), True])
def test_a_rate_limiter_refuses_a_time_out_that_is_no_time(timeout):
    limiter = RateLimiter()
    with pytest.raises(InvalidWindow):
        limiter.acquire(timeout=timeout)
    with pytest.raises(InvalidWindow):
        asyncio.run(limiter.acquire_async(timeout=timeout))


def test_a_task_that_gives_up_at_a_rate_limiter_leaves_its_place_to_the_next():
    """D-85: cancelled or timed out, nothing is spent."""

    async def main(clock):
        limiter = RateLimiter(1, clock=clock)
        limiter.acquire()
        gives_up = asyncio.ensure_future(limiter.acquire_async())
        await asyncio.sleep(0)
        next_one = asyncio.ensure_future(limiter.acquire_async())
        await asyncio.sleep(30)
        gives_up.cancel()
        await next_one
        return clock.seconds()

    assert run(main) == 60.0


def test_rate_limiters_are_spaced_by_no_less_than_their_window_under_load():
    """RL-02: for a whole hour, each call and the one n before it are a minute apart."""
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(5, clock=clock)
    moments = []
    while clock.seconds() < 3600:
        limiter.acquire()
        moments.append(clock.now())
    assert all(later - earlier >= 60 * SECOND for earlier, later in zip(moments, moments[5:], strict=False))
    assert all(later >= earlier for earlier, later in pairwise(moments))
    assert len(moments) == 301


# -- reducing, by choice


def test_without_a_factor_an_announcement_changes_nothing_but_is_told(clock):
    """R-2, ML-12."""
    seen = Recorder()
    limiter = MemoryLimiter(observer=seen, clock=clock)
    limiter.set_capacity("api", 100, 60)
    limiter.announce_reduced("api", "429")
    assert limiter.get_capacity("api").total == 100
    assert [event.reason for event in seen.of(events.CapacityReduced)] == ["429"]


def test_with_a_factor_an_announcement_cuts_once_and_capacity_comes_back(clock):
    """R-2, D-59, D-62: with recovery, and ten 429s of one burst are one cut."""
    limiter = MemoryLimiter(reduce_factor=0.5, clock=clock)
    limiter.set_capacity("api", 100, 60)
    for _ in range(10):
        limiter.announce_reduced("api", "429")
    totals = []
    for _ in range(9):
        totals.append(limiter.get_capacity("api").total)
        clock.advance(30)
    assert totals == [50, 55, 60, 66, 72, 79, 86, 94, 100]
    limiter.announce_reduced("nobody knows me", "429")
    assert limiter.get_capacity("nobody knows me") is None


def test_a_template_resource_can_be_reduced_and_is_forgotten_once_it_has_recovered(clock):
    limiter = MemoryLimiter(rates="60/minute burst 60", reduce_factor=0.5, clock=clock)
    limiter.acquire("user")
    limiter.announce_reduced("user", "429")
    assert limiter.get_capacity("user").total == 30
    clock.advance(3600)
    assert limiter.get_capacity("user").total == 60
    clock.advance(3600)
    for i in range(5):
        with limiter.slot(f"other {i}"):
            pass
    assert "user" not in limiter._resources


def test_setting_a_capacity_anew_ends_the_reduction(clock):
    limiter = MemoryLimiter(reduce_factor=0.5, clock=clock)
    limiter.set_capacity("api", 100, 60)
    limiter.announce_reduced("api", "429")
    limiter.set_capacity("api", 80, 60)
    clock.advance(30)
    assert limiter.get_capacity("api").total == 80


@pytest.mark.parametrize(
    "options",
    [
        {"reduce_factor": 2.0},
        {"reduce_factor": 0},
        {"reduce_factor": "0.5"},
        {"recovery_factor": 1},
        {"recovery_factor": float("nan")},
        {"recovery_interval": 0},
        {"recovery_interval": -1},
    ],
)
def test_factors_that_would_reduce_upwards_or_never_recover_are_refused(options):
    """D-76 in spirit."""
    with pytest.raises(InvalidLimit, match="write"):
        MemoryLimiter(**options)


def test_every_wait_of_a_rate_limiter_is_reported_to_its_observer():
    """RL-03: the fourth call of three a minute, at 20 s, waits 40 s; and says so."""
    clock, seen = ManualClock(auto_advance=True), Recorder()
    limiter = RateLimiter(3, observer=seen, clock=clock)
    for gap in (10, 10, 0, 0):
        limiter.acquire()
        clock.advance(gap)
    assert [(event.at, event.waited) for event in seen.of(events.Admitted)] == [
        (0.0, 0.0),
        (10.0, 0.0),
        (20.0, 0.0),
        (60.0, 40.0),
    ]
    with pytest.raises(InvalidConfig, match="observer="):
        RateLimiter(observer="print")
