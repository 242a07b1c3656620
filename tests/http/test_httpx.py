"""httpx and httpx2, sync and async, through one transport."""

import asyncio
import gc
import gzip
import json
import random
import threading
from contextlib import closing, suppress

import httpx
import httpx2
import pytest

from headgate import Backoff, Closed, Dispatch
from headgate.http.httpx import AsyncTransport, Transport, proxy_for
from headgate.sandbox import Sandbox
from headgate.testing import ManualClock

CHAT = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
USAGE = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
URL = "https://api.example/v1/chat/completions"
MESSAGES = "https://api.example/v1/messages"
EVENTS = [
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":1}}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"text":"he',
    b'llo"}}\n\n',
    b'data: {"type":"message_delta","usage":{"output_tokens":12}}\n\n',
]


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def library(request):
    return request.param


def gated(*rates, clock=None, **options):
    return Dispatch("api", rates=rates, clock=clock or ManualClock(), **options)


def tokens(gate):
    return next(rate.level for rate in gate.snapshot().rates if rate.unit == "tokens")


def sync_stream(library, chunks):
    class Stream(library.SyncByteStream):
        closed = False

        def __iter__(self):
            for chunk in chunks:
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk

        def close(self):
            Stream.closed = True

    return Stream()


def async_stream(library, chunks):
    class Stream(library.AsyncByteStream):
        async def __aiter__(self):
            for chunk in chunks:
                if isinstance(chunk, BaseException):
                    raise chunk
                await asyncio.sleep(0)
                yield chunk

        async def aclose(self):
            pass

    return Stream()


class Inner:
    """A sync and async transport that gives the replies of the test and records its requests."""

    def __init__(self, library, *answers):
        self.library = library
        self.answers = list(answers)
        self.sent = []

    def _next(self, request, make_stream):
        self.sent.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        status, headers, chunks = answer
        return self.library.Response(status, headers=headers, stream=make_stream(self.library, chunks))

    def handle_request(self, request):
        return self._next(request, sync_stream)

    async def handle_async_request(self, request):
        return self._next(request, async_stream)

    def __enter__(self):
        return self

    async def __aenter__(self):
        return self

    def __exit__(self, *_):
        self.left = True

    async def __aexit__(self, *_):
        self.left = True


def json_answer(document, status=200, **headers):
    fields = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return status, fields, [json.dumps(document).encode()]


STREAM = (200, {"content-type": "text/event-stream"}, EVENTS)


def ask(colour, library, gate, inner, url=URL, **options):
    """Post a request by a sync or async client, and read the whole response."""
    if colour == "sync":
        with library.Client(transport=Transport(gate, inner=inner, **options)) as client:
            return client.post(url, json=CHAT)

    async def main():
        async with library.AsyncClient(transport=AsyncTransport(gate, inner=inner, **options)) as client:
            return await client.post(url, json=CHAT)

    return asyncio.run(main())


both_colours = pytest.mark.parametrize("colour", ["sync", "async"])


# Responses that are read


@both_colours
def test_a_plain_response_is_returned_unchanged_and_settled(colour, library):
    gate = gated("1000 tokens/minute burst 1000")
    reply = ask(colour, library, gate, Inner(library, json_answer({"usage": USAGE})))
    assert reply.json() == {"usage": USAGE}
    assert isinstance(reply, library.Response)
    assert reply.elapsed is not None
    assert gate.snapshot().in_flight == 0
    assert tokens(gate) == 958


@both_colours
def test_a_mock_transport_of_the_library_can_be_the_inner_transport(colour, library):
    gate = gated("1000 tokens/minute burst 1000")
    inner = library.MockTransport(lambda request: library.Response(200, json={"usage": USAGE}))
    assert ask(colour, library, gate, inner).json() == {"usage": USAGE}
    assert gate.snapshot().in_flight == 0
    assert tokens(gate) == 958


@both_colours
def test_a_stream_is_not_delayed_and_keeps_its_place_until_it_ends(colour, library):
    gate = gated("1000 tokens/minute burst 1000")
    inner = Inner(library, STREAM)
    seen = []

    def look():
        seen.append(gate.snapshot().in_flight)

    if colour == "sync":
        with (
            library.Client(transport=Transport(gate, inner=inner)) as client,
            client.stream("POST", MESSAGES, json=CHAT) as reply,
        ):
            pieces = [look() or piece for piece in reply.iter_raw()]
    else:

        async def main():
            async with (
                library.AsyncClient(transport=AsyncTransport(gate, inner=inner)) as client,
                client.stream("POST", MESSAGES, json=CHAT) as reply,
            ):
                return [look() or piece async for piece in reply.aiter_raw()]

        pieces = asyncio.run(main())
    assert pieces == EVENTS
    assert seen == [1, 1, 1, 1]
    assert gate.snapshot().in_flight == 0
    assert tokens(gate) == 958


