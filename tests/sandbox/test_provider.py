"""The provider of the sandbox: it counts as real providers do, states what it counted, and never miscounts.

There is no clock: `now` is a number that the test chooses.
"""

import copy
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import HeadgateError, InvalidCapacity, InvalidConfig, InvalidWindow
from headgate.http import read_signal
from headgate.sandbox import FakeProvider, Fault, Provider
from headgate.sandbox.meters import most_within
from headgate.sandbox.steps import Cut, Data, Head, Pause
from headgate.sandbox.styles.values import Request
from headgate.testing import ManualClock

MS = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
WALL = 1_800_000_000

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages", "plain": "/things"}
STYLES = list(PATHS)
TOKEN_UNIT = {"openai": "tokens", "anthropic": "input_tokens", "plain": "tokens"}


def request(style="openai", *, tokens=0, headers=(), path=None, method="POST", model="gpt-x", **body):
    """A request that is charged exactly `tokens` tokens at admission."""
    document = {"model": model, "messages": [{"role": "user", "content": "hi"}], **body}
    if style == "anthropic":
        document.setdefault("max_tokens", 64)
    said = {"x-sandbox-tokens": str(tokens), **dict(headers)}
    return Request(method, path or PATHS[style], said, json.dumps(document).encode())


class Answer:
    def __init__(self, status, headers, body, now, ending):
        self.status, self.pairs, self.body, self.now, self.ending = status, headers, body, now, ending
        self.headers = dict(headers)

    @property
    def json(self):
        return json.loads(self.body)

    def signal(self, at=0):
        return read_signal(self.status, self.pairs, self.body, now=WALL + at / SECOND)


def finish(scenario, now):
    """Carry out the steps of a scenario, advance `now` at pauses, and close it."""
    status, headers, body, ending = None, [], b"", "whole"
    while (step := scenario.step(now)) is not None:
        match step:
            case Pause(until):
                assert until >= now
                now = until
            case Head(status, headers, _):
                pass
            case Data(data):
                body += data
            case Cut(reset):
                ending = "reset" if reset else "closed"
                break
    scenario.close()
    return Answer(status, headers, body, now, ending)


def call(provider, now=0, **kwargs):
    return finish(provider.open(request(provider.style.name, **kwargs), now), now)


def status(provider, now=0, **kwargs):
    return call(provider, now, **kwargs).status


# -- Figures that providers have published


