"""RetryState and Allowance: what follows a failed attempt, and how many retries calls may make together."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.backoff import Backoff
from headgate.retries.policy import RetryPolicy
from headgate.retries.state import Allowance, Failure, RetryState, Stop, Wait, spread_retry_after

SECOND = 1_000_000_000
STEADY = Backoff(1, 60)


def state_of(backoff, max_retries, now=0, **options):
    return RetryState(RetryPolicy(max_retries, backoff=backoff, **options), "ask", now)


def decide(state, now=0, random=0.5, spend=None, **facts):
    return state.decide(Failure(TimeoutError(), **facts), now, random, spend)


# -- the number of retries, and their delays


def test_after_max_retries_the_call_stops():
    state = state_of(Backoff(10, 10, strategy="constant"), 2)
    assert [decide(state).delay for _ in range(2)] == [10 * SECOND] * 2
    assert decide(state).why == "no retries are left"
    assert state.retries == 2


def test_max_retries_of_zero_stops_after_the_first_attempt():
    assert decide(state_of(STEADY, 0)).why == "retries are off"


def test_without_max_retries_the_millionth_delay_is_the_cap():
    state = state_of(STEADY, None)
    state.retries = 1_000_000
    assert decide(state).delay == 60 * SECOND


def test_decorrelated_delays_follow_from_the_delay_before():
    state = state_of(Backoff(1, 60, jitter="decorrelated"), None)
    delays = [decide(state, random=1.0).delay for _ in range(5)]
    assert delays == [3 * SECOND, 9 * SECOND, 27 * SECOND, 60 * SECOND, 60 * SECOND]


# -- the values that a decision is


def test_a_wait_carries_the_event_of_the_retry():
    state = state_of(STEADY, 5)
    decide(state)
    error = TimeoutError()
    decision = state.decide(Failure(error), 7 * SECOND, 0.5)
    assert isinstance(decision, Wait)
    event = decision.event
    assert (event.key, event.at, event.retry, event.max_retries, event.delay) == ("ask", 7.0, 2, 5, 2.0)
    assert event.error is error


def test_a_wait_that_a_gate_holds_has_no_delay_of_its_own():
    state = state_of(STEADY, 5)
    decision = decide(state, held=True)
    assert (decision.delay, decision.event.delay, decision.event.retry) == (0, 0.0, 1)
    assert decision.held
    later = decide(state)
    assert (later.delay, later.held) == (2 * SECOND, False)


def test_a_stop_names_the_error_and_the_number_of_calls():
    state = state_of(STEADY, 1)
    decide(state)
    error = TimeoutError()
    decision = state.decide(Failure(error), 0, 0.5)
    assert isinstance(decision, Stop)
    assert decision.error is error
    assert decision.calls == 2
    decision.annotate()
    decision.annotate()
    assert error.__notes__ == ["headgate: gave up after 2 calls: no retries are left"]


def test_an_error_that_is_not_to_be_retried_stops_without_a_note():
    decision = decide(state_of(STEADY, 3), again=False)
    decision.annotate()
    assert decision.why == ""
    assert not hasattr(decision.error, "__notes__")


@pytest.mark.parametrize(
    ("facts", "delay"),
    [
        ({"again": False}, SECOND),
        ({"spend": lambda: False}, SECOND),
        ({"now": 3 * SECOND}, None),
    ],
    ids=["not to be retried", "no retry budget", "deadline"],
)
def test_a_stop_knows_the_delay_unless_a_limit_forbids_any(facts, delay):
    state = state_of(STEADY, 3, deadline=3)
    assert decide(state, **facts).delay == delay


# -- whether an attempt may have been carried out


def test_an_attempt_that_may_have_run_is_not_repeated_if_that_is_not_idempotent():
    why = "it may have been carried out, and doing it twice is not allowed"
    assert decide(state_of(STEADY, 3, idempotent=False), may_have_run=True).why == why
    assert isinstance(decide(state_of(STEADY, 3, idempotent=False)), Wait)
    assert isinstance(decide(state_of(STEADY, 3), may_have_run=True), Wait)


# -- the retry budget


def test_the_retry_budget_is_asked_last_and_once_for_each_retry():
    spent = []

    def spend():
        spent.append(1)
        return len(spent) < 2

    state = state_of(STEADY, 3, idempotent=False, deadline=10)
    decide(state, again=False, spend=spend)
    decide(state, may_have_run=True, spend=spend)
    decide(state, now=10 * SECOND, spend=spend)
    assert spent == []
    assert isinstance(decide(state, spend=spend), Wait)
    assert decide(state, spend=spend).why == "the retry budget is used up"
    assert (len(spent), state.retries) == (2, 1)


def test_a_stop_changes_nothing():
    state = state_of(Backoff(1, 60, jitter="decorrelated"), 3, deadline=100)
    decide(state, random=1.0)
    before = dict(vars(state))
    decide(state, again=False)
    decide(state, spend=lambda: False)
    decide(state, now=100 * SECOND)
    assert vars(state) == before


# -- Retry-After


@pytest.mark.parametrize(("retry_after", "delay"), [(123, 123), (0, 1), (0.5, 1)])
def test_a_retry_after_lengthens_a_delay_even_beyond_the_cap_and_never_shortens_it(retry_after, delay):
    decision = decide(state_of(Backoff(1, 10), 3), random=0.0, retry_after=int(retry_after * SECOND))
    assert decision.delay == delay * SECOND


@given(st.integers(0, 10**18), st.floats(0, 1, exclude_max=True))
def test_jitter_adds_a_little_to_a_retry_after_and_never_shortens_it(retry_after, draw):
    later = spread_retry_after(retry_after, draw)
    assert retry_after <= later <= retry_after + 30 * SECOND
    assert later <= 2.1 * retry_after


def test_callers_with_the_same_retry_after_return_at_different_moments():
    moments = {spread_retry_after(30 * SECOND, step / 1000) for step in range(1000)}
    assert len(moments) == 1000
    assert max(moments) - min(moments) > SECOND


@given(
    st.sampled_from(["none", "full", "decorrelated", ("factor", 0.25), ("range", 0.5, 1.5)]),
    st.integers(0, 10**14),
    st.floats(0, 1, exclude_max=True),
)
def test_no_kind_of_jitter_makes_a_delay_shorter_than_retry_after(jitter, retry_after, draw):
    state = state_of(Backoff(1, 60, jitter=jitter), None)
    assert decide(state, random=draw, retry_after=retry_after).delay >= retry_after


@pytest.mark.parametrize("draw", [-1.0, -0.001])
def test_a_draw_below_zero_does_not_shorten_a_retry_after(draw):
    assert spread_retry_after(30 * SECOND, draw) >= 30 * SECOND


# -- the deadline


@pytest.mark.parametrize("start", [0, -7 * SECOND, 10**18])
def test_an_attempt_at_the_deadline_itself_is_allowed_and_none_after_it(start):
    state = state_of(STEADY, 3, now=start, deadline=5)
    late = decide(state, now=start + 4 * SECOND + 1)
    assert isinstance(late, Stop)
    assert "deadline" in late.why
    assert decide(state, now=start + 4 * SECOND).delay == SECOND


def test_a_retry_after_beyond_the_deadline_stops_at_once():
    assert "deadline" in decide(state_of(STEADY, 3, deadline=5), retry_after=6 * SECOND).why


def test_left_is_the_time_until_the_deadline():
    state = state_of(STEADY, 3, now=10, deadline=1e-7)
    assert [state.left(now) for now in (10, 109, 110, 111)] == [100, 1, 0, 0]
    assert state_of(STEADY, 3).left(10**18) is None


def test_a_deadline_in_the_past_is_reported_as_zero_seconds():
    assert decide(state_of(STEADY, 3, deadline=1), now=50 * SECOND).why == (
        "the next try, in 1.00 s, would be after the deadline in 0.00 s"
    )


# -- progress_timeout


def test_progress_timeout_counts_from_the_last_progress():
    state = state_of(Backoff(1, 1, strategy="constant"), None, progress_timeout=10)
    assert decide(state, now=0).delay == SECOND
    assert decide(state, now=9 * SECOND + 1).why == "nothing has got any further for 9.00 s"
    assert decide(state, now=9 * SECOND).delay == SECOND
    state.progress(8 * SECOND)
    assert isinstance(decide(state, now=17 * SECOND + 1), Stop)
    assert decide(state, now=17 * SECOND).delay == SECOND


# -- Allowance


def sends(ratio, burst, calls, max_retries, fails, draws=None):
    """(sent, rescued, failed at first): attempts that reach the far side, and calls that a retry saved."""
    allowance = Allowance(ratio, burst)
    sent = rescued = at_first = 0
    for _ in range(calls):
        allowance.earn()
        sent += 1
        if not fails(draws):
            continue
        at_first += 1
        for _ in range(max_retries):
            if not allowance.spend():
                break
            sent += 1
            if not fails(draws):
                allowance.refund()
                rescued += 1
                break
    return sent, rescued, at_first


def always(_draws):
    return True


def three_in_ten(draws):
    return draws.random() < 0.3


@pytest.mark.parametrize("calls", [50, 100, 1_000, 10_000])
@pytest.mark.parametrize("max_retries", [1, 3, 100])
def test_when_everything_fails_a_ratio_of_a_fifth_allows_exactly_a_fifth_more(calls, max_retries):
    sent, _, _ = sends((1, 5), 10, calls, max_retries, always)
    assert sent == calls + calls // 5


@pytest.mark.parametrize("calls", [1, 5, 10, 49])
def test_a_few_calls_may_use_the_whole_burst(calls):
    sent, _, _ = sends((1, 5), 10, calls, 100, always)
    assert sent == calls + 10


@pytest.mark.parametrize("calls", [1_000, 10_000])
def test_when_everything_fails_a_ratio_of_a_tenth_allows_exactly_a_tenth_more(calls):
    sent, _, _ = sends((1, 10), 10, calls, 3, always)
    assert sent <= calls * Fraction(11, 10) + 10
    assert sent == calls + calls // 10


@pytest.mark.parametrize("number", range(5))
def test_when_three_in_ten_fail_retries_save_four_fifths_of_them(number):
    sent, rescued, at_first = sends((1, 5), 10, 10_000, 3, three_in_ten, random.Random(number))
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
def test_failed_retries_never_exceed_the_ratio_of_calls_or_the_burst(wanted, burst, ratio):
    allowance = Allowance((ratio.numerator, ratio.denominator), burst)
    retries = 0
    for calls, want in enumerate(wanted, 1):
        allowance.earn()
        retries += sum(allowance.spend() for _ in range(want))
        assert retries <= max(burst, calls * ratio)


def test_a_refunded_retry_costs_nothing():
    allowance = Allowance((1, 5), 3)
    for _ in range(1_000):
        assert allowance.spend()
        allowance.refund()
    assert allowance.available() == 3


def test_successful_calls_save_up_no_more_than_the_burst():
    allowance = Allowance((1, 5), 10)
    for _ in range(100_000):
        allowance.earn()
    assert allowance.available() == 10
    assert sum(allowance.spend() for _ in range(1_000)) == 10
