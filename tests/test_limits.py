"""Rate and its grammar: what can be written, and the errors for what cannot work."""

import copy
import pickle
from datetime import timedelta

import pytest

from headgate import (
    Dispatch,
    DistributedLimiter,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    MemoryLimiter,
    Rate,
)
from headgate.limits import COLUMNS, read_cost, read_rates
from headgate.responses import read_signal
from headgate.swarm.bus.memory import MemoryBus
from headgate.testing import ManualClock, MemoryStore


@pytest.mark.parametrize(
    ("text", "amount", "per", "unit", "burst"),
    [
        ("500/minute", 500, 60.0, "requests", 8),
        ("100/s burst 20", 100, 1.0, "requests", 20),
        ("5 per hour", 5, 3600.0, "requests", 1),
        ("200_000 tokens/minute", 200_000, 60.0, "tokens", 3333),
        ("1 request/second", 1, 1.0, "requests", 1),
        ("3 requests per 90 seconds", 3, 90.0, "requests", 1),
        ("10/10s", 10, 10.0, "requests", 1),
        ("1000 bytes/s", 1000, 1.0, "bytes", 1000),
        ("50 images/day burst 5", 50, 86400.0, "images", 5),
        ("40_000 input_tokens/min", 40_000, 60.0, "input_tokens", 666),
        ("  7 / h ", 7, 3600.0, "requests", 1),
        ("10/500ms", 10, 0.5, "requests", 20),
    ],
)
def test_parse_reads_amount_unit_period_and_burst(text, amount, per, unit, burst):
    rate = Rate.parse(text)
    assert (rate.amount, rate.per, rate.unit, rate.burst, rate.strict) == (amount, per, unit, burst, False)


def test_a_rate_may_be_strict():
    rate = Rate.parse("1000 requests/day strict")
    assert (rate.amount, rate.per, rate.strict) == (1000, 86400.0, True)


def test_the_text_of_a_rate_can_be_parsed_again():
    texts = (
        "500/minute",
        "100/s burst 20",
        "1000/day strict",
        "3 per 90s",
        "7 images/hour burst 3",
        "10/500ms",
    )
    for rate in (*map(Rate.parse, texts), Rate(10, 0.5), Rate(3, 0.000_000_7), Rate(1, 0.001)):
        assert Rate.parse(str(rate)) == rate
        assert pickle.loads(pickle.dumps(rate)) == rate == copy.deepcopy(rate)
        assert hash(rate) == hash(Rate.parse(str(rate)))
        assert eval(repr(rate)) == rate


def test_a_rate_is_a_value_that_cannot_change():
    rate = Rate(10, timedelta(minutes=1))
    assert rate == Rate.parse("10/minute")
    with pytest.raises(AttributeError, match="cannot change"):
        rate.amount = 11
    with pytest.raises(AttributeError, match="cannot change"):
        del rate.amount


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10", "it has no period"),
        ("", "it has no period"),
        ("10/", "it has no period"),
        ("/minute", "the amount '' is not a whole number"),
        ("0.5/s", "the amount '0.5' is not a whole number, so take a longer period, as in \"1 per 2 s\""),
        ("5,000/minute", "the amount '5,000' has a comma; 5_000 is a whole number"),
        ("1,000,000 tokens/day", "the amount '1,000,000' has a comma; 1_000_000 is a whole number"),
        ("1,5/s", "the amount '1,5' is not a whole number; write"),
        ("5/s burst 1.5", "the burst '1.5' is not a whole number; write"),
        ("-5/s", "the amount '-5' is not a whole number"),
        ("١٢/s", "is not a whole number"),
        ("0/s", "would let nothing through"),
        ("10/minutte", "did you mean 'minute'?"),
        ("10/fortnight", "'fortnight' is not a period"),
        ("10/0s", "a period of zero lasts no time"),
        ("10/s burst", "'burst' is not understood"),
        ("10/s burst x", "the burst 'x' is not a whole number"),
        ("10/s burst 0", "would let nothing through"),
        ("10/s bursts 5", "'bursts' is not understood"),
        ("10/s strict burst 5", "a strict rate has no burst"),
        ("10 big tokens/s", "is not a unit"),
        ("10/s/m", "is not a period"),
        ("10 1/s", "is not a unit"),
    ],
)
def test_a_rate_that_cannot_be_read_names_itself_and_a_correct_spelling(text, says):
    with pytest.raises(InvalidLimit) as caught:
        Rate.parse(text)
    message = str(caught.value)
    assert message.count(repr(text)) == 1
    assert says in message
    assert '"500/minute"' in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [None, 10, 1.5, ["10/s"], b"10/s"])
