"""A gate that refuses: SDKs raise their RateLimitError with its sentence, bare clients get its exception."""

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path

import anthropic
import google.genai
import google.genai.errors
import httpx
import httpx2
import pytest

from headgate import (
    CircuitBreaker,
    Closed,
    CostTooLarge,
    Dispatch,
    InvalidConfig,
    ResilientClient,
    WaitTimeout,
)
from headgate.breaker.breaker import CircuitState
from headgate.http import refusal_of
from headgate.http.anthropic import middleware
from headgate.http.httpx import AsyncTransport, Transport
from headgate.retries.classify import verdict_of
from headgate.testing import ManualClock
from headgate.verdict import REJECTED

CHAT = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]}
COLOURS = ["sync", "async"]
LIBRARIES = [httpx, httpx2]


class Api:
    """A server in memory that counts what reaches it."""

    def __init__(self):
        self.requests = 0

    def transport(self, library):
        def answer(_request):
            self.requests += 1
            return library.Response(200, json={})

        return library.MockTransport(answer)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def gate():
    """A gate whose only place comes free in 12 s, where callers wait for 5 s."""
    gate = Dispatch("api", rates="5/minute burst 1", clock=ManualClock(auto_advance=True))
    gate.try_admit().settle()
    return gate


def client_of(library, gate, api, *, colour="sync", **options):
    options.setdefault("timeout", 5)
    inner = api.transport(library)
    if colour == "sync":
        return library.Client(transport=Transport(gate, inner=inner, **options))
    return library.AsyncClient(transport=AsyncTransport(gate, inner=inner, **options))


def ask(colour, sdk, act):
    """The result of `act(sdk)`, in a thread or in an event loop."""
    if colour == "sync":
        return act(sdk)

    async def main():
        return await act(sdk)

    return asyncio.run(main())


def is_of(name, library):
    return name == library or name.startswith(library + ".")


@pytest.fixture(scope="module", params=[3, 2], ids=["openai-3", "openai-2"])
def openai(request):
    """The OpenAI SDK in both versions that are in use: litellm and openai-agents ask for the second."""
    if request.param == 3:
        yield import_module("openai")
        return
    place = Path(sys.prefix) / "openai2"
    assert place.is_dir(), "openai 2 is not installed; run `make install`"
    third = {name: sys.modules.pop(name) for name in list(sys.modules) if is_of(name, "openai")}
    sys.path.insert(0, str(place))
    try:
        yield import_module("openai")
    finally:
        sys.path.remove(str(place))
        for name in [name for name in sys.modules if is_of(name, "openai")]:
            del sys.modules[name]
        sys.modules.update(third)


# The SDKs


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("colour", COLOURS)
def test_openai_raises_its_rate_limit_error_with_the_sentence_of_the_gate(openai, gate, api, library, colour):
    kind = openai.OpenAI if colour == "sync" else openai.AsyncOpenAI
    sdk = kind(api_key="k", http_client=client_of(library, gate, api, colour=colour))
    with pytest.raises(
        openai.RateLimitError, match=r"requests/minute\); worth another try in 12\.0 s"
    ) as caught:
        ask(colour, sdk, lambda sdk: sdk.chat.completions.create(**CHAT))
    error = caught.value
    assert error.body["code"] == "rate_limit_exceeded"
    assert (error.response.headers["retry-after"], error.response.headers["retry-after-ms"]) == (
        "12",
        "12000",
    )
    assert isinstance(refusal_of(error), WaitTimeout)
    assert refusal_of(error).retry_after == 12.0
    assert api.requests == 0
    assert gate.clock.sleeps == [], "the SDK does not retry"
    assert gate.snapshot().backoff_active is False, "the gate learns nothing from its own refusal"


@pytest.mark.parametrize("colour", COLOURS)
def test_anthropic_raises_its_rate_limit_error_with_the_sentence_of_the_gate(gate, api, colour):
    kind = anthropic.Anthropic if colour == "sync" else anthropic.AsyncAnthropic
    sdk = kind(api_key="k", http_client=client_of(httpx2, gate, api, colour=colour))
    with pytest.raises(anthropic.RateLimitError, match=r"worth another try in 12\.0 s") as caught:
        ask(colour, sdk, lambda sdk: sdk.messages.create(**CHAT))
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert isinstance(refusal_of(caught.value), WaitTimeout)
    assert api.requests == 0


def ask_gemini(gate, api, **options):
    transport = Transport(gate, inner=api.transport(httpx2), timeout=5, **options)
    sdk = google.genai.Client(api_key="k", http_options={"client_args": {"transport": transport}})
    sdk.models.generate_content(model="gemini-pro", contents="hi")


def test_google_genai_passes_the_refusal_on_unless_told_to_see_a_response(gate, api):
    with pytest.raises(WaitTimeout):
        ask_gemini(gate, api)
    with pytest.raises(google.genai.errors.ClientError, match=r"worth another try in 12\.0 s") as caught:
        ask_gemini(gate, api, refusals="respond")
    error = caught.value
    assert (error.code, error.status) == (429, "RESOURCE_EXHAUSTED")
    assert error.details["error"]["details"][0]["retryDelay"] == "12.000s"
    assert api.requests == 0


