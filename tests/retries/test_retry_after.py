"""Retry-After: no attempt is earlier than the far side said, with the errors of every HTTP client."""

from types import SimpleNamespace

import google.genai.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retries.forms import FarSide, decorator, outcome_of
from retries.http_errors import httpx_error


@pytest.mark.parametrize("status", [429, 503, 529, 500])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"Retry-After": "30"}, 30.0), ({"retry-after-ms": "2500"}, 2.5), ({"Retry-After": "90"}, 90.0)],
)
def test_without_jitter_the_delay_is_exactly_the_retry_after(ask, http_error, status, headers, seconds):
    """Also if that is longer than max_delay."""
    far = FarSide(http_error(status, headers), "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [seconds]


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.999])
def test_with_jitter_the_delay_is_a_little_longer_than_the_retry_after(ask, http_error, draw):
    far = FarSide(http_error(429, {"Retry-After": "30"}), "hello")
    assert ask(far, random=lambda: draw).result == "hello"
    assert 30.0 <= far.waits[0] <= 35.0
    assert (far.waits[0] == 30.0) == (draw == 0.0)


def test_a_draw_below_zero_does_not_shorten_the_retry_after(ask):
    far = FarSide(httpx_error(429, {"Retry-After": "30"}), "hello")
    ask(far, random=lambda: -1.0)
    assert far.waits[0] >= 30.0


def test_a_retry_after_shorter_than_the_backoff_does_not_shorten_it(ask, http_error):
    far = FarSide(http_error(429, {"Retry-After": "0"}))
    ask(far, jitter=False)
    assert far.waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("value", ["-5", "soon", "", "nan", "1e999", "2026-99-99T00:00:00Z"])
def test_an_unreadable_retry_after_header_is_ignored(ask, http_error, value):
    far = FarSide(http_error(503, {"Retry-After": value}), "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits[0] >= 1.0


def test_the_retry_after_attribute_of_any_exception_is_the_delay(ask):
    class Busy(Exception):
        retry_after = 12.5

    far = FarSide(Busy, "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [12.5]


@pytest.mark.parametrize("value", [-1, float("nan"), "soon", None, [], object()])
def test_a_retry_after_attribute_that_is_not_a_time_is_ignored(ask, value):

    class Busy(Exception):
        retry_after = value

    far = FarSide(Busy, "hello")
    assert ask(far, exceptions=Busy, jitter=False).result == "hello"
    assert far.waits == [1.0]


def test_a_retry_after_attribute_of_true_is_ignored(ask):
    class Busy(Exception):
        retry_after = True

    far = FarSide(Busy, "hello")
    ask(far, exceptions=Busy, base_delay=0.25, jitter=False)
    assert far.waits == [0.25]


RETRY_INFO = {
    "code": 429,
    "message": "You exceeded your current quota",
    "status": "RESOURCE_EXHAUSTED",
    "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21.5s"}],
}


@pytest.mark.parametrize("body", [{"error": RETRY_INFO}, [{"error": RETRY_INFO}], RETRY_INFO])
def test_the_retry_delay_of_gemini_is_read_from_the_error_of_its_sdk(ask, body):
    """The error has no response if aiohttp sent the request, or if it was pickled."""
    far = FarSide(google.genai.errors.ClientError(429, body), "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [21.5]


def test_the_retry_delay_of_google_is_read_from_the_messages_of_its_api_clients(ask):
    """google.api_core gives the details as messages of google.rpc."""

    class ResourceExhausted(Exception):
        code = 429

    delay = SimpleNamespace(seconds=21, nanos=500_000_000)
    ResourceExhausted.details = [SimpleNamespace(reason="RATE"), SimpleNamespace(retry_delay=delay)]
    far = FarSide(ResourceExhausted, "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [21.5]


@pytest.mark.parametrize(
    "details",
    [
        "21s",
        [None],
        [SimpleNamespace(retry_delay="21s")],
        {},
        {"error": "busy"},
        {"error": {"details": 3}},
        lambda: "x",
    ],
)
def test_details_that_say_nothing_about_a_delay_are_ignored(ask, details):
    class Busy(Exception):
        code = 429

    Busy.details = details
    far = FarSide(Busy, "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [1.0]


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_4xx_that_no_retry_helps_is_not_retried(ask, http_error, status):
    far = FarSide(http_error(status))
    ask(far)
    assert far.calls == 1


def test_x_should_retry_overrides_the_status(ask, http_error):
    far = FarSide(http_error(503, {"x-should-retry": "false", "Retry-After": "1"}))
    ask(far)
    assert far.calls == 1
    far = FarSide(http_error(400, {"x-should-retry": "true"}))
    ask(far)
    assert far.calls == 4


@given(seconds=st.integers(0, 100_000), draw=st.floats(0, 1, exclude_max=True), jitter=st.booleans())
@settings(max_examples=50, deadline=None)
def test_no_attempt_is_earlier_than_the_retry_after(seconds, draw, jitter):
    far = FarSide(httpx_error(429, {"Retry-After": str(seconds)}), "hello")
    outcome_of(decorator, far, {"jitter": jitter, "random": lambda: draw})
    assert far.waits[0] >= seconds
