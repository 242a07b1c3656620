"""What a Dispatch learns from responses: windows, rates and levels."""

import threading

import pytest

from headgate import Dispatch, Rate, WaitTimeout
from headgate import events as ev
from headgate.dispatch.learning import Learner
from headgate.http import read_signal
from headgate.light import LazyModule
from headgate.testing import ManualClock, Recorder
from patience import PATIENCE

RATE_LIMITED = '{"error": {"code": "rate_limit_exceeded", "message": "slow"}}'


def api(clock, **options):
    return Dispatch("api", clock=clock, random=lambda: 0.0, **options)


def headers(limit=None, remaining=None, reset=None, unit="requests"):
    said = {"limit": limit, "remaining": remaining, "reset": reset}
    return {f"x-ratelimit-{kind}-{unit}": str(value) for kind, value in said.items() if value is not None}


def test_a_429_starts_a_window_of_the_duration_it_asked_for():
    clock = ManualClock(100, auto_advance=True)
    dispatch = api(clock, pause=True)
    dispatch.observe(read_signal(429, {"retry-after": "7"}), sent_at=99)
    assert dispatch.window.remaining == 7.0
    with pytest.raises(WaitTimeout), dispatch.admit(timeout=0.5):
        pass


def test_the_window_of_a_429_is_a_little_longer_so_that_processes_come_back_apart():
    clock = ManualClock()
    dispatch = Dispatch("api", clock=clock, random=lambda: 1.0)
    dispatch.observe(read_signal(429, {"retry-after": "20"}))
    assert dispatch.window.remaining == 20.2


def test_a_retry_after_of_zero_starts_a_short_window():
    dispatch = api(ManualClock())
    dispatch.observe(read_signal(429, {"retry-after": "0"}))
    assert dispatch.window.remaining == 0.01


def test_a_hundred_refusals_of_one_burst_are_one_episode():
    clock = ManualClock(10)
    dispatch = api(clock, concurrency=100, throttled_concurrency="adaptive", rates="auto")
    for k in range(100):
        dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=9 + k / 1000)
        clock.advance(0.001)
    assert dispatch.snapshot().throttled_concurrency == 70
    assert dispatch.snapshot().rates[0].limit == 300


def test_refusals_without_a_time_start_longer_windows_each_time_until_a_call_goes_well():
    clock = ManualClock(10)
    dispatch = Dispatch("api", clock=clock, random=lambda: 0.5)
    waits = []
    for _ in range(9):
        dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=clock.seconds())
        waits.append(round(dispatch.window.remaining, 3))
        clock.advance(dispatch.window.remaining + 1)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0]
    dispatch.observe(read_signal(200, {}), sent_at=clock.seconds())
    clock.advance(1)
    dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=clock.seconds())
    assert dispatch.window.remaining == 0.1


def test_a_call_that_goes_well_ends_the_pause_at_once():
    clock = ManualClock(10)
    dispatch = api(clock, pause=True)
    for sent_at in (10, 11, 12, 13):
        dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=sent_at)
        clock.advance(1)
    clock.advance(1)
    dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=14.5)
    assert dispatch.try_admit() is None
    dispatch.observe(read_signal(200, {}), sent_at=14.2)
    assert not dispatch.snapshot().backoff_active
    dispatch.try_admit().settle()


def test_during_an_episode_single_calls_go_and_the_line_waits():
    clock = ManualClock(10)
    dispatch = api(clock, rates=["100/s"])
    dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=9.9)
    assert dispatch.try_admit() is None
    clock.advance(0.1)
    dispatch.try_admit().settle()
    assert dispatch.try_admit() is None
    assert dispatch.snapshot().rates[0].limit == 100


def test_one_failure_of_the_api_holds_no_call_back_and_three_in_a_row_do():
    clock = ManualClock(10)
    dispatch = api(clock)
    for sent_at in (9.1, 9.2):
        dispatch.observe(read_signal(503, {}), sent_at=sent_at)
    dispatch.observe(read_signal(200, {}), sent_at=9.3)
    for sent_at in (9.4, 9.5):
        dispatch.observe(read_signal(502, {}), sent_at=sent_at)
        assert not dispatch.snapshot().backoff_active
    dispatch.observe(read_signal(200, {}), sent_at=9.0)  # it was sent before the API failed
    dispatch.observe(read_signal(503, {}), sent_at=9.6)
    assert dispatch.window.remaining == 0.5
    assert dispatch.try_admit() is None
    clock.advance(0.5)
    dispatch.try_admit().settle()
    dispatch.observe(read_signal(503, {}), sent_at=10.5)
    assert dispatch.window.remaining == 0.5