# Bare clients


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_bare_client_gets_the_exception_unless_it_asks_for_a_response(gate, api, library, colour):
    url = "https://api.openai.com/v1/chat/completions"
    with pytest.raises(WaitTimeout):
        ask(colour, client_of(library, gate, api, colour=colour), lambda client: client.post(url, json=CHAT))
    http = client_of(library, gate, api, colour=colour, refusals="respond")
    reply = ask(colour, http, lambda client: client.post(url, json=CHAT))
    assert reply.status_code == 429
    assert reply.headers["x-should-retry"] == "false"
    assert "worth another try in 12.0 s" in reply.json()["error"]["message"]
    assert isinstance(refusal_of(reply), WaitTimeout)
    assert api.requests == 0


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://api.openai.com/v1/responses", ["error"]),
        ("https://api.openai.com/v1/threads/t/messages", ["error"]),
        ("https://api.anthropic.com/v1/messages/batches", ["type", "error"]),
        ("http://gateway.internal/claude/v1/messages", ["type", "error"]),
        ("https://generativelanguage.googleapis.com/v1beta/models/g:generateContent", ["error", "details"]),
        ("http://gateway.internal/v1beta/models/g:streamGenerateContent", ["error", "details"]),
        ("https://generativelanguage.googleapis.com/v1beta/models", ["error", "details"]),
        ("https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", ["error"]),
    ],
)
def test_the_body_has_the_form_of_the_api(gate, api, url, form):
    body = client_of(httpx2, gate, api, refusals="respond").post(url, json=CHAT).json()
    assert [*body, *(["details"] if "details" in body["error"] else [])] == form
    assert "worth another try in 12.0 s" in body["error"]["message"]


def test_a_refusal_that_no_time_can_lift_has_no_retry_after(api):
    gate = Dispatch("api", rates="10 tokens/minute")
    http = client_of(httpx2, gate, api, refusals="respond", estimate=lambda request: 5_000)
    reply = http.post("https://api.openai.com/v1/responses", json=CHAT)
    assert isinstance(refusal_of(reply), CostTooLarge)
    assert "retry-after" not in reply.headers
    gate.close()
    reply = http.post("https://api.openai.com/v1/responses", json=CHAT)
    assert isinstance(refusal_of(reply), Closed)
    assert "was closed" in json.dumps(reply.json())


def test_an_unknown_way_to_refuse_is_an_error():
    with pytest.raises(
        InvalidConfig, match='refusals=\'both\' is unknown; write "auto", "raise" or "respond"'
    ):
        Transport(refusals="both")


# Who hears of it


def test_a_gate_around_a_transport_does_not_learn_from_the_refusal_of_the_gate_inside(gate, api):
    outer = Dispatch("outer", rates="100/minute burst 100", clock=gate.clock)
    inside = Transport(gate, inner=api.transport(httpx2), timeout=5, refusals="respond")
    http = httpx2.Client(transport=Transport(outer, inner=inside))
    with pytest.raises(WaitTimeout):
        http.post("https://api.openai.com/v1/responses", json=CHAT)
    seen = outer.snapshot()
    assert (seen.backoff_active, seen.in_flight) == (False, 0)
    assert seen.rates[0].level == 100, "what was not sent costs nothing"


def test_the_anthropic_middleware_does_not_learn_from_the_refusal_of_the_gate_inside(gate, api):
    outer = Dispatch("outer", rates="100/minute burst 100", clock=gate.clock)
    sdk = anthropic.Anthropic(
        api_key="k", middleware=[middleware(outer)], http_client=client_of(httpx2, gate, api)
    )
    with pytest.raises(WaitTimeout):
        sdk.messages.create(**CHAT)
    assert outer.snapshot().backoff_active is False
    assert outer.snapshot().rates[0].level == 100


def test_retries_breakers_and_clients_take_the_error_for_the_refusal_that_it_is(gate, api):
    sdk = anthropic.Anthropic(api_key="k", http_client=client_of(httpx2, gate, api))

    def call():
        sdk.messages.create(**CHAT)

    with pytest.raises(anthropic.RateLimitError) as caught:
        call()
    assert verdict_of(caught.value) is REJECTED
    breaker = CircuitBreaker(failure_threshold=1)
    with pytest.raises(anthropic.RateLimitError):
        breaker.call(call)
    assert breaker.state is CircuitState.CLOSED
    client = ResilientClient(clock=gate.clock)
    with pytest.raises(anthropic.RateLimitError):
        client.call(call)
    assert client.dispatch.window.should_backoff() is False


def test_errors_of_the_server_are_not_refusals_of_a_gate():
    response = httpx2.Response(429, request=httpx2.Request("GET", "https://api.openai.com"))
    assert refusal_of(response) is None
    assert refusal_of(httpx2.HTTPStatusError("429", request=response.request, response=response)) is None
    assert refusal_of(httpx2.ConnectError("no")) is None
    assert refusal_of(ValueError()) is None
    forged = httpx2.Response(429, headers={"headgate": "refused", "x-should-retry": "false"})
    assert refusal_of(forged) is None
