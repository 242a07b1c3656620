"""Allowances over sliding windows, held against a plain list of what was used and when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.budgets.windows import MONEY, TOKENS, Allowance, Limit, Plan, binding
from headgate.gate import strict as rates
from headgate.limits import Rate

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
DAY = 24 * HOUR


def a_limit(amount, per_ns, column=TOKENS):
    return Limit(amount, column, Rate(1 if amount is None else amount, per_ns / SECOND, strict=True))


def a_plan(*limits, caps=(None, None)):
    return Plan(caps, [a_limit(*limit) for limit in limits])


def state(allowance):
    """Everything it remembers, as values."""
    return [
        (name, [tuple(entry) for entry in value] if name in ("_groups", "_moments") else value)
        for rule in allowance._rules
        for name in type(rule).__slots__
        for value in [getattr(rule, name)]
    ]


# -- the model: one list, nothing else


class Model:
    """A list of (time, tokens, money). What was used at t counts before t + per."""

    def __init__(self, plan):
        self.plan = plan
        self.entries = []

    def charge(self, cost, now):
        self.entries.append([now, *cost])
        return self.entries[-1]

    def used(self, limit, now, *, longer=0):
        per = limit.rate.per_ns + longer
        return sum(entry[1 + limit.column] for entry in self.entries if now < entry[0] + per)

    def fits(self, cost, now):
        if any(cap is not None and need > cap for cap, need in zip(self.plan.caps, cost, strict=True)):
            return False
        return all(
            self.used(limit, now) + cost[limit.column] <= limit.amount
            for limit in self.plan.limits
            if limit.amount is not None
        )

    def earliest(self, cost, now):
        moments = {
            now,
            *(entry[0] + limit.rate.per_ns for entry in self.entries for limit in self.plan.limits),
        }
        return min((m for m in moments if m >= now and self.fits(cost, m)), default=None)

    def left(self, column, now):
        lefts = [
            limit.amount - self.used(limit, now)
            for limit in self.plan.limits
            if limit.amount is not None and limit.column == column
        ]
        return min(lefts, default=None)


periods = st.sampled_from([1, 7, 1000, MINUTE, HOUR, DAY])
some_limits = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(1, 100), st.just(10**6)), periods, st.sampled_from([TOKENS, MONEY])
    ),
    max_size=4,
    unique_by=lambda limit: limit[1:],
)
some_caps = st.tuples(st.one_of(st.none(), st.integers(1, 60)), st.one_of(st.none(), st.integers(1, 60)))
some_plans = st.builds(lambda limits, caps: a_plan(*limits, caps=caps), some_limits, some_caps)
costs = st.tuples(st.integers(0, 60), st.integers(0, 60))
steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "record", "settle", "settle"]),
        st.tuples(periods, st.sampled_from([0, 0, 1, 8, 15, 16]), st.integers(-1, 1)),
        costs,
        st.integers(0, 99),
    ),
    max_size=40,
)


def play(allowance, model, steps, *, overshoot=True):
    """Yields after every step: the moment, and for a reservation (cost, taken, could)."""
    now, open_ones = 0, []
    for kind, (period, sixteenths, little), cost, which in steps:
        now += max(0, period * sixteenths // 16 + little)
        if kind == "reserve":
            could = model.fits(cost, now)
            before = state(allowance)
            short = allowance.shortage(cost, now)
            assert (short is None) == allowance.fits(cost, now)
            assert before == state(allowance)  # a question changes nothing
            if short is None:
                allowance.charge(cost, now)
                open_ones.append((cost, now, model.charge(cost, now)))
            yield now, (cost, short, could)
        elif kind == "record":
            if overshoot:
                allowance.charge(cost, now)
                model.charge(cost, now)
            yield now, None
        elif open_ones:
            estimate, taken_at, entry = open_ones.pop(which % len(open_ones))
            actual = cost if overshoot else tuple(map(min, cost, estimate))
            allowance.settle(estimate, actual, taken_at, now)
            entry[1:] = map(min, estimate, actual)
            model.charge(tuple(max(0, a - e) for a, e in zip(actual, estimate, strict=True)), now)
            yield now, None


# -- timelines


def test_usage_exactly_as_old_as_the_window_no_longer_counts():
    """600 of 1000 used at 0; at one hour sharp, all is there again."""
    allowance = Allowance(a_plan((1000, HOUR)))
    allowance.charge((600, 0), 0)

    assert allowance.left(TOKENS, HOUR - 1) == 400
    assert allowance.left(TOKENS, HOUR) == 1000


def test_a_cost_must_fit_every_window():
    """100 a minute and 250 an hour: three minutes in a row give 100, 100 and 50."""
    allowance = Allowance(a_plan((100, MINUTE), (250, HOUR)))
    for minute in (0, 1):
        assert allowance.fits((100, 0), minute * MINUTE)
        allowance.charge((100, 0), minute * MINUTE)

    assert not allowance.fits((51, 0), 2 * MINUTE)
    assert allowance.fits((50, 0), 2 * MINUTE)
    short = allowance.shortage((51, 0), 2 * MINUTE)
    assert (short.name, short.remaining, short.limit, short.at) == ("tokens/hour", 50, 250, HOUR)


def test_the_maximum_of_one_request_comes_first_and_equal_is_fine():
    """The cap refuses the request whatever the windows have left."""
    allowance = Allowance(a_plan((100, MINUTE), caps=(10, 5)))

    assert allowance.fits((10, 5), 0)
    short = allowance.shortage((11, 0), 0)
    assert (short.name, short.remaining, short.limit, short.at) == ("tokens/request", 10, 10, None)
    short = allowance.shortage((10, 6), 0)
    assert (short.name, short.remaining, short.limit, short.at) == ("money/request", 5, 5, None)


def test_a_cost_of_zero_fits_exactly_while_nothing_is_overdrawn():
    """An estimate of 0 is allowed exactly when usage is not above the maximum."""
    allowance = Allowance(a_plan((100, MINUTE)))
    allowance.charge((100, 0), 0)
    assert allowance.fits((0, 0), 0)

    allowance.charge((1, 0), SECOND)
    assert not allowance.fits((0, 0), SECOND)
    assert allowance.shortage((0, 0), SECOND).at == MINUTE
    assert allowance.left(TOKENS, SECOND) == -1


def test_money_is_a_column_of_its_own():
    allowance = Allowance(a_plan((100, MINUTE), (5, DAY, MONEY)))
    allowance.charge((50, 5), 0)

    assert allowance.fits((50, 0), 0)
    assert allowance.shortage((50, 1), 0).name == "money/day"
    assert (allowance.left(TOKENS, MINUTE), allowance.left(MONEY, MINUTE)) == (100, 0)
    assert Allowance(a_plan()).left(MONEY, 0) is None


def test_among_levels_the_one_that_refuses_for_longest_is_named():
    """The user could go in a minute, the organisation in an hour, the third never."""
    user, organization = Allowance(a_plan((10, MINUTE))), Allowance(a_plan((10, HOUR)))
    small = Allowance(a_plan((5, HOUR)))
    for level in (user, organization):
        level.charge((10, 0), 0)

    assert binding([user], (6, 0), 0)[1].at == MINUTE
    index, short = binding([user, organization], (6, 0), 0)
    assert (index, short.at) == (1, HOUR)
    index, short = binding([user, small, organization], (6, 0), 0)
    assert (index, short.at) == (1, None)
    assert binding([user, organization], (10, 0), HOUR) is None
    assert binding([], (10, 0), 0) is None


# -- laws


@given(some_plans, steps)
@settings(deadline=None, max_examples=300)
def test_every_answer_is_that_of_a_plain_list_while_there_are_few_entries(plan, steps):
    """Fits, left and the earliest moment, after any history of forty steps."""
    allowance, model = Allowance(plan), Model(plan)
    for now, asked in play(allowance, model, steps):
        if asked is not None:
            cost, short, could = asked
            assert (short is None) == could
            if short is not None:
                assert short.at == model.earliest(cost, now)
        for column in (TOKENS, MONEY):
            assert allowance.left(column, now) == model.left(column, now)
        assert allowance.idle(now) == all(model.used(limit, now) == 0 for limit in plan.limits)


@given(some_plans, steps)
@settings(deadline=None, max_examples=300)
def test_no_stretch_of_a_window_holds_more_than_its_limit(plan, steps):
    """Counted is what was reserved and really used, with estimates that are high enough."""
    allowance, model = Allowance(plan), Model(plan)
    for _now, _asked in play(allowance, model, steps, overshoot=False):
        pass
    for limit in plan.limits:
        for first, *_ in model.entries:
            held = sum(
                entry[1 + limit.column]
                for entry in model.entries
                if first <= entry[0] < first + limit.rate.per_ns
            )
            assert limit.amount is None or held <= limit.amount


@given(some_plans, steps)
@settings(deadline=None, max_examples=300)
def test_merged_entries_count_for_longer_and_at_most_by_a_group(plan, steps):
    """With room for three moments and four groups, usage counts at most a quarter of the window longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "_MOST_MOMENTS", 3)
        patch.setattr(rates, "_MOST_GROUPS", 4)
        allowance, model = Allowance(plan), Model(plan)
        for now, asked in play(allowance, model, steps):
            if asked is not None:
                _cost, short, could = asked
                assert could or short is not None
            for limit, rule in zip(plan.limits, allowance._rules, strict=True):
                longer = -(-limit.rate.per_ns // 4)
                assert model.used(limit, now) <= rule.used(now) <= model.used(limit, now, longer=longer)
                assert len(rule._groups) <= 6


@given(some_plans, steps, costs)
@settings(deadline=None, max_examples=300)
def test_a_refund_of_everything_is_as_if_nothing_had_been_reserved(plan, steps, cost):
    """A refund at once restores the usage of every window."""
    allowance, model, now = Allowance(plan), Model(plan), 0
    for now, _asked in play(allowance, model, steps):  # noqa: B007 - the last one
        pass
    before = [rule.used(now) for rule in allowance._rules]
    allowance.charge(cost, now)
    allowance.settle(cost, (0, 0), now, now)

    assert [rule.used(now) for rule in allowance._rules] == before


@given(some_plans, steps, costs, costs)
@settings(deadline=None, max_examples=300)
def test_settling_at_once_is_as_if_the_actual_cost_had_been_reserved(plan, steps, estimate, actual):
    allowance, model, now = Allowance(plan), Model(plan), 0
    for now, _asked in play(allowance, model, steps):  # noqa: B007 - the last one
        pass
    model.charge(actual, now)
    allowance.charge(estimate, now)
    allowance.settle(estimate, actual, now, now)

    for column in (TOKENS, MONEY):
        assert allowance.left(column, now) == model.left(column, now)


# -- other plans


def test_a_better_plan_gives_more_at_once_and_what_was_used_stays_used():
    """What is left is always the maximum of the plan less the usage."""
    allowance = Allowance(a_plan((100, HOUR)))
    allowance.charge((60, 0), 0)

    allowance.retune(a_plan((1000, HOUR)))
    assert allowance.left(TOKENS, 0) == 940
    allowance.retune(a_plan((50, HOUR)))
    assert allowance.left(TOKENS, 0) == -10
    allowance.settle((60, 0), (20, 0), 0, 1)
    assert allowance.left(TOKENS, 1) == 30


@given(some_limits, some_limits, steps, steps)
@settings(deadline=None, max_examples=200)
def test_going_from_plan_to_plan_and_back_creates_nothing(one, other, first, second):
    """Both plans count over the windows of both, so each knows what was used under the other."""
    ones, others = a_plan(*one), a_plan(*other)
    plan, between = ones.counting(others.limits), others.counting(ones.limits)
    allowance, model = Allowance(plan), Model(plan)
    for now, _asked in play(allowance, model, first):
        allowance.retune(between)
        model.plan = between
        for column in (TOKENS, MONEY):
            assert allowance.left(column, now) == model.left(column, now)
        allowance.retune(plan)
        model.plan = plan
        for column in (TOKENS, MONEY):
            assert allowance.left(column, now) == model.left(column, now)


def test_a_plan_that_counts_more_keeps_its_caps_and_its_currency():
    plan = Plan((5, None), [a_limit(10, DAY)], "EUR")
    more = plan.counting([a_limit(99, HOUR), a_limit(99, DAY)])
    assert (more.caps, more.currency) == ((5, None), "EUR")
    assert [(limit.amount, limit.rate.per_ns) for limit in more.limits] == [(10, DAY), (None, HOUR)]


@pytest.mark.parametrize(
    ("plan", "limited"),
    [
        (a_plan(), (False, False)),
        (a_plan(caps=(5, None)), (True, False)),
        (a_plan(caps=(None, 5)), (False, True)),
        (a_plan((10, DAY)), (True, False)),
        (a_plan((10, DAY, MONEY), (None, DAY)), (False, True)),
        (a_plan((None, DAY), (None, HOUR)), (False, False)),
        (a_plan((10, DAY, MONEY), (None, DAY), (7, HOUR), caps=(None, 3)), (True, True)),
    ],
)
def test_a_column_is_limited_by_a_cap_or_by_a_window_of_its_own(plan, limited):
    assert (plan.limits_column(TOKENS), plan.limits_column(MONEY)) == limited


def test_counting_adds_windows_without_limits_and_changes_no_limit():
    plan = a_plan((100, MINUTE), caps=(7, None)).counting(
        a_plan((5, MINUTE), (9, DAY), (9, DAY, MONEY)).limits
    )

    assert plan.caps == (7, None)
    assert [(limit.amount, *limit.key) for limit in plan.limits] == [
        (100, TOKENS, MINUTE),
        (None, TOKENS, DAY),
        (None, MONEY, DAY),
    ]


def test_a_new_window_goes_on_from_the_best_that_is_known():
    """From a day, the last hour is known exactly; from an hour, a day as far as it goes."""
    day = Allowance(a_plan((100, DAY)))
    day.charge((10, 0), 0)
    day.charge((5, 0), DAY // 2)
    day.retune(a_plan((100, HOUR)))
    assert day.left(TOKENS, DAY // 2) == 95

    hours = Allowance(a_plan((100, MINUTE), (100, HOUR)))
    hours.charge((10, 0), 0)
    hours.charge((5, 0), HOUR // 2)
    hours.retune(a_plan((100, DAY)))
    assert hours.left(TOKENS, HOUR // 2) == 85
    hours.retune(a_plan((100, DAY, MONEY)))
    assert hours.left(MONEY, HOUR // 2) == 100


# -- saved and restored


@given(some_plans, steps)
@settings(deadline=None, max_examples=200)
def test_a_saved_allowance_goes_on_as_if_nothing_had_happened(plan, steps):
    """An allowance that is read again after a restart gives the same answers."""
    allowance, model = Allowance(plan), Model(plan)
    for now, _asked in play(allowance, model, steps):
        saved = allowance.saved(now)
        again = Allowance.after(saved, plan, now)
        for column in (TOKENS, MONEY):
            assert again.left(column, now) == model.left(column, now)
        assert bool(saved) == (not allowance.idle(now))
        assert Allowance.after(saved, plan, now).idle(max(now, allowance.forgotten_at()))


def test_windows_that_another_plan_knows_go_on_being_counted():
    """A process that counts only the minute does not make the others forget the day."""
    day = Allowance(a_plan((100, DAY)))
    day.charge((40, 0), 0)
    minute = Allowance.after(day.saved(0), a_plan((50, MINUTE)), MINUTE)
    minute.charge((30, 0), MINUTE)
    assert minute.left(TOKENS, MINUTE) == 20

    again = Allowance.after(minute.saved(3 * MINUTE), a_plan((100, DAY)), 3 * MINUTE)

    assert again.left(TOKENS, 3 * MINUTE) == 30
    assert minute.latest == MINUTE


@pytest.mark.parametrize("saved", [[(2, 5, [])], [(-1, 5, [])], [(0, 0, [])], [(0, 5, [1, 2])]])
def test_a_state_that_was_never_saved_is_refused(saved):
    with pytest.raises(ValueError):
        Allowance.after(saved, a_plan((5, HOUR)), 0)


def test_a_budget_of_a_hundred_thousand_charges_is_saved_in_bounded_space():
    """The saved state does not grow with use."""
    allowance = Allowance(a_plan((10**9, HOUR)))
    largest = 0
    for k in range(20_000):
        allowance.charge((1, 0), k * SECOND // 3)
        if k % 100 == 0:
            largest = max(largest, sum(len(window) for _, _, window in allowance.saved(k * SECOND // 3)))

    assert largest <= 2 + 3 * 131 + 2 * 256


def test_an_interrupted_charge_is_put_right():
    allowance = Allowance(a_plan((100, HOUR)))
    allowance.charge((10, 0), 0)
    allowance._rules[0]._used = 99

    allowance.mend()

    assert allowance.left(TOKENS, 0) == 90
