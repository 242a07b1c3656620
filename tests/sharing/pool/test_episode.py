"""What a pool remembers of refusals: gentle windows, one member that probes, and lessons."""

import pytest

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.episode import (
    CLEARED,
    ENDED,
    GENTLE,
    NO_PROBES,
    OTHERS_PROBES,
    OWN_PROBES,
    PROBING,
    USUAL,
)
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, NO_LIMITS, RATE, SECOND, START, question

LATER = START + 100 * MILLI


def ask(pool, member="a", now=LATER, *, rates=RATE, **facts):
    return answer(pool, question(member, rates=rates, units=["requests"] * len(rates), **facts), now)


def probing_pool():
    """Member a was refused and has a waiting call, and so has b."""
    pool = Pool()
    ask(pool, "b", START, waiting=1)
    ask(pool, "a", START, window=50 * MILLI, manner=PROBING, waiting=1)
    return pool


# -- windows


@pytest.mark.parametrize(("manner", "left"), [(USUAL, 0), (GENTLE, 90)])
def test_after_a_gentle_window_all_units_are_there(manner, left):
    pool = Pool()
    ask(pool, now=START, window=100 * MILLI, manner=manner)
    ask(pool, waits_for_window=True)
    assert pool.rates[0].most - pool.rates[0].missing(LATER) == left


def test_a_gentle_window_does_not_throttle_places():
    limits = [10, 2, 0, SECOND]
    for manner, places in ((USUAL, 2), (GENTLE, 5)):
        pool = Pool()
        asked = {"limits": limits, "wants": [5, 0], "manner": manner, "window": SECOND}
        assert ask(pool, **asked)["places"] == places


def test_a_window_that_was_extended_by_a_usual_one_is_not_gentle():
    pool = Pool()
    assert ask(pool, window=SECOND, manner=GENTLE)["window_gentle"] == 1
    assert ask(pool, "b", window=SECOND // 2, manner=USUAL)["window_gentle"] == 0


# -- probes


def test_one_member_sends_the_probes_and_the_others_are_granted_nothing():
    pool = probing_pool()
    own, other = (ask(pool, name, waiting=1, batches=[[1], [1]]) for name in "ab")
    assert (own["probes"], len(own["starts"])) == (OWN_PROBES, 1)
    assert (other["probes"], other["starts"]) == (OTHERS_PROBES, [])
    assert other["ask_again_in"] > 0


@pytest.mark.parametrize("word", [CLEARED, ENDED])
def test_the_first_success_lets_all_members_back_and_is_news(word):
    pool = probing_pool()
    before = pool.news
    assert ask(pool, "a", window=word)["probes"] == NO_PROBES
    assert pool.news != before
    other = ask(pool, "b", waiting=1, batches=[[40], [50]])
    assert (other["probes"], other["starts"]) == (NO_PROBES, [0, 0])


def test_a_success_does_not_end_a_window_that_was_stated():
    pool = Pool()
    ask(pool, window=SECOND, manner=USUAL)
    assert ask(pool, window=ENDED)["window_left"] == SECOND


def test_a_stated_wait_ends_the_probes():
    pool = probing_pool()
    assert ask(pool, "b", window=SECOND, manner=USUAL, waiting=1)["probes"] == NO_PROBES


def test_a_member_without_calls_leaves_the_probes_to_another():
    pool = probing_pool()
    assert ask(pool, "b", waiting=1)["probes"] == OTHERS_PROBES
    ask(pool, "a", waiting=0)
    assert ask(pool, "b", waiting=1)["probes"] == OWN_PROBES
    assert ask(pool, "a", waiting=1)["probes"] == OTHERS_PROBES


def test_a_member_whose_lease_is_over_leaves_the_probes_to_another():
    pool = probing_pool()
    assert ask(pool, "b", START + 60 * SECOND, waiting=1)["probes"] == OWN_PROBES


# -- lessons


def test_a_lesson_reaches_every_member_with_its_age():
    pool = Pool()
    told = ask(pool, "a", START, lesson=[0, 0, False, "first"])
    assert told["lesson"] == []  # its own
    heard = ask(pool, "b")
    assert heard["lesson"] == [100 * MILLI, "first"]
    assert ask(pool, "b", lesson_version=heard["lesson_version"])["lesson"] == []


def test_a_lesson_that_was_not_built_on_the_newest_is_refused_and_so_are_its_rates():
    pool = Pool()
    ask(pool, "a", START)
    slow = [[[5, SECOND, 5]], NO_LIMITS, ["requests"], RATE]
    ask(pool, "a", lesson=[0, 0, False, "first"])
    given = ask(pool, "b", lesson=[0, 0, False, "second"], set=slow)
    assert given["lesson"][1] == "first"
    assert given["rates"] == RATE


def test_one_cut_for_each_episode_whichever_member_hears_of_it():
    pool = Pool()
    known = ask(pool, "a", lesson=[0, 0, False, "grown"])
    cut = ask(pool, "b", lesson=[0, 0, True, "cut"])  # b has not heard that the rate has grown
    assert cut["lesson"] == []
    late = ask(pool, "a", lesson=[known["lesson_version"], known["lesson_episode"], True, "cut as well"])
    assert late["lesson"][1] == "cut"
    again = [late["lesson_version"], late["lesson_episode"], True, "the next episode"]
    assert ask(pool, "a", lesson=again)["lesson"] == []


def test_rates_set_by_hand_are_always_heard():
    pool = Pool()
    ask(pool, "a", lesson=[0, 0, True, "cut"])
    new = [[5, SECOND, 5]]
    by_hand = [new, NO_LIMITS, ["requests"], new]
    assert ask(pool, "b", lesson=[-1, 0, False, "by hand"], set=by_hand)["rates"] == new


def test_a_member_that_joins_with_the_rates_that_others_learned_from_goes_by_what_they_learned():
    pool = Pool()
    ask(pool, "a", START)
    learned = [[50, SECOND, 5]]
    ask(pool, "a", lesson=[0, 0, True, "cut"], set=[learned, NO_LIMITS, ["requests"], RATE])
    assert ask(pool, "b", set=[RATE, NO_LIMITS])["rates"] == learned
    assert ask(pool, "c", set=[None, NO_LIMITS])["rates"] == learned
    assert ask(pool, "d", set=[[[7, SECOND, 7]], NO_LIMITS])["rates"] == [[7, SECOND, 7]]


def test_learned_rates_may_count_other_units_and_what_was_used_stays_used():
    pool = Pool()
    ask(pool, "a", START, batches=[[90]])
    ask(pool, "b", START)
    both = [[50_000, SECOND, 1_000], *RATE]
    ask(pool, "a", START, lesson=[0, 0, False, "told"], set=[both, NO_LIMITS, ["tokens", "requests"], RATE])
    given = ask(pool, "b", START, batches=[[1]])
    assert (given["starts"], given["units"], given["rates"]) == ([], ["tokens", "requests"], both)
    assert [rate.missing(START) for rate in pool.rates] == [0, 90]


def test_successes_of_all_members_are_summed():
    pool = Pool()
    ask(pool, "a", successes=3)
    assert ask(pool, "b", successes=4)["successes"] == 7
