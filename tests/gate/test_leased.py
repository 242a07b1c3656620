"""LeasedRate, held against a list of the granted units."""

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
from headgate.gate.bucket import RateRule
from headgate.gate.leased import LeasedRate
from headgate.limits import COLUMNS, TOKENS, Rate

MILLI = SECOND // 1000
COLUMN = 0  # of requests


def cost(units):
    return (units,) + (0,) * (len(COLUMNS) - 1)


def leased(*grants, rate=None):
    """Return a LeasedRate with grants of (units, start, moment of the grant) in seconds."""
    rule = LeasedRate(rate or Rate(1_000, burst=1_000), COLUMN)
    for units, start, granted_at in grants:
        rule.grant(units, round(start * SECOND), round(granted_at * SECOND))
    return rule


def at(seconds):
    return round(seconds * SECOND)


# -- when a batch may be used


@pytest.mark.parametrize(
    ("moment", "there"),
    [(0, 0), (1.999999999, 0), (2, 5), (2.5, 5), (2.999999999, 5), (3, 0), (60, 0)],
)
def test_a_batch_is_usable_from_its_start_on_for_one_second(moment, there):
    assert leased((5, 2, 0)).level(at(moment)) == there
    rule = leased((5, 2, 0))
    assert rule.enter(cost(5), at(moment)) == (there == 5)
    assert rule.enter(cost(1), at(moment)) == 0


def test_a_process_that_was_stopped_for_longer_than_a_lease_has_no_units_left():
    """Neither of batches that had started nor of those that were to start while it was stopped."""
    rule = leased((5, 0, 0), (5, 0.5, 0), (5, 2, 0))
    assert rule.level(at(0.1)) == 5
    assert rule.enter(cost(1), at(10)) == 0
    assert (rule.level(at(10)), rule.scheduled) == (0, 0)
    assert rule.report() == ([], 0)  # the pool keeps its charge


def test_units_of_a_strict_rate_go_back_when_their_shorter_time_is_over():
    """Half of a hundredth of the period or so: the pool counts them for as long as they could be used."""
    rule = leased((5, 2, 0), rate=Rate(1_000, strict=True))
    assert rule.enter(cost(2), at(2.049)) == 1
    assert rule.enter(cost(1), at(2.05)) == 0
    assert rule.report() == ([[3, 0]], 0)
    rule.grant(4, at(9), at(7))
    rule.hold_until(at(10), at(8))
    assert rule.report() == ([[4, at(7)]], 0)


def test_a_batch_that_starts_sooner_is_used_sooner_although_it_was_granted_later():
    """Returns of other members made it possible."""
    rule = leased((5, 3, 0), (5, 1, 0.5))
    assert rule.earliest(cost(5), at(0.6)) == at(1)
    assert rule.earliest(cost(6), at(0.6)) == at(3)
    assert rule.enter(cost(5), at(1)) == 1
    assert rule.enter(cost(5), at(3)) == 1


def test_batches_that_are_moved_start_and_end_sooner():
    """The clock of the pool is known better now. What should have been used before goes back to the pool."""
    rule = leased((1, 5, 0), (300, 6, 1), (2, 7, 2))
    rule.move(round(0.5 * SECOND))
    assert rule.earliest(cost(1), at(4)) == at(4.5)
    assert rule.level(at(5.4)) == 1
    assert rule.level(at(5.5)) == 300  # the first one is over
    assert rule.level(at(6.5)) == 2
    rule = leased((300, 5, 0), (300, 5.2, 0), (300, 5.4, 0))
    rule.move(round(0.4 * SECOND))
    assert rule.level(at(5)) == 300
    assert sum(units for units, _ in rule.report()[0]) == 600


def test_a_call_may_use_several_batches():
    rule = leased((2, 0, 0), (2, 0.5, 0), (2, 0.6, 0))
    assert rule.enter(cost(5), at(0.6)) == 1
    assert rule.level(at(0.6)) == 1


def test_a_call_that_costs_nothing_of_this_rate_always_fits():
    rule = leased()
    assert rule.fits(cost(0), 0)
    assert rule.enter(cost(0), 0) == 1
    assert rule.earliest(cost(0), 0) <= 0
    assert rule.taken == 0


def test_a_call_that_does_not_fit_takes_nothing():
    rule = leased((5, 0, 0), (5, 1, 0))
    before = (rule.level(at(0.5)), rule.scheduled, rule.taken)
    assert rule.enter(cost(6), at(0.5)) == 0
    assert (rule.level(at(0.5)), rule.scheduled, rule.taken) == before


def test_a_rate_counts_its_own_column_of_the_cost():
    rule = LeasedRate(Rate(10, burst=10, unit="tokens"), TOKENS)
    rule.grant(7, 0, 0)
    tokens = tuple(7 if column == TOKENS else 10**9 for column in range(len(COLUMNS)))
    assert rule.enter(tokens, 0) == 1
    assert rule.level(0) == 0


