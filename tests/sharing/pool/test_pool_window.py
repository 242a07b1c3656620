"""The backoff window of a pool: signals, grants during and after it, and the throttled time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.grants import CALLS, granted_ahead
from headgate.sharing.pool.parts import WHOLE
from headgate.sharing.pool.rate import STRICT
from headgate.sharing.pool.reunion import REUNION
from headgate.sharing.pool.state import KEPT_IDLE, Pool
from sharing.pool.pools import (
    LEASE,
    MILLI,
    NO_LIMITS,
    RATE,
    SECOND,
    START,
    at_once,
    grantable,
    pool_asked,
    question,
    window_of,
)

signals = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 3 * SECOND),  # the gap before it
    st.just(-1) | st.integers(1, 5 * SECOND),  # its duration, or CLEARED
    st.booleans(),  # its reply is lost, and it is told again
)


@given(story=st.lists(signals, max_size=25))
def test_a_signal_extends_the_window_and_only_clearing_makes_it_shorter(story):
    """A signal told twice counts once, and one that changes nothing is not a new generation."""
    pool, now, until, heard = Pool(), START, START, 0
    for member, gap, duration, lost in story:
        now += gap
        news = duration < 0 or now + duration > until
        if news:
            until = min(until, now) if duration < 0 else now + duration
        asked = question(member, window=duration)
        left, generation = window_of(answer(pool, asked, now))
        assert left == max(0, until - now)
        assert (generation > heard) if news else (generation == heard)
        heard = generation
        if lost:
            assert window_of(answer(pool, asked, now)) == (left, generation)
        # Another member hears the same.
        assert window_of(answer(pool, question("z"), now)) == (left, generation)


@given(told=st.lists(st.integers(1, 60 * SECOND), min_size=1, max_size=5), data=st.data())
def test_signals_lead_to_the_same_end_of_the_window_in_any_order(told, data):
    order = data.draw(st.permutations(told)) + data.draw(st.lists(st.sampled_from(told), max_size=3))
    pool = Pool()
    for n, duration in enumerate(order):
        given = answer(pool, question(f"m{n}", window=duration), START)
    assert given["window_left"] == max(told)


def test_the_first_window_of_a_pool_that_was_forgotten_has_a_new_generation():
    """After FLUSHALL, no member has heard its number."""
    heard = [answer(Pool(), question(window=SECOND), START + at)["window_generation"] for at in (0, 1_000)]
    assert heard[0] < heard[1]


def test_a_window_outlives_the_members_that_signalled_it_and_new_members_hear_of_it():
    pool = Pool()
    answer(pool, question(window=60 * SECOND), START)
    given = answer(pool, question("b"), START + 10 * LEASE)
    assert (given["window_left"], given["members"]) == (60 * SECOND - 10 * LEASE, 1)


def test_a_signal_of_no_duration_changes_nothing():
    pool = Pool()
    before = window_of(answer(pool, question(window=SECOND), START))
    assert window_of(answer(pool, question(window=0), START)) == before


def test_a_member_that_waits_for_the_window_is_granted_nothing_before_its_end():
    """Nothing is charged either."""
    pool = pool_asked((0, {"window": SECOND}))
    given = answer(pool, question(rates=RATE, batches=[[1]], waits_for_window=True), START + 400 * MILLI)
    assert (given["starts"], given["ask_again_in"]) == ([], 600 * MILLI)
    assert at_once(pool, START + 400 * MILLI, RATE) == 90
    assert answer(pool, question(rates=RATE, batches=[[1]]), START + 400 * MILLI)["starts"] == [0]
    again = answer(pool, question(rates=RATE, batches=[[1]], waits_for_window=True), START + SECOND)
    assert again["starts"] == [1 * MILLI]


def after_a_window(pool, at, rates=RATE):
    """Return when twenty batches of a member that waits for the window start, in milliseconds from `at`."""
    given = answer(pool, question("late", rates=rates, batches=[[1]] * 20, waits_for_window=True), START + at)
    return [start // MILLI for start in given["starts"]]


@pytest.mark.parametrize("signaller_waits", [True, False])
def test_members_that_wait_for_the_window_come_back_at_the_rate(signaller_waits):
    """Also if the member that signalled it does not wait."""
    pool = pool_asked((0, {"window": SECOND, "waits_for_window": signaller_waits}))
    assert after_a_window(pool, SECOND) == list(range(1, 21))


def test_a_member_that_does_not_wait_for_the_window_loses_nothing_by_it():
    pool = pool_asked((0, {"window": SECOND, "waits_for_window": True}))
    given = answer(pool, question("b", rates=RATE, batches=[[1]] * 20), START + 2 * SECOND)
    assert given["starts"] == [0] * 20


def test_a_window_takes_away_once_what_was_saved_up():
    pool = pool_asked((0, {"window": SECOND}))
    assert after_a_window(pool, SECOND)[0] == 1
    assert after_a_window(pool, SECOND + 60 * MILLI)[:2] == [0, 0]


def test_a_cleared_window_takes_away_what_was_saved_up_until_then():
    """A debt stays a debt."""
    pool = pool_asked((0, {"window": 60 * SECOND}), (1_000, {"window": -1, "waits_for_window": True}))
    assert after_a_window(pool, SECOND)[0] == 1
    pool = pool_asked((0, {"owed": [2_090]}), (0, {"window": 60 * SECOND}), (1_000, {"window": -1}))
    assert after_a_window(pool, SECOND)[0] == 1_001


@pytest.mark.parametrize("rate", [[10_000, SECOND, 100], [100, SECOND, 100]])
def test_new_limits_during_a_window_cause_no_burst_and_no_wait_after_it(rate):
    pool = pool_asked((0, {"window": SECOND}), (500, {"set": [[rate], NO_LIMITS]}))
    first = after_a_window(pool, SECOND, [rate])[0]
    assert first == SECOND // rate[0] // MILLI
    assert at_once(pool, START + SECOND, [rate]) == 0


def test_a_window_moves_with_a_clock_that_was_set():
    pool = pool_asked((0, {"window": SECOND}))
    after_a_window(pool, SECOND)
    pool.ahead += 3_600 * SECOND
    assert after_a_window(pool, SECOND + 60 * MILLI - 3_600 * SECOND)[:2] == [0, 0]


@pytest.mark.parametrize(
    ("places", "throttled", "expected"), [(400, 10, 10), (5, 10, 5), (0, 10, 10), (400, 0, 50)]
)
def test_throttled_places_hold_for_all_members_together_until_throttled_for_has_passed(
    places, throttled, expected
):
    """While the window is active and for `throttled_for` after its end, to the microsecond."""
    pool = Pool()
    facts = {"limits": [places, throttled, 0, 10 * SECOND], "lease": 100 * SECOND, "wants": [50, 0]}
    assert answer(pool, question(window=SECOND, **facts), START)["places"] == expected
    last = START + SECOND + 10 * SECOND
    assert answer(pool, question(**facts), last - 1)["places"] == expected
    assert answer(pool, question(**facts), last)["places"] == min(50, places or 50)


# -- a pool that the store has lost


def test_a_pool_that_never_had_a_window_takes_the_one_that_a_member_recalls():
    """A pool that had one has heard whether it was cleared, so it does not."""
    pool = Pool()
    given = answer(pool, question(recalls=60 * SECOND), START)
    assert given["window_left"] == 60 * SECOND
    answer(pool, question(window=-1), START)
    assert answer(pool, question("b", recalls=60 * SECOND), START)["window_left"] == 0


def test_members_that_recall_one_window_do_not_extend_it():
    pool = Pool()
    first = answer(pool, question(recalls=60 * SECOND), START)
    for number in range(5):
        given = answer(pool, question(f"m{number}", recalls=60 * SECOND), START + number)
        assert given["window_generation"] == first["window_generation"]
        assert given["window_left"] == 60 * SECOND - number


@pytest.mark.parametrize(
    ("rate", "empty_for"),
    [
        ([1_000, SECOND, 500], SECOND // 2 - SECOND // 20),
        ([100, 10 * SECOND, 100, STRICT], 10 * SECOND),
        ([86_400, 86_400 * SECOND, 86_400], 0),  # a day's worth: only what a minute earns is taken away
        ([86_400, 86_400 * SECOND, 86_400, STRICT], 0),
    ],
)
def test_a_pool_that_follows_a_lost_one_has_nothing_saved_up(rate, empty_for):
    """For a while it grants nothing at all: members tell what they use.

    What the rate earns while the member may still use what it was granted is not saved up either.
    """
    lost, pool = Pool(), Pool()
    born = answer(lost, question(rates=[rate]), START)["born"]
    asked = question(rates=[rate], born=born, batches=[[1]], part=[WHOLE, 0])
    given = answer(pool, asked, START + SECOND)
    assert given["born"] != born
    assert (given["starts"], given["ask_again_in"]) == ([], REUNION)
    held = 2 * granted_ahead(CALLS * rate[1] // rate[0])
    began = START + SECOND + max(REUNION, held)
    at_most = grantable(rate) - (60 if rate[1] > 60 * SECOND and len(rate) == 3 else 0)
    level = at_once(pool, began, [rate])
    if empty_for:
        assert level <= (max(REUNION, held) - held) * rate[0] / rate[1]
        assert at_once(pool, began + empty_for + SECOND, [rate]) == at_most
    else:
        assert at_most <= level <= at_most + 1


def test_a_pool_that_follows_a_lost_one_grants_places_when_all_members_have_told_what_they_use():
    limits, pool = [10, 0, 0, 0], Pool()
    first = answer(pool, question(limits=limits, born=7, uses=[4, 0], wants=[6, 0]), START)
    second = answer(pool, question("b", limits=limits, born=7, uses=[6, 0], wants=[4, 0]), START + MILLI)
    assert (first["places"], second["places"]) == (4, 5)  # not more than they use, and b is to give one back
    later = answer(pool, question(limits=limits, uses=[4, 0], wants=[6, 0]), START + REUNION)
    assert later["places"] == 4
    assert answer(pool, question("b", limits=limits, leaves=True), START + REUNION)["members"] == 2
    assert answer(pool, question(limits=limits, uses=[4, 0], wants=[6, 0]), START + REUNION)["places"] == 10


def test_a_member_that_knows_a_pool_which_was_lost_long_ago_changes_nothing():
    pool = Pool()
    answer(pool, question(rates=RATE), START)
    given = answer(pool, question("b", rates=RATE, born=7, batches=[[50]]), START + REUNION)
    assert given["starts"] == [0]


def test_a_store_keeps_a_pool_for_as_long_as_its_answer_says():
    pool = Pool()
    given = answer(pool, question(window=100 * SECOND), START)
    assert given["kept"] == 100 * SECOND + KEPT_IDLE
    assert answer(pool, question(window=-1), START)["kept"] == LEASE + KEPT_IDLE
