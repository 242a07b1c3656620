"""Calls through the SDKs of OpenAI and Anthropic are charged money by their model and by what answers say."""

import asyncio
import json
from datetime import UTC, datetime

import anthropic
import httpx
import httpx2
import openai
import pytest

from headgate import BudgetBook, BudgetExceeded, Dispatch, Prices, TokenBudget, UnknownName, call_options
from headgate.http import refusal_of
from headgate.http.anthropic import middleware
from headgate.http.httpx import AsyncTransport, Transport, async_client, client
from headgate.sandbox import Sandbox
from headgate.testing import ManualClock

# Millionths for a token of the input, of the answer, and from the cache.
PRICES = Prices({"gpt-5-mini": (2.0, 10.0, 0.5), "claude-haiku-4-5": (1.0, 5.0)}, currency="USD")
HELLO = [{"role": "user", "content": "hello"}]
ALL = 5_000_000


@pytest.fixture(scope="module")
def openai_api():
    with Sandbox("openai", requests="600_000/minute", tokens="100_000_000/minute") as api:
        yield api


@pytest.fixture(scope="module")
def anthropic_api():
    with Sandbox("anthropic", requests="600_000/minute", reply_tokens=5) as api:
        yield api


@pytest.fixture(autouse=True)
def _fresh(openai_api, anthropic_api):
    openai_api.reset_report()
    anthropic_api.reset_report()


def open_sdk(api, library=httpx2):
    http = client(Dispatch("api"), library=library)
    return openai.OpenAI(base_url=api.url + "/v1", api_key="k", http_client=http)


def spent(budget):
    return ALL - budget.remaining_money


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize("model", ["gpt-5-mini", "gpt-5-mini-2025-08-07"])
def test_a_completion_costs_what_its_usage_says(openai_api, library, model):
    budget = TokenBudget(limits=["$5/calendar month", "900_000 tokens/day"], prices=PRICES)
    with open_sdk(openai_api, library) as sdk, call_options(budget=budget):
        usage = sdk.chat.completions.create(model=model, messages=HELLO, max_tokens=400).usage
    assert spent(budget) == 2 * usage.prompt_tokens + 10 * usage.completion_tokens
    assert budget.remaining_budget == 900_000 - usage.total_tokens


def test_a_stream_costs_what_its_last_chunk_says(openai_api):
    budget = TokenBudget(limits="$5/day", prices=PRICES)
    with open_sdk(openai_api) as sdk, call_options(budget=budget):
        stream = sdk.chat.completions.create(
            model="gpt-5-mini",
            messages=HELLO,
            max_tokens=400,
            stream=True,
            stream_options={"include_usage": True},
        )
        assert spent(budget) > 400 * 10  # the estimate
        usage = list(stream)[-1].usage
    assert spent(budget) == 2 * usage.prompt_tokens + 10 * usage.completion_tokens


def test_the_responses_api_in_a_task_costs_what_its_usage_says(openai_api):
    book = BudgetBook({"free": "$5/calendar day"}, prices=PRICES)

    async def main():
        async with openai.AsyncOpenAI(
            base_url=openai_api.url + "/v1", api_key="k", http_client=async_client(Dispatch("api"))
        ) as sdk:
            with call_options(budget=book.for_user("ann")):
                return await sdk.responses.create(model="gpt-5-mini", input="hi", max_output_tokens=50)

    usage = asyncio.run(main()).usage
    assert spent(book.for_user("ann")) == 2 * usage.input_tokens + 10 * usage.output_tokens


@pytest.mark.parametrize("way", ["middleware", "transport"])
def test_a_message_of_anthropic_costs_what_its_usage_says(anthropic_api, way):
    budget, gate = TokenBudget(limits="$5/day", prices=PRICES), Dispatch("api")
    means = (
        {"middleware": [middleware(gate)]}
        if way == "middleware"
        else {"http_client": httpx2.Client(transport=Transport(gate))}
    )
    with (
        anthropic.Anthropic(base_url=anthropic_api.url, api_key="k", **means) as claude,
        call_options(budget=budget),
    ):
        usage = claude.messages.create(model="claude-haiku-4-5", max_tokens=90, messages=HELLO).usage
    assert spent(budget) == usage.input_tokens + 5 * usage.output_tokens


def answering(figures):
    """A server inside the client, whose answers state these figures."""
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5-mini",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
        "usage": figures,
    }
    return httpx2.MockTransport(lambda _request: httpx2.Response(200, json=body))


def test_input_from_the_cache_of_the_provider_costs_its_own_price():
    figures = {
        "prompt_tokens": 1_000,
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens": 30,
        "total_tokens": 1_030,
    }
    budget = TokenBudget(limits="$5/day", prices=PRICES)
    http = httpx2.Client(transport=Transport(Dispatch("api"), inner=answering(figures)))
    with openai.OpenAI(api_key="k", http_client=http) as sdk, call_options(budget=budget):
        sdk.chat.completions.create(model="gpt-5-mini", messages=HELLO)
    assert spent(budget) == 400 * 2 + 600 // 2 + 30 * 10


def test_an_sdk_says_that_a_model_has_no_price_and_does_not_try_again(openai_api):
    budget = TokenBudget(limits="$5/day", prices=PRICES)
    with (
        open_sdk(openai_api) as sdk,
        call_options(budget=budget),
        pytest.raises(openai.BadRequestError, match="no price is known for the model 'gpt-6'"),
    ):
        sdk.chat.completions.create(model="gpt-6", messages=HELLO)
    assert openai_api.report().requests == 0
    assert spent(budget) == 0


def test_a_plain_client_raises_that_a_model_has_no_price(openai_api):
    body = {"model": "gpt-6", "messages": HELLO}
    with (
        client(Dispatch("api"), library=httpx2) as http,
        call_options(budget=TokenBudget(limits="$5/day", prices=PRICES)),
        pytest.raises(UnknownName),
    ):
        http.post(openai_api.url + "/v1/chat/completions", content=json.dumps(body))

    async def main():
        async with httpx2.AsyncClient(transport=AsyncTransport(Dispatch("api"))) as http:
            await http.post(openai_api.url + "/v1/chat/completions", content=json.dumps(body))

    with call_options(budget=TokenBudget(limits="$5/day", prices=PRICES)), pytest.raises(UnknownName):
        asyncio.run(main())
    assert openai_api.report().requests == 0


def test_a_user_whose_month_is_used_up_is_told_when_the_next_one_begins(openai_api):
    clock = ManualClock(wall=datetime(2026, 11, 30, 23, tzinfo=UTC))
    book = BudgetBook({"free": "$5/calendar month"}, prices=PRICES, clock=clock)
    ann = book.for_user("ann")
    ann.record_usage(0, money=4_999_000)
    with open_sdk(openai_api) as sdk, call_options(budget=ann):
        with pytest.raises(openai.RateLimitError, match=r"left for 2026-11 \(UTC\)") as caught:
            sdk.chat.completions.create(model="gpt-5-mini", messages=HELLO, max_tokens=400)
        refusal = refusal_of(caught.value)
        assert isinstance(refusal, BudgetExceeded)
        assert (refusal.rule, refusal.retry_after) == ("money/calendar month", 3_600)
        assert caught.value.response.headers["retry-after"] == "3600"
        assert openai_api.report().requests == 0
        clock.advance(3_600)
        sdk.chat.completions.create(model="gpt-5-mini", messages=HELLO, max_tokens=400)
