"""MemoryLimiter.slot: a place at a resource for the length of a block."""

import asyncio

import pytest

from headgate import MemoryLimiter
from headgate.limiters.resource import Slot
from headgate.testing import ManualClock, run
from limiters.looking import available, in_flight


def test_a_slot_keeps_its_token_spent(api):
    with api.slot("api"):
        assert (available(api), in_flight(api)) == (1, 1)
    assert (available(api), in_flight(api)) == (1, 0)


def test_slots_that_outlive_their_window_are_all_counted_and_end_at_zero(clock):
    """Also when other callers acquire and never release."""
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


def test_a_slot_that_ends_while_the_capacity_is_read_is_counted_out():
    """It cannot give its place back itself, because the reader holds the lock: the reader does it."""

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


def test_a_slot_of_a_removed_resource_does_not_count_at_its_successor(api):
    with api.slot("api"):
        api.remove("api")
        api.set_capacity("api", 2, 60)
        assert in_flight(api) == 0
    assert in_flight(api) == 0


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
    """The difference goes back when its permit is settled, and the place is given back once."""
    with api.slot("api", cost=2) as permit:
        permit.settle(cost=1)
        assert (available(api), in_flight(api)) == (1, 0)
    assert (available(api), in_flight(api)) == (1, 0)
