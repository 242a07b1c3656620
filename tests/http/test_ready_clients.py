"""`client()` and `async_client()`: the whole set-up of an SDK in one argument."""

import asyncio
import sys

import anthropic
import google.genai
import httpx
import httpx2
import openai
import pytest

from headgate import Dispatch, InvalidConfig
from headgate.events import Admitted, Settled
from headgate.http.gates import default_gate
from headgate.http.httpx import AsyncTransport, Transport, async_client, client
from headgate.sandbox import Sandbox
from headgate.testing import Recorder

CHAT = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def api():
    with Sandbox("openai", requests="600_000/minute", tokens="100_000_000/minute") as api:
        yield api


@pytest.fixture(scope="module")
def anthropic_api():
    with Sandbox("anthropic", requests="600_000/minute", reply_tokens=5) as api:
        yield api


@pytest.fixture
def seen():
    return Recorder()


@pytest.fixture
def gate(seen):
    return Dispatch("api", observer=seen)


def admitted_and_settled(seen):
    return [type(event).__name__ for event in seen.events if isinstance(event, (Admitted, Settled))]


ONE_CALL = ["Admitted", "Settled"]


def test_openai_learns_its_limits_from_a_ready_client(api):
    host = api.url.removeprefix("http://")
    before = {rate.unit: rate.limit for rate in default_gate(host, CHAT["model"]).snapshot().rates}
    with openai.OpenAI(base_url=api.url + "/v1", api_key="k", http_client=client()) as sdk:
        sdk.chat.completions.create(**CHAT)
    learned = {rate.unit: rate.limit for rate in default_gate(host, CHAT["model"]).snapshot().rates}
    assert learned == {"requests": 600_000, "tokens": 100_000_000} != before


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_the_timeouts_and_redirects_of_the_openai_sdk_hold(api, gate, library):
    own = openai.OpenAI(base_url=api.url, api_key="k")
    ready = openai.OpenAI(base_url=api.url, api_key="k", http_client=client(gate, library=library))
    assert str(ready.timeout) == str(own.timeout)
    for sdk in (own, ready):
        assert sdk._client.follow_redirects
        sdk.close()


def test_a_redirect_is_followed_and_passes_the_gate_again(gate, seen):
    def answer(request):
        to = {"location": "http://api.example/there"}
        return httpx2.Response(307, headers=to) if request.url.path == "/here" else httpx2.Response(200)

    with client(gate, library=httpx2, inner=httpx2.MockTransport(answer)) as ready:
        assert ready.get("http://api.example/here").status_code == 200
    assert admitted_and_settled(seen) == ONE_CALL * 2


def test_each_sdk_passes_the_gate_with_a_ready_client(api, anthropic_api, gate, seen):
    with openai.OpenAI(base_url=api.url + "/v1", api_key="k", http_client=client(gate)) as sdk:
        sdk.chat.completions.create(**CHAT)
    assert admitted_and_settled(seen) == ONE_CALL
    seen.events.clear()
    with anthropic.Anthropic(base_url=anthropic_api.url, api_key="k", http_client=client(gate)) as sdk:
        sdk.messages.create(**CHAT)
    assert admitted_and_settled(seen) == ONE_CALL
    seen.events.clear()
    with client(gate) as http:
        options = google.genai.types.HttpOptions(base_url=api.url, api_version="v1", httpx_client=http)
        sdk = google.genai.Client(api_key="k", http_options=options)
        sdk.models.generate_content(model="m", contents="hello")
    assert admitted_and_settled(seen) == ONE_CALL


def test_each_async_sdk_passes_the_gate_with_a_ready_client(api, anthropic_api, gate, seen):
    async def main():
        async with openai.AsyncOpenAI(
            base_url=api.url + "/v1", api_key="k", http_client=async_client(gate)
        ) as sdk:
            await sdk.chat.completions.create(**CHAT)
        async with anthropic.AsyncAnthropic(
            base_url=anthropic_api.url, api_key="k", http_client=async_client(gate)
        ) as sdk:
            await sdk.messages.create(**CHAT)
        async with async_client(gate) as http:
            options = google.genai.types.HttpOptions(
                base_url=api.url, api_version="v1", httpx_async_client=http
            )
            sdk = google.genai.Client(api_key="k", http_options=options)
            await sdk.aio.models.generate_content(model="m", contents="hello")

    asyncio.run(main())
    assert sorted(admitted_and_settled(seen)) == sorted(ONE_CALL * 3)


def test_a_client_belongs_to_httpx2_if_that_is_installed_or_else_to_httpx(monkeypatch):
    assert isinstance(client(), httpx2.Client)
    assert isinstance(async_client(library=httpx), httpx.AsyncClient)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    assert isinstance(client(), httpx.Client)
    assert isinstance(async_client(), httpx.AsyncClient)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InvalidConfig, match=r'pip install "headgate\[httpx2\]"'):
        client()


@pytest.mark.parametrize("library", ["httpx", asyncio, openai])
def test_another_library_is_refused(library):
    with pytest.raises(InvalidConfig, match="neither httpx nor httpx2"):
        client(library=library)


def test_the_options_of_a_transport_are_options_of_a_client(gate):
    with client(gate, retries=3, timeout=5) as ready:
        assert isinstance(ready._transport, Transport)
        assert repr(ready._transport) == f"<Transport of <{gate!r}, 3 retries>>"
    assert isinstance(async_client(gate, lease=5)._transport, AsyncTransport)
    with pytest.raises(InvalidConfig, match="is not a Dispatch"):
        client("api")
    with pytest.raises(TypeError, match="retrys"):
        async_client(retrys=3)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_requests_of_trio_wait_at_the_gate(api, library):
    trio = pytest.importorskip("trio")
    gate, order = Dispatch("api", concurrency=1), []

    async def ask(http, name):
        await http.post(api.url + "/v1/chat/completions", json=CHAT)
        order.append(name)

    async def main():
        async with (
            async_client(gate, library=library) as http,
            trio.open_nursery() as nursery,
            gate.admit(),
        ):
            nursery.start_soon(ask, http, "first")
            while gate.waiting < 1:
                await trio.sleep(0)
            nursery.start_soon(ask, http, "second")
            while gate.waiting < 2:
                await trio.sleep(0)
            assert order == []

    trio.run(main)
    assert order == ["first", "second"]
    assert gate.snapshot().in_flight == 0