def test_without_a_scheduled_batch_the_earliest_moment_is_far_off():
    """Only the next answer of the pool ends such a wait."""
    assert leased().earliest(cost(1), at(5)) >= at(60)


@pytest.mark.parametrize(("amount", "burst", "most"), [(10, 3, 10), (10, 30, 30)])
def test_a_call_larger_than_the_whole_limit_is_refused(amount, burst, most):
    rule = leased(rate=Rate(amount, burst=burst))
    assert rule.refusal(cost(most)) is None
    assert str(most + 1) in rule.refusal(cost(most + 1))
    assert str(most) in rule.refusal(cost(most + 1))


# -- returns and debts


@pytest.mark.parametrize(
    ("kept", "callers", "left"), [(0, False, 0), (3, False, 3), (7, False, 7), (0, True, 5), (10, True, 10)]
)
def test_of_what_lies_unused_for_a_moment_only_what_is_kept_is_left_unless_callers_wait(kept, callers, left):
    """Callers in line may use the last batch: the process may have been stopped for a moment."""
    rule = leased((5, 0, 0), (5, 0.001, 0))
    rule.keep(kept)
    rule.wait_for(callers=callers)
    assert rule.level(at(0.04)) == 10  # a moment is a twentieth of a second here
    assert rule.enter(cost(left + 1), at(0.06)) == 0
    returned, _owed = rule.report()
    assert sum(units for units, _stamp in returned) == rule.in_vain == 10 - left
    assert rule.enter(cost(left), at(0.06)) == 1


def test_units_that_lay_unused_for_a_moment_are_not_used_by_a_caller_that_comes_first():
    """The rate was not looked at meanwhile: nothing is scheduled, and there is more than is needed."""
    rule = leased((5, 0, 0))
    rule.keep(0)
    rule.wait_for(callers=False)
    assert rule.level(0) == 5
    assert rule.enter(cost(1), at(0.01)) == 1
    assert rule.enter(cost(1), at(0.06)) == 0


@pytest.mark.parametrize(("burst", "moment"), [(1_000, 0.05), (100, 0.01), (20, 0.005), (1, 0.00025)])
def test_a_moment_is_a_twentieth_of_the_time_of_the_burst_or_10_ms_but_no_more_than_a_quarter(burst, moment):
    rule = leased((1, 0, 0), rate=Rate(1_000, burst=burst))
    rule.keep(0)
    rule.wait_for(callers=False)
    assert rule.level(at(0.99 * moment)) == 1
    assert rule.level(at(1.01 * moment)) == 0


def test_return_unused_returns_usable_units_beyond_what_is_kept_the_newest_first():
    rule = leased((3, 0, 0), (4, 0.1, 0.05), (5, 9, 0.06))
    rule.return_unused(2, at(0.2))
    assert (rule.level(at(0.2)), rule.scheduled) == (2, 5)  # scheduled ones stay
    back, extra = rule.report()
    assert (back, extra) == ([[4, at(0.05)], [1, 0]], 0)


def test_returned_units_are_not_used_and_are_told_once():
    rule = leased((3, 0, 0))
    rule.return_unused(0, at(0.5))
    assert rule.enter(cost(1), at(0.5)) == 0
    assert rule.report() == ([[3, 0]], 0)
    assert rule.report() == ([], 0)


def test_return_unused_returns_nothing_if_fewer_units_are_there():
    rule = leased((3, 0, 0))
    rule.return_unused(10, at(0.5))
    assert (rule.level(at(0.5)), rule.report()) == (3, ([], 0))


def test_units_whose_time_is_over_are_not_returned():
    """They stay charged."""
    rule = leased((3, 0, 0), (2, 0.5, 0))
    rule.return_unused(0, at(1))
    assert [units for units, _ in rule.report()[0]] == [2]


def test_a_call_that_cost_more_makes_a_debt_and_one_that_cost_less_a_return():
    rule = leased((10, 0, 0))
    for _ in range(2):
        rule.enter(cost(5), at(0.1))
    rule.settle(5, 12, at(0.1), at(3))
    rule.settle(5, 1, at(0.1), at(3))
    rule.settle(5, 5, at(0.1), at(3))
    back, extra = rule.report()
    assert extra == 7
    assert [units for units, _ in back] == [4]
    assert back[0][1] == 0
    assert rule.level(at(4)) == 0  # the pool grants them again


def test_debts_add_up_until_they_are_told():
    rule = leased((10, 0, 0))
    rule.settle(1, 3, 0, at(1))
    rule.settle(1, 6, 0, at(1))
    assert rule.report() == ([], 7)
    assert rule.report() == ([], 0)


