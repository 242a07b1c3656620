"""Cuts, the way back, and merging of levels, against exact models in fractions."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.arguments import SECOND
from headgate.swarm.messages import read_level
from headgate.swarm.recovery import Cubic, Level, Stepwise, merged

HALF = (1, 2)
TENTH_MORE = (11, 10)
INTERVAL = 30 * SECOND
EVERY_CAPACITY = range(1, 1001)


def steps_of_the_model(capacity, factor=HALF, growth=TENTH_MORE):
    """Cut, then grow by the factor, at least by one, up to the capacity."""
    steps = [max(1, floor(capacity * Fraction(*factor)))]
    while steps[-1] < capacity:
        steps.append(min(capacity, max(steps[-1] + 1, floor(steps[-1] * Fraction(*growth)))))
    return steps


def steps_of(way, capacity, many, step=INTERVAL):
    level = way.cut(capacity, None, capacity)
    return [way.total(level._replace(grown=level.grown + k * step)) for k in range(many)]


# -- stepwise


def test_a_hundred_recovers_in_steps_of_a_tenth():
    way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
    assert steps_of(way, 100, 10) == [50, 55, 60, 66, 72, 79, 86, 94, 100, 100]


@pytest.mark.parametrize("factor", [HALF, (7, 10), (999, 1000)])
def test_every_capacity_recovers_in_the_steps_of_the_model(factor):
    way = Stepwise(factor, TENTH_MORE, INTERVAL, beyond=False)
    for capacity in EVERY_CAPACITY:
        model = steps_of_the_model(capacity, factor)
        assert steps_of(way, capacity, len(model) + 1) == [*model, capacity]


def test_five_of_ten_is_ten_again_within_eight_steps():
    way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
    steps = steps_of(way, 10, 9)
    assert (steps[0], steps[8]) == (5, 10)


def test_a_step_takes_a_whole_interval():
    way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
    level = way.cut(100, None, 100)
    for grown, total in ((1, 50), (INTERVAL - 1, 50), (INTERVAL, 55), (2 * INTERVAL - 1, 55)):
        assert way.total(level._replace(grown=grown)) == total


def test_stepwise_recovery_ends_above_the_capacity_only_if_beyond_is_set():
    capped = Stepwise(HALF, (3, 1), INTERVAL, beyond=False)
    beyond = Stepwise(HALF, (3, 1), INTERVAL, beyond=True)
    assert steps_of(capped, 10, 4) == [5, 10, 10, 10]
    assert steps_of(beyond, 10, 4) == [5, 15, 15, 15]
    for capacity in EVERY_CAPACITY:
        way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
        assert max(steps_of(way, capacity, 12)) <= capacity


# -- cubic


def back_at_goal(way):
    """How long the way back to the refused total takes, found by bisection."""
    level = way.cut(10**9, None, 10**9)
    low, high = 0, 3600 * SECOND
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if way.total(level._replace(grown=middle)) >= 10**9 else (middle, high)
    return high


@pytest.mark.parametrize("factor", [HALF, (7, 10)])
def test_cubic_recovery_follows_the_exact_cubic(factor):
    """goal − (goal − floor)·(1 − t/K)³, never rounded on the way."""
    way = Cubic(factor, beyond=False)
    k = back_at_goal(way)
    for capacity in (1, 2, 3, 7, 10, 99, 100, 1000, 123_457):
        level = way.cut(capacity, None, capacity)
        assert (level.floor, level.goal) == (max(1, capacity * factor[0] // factor[1]), capacity)
        for parts in range(101):
            grown = k * parts // 100
            exact = level.goal - (level.goal - level.floor) * (1 - Fraction(grown, k)) ** 3
            expected = max(level.floor, floor(exact))
            assert abs(way.total(level._replace(grown=grown)) - expected) <= (capacity < 3)


@pytest.mark.parametrize("factor", [HALF, (7, 10), (1, 10), (1, 1_000_000)])
def test_cubic_recovery_of_every_capacity_is_complete_and_never_goes_down(factor):
    way = Cubic(factor, beyond=False)
    end = back_at_goal(way)
    assert end <= 120 * SECOND
    for capacity in EVERY_CAPACITY:
        level = way.cut(capacity, None, capacity)
        totals = [way.total(level._replace(grown=end * k // 20)) for k in range(21)]
        assert totals[0] == level.floor >= 1
        assert totals == sorted(totals)
        assert totals[-1] == capacity
        assert way.total(level._replace(grown=1000 * end)) == capacity


def test_cubic_recovery_after_a_second_cut_passes_the_first_refusal():
    """The curve is flat at the total that was refused, and ends at the whole."""
    way = Cubic((7, 10), beyond=False)
    first = way.cut(1000, None, 1000)
    second = way.cut(way.total(first), first, 1000)
    assert second.epoch == first.epoch + 1
    assert way.total(second) <= way.total(first)
    totals = [way.total(second._replace(grown=k * SECOND)) for k in range(600)]
    assert totals == sorted(totals)
    assert totals[-1] == 1000


@pytest.mark.parametrize(
    ("grown", "floor", "left"),
    [
        (2 * SECOND, 500, 900),  # it had grown for a while: it was nearly right
        (2 * SECOND - 1, 500, 500),  # the cut was not large enough
        (0, 801, 700),  # the last cut was a small one, and too small
        (0, 800, 500),
    ],
)
def test_how_deep_a_cubic_cut_is_depends_on_how_the_last_one_went(grown, floor, left):
    way = Cubic(HALF, beyond=False)
    assert way.cut(1000, Level(1, 1000, floor, 1000, grown), 1000) == Level(2, 1000, left, 1000, 0)
    assert way.cut(1000, Level(1, 2000, floor, 1000, grown), 1000).floor == 500  # of another base
    assert way.cut(1000, None, 1000) == Level(1, 1000, 500, 1000, 0)


# -- cuts of either kind


WAYS = [
    Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False),
    Stepwise((9, 10), (2, 1), SECOND, beyond=True),
    Cubic(HALF, beyond=False),
    Cubic((7, 10), beyond=True),
]


@pytest.mark.parametrize("way", WAYS)
@given(base=st.integers(1, 10**12), total=st.integers(1, 10**12), epochs=st.integers(1, 20))
@settings(max_examples=30)
def test_a_cut_never_raises_and_never_goes_below_one(way, base, total, epochs):
    level = None
    for number in range(1, epochs + 1):
        level = way.cut(total, level, base)
        assert level.epoch == number
        assert 1 <= way.total(level) <= min(total, base)
        assert read_level(list(level)) == level
        total = way.total(level)


# -- merging


@st.composite
def levels(draw):
    base = draw(st.integers(1, 40))
    goal = draw(st.integers(1, base))
    return Level(
        epoch=draw(st.integers(1, 3)),
        base=base,
        floor=draw(st.integers(1, goal)),
        goal=goal,
        grown=draw(st.integers(0, 100)) * SECOND,
    )


@given(one=levels(), two=levels(), three=levels())
@settings(max_examples=200)
def test_merging_levels_is_commutative_associative_and_idempotent(one, two, three):
    """A semilattice, so that the order and number of deliveries does not matter."""
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, one) == one
    assert merged(None, one) == one
    assert merged(merged(one, two), two) == merged(one, two)


@given(one=levels(), two=levels())
@settings(max_examples=150)
def test_merging_takes_the_later_cut_and_for_one_cut_the_lowest_total(one, two):
    both = merged(one, two)
    assert both.epoch == max(one.epoch, two.epoch)
    if one.epoch == two.epoch:
        assert Fraction(both.floor, both.base) == min(
            Fraction(one.floor, one.base), Fraction(two.floor, two.base)
        )
        assert both.grown == max(one.grown, two.grown)
    else:
        assert both == max(one, two, key=lambda level: level.epoch)


@given(heard=st.lists(levels(), min_size=1, max_size=8), data=st.data())
def test_members_that_heard_the_same_levels_in_other_orders_agree(heard, data):
    again = data.draw(st.permutations([*heard, *data.draw(st.lists(st.sampled_from(heard), max_size=5))]))
    one = other = None
    for level in heard:
        one = merged(one, level)
    for level in again:
        other = merged(other, level)
    assert one == other


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        "[1,1,1,1,0]",
        [1, 100, 50, 100],
        [1, 100, 50, 100, 0, 0],
        [0, 100, 50, 100, 0],
        [-1, 100, 50, 100, 0],
        [1, 100, 0, 100, 0],
        [1, 100, 101, 101, 0],
        [1, 100, 60, 50, 0],
        [1, 100, 50, 101, 0],
        [1, 0, 0, 0, 0],
        [1, 100, 50, 100, -1],
        [1, 100, 50.0, 100, 0],
        [True, 100, 50, 100, 0],
        [1, "100", 50, 100, 0],
        [1, None, 50, 100, 0],
        [10**30, 100, 50, 100, 0],
        [1, 10**30, 50, 100, 0],
    ],
    ids=str,
)
def test_values_that_no_cut_leaves_are_not_levels(wrong):
    with pytest.raises(ValueError):
        read_level(wrong)
