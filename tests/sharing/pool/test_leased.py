"""The stock of a shared rate, held against a list of what was given, unit by unit."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.arguments import SECOND
from headgate.limits import COLUMNS, TOKENS, Rate
from headgate.sharing.pool.leased import LeasedRate

MILLI = SECOND // 1000
COLUMN = 0  # of requests


def cost(units):
    return (units,) + (0,) * (len(COLUMNS) - 1)


def stock(*gifts, rate=None):
    """A rule that was given (units, start, moment of giving), in seconds; the moment is the stamp."""
    rule = LeasedRate(rate or Rate(1_000, burst=1_000), COLUMN)
    for units, start, given_at in gifts:
        rule.grant(units, round(start * SECOND), round(given_at * SECOND))
    return rule


def at(seconds):
    return round(seconds * SECOND)


# -- when what was given may be used


@pytest.mark.parametrize(
    ("moment", "there"),
    [(0, 0), (1.999999999, 0), (2, 5), (2.5, 5), (2.999999999, 5), (3, 0), (60, 0)],
)
def test_what_is_given_is_used_from_its_start_on_and_for_one_second(moment, there):
    """B30: a process that was stopped comes back with nothing."""
    assert stock((5, 2, 0)).level(at(moment)) == there
    rule = stock((5, 2, 0))
    assert rule.enter(cost(5), at(moment)) == (there == 5)
    assert rule.enter(cost(1), at(moment)) == 0


def test_a_process_stopped_for_longer_than_a_lease_has_nothing_at_all_when_it_goes_on():
    """B30: whatever had started, was about to, or was booked for while it was stopped."""
    rule = stock((5, 0, 0), (5, 0.5, 0), (5, 2, 0))
    assert rule.level(at(0.1)) == 5
    assert rule.enter(cost(1), at(10)) == 0
    assert (rule.level(at(10)), rule.scheduled()) == (0, 0)
    assert rule.report() == ([], 0)  # as good as used: the pool keeps its charge


def test_what_starts_sooner_is_used_sooner_although_it_was_given_later():
    """Others gave back meanwhile."""
    rule = stock((5, 3, 0), (5, 1, 0.5))
    assert rule.earliest(cost(5), at(0.6)) == at(1)
    assert rule.earliest(cost(6), at(0.6)) == at(3)
    assert rule.enter(cost(5), at(1)) == 1
    assert rule.enter(cost(5), at(3)) == 1


def test_a_call_may_use_several_gifts():
    rule = stock((2, 0, 0), (2, 0.5, 0), (2, 0.6, 0))
    assert rule.enter(cost(5), at(0.6)) == 1
    assert rule.level(at(0.6)) == 1


def test_a_call_that_costs_nothing_of_this_rate_always_fits():
    rule = stock()
    assert rule.fits(cost(0), 0)
    assert rule.enter(cost(0), 0) == 1
    assert rule.earliest(cost(0), 0) <= 0
    assert rule.taken == 0


def test_a_call_that_does_not_fit_takes_nothing():
    """B20, P7."""
    rule = stock((5, 0, 0), (5, 1, 0))
    before = (rule.level(at(0.5)), rule.scheduled(), rule.taken)
    assert rule.enter(cost(6), at(0.5)) == 0
    assert (rule.level(at(0.5)), rule.scheduled(), rule.taken) == before


def test_its_own_column_is_what_counts():
    rule = LeasedRate(Rate(10, burst=10, unit="tokens"), TOKENS)
    rule.grant(7, 0, 0)
    tokens = tuple(7 if column == TOKENS else 10**9 for column in range(len(COLUMNS)))
    assert rule.enter(tokens, 0) == 1
    assert rule.level(0) == 0


def test_nobody_knows_when_more_will_come_before_it_is_promised():
    """A wait that only news will end."""
    assert stock().earliest(cost(1), at(5)) >= at(60)


@pytest.mark.parametrize(("amount", "burst", "most"), [(10, 3, 10), (10, 30, 30)])
def test_a_call_larger_than_the_whole_limit_is_refused(amount, burst, most):
    rule = stock(rate=Rate(amount, burst=burst))
    assert rule.refusal(cost(most)) is None
    assert str(most + 1) in rule.refusal(cost(most + 1))
    assert str(most) in rule.refusal(cost(most + 1))


# -- what goes back, and what is owed


def test_what_is_there_beyond_what_is_kept_goes_back_the_newest_first():
    rule = stock((3, 0, 0), (4, 0.1, 0.05), (5, 9, 0.06))
    rule.return_unused(2, at(0.2))
    assert (rule.level(at(0.2)), rule.scheduled()) == (2, 5)  # what is on its way stays
    back, extra = rule.report()
    assert (back, extra) == ([[4, at(0.05)], [1, 0]], 0)


def test_what_goes_back_is_not_used_and_told_once():
    rule = stock((3, 0, 0))
    rule.return_unused(0, at(0.5))
    assert rule.enter(cost(1), at(0.5)) == 0
    assert rule.report() == ([[3, 0]], 0)
    assert rule.report() == ([], 0)


def test_keeping_more_than_there_is_gives_nothing_back():
    rule = stock((3, 0, 0))
    rule.return_unused(10, at(0.5))
    assert (rule.level(at(0.5)), rule.report()) == (3, ([], 0))


def test_what_is_over_time_does_not_go_back():
    """The pool was told nothing of it: it stays charged."""
    rule = stock((3, 0, 0), (2, 0.5, 0))
    rule.return_unused(0, at(1))
    assert [units for units, _ in rule.report()[0]] == [2]


def test_a_call_that_cost_more_is_owed_and_one_that_cost_less_goes_back():
    rule = stock((10, 0, 0))
    for _ in range(2):
        rule.enter(cost(5), at(0.1))
    rule.settle(5, 12, at(0.1), at(3))
    rule.settle(5, 1, at(0.1), at(3))
    rule.settle(5, 5, at(0.1), at(3))
    back, extra = rule.report()
    assert extra == 7
    assert [units for units, _ in back] == [4]
    assert back[0][1] == 0
    assert rule.level(at(4)) == 0  # it is the pool's to give out again


def test_debts_add_up_until_they_are_told():
    rule = stock((10, 0, 0))
    rule.settle(1, 3, 0, at(1))
    rule.settle(1, 6, 0, at(1))
    assert rule.report() == ([], 7)
    assert rule.report() == ([], 0)


def test_units_put_back_are_told_and_not_used_here():
    rule = stock((10, 0, 0))
    rule.enter(cost(10), at(0.1))
    rule.give_back(4, at(0.2))
    assert rule.level(at(0.2)) == 0
    back, _ = rule.report()
    assert back[0][0] == 4
    assert back[0][1] == 0


def test_a_lower_level_is_as_good_as_used():
    """The far side says that less remains; what the pool charged stays charged."""
    rule = stock((3, 0, 0), (4, 0.1, 0), (2, 5, 0))
    rule.lower(5, at(0.2))
    assert rule.level(at(0.2)) == 5
    rule.lower(9, at(0.2))  # never raises
    assert rule.level(at(0.2)) == 5
    rule.lower(0, at(0.2))
    assert (rule.level(at(0.2)), rule.scheduled(), rule.report()) == (0, 2, ([], 0))


def test_nothing_that_is_there_is_left_when_the_far_side_says_so():
    rule = stock((3, 0, 0))
    rule.hold_until(at(5), at(0.5))
    assert rule.level(at(0.5)) == 0


def test_nor_does_anything_come_before_the_moment_it_says():
    """`hold_until`: nothing is left before that moment. "remaining: 0, reset: 5 s" came with a response."""
    rule = stock((3, 0.6, 0.5))
    rule.hold_until(at(5), at(0.5))
    assert rule.enter(cost(1), at(0.7)) == 0


# -- any story


class Stock(RuleBasedStateMachine):
    """Every unit is remembered with the moments at which it was given and may start."""

    together = True  # several calls at one instant
    out_of_order = True  # what was given later may start sooner

    @initialize()
    def begin(self):
        self.rule = stock()
        self.now = 0
        self.units = []  # [start, given at], not used
        self.calls = []  # [moment, the given-at of each unit it used]
        self.latest = 0
        self.owed = 0
        self.told = []  # [(units, the oldest given-at among them)] that go back
        self.fresh = True

    def there(self):
        return sorted(unit for unit in self.units if unit[0] <= self.now < unit[0] + SECOND)

    @rule(units=st.integers(1, 6), ahead=st.sampled_from([0, 1, 40, 100, 700, 1_500]))
    def is_given(self, units, ahead):
        start = self.now + ahead * MILLI
        if not self.out_of_order:
            start = self.latest = max(start, self.latest)
        self.rule.grant(units, start, self.now)
        self.units += [[start, self.now]] * units

    @rule(gap=st.sampled_from([1, 999_999, MILLI, 39 * MILLI, 300 * MILLI, SECOND]))
    def time_passes(self, gap):
        self.now += gap
        self.fresh = True

    @precondition(lambda self: self.together or self.fresh)
    @rule(units=st.integers(0, 8))
    def call(self, units):
        there = self.there()
        fits = units <= len(there)
        assert self.rule.fits(cost(units), self.now) == fits
        assert (self.rule.earliest(cost(units), self.now) <= self.now) == fits
        before = self.rule.taken
        assert self.rule.enter(cost(units), self.now) == fits
        assert self.rule.taken - before == (units if fits else 0)
        if fits and units:
            self.fresh = False
            for unit in there[:units]:
                self.units.remove(unit)
            self.calls.append([self.now, [given_at for _, given_at in there[:units]]])

    @precondition(lambda self: self.calls)
    @rule(i=st.integers(), actual=st.integers(0, 12))
    def settle(self, i, actual):
        self.report()
        moment, units = self.calls.pop(i % len(self.calls))
        self.rule.settle(len(units), actual, moment, self.now)
        if actual > len(units):
            self.owed += actual - len(units)
        elif actual < len(units):
            self.told.append((len(units) - actual, min(units)))
        self.report()

    @rule(keep=st.integers(0, 8))
    def hand_back(self, keep):
        there = self.there()
        self.rule.return_unused(keep, self.now)
        for unit in there[keep:]:
            self.units.remove(unit)
            self.told.append((1, unit[1]))

    @rule(level=st.integers(0, 8))
    def lower(self, level):
        there = self.there()
        self.rule.lower(level, self.now)
        for unit in there[: max(0, len(there) - level)]:
            self.units.remove(unit)

    @rule()
    def report(self):
        """As many as go back, each under no later stamp than its own; and all that is owed. Once."""
        back, extra = self.rule.report()
        assert extra == self.owed
        told = sorted(stamp for units, stamp in back for _ in range(units))
        true = sorted(given_at for units, given_at in self.told for _ in range(units))
        assert len(told) == len(true)
        assert all(said <= stamp for said, stamp in zip(told, true, strict=True))
        self.owed, self.told = 0, []

    @invariant()
    def what_is_there_is_what_was_given_and_has_started_and_not_gone(self):
        if not hasattr(self, "units"):
            return
        assert self.rule.level(self.now) == len(self.there())
        assert self.rule.scheduled() == sum(start > self.now for start, _ in self.units)

    @invariant()
    def the_earliest_moment_is_when_it_fits_and_not_a_nanosecond_before(self):
        """P3. Parity of enter, fits and earliest."""
        if not hasattr(self, "units"):
            return
        coming = sorted(unit for unit in self.units if unit[0] > self.now)
        need = len(self.there()) + 1
        earliest = self.rule.earliest(cost(need), self.now)
        if coming:
            assert earliest == coming[0][0]
        else:
            assert earliest > self.now + 60 * SECOND


class OneByOne(Stock):
    together = False
    out_of_order = False


THOROUGH = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_what_was_given_is_used_once_goes_back_once_and_is_told_under_its_stamp():
    """B19, B30: any story of gifts in order and calls one by one."""
    run_state_machine_as_test(OneByOne, settings=THOROUGH)


def test_so_it_is_when_calls_are_admitted_together_and_gifts_come_out_of_order():
    """B19, P4: one pass of the line admits many at one instant."""
    run_state_machine_as_test(Stock, settings=THOROUGH)


def test_of_two_calls_at_one_instant_each_is_told_as_old_as_what_it_used():
    """P4: the first used what was given at 0."""
    rule = stock((1, 0, 0), (1, 0.5, 0.5))
    assert rule.enter(cost(1), at(0.5))
    assert rule.enter(cost(1), at(0.5))
    rule.settle(1, 0, at(0.5), at(0.6))
    assert rule.report()[0] == [[1, 0]]


def test_a_call_that_drew_from_an_older_gift_too_is_told_as_old_as_that():
    """P4: what was given at 0 starts at 1.5, what was given at 1 sooner; one call uses both."""
    rule = stock((1, 1.5, 0), (1, 1, 1))
    assert rule.enter(cost(2), at(1.5))
    rule.settle(2, 0, at(1.5), at(1.6))
    assert rule.report()[0] == [[2, 0]]


def test_a_long_call_is_told_under_its_stamp_however_many_gifts_came_since():
    """P4, B25: given at 0 to start 1.9 s later, used at 2.8; its true cost is known a minute later."""
    rule = stock((5, 1.9, 0))
    assert rule.enter(cost(5), at(2.8))
    for n in range(1_000):
        now = at(3 + n * 0.06)
        rule.grant(1, now, now)
        assert rule.enter(cost(1), now)
    rule.settle(5, 0, at(2.8), at(63))
    assert rule.report()[0] == [[5, 0]]


def test_a_thousand_calls_later_little_is_remembered():
    rule = stock()
    for n in range(5_000):
        rule.grant(2, n * MILLI, n * MILLI)
        rule.enter(cost(1), n * MILLI)
        rule.return_unused(0, n * MILLI)
        rule.report()
    held = [getattr(rule, name) for name in LeasedRate.__slots__]
    assert sum(len(each) for each in held if hasattr(each, "__len__") and not isinstance(each, str)) < 1_500


@given(
    gifts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3_000), st.integers(0, 50)), max_size=12),
    looks=st.lists(st.integers(0, 4_000), max_size=30).map(sorted),
)
def test_looking_changes_nothing(gifts, looks):
    """P2: however often it is looked at, the same can be had at the end."""

    def story(moments):
        rule = stock()
        now = 0
        for units, ahead, gap in gifts:
            now += gap * MILLI
            rule.grant(units, now + ahead * MILLI, now)
        for moment in moments:
            if moment * MILLI >= now:
                rule.level(moment * MILLI)
                rule.fits(cost(1), moment * MILLI)
                rule.earliest(cost(3), moment * MILLI)
        return rule.level(at(4)), rule.scheduled()

    assert story(looks) == story([])
