"""requests through a mounted adapter."""

import gc
import gzip
import io
import json
import random
import threading
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.response import HTTPResponse

from headgate import Backoff, Closed, Dispatch
from headgate.http.requests import Adapter
from headgate.sandbox import Sandbox
from headgate.testing import ManualClock

CHAT = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
USAGE = {"usage": {"input_tokens": 30, "output_tokens": 12}}
EVENTS = [
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":1}}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"text":"hello"}}\n\n',
    b'data: {"type":"message_delta","usage":{"output_tokens":12}}\n\n',
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = self.headers.get("content-length")
        if size is None:
            while (line := self.rfile.readline().strip()) != b"0":
                self.rfile.read(int(line, 16) + 2)
            self.rfile.readline()
        else:
            self.server.asked.append(self.rfile.read(int(size)))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if answer is None:
            self.close_connection = True
            return
        status, headers, pieces = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        chunked = len(pieces) > 1
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(len(pieces[0])))
        self.end_headers()
        with suppress(OSError):
            for piece in pieces:
                if piece is None:
                    self.close_connection = True
                    return
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.asked = []
        server.answers = [PLAIN]
        server.url = f"http://127.0.0.1:{server.server_port}/v1/messages"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


PLAIN = (200, {"content-type": "application/json"}, [json.dumps(USAGE).encode()])
STREAM = (200, {"content-type": "text/event-stream"}, EVENTS)
TORN = (200, {"content-type": "text/event-stream"}, [EVENTS[0], None])


def gated(*rates, clock=None, **options):
    return Dispatch("api", rates=rates, clock=clock or ManualClock(), **options)


def session_for(gate, **options):
    session = requests.Session()
    session.mount("http://", Adapter(gate, **options))
    return session


def level(gate):
    return gate.snapshot().rates[0].level


def test_a_plain_response_is_returned_unchanged_and_settled(server):
    gate = gated("1000 tokens/minute burst 1000")
    with session_for(gate) as session:
        reply = session.post(server.url, json=CHAT)
    assert reply.json() == USAGE
    assert reply.elapsed is not None
    assert gate.snapshot().in_flight == 0
    assert level(gate) == 958


READERS = {
    "iter_content": lambda reply: reply.iter_content(7),
    "as it comes": lambda reply: reply.iter_content(None),
    "raw.stream": lambda reply: reply.raw.stream(9),
    "raw.read_chunked": lambda reply: reply.raw.read_chunked(),
    "raw.read": lambda reply: iter(lambda: reply.raw.read(8), b""),
    "raw": lambda reply: iter(reply.raw),
    "content": lambda reply: [reply.content],
}


@pytest.mark.parametrize("how", READERS)
def test_a_stream_can_be_read_by_every_method(server, how):
    gate = gated("1000 tokens/minute burst 1000")
    server.answers = [STREAM]
    with session_for(gate) as session:
        reply = session.post(server.url, json=CHAT, stream=True)
        assert gate.snapshot().in_flight == 1
        assert b"".join(READERS[how](reply)) == b"".join(EVENTS)
        assert gate.snapshot().in_flight == 0
    assert level(gate) == 958


def test_a_stream_is_not_delayed(server):
    """The first piece can be read before the last is sent."""
    gate = gated()
    server.answers = [STREAM]
    with session_for(gate) as session:
        reply = session.post(server.url, json=CHAT, stream=True)
        assert next(reply.iter_content(None)) == EVENTS[0]
        reply.close()
    assert gate.snapshot().in_flight == 0


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_the_caller_reads_the_whole_body_of_an_error_that_the_adapter_has_read(server, size, stream, packed):
    gate = gated("50/minute burst 50")
    text = json.dumps({"error": {"message": "".join(random.Random(1).choices("abcdef", k=size))}}).encode()
    headers = {"content-type": "application/json", "retry-after": "7"}
    headers |= {"content-encoding": "gzip"} if packed else {}
    body = gzip.compress(text) if packed else text
    with session_for(gate) as session:
        for pieces in ([body], [body[:5], body[5:]]):
            server.answers = [(429, headers, pieces)]
            reply = session.post(server.url, json=CHAT, stream=stream)
            assert (b"".join(reply.iter_content(999)) if stream else reply.content) == text
            assert reply.status_code == 429
            assert "x-should-retry" not in reply.headers
    assert gate.snapshot().in_flight == 0
    assert gate.snapshot().backoff_active


