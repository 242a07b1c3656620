"""A rate that refills evenly, compared with a token bucket that replays the true history in fractions."""

from __future__ import annotations

import random
from copy import deepcopy
from fractions import Fraction
from itertools import pairwise
from math import lcm

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidCapacity, InvalidWindow
from headgate.gate.bucket import RateRule
from headgate.gate.decision import rule_for, successors
from headgate.gate.strict import StrictRule
from headgate.limits import COLUMNS, Rate

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
TEN_YEARS = 3653 * DAY


# -- the oracle


class TokenBucket:
    """The definition of a token bucket: a level that grows with time, and a history to replay.

    A charge is remembered with its moment and may be corrected later, as if the true cost
    had been known when it was made. When the clock goes back, time stands still.
    """

    def __init__(self, amount, per_ns, burst):
        self.first_limits = (amount, per_ns, burst)
        self.history = []  # [moment, "charge", units] or [moment, "limits", (amount, per_ns, burst)]

    def charge(self, units, now):
        self.history.append([now, "charge", units])
        return self.history[-1]

    def change(self, amount, per_ns, burst, now):
        self.history.append([now, "limits", (amount, per_ns, burst)])

    def exact_level(self, now):
        amount, per_ns, burst = self.first_limits
        changes = [value for _, what, value in self.history if what == "limits"]
        whole = lcm(per_ns, *(per_ns for _, per_ns, _ in changes))  # integer parts of one unit
        level, moment = burst * whole, None
        for at, what, value in self.history:
            if moment is None or at > moment:
                passed = 0 if moment is None else at - moment
                level = min(burst * whole, level + amount * passed * whole // per_ns)
                moment = at
            if what == "charge":
                level -= value * whole
            else:
                amount, per_ns, burst = value
                level = min(level, burst * whole)
        if moment is not None and now > moment:
            level = min(burst * whole, level + amount * (now - moment) * whole // per_ns)
        self.limits = (amount, per_ns, burst)
        return Fraction(level, whole)

    def level(self, now):
        return self.exact_level(now) // 1

    def fits(self, units, now):
        level = self.exact_level(now)
        amount, _, burst = self.limits
        return not units or (units <= max(amount, burst) and level >= min(units, burst))

    def earliest(self, units, now):
        level = self.exact_level(now)
        amount, per_ns, burst = self.limits
        missing = min(units, burst) - level
        if not units or missing <= 0:
            return now
        return now - (-missing * per_ns // amount)  # rounded up to a whole nanosecond


def a_rate(amount, per_ns, burst):
    rate = Rate(amount, per_ns / SECOND, burst=burst)
    assert per_ns == rate.per_ns
    return rate


def a_bucket(amount, per_ns, burst):
    return RateRule(a_rate(amount, per_ns, burst), 0), TokenBucket(amount, per_ns, burst)


def state(rule):
    """Everything the rule remembers, as values."""
    return {
        name: list(value) if isinstance(value := getattr(rule, name), list) else value
        for name in type(rule).__slots__
    }


# -- histories to try: gaps and costs are sixteenths of the burst, so that most of them matter

sixteenths = st.integers(0, 24)
a_little = st.integers(-1, 1)
starts = st.sampled_from([0, -7, 123_456_789, -(10**18), 10**18])
limits = st.tuples(
    st.one_of(st.integers(1, 12), st.integers(1, 10**9)),
    st.one_of(st.sampled_from([1, 7, 1000, SECOND, MINUTE, DAY]), st.integers(1, DAY)),
    st.one_of(st.integers(1, 12), st.integers(1, 10**9)),
)
a_step = st.tuples(
    st.sampled_from(["take", "take", "take", "settle", "settle", "look"]),
    st.one_of(st.just(0), st.integers(0, 4), sixteenths),  # the gap
    a_little,
    st.one_of(st.integers(0, 6), sixteenths),  # the cost, or the true cost when it is settled
    a_little,
    st.integers(0, 99),  # which permit is settled
)
steps = st.lists(a_step, max_size=50)


def gap_of(limits, parts, little):
    amount, per_ns, burst = limits
    return max(0, burst * per_ns * parts // (16 * amount) + little)


def cost_of(limits, parts, little):
    return max(0, limits[2] * parts // 16 + little)


def play(limits, start, steps, *, debts=True, back=False):
    """Play a history on the rule and the oracle; yield after every step.

    The oracle is charged for each call that the rule admits. A settle corrects the charge made
    when the permit was taken; a cost beyond the estimate is a new charge at the time of the settle.
    """
    rule, bucket = a_bucket(*limits)
    now = start
    permits = []
    for kind, gap, gap_little, cost, cost_little, which in steps:
        gap = gap_of(limits, gap, gap_little)
        now += -gap if back and which % 3 == 0 else gap
        cost = cost_of(limits, cost, cost_little)
        if kind == "take":
            could = bucket.fits(cost, now)
            taken = rule.enter((cost,), now)
            if taken:
                permits.append((cost, now, bucket.charge(cost, now)))
            yield rule, bucket, now, (cost, bool(taken), could)
        elif kind == "settle" and permits:
            estimate, taken_at, entry = permits.pop(which % len(permits))
            actual = cost if debts else min(cost, estimate)
            rule.settle(estimate, actual, taken_at, now)
            entry[2] = min(actual, estimate)
            if actual > estimate:
                bucket.charge(actual - estimate, now)
            yield rule, bucket, now, None
        else:
            yield rule, bucket, now, None


# -- admission, as timelines


def test_a_burst_is_admitted_at_once_and_the_next_call_waits_one_interval():
    """
    Ten a second with a burst of three: three go now, the fourth in 0.1 s and not a
    nanosecond before.
    """
    rule = RateRule(Rate(10, burst=3), 0)

    assert [rule.enter((1,), 100 * SECOND) for _ in range(4)] == [1, 1, 1, 0]

    assert rule.earliest((1,), 100 * SECOND) == 100_100_000_000
    assert rule.enter((1,), 100_099_999_999) == 0
    assert rule.enter((1,), 100_100_000_000) == 1


def test_only_the_column_of_the_unit_is_counted():
    rule = rule_for(Rate(10, burst=3, unit="tokens"))

    assert COLUMNS["tokens"] == rule.column
    assert rule.enter((99, 3, 99), 0) == 1
    assert rule.enter((0, 1, 0), 0) == 0
    assert rule.enter((99, 0, 99), 0) == 1


@pytest.mark.parametrize("start", [0, -1, -TEN_YEARS, -(1 << 100), TEN_YEARS, 1 << 100])
def test_a_bucket_starts_full_whatever_the_clock_says(start):
    rule = RateRule(Rate(10, 60, burst=4), 0)

    assert rule.level(start) == 4
    assert [rule.enter((1,), start) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert rule.level(start) == 0
    assert rule.earliest((1,), start) == start + 6 * SECOND


def test_half_a_second_after_a_rate_of_ten_a_second_ran_dry_exactly_five_units_are_there():
    rule = RateRule(Rate(10, burst=10), 0)
    assert rule.enter((10,), 0) == 1

    assert rule.level(499_999_999) == 4
    assert rule.level(500_000_000) == 5
    assert rule.enter((6,), 500_000_000) == 0
    assert rule.enter((5,), 500_000_000) == 1


def test_an_interval_that_is_not_a_whole_number_of_nanoseconds_loses_nothing():
    """
    Three a second: the units are ready at 1/3, 2/3 and 3/3 s, rounded up, and after a
    thousand seconds there have been exactly three thousand.
    """
    rule = RateRule(Rate(3, burst=2), 0)
    assert rule.enter((2,), 0) == 1
    moments = []
    while len(moments) < 3000:
        moments.append(rule.earliest((1,), 0))
        assert rule.enter((1,), moments[-1] - 1) == 0
        assert rule.enter((1,), moments[-1]) == 1

    # Each unit is taken at the first whole nanosecond, and the fraction counts for the next.
    assert moments[:3] == [333_333_334, 666_666_667, 1_000_000_000]
    assert moments[-1] == 1000 * SECOND


@pytest.mark.parametrize(
    ("amount", "per", "poll"),
    [
        (10, 1, 150_000_000),
        (10, 1, 199_000_000),
        (60, 60, 1_900_000_000),
        (7, 60, 1_000_003),
        (1000, 1, 999_999),
    ],
)
def test_no_rhythm_of_polling_loses_a_fraction_of_a_unit(amount, per, poll):
    """
    A bucket that ran dry at 0 has granted floor(rate · t) by time t, at every poll.
    """
    rule = RateRule(Rate(amount, per, burst=amount), 0)
    assert rule.enter((amount,), 0) == 1

    granted = 0
    for now in range(0, 20 * per * SECOND, max(poll, per * SECOND // 5000)):
        while rule.enter((1,), now):
            granted += 1
        assert now * amount // (per * SECOND) == granted


@pytest.mark.parametrize("amount", [*range(1, 41), 99, 500, 997, 1000])
def test_every_amount_a_minute_comes_back_within_the_minute(amount):
    """
    Polled every 0.1 s plus a bit, a dry bucket gives back all of it, none lost to truncation.
    """
    rule = RateRule(Rate(amount, 60, burst=amount), 0)
    assert rule.enter((amount,), 0) == 1

    granted = sum(rule.enter((1,), now) for now in range(0, MINUTE, 7_000_001))
    while rule.enter((1,), MINUTE):
        granted += 1

    assert amount == granted


def test_a_million_polls_change_nothing():
    """
    One unit of 7 a second is asked for every microsecond for a second: exactly 7 are granted,
    and the state is that of a bucket that was only asked those 7 times.
    """
    rule = RateRule(Rate(7, burst=2), 0)
    quiet = RateRule(Rate(7, burst=2), 0)
    enter = rule.enter
    assert enter((2,), 0) == 1
    granted = [now for now in range(1000, 1_000_001_000, 1000) if enter((1,), now)]

    assert quiet.enter((2,), 0) == 1
    for now in granted:
        assert quiet.enter((1,), now) == 1

    assert len(granted) == 7
    # A seventh of a second is not a whole number of microseconds; no wait is longer for it.
    assert granted == [-(-k * 1_000_000 // 7) * 1000 for k in range(1, 8)]
    assert state(rule) == state(quiet)


def test_no_minute_admits_more_than_the_rate_and_the_burst():
    """
    Sixty a minute, asked all the time: 60 + 1 in the first minute by default, 119 and the
    next one at the edge with a burst of 60.
    """
    careful, bursty = RateRule(Rate(60, 60), 0), RateRule(Rate(60, 60, burst=60), 0)
    moments = range(0, MINUTE, SECOND // 10)

    assert sum(careful.enter((1,), now) for now in moments) == 60
    assert careful.enter((1,), MINUTE) == 1
    granted = 0
    for now in moments:
        while bursty.enter((1,), now):
            granted += 1
    assert granted == 119


def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_leaves_debt():
    """
    Ten a second, burst 5, a call of 8: it goes when the bucket is full, the level is then
    -3, and the next unit is there 0.4 s later.
    """
    rule = RateRule(Rate(10, burst=5), 0)
    assert rule.enter((1,), 0) == 1

    assert rule.earliest((8,), 0) == 100_000_000
    assert rule.enter((8,), 99_999_999) == 0
    assert rule.enter((8,), 100_000_000) == 1
    assert rule.level(100_000_000) == -3
    assert rule.earliest((1,), 100_000_000) == 500_000_000
    assert rule.earliest((9,), 100_000_000) == 900_000_000


def test_a_cost_above_both_the_amount_and_the_burst_can_never_be_taken():
    assert RateRule(Rate(10, burst=5), 0).refusal((10,)) is None
    assert "11 requests" in RateRule(Rate(10, burst=5), 0).refusal((11,))
    assert RateRule(Rate(10, burst=20), 0).refusal((20,)) is None
    assert "20" in RateRule(Rate(10, burst=20), 0).refusal((21,))
    assert RateRule(Rate(10, burst=20), 0).refusal((2**63,)) is not None
    assert RateRule(Rate(10, burst=20), 0).refusal((0,)) is None


def test_a_call_that_costs_nothing_always_enters_and_is_charged_nothing():
    rule = RateRule(Rate(10, burst=5), 0)
    assert rule.enter((0,), 0) == 1
    assert rule.level(0) == 5
    assert rule.enter((5,), 0) == 1
    rule.settle(5, 50, 0, 0)

    assert rule.level(0) == -45
    assert rule.fits((0,), 0)
    assert rule.earliest((0,), 0) == 0
    assert rule.enter((0,), 0) == 1
    assert rule.level(0) == -45
    assert rule.earliest((1,), 0) == 4_600_000_000


def test_a_rate_of_zero_is_an_error_and_not_unlimited():
    for wrong in (0, -1):
        with pytest.raises(InvalidCapacity):
            Rate(wrong, 1)
        with pytest.raises(InvalidCapacity):
            Rate(1, 1, burst=wrong)
        with pytest.raises(InvalidWindow):
            Rate(1, wrong)


# -- extremes


@pytest.mark.parametrize("amount", [1, 3, 10**9])
@pytest.mark.parametrize("per_ns", [1, 7, SECOND, DAY])
def test_ten_idle_years_fill_the_bucket_and_no_more(amount, per_ns):
    rule = RateRule(a_rate(amount, per_ns, 5), 0)
    assert rule.enter((5,), 0) == 1

    assert rule.level(TEN_YEARS) == 5
    assert [rule.enter((1,), TEN_YEARS) for _ in range(6)] == [1, 1, 1, 1, 1, 0]


def test_a_debt_of_two_to_the_sixty_third_is_paid_to_the_nanosecond():
    rule = RateRule(Rate(1000, burst=10), 0)
    assert rule.enter((10,), 0) == 1
    rule.settle(10, 10 + 2**63, 0, 0)

    assert rule.level(0) == -(2**63)
    assert rule.earliest((1,), 0) == (2**63 + 1) * 1_000_000
    assert rule.enter((1,), (2**63 + 1) * 1_000_000 - 1) == 0
    assert rule.enter((1,), (2**63 + 1) * 1_000_000) == 1


def test_a_call_of_two_to_the_sixty_third_fits_a_burst_of_that_size():
    rule = RateRule(Rate(1, 86_400, burst=2**63), 0)

    assert rule.refusal((2**63,)) is None
    assert rule.enter((2**63,), -5) == 1
    assert rule.earliest((1,), -5) == DAY - 5
    assert rule.earliest((2**63,), -5) == DAY * 2**63 - 5


def test_one_unit_of_a_billion_a_nanosecond_is_there_after_a_nanosecond():
    rule = RateRule(a_rate(10**9, 1, 10**9), 0)
    assert rule.enter((10**9,), 0) == 1
    assert rule.enter((1,), 0) == 0

    assert rule.earliest((1,), 0) == 1
    assert rule.level(1) == 10**9


# -- laws of admission


@given(limits, starts, steps)
@example((1, 1, 1), -7, [("take", 0, 0, 16, 0, 0), ("take", 1, 0, 16, 0, 0), ("look", 1, 0, 0, 0, 0)])
@settings(deadline=None, max_examples=250)
def test_every_answer_is_that_of_the_exact_token_bucket(limits, start, steps):
    """
    Fifty steps leave at most fifty low marks, so refunds are exact too: the bucket equals one
    that had been charged the true cost of every settled call when it was taken.
    """
    for rule, bucket, now, take in play(limits, start, steps):
        if take is not None:
            cost, taken, could = take
            assert could == taken, cost
        assert bucket.level(now) == rule.level(now)
        for parts in (0, 1, 7, 16, 23):
            cost = cost_of(limits, parts, 0)
            assert bucket.fits(cost, now) == rule.fits((cost,), now)
            assert bucket.earliest(cost, now) == rule.earliest((cost,), now)


@given(limits, starts, steps)
@settings(deadline=None, max_examples=250)
def test_no_stretch_of_time_admits_more_than_the_rate_and_the_burst(limits, start, steps):
    """
    Counted are true costs; a call above the burst counts as the burst.
    """
    amount, per_ns, burst = limits
    bucket = None
    for _rule, bucket, _now, _take in play(limits, start, steps, debts=False):  # noqa: B007 - the last one
        pass
    charges = [(at, units) for at, _, units in bucket.history] if bucket else []
    most = max([burst, *(units for _, units in charges)])
    for i, (first, _) in enumerate(charges):
        total = 0
        for last, units in charges[i:]:
            total += units
            assert total * per_ns <= most * per_ns + amount * (last - first)


@given(limits, starts, steps, st.lists(st.tuples(st.integers(-40, 40), sixteenths), max_size=6))
@settings(deadline=None, max_examples=250)
def test_looking_and_being_refused_change_nothing(limits, start, steps, probes):
    """
    Every attribute of the rule has the value that it had before.
    """
    for rule, _bucket, now, _take in play(limits, start, steps):
        before = state(rule)
        for parts, cost_parts in probes:
            moment = now + gap_of(limits, abs(parts), 0) * (1 if parts > 0 else -1)
            cost = (cost_of(limits, cost_parts, 0),)
            rule.earliest(cost, moment)
            rule.level(moment)
            rule.refusal(cost)
            if not rule.fits(cost, moment):
                assert rule.enter(cost, moment) == 0
        assert before == state(rule)


@given(limits, starts, steps, sixteenths, a_little)
@settings(deadline=None, max_examples=250)
def test_waiting_exactly_until_the_earliest_moment_succeeds_and_less_fails(
    limits, start, steps, parts, little
):
    """
    For costs within the burst and above it, after any history.
    """
    cost = (min(cost_of(limits, parts, little), max(limits[0], limits[2])),)
    rule, now = a_bucket(*limits)[0], start
    for rule, _bucket, now, _take in play(limits, start, steps):  # noqa: B007 - the last one
        pass
    at = rule.earliest(cost, now)

    assert at >= now
    assert at == rule.earliest(cost, at)
    if at > now:
        assert rule.enter(cost, at - 1) == 0
    assert rule.enter(cost, at) == 1


@given(limits, starts, steps, sixteenths)
@settings(deadline=None, max_examples=250)
def test_being_late_by_the_slack_loses_nothing_and_by_more_might(limits, start, steps, parts):
    """
    The slack is how long the bucket still fills after the earliest moment, to the nanosecond.
    """
    amount, per_ns, burst = limits
    cost = min(cost_of(limits, parts, 1), max(amount, burst))
    for rule, bucket, now, _take in play(limits, start, steps):
        at = rule.earliest((cost,), now)
        slack = rule.slack((cost,), now)
        assert slack >= 0
        if slack:
            earned = bucket.exact_level(at) + Fraction(amount * slack, per_ns)
            assert bucket.exact_level(at + slack) == earned
            assert earned + Fraction(amount, per_ns) > burst


@given(limits, starts, steps)
@settings(deadline=None, max_examples=250)
def test_time_that_goes_back_grants_no_more_than_time_that_stands_still(limits, start, steps):
    """
    A third of the steps go back in time. The clock of the token bucket stops meanwhile.
    """
    for rule, bucket, now, take in play(limits, start, steps, back=True):
        if take is not None and take[1]:
            assert take[2]
        assert rule.level(now) <= bucket.level(now)


def test_a_clock_that_jumps_back_an_hour_and_forward_again_creates_nothing():
    rule = RateRule(Rate(10, burst=10), 0)
    assert rule.enter((10,), 3600 * SECOND) == 1

    assert rule.enter((1,), 0) == 0
    assert rule.level(0) <= 0
    assert rule.level(3600 * SECOND) == 0
    assert rule.level(3601 * SECOND) == 10


# -- settling


def test_an_estimate_that_was_too_high_is_refunded():
    """
    100 taken at 0, 30 were used, known at 2 s: the level is that of a bucket charged 30.
    """
    rule = RateRule(Rate(10, burst=100), 0)
    assert rule.enter((100,), 0) == 1
    assert rule.level(2 * SECOND) == 20

    rule.settle(100, 30, 0, 2 * SECOND)

    assert rule.level(2 * SECOND) == 90


def test_units_that_were_earned_back_meanwhile_are_not_refunded_again():
    """
    50 of 100 taken at 0 and earned back by 5 s. At 6 s 60 others are taken. The first call
    turns out to have cost nothing: that changes nothing, the bucket would have been full.
    """
    rule = RateRule(Rate(10, burst=100), 0)
    assert rule.enter((50,), 0) == 1
    assert rule.enter((60,), 6 * SECOND) == 1

    rule.settle(50, 0, 0, 6 * SECOND)

    assert rule.level(6 * SECOND) == 40


def test_only_units_that_would_still_be_missing_are_refunded():
    """
    50 taken at 0; at 3 s the backlog is 20 when 60 others are taken. Had the first cost
    nothing the bucket would have been full at 3 s: 20 come back, not 50.
    """
    rule = RateRule(Rate(10, burst=100), 0)
    assert rule.enter((50,), 0) == 1
    assert rule.enter((60,), 3 * SECOND) == 1
    assert rule.level(3 * SECOND) == 20

    rule.settle(50, 0, 0, 3 * SECOND)

    assert rule.level(3 * SECOND) == 40


def test_an_estimate_that_was_too_low_becomes_debt_at_the_time_of_the_settle():
    rule = RateRule(Rate(10, burst=10), 0)
    assert rule.enter((2,), 0) == 1

    rule.settle(2, 40, 0, SECOND)

    assert rule.level(SECOND) == -28
    assert rule.earliest((1,), SECOND) == SECOND + 2_900_000_000


def test_a_debt_made_meanwhile_is_not_refunded_to_another_call():
    """
    Ten taken at 0 by one call, one by another. At 0.9 s two of the eleven are missing, when
    the other turns out to have cost 21. Without the first call the bucket would have been
    full then: of its ten, two come back.
    """
    rule = RateRule(Rate(10, burst=30), 0)
    for cost in (10, 1):
        assert rule.enter((cost,), 0) == 1
    rule.settle(1, 21, 0, 900_000_000)
    assert rule.level(900_000_000) == 8

    rule.settle(10, 0, 0, 900_000_000)

    assert rule.level(900_000_000) == 10


def test_a_debt_made_when_the_bucket_was_full_is_not_refunded_to_another_call():
    rule = RateRule(Rate(10, burst=30), 0)
    for cost in (10, 1):
        assert rule.enter((cost,), 0) == 1
    rule.settle(1, 21, 0, 2 * SECOND)
    assert rule.level(2 * SECOND) == 10

    rule.settle(10, 0, 0, 2 * SECOND)

    assert rule.level(2 * SECOND) == 10


def test_a_settle_that_confirms_the_estimate_changes_nothing():
    rule = RateRule(Rate(10, burst=10), 0)
    assert rule.enter((2,), 0) == 1
    before = state(rule)

    rule.settle(2, 2, 0, 100)

    assert before == state(rule)


def test_two_calls_of_one_instant_are_refunded_separately():
    rule = RateRule(Rate(10, burst=100), 0)
    for cost in (30, 40, 20):
        assert rule.enter((cost,), 5) == 1

    rule.settle(40, 0, 5, 5)
    assert rule.level(5) == 50
    rule.settle(30, 10, 5, 5)
    assert rule.level(5) == 70
    rule.settle(20, 0, 5, 5)
    assert rule.level(5) == 90


@given(limits, starts, steps)
@settings(deadline=None, max_examples=250)
def test_a_refund_is_at_most_the_lowest_backlog_since_the_permit_was_taken(limits, start, steps):
    """
    By the definition of a refund: each permit gets back what it took too much, at most the
    lowest backlog since it was taken; a refund lowers the backlog of every moment since.
    Computed for every permit over the whole history, by brute force.
    """
    amount, per_ns, burst = limits
    rule = a_bucket(*limits)[0]
    now, backlog, permits = start, Fraction(0), []
    lows = []  # the backlog found by everything that happened, in order
    for kind, gap, gap_little, cost_parts, cost_little, which in steps:
        gap_ns = gap_of(limits, gap, gap_little)
        now += gap_ns
        backlog = max(Fraction(0), backlog - Fraction(amount * gap_ns, per_ns))
        lows.append(backlog)
        cost = cost_of(limits, cost_parts, cost_little)
        if kind == "take" and rule.enter((cost,), now):
            permits.append((cost, now, len(lows)))
            backlog += cost
        elif kind == "settle" and permits:
            estimate, taken_at, since = permits.pop(which % len(permits))
            rule.settle(estimate, min(cost, estimate), taken_at, now)
            refund = min([Fraction(estimate - min(cost, estimate)), *lows[since:]])
            backlog -= refund
            lows[since:] = [low - refund for low in lows[since:]]
        assert (burst - backlog) // 1 == rule.level(now)


@pytest.mark.parametrize("seed", range(25))
def test_more_low_marks_than_a_bucket_keeps_make_refunds_smaller_and_never_larger(seed):
    """
    Three hundred steps against a bucket that fills slowly, many permits out at once: more
    than 64 marks are needed. The level is never above the truth, and memory does not grow.
    """
    dice = random.Random(seed)
    amount, per_ns, burst = dice.choice([(1, 1000, 400), (7, 900, 2000), (3, 100, 700)])
    rule, bucket = a_bucket(amount, per_ns, burst)
    now, permits, most_marks = -500, [], 0
    for _ in range(300):
        now += dice.choice([0, 1, 3, 50, 400 if dice.random() < 0.1 else 20])
        if dice.random() < 0.75 or not permits:
            cost = dice.randrange(4)
            could = bucket.fits(cost, now)
            if rule.enter((cost,), now):
                assert could
                permits.append((cost, now, bucket.charge(cost, now)))
        else:
            estimate, taken_at, entry = permits.pop(dice.randrange(len(permits)))
            entry[2] = dice.randrange(estimate + 1)
            rule.settle(estimate, entry[2], taken_at, now)
        assert rule.level(now) <= bucket.level(now)
        most_marks = max(most_marks, len(rule.low_times))
        assert len(rule.low_times) == len(rule.low_ticks) <= 64
        assert all(first < then for first, then in pairwise(rule.low_times))
        assert all(first < then for first, then in pairwise(rule.low_ticks))
    assert most_marks > 32


@pytest.mark.parametrize("count", [3, 30, 64, 65, 66, 67, 100, 130, 200])
def test_no_permit_gets_back_a_unit_too_much_when_every_low_mark_matters(count):
    """
    Each call finds the backlog two higher than the call before, and takes one unit more than
    will be missing when the next call comes. So the next mark limits each refund by one unit.
    Refunds are exact as long as 64 marks suffice.
    """
    for order in ("first to last", "last to first", "each alone"):
        rule, bucket = a_bucket(1, 1, 10**6)
        now, permits = 0, []
        for k in range(count):
            assert rule.enter((2 * k + 3,), now) == 1
            permits.append((2 * k + 3, now, bucket.charge(2 * k + 3, now)))
            now += 2 * k + 1
        assert len(rule.low_times) <= 64
        for k, (estimate, taken_at, entry) in list(enumerate(permits))[:: -1 if order[0] == "l" else 1]:
            settled = deepcopy(rule) if order[0] == "e" else rule
            entry[2] = 0
            settled.settle(estimate, 0, taken_at, now)
            if count <= 64:
                assert bucket.level(now) == settled.level(now), k
            else:
                assert settled.level(now) <= bucket.level(now), k
            if settled is not rule:
                entry[2] = estimate


def test_a_merged_mark_still_lets_the_newest_permits_be_refunded_in_full():
    """
    A thousand calls one nanosecond apart, none settled: only old marks merge. The last thirty
    calls get everything back.
    """
    rule = RateRule(Rate(1, 86_400, burst=5000), 0)
    for now in range(1000):
        assert rule.enter((3,), now) == 1
    assert rule.level(1000) == 2000

    for k, taken_at in enumerate(range(970, 1000), 1):
        rule.settle(3, 0, taken_at, 1000)
        assert rule.level(1000) == 2000 + 3 * k


def test_refunds_over_a_long_busy_day_are_exact_when_few_permits_are_out():
    """
    A hundred thousand calls, eight unsettled at any time, every estimate twice the true cost:
    the bucket equals one that was charged the true costs, to the unit.
    """
    rule = RateRule(Rate(1000, burst=5000), 0)
    dice = random.Random(7)
    backlog, per_unit = 0, SECOND // 1000  # of a bucket that is charged true costs, in nanoseconds
    out = []
    taken = 0
    now = 0
    for _ in range(100_000):
        gap = dice.randrange(3_500_000)
        now += gap
        backlog = max(0, backlog - gap)
        estimate = 2 * dice.randrange(5)
        if rule.enter((estimate,), now):
            taken += 1
            out.append((estimate, now))
            backlog += estimate // 2 * per_unit
        if len(out) > 8:
            estimate, taken_at = out.pop(dice.randrange(len(out)))
            rule.settle(estimate, estimate // 2, taken_at, now)
    for estimate, taken_at in out:
        rule.settle(estimate, estimate // 2, taken_at, now)

    assert taken > 60_000
    assert 5000 - -(-backlog // per_unit) == rule.level(now)


# -- changing the limits


def successor(old, amount, per_ns, burst, now):
    new = RateRule(a_rate(amount, per_ns, burst), 0)
    new.follow(old, now)
    return new


def test_idle_time_is_credited_at_the_rate_it_passed_under():
    """
    Ten a minute, dry, idle for 30 s, then 600 a minute: 5 at that moment, then 10 a second.
    """
    old = RateRule(Rate(10, 60, burst=10), 0)
    assert old.enter((10,), 0) == 1

    new = successor(old, 600, MINUTE, 600, 30 * SECOND)

    assert new.level(30 * SECOND) == 5
    assert new.level(31 * SECOND) == 15
    assert new.earliest((6,), 30 * SECOND) == 30_100_000_000


def test_a_lower_limit_clamps_what_is_left_and_a_higher_one_does_not_raise_it():
    """
    100 with 50 left, set to 30: 30 of 30. A full bucket of 10, set to 30: still 10.
    """
    old = RateRule(Rate(100, 60, burst=100), 0)
    assert old.enter((50,), 0) == 1
    assert successor(old, 30, MINUTE, 30, 0).level(0) == 30
    assert successor(old, 200, MINUTE, 200, 0).level(0) == 50

    full = RateRule(Rate(10, 60, burst=10), 0)
    assert successor(full, 30, MINUTE, 30, 0).level(0) == 10


def test_a_debt_survives_a_change_of_limits():
    old = RateRule(Rate(10, burst=10), 0)
    assert old.enter((10,), 0) == 1
    old.settle(10, 17, 0, 0)

    new = successor(old, 1, SECOND, 3, 0)

    assert new.level(0) == -7
    assert new.earliest((1,), 0) == 8 * SECOND


@given(limits, starts, steps, st.lists(st.tuples(limits, sixteenths), min_size=1, max_size=4))
@settings(deadline=None, max_examples=250)
def test_a_change_of_limits_keeps_the_level_and_creates_nothing(limits, start, steps, changes):
    """
    The level is what it was, clamped to the new burst, to the unit; from then on the bucket
    is never ahead of the exact token bucket.
    """
    rule, bucket = a_bucket(*limits)
    now = start
    for rule, bucket, now, _take in play(limits, start, steps):  # noqa: B007 - the last one
        pass
    gained_on = limits
    for k, (new_limits, gap) in enumerate(changes):
        now += gap_of(gained_on, gap, 0)
        gained_on = new_limits
        level = rule.level(now)
        rule = successor(rule, *new_limits, now)
        bucket.change(*new_limits, now)
        assert min(level, new_limits[2]) == rule.level(now) <= bucket.level(now)
        for parts in (1, 9, 16, 20):
            cost = cost_of(new_limits, parts, 0)
            exact = bucket.earliest(cost, now)
            assert exact <= rule.earliest((cost,), now)
            if k == 0:  # a change rounds away less than the rate earns in a nanosecond
                assert rule.earliest((cost,), now) <= exact + 1


def test_a_refund_after_a_change_of_limits_gives_back_nothing_that_was_earned_back_before():
    """
    Ten a second, burst 10. Five taken at 0 are earned back by 1 s, when the burst becomes 30:
    the level stays 10. A refund of the five changes nothing: the bucket was full without them.
    """
    old = RateRule(Rate(10, burst=10), 0)
    assert old.enter((5,), 0) == 1
    new = successor(old, 10, SECOND, 30, SECOND)
    assert new.level(SECOND) == 10

    new.settle(5, 0, 0, SECOND)

    assert new.level(SECOND) == 10


def test_a_refund_after_a_change_of_limits_gives_back_what_was_still_missing_and_no_more():
    """
    Ten a second, burst 10. Of five taken at 0, two are missing at 0.3 s, when the burst
    becomes 30: the level is 8. Without the five it would have been 10.
    """
    old = RateRule(Rate(10, burst=10), 0)
    assert old.enter((5,), 0) == 1
    new = successor(old, 10, SECOND, 30, 300_000_000)
    assert new.level(300_000_000) == 8

    new.settle(5, 0, 0, 300_000_000)

    assert new.level(300_000_000) == 10


def test_a_refund_in_the_instant_of_a_change_gives_back_nothing_that_the_clamp_took():
    """
    Burst 30, five taken; in the same instant the burst becomes 10 (full: 10 of 10) and four
    are taken. Without the five it would have been full just as well: six are left.
    """
    old = RateRule(Rate(30, burst=30), 0)
    assert old.enter((5,), 0) == 1
    new = successor(old, 10, SECOND, 10, 0)
    assert new.enter((4,), 0) == 1

    new.settle(5, 0, 0, 0)

    assert new.level(0) == 6


small_limits = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 20))


@given(
    small_limits,
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 9), st.integers(1, 20)),
            st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 99)),
            st.tuples(st.just("limits"), st.integers(0, 9), small_limits),
        ),
        max_size=20,
    ),
)
@settings(deadline=None, max_examples=400)
def test_refunds_across_changes_of_limits_never_exceed_the_truth(limits, steps):
    """
    Takes, settles and changes of limits in any order: the level is never above that of a bucket
    that was charged true costs and had its limits changed at the same moments.
    """
    rule, bucket = a_bucket(*limits)
    now, permits = 0, []
    for kind, gap, value in steps:
        now += gap
        if kind == "limits":
            rule = successor(rule, *value, now)
            bucket.change(*value, now)
        elif kind == "take":
            could = bucket.fits(value, now)
            if rule.enter((value,), now):
                assert could
                permits.append((value, now, bucket.charge(value, now)))
        elif permits:
            estimate, taken_at, entry = permits.pop(value % len(permits))
            entry[2] = value % (estimate + 1)
            rule.settle(estimate, entry[2], taken_at, now)
        assert rule.level(now) <= bucket.level(now)


def test_a_bucket_that_follows_a_strict_rate_keeps_its_debt():
    old = StrictRule(Rate(10, strict=True), 0)
    assert old.enter((5,), 0) == 1
    old.settle(5, 20, 0, 0)
    assert old.level(0) == -10

    assert successor(old, 10, SECOND, 10, 0).level(0) == -10


def test_a_bucket_that_follows_a_strict_rate_has_the_level_of_the_strict_rate():
    old = StrictRule(Rate(10, strict=True), 0)
    assert old.enter((4,), 0) == 1

    assert successor(old, 10, SECOND, 10, 0).level(0) == 6
    assert successor(old, 10, SECOND, 3, 0).level(0) == 3
    assert successor(old, 10, SECOND, 30, 0).level(0) == 6


def test_units_that_left_a_strict_window_are_not_refunded_to_the_bucket_that_follows_it():
    old = StrictRule(Rate(10, strict=True), 0)
    assert old.enter((5,), 0) == 1
    new = successor(old, 10, SECOND, 30, SECOND)
    assert new.level(SECOND) == 10

    new.settle(5, 0, 0, SECOND)

    assert new.level(SECOND) == 10


def test_a_refund_in_the_instant_of_a_change_from_strict_gives_back_nothing_that_the_clamp_took():
    """
    Strict ten, five taken; in the same instant a bucket of three follows, full, and two are
    taken. Without the five it would have been full just as well: one is left.
    """
    old = StrictRule(Rate(10, strict=True), 0)
    assert old.enter((5,), 0) == 1
    new = successor(old, 10, SECOND, 3, 0)
    assert new.enter((2,), 0) == 1

    new.settle(5, 0, 0, 0)

    assert new.level(0) == 1


def test_each_new_rate_continues_from_the_old_rate_of_its_unit_and_period():
    """
    Requests by second and by minute, tokens by minute: reordered and retuned, each finds its
    own; a new unit starts full.
    """
    columns = {**COLUMNS, "images": 3}
    rules = successors((), [Rate(10), Rate(100, 60), Rate(1000, 60, unit="tokens", burst=1000)], columns, 0)
    for rule in rules:
        assert rule.enter((1, 400, 0, 0), 0) == 1

    changed = successors(
        rules,
        [
            Rate(2000, 60, unit="tokens", burst=2000),
            Rate(5, unit="images", burst=5),
            Rate(300, 60, burst=9),
            Rate(20),
        ],
        columns,
        0,
    )

    assert [(rule.name, rule.level(0)) for rule in changed] == [
        ("tokens/minute", 600),
        ("images/second", 5),
        ("requests/minute", 0),
        ("requests/second", 9),
    ]


def test_a_rate_with_a_new_period_continues_from_the_remaining_rate_of_its_unit():
    rules = successors((), [Rate(10, burst=10), Rate(100, 60, burst=50)], COLUMNS, 0)
    assert rules[0].enter((7, 0, 0), 0) == 1
    assert rules[1].enter((7, 0, 0), 0) == 1

    changed = successors(rules, [Rate(1000, 3600, burst=40), Rate(10, burst=10)], COLUMNS, 0)

    assert [rule.level(0) for rule in changed] == [40, 3]
    assert successors(rules[:1], [Rate(1000, 3600, burst=40)], COLUMNS, 0)[0].level(0) == 3


# -- the oracle itself


def test_the_oracle_agrees_with_a_hand_made_ledger():
    """
    Ten a second, burst 5, by hand: 5, take 4 → 1, after 0.25 s 3.5, take 3 → 0.5.
    """
    bucket = TokenBucket(10, SECOND, 5)
    first = bucket.charge(4, 0)
    assert bucket.exact_level(250_000_000) == Fraction(7, 2)
    bucket.charge(3, 250_000_000)
    assert bucket.exact_level(250_000_000) == Fraction(1, 2)
    assert bucket.earliest(1, 250_000_000) == 300_000_000
    first[2] = 0
    assert bucket.exact_level(250_000_000) == 2
