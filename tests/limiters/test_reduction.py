"""Reductions: cutting once per episode and growing back, whatever the amount."""

import pytest

from headgate import InvalidLimit, MemoryLimiter, Rate, events
from headgate.limiters.reduction import Reduction
from headgate.testing import Recorder
from limiters.looking import available

INTERVAL = 30 * 1_000_000_000


def a_reduction(amount, *, now=0):
    return Reduction(
        [Rate(amount, 60, burst=amount)], factor=(1, 2), growth=(11, 10), interval=INTERVAL, now=now
    )


def amount_at(reduction, now):
    return reduction.rates(now)[0].amount


def test_a_reduction_grows_back_by_a_tenth_every_interval():
    """100 to 50, then 55, 60, 66, 72, 79, 86, 94, 100."""
    reduction = a_reduction(100)

    amounts = [amount_at(reduction, i * INTERVAL) for i in range(10)]

    assert amounts == [50, 55, 60, 66, 72, 79, 86, 94, 100, 100]


@pytest.mark.parametrize("amount", range(1, 1001))
def test_every_amount_comes_back(amount):
    """Also an amount of which a tenth is less than one."""
    reduction = a_reduction(amount)
    assert 1 <= amount_at(reduction, 0) <= max(1, amount // 2)

    assert amount_at(reduction, 12 * INTERVAL) == amount
    assert reduction.rates(12 * INTERVAL) == reduction.original


def test_a_second_announcement_of_the_same_episode_cuts_nothing():
    """Ten at once are one cut; one after the first step back is another."""
    reduction = a_reduction(100)
    assert not any(reduction.cut_again((1, 2), INTERVAL - 1) for _ in range(10))
    assert amount_at(reduction, INTERVAL - 1) == 50

    assert reduction.cut_again((1, 2), INTERVAL)

    assert amount_at(reduction, INTERVAL) == 27


def test_the_burst_is_cut_with_the_amount_and_a_strict_rate_stays_strict():
    rates = [Rate(100, 60, burst=20), Rate(1000, 3600, strict=True)]
    reduction = Reduction(rates, factor=(1, 2), growth=(11, 10), interval=INTERVAL, now=0)

    paced, strict = reduction.rates(0)

    assert (paced.amount, paced.burst, strict.amount, strict.strict) == (50, 10, 500, True)


def test_announce_reduced_tells_observers_and_changes_nothing_by_default(clock):
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


def test_announce_reduced_without_an_observer_does_nothing_by_default(api):
    api.announce_reduced("api", "got a 429")
    assert available(api) == 2


def test_with_a_factor_announce_reduced_cuts_once_and_the_capacity_comes_back(clock):
    """Ten announcements at once are one cut."""
    limiter = MemoryLimiter(reduce_factor=0.5, clock=clock)
    limiter.set_capacity("api", 100, 60)
    for _ in range(10):
        limiter.announce_reduced("api", "429")
    totals = []
    for _ in range(9):
        totals.append(limiter.get_capacity("api").total)
        clock.advance(30)
    assert totals == [50, 55, 60, 66, 72, 79, 86, 94, 100]
    limiter.announce_reduced("unknown", "429")
    assert limiter.get_capacity("unknown") is None


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
    with pytest.raises(InvalidLimit, match="write"):
        MemoryLimiter(**options)