def test_parse_refuses_what_is_not_a_string(value):
    with pytest.raises(InvalidLimit, match=r'write e\.g\. "500/minute"'):
        Rate.parse(value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"amount": 0}, InvalidCapacity),
        ({"amount": 1.5}, InvalidCapacity),
        ({"amount": True}, InvalidCapacity),
        ({"amount": 1, "per": 0}, InvalidWindow),
        ({"amount": 1, "per": -1}, InvalidWindow),
        ({"amount": 1, "per": float("nan")}, InvalidWindow),
        ({"amount": 1, "per": "60"}, InvalidWindow),
        ({"amount": 1, "burst": 0}, InvalidCapacity),
        ({"amount": 10, "burst": 5, "strict": True}, InvalidLimit),
        ({"amount": 1, "unit": "two words"}, InvalidLimit),
        ({"amount": 1, "unit": ""}, InvalidLimit),
        ({"amount": 1, "unit": 7}, InvalidLimit),
    ],
)
def test_a_rate_that_cannot_work_is_refused(arguments, error):
    with pytest.raises(error, match=r"write|is not|leave out"):
        Rate(**arguments)


def test_read_rates_takes_one_rate_or_several_as_strings_or_values():
    assert read_rates("10/s") == read_rates(["10/s"]) == read_rates(Rate(10)) == (Rate(10),)
    assert read_rates(()) == ()
    with pytest.raises(InvalidConfig, match="neither a rate nor a list"):
        read_rates(7)
    with pytest.raises(InvalidConfig, match="neither a rate nor a list"):
        read_rates({"requests": 5})
    with pytest.raises(InvalidConfig, match='"auto" stands alone'):
        read_rates(["auto", "5/s"])


def test_a_cost_is_one_number_for_each_unit():
    columns = {**COLUMNS, "images": 3}
    assert read_cost(COLUMNS, 5, 7, None) == (1, 7, 5)
    assert read_cost(columns, 5, 7, 3) == (3, 7, 5, 0)
    assert read_cost(columns, -5, 0, {"images": 2}) == (1, 0, 0, 2)
    assert read_cost(columns, 0, 7, {"tokens": 9, "requests": 0}) == (0, 9, 0, 0)


@pytest.mark.parametrize("cost", [{"imagse": 1}, {"images": -1}, {"images": 1.5}, "3", [3], True, -1])
def test_a_cost_in_a_unit_that_nothing_counts_is_refused(cost):
    with pytest.raises(InvalidLimit):
        read_cost({**COLUMNS, "images": 3}, 0, 0, cost)


def test_periods_that_have_no_name_are_named_by_their_length():
    assert Rate(1, 90).name == "requests/90s"
    assert Rate(1, 0.5).name == "requests/500ms"
    assert Rate(1, 60, unit="token").name == "tokens/minute"


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("1000 tokens/minute", 10_000),
        ("1000/day", 1000),
        ("1000/day burst 5000", 5000),
        ("10/s strict", 6000),
        ("1000/day strict", 1000),
    ],
)
def test_the_debt_of_one_call_is_at_most_a_period_a_burst_or_ten_minutes(text, most):
    assert Rate.parse(text).most_debt == most


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("10 req/s", "10/s"),
        ("10 reqs/s", "10/s"),
        ("10 call/minute", "10/minute"),
        ("10 calls per minute", "10/minute"),
        ("10 Requests/minute", "10/minute"),
        ("10 REQUEST/Minute", "10/minute"),
        ("10 Tokens/s", "10 tokens/s"),
        ("10 tok/s", "10 tokens/s"),
        ("10 toks/s", "10 tokens/s"),
        ("10req/s", "10/s"),
        ("500 rpm", "500/minute"),
        ("500rpm", "500/minute"),
        ("500 RPM burst 20", "500/minute burst 20"),
        ("500 rpm strict", "500/minute strict"),
        ("500 rpm/minute", "500/minute"),
        ("90_000 TPM", "90_000 tokens/minute"),
        ("5 rps", "5/s"),
        ("10_000 rpd", "10_000/day"),
        ("1_000_000 tpd", "1_000_000 tokens/day"),
        ("10 PER 90 Seconds BURST 2", "10/90s burst 2"),
        ("7 Images/day", "7 images/day"),
    ],
)
def test_usual_words_for_units_are_understood_in_any_case(text, same):
    assert Rate.parse(text) == Rate.parse(same)


