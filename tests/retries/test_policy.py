"""RetryPolicy: which failures are retried, idempotence, deadlines, progress, and bad arguments."""

from datetime import timedelta

import aiohttp
import httpx
import pytest
import requests

from headgate import (
    Backoff,
    CapacityExhausted,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    retry,
    retry_with_backoff,
    retrying,
)
from headgate.testing import ManualClock
from retries.forms import FarSide, notes, run_loop
from retries.http_errors import ADDRESS, httpx_error

# -- exceptions


class Passing(Exception):
    """An exception that is worth a retry, because it has a retry_after."""

    retry_after = 0


@pytest.mark.parametrize(
    "error", [ValueError("temperature"), KeyError("x"), TypeError(), ZeroDivisionError(), PermissionError()]
)
def test_errors_of_the_program_are_not_retried_by_default(ask, error):
    """One call, no delay, and nothing is added to the error."""
    far = FarSide(error)
    outcome = ask(far)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(error) == []


@pytest.mark.parametrize(
    "kind", [ConnectionResetError, ConnectionRefusedError, BrokenPipeError, TimeoutError, Passing]
)
def test_lost_connections_and_timeouts_are_retried_by_default(ask, kind):
    far = FarSide(kind)
    ask(far)
    assert far.calls == 4


@pytest.mark.parametrize("exceptions", [KeyError, (KeyError,), (ValueError, KeyError), LookupError])
def test_exceptions_lists_the_only_types_that_are_retried(ask, exceptions):
    """Subclasses are included; anything else is not retried, not even a timeout."""
    far = FarSide(KeyError("x"))
    ask(far, exceptions=exceptions)
    assert far.calls == 4
    far = FarSide(TimeoutError())
    outcome = ask(far, exceptions=exceptions)
    assert (far.calls, outcome.at, notes(outcome.error)) == (1, 0.0, [])


def test_a_retry_that_fails_with_an_unlisted_exception_raises_it(ask):
    last = ValueError("final")
    far = FarSide(KeyError("x"), last)
    outcome = ask(far, exceptions=KeyError)
    assert outcome.error is last
    assert far.calls == 2
    assert notes(last) == []


def test_exceptions_may_list_every_exception(ask):
    far = FarSide(ZeroDivisionError)
    ask(far, exceptions=Exception)
    assert far.calls == 4


def test_exceptions_may_be_empty(ask):
    far = FarSide(TimeoutError)
    ask(far, exceptions=())
    assert far.calls == 1


def test_a_predicate_that_is_always_true_is_bounded_by_max_retries(ask):
    far = FarSide(ValueError)
    ask(far, exceptions=lambda error: True)
    assert far.calls == 4


def test_a_predicate_is_asked_about_each_exception(ask):
    seen = []

    def temporary(error):
        seen.append(error)
        return error.args == ("again",)

    errors = [ValueError("again"), ValueError("again"), ValueError("enough")]
    far = FarSide(*errors)
    outcome = ask(far, exceptions=temporary)
    assert seen == errors
    assert outcome.error is errors[2]
    assert far.calls == 3


def test_a_refusal_by_headgate_is_retried_only_if_it_is_listed(ask):
    """Then its own retry_after counts."""

    def refused():
        raise CapacityExhausted("nothing left", rule="requests/minute", retry_after=20.0)

    far = FarSide(refused)
    ask(far)
    assert far.calls == 1
    far = FarSide(refused, "hello")
    assert ask(far, exceptions=CapacityExhausted, jitter=False).result == "hello"
    assert far.waits == [20.0]


# -- idempotent


@pytest.mark.parametrize("status", [500, 502, 504, 409])
def test_with_idempotent_false_a_post_that_may_have_run_is_not_retried(ask, http_error, status):
    error = http_error(status, method="POST")
    far = FarSide(error)
    outcome = ask(far, idempotent=False)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(error) == [
        "headgate: gave up after 1 call: it may have been carried out, and doing it twice is not allowed"
    ]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_with_idempotent_false_an_idempotent_method_is_retried(ask, error_with_request, method):
    far = FarSide(error_with_request(500, method=method))
    ask(far, idempotent=False)
    assert far.calls == 4


def test_with_idempotent_false_a_post_with_an_idempotency_key_is_retried(ask, error_with_request):
    far = FarSide(error_with_request(500, method="POST", sent={"Idempotency-Key": "8e03978e"}))
    ask(far, idempotent=False)
    assert far.calls == 4


