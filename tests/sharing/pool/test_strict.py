"""A strict rate of a pool: never more than its amount in any stretch of its period, by all members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.rate import STRICT
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, NO_LIMITS, SECOND, START, at_once, question

TEN = [[10, SECOND, 10, STRICT]]
LIFE = 100 * MILLI  # for how long a batch of a second's rate may be used


def granted(pool, batches, now, member="a", rates=TEN, **facts):
    return answer(pool, question(member, rates=rates, batches=batches, **facts), now)["starts"]


def test_all_units_may_be_taken_at_once_and_no_more_before_they_have_left_the_period():
    pool = Pool()
    assert granted(pool, [[4], [6]], START) == [0, 0]
    assert granted(pool, [[1]], START, "b") == [SECOND + LIFE]


def test_units_leave_the_period_as_they_were_taken():
    pool = Pool()
    granted(pool, [[6]], START)
    granted(pool, [[4]], START + 300 * MILLI)
    now = START + SECOND + LIFE
    assert at_once(pool, now - 1, TEN) == 0
    assert at_once(pool, now, TEN) == 6
    assert at_once(pool, now + 300 * MILLI, TEN) == 10


def test_returned_units_can_be_taken_again_but_not_after_they_have_left():
    pool = Pool()
    given = answer(pool, question(rates=TEN, batches=[[10]]), START)
    back = [[[7, given["first_stamp"]]]]
    answer(pool, question(rates=TEN, returned=back), START + 1)
    assert at_once(pool, START + 1, TEN) == 7
    late = START + SECOND + LIFE
    granted(pool, [[10]], late)
    answer(pool, question(rates=TEN, returned=back), late)
    assert at_once(pool, late, TEN) == 0


def test_less_than_the_pool_thinks_is_a_cap_and_not_usage():
    """Two remain, although nothing was used here: another program has used the others."""
    pool = Pool()
    answer(pool, question(rates=TEN, stated=[[2, 0, 0]]), START)
    assert at_once(pool, START, TEN) == 2
    answer(pool, question(rates=TEN, stated=[[9, 0, 0]]), START + MILLI)
    assert at_once(pool, START + MILLI, TEN) == 9
    assert at_once(pool, START + MILLI + SECOND, TEN) == 10


def test_a_window_changes_nothing_about_what_was_used():
    pool = Pool()
    granted(pool, [[6]], START)
    answer(pool, question(rates=TEN, window=SECOND // 2), START)
    after = START + SECOND // 2
    assert granted(pool, [[4]], after, waits_for_window=True) == [0]


@pytest.mark.parametrize("other", [[[10, SECOND, 10]], [[5, SECOND, 5, STRICT]], [[100, SECOND, 100]]])
def test_other_limits_create_no_units_and_going_back_costs_none(other):
    pool = Pool()
    granted(pool, [[8]], START)
    answer(pool, question(rates=TEN, set=[other, NO_LIMITS]), START)
    assert at_once(pool, START, other) <= 2
    if other[0][-1] == STRICT:
        answer(pool, question(rates=other, set=[TEN, NO_LIMITS]), START)
        assert at_once(pool, START, TEN) == 2


steps = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(0, 400),  # ms since the last question
        st.lists(st.integers(1, 10), max_size=4),
        st.floats(0, 1),  # how late in their time the units are used
        st.integers(0, 3),  # how many of the first batch go back
    ),
    max_size=40,
)


@given(steps)
def test_no_stretch_of_the_period_has_more_than_the_amount(program):
    pool, now, used = Pool(), START, []
    for who, ms, batches, late, back in program:
        now += ms * MILLI
        given = answer(pool, question(who, rates=TEN, batches=[[units] for units in batches]), now)
        grants = list(zip(given["starts"], batches, strict=False))
        if grants and back:
            start, units = grants[0]
            back = min(units, back)
            grants[0] = start, units - back
            asked = question(who, rates=TEN, returned=[[[back, given["first_stamp"]]]])
            answer(pool, asked, now)
        used += [(now + start + int(late * LIFE), units) for start, units in grants]
    for end, _units in used:
        assert sum(units for at, units in used if end - SECOND < at <= end) <= 10
