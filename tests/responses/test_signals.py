"""What a response says about limits: the published vectors, the cases one by one, and the laws."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from http import HTTPStatus
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import responses
from headgate.http import Scope, Signal, parse_retry_after, read_signal

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
MONTH = 31 * 86_400.0
VECTORS = json.loads(Path(__file__).with_name("provider-vectors.json").read_text(encoding="utf-8"))["vectors"]

every_vector = pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])


def retry_after(value, *, now=NOW, date=None, default=None):
    headers = [("Retry-After", value), *([("Date", date)] if date else [])]
    return parse_retry_after(headers, default=default, now=now)


def refusal(*headers, status=429, body=None, provider=None):
    return read_signal(status, list(headers), body, now=NOW, provider=provider)


def error(status=429, headers=(), **fields):
    return read_signal(status, headers, {"error": fields}, now=NOW)


# The published vectors


@every_vector
def test_each_published_response_is_read_as_published(vector):
    """The published figures are rounded to a millisecond, ours are not."""
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
    """As httpx: repeated fields apart, through a method of its own; items() would join them."""

    def __init__(self, pairs):
        self.pairs = pairs

    def multi_items(self):
        return [(name.lower(), value) for name, value in self.pairs]

    def items(self):
        raise AssertionError("joined values lose what multi_items keeps")


class Items:
    """As aiohttp and urllib3: items() gives every occurrence."""

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
def test_a_response_reads_the_same_whichever_client_brings_it(vector, dressed):
    plain = read_signal(
        vector["status"], vector["headers"], vector["body"], now=NOW, provider=vector["provider"]
    )
    body = json.dumps(vector["body"]) if isinstance(vector["body"], dict | list) else vector["body"]
    headers = [(name, value) for name, value in vector["headers"]]

    for text in (body, body and body.encode()):
        again = read_signal(vector["status"], dressed(headers), text, now=NOW, provider=vector["provider"])
        assert again == plain


def test_comma_joined_fields_read_like_repeated_ones():
    """requests and botocore join repeated fields; the most restrictive still wins."""
    names = ("limit", "remaining", "reset")
    repeated = [
        (f"x-ratelimit-{name}-requests", value)
        for name, values in zip(names, (("100", "50"), ("9", "4"), ("1s", "3s")), strict=True)
        for value in values
    ]
    joined = {name: ", ".join(values) for name, values in as_lists(repeated).items()}

    assert read_signal(200, repeated, now=NOW).scopes == (Scope("requests", 50, 4, 3.0),)
    assert read_signal(200, joined, now=NOW).scopes == (Scope("requests", 50, 4, 3.0),)


# parse_retry_after: numbers


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" \t7\t ", 7.0),
        ("2.0", 2.0),
        ("2.5", 2.5),
        ("0.001", 0.001),
        ("2678400", MONTH),
        ("2678401", MONTH),
        ("315360000", MONTH),
        ("9" * 18, MONTH),
        ("9" * 5_000, MONTH),
        ("9" * 50_000, MONTH),
        ("315360000.5", MONTH),
        ("1800000030", 30.0),
        ("1800000030.25", 30.25),
        ("1800000000123", 0.123),
        ("1800000012000", 12.0),
        ("1800000000000250", 0.00025),
        ("1799999999", 0.0),
        ("99999999999", MONTH),  # the year 5138
        ("100000000000", 0.0),  # 1973, in milliseconds
        ("99999999999999", MONTH),
        ("100000000000000", 0.0),  # 1973, in microseconds
        ("99999999999999999", MONTH),
        ("100000000000000000", MONTH),  # unlike any moment
        ("0" * 18, 0.0),
        ("0" * 19, MONTH),  # too many digits to be meant
    ],
)
def test_a_number_is_a_delay_or_a_moment_by_its_size(value, seconds):
    """Below 1e9 seconds from now; above, an epoch in seconds, milli- or microseconds."""
    assert retry_after(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "-5", "+5", "-0", "nan", "NaN", "inf", "-inf", "Infinity", "1e3", "1e400", "1_000", "0x10", "10abc",
        "2.", ".5", "5\n", "\n5", "5\x00", "\u0663\u0660", "\uff15", "5\u00a0", "\u00b2", "", " ", "soon",
        "1 2", "5;q=1", "None", "5 seconds", "1.2.3", "1" * 65 + ".5",
    ],
)  # fmt: skip
def test_what_is_not_a_number_in_full_is_ignored(value):
    """RA-10, D-06, D-42: no prefix is taken for the whole, and a negative wait is no wait."""
    assert retry_after(value) is None
    assert parse_retry_after({"Retry-After": value}, now=NOW) == 1.0
    assert parse_retry_after({"Retry-After": value}, now=NOW, default=2.5) == 2.5


def test_zero_is_an_answer_and_not_the_default():
    """RA-04."""
    assert parse_retry_after({"retry-after": "0"}, default=9.0, now=NOW) == 0.0
    assert parse_retry_after({"retry-after-ms": "0", "retry-after": "3"}, default=9.0, now=NOW) == 0.0


def test_milliseconds_come_first_when_they_can_be_read():
    """RA-02."""
    assert parse_retry_after({"retry-after-ms": "644", "retry-after": "1"}, now=NOW) == 0.644
    assert parse_retry_after({"retry-after-ms": "abc", "retry-after": "3"}, now=NOW) == 3.0
    assert parse_retry_after({"retry-after-ms": "-1", "retry-after": "3"}, now=NOW) == 3.0
    assert parse_retry_after({"retry-after-ms": "0.5"}, now=NOW) == 0.0005
    assert parse_retry_after({"retry-after-ms": "999999999999999"}, now=NOW) == MONTH


@pytest.mark.parametrize("name", ["retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"])
def test_every_spelling_of_milliseconds_is_known(name):
    assert parse_retry_after({name: "1500", "retry-after": "9"}, now=NOW) == 1.5


@pytest.mark.parametrize("name", ["x-retry-after", "x-ratelimit-retry-after"])
def test_other_names_count_only_where_retry_after_is_silent(name):
    assert parse_retry_after({name: "8"}, now=NOW) == 8.0
    assert parse_retry_after({name: "8", "retry-after": "2"}, now=NOW) == 2.0
    assert parse_retry_after({name: "8", "retry-after": "soon"}, now=NOW) == 8.0


# parse_retry_after: the shapes headers come in


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "7"},
        {"RETRY-AFTER": "7"},
        {b"retry-after": b"7"},
        {"retry-after": 7},
        {"retry-after": 7.0},
        {"retry-after": ["7"]},
        {"llm_provider-retry-after": "7"},
        [("Retry-After", "7")],
        [["Retry-After", "7"]],
        [None, "x", ("lonely",), ("a", "b", "c"), 5, ("retry-after", "7")],
        (pair for pair in [("Retry-After", "7")]),
    ],
)
def test_names_match_in_any_case_and_malformed_entries_are_skipped(headers):
    """RA-05."""
    assert parse_retry_after(headers, now=NOW) == 7.0


@pytest.mark.parametrize(
    "name", ["retry-after ", " retry-after", "retry-after\t", "retry_after", "retry-after:"]
)
def test_a_name_counts_only_if_it_is_the_name(name):
    """Values are trimmed, names are not: a field that merely looks like ours must not overrule it."""
    assert parse_retry_after({name: "7"}, now=NOW) == 1.0


@pytest.mark.parametrize(
    "headers", [None, 5, "retry-after: 7", b"retry-after", object(), dict, [], {}, count()]
)
def test_headers_that_are_none_give_the_default(headers):
    """RA-03, RA-05; an endless iterable is only followed for a while."""
    assert parse_retry_after(headers, now=NOW) == 1.0
    assert parse_retry_after(headers, now=NOW, default=4.0) == 4.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": ["1", "2"]}, 2.0),
        ([("Retry-After", "5"), ("Retry-After", "120"), ("Retry-After", "7")], 120.0),
        ([("Retry-After", "soon"), ("retry-after", "7")], 7.0),
        ({"retry-after": "5, 120"}, 120.0),
        ({"retry-after": "5,\t1m"}, 60.0),
        ({"retry-after": "5, soon"}, 1.0),
        ({"retry-after": "5,"}, 1.0),
        ({"retry-after": ["5, soon", "3"]}, 3.0),
        ({"retry-after-ms": "100, 250"}, 0.25),
    ],
)
def test_of_several_values_the_longest_wait_wins(headers, seconds):
    """RA-11, D-42: two values 1 and 2 are 2, not 12. A joined value counts only if every part does."""
    assert parse_retry_after(headers, now=NOW) == seconds


# parse_retry_after: dates and durations


@pytest.mark.parametrize(
    "value",
    [
        "Fri, 15 Jan 2027 08:00:30 GMT",
        "fri, 15 jan 2027 08:00:30 gmt",
        "Friday, 15-Jan-27 08:00:30 GMT",
        "FRIDAY, 15-JAN-27 08:00:30 GMT",
        "Fri Jan 15 08:00:30 2027",
        "2027-01-15T08:00:30Z",
        "2027-01-15 08:00:30",
        "2027-01-15t08:00:30z",
        "2027-01-15T08:00:30.000+00:00",
        "2027-01-15T09:30:30+01:30",
        "2027-01-15T00:00:30-08:00",
        "30s",
        "0.5m",
        "29s1000ms",
        "30000ms",
        "30000000us",
        "30000000\u00b5s",
        "30000000\u03bcs",
        "30000000\u00c2\u00b5s",
        "30000000000ns",
    ],
)
def test_thirty_seconds_may_be_written_in_many_ways(value):
    """RA-06, R-7."""
    assert retry_after(value) == 30.0


@pytest.mark.parametrize("month", range(1, 13))
def test_every_month_has_its_name(month):
    moment = datetime(2027, month, 15, 8, tzinfo=UTC)

    for written in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"):
        assert retry_after(moment.strftime(written), now=moment.timestamp() - 30) == 30.0


def test_a_value_may_be_long_but_not_endless():
    """Times up to 64 characters, values up to 8 KiB."""
    assert retry_after("0" * 63 + "5s") is None
    assert retry_after("0" * 62 + "5s") == 5.0
    assert retry_after(", ".join(["5"] * 2_730)) == 5.0
    assert retry_after(", ".join(["5"] * 2_732)) is None


def test_asctime_pads_a_day_of_one_digit():
    now = datetime(2026, 3, 5, 12, tzinfo=UTC).timestamp()

    assert retry_after("Thu Mar  5 12:01:00 2026", now=now) == 60.0


@pytest.mark.parametrize(
    "value",
    [
        "Fri, 30 Feb 2027 08:00:00 GMT",
        "Mon, 29 Feb 2027 08:00:00 GMT",
        "Fri, 15 Jan 2027 24:00:00 GMT",
        "Fri, 15 Jan 2027 08:60:00 GMT",
        "Fri, 15 Jan 2027 08:00:60 GMT",
        "Thu, 15 Jan 2027 08:00:30 GMT",
        "Monday, 15-Jan-27 08:00:30 GMT",
        "Fri, 15 Jan 2027 08:00:30 UTC",
        "Fri, 15 Jan 2027 08:00:30 +0000",
        "Fri, 15 Jan 2027 08:00:30",
        "Fri, 5 Jan 2027 08:00:30 GMT",
        "Fri, 15 Foo 2027 08:00:30 GMT",
        "Fri, 15 Jan 0000 08:00:30 GMT",
        "15 Jan 2027 08:00:30 GMT",
        "\u017fat, 16 Jan 2027 08:00:30 GMT",
        "2027-02-30T00:00:00Z",
        "2027-13-01T00:00:00Z",
        "2027-01-15T25:00:00Z",
        "2027-01-15T08:00:30+24:00",
        "2027-01-15T08:00:30+01:60",
        "2027-01-15T08:00Z",
        "0000-01-15T08:00:00Z",
        "2027-01-15",
        "20m20ms20m",
        "1s1m",
        "1M",
        "1 m",
        "m",
        "-1s",
        "1m-30s",
    ],
)
def test_what_is_no_date_and_no_duration_is_ignored(value):
    """RA-08: impossible dates, a weekday that does not match, other zones, other formats."""
    assert retry_after(value) is None


def test_a_date_in_the_past_means_now():
    """RA-07. A negative number is malformed; a past date is merely stale."""
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("2015-10-21T07:28:00Z") == 0.0
    assert retry_after("0001-01-01T00:00:00+23:59") == 0.0


def test_a_date_far_ahead_is_cut_to_a_month():
    assert retry_after("9999-12-31T23:59:59-23:59") == MONTH
    assert retry_after("Fri, 31 Dec 9999 23:59:59 GMT") == MONTH
    assert retry_after("999999d") == MONTH


def test_the_wait_for_a_date_is_in_whole_seconds_and_never_early():
    """RA-07: at 0.4 s past the second, a date 30 s after that second is still 30 s away."""
    assert retry_after("Fri, 15 Jan 2027 08:00:30 GMT", now=NOW + 0.4) == 30.0
    assert retry_after("Fri, 15 Jan 2027 08:00:00 GMT", now=NOW + 0.4) == 0.0


@pytest.mark.parametrize("skew", [-86_400, -300, 0, 300, 86_400])
def test_a_wrong_local_clock_does_not_change_the_wait(skew):
    """D-11: the response's own Date is the present its dates are measured from."""
    date = "Fri, 15 Jan 2027 08:00:00 GMT"

    assert retry_after("Fri, 15 Jan 2027 08:01:00 GMT", date=date, now=NOW + skew) == 60.0
    assert retry_after("2027-01-15T08:01:00Z", date=date, now=NOW + skew) == 60.0
    assert retry_after("1800000060", date=date, now=NOW + skew) == 60.0
    assert retry_after("60", date=date, now=NOW + skew) == 60.0