def test_probes_of_an_outage_go_every_half_second_at_first_and_then_after_a_quarter_of_the_time_it_lasted():
    clock = ManualClock(10)
    dispatch = api(clock)
    for sent_at in (9.7, 9.8, 9.9):
        dispatch.observe(read_signal(503, {}), sent_at=sent_at)
    pauses = []
    while len(pauses) < 30:
        pauses.append(dispatch.window.remaining)
        clock.advance(pauses[-1])
        permit = dispatch.try_admit()
        dispatch.observe(read_signal(503, {}), sent_at=clock.seconds())
        permit.settle()
    assert pauses[:12] == [0.5] * 12
    assert pauses[12:14] == [2.0, 2.5]
    assert pauses[-1] == 30
    dispatch.observe(read_signal(200, {}), sent_at=clock.seconds())
    assert not dispatch.snapshot().backoff_active


def admitted_at_once(dispatch):
    permits = []
    while (permit := dispatch.try_admit()) is not None:
        permits.append(permit)
    for permit in permits:
        permit.settle()
    return len(permits)


def test_before_the_first_response_a_sixteenth_of_a_burst_that_was_not_configured_goes_at_once():
    dispatch = api(ManualClock(10), rates="3200/s", concurrency=None)
    dispatch.expect_delay(0.001)
    assert admitted_at_once(dispatch) == 200
    dispatch.observe(read_signal(200, {}), sent_at=10)
    assert admitted_at_once(dispatch) >= 2900


def test_before_the_first_response_all_of_a_configured_burst_goes_at_once():
    dispatch = api(ManualClock(10), rates="3200/s burst 100", concurrency=None)
    dispatch.expect_delay(0.0001)
    assert admitted_at_once(dispatch) == 99  # one less, since calls may arrive in another order


def test_a_refusal_as_the_first_response_does_not_let_the_rest_of_a_burst_go():
    clock = ManualClock(10)
    dispatch = api(clock, rates="3200/s", concurrency=None)
    dispatch.expect_delay(0.001)
    assert admitted_at_once(dispatch) == 200
    dispatch.observe(read_signal(429, {"retry-after-ms": "20"}, RATE_LIMITED), sent_at=10)
    clock.advance(0.021)
    dispatch.observe(read_signal(200, {}), sent_at=10.02)
    assert admitted_at_once(dispatch) <= 70


def test_a_retry_after_of_milliseconds_shows_that_a_longer_reset_is_that_of_a_bucket():
    """The bucket of the API is smaller than its limit, so the reset alone looks like that of a window."""
    clock = ManualClock(10)
    dispatch = api(clock, rates="3000/minute", pause=True)
    said = headers(limit=3000, remaining=0, reset="0.98s") | {"retry-after-ms": "19"}
    dispatch.observe(read_signal(429, said, RATE_LIMITED), sent_at=9.99)
    clock.advance(0.1)
    assert dispatch.try_admit() is not None


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"code": "insufficient_quota"}}',
        '{"error": {"code": "rate_limit_exceeded", "message": "Request too large: Limit 10, Requested 20"}}',
    ],
)
def test_an_exhausted_account_and_a_request_that_is_too_large_start_no_window(body):
    """Waiting would not help, and other calls are not concerned."""
    dispatch = api(ManualClock(), rates="auto")
    dispatch.observe(read_signal(429, {}, body))
    assert not dispatch.snapshot().backoff_active
    assert dispatch.snapshot().rates[0].limit == 600


def test_an_overload_cuts_concurrency_and_not_the_rate():
    clock = ManualClock(5)
    dispatch = api(clock, concurrency=100, throttled_concurrency="adaptive", rates="auto")
    overloaded = '{"type": "error", "error": {"type": "overloaded_error"}}'
    dispatch.observe(read_signal(529, {"retry-after": "1"}, overloaded), sent_at=4)
    assert dispatch.snapshot().throttled_concurrency == 70
    assert dispatch.snapshot().rates[0].limit == 600