@pytest.mark.parametrize("status", [429, 503, 529])
def test_with_idempotent_false_a_post_that_was_turned_away_is_retried(ask, http_error, status):
    far = FarSide(http_error(status, method="POST"))
    ask(far, idempotent=False)
    assert far.calls == 4


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ConnectionRefusedError(), 4),
        (ConnectionResetError(), 1),
        (TimeoutError(), 1),
        (httpx.ConnectError("refused", request=httpx.Request("POST", ADDRESS)), 4),
        (httpx.ReadTimeout("slow", request=httpx.Request("POST", ADDRESS)), 1),
        (httpx.ReadTimeout("slow", request=httpx.Request("GET", ADDRESS)), 4),
        (httpx.ReadTimeout("slow"), 1),
        (requests.ConnectTimeout("slow"), 4),
        (requests.ReadTimeout("slow", request=requests.Request("POST", ADDRESS).prepare()), 1),
        (requests.ReadTimeout("slow", request=requests.Request("GET", ADDRESS).prepare()), 4),
        (aiohttp.ServerDisconnectedError(), 1),
        (aiohttp.ConnectionTimeoutError(), 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_with_idempotent_false_only_errors_before_sending_are_retried(ask, error, calls):
    far = FarSide(error)
    ask(far, idempotent=False)
    assert far.calls == calls


def test_idempotent_false_also_holds_for_listed_exceptions(ask):
    """`exceptions` says what is worth a retry, not what is safe."""
    far = FarSide(ConnectionResetError())
    ask(far, exceptions=ConnectionError, idempotent=False)
    assert far.calls == 1


def test_by_default_a_post_that_may_have_run_is_retried(ask, http_error):
    far = FarSide(http_error(500, method="POST"))
    ask(far)
    assert far.calls == 4


# -- deadline


def test_no_attempt_starts_after_the_deadline_and_no_delay_leads_past_it(ask):
    """The delays are 1, 2 and 4: the fourth attempt would start at 7."""
    error = TimeoutError()
    far = FarSide(TimeoutError(), TimeoutError(), error)
    outcome = ask(far, deadline=6.5)
    assert far.asked_at == [0.0, 1.0, 3.0]
    assert outcome.at == 3.0
    assert outcome.error is error
    assert notes(error) == [
        "headgate: gave up after 3 calls: the next try, in 4.00 s, would be after the deadline in 3.50 s"
    ]


def test_an_attempt_at_the_deadline_itself_is_made(ask):
    far = FarSide(TimeoutError)
    ask(far, deadline=7)
    assert far.asked_at == [0.0, 1.0, 3.0, 7.0]


def test_the_duration_of_attempts_counts_towards_the_deadline(ask):
    far = FarSide(TimeoutError, takes=10.0)
    outcome = ask(far, deadline=30)
    assert far.asked_at == [0.0, 11.0, 23.0]
    assert outcome.at == 33.0


def test_a_success_after_the_deadline_is_a_success(ask):
    """The deadline only stops further attempts."""
    far = FarSide("late", takes=100.0)
    assert ask(far, deadline=5).result == "late"
    far = FarSide(TimeoutError(), "late", takes=4.5)
    assert ask(far, deadline=6).result == "late"
    assert far.calls == 2


def test_a_retry_after_beyond_the_deadline_gives_up_at_once(ask):
    far = FarSide(httpx_error(429, {"Retry-After": "30"}))
    outcome = ask(far, deadline=20)
    assert (far.calls, outcome.at) == (1, 0.0)
    assert "deadline" in notes(outcome.error)[0]


def test_a_deadline_of_zero_is_one_call(ask):
    far = FarSide(TimeoutError)
    ask(far, deadline=0)
    assert far.calls == 1


def test_a_deadline_may_be_a_timedelta_and_the_only_limit(ask, quiet):
    far = FarSide(TimeoutError)
    outcome = ask(far, max_retries=None, deadline=timedelta(hours=1))
    assert outcome.at <= 3600.0
    assert far.calls > 80


def test_a_deadline_counts_from_the_start_of_each_call():
    clock = ManualClock(auto_advance=True)
    far = FarSide(TimeoutError)
    far.clock = clock
    guarded = retry(deadline=3, jitter=False, clock=clock)(far)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            guarded()
        clock.advance(1_000)
    assert far.calls == 9


# -- progress_timeout


def test_progress_timeout_gives_up_a_job_without_progress(kind):
    """Ten seconds for an attempt and one in between: the fourth would start after 33."""
    tries = []

    def body(attempt, clock):
        tries.append(clock.seconds())
        clock.advance(10)
        raise ConnectionResetError

    error, _ = run_loop(
        kind, body, max_retries=None, backoff=Backoff(1, strategy="constant"), progress_timeout=30
    )
    assert tries == [0.0, 11.0, 22.0]
    assert isinstance(error, ConnectionResetError)
    assert notes(error) == ["headgate: gave up after 3 calls: nothing has got any further for 32.00 s"]


def test_attempt_progress_keeps_a_job_going(kind):
    tries = []

    def body(attempt, clock):
        tries.append(clock.seconds())
        clock.advance(10)
        attempt.progress()
        if len(tries) < 20:
            raise ConnectionResetError

    error, moment = run_loop(
        kind, body, max_retries=None, backoff=Backoff(1, strategy="constant"), progress_timeout=30
    )
    assert error is None
    assert len(tries) == 20
    assert moment == 219.0


def test_a_late_success_without_progress_is_a_success(kind):
    error, moment = run_loop(kind, lambda attempt, clock: clock.advance(1_000), progress_timeout=5)
    assert (error, moment) == (None, 1_000.0)


# -- bad arguments


BAD = [
    ({"max_retries": -1}, InvalidCapacity, "max_retries=-1"),
    ({"max_retries": 1.5}, InvalidCapacity, "max_retries=1.5"),
    ({"max_retries": "3"}, InvalidCapacity, "max_retries='3'"),
    ({"max_retries": True}, InvalidCapacity, "max_retries=True"),
    ({"base_delay": 0}, InvalidWindow, "base_delay=0"),
    ({"base_delay": -1}, InvalidWindow, "base_delay=-1"),
    ({"base_delay": float("nan")}, InvalidWindow, "base_delay=nan"),
    ({"base_delay": "1"}, InvalidWindow, "base_delay='1'"),
    ({"base_delay": None}, InvalidWindow, "base_delay=None"),
    ({"max_delay": -1}, InvalidWindow, "max_delay=-1"),
    ({"max_delay": 0.5}, InvalidWindow, "max_delay=0.5"),
    ({"max_delay": float("inf")}, InvalidWindow, "max_delay=inf"),
    ({"exponential_base": 0.5}, InvalidConfig, "=0.5"),
    ({"exponential_base": float("nan")}, InvalidConfig, "=nan"),
    ({"exponential_base": "2"}, InvalidConfig, "='2'"),
    ({"deadline": -1}, InvalidWindow, "deadline=-1"),
    ({"deadline": float("nan")}, InvalidWindow, "deadline=nan"),
    ({"deadline": "5"}, InvalidWindow, "deadline='5'"),
    ({"exceptions": "TimeoutError"}, InvalidConfig, "exceptions='TimeoutError'"),
    ({"exceptions": [TimeoutError]}, InvalidConfig, "exceptions=["),
    ({"exceptions": (TimeoutError, "x")}, InvalidConfig, "exceptions=("),
    ({"exceptions": KeyboardInterrupt}, InvalidConfig, "exceptions="),
    ({"exceptions": BaseException}, InvalidConfig, "exceptions="),
    ({"exceptions": (ValueError, SystemExit)}, InvalidConfig, "exceptions="),
    ({"exceptions": int}, InvalidConfig, "exceptions="),
    ({"exceptions": 7}, InvalidConfig, "exceptions=7"),
    ({"retry_budget": 0.2}, InvalidConfig, "retry_budget=0.2"),
    ({"on_retry": "print"}, InvalidConfig, "on_retry='print'"),
    ({"backoff": 1.0}, InvalidConfig, "backoff=1.0"),
]


@pytest.mark.parametrize(("options", "error", "says"), BAD, ids=lambda value: str(value)[:40])
def test_bad_arguments_raise_before_the_function_is_called(ask, options, error, says):
    far = FarSide("hello")
    outcome = ask(far, **options)
    assert isinstance(outcome.error, error)
    assert isinstance(outcome.error, ValueError)
    assert says in str(outcome.error)
    assert far.calls == 0


@pytest.mark.parametrize(
    "delays", [{"base_delay": 2}, {"max_delay": 2}, {"exponential_base": 3}, {"jitter": False}]
)
def test_a_backoff_beside_other_delays_is_refused(delays):
    with pytest.raises(InvalidConfig, match="backoff="):
        retry(backoff=Backoff(), **delays)
    with pytest.raises(InvalidConfig, match="backoff="):
        retry_with_backoff(lambda: "hello", backoff=Backoff(), **delays)
    with pytest.raises(TypeError):
        retrying(**delays)


@pytest.mark.parametrize(("options", "error", "says"), BAD, ids=lambda value: str(value)[:40])
def test_bad_arguments_raise_where_the_decorator_is_written(options, error, says):
    with pytest.raises(error):
        retry(**options)


@pytest.mark.parametrize("progress_timeout", [0, -1, float("nan"), "5"])
def test_progress_timeout_must_be_a_positive_time(progress_timeout):
    with pytest.raises(InvalidWindow, match="progress_timeout="):
        retrying(progress_timeout=progress_timeout)


@pytest.mark.parametrize("value", [0.5, "2", float("nan")])
def test_the_error_about_exponential_base_names_it(value):
    with pytest.raises(InvalidLimit, match="exponential_base="):
        retry(exponential_base=value)


@pytest.mark.parametrize("value", [-1, 1.5])
def test_the_error_about_max_retries_speaks_of_retries(value):
    with pytest.raises(InvalidLimit, match="max_retries=") as caught:
        retry(max_retries=value)
    assert "costs" not in str(caught.value)
    assert "1200" not in str(caught.value)


@pytest.mark.parametrize("value", ["full", "none", ("range", 0.5, 1.5)])
def test_jitter_of_retry_must_be_a_bool(value):
    with pytest.raises(InvalidLimit, match="jitter="):
        retry(jitter=value)


def test_retry_without_parentheses_says_what_to_write():
    with pytest.raises(InvalidConfig, match=r"@retry\(\) with parentheses"):

        @retry
        def ask(): ...


@pytest.mark.parametrize("option", ["sleep", "max_attempts", "retries", "tries"])
def test_unknown_options_raise_type_error(option):
    with pytest.raises(TypeError, match=option):
        retry(**{option: 3})
    with pytest.raises(TypeError, match=option):
        retry_with_backoff(lambda: "hello", **{option: 3})
