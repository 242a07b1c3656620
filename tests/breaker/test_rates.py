"""Failure rates, slow calls, and how long a circuit stays open."""

import random
from datetime import timedelta

import pytest

from breaker.callers import CLOSED, OPEN, Down, Throttled, down, fail, opened, refused, well
from headgate import CircuitBreaker, CircuitBreakerOpen
from headgate.testing import ManualClock

# -- rates over a window


def test_half_of_the_calls_failing_opens_a_failure_rate_and_no_threshold(world, clock):
    count = CircuitBreaker(3, 30, clock=clock)
    rate = CircuitBreaker(3, 30, failure_rate=0.5, minimum_calls=10, clock=clock)
    for k in range(10):
        assert rate.state is CLOSED
        for breaker in (count, rate):
            fail(world, breaker) if k % 2 else world.call(breaker, well)
        clock.advance(1)
    assert (count.state, rate.state) == (CLOSED, OPEN)
    assert "5 of 10 calls within 60 s failed" in str(refused(world, rate))


def test_five_failures_spread_over_a_week_do_not_open_a_rate(world, clock):
    breaker = CircuitBreaker(None, failure_rate=0.5, minimum_calls=2, clock=clock)
    for _ in range(5):
        fail(world, breaker)
        clock.advance(timedelta(days=1))
    assert breaker.state is CLOSED


def test_the_rate_counts_from_the_minimum_of_calls_on(world, clock):
    """Below `minimum_calls` the rate is not judged."""
    breaker = CircuitBreaker(None, failure_rate=0.1, minimum_calls=5, clock=clock)
    fail(world, breaker, 4)
    assert breaker.state is CLOSED
    world.call(breaker, well)  # the fifth call; what goes well opens nothing
    assert breaker.state is CLOSED
    error = Down()
    fail(world, breaker, error=error)
    assert breaker.state is OPEN
    assert "5 of 6 calls" in str(refused(world, breaker))
    assert refused(world, breaker).__cause__ is error


def test_a_rate_of_one_means_all_of_them(world, clock):
    breaker = CircuitBreaker(None, failure_rate=1.0, minimum_calls=3, clock=clock)
    world.call(breaker, well)
    fail(world, breaker, 20)
    assert breaker.state is CLOSED
    clock.advance(66)
    fail(world, breaker, 3)
    assert breaker.state is OPEN


def test_an_ignored_outcome_is_not_counted_in_the_window(world, clock):
    """An ignored outcome is neither a success nor a failure."""
    breaker = CircuitBreaker(None, failure_rate=0.5, minimum_calls=4, clock=clock)
    fail(world, breaker, 2)
    fail(world, breaker, 10, Throttled(429))
    assert breaker.state is CLOSED  # two calls so far
    fail(world, breaker, 2)
    assert breaker.state is OPEN


def test_after_two_idle_windows_nothing_counts_any_longer(world, clock):
    breaker = CircuitBreaker(None, failure_rate=0.5, window=60, minimum_calls=10, clock=clock)
    fail(world, breaker, 9)
    clock.advance(120)
    fail(world, breaker, 9)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_calls_that_last_longer_than_the_window_count_when_they_end(tasks, clock):
    """Calls of 120 s, and a window of 60 s."""
    breaker = CircuitBreaker(None, failure_rate=0.5, window=60, minimum_calls=10, clock=clock)
    calls = [tasks.hold(breaker) for _ in range(10)]
    clock.advance(120)
    for call in calls[:9]:
        call.end(Down())
    assert breaker.state is CLOSED
    calls[9].end(Down())
    assert breaker.state is OPEN


def test_slow_calls_open_the_breaker_though_all_succeed(world, clock):
    """A call that takes exactly `slow_after` seconds is not slow."""
    breaker = CircuitBreaker(slow_after=2, slow_rate=0.5, minimum_calls=4, clock=clock)

    def taking(seconds):
        clock.advance(seconds)
        return "well"

    for seconds in (2.0, 2.0, 2.000000001):
        world.call(breaker, lambda seconds=seconds: taking(seconds))
    assert breaker.state is CLOSED
    world.call(breaker, lambda: taking(3))
    assert breaker.state is OPEN
    refusal = refused(world, breaker)
    assert "2 of 4 calls within 60 s were slow" in str(refusal)
    assert refusal.__cause__ is None


