"""What call_options says reaches a gateway as headers, and no other server."""

import asyncio

import httpx
import httpx2
import pytest
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from gateway.answers import answer_to
from gateway.rig import Rig
from headgate import call_options
from headgate.errors import InvalidConfig
from headgate.gateway.relay import Relay
from headgate.integrations.gateway import gateway_headers, tell_gateway
from patience import eventually

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def rig(monkeypatch):
    """A gateway that keeps what it understood of each request."""
    with Rig(answer_to) as rig:
        rig.understood = []
        run = Relay.run

        async def noting(relay):
            rig.understood.append((relay.tenant, relay.priority, relay.limit))
            return await run(relay)

        monkeypatch.setattr(Relay, "run", noting)
        yield rig


def test_the_options_of_a_block_reach_the_gateway_through_the_sdk_of_openai(rig):
    http = httpx2.Client(event_hooks={"request": [tell_gateway(rig.url)]})
    with OpenAI(base_url=f"{rig.url}/v1", api_key="k", http_client=http) as client:
        with call_options(tenant="ann", priority=5, timeout=30):
            client.chat.completions.create(**CHAT)
        with call_options(tenant="ben"):
            client.chat.completions.create(**CHAT)
        client.chat.completions.create(**CHAT)
    assert rig.understood[:2] == [("ann", 5, 30.0), ("ben", 0, 240.0)]
    assert rig.understood[2][0].startswith("127.0.0.1:"), "without options it is the connection"
    assert not any(name.startswith("x-headgate") for name in rig.last.headers)


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_an_async_client_takes_the_same_hook(rig, library):
    async def main():
        async with library.AsyncClient(event_hooks={"request": [tell_gateway(rig.url)]}) as http:
            with call_options(tenant="ann"):
                return await http.post(f"{rig.url}/v1/x", json=CHAT)

    assert asyncio.run(main()).status_code == 200
    assert rig.understood == [("ann", 0, 240.0)]


def test_tasks_of_different_users_send_their_own_options(rig):
    async def main():
        http = httpx2.AsyncClient(event_hooks={"request": [tell_gateway(rig.url)]})
        async with AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="k", http_client=http) as client:

            async def ask(user):
                with call_options(tenant=user):
                    await client.chat.completions.create(**CHAT)

            await asyncio.gather(*map(ask, ("ann", "ben", "cay")))

    asyncio.run(main())
    assert {tenant for tenant, _priority, _limit in rig.understood} == {"ann", "ben", "cay"}


def test_a_client_without_hooks_is_given_the_headers(rig):
    with Anthropic(base_url=rig.url, api_key="k") as client, call_options(tenant="ann", priority=-2):
        client.messages.create(**CHAT, max_tokens=5, extra_headers=gateway_headers())
    assert rig.understood == [("ann", -2, 240.0)]


def test_another_server_never_gets_the_headers(rig):
    port = rig.url.rpartition(":")[2]
    others = [
        f"https://127.0.0.1:{port}",
        "http://127.0.0.1:1",
        f"http://localhost:{port}",
        f"http://127.0.0.1.evil.example:{port}",
        "http://gateway.internal:80",
    ]
    with call_options(tenant="ann"):
        for other in others:
            with httpx2.Client(event_hooks={"request": [tell_gateway(other)]}) as http:
                http.post(f"{rig.url}/v1/x", json=CHAT)
    assert not any(tenant == "ann" for tenant, _priority, _limit in rig.understood)


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_headers_for_the_gateway_do_not_follow_a_redirect_to_another_server(library):
    seen = []

    def answer(request):
        seen.append(sorted(name for name in request.headers if name.startswith("x-headgate")))
        if request.url.host == "gateway.example":
            return library.Response(307, headers={"location": "https://files.example/v1/x"})
        return library.Response(200)

    hooks = {"request": [tell_gateway("http://gateway.example:8429")]}
    transport = library.MockTransport(answer)
    with (
        library.Client(transport=transport, event_hooks=hooks, follow_redirects=True) as http,
        call_options(tenant="ann", priority=5, timeout=2.0),
    ):
        http.post("http://gateway.example:8429/v1/x", json=CHAT)
    assert seen == [["x-headgate-priority", "x-headgate-tenant", "x-headgate-timeout"], []]