@both_colours
def test_compressed_bytes_are_passed_on_unchanged(colour, library):
    gate = gated("1000 tokens/minute burst 1000")
    packed = gzip.compress(json.dumps({"usage": USAGE}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = (200, headers, [packed[:9], packed[9:]])
    assert ask(colour, library, gate, Inner(library, answer)).json() == {"usage": USAGE}
    assert tokens(gate) == 958


# Errors


@both_colours
@pytest.mark.parametrize("size", [10, 60_000, 200_000])
def test_the_caller_reads_the_whole_body_of_an_error_that_the_adapter_has_read(colour, library, size):
    gate = gated("50/minute burst 50")
    body = json.dumps({"error": {"message": "x" * size}}).encode()
    pieces = [body[i : i + 5_000] for i in range(0, len(body), 5_000)]
    answer = (429, {"content-type": "application/json", "retry-after": "7"}, pieces)
    reply = ask(colour, library, gate, Inner(library, answer))
    assert reply.content == body
    assert reply.status_code == 429
    assert "x-should-retry" not in reply.headers
    snapshot = gate.snapshot()
    assert snapshot.in_flight == 0
    assert snapshot.backoff_active


@both_colours
def test_a_compressed_error_is_read_and_passed_on_unchanged(colour, library):
    quota = json.dumps({"error": {"code": "insufficient_quota"}}).encode()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    inner = Inner(library, (429, headers, [gzip.compress(quota)]))
    reply = ask(colour, library, gated(), inner, retries=3)
    assert reply.content == quota
    assert len(inner.sent) == 1


@both_colours
def test_the_caller_gets_the_exception_of_an_error_body_that_breaks_off(colour, library):
    inner = Inner(library, (500, {}, [b"sorr", library.ReadError("gone")]))
    gate = gated()
    with pytest.raises(library.ReadError, match="gone"):
        ask(colour, library, gate, inner)
    assert gate.snapshot().in_flight == 0


@both_colours
def test_the_last_response_after_retries_forbids_further_ones(colour, library):
    gate = gated(clock=ManualClock(auto_advance=True))
    inner = Inner(library, json_answer({}, 429))
    reply = ask(colour, library, gate, inner, retries=2)
    assert len(inner.sent) == 3
    assert reply.headers["x-should-retry"] == "false"
    inner = Inner(library, json_answer({}, 503), library.ReadTimeout("late"), json_answer({"usage": USAGE}))
    assert ask(colour, library, gate, inner, retries=2).status_code == 200
    assert [request.content for request in inner.sent] == [inner.sent[0].content] * 3


@both_colours
def test_connection_errors_are_raised_as_the_library_raises_them(colour, library):
    gate = gated("50/minute burst 50", clock=ManualClock(auto_advance=True))
    with pytest.raises(library.ConnectError) as caught:
        ask(colour, library, gate, Inner(library, library.ConnectError("no route")), retries=2)
    assert caught.value.request.url == URL
    assert gate.snapshot().rates[0].level == 50, "what was never sent costs nothing"
    with pytest.raises(library.ReadTimeout):
        ask(colour, library, gate, Inner(library, library.ReadTimeout("late")))
    assert gate.snapshot().rates[0].level == 49


@both_colours
def test_refusals_of_the_gate_reach_the_caller_unchanged(colour, library):
    gate = gated()
    gate.close()
    inner = Inner(library, json_answer({}))
    with pytest.raises(Closed):
        ask(colour, library, gate, inner)
    assert not inner.sent


def test_a_body_that_streams_is_sent_and_not_sent_again(library):
    gate = gated()
    inner = Inner(library, json_answer({}, 429))
    with library.Client(transport=Transport(gate, inner=inner, retries=5)) as client:
        reply = client.post(URL, content=(piece for piece in [b"{", b"}"]))
    assert reply.status_code == 429
    assert len(inner.sent) == 1


def test_redirects_pass_the_gate_at_each_hop(library):
    gate = gated("50/minute burst 50")
    moved = (307, {"location": "https://other.example/v1"}, [])
    with library.Client(transport=Transport(gate, inner=Inner(library, moved, json_answer({})))) as client:
        assert client.post(URL, json=CHAT, follow_redirects=True).status_code == 200
    assert gate.snapshot().rates[0].level == 48
    assert gate.snapshot().in_flight == 0


# Streams that end in every possible way

WAYS = ["read", "break", "close", "error here", "error there", "dropped", "generator dropped", "kept"]


class Consumer(Exception):
    pass


def test_a_thousand_streams_broken_off_in_every_way_leave_nothing_behind(library):
    clock = ManualClock()
    gate = gated(concurrency=2_000, clock=clock)
    dice = random.Random(7)
    whole = STREAM
    torn = (200, STREAM[1], [*EVENTS[:2], library.ReadError("reset by peer")])
    kept = []
    with library.Client(transport=Transport(gate, inner=Inner(library, None), lease=60)) as client:
        transport = client._transport
        for way in dice.choices(WAYS, k=1_000):
            transport._inner.answers = [torn if way == "error there" else whole]
            reply = client.send(client.build_request("POST", MESSAGES, json=CHAT), stream=True)
            pieces = reply.iter_bytes()
            if way == "read":
                list(pieces)
            elif way == "break":
                next(pieces)
                pieces.close()
            elif way == "close":
                reply.close()
            elif way == "error here":
                with suppress(Consumer), closing(reply):
                    for _ in pieces:
                        raise Consumer
            elif way == "error there":
                with pytest.raises(library.ReadError):
                    list(pieces)
            elif way == "generator dropped":
                next(pieces)
                pieces = None
                reply = None
            elif way == "kept":
                kept.append(reply)
            reply = pieces = None
        gc.collect()
        assert gate.snapshot().in_flight == len(kept) > 50
        clock.advance(60)
        assert gate.snapshot().in_flight == 0
        for reply in kept:
            assert reply.read() == b"".join(EVENTS), "an abandoned response can still be read"
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight) == (0, 0)


def test_a_thousand_async_streams_broken_off_in_every_way_leave_nothing_behind(library):
    clock = ManualClock()
    gate = gated(concurrency=2_000, clock=clock)
    dice = random.Random(11)
    torn = (200, STREAM[1], [*EVENTS[:2], library.ReadError("reset by peer")])
    kept = []

    async def one(client, way):
        client._transport._inner.answers = [torn if way == "error there" else STREAM]
        reply = await client.send(client.build_request("POST", MESSAGES, json=CHAT), stream=True)
        pieces = reply.aiter_bytes()
        if way == "read":
            [piece async for piece in pieces]
        elif way == "break":
            async for _ in pieces:
                break
            await reply.aclose()
        elif way == "close":
            await reply.aclose()
        elif way == "error here":
            with suppress(Consumer):
                async for _ in pieces:
                    raise Consumer
            await reply.aclose()
        elif way == "error there":
            with pytest.raises(library.ReadError):
                [piece async for piece in pieces]
        elif way == "generator dropped":
            await anext(pieces)
        elif way == "kept":
            kept.append(reply)
        elif way == "cancelled":
            started = asyncio.Event()

            async def read():
                try:
                    async for _ in pieces:
                        started.set()
                        await asyncio.sleep(3600)
                finally:
                    await reply.aclose()

            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def main():
        async with library.AsyncClient(
            transport=AsyncTransport(gate, inner=Inner(library, None), lease=60)
        ) as client:
            for way in dice.choices([*WAYS, "cancelled"], k=1_000):
                await one(client, way)
            for _ in range(3):
                gc.collect()
                for _ in range(9):
                    await asyncio.sleep(0)  # the loop needs some turns to end dropped generators
            assert gate.snapshot().in_flight == len(kept) > 50
            clock.advance(60)
            assert gate.snapshot().in_flight == 0
            for reply in kept:
                assert await reply.aread() == b"".join(EVENTS)

    asyncio.run(main())
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight) == (0, 0)


