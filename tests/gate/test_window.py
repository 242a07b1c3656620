"""When a backoff window is active, which signals are one episode, and how calls come back after it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.gate.window import Reentry, Window

SECOND = 1_000_000_000


def facts(window):
    return {name: getattr(window, name) for name in Window.__slots__}


# -- the end


def test_a_window_that_was_never_set_is_not_active():
    window = Window()

    for now in (-(10**18), 0, 10**18):
        assert not window.active(now)
    assert window.until is None
    assert not window.ended(0)
    assert not window.clear(0)


@pytest.mark.parametrize("start", [0, -5, -10 * SECOND, 10**18])
def test_a_window_is_not_active_at_the_instant_of_its_end(start):
    """
    Also for a window that ends at moment 0 or before.
    """
    window = Window()
    assert window.set(10 * SECOND, start) == "set"

    assert window.active(start)
    assert window.active(start + 10 * SECOND - 1)
    assert not window.active(start + 10 * SECOND)


def test_an_end_only_moves_later():
    window = Window()
    assert window.set(10, 0) == "set"
    assert window.set(5, 2) is None
    assert window.set(8, 2) is None
    assert window.until == 10
    assert window.set(9, 2) == "extended"
    assert window.until == 11
    assert window.set(1, 11) == "set"
    assert window.until == 12


def test_the_generation_grows_with_every_signal_that_moved_the_end():
    window = Window()
    generations = []
    for duration, now in [(10, 0), (5, 1), (20, 2), (20, 2), (1, 50)]:
        window.set(duration, now)
        generations.append(window.generation)

    assert generations == [1, 1, 2, 2, 3]


def test_the_ceiling_shortens_only_longer_durations():
    window = Window(ceiling=100)
    window.set(99, 0)
    assert window.until == 99
    window.set(10**18, 0)
    assert window.until == 100
    window.set(10**18, 30)
    assert window.until == 130


def test_a_window_of_no_length_is_never_active():
    window = Window()
    window.set(0, 5)

    assert not window.active(5)
    assert not window.ended(5)
    assert window.until == 5


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=40), st.integers(1, 25))
@settings(deadline=None, max_examples=100)
def test_the_end_is_the_latest_that_any_signal_asked_for(signals, ceiling):
    window, now, latest = Window(ceiling), 0, None
    for gap, duration in signals:
        now += gap
        before = window.until
        answer = window.set(duration, now)
        end = now + min(duration, ceiling)
        latest = end if latest is None else max(latest, end)
        assert latest == window.until
        assert (answer is None) == (before == window.until)
        assert (answer == "extended") == (before != window.until and before is not None and now < before)


# -- clearing


def test_a_cleared_window_has_ended_and_may_start_again_with_an_earlier_end():
    window = Window()
    window.set(100, 0)
    assert window.clear(10)
    assert not window.active(10)
    assert not window.clear(10)
    assert not window.ended(200)

    assert window.set(5, 11) == "set"
    assert window.until == 16


def test_a_clear_for_an_older_signal_does_not_undo_a_newer_one():
    window = Window()
    window.set(100, 0)
    seen = window.generation
    window.set(200, 1)
    before = facts(window)

    assert not window.clear(2, generation=seen)
    assert before == facts(window)
    assert window.clear(2, generation=seen + 1)
    assert not window.active(2)


def test_a_window_that_has_ended_cannot_be_cleared():
    window = Window()
    window.set(10, 0)
    before = facts(window)

    assert not window.clear(10)
    assert before == facts(window)


def test_the_end_of_a_window_is_noticed_once():
    window = Window()
    window.set(10, 0)
    assert not window.ended(9)
    window.set(10, 5)
    assert not window.ended(14)
    assert window.ended(15)
    assert not window.ended(16)

    window.set(10, 20)
    assert window.ended(99)
    assert not window.ended(99)


# -- episodes


def test_a_hundred_refusals_of_one_burst_are_one_episode():
    """
    A hundred calls sent from 0 to 99 ms are refused from 100 ms on: all of them were sent
    before the first refusal started the window.
    """
    window = Window()
    for k in range(100):
        window.set(SECOND, 100 + k, sent_at=k)

    assert window.episode == 1
    assert window.generation == 100


def test_refusals_of_calls_sent_in_the_instant_the_window_started_are_the_same_episode():
    """
    On a clock that stands still (a virtual one, or a coarse one) a burst is sent, refused
    and answered in one instant. None of its calls was sent after the episode began.
    """
    window = Window()
    for _ in range(100):
        window.set(SECOND, 5, sent_at=5)

    assert window.episode == 1


def test_a_refusal_of_a_call_sent_after_the_last_episode_began_begins_another_episode():
    """
    Also while the window is active, and also if its end does not move.
    """
    window = Window()
    window.set(1000, 100, sent_at=50)
    window.set(1000, 110, sent_at=99)
    assert window.episode == 1
    assert window.set(10, 120, sent_at=101) is None
    assert window.episode == 2
    window.set(10, 125, sent_at=119)
    assert window.episode == 2


def test_a_window_knows_when_the_episode_before_ended():
    window = Window()
    window.set(10, 100)
    assert window.before is None
    window.set(10, 105)
    assert window.before is None
    window.set(10, 200)
    assert window.before == 115
    window.set(10, 205, sent_at=204)
    assert window.before == 210


def test_a_late_refusal_of_an_old_call_begins_no_episode_though_the_window_has_ended():
    window = Window()
    window.set(10, 100, sent_at=50)
    assert window.set(10, 500, sent_at=60) == "set"

    assert window.episode == 1
    assert window.active(505)


def test_a_signal_without_a_call_begins_an_episode_unless_the_window_is_active():
    window = Window()
    for now, episode in [(0, 1), (5, 1), (9, 1), (19, 2), (100, 3)]:
        window.set(10, now)
        assert episode == window.episode, now


# -- coming back after the window


def let_in(reentry, now, waiting):
    """Admit each waiting call as soon as it may go; return the moments."""
    moments = []
    while waiting:
        now = max(now, reentry.earliest(now, waiting))
        assert reentry.earliest(now, waiting) <= now
        reentry.take()
        waiting -= 1
        moments.append(now)
    return moments


def test_without_a_window_all_waiting_calls_go_at_once():
    assert let_in(Reentry(Window(), 10 * SECOND), 7, 5) == [7] * 5


def test_waiting_calls_go_one_by_one_from_the_end_of_the_window():
    """
    Five calls waited for a window that ends at 10 s; over the next ten seconds one goes every two.
    """
    window = Window()
    window.set(10 * SECOND, 0)

    moments = let_in(Reentry(window, 10 * SECOND), 0, 5)

    assert moments == [10 * SECOND, 12 * SECOND, 14 * SECOND, 16 * SECOND, 18 * SECOND]


def test_without_a_spread_all_waiting_calls_go_at_the_end():
    window = Window()
    window.set(10, 0)

    assert let_in(Reentry(window, 0), 3, 4) == [10] * 4


@given(
    st.integers(1, 500),
    st.integers(1, 10**11),
    st.integers(0, 10**11),
    st.sampled_from([0, -(10**18), -3, 10**18]),
)
@settings(deadline=None, max_examples=100)
def test_waiting_calls_are_spread_evenly_and_none_goes_early(crowd, spread, duration, start):
    window = Window()
    window.set(duration, start)
    end = start + duration

    moments = let_in(Reentry(window, spread), start, crowd)

    assert moments[0] == end
    for k, moment in enumerate(moments):
        assert end <= moment < end + spread
        assert abs(moment - end - k * spread / crowd) <= 1 + spread / 2**50


def test_ten_thousand_waiting_calls_come_back_at_an_even_rate():
    """
    Over ten seconds, in no tenth of a second more than 1.1 times their share.
    """
    window = Window()
    window.set(SECOND, 0)
    moments = let_in(Reentry(window, 10 * SECOND), 0, 10_000)

    per_slot = [0] * 120
    for moment in moments:
        per_slot[moment // (SECOND // 10)] += 1
    assert max(per_slot) <= 110
    assert sum(per_slot[:10]) == 0


def test_a_call_that_joins_while_others_come_back_goes_last():
    """
    Two calls waited; a third joins as they come back: 10 s, 15 s, and the third at 20 s.
    """
    window = Window()
    window.set(10, 0)
    reentry = Reentry(window, 10)
    assert reentry.earliest(10, 2) == 10
    reentry.take()

    assert reentry.earliest(11, 2) == 15
    reentry.take()
    assert reentry.earliest(15, 1) == 20
    assert reentry.earliest(20, 1) == 20


def test_a_call_that_joins_after_the_only_one_that_waited_goes_at_the_end_of_the_spread():
    window = Window()
    window.set(10, 0)
    reentry = Reentry(window, 10)
    assert let_in(reentry, 0, 1) == [10]

    assert reentry.earliest(11, 1) == 20


def test_after_the_spread_no_call_is_held_back():
    window = Window()
    window.set(10, 0)
    reentry = Reentry(window, 10)
    assert reentry.earliest(10, 100) == 10

    assert let_in(reentry, 20, 100) == [20] * 100


def test_a_window_that_starts_again_spreads_its_waiting_calls_anew():
    window = Window()
    window.set(10, 0)
    reentry = Reentry(window, 10)
    assert let_in(reentry, 0, 4)[:2] == [10, 12]

    window.set(10, 13)

    assert reentry.earliest(14, 2) == 23
    assert let_in(reentry, 14, 2) == [23, 28]


def test_calls_come_back_from_a_cleared_window_from_the_instant_of_the_clear():
    window = Window()
    window.set(100, 0)
    reentry = Reentry(window, 10)
    assert reentry.earliest(5, 2) == 100
    window.clear(6)

    assert let_in(reentry, 6, 2) == [6, 11]
