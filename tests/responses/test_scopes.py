"""The budgets that headers and error bodies state, as `read_signal` reads them."""

import pytest

from headgate.http import Scope, read_signal

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


def refusal(*headers, status=429):
    return read_signal(status, list(headers), now=NOW)


def error(status=429, **fields):
    return read_signal(status, (), {"error": fields}, now=NOW)


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
        ({"x-tokenlimit-limit": "5"}, Scope("tokens", 5, period=1)),
        ({"x-rate-limit-limit": "5"}, Scope("requests", 5)),
        ({"ratelimit-limit": "10, 10;w=1, 50;w=60"}, Scope("requests", 10)),
        ({"ratelimit-limit": "10, 10;w=1, 900;w=60"}, Scope("requests", 10, period=1)),
        ({"ratelimit-limit": "50, 10;w=1, 50;w=60"}, Scope("requests", 50, period=60)),
        ({"ratelimit-limit": '10, 10; name="w=5"; w=3600'}, Scope("requests", 10, period=3600)),
        ({"ratelimit-limit": "9, 10;w=1"}, Scope("requests", 9)),
        ({"x-ratelimit-limit": "10;w=1"}, Scope("requests", 10, period=1)),
        ({"x-ratelimit-limit": "10;w=0"}, Scope("requests", 10)),
        ({"x-ratelimit-limit": "10;w=-1"}, Scope("requests", 10)),
        ({"x-ratelimit-limit": "10;w=0.5"}, Scope("requests", 10)),
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
    """A list of RFC 9651 may be spread over lines, and is ignored if one member is malformed."""
    assert read_signal(200, [("RateLimit", line) for line in lines], now=NOW).scopes == tuple(scopes)


def test_figures_beside_a_limit_of_tokens_that_only_together_states_are_those_of_a_second():
    headers = {
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "9",
        "x-ratelimit-reset": "1",
        "x-tokenlimit-limit": "3000",
        "x-tokenlimit-remaining": "2500",
    }
    both = (Scope("requests", 10, 9, 1.0, 1), Scope("tokens", 3000, 2500, None, 1))
    assert read_signal(200, headers, now=NOW).scopes == both
    assert read_signal(200, list(headers.items()), now=NOW).scopes == both


def test_limits_of_requests_by_name_are_not_taken_for_those_of_a_second_because_together_was_asked_behind():
    headers = {"x-ratelimit-limit-requests": "600", "llm_provider-x-tokenlimit-limit": "3000"}
    assert read_signal(200, headers, now=NOW).scopes == (
        Scope("requests", 600),
        Scope("tokens", 3000, period=1),
    )


def test_a_period_belongs_to_the_limit_beside_which_it_is_stated():
    headers = {"x-ratelimit-limit-requests": "100", "ratelimit-policy": '"requests";q=5000;w=3600'}
    assert read_signal(200, headers, now=NOW).scopes == (Scope("requests", 100),)
    headers["ratelimit-policy"] = '"requests";q=100;w=10'
    assert read_signal(200, headers, now=NOW).scopes == (Scope("requests", 100, period=10),)


@pytest.mark.parametrize(
    ("policies", "period"),
    [
        (
            "10;w=1;comment=a\nb",
            1,
        ),  # or a search for the end of the line would take a time that grows by the square
        ("10;w=1" + ";w=1" * 1_000, 1),
        ("10;w=" + "9" * 5_000, None),
        ("10," + "9" * 5_000 + ";w=1", None),
    ],
)
def test_a_window_is_read_among_other_parameters(policies, period):
    assert read_signal(200, {"ratelimit-limit": policies}, now=NOW).scopes == (
        Scope("requests", 10, period=period),
    )


def test_a_named_policy_gives_its_scope_a_limit_and_a_numbered_one_does_not():
    named = [("RateLimit-Policy", '"a";q=100;w=60, "b";q=7'), ("RateLimit", '"a";r=5;t=9')]

    assert read_signal(200, named, now=NOW).scopes == (Scope("a", 100, 5, 9.0, 60), Scope("b", 7))
    assert read_signal(200, {"RateLimit-Policy": "10;w=1, 50;w=60"}, now=NOW).scopes == ()


def test_the_budget_in_a_cached_response_is_ignored():
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
def test_a_reset_that_is_not_a_time_is_unknown(value):
    """A reset of years is in an unknown unit, whereas a Retry-After of years asks for a long wait."""
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


def test_violations_without_a_quota_are_not_limits():
    signal = error(
        400, details=[{"@type": "google.rpc.PreconditionFailure", "violations": [{"type": "TOS"}]}]
    )

    assert (signal.reason, signal.scopes) == ("client_error", ())


def test_headers_repeated_in_a_body_count_like_headers():
    headers = {"X-RateLimit-Remaining": 0, "X-RateLimit-Reset": 1_800_000_012_000}
    signal = error(429, code=429, metadata={"headers": headers})

    assert signal.scopes == (Scope("requests", None, 0, 12.0),)
    assert signal.retry_after == 12.0
