"""aiohttp through a client middleware."""

import asyncio
import gc
import gzip
import json
import random
from contextlib import suppress

import aiohttp
import pytest
from aiohttp import web

from headgate import Backoff, Closed, Dispatch
from headgate.http.aiohttp import middleware
from headgate.sandbox import Sandbox
from headgate.testing import ManualClock

CHAT = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
USAGE = {"usage": {"input_tokens": 30, "output_tokens": 12}}
EVENTS = [
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":1}}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"text":"hello"}}\n\n',
    b'data: {"type":"message_delta","usage":{"output_tokens":12}}\n\n',
]


class Server:
    """A server on the running loop that gives the replies of the test."""

    def __init__(self):
        self.answer = self.plain
        self.asked = []
        self.gone = 0

    async def handle(self, request):
        self.asked.append(await request.read())
        return await self.answer(request)

    async def plain(self, request):
        return web.json_response(USAGE)

    async def stream(self, request):
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for event in EVENTS:
            await reply.write(event)
            await asyncio.sleep(0.001)
        return reply

    async def torn(self, request):
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(EVENTS[0])
        request.transport.abort()
        return reply


def against(scenario, gate, **options):
    """Run `scenario(session, url, server)` with a session whose requests pass the gate."""

    async def main():
        server = Server()
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1/messages"
        try:
            async with aiohttp.ClientSession(middlewares=(middleware(gate, **options),)) as session:
                return await scenario(session, url, server)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def gated(*rates, clock=None, **options):
    return Dispatch("api", rates=rates, clock=clock or ManualClock(), **options)


def level(gate):
    return gate.snapshot().rates[0].level


def test_a_plain_response_is_returned_unchanged_and_settled():
    gate = gated("1000 tokens/minute burst 1000")

    async def scenario(session, url, server):
        async with session.post(url, json=CHAT) as reply:
            assert await reply.json() == USAGE
            assert gate.snapshot().in_flight == 0, "it was read to its end"

    against(scenario, gate)
    assert level(gate) == 958


READERS = {
    "read": lambda content: content.read(),
    "readany": lambda content: content.readany(),
    "read(n)": lambda content: content.read(7),
    "readline": lambda content: content.readline(),
    "readuntil": lambda content: content.readuntil(b"}"),
    "readchunk": lambda content: content.readchunk(),
}


@pytest.mark.parametrize("how", [*READERS, "iter", "iter_chunked", "iter_any", "iter_chunks", "readexactly"])
def test_a_stream_can_be_read_by_every_method(how):
    gate = gated("1000 tokens/minute burst 1000")

    async def scenario(session, url, server):
        server.answer = server.stream
        async with session.post(url, json=CHAT) as reply:
            assert isinstance(reply.content, aiohttp.StreamReader)
            assert gate.snapshot().in_flight == 1
            seen = []
            if how == "iter":
                seen = [line async for line in reply.content]
            elif how == "iter_chunked":
                seen = [piece async for piece in reply.content.iter_chunked(11)]
            elif how == "iter_any":
                seen = [piece async for piece in reply.content.iter_any()]
            elif how == "iter_chunks":
                seen = [piece async for piece, _ in reply.content.iter_chunks()]
            elif how == "readexactly":
                seen = [await reply.content.readexactly(len(b"".join(EVENTS)))]
                assert await reply.content.read() == b""
            else:
                while True:
                    piece = await READERS[how](reply.content)
                    if piece in (b"", (b"", False)):
                        break
                    seen.append(piece if isinstance(piece, bytes) else piece[0])
            assert b"".join(seen) == b"".join(EVENTS)
            assert reply.content.at_eof()
            assert gate.snapshot().in_flight == 0

    against(scenario, gate)
    assert level(gate) == 958


def test_the_caller_reads_the_whole_body_of_an_error_that_the_adapter_has_read():
    gate = gated("50/minute burst 50")

    async def scenario(session, url, server):
        for size in (10, 300_000):
            text = json.dumps({"error": {"message": "x" * size}})

            async def refuse(request, text=text):
                return web.Response(status=429, text=text, headers={"retry-after": "7"})

            server.answer = refuse
            async with session.post(url, json=CHAT) as reply:
                assert reply.status == 429
                assert await reply.text() == text
            async with session.post(url, json=CHAT) as reply:
                start = await reply.content.readline() if size == 10 else await reply.content.read(100)
                assert text.startswith(start.decode())
                assert start.decode() + (await reply.content.read()).decode() == text
            async with session.post(url, json=CHAT) as reply:
                pieces = [piece async for piece in reply.content.iter_chunked(1_000)]
                assert b"".join(pieces).decode() == text

    against(scenario, gate)
    assert gate.snapshot().in_flight == 0
    assert gate.snapshot().backoff_active
    assert level(gate) == 44


