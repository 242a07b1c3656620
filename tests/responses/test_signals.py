"""What a response says about limits: the published examples, and the cases one by one."""

import json
import math
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.http import Scope, Signal, parse_retry_after, read_signal

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
MONTH = 31 * 86_400.0
VECTORS = json.loads(Path(__file__).with_name("provider-vectors.json").read_text(encoding="utf-8"))["vectors"]

every_vector = pytest.mark.parametrize("vector", VECTORS, ids=[vector["topic"] for vector in VECTORS])


def refusal(*headers, status=429, body=None, provider=None):
    return read_signal(status, list(headers), body, now=NOW, provider=provider)


def error(status=429, headers=(), **fields):
    return read_signal(status, headers, {"error": fields}, now=NOW)


# The published responses


@every_vector
def test_each_published_response_is_read_as_published(vector):
    """The published figures are rounded to a millisecond; those of read_signal are not."""
    signal = read_signal(
        vector["status"], vector["headers"], vector["body"], now=vector["now"], provider=vector["provider"]
    )

    expected = vector["expect"]
    assert expected["limited"] is signal.limited
    assert signal.reason == expected["reason"]
    assert expected["should_retry"] is signal.should_retry
    assert signal.retry_after == pytest.approx(expected["retry_after"], abs=0.001)
    assert [scope.name for scope in signal.scopes] == [scope["name"] for scope in expected["scopes"]]
    for published, scope in zip(expected["scopes"], signal.scopes, strict=True):
        assert scope.limit == published["limit"]
        assert scope.remaining == published["remaining"]
        assert scope.reset_after == pytest.approx(published["reset_after"], abs=0.001)


class MultiItems:
    """Headers like those of httpx: multi_items() keeps repeated fields apart, items() joins them."""

    def __init__(self, pairs):
        self.pairs = pairs

    def multi_items(self):
        return [(name.lower(), value) for name, value in self.pairs]

    def items(self):
        raise AssertionError("joined values lose what multi_items keeps")


class Items:
    """Headers like those of aiohttp and urllib3: items() gives every occurrence."""

    def __init__(self, pairs):
        self.pairs = pairs

    def items(self):
        return iter(self.pairs)


def as_lists(pairs):
    fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def as_bytes(pairs):
    return [(name.encode(), value.encode("utf-8")) for name, value in pairs]


@pytest.mark.parametrize("dressed", [tuple, iter, MultiItems, Items, as_lists, as_bytes])
@every_vector
def test_a_response_reads_the_same_in_the_headers_object_of_every_client_library(vector, dressed):
    plain = read_signal(
        vector["status"], vector["headers"], vector["body"], now=NOW, provider=vector["provider"]
    )
    body = json.dumps(vector["body"]) if isinstance(vector["body"], dict | list) else vector["body"]
    headers = [(name, value) for name, value in vector["headers"]]

    for text in (body, body and body.encode()):
        again = read_signal(vector["status"], dressed(headers), text, now=NOW, provider=vector["provider"])
        assert again == plain


def test_comma_joined_fields_read_like_repeated_ones():
    """requests and botocore join repeated fields; the most restrictive value still wins."""
    names = ("limit", "remaining", "reset")
    repeated = [
        (f"x-ratelimit-{name}-requests", value)
        for name, values in zip(names, (("100", "50"), ("9", "4"), ("1s", "3s")), strict=True)
        for value in values
    ]
    joined = {name: ", ".join(values) for name, values in as_lists(repeated).items()}

    assert read_signal(200, repeated, now=NOW).scopes == (Scope("requests", 50, 4, 3.0),)
    assert read_signal(200, joined, now=NOW).scopes == (Scope("requests", 50, 4, 3.0),)


# The reason