def test_of_two_dates_the_earlier_is_believed():
    dates = [("date", "Fri, 15 Jan 2027 08:00:10 GMT"), ("date", "Fri, 15 Jan 2027 08:00:00 GMT")]

    assert parse_retry_after([*dates, ("retry-after", "2027-01-15T08:01:00Z")], now=NOW) == 60.0


@pytest.mark.parametrize(
    "date",
    ["Thu, 01 Jan 1970 00:00:00 GMT", "Sat, 16 Jan 2027 08:00:01 GMT", "2027-01-15T07:00:00Z", "0", "x"],
)
def test_a_date_that_cannot_be_believed_leaves_the_local_clock(date):
    assert retry_after("Fri, 15 Jan 2027 08:01:00 GMT", date=date) == 60.0


@pytest.mark.parametrize(
    ("now", "value", "seconds"),
    [
        ("2099-12-31T23:59:00", "Saturday, 01-Jan-00 00:00:00 GMT", None),  # Friday in 2100, so not a date
        ("2099-12-31T23:59:00", "Friday, 01-Jan-00 00:00:00 GMT", 60.0),
        ("2099-06-01T00:00:00", "Saturday, 01-Jan-01 00:00:00 GMT", MONTH),  # 2101
        ("2027-01-15T08:00:00", "Friday, 15-Jan-27 08:00:20 GMT", 20.0),
        ("2027-01-15T08:00:00", "Thursday, 15-Jan-26 08:00:20 GMT", 0.0),
        ("2027-01-15T08:00:00", "Friday, 15-Jan-77 08:00:00 GMT", MONTH),  # 2077, fifty years ahead
        ("2027-01-15T08:00:00", "Sunday, 15-Jan-78 08:00:00 GMT", 0.0),  # 1978
        ("2001-01-01T00:00:00", "Friday, 31-Dec-99 23:59:59 GMT", 0.0),  # 1999
    ],
)
def test_two_digits_name_the_year_at_most_fifty_ahead(now, value, seconds):
    """RA-09, D-43: over the end of a century too."""
    local = datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()

    assert retry_after(value, now=local) == seconds