def test_the_published_openai_sample_waits_23_03_seconds():
    """Limit 500000, Used 442231, Requested 249686: (used + requested - limit) / limit * 60."""
    provider = Provider("openai", tokens="500_000/minute", first_token=0)
    assert status(provider, tokens=442_231, max_tokens=16) == 200
    refused = call(provider, max_tokens=249_686)
    assert refused.status == 429
    assert refused.json["error"] == {
        "message": "Rate limit reached for gpt-x on tokens per min (TPM): Limit 500000, Used 442231, "
        "Requested 249686. Please try again in 23.031s.",
        "type": "tokens",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert refused.headers["retry-after-ms"] == "23031"  # 23.03004 s, rounded up
    assert refused.headers["retry-after"] == "24"
    assert refused.signal().retry_after == pytest.approx(23.03, abs=0.0011)


@pytest.mark.parametrize(
    ("limit", "used", "reset"),
    [(3_000, 1, "20ms"), (250_000, 100, "24ms"), (60, 1, "1s"), (150_000, 16, "7ms")],
)
def test_reset_is_the_time_until_the_bucket_is_full_as_captured_from_openai(limit, used, reset):
    provider = Provider("openai", tokens=f"{limit}/minute", first_token=0)
    answer = call(provider, tokens=used, max_tokens=None)
    assert answer.headers["x-ratelimit-reset-tokens"] == reset
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(limit - used)
    assert answer.headers["x-ratelimit-limit-tokens"] == str(limit)


@given(gaps=st.lists(st.integers(0, 5 * SECOND), max_size=80))
def test_a_bucket_admits_at_most_twice_the_limit_in_any_minute_and_the_limit_in_the_long_run(gaps):
    provider = Provider("plain", requests="10/minute", first_token=0)
    now, admitted = 0, []
    for gap in gaps:
        now += gap
        if status(provider, now) == 200:
            admitted.append((now, 1))
    assert most_within(admitted, MINUTE) <= 20
    assert len(admitted) <= 10 * now / MINUTE + 10


# -- What is charged


@pytest.mark.parametrize(
    ("body", "charge"),
    [
        ({}, 22),  # no reservation: a token for every four bytes
        ({"max_tokens": 500}, 500),
        ({"max_completion_tokens": 700, "max_tokens": 500}, 700),
        ({"max_tokens": 3}, 26),
    ],
)
def test_openai_charges_the_larger_of_the_reserved_tokens_and_a_quarter_of_the_bytes(body, charge):
    document = {"model": "gpt-x", "messages": [{"role": "user", "content": "x" * 22}], **body}
    data = json.dumps(document).encode()
    provider = Provider("openai", tokens="1000/minute", first_token=0)
    finish(provider.open(Request("POST", "/v1/chat/completions", {}, data), 0), 0)
    assert provider.report().tokens == max(charge, -(-len(data) // 4))


def test_anthropic_never_charges_max_tokens_and_counts_output_as_it_is_produced():
    provider = Provider(
        "anthropic",
        input_tokens="1000/minute",
        output_tokens="1000/minute",
        first_token=1,
        tokens_per_second=100,
        piece_tokens=10,
    )
    ask = request(
        "anthropic", tokens=40, max_tokens=5000, stream=True, metadata={"sandbox_output_tokens": 100}
    )
    scenario = provider.open(ask, 0)
    now, seen = 0, []
    while (step := scenario.step(now)) is not None:
        if isinstance(step, Pause):
            now = step.until
            seen.append((now / SECOND, provider.report().output_tokens))
    scenario.close()
    assert seen[0] == (1.0, 0)
    assert seen[1:] == [(pytest.approx(1 + 0.1 * i), 10 * (i - 1)) for i in range(1, 11)]
    report = provider.report()
    assert (report.tokens, report.output_tokens) == (40, 100)
    assert report.peak == {"input_tokens": 40, "output_tokens": 100}


def test_output_may_drive_the_anthropic_bucket_below_zero_which_delays_the_next_request():
    """100 a minute and 250 produced: 150 are owed, and one token is there after 151 / 100 minutes."""
    provider = Provider("anthropic", output_tokens="100/minute", first_token=0)
    assert status(provider, max_tokens=300, metadata={"sandbox_output_tokens": 250}) == 200
    refused = call(provider)
    assert refused.status == 429
    assert refused.json["error"]["type"] == "rate_limit_error"
    assert refused.headers["retry-after"] == "91"
    assert refused.signal().retry_after == 91
    assert status(copy.deepcopy(provider), 151 * MINUTE // 100 - 1) == 429
    assert status(provider, 151 * MINUTE // 100) == 200


def test_counting_tokens_and_listing_models_cost_nothing():
    openai = Provider("openai", requests="1/minute", first_token=0)
    counted = call(openai, tokens=77, path="/v1/responses/input_tokens")
    assert counted.json == {"object": "response.input_tokens", "input_tokens": 77}
    assert call(openai, path="/v1/models", method="GET").json["object"] == "list"
    anthropic = Provider("anthropic", requests="1/minute", first_token=0)
    assert call(anthropic, tokens=77, path="/v1/messages/count_tokens").json == {"input_tokens": 77}
    for provider in (openai, anthropic):
        assert status(provider) == 200
        assert provider.report().admitted == 1


def test_a_refused_request_costs_a_request_at_openai_and_not_elsewhere():
    """Two requests a minute, tokens all gone: at OpenAI asking twice more uses up the requests too."""
    for style, counts in (("openai", True), ("plain", False)):
        provider = Provider(style, requests="4/minute", tokens="100/minute", first_token=0)
        assert status(provider, tokens=100) == 200
        left = [call(provider, tokens=100).signal().scopes[0].remaining for _ in range(3)]
        assert left == ([2, 1, 0] if counts else [3, 3, 3])
    switched = Provider(
        "openai", requests="4/minute", tokens="100/minute", refusals_count=False, first_token=0
    )
    assert status(switched, tokens=100) == 200
    assert call(switched, tokens=100).headers["x-ratelimit-remaining-requests"] == "3"


def test_hammering_an_openai_limit_never_gets_through_but_stopping_does():
    provider = Provider("openai", requests="60/minute burst 1", first_token=0)
    assert status(provider) == 200
    assert [status(provider, i * 400 * MS) for i in range(1, 10)] == [429] * 9
    assert status(provider, 9 * 400 * MS + SECOND) == 200


def test_a_refused_request_takes_no_tokens():
    provider = Provider("plain", requests="1/minute", tokens="100/minute", first_token=0)
    assert status(provider, tokens=10) == 200
    assert status(provider, tokens=10) == 429
    assert provider.report().tokens == 10
    assert call(provider, tokens=1).headers["x-ratelimit-remaining-tokens"] == "90"


def test_a_refusal_names_the_limit_that_is_furthest_away():
    provider = Provider("openai", requests="60/minute burst 1", tokens="600/minute", first_token=0)
    assert status(provider, tokens=600) == 200
    refused = call(provider, tokens=100)
    assert refused.json["error"]["type"] == "tokens"
    assert refused.headers["retry-after-ms"] == "10000"
    provider = Provider("openai", requests="6/minute burst 1", tokens="600/minute", first_token=0)
    assert status(provider, tokens=600) == 200
    refused = call(provider, tokens=10)
    assert refused.json["error"]["type"] == "requests"
    assert refused.headers["retry-after-ms"] == "10000"


def test_limits_hold_for_all_requests_together_or_for_each_key_and_model():
    def counts(**how):
        provider = Provider("openai", requests="1/minute", first_token=0, **how)
        asks = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("a", "x")]
        return [status(provider, headers={"authorization": f"Bearer {k}"}, model=m) for k, m in asks]

    assert counts() == [200, 429, 429, 429, 429]
    assert counts(per_key=True) == [200, 429, 200, 429, 429]
    assert counts(per_model=True) == [200, 200, 429, 429, 429]
    assert counts(per_key=True, per_model=True) == [200, 200, 200, 200, 429]


def test_concurrency_counts_from_arrival_to_the_last_byte():
    provider = Provider("openai", concurrency=2, refusals_count=False)
    first, second = (provider.open(request(stream=True), 0) for _ in range(2))
    refused = call(provider)
    assert refused.status == 429
    assert "concurrency limit" in refused.json["error"]["message"]
    assert refused.signal().limited
    assert refused.signal().retry_after is None
    assert finish(first, 0).status == 200
    assert status(provider) == 200
    second.close()  # the client left
    second.close()
    assert status(provider) == 200  # one at a time, which does not change the peak
    report = provider.report()
    assert (report.in_flight, report.peak_in_flight, report.abandoned, report.open_streams) == (0, 2, 1, 0)
    assert report.refused_by == {"concurrency": 1}


@pytest.mark.parametrize("kind", ["bucket", "fixed", "sliding"])
def test_the_three_kinds_of_meter_differ_at_the_turn_of_the_minute(kind):
    """Ten a minute; ten at 0:59 and ten at 1:00, 0:59 + 59.9 and 2:00."""
    provider = Provider("plain", requests="10/minute", kind=kind, first_token=0)
    moments = [59 * SECOND, 60 * SECOND, 59 * SECOND + 59_900 * MS, 120 * SECOND]
    admitted = [sum(status(provider, now) == 200 for _ in range(10)) for now in moments]
    assert admitted == {"bucket": [10, 0, 9, 1], "fixed": [10, 10, 0, 10], "sliding": [10, 0, 0, 10]}[kind]


def test_a_strict_rate_is_kept_by_the_exact_log_whatever_the_kind():
    provider = Provider("plain", requests="10/minute strict", first_token=0)
    assert [sum(status(provider, now) == 200 for _ in range(10)) for now in (0, 30 * SECOND, MINUTE)] == [
        10,
        0,
        10,
    ]


def test_a_limit_can_be_halved_and_restored_while_requests_run():
    provider = Provider("plain", requests="60/minute burst 1", first_token=0)
    per_phase = []
    for phase, limit in enumerate(("60/minute burst 1", "30/minute burst 1", "60/minute burst 1")):
        start = phase * MINUTE
        provider.set_limits(requests=limit, now=start)
        per_phase.append(sum(status(provider, start + i * 500 * MS) == 200 for i in range(120)))
    assert per_phase == [60, 30, 60]
    report = provider.report()
    assert report.allowed["requests"] == pytest.approx(1 + 60 + 30 + 59, abs=1)
    assert provider.limits() == {"requests": "60/minute burst 1", "tokens": None, "concurrency": None}


def test_a_limit_can_be_removed_and_set_again():
    provider = Provider("plain", requests="1/minute", first_token=0)
    assert [status(provider) for _ in range(2)] == [200, 429]
    provider.set_limits(requests=None, concurrency=4, now=1)
    assert [status(provider, 1) for _ in range(3)] == [200] * 3
    provider.set_limits(requests="1/minute", now=2)
    assert [status(provider, 2) for _ in range(2)] == [200, 429]
    assert "requests" not in provider.report().allowed  # for a while there was no limit
    assert provider.limits()["concurrency"] == 4


def test_limits_that_change_for_a_time_hold_exactly_that_long():
    provider = Provider("plain", requests="60/minute burst 1", first_token=0)
    provider.set_limits(requests="30/minute burst 1", now=0, after=60, duration=60)
    per_minute = [
        sum(status(provider, minute * MINUTE + i * 500 * MS) == 200 for i in range(120))
        for minute in range(3)
    ]
    assert per_minute == [60, 30, 60]
    report = provider.report()
    assert report.allowed["requests"] == pytest.approx(1 + 60 + 30 + 59, abs=1)
    assert provider.limits()["requests"] == "60/minute burst 1"


def test_a_planned_change_of_limits_is_checked_at_once_and_can_remove_them():
    provider = Provider("plain", requests="1/minute", concurrency=4, first_token=0)
    for bad in (
        {"requests": "fast", "after": 5},
        {"requests": "2/s", "duration": 0},
        {"requests": "2/s", "after": -1},
    ):
        with pytest.raises(HeadgateError):
            provider.set_limits(**bad, now=0)
    provider.set_limits(requests=None, concurrency=1, now=0, after=5, duration=5)
    assert [status(provider, now) for now in (0, 4 * SECOND)] == [200, 429]
    assert [status(provider, now) for now in (5 * SECOND, 5 * SECOND, 9 * SECOND)] == [200] * 3
    assert provider.limits()["concurrency"] == 1
    provider.catch_up(10 * SECOND)
    assert provider.limits() == {"requests": "1/minute", "tokens": None, "concurrency": 4}


def test_a_limit_that_changes_between_two_steps_is_stated_by_the_second():
    clock = ManualClock(auto_advance=True)
    api = FakeProvider("plain", requests="60/minute burst 10", first_token=2, clock=clock)
    api.set_limits(requests="30/minute burst 5", after=1)
    reply = api.call("GET", "/")
    assert dict(reply.headers)["x-ratelimit-limit"] == "30"
    assert api.limits()["requests"] == "30/minute burst 5"


@pytest.mark.parametrize("kind", ["bucket", "fixed", "sliding"])
def test_limits_that_start_empty_refuse_the_first_request_and_allow_the_rate_from_then_on(kind):
    provider = Provider("plain", requests="60/minute", kind=kind, start_empty=True, first_token=0)
    first = call(provider, 7 * SECOND)
    assert (first.status, first.headers["x-ratelimit-remaining"]) == (429, "0")
    counts = [sum(status(provider, (7 + second) * SECOND) == 200 for _ in range(70)) for second in (1, 60)]
    assert counts == {"bucket": [1, 59], "fixed": [0, 60], "sliding": [0, 60]}[kind]


def test_the_first_request_comes_into_a_fixed_window_of_the_age_that_is_asked_for():
    provider = Provider("plain", requests="10/minute", kind="fixed", window_age=45, first_token=0)
    provider.anchor(0, 1_800_000_007 * SECOND)
    began = 3 * SECOND
    moments = [began, began + 15 * SECOND - 1, began + 15 * SECOND, began + 75 * SECOND]
    assert [sum(status(provider, now) == 200 for _ in range(12)) for now in moments] == [10, 0, 10, 10]
    assert provider.report().allowed["requests"] == 30
    with pytest.raises(InvalidConfig, match="kind='fixed'"):
        Provider("plain", requests="10/minute", window_age=45)


def test_with_jitter_a_request_is_counted_when_it_has_arrived():
    provider = Provider("plain", requests="60/minute burst 1", jitter=0.05, first_token=0, seed=3)
    scenario = provider.open(request("plain"), 0)
    assert provider.report().requests == 0
    pause = scenario.step(0)
    assert isinstance(pause, Pause)
    assert 0 < pause.until <= 50 * MS
    assert finish(scenario, pause.until).status == 200
    assert provider.report().arrivals == (pause.until / SECOND,)
    delays = [provider.open(request("plain"), 0).step(0).until for _ in range(200)]
    assert min(delays) < 5 * MS
    assert 45 * MS < max(delays) <= 50 * MS


def test_a_client_that_leaves_in_the_middle_of_a_jittered_request_is_seen_as_abandoned():
    provider = Provider("plain", concurrency=1, jitter=0.05, first_token=1)
    scenario = provider.open(request("plain"), 0)
    now = scenario.step(0).until
    scenario.step(now)  # admitted; now it waits for its first token
    assert provider.report().in_flight == 1
    scenario.close()
    report = provider.report()
    assert (report.in_flight, report.abandoned) == (0, 1)


# -- Every answer is understood by read_signal


def scope(signal, name):
    return next(scope for scope in signal.scopes if scope.name == name)


@pytest.mark.parametrize("style", STYLES)
def test_a_success_states_limits_and_what_remains_of_them(style):
    unit = TOKEN_UNIT[style]
    provider = Provider(style, requests="60/minute", **{unit: "6000/minute"}, first_token=0)
    signal = call(provider, tokens=600).signal()
    assert (signal.limited, signal.reason, signal.retry_after) == (False, "ok", None)
    assert (scope(signal, "requests").limit, scope(signal, "requests").remaining) == (60, 59)
    assert scope(signal, "requests").reset_after == 1
    assert (scope(signal, unit).limit, scope(signal, unit).remaining) == (6000, 5400)
    assert scope(signal, unit).reset_after == 6


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["bucket", "fixed", "sliding"])
@given(
    limit=st.integers(1, 100),
    seconds=st.integers(1, 120),
    visits=st.lists(st.tuples(st.integers(0, 40 * SECOND), st.integers(1, 30)), min_size=1, max_size=25),
)
@settings(max_examples=25, deadline=None)
def test_the_wait_in_a_refusal_is_the_true_wait_rounded_up(style, kind, limit, seconds, visits):
    """A client that waits that long is admitted; a second (at OpenAI: a millisecond) less is not enough."""
    unit = TOKEN_UNIT[style]
    limits = {"requests": f"{limit}/{seconds}s", unit: f"{5 * limit}/{seconds}s"}
    provider = Provider(style, **limits, kind=kind, first_token=0)
    step = MS if style == "openai" else SECOND
    now = 0
    for gap, tokens in visits:
        now += gap
        answer = call(provider, now, tokens=tokens, max_tokens=1)
        signal = answer.signal(now)
        if answer.status == 200:
            assert not signal.limited
            continue
        assert signal.limited
        if tokens > 5 * limit:
            assert (signal.reason, signal.should_retry, signal.retry_after) == ("too_large", False, None)
            continue
        assert (signal.reason, signal.should_retry) == ("rate_limited", True)
        wait = round(signal.retry_after * SECOND)
        assert status(copy.deepcopy(provider), now + wait, tokens=tokens, max_tokens=1) == 200
        if wait > step:
            assert status(copy.deepcopy(provider), now + wait - step, tokens=tokens, max_tokens=1) == 429
        assert scope(signal, "requests").limit == limit
        assert scope(signal, unit).limit == 5 * limit


@pytest.mark.parametrize("style", STYLES)
def test_without_headers_a_refusal_states_no_limits_and_no_time(style):
    provider = Provider(style, requests="1/minute", headers=False, retry_after=False, first_token=0)
    success, refused = call(provider), call(provider)
    for answer in (success, refused):
        assert not [name for name, _ in answer.pairs if "limit" in name or "retry" in name]
    assert "again in" not in refused.body.decode()
    signal = refused.signal()
    assert (signal.limited, signal.retry_after, signal.scopes) == (True, None, ())


def test_retry_after_and_headers_are_switched_off_separately():
    advising = Provider("openai", requests="1/minute", headers=False, first_token=0)
    silent = Provider("openai", requests="1/minute", retry_after=False, first_token=0)
    for provider in (advising, silent):
        assert status(provider) == 200
    signal = call(advising).signal()
    assert (signal.retry_after, signal.scopes) == (60, ())
    refused = call(silent)
    assert "retry-after" not in refused.headers
    assert refused.signal().scopes[0].remaining == 0


@pytest.mark.parametrize("style", STYLES)
def test_a_request_above_the_limit_is_refused_without_a_time_to_try_again(style):
    unit = TOKEN_UNIT[style]
    provider = Provider(style, **{unit: "30_000/minute"})
    signal = call(provider, tokens=39_143).signal()
    assert (signal.limited, signal.reason, signal.should_retry) == (True, "too_large", False)
    assert provider.report().refused_by == {"too_large": 1}


def test_openai_says_request_too_large_in_its_own_words():
    answer = call(Provider("openai", tokens="30_000/minute"), tokens=39_143)
    assert answer.status == 429
    assert answer.json["error"]["message"] == (
        "Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 39143. "
        "The input or output tokens must be reduced in order to run successfully."
    )


def test_refusals_name_the_limit_in_the_provider_s_words():
    def said(style, **limits):
        provider = Provider(style, **limits, first_token=0)
        call(provider, tokens=6)
        return call(provider, tokens=6).json["error"]["message"]

    anthropic = said("anthropic", input_tokens="10/minute")
    assert anthropic.startswith(
        "This request would exceed your organization's rate limit of 10 input tokens per min"
    )
    assert said("plain", tokens="10/250ms") == "Too many requests: 10 tokens per 250ms."
    assert said("openai", requests="1/day").startswith(
        "Rate limit reached for gpt-x on requests per day (RPD): "
    )


def test_the_plain_style_names_concurrency_as_the_reason_of_a_refusal():
    provider = Provider("plain", concurrency=1)
    provider.open(request("plain"), 0)
    assert call(provider).signal().reason == "concurrency"


def test_anthropic_shows_its_tightest_token_budget_and_rounds_to_thousands():
    provider = Provider(
        "anthropic", input_tokens="80_000/minute", output_tokens="16_000/minute", first_token=0
    )
    answer = call(provider, tokens=1_400, max_tokens=5000, metadata={"sandbox_output_tokens": 4_300})
    assert answer.headers["anthropic-ratelimit-input-tokens-remaining"] == "79000"
    assert answer.headers["anthropic-ratelimit-output-tokens-remaining"] == "12000"
    assert answer.headers["anthropic-ratelimit-tokens-limit"] == "16000"
    assert answer.headers["anthropic-ratelimit-output-tokens-reset"] == "2027-01-15T08:00:17Z"  # 16.125 s
    assert answer.headers["date"] == "Fri, 15 Jan 2027 08:00:00 GMT"


@pytest.mark.parametrize(
    ("style", "fault", "expected"),
    [
        ("openai", Fault("storm"), (429, True, "rate_limited", None, True)),
        ("openai", Fault("storm", retry_after=1.25), (429, True, "rate_limited", 1.25, True)),
        ("openai", Fault("storm", retry_after="soon"), (429, True, "rate_limited", None, True)),
        ("openai", Fault("storm", retry_after="-5"), (429, True, "rate_limited", None, True)),
        ("openai", Fault("quota"), (429, True, "quota_exhausted", None, False)),
        ("openai", Fault("too_large"), (429, True, "too_large", None, False)),
        ("openai", Fault("overload"), (503, True, "overloaded", None, True)),
        ("openai", Fault("overload", retry_after=3), (503, True, "overloaded", 3, True)),
        ("openai", Fault("error"), (500, False, "server_error", None, True)),
        ("openai", Fault("error", status=504, retry_after=2), (504, False, "timeout", 2, True)),
        ("openai", Fault("html"), (502, False, "server_error", None, True)),
        ("openai", Fault("html", status=429), (429, True, "rate_limited", None, True)),
        ("anthropic", Fault("storm", retry_after=7), (429, True, "rate_limited", 7, True)),
        ("anthropic", Fault("quota"), (429, True, "quota_exhausted", None, False)),
        ("anthropic", Fault("too_large"), (413, True, "too_large", None, False)),
        ("anthropic", Fault("overload"), (529, True, "overloaded", None, True)),
        ("anthropic", Fault("error"), (500, False, "server_error", None, True)),
        ("plain", Fault("storm", retry_after=7), (429, True, "rate_limited", 7, True)),
        ("plain", Fault("quota"), (402, True, "quota_exhausted", None, False)),
        ("plain", Fault("too_large"), (413, True, "too_large", None, False)),
        ("plain", Fault("overload"), (503, True, "overloaded", None, True)),
        ("plain", Fault("error", status=501), (501, False, "server_error", None, False)),
    ],
)
def test_read_signal_understands_every_fault_that_answers(style, fault, expected):
    provider = Provider(style, requests="60/minute")
    provider.fault(fault, 0)
    answer = call(provider)
    signal = answer.signal()
    assert (answer.status, signal.limited, signal.reason, signal.retry_after, signal.should_retry) == expected
    report = provider.report()
    assert (report.admitted, report.faults) == (0, {fault.kind: 1})


# -- Faults


def test_a_fault_strikes_only_requests_of_its_path_model_and_key():
    provider = Provider("openai", first_token=0)
    provider.fault(Fault("error", path="embed"), 0)
    provider.fault(Fault("error", model="gpt-y"), 0)
    provider.fault(Fault("error", key="thief"), 0)
    assert status(provider) == 200
    assert status(provider, path="/v1/embeddings", input="x") == 500
    assert status(provider, model="gpt-y") == 500
    assert status(provider, headers={"authorization": "Bearer thief"}) == 500
    provider.clear_faults()
    assert status(provider, model="gpt-y") == 200


def test_a_fault_strikes_during_its_duration_and_at_most_count_times():
    provider = Provider("plain", first_token=0)
    provider.fault(Fault("storm", after=10, duration=5), 0)
    provider.fault(Fault("overload", count=2, after=20), 0)
    seen = [status(provider, second * SECOND) for second in (9, 10, 14, 15, 20, 20, 20)]
    assert seen == [200, 429, 429, 200, 503, 503, 200]
    assert provider.faults(20 * SECOND) == []


def test_a_run_with_the_same_seed_is_the_same():
    def run(seed):
        provider = Provider("plain", seed=seed, first_token=0)
        provider.fault(Fault("error", probability=0.3), 0)
        return [status(provider) for _ in range(300)]

    assert run(1) == run(1) != run(2)
    assert 50 < run(1).count(500) < 130


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "ending", "head"),
    [
        (Fault("reset"), "reset", False),
        (Fault("reset", at="headers"), "reset", True),
        (Fault("reset", at="body"), "reset", True),
        (Fault("truncate"), "closed", True),
        (Fault("truncate", clean=True), "whole", True),
    ],
)
def test_faults_that_cut_an_answer_short_end_the_call(stream, fault, ending, head):
    """The request was admitted and is charged; it is no longer in flight."""
    provider = Provider("openai", tokens="1000/minute", first_token=0)
    whole = call(provider, stream=stream, metadata={"sandbox_output_tokens": 40}).body
    provider.fault(fault, 0)
    answer = call(provider, stream=stream, metadata={"sandbox_output_tokens": 40})
    assert answer.ending == ending
    assert (answer.status == 200) == head
    assert len(answer.body) < len(whole)
    if fault.at == "body" or fault.kind == "truncate":
        assert answer.body
    assert b"[DONE]" not in answer.body
    report = provider.report()
    assert (report.admitted, report.in_flight, report.abandoned) == (2, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_slow_faults_deliver_the_whole_answer_late(stream):
    def took(fault):
        provider = Provider("openai", first_token=0, piece_tokens=5)
        if fault is not None:
            provider.fault(fault, 0)
        answer = call(provider, stream=stream, metadata={"sandbox_output_tokens": 40})
        assert answer.status == 200
        return answer.now / SECOND, answer.body

    plain, body = took(None)
    assert plain == 0
    assert took(Fault("slow_headers", seconds=3)) == (3, body)
    assert took(Fault("stall", seconds=4)) == (4, body)
    # Eight pieces; a stream also has a beginning and an end.
    assert took(Fault("slow_body", seconds=0.5)) == (5 if stream else 4, body)


@pytest.mark.parametrize(
    ("style", "path"), [("openai", "/v1/chat/completions"), ("openai", "/v1/responses"), ("anthropic", None)]
)
def test_a_stream_error_is_an_error_event_inside_a_200_stream(style, path):
    provider = Provider(style, first_token=0)
    provider.fault(Fault("stream_error"), 0)
    assert status(provider, path=path, stream=False) == 200
    answer = call(provider, path=path, stream=True, metadata={"sandbox_output_tokens": 40})
    assert answer.status == 200
    last = [line for line in answer.body.decode().splitlines() if line.startswith("data: ")][-1]
    error = json.loads(last.removeprefix("data: "))
    if path != "/v1/responses":  # at Responses the event itself is the error
        assert read_signal(200, [], error).reason == "overloaded"
    else:
        assert (error["type"], error["code"]) == ("error", "server_overloaded")
    assert provider.report().faults == {"stream_error": 1}


# -- Answers


def events(body):
    blocks = body.decode().strip().split("\n\n")
    return [block.split("data: ", 1)[1] for block in blocks]


def test_a_chat_stream_ends_with_usage_if_asked_and_done():
    provider = Provider("openai", first_token=0)
    plain = events(call(provider, stream=True, metadata={"sandbox_output_tokens": 9}).body)
    assert plain[-1] == "[DONE]"
    assert all("usage" not in json.loads(event) for event in plain[:-1])
    asked = call(
        provider,
        tokens=31,
        stream=True,
        stream_options={"include_usage": True},
        metadata={"sandbox_output_tokens": "9"},
    )
    *chunks, last, done = events(asked.body)
    assert done == "[DONE]"
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"]["total_tokens"] == 40
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)
    text = "".join(json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert len(text.split()) == 9
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("style", "path"),
    [("openai", "/v1/chat/completions"), ("openai", "/v1/responses"), ("anthropic", "/v1/messages")],
)
def test_an_answer_is_never_longer_than_its_request_allows(style, path):
    provider = Provider(style, first_token=0, reply_tokens=1000)
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    answer = call(provider, path=path, **{name: 7}, metadata={"sandbox_output_tokens": 50})
    assert provider.report().output_tokens == 7
    words = (b'"length"', b'"incomplete"', b'"stop_reason":"max_tokens"')
    assert any(word in answer.body for word in words)
    exact = call(provider, path=path, **{name: 7}, metadata={"sandbox_output_tokens": 7})
    assert not any(word in exact.body for word in words)


def test_answers_have_a_mean_length_and_latencies_a_median():
    provider = Provider("openai", first_token=2.0, spread=0.5, reply_tokens=20, seed=3)
    waits = sorted(call(provider).now / SECOND for _ in range(801))
    assert 1.8 < waits[400] < 2.2
    assert waits[0] < 1.0
    assert waits[-1] > 4.0
    assert 18 < provider.report().output_tokens / 801 < 22


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_takes_the_time_to_its_first_token_and_then_its_speed(stream):
    provider = Provider("openai", first_token=0.5, tokens_per_second=50)
    assert call(provider, stream=stream, metadata={"sandbox_output_tokens": 100}).now == 2_500 * MS


@pytest.mark.parametrize(
    ("style", "kwargs", "code"),
    [
        ("openai", {"path": "/v1/nothing"}, 404),
        ("openai", {"method": "GET"}, 405),
        ("openai", {"model": ""}, 400),
        ("openai", {"max_tokens": "many"}, 400),
        ("openai", {"max_tokens": 10**30}, 400),
        ("openai", {"max_tokens": True}, 400),
        ("anthropic", {"path": "/v1/complete"}, 404),
        ("anthropic", {"max_tokens": None}, 400),
        ("anthropic", {"method": "PUT"}, 405),
    ],
)
def test_a_request_that_cannot_be_served_is_answered_with_an_error_and_costs_nothing(style, kwargs, code):
    provider = Provider(style, requests="1/minute", first_token=0)
    answer = call(provider, **kwargs)
    assert answer.status == code
    assert (answer.signal().limited, answer.signal().reason) == (False, "client_error")
    assert provider.report().admitted == 0
    assert status(provider) == 200


@pytest.mark.parametrize("style", STYLES)
@given(
    body=st.binary(max_size=40) | st.sampled_from([b"[" * 100_000, b"1" * 5_000, b"null", b'"x"', b"\xff"])
)
@settings(max_examples=30)
def test_no_request_body_makes_the_provider_raise(style, body):
    provider = Provider(style, first_token=0)
    answer = finish(provider.open(Request("POST", PATHS[style], {}, body), 0), 0)
    assert answer.status in ((200,) if style == "plain" else (400,))
    assert answer.json


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "max_tokens",
    "max_output_tokens",
    "stream",
    "stream_options",
    "metadata",
    "input",
    "dimensions",
    "model",
]


