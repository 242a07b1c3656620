"""Adapters wait at a FirstFree, and send each request with the headers and to the base URL of its gate."""

import asyncio

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests

from far_side import BODY, SECOND_BACKOFF, URL, AsyncReply, FarSide, Reply, World
from headgate import Dispatch, FirstFree, InvalidConfig, InvalidLimit
from headgate.events import Admitted
from headgate.http import Target
from headgate.http import aiohttp as aiohttp_adapter
from headgate.http import requests as requests_adapter
from headgate.http.anthropic import middleware, middleware_async
from headgate.http.exchange import GatedSender
from headgate.http.httpx import async_client, client
from headgate.sandbox import Sandbox

CHAT = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
PATH = "/v1/chat/completions"


@pytest.fixture(params=["sync", "async"])
def world(request):
    return World(request.param)


@pytest.fixture(scope="module")
def deployments():
    """Two servers, each of which stands for a deployment."""
    with (
        Sandbox("openai", requests="600_000/minute") as one,
        Sandbox("openai", requests="600_000/minute") as two,
    ):
        yield one, two


@pytest.fixture
def keys():
    return FirstFree([Dispatch("one"), Dispatch("two")], weights=[1, 1])


@pytest.fixture
def choose(deployments):
    urls = dict(zip(("one", "two"), (api.url for api in deployments), strict=True))
    for api in deployments:
        api.reset_report()
    return lambda gate: Target(base_url=urls[gate.key], headers={"authorization": f"Bearer {gate.key}"})


def requests_of(deployments):
    return [api.report().requests for api in deployments]


# -- where a request goes


def test_a_target_replaces_the_host_and_puts_its_path_before_that_of_the_request():
    eu = Target(base_url="https://eu.example:8443/proxy/")
    assert (
        eu.url_of("http://api.example/v1/chat?a=%20b#c") == "https://eu.example:8443/proxy/v1/chat?a=%20b#c"
    )
    assert eu.headers_for("https://eu.example:8443/proxy/v1")["host"] == "eu.example:8443"
    assert Target(headers={"x-api-key": "s"}).url_of("http://api.example/") == "http://api.example/"
    assert "secret" not in repr(Target(headers={"authorization": "secret"}))


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_httpx_sends_each_request_to_its_deployment(deployments, keys, choose, library):
    with client(keys, library=library, choose=choose) as http:
        for _ in range(4):
            reply = http.post("http://api.example" + PATH, json=CHAT, headers={"Authorization": "Bearer x"})
            assert reply.status_code == 200
            assert str(reply.request.url) == "http://api.example" + PATH, "the caller's request is as it was"
    assert requests_of(deployments) == [2, 2]

    async def main():
        async with async_client(keys, library=library, choose=choose) as http:
            for _ in range(2):
                assert (await http.post("http://api.example" + PATH, json=CHAT)).status_code == 200

    asyncio.run(main())
    assert requests_of(deployments) == [3, 3]


def test_the_headers_of_a_target_replace_those_of_the_request(keys):
    seen = []

    def answer(request):
        seen.append((request.headers["authorization"], request.headers["x-other"], request.headers["host"]))
        return httpx2.Response(200)

    credentials = client(
        keys,
        library=httpx2,
        inner=httpx2.MockTransport(answer),
        choose=lambda gate: Target(headers={"Authorization": f"Bearer {gate.key}"}),
    )
    for _ in range(2):
        credentials.get("https://api.example/", headers={"authorization": "Bearer x", "x-other": "o"})
    assert seen == [("Bearer one", "o", "api.example"), ("Bearer two", "o", "api.example")]


def test_requests_sends_each_request_to_its_deployment(deployments, keys, choose):
    with requests.Session() as session:
        session.mount("http://", requests_adapter.Adapter(keys, choose=choose))
        for _ in range(4):
            assert session.post("http://api.example" + PATH, json=CHAT).status_code == 200
    assert requests_of(deployments) == [2, 2]


def test_aiohttp_sends_each_request_to_its_deployment(deployments, keys, choose):
    async def main():
        gated = aiohttp_adapter.middleware(keys, choose=choose)
        async with aiohttp.ClientSession(middlewares=(gated,)) as session:
            for _ in range(4):
                async with session.post("http://api.example" + PATH, json=CHAT) as reply:
                    assert reply.status == 200
                    await reply.read()

    asyncio.run(main())
    assert requests_of(deployments) == [2, 2]


def test_the_openai_sdk_uses_the_deployment_that_has_room(deployments, choose):
    gates = [Dispatch("one", concurrency=1), Dispatch("two")]
    http = client(FirstFree(gates), choose=choose)
    with openai.OpenAI(base_url="http://api.example/v1", api_key="k", http_client=http) as sdk:
        with gates[0].admit():
            sdk.chat.completions.create(**CHAT)
        sdk.chat.completions.create(**CHAT)
    assert requests_of(deployments) == [1, 1]


# -- which gate learns, is charged and retries


def test_only_the_gate_that_admitted_is_charged_and_learns(world):
    one = world.gate("100 tokens/minute burst 100")
    two = world.gate("2/minute burst 2")
    sender = GatedSender(FirstFree([one, two]), timeout=0)
    far_side = FarSide(world.clock, Reply(429, retry_after=30), Reply())
    with one.admit(tokens=100):  # it has no room for tokens now
        world.ask(sender, far_side)
    assert not one.snapshot().backoff_active
    assert two.snapshot().backoff_active
    assert [rate.level for rate in two.snapshot().rates] == [1]
    assert len([event for event in world.seen.events if isinstance(event, Admitted)]) == 2


def test_a_retry_goes_through_another_gate_while_the_first_is_in_its_backoff_window(world):
    gates = [Dispatch(name, pause=True, clock=world.clock) for name in ("one", "two")]
    sent_to = []

    def choose(gate):
        sent_to.append(gate.key)
        return Target()

    sender = GatedSender(FirstFree(gates), retries=2, backoff=SECOND_BACKOFF, choose=choose)
    far_side = FarSide(world.clock, Reply(429, retry_after=600), Reply())
    assert ask(world, sender, far_side).status == 200
    assert sent_to == ["one", "two"]
    assert far_side.asked_at == [0, 0]
    assert gates[0].snapshot().backoff_active


def ask(world, sender, far_side):
    """As `world.ask`, where the sender gives a Target to `send`."""
    if world.colour == "sync":
        return sender.run("POST", URL, {}, BODY, lambda _target: far_side.send())

    async def send(_target):
        return AsyncReply(far_side.send())

    return asyncio.run(sender.run_async("POST", URL, {}, BODY, send))


def test_a_function_of_the_request_may_return_several_gates(world):
    keys = FirstFree([world.gate(), world.gate()])
    sender, far_side = GatedSender(lambda request: keys), FarSide(world.clock, Reply())
    assert world.ask(sender, far_side).status == 200
    with pytest.raises(InvalidConfig, match="is not a Dispatch"):
        world.ask(GatedSender(lambda request: "key"), far_side)


# -- what cannot work


def test_a_choice_that_cannot_work_is_refused(world):
    with pytest.raises(InvalidLimit, match="choose=3 cannot be called"):
        GatedSender(choose=3)
    with pytest.raises(InvalidConfig, match=r"return headgate\.http\.Target"):
        ask(world, GatedSender(world.gate(), choose=lambda gate: "key"), FarSide(world.clock, Reply()))
    for adapter in (middleware, middleware_async):
        with pytest.raises(InvalidConfig, match="cannot choose"):
            adapter(choose=lambda gate: Target())