@pytest.mark.parametrize("hooked", [False, True], ids=["without the hook", "with the hook"])
def test_headers_given_to_an_sdk_follow_a_redirect_unless_the_hook_takes_them_away(hooked):
    """What `gateway_headers` says of redirects: the SDK repeats the headers, and the hook is the remedy."""
    seen = {}

    def answer(request):
        seen[request.url.host] = sorted(name for name in request.headers if name.startswith("x-headgate"))
        if request.url.host == "gateway.example":
            return httpx2.Response(307, headers={"location": "https://files.example/v1/x"})
        return httpx2.Response(200, json={"object": "list", "data": []})

    hooks = [tell_gateway("http://gateway.example:8429")] if hooked else []
    http = httpx2.Client(
        transport=httpx2.MockTransport(answer), event_hooks={"request": hooks}, follow_redirects=True
    )
    with (
        OpenAI(base_url="http://gateway.example:8429/v1", api_key="k", http_client=http) as client,
        call_options(tenant="ann"),
    ):
        client.models.list(extra_headers=gateway_headers())
    assert seen == {
        "gateway.example": ["x-headgate-tenant"],
        "files.example": [] if hooked else ["x-headgate-tenant"],
    }


def test_the_usual_port_may_be_left_out():
    request = httpx2.Request("GET", "https://gateway.internal/v1/x")
    with call_options(tenant="ann"):
        tell_gateway("https://Gateway.internal:443/openai")(request)
    assert request.headers["x-headgate-tenant"] == "ann"


def test_any_tenant_and_priority_make_headers_that_a_gateway_accepts(rig):
    with httpx2.Client(event_hooks={"request": [tell_gateway(rig.url)]}) as http:
        for tenant, priority in (
            ("Jos\xe9\r\nx: y", 5_000),
            (("team", 7), -5_000),
            (7, 0),
            ("a%20b", 1),
            ("a b", 1),
            ("漢" * 60, 0),
            ("t" * 300 + "1", 0),
            ("t" * 300 + "2", 0),
        ):
            with call_options(tenant=tenant, priority=priority, timeout=5):
                assert http.post(f"{rig.url}/v1/x", json=CHAT).status_code == 200
    assert rig.understood[:-2] == [
        ("Jos%C3%A9%0D%0Ax: y", 1_000, 5.0),
        ("('team', 7)", -1_000, 5.0),
        ("7", 0, 5.0),
        ("a%2520b", 1, 5.0),
        ("a b", 1, 5.0),
        ("漢" * 60, 0, 5.0),
    ]
    one, two = (tenant for tenant, _priority, _limit in rig.understood[-2:])
    assert one != two, "long names that begin alike are two tenants"
    assert len(one) == len(two) == 200
    assert one.startswith("t" * 180)


def test_a_call_that_may_not_wait_is_refused_by_the_gateway_at_once(rig):
    with httpx2.Client(event_hooks={"request": [tell_gateway(rig.url)]}) as http:
        http.get(f"{rig.url}/v1/x")
        rig.gateway.gates()[0].set_backoff(60)
        with call_options(timeout=0):
            assert http.post(f"{rig.url}/v1/x", json=CHAT).status_code == 503
    eventually(lambda: not rig.gateway.waiting, "nothing waits")


@pytest.mark.parametrize("url", ["127.0.0.1:8429", "unix:/run/x.sock", "", "http://", "http://a:b"])
def test_an_address_that_is_none_is_an_error_where_it_is_written(url):
    with pytest.raises(InvalidConfig, match=r"write e\.g\. http://127\.0\.0\.1:8429"):
        tell_gateway(url)
