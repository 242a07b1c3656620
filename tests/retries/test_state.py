"""Again, when, or stop: the pure part of SPEC parts 9 to 11 and ALGORITHMS 2g."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.backoff import Backoff
from headgate.retries.state import Allowance, Attempts, after_told

SECOND = 1_000_000_000
STEADY = Backoff(1, 60)


def facts(rule):
    return {name: getattr(rule, name) for name in type(rule).__slots__}


# -- how many, and how long in between


def test_so_many_retries_and_no_more():
    """RT-08: two retries of ten seconds each, then stop."""
    attempts = Attempts(Backoff(10, 10, strategy="constant"), 2, now=0)
    for _ in range(2):
        wait = attempts.again(0, 0.5, None)
        assert wait == 10 * SECOND
        attempts.retry(wait)
    assert attempts.again(0, 0.5, None) == "no retries are left"
    assert attempts.retries == 2


def test_retries_that_are_off():
    """D-38."""
    assert Attempts(STEADY, 0, now=0).again(0, 0.5, None) == "retries are off"


def test_without_a_limit_there_is_always_another_try():
    """RT-01, D-33: at retry one million the wait is the cap."""
    attempts = Attempts(STEADY, None, now=0)
    attempts.retries = 1_000_000
    assert attempts.again(0, 0.5, None) == 60 * SECOND


def test_to_ask_changes_nothing():
    attempts = Attempts(Backoff(1, 60, jitter="decorrelated"), 3, now=0, deadline=100 * SECOND)
    attempts.retry(5 * SECOND)
    before = facts(attempts)
    answers = {attempts.again(SECOND, 0.25, None) for _ in range(10)}
    assert len(answers) == 1
    assert facts(attempts) == before


def test_decorrelated_waits_go_by_the_wait_before():
    attempts = Attempts(Backoff(1, 60, jitter="decorrelated"), None, now=0)
    waits = []
    for _ in range(5):
        waits.append(attempts.again(0, 1.0, None))
        attempts.retry(waits[-1])
    assert waits == [3 * SECOND, 9 * SECOND, 27 * SECOND, 60 * SECOND, 60 * SECOND]


# -- what the far side said


def test_the_far_side_is_not_asked_earlier_than_it_said():
    """RT-04, RT-08, D-80: 123 told is 123, above any cap."""
    attempts = Attempts(Backoff(1, 10), 3, now=0)
    assert attempts.again(0, 0.0, 123 * SECOND) == 123 * SECOND
    assert attempts.again(0, 0.0, 0) == SECOND
    assert attempts.again(0, 0.0, SECOND // 2) == SECOND


@given(st.integers(0, 10**18), st.floats(0, 1, exclude_max=True))
def test_with_jitter_it_is_asked_a_little_later_and_never_earlier(told, draw):
    """D-32, D-80: not everybody who was told the same comes back together, and nobody much later."""
    later = after_told(told, draw)
    assert told <= later <= told + 30 * SECOND
    assert later <= 2.1 * told


def test_those_who_were_told_the_same_come_back_spread():
    """B5."""
    moments = {after_told(30 * SECOND, step / 1000) for step in range(1000)}
    assert len(moments) == 1000
    assert max(moments) - min(moments) > SECOND


@given(
    st.sampled_from(["none", "full", "decorrelated", ("factor", 0.25), ("range", 0.5, 1.5)]),
    st.integers(0, 10**14),
    st.floats(0, 1, exclude_max=True),
)
def test_whatever_the_jitter_no_try_is_earlier_than_told(jitter, told, draw):
    attempts = Attempts(Backoff(1, 60, jitter=jitter), None, now=0)
    assert attempts.again(0, draw, told) >= told


@pytest.mark.parametrize("draw", [-1.0, -0.001])
def test_dice_that_are_wrong_do_not_bring_the_try_forward(draw):
    """D-80, R-7: never earlier than told. Backoff.delay takes a draw below 0 for 0."""
    assert after_told(30 * SECOND, draw) >= 30 * SECOND


# -- the deadline


@pytest.mark.parametrize("start", [0, -7 * SECOND, 10**18])
def test_a_try_at_the_deadline_itself_may_be_made_and_none_after_it(start):
    """D-35, RT-05: strictly after."""
    attempts = Attempts(STEADY, 3, now=start, deadline=5 * SECOND)
    assert attempts.again(start + 4 * SECOND, 0.5, None) == SECOND
    refused = attempts.again(start + 4 * SECOND + 1, 0.5, None)
    assert isinstance(refused, str)
    assert "deadline" in refused


def test_a_wait_that_was_told_counts_against_the_deadline():
    """D-35, D-80: it says so at once, and does not come back early instead."""
    attempts = Attempts(STEADY, 3, now=0, deadline=5 * SECOND)
    assert "deadline" in attempts.again(0, 0.5, 6 * SECOND)


def test_how_long_is_left():
    attempts = Attempts(STEADY, 3, now=10, deadline=100)
    assert [attempts.left(now) for now in (10, 109, 110, 111)] == [100, 1, 0, 0]
    assert Attempts(STEADY, 3, now=0).left(10**18) is None


def test_a_deadline_that_is_past_is_said_in_words():
    attempts = Attempts(STEADY, 3, now=0, deadline=SECOND)
    assert attempts.again(50 * SECOND, 0.5, None) == (
        "the next try, in 1.00 s, would be after the deadline in 0.00 s"
    )


# -- progress


def test_without_progress_it_stops_and_with_progress_it_goes_on():
    """D-37, RT-06, RH-03."""
    attempts = Attempts(
        Backoff(1, 1, strategy="constant"), None, now=0, deadline=None, progress_timeout=10 * SECOND
    )
    attempts.retry(SECOND)
    assert attempts.again(9 * SECOND, 0.5, None) == SECOND
    assert attempts.again(9 * SECOND + 1, 0.5, None) == "nothing has got any further for 9.00 s"
    attempts.progress(8 * SECOND)
    assert attempts.again(17 * SECOND, 0.5, None) == SECOND
    assert isinstance(attempts.again(17 * SECOND + 1, 0.5, None), str)


# -- the allowance


def sends(ratio, burst, calls, max_retries, fails, dice=None):
    """(sent, rescued, failed at first): what reaches the far side when calls fail like this."""
    allowance = Allowance(ratio, burst)
    sent = rescued = at_first = 0
    for _ in range(calls):
        allowance.earn()
        sent += 1
        if not fails(dice):
            continue
        at_first += 1
        for _ in range(max_retries):
            if not allowance.spend():
                break
            sent += 1
            if not fails(dice):
                allowance.refund()
                rescued += 1
                break
    return sent, rescued, at_first


def always(_dice):
    return True


def three_in_ten(dice):
    return dice.random() < 0.3


@pytest.mark.parametrize("calls", [50, 100, 1_000, 10_000])
@pytest.mark.parametrize("max_retries", [1, 3, 100])
def test_when_everything_fails_a_fifth_is_retried(calls, max_retries):
    """M10, D-40: 1.2 sends per request, to the last one."""
    sent, _, _ = sends((1, 5), 10, calls, max_retries, always)
    assert sent == calls + calls // 5


@pytest.mark.parametrize("calls", [1, 5, 10, 49])
def test_a_few_calls_may_use_the_burst(calls):
    sent, _, _ = sends((1, 5), 10, calls, 100, always)
    assert sent == calls + 10


@pytest.mark.parametrize("calls", [1_000, 10_000])
def test_a_tenth_is_a_tenth(calls):
    """D-40."""
    sent, _, _ = sends((1, 10), 10, calls, 3, always)
    assert sent <= calls * Fraction(11, 10) + 10
    assert sent == calls + calls // 10


@pytest.mark.parametrize("seed", range(5))
def test_when_three_in_ten_fail_most_are_rescued(seed):
    """M10."""
    sent, rescued, at_first = sends((1, 5), 10, 10_000, 3, three_in_ten, random.Random(seed))
    assert rescued >= 0.8 * at_first
    assert sent <= 10_000 + at_first * 3


@given(st.lists(st.sampled_from(["earn", "spend", "refund"]), max_size=300), st.integers(1, 20))
@settings(max_examples=50)
def test_an_allowance_is_never_overdrawn_and_never_above_its_burst(moves, burst):
    allowance = Allowance((1, 5), burst)
    for move in moves:
        could = allowance.available()
        result = getattr(allowance, move)()
        assert 0 <= allowance.available() <= burst
        if move == "spend":
            assert result == (could > 0)
            assert allowance.available() == could - result


@given(
    st.lists(st.integers(0, 4), max_size=300), st.integers(1, 20), st.fractions(Fraction(1, 100), Fraction(3))
)
def test_retries_that_fail_are_a_part_of_the_calls_or_the_burst(wanted, burst, ratio):
    """D-40: at every moment, whatever the pattern."""
    allowance = Allowance((ratio.numerator, ratio.denominator), burst)
    retries = 0
    for calls, want in enumerate(wanted, 1):
        allowance.earn()
        retries += sum(allowance.spend() for _ in range(want))
        assert retries <= max(burst, calls * ratio)


def test_a_retry_that_helped_is_free():
    allowance = Allowance((1, 5), 3)
    for _ in range(1_000):
        assert allowance.spend()
        allowance.refund()
    assert allowance.available() == 3


def test_calls_that_succeed_save_up_no_more_than_the_burst():
    allowance = Allowance((1, 5), 10)
    for _ in range(100_000):
        allowance.earn()
    assert allowance.available() == 10
    assert sum(allowance.spend() for _ in range(1_000)) == 10