@pytest.mark.parametrize(("style", "path"), [
    ("openai", "/v1/chat/completions"), ("openai", "/v1/responses"), ("openai", "/v1/embeddings"),
    ("openai", "/v1/responses/input_tokens"), ("anthropic", "/v1/messages"), ("plain", "/"),
])  # fmt: skip
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
@settings(max_examples=40, deadline=None)
def test_no_field_of_a_request_makes_the_provider_raise(style, path, fields):
    provider = Provider(style, first_token=0)
    body = json.dumps({"model": "m", "max_tokens": 5, **fields}).encode()
    answer = finish(provider.open(Request("POST", path, {}, body), 0), 0)
    assert answer.status in (200, 400)
    assert provider.report().in_flight == 0


# -- The report


def test_a_report_has_every_figure_of_a_run():
    provider = Provider(
        "openai", requests="2/minute", tokens="1000/minute", first_token=1, refusals_count=False
    )
    ids = [{"x-sandbox-id": name} for name in ("a", "b", "b", "b")]
    seen = [
        status(provider, at * SECOND, tokens=100, headers=i) for at, i in zip((0, 1, 2, 31), ids, strict=True)
    ]
    assert seen == [200, 200, 429, 200]
    assert status(provider, 32 * SECOND, path="/nothing") == 404
    report = provider.report()
    assert (report.requests, report.admitted, report.refused) == (5, 3, 1)
    assert report.by_status == {200: 3, 404: 1, 429: 1}
    assert report.refused_by == {"requests": 1}
    assert report.tokens == 300
    assert report.admissions == ((0.0, 100), (1.0, 100), (31.0, 100))
    assert report.arrivals == (0.0, 1.0, 2.0, 31.0, 32.0)
    assert (report.first_admission, report.last_admission) == (0.0, 31.0)
    assert report.peak == {"requests": 3, "tokens": 300}
    assert report.allowed == pytest.approx({"requests": 2 + 31 / 30, "tokens": 1000 + 31_000 / 60})
    assert report.use == pytest.approx({"requests": 3 / (2 + 31 / 30), "tokens": 300 / (1000 + 31_000 / 60)})
    assert report.amplification == 2.0
    assert (report.busiest, report.busiest_arrivals) == (1, 1)
    assert (report.in_flight, report.peak_in_flight) == (0, 1)
    assert "arrivals" not in report.facts(times=False)
    json.dumps(report.facts())
    assert pickle.loads(pickle.dumps(report)) == report
    with pytest.raises(AttributeError):
        report.requests = 0


