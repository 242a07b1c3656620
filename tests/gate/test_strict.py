"""A strict rate, compared with a log that forgets nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.gate import strict as rates
from headgate.gate.bucket import RateRule
from headgate.gate.decision import rule_for, successors
from headgate.gate.leased import LeasedRate
from headgate.gate.strict import StrictRule
from headgate.limits import COLUMNS, Rate

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

EXACT_UP_TO = 128  # amounts up to this are exact; larger ones are exact to one part in this many


# -- the oracle


class Log:
    """Every charge with its moment, never forgotten. A charge at t counts before t + per."""

    def __init__(self, amount, per_ns):
        self.amount = amount
        self.per_ns = per_ns
        self.charges = []

    def charge(self, units, now):
        self.charges.append([now, units])
        return self.charges[-1]

    def used(self, now, *, longer=0):
        return sum(units for at, units in self.charges if now < at + self.per_ns + longer)

    def level(self, now):
        return self.amount - self.used(now)

    def fits(self, units, now):
        return not units or self.used(now) + units <= self.amount

    def earliest(self, units, now):
        moments = [now, *(at + self.per_ns for at, _ in self.charges)]
        return min(moment for moment in moments if moment >= now and self.fits(units, moment))

    def most_in_any_window(self):
        """The most units in any stretch of `per_ns`: one of those that begin with a charge."""
        return max(
            (
                sum(units for at, units in self.charges if first <= at < first + self.per_ns)
                for first, _ in self.charges
            ),
            default=0,
        )


def a_rule(amount, per_ns=SECOND):
    rate = Rate(amount, per_ns / SECOND, strict=True)
    assert per_ns == rate.per_ns
    return StrictRule(rate, 0)


def state(rule):
    """Everything the rule remembers, as values."""
    return {
        name: [tuple(entry) for entry in value] if name in ("_caps", "_groups", "_moments") else value
        for name in StrictRule.__slots__
        for value in [getattr(rule, name)]
    }


# -- histories to try: gaps prefer the edges of the window

periods = st.sampled_from([1, 7, 128, 1000, SECOND, MINUTE, DAY])
amounts = st.one_of(st.integers(1, 5), st.integers(1, EXACT_UP_TO), st.just(EXACT_UP_TO))
large_amounts = st.sampled_from([129, 130, 200, 1000, 10**6, 10**9])
a_step = st.tuples(
    st.sampled_from(["take", "take", "take", "take", "settle", "look"]),
    # the gap in 1024ths of the period; a shared entry spans eight of them
    st.tuples(
        st.sampled_from([0, 0, 1, 4, 7, 8, 9, 16, 128, 512, 1000, 1008, 1016, 1023, 1024]), st.integers(-1, 1)
    ),
    st.integers(0, 20),  # the cost in sixteenths of the amount
    st.integers(0, 99),
)
steps = st.lists(a_step, max_size=40)
starts = st.sampled_from([0, -7, -(10**18), 10**18])


def play(amount, per_ns, start, steps, *, debts=True):
    rule, log = a_rule(amount, per_ns), Log(amount, per_ns)
    now, permits = start, []
    for kind, (parts, little), sixteenths, which in steps:
        now += max(0, per_ns * parts // 1024 + little)
        cost = amount * sixteenths // 16
        if kind == "take":
            cost = max(cost, which % 3)
            could = log.fits(cost, now), log.used(now, longer=per_ns // EXACT_UP_TO) + cost <= amount
            taken = bool(rule.enter((cost,), now))
            if taken:
                permits.append((cost, now, log.charge(cost, now)))
            yield rule, log, now, (taken, *could)
        elif kind == "settle" and permits:
            estimate, taken_at, entry = permits.pop(which % len(permits))
            actual = cost if debts else min(cost, estimate)
            rule.settle(estimate, actual, taken_at, now)
            entry[1] = min(estimate, actual)
            if actual > estimate:
                log.charge(actual - estimate, now)
            yield rule, log, now, None
        else:
            yield rule, log, now, None


# -- timelines


def test_the_whole_amount_is_admitted_at_once_and_the_next_call_when_the_first_has_left_the_window():
    """
    Three a second: at 0, 0.2 and 0.9 s; the fourth at 1 s exactly, the fifth at 1.2 s.
    """
    rule = a_rule(3)
    for now in (0, 200_000_000, 900_000_000):
        assert rule.enter((1,), now) == 1

    assert rule.earliest((1,), 900_000_000) == SECOND
    assert rule.enter((1,), SECOND - 1) == 0
    assert rule.enter((1,), SECOND) == 1
    assert rule.earliest((1,), SECOND) == 1_200_000_000
    assert rule.earliest((2,), SECOND) == 1_900_000_000
    assert rule.earliest((3,), SECOND) == 2 * SECOND


def test_a_strict_rate_makes_a_strict_rule_that_counts_its_column():
    rule = rule_for(Rate(5, unit="tokens", strict=True))

    assert isinstance(rule, StrictRule)
    assert rule.name == "tokens/second"
    assert rule.enter((99, 5, 99), 0) == 1
    assert rule.enter((0, 1, 0), 0) == 0
    assert rule.enter((99, 0, 99), 0) == 1


def test_a_full_amount_just_before_a_minute_ends_is_not_admitted_again_just_after_it():
    """
    Sixty a minute at 59.999999999 s, and again as soon as it may: 60 s later, to the
    nanosecond. A fixed window would have let 120 through at the turn of the minute.
    """
    rule = a_rule(60, MINUTE)
    assert rule.enter((60,), MINUTE - 1) == 1

    assert rule.enter((1,), MINUTE) == 0
    assert rule.earliest((60,), MINUTE) == 2 * MINUTE - 1
    assert rule.enter((60,), 2 * MINUTE - 2) == 0
    assert rule.enter((60,), 2 * MINUTE - 1) == 1


def test_calls_that_ask_all_the_time_get_sixty_in_any_minute():
    """
    Asked all the time for five minutes: 60 at once, then 60 each minute, on the minute.
    """
    rule, log = a_rule(60, MINUTE), Log(60, MINUTE)
    for now in range(0, 5 * MINUTE, SECOND // 4):
        while rule.enter((1,), now):
            log.charge(1, now)

    assert [sum(u for at, u in log.charges if at // MINUTE == k) for k in range(5)] == [60] * 5
    assert log.most_in_any_window() == 60


def test_a_call_that_costs_nothing_always_enters_and_is_charged_nothing():
    rule = a_rule(2)
    assert rule.enter((2,), 0) == 1
    rule.settle(2, 9, 0, 0)

    assert rule.enter((0,), 0) == 1
    assert rule.fits((0,), 0)
    assert rule.earliest((0,), 0) == 0
    assert rule.level(0) == -7


def test_a_cost_above_the_amount_can_never_be_taken():
    rule = a_rule(2)

    assert rule.refusal((2,)) is None
    assert "3 requests" in rule.refusal((3,))
    assert rule.refusal((2**63,)) is not None
    assert rule.enter((3,), 0) == 0
    assert rule.level(0) == 2


@pytest.mark.parametrize("start", [-(1 << 100), -1, 0, 10 * 365 * DAY])
def test_a_strict_window_starts_empty_whatever_the_clock_says(start):
    rule = a_rule(2, DAY)

    assert [rule.enter((1,), start) for _ in range(3)] == [1, 1, 0]
    assert rule.earliest((1,), start) == start + DAY
    assert rule.level(start + 3653 * DAY) == 2


def test_a_window_of_one_nanosecond_is_over_at_the_next():
    rule = a_rule(10**9, 1)

    assert rule.enter((10**9,), 5) == 1
    assert rule.enter((1,), 5) == 0
    assert rule.enter((10**9,), 6) == 1


# -- laws


@given(amounts, periods, starts, steps)
@settings(deadline=None, max_examples=250)
def test_an_amount_up_to_128_answers_as_a_complete_log_does(amount, per_ns, start, steps):
    for rule, log, now, take in play(amount, per_ns, start, steps):
        if take is not None:
            assert take[0] == take[1]
        assert log.level(now) == rule.level(now)
        for cost in (0, 1, amount // 2, amount):
            assert log.fits(cost, now) == rule.fits((cost,), now)
            assert log.earliest(cost, now) == rule.earliest((cost,), now)


@given(st.one_of(amounts, large_amounts), periods, starts, steps)
@settings(deadline=None, max_examples=250)
def test_no_stretch_as_long_as_the_window_admits_more_than_the_amount(amount, per_ns, start, steps):
    """
    Counted are true costs; all estimates are high enough.
    """
    log = None
    for _rule, log, _now, _take in play(amount, per_ns, start, steps, debts=False):  # noqa: B007 - the last one
        pass
    assert log is None or log.most_in_any_window() <= amount


@given(large_amounts, periods, starts, steps)
@settings(deadline=None, max_examples=250)
def test_an_amount_above_128_is_under_used_by_at_most_one_part_in_128(amount, per_ns, start, steps):
    """
    The rule never admits a call that the log would refuse, and refuses only calls that a log
    whose window is a 128th longer would refuse as well.
    """
    for rule, log, now, take in play(amount, per_ns, start, steps):
        if take is not None:
            taken, could, could_even_if_longer = take
            assert could or not taken
            assert taken or not could_even_if_longer
        assert rule.level(now) <= log.level(now)
        assert rule.level(now) >= amount - log.used(now, longer=per_ns // EXACT_UP_TO)


@given(
    st.one_of(amounts, large_amounts),
    periods,
    starts,
    steps,
    st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 20)), max_size=5),
)
@settings(deadline=None, max_examples=250)
def test_looking_and_being_refused_change_nothing(amount, per_ns, start, steps, probes):
    """
    Every attribute of the rule has the value that it had before.
    """
    for rule, _log, now, _take in play(amount, per_ns, start, steps):
        before = state(rule)
        for parts, sixteenths in probes:
            moment = now + per_ns * parts // 16
            cost = (amount * sixteenths // 16,)
            rule.earliest(cost, moment)
            rule.level(moment)
            rule.slack(cost, moment)
            rule.refusal(cost)
            if not rule.fits(cost, moment):
                assert rule.enter(cost, moment) == 0
        assert before == state(rule)


@given(st.one_of(amounts, large_amounts), periods, starts, steps, st.integers(0, 16))
@settings(deadline=None, max_examples=250)
def test_waiting_exactly_until_the_earliest_moment_succeeds_and_less_fails(
    amount, per_ns, start, steps, sixteenths
):
    """
    After any history.
    """
    cost = (amount * sixteenths // 16,)
    rule, now = a_rule(amount, per_ns), start
    for rule, _log, now, _take in play(amount, per_ns, start, steps):  # noqa: B007 - the last one
        pass
    at = rule.earliest(cost, now)

    assert at >= now
    if at > now:
        assert rule.enter(cost, at - 1) == 0
    assert rule.enter(cost, at) == 1


@pytest.mark.parametrize("amount", [3, 128, 129, 10_000])
def test_a_caller_that_always_asks_for_all_that_fits_gets_the_amount_and_no_more(amount):
    """
    Asking one nanosecond before, at and after every edge: never above the amount, and in the
    long run at least 128 parts in 129 of it.
    """
    dice = random.Random(amount)
    rule, log = a_rule(amount, MINUTE), Log(amount, MINUTE)
    now = 0
    while now < 20 * MINUTE:
        ask = dice.randrange(1, max(2, rule.level(now) + 1))
        if rule.enter((ask,), now):
            log.charge(ask, now)
        edge = rule.earliest((1,), now)
        now = max(now + dice.choice([0, 1, MINUTE // 300]), edge + dice.choice([-1, 0, 0, 1]))

    assert log.most_in_any_window() <= amount
    assert sum(units for _, units in log.charges) >= 19 * amount * 128 // 129


@pytest.mark.parametrize("amount", [128, 129, 10_000])
@pytest.mark.parametrize("pace", [MINUTE // 1280, MINUTE // 1000, MINUTE // 129, MINUTE // 128])
def test_calls_of_a_steady_stream_leave_the_window_as_steadily_as_they_came(amount, pace):
    """
    Calls at equal distances for three minutes: each is forgotten after a minute, or at most a
    128th of a minute later, and not only when the stream ends.
    """
    rule, log = a_rule(amount, MINUTE), Log(amount, MINUTE)
    late = 0 if amount <= EXACT_UP_TO else MINUTE // EXACT_UP_TO
    for now in range(0, 3 * MINUTE, pace):
        if rule.enter((1,), now):
            log.charge(1, now)
        if now // pace % 5 == 0:
            assert log.level(now) >= rule.level(now) >= amount - log.used(now, longer=late)


def test_time_that_goes_back_grants_nothing():
    """
    Ten at 1 s, then the clock says 0: the ten still count, until 2 s.
    """
    rule = a_rule(10)
    assert rule.enter((9,), SECOND) == 1

    assert rule.enter((2,), 0) == 0
    assert rule.enter((1,), 0) == 1
    assert rule.enter((1,), SECOND) == 0
    assert rule.enter((1,), 2 * SECOND - 1) == 0
    assert rule.enter((10,), 2 * SECOND) == 1


@given(st.one_of(amounts, large_amounts), periods, starts, steps)
@settings(deadline=None, max_examples=250)
def test_time_that_goes_back_grants_no_more_than_time_that_stands_still(amount, per_ns, start, steps):
    """
    A third of the steps go back in time. The clock of the log stops at the last charge meanwhile.
    """
    rule, log = a_rule(amount, per_ns), Log(amount, per_ns)
    now, still, permits = start, -(10**30), []
    for kind, (parts, little), sixteenths, which in steps:
        gap = max(0, per_ns * parts // 1024 + little)
        now += -gap if which % 3 == 0 else gap
        cost = amount * sixteenths // 16
        if kind == "take":
            could = log.fits(cost, max(now, still))
            if rule.enter((cost,), now):
                assert could
                still = max(now, still) if cost else still
                permits.append((cost, now, log.charge(cost, max(now, still))))
        elif kind == "settle" and permits:
            estimate, taken_at, entry = permits.pop(which % len(permits))
            entry[1] = min(cost, estimate)
            rule.settle(estimate, cost, taken_at, now)
            if cost > estimate:
                still = max(now, still)
                log.charge(cost - estimate, still)
        assert rule.level(now) <= log.level(max(now, still))


def test_asking_about_a_later_moment_grants_nothing_to_a_clock_that_steps_back():
    """
    Ten at 0. At 0.5 s nothing is left, whether or not the level at 1 s was asked for before.
    """
    looked, quiet = a_rule(10), a_rule(10)
    for rule in (looked, quiet):
        assert rule.enter((10,), 0) == 1
    looked.level(SECOND)

    assert quiet.enter((10,), SECOND // 2) == 0
    assert looked.enter((10,), SECOND // 2) == 0


# -- settling


def test_an_estimate_that_was_too_high_is_refunded():
    rule = a_rule(10)
    assert rule.enter((8,), 0) == 1
    assert rule.enter((2,), 5) == 1

    rule.settle(8, 3, 0, 10)

    assert rule.level(10) == 5
    assert rule.enter((5,), 10) == 1
    assert rule.earliest((3,), 10) == SECOND


def test_a_call_that_has_left_the_window_is_not_refunded():
    rule = a_rule(10)
    assert rule.enter((8,), 0) == 1
    assert rule.enter((9,), SECOND) == 1

    rule.settle(8, 0, 0, SECOND)

    assert rule.level(SECOND) == 1


def test_an_estimate_that_was_too_low_counts_from_the_time_of_the_settle():
    rule = a_rule(10)
    assert rule.enter((2,), 0) == 1

    rule.settle(2, 15, 0, 600_000_000)

    assert rule.level(600_000_000) == -5
    assert rule.level(SECOND) == -3
    assert rule.level(1_600_000_000) == 10


def test_calls_that_share_an_entry_are_refunded_separately():
    """
    A thousand a second share entries of 1/128 s: 100, 200 and 300 at 0, 1 and 2 ms are one.
    """
    rule = a_rule(1000)
    for k in range(3):
        assert rule.enter((100 * (k + 1),), k * 1_000_000) == 1
    assert len(rule._groups) == 1

    rule.settle(200, 0, 1_000_000, 3_000_000)
    assert rule.level(3_000_000) == 600
    rule.settle(300, 299, 2_000_000, 3_000_000)
    assert rule.level(3_000_000) == 601
    rule.settle(100, 0, 0, 3_000_000)
    assert rule.level(3_000_000) == 701


# -- memory


@pytest.mark.parametrize("amount", [10, 128, 129, 10**9])
def test_a_hundred_thousand_calls_are_remembered_in_130_groups(amount):
    rule = a_rule(amount, MINUTE)
    dice = random.Random(3)
    now = most = 0
    for _ in range(100_000):
        now += dice.choice([0, 1, 1000, 1_000_000])
        rule.enter((1,), now)
        most = max(most, len(rule._groups))

    assert most <= 130


def test_ten_minutes_of_calls_at_every_pace_are_remembered_in_130_groups():
    for pace in (MINUTE // 1000, MINUTE // 128, MINUTE // 128 - 1, MINUTE // 128 + 1, MINUTE // 100):
        rule = a_rule(10**9, MINUTE)
        for now in range(0, 10 * MINUTE, pace):
            assert rule.enter((1,), now) == 1
            assert len(rule._groups) <= 130


def test_calls_that_turn_out_to_cost_nothing_use_no_memory():
    """
    Ten a minute; ten thousand calls that never ran are refunded one by one. None counts, so
    none is remembered.
    """
    rule = a_rule(10, MINUTE)
    for now in range(10_000):
        assert rule.enter((1,), now) == 1
        rule.settle(1, 0, now, now)

    assert rule.level(10_000) == 10
    assert len(rule._groups) <= 130


def test_calls_estimated_as_free_that_cost_something_are_remembered_in_130_groups():
    """
    A call that costs nothing always enters: the true costs of ten thousand such calls must be
    kept in bounded memory too.
    """
    rule = a_rule(10, MINUTE)
    for now in range(10_000):
        assert rule.enter((0,), now) == 1
        rule.settle(0, 1, now, now)

    assert rule.level(10_000) <= 10 - 10_000
    assert len(rule._groups) <= 130


# -- changing the limits


def test_a_strict_rate_that_follows_another_still_counts_its_calls():
    """
    Ten a second, seven taken at 0, then five a second: nothing until 1 s.
    """
    old, new = a_rule(10), a_rule(5)
    assert old.enter((7,), 0) == 1
    new.follow(old, 500_000_000)

    assert new.level(500_000_000) == -2
    assert new.earliest((1,), 500_000_000) == SECOND
    new.settle(7, 1, 0, 600_000_000)
    assert new.level(600_000_000) == 4
    assert old.level(600_000_000) == 3


def test_a_strict_rate_that_follows_a_bucket_which_was_fully_used_goes_on_at_its_pace():
    """
    Sixty a minute with a burst of one, each used: made strict, it must not let fifty-nine through
    at once after the sixty of the last minute. Any minute has sixty, before and after the change.
    """
    old, new, log = RateRule(Rate(60, 60, burst=1), 0), a_rule(60, MINUTE), Log(60, MINUTE)
    for now in range(0, MINUTE, SECOND):
        assert old.enter((1,), now) == 1
        log.charge(1, now)
    now = 59 * SECOND + SECOND // 2
    new.follow(old, now)

    assert new.level(now) == 0
    while now < 3 * MINUTE:
        if new.enter((1,), now):
            log.charge(1, now)
        now += SECOND // 4
    assert log.most_in_any_window() == 60
    assert 58 <= sum(MINUTE <= at < 2 * MINUTE for at, _ in log.charges) <= 60


def test_a_strict_rate_counts_what_the_bucket_before_it_used():
    old, new = RateRule(Rate(60, 60, burst=60), 0), a_rule(60, MINUTE)
    assert old.enter((20,), 0) == 1
    new.follow(old, 0)
    assert new.level(0) == 40

    smaller = a_rule(30, MINUTE)
    smaller.follow(old, 0)
    assert smaller.level(0) == 10


def test_a_strict_rate_that_follows_a_granted_one_may_use_as_much_as_was_granted():
    """For one period, because it is not known what the processes that share the rate have used."""
    old = LeasedRate(Rate(10), 0)
    old.grant(4, 0, 0)
    new = a_rule(10)
    new.follow(old, SECOND // 2)

    assert new.level(SECOND // 2) == 4
    assert new.earliest((5,), SECOND // 2) == SECOND + SECOND // 2


def test_units_that_the_bucket_has_earned_back_leave_the_strict_window_when_they_would_have_left_it():
    """
    A bucket of sixty a minute: forty used at 0 s are earned back at 40 s, but were used in that minute.
    """
    old, new = RateRule(Rate(60, 60, burst=60), 0), a_rule(60, MINUTE)
    old.made_at = 0
    assert old.enter((40,), 0) == 1
    assert old.full(45 * SECOND)

    new.follow(old, 45 * SECOND)

    assert new.level(45 * SECOND) == 20
    assert new.level(MINUTE - 1) == 20
    assert new.level(MINUTE) == 60


def test_a_strict_rate_that_follows_a_bucket_that_was_never_used_has_all_of_its_amount():
    old, new = RateRule(Rate(1000, 86_400), 0), a_rule(1000, DAY)
    assert old.level(0) == 1
    new.follow(old, 0)
    assert new.level(0) == 1000


def test_a_strict_rate_that_follows_a_bucket_used_for_ten_minutes_has_nearly_all_of_its_amount():
    """
    1000 a day, evenly. Three calls in 200 s: no more than four can have been admitted in that time.
    """
    (old,) = successors((), (Rate(1000, 86_400),), COLUMNS, 0)
    for now in (0, 100 * SECOND, 200 * SECOND):
        assert old.enter((1,), now) == 1
    (new,) = successors((old,), (Rate(1000, 86_400, strict=True),), COLUMNS, 200 * SECOND)

    assert new.level(200 * SECOND) in (996, 997)
    assert new.level(DAY + 200 * SECOND) == 1000


def test_a_strict_rate_that_follows_a_bucket_keeps_its_debt():
    old, new = RateRule(Rate(60, 60, burst=60), 0), a_rule(60, MINUTE)
    assert old.enter((60,), 0) == 1
    old.settle(60, 75, 0, 0)
    assert old.level(0) == -15

    new.follow(old, 0)

    assert new.level(0) == -15


def test_a_raised_strict_limit_is_there_at_once_less_what_was_used():
    """
    Ten a minute, all used; made six hundred a minute: the ten still count, and nothing else does.
    """
    old, new = a_rule(10, MINUTE), a_rule(600, MINUTE)
    assert old.enter((10,), 0) == 1

    new.follow(old, SECOND)

    assert new.level(SECOND) == 590
    assert new.level(MINUTE) == 600


def test_changing_a_strict_rate_back_and_forth_costs_nothing():
    rule = a_rule(100, MINUTE)
    for amount in (50, 100, 50):
        before, rule = rule, a_rule(amount, MINUTE)
        rule.follow(before, 0)

    assert rule.level(0) == 50


@pytest.mark.parametrize("used", [0, 7])
def test_changing_from_strict_to_a_bucket_and_back_counts_what_was_used_and_nothing_else(used):
    rule = rule_for(Rate(60, 60, strict=True))
    assert rule.enter((used,), 0) == 1
    for _ in range(3):
        for rate in (Rate(60, 60, burst=60), Rate(60, 60, strict=True)):
            (rule,) = successors((rule,), (rate,), COLUMNS, 0)

    assert rule.level(0) == 60 - used
    assert rule.level(MINUTE) == 60


def test_a_pause_outlasts_a_change_to_a_bucket_and_back():
    rule = rule_for(Rate(60, 60, strict=True))
    rule.hold_until(30 * SECOND, 0)
    (bucket,) = successors((rule,), (Rate(60, 60, burst=60),), COLUMNS, 0)
    (again,) = successors((bucket,), (Rate(60, 60, strict=True),), COLUMNS, SECOND)

    assert bucket.earliest((1, 0, 0), 0) == 30 * SECOND
    assert again.earliest((1, 0, 0), SECOND) == 30 * SECOND
    assert again.level(30 * SECOND) >= 1
    assert again.level(2 * MINUTE) == 60


# -- caps: what the far side says


def test_a_lowered_level_is_what_may_still_go_and_not_usage():
    """
    Sixty a minute, one used; the far side says that 29 remain. 29 more go within the minute. After it
    there are as many as have left the window.
    """
    rule = a_rule(60, MINUTE)
    assert rule.enter((1,), 0) == 1
    rule.lower(29, SECOND)

    assert rule.used(SECOND) == 1
    assert rule.level(SECOND) == 29
    assert rule.enter((29,), 2 * SECOND) == 1
    assert rule.enter((1,), 2 * SECOND) == 0
    assert rule.earliest((1,), 2 * SECOND) == MINUTE  # the first one leaves the window
    assert rule.earliest((2,), 2 * SECOND) == MINUTE + SECOND  # the cap ends
    assert rule.level(MINUTE + SECOND) == 31


def test_a_lower_limit_and_what_remains_of_it_are_not_both_subtracted():
    """
    Sixty a minute; the far side says that 29 of 30 remain, and the rate becomes thirty a minute.
    """
    old, new = a_rule(60, MINUTE), a_rule(30, MINUTE)
    assert old.enter((1,), 0) == 1
    old.lower(29, 0)
    new.follow(old, 0)

    assert new.level(0) == 29


def test_lowering_never_raises_the_level_and_never_makes_debt():
    rule = a_rule(10)
    assert rule.enter((8,), 0) == 1
    for level in (5, 2, 9, 10**30, 0, -5, 1):
        before = rule.level(0)
        rule.lower(level, 0)
        assert rule.level(0) == max(0, min(before, level))
    assert rule.level(SECOND) == 10


def test_a_pause_leaves_nothing_and_takes_nothing():
    rule = a_rule(10)
    assert rule.enter((3,), 0) == 1
    rule.hold_until(5 * SECOND, 0)

    assert rule.level(0) == 0
    assert rule.earliest((1,), 0) == 5 * SECOND
    assert rule.enter((0,), 0) == 1
    assert rule.level(5 * SECOND) == 10
    rule.hold_until(4 * SECOND, 5 * SECOND)
    assert rule.level(5 * SECOND) == 10


def test_a_call_that_used_less_than_estimated_does_not_raise_what_the_far_side_said_is_left():
    """
    The far side says that 5 are left, whatever a call of before was estimated to use.
    """
    rule = a_rule(100)
    assert rule.enter((80,), 0) == 1
    rule.lower(5, 10)
    rule.settle(80, 10, 0, 20)

    assert rule.used(20) == 10
    assert rule.level(20) == 5


@pytest.mark.parametrize(("said_at", "left"), [(0, 5), (SECOND - 1, 5), (SECOND, 5)])
def test_what_is_left_is_corrected_while_the_call_counted_when_it_was_said_and_not_later(said_at, left):
    rule = a_rule(100)
    assert rule.enter((80,), 0) == 1
    rule.lower(left, said_at)
    rule.settle(80, 10, 0, said_at)

    assert rule.level(said_at) == left
    assert rule.enter((6,), said_at) == 0


def test_a_call_sent_after_the_far_side_said_what_is_left_is_refunded_in_full():
    rule = a_rule(100)
    rule.lower(50, 0)
    assert rule.enter((40,), 10) == 1
    rule.settle(40, 10, 10, 20)

    assert rule.level(20) == 40


def test_for_one_period_a_rate_that_grew_keeps_to_the_amount_before():
    rule = a_rule(100, MINUTE)
    assert rule.enter((10,), 0) == 1
    rule.keep_to(50, SECOND)

    assert rule.level(SECOND) == 40
    assert rule.level(MINUTE) == 50
    assert rule.level(MINUTE + SECOND) == 100


class Model(Log):
    """All facts and all caps, none forgotten."""

    def __init__(self, amount, per_ns):
        super().__init__(amount, per_ns)
        self.caps = []

    def limit(self, now):
        return min([self.amount, *(most for until, most, _ in self.caps if now < until)])

    def fits(self, units, now):
        return not units or self.used(now) + units <= self.limit(now)

    def level(self, now):
        left = self.amount - self.used(now)
        return left if left < 0 else max(0, min(left, self.limit(now) - self.used(now)))

    def earliest(self, units, now):
        moments = [now, *(at + self.per_ns for at, _ in self.charges), *(until for until, _, _ in self.caps)]
        return min(moment for moment in moments if moment >= now and self.fits(units, moment))

    def lower(self, level, now):
        self.caps.append([now + self.per_ns, level + self.used(now), now])

    def settle(self, entry, estimate, actual, now):
        entry[1] = min(estimate, actual)
        if actual > estimate:
            self.charge(actual - estimate, now)
        for cap in self.caps:
            if entry[0] <= cap[2] < entry[0] + self.per_ns:
                cap[1] = max(0, cap[1] - max(0, estimate - actual))


what_happens = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "settle", "lower", "hold", "change"]),
        st.tuples(st.sampled_from([0, 0, 1, 8, 128, 512, 1000, 1023, 1024]), st.integers(-1, 1)),
        st.integers(0, 20),
        st.integers(0, 99),
    ),
    max_size=40,
)


@given(st.one_of(amounts, large_amounts), periods, what_happens)
@settings(deadline=None, max_examples=200)
def test_any_history_of_calls_caps_and_changes_answers_as_a_list_of_facts_and_a_list_of_caps_do(
    first_amount, per_ns, steps
):
    """
    Never more than the limit of the moment in a window that ends then, and never idle while there is room.
    """
    rule, model = a_rule(first_amount, per_ns), Model(first_amount, per_ns)
    now, permits = 0, []
    for kind, (parts, little), sixteenths, which in steps:
        amount = model.amount
        now += max(0, per_ns * parts // 1024 + little)
        cost = amount * sixteenths // 16
        if kind == "take":
            cost = max(cost, which % 3)
            room = model.fits(cost, now)
            assert rule.enter((cost,), now) == room
            if room:
                permits.append((cost, model.charge(cost, now)))
                assert not cost or model.used(now) <= model.limit(now)
        elif kind == "settle" and permits:
            estimate, entry = permits.pop(which % len(permits))
            rule.settle(estimate, cost, entry[0], now)
            model.settle(entry, estimate, cost, now)
        elif kind == "lower":
            rule.lower(cost, now)
            model.lower(cost, now)
        elif kind == "hold":
            until = now + per_ns * sixteenths // 4
            rule.hold_until(until, now)
            model.caps.append([until, 0, now])
        elif kind == "change":
            model.amount = [max(1, amount // 2), amount * 2, first_amount][which % 3]
            before, rule = rule, a_rule(model.amount, per_ns)
            rule.follow(before, now)
            # A cap that leaves all of the amount is not remembered for a larger one.
            model.caps = [cap for cap in model.caps if cap[1] < amount]
        assert rule.level(now) == model.level(now)
        for need in (0, 1, model.amount // 2, model.amount):
            assert rule.fits((need,), now) == model.fits(need, now)
            assert rule.earliest((need,), now) == model.earliest(need, now)


def test_five_thousand_caps_are_remembered_in_130_and_end_at_most_a_128th_late():
    """
    Every 12 ms of a minute the far side says that one more is left than before.
    """
    rule, model = a_rule(10**6, MINUTE), Model(10**6, MINUTE)
    for k in range(5000):
        rule.lower(k, k * MINUTE // 5000)
        model.lower(k, k * MINUTE // 5000)
    assert len(rule._caps) <= 130
    model.caps = [cap for k, cap in enumerate(model.caps) if k % 50 == 0]
    late = MINUTE // 128 + MINUTE // 100
    for now in range(MINUTE, 2 * MINUTE + late, MINUTE // 99):
        assert model.level(now - late) - 50 <= rule.level(now) <= model.level(now) + 50


# -- exact while there are few, and beyond by at most one part in 128


def test_a_large_amount_is_exact_while_there_are_few_calls():
    """
    A million a minute: 600 000 at 0 s, 400 000 at 0.1 s, which is less than a 128th of a minute later.
    Each leaves the window after its own minute.
    """
    rule = a_rule(10**6, MINUTE)
    assert rule.enter((600_000,), 0) == 1
    assert rule.enter((400_000,), SECOND // 10) == 1

    assert rule.earliest((600_000,), SECOND) == MINUTE
    assert rule.earliest((600_001,), SECOND) == MINUTE + SECOND // 10
    assert rule.level(MINUTE - 1) == 0
    assert rule.level(MINUTE) == 600_000
    assert rule.enter((600_000,), MINUTE) == 1
    assert rule.level(MINUTE + SECOND // 10) == 400_000


@given(large_amounts, periods, starts, steps)
@settings(deadline=None, max_examples=250)
def test_any_amount_answers_as_a_complete_log_does_while_there_are_few_calls(amount, per_ns, start, steps):
    for rule, log, now, take in play(amount, per_ns, start, steps):
        if take is not None:
            assert take[0] == take[1]
        assert log.level(now) == rule.level(now)
        for cost in (0, 1, amount // 2, amount):
            assert log.earliest(cost, now) == rule.earliest((cost,), now)


def test_the_latest_256_moments_are_exact_and_older_ones_are_kept_in_groups():
    """
    One unit every 10 ms: after 256 of them everything is exact to the nanosecond; the 257th
    makes the first leave with the last of its group, less than a 128th of a minute later.
    """
    rule, log = a_rule(10**6, MINUTE), Log(10**6, MINUTE)
    step = SECOND // 100
    for k in range(256):
        assert rule.enter((1,), k * step) == 1
        log.charge(1, k * step)
    for k in range(256):
        assert rule.level(MINUTE + k * step - 1) == log.level(MINUTE + k * step - 1)
        assert rule.level(MINUTE + k * step) == log.level(MINUTE + k * step)

    assert rule.enter((1,), 256 * step) == 1

    assert rule.level(MINUTE) == 10**6 - 257
    assert rule.level(MINUTE + MINUTE // 128) >= 10**6 - 257 + 1
    assert len(rule._moments) == 256


@pytest.fixture
def few(monkeypatch):
    """A rule that keeps three moments and four groups, so that a few steps exceed them."""
    monkeypatch.setattr(rates, "_MOST_MOMENTS", 3)
    monkeypatch.setattr(rates, "_MOST_GROUPS", 4)


def bound(log, now):
    """The usage if each call stayed a quarter longer, which is the largest error of four groups."""
    return log.amount - log.used(now, longer=-(-log.per_ns // 4))


def check_kept(rule):
    """Check the invariants of the rule."""
    assert rule._used == sum(group[2] for group in rule._groups)
    assert len(rule._moments) <= rates._MOST_MOMENTS
    ends = [end for group in rule._groups for end in group[:2]]
    assert ends == sorted(ends)
    for group in rule._groups:
        known = [units for at, units in rule._moments if group[0] <= at <= group[1]]
        assert group[2] >= sum(known)
        assert group[2] > 0


@given(st.one_of(amounts, large_amounts), periods, starts, steps)
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_with_more_moments_than_it_keeps_a_strict_rate_is_never_above_the_log_and_not_far_below(
    few, amount, per_ns, start, steps
):
    """
    Settled early or late, refunded or in debt: a call that has left the window is not refunded.
    """
    for rule, log, now, take in play(amount, per_ns, start, steps):
        check_kept(rule)
        assert len(rule._groups) <= rates._MOST_GROUPS + 2
        assert bound(log, now) <= rule.level(now) <= log.level(now)
        if take is not None:
            assert take[1] or not take[0]
        at = rule.earliest((1,), now)
        assert at >= log.earliest(1, now)
        assert rule.fits((1,), at)
        assert at == now or not rule.fits((1,), at - 1)


def test_units_that_are_known_by_their_group_leave_with_the_last_of_it(few):
    """The latest three calls are known one by one; those of 0 and 100 leave together, as do 300 and 400."""
    rule = a_rule(100, 1000)
    for at in (0, 100, 300, 400, 600, 700):
        assert rule.enter((10,), at) == 1

    costs = (40, 41, 50, 60, 61, 70, 80, 81, 90, 91, 100)
    moments = (700, 1100, 1100, 1100, 1400, 1400, 1400, 1600, 1600, 1700, 1700)
    assert tuple(rule.earliest((cost,), 700) for cost in costs) == moments
    assert rule.earliest((60,), 1200) == 1200


def test_a_strict_rate_has_no_slack_and_is_full_when_nothing_counts():
    rule = a_rule(10)
    assert rule.full(0)
    assert rule.enter((1,), 0) == 1
    assert not rule.full(SECOND - 1)
    assert rule.full(SECOND)
    assert rule.slack((1,), 0) == 0


def test_units_are_put_back_to_the_latest_calls_first():
    rule = a_rule(100, 1000)
    for at, units in ((0, 10), (100, 20), (600, 30)):
        assert rule.enter((units,), at) == 1
    rule.give_back(35, 700)

    assert [rule.level(at) for at in (700, 999, 1000, 1099, 1100)] == [75, 75, 85, 85, 100]
    rule.give_back(99, 1050)  # what has left the window is not put back
    assert [rule.level(at) for at in (1050, 1100)] == [100, 100]


def test_units_that_are_put_back_do_not_raise_what_the_far_side_said_is_left():
    rule = a_rule(100, 1000)
    for at, units in ((0, 10), (100, 20), (600, 30)):
        assert rule.enter((units,), at) == 1
    rule.lower(5, 650)
    rule.give_back(35, 700)
    assert rule.level(700) == 5
    assert rule.enter((5,), 700) == 1
    rule.give_back(5, 800)  # this call was sent afterwards
    assert rule.level(800) == 5


def test_a_late_refund_of_a_call_that_left_the_window_takes_nothing_from_others_of_its_group(few):
    """
    Calls at 0, 100 and 200 share a group. The first leaves by itself, then the second is known
    by the group only: a late refund of the first must not come out of what the others took.
    """
    rule = a_rule(100, 1000)
    for at in (0, 100, 200):
        assert rule.enter((10,), at) == 1
    assert rule.enter((1,), 1000) == 1
    assert rule.enter((1,), 1001) == 1
    assert rule.level(1001) == 78

    rule.settle(10, 0, 0, 1001)
    assert rule.level(1001) == 78

    rule.settle(10, 0, 100, 1001)
    assert rule.level(1001) == 88


@given(
    st.one_of(amounts, large_amounts), periods, starts, steps, st.integers(1, 40), st.sampled_from([0, 0, 16])
)
@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_units_put_back_are_the_latest_ones_and_never_more_than_are_counted(
    few, amount, per_ns, start, steps, units, parts
):
    rule, now = a_rule(amount, per_ns), start
    for rule, _log, now, _take in play(amount, per_ns, start, steps):  # noqa: B007 - the last one
        pass
    now += per_ns * parts // 16
    before = rule.used(now)
    rule.give_back(units, now)

    check_kept(rule)
    assert max(0, before - units) <= rule.used(now) <= before


# -- saved, restored, mended


@given(st.one_of(amounts, large_amounts), periods, starts, steps, st.booleans())
@settings(deadline=None, max_examples=250)
def test_a_restored_state_gives_the_answers_of_the_saved_one(amount, per_ns, start, steps, small):
    """
    Through plain integers: every answer of the restored rule is that of the old.
    """
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(rates, "_MOST_MOMENTS", 3)
            patch.setattr(rates, "_MOST_GROUPS", 4)
        for rule, _log, now, _take in play(amount, per_ns, start, steps):
            again = a_rule(amount, per_ns)
            again.restore([int(text) for text in map(str, rule.saved())], now)
            check_kept(again)
            for sixteenths in range(0, 33, 4):
                moment = now + per_ns * sixteenths // 16
                assert again.level(moment) == rule.level(moment)
                for cost in (1, amount // 2, amount):
                    assert again.earliest((cost,), moment) == rule.earliest((cost,), moment)


@given(large_amounts, periods, starts, steps, st.integers(0, 48))
@settings(deadline=None, max_examples=250)
def test_a_saved_state_from_the_future_counts_from_now(amount, per_ns, start, steps, sixteenths):
    """
    The clock was set back meanwhile: nothing is forgotten, and everything has left after one window.
    """
    for rule, _log, now, _take in play(amount, per_ns, start, steps):
        earlier = now - per_ns * sixteenths // 16
        again = a_rule(amount, per_ns)
        again.restore(rule.saved(), earlier)
        check_kept(again)
        assert again.level(earlier) <= rule.level(now)
        assert again.level(earlier + per_ns) == amount


@given(st.lists(st.integers(-20, 20), max_size=14), st.integers(-5, 5))
@settings(deadline=None, max_examples=1000)
def test_arbitrary_numbers_are_refused_or_give_a_rule_that_works(numbers, now):
    """
    For any numbers in a file: ValueError, or a rule that works without one.
    """
    rule = a_rule(100, 10)
    try:
        rule.restore(numbers, now)
    except ValueError:
        return
    check_kept(rule)
    for moment in range(now, now + 12):
        rule.enter((1,), moment)
        check_kept(rule)


NO_GROUPS = "no state has .* groups in .* numbers"
NOT_IN_ORDER = "its groups are not in order"
OF_NO_GROUP = "its moments are not those of its groups"


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([0], NO_GROUPS),
        ([1], NO_GROUPS),
        ([2, 1, 1, 5, 0], NO_GROUPS),
        ([2, 1, 1, 5, 2, 2, 5], NO_GROUPS),
        ([10**6, *[1] * 50], NO_GROUPS),
        ([513, *[number for at in range(513) for number in (at, at, 1)], -1], NO_GROUPS),
        ([1, 5, 4, 1, 0], NOT_IN_ORDER),  # ends before it begins
        ([1, 5, 5, 0, 0], NOT_IN_ORDER),  # a group without units
        ([2, 5, 6, 1, 6, 7, 1, 0], NOT_IN_ORDER),  # one group inside the other
        ([1, 5, 5, 1, 0, 5], "no state has 1 numbers for its moments"),  # a moment without its units
        (
            [1, 0, 999, 999, -1, *[number for at in range(257) for number in (at, 1)]],
            "no state has 514 numbers",
        ),
        ([1, 5, 5, 1, 0, 5, 2], OF_NO_GROUP),  # a moment with more units than its group
        ([1, 5, 9, 3, 6, 6, 1], OF_NO_GROUP),  # a moment that is kept and merged
        ([1, 5, 9, 3, 0, 4, 1], OF_NO_GROUP),  # a moment earlier than all groups
        ([1, 5, 9, 3, 0, 10, 1], "its moments are later than its groups"),
    ],
)
def test_numbers_that_are_not_a_state_are_refused(numbers, why):
    rule = a_rule(100, 10)
    before = state(rule)
    with pytest.raises(ValueError, match=f"^{why}"):
        rule.restore(numbers, 20)
    assert state(rule) == before


def test_the_largest_states_are_read():
    rule = a_rule(10**6, MINUTE)
    rule.restore([512, *[number for at in range(512) for number in (at, at, 1)], -1], 600)
    assert rule.level(600) == 10**6 - 512
    rule = a_rule(10**6, MINUTE)
    rule.restore([1, 0, 999, 999, -1, *[number for at in range(256) for number in (at, 1)]], 1000)
    assert rule.level(1000) == 10**6 - 999


def test_moments_of_the_future_become_one_that_is_refunded_in_full():
    rule = a_rule(10, 100)
    rule.restore([1, 5, 9, 6, 0, 6, 1, 7, 2, 9, 3], 5)
    assert rule.level(5) == 4
    rule.settle(6, 0, 5, 5)
    assert rule.level(5) == 10


def test_an_empty_window_is_saved_as_an_empty_state():
    rule = a_rule(10)
    assert rule.saved() == []
    rule.restore([], 0)
    assert rule.level(0) == 10


def test_a_repair_keeps_groups_of_one_unit():
    rule = a_rule(100)
    assert rule.enter((1,), 0) == 1
    rule.mend()

    assert rule.level(0) == 99


def test_an_interrupted_change_is_repaired_from_the_groups():
    """
    The total was raised and the group not, or the other way round: the groups are believed.
    """
    rule = a_rule(100)
    assert rule.enter((10,), 0) == 1
    rule._used += 7
    rule._groups.append([5, 5, 0])

    rule.mend()

    check_kept(rule)
    assert rule.level(5) == 90
    rule.settle(10, 4, 0, 5)
    assert rule.level(5) == 96
    assert rule.enter((5,), 6) == 1
    assert rule.level(6) == 91
    assert rule.level(2 * SECOND) == 100


def test_usage_carried_over_from_another_rate_is_neither_scaled_nor_raised():
    """
    Unlike with `follow`, seven of ten used become seven of a thousand used.
    """
    old, new = a_rule(10), a_rule(1000)
    assert old.enter((7,), 0) == 1
    new.carry_on(old)

    assert new.level(0) == 993
    new.settle(7, 0, 0, 1)
    assert (new.level(1), old.level(1)) == (1000, 3)
