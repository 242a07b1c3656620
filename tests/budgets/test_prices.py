"""Prices by model: exact, rounded up, and an error for a model that the list does not have."""

import json
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidCapacity, InvalidConfig, Prices, TokenBudget, UnknownName
from headgate.budgets.prices import Price

figures = st.integers(0, 10**9).map(lambda millionths: millionths / 10**6)
tokens = st.integers(0, 10**7)


@given(figures, figures, st.none() | figures, tokens, tokens, tokens)
def test_a_cost_is_exact_and_rounded_up_once(own, output, from_cache, fresh, cached, answered):
    """Held against fractions made of the digits as they are written."""
    if from_cache is not None and from_cache > own:
        own, from_cache = from_cache, own
    prices = Prices({"m": (own, output, from_cache)})
    exact = sum(
        count * Fraction(str(price))
        for count, price in [
            (fresh, own),
            (cached, own if from_cache is None else from_cache),
            (answered, output),
        ]
    )

    cost = prices.cost("m", input_tokens=fresh + cached, output_tokens=answered, cached=cached)

    assert cost == ceil(exact)
    assert prices.get("m").of(fresh + cached, answered, cached) == pytest.approx(float(exact / 10**6))


def test_a_token_costs_as_many_millionths_as_a_million_tokens_cost_units():
    prices = Prices({"m": (0.15, 0.60)})
    assert prices.cost("m", input_tokens=1_000_000) == 150_000
    assert prices.cost("m", input_tokens=20, output_tokens=5) == 6  # exactly, although 20 * 0.15 is not 3
    assert prices.cost("m", input_tokens=1) == 1
    assert prices.cost("m") == 0


def test_cached_input_costs_as_any_other_where_the_list_has_no_price_for_it():
    assert Prices({"m": (2, 8)}).cost("m", input_tokens=1_000, cached=900) == 2_000
    assert Prices({"m": (2, 8, 0.5)}).cost("m", input_tokens=1_000, cached=900) == 200 + 450
    assert Prices({"m": (2, 8, 0)}).cost("m", input_tokens=1_000, cached=1_000) == 0


def test_the_shipped_list_has_a_date_and_a_currency():
    prices = Prices.shipped()
    assert len(prices.date.split("-")) == 3
    assert prices.currency == "USD"
    assert repr(prices) == f"<Prices of {len(prices.models)} models in USD of {prices.date}>"


def test_a_model_is_meant_by_its_name_with_its_provider_and_version_but_not_by_that_of_a_relative():
    prices = Prices({"gpt-5": (1, 10), "gpt-5-mini": (0.25, 2), "org/own": (3, 4)})
    assert prices.get("gpt-5-mini-2025-08-07") == prices.get("openai/gpt-5-mini") == Price(0.25, 2)
    assert prices.get("org/own") == Price(3, 4)
    assert "gpt-5" in prices
    assert "gpt-5-pro" not in prices
    assert None not in prices


@pytest.mark.parametrize("model", ["gpt-5-pro", "", None, 7])
def test_a_model_that_the_list_does_not_have_is_an_error_and_never_free(model):
    with pytest.raises(UnknownName, match="no price is known for the model") as caught:
        Prices.shipped().cost(model, input_tokens=1)
    assert Prices.shipped().date in str(caught.value)


def test_the_error_of_a_misspelt_model_names_the_nearest_one():
    with pytest.raises(UnknownName, match="did you mean 'gpt-5-mini'"):
        Prices({"gpt-5-mini": (1, 2)}).cost("gpt5-mini")


def test_one_price_can_hold_for_every_model():
    prices = Prices({"*": (1, 2), "small": (1, 0)})
    assert prices.cost("any", input_tokens=3, output_tokens=4) == 11
    assert prices.cost("small-2026-01-01", input_tokens=3, output_tokens=4) == 3
    assert "another" in prices
    assert prices.get(None) == Price(1, 2)


def test_a_list_can_be_made_of_another_one_and_prices_of_your_own():
    shipped = Prices.shipped()
    prices = Prices({**shipped.models, "own": (0.1, 0.2)}, date=shipped.date, currency=shipped.currency)
    assert prices.cost("own", input_tokens=10) == 1
    assert prices.get("gpt-4o") == shipped.get("gpt-4o")
    with pytest.raises(TypeError):
        prices.models["own"] = (0, 0)


def test_a_file_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"date": "2026-01-01", "currency": "EUR", "models": {"m": [1, 2, 0.5]}}))
    for given_path in (path, str(path)):
        prices = Prices.read(given_path)
        assert (prices.date, prices.currency) == ("2026-01-01", "EUR")
        assert prices.get("m") == Price(1, 2, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "oops",
        "[]",
        "{}",
        '{"models": {"m": [1, 2]}}',
        '{"date": "x", "models": {"m": [1]}}',
        '{"date": "x", "models": {"m": [1, -1]}}',
        '{"date": "x", "models": {"m": [1, NaN]}}',
        '{"date": "x", "models": {"m": [1, true]}}',
        '{"date": "x", "models": {"": [1, 2]}}',
        '{"date": "x", "models": {"m": [1, 2, 3, 4]}}',
        '{"date": "x", "models": {"m": "12"}}',
        b"\xff\xfe\x00",
    ],
)
def test_a_file_that_is_not_a_list_of_prices_is_an_error_that_says_what_to_write(tmp_path, text):
    path = tmp_path / "prices.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidConfig, match=r"is not a list of prices .*; write .*models") as caught:
        Prices.read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        Prices.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "models",
    [
        None,
        [("m", (1, 2))],
        {"": (1, 2)},
        {5: (1, 2)},
        {"m": 1},
        {"m": (None, 2)},
        {"m": (1, 2, 3)},
        {"m": (3, 2, 1, 1)},
    ],
)
def test_models_without_two_prices_are_errors(models):
    with pytest.raises(InvalidConfig):
        Prices(models)


@pytest.mark.parametrize(
    "counts",
    [
        {"input_tokens": -1},
        {"output_tokens": 1.5},
        {"input_tokens": True},
        {"cached": -1},
        {"input_tokens": 5, "cached": 6},
    ],
)
def test_counts_that_no_call_can_have_are_errors(counts):
    with pytest.raises(InvalidCapacity):
        Prices({"m": (1, 2)}).cost("m", **counts)


def test_a_million_names_of_models_leave_nothing_behind():
    prices = Prices({"m": (1, 2)})
    for k in range(3_000):
        assert prices.get(f"m-{k}") == Price(1, 2)
    assert len(prices._found) <= 1_000


def test_a_cost_is_what_a_budget_counts(clock):
    budget, prices = TokenBudget(None, money={86_400: 5_000_000}, clock=clock), Prices({"m": (1, 10)})
    with budget.reserve(0, money=prices.cost("m", input_tokens=1_000, output_tokens=1_000)) as reservation:
        assert budget.remaining_money == 5_000_000 - 11_000
        reservation.settle(money=prices.cost("m", input_tokens=900, output_tokens=10))
    assert budget.remaining_money == 5_000_000 - 1_000
