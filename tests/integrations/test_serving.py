"""Servers admit requests by user: truthful Retry-After, RateLimit fields, fair shares of what lies behind."""

import asyncio
import json
import time

import httpx
import pytest
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

import headgate
from headgate import Dispatch, InvalidConfig, MemoryLimiter
from headgate.dispatch.options import current_options
from headgate.events import Admitted
from headgate.http.httpx import AsyncTransport
from headgate.integrations.asgi import RateLimit, by_client, by_header
from headgate.integrations.fastapi import admit
from headgate.testing import ManualClock, MemoryStore, Recorder, run

KEY = by_header("x-user")


async def hello(scope, receive, send):
    """An app without a framework. It says which tenant its calls belong to."""
    options = current_options()
    body = json.dumps({"tenant": None if options is None else options.tenant}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"hello")]})
    await send({"type": "http.response.body", "body": body})


def asking(app):
    """A client of the app, without a network."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server.example")


def ask(app, user="ann", **options):
    async def main():
        async with asking(app) as client:
            return await client.get("/", headers={"x-user": user}, **options)

    return asyncio.run(main())


def as_user(request):
    return request.headers["x-user"]


def protected(kind, limiter, **options):
    """The same app behind the middleware and behind the dependency, with a sync or an async route."""
    if kind == "middleware":
        return RateLimit(hello, limiter, user=KEY, **options)
    app = FastAPI()
    dependency = Depends(admit(limiter, user=as_user, **options))
    if kind == "sync route":

        @app.get("/")
        def route(user: str = dependency):
            return {"tenant": current_options().tenant, "user": user}
    else:

        @app.get("/")
        async def route(user: str = dependency):
            return {"tenant": current_options().tenant, "user": user}

    return app


@pytest.fixture(params=["middleware", "sync route", "async route"])
def kind(request):
    return request.param


def test_each_user_has_a_bucket_and_the_calls_of_a_request_belong_to_its_user(kind):
    app = protected(kind, MemoryLimiter(rates="2/minute burst 2", clock=ManualClock()))
    assert [ask(app, "ann").status_code for _ in range(3)] == [200, 200, 429]
    answer = ask(app, "bob")
    assert (answer.status_code, answer.json()["tenant"]) == (200, "bob")


def test_retry_after_is_the_second_from_which_on_a_request_is_admitted(kind):
    clock = ManualClock()
    app = protected(kind, MemoryLimiter(rates="3/minute burst 1", clock=clock))
    for passed in (0.0, 3.5, 11.2):
        assert ask(app).status_code == 200
        clock.advance(passed)
        refused = ask(app)
        assert refused.status_code == 429
        after = int(refused.headers["retry-after"])
        clock.advance(after - 1)
        assert ask(app).status_code == 429, "a second earlier it is too early"
        clock.advance(1)
        assert ask(app).status_code == 200
        clock.advance(20)


def test_responses_say_what_is_left_in_the_fields_of_the_ietf_draft(kind):
    clock = ManualClock()
    app = protected(kind, MemoryLimiter(rates="10/minute burst 10", clock=clock))
    answer = ask(app)
    assert answer.headers["ratelimit-policy"] == '"default";q=10;w=60'
    assert answer.headers["ratelimit"] == '"default";r=9;t=6'
    for _ in range(9):
        answer = ask(app)
    assert answer.headers["ratelimit"] == '"default";r=0;t=6'
    refused = ask(app)
    assert refused.headers["ratelimit"] == '"default";r=0;t=6'
    assert refused.headers["retry-after"] == "6"
    assert "retry" in refused.json()["detail"] or "try" in refused.json()["detail"]


def test_a_dispatch_shares_one_limit_among_users_and_may_be_in_a_store(kind):
    clock, store = ManualClock(), MemoryStore()
    limits = {"rates": "60/minute burst 2", "concurrency": 1}
    gate = Dispatch("app", clock=clock, **limits)
    app = protected(kind, gate, status=503)
    assert ask(app).headers["ratelimit-policy"] == '"requests/minute";q=60;w=60'
    assert ask(app).status_code == 200
    refused = ask(app)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert gate.snapshot().in_flight == 0
    with Dispatch("app", store=store, **limits) as shared:
        assert ask(protected(kind, shared, wait=5)).status_code == 200


def test_a_function_of_the_user_gives_each_a_dispatch(kind):
    gates = {name: Dispatch(name, rates="1/hour burst 1", clock=ManualClock()) for name in ("ann", "bob")}
    app = protected(kind, gates.__getitem__)
    assert [ask(app, name).status_code for name in ("ann", "bob", "ann")] == [200, 200, 429]
    with pytest.raises(InvalidConfig, match="is not a Dispatch"):
        ask(protected("middleware", lambda user: user))


def test_a_request_waits_as_long_as_it_may(kind):
    limiter = MemoryLimiter(rates="20/s burst 1")
    app = protected(kind, limiter, wait=2.0)
    assert [ask(app).status_code for _ in range(3)] == [200] * 3
    hopeless = protected(kind, MemoryLimiter(rates="1/hour burst 1"), wait=2.0)
    began = time.monotonic()
    assert [ask(hopeless).status_code for _ in range(2)] == [200, 429]
    assert time.monotonic() - began < 1.5, "what cannot come in time is refused at once"


def test_requests_that_wait_do_not_block_the_loop():
    async def main(clock):
        limiter = MemoryLimiter(rates="1/minute burst 1", clock=clock)
        app = RateLimit(hello, limiter, user=KEY, wait=100)
        async with asking(app) as client:
            await client.get("/", headers={"x-user": "ann"})
            waiting = asyncio.ensure_future(client.get("/", headers={"x-user": "ann"}))
            await asyncio.sleep(1)
            assert (await client.get("/", headers={"x-user": "bob"})).status_code == 200
            assert clock.seconds() == 1
            assert (await waiting).status_code == 200
            return clock.seconds()

    assert run(main) == pytest.approx(60, abs=0.1)


def test_a_client_that_leaves_while_it_waits_gives_its_place_up():
    async def main(clock):
        limiter = MemoryLimiter(rates="1/minute burst 1", clock=clock)
        app = RateLimit(hello, limiter, user=KEY, wait=300)
        async with asking(app) as client:
            await client.get("/", headers={"x-user": "ann"})
            gone = asyncio.ensure_future(client.get("/", headers={"x-user": "ann"}))
            await asyncio.sleep(1)
            stays = asyncio.ensure_future(client.get("/", headers={"x-user": "ann"}))
            await asyncio.sleep(1)
            gone.cancel()
            assert (await stays).status_code == 200
            return clock.seconds()

    assert run(main) == pytest.approx(60, abs=0.1)


def test_a_closed_limiter_answers_503(kind):
    limiter = MemoryLimiter(rates="1/minute")
    limiter.close()
    assert ask(protected(kind, limiter)).status_code == 503


def test_an_error_of_the_app_gives_the_place_back(kind):
    gate = Dispatch("app", concurrency=1)

    def broken():
        raise KeyError("broken")

    if kind == "middleware":

        async def app(scope, receive, send):
            broken()

        app = RateLimit(app, gate)
    else:
        app = FastAPI()
        app.get("/", dependencies=[Depends(admit(gate))])(broken)
    for _ in range(2):
        with pytest.raises(KeyError):
            ask(app)
    assert gate.snapshot().in_flight == 0


def test_streams_and_web_sockets_pass_the_middleware():
    app = FastAPI()

    @app.get("/stream")
    async def stream():
        async def pieces():
            for n in range(3):
                await asyncio.sleep(0)
                yield f"{n}\n"

        return StreamingResponse(pieces())

    @app.websocket("/socket")
    async def socket(websocket: WebSocket):
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    limiter = MemoryLimiter(rates="2/minute burst 2", clock=ManualClock())
    app.add_middleware(RateLimit, limiter=limiter, user=KEY)
    with TestClient(app) as client:
        assert client.get("/stream", headers={"x-user": "ann"}).text == "0\n1\n2\n"
        assert (
            client.get("/stream", headers={"x-user": "ann"}).headers["ratelimit"].startswith('"default";r=0')
        )
        assert client.get("/stream", headers={"x-user": "ann"}).status_code == 429
        with client.websocket_connect("/socket", headers={"x-user": "ann"}) as connected:
            assert connected.receive_text() == "hello"


def test_requests_without_a_user_are_not_limited():
    app = RateLimit(hello, MemoryLimiter(rates="1/hour burst 1"), user=lambda scope: None)
    answers = [ask(app) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert "ratelimit" not in answers[0].headers


def test_the_user_is_a_header_or_the_address():
    scope = {"headers": [(b"x-user", b"ann")], "client": ("1.2.3.4", 5)}
    assert KEY(scope) == "ann"
    assert by_header("x-other")(scope) == by_client(scope) == "1.2.3.4"
    assert by_client({"client": None}) == "unknown"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"limiter": 5}, "limits nothing"),
        ({"status": 500}, "429 or 503"),
        ({"wait": -1}, "negative"),
        ({"user": "ann"}, "cannot be called"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, why):
    for make in (lambda limiter, **rest: RateLimit(hello, limiter, **rest), admit):
        with pytest.raises(headgate.InvalidLimit, match=why):
            make(**{"limiter": MemoryLimiter(rates="5/s"), **options})


def test_users_of_an_app_share_an_api_fairly_by_call_options_alone():
    """A greedy user sends a hundred requests, a light one a request now and then: each waits its fair time.

    Two users share 10 calls a second, so a call of the light user waits for one of the greedy user at most.
    """

    async def main(clock):
        seen = Recorder()
        gate = Dispatch("api", rates="10/s burst 1", clock=clock, observer=seen)
        answer = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
        upstream = httpx.AsyncClient(transport=AsyncTransport(gate, inner=answer))
        app = FastAPI()

        async def who(request: Request):
            with headgate.call_options(tenant=request.headers["x-user"]):
                yield

        @app.get("/", dependencies=[Depends(who)])
        async def route():
            return (await upstream.get("https://api.example/v1/models")).json()

        async with asking(app) as client:
            crowd = [asyncio.ensure_future(client.get("/", headers={"x-user": "greedy"})) for _ in range(100)]
            for _ in range(8):
                await asyncio.sleep(1.03)
                assert (await client.get("/", headers={"x-user": "light"})).status_code == 200
            await asyncio.gather(*crowd)
        await upstream.aclose()
        waits = {"light": [], "greedy": []}
        for event in seen.of(Admitted):
            waits[event.tenant].append(event.waited)
        return waits

    waits = run(main)
    fair = 2 * 0.1  # its own turn, after one of the other user
    assert len(waits["light"]) == 8
    assert max(waits["light"]) <= 1.2 * fair
    assert max(waits["greedy"]) > 5
