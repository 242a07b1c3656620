"""AiohttpWire: what a server sends unasked never becomes the answer to another request."""

import asyncio

import pytest

from headgate.cli.run.target import Target
from headgate.cli.run.wire import AiohttpWire


def reply(text):
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


async def against(serve, use):
    """Await `use(wire)` while `serve(number, writer)` answers each request; the number of connections."""
    connections = requests = 0
    handlers = []

    async def connected(reader, writer):
        nonlocal connections, requests
        connections += 1
        handlers.append(asyncio.current_task())
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                requests += 1
                await serve(requests, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    wire = AiohttpWire(Target(url), timeout=5.0, headers={})
    try:
        await use(wire, url)
    finally:
        await wire.close()
        await asyncio.wait(handlers)
        server.close()
    return connections


@pytest.mark.parametrize("how", ["together", "apart", "later"])
def test_an_extra_response_is_not_the_answer_to_the_next_request(how):
    async def serve(number, writer):
        own, extra = reply(f"answer {number}"), reply("extra") if number % 4 == 0 else b""
        if how == "together":
            writer.write(own + extra)
        else:
            writer.write(own)
            await writer.drain()
            if extra and how == "later":
                await asyncio.sleep(0.01)
            writer.write(extra)
        await writer.drain()

    async def use(wire, url):
        for number in range(1, 41):
            got = await wire.send("GET", f"{url}/{number}", None)
            assert got.content == b"answer %d" % number
            if how == "later":
                await asyncio.sleep(0.015)

    assert asyncio.run(against(serve, use)) == 10  # each extra response costs its connection


def test_a_connection_that_the_server_closed_is_not_used_again():
    async def serve(number, writer):
        writer.write(reply(f"answer {number}"))
        await writer.drain()
        writer.close()

    async def use(wire, url):
        for number in range(1, 11):
            assert (await wire.send("GET", url, None)).content == b"answer %d" % number

    assert asyncio.run(against(serve, use)) == 10


def test_a_silent_connection_is_used_again():
    async def serve(number, writer):
        writer.write(reply("fine"))
        await writer.drain()

    async def use(wire, url):
        for _ in range(10):
            await wire.send("GET", url, None)

    assert asyncio.run(against(serve, use)) == 1
