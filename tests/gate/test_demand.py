"""What a gate tells its supply that it holds and wants, and how it goes by what it is granted."""

import pytest

from headgate.arguments import SECOND
from headgate.gate.bucket import RateRule
from headgate.gate.decision import Rules
from headgate.gate.leased import LeasedRate
from headgate.gate.line import Line, Ticket
from headgate.gate.slots import ConcurrencyRule, WeightRule
from headgate.gate.supply import (
    Batch,
    Grant,
    apply_grant,
    drop_batches,
    expire,
    holds,
    is_low,
    read_demand,
    take_over,
)
from headgate.gate.window import Probes, Reentry, Window
from headgate.limits import Rate

A_HUNDRED = Rate(100, burst=100)


def gate(*, places=10, weight=100, rates=(A_HUNDRED,)):
    return Rules(
        places=None if places == "none" else ConcurrencyRule(places, None),
        weight=None if weight is None else WeightRule(weight, 1),
        rates=[LeasedRate(rate, 0) for rate in rates],
    )


def standing(*costs):
    line = Line()
    for cost in costs:
        line.join(Ticket(cost))
    return line


@pytest.mark.parametrize(
    ("in_flight", "keeps", "left"), [(3, (5, 0), 5), (3, (2, 0), 3), (3, (20, 0), 10), (0, (0, 0), 0)]
)
def test_places_that_other_gates_want_and_no_caller_here_waits_for_are_given_up(in_flight, keeps, left):
    rules = gate()
    rules.places.in_flight = in_flight
    assert read_demand(rules, Line(), 0, keeps=keeps).may_use[0] == left
    assert rules.places.limit == left


def test_no_place_is_given_up_while_a_caller_waits_for_it():
    rules = gate()
    demand = read_demand(rules, standing((1, 0, 0)), 0, keeps=(2, 0))
    assert (demand.may_use, demand.waiting, demand.costs) == ((10, 100), 1, ((1, 0, 0),))


@pytest.mark.parametrize("places", ["none", None])
def test_a_gate_without_concurrency_gives_up_bytes_only(places):
    rules = gate(places=places)
    rules.weight.in_flight = 30
    demand = read_demand(rules, Line(), 0, keeps=(0, 10))
    assert demand.may_use == (0, 30)
    assert rules.weight.budget == 30
    assert demand.inside


def test_a_gate_without_bytes_gives_up_places_only():
    rules = gate(weight=None)
    assert read_demand(rules, Line(), 0, keeps=(1, 0)).may_use == (1, 0)


def test_while_probes_go_only_they_are_wanted_and_only_when_they_may_go():
    rules, line = gate(), standing(*[(k, 0, 0) for k in (5, 6, 7)])
    rules.probes = Probes(SECOND, SECOND, 2 * SECOND)
    assert read_demand(rules, line, SECOND - 1).costs == ()
    assert read_demand(rules, line, SECOND).costs == ((5, 0, 0),)
    assert read_demand(rules, line, SECOND).waiting == 3


def test_a_gate_that_leaves_returns_its_units_and_tells_once_what_it_was_told():
    rules = gate()
    (rate,) = rules.rates
    rate.grant(7, 0, 3)
    rate.tell(50, 100, 0)
    before = read_demand(rules, Line(), 0).rates[0]
    assert (before.units, before.returned, before.stated) == (7, [], (50, 100, 0))
    after = read_demand(rules, Line(), 0, leaving=True).rates[0]
    assert (after.units, after.returned, after.stated) == (0, [[7, 3]], None)


def test_a_gate_holds_something_while_units_places_or_bytes_are_in_use_or_a_caller_waits():
    for change in (
        lambda rules: rules.rates[0].grant(1, 10, 0),
        lambda rules: setattr(rules.places, "in_flight", 1),
        lambda rules: setattr(rules.weight, "in_flight", 1),
    ):
        rules = gate()
        assert not holds(rules, 0)
        assert not read_demand(rules, Line(), 0).holds
        change(rules)
        assert holds(rules, 0)
        assert read_demand(rules, Line(), 0).holds
    assert holds(gate(), 1)
    assert not holds(gate(places="none", weight=None, rates=()), 0)


def test_new_rates_go_on_with_the_units_of_the_only_old_rate_that_counts_the_same():
    rules = gate(rates=[Rate(10, burst=10)])
    rules.rates[0].grant(4, 0, 0)
    rules.rates[0].release_due(0)
    leased, own = LeasedRate(Rate(20, burst=10), 0), RateRule(Rate(20, burst=10), 0)
    take_over(rules, [leased, own], 0)
    assert (leased.level(0), own.level(0)) == (4, 10)
    of_tokens = LeasedRate(Rate(20, unit="tokens"), 1)
    take_over(rules, [of_tokens], 0)
    assert of_tokens.level(0) == 0
    two = gate(rates=[Rate(10, burst=10), Rate(100, 60, burst=10)])
    for rate in two.rates:
        rate.grant(4, 0, 0)
        rate.release_due(0)
    either = LeasedRate(Rate(20, burst=10), 0)
    take_over(two, [either], 0)
    assert either.level(0) == 0


def test_a_grant_changes_what_it_names_and_nothing_else():
    rules = gate()
    apply_grant(rules, Grant(places=3), 0, idle=True)
    assert (rules.places.limit, rules.weight.budget, rules.weight.whole) == (3, 100, 100)
    apply_grant(rules, Grant(bytes=40, all_bytes=400, valid_until=9), 0, idle=True)
    assert (rules.places.limit, rules.weight.budget, rules.weight.whole) == (3, 40, 400)
    assert rules.valid_until == 9
    apply_grant(rules, Grant(bytes=50), 0, idle=True)
    assert (rules.weight.budget, rules.weight.whole) == (50, 400)


def test_a_grant_of_places_and_bytes_that_a_gate_does_not_count_changes_nothing():
    rules = gate(places="none", weight=None)
    apply_grant(rules, Grant(batches=[Batch(0, 0, [0]), Batch(0, 1, [5])], places=3, bytes=4), 0, idle=True)
    assert rules.rates[0].level(0) == 5


def test_units_beyond_what_should_be_there_go_back_when_no_caller_waits():
    for idle, left in ((True, 2), (False, 9)):
        rules = gate()
        grant = Grant(batches=[Batch(0, 0, [9])], ahead=[2], return_unused=True)
        apply_grant(rules, grant, 0, idle=idle)
        assert rules.rates[0].level(0) == left
    assert is_low(rules, (9, 0, 0))
    assert not is_low(rules, (8, 0, 0))


def test_a_gate_whose_lease_is_over_uses_no_place_and_no_byte():
    rules = gate()
    expire(rules)
    assert (rules.places.limit, rules.weight.budget) == (0, 0)
    for without in (gate(places="none"), gate(places=None)):
        expire(without)
        assert without.weight.budget == 0
        assert without.places is None or without.places.limit is None
    bytes_apart = gate(weight=None)
    expire(bytes_apart)
    assert bytes_apart.places.limit == 0


def test_batches_for_before_the_end_of_a_window_are_dropped_where_it_holds_calls_back():
    window = Window()
    for reentry, left in ((None, 5), (Reentry(window, 0), 0)):
        rate = LeasedRate(Rate(100), 0)
        rate.grant(5, 0, 0)
        rules = Rules(window=window, reentry=reentry, rates=[rate])
        drop_batches(rules, 0)  # there was no window yet, or it is over
        assert rate.level(0) == 5
        window.set(10 * SECOND, 0)
        drop_batches(rules, 0)
        assert rate.level(0) == left
        window.clear(0)