def test_units_given_back_are_returned_to_the_pool_and_not_used_here():
    rule = leased((10, 0, 0))
    rule.enter(cost(10), at(0.1))
    rule.give_back(4, at(0.2))
    assert rule.level(at(0.2)) == 0
    back, _ = rule.report()
    assert back[0][0] == 4
    assert back[0][1] == 0


def test_units_dropped_by_lower_count_as_used():
    """A response says that less remains. What the pool charged stays charged."""
    rule = leased((3, 0, 0), (4, 0.1, 0), (2, 5, 0))
    rule.lower(5, at(0.2))
    assert rule.level(at(0.2)) == 5
    rule.lower(9, at(0.2))  # it never raises the level
    assert rule.level(at(0.2)) == 5
    rule.lower(0, at(0.2))
    assert (rule.level(at(0.2)), rule.scheduled, rule.report()) == (0, 2, ([], 0))


def test_hold_until_drops_usable_batches():
    rule = leased((3, 0, 0))
    rule.hold_until(at(5), at(0.5))
    assert rule.level(at(0.5)) == 0


def test_hold_until_drops_batches_that_start_before_that_moment():
    """A response said "remaining: 0, reset: 5 s"."""
    rule = leased((3, 0.6, 0.5))
    rule.hold_until(at(5), at(0.5))
    assert rule.enter(cost(1), at(0.7)) == 0


def test_hold_until_keeps_batches_that_start_at_that_moment_or_later():
    rule = leased((3, 0.58, 0), (4, 0.6, 0), (5, 0.8, 0), (6, 0.9, 0), rate=Rate(1_000, strict=True))
    assert rule.level(at(0.6)) == 7
    rule.hold_until(at(0.6), at(0.6))
    assert rule.level(at(0.6)) == 4
    assert rule.report() == ([[3, 0]], 0)  # of a strict rate what is not used goes back
    rule.hold_until(at(0.9), at(0.6))
    assert (rule.level(at(0.6)), rule.scheduled) == (0, 6)
    assert rule.report() == ([[5, 0], [4, 0]], 0)


def test_batches_that_were_granted_since_a_stamp_are_kept_when_older_ones_are_dropped():
    """Others start sooner in their place. To a strict rate they go back; in a bucket they count as used."""
    for strict, returned in ((True, [[4, at(1)]]), (False, [])):
        rule = leased((3, 0, 1), (4, 2, 1), (5, 3, 2), rate=Rate(1_000, strict=strict))
        rule.drop_scheduled(at(2), at(0))
        assert (rule.level(at(0)), rule.scheduled) == (3, 5)
        assert rule.report() == (returned, 0)


def test_units_of_a_slower_rate_are_used_by_the_rate_that_follows_and_others_are_not():
    def units(old, new, rate):
        old = leased((3, 0, 0), rate=old)
        assert old.level(at(0)) == 3
        new = LeasedRate(new, COLUMN)
        new.follow(old if rate == "leased" else RateRule(old.rate, COLUMN), at(0))
        return new.level(at(0))

    assert units(Rate(10), Rate(10), "leased") == 3
    assert units(Rate(10), Rate(700, 60), "leased") == 3
    assert units(Rate(10), Rate(500, 60), "leased") == 0
    assert units(Rate(10, strict=True), Rate(10), "leased") == 0
    assert units(Rate(10), Rate(10, strict=True), "leased") == 0
    assert units(Rate(10), Rate(10), "bucket") == 0


# -- any sequence


