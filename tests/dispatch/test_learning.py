"""Rates learned from responses, as timelines of the pure arithmetic."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.arguments import SECOND
from headgate.dispatch.episodes import Edges, Episodes
from headgate.dispatch.learning import Learner
from headgate.dispatch.ramp import Ramp
from headgate.dispatch.stated import figures_of, unit_of
from headgate.gate.bucket import RateRule
from headgate.gate.decision import Rules
from headgate.http import read_signal
from headgate.limits import COLUMNS, Rate
from headgate.responses.scopes import Scope
from headgate.responses.signals import Signal

MINUTE = 60 * SECOND


def hear(learner, scopes, sent_at):
    """A response states these limits: name, limit, what remains, nanoseconds until the reset."""
    stated = [
        Scope(name, limit, remaining, None if reset is None else reset / SECOND)
        for name, limit, remaining, reset in scopes
    ]
    return learner.hear_limits(figures_of(stated), sent_at)


@pytest.mark.parametrize(
    ("headers", "rates"),
    [
        (
            {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9", "x-tokenlimit-limit": "3000"},
            ["10/s", "3000 tokens/s"],
        ),
        ({"ratelimit-limit": "10, 10;w=10"}, ["10/10s"]),
        ({"ratelimit-policy": '"default";q=100;w=1', "ratelimit": '"default";r=99;t=1'}, ["100/s"]),
        ({"x-ratelimit-limit": "10"}, ["10/minute"]),
    ],
)
def test_a_limit_is_learned_for_the_period_that_a_response_states(headers, rates):
    learner = Learner(None, 0)
    learner.hear_limits(figures_of(read_signal(200, headers).scopes), SECOND)
    assert [(rate.amount, rate.per_ns, rate.unit) for rate in learner.rates] == [
        (rate.amount, rate.per_ns, rate.unit) for rate in map(Rate.parse, rates)
    ]


def test_a_period_that_some_responses_state_holds_for_those_that_state_the_limit_alone():
    learner = Learner(None, 0)
    for second, field in enumerate(["10, 10;w=1", "10", "10", "10, 10;w=1", "12"]):
        changed = learner.hear_limits(
            figures_of(read_signal(200, {"ratelimit-limit": field}).scopes), second * SECOND
        )
        assert changed == (second in (0, 4))
        assert [rate.per_ns for rate in learner.rates] == [SECOND]


def use(ramp, start, seconds):
    """Report successes at the full rate for `seconds`; return the time after them."""
    now = start
    for _ in range(seconds * 10):
        now += SECOND // 10
        for _ in range(max(1, round(ramp.rate / 600))):
            ramp.succeeded(now, ramp.rate)
    return now


def test_while_no_limit_is_known_the_rate_doubles_with_every_second_of_use():
    ramp = Ramp(0)
    assert ramp.rate == 600
    use(ramp, 0, 5)
    assert ramp.rate == 600 * 2**5


def test_the_rate_does_not_grow_while_less_than_half_of_it_is_used():
    ramp = Ramp(0)
    for second in range(1, 60):
        ramp.succeeded(second * SECOND, ramp.rate)
    assert ramp.rate == 600


def test_an_episode_is_one_cut_however_many_refusals_it_has():
    """Refusals of calls sent before the cut do not cut again."""
    ramp = Ramp(0)
    now = use(ramp, 0, 3)
    before = ramp.rate
    assert ramp.congested(now - 1, now, now)
    for k in range(5_000):
        assert not ramp.congested(now - 1 - k, now + k, now)
    assert ramp.rate == before // 2  # no limit is known yet, so the cut is large
    now = use(ramp, now, 11)
    before = ramp.rate
    assert ramp.congested(now, now, now)
    assert ramp.rate == before * 85 // 100


def test_after_a_cut_the_rate_grows_as_a_cubic_that_is_flat_near_the_old_rate():
    ramp = Ramp(0)
    now = use(ramp, 0, 4)
    old = ramp.rate
    ramp.congested(now, now, now)
    after = {}
    for seconds in range(1, 76):
        use(ramp, now + (seconds - 1) * SECOND, 1)
        after[seconds] = ramp.rate / old
    assert after[1] < 0.53
    assert 0.92 < after[30] < 0.95  # 1 - 0.5 / 8
    assert 0.999 < after[60] < 1.001
    assert after[75] < 1.04
    assert list(after.values()) == sorted(after.values())


def test_the_rate_does_not_grow_before_the_window_ends():
    ramp = Ramp(0)
    now = use(ramp, 0, 4)
    ramp.congested(now, now, now + 20 * SECOND)
    cut = ramp.rate
    now = use(ramp, now, 20)
    assert ramp.rate == cut
    use(ramp, now, 10)
    assert ramp.rate > cut


def test_after_a_refusal_below_the_old_rate_the_cubic_aims_lower():
    ramp = Ramp(0)
    now = use(ramp, 0, 4)
    ramp.congested(now, now, now)
    now = use(ramp, now, 10)
    refused = ramp.rate
    ramp.congested(now, now, now)
    use(ramp, now, 60)
    assert abs(ramp.rate - refused * 97 // 100) <= 1


@given(st.integers(0, 40))
def test_every_rate_from_one_up_grows_back_after_a_cut(cuts):
    ramp = Ramp(0)
    now = 0
    for _ in range(cuts):
        now += SECOND
        ramp.congested(now, now, now)
    low = ramp.rate
    for _ in range(300):
        now += SECOND
        for _ in range(ramp.rate // 120 + 1):
            ramp.succeeded(now, ramp.rate)
        if ramp.rate > low:
            return
    pytest.fail(f"{low} a minute never grew")


def test_a_stated_limit_is_taken_as_the_rate():
    learner = Learner(None, 0)
    assert learner.rates == (Rate(600, 60, burst=1),)
    hear(learner, [("requests", 600, 599, SECOND // 10), ("tokens", 90_000, 89_000, SECOND)], 0)
    assert learner.rates == (Rate(600, 60), Rate(90_000, 60, unit="tokens"))


def test_the_period_of_a_bucket_is_learned_from_its_reset():
    """Missing one of ten, full in a tenth of a second: ten a second. Believed when seen twice."""
    learner = Learner(None, 0)
    hear(learner, [("requests", 10, 9, SECOND // 10)], 0)
    assert learner.rates[0].per == 60
    hear(learner, [("requests", 10, 8, 2 * SECOND // 10)], 1)
    assert learner.rates == (Rate(10, 1),)


def test_a_reset_in_whole_seconds_does_not_change_the_period():
    """It may have been rounded: 60 of 60 missing, full in one second."""
    learner = Learner(None, 0)
    for used in (57, 58, 59, 60):
        hear(learner, [("requests", 60, 60 - used, SECOND)], used)
    assert learner.rates[0].per == 60


def test_a_bucket_that_holds_less_than_its_limit_is_not_taken_for_a_faster_one():
    """1,440,000 a minute, of which one second's worth is kept: nearly all seems missing, and soon back."""
    learner = Learner(None, 0)
    for at, (remaining, reset) in enumerate([(11_000, 1_040), (12_000, 1_003), (12_800, 967)]):
        hear(learner, [("tokens", 1_440_000, remaining, reset * SECOND // 1000)], at)
    assert learner.rates[0].per == 60


def test_a_limit_per_day_is_not_spread_evenly():
    learner = Learner(None, 0)
    hear(learner, [("requests_day", 14_400, 14_370, 179 * SECOND), ("tokens", 18_000, 17_997, SECOND)], 0)
    assert [rate.unit for rate in learner.rates] == ["tokens"]


def test_configured_rates_are_only_lowered_and_come_back():
    configured = (Rate(600, 60, burst=20), Rate(50_000, 60, unit="tokens"))
    learner = Learner(configured, 0)
    hear(learner, [("requests", 300, 299, SECOND)], 1)
    assert learner.rates == (Rate(300, 60, burst=20), configured[1])
    hear(learner, [("requests", 6_000, 5_999, SECOND)], 2)
    assert learner.rates == configured


def test_a_signal_older_than_the_newest_one_is_ignored():
    learner = Learner(None, 0)
    assert hear(learner, [("requests", 300, 1, SECOND)], 10)
    assert not hear(learner, [("requests", 600, 599, SECOND)], 9)
    assert learner.rates[0].amount == 300


def test_anthropics_tokens_header_repeats_the_tighter_of_input_and_output():
    learner = Learner(None, 0)
    hear(
        learner, [("tokens", 10, 9, None), ("input_tokens", 80, 79, None), ("output_tokens", 16, 12, None)], 0
    )
    assert {rate.unit: rate.amount for rate in learner.rates} == {"input_tokens": 80, "output_tokens": 16}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("requests", "requests"),
        ("tokens", "tokens"),
        ("project_tokens", "tokens"),
        ("input_tokens", "input_tokens"),
        ("output_tokens_minute", "output_tokens"),
        ("default", "requests"),
    ],
)
def test_the_unit_that_each_scope_counts(name, unit):
    assert unit_of(name) == unit


small = st.one_of(st.none(), st.integers(0, 10**6))


@given(
    st.lists(
        st.tuples(st.sampled_from(["requests", "tokens", "cost", "requests_day"]), small, small, small),
        max_size=4,
    ),
    st.integers(0, 10**12),
)
def test_no_response_raises_an_error_or_a_configured_rate(scopes, sent_at):
    configured = (Rate(60, 60), Rate(1000, 60, unit="tokens"))
    learner = Learner(configured, 0)
    hear(learner, scopes, sent_at)
    for told, given_rate in zip(learner.rates, configured, strict=True):
        assert told.amount * given_rate.per_ns <= given_rate.amount * told.per_ns
        assert told.burst <= max(given_rate.burst, 1)
    automatic = Learner(None, 0)
    hear(automatic, scopes, sent_at)
    assert automatic.rates


def accepted_until(ramp, now, seconds, limit):
    """Calls go at the rate, and the API accepts `limit` a minute of them; the time after them."""
    for _ in range(seconds):
        now += SECOND
        for _ in range(min(ramp.rate, limit) // 60):
            ramp.succeeded(now, ramp.rate)
    return now


def refused(ramp, now, **facts):
    assert ramp.congested(now, now, now, **facts)
    return now


def test_what_is_accepted_between_two_episodes_is_the_limit_if_it_was_found_twice():
    ramp = Ramp(0, 1_500)
    now = refused(ramp, accepted_until(ramp, 0, 60, 1_200))
    for _ in range(2):
        now = refused(ramp, accepted_until(ramp, now, 100, 1_200))
    assert ramp.rate < 1_200
    now = accepted_until(ramp, now, 60, 1_200)
    assert 1_150 < ramp.rate <= 1_200  # and not what was refused, which was more


def test_calls_that_are_under_way_count_as_accepted_when_the_limit_is_found():
    """The answers to the calls of the last ten seconds, 200 of them, have not come when the refusal does."""
    ramp = Ramp(0, 1_500)
    now = refused(ramp, accepted_until(ramp, 0, 60, 1_200))
    now = refused(ramp, accepted_until(ramp, now, 100, 1_200))
    heard = accepted_until(ramp, now, 90, 1_200)
    now = refused(ramp, heard + 10 * SECOND, in_flight=200)
    again = Ramp.restored(ramp.saved(now), now)
    accepted_until(ramp, now, 60, 1_200)
    accepted_until(again, now, 60, 1_200)
    assert 1_150 < ramp.rate == again.rate <= 1_200


def test_in_fixed_windows_the_rate_is_not_cut_below_what_was_found_and_grows_slowly_at_first():
    ramp = Ramp(0, 1_500)
    now = refused(ramp, accepted_until(ramp, 0, 60, 1_200))
    for _ in range(2):
        now = refused(ramp, accepted_until(ramp, now, 60, 1_200), period=MINUTE)
    found = ramp.rate
    assert 1_150 < found <= 1_200
    now = accepted_until(ramp, now, 60, 1_200)
    assert ramp.rate <= found * 104 // 100
    accepted_until(ramp, now, 240, 10_000)  # the limit has been raised
    assert ramp.rate > 3 * found


def test_a_refusal_of_a_call_that_was_sent_before_the_success_that_ended_an_episode_is_old():
    episodes = Episodes()
    assert episodes.refused(0, SECOND, gap=SECOND // 10, stated=None)
    assert not episodes.refused(2 * SECOND, 3 * SECOND, gap=SECOND // 10, stated=None)  # a probe
    assert episodes.succeeded(5 * SECOND)
    assert episodes.is_echo(4 * SECOND)  # its refusal took long
    assert not episodes.is_echo(6 * SECOND)


def test_the_end_of_a_fixed_window_is_found_by_answers_that_come_after_the_episode_too():
    """Each episode ends somewhere in half a minute, as first told; late answers say more."""
    edges = Edges()
    for minute in (1, 2, 3):
        edge = minute * MINUTE
        edges.ended(edge - 20 * SECOND, edge + 10 * SECOND)
        assert edges.period is None
        edges.narrow(edge - 2 * SECOND, refused=True)
        edges.narrow(edge + minute * SECOND, refused=False)
    assert edges.period == MINUTE
    asked = 4 * MINUTE - 10 * SECOND
    assert edges.pause(asked, asked) == pytest.approx(10 * SECOND, abs=2 * SECOND)


def test_every_end_of_a_fixed_window_makes_its_edge_more_exact_and_one_elsewhere_ends_the_belief():
    edges = Edges()
    for minute in (1, 2, 3):
        edges.ended(minute * MINUTE - 4 * SECOND, minute * MINUTE + 4 * SECOND)
    assert edges.period == MINUTE
    exact = 4 * MINUTE - SECOND // 10, 4 * MINUTE + SECOND // 10
    edges.ended(*exact)
    asked = 5 * MINUTE - 10 * SECOND
    assert edges.pause(asked, asked) == pytest.approx(10 * SECOND, abs=SECOND // 5)
    edges.ended(6 * MINUTE + 20 * SECOND, 6 * MINUTE + 21 * SECOND)
    assert edges.period is None
    assert edges.pause(asked, asked) is None
    edges.narrow(asked, refused=True)  # nothing is known that it could narrow
    assert edges.period is None


def test_what_is_known_of_edges_and_episodes_is_the_same_in_another_process():
    episodes = Episodes()
    for minute in (1, 2, 3):
        edge = minute * MINUTE
        episodes.refused(edge - SECOND, edge - SECOND // 2, gap=SECOND // 10, stated=None)
        episodes.succeeded(edge + SECOND // 2)
    episodes.failed(4 * MINUTE, 4 * MINUTE)
    other, shift = Episodes(), 10**15
    other.restore(json.loads(json.dumps(episodes.saved(5 * MINUTE))), 5 * MINUTE + shift)
    assert episodes.edges.period == other.edges.period == MINUTE
    asked = 5 * MINUTE + 30 * SECOND
    assert other.edges.pause(asked + shift, asked + shift) == episodes.edges.pause(asked, asked)
    assert not other.quiet
    assert other.is_echo(3 * MINUTE + shift) == episodes.is_echo(3 * MINUTE)
    assert other.saved(6 * MINUTE + shift) == episodes.saved(6 * MINUTE)


def test_after_a_refusal_that_took_until_the_next_window_a_call_goes_at_once():
    edges = Edges()
    for minute in (1, 2, 3):
        edges.ended(minute * MINUTE - SECOND // 10, minute * MINUTE + SECOND // 10)
    assert edges.pause(4 * MINUTE + 5 * SECOND, 4 * MINUTE - SECOND) == SECOND // 10


# -- what responses say of levels


def rules_of(*rates):
    return Rules(rates=[RateRule(rate, COLUMNS[rate.unit]) for rate in rates])


def respond(learner, rules, sent, now, scopes=(), **said):
    """A response to a call that was sent then."""
    stated = figures_of([Scope(*scope) for scope in scopes])
    learner.hear_limits(stated, sent)
    return learner.hear(Signal(**said), stated or None, sent, now, rules, 0.5)


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_limits_for_one_unit_the_one_that_leaves_least_counts(turned):
    """And a limit of which nothing is said to remain, or that counts another unit, changes no level."""
    rates = Rate(100, 60, burst=100), Rate(10_000, 60, unit="tokens", burst=10_000)
    learner, rules = Learner(rates, 0), rules_of(*rates)
    scopes = [("requests", 100, 40), ("requests_day", 5000, 20), ("requests_hour", 500, None)]
    respond(learner, rules, SECOND, SECOND, scopes[::-1] if turned else scopes)
    assert [rule.level(SECOND) for rule in rules.rates] == [20, 10_000]


def test_a_period_that_was_found_is_known_in_another_process():
    learner = Learner(None, 0)
    hear(learner, [("requests", 10, 9, SECOND // 10), ("tokens", 9000, 8000, SECOND)], 0)
    hear(learner, [("requests", 10, 8, 2 * SECOND // 10), ("tokens", 9000, 8000, SECOND)], 1)
    other = Learner(None, 0)
    other.restore(json.loads(json.dumps(learner.saved(SECOND))), 77 * SECOND)
    assert other.rates == learner.rates == (Rate(10, 1), Rate(9000, 60, unit="tokens"))
    hear(other, [("requests", 20, 19, None)], 78 * SECOND)
    assert other.rates[0] == Rate(20, 1)


def test_until_the_first_response_a_part_of_each_burst_goes_that_was_not_configured():
    """The configured one goes whole. A good answer lets the rest go, a refusal does not."""
    rates = Rate(160, 60), Rate(1000, 3600, burst=50), Rate(90_000, 60, unit="tokens")
    for reason, left in (("ok", 160), ("rate_limited", 10)):
        learner, rules = Learner(rates, 0), rules_of(*rates)
        rules.rates[0].set_burst(160, 0)
        rules.rates[0].raise_to(160, 0, 320)
        learner.withhold_bursts(rules, 0)
        before = [rule.level(0) for rule in rules.rates]
        assert before == [10, 50, rules.rates[2].burst]
        respond(learner, rules, 0, 1, reason=reason, limited=reason != "ok")
        assert rules.rates[0].level(1) == left


@pytest.mark.parametrize(("reason", "shortest"), [("rate_limited", 1), ("quota_window", 60)])
def test_after_a_refusal_that_only_tells_when_a_bucket_is_full_the_next_call_goes_with_its_next_unit(
    reason, shortest
):
    """Sixty a minute, none left, full in a minute: one is there in a second. A quota comes back whole."""
    rates = (Rate(60, 60, burst=60),)
    learner, rules = Learner(rates, 0), rules_of(*rates)
    scopes = [("requests", 60, 0, 60.0)]
    facts = {"limited": True, "retry_after": 60.0, "from_reset": True, "reason": reason}
    advice = respond(learner, rules, SECOND, SECOND, scopes, **facts)
    assert advice.began
    assert shortest * SECOND <= advice.pause < 1.1 * shortest * SECOND
