"""A rate whose burst is less than a call: evenly spaced turns, for callers that wait for them."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headgate import Rate
from headgate.arguments import SECOND
from headgate.gate.bucket import RateRule
from headgate.limits import REQUESTS
from headgate.swarm.rules import ROUND, TurnRule, share_of_rate, turn_in

ONE = (1, 0, 0)


def turns(per=5.0, turn=400_000):
    """One call in `per` seconds."""
    return TurnRule(Rate(1, per), REQUESTS, turn)


def admitted(rule, until, step):
    """When a caller that asks every `step` seconds is admitted."""
    moments = range(0, round(until * SECOND), round(step * SECOND))
    return [now / SECOND for now in moments if rule.enter(ONE, now)]


def test_a_waiting_caller_goes_at_its_turns():
    rule = turns()
    assert not rule.enter(ONE, 0)
    assert rule.earliest(ONE, 0) == 2 * SECOND
    assert rule.enter(ONE, 2 * SECOND)
    assert not rule.enter(ONE, 3 * SECOND)
    assert rule.earliest(ONE, 3 * SECOND) == 7 * SECOND
    assert rule.enter(ONE, 7 * SECOND)


def test_a_turn_without_a_waiting_caller_passes_unused():
    """After a pause an agent goes at its next turn, not at once: other agents had the pause too."""
    rule = turns()
    assert rule.level(3 * SECOND) == 0
    assert not rule.enter(ONE, 3 * SECOND)
    assert rule.earliest(ONE, 3 * SECOND) == 7 * SECOND


def test_a_turn_is_kept_until_the_next_one_if_a_caller_asked_before_it():
    rule = turns()
    assert not rule.enter(ONE, 1 * SECOND)
    assert rule.level(6 * SECOND) == 1
    assert rule.enter(ONE, 6 * SECOND)
    assert rule.enter(ONE, 7 * SECOND)  # that one was not early either


def test_five_hundred_idle_agents_do_not_go_at_once():
    """They are admitted a hundred a second, as they would have been without the pause."""
    rules = [turns(turn=n * 2_000) for n in range(500)]
    now = 60 * SECOND
    assert not any(rule.enter(ONE, now) for rule in rules[1:])
    for second in range(5):
        due = [rule for rule in rules if rule.earliest(ONE, now) < now + (second + 1) * SECOND]
        assert abs(len(due) - 100 * (second + 1)) <= 1


@given(step=st.floats(0.1, 5.0), turn=st.integers(0, 999_999))
def test_a_caller_that_asks_at_least_once_a_turn_misses_none(step, turn):
    went = admitted(turns(turn=turn), 100, step)
    assert 18 <= len(went) <= 21


@given(
    steps=st.lists(st.floats(0.01, 12.0), min_size=5, max_size=60),
    turn=st.integers(0, 999_999),
)
def test_no_stretch_of_time_has_more_calls_than_its_turns_and_one(steps, turn):
    rule, now, went = turns(turn=turn), 0, []
    for step in steps:
        now += round(step * SECOND)
        if rule.enter(ONE, now):
            went.append(now)
    for i, first in enumerate(went):
        for j, last in enumerate(went[i:], 1):
            assert j <= (last - first) // (5 * SECOND) + 2


def test_a_change_of_the_rate_keeps_the_distance_to_the_next_turn():
    rule = turns()
    rule.enter(ONE, 2 * SECOND)
    rule.enter(ONE, 2 * SECOND + 1)
    slower = turns(per=10.0)
    slower.follow(rule, 3 * SECOND)  # four fifths of a turn to go
    assert slower.earliest(ONE, 3 * SECOND) == 11 * SECOND
    assert slower.enter(ONE, 11 * SECOND)


def test_frequent_changes_of_the_rate_do_not_delay_turns():
    """A share changes a little with the demand of every agent, all the time."""
    rule, went = turns(), 0
    for n in range(1, 200):
        now = n * SECOND
        after = turns(per=5.0 + n % 3 / 10)
        after.follow(rule, now)
        rule = after
        went += rule.enter(ONE, now)
    assert 35 <= went <= 41


def test_following_a_bucket_and_being_followed_by_one_creates_no_units():
    bucket = RateRule(Rate(10, 1, burst=5), REQUESTS)
    for _ in range(5):
        assert bucket.enter(ONE, 0)
    rule = turns()
    rule.follow(bucket, 0)
    assert not rule.enter(ONE, 0)
    assert rule.earliest(ONE, 0) == 7 * SECOND  # a unit has to be earned, and then it is its turn
    again = RateRule(Rate(10, 1, burst=5), REQUESTS)
    again.follow(rule, 0)
    assert again.level(0) <= 0


def test_a_cost_of_zero_is_admitted_and_a_cost_above_the_amount_never():
    rule = turns()
    assert rule.enter((0, 0, 0), 0)
    assert not rule.enter((2, 0, 0), 2 * SECOND)
    assert rule.refusal((2, 0, 0))
    assert rule.slack(ONE, 0) == 0


def test_agents_that_begin_a_round_together_are_evenly_spaced():
    """They joined at different times and had different rates, so that many went at once before it."""
    dice, now = Random(7), 100 * SECOND
    rules = []
    for n in range(100):
        rule = turns(per=1 + dice.random(), turn=n * 10_000)
        for at in range(dice.randrange(40), 100, 3):
            rule.enter(ONE, at * SECOND)
            after = turns(per=1 + 9 * dice.random(), turn=n * 10_000)
            after.follow(rule, at * SECOND)
            rule = after
        last = turns(per=10.0, turn=n * 10_000)
        last.follow(rule, now)
        last.begin_round(now)
        rules.append(last)
    assert [rule.earliest(ONE, now) - now for rule in rules] == [n * SECOND // 10 for n in range(100)]


def test_a_caller_that_waited_when_a_round_began_goes_at_its_turn_in_it():
    rule = turns()
    assert not rule.enter(ONE, 1 * SECOND)
    rule.begin_round(10 * SECOND)
    assert rule.level(11 * SECOND) == 0
    assert rule.enter(ONE, 14 * SECOND)  # it was kept since the twelfth second


def test_a_turn_of_a_new_round_without_a_waiting_caller_passes_unused():
    rule = turns()
    rule.begin_round(10 * SECOND)
    assert not rule.enter(ONE, 14 * SECOND)
    assert rule.earliest(ONE, 14 * SECOND) == 17 * SECOND


def test_units_owed_before_a_round_are_owed_in_it_too():
    rule = turns()
    assert not rule.enter(ONE, 1 * SECOND)
    assert rule.enter(ONE, 2 * SECOND)
    rule.settle(1, 11, 2 * SECOND, 3 * SECOND)  # it was ten more than was thought
    assert rule.earliest(ONE, 3 * SECOND) == 57 * SECOND
    rule.begin_round(4 * SECOND)
    assert 47 * SECOND <= rule.earliest(ONE, 4 * SECOND) <= 57 * SECOND


@given(
    st.integers(2, 40),
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.2, 30)), min_size=1, max_size=8),
)
def test_agents_together_never_exceed_the_rate_however_often_a_round_begins(many, periods):
    """All of them always wait. Each period has a rate for all agents and a length in seconds."""
    rules, began, calls, allowed = [], 0, [], 0.0
    for number, (rate, seconds) in enumerate(periods):
        places = [turn_in(number, n * ROUND // many) for n in range(many)]
        old, rules = rules, [turns(per=many / rate, turn=place) for place in places]
        for n, rule in enumerate(rules):
            if old:
                rule.follow(old[n], began)
            rule.begin_round_after(began, SECOND // rate)
            assert not rule.enter(ONE, began)
        over = began + round(seconds * SECOND)
        for rule in rules:
            while (at := rule.earliest(ONE, began)) < over:
                assert rule.enter(ONE, at)
                # When it went, and how many all together might have gone by then.
                calls.append((at, allowed + (at - began) * rate / SECOND))
                rule.fits(ONE, at)  # and waits again
        began, allowed = over, allowed + seconds * rate
    behind = float("-inf")  # how many more might have gone before the stretch that holds most
    for gone, (_, might) in enumerate(sorted(calls)):
        behind = max(behind, might - gone)
        assert gone + 1 - might + behind <= 1.01


def test_a_far_side_that_has_nothing_left_ends_a_turn_and_one_that_has_something_does_not():
    rule = turns()
    rule.enter(ONE, 1 * SECOND)
    rule.lower(1, 2 * SECOND)
    assert rule.level(2 * SECOND) == 1
    rule.lower(0, 2 * SECOND)
    assert rule.level(2 * SECOND) == 0
    assert rule.earliest(ONE, 2 * SECOND) == 7 * SECOND


def test_a_share_of_a_rate_never_allows_more_than_that_part_of_it():
    whole = Rate(10, 60, strict=True)
    assert share_of_rate(whole, 1, 1) is whole
    assert share_of_rate(whole, 1, 3) == Rate(3, 60, strict=True)
    assert share_of_rate(whole, 1, 40) == Rate(1, 240, strict=True)  # a call in four minutes
    assert share_of_rate(Rate(10, 60, burst=10), 1, 4) == Rate(10, 240, burst=2)
    assert share_of_rate(Rate(10, 60, burst=1), 1, 4) == Rate(10, 240, burst=1)