def test_an_error_response_gives_its_connection_back(server):
    gate = gated()
    server.answers = [(500, {}, [b"sorry"])]
    with session_for(gate) as session:
        replies = [session.post(server.url, json=CHAT, stream=True) for _ in range(3)]
        pools = session.get_adapter(server.url)._inner.poolmanager.pools
        assert [pools[key].num_connections for key in pools.keys()] == [1]  # noqa: SIM118 - no mapping
    assert [reply.text for reply in replies] == ["sorry"] * 3


def test_the_last_response_after_retries_forbids_further_ones(server):
    gate = gated(clock=ManualClock(auto_advance=True))
    with session_for(gate, retries=2) as session:
        server.answers = [(503, {}, [b"{}"])]
        reply = session.post(server.url, json=CHAT)
        assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
        assert server.asked == [server.asked[0]] * 3
        server.answers = [(429, {}, [b"{}"]), PLAIN]
        assert session.post(server.url, json=CHAT).status_code == 200
        server.asked.clear()
        server.answers = [(503, {}, [b"{}"])]
        session.post(server.url, data=(piece for piece in [b"{", b"}"]))
        assert not server.asked, "a body without a length came once, in pieces"
    assert gate.snapshot().in_flight == 0


def test_a_failed_connection_costs_nothing_and_raises_the_error_of_requests():
    gate = gated("50/minute burst 50", clock=ManualClock(auto_advance=True))
    with session_for(gate, retries=2) as session, pytest.raises(requests.ConnectionError):
        session.post("http://127.0.0.1:1/v1/messages", json=CHAT)
    assert level(gate) == 50


def test_a_request_that_went_to_a_proxy_is_not_sent_twice(server):
    """urllib3 raises the same ProxyError for it as for a proxy to which nothing was sent."""
    gate = gated("50/minute burst 50", clock=ManualClock(auto_advance=True))
    server.answers = [None]
    with session_for(gate, retries=2) as session, pytest.raises(requests.exceptions.ProxyError):
        session.post("http://api.invalid/pay", data=b"$5", proxies={"http": server.url})
    assert len(server.asked) == 1
    assert level(gate) == 49


def test_a_request_to_a_proxy_that_is_down_costs_nothing():
    gate = gated("50/minute burst 50", clock=ManualClock(auto_advance=True))
    proxies = {"http": "http://127.0.0.1:1"}
    with session_for(gate, retries=2) as session, pytest.raises(requests.exceptions.ProxyError):
        session.post("http://api.invalid/v1/messages", json=CHAT, proxies=proxies)
    assert level(gate) == 50


def test_refusals_of_the_gate_reach_the_caller_unchanged(server):
    gate = gated()
    gate.close()
    with session_for(gate) as session, pytest.raises(Closed):
        session.post(server.url, json=CHAT)
    assert not server.asked


def test_authentication_that_sends_again_passes_the_gate_again(server):
    gate = gated("50/minute burst 50")
    challenge = 'Digest realm="r", nonce="n", qop="auth"'
    server.answers = [(401, {"www-authenticate": challenge}, [b"no"]), PLAIN]
    with session_for(gate) as session:
        reply = session.post(server.url, json=CHAT, auth=requests.auth.HTTPDigestAuth("u", "p"))
    assert reply.status_code == 200
    assert level(gate) == 48
    assert gate.snapshot().in_flight == 0


class Consumer(Exception):
    pass


class Tearing(io.BytesIO):
    """A body that ends in the middle."""

    def read(self, *args):
        data = super().read(*args)
        if not data:
            raise ConnectionResetError
        return data


