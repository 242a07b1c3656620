"""DirectWire, AiohttpWire: what a server sends unasked never becomes the answer to another request."""

import asyncio
import gzip

import pytest

from headgate import InvalidConfig
from headgate.cli.run.direct import DirectWire
from headgate.cli.run.replies import no_reply
from headgate.cli.run.target import Target
from headgate.cli.run.wire import AiohttpWire


def reply(text):
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


@pytest.fixture(params=[DirectWire, AiohttpWire])
def wire_kind(request):
    return request.param


async def against(wire_kind, serve, use, within=5.0):
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
    wire = wire_kind(Target(url), timeout=within, headers={})
    try:
        await use(wire, url)
    finally:
        await wire.close()
        await asyncio.wait(handlers)
        server.close()
    return connections


@pytest.mark.parametrize("how", ["together", "apart", "later"])
def test_an_extra_response_is_not_the_answer_to_the_next_request(wire_kind, how):
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

    assert asyncio.run(against(wire_kind, serve, use)) == 10  # each extra response costs its connection


def test_a_connection_that_the_server_closed_is_not_used_again(wire_kind):
    async def serve(number, writer):
        writer.write(reply(f"answer {number}"))
        await writer.drain()
        writer.close()

    async def use(wire, url):
        for number in range(1, 11):
            assert (await wire.send("GET", url, None)).content == b"answer %d" % number

    assert asyncio.run(against(wire_kind, serve, use)) == 10


def test_a_silent_connection_is_used_again(wire_kind):
    async def serve(number, writer):
        writer.write(reply("fine"))
        await writer.drain()

    async def use(wire, url):
        for _ in range(10):
            await wire.send("GET", url, None)

    assert asyncio.run(against(wire_kind, serve, use)) == 1


ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine", b"fine"),
    "chunks": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nfi\r\n2\r\nne\r\n0\r\n\r\n",
        b"fine",
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nfine", b"fine"),
    "after an informational response": (
        b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
        b"fine",
    ),
    "packed": (
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b"
        % (len(gzip.compress(b"fine")), gzip.compress(b"fine")),
        b"fine",
    ),
    "long": (b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000, b"x" * 3_000_000),
    "none": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
}


@pytest.mark.parametrize("how", ANSWERS)
def test_a_body_is_read_to_its_end_however_it_is_sent(wire_kind, how):
    sent, content = ANSWERS[how]

    async def serve(_number, writer):
        for start in range(0, len(sent), 65_536):
            writer.write(sent[start : start + 65_536])
            await writer.drain()
        if how == "until the end":
            writer.close()

    async def use(wire, url):
        for _ in range(2):
            got = await wire.send("GET", url, None)
            assert got.content == content
            pairs = [(name.decode().lower(), value.decode()) for name, value in got.pairs]
            assert pairs == [(name.lower(), value) for name, value in got.headers.items()]

    asyncio.run(against(wire_kind, serve, use))


def test_a_response_to_head_has_no_body(wire_kind):
    async def serve(_number, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
        await writer.drain()

    async def use(wire, url):
        for _ in range(2):
            assert (await wire.send("HEAD", url, None)).content == b""

    asyncio.run(against(wire_kind, serve, use))


@pytest.mark.parametrize("started", [False, True])
def test_a_response_that_does_not_come_in_time_is_given_up(wire_kind, started):
    async def serve(_number, writer):
        if started:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfi")
            await writer.drain()

    async def use(wire, url):
        with pytest.raises(TimeoutError):
            await wire.send("GET", url, None)

    assert asyncio.run(against(wire_kind, serve, use, within=0.1)) == 1


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfi", b"nonsense\r\n\r\n"]
)
def test_a_response_that_breaks_off_or_is_not_http_raises(wire_kind, sent):
    async def serve(_number, writer):
        writer.write(sent)
        await writer.drain()
        writer.close()

    async def use(wire, url):
        with pytest.raises(Exception) as raised:
            await wire.send("POST", url, b"{}")
        reply = no_reply(raised.value, 5.0)
        assert reply.trouble.kind == "failed"
        assert "the connection broke" in reply.trouble.message

    asyncio.run(against(wire_kind, serve, use))


def test_where_nothing_listens_the_request_was_never_sent(wire_kind):
    async def use():
        wire = wire_kind(Target("http://127.0.0.1:1"), timeout=5.0, headers={})
        try:
            with pytest.raises(OSError) as raised:
                await wire.send("POST", "http://127.0.0.1:1/v1", b"{}")
        finally:
            await wire.close()
        assert no_reply(raised.value, 5.0).trouble.kind == "unreachable"

    asyncio.run(use())


def test_what_is_sent_is_the_request_and_the_headers_of_the_run(wire_kind):
    """Names are compared without regard to case, and a header that is given replaces the usual one."""
    got = []

    async def connected(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        got.append((head, await reader.readexactly(2)))
        writer.write(reply("fine"))
        await writer.drain()
        writer.close()

    async def use():
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        headers = {"Authorization": "Bearer é", "User-Agent": "mine"}
        wire = wire_kind(Target(url), timeout=5.0, headers=headers)
        await wire.send("POST", f"{url}/v1/a%20b?c=d", b"{}")
        await wire.close()
        server.close()
        return url.removeprefix("http://")

    host = asyncio.run(use())
    ((head, body),) = got
    first, *fields = head.decode().rstrip().split("\r\n")
    assert first == "POST /v1/a%20b?c=d HTTP/1.1"
    assert body == b"{}"
    sent = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    assert len(sent) == len(fields)
    assert sent == {
        "host": host, "accept": "application/json", "accept-encoding": "gzip, deflate", "user-agent": "mine",
        "content-type": "application/json", "authorization": "Bearer é", "content-length": "2",
    }  # fmt: skip


def test_a_header_with_a_line_break_is_refused():
    with pytest.raises(InvalidConfig, match="line break"):
        DirectWire(Target("http://127.0.0.1:1"), timeout=5.0, headers={"x": "a\r\nb: c"})
