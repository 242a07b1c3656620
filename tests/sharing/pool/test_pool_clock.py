"""The clock of the store: it may go back, jitter, be set, or begin anew."""

import pytest

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import (
    MILLI,
    RATE,
    SECOND,
    START,
    at_once,
    pool_asked,
    question,
    returned,
    start_of,
    unstamped,
)


def test_a_clock_that_goes_back_grants_no_unit_twice():
    pool = pool_asked((0, {"batches": [[90]]}))
    for back in (1, 50 * MILLI, 3_600 * SECOND):
        assert start_of(pool, [1], START - back, RATE) == 1 * MILLI


def test_jitter_of_the_clock_earns_nothing_beyond_the_time_that_has_passed():
    """Fifty milliseconds back and forth, a hundred times."""
    pool = pool_asked((0, {"batches": [[90]]}))
    for n in range(100):
        now = START + (50 * MILLI if n % 2 else 0)
        answer(pool, question("b", rates=RATE), now)
    assert at_once(pool, START + 50 * MILLI, RATE) == 50


def test_a_clock_that_was_set_back_an_hour_does_not_stop_the_pool_for_an_hour():
    """A server's wall clock may be set back, or have been an hour ahead."""
    pool = pool_asked((0, {"batches": [[90]]}))
    back = START - 3_600 * SECOND
    answer(pool, question(rates=RATE), back)
    assert at_once(pool, back + 2 * SECOND, RATE) == 90


def test_questions_and_answers_hold_durations_only_apart_from_the_time_of_the_answer():
    """The same questions an hour or many years later get the same answers."""

    def story(begin):
        pool = Pool()
        return [
            unstamped(answer(pool, asked, begin + at))
            for at, asked in (
                (0, question(rates=RATE, batches=[[50]] * 4, limits=[9, 2, 500, SECOND], wants=[4, 400])),
                (9, question("b", rates=RATE, batches=[[7]], wants=[9, 400])),
                (5_000, question("b", rates=RATE, window=SECOND, returned=[[[7, begin + 9]]])),
                (5_001, question(rates=RATE, batches=[[1]], waits_for_window=True, uses=[3, 1], owed=[5])),
                (2 * SECOND, question("c", rates=RATE, batches=[[9]], wants=[5, 5])),
            )
        ]

    assert story(START) == story(START + 3_600 * SECOND) == story(2**50)


@pytest.mark.parametrize("now", [0, 5 * SECOND])
def test_a_pool_without_a_window_is_not_throttled_on_a_clock_that_has_just_begun(now):
    """0 is a time like any other, and not the end of a window."""
    given = answer(Pool(), question(limits=[400, 10, 0, 10 * SECOND], wants=[50, 0]), now)
    assert given["places"] == 50


@pytest.mark.parametrize("by", [-(10**12), -1, 1, 10**12])
def test_a_clock_that_counts_from_another_beginning_changes_no_duration(by):
    """Granted batches, returns, leases, the window and the throttled time after it."""
    story = [
        (0, {"batches": [[90], [60]], "limits": [9, 2, 0, SECOND], "wants": [4, 0], "window": 80 * MILLI}),
        (5, {"member": "b", "batches": [[40]] * 9, "wants": [9, 0]}),
    ]
    later = [
        (6, {"member": "b", "batches": [[1]]}),  # a batch of it starts beyond the horizon
        (7, {"returned": [[[90, 7 * MILLI]]], "batches": [[1]], "waits_for_window": True}),
        (300, {"member": "c", "batches": [[5]], "wants": [9, 0]}),
        (301, {"returned": [[[5, 301 * MILLI]]]}),  # granted before the rate was last full
        (302, {"member": "c", "batches": [[90], [1]]}),
        (3_003, {"member": "d", "wants": [9, 0]}),  # the lease of "a" has ended
    ]
    here, moved = pool_asked(*story), pool_asked(*story)
    moved.ahead -= by
    stamps = [dict.fromkeys((("a", START),), here.rates[0].full_stamp) for _ in range(2)]
    for at, facts in later:
        now, given = START + at * MILLI, []
        for pool, known, moment in ((here, stamps[0], now), (moved, stamps[1], now + by)):
            facts = {"rates": RATE, "limits": [9, 2, 0, SECOND], **facts}
            asked = question(**{**facts, "returned": returned(facts, known, now)})
            given.append(answer(pool, asked, moment))
            known[asked["member"], now] = given[-1]["first_stamp"]
        assert unstamped(given[0]) == unstamped(given[1])
