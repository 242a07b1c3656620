"""Buckets of many keys, as one integer each."""

from headgate.gate.bucket import RateRule
from headgate.limiters.buckets import KeyedRates
from headgate.limits import COLUMNS, Rate

SECOND = 1_000_000_000
RATES = (Rate(10, burst=2), Rate(100, 60, unit="tokens", burst=100))


def level(keyed, key, now):
    rules, count = keyed.look(key, now)
    return [rule.level(now) for rule in rules], count


def test_a_call_takes_from_all_buckets_of_its_key_or_from_none():
    keyed = KeyedRates(RATES)
    assert keyed.enter("a", (1, 70, 0), 0)
    assert not keyed.enter("a", (1, 31, 0), 0)
    assert level(keyed, "a", 0) == ([1, 30], 1)
    assert keyed.enter("a", (1, 30, 0), 0)
    assert not keyed.enter("a", (1, 0, 0), 0)
    assert level(keyed, "a", 0) == ([0, 0], 2)
    assert level(keyed, "b", 0) == ([2, 100], 0)


def test_a_call_that_was_not_made_gets_its_token_of_the_requests_back_and_nothing_else():
    keyed = KeyedRates(RATES)
    for _ in range(2):
        assert keyed.enter("a", (1, 20, 0), 0)
    keyed.release("a", 0, refund=False)
    assert level(keyed, "a", 0) == ([0, 60], 1)
    keyed.release("a", 0, refund=True)
    assert level(keyed, "a", 0) == ([1, 60], 0)
    keyed.release("a", 0, refund=True)  # no call is left that could be given back
    assert level(keyed, "a", 0) == ([1, 60], 0)
    keyed.release("b", 0, refund=True)
    assert level(keyed, "b", 0) == ([2, 100], 0)


def test_a_key_that_is_taken_out_goes_on_with_rules_of_its_own():
    keyed = KeyedRates(RATES)
    assert keyed.enter("a", (1, 20, 0), 0)
    rules, count = keyed.extract("a", 0)
    assert [type(rule) for rule in rules] == [RateRule, RateRule]
    assert ([rule.level(0) for rule in rules], count) == ([1, 80], 1)
    assert keyed.extract("a", 0) is None
    assert level(keyed, "a", 0) == ([2, 100], 0)


def test_a_cost_that_never_fits_is_refused_by_the_rate_that_it_never_fits():
    keyed = KeyedRates(RATES)
    assert keyed.refusal((1, 100, 0)) is None
    assert keyed.refusal((11, 0, 0))[1] == "requests/second"
    assert keyed.refusal((1, 101, 0))[1] == "tokens/minute"


def test_a_key_is_forgotten_when_its_buckets_are_full_again_and_not_before():
    keyed = KeyedRates([Rate(10, burst=2)], COLUMNS)
    assert keyed.enter("a", (1, 0, 0), 0)
    assert keyed.enter("b", (2, 0, 0), 0)
    for now in range(0, 10 * SECOND, SECOND // 10):
        keyed.enter("busy", (1, 0, 0), now)
    assert len(keyed) == 1
    keyed.forget("busy")
    assert len(keyed) == 0