class Canned(HTTPAdapter):
    """An adapter that replies at once, without a socket."""

    def __init__(self):
        super().__init__()
        self.torn = False

    def send(self, request, **_):
        body = Tearing(EVENTS[0]) if self.torn else io.BytesIO(b"".join(EVENTS))
        headers = {"content-type": "text/event-stream"}
        raw = HTTPResponse(body=body, headers=headers, status=200, preload_content=False)
        return self.build_response(request, raw)


class ReadBefore(HTTPAdapter):
    """An adapter that has read the whole body of its response, or made one without a stream."""

    def __init__(self, status, *, raw):
        super().__init__()
        self.status = status
        self.has_raw = raw

    def send(self, request, **_):
        if not self.has_raw:
            response = requests.Response()
            response.status_code = self.status
            response.request, response.url = request, request.url
            return response
        body = io.BytesIO(json.dumps(USAGE).encode())
        headers = {"content-type": "application/json"}
        raw = HTTPResponse(body=body, headers=headers, status=self.status, preload_content=False)
        response = self.build_response(request, raw)
        assert response.content
        return response


@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("raw", [True, False], ids=["read", "without a stream"])
def test_a_body_that_the_inner_adapter_has_read_is_settled_at_once(status, raw):
    gate = gated("1000 tokens/minute burst 1000")
    with session_for(gate, inner=ReadBefore(status, raw=raw)) as session:
        reply = session.post("http://api.example/v1/messages", json=CHAT, stream=True)
        assert gate.snapshot().in_flight == 0
        assert not raw or reply.json() == USAGE
    if status == 429:
        assert gate.snapshot().rates[0].level == 1000
    elif raw:
        assert gate.snapshot().rates[0].level == 958


def test_a_thousand_streams_broken_off_in_every_way_leave_nothing_behind():
    clock = ManualClock()
    gate = gated(concurrency=2_000, clock=clock)
    dice = random.Random(17)
    kept = []
    ways = ["read", "break", "close", "error here", "torn", "dropped", "kept"]
    inner = Canned()
    with session_for(gate, lease=60, inner=inner) as session:
        for way in dice.choices(ways, k=1_000):
            inner.torn = way == "torn"
            reply = session.post("http://api.example/v1/messages", json=CHAT, stream=True)
            if way == "read":
                assert reply.content
            elif way == "break":
                with reply:
                    for _ in reply.iter_lines():
                        break
            elif way == "close":
                reply.close()
            elif way == "error here":
                with suppress(Consumer), closing(reply):
                    raise Consumer
            elif way == "torn":
                with pytest.raises(requests.exceptions.ChunkedEncodingError):
                    reply.content  # noqa: B018
            elif way == "kept":
                kept.append(reply)
            reply = None
        gc.collect()
        assert gate.snapshot().in_flight == len(kept) > 50
        clock.advance(60)
        assert gate.snapshot().in_flight == 0
        for reply in kept:
            assert reply.content == b"".join(EVENTS), "an abandoned response can still be read"
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.bytes_in_flight) == (0, 0)


def test_real_connections_that_break_or_are_abandoned_leave_nothing_behind(server):
    gate = gated()
    with session_for(gate) as session:
        for _ in range(20):
            server.answers = [TORN]
            reply = session.post(server.url, json=CHAT, stream=True)
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                reply.content  # noqa: B018
            server.answers = [STREAM]
            with session.post(server.url, json=CHAT, stream=True) as reply:
                next(reply.iter_lines())
    assert gate.snapshot().in_flight == 0


def test_refusals_of_a_local_provider_are_waited_out():
    with Sandbox("openai", requests="60_000/minute") as api:
        gate = Dispatch("api", pause=True)
        api.fault("storm", count=1, retry_after=0.05)
        with session_for(gate, retries=2, backoff=Backoff(0.01, cap=1)) as session:
            for _ in range(5):
                reply = session.post(api.url + "/v1/chat/completions", json=CHAT)
                assert reply.status_code == 200
        assert gate.snapshot().in_flight == 0
        assert api.report().requests == 6