@pytest.mark.parametrize(
    ("status", "reason", "limited", "should_retry"),
    [
        (200, "ok", False, None),
        (204, "ok", False, None),
        (304, "ok", False, None),
        (400, "client_error", False, False),
        (401, "client_error", False, False),
        (402, "quota_exhausted", True, False),
        (403, "client_error", False, False),
        (404, "client_error", False, False),
        (408, "timeout", False, True),
        (409, "conflict", False, None),
        (413, "client_error", False, False),
        (420, "rate_limited", True, True),
        (423, "client_error", False, False),
        (425, "server_error", False, True),
        (429, "rate_limited", True, True),
        (430, "blocked", True, None),
        (498, "overloaded", True, True),
        (499, "client_error", False, None),
        (500, "server_error", False, True),
        (501, "server_error", False, False),
        (502, "server_error", False, True),
        (503, "overloaded", True, True),
        (504, "timeout", False, True),
        (505, "server_error", False, False),
        (522, "timeout", False, True),
        (524, "timeout", False, True),
        (529, "overloaded", True, True),
        (599, "server_error", False, True),
        (600, "server_error", False, False),
        (HTTPStatus.TOO_MANY_REQUESTS, "rate_limited", True, True),
        ("429", "rate_limited", True, True),
        (None, "ok", False, None),
    ],
)
def test_a_bare_status_has_one_meaning(status, reason, limited, should_retry):
    assert read_signal(status, None, now=NOW) == Signal(limited, None, (), should_retry, reason)


KNOWN_CODES = {
    "quota_exhausted": """
        insufficient_quota billing_hard_limit_reached billing_not_active credit_balance_exhausted
        usage_limit_exceeded project_spend_limit_exceeded organization_spend_limit_exceeded
        organization_usage_limit_exceeded access_terminated billing_error enforced_spend_limit_reached
        payment_required
    """,
    "quota_window": """
        quota_exceeded quotaExceeded dailyLimitExceeded openrouter_free_tier_daily REQUEST_LIMIT_EXCEEDED
        ServiceQuotaExceededException
    """,
    "overloaded": """
        overloaded_error server_overloaded slow_down provider_overloaded service_tier_capacity_exceeded 3505
        capacity_exceeded capacity_exhausted temporarily_unavailable service_overload flex_unavailable
        resource_unavailable UNAVAILABLE ModelNotReadyException upstream_provider_shared_pool
    """,
    "concurrency": "lock_timeout",
    "rate_limited": """
        rate_limit_exceeded rate_limit_error rate_limited ratelimited rate_limit RESOURCE_EXHAUSTED throttled
        ramp_limit_exceeded dynamic_request_limited dynamic_token_limited rateLimitExceeded
        userRateLimitExceeded too_many_requests 1300 Throttling ThrottlingException ThrottledException
        RequestThrottled RequestThrottledException TooManyRequestsException
        ProvisionedThroughputExceededException TransactionInProgressException RequestLimitExceeded
        BandwidthLimitExceeded LimitExceededException SlowDown PriorRequestNotComplete EC2ThrottledException
    """,
}
MEANINGS = [(code, reason) for reason, codes in KNOWN_CODES.items() for code in codes.split()]


@pytest.mark.parametrize(("code", "reason"), MEANINGS)
@pytest.mark.parametrize(
    "body",
    [
        lambda code: {"error": {"code": code}},
        lambda code: {"error": {"type": code}},
        lambda code: {"error": {"status": code}},
        lambda code: {"error": {"error_type": code}},
        lambda code: {"error": {"details": {"error_code": code}}},
        lambda code: {"error": {"details": [{"reason": code}]}},
        lambda code: {"error": {"metadata": {"error_type": code}}},
        lambda code: {"error": {"metadata": {"limit_source": code}}},
        lambda code: {"error": {"errors": [{"reason": code}]}},
        lambda code: {"error": code},
        lambda code: {"code": code},
        lambda code: {"type": code},
        lambda code: {"error_type": code},
        lambda code: {"errorCode": code},
        lambda code: {"__type": f"com.example#{code}"},
        lambda code: {"errors": [{"extensions": {"code": code}}]},
        lambda code: [{"error": {"code": code}}],
        lambda code: {"error": {"code": int(code) if code.isdigit() else code.upper()}},
    ],
)
def test_a_code_means_the_same_wherever_the_provider_puts_it(body, code, reason):
    for status in (400, 429, 500):
        assert read_signal(status, [], body(code), now=NOW).reason == reason


