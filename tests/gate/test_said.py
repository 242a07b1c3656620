"""A bucket that is told what is left: levels move as they are told, and what calls took stays known."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.gate import bucket
from headgate.gate.bucket import LONG_AGO, RateRule
from headgate.limits import Rate

SECOND = 1_000_000_000
LIMITS = [(1, 1, 5), (3, 7, 4), (10, 10, 20), (7, 2, 9)]  # amount, nanoseconds, burst


def a_bucket(amount, per_ns, burst):
    return RateRule(Rate(amount, per_ns / SECOND, burst=burst), 0)


class Calls:
    """What calls took, whatever was said: a bucket without a bottom, in ticks."""

    def __init__(self, rule):
        self.rule = rule
        self.taken = []  # [moment, units]
        self.missing, self.at = 0, None

    def missing_at(self, now):
        passed = 0 if self.at is None else (now - self.at) * self.rule.ticks_per_ns
        return max(0, self.missing - passed)

    def take(self, units, now):
        self.missing, self.at = self.missing_at(now) + units * self.rule.unit_ticks, now
        self.taken.append((now, units))

    def since(self, at):
        """Units taken after that moment, and at it or after it."""
        return (
            sum(units for moment, units in self.taken if moment > at),
            sum(units for moment, units in self.taken if moment >= at),
        )


a_step = st.tuples(
    st.sampled_from(["take", "take", "take", "raise", "raise", "lower", "hold", "back", "settle", "mark"]),
    st.sampled_from([0, 0, 1, 2, 5, 40]),  # the gap
    st.integers(0, 20),
)
steps = st.lists(a_step, max_size=40)
without_refunds = st.lists(a_step.filter(lambda step: step[0] not in ("back", "settle")), max_size=40)


def play(limits, most, start, steps):
    """Play what calls do and what is said; yield after every step."""
    rule, now, permits = a_bucket(*limits), start, []
    calls = Calls(rule)
    burst = limits[2]
    for kind, gap, value in steps:
        now += gap
        entered = None
        before = rule.level(now), rule.earned_at
        if kind == "take":
            units = 1 + value % burst
            entered = (units, calls.missing_at(now))
            if rule.enter((units,), now):
                calls.take(units, now)
                permits.append((units, now))
            else:
                entered = None
        elif kind == "raise":
            rule.raise_to(value, now, most)
        elif kind == "lower":
            rule.lower(value, now)
        elif kind == "hold":
            rule.hold_until(now + value, now, 1 + value % 2)
        elif kind == "back":
            rule.give_back(value % 3, now)
        elif kind == "settle" and permits:
            units, taken_at = permits.pop(value % len(permits))
            rule.settle(units, value % (units + 1), taken_at, now)
        elif kind == "mark":
            rule.mark(now)
        yield rule, calls, now, (kind, value, before, entered)


@contextmanager
def few_marks(few):
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(bucket, "_MOST_MARKS", 6)
        yield


# -- laws


BURSTS = st.integers(0, 2)
STARTS = st.sampled_from([0, -99, 10**18])


@given(st.sampled_from(LIMITS), BURSTS, STARTS, without_refunds, st.booleans())
@settings(deadline=None, max_examples=400)
def test_whatever_is_said_to_remain_no_more_calls_go_than_the_largest_bucket_admits(
    limits, bursts, start, steps, few
):
    """A raised level leaves room for what calls took and is not earned back."""
    most = bursts * limits[2]
    with few_marks(few):
        for rule, _calls, _now, (_kind, _value, _before, entered) in play(limits, most, start, steps):
            if entered is not None:
                units, missing = entered
                assert missing + units * rule.unit_ticks <= max(most, limits[2]) * rule.unit_ticks


@given(st.sampled_from(LIMITS), BURSTS, STARTS, steps)
@settings(deadline=None, max_examples=400)
def test_what_calls_took_is_known_by_the_better_of_two_bounds(limits, bursts, start, steps):
    """
    From the last mark on: what was missing by calls then and is not earned back, and all that was taken
    since; or what this bucket misses, and by how much more was missing at the mark than it showed.
    """
    for rule, _calls, now, _said in play(limits, bursts * limits[2], start, steps):
        ticks = now * rule.ticks_per_ns
        if not rule.marks:
            assert rule.facts(now) == max(0, rule.earned_at - ticks)
            continue
        (earned, moved), at = rule.marks[-1], rule.mark_times[-1] * rule.ticks_per_ns
        by_calls = rule.earned_at - (rule.moved - moved)
        shown = max(0, earned - at)
        since = max(0, by_calls - max(earned, at))
        earned_back = max(0, rule.fact - (ticks - at)) + since
        as_shown = max(0, by_calls - ticks) + max(0, rule.fact - shown)
        assert rule.facts(now) == min(earned_back, as_shown)


@given(st.sampled_from(LIMITS), BURSTS, STARTS, without_refunds, st.booleans())
@settings(deadline=None, max_examples=400)
def test_what_was_spent_since_any_moment_lies_between_the_two_figures(limits, bursts, start, steps, few):
    with few_marks(few):
        for rule, calls, now, (kind, *_) in play(limits, bursts * limits[2], start, steps):
            assert len(rule.marks) == len(rule.mark_times) <= bucket._MOST_MARKS
            assert rule.mark_times == sorted(set(rule.mark_times))
            assert rule.facts(now) >= calls.missing_at(now)
            for at in {start - 1, now, *rule.mark_times, *(moment for moment, _ in calls.taken)}:
                after, from_then_on = calls.since(at)
                least, most = rule.spent_since(at)
                assert least <= from_then_on
                assert most >= after
            if kind == "mark":
                assert rule.spent_since(now) == (0, 0)


@given(st.sampled_from(LIMITS), BURSTS, STARTS, steps)
@settings(deadline=None, max_examples=400)
def test_levels_move_as_they_are_told(limits, bursts, start, steps):
    """A level that is lowered is never raised by it, and one that is raised is never lowered."""
    most = bursts * limits[2]
    for rule, calls, now, (kind, value, (before, earned_at), _) in play(limits, most, start, steps):
        after = rule.level(now)
        if kind == "lower":
            assert after == min(before, value)
        elif kind == "raise":
            wanted = min(value, limits[2])
            assert before <= after <= max(before, wanted)
            if calls.missing_at(now) == rule.facts(now) and rule.facts(now) <= (
                (max(most, limits[2]) - wanted) * rule.unit_ticks
            ):
                assert after == max(before, wanted)
        elif kind == "hold":
            at, units = now + value, 1 + value % 2
            assert rule.level(at) <= max(units, 0) or rule.earned_at == earned_at
            assert rule.level(at) >= min(units, before)
            assert after <= before
        elif kind == "back":
            assert after == min(limits[2], before + value % 3) or before >= limits[2]
        elif kind == "mark":
            assert after == before
        numbers = [rule.earned_at, rule.moved, rule.fact, *rule.low_ticks, *sum(rule.marks, ())]
        assert all(type(number) is int for number in numbers)


@given(
    st.sampled_from(LIMITS),
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0, 1, 3, 20]), st.integers(1, 9)), max_size=12),
)
@settings(deadline=None, max_examples=200)
def test_another_burst_keeps_what_could_be_taken_up_to_that(limits, changes):
    rule, now = a_bucket(*limits), 0
    for units, gap, take in changes:
        now += gap
        rule.enter((take,), now)
        before = rule.level(now)
        rule.set_burst(units, now)
        assert rule.burst == units
        assert rule.level(now) == min(before, units)
        assert rule.level(now + 10**6) == units
        assert type(rule.earned_at) is int


# -- timelines


def test_units_are_put_back_up_to_a_full_bucket():
    """Ten a second: of six taken at 0, two have been earned back at 0.2 s, when five are put back."""
    rule = RateRule(Rate(10, burst=10), 0)
    rule.enter((6,), 0)
    rule.give_back(1, SECOND // 5)
    assert rule.level(SECOND // 5) == 7
    rule.give_back(5, SECOND // 5)
    assert rule.level(SECOND // 5) == 10
    assert rule.full(SECOND // 5)
    rule.give_back(5, SECOND // 5)
    assert rule.level(SECOND // 5) == 10


def test_what_was_put_back_is_not_refunded_too():
    rule = RateRule(Rate(10, burst=10), 0)
    rule.enter((6,), 0)
    rule.give_back(4, 0)
    assert rule.level(0) == 8
    rule.settle(6, 0, 0, 0)
    assert rule.level(0) == 10


def test_a_bucket_is_full_from_the_instant_on_at_which_nothing_is_missing():
    rule = RateRule(Rate(3, burst=2), 0)
    assert rule.full(-SECOND)
    rule.enter((1,), 0)
    assert not rule.full(0)
    assert not rule.full(SECOND // 3)
    assert rule.full(SECOND // 3 + 1)


def test_a_raised_level_gives_no_refund_to_a_call_of_before_and_all_to_a_call_of_after():
    for taken_at, left in ((0, 5), (SECOND, 5), (SECOND + 1, 9)):
        rule = RateRule(Rate(1, 3600, burst=10), 0)
        rule.enter((10,), 0)
        if taken_at == SECOND:
            rule.raise_to(4, SECOND, 100)
            rule.enter((4,), SECOND)
        rule.raise_to(9, SECOND, 100)
        if taken_at:
            rule.enter((4,), taken_at)
        else:
            rule.enter((4,), SECOND)
        rule.settle(4, 0, taken_at, SECOND + 1)
        assert rule.level(SECOND + 1) == left, taken_at


def test_a_bucket_that_was_held_gives_all_back_to_a_call_of_the_next_instant():
    rule = RateRule(Rate(10, burst=10), 0)
    rule.hold_until(1, 0, units=10)
    rule.hold_until(1, 0, units=2)
    assert rule.level(1) == 2
    assert rule.enter((2,), 1) == 1
    rule.settle(2, 0, 1, 1)
    assert rule.level(1) == 2


def test_a_far_side_that_always_says_that_all_is_left_doubles_the_burst_at_most():
    """Ten at once, and never more than twenty on top of what comes back."""
    rule, admitted = RateRule(Rate(10, 10, burst=10), 0), 0
    for now in range(0, 10 * SECOND, SECOND // 10):
        rule.raise_to(10, now, 20)
        while rule.enter((1,), now):
            admitted += 1
    assert admitted == 20 + 9


def test_a_distance_keeps_back_what_comes_in_that_time_up_to_a_quarter_of_the_burst():
    for distance, at_once in ((0, 8), (SECOND // 10, 7), (SECOND // 5, 6), (60 * SECOND, 6)):
        rule = RateRule(Rate(10, burst=8), 0)
        rule.set_burst(8, 0, distance)
        assert sum(rule.enter((1,), 0) for _ in range(9)) == at_once
        assert rule.earliest((1,), 0) == SECOND // 10
        assert rule.distance == distance
        rule.set_burst(4, 0)
        assert rule.distance == distance


def test_the_last_use_of_a_bucket_is_the_last_call_and_what_was_missing_after_it():
    rule = RateRule(Rate(10, burst=10), 0)
    assert rule.last_use(5) == (LONG_AGO, None)
    rule.enter((3,), SECOND)
    assert rule.last_use(2 * SECOND) == (SECOND, 3)
    rule.enter((4,), SECOND + SECOND // 10)
    assert rule.last_use(2 * SECOND) == (SECOND + SECOND // 10, 6)
    rule.enter((1,), SECOND + SECOND // 4)  # half a unit more has come back
    assert rule.last_use(2 * SECOND) == (SECOND + SECOND // 4, 6)
    assert rule.last_use(SECOND) == (SECOND, 8)  # a clock that was put back


def test_what_is_missing_in_a_bucket_that_is_held_says_nothing_of_what_was_used():
    rule = RateRule(Rate(10, burst=10), 0)
    rule.enter((3,), SECOND)
    rule.hold_until(9 * SECOND, 2 * SECOND)
    last, used = rule.last_use(3 * SECOND)
    assert (last, used) == (2 * SECOND + 1, 0)
    assert rule.last_use(SECOND // 2) == (SECOND // 2, 0)


def test_many_marks_are_remembered_by_every_second_of_the_older_ones():
    rule = RateRule(Rate(10**6, burst=10**6), 0)
    for k in range(5000):
        rule.enter((1,), k)
        rule.mark(k)
        assert len(rule.marks) <= 512
    assert rule.mark_times[0] == 0
    assert rule.mark_times[-256:] == [*range(4744, 5000)]
    gaps = {after - before for before, after in zip(rule.mark_times, rule.mark_times[1:], strict=False)}
    assert len(gaps) > 3
    assert max(gaps) < 4000
    for at in (0, 2500, 4990):
        least, most = rule.spent_since(at)
        assert least <= 4999 - at <= most


def test_a_mark_of_an_instant_replaces_the_mark_of_that_instant_before_it():
    rule = RateRule(Rate(10, burst=10), 0)
    rule.mark(5)
    rule.enter((2,), 5)
    rule.mark(5)
    rule.mark(5)
    assert rule.mark_times == [5]
    assert rule.spent_since(5) == (0, 0)
    rule.enter((1,), 6)
    assert rule.spent_since(5) == (1, 1)
    assert rule.facts(6) == rule.earned_at - 6
    rule.mark(4)  # a clock that was put back
    assert rule.mark_times == [4]


def test_units_that_were_put_back_or_refunded_were_spent_nevertheless():
    """The response to a call tells what remains after all calls before it, however they ended."""
    rule = RateRule(Rate(10, burst=10), 0)
    rule.mark(0)
    rule.enter((5,), 0)
    rule.settle(5, 2, 0, 0)
    assert rule.spent_since(0) == (5, 5)
    rule.give_back(1, 0)
    rule.enter((3,), 0)
    rule.mark(1)
    least, most = rule.spent_since(-1)
    assert least <= 8 <= most


def test_time_in_which_a_bucket_was_full_is_not_taken_for_units_that_were_spent():
    """Two of ten at 0. After a minute, in which nothing went, the far side says that one is left."""
    rule = RateRule(Rate(10, burst=10), 0)
    rule.mark(-SECOND)
    rule.enter((2,), 0)
    rule.lower(1, 60 * SECOND)
    assert rule.spent_since(-SECOND)[0] <= 2
    rule.settle(2, 0, 0, 60 * SECOND)  # it was earned back long ago
    assert rule.level(60 * SECOND) == 1


def test_a_call_of_the_instant_in_which_a_full_bucket_was_marked_is_one_that_was_spent():
    rule = RateRule(Rate(10, burst=10), 0)
    rule.mark(60 * SECOND)
    rule.enter((1,), 60 * SECOND)
    assert rule.spent_since(60 * SECOND)[0] == 1


def test_what_a_level_was_raised_by_is_not_taken_off_what_was_spent_before():
    """Four units at 0. A response raises the level to ten; all four count for a call that was sent before."""
    rule = RateRule(Rate(1, burst=10), 0)
    rule.enter((4,), 0)
    rule.raise_to(10, SECOND, 20)
    least, most = rule.spent_since(-1)
    assert least <= 4 <= most