def test_the_usage_in_compressed_responses_is_read():
    gate = gated("1000 tokens/minute burst 1000")

    async def scenario(session, url, server):
        async def packed(request):
            return web.Response(
                body=gzip.compress(json.dumps(USAGE).encode()),
                headers={"content-encoding": "gzip", "content-type": "application/json"},
            )

        server.answer = packed
        async with session.post(url, json=CHAT) as reply:
            assert await reply.json() == USAGE

    against(scenario, gate)
    assert level(gate) == 958


def test_retries_send_the_same_body_again():
    gate = gated(clock=ManualClock(auto_advance=True))

    async def scenario(session, url, server):
        async def refuse_twice(request):
            return web.Response(status=503) if len(server.asked) < 3 else web.json_response(USAGE)

        server.answer = refuse_twice
        async with session.post(url, json=CHAT) as reply:
            assert reply.status == 200
        assert server.asked == [server.asked[0]] * 3
        assert json.loads(server.asked[0]) == CHAT

        async def generated():
            yield b"{}"

        server.asked.clear()
        async with session.post(url, data=generated()) as reply:
            assert reply.status == 503
        assert len(server.asked) == 1, "what was not kept is sent once"

    against(scenario, gate, retries=2)
    assert gate.snapshot().in_flight == 0


def test_a_failed_connection_costs_nothing_and_raises_the_error_of_aiohttp():
    gate = gated("50/minute burst 50", clock=ManualClock(auto_advance=True))

    async def scenario(session, url, server):
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.post("http://127.0.0.1:1/v1/messages", json=CHAT)

    against(scenario, gate, retries=2)
    assert level(gate) == 50


def test_refusals_of_the_gate_reach_the_caller_unchanged():
    gate = gated()
    gate.close()

    async def scenario(session, url, server):
        with pytest.raises(Closed):
            await session.post(url, json=CHAT)
        assert not server.asked

    against(scenario, gate)


def test_the_total_timeout_of_aiohttp_ends_a_wait_and_the_ticket_leaves_the_line():
    gate = Dispatch("api", concurrency=1)

    async def scenario(session, url, server):
        async with gate.admit():
            with pytest.raises(TimeoutError):
                await session.post(url, json=CHAT, timeout=aiohttp.ClientTimeout(total=0.05))
            assert gate.snapshot().waiting == 0
        assert not server.asked

    against(scenario, gate)
    assert gate.snapshot().in_flight == 0


def test_a_websocket_gives_its_place_back_when_it_begins():
    gate = gated(concurrency=1)

    async def scenario(session, url, server):
        async def converse(request):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.send_str("hello")
            await socket.receive()
            return socket

        server.answer = converse
        async with session.ws_connect(url) as socket:
            assert (await socket.receive()).data == "hello"
            assert gate.snapshot().in_flight == 0

    against(scenario, gate)


class Consumer(Exception):
    pass


def test_a_thousand_streams_broken_off_in_every_way_leave_nothing_behind():
    clock = ManualClock()
    gate = gated(concurrency=2_000, clock=clock)
    dice = random.Random(13)
    kept = []
    ways = ["read", "break", "left", "close", "error here", "torn", "cancelled", "dropped", "kept"]

    async def one(session, url, server, way):
        server.answer = server.torn if way == "torn" else server.stream
        reply = await session.post(url, json=CHAT)
        if way == "read":
            await reply.read()
        elif way == "break":
            async for _ in reply.content:
                break
            reply.release()
        elif way == "left":
            async with reply:
                await reply.content.readany()
        elif way == "close":
            reply.close()
        elif way == "error here":
            with suppress(Consumer):
                async with reply:
                    raise Consumer
        elif way == "torn":
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
        elif way == "cancelled":

            async def read():
                async with reply:
                    await reply.content.readany()
                    await asyncio.sleep(3_600)

            task = asyncio.create_task(read())
            await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif way == "kept":
            kept.append(reply)

    async def scenario(session, url, server):
        choices = dice.choices(ways, [9, 9, 9, 9, 9, 3, 9, 3, 1], k=1_000)
        for way in choices:
            await one(session, url, server, way)
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0.01)
        assert len(kept) > 5
        assert gate.snapshot().in_flight == len(kept)
        clock.advance(60)
        assert gate.snapshot().in_flight == 0
        for reply in kept:
            reply.close()

    against(scenario, gate, lease=60)
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight) == (0, 0)


def test_refusals_of_a_local_provider_are_waited_out():
    with Sandbox("openai", requests="60_000/minute") as api:
        gate = Dispatch("api", pause=True)
        api.fault("storm", count=1, retry_after=0.05)

        async def main():
            gating = middleware(gate, retries=2, backoff=Backoff(0.01, cap=1))
            async with aiohttp.ClientSession(middlewares=(gating,)) as session:
                url = api.url + "/v1/chat/completions"
                replies = await asyncio.gather(*(session.post(url, json=CHAT) for _ in range(20)))
                return [(await reply.json())["object"] for reply in replies]

        assert asyncio.run(main()) == ["chat.completion"] * 20
        assert gate.snapshot().in_flight == 0
        assert api.report().requests == 21