def test_an_exhausted_quota_without_a_time_starts_a_window_of_a_minute_or_more():
    dispatch = Dispatch("api", clock=ManualClock(5), random=lambda: 0.5)
    dispatch.observe(read_signal(429, {}, '{"error": {"code": "quota_exceeded"}}'), sent_at=4)
    assert dispatch.window.remaining >= 60


@pytest.mark.parametrize("rates", [["100/s"], ["6000/minute strict"], "auto"])
def test_a_remaining_of_zero_pauses_admission_until_the_reset_without_any_429(rates):
    clock = ManualClock(auto_advance=True)
    dispatch = api(clock, rates=rates)
    dispatch.observe(read_signal(200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "3"}))
    assert not dispatch.snapshot().backoff_active
    assert dispatch.try_admit() is None
    with dispatch.admit():
        assert clock.seconds() == 3.0


def test_a_remaining_of_zero_starts_a_window_where_no_rate_counts_it():
    clock = ManualClock()
    dispatch = api(clock, pause=True)
    dispatch.observe(read_signal(200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "3"}))
    assert dispatch.window.remaining == 3.0


def test_an_empty_bucket_admits_the_next_call_long_before_it_is_full():
    clock = ManualClock()
    dispatch = api(clock, rates="auto")
    for used in (15, 30, 60):
        dispatch.observe(read_signal(200, headers(60, 60 - used, f"{used}s")))
    dispatch.observe(read_signal(200, headers(60, 0, "60s")))
    clock.advance(1)
    dispatch.try_admit().settle()


def test_a_stated_remaining_lowers_the_level_and_never_raises_it_above_a_configured_burst():
    clock = ManualClock()
    dispatch = api(clock, rates=["600/minute burst 50"])
    dispatch.observe(read_signal(200, headers(600, 20, "58s")))
    assert dispatch.snapshot().rates[0].level == 20
    dispatch.observe(read_signal(200, headers(600, 400, "20s")))
    assert dispatch.snapshot().rates[0].level == 50
    for _ in range(50):
        dispatch.try_admit().settle()
    dispatch.observe(read_signal(200, headers(600, 600, "0s")))
    assert dispatch.try_admit() is None


def test_a_stated_remaining_is_used_where_no_burst_is_configured():
    clock = ManualClock(10)
    dispatch = api(clock, rates=["600/minute"])
    for _ in range(10):
        dispatch.try_admit().settle()
    assert dispatch.try_admit() is None
    dispatch.observe(read_signal(200, headers(600, 590, "1s")), sent_at=10)
    # Which of the ten calls the API had counted is not known: perhaps none but the one that it answered.
    assert dispatch.snapshot().rates[0].level == 580
    assert dispatch.snapshot().rates[0].burst == 580


def test_what_was_sent_since_the_answered_call_is_taken_off_what_remains():
    clock = ManualClock(10)
    dispatch = api(clock, rates=["600/minute"])
    dispatch.try_admit().settle()
    dispatch.observe(read_signal(200, headers(600, 599, "100ms")), sent_at=10)
    clock.advance(1)
    dispatch.observe(read_signal(200, headers(600, 599, "100ms")), sent_at=11)
    for _ in range(100):
        dispatch.try_admit().settle()
    clock.advance(0.001)
    dispatch.observe(read_signal(200, headers(600, 598, "200ms")), sent_at=11)
    assert 490 <= dispatch.snapshot().rates[0].level <= 499


def test_an_answer_to_an_older_call_raises_no_level():
    clock = ManualClock(10)
    dispatch = api(clock, rates=["600/minute"])
    for _ in range(10):
        dispatch.try_admit().settle()
    dispatch.observe(read_signal(200, headers(600, 3, "59s")), sent_at=10)
    dispatch.observe(read_signal(200, headers(600, 590, "1s")), sent_at=9)
    assert dispatch.snapshot().rates[0].level <= 3


