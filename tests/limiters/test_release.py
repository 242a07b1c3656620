"""MemoryLimiter.release: what ends a call that was acquired, and what it gives back."""

import asyncio
import contextlib
import gc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import CapacityExhausted, MemoryLimiter
from headgate.testing import ManualClock, run
from limiters.looking import available, in_flight


def test_release_gives_the_token_back(api):
    api.acquire("api")
    assert (available(api), in_flight(api)) == (1, 1)
    api.release("api")
    assert (available(api), in_flight(api)) == (2, 0)


def test_release_without_a_refund_only_ends_the_call(api):
    api.acquire("api")
    api.release("api", refund=False)
    assert (available(api), in_flight(api)) == (1, 0)


def test_acquire_and_release_in_turn_abolish_the_rate(clock):
    """A trap that the documentation warns of: each call gives its token back, so all of a hundred pass."""
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
def test_a_slot_and_release_without_a_refund_both_hold_the_rate(form, clock):
    """A hundred calls in a second on two a minute: two go."""
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
    api.release("opnai")
    assert api.get_capacity("opnai") is None


def test_release_with_no_call_running_adds_no_token(api):
    with api.slot("api", cost=2):
        pass
    assert (available(api), in_flight(api)) == (0, 0)
    for _ in range(5):
        api.release("api")
    assert (available(api), in_flight(api)) == (0, 0)


def test_release_at_capacity_ends_the_call_and_adds_no_token(api, clock):
    api.acquire("api")
    clock.advance(60)
    api.release("api")
    assert (available(api), in_flight(api)) == (2, 0)


def test_release_lets_the_first_waiter_in_at_once():
    """One token comes back, so one waiter goes."""

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


def test_a_release_without_an_acquire_does_not_end_a_slot(api):
    with api.slot("api"):
        api.release("api")
        assert (available(api), in_flight(api)) == (1, 1)
    assert (available(api), in_flight(api)) == (1, 0)


def test_calls_that_are_never_released_count_up_to_the_capacity(clock):
    """More calls than tokens cannot be running."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 3, 1)
    for _ in range(100):
        limiter.try_acquire("api")
        clock.advance(0.5)
        assert 0 <= in_flight(limiter) <= 3


@given(
    steps=st.lists(st.sampled_from(["acquire", "release", "forget", "enter", "leave", "second"]), max_size=40)
)
@settings(max_examples=150, deadline=None)
@example(steps=["enter", "release", "leave"])
def test_in_flight_counts_open_slots_and_unreleased_acquires_in_any_order(steps):
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


def test_an_acquired_call_leaves_no_permit_that_warns_when_it_is_dropped(clock):
    """Warnings are errors in these tests."""

    async def in_a_task(limiter):
        await limiter.acquire_async("api")

    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api")
    limiter.try_acquire("api")
    asyncio.run(in_a_task(limiter))
    gc.collect()
    assert (available(limiter), in_flight(limiter)) == (7, 3)