def test_the_clock_is_read_only_when_now_is_left_out(monkeypatch):
    monkeypatch.setattr(responses.time, "time", lambda: NOW)
    assert parse_retry_after({"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}) == 20.0
    assert read_signal(429, {"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}).retry_after == 20.0

    monkeypatch.setattr(responses.time, "time", None)
    assert retry_after("Fri, 15 Jan 2027 08:00:20 GMT") == 20.0
    assert refusal(("retry-after", "Fri, 15 Jan 2027 08:00:20 GMT")).retry_after == 20.0


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, "soon", object(), -1e300])
def test_a_now_that_is_no_time_errs_towards_waiting(now):
    assert retry_after("Fri, 15 Jan 2027 08:00:20 GMT", now=now) == MONTH
    assert retry_after("7", now=now) == 7.0


# read_signal: what kind of answer it is


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
def test_some_limits_are_only_told_in_words(body, status, message, reason):
    assert read_signal(status, [], body(message), now=NOW).reason == reason


def test_a_forbidden_request_is_limited_if_anything_says_when():
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
def test_a_success_with_an_error_inside_is_not_one(body):
    assert read_signal(200, [], body, now=NOW).reason == "rate_limited"


@pytest.mark.parametrize("name", ["x-should-retry", "Stripe-Should-Retry"])
def test_the_server_may_steer_retries(name):
    assert refusal((name, "FALSE")).should_retry is False
    assert refusal((name, " true "), status=400).should_retry is True
    assert refusal((name, "true"), status=402).should_retry is False
    assert refusal((name, "true"), body={"error": {"message": "Request too large"}}).should_retry is False
    assert refusal((name, "maybe")).should_retry is True
    assert refusal((name, "true"), (name, "false")).should_retry is False


def test_a_large_body_refused_for_a_while_may_be_retried():
    signal = refusal(("retry-after", "10"), status=413)

    assert (signal.reason, signal.retry_after, signal.should_retry) == ("client_error", 10.0, True)


# read_signal: how long to wait


def test_a_hint_counts_on_refusals_and_errors_only():
    for status in (200, 202, 301):
        assert refusal(("retry-after", "5"), status=status).retry_after is None
    for status in (400, 404, 429, 500):
        assert refusal(("retry-after", "5"), status=status).retry_after == 5.0
    assert read_signal(200, {"retry-after": "5"}, {"ok": False, "error": "ratelimited"}).retry_after == 5.0


def test_where_no_wait_helps_none_is_given():
    assert refusal(("retry-after", "5"), status=402).retry_after is None
    assert error(429, {"retry-after": "5"}, message="Request too large").retry_after is None


def test_the_first_source_that_answers_decides():
    """Milliseconds, Retry-After, other fields, the body, its words, the scopes: in this order."""
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


def test_only_a_scope_that_is_spent_says_when_it_is_over():
    """A refusal for requests often comes with tokens that reset at once, or far later."""
    spent = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "20s")]
    other = [("x-ratelimit-remaining-tokens", "9"), ("x-ratelimit-reset-tokens", "50s")]
    bare = [("x-ratelimit-reset-images", "30s")]

    assert refusal(*other).retry_after is None
    assert refusal(*spent, *other).retry_after == 20.0
    assert refusal(*spent, *other, *bare).retry_after == 30.0
    assert refusal(*spent, status=500).retry_after is None


