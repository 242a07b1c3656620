"""The meters of the sandbox, compared with exact models of buckets, fixed windows and logs."""

import copy
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Rate
from headgate.errors import InvalidConfig
from headgate.sandbox.meters import Bucket, Fixed, Sliding, most_within, read_rate

MS = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
RATES = st.builds(
    lambda amount, per, burst: Rate.parse(f"{amount}/{per}ns burst {burst}"),
    st.integers(1, 50),
    st.integers(1, 5_000),
    st.integers(1, 60),
)
VISITS = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 20), st.booleans()), max_size=40)


class BucketModel:
    def __init__(self, rate):
        self.rate, self.level, self.at = rate, Fraction(rate.burst), 0

    def fits(self, cost, now):
        self.level = min(
            Fraction(self.rate.burst),
            self.level + Fraction((now - self.at) * self.rate.amount, self.rate.per_ns),
        )
        self.at = now
        return cost <= self.level

    def take(self, cost, now):
        self.level -= cost

    def remaining(self, now):
        self.fits(0, now)
        return max(0, self.level // 1)


class FixedModel:
    def __init__(self, rate):
        self.rate, self.used = rate, {}

    def fits(self, cost, now):
        return self.used.get(now // self.rate.per_ns, 0) + cost <= self.rate.amount

    def take(self, cost, now):
        window = now // self.rate.per_ns
        self.used[window] = self.used.get(window, 0) + cost

    def remaining(self, now):
        return max(0, self.rate.amount - self.used.get(now // self.rate.per_ns, 0))


class SlidingModel:
    def __init__(self, rate):
        self.rate, self.log = rate, []

    def used(self, now):
        return sum(cost for at, cost in self.log if at > now - self.rate.per_ns)

    def fits(self, cost, now):
        return self.used(now) + cost <= self.rate.amount

    def take(self, cost, now):
        self.log.append((now, cost))

    def remaining(self, now):
        return max(0, self.rate.amount - self.used(now))


METERS = {
    "bucket": (lambda rate: Bucket(rate, 0), BucketModel),
    "fixed": (lambda rate: Fixed(rate, 0), FixedModel),
    "sliding": (Sliding, SlidingModel),
}


@pytest.mark.parametrize("kind", METERS)
@given(rate=RATES, visits=VISITS)
def test_a_meter_agrees_with_its_model_and_tells_the_first_moment_that_fits(kind, rate, visits):
    """Forced costs (as output tokens are) may leave debt; for a cost that can never fit the wait is None."""
    make, model_of = METERS[kind]
    meter, model = make(rate), model_of(rate)
    most = rate.burst if kind == "bucket" else rate.amount
    now = 0
    for gap, cost, forced in visits:
        now += gap
        wait = meter.wait(cost, now)
        assert (wait is None) == (cost > most)
        assert (wait == 0) == (model.fits(cost, now) and cost <= most)
        assert meter.remaining(now) == model.remaining(now)
        if wait:
            later = copy.deepcopy(model)
            assert not later.fits(cost, now + wait - 1)
            assert later.fits(cost, now + wait)
        if wait == 0 or forced:
            meter.take(cost, now)
            model.take(cost, now)


@pytest.mark.parametrize("kind", METERS)
@given(rate=RATES, visits=VISITS)
def test_reset_is_the_time_until_the_whole_amount_is_available(kind, rate, visits):
    meter = METERS[kind][0](rate)
    full = rate.burst if kind == "bucket" else rate.amount
    now = 0
    for gap, cost, _ in visits:
        now += gap
        meter.take(cost, now)
        reset = meter.reset(now)
        later = copy.deepcopy(meter)
        if reset:
            assert later.reset(now + reset - 1) > 0
        assert later.remaining(now + reset) == full
        assert later.reset(now + reset) == 0


@given(rate=RATES, visits=VISITS)
def test_the_most_that_each_kind_of_meter_admits_in_any_stretch_of_time(rate, visits):
    """
    A bucket: burst plus what is earned. A fixed window: twice the amount in a stretch of one period.
    A sliding one: the amount in any stretch of one period.
    """
    for kind, (make, _) in METERS.items():
        meter, now, taken = make(rate), 0, []
        for gap, cost, _ in visits:
            now += gap
            if meter.wait(cost, now) == 0:
                meter.take(cost, now)
                taken.append((now, cost))
        most = most_within(taken, rate.per_ns)
        if kind == "bucket":
            assert most <= rate.burst + rate.amount
            total = sum(cost for _, cost in taken)
            assert total <= rate.burst + Fraction(rate.amount * now, rate.per_ns)
        else:
            assert most <= rate.amount * (2 if kind == "fixed" else 1)


@given(rate=RATES, visits=VISITS)
def test_a_refusal_costs_at_most_one_unit_and_never_makes_debt(rate, visits):
    for make, _ in METERS.values():
        meter, now = make(rate), 0
        for gap, _, _ in visits:
            now += gap
            before = meter.remaining(now)
            meter.waste(now)
            assert meter.remaining(now) == max(0, before - 1)
            assert meter.wait(1, now) <= rate.per_ns


@pytest.mark.parametrize("kind", METERS)
def test_a_lowered_limit_takes_effect_at_once_and_earlier_usage_still_counts(kind):
    """600 a minute with 100 taken, cut to 200: a bucket holds 200 of its 500, a window has 100 left."""
    meter = METERS[kind][0](Rate.parse("600/minute burst 600"))
    meter.take(100, 0)
    meter.retune(Rate.parse("200/minute burst 200"), 0)
    assert meter.remaining(0) == (200 if kind == "bucket" else 100)
    assert meter.wait(201, 0) is None
    meter.retune(Rate.parse("600/minute burst 600"), 0)
    assert meter.remaining(0) == (200 if kind == "bucket" else 500)


def test_limits_are_read_with_the_whole_amount_as_their_burst():
    assert read_rate("600/minute", "requests", "bucket").burst == 600
    assert read_rate("600/minute burst 20", "requests", "bucket").burst == 20
    assert read_rate(Rate(600, 60, burst=7), "requests", "bucket").burst == 7
    assert read_rate("10 per 250ms", "requests", "bucket").per_ns == 250 * MS
    assert read_rate("90_000 tpm", "tokens", "bucket").burst == 90_000
    assert read_rate("5 reqs/s", "requests", "bucket").burst == 5
    assert read_rate("90/minute", "input_tokens", "bucket").burst == 90
    for text, limit in (("5 requests/s", "tokens"), ("5 rpm", "tokens"), ("5 tokens/s", "requests")):
        with pytest.raises(InvalidConfig, match=r"is a rate of \w+; leave the unit out, e\.g\. "):
            read_rate(text, limit, "bucket")
    with pytest.raises(InvalidConfig, match="only a bucket has a burst"):
        read_rate("600/minute burst 20", "requests", "fixed")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=40), st.integers(1, 40))
def test_most_within_finds_the_busiest_stretch(visits, period):
    events, now = [], 0
    for gap, cost in visits:
        now += gap
        events.append((now, cost))
    brute = max((sum(c for t, c in events if at - period < t <= at) for at, _ in events), default=0)
    assert most_within(events, period) == brute