# Over real sockets


@pytest.fixture
def api():
    with Sandbox("openai", requests="60_000/minute", tokens="10_000_000/minute") as api:
        yield api


@both_colours
def test_a_local_provider_is_reached_through_the_transport_of_the_library(colour, library, api):
    gate = gated("1_000_000 tokens/minute burst 1_000_000", "5000/minute burst 5000")
    url = api.url + "/v1/chat/completions"
    reply = ask(colour, library, gate, None, url)
    assert reply.status_code == 200
    used = max(reply.json()["usage"]["total_tokens"], len(reply.request.content) // 4, 20)
    assert used <= 1_000_000 - tokens(gate) <= used + 10
    assert gate.snapshot().in_flight == 0
    assert api.report().admitted == 1


def test_real_connections_that_are_reset_or_abandoned_leave_nothing_behind(library, api):
    gate = gated(concurrency=100)
    url = api.url + "/v1/chat/completions"
    api.fault("reset", at="before", probability=0.1)
    api.fault("reset", at="headers", probability=0.1)
    api.fault("reset", at="body", probability=0.2)
    api.fault("truncate", probability=0.1)
    outcomes = set()

    async def one(client, i):
        try:
            async with client.stream("POST", url, json={**CHAT, "stream": True}) as reply:
                async for _ in reply.aiter_bytes():
                    if i % 4 == 0:
                        return "left"
        except library.TransportError as error:
            return type(error).__name__
        return "read"

    async def main():
        async with library.AsyncClient(transport=AsyncTransport(gate)) as client:
            outcomes.update(await asyncio.gather(*(one(client, i) for i in range(100))))

    asyncio.run(main())
    assert {"left", "read"} < outcomes
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight, snapshot.waiting) == (0, 0, 0)