def test_a_wait_of_an_hour_makes_it_a_long_window():
    assert refusal(("retry-after", "3599.999")).reason == "rate_limited"
    assert refusal(("retry-after", "3600")).reason == "quota_window"
    assert refusal(("retry-after", "3600"), status=503).reason == "overloaded"


# read_signal: scopes


@pytest.mark.parametrize(
    ("headers", "scope"),
    [
        ({"x-ratelimit-limit-tokens_usage_based": "5"}, Scope("tokens_usage_based", 5)),
        ({"x-ratelimit-limit-req-minute": "5"}, Scope("requests", 5)),
        ({"x-ratelimit-remaining-tokens-minute": "5"}, Scope("tokens", None, 5)),
        ({"x-ratelimit-limit-req-day": "5"}, Scope("requests_day", 5)),
        ({"x-ratelimit-limit-tokens-month": "5"}, Scope("tokens_month", 5)),
        ({"x-ratelimit-limit-audio.seconds": "5"}, Scope("audio_seconds", 5)),
        ({"x-ratelimit-limit-" + "a" * 99: "5"}, Scope("a" * 64, 5)),
        ({"x-ratelimit-reset-requests": "Fri, 15 Jan 2027 08:00:09 GMT"}, Scope("requests", reset_after=9.0)),
        ({"anthropic-priority-input-tokens-limit": "5"}, Scope("priority_input_tokens", 5)),
        ({"anthropic-fast-output-tokens-remaining": "5"}, Scope("fast_output_tokens", None, 5)),
        ({"anthropic-ratelimit-unified-7d-utilization": "0.9"}, Scope("unified_7d", 1, 0.1)),
        ({"anthropic-ratelimit-unified-7d-utilization": "1.2"}, Scope("unified_7d", 1, 0)),
        ({"anthropic-ratelimit-unified-5h-reset": "1800000060"}, Scope("unified_5h", reset_after=60.0)),
        ({"x-ratelimitbysize-limit-minute": "5"}, Scope("tokens", 5)),
        ({"x-ratelimitbysize-remaining-month": "5"}, Scope("tokens_month", None, 5)),
        ({"ratelimitbysize-reset": "5"}, Scope("tokens", reset_after=5.0)),
        ({"x-tokenlimit-remaining": "5"}, Scope("tokens", None, 5)),
        ({"x-rate-limit-limit": "5"}, Scope("requests", 5)),
        ({"ratelimit-limit": "10, 10;w=1, 50;w=60"}, Scope("requests", 10)),
        ({"x-ratelimit-limit": "10;w=1"}, Scope("requests", 10)),
        ({"x-ratelimit-limit": "5", "x-ratelimit-resource": "Code Search"}, Scope("code_search", 5)),
        ({"x-ratelimit-limit": "5", "x-ratelimit-resource": "core"}, Scope("requests", 5)),
        ({"x-shopify-shop-api-call-limit": "41/40"}, Scope("requests", 40, 0)),
        (
            {"x-trial-endpoint-call-limit": "20", "x-trial-endpoint-call-remaining": "3"},
            Scope("requests", 20, 3),
        ),
        ({"x-endpoint-monthly-call-limit": "1000"}, Scope("requests_month", 1000)),
        ({"x-ratelimit-limit": "2.5"}, Scope("requests", 2.5)),
        ({"llm_provider-x-ratelimit-limit": "5", "x-ratelimit-limit": "4"}, Scope("requests", 4)),
    ],
)
def test_each_family_of_headers_names_its_scope(headers, scope):
    assert read_signal(200, headers, now=NOW).scopes == (scope,)


