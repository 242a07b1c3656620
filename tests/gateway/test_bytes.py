"""Requests and answers pass byte for byte: each case is sent to the API directly and through the gateway."""

import asyncio
import gzip
import json
import socket

import pytest

from gateway.rig import Rig, read_response, reply
from patience import PATIENCE, eventually

JSON = ["Content-Type: application/json"]
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "h\xc3\xa9"}], "unknown_field": [1,  2]}'
EVENTS = ["HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"]
LONG = bytes(range(256)) * (30 * 4096)  # 30 MB of every byte


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*pieces):
    """A stream of events, with a pause after the head and between two of its pieces."""
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Id: 7\r\n\r\n"
    )
    out = [head.encode(), 0.02]
    for piece in pieces:
        out += [chunk(piece), 0.005]
    return [*out, b"0\r\n\r\n"]


OPENAI_STREAM = [
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{"con',
    b'tent":"b"}}]}\n\ndata: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
]
ANTHROPIC_STREAM = [
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n',
    b'event: ping\ndata: {"type":"ping"}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]
RESPONSES_STREAM = [
    b'event: response.created\ndata: {"type":"response.created"}\n\n',
    b"event: x\ndata: {}\n\n",
]
GEMINI_STREAM = [b'data: {"candidates":[]}\r\n\r\n', b'data: {"usageMetadata":{"totalTokenCount":3}}\r\n\r\n']
CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nuntil the end"

CASES = {
    "openai chat": ("POST", "/v1/chat/completions", JSON, CHAT, reply(b'{"id": "1"}')),
    "openai responses": ("POST", "/v1/responses", JSON, CHAT, reply()),
    "openai completions": ("POST", "/v1/completions", JSON, CHAT, reply()),
    "openai embeddings": ("POST", "/v1/embeddings", JSON, b'{"input": ["a"]}', reply()),
    "openai models": ("GET", "/v1/models", [], b"", reply(b'{"data": []}')),
    "openai file delete": ("DELETE", "/v1/files/file-1", [], b"", reply()),
    "openai upload": (
        "POST",
        "/v1/files",
        ["Content-Type: multipart/form-data; boundary=x"],
        b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n\x00\xff\r\n--x--\r\n',
        reply(),
    ),
    "anthropic messages": (
        "POST",
        "/v1/messages?beta=true",
        [*JSON, "anthropic-version: 2023-06-01", "anthropic-beta: a-1,b-2", "x-api-key: k"],
        CHAT,
        reply(),
    ),
    "anthropic count tokens": (
        "POST",
        "/v1/messages/count_tokens",
        JSON,
        CHAT,
        reply(b'{"input_tokens": 3}'),
    ),
    "claude code hello": (
        "HEAD",
        "/api/hello",
        [],
        b"",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n",
    ),
    "gemini": ("POST", "/v1beta/models/gemini-2.5-pro:generateContent", JSON, CHAT, reply()),
    "gemini key in the query": ("POST", "/v1beta/models/m:countTokens?key=abc%2F1", JSON, CHAT, reply()),
    "cohere": ("POST", "/v2/chat", JSON, CHAT, reply()),
    "unknown path": ("POST", "/some/unknown/path", JSON, b"[]", reply(b"[]")),
    "root": ("GET", "/", [], b"", reply(b"<html>", "200 OK", "text/html")),
    "double slash": ("GET", "//evil.example/x", [], b"", reply()),
    "dots": ("GET", "/a/../b/./c", [], b"", reply()),
    "escaped slash": ("GET", "/a%2Fb%2f%C3%A9/%20", [], b"", reply()),
    "odd query": ("GET", "/q?a=1&a=2&b=&c&%20=+&d=%2B&e=a=b?c", [], b"", reply()),
    "at and colon": ("GET", "/user@host:80/x", [], b"", reply()),
    "put": ("PUT", "/v1/things/1", JSON, b'{"a":1}', b"HTTP/1.1 204 No Content\r\nX-Y: z\r\n\r\n"),
    "patch": ("PATCH", "/v1/things/1", JSON, b"{}", reply()),
    "options": ("OPTIONS", "/v1/things", [], b"", reply(b"", "200 OK", "", "Allow: GET")),
    "unknown method": ("PURGE", "/v1/things", [], b"", reply()),
    "empty post": ("POST", "/v1/empty", [], b"", reply()),
    "empty answer": ("GET", "/v1/nothing", [], b"", reply(b"", "200 OK", "")),
    "no content type": ("GET", "/v1/plain", [], b"", reply(b"x", "200 OK", "")),
    "odd reason": ("GET", "/v1/reason", [], b"", reply(b"{}", "299 All Is Well")),
    "redirect": ("GET", "/v1/moved", [], b"", reply(b"", "302 Found", "", "Location: https://evil.example/")),
    "error 400": ("POST", "/v1/chat/completions", JSON, CHAT, reply(b'{"error": {}}', "400 Bad Request")),
    "error 401": ("POST", "/v1/messages", JSON, CHAT, reply(b'{"type": "error"}', "401 Unauthorized")),
    "error 404 long": ("GET", "/v1/long", [], b"", reply(b"y" * 200_000, "404 Not Found", "text/plain")),
    "gzip request": (
        "POST",
        "/v1/chat/completions",
        [*JSON, "Content-Encoding: gzip"],
        gzip.compress(CHAT, mtime=0),
        reply(),
    ),
    "gzip answer": (
        "GET",
        "/v1/packed",
        ["Accept-Encoding: gzip, deflate"],
        b"",
        reply(
            gzip.compress(b'{"usage": {"prompt_tokens": 4}}', mtime=0), "200 OK", "application/json"
        ).replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type", 1),
    ),
    "repeated headers": (
        "GET",
        "/v1/twice",
        ["X-Twice: 1", "X-Twice: 2", "x-LOWER-Case: Yes"],
        b"",
        reply(
            b"{}", "200 OK", "application/json", "X-Ratelimit: a", "x-ratelimit: b", "Date: then", "Server: s"
        ),
    ),
    "long header": ("GET", "/v1/header", [f"X-Long: {'h' * 20_000}"], b"", reply()),
    "chunked answer": (
        "GET",
        "/v1/chunks",
        [],
        b"",
        [EVENTS[0].encode(), chunk(b"a" * 70_000), b"0\r\n\r\n"],
    ),
    "answer until the connection ends": ("GET", "/v1/closed", [], b"", [CLOSED, None]),
    "binary answer": ("GET", "/v1/audio", [], b"", reply(bytes(range(256)) * 40, "200 OK", "audio/mpeg")),
    "30 MB": ("POST", "/v1/files/upload", [], LONG, reply(LONG, "200 OK", "application/octet-stream")),
    "openai stream": ("POST", "/v1/chat/completions", JSON, CHAT, stream(*OPENAI_STREAM)),
    "responses stream": ("POST", "/v1/responses", JSON, CHAT, stream(*RESPONSES_STREAM)),
    "anthropic stream": ("POST", "/v1/messages", JSON, CHAT, stream(*ANTHROPIC_STREAM)),
    "gemini stream": (
        "POST",
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        JSON,
        CHAT,
        stream(*GEMINI_STREAM),
    ),
}
FRAMING = ("transfer-encoding", "connection", "content-length")


@pytest.fixture(scope="module")
def rig():
    with Rig(rates=["100_000/second burst 1000"]) as rig:
        yield rig


def ask(port, method, target, headers, body):
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers, "User-Agent: tests/1"]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return read_response(connection, method.encode())


def as_sent(request):
    """What the API got. Without a body, a length of nothing may be stated or not."""
    framing = ("Content-Length", "0")
    pairs = [pair for pair in request.pairs if pair[0].lower() != "host" and pair != framing]
    return request.line, pairs, request.body


def as_read(response):
    pairs = [pair for pair in response.pairs if not pair[0].lower().startswith(("x-headgate", *FRAMING))]
    return response.status, pairs, response.body


@pytest.mark.parametrize("name", CASES)
def test_a_request_and_its_answer_are_the_same_with_and_without_the_gateway(rig, name):
    method, target, headers, body, answer = CASES[name]
    rig.api.answer = lambda request: answer
    direct = ask(rig.api.port, method, target, headers, body)
    sent = as_sent(rig.last)
    through = ask(rig.port, method, target, headers, body)
    assert as_sent(rig.last) == sent
    assert as_read(through) == as_read(direct)
    length = direct.headers.get("content-length")
    if length is not None and method != "HEAD":
        assert through.headers.get("content-length") == length


def test_at_least_forty_paths_are_compared():
    assert len(CASES) >= 40


def test_a_chunked_upload_arrives_whole(rig):
    rig.api.answer = lambda request: reply(json.dumps(len(request.body)).encode())
    pieces = b"".join(chunk(b"z" * size) for size in (1, 70_000, 3)) + b"0\r\n\r\n"
    head = f"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert rig.raw(head.encode() + pieces).json() == 70_004


def test_a_client_that_waits_for_100_continue_is_told_to_go_on(rig):
    rig.api.answer = lambda request: reply(request.body)
    head = (
        f"POST /x HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"ok")
        assert read_response(connection).body == b"ok"
    assert "expect" not in rig.last.headers


def test_pieces_of_a_stream_are_passed_on_as_they_come(rig):
    second = asyncio.Event()
    rig.api.answer = lambda request: [
        EVENTS[0].encode(),
        chunk(b"data: 1\n\n"),
        second,
        chunk(b"data: 2\n\n"),
        b"0\r\n\r\n",
    ]
    request = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rig.port), PATIENCE) as connection:
        connection.sendall(request.encode())
        got = b""
        while b"data: 1" not in got:
            got += connection.recv(1000)
        rig.loop.loop.call_soon_threadsafe(second.set)
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(1000)
        assert b"data: 2" in got