@pytest.mark.parametrize(("code", "reason"), MEANINGS)
@pytest.mark.parametrize(
    "value", ["{}", "com.amazon.coral#{}", "{}:http://internal.example/x#y", "a.b#{}:http://x"]
)
def test_an_aws_error_type_is_cut_out_of_its_surroundings(value, code, reason):
    assert refusal(("x-amzn-ErrorType", value.format(code)), status=400).reason == reason


def test_a_problem_type_is_the_end_of_its_url():
    url = "https://iana.org/assignments/http-problem-types#"
    for status in (400, 403, 429):
        assert read_signal(status, [], {"type": f"{url}quota-exceeded"}).reason == "rate_limited"
        assert read_signal(status, [], {"type": f"{url}abnormal-usage-detected"}).reason == "rate_limited"
        assert read_signal(status, [], {"type": f"{url}temporary-reduced-capacity"}).reason == "overloaded"


@pytest.mark.parametrize("reason", ["global-concurrency", "endpoint-concurrency"])
def test_stripe_tells_concurrency_from_rate_in_a_header(reason):
    assert refusal(("Stripe-Rate-Limited-Reason", reason)).reason == "concurrency"


def test_a_conflict_with_a_rate_code_is_a_limit():
    assert error(409, code="idempotency_error").reason == "conflict"
    assert error(409, code="rate_limit_exceeded").reason == "rate_limited"
    assert error(409, code="lock_timeout").reason == "concurrency"


def test_a_soft_service_quota_leaves_retrying_open():
    signal = refusal(("x-amzn-errortype", "ServiceQuotaExceededException"), status=400)

    assert (signal.reason, signal.limited, signal.should_retry) == ("quota_window", True, None)


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (429, "Request too large for gpt-x: reduce it.", "too_large"),
        (413, "Request too large", "too_large"),
        (400, "Request too large", "client_error"),
        (429, "on tokens: Limit 30000, Requested 39143.", "too_large"),
        (429, "on tokens: Limit 30,000, Used 1,000, Requested 39,143.", "too_large"),
        (429, "on tokens: Limit 6000, Used 0, Requested ~6001.", "too_large"),
        (429, "on tokens: Limit 6000, Used 5999, Requested 6000.", "rate_limited"),
        (429, "The request too large for", "rate_limited"),
        (400, "Limit 10, Requested 11", "client_error"),
        (400, "You have reached your specified API usage limits.", "quota_exhausted"),
        (403, "Your credit balance is too low to access the API.", "quota_exhausted"),
        (429, "You have reached your specified API usage limits.", "rate_limited"),
        (401, "Your credit balance is too low", "client_error"),
        (403, "You have triggered an abuse detection mechanism.", "rate_limited"),
        (403, "You have exceeded a secondary rate limit", "rate_limited"),
        (404, "You have exceeded a secondary rate limit", "client_error"),
    ],
)
@pytest.mark.parametrize(
    "body",
    [lambda text: {"error": {"message": text}}, lambda text: {"message": text}, lambda text: {"error": text}],
)
def test_some_limits_are_stated_only_in_the_error_message(body, status, message, reason):
    assert read_signal(status, [], body(message), now=NOW).reason == reason


