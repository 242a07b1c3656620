"""Limits that one member sets for all, and how long an idle pool is remembered."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import (
    LEASE,
    MILLI,
    NO_LIMITS,
    RATE,
    SECOND,
    START,
    at_once,
    pool_asked,
    pool_level,
    question,
    rate_values,
)

retunes = st.tuples(rate_values, rate_values, st.integers(0, 24), st.integers(0, SECOND))


@given(case=retunes)
def test_new_limits_for_the_same_period_create_no_units(case):
    """No more can be taken at once than before, nor than the new burst. Debts may be forgotten."""
    (amount, period, burst), (new_amount, _, new_burst), part, gap = case
    old, new = [[amount, period, burst]], [[new_amount, period, new_burst]]
    pool, now = Pool(), START + gap
    answer(pool, question(rates=old, batches=[[max(1, burst * part // 24)]]), START)
    before = max(0, pool_level(pool, now))
    answer(pool, question("b", rates=new, set=[new, NO_LIMITS]), now)
    assert pool_level(pool, now) <= min(before, new_burst)


def test_new_limits_with_another_period_create_no_units():
    """10 a second are all used; as 600 a minute they are still used."""
    second, minute = [[10, SECOND, 10]], [[600, 60 * SECOND, 10]]
    pool = Pool()
    answer(pool, question(rates=second, batches=[[9]]), START)
    answer(pool, question(rates=second, set=[minute, NO_LIMITS]), START)
    assert at_once(pool, START, minute) == 0


def test_a_rate_that_becomes_the_second_in_the_list_is_still_used():
    one, two = [[10, SECOND, 10]], [[500, 60 * SECOND, 50], [10, SECOND, 10]]
    pool = Pool()
    answer(pool, question(rates=one, batches=[[9]]), START)
    answer(pool, question(rates=two, set=[two, NO_LIMITS]), START)
    assert at_once(pool, START, two, column=1) == 0


def test_going_back_and_forth_between_limits_creates_no_units():
    """A thousand times: rounding is never in favour of a member."""
    a, b = [[7, SECOND, 10]], [[11, SECOND, 13]]
    pool = Pool()
    answer(pool, question(rates=a, batches=[[5]]), START)
    level = pool_level(pool, START)
    for n in range(1_000):
        limits = b if n % 2 == 0 else a
        answer(pool, question(rates=limits, set=[limits, NO_LIMITS]), START)
        assert pool_level(pool, START) <= level
        level = max(0, pool_level(pool, START))


def test_each_member_is_told_of_new_limits_until_it_knows_them():
    """Limits that one member sets hold for all members of the key."""
    pool = Pool()
    new = [[[5, SECOND, 5]], [3, 1, 2, 1]]
    first = answer(pool, question(rates=RATE, set=[RATE, NO_LIMITS]), START)
    version = first["version"]
    assert version > 0
    assert (first["rates"], first["limits"]) == (RATE, list(NO_LIMITS))
    assert "rates" not in answer(pool, question(rates=RATE, version=version), START)
    answer(pool, question("b", rates=RATE, set=new), START)
    for _ in range(2):  # the first reply may have been lost
        told = answer(pool, question(rates=RATE, version=version), START)
        assert told["version"] > version
        assert (told["rates"], told["limits"]) == tuple(new)
    assert "rates" not in answer(pool, question(rates=new[0], version=told["version"]), START)


def test_limits_that_are_not_set_change_nothing_and_equal_ones_are_no_new_version():
    pool = Pool()
    version = answer(pool, question(rates=RATE), START)["version"]
    other = [[5, SECOND, 5]]
    assert answer(pool, question("b", rates=other), START)["rates"] == RATE
    assert answer(pool, question("b", rates=RATE, set=[RATE, NO_LIMITS]), START)["version"] == version


def test_units_taken_under_former_limits_are_not_returned_to_the_new_ones():
    pool = pool_asked((0, {"batches": [[50]]}), (10, {"set": [[[1_000, SECOND, 60]], NO_LIMITS]}))
    new = [[1_000, SECOND, 60]]
    before = at_once(pool, START + 10 * MILLI, new)
    answer(pool, question(rates=new, returned=[[[50, START]]]), START + 10 * MILLI)
    assert at_once(pool, START + 10 * MILLI, new) == before


def test_a_batch_granted_under_a_slow_rate_does_not_delay_others_once_it_is_raised():
    """An hour's rate becomes a thousand a second."""
    small, large = [[1, 3_600 * SECOND, 1]], [[3_600_000, 3_600 * SECOND, 1_000]]
    pool = Pool()
    answer(pool, question(rates=small, batches=[[1]] * 3), START)
    answer(pool, question("b", rates=large, set=[large, NO_LIMITS]), START + 1)
    given = answer(pool, question(rates=large, batches=[[1]]), START + 2 * SECOND)
    assert given["starts"] == [0]


def test_a_member_with_more_or_fewer_rates_than_the_others_changes_nothing():
    """The other members could not follow. It is answered, and told the limits in force."""
    two = [*RATE, [500, 60 * SECOND, 50]]
    pool = pool_asked((0, {}))
    for rates in (two, []):
        asked = question("b", rates=rates, set=[rates, NO_LIMITS], batches=[[1 for _ in rates]], wants=[3, 0])
        given = answer(pool, asked, START)
        assert (given["rates"], given["places"]) == (RATE, 3)
        assert given["starts"] == []
    assert at_once(pool, START, RATE) == 90


def test_a_member_that_is_alone_may_set_any_number_of_rates():
    two = [*RATE, [500, 60 * SECOND, 50]]
    pool = pool_asked((0, {}), (1, {"rates": two, "set": [two, NO_LIMITS]}))
    assert [rate.terms for rate in pool.rates] == two


@given(
    rates=st.lists(rate_values, max_size=2),
    part=st.integers(1, 30),
    window=st.none() | st.integers(1, 60 * SECOND),
    throttled_for=st.integers(0, 10 * SECOND),
)
def test_after_idle_for_a_pool_answers_like_a_new_one(rates, part, window, throttled_for):
    limits = [10, 3, 100, throttled_for]
    pool = Pool()
    batch = [max(1, rate[2] * part // 16) for rate in rates]
    asked = question(rates=rates, batches=[batch], limits=limits, window=window, wants=[9, 9])
    answer(pool, asked, START)
    later = START + pool.idle_for()
    again = question(
        "b", rates=rates, batches=[batch] * 3, limits=limits, wants=[8, 80], waits_for_window=True
    )
    ours, fresh = answer(pool, again, later), answer(Pool(), again, later)
    for what in ("starts", "ask_again_in", "places", "bytes", "crowded", "members"):
        assert ours[what] == fresh[what]


def test_after_the_last_member_left_a_pool_is_kept_for_its_lease():
    """The last question may have to be repeated."""
    pool = Pool()
    answer(pool, question(rates=RATE, leaves=True), START)
    assert pool.idle_for() <= LEASE
