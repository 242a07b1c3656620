"""The budget of a run, and what a job is expected to use of it."""

import pytest

from headgate.cli.run.spending import Price, Spending, Tokens, likely_tokens
from headgate.responses.estimate import TokenStats, read_shape
from headgate.responses.usage import Usage


def test_money_is_counted_by_its_prices():
    spending = Spending(max_cost=1.0, price=Price(1.0, 10.0), spent=Tokens(200_000, 0))
    assert spending.cost == pytest.approx(0.2)
    assert not spending.reserve(Tokens(0, 90_000))
    assert spending.reserve(Tokens(0, 80_000))
    assert not spending.reserve(Tokens(0, 1))
    assert "0.2000 of 1 is spent" in spending.why_not(Tokens(0, 1))
    spending.settle(Tokens(0, 80_000), Usage(input=0, output=10_000, final=True))
    assert spending.cost == pytest.approx(0.3)
    assert spending.reserve(Tokens(0, 70_000))


def test_a_job_without_max_tokens_is_expected_to_answer_as_earlier_jobs_did():
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    shape, stats = read_shape("POST", "a.b", "/v1/chat/completions", body), TokenStats()
    first = likely_tokens(shape, "a.b", stats)
    assert first.output == 1_024
    for _ in range(20):
        stats.learn("a.b", "m", shape.input, Usage(input=first.input, output=100, final=True))
    assert likely_tokens(shape, "a.b", stats) == Tokens(first.input, 100)