def test_a_403_is_a_limit_if_it_says_when_to_come_back():
    assert refusal(status=403).reason == "client_error"
    assert refusal(("retry-after", "60"), status=403).reason == "rate_limited"
    assert refusal(("x-ratelimit-remaining", "0"), status=403).reason == "rate_limited"
    assert refusal(("x-ratelimit-remaining", "1"), status=403).reason == "client_error"
    assert refusal(("retry-after", "soon"), status=403).reason == "client_error"


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (429, "rate_limited"),
        ("429", "rate_limited"),
        (503, "overloaded"),
        (529, "overloaded"),
        (502, "server_error"),
    ],
)
def test_an_error_inside_a_200_is_read_like_its_status(inside, reason):
    assert error(200, code=inside).reason == reason
    assert read_signal(200, [], json.dumps({"error": {"code": inside}}), now=NOW).reason == reason


@pytest.mark.parametrize(
    "body",
    [
        {"code": "rate_limited"},
        {"type": "throttled", "message": "retry in 5s"},
        {"error": None, "code": "rate_limited"},
        {"errors": [], "code": "rate_limited"},
        {"ok": True, "error_type": "rate_limited"},
        {"ok": 0, "error_type": "rate_limited"},
        {"retry_after": 5},
        [{"code": "rate_limited"}],
    ],
)
def test_a_success_that_merely_talks_about_limits_is_a_success(body):
    assert read_signal(200, [], body, now=NOW) == Signal()


@pytest.mark.parametrize(
    "body",
    [
        {"ok": False, "code": "rate_limited"},
        {"type": "error", "code": "rate_limited"},
        {"error": "rate_limited"},
    ],
)
def test_an_error_inside_a_success_is_read_as_an_error(body):
    assert read_signal(200, [], body, now=NOW).reason == "rate_limited"


@pytest.mark.parametrize("name", ["x-should-retry", "Stripe-Should-Retry"])
def test_the_server_may_steer_retries(name):
    assert refusal((name, "FALSE")).should_retry is False
    assert refusal((name, " true "), status=400).should_retry is True
    assert refusal((name, "true"), status=402).should_retry is False
    assert refusal((name, "true"), body={"error": {"message": "Request too large"}}).should_retry is False
    assert refusal((name, "maybe")).should_retry is True
    assert refusal((name, "true"), (name, "false")).should_retry is False


def test_a_413_with_a_retry_after_may_be_retried():
    signal = refusal(("retry-after", "10"), status=413)

    assert (signal.reason, signal.retry_after, signal.should_retry) == ("client_error", 10.0, True)


# How long to wait


def test_a_stated_wait_counts_on_refusals_and_errors_only():
    for status in (200, 202, 301):
        assert refusal(("retry-after", "5"), status=status).retry_after is None
    for status in (400, 404, 429, 500):
        assert refusal(("retry-after", "5"), status=status).retry_after == 5.0
    assert read_signal(200, {"retry-after": "5"}, {"ok": False, "error": "ratelimited"}).retry_after == 5.0


def test_no_wait_is_given_where_waiting_does_not_help():
    assert refusal(("retry-after", "5"), status=402).retry_after is None
    assert error(429, {"retry-after": "5"}, message="Request too large").retry_after is None