def test_a_stated_limit_below_the_configured_one_is_obeyed_at_once_and_restored():
    clock = ManualClock()
    seen = Recorder()
    dispatch = api(clock, rates=["600/minute"], observer=seen)
    dispatch.observe(read_signal(200, headers(300, 299, "200ms")))
    assert dispatch.snapshot().rates[0].limit == 300
    dispatch.observe(read_signal(200, headers(600, 599, "100ms")))
    assert dispatch.snapshot().rates[0].limit == 600
    assert [event.rates for event in seen.of(ev.Retuned)] == [
        ("300 requests/minute burst 5",),
        ("600 requests/minute burst 10",),
    ]


def test_auto_uses_the_limits_stated_in_headers_for_every_unit():
    dispatch = api(ManualClock(), rates="auto")
    said = headers(600, 599, "100ms") | headers(90_000, 89_000, "1s", unit="tokens")
    dispatch.observe(read_signal(200, said))
    assert [(level.unit, level.limit) for level in dispatch.snapshot().rates] == [
        ("requests", 600),
        ("tokens", 90_000),
    ]
    dispatch.try_admit(tokens=500).settle()


def test_threads_that_observe_the_first_responses_at_once_learn_together(monkeypatch):
    """What learns is made when the first response teaches something: of two that are made one is kept."""
    both, made = threading.Barrier(2), []

    def learner(*given):
        made.append(given)
        both.wait(PATIENCE)
        return Learner(*given)

    monkeypatch.setattr("headgate.dispatch.learning.Learner", learner)
    monkeypatch.setattr("headgate.dispatch.dispatch.learning", LazyModule("headgate.dispatch.learning"))
    dispatch = api(ManualClock(), rates=["600/minute", "90_000 tokens/minute"])
    told = [headers(60, 59, "1s"), headers(9_000, 8_000, "1s", unit="tokens")]
    threads = [
        threading.Thread(target=lambda said=said: dispatch.observe(read_signal(200, said))) for said in told
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(made) == 2
    assert [level.limit for level in dispatch.snapshot().rates] == [60, 9_000]


def test_responses_to_calls_sent_before_the_newest_one_are_ignored():
    clock = ManualClock(10)
    dispatch = api(clock, rates="auto")
    dispatch.observe(read_signal(200, headers(300, 299)), sent_at=9)
    dispatch.observe(read_signal(200, headers(600, 0, "60s")), sent_at=8)
    assert dispatch.snapshot().rates[0].limit == 300
    dispatch.try_admit().settle()


def test_set_rates_ends_the_learning_of_rates():
    clock = ManualClock()
    dispatch = api(clock, rates="auto")
    dispatch.set_rates(["10/s"])
    dispatch.observe(read_signal(429, {}, RATE_LIMITED))
    assert [level.name for level in dispatch.snapshot().rates] == [Rate(10, 1).name]
    assert dispatch.snapshot().rates[0].limit == 10


def test_what_remains_of_a_lower_limit_goes_through_a_strict_rate():
    """A strict 60/minute hears that 29 of 30 remain: 29 more calls go in that minute."""
    dispatch = api(ManualClock(), rates=["60/minute strict"])
    dispatch.try_admit().settle()
    dispatch.observe(read_signal(200, headers(30, 29, "2s")))
    admitted = 0
    while (permit := dispatch.try_admit()) is not None:
        permit.settle()
        admitted += 1
    assert admitted == 29


def test_a_share_of_a_quota_that_is_partly_used_holds_no_call_back():
    clock = ManualClock(10)
    dispatch = api(clock, rates=["600/minute"], pause=True)
    told = {
        "anthropic-ratelimit-unified-5h-utilization": "0.37",
        "anthropic-ratelimit-unified-5h-reset": "18000",
    }
    dispatch.observe(read_signal(200, told), sent_at=10)
    assert dispatch.snapshot().rates[0].limit == 600
    assert dispatch.snapshot().rates[0].level == 10
    assert not dispatch.snapshot().backoff_active


def test_a_limit_that_turns_out_to_be_one_for_hours_is_no_longer_one_for_a_minute():
    dispatch = api(ManualClock(10), rates=["600/minute"])
    dispatch.observe(read_signal(200, headers(100, 99, "30s")))
    assert dispatch.snapshot().rates[0].limit == 100
    dispatch.observe(read_signal(200, headers(100, 98, "3000s")))
    assert dispatch.snapshot().rates[0].limit == 600


def test_a_limit_for_a_second_is_recognised_by_what_comes_back():
    clock = ManualClock(10)
    dispatch = api(clock, rates="auto")
    for remaining in (9, 5, 1):
        dispatch.observe(read_signal(200, headers(10, remaining, "1s")))
    clock.advance(1)
    dispatch.observe(read_signal(200, headers(10, 9, "1s")))
    assert dispatch.snapshot().rates[0].name == "requests/second"


def test_limits_that_go_down_and_up_do_not_let_more_through_than_a_configured_burst():
    clock = ManualClock(10)
    dispatch = api(clock, rates=[Rate(20, 1, burst=50)], concurrency=None, throttled_concurrency=None)
    for _ in range(50):
        dispatch.try_admit().settle()
    for limit in (1, 100):
        clock.advance(0.001)
        dispatch.observe(read_signal(200, headers(limit, 1000)))
    assert dispatch.try_admit() is None


@pytest.mark.parametrize("stated", [True, False])
def test_a_stated_wait_and_a_backoff_of_the_user_end_the_single_calls_of_an_episode(stated):
    clock = ManualClock(10)
    dispatch = api(clock, pause=True)
    dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=9.9)
    clock.advance(0.3)
    dispatch.try_admit().settle()
    clock.advance(0.01)
    if stated:
        dispatch.observe(read_signal(429, {"retry-after": "60"}), sent_at=10.3)
    else:
        dispatch.set_backoff(60)
    clock.advance(59)
    assert dispatch.try_admit() is None
    clock.advance(2)
    dispatch.try_admit().settle()


