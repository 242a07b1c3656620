"""Bytes in flight."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.gate.slots import WeightRule


def enter(rule, weight):
    """Enter as a gate's rules do."""
    if not rule.fits(weight):
        return False
    rule.in_flight += weight
    return True


def leave(rule, weight):
    rule.in_flight -= weight


def test_bytes_are_held_while_calls_run_and_given_back_after():
    rule = WeightRule(100, penalty=20)
    assert enter(rule, 60)
    assert enter(rule, 40)
    assert not rule.fits(1)
    assert not enter(rule, 1)
    assert rule.in_flight == 100

    leave(rule, 40)

    assert rule.fits(40)
    assert not rule.fits(41)
    assert enter(rule, 40)


def test_a_budget_knows_how_often_a_byte_counts_while_throttled_and_what_all_of_it_is():
    rule = WeightRule(100, penalty=20)
    assert (rule.penalty, rule.whole, rule.in_flight) == (20, 100, 0)


def test_a_call_without_bytes_fits_a_budget_that_is_used_up():
    rule = WeightRule(100, penalty=20)
    assert enter(rule, 100)

    assert rule.fits(0)
    assert enter(rule, 0)
    assert not enter(rule, 1)


def test_a_call_larger_than_the_whole_budget_runs_alone():
    """
    It waits until nothing is in flight, and while it runs nothing else does.
    """
    rule = WeightRule(100, penalty=20)
    assert enter(rule, 1)
    assert not enter(rule, 500)
    leave(rule, 1)

    assert enter(rule, 500)
    assert not rule.fits(1)
    assert not enter(rule, 1)
    assert not enter(rule, 500)
    leave(rule, 500)
    assert rule.in_flight == 0
    assert enter(rule, 100)


def test_a_refused_weight_changes_nothing():
    rule = WeightRule(100, penalty=20)
    assert enter(rule, 70)

    assert not enter(rule, 31)
    assert rule.in_flight == 70


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.booleans(), st.integers(0, 70), st.integers(0, 99)), max_size=80),
)
@settings(deadline=None, max_examples=150)
def test_bytes_in_flight_never_exceed_the_budget_unless_one_call_runs_alone(budget, steps):
    rule, running = WeightRule(budget, penalty=1), []
    for leaves, weight, which in steps:
        if leaves:
            if running:
                leave(rule, running.pop(which % len(running)))
        else:
            would = sum(running) + weight <= budget or sum(running) == 0
            assert would == rule.fits(weight)
            assert would == enter(rule, weight)
            if would:
                running.append(weight)
        assert rule.in_flight == sum(running)
        heavy = [weight for weight in running if weight]
        assert sum(running) <= budget or len(heavy) == 1