def test_the_first_source_that_states_a_wait_decides():
    """The order is milliseconds, Retry-After, other fields, the body, its message, the scopes."""
    sources = [
        ("retry-after-ms", "1000"),
        ("retry-after", "2"),
        ("x-retry-after", "3"),
    ]
    scopes = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "6")]
    words = {"message": "try again in 5s"}
    for skipped, expected in enumerate((1.0, 2.0, 3.0)):
        assert refusal(*sources[skipped:], *scopes, body={"retry_after": 4, **words}).retry_after == expected
    assert refusal(*scopes, body={"retry_after": 4, **words}).retry_after == 4.0
    assert refusal(*scopes, body=words).retry_after == 5.0
    assert refusal(*scopes).retry_after == 6.0


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"error": {"details": [{"retryDelay": "3.700s"}]}}, 3.7),
        ({"error": {"details": [{"retryDelay": "46"}]}}, None),
        ({"error": {"details": [{"retryDelay": "46m"}]}}, None),
        ({"error": {"details": [{"retryDelay": "5 minutes"}]}}, None),
        ({"error": {"details": [{}] * 15 + [{"retryDelay": "1s"}]}}, 1.0),
        ({"error": {"details": [{}] * 16 + [{"retryDelay": "1s"}]}}, None),
        ({"error": {"availability": {"retry_after": 12}}}, 12.0),
        ({"retry_after": 0}, 0.0),
        ({"retry_after": 64.57}, 64.57),
        ({"retry_after": 1e9}, MONTH),
        ({"retry_after": -1}, None),
        ({"retry_after": True}, None),
        ({"retry_after": 1e16}, None),
        ({"retry_after": math.nan}, None),
        ({"retry_after": math.inf}, None),
        ({"retry_after": 10**400}, None),
        ({"retry_after": [5]}, None),
    ],
)
def test_a_body_may_carry_the_wait(body, seconds):
    assert read_signal(429, [], body, now=NOW).retry_after == seconds


def test_a_query_waits_until_its_cost_has_been_restored():
    def throttled(requested, available, rate):
        status = {"maximumAvailable": 1000.0, "currentlyAvailable": available, "restoreRate": rate}
        cost = {"requestedQueryCost": requested, "throttleStatus": status}
        errors = [{"extensions": {"code": "THROTTLED"}}]
        return read_signal(200, [], {"errors": errors, "extensions": {"cost": cost}}, now=NOW).retry_after

    assert throttled(500, 250, 50.0) == 5.0
    assert throttled(100, 250, 50.0) == 0.0
    assert throttled(500, 0, 1e-300) == MONTH
    assert throttled(500, 250, 0) is None
    assert throttled(None, 250, 50) is None


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please try again in 644ms.", 0.644),
        ("Please try again in 6.780999999s.", 6.780999999),
        ("Please retry in 10h17m5.723541104s.", 37_025.723541104),
        ("Please retry after 3 seconds.", 3.0),
        ("RETRY AFTER 1 MINUTE", 60.0),
        ("retry in 250 milliseconds", 0.25),
        ("retry in 2 hours", 7_200.0),
        ("retry in 2 minutes and 30 seconds", 150.0),
        ("retry in 1m 30s", 90.0),
        ("retry in 20m", 1_200.0),
        ("try again in 5s or retry in 9s", 9.0),
        ("try again in 0s", 0.0),
        ("try again later", None),
        ("try again in 5", None),
        ("try again in 5 apples", None),
        ("try again in 5 sheep", None),
        ("try again in -5s", None),
        ("try again in 1h5", None),
        ("wait 5 seconds", None),
        ("x" * 2_000 + " retry in 5s", None),
    ],
)
def test_a_sentence_may_carry_the_wait(words, seconds):
    assert error(429, message=words).retry_after == seconds
    assert error(500, message=words).retry_after is None


def test_the_wait_is_the_reset_of_a_scope_that_is_used_up():
    """A refusal for requests often states tokens that reset at once, or much later."""
    spent = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "20s")]
    other = [("x-ratelimit-remaining-tokens", "9"), ("x-ratelimit-reset-tokens", "50s")]
    bare = [("x-ratelimit-reset-images", "30s")]

    assert refusal(*other).retry_after is None
    assert refusal(*spent, *other).retry_after == 20.0
    assert refusal(*spent, *other, *bare).retry_after == 30.0
    assert refusal(*spent, status=500).retry_after is None


def test_a_rate_limit_with_a_wait_of_an_hour_is_a_quota_window():
    assert refusal(("retry-after", "3599.999")).reason == "rate_limited"
    assert refusal(("retry-after", "3600")).reason == "quota_window"
    assert refusal(("retry-after", "3600"), status=503).reason == "overloaded"


# Bodies that cannot be read


