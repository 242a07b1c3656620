"""What a bucket that replaces another one still knows: what was spent, and how long it is held."""

import pytest

from headgate.gate.bucket import RateRule
from headgate.gate.strict import StrictRule
from headgate.limits import Rate

SECOND = 1_000_000_000
LATE = 2**62 + 12_345_679  # a clock that has run for a century: no float is exact here


def bucket(amount, per, burst):
    return RateRule(Rate(amount, per, burst=burst), 0)


def followed(old, new, now):
    new.follow(old, now)
    return new


def remembered(rule):
    """Every number in a rule."""
    for name in type(rule).__slots__:
        value = getattr(rule, name)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            yield from item if isinstance(item, tuple) else [item]


def test_what_was_spent_before_a_change_of_rate_is_still_known_after_it():
    old = bucket(60, 60, 20)
    old.enter((7,), 0)
    old.mark(0)
    old.enter((4,), 0)
    old.mark(SECOND)
    old.enter((2,), SECOND)
    assert old.spent_since(0) == (6, 6)
    assert old.spent_since(SECOND) == (2, 2)
    for new in (bucket(60, 60, 20), bucket(600, 60, 20), bucket(6, 60, 20)):
        changed = followed(old, new, 2 * SECOND)
        assert changed.spent_since(0) == (6, 6)
        assert changed.spent_since(SECOND) == (2, 2)
        changed.enter((1,), 2 * SECOND)
        assert changed.spent_since(SECOND) == (3, 3)


def test_what_was_moved_before_a_change_of_rate_is_not_taken_for_spent_after_it():
    old = bucket(60, 60, 20)
    old.mark(0)
    old.enter((5,), 0)
    old.raise_to(19, SECOND)
    old.lower(10, 2 * SECOND)
    old.enter((3,), 2 * SECOND)
    assert old.spent_since(2 * SECOND) == (3, 3)
    changed = followed(old, bucket(120, 60, 20), 3 * SECOND)
    assert changed.spent_since(2 * SECOND) == (3, 3)


def test_a_bucket_that_follows_a_held_strict_rate_is_held_too():
    old = StrictRule(Rate(10, 60, strict=True), 0)
    old.hold_until(5 * SECOND, 0)
    new = followed(old, bucket(600, 60, 10), SECOND)
    assert not new.fits((1,), 5 * SECOND - 1)
    assert new.fits((1,), 5 * SECOND)
    assert not new.fits((2,), 5 * SECOND)


def test_a_bucket_that_follows_a_strict_rate_whose_hold_is_over_is_not_held():
    old = StrictRule(Rate(10, 60, strict=True), 0)
    old.hold_until(5 * SECOND, 0)
    free = followed(old, bucket(600, 60, 10), 5 * SECOND)
    assert free.held_until <= 5 * SECOND


def test_a_bucket_was_made_when_the_first_of_those_it_follows_was_made():
    unused = StrictRule(Rate(10, 60, strict=True), 0)
    new = followed(unused, bucket(60, 60, 10), 7 * SECOND)
    assert new.made_at == 7 * SECOND
    assert followed(new, bucket(120, 60, 10), 9 * SECOND).made_at == 7 * SECOND


def test_a_hold_that_lets_more_through_than_was_left_changes_no_level():
    rule = bucket(60, 60, 10)
    rule.enter((10,), 0)
    before = rule.earned_at
    rule.hold_until(SECOND, 0, units=5)
    assert rule.earned_at == before
    assert rule.held_until < SECOND


@pytest.mark.parametrize("strict", [False, True], ids=["bucket", "strict"])
def test_rules_compute_with_whole_numbers_however_late_it_is(strict):
    old = StrictRule(Rate(7, 3, strict=True), 0) if strict else bucket(7, 3, 5)
    old.enter((4,), LATE)
    old.settle(4, 1, LATE, LATE + 1)
    old.hold_until(LATE + 11, LATE + 2)
    new = followed(old, bucket(11, 5, 7), LATE + 3)
    new.hold_until(LATE + SECOND, LATE + 4, units=2)
    newer = followed(new, bucket(13, 7, 9), LATE + 5)
    for rule in (old, new, newer):
        assert not [number for number in remembered(rule) if isinstance(number, float)]
    assert newer.level(LATE + SECOND) == 2


def test_units_given_back_in_the_instant_of_a_hold_give_nothing_back_beyond_it():
    rule = bucket(60, 60, 10)
    rule.enter((6,), 0)
    rule.hold_until(5 * SECOND, SECOND)
    rule.settle(6, 0, 0, SECOND)
    assert rule.level(5 * SECOND) == 1
    rule.enter((1,), 5 * SECOND)
    rule.settle(1, 0, 5 * SECOND, 5 * SECOND)
    assert rule.level(5 * SECOND) == 1


@pytest.mark.parametrize(
    ("at", "least", "most"),
    [
        (
            5,
            4,
            11,
        ),  # before the first moment that was remembered: what came back since then may have been spent
        (10, 4, 6),  # at that moment; the bucket was found full two seconds later
        (11, 0, 5),  # after the last one: the call may have been before or after
        (20, 0, 0),
    ],
)
def test_what_was_spent_since_a_moment_lies_between_two_figures(at, least, most):
    """One unit a second: three are taken at 0, four at 12. The figures of 10 are remembered."""
    rule = bucket(60, 60, 20)
    rule.enter((3,), 0)
    rule.mark(10 * SECOND)
    rule.enter((4,), 12 * SECOND)
    assert rule.spent_since(at * SECOND) == (least, most)
    assert all(type(figure) is int for figure in rule.spent_since(at * SECOND))


@pytest.mark.parametrize("used_at", [None, 0], ids=["never used", "full again"])
def test_what_was_spent_since_a_moment_at_which_a_full_bucket_was_used_is_that_use(used_at):
    """The moment is remembered first, and the call comes in the same nanosecond."""
    rule = bucket(60, 60, 20)
    if used_at is not None:
        rule.enter((3,), used_at)
    rule.mark(10 * SECOND)
    rule.enter((4,), 10 * SECOND)
    assert rule.spent_since(10 * SECOND) == (4, 4)
    rule.enter((2,), 11 * SECOND)
    assert rule.spent_since(10 * SECOND) == (6, 6)
