"""A strict rate of a pool: never more than its amount in any stretch of its period, by all members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import Fleet, unevenness
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


# -- members that want more than there is divide what comes back


def many_want(pool, who, at, batches=100, **facts):
    """Fifty callers of that member wait; it asks for a unit for each of twice as many."""
    return answer(pool, question(who, rates=HUNDRED, batches=[[1]] * batches, waiting=50, **facts), at)


HUNDRED = [[100, SECOND, 100, STRICT]]
BACK = SECOND + LIFE  # when units that were taken at the start are there again


def wanted_by(*members):
    """A pool whose units were all taken at the start, by the first member, and are wanted by all."""
    pool = Pool()
    for who in members:
        many_want(pool, who, START)
    return pool


def test_a_member_that_asks_first_is_granted_no_more_than_its_part_of_what_comes_back():
    """The first one had all that was there before, so that it comes last now."""
    pool = wanted_by("a", "b", "c", "d")
    before = START + BACK - 20 * MILLI
    got = {who: len(many_want(pool, who, before)["starts"]) for who in "bcda"}
    assert got["a"] == 0
    assert 90 <= sum(got.values()) <= 100
    assert max(got["b"], got["c"], got["d"]) - min(got["b"], got["c"], got["d"]) <= 3


def test_what_others_have_not_come_for_goes_to_the_member_that_has_waited_for_a_moment():
    pool = wanted_by("a", "b")
    there = START + BACK
    many_want(pool, "b", there - 300 * MILLI, batches=0)
    first = many_want(pool, "a", there)
    assert len(first["starts"]) == 25  # less than half, because it had more before
    assert first["ask_again_in"] == MILLI
    assert len(many_want(pool, "a", there + MILLI)["starts"]) == 74


def test_a_member_whose_callers_were_content_is_not_waited_for():
    pool = wanted_by("a")
    there = START + BACK
    answer(pool, question("b", rates=HUNDRED, batches=[[1]], waiting=1), there)
    assert len(many_want(pool, "a", there)["starts"]) >= 99


def most_in_a_second(times):
    return max(sum(at - 1 + 1e-9 < other <= at for other in times) for at in times)


@pytest.mark.parametrize(
    ("rate", "trips", "tasks", "takes", "use"),
    [
        (100, [0] * 4, 50, 0, 0.9),
        (500, [0] * 4, 50, 0, 0.9),
        (500, [0] * 8, 50, 0, 0.9),
        (500, [0, 0.002, 0.002, 0.002], 50, 0, 0.9),
        (200, [0.002, 0, 0.01], 50, 0, 0.9),
        (100, [0, 0, 0, 0.1], 50, 0, 0.8),
        (500, [0] * 4, 20, 0.02, 0.75),
    ],
)
def test_processes_have_equal_parts_of_a_strict_rate_at_any_moment_no_more_than_it_allows(
    rate, trips, tasks, takes, use
):
    with Fleet(rates=[f"{rate}/s strict"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip)
        fleet.run(1)
        fleet.work(tasks=tasks, takes=takes)
        fleet.run(8.25)  # units come back every 1.1 seconds: not just now
        steady = fleet.now
        fleet.run(11)
        assert len(fleet.times(steady)) >= use * rate * 11
        assert unevenness(fleet.parts(steady)) <= 0.06
        assert most_in_a_second(fleet.times()[-3 * rate :]) <= rate


def test_a_process_with_a_call_now_and_then_beside_busy_ones_costs_few_questions_at_a_strict_rate():
    with Fleet(rates=["500/s strict"]) as fleet:
        light, *busy = fleet.join(4)
        fleet.run(1)
        fleet.work(light, tasks=1, pause=0.14)
        fleet.work(*busy, tasks=50)
        fleet.run(8)
        steady, asked = fleet.now, sum(process.asked for process in busy)
        fleet.run(10)
        parts = fleet.parts(steady)[1:]
        assert unevenness(parts) <= 0.06
        assert sum(process.asked for process in busy) - asked <= 0.03 * sum(parts)


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