@pytest.mark.parametrize(
    "body",
    [
        b"", "", "null", "[]", "[1]", "7", "NaN", '"retry in 5s"', b"\xff\xfe\x00", b"\x1f\x8b", "{" * 60_000,
        "[" * 60_000, '{"a":' * 10_000, "9" * 60_000, [], [{}], [[{"retry_after": 5}]], {"error": []},
        {"error": {"details": "x", "errors": {"reason": 1}, "metadata": []}}, {1: 2}, {"errors": {"0": 1}},
        json.dumps({"retry_after": 5, "pad": "x" * 65_536}), [{"retry_after": 5}, {"retry_after": 5}],
        object(), 5,
    ],
)  # fmt: skip
def test_only_the_status_counts_if_the_body_cannot_be_read(body):
    assert read_signal(429, [], body, now=NOW) == Signal(True, None, (), True, "rate_limited")


class Spiteful:
    """Raises whenever it is touched."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __iter__(self):
        raise RuntimeError

    __str__ = __repr__ = __len__ = __bool__ = __int__ = __float__ = __eq__ = __hash__ = __iter__


class SpitefulDict(dict):
    def get(self, *_):
        raise RuntimeError

    def items(self):
        yield "retry-after", "7"
        raise RuntimeError


def test_objects_that_raise_when_touched_are_left_out():
    spite = Spiteful()

    assert read_signal(spite, spite, spite, now=spite, provider=spite) == Signal()
    assert parse_retry_after(spite, now=spite) == 1.0
    assert parse_retry_after(SpitefulDict(), now=NOW) == 7.0
    assert parse_retry_after([(spite, spite), ("retry-after", spite), ("retry-after", "7")], now=NOW) == 7.0
    signal = read_signal(429, {"retry-after": "7"}, SpitefulDict())
    assert signal == Signal(True, 7.0, (), True, "rate_limited")
    assert error(429, code=spite, message=spite, details=[spite]).reason == "rate_limited"


# Properties

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
alphabet = st.sampled_from('0123456789.,;:+-=/"() \tTZGMTdhmsnuµeNaIinf_\n')
names = st.sampled_from(
    sorted({name for vector in VECTORS for name, _ in vector["headers"]} | {"date", "age"})
)
values = st.text(alphabet, max_size=30) | st.sampled_from(
    [v for vector in VECTORS for _, v in vector["headers"]]
)
header_lists = st.lists(st.tuples(names, values | anything), max_size=8)
bodies = anything | st.sampled_from([vector["body"] for vector in VECTORS])
statuses = st.integers(0, 700) | st.sampled_from([200, 403, 429, 503]) | anything


def assert_sane(signal):
    waits = [signal.retry_after, *(scope.reset_after for scope in signal.scopes)]
    assert all(wait is None or (math.isfinite(wait) and 0 <= wait <= MONTH) for wait in waits)
    counts = [count for scope in signal.scopes for count in (scope.limit, scope.remaining)]
    assert all(count is None or 0 <= count <= 1e15 for count in counts)
    assert len({scope.name for scope in signal.scopes}) == len(signal.scopes)
    assert hash(signal) == hash(signal)
    if signal.reason in ("quota_exhausted", "too_large"):
        assert (signal.retry_after, signal.should_retry) == (None, False)


@given(statuses, anything | header_lists, bodies, st.none() | st.floats() | anything, anything)
def test_no_input_raises_and_every_wait_is_finite_and_at_most_a_month(status, headers, body, now, provider):
    assert_sane(read_signal(status, headers, body, now=now, provider=provider))
    wait = parse_retry_after(headers, now=now)
    assert math.isfinite(wait)
    assert 0 <= wait <= MONTH


@given(header_lists, bodies, st.sampled_from([200, 403, 429, 500, 503]))
def test_headers_and_bodies_never_turn_a_refusal_into_a_success(headers, body, status):
    signal = read_signal(status, headers, body, now=NOW)

    assert_sane(signal)
    assert signal.limited or status not in (429, 503)