def test_codings_in_which_usage_cannot_be_read_are_not_asked_for(rig):
    rig.api.answer = lambda request: reply()
    rig.ask("GET", "/v1/models", ["Accept-Encoding: gzip, deflate, br, zstd"])
    assert rig.last.headers["accept-encoding"] == "gzip, deflate"


def test_an_answer_that_breaks_off_is_broken_off_for_the_client_too(rig):
    rig.api.answer = lambda request: [reply(b"0123456789")[:-5], None]
    try:
        body = rig.ask("GET", "/v1/half").body
    except (ConnectionError, IndexError):  # reset, or no status line
        body = b""
    assert len(body) < 10


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b'data: {"error":'),
        ("/v1/messages", b'event: error\ndata: {"type":"error"'),
        ("/v1/responses", b'event: error\ndata: {"type":"error"'),
    ],
)
def test_a_stream_that_breaks_off_between_events_ends_with_an_error_event(rig, path, event):
    rig.api.answer = lambda request: [EVENTS[0].encode(), chunk(b"data: 1\n\n"), 0.05, None]
    response = rig.ask("POST", path, JSON, CHAT)
    assert response.body.startswith(b"data: 1\n\n" + event)
    assert response.body.endswith(b"\n\n")


def test_a_header_that_is_not_utf_8_loses_nothing(rig):
    rig.api.answer = lambda request: reply(b"{}", "200 OK", "application/json", "X-Name: caf\xe9")
    head = f"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\nX-Name: caf\xe9\r\n\r\n"
    response = rig.raw(head.encode("latin-1"))
    assert rig.last.headers["x-name"].encode("latin-1").decode() == "caf\xe9"
    assert response.headers["x-name"].encode("latin-1").decode() == "caf\xe9"


def test_a_client_that_leaves_in_the_middle_of_its_request_leaves_nothing_behind(rig):
    with socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        connection.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        eventually(lambda: rig.gateway.active == 1, "it is being read")
    eventually(lambda: rig.gateway.active == 0, "it has gone")