@pytest.mark.parametrize(
    ("headers", "provider"),
    [({}, "groq"), ({}, "Groq"), ({"x-groq-region": "eu"}, None), ({"X-Groq-Id": "1"}, "x")],
)
def test_requests_at_groq_are_per_day(headers, provider):
    signal = read_signal(200, {**headers, "x-ratelimit-limit-requests": "5"}, provider=provider)

    assert signal.scopes == (Scope("requests_day", 5),)


@pytest.mark.parametrize(
    ("lines", "scopes"),
    [
        (['"a";r=50;t=30'], [Scope("a", None, 50, 30.0)]),
        (['"a";r=50', '"b";t=3'], [Scope("a", None, 50), Scope("b", reset_after=3.0)]),
        (["default;r=1"], [Scope("default", None, 1)]),
        (['"A-b";r=1'], [Scope("a_b", None, 1)]),
        (['"";r=0'], [Scope("requests", None, 0)]),
        (['"a";pk=:AA==:;x="y;r=9";b=?1;r=1;u="\\""'], [Scope("a", None, 1)]),
        (['"a";r=1;r=2'], [Scope("a", None, 2)]),
        (['"a";r=1.5'], [Scope("a", None, 1.5)]),
        (["limit=100, remaining=50, reset=5"], [Scope("requests", 100, 50, 5.0)]),
        (["limit=100;w=1,reset=5, x"], [Scope("requests", 100, None, 5.0)]),
        (['"a";r=1, 5;r=2, ?1'], [Scope("a", None, 1)]),
        (['"a;r=50'], []),
        (['"a";r=1,'], []),
        (['"a";r=1', '"b;r=1'], []),
        (['"a";r=1 "b";r=2'], []),
        (['"a" ;r=1'], []),
        (['"a";R=1'], []),
        (['"a";r='], []),
        (['"a";r="1"'], []),
        (['"a";r=-1;t=abc'], []),
        (['"a";r=1234567890123456'], []),
        (['"\u00e4";r=1'], []),
        (["limit=, remaining=5"], []),
        ([""], []),
    ],
)
def test_structured_fields_are_read_whole_or_not_at_all(lines, scopes):
    """RFC 9651: a list may be spread over lines, and one bad member spoils it."""
    assert read_signal(200, [("RateLimit", line) for line in lines], now=NOW).scopes == tuple(scopes)