@pytest.mark.parametrize("unit", ["req", "Calls", "request", "RPM"])
def test_the_unit_of_a_rate_value_is_read_as_in_text(unit):
    assert Rate(10, 60, unit=unit) == Rate(10, 60)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("100/15m", "'m' is not a period (ms, s, minute, hour, day), did you mean 'min'?"),
        ("100/m", "did you mean 'min'?"),
        ("10 reqeusts/s", "did you mean 'requests'?"),
        ("10 tokns/s", "did you mean 'tokens'?"),
        ("10 inputtokens/s", "did you mean 'input_tokens'?"),
        ("10 rpm/hour", "unit='rpm' is requests per minute, and the period is another one"),
        ("500 rpm burst", "'burst' is not understood"),
        ("1/999999999d", "the period is longer than 146 years"),
    ],
)
def test_a_unit_or_period_that_is_nearly_right_is_an_error_that_says_what_to_write(text, says):
    with pytest.raises(InvalidLimit) as caught:
        Rate.parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text", ["9" * 5000 + "/s", "1/s burst " + "9" * 5000, "1/" + "9" * 5000 + "s", "9" * 30 + "/s"]
)
def test_a_number_of_thousands_of_digits_is_an_error_of_one_line(text):
    with pytest.raises(InvalidLimit) as caught:
        Rate.parse(text)
    assert len(str(caught.value)) < 250


GATES = {
    "admit": lambda rates: Dispatch("api", rates=rates, clock=ManualClock()).admit().__enter__,
    "try_admit": lambda rates: Dispatch("api", rates=rates, clock=ManualClock()).try_admit,
    "tokens": lambda rates: lambda: Dispatch("api", rates=rates, clock=ManualClock()).try_admit(tokens=9),
    "store": lambda rates: Dispatch("api", rates=rates, store=MemoryStore()).try_admit,
    "template": lambda rates: lambda: MemoryLimiter(rates=rates).try_acquire("api"),
    "slot": lambda rates: MemoryLimiter(rates=rates).slot("api").__enter__,
    "swarm": lambda rates: swarm_of_one(rates),
}


def swarm_of_one(rates):
    limiter = DistributedLimiter(bus=MemoryBus(), agent_id="a")
    limiter.set_rates("api", rates)
    return lambda: limiter.try_acquire("api")


@pytest.mark.parametrize("rates", ["10 widgets/minute", ["100/s", "40_000 input_tokens/minute"]])
@pytest.mark.parametrize("gate", GATES)
def test_a_call_that_states_nothing_is_an_error_where_no_call_has_stated_the_unit_of_a_rate(gate, rates):
    """The unit may be a misspelling: a rate that no call spends would limit nothing."""
    with pytest.raises(InvalidLimit, match=r'no call has said how many it costs; write cost=\{"\w+": 1\}'):
        GATES[gate](rates)()


def test_a_unit_of_the_users_own_limits_once_a_call_has_stated_it():
    limits = {"rates": ["100/s", "4 images/minute burst 4"], "concurrency": None, "byte_budget": None}
    gate = Dispatch("api", **limits, throttled_concurrency=None, clock=ManualClock())
    assert gate.try_admit(cost={}) is not None  # states that it costs none
    with pytest.raises(InvalidLimit, match="a rate counts images"):
        gate.try_admit()
    assert gate.try_admit(cost={"images": 4}) is not None
    assert gate.try_admit(cost={"images": 1}) is None
    assert gate.try_admit() is not None  # costs none: the unit is known to be spent
    with gate.admit(tokens=5):
        pass
    assert [rate.level for rate in gate.snapshot().rates] == [96, 0]


def test_a_rate_that_a_response_states_does_not_make_calls_state_its_unit():
    gate = Dispatch("api", rates="auto", clock=ManualClock())
    headers = {"anthropic-ratelimit-input-tokens-limit": "1000"}
    headers |= {"anthropic-ratelimit-input-tokens-remaining": "900"}
    gate.observe(read_signal(200, headers))
    assert "input_tokens" in {rate.name.partition("/")[0] for rate in gate.snapshot().rates}
    assert gate.try_admit(tokens=5) is not None


def test_a_unit_that_rates_set_later_count_has_to_be_stated_too():
    gate = Dispatch("api", rates="100/s", clock=ManualClock())
    gate.try_admit().settle()
    gate.set_rates(["100/s", "4 images/minute"])
    with pytest.raises(InvalidLimit, match="a rate counts images"):
        gate.try_admit()
    gate.set_rates("100/s")
    gate.try_admit().settle()