class Units(RuleBasedStateMachine):
    """The model remembers for every unit the moments of its grant and of its start."""

    together = True  # several calls at one instant
    out_of_order = True  # a later grant may start sooner

    @initialize()
    def begin(self):
        self.rule = leased()
        self.now = 0
        self.units = []  # [start, moment of the grant], not used
        self.calls = []  # [moment, the moment of the grant of each unit it used]
        self.latest = 0
        self.owed = 0
        self.told = []  # [(units, the oldest moment of a grant among them)] that are returned
        self.fresh = True

    def usable(self):
        return sorted(unit for unit in self.units if unit[0] <= self.now < unit[0] + SECOND)

    @rule(units=st.integers(1, 6), ahead=st.sampled_from([0, 1, 40, 100, 700, 1_500]))
    def grant(self, units, ahead):
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
        usable = self.usable()
        fits = units <= len(usable)
        assert self.rule.fits(cost(units), self.now) == fits
        assert (self.rule.earliest(cost(units), self.now) <= self.now) == fits
        before = self.rule.taken
        assert self.rule.enter(cost(units), self.now) == fits
        assert self.rule.taken - before == (units if fits else 0)
        if fits and units:
            self.fresh = False
            for unit in usable[:units]:
                self.units.remove(unit)
            self.calls.append([self.now, [granted_at for _, granted_at in usable[:units]]])

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
    def return_unused(self, keep):
        usable = self.usable()
        self.rule.return_unused(keep, self.now)
        for unit in usable[keep:]:
            self.units.remove(unit)
            self.told.append((1, unit[1]))

    @rule(level=st.integers(0, 8))
    def lower(self, level):
        usable = self.usable()
        self.rule.lower(level, self.now)
        for unit in usable[: max(0, len(usable) - level)]:
            self.units.remove(unit)

    @rule()
    def report(self):
        """Returns and debts are told once, each returned unit under a stamp no later than its own."""
        back, extra = self.rule.report()
        assert extra == self.owed
        told = sorted(stamp for units, stamp in back for _ in range(units))
        true = sorted(granted_at for units, granted_at in self.told for _ in range(units))
        assert len(told) == len(true)
        assert all(said <= stamp for said, stamp in zip(told, true, strict=True))
        self.owed, self.told = 0, []

    @invariant()
    def usable_units_have_started_and_are_not_used_or_returned(self):
        if not hasattr(self, "units"):
            return
        assert self.rule.level(self.now) == len(self.usable())
        assert self.rule.scheduled == sum(start > self.now for start, _ in self.units)

    @invariant()
    def the_earliest_moment_is_when_it_fits_and_not_a_nanosecond_before(self):
        """`enter`, `fits` and `earliest` agree."""
        if not hasattr(self, "units"):
            return
        coming = sorted(unit for unit in self.units if unit[0] > self.now)
        need = len(self.usable()) + 1
        earliest = self.rule.earliest(cost(need), self.now)
        if coming:
            assert earliest == coming[0][0]
        else:
            assert earliest > self.now + 60 * SECOND


class OneByOne(Units):
    together = False
    out_of_order = False


THOROUGH = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_each_unit_is_used_or_returned_once_under_its_stamp():
    """Grants start in order, and calls are admitted one by one."""
    run_state_machine_as_test(OneByOne, settings=THOROUGH)


def test_each_unit_is_used_or_returned_once_although_grants_start_out_of_order():
    """Many calls are admitted at one instant."""
    run_state_machine_as_test(Units, settings=THOROUGH)


def test_a_return_of_one_of_two_calls_at_one_instant_has_the_older_stamp():
    """The first call used the batch granted at 0."""
    rule = leased((1, 0, 0), (1, 0.5, 0.5))
    assert rule.enter(cost(1), at(0.5))
    assert rule.enter(cost(1), at(0.5))
    rule.settle(1, 0, at(0.5), at(0.6))
    assert rule.report()[0] == [[1, 0]]


def test_a_return_of_a_call_that_used_two_batches_has_the_older_stamp():
    """The batch granted at 0 starts at 1.5, the one granted at 1 sooner."""
    rule = leased((1, 1.5, 0), (1, 1, 1))
    assert rule.enter(cost(2), at(1.5))
    rule.settle(2, 0, at(1.5), at(1.6))
    assert rule.report()[0] == [[2, 0]]


def test_a_return_of_a_long_call_has_its_stamp_after_a_thousand_later_grants():
    """Granted at 0 to start 1.9 s later, used at 2.8 s; the true cost is known a minute later."""
    rule = leased((5, 1.9, 0))
    assert rule.enter(cost(5), at(2.8))
    for n in range(1_000):
        now = at(3 + n * 0.06)
        rule.grant(1, now, now)
        assert rule.enter(cost(1), now)
    rule.settle(5, 0, at(2.8), at(63))
    assert rule.report()[0] == [[5, 0]]


def test_a_rate_remembers_little_of_many_calls():
    rule = leased()
    for n in range(5_000):
        rule.grant(2, n * MILLI, n * MILLI)
        rule.enter(cost(1), n * MILLI)
        rule.return_unused(0, n * MILLI)
        rule.report()
    held = [getattr(rule, name) for name in LeasedRate.__slots__]
    assert sum(len(each) for each in held if hasattr(each, "__len__") and not isinstance(each, str)) < 1_500


@given(
    grants=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3_000), st.integers(0, 50)), max_size=12),
    looks=st.lists(st.integers(0, 4_000), max_size=30).map(sorted),
)
def test_looking_changes_nothing(grants, looks):

    def story(moments):
        rule = leased()
        now = 0
        for units, ahead, gap in grants:
            now += gap * MILLI
            rule.grant(units, now + ahead * MILLI, now)
        for moment in moments:
            if moment * MILLI >= now:
                rule.level(moment * MILLI)
                rule.fits(cost(1), moment * MILLI)
                rule.earliest(cost(3), moment * MILLI)
        return rule.level(at(4)), rule.scheduled

    assert story(looks) == story([])