def test_a_reset_of_the_report_keeps_levels_and_requests_in_flight():
    provider = Provider("plain", requests="2/minute")
    first = provider.open(request("plain"), 0)
    provider.reset_report()
    report = provider.report()
    assert (report.requests, report.admitted, report.in_flight, report.peak_in_flight) == (0, 0, 1, 1)
    assert report.first_admission is None
    assert report.amplification is None
    assert [status(provider), status(provider)] == [200, 429]
    assert provider.report().allowed == {"requests": 1}  # the other one had left before
    finish(first, 0)
    assert provider.report().in_flight == 0


@given(
    kind=st.sampled_from(["bucket", "fixed", "sliding"]),
    visits=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 9), st.integers(0, 30)), max_size=60),
    per_model=st.booleans(),
)
@settings(deadline=None)
def test_admissions_never_exceed_what_the_report_says_was_allowed(kind, visits, per_model):
    """For every kind of meter, for limits cut and raised at any time, and for any number of customers."""
    provider = Provider(
        "plain", requests="10/1us", tokens="40/1us", kind=kind, per_model=per_model, first_token=0
    )
    now = 0
    changed = False
    for gap, tokens, what in visits:
        now += gap
        if what < 3:
            provider.set_limits(requests=f"{5 * (what + 1)}/1us", now=now)
            changed = True
        status(provider, now, tokens=tokens, model=f"m{what % 2}")
    report = provider.report()
    assert all(use <= 1 + 1e-9 for use in report.use.values())
    assert report.admitted + report.refused == report.requests == len(visits)
    assert report.admitted == len(report.admissions) == report.by_status.get(200, 0)
    if kind == "sliding" and not changed:
        assert report.peak.get("requests", 0) <= 10
        assert report.peak.get("tokens", 0) <= 40


