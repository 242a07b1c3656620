"""When batches start, and when a member asks again. A unit takes a millisecond, the burst is a hundred."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.grants import CALLS, EARLY, LEAST_AHEAD, MOST_AHEAD
from headgate.sharing.pool.state import Pool
from pool_questions import copied
from sharing.pool.pools import MILLI, RATE, SECOND, START, pool_asked, question, rate_values, start_of

numbers = count(1)


def test_each_batch_starts_when_it_fits_beside_a_tenth_of_the_burst():
    """Of 100, one each millisecond, 10 are kept back: 90 start at once, the others as they are earned."""
    pool = Pool()
    given = answer(pool, question(rates=RATE, batches=[[30], [60], [5], [10]]), START)
    assert given["starts"] == [0, 0, 5 * MILLI, 15 * MILLI]


def test_a_batch_as_large_as_the_burst_leaves_room_for_unused_grants():
    """10 start at 0 and are used at 10 ms, so a batch of all 100 may not start at 10 ms too."""
    pool = Pool()
    assert answer(pool, question(rates=RATE, batches=[[10]]), START)["starts"] == [0]
    start = answer(pool, question("b", rates=RATE, batches=[[100]]), START)["starts"][0]
    assert start >= 20 * MILLI  # 10 + 100 used since 10 ms: 100 and the 10 earned until 20 ms


def test_a_batch_above_the_burst_waits_until_the_rate_is_full_and_leaves_debt():
    """It is granted, and waits for the tenth that is kept back as well."""
    pool = Pool()
    given = answer(pool, question(rates=RATE, batches=[[10], [250], [1]]), START)
    assert given["starts"][:2] == [0, 20 * MILLI]
    assert given["starts"][2:] in ([], [(270 + 1 - 90) * MILLI])


def test_a_batch_that_waits_for_one_rate_is_charged_to_all_rates_at_its_start():
    """The other rate is charged for that moment."""
    rates = [[1_000, SECOND, 100], [10, SECOND, 2]]
    pool = Pool()
    given = answer(pool, question(rates=rates, batches=[[50, 2], [50, 1]]), START)
    assert given["starts"] == [0, 100 * MILLI]
    # At 100 ms only the second 50 are missing to the first rate.
    assert start_of(pool, [40, 0], START + 100 * MILLI, rates) == 0
    assert start_of(pool, [41, 0], START + 100 * MILLI, rates) == 1 * MILLI


def test_a_batch_of_nothing_is_granted_at_once_and_takes_nothing():
    pool = pool_asked((0, {"batches": [[90]]}))
    before = copied(pool).rates
    assert answer(pool, question(rates=RATE, batches=[[0], [0]]), START)["starts"] == [0, 0]
    assert pool.rates == before


def test_a_member_alone_is_granted_batches_a_while_in_advance_and_is_told_when_to_ask_for_more():
    """To the microsecond."""
    pool = pool_asked((0, {"batches": [[90]]}))
    given = answer(pool, question(rates=RATE, batches=[[80]] * 5), START)
    assert given["starts"] == [80 * MILLI, 160 * MILLI]
    assert given["ask_again_in"] == 160 * MILLI - LEAST_AHEAD
    again = START + given["ask_again_in"]
    before = answer(copied(pool), question(rates=RATE, batches=[[1]]), again - MILLI)
    assert (before["starts"], before["ask_again_in"]) == ([], MILLI)
    assert len(answer(pool, question(rates=RATE, batches=[[1]]), again)["starts"]) == 1


def test_a_member_that_had_its_turn_waits_for_one_that_is_short_until_the_rate_would_run_dry():
    """Two members want all there is, and one of them does not ask again."""
    pool = pool_asked((0, {"batches": [[90]]}))
    for name in "ab":
        answer(pool, question(name, rates=RATE, batches=[[20]] * 30), START)
    given = answer(pool, question("b", rates=RATE, batches=[[20]] * 30), START)
    assert given["starts"] == []
    dry = start_of(pool, [20], START, RATE)
    now = START
    for _ in range(20):
        now += given["ask_again_in"]
        given = answer(pool, question("b", rates=RATE, batches=[[20]]), now)
        if given["starts"]:
            break
    assert now + given["starts"][0] <= START + dry + EARLY


@given(
    rate=rate_values,
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    gap=st.integers(0, 2 * SECOND),
)
def test_a_member_that_asks_again_when_told_is_granted_its_batch_in_the_end(rate, sizes, gap):
    pool, now = Pool(), START
    for units in sizes:
        for _ in range(1_000):
            given = answer(pool, question(rates=[rate], batches=[[units]]), now)
            if given["starts"]:
                break
            assert given["ask_again_in"] > 0
            now += given["ask_again_in"]
        else:
            pytest.fail("asked a thousand times without a grant")
        now += gap


def test_a_question_without_batches_is_never_told_to_ask_again():
    pool = pool_asked((0, {"batches": [[90]] * 3}))
    given = answer(pool, question(rates=RATE), START)
    assert (given["starts"], given["ask_again_in"]) == ([], 0)


@pytest.mark.parametrize("members", [2, 7, 25])
def test_members_that_want_more_than_there_is_take_turns(members):
    """All members ask all the time for batches of one size, and none gets more than a turn more."""
    pool, now, end = Pool(), START, START + 10 * SECOND
    rates = [[100, SECOND, 20]]
    service = dict.fromkeys(range(members), 0)
    due = {member: (START, member) for member in service}
    while True:
        member = min(due, key=due.get)
        now = max(now, due[member][0])
        if now > end:
            break
        given = answer(pool, question(f"m{member}", rates=rates, batches=[[1]] * 3), now)
        service[member] += len(given["starts"])
        due[member] = (now + max(given["ask_again_in"], 10 * MILLI), next(numbers))
    turn = min(CALLS, 100 * MOST_AHEAD // SECOND // members)  # at most
    # Each may have been granted batches up to the horizon, and one beyond it.
    assert max(service.values()) - min(service.values()) <= turn + 1
    assert sum(service.values()) >= 100 * 10