def test_a_slow_probe_opens_the_breaker_again(world, clock):
    breaker = CircuitBreaker(3, 30, slow_after=2, clock=clock)
    opened(world, breaker)
    clock.advance(30)
    assert world.call(breaker, lambda: clock.advance(3)) is None
    assert breaker.state is OPEN
    assert "too slowly" in str(refused(world, breaker))
    clock.advance(30)
    world.call(breaker, lambda: clock.advance(2))
    assert breaker.state is CLOSED


# -- how long it stays open


def test_a_circuit_stays_open_twice_as_long_after_each_probe_that_failed(world, clock):
    breaker = CircuitBreaker(3, 5, max_recovery_timeout=60, clock=clock)
    opened(world, breaker)
    lasted = []
    for _ in range(6):
        lasted.append(refused(world, breaker).retry_after)
        clock.advance(lasted[-1])
        fail(world, breaker)
    assert lasted == [5, 10, 20, 40, 60, 60]
    clock.advance(60)
    world.call(breaker, well)
    opened(world, breaker)
    assert refused(world, breaker).retry_after == 5


def test_without_a_max_recovery_timeout_the_open_time_is_the_same_each_time(world, breaker, clock):
    opened(world, breaker)
    for _ in range(5):
        clock.advance(30)
        fail(world, breaker)
        assert refused(world, breaker).retry_after == 30


@pytest.mark.parametrize(("draw", "lasting"), [(0.0, 30.0), (0.5, 33.0), (0.75, 34.5)])
def test_jitter_lengthens_the_open_time_by_the_part_that_was_drawn(world, clock, draw, lasting):
    breaker = CircuitBreaker(3, 30, recovery_jitter=0.2, random=lambda: draw, clock=clock)
    opened(world, breaker)
    assert refused(world, breaker).retry_after == lasting


def test_without_jitter_no_random_number_is_drawn(world, clock):
    breaker = CircuitBreaker(3, 30, clock=clock, random=lambda: pytest.fail("drawn"))
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)


def peak_per_100_ms(seed, jitter):
    """A thousand processes whose target died: how many probes reach it in the worst 100 ms?

    Each has its own breaker, opened within half a second, and callers who come back as soon as they may.
    """
    dice, clock, dues = random.Random(seed), ManualClock(), []
    for opens_at in sorted(dice.uniform(0, 0.5) for _ in range(1000)):
        breaker = CircuitBreaker(1, 30, recovery_jitter=jitter, clock=clock, random=dice.random)
        clock.advance(opens_at - clock.seconds())
        with pytest.raises(Down):
            breaker.call(down)
        with pytest.raises(CircuitBreakerOpen) as refusal:
            breaker.call(down)
        dues.append((clock.seconds() + refusal.value.retry_after, breaker))
    probes = []
    for due, breaker in sorted(dues, key=lambda pair: pair[0]):
        clock.advance(max(0.0, due - clock.seconds()))
        clock.advance(1e-9)  # seconds as float may be one nanosecond off
        with pytest.raises(Down):
            breaker.call(lambda: probes.append(clock.seconds()) or down())
    assert len(probes) == 1000  # one each
    return max(sum(start <= probe < start + 0.1 for probe in probes) for start in probes[::5])


def test_a_thousand_breakers_without_a_store_do_not_probe_in_one_instant():
    """About 26 in the worst 100 ms with a jitter of a fifth, 215 without."""
    with_jitter = sorted(peak_per_100_ms(seed, 0.2) for seed in range(5))
    assert with_jitter[2] <= 32  # in any 100 ms, not only in those that begin on a tenth
    assert with_jitter[-1] <= 42  # a thousand over six seconds is 17 on average
    assert peak_per_100_ms(0, 0.0) > 150