def test_a_named_policy_gives_its_scope_a_limit_and_a_numbered_one_only_informs():
    named = [("RateLimit-Policy", '"a";q=100;w=60, "b";q=7'), ("RateLimit", '"a";r=5;t=9')]

    assert read_signal(200, named, now=NOW).scopes == (Scope("a", 100, 5, 9.0), Scope("b", 7))
    assert read_signal(200, {"RateLimit-Policy": "10;w=1, 50;w=60"}, now=NOW).scopes == ()


def test_a_cached_response_says_nothing_about_todays_budget():
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}

    assert read_signal(200, {**headers, "age": "1"}).scopes == ()
    assert len(read_signal(200, {**headers, "age": "0"}).scopes) == 1
    assert len(read_signal(200, {**headers, "age": "x"}).scopes) == 1
    assert refusal(*headers.items(), ("age", "1")).retry_after is None


def test_a_limit_of_zero_means_not_applicable_unless_we_were_refused():
    headers = [("x-ratelimit-limit-images", "0"), ("x-ratelimit-remaining-images", "0")]

    assert refusal(*headers, status=200).scopes == ()
    assert refusal(*headers, status=429).scopes == (Scope("images", 0, 0),)


@pytest.mark.parametrize("value", ["-1", "", "1e3", "1" * 19, "1000000000000001", "\u0661", "many"])
def test_a_count_that_cannot_be_read_is_unknown_and_never_zero(value):
    assert read_signal(200, {"x-ratelimit-remaining": value}, now=NOW).scopes == ()
    headers = {"x-ratelimit-limit": "5", "x-ratelimit-remaining": value}
    assert read_signal(200, headers, now=NOW).scopes == (Scope("requests", 5),)


