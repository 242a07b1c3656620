"""Concurrency: places for calls in flight, and how they shrink and grow back around throttling."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.gate.slots import ConcurrencyRule

SECOND = 1_000_000_000


def state(rule):
    return {name: getattr(rule, name) for name in ConcurrencyRule.__slots__}


def enter(rule):
    """Enter as a gate's rules do when no window is active."""
    if not rule.fits():
        return False
    rule.in_flight += 1
    return True


def enter_throttled(rule):
    """Enter as a gate's rules do while throttled."""
    if not rule.fits_throttled():
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


def test_calls_enter_up_to_the_limit_and_the_next_one_when_a_call_leaves():
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
    assert enter_throttled(rule)
    assert rule.in_flight == 10_001


def test_a_refusal_changes_nothing():
    rule = filled(ConcurrencyRule(2, 1), 2)
    before = state(rule)

    assert not enter(rule)
    assert not enter_throttled(rule)
    assert before == state(rule)


def test_a_lowered_limit_keeps_the_calls_that_are_in_and_admits_no_new_ones():
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


def test_while_throttled_fewer_calls_are_admitted_beside_those_already_in_flight():
    """
    Limit 10, throttled 2: seven calls are in flight from before; two more enter throttled, but
    no third until one of the two leaves. One of the seven leaving makes no room.
    """
    rule = filled(ConcurrencyRule(10, 2), 7)
    assert [enter_throttled(rule) for _ in range(3)] == [True, True, False]
    assert (rule.in_flight, rule.throttled_in_flight) == (9, 2)

    leave(rule)
    assert not rule.fits_throttled()
    leave(rule, throttled=True)
    assert rule.fits_throttled()
    assert rule.throttled_places(0) == 2


def test_the_limit_holds_while_throttled_too():
    rule = filled(ConcurrencyRule(3, 2), 2)

    assert [enter_throttled(rule) for _ in range(2)] == [True, False]
    assert rule.in_flight == 3


def test_throttled_places_hold_without_an_ordinary_limit():
    rule = filled(ConcurrencyRule(None, 2), 50)

    assert [enter_throttled(rule) for _ in range(3)] == [True, True, False]
    assert enter(rule)


def test_with_no_throttled_limit_throttling_takes_no_place_away():
    rule = ConcurrencyRule(3, None)

    assert [enter_throttled(rule) for _ in range(4)] == [True, True, True, False]
    assert rule.throttled_places(0) is None


def test_a_call_admitted_while_throttled_keeps_its_throttled_place_until_it_leaves():
    """
    Throttled twice in a row: a call admitted the first time still counts the second time.
    """
    rule = ConcurrencyRule(10, 2)
    assert enter_throttled(rule)
    assert enter(rule)
    assert enter_throttled(rule)

    assert not enter_throttled(rule)


# -- adaptive


def adaptive(limit, regrow=10 * SECOND):
    return ConcurrencyRule(limit, None, adaptive=True, regrow=regrow)


def test_before_any_episode_all_places_are_there():
    rule = filled(adaptive(3), 2)

    assert rule.in_force(-(10**18)) == 3
    assert rule.fits_regrowing(0)
    assert enter(rule)
    assert not rule.fits_regrowing(0)
    assert rule.grows_at() is None


def test_places_that_were_never_cut_do_not_grow():
    assert adaptive(10).grows_at() is None
    assert filled(ConcurrencyRule(None, 3), 2).grows_at() is None
    rule = adaptive(10)
    rule.hear(1, 0, 5)
    assert filled(rule, 6).grows_at() == 5  # there is room already


def test_places_grow_back_at_once_unless_a_time_for_it_is_given():
    rule = ConcurrencyRule(10, None, adaptive=True)
    rule.hear(1, 0, 5)

    assert rule.in_force(4) == 7
    assert rule.in_force(5) == 10


def test_an_episode_leaves_seventy_per_cent_of_the_places():
    """
    Limit 10, nine in flight: an episode leaves seven, so no call enters until only six are left.
    """
    rule = filled(adaptive(10), 9)
    rule.hear(1, 0, 5)
    assert not enter_throttled(rule)
    assert rule.throttled_places(0) == 7

    for inside in (8, 7):
        leave(rule)
        assert inside == rule.in_flight
        assert not enter_throttled(rule)
    leave(rule)
    assert enter_throttled(rule)
    assert not enter_throttled(rule)


