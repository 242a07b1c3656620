"""Limits of a MemoryLimiter that are set, changed, removed or refused."""

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    CostTooLarge,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    MemoryLimiter,
    UnknownResource,
)
from headgate.testing import ManualClock, run
from limiters.looking import available, in_flight
from limiters.model import Bucket, amounts, bursts, windows

SECOND = 1_000_000_000


def test_a_lower_capacity_cuts_what_is_there_and_a_higher_one_adds_nothing(clock):
    """100 with 50 left, set to 30: 30 of 30 are left. Set to 1000: still 30."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 100, 60)
    limiter.acquire("api", cost=50)
    limiter.set_capacity("api", 30, 60)
    assert (available(limiter), limiter.get_capacity("api").total) == (30, 30)
    limiter.set_capacity("api", 1000, 60)
    assert (available(limiter), limiter.get_capacity("api").total) == (30, 1000)


def test_time_that_has_passed_is_credited_at_the_rate_of_that_time(clock):
    """Ten a minute, idle for 30 s, set to 600 a minute: five at once, then ten a second."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api", cost=10)
    clock.advance(30)
    limiter.set_capacity("api", 600, 60)
    assert sum(limiter.try_acquire("api") for _ in range(600)) == 5
    clock.advance(1)
    assert sum(limiter.try_acquire("api") for _ in range(600)) == 10


def test_setting_the_same_capacity_a_thousand_times_creates_nothing(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 7, 60)
    limiter.acquire("api", cost=7)
    for _ in range(1000):
        clock.advance(0.001)
        limiter.set_capacity("api", 7, 60)
    assert available(limiter) == 0
    clock.advance(7.572)
    assert available(limiter) in (0, 1)  # 60/7 s after it ran dry, less what was rounded off


def test_callers_that_wait_go_by_the_new_capacity():
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


def test_a_caller_that_waits_for_more_than_the_new_capacity_is_refused():
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
def test_set_capacity_refuses_an_impossible_capacity_and_changes_nothing(capacity, api):
    with pytest.raises(InvalidCapacity) as caught:
        api.set_capacity("api", capacity, 60)
    assert f"capacity={capacity!r}" in str(caught.value)
    assert "write" in str(caught.value)
    assert api.get_capacity("api").total == 2


@pytest.mark.parametrize("window", [0, -1, 1e-12, "60", None, True, float("nan"), float("inf")])
def test_set_capacity_refuses_an_impossible_window_and_changes_nothing(window, api):
    with pytest.raises(InvalidWindow) as caught:
        api.set_capacity("api", 60, window)
    assert api.get_capacity("api").total == 2
    assert f"window={window!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize("burst", [0, -1, 2.5, "60", True, float("nan")])
def test_set_capacity_refuses_an_impossible_burst(burst, api):
    with pytest.raises(InvalidCapacity) as caught:
        api.set_capacity("api", 60, 60, burst=burst)
    assert f"burst={burst!r}" in str(caught.value)
    assert "write" in str(caught.value)


def test_a_burst_and_strict_together_are_refused(api):
    """As arguments, and in a string."""
    with pytest.raises(InvalidLimit):
        api.set_rates("api", "60/minute strict burst 5")
    with pytest.raises(InvalidLimit):
        api.set_capacity("api", 60, 60, burst=5, strict=True)


@pytest.mark.parametrize("resource", ["", 7, None, b"api", ("a", "b"), ["api"]])
def test_set_capacity_refuses_a_resource_that_is_not_a_name(resource, api):
    with pytest.raises(InvalidConfig) as caught:
        api.set_capacity(resource, 60, 60)
    assert repr(resource) in str(caught.value)
    assert "write" in str(caught.value)


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
def test_set_rates_refuses_rates_that_cannot_be_read(rates, error, api):
    with pytest.raises(error) as caught:
        api.set_rates("api", rates)
    given_value = rates[0] if isinstance(rates, list) and rates else rates
    assert repr(given_value) in str(caught.value)
    assert "write" in str(caught.value)
    if rates != []:  # an empty template means that there is none
        with pytest.raises(error):
            MemoryLimiter(rates=rates)


def test_an_error_about_a_rate_names_it_once(api):
    with pytest.raises(InvalidLimit) as caught:
        api.set_rates("api", "60/minutte")
    assert str(caught.value).count("'60/minutte'") == 1


@pytest.mark.parametrize("cost", [-1, 2.5, "2", True, float("nan"), {"images": 1}, {"requests": -1}, [1]])
@pytest.mark.parametrize("kind", ["configured", "template"])
def test_a_cost_that_is_not_an_amount_is_refused_and_takes_nothing(cost, kind, clock):
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
def test_a_time_out_that_is_not_a_time_is_refused_even_if_the_call_need_not_wait(timeout, kind, clock):
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


def test_a_cost_that_can_never_fit_is_refused_at_once(api, clock):
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
def test_buckets_of_any_size_are_exact_to_the_nanosecond(amount, window, clock):
    """From one in eleven days to a million million a second."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", amount, window)
    limiter.acquire("api", cost=amount)
    assert available(limiter) == 0
    window_ns = round(window * SECOND)
    clock.advance_to_ns(window_ns - 1)
    assert available(limiter) == amount * (window_ns - 1) // window_ns
    clock.advance_to_ns(window_ns)
    assert available(limiter) == amount


def test_remove_forgets_a_resource(api):
    api.try_acquire("api")
    api.remove("api")
    assert api.get_capacity("api") is None
    assert not api.try_acquire("api")
    with pytest.raises(UnknownResource):
        api.acquire("api")
    api.remove("api")
    api.set_capacity("api", 2, 60)
    assert (available(api), in_flight(api)) == (2, 0)


a_change = st.tuples(
    st.sampled_from(["try", "try", "many", "set", "look"]),
    st.tuples(st.integers(0, 40), st.integers(-1, 1)),
    amounts,
    windows.filter(lambda window: window >= 100),
    bursts,
)


@given(changes=st.lists(a_change, max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_change_of_capacity_creates_tokens(changes):
    """Compared with a bucket in fractions that is told of every change."""
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 1)
    model = Bucket(10, SECOND, 10)
    for what, (parts, little), amount, window, burst in changes:
        step = parts * model.window_ns // (12 * model.amount)
        clock.advance_to_ns(clock.now() + max(0, step + little))
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


def test_changing_to_strict_and_back_creates_no_tokens(clock):
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 10, 60)
    limiter.acquire("api", cost=8)
    for _ in range(10):
        limiter.set_capacity("api", 10, 60, strict=True)
        assert available(limiter) == 2
        limiter.set_capacity("api", 10, 60)
        assert available(limiter) == 2


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
def test_a_burst_or_strict_keeps_the_first_window_near_the_limit(options, admitted):
    """Without either, the whole capacity at once and the refill make 119 of sixty a minute."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 60, 60, **options)
    assert len(admitted_before(clock, limiter, 60)) == admitted