def test_waiting_holds_no_connection_and_no_timeout_of_the_client(library, api):
    """Requests that wait at the gate do not use up the timeout for a connection of the pool."""
    gate = Dispatch("api", concurrency=1)
    limits = library.Limits(max_connections=1)
    inner = library.HTTPTransport(limits=limits)
    url = api.url + "/v1/chat/completions"
    api.fault("slow_headers", seconds=0.2)  # ten times that is more than the timeout, and one much less
    statuses = []
    with library.Client(transport=Transport(gate, inner=inner), timeout=1.5) as client:

        def post():
            statuses.append(client.post(url, json=CHAT).status_code)

        threads = [threading.Thread(target=post) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 10
    assert api.report().peak_in_flight == 1


def test_one_transport_serves_clients_of_both_libraries(api):
    gate = gated()
    transport = Transport(gate)
    for library in (httpx, httpx2):
        client = library.Client(transport=transport)
        assert client.post(api.url + "/v1/chat/completions", json=CHAT).status_code == 200
    transport.close()
    assert api.report().admitted == 2


def test_limits_are_learned_without_configuring_any(library):
    with Sandbox("openai", requests="600/minute") as api:
        gate = Dispatch("auto", rates="auto", pause=True)
        with library.Client(transport=Transport(gate)) as client:
            for _ in range(5):
                assert client.post(api.url + "/v1/chat/completions", json=CHAT).status_code == 200
        assert ("requests", 600) in [(rate.unit, rate.limit) for rate in gate.snapshot().rates]


def test_a_refusal_of_a_real_server_is_waited_out_by_retries(library, api):
    gate = Dispatch("api", pause=True)
    api.fault("storm", count=2, retry_after=0.1)
    with library.Client(transport=Transport(gate, retries=2, backoff=Backoff(0.01, cap=1))) as client:
        assert client.post(api.url + "/v1/chat/completions", json=CHAT).status_code == 200
    assert api.report().requests == 3


# Proxies of the environment


class Proxy:
    """A proxy that answers every request by itself and records their targets."""

    def __init__(self):
        self.asked = []

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()


@both_colours
def test_the_proxies_of_the_environment_are_used(colour, library, monkeypatch, api):
    proxy = Proxy()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    port = []

    async def serve():
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        server.close()

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(5)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port[0]}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    try:
        gate = gated()
        assert ask(colour, library, gate, None, "http://far.example/v1").text == "hi"
        assert ask(colour, library, gate, None, api.url + "/v1/chat/completions").status_code == 200
        assert proxy.asked == ["http://far.example/v1"]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("http://api.example/", {}, None),
        ("http://api.example/", {"http_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ("http://api.example/", {"HTTP_PROXY": "proxy:3128"}, "http://proxy:3128"),
        ("https://api.example/", {"http_proxy": "http://proxy:3128"}, None),
        (
            "https://api.example/",
            {"all_proxy": "http://all:1", "https_proxy": "http://tls:2"},
            "http://tls:2",
        ),
        ("https://api.example/", {"all_proxy": "http://all:1"}, "http://all:1"),
        ("https://api.example/", {"all_proxy": "http://all:1", "no_proxy": "*"}, None),
        ("https://api.example/", {"all_proxy": "http://all:1", "no_proxy": "other, api.example"}, None),
        ("https://eu.api.example/", {"all_proxy": "http://all:1", "no_proxy": "api.example"}, None),
        ("https://eu.api.example/", {"all_proxy": "http://all:1", "no_proxy": ".api.example"}, None),
        ("https://myapi.example/", {"all_proxy": "http://all:1", "no_proxy": "api.example"}, "http://all:1"),
        ("https://api.example:8080/", {"all_proxy": "http://all:1", "no_proxy": "api.example"}, None),
        ("https://api.example:8080/", {"all_proxy": "http://all:1", "no_proxy": "api.example:8080"}, None),
        (
            "https://api.example/",
            {"all_proxy": "http://all:1", "no_proxy": "api.example:8080"},
            "http://all:1",
        ),
        ("http://127.0.0.1:80/", {"all_proxy": "http://all:1", "no_proxy": "127.0.0.1"}, None),
        ("http://[::1]:8080/", {"all_proxy": "http://all:1", "no_proxy": "localhost,::1"}, None),
    ],
)
def test_the_environment_names_the_proxy_of_each_url(library, monkeypatch, url, environment, proxy):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(library.URL(url)) == proxy