@pytest.mark.parametrize("value", ["500000000", "2678401", "100000000000000000", "-5", "soon"])
def test_a_reset_that_is_no_time_is_unknown(value):
    """Unlike Retry-After, a reset of years is a unit we do not know, not a request."""
    assert read_signal(200, {"x-ratelimit-reset": value}, now=NOW).scopes == ()


@pytest.mark.parametrize(
    ("violation", "scope"),
    [
        ({"quotaId": "GenerateRequestsPerMinutePerProject", "quotaValue": "5"}, Scope("requests", 5, 0)),
        ({"quotaId": "GenerateRequestsPerDayPerProject", "quotaValue": 20}, Scope("requests_day", 20, 0)),
        ({"quotaId": "InputTokensPerModelPerMinute"}, Scope("input_tokens", None, 0)),
        ({"quotaId": "TokensPerDay", "quotaValue": "9"}, Scope("tokens_day", 9, 0)),
        ({"quotaMetric": "x/generate_content_input_token_count"}, Scope("input_tokens", None, 0)),
    ],
)
def test_a_violated_quota_is_an_empty_scope(violation, scope):
    signal = error(429, details=[{"@type": "google.rpc.QuotaFailure", "violations": [violation]}])

    assert signal.scopes == (scope,)
    assert signal.reason == ("quota_window" if scope.name.endswith("_day") else "rate_limited")