def test_rates_are_not_held_until_the_end_of_a_window_that_was_cleared():
    clock = ManualClock(10)
    dispatch = api(clock, rates=["600/minute"], pause=True)
    dispatch.observe(read_signal(429, {}, RATE_LIMITED), sent_at=9.9)
    dispatch.set_backoff(600)
    clock.advance(1)
    assert dispatch.try_admit() is None
    dispatch.observe(read_signal(200, {}), sent_at=10.5)
    dispatch.window.clear()
    dispatch.try_admit().settle()


@pytest.mark.parametrize("pause", [True, False])
def test_a_newer_answer_that_says_that_something_remains_lets_calls_go_again(pause):
    clock = ManualClock(10)
    dispatch = api(clock, rates=["600/minute"], pause=pause)
    dispatch.observe(read_signal(200, headers(None, 0, "3500s")), sent_at=10)
    assert dispatch.try_admit() is None
    clock.advance(0.1)
    dispatch.observe(read_signal(200, headers(None, 4999, "3499s")), sent_at=10.1)
    dispatch.try_admit().settle()


def test_without_pause_a_used_up_window_of_the_api_throttles_calls():
    clock = ManualClock(10)
    dispatch = api(clock, throttled_concurrency=2)
    told = headers(600, 0, "60s") | {"retry-after": "60"}
    dispatch.observe(read_signal(429, told, RATE_LIMITED), sent_at=9.9)
    clock.advance(1)
    permits = [dispatch.try_admit() for _ in range(3)]
    assert [permit is not None for permit in permits] == [True, True, False]


def test_a_stated_limit_that_changes_a_little_does_not_hide_refusals():
    """Two servers of one API state 600 and 606 in turn, while 200 a minute are really left."""
    clock = ManualClock()
    dispatch = Dispatch("api", rates="auto", pause=True, clock=clock)
    level, sent, refused = 200 / 6, 0, 0
    for _ in range(3_000):
        clock.advance(0.1)
        level = min(200 / 6, level + 200 / 600)
        while (permit := dispatch.try_admit()) is not None:
            sent += 1
            limit = (600, 606)[sent % 2]
            stated = {
                "x-ratelimit-limit-requests": str(limit),
                "x-ratelimit-remaining-requests": str(limit * 3 // 4),
                "x-ratelimit-reset-requests": "15s",
            }
            status = 200 if level >= 1 else 429
            level -= status == 200
            refused += status == 429
            permit.settle()
            dispatch.observe(read_signal(status, stated), sent_at=clock.seconds())
    assert sent - refused > 900
    assert refused < 0.05 * sent
