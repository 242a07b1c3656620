"""Real clients with many workers against a server that counts: none of them gets a 429."""

import asyncio
import threading

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

import headgate.http.aiohttp
import headgate.http.anthropic
import headgate.http.httpx
import headgate.http.requests
from headgate import Dispatch
from headgate.sandbox import Sandbox

pytestmark = pytest.mark.alone

MESSAGES = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "max_tokens": 20, "messages": MESSAGES}
CALLS, WORKERS = 40, 20


def openai_sync(api, gate, *, stream):
    http = httpx2.Client(transport=headgate.http.httpx.Transport(gate), timeout=60)
    client = openai.OpenAI(base_url=api.url, api_key="k", max_retries=0, http_client=http)

    def call():
        reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=20, stream=stream)
        if stream:
            list(reply)

    return call, client.close


def anthropic_sync(api, gate, *, stream):
    middleware = [headgate.http.anthropic.middleware(gate)]
    client = anthropic.Anthropic(base_url=api.url, api_key="k", max_retries=0, middleware=middleware)

    def call():
        if stream:
            with client.messages.stream(model="m", messages=MESSAGES, max_tokens=20) as events:
                list(events)
        else:
            client.messages.create(model="m", messages=MESSAGES, max_tokens=20)

    return call, client.close


def plain_sync(library):
    def make(api, gate, *, stream):
        client = library.Client(transport=headgate.http.httpx.Transport(gate), timeout=60)
        return (
            lambda: client.post(api.url + "/v1/chat/completions", json=BODY).raise_for_status(),
            client.close,
        )

    return make


def requests_sync(api, gate, *, stream):
    session = requests.Session()
    session.mount("http://", headgate.http.requests.Adapter(gate))

    def call():
        with session.post(api.url + "/v1/chat/completions", json=BODY, stream=stream) as reply:
            reply.raise_for_status()
            assert reply.content

    return call, session.close


def openai_async(api, gate, *, stream):
    http = httpx2.AsyncClient(transport=headgate.http.httpx.AsyncTransport(gate), timeout=60)
    client = openai.AsyncOpenAI(base_url=api.url, api_key="k", max_retries=0, http_client=http)

    async def call():
        reply = await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=20, stream=stream
        )
        if stream:
            async for _ in reply:
                pass

    return call, client.close


def anthropic_async(api, gate, *, stream):
    middleware = [headgate.http.anthropic.middleware_async(gate)]
    client = anthropic.AsyncAnthropic(base_url=api.url, api_key="k", max_retries=0, middleware=middleware)

    async def call():
        if stream:
            async with client.messages.stream(model="m", messages=MESSAGES, max_tokens=20) as events:
                async for _ in events:
                    pass
        else:
            await client.messages.create(model="m", messages=MESSAGES, max_tokens=20)

    return call, client.close


def plain_async(library):
    def make(api, gate, *, stream):
        client = library.AsyncClient(transport=headgate.http.httpx.AsyncTransport(gate), timeout=60)

        async def call():
            (await client.post(api.url + "/v1/chat/completions", json=BODY)).raise_for_status()

        return call, client.aclose

    return make


def aiohttp_async(api, gate, *, stream):
    session = aiohttp.ClientSession(middlewares=(headgate.http.aiohttp.middleware(gate),))

    async def call():
        async with session.post(api.url + "/v1/chat/completions", json=BODY) as reply:
            reply.raise_for_status()
            await reply.read()

    return call, session.close


SYNC = {
    "openai": openai_sync,
    "anthropic": anthropic_sync,
    "httpx": plain_sync(httpx),
    "httpx2": plain_sync(httpx2),
    "requests": requests_sync,
}
ASYNC = {
    "openai": openai_async,
    "anthropic": anthropic_async,
    "httpx": plain_async(httpx),
    "httpx2": plain_async(httpx2),
    "aiohttp": aiohttp_async,
}


def drain_with_threads(make, api, gate, *, stream):
    call, close = make(api, gate, stream=stream)
    left, lock = CALLS, threading.Lock()

    def work():
        nonlocal left
        while True:
            with lock:
                if not left:
                    return
                left -= 1
            call()

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    close()


def drain_with_tasks(make, api, gate, *, stream):
    async def main():
        call, close = make(api, gate, stream=stream)
        left = CALLS

        async def work():
            nonlocal left
            while left:
                left -= 1
                await call()

        await asyncio.gather(*(work() for _ in range(WORKERS)))
        await close()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that an SDK leaves to the collector
@pytest.mark.parametrize(
    ("rates", "stream"),
    [("100/s", False), ("100/s", True), ("auto", False)],
    ids=["given", "given-stream", "auto"],
)
@pytest.mark.parametrize(
    ("drain", "make", "name"),
    [(drain_with_threads, make, name) for name, make in SYNC.items()]
    + [(drain_with_tasks, make, name) for name, make in ASYNC.items()],
    ids=[f"{name}-sync" for name in SYNC] + [f"{name}-async" for name in ASYNC],
)
def test_every_client_makes_its_calls_without_a_single_429(drain, make, name, rates, stream):
    style = "anthropic" if name == "anthropic" else "openai"
    with Sandbox(style, requests="6000/minute") as api:
        gate = Dispatch("api", rates=rates, pause=True)
        drain(make, api, gate, stream=stream)
        report = api.report()
        assert (report.admitted, report.refused) == (CALLS, 0)
        while api.report().in_flight:  # the server counts a request as ended after its last byte has left
            assert report.abandoned == 0
        assert gate.snapshot().in_flight == 0
        assert gate.snapshot().rates[0].limit in (100, 6000)
        gate.close()
