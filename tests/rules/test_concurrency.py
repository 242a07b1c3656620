"""Places inside, and how they shrink and grow back around throttling."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.rules.concurrency import ConcurrencyRule

SECOND = 1_000_000_000


def state(rule):
    return {name: getattr(rule, name) for name in ConcurrencyRule.__slots__}


def enter(rule):
    """What the layers do when nothing throttles."""
    if not rule.fits():
        return False
    rule.in_flight += 1
    return True


def enter_throttled(rule, episode):
    """What the layers do while throttled."""
    if not rule.fits_throttled(episode):
        return False
    rule.in_flight += 1
    rule.throttled_in_flight += 1
    return True


def leave(rule, *, throttled=False):
    rule.in_flight -= 1
    rule.throttled_in_flight -= throttled


def filled(rule, count):
    for _ in range(count):
        assert enter(rule)
    return rule


# -- places


def test_so_many_go_in_and_the_next_when_one_leaves():
    rule = ConcurrencyRule(3, None)
    assert [enter(rule) for _ in range(4)] == [True, True, True, False]
    assert not rule.fits()

    leave(rule)

    assert rule.fits()
    assert enter(rule)
    assert not enter(rule)
    assert rule.in_flight == 3


def test_without_a_limit_there_is_always_a_place():
    rule = filled(ConcurrencyRule(None, None), 10_000)

    assert rule.fits()
    assert enter_throttled(rule, 1)
    assert rule.in_flight == 10_001


def test_saying_no_changes_nothing():
    rule = filled(ConcurrencyRule(2, 1), 2)
    before = state(rule)

    assert not enter(rule)
    assert not enter_throttled(rule, 1)
    assert before == state(rule)


def test_a_lowered_limit_throws_nobody_out_and_lets_nobody_in():
    rule = filled(ConcurrencyRule(5, None), 5)
    rule.limit = 2

    refused = 0
    while rule.in_flight >= 2:
        assert not enter(rule)
        leave(rule)
        refused += 1

    assert refused == 4
    assert enter(rule)
    assert not enter(rule)


# -- places while throttled


def test_while_throttled_fewer_are_admitted_beside_those_who_are_in_already():
    """
    Limit 10, throttled 2: seven are inside from before; two more go in throttled, no third,
    until one of the two leaves. One of the seven leaving makes no room.
    """
    rule = filled(ConcurrencyRule(10, 2), 7)
    assert [enter_throttled(rule, 1) for _ in range(3)] == [True, True, False]
    assert (rule.in_flight, rule.throttled_in_flight) == (9, 2)

    leave(rule)
    assert not rule.fits_throttled(1)
    leave(rule, throttled=True)
    assert rule.fits_throttled(1)
    assert rule.throttled_places == 2


def test_the_limit_holds_while_throttled_too():
    rule = filled(ConcurrencyRule(3, 2), 2)

    assert [enter_throttled(rule, 1) for _ in range(2)] == [True, False]
    assert rule.in_flight == 3


def test_throttled_places_without_a_limit_hold_on_their_own():
    rule = filled(ConcurrencyRule(None, 2), 50)

    assert [enter_throttled(rule, 1) for _ in range(3)] == [True, True, False]
    assert enter(rule)


def test_with_no_throttled_limit_throttling_takes_no_place_away():
    rule = ConcurrencyRule(3, None)

    assert [enter_throttled(rule, 1) for _ in range(4)] == [True, True, True, False]
    assert rule.throttled_places is None
    assert not rule.regrowing


def test_those_admitted_while_throttled_keep_their_throttled_place_until_they_leave():
    """
    Throttled twice in a row: who went in the first time still counts the second time.
    """
    rule = ConcurrencyRule(10, 2)
    assert enter_throttled(rule, 1)
    assert enter(rule)
    assert enter_throttled(rule, 2)

    assert not enter_throttled(rule, 2)


# -- adaptive


def adaptive(limit, regrow=10 * SECOND):
    return ConcurrencyRule(limit, None, adaptive=True, regrow=regrow)


def test_an_episode_leaves_seventy_per_cent_of_the_places_to_everybody():
    """
    Limit 10, nine inside: an episode leaves seven, so nobody goes in until only six are.
    """
    rule = filled(adaptive(10), 9)
    assert not enter_throttled(rule, 1)
    assert rule.throttled_places == 7

    for inside in (8, 7):
        leave(rule)
        assert inside == rule.in_flight
        assert not enter_throttled(rule, 1)
    leave(rule)
    assert enter_throttled(rule, 1)
    assert not enter_throttled(rule, 1)


def test_one_episode_cuts_once_however_often_it_is_looked_at():
    rule = adaptive(100)
    for _ in range(50):
        rule.fits_throttled(1)
    assert rule.throttled_places == 70

    for _ in range(50):
        rule.fits_throttled(2)
    assert rule.throttled_places == 49


def test_episode_after_episode_leaves_at_least_one_place():
    rule = adaptive(10)
    places = []
    for episode in range(1, 9):
        rule.fits_throttled(episode)
        places.append(rule.throttled_places)

    assert places == [7, 4, 2, 1, 1, 1, 1, 1]
    assert enter_throttled(rule, 8)
    assert not enter_throttled(rule, 8)


def test_the_places_grow_back_evenly_after_the_throttling():
    """
    Limit 10 cut to 7; over ten seconds from its end at 5 s the three come back one by one.
    """
    rule = filled(adaptive(10), 7)
    assert not rule.fits_throttled(1)
    ended_at = 5 * SECOND
    assert rule.regrowing
    assert rule.grows_at(ended_at) == ended_at + 3_333_333_334

    assert not rule.fits_regrowing(ended_at, ended_at)
    assert not rule.fits_regrowing(ended_at + 3_333_333_333, ended_at)
    assert rule.fits_regrowing(ended_at + 3_333_333_334, ended_at)
    assert enter(rule)
    assert rule.grows_at(ended_at) == ended_at + 6_666_666_667
    assert not rule.fits_regrowing(ended_at + 6_666_666_666, ended_at)
    assert rule.fits_regrowing(ended_at + 6_666_666_667, ended_at)
    assert enter(rule)
    assert not rule.fits_regrowing(ended_at + 9_999_999_999, ended_at)
    assert rule.regrowing
    assert rule.fits_regrowing(ended_at + 10 * SECOND, ended_at)
    assert not rule.regrowing
    assert enter(rule)
    assert not enter(rule)
    assert rule.grows_at(ended_at) is None


def test_a_second_episode_cuts_what_had_grown_back_by_then():
    """
    100 cut to 70; half of the thirty are back when the next signal comes: 85 become 59.
    """
    rule = adaptive(100)
    rule.fits_throttled(1)
    assert rule.fits_regrowing(5 * SECOND, 0)
    rule.fits_throttled(2)

    assert rule.throttled_places == 59


def test_without_time_to_grow_back_the_places_are_back_at_once():
    rule = adaptive(10, regrow=0)
    rule.fits_throttled(1)

    assert rule.fits_regrowing(5, 5)
    assert not rule.regrowing


@given(
    st.integers(2, 1000),
    st.integers(1, 100 * SECOND),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.sampled_from([0, -(10**18), 10**18]),
)
@settings(deadline=None, max_examples=200)
def test_the_moment_it_names_is_the_first_at_which_there_is_room(limit, regrow, episodes, inside, ended_at):
    rule = adaptive(limit, regrow)
    for episode in range(1, episodes + 1):
        rule.fits_throttled(episode)
    ceiling = rule.throttled_places
    rule.in_flight = ceiling + inside % (limit - ceiling)

    at = rule.grows_at(ended_at)

    assert ended_at < at <= ended_at + regrow
    assert not rule.fits_regrowing(at - 1, ended_at)
    assert rule.fits_regrowing(at, ended_at)


@pytest.mark.parametrize("limit", [*range(1, 60), 100, 400, 1000])
def test_every_limit_grows_back_to_itself(limit):
    """
    No truncation may leave a limit short of what it was, nor raise it.
    """
    rule = adaptive(limit, regrow=1000)
    for episode in (1, 2, 3):
        rule.fits_throttled(episode)
    previous = rule.throttled_places
    assert previous == max(1, max(1, max(1, limit * 7 // 10) * 7 // 10) * 7 // 10)

    for now in range(0, 1001, 10):
        if rule.regrowing:
            rule.fits_regrowing(now, 0)
        assert previous <= rule.throttled_places <= limit
        previous = rule.throttled_places
    assert limit == rule.throttled_places
