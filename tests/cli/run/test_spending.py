"""The budget of a run, and what a job is expected to use of it."""

import pytest

from headgate.budgets.prices import Price, Prices
from headgate.cli.options import CommandError
from headgate.cli.run.answers import answer_line
from headgate.cli.run.jobs import Job
from headgate.cli.run.prices import read_prices
from headgate.cli.run.spending import Spending, Tokens, UnknownPrice, likely_tokens
from headgate.responses.estimate import NO_SHAPE, TokenStats, read_shape
from headgate.responses.usage import Usage


def test_money_is_counted_by_its_prices():
    spending = Spending(max_cost=1.0, prices=Prices({"*": (1.0, 10.0)}))
    spending.add_answer(
        b'{"custom_id": "a", "response": {"usage": {"input_tokens": 200000, "output_tokens": 0}}}'
    )
    assert spending.cost == pytest.approx(0.2)
    assert not spending.reserve(Tokens(0, 90_000))
    assert spending.reserve(Tokens(0, 80_000))
    assert not spending.reserve(Tokens(0, 1))
    why = spending.why_not(Tokens(0, 1))
    assert why == "0.200000 of 1 is spent, and the next job may cost 0.000010"
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


def test_each_model_is_counted_by_its_own_price():
    spending = Spending(max_cost=10.0, prices=Prices({"small": Price(1, 2), "large": Price(10, 20)}))
    assert spending.reserve(Tokens(100_000, 0), "small-2026-01-02")
    assert spending.reserve(Tokens(100_000, 0), "models/large")
    spending.settle(Tokens(100_000, 0), Usage(input=100_000, output=50_000, final=True), "small-2026-01-02")
    spending.settle(Tokens(100_000, 0), Usage(input=100_000, output=50_000, final=True), "models/large")
    assert spending.cost == pytest.approx(0.2 + 2.0)
    with pytest.raises(UnknownPrice, match="small-pro"):
        spending.reserve(Tokens(1, 1), "small-pro")


@pytest.mark.parametrize("shape", ["openai", "anthropic", "gemini"])
def test_answers_of_earlier_runs_are_counted_in_every_shape(shape):
    body = b'{"model": "gpt-4o-mini-2024-07-18", "usage": {"prompt_tokens": 1000000, "completion_tokens": 0}}'
    spending = Spending(max_cost=10.0, prices=read_prices(None))
    spending.add_answer(answer_line(Job(1, "a", "POST", "", b"", NO_SHAPE), 200, "", body, shape))
    assert spending.cost == pytest.approx(0.15)


def test_the_shipped_prices_have_a_date_and_name_versions_of_a_model_but_not_its_relatives():
    prices = read_prices(None)
    assert prices.date
    assert prices.get("claude-sonnet-4-5-20250929") == prices.get("claude-sonnet-4-5") == Price(3, 15)
    assert prices.get("gpt-5.4-mini") != prices.get("gpt-5.4")
    assert prices.get("gpt-5-pro") is None
    assert prices.get(None) is None


@pytest.mark.parametrize(
    "text",
    ["oops", "[]", "{}", '{"date": "x", "models": {"m": [1]}}', '{"date": "x", "models": {"m": [1, -1]}}'],
)
def test_a_file_that_is_not_a_list_of_prices_is_an_error(tmp_path, text):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(CommandError, match="is not a list of prices") as caught:
        read_prices(path)
    assert "models" in caught.value.hint


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(input=1_000_000, output=0, final=True, cached=400_000), 0.6 * 2 + 0.4 * 0.5),
        (Usage(input=600_000, output=0, final=True, cached=400_000, beside=400_000), 0.6 * 2 + 0.4 * 0.5),
    ],
    ids=["in the input", "beside the input"],
)
def test_input_from_the_cache_of_the_provider_costs_its_own_price(usage, cost):
    spending = Spending(max_cost=5, prices=Prices({"m": (2.0, 10.0, 0.5)}))
    assert spending.reserve(Tokens(1_000_000, 0), "m")
    spending.settle(Tokens(1_000_000, 0), usage, "m")
    assert spending.cost == pytest.approx(cost)