@pytest.mark.parametrize("granted", [0, 4, 20])
def test_places_that_a_store_grants_after_an_episode_are_cut_in_proportion(granted):
    """A process without callers holds few places when the episode begins; then its callers come."""
    rule = adaptive(granted)
    rule.hear(1, 0, 100)
    rule.limit = 100
    assert rule.throttled_places(50) == 70
    assert filled(rule, 69).fits_throttled()
    assert rule.in_force(100 + 5 * SECOND) == 85
    rule.in_flight = 70
    assert rule.grows_at() == 100 + -(-10 * SECOND // 30)


@pytest.mark.parametrize(("granted", "left"), [(8, 1), (9, 1), (10, 1), (100, 16)])
def test_other_places_that_a_store_grants_leave_all_cuts_in_force(granted, left):
    """Nine places after five cuts leave one: 16.8 % of any number of places."""
    rule = adaptive(9)
    for episode in range(1, 6):
        rule.hear(episode, episode, 100)
    assert rule.throttled_places(50) == 1
    rule.limit = granted
    assert rule.throttled_places(50) == left
    assert filled(rule, left - 1).fits_throttled()
    assert not filled(rule, 1).fits_throttled()


@pytest.mark.parametrize("granted", [10, 9, 7, 4, 2, 1])
def test_fewer_places_that_a_store_grants_leave_no_more_than_more_places_did(granted):
    rule = adaptive(10)
    for episode in range(1, 4):
        rule.hear(episode, episode, 100)
    assert rule.throttled_places(50) == 2
    rule.limit = granted
    assert rule.throttled_places(50) in (1, 2)


@pytest.mark.parametrize(("probes", "left"), [(0, 25), (1, 25), (4, 25), (10, 10), (20, 5)])
def test_cuts_that_have_left_one_place_leave_as_large_a_part_of_more_places(probes, left):
    """While an API is down a process holds few places, and each of its probes that fails is an episode."""
    rule = adaptive(probes)
    for episode in range(1, 30):
        rule.hear(episode, episode, 100)
    rule.limit = 100
    assert rule.throttled_places(50) == left


def test_what_grew_back_between_two_cuts_is_part_of_what_they_leave_of_other_places():
    rule = adaptive(4)
    rule.hear(1, 0, SECOND)
    rule.hear(2, 6 * SECOND, 20 * SECOND)
    rule.limit = 100
    assert rule.throttled_places(19 * SECOND) == 59


def test_a_signal_while_no_place_is_granted_cuts_once_and_forgets_no_cut():
    """Without a lease a process has no place. What it is granted next is cut once for each episode."""
    rule = adaptive(20)
    rule.limit = 0
    assert rule.throttled_places(0) == 0
    rule.hear(1, 0, 100)
    rule.hear(1, 0, 100)
    assert rule.throttled_places(50) == 0
    assert not rule.fits_throttled()
    rule.limit = 20
    assert rule.throttled_places(50) == 14
    rule.limit = 0
    rule.hear(2, 50, 200)
    rule.limit = 20
    assert rule.throttled_places(60) == 9
    assert rule.in_force(200 + 10 * SECOND) == 20


def test_places_that_are_granted_where_nothing_was_cut_are_all_there():
    rule = adaptive(0)
    rule.limit = 20
    assert rule.throttled_places(0) == 20
    assert filled(rule, 19).fits_throttled()


def test_one_episode_cuts_once_however_often_it_is_signalled():
    rule = adaptive(100)
    for now in range(50):
        rule.hear(1, 0, 100)
        assert rule.throttled_places(now) == 70

    for now in range(50, 100):
        rule.hear(2, 50, 150)
        assert rule.throttled_places(now) == 49


def test_episode_after_episode_leaves_at_least_one_place():
    rule = adaptive(10)
    places = []
    for episode in range(1, 9):
        rule.hear(episode, episode, 1000)
        places.append(rule.throttled_places(episode))

    assert places == [7, 4, 2, 1, 1, 1, 1, 1]
    assert enter_throttled(rule)
    assert not enter_throttled(rule)


def test_places_grow_back_evenly_after_the_throttling():
    """
    Limit 10 cut to 7; over ten seconds from its end at 5 s the three come back one by one.
    """
    rule = filled(adaptive(10), 7)
    ended_at = 5 * SECOND
    rule.hear(1, 0, ended_at)
    assert not rule.fits_throttled()
    assert rule.grows_at() == ended_at + 3_333_333_334

    assert not rule.fits_regrowing(ended_at)
    assert not rule.fits_regrowing(ended_at + 3_333_333_333)
    assert rule.fits_regrowing(ended_at + 3_333_333_334)
    assert enter(rule)
    assert rule.grows_at() == ended_at + 6_666_666_667
    assert not rule.fits_regrowing(ended_at + 6_666_666_666)
    assert rule.fits_regrowing(ended_at + 6_666_666_667)
    assert enter(rule)
    assert not rule.fits_regrowing(ended_at + 9_999_999_999)
    assert rule.fits_regrowing(ended_at + 10 * SECOND)
    assert enter(rule)
    assert not enter(rule)
    assert rule.grows_at() is None


def test_an_episode_that_lasts_longer_puts_off_growing_back():
    rule = adaptive(10)
    rule.hear(1, 0, 5 * SECOND)
    rule.hear(1, 0, 8 * SECOND)

    assert rule.in_force(8 * SECOND) == 7
    assert rule.in_force(13 * SECOND) == 8
    assert rule.in_force(18 * SECOND) == 10


def test_a_second_episode_cuts_what_had_grown_back_when_it_began():
    """
    100 cut to 70; half of the thirty are back when the next signal comes: 85 become 59,
    whenever that is heard of.
    """
    rule = adaptive(100)
    rule.hear(1, 0, SECOND)
    rule.hear(2, 6 * SECOND, 20 * SECOND)

    assert rule.throttled_places(6 * SECOND) == 59
    assert rule.throttled_places(19 * SECOND) == 59


def test_what_had_grown_back_counts_from_the_end_of_the_episode_before_if_that_is_known():
    """
    The window of the first episode ended at 2 s, later than was heard: by 6 s the thirty are back by 40 %.
    """
    rule = adaptive(100)
    rule.hear(1, 0, SECOND)
    rule.hear(2, 6 * SECOND, 20 * SECOND, before=2 * SECOND)

    assert rule.throttled_places(6 * SECOND) == 82 * 7 // 10


def test_places_are_whole_numbers_however_often_they_were_cut_and_granted_anew():
    rule = adaptive(100)
    for episode in range(1, 12):
        rule.limit = 7 * episode
        rule.hear(episode, episode * 3 * SECOND, episode * 3 * SECOND + 1)
        assert all(type(number) in (int, bool, type(None)) for number in state(rule).values())


def test_without_time_to_grow_back_the_places_are_back_at_once():
    rule = adaptive(10, regrow=0)
    rule.hear(1, 0, 5)

    assert rule.in_force(5) == 10


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_asking_about_places_changes_nothing(limit):
    rule = adaptive(limit)
    rule.hear(1, 0, 5)
    before = state(rule)
    for now in (-1, 0, 5, SECOND, 20 * SECOND):
        rule.in_force(now)
        rule.fits_regrowing(now)
        rule.fits_throttled()
        rule.throttled_places(now)

    assert before == state(rule)


@given(
    st.integers(2, 1000),
    st.integers(1, 100 * SECOND),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.sampled_from([0, -(10**18), 10**18]),
)
@settings(deadline=None, max_examples=200)
def test_the_earliest_moment_is_the_first_at_which_there_is_room(limit, regrow, episodes, inside, ended_at):
    rule = adaptive(limit, regrow)
    for episode in range(1, episodes + 1):
        rule.hear(episode, ended_at - 1, ended_at)
    ceiling = rule.throttled_places(ended_at)
    rule.in_flight = ceiling + inside % (limit - ceiling)

    at = rule.grows_at()

    assert ended_at < at <= ended_at + regrow
    assert not rule.fits_regrowing(at - 1)
    assert rule.fits_regrowing(at)


@pytest.mark.parametrize("limit", [*range(1, 60), 100, 400, 1000])
def test_every_limit_grows_back_to_itself(limit):
    """
    Truncation must leave no limit below or above what it was.
    """
    rule = adaptive(limit, regrow=1000)
    for episode in (1, 2, 3):
        rule.hear(episode, -1, 0)
    places = [rule.in_force(now) for now in range(-5, 1006)]

    assert places[0] == max(1, max(1, max(1, limit * 7 // 10) * 7 // 10) * 7 // 10)
    assert places == sorted(places)
    assert limit == places[-6] == places[-1]
