"""What the far side says to remain, told to a pool: it raises the level once for all members."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.limits import Rate
from headgate.sandbox.meters import Bucket
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.rate import GROWING
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, NO_LIMITS, SECOND, START, at_once, question

SMALL = [[500, 60 * SECOND, 8, GROWING]]  # as "500/minute"
LATER = START + 100 * MILLI


def level(pool, now):
    return pool.rates[0].most - pool.rates[0].missing(now)


def pool_with(batches, rates=SMALL):
    pool = Pool()
    answer(pool, question(rates=rates, batches=batches), START)
    return pool


def tell(pool, remaining, *, allowed=500, age=100 * MILLI, now=LATER, member="a", rates=SMALL, **facts):
    asked = question(member, rates=rates, stated=[[remaining, allowed, age]], **facts)
    return answer(pool, asked, now)


def test_what_remains_can_be_taken_at_once_by_any_member():
    pool = pool_with([[1]] * 8)
    tell(pool, 492)
    given = answer(pool, question("b", rates=SMALL, batches=[[100]] * 4), LATER)
    assert given["starts"] == [0, 0, 0, 0]


def test_what_members_may_have_sent_since_is_not_counted_as_left():
    """492 remained when the call was sent. The 8 units of the second before may be used after that."""
    pool = pool_with([[1]] * 8)
    tell(pool, 492)
    assert 492 - 8 - 10 <= level(pool, LATER) <= 492 - 8


def test_answers_to_two_members_are_counted_once():
    pool = pool_with([[1]] * 8)
    tell(pool, 492)
    answer(pool, question("b", rates=SMALL, batches=[[100]] * 3), LATER)
    before = level(pool, LATER)
    tell(pool, 492, member="b")  # of the same moment: the 300 are taken from it
    assert level(pool, LATER) == before


def test_an_answer_to_a_call_that_was_sent_earlier_than_another_raises_nothing():
    pool = pool_with([[1]] * 8)
    tell(pool, 0, age=50 * MILLI)
    tell(pool, 492, age=60 * MILLI)
    assert level(pool, LATER) <= 1


def test_a_configured_burst_is_never_exceeded():
    rates = [[500, 60 * SECOND, 8]]
    pool = pool_with([[1]] * 8, rates)
    tell(pool, 492, rates=rates)
    assert at_once(pool, START + 60 * SECOND, rates) == 8


def test_less_than_the_pool_thinks_lowers_the_level_of_any_bucket():
    for rates in (SMALL, [[500, 60 * SECOND, 8]]):
        pool = pool_with([], rates)
        tell(pool, 3, age=0, rates=rates)
        assert level(pool, LATER) == 3


def test_the_stated_limit_bounds_what_is_raised():
    pool = pool_with([[1]] * 8)
    tell(pool, 10**9, allowed=20)
    assert level(pool, LATER) == 20


def test_a_burst_that_was_found_to_be_too_much_is_taken_back():
    pool = pool_with([[1]] * 8)
    tell(pool, 492)
    tell(pool, 400, allowed=-1)
    assert level(pool, LATER) == 8


def test_other_members_are_told_to_ask_when_much_more_is_there():
    pool = pool_with([[1]] * 8)
    before = pool.news
    tell(pool, 492)
    after = pool.news
    tell(pool, 483)
    assert before != after == pool.news


def test_other_limits_keep_what_was_raised_as_far_as_they_allow_it():
    pool = pool_with([[1]] * 8)
    tell(pool, 492)
    less = [[100, 60 * SECOND, 1, GROWING]]
    answer(pool, question(rates=SMALL, set=[less, NO_LIMITS]), LATER)
    assert 90 <= level(pool, LATER) <= 100


members = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("take"), members, st.integers(1, 40)),
    st.tuples(st.just("wait"), st.sampled_from([1, 10, 300, 5_000, 60_000])),
    st.tuples(st.just("tell"), members, st.integers(0, 20), st.integers(0, 3_000)),
)


@given(st.lists(steps, min_size=4, max_size=40), st.sampled_from([1, 30, 600]))
def test_whatever_is_said_to_remain_no_more_goes_than_two_windows_of_the_far_side_hold(program, amount):
    rates = [[amount, 60 * SECOND, max(1, amount // 60), GROWING]]
    referee = Bucket(Rate(amount, 60, burst=2 * amount), START * 1_000)
    pool, now, asked = Pool(), START, [START]
    for step, *facts in program:
        if step == "wait":
            now += facts[0] * MILLI
        elif step == "take":
            who, units = facts
            given = answer(pool, question(who, rates=rates, batches=[[1]] * units), now)
            for start in given["starts"]:
                assert referee.wait(1, (now + start) * 1_000) == 0
                referee.take(1, (now + start) * 1_000)
            asked.append(now)
        else:
            who, which, remaining = facts
            age = now - asked[which % len(asked)]
            tell(pool, remaining, allowed=amount, age=age, now=now, member=who, rates=rates)