def test_violations_without_a_quota_are_another_matter():
    signal = error(
        400, details=[{"@type": "google.rpc.PreconditionFailure", "violations": [{"type": "TOS"}]}]
    )

    assert (signal.reason, signal.scopes) == ("client_error", ())


def test_headers_repeated_in_a_body_count_like_headers():
    headers = {"X-RateLimit-Remaining": 0, "X-RateLimit-Reset": 1_800_000_012_000}
    signal = error(429, code=429, metadata={"headers": headers})

    assert signal.scopes == (Scope("requests", None, 0, 12.0),)
    assert signal.retry_after == 12.0


# Bodies that are not what they should be


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
def test_a_body_that_makes_no_sense_leaves_the_status_to_speak(body):
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


# Laws

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
def test_nothing_that_comes_in_makes_it_raise_and_every_wait_is_sane(status, headers, body, now, provider):
    assert_sane(read_signal(status, headers, body, now=now, provider=provider))
    wait = parse_retry_after(headers, now=now)
    assert math.isfinite(wait)
    assert 0 <= wait <= MONTH


@given(header_lists, bodies, st.sampled_from([200, 403, 429, 500, 503]))
def test_a_refusal_is_never_talked_away_by_its_headers(headers, body, status):
    signal = read_signal(status, headers, body, now=NOW)

    assert_sane(signal)
    assert signal.limited or status not in (429, 503)


@given(st.decimals(0, 2_678_400, allow_nan=False, places=3), st.sampled_from(["{}", "{}s", "0h{}s"]))
def test_a_delay_is_never_shorter_than_asked(asked, written):
    assert retry_after(written.format(asked)) == float(asked)


@given(st.integers(0, 10**12))
def test_milliseconds_are_never_shorter_than_asked(asked):
    assert parse_retry_after({"retry-after-ms": str(asked)}, now=NOW) == min(asked / 1000, MONTH)


@given(
    st.tuples(*(st.integers(0, 400) for _ in range(7))).filter(any),
    st.sampled_from([0, 1, 0b0011100, 0b1111111, 0b0010100, 0b0001000]),
)
def test_a_duration_is_the_sum_of_its_parts(amounts, chosen):
    units = {"d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6)}
    units["ns"] = Fraction(1, 10**9)
    parts = [
        (amount, unit) for i, (amount, unit) in enumerate(zip(amounts, units, strict=True)) if chosen >> i & 1
    ]

    wait = retry_after("".join(f"{amount}{unit}" for amount, unit in parts))

    asked = sum(amount * units[unit] for amount, unit in parts)
    assert wait == (float(min(asked, MONTH)) if parts else None)


moments = st.datetimes(datetime(2027, 1, 15, 8), datetime(2027, 2, 15, 7, 59))  # noqa: DTZ001
clocks = st.floats(NOW - 1_000_000, NOW)


@given(
    moments,
    clocks,
    st.sampled_from(["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"]),
)
def test_no_one_comes_back_before_the_date(moment, now, written):
    """However the local clock stands between two seconds, the wait covers the rest of the second."""
    moment = moment.replace(microsecond=0, tzinfo=UTC)

    wait = retry_after(moment.strftime(written), now=now)

    exact = Fraction(moment.timestamp()) - Fraction(now)
    assert min(exact, MONTH) <= wait < exact + 1


@given(moments, clocks, st.integers(-1439, 1439))
def test_no_one_comes_back_before_the_timestamp(moment, now, offset):
    """To the nanosecond, in whatever zone and unit it is written."""
    instant = moment.replace(tzinfo=UTC)
    micros = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    local = (instant + timedelta(minutes=offset)).replace(tzinfo=None)
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    exact = min(Fraction(micros, 10**6) - Fraction(now), Fraction(MONTH))

    for written in (f"{local.isoformat()}{zone}", str(micros), f"{micros / 10**6:.6f}"):
        assert exact <= Fraction(retry_after(written, now=now)) + Fraction(1, 10**9)