@pytest.mark.parametrize("kind", ["fixed", "sliding"])
def test_a_limit_that_is_raised_within_a_window_allows_the_difference_at_once(kind):
    provider = Provider("plain", requests="10/minute", kind=kind, first_token=0)
    assert sum(status(provider, SECOND) == 200 for _ in range(20)) == 10
    provider.set_limits(requests="15/minute", now=2 * SECOND)
    assert sum(status(provider, 3 * SECOND) == 200 for _ in range(20)) == 5
    assert provider.report().allowed == {"requests": 15}
    assert sum(status(provider, 63 * SECOND) == 200 for _ in range(20)) == 15
    assert provider.report().allowed == {"requests": 30}
    assert provider.report().use == {"requests": 1}


# -- Bad arguments


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"style": "gemini"}, InvalidConfig, "openai, anthropic, plain"),
        ({"kind": "leaky"}, InvalidConfig, "bucket, fixed, sliding"),
        ({"requests": "many"}, InvalidConfig, "it has no period"),
        ({"requests": 600}, InvalidConfig, "a rate is a Rate or a string"),
        ({"requests": "600/minute burst 5", "kind": "sliding"}, InvalidConfig, "only a bucket"),
        ({"style": "anthropic", "tokens": "5/s"}, InvalidConfig, "input_tokens, output_tokens"),
        ({"input_tokens": "5/s"}, InvalidConfig, "counts requests, tokens"),
        ({"concurrency": 0}, InvalidCapacity, "let nothing through"),
        ({"concurrency": "8"}, InvalidCapacity, "not a whole number"),
        ({"first_token": -1}, InvalidConfig, "negative"),
        ({"spread": -0.1}, InvalidConfig, "at least 0"),
        ({"spread": float("nan")}, InvalidConfig, "at least 0"),
        ({"tokens_per_second": 0}, InvalidConfig, "above 0"),
        ({"reply_tokens": 0}, InvalidCapacity, "at least 1"),
        ({"piece_tokens": 1.5}, InvalidCapacity, "whole number"),
        ({"seed": "x"}, InvalidConfig, "whole number"),
    ],
)
def test_arguments_that_cannot_work_raise_errors_that_say_what_to_write(arguments, error, says):
    with pytest.raises(error, match=says):
        Provider(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"kind": "earthquake"}, InvalidConfig, "storm, quota"),
        ({"kind": "storm", "status": 500}, InvalidConfig, "means nothing"),
        ({"kind": "storm", "clean": True}, InvalidConfig, "means nothing"),
        ({"kind": "storm", "retry_after": "a\r\nb"}, InvalidConfig, "printable"),
        ({"kind": "storm", "retry_after": -1}, InvalidWindow, "negative"),
        ({"kind": "error", "status": 200}, InvalidConfig, "400 to 599"),
        ({"kind": "reset", "at": "noon"}, InvalidConfig, "before, headers, body"),
        ({"kind": "stall", "seconds": -1}, InvalidWindow, "negative"),
        ({"kind": "storm", "probability": 0}, InvalidConfig, "above 0"),
        ({"kind": "storm", "probability": 1.5}, InvalidConfig, "above 0"),
        ({"kind": "storm", "count": 0}, InvalidCapacity, "at least 1"),
        ({"kind": "storm", "duration": 0}, InvalidWindow, "lasts no time"),
        ({"kind": "storm", "path": 5}, InvalidConfig, "not text"),
    ],
)
def test_faults_that_cannot_work_raise_errors_that_say_what_to_write(arguments, error, says):
    with pytest.raises(error, match=says):
        Fault(arguments.pop("kind"), **arguments)


def test_a_bad_change_of_limits_changes_nothing():
    provider = Provider("openai", requests="60/minute", concurrency=4)
    before = provider.limits()
    for bad in (
        {"concurrency": 9, "tokens": "x"},
        {"requests": "1/s", "concurrency": -1},
        {"input_tokens": "1/s"},
    ):
        with pytest.raises(HeadgateError):
            provider.set_limits(**bad, now=0)
        assert provider.limits() == before


def test_the_repr_of_a_fault_shows_its_arguments_and_faults_can_be_pickled():
    fault = Fault("storm", path="chat", probability=0.5, count=3, duration=5, retry_after=2)
    assert repr(fault) == "Fault('storm', path='chat', probability=0.5, count=3, duration=5, retry_after=2)"
    assert pickle.loads(pickle.dumps(fault)) == fault
    assert Fault("error", status=503) == Fault("error", status=503) != Fault("error")
