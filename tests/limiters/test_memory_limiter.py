"""MemoryLimiter: token buckets by name, several rates for one resource, and how a resource stands."""

import asyncio
import gc
import random
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forks import in_a_child, needs_fork
from headgate import (
    Acquisition,
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
)
from headgate.testing import ManualClock, run
from limiters.crowd import race
from limiters.looking import available
from limiters.model import Bucket


def test_resources_are_independent_of_each_other(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("one", 1, 60)
    limiter.set_capacity("two", 1, 60)
    assert limiter.try_acquire("one")
    assert not limiter.try_acquire("one")
    assert limiter.try_acquire("two")


def test_sixty_a_minute_is_one_a_second_once_the_tokens_are_gone(clock):
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
    limiter = MemoryLimiter(clock=ManualClock(start))
    limiter.set_capacity("api", 7, 60)
    assert available(limiter) == 7


def test_half_a_second_after_ten_a_second_ran_dry_there_are_exactly_five(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 1)
    assert limiter.try_acquire("api", cost=10)
    clock.advance(0.5)
    assert available(limiter) == 5
    assert sum(limiter.try_acquire("api") for _ in range(10)) == 5


def test_tokens_never_gather_above_capacity(clock):
    """Not even in ten years."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 1)
    limiter.try_acquire("api", cost=10)
    clock.advance(10 * 365 * 86400)
    assert available(limiter) == 10
    assert sum(limiter.try_acquire("api") for _ in range(100)) == 10


def test_acquire_takes_one_token_and_waits_for_the_next():
    """Two a minute: at 0 s, at 0 s, then every thirty seconds."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 2, 60)
    moments = []
    for _ in range(5):
        limiter.acquire("api")
        moments.append(clock.seconds())
    assert moments == [0.0, 0.0, 30.0, 60.0, 90.0]


def test_acquire_async_waits_without_blocking_the_event_loop():
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
    assert [api.try_acquire("api") for _ in range(4)] == [True, True, False, False]


def test_get_capacity_says_how_a_resource_stands_now(api, clock):
    """The time that has passed is credited first."""
    api.acquire("api")
    api.acquire("api")
    clock.advance(30)
    assert api.get_capacity("api") == Capacity(
        resource="api", available=1, total=2, window=60.0, in_flight=2, share=2
    )


def test_get_capacity_of_an_unknown_resource_is_none(api):
    assert api.get_capacity("opnai") is None


def test_a_capacity_value_cannot_be_changed(api):
    with pytest.raises(AttributeError, match="cannot change"):
        api.get_capacity("api").available = 5


def test_get_capacity_changes_nothing(api, clock):
    api.acquire("api", cost=2)
    for _ in range(300):
        clock.advance(0.1)
        api.get_capacity("api")
    assert available(api) == 1


def test_available_is_zero_while_the_bucket_is_in_debt(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 60, 60, burst=5)
    limiter.acquire("api", cost=50)
    assert available(limiter) == 0


def test_available_goes_by_the_tightest_of_several_rates(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_rates("api", ["10/s burst 10", "3/minute burst 3"])
    assert available(limiter) == 3
    limiter.acquire("api", cost=3)
    clock.advance(1)
    assert not limiter.try_acquire("api")
    assert available(limiter) == 0


def test_every_error_of_the_limiter_can_be_reached():
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


def test_a_call_fits_all_rates_or_takes_from_none(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_rates("api", ["100/minute burst 10", "1000 tokens/minute burst 100", "5/day burst 5"])
    rules = limiter._resources["api"].gate.rules.rates

    def levels():
        return [rule.level(clock.now()) for rule in rules]

    assert limiter.try_acquire("api", cost={"tokens": 80})
    assert levels() == [9, 20, 4]
    assert not limiter.try_acquire("api", cost={"tokens": 30})  # tokens refuse
    assert not limiter.try_acquire("api", cost={"requests": 5, "tokens": 1})  # the day refuses
    assert levels() == [9, 20, 4]
    assert limiter.try_acquire("api", cost={"requests": 4, "tokens": 20})
    assert levels() == [5, 0, 0]


def test_a_call_under_several_rates_goes_when_the_last_of_them_has_room():
    """Ten a minute and 100 tokens a minute: the tokens take longer."""
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
    """A unit that a resource does not count is a mistake."""
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
def test_several_rates_are_one_decision(rates, steps):
    """Compared with one bucket in fractions for each rate."""
    clock = ManualClock()
    written = [Rate(amount, per, burst=burst, unit=unit) for amount, per, burst, unit in rates]
    limiters = MemoryLimiter(clock=clock), MemoryLimiter(rates=written, clock=clock)
    limiters[0].set_rates("api", written)
    models = [(Bucket(rate.amount, rate.per_ns, rate.burst), rate.unit) for rate in written]
    for gap, requests, tokens in steps:
        clock.advance_to_ns(clock.now() + gap * 1_000_000)
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


def test_threads_configuring_removing_and_acquiring_at_once_meet_only_named_errors():
    """On the real clock."""
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
    """A child must not inherit a lock that no thread there will ever release."""
    limiter = MemoryLimiter(rates="1/minute")
    limiter.set_capacity("api", 1, 60)

    def check():
        assert limiter.try_acquire("user")
        assert limiter.try_acquire("api")
        assert not limiter.try_acquire("api")

    with limiter._lock:
        assert in_a_child(check) == 0


def test_a_limiter_and_its_gates_are_freed_when_they_are_no_longer_used():
    import weakref

    limiter = MemoryLimiter(rates="1/s")
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api")
    limiter.acquire("user")
    trace = weakref.ref(limiter)
    del limiter
    gc.collect()
    assert trace() is None


def test_limiters_have_a_repr(api):
    assert repr(api) == "<MemoryLimiter of 1 resources>"
    assert repr(RateLimiter(5)) == "<RateLimiter 5 requests/minute strict>"


# -- asking: the reason and the time with the answer


@pytest.fixture(params=["template", "own", "strict"])
def two_a_minute(request, clock):
    """A limiter whose resource allows two a minute, as a bucket among many, by itself, or strictly."""
    rates = "2/minute strict" if request.param == "strict" else "2/minute burst 2"
    if request.param == "template":
        return MemoryLimiter(rates=rates, clock=clock)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_rates("api", rates)
    return limiter


def test_an_answer_says_which_limit_has_too_little_and_when_to_come_again(two_a_minute, clock):
    assert two_a_minute.ask("api") == Acquisition(acquired=True, rule=None, retry_after=None)
    assert two_a_minute.ask("api")
    refused = two_a_minute.ask("api")
    assert not refused
    assert refused.rule == "requests/minute"
    assert two_a_minute.get_capacity("api").in_flight == 2
    clock.advance(refused.retry_after - 0.001)
    assert not two_a_minute.ask("api")
    clock.advance(0.001)
    assert two_a_minute.ask("api")


def test_asking_a_key_of_the_template_makes_no_gate_for_it(clock):
    limiter = MemoryLimiter(rates=["2/minute burst 2", "100 tokens/minute burst 10"], clock=clock)
    for _ in range(10):
        limiter.ask("user", cost={"tokens": 5})
    assert limiter.ask("user", cost={"tokens": 5}).rule == "requests/minute"
    assert len(limiter._resources) == 0


def test_an_answer_counts_the_callers_that_wait():
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("api", 1, 10)
        tasks = [asyncio.create_task(limiter.acquire_async("api")) for _ in range(4)]
        await asyncio.sleep(0)
        answer = limiter.ask("api")
        await asyncio.gather(*tasks)
        return answer

    assert run(main) == Acquisition(acquired=False, rule="requests/10s", retry_after=40.0)


def test_asking_raises_where_no_time_would_help(clock):
    limiter = MemoryLimiter(clock=clock)
    with pytest.raises(UnknownResource):
        limiter.ask("api")
    limiter.set_capacity("api", 2, 60)
    with pytest.raises(CostTooLarge):
        limiter.ask("api", cost=3)
    limiter.close()
    with pytest.raises(Closed):
        limiter.ask("api")
