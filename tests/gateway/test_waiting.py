"""Calls that wait at the gateway: who goes first, what clients hear, and how waiting ends."""

import asyncio
import gc
import gzip
import json
import socket
import threading
import time
import tracemalloc

import pytest

from cli.commands import headgate
from gateway.answers import answer_to
from gateway.rig import Rig, read_response, reply
from headgate import Dispatch
from headgate.gateway import hold
from headgate.gateway.gates import limits_in
from headgate.gateway.keys import Token
from headgate.gateway.settings import Settings, with_environment
from headgate.gateway.upstreams import Upstream, upstream
from patience import PATIENCE, eventually

FAST = ["100_000/second burst 1000"]
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
STREAM = CHAT[:-1] + b', "stream": true}'
PACKED = ["Content-Encoding: zstd", "Content-Type: application/json"]
SDK = ["x-stainless-lang: python", "Content-Type: application/json"]


class Busy(Rig):
    """A gateway with one place, which a call holds until `release`."""

    def __init__(self, answer=answer_to, *, first=(), **settings):
        self.held = asyncio.Event()
        late = [self.held, reply()]
        super().__init__(
            lambda request: late if request.target == "/block" else answer(request),
            **{"concurrency": 1, "rates": FAST, "patience": 0.05, **settings},
        )
        self.blocker = self.open("GET", "/block", first)
        eventually(lambda: self.api.requests, "the blocking call is sent")

    def open(self, method, target, headers=(), body=b""):
        """Send a request and do not wait for the answer."""
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        fields = [f"Host: 127.0.0.1:{self.port}", *headers, f"Content-Length: {len(body)}"]
        connection.sendall(
            f"{method} {target} HTTP/1.1\r\n".encode() + "\r\n".join(fields).encode() + b"\r\n\r\n" + body
        )
        return connection

    def waits(self, count):
        eventually(lambda: len(self.gateway.waiting) == count, f"{count} calls wait")

    def release(self):
        self.loop.loop.call_soon_threadsafe(self.held.set)

    def close(self):
        self.release()
        self.blocker.close()
        super().close()


@pytest.fixture
def busy():
    with Busy() as rig:
        yield rig


# -- hanging up


def test_a_client_that_hangs_up_frees_its_place_within_50_ms(busy):
    waiting = [busy.open("POST", "/v1/chat/completions", SDK, CHAT) for _ in range(20)]
    busy.waits(20)
    best = 1.0
    for left, connection in enumerate(reversed(waiting)):
        started = time.perf_counter()
        connection.close()
        eventually(lambda left=left: len(busy.gateway.waiting) == 19 - left, "it has left the line")
        best = min(best, time.perf_counter() - started)
    assert best < 0.05
    assert busy.gateway.gates()[0].waiting == 0


def test_a_client_that_hangs_up_while_the_api_answers_frees_its_place(busy):
    busy.blocker.close()
    response = busy.ask("POST", "/v1/chat/completions", SDK, CHAT)
    assert response.status == 200


# -- what a waiting client hears


def heard(connection, seconds):
    """The bytes that come within some seconds."""
    connection.settimeout(seconds)
    got = b""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            got += connection.recv(65_536)
        except TimeoutError:
            break
    return got


def signs(connection, sign, count=1):
    """Wait until that sign of life has come that often."""
    connection.settimeout(PATIENCE)
    got = b""
    while got.count(sign) < count:
        piece = connection.recv(65_536)
        assert piece, "it has hung up"
        got += piece


def test_a_client_hears_nothing_while_its_patience_lasts():
    with Busy(patience=30) as busy:
        connection = busy.open("POST", "/v1/chat/completions", SDK, STREAM)
        busy.waits(1)
        assert heard(connection, 0.2) == b""
        busy.release()
        connection.settimeout(10)
        assert read_response(connection).status == 200
        connection.close()


@pytest.mark.parametrize(
    ("path", "body", "fields", "sign"),
    [
        ("/v1/chat/completions", STREAM, [], b": waiting\n\n"),
        ("/v1/responses", STREAM, [], b": waiting\n\n"),
        ("/v1/messages", STREAM, [], b"event: ping\n"),
        ("/v1/messages", CHAT, SDK, b"HTTP/1.1 102 Processing\r\n\r\n"),
        ("/v1/chat/completions", CHAT, ["User-Agent: node"], b"HTTP/1.1 102 Processing\r\n\r\n"),
        ("/v1/chat/completions", CHAT, ["User-Agent: python-requests/2.34"], b""),
        ("/v1/chat/completions", CHAT, ["User-Agent: Go-http-client/1.1"], b""),
        ("/v1/chat/completions", CHAT, [], b""),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", CHAT, [], b""),
        ("/v1/responses", b"(packed", [*PACKED, "Accept: text/event-stream"], b": waiting\n\n"),
        ("/v1/responses", b"(packed", [*PACKED, "Accept: application/json"], b""),
    ],
)
def test_a_client_is_kept_by_what_it_tolerates(busy, path, body, fields, sign):
    connection = busy.open("POST", path, fields, body)
    busy.waits(1)
    if sign:
        signs(connection, sign, 2)
    else:
        assert heard(connection, 0.3) == b""
    connection.close()


def test_signs_of_life_stop_before_the_first_real_byte():
    pieces = [f'data: {{"n": {n}}}\n\n' for n in range(200)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def slowly(request):
        out = [head]
        for piece in pieces:
            half = len(piece) // 2
            for part in (piece[:half], piece[half:]):
                out += [b"%x\r\n%b\r\n" % (len(part), part.encode()), 0.001]
        return [*out, b"0\r\n\r\n"]

    with Busy(slowly) as busy:
        connection = busy.open("POST", "/v1/chat/completions", (), STREAM)
        busy.waits(1)
        signs(connection, b": waiting\n\n")
        busy.release()
        connection.settimeout(10)
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65_536)
        connection.close()
    text = b"".join(body.split(b"\r\n")[1::2])
    assert text[text.index(b"data") :] == "".join(pieces).encode()


def test_an_error_of_the_api_after_the_stream_began_is_an_event_with_its_words():
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    with Busy(lambda request: reply(json.dumps(error).encode(), "400 Bad Request")) as busy:
        connection = busy.open("POST", "/v1/messages", (), STREAM)
        busy.waits(1)
        eventually(lambda: heard(connection, 0.05), "a sign of life")
        busy.release()
        connection.settimeout(10)
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(65_536)
        connection.close()
    assert (
        b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"too long"}}'
        in got
    )


def test_a_packed_stream_is_unpacked_for_a_client_that_was_told_of_no_packing():
    packed = gzip.compress(b'data: {"choices": []}\n\n')
    answer = reply(packed, "200 OK", "text/event-stream", "Content-Encoding: gzip")
    with Busy(lambda request: answer) as busy:
        connection = busy.open("POST", "/v1/chat/completions", ["Accept-Encoding: gzip"], STREAM)
        busy.waits(1)
        eventually(lambda: heard(connection, 0.05), "a sign of life")
        busy.release()
        connection.settimeout(10)
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(65_536)
        connection.close()
        assert busy.last.headers["accept-encoding"] == "identity"
    assert b'data: {"choices": []}\n\n' in got


# -- giving up


def test_a_call_that_waited_in_vain_gets_503_with_rule_and_time(busy):
    response = busy.ask("POST", "/v1/messages", ["x-headgate-timeout: 0.05"], CHAT)
    assert response.status == 503
    assert response.headers["x-should-retry"] == "true"
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["x-headgate"].startswith("waited; rule=concurrency; eta=")
    assert 50 <= int(response.headers["x-headgate-waited-ms"]) < 2_000
    assert response.json()["error"]["type"] == "overloaded_error"
    assert "concurrency" in response.json()["error"]["message"]


def test_no_client_waits_longer_than_max_wait():
    with Busy(max_wait=0.05) as busy:
        response = busy.ask("POST", "/v1/chat/completions", ["x-headgate-timeout: 60"], CHAT)
        assert (response.status, response.json()["error"]["type"]) == (503, "server_error")


def test_a_window_that_is_longer_than_the_client_may_wait_is_refused_at_once():
    with Rig(rates=FAST, max_wait=5) as rig:
        rig.ask("GET", "/v1/models")
        rig.gateway.gates()[0].set_backoff(60, reason="429")
        started = time.monotonic()
        response = rig.ask("POST", "/v1/chat/completions", (), CHAT)
        assert response.status == 503
        assert time.monotonic() - started < 3
        assert 50 <= int(response.headers["retry-after"]) <= 61
        assert "rule=window" in response.headers["x-headgate"]
        assert rig.gateway.snapshot()["gates"][0]["window"]["reason"] == "429"


def test_clients_in_line_are_refused_at_once_when_a_window_starts_that_is_too_long_for_them():
    with Busy(max_wait=20) as busy:
        patient = busy.open("POST", "/v1/messages", (), CHAT)
        hasty = busy.open("POST", "/v1/messages", ["x-headgate-timeout: 10"], CHAT)
        busy.waits(2)
        busy.gateway.gates()[0].set_backoff(15, reason="429")
        refused = read_response(hasty)
        assert refused.status == 503
        assert 10 < int(refused.headers["retry-after"]) <= 15
        assert "rule=window" in refused.headers["x-headgate"]
        assert len(busy.gateway.waiting) == 1, "one can wait for as long as that"
        patient.close()
        busy.waits(0)
        hasty.close()


@pytest.mark.parametrize(
    "field", ["x-headgate-timeout: soon", "x-headgate-timeout: -1", "x-headgate-priority: high"]
)
def test_a_header_that_says_nothing_is_an_error(busy, field):
    response = busy.ask("POST", "/v1/chat/completions", [field], CHAT)
    assert response.status == 400
    assert field.partition(":")[0] in response.json()["error"]["message"]


# -- one owner of retries


def answering(*answers):
    """An API that gives one answer after the other, and then the last one."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


REFUSED = reply(
    b'{"error": {"message": "slow down"}}', "429 Too Many Requests", "application/json", "Retry-After: 0"
)
OVERLOADED = reply(b'{"type": "error"}', "529 Overloaded")
DOWN = reply(b"down", "503 Service Unavailable", "text/plain")
QUOTA = reply(b'{"error": {"code": "insufficient_quota", "message": "pay"}}', "429 Too Many Requests")


@pytest.mark.parametrize("refusal", [REFUSED, OVERLOADED, DOWN])
def test_a_refusal_of_the_api_is_retried_by_the_gateway(refusal):
    with Rig(answering(refusal, reply(b'{"id": 1}')), rates=FAST) as rig:
        response = rig.ask("POST", "/v1/messages", (), CHAT)
        assert (response.status, len(rig.api.requests)) == (200, 2)
        assert rig.gateway.snapshot()["counts"]["retried"] == 1


def test_the_last_refusal_passes_unmodified_and_says_that_retrying_is_done():
    with Rig(answering(REFUSED), rates=FAST, retries=1) as rig:
        response = rig.ask("POST", "/v1/messages", (), CHAT)
        assert response.status == 429
        assert response.body == b'{"error": {"message": "slow down"}}'
        assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("0", "false")
        assert len(rig.api.requests) == 2


def test_errors_of_quota_pass_at_once():
    with Rig(answering(QUOTA), rates=FAST) as rig:
        response = rig.ask("POST", "/v1/chat/completions", (), CHAT)
        assert (response.status, len(rig.api.requests)) == (429, 1)
        assert response.headers["x-should-retry"] == "false"
        assert rig.gateway.snapshot()["errors"][0]["message"] == "pay"


def test_without_retries_the_client_is_their_owner():
    with Rig(answering(REFUSED), rates=FAST, retries=0) as rig:
        response = rig.ask("POST", "/v1/chat/completions", (), CHAT)
        assert (response.status, len(rig.api.requests)) == (429, 1)
        assert "x-should-retry" not in response.headers


def test_a_retry_of_an_sdk_is_sent_once():
    with Rig(answering(DOWN), rates=FAST) as rig:
        rig.ask("POST", "/v1/chat/completions", ["x-stainless-retry-count: 1"], CHAT)
        assert len(rig.api.requests) == 1


def test_an_api_that_cannot_be_reached_is_a_502_in_the_dialect():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Rig(upstreams=(upstream("", f"http://127.0.0.1:{port}"),), retries=0) as rig:
        response = rig.ask("POST", "/v1/messages", (), CHAT)
        assert (response.status, response.json()["type"]) == (502, "error")
        assert response.headers["x-headgate"] == "unreachable"


# -- who is who


def order_of(busy, *sent):
    """The order in which calls get through that were sent in this order; each is (path, headers)."""
    connections = []
    for number, (path, headers) in enumerate(sent, 1):
        connections.append(busy.open("POST", path, headers, CHAT))
        busy.waits(number)
    busy.release()
    eventually(lambda: len(busy.api.requests) == 1 + len(sent), "all are sent")
    for connection in connections:
        connection.close()
    return [request.target for request in busy.api.requests[1:]]


@pytest.mark.parametrize(
    ("person", "agent"),
    [
        (["x-claude-code-session-id: s"], ["x-claude-code-agent-id: a"]),
        (["session-id: s", "thread-id: s"], ["thread-id: a", "x-codex-parent-thread-id: s"]),
    ],
    ids=["Claude Code", "Codex"],
)
def test_a_subagent_stands_behind_the_person_at_the_keyboard(busy, person, agent):
    agent = [person[0], *agent]
    assert order_of(busy, ("/agent", agent), ("/agent", agent), ("/person", person)) == [
        "/person",
        "/agent",
        "/agent",
    ]


def test_a_priority_that_is_given_counts(busy):
    sent = [("/low", ["x-headgate-priority: -5"]), ("/none", []), ("/high", ["x-headgate-priority: 5"])]
    assert order_of(busy, *sent) == ["/high", "/none", "/low"]


def test_tenants_take_turns(busy):
    ann, bob = ["x-headgate-tenant: ann"], ["x-headgate-tenant: bob"]
    sent = [("/ann", ann), ("/ann", ann), ("/ann", ann), ("/bob", bob)]
    assert order_of(busy, *sent).index("/bob") <= 1


def test_each_session_and_each_subagent_is_a_tenant_of_its_own(busy):
    sent = [
        ["x-claude-code-session-id: c"],
        ["x-claude-code-session-id: c", "x-claude-code-agent-id: c1"],
        ["session-id: x", "thread-id: x"],
        ["session-id: x", "thread-id: x1", "x-codex-parent-thread-id: x"],
        ["session_id: old"],
    ]
    connections = [busy.open("POST", "/v1/messages", fields, CHAT) for fields in sent]
    busy.waits(5)
    rows = busy.gateway.snapshot()["gates"][0]["tenants"]
    assert {row["tenant"] for row in rows} == {"c", "c1", "x", "x1", "old"}
    for connection in connections:
        connection.close()


def test_the_snapshot_names_the_tenants_that_wait_and_the_rule(busy):
    for tenant in ("ann", "ann", "bob"):
        busy.open("POST", "/v1/messages", [f"x-headgate-tenant: {tenant}"], CHAT).detach()
    busy.waits(3)
    gate = busy.gateway.snapshot()["gates"][0]
    assert {row["tenant"]: row["waiting"] for row in gate["tenants"]} == {"ann": 2, "bob": 1}
    assert gate["binding"] == "concurrency"
    assert gate["waiting"] == 3


def test_the_name_of_a_token_is_the_tenant_whatever_a_header_says():
    tokens = (Token("token-of-ann", "ann"), Token("token-of-bob", "bob"))
    with Busy(tokens=tokens, first=["x-headgate-token: token-of-ann"]) as busy:
        fields = ["x-headgate-token: token-of-bob", "x-headgate-tenant: ann"]
        connection = busy.open("POST", "/v1/x", fields, CHAT)
        busy.waits(1)
        assert [row["tenant"] for row in busy.gateway.snapshot()["gates"][0]["tenants"]] == ["bob"]
        busy.release()
        assert read_response(connection).status == 200
        assert "x-headgate-token" not in busy.last.headers
        connection.close()


# -- gates


def test_each_key_has_a_gate_of_its_own_and_none_is_named_by_its_key():
    with Rig(rates=FAST) as rig:
        for key in ("sk-1", "sk-1", "sk-2"):
            rig.ask("POST", "/v1/x", [f"Authorization: Bearer {key}"], CHAT)
        rig.ask("POST", "/v1/x", ["x-api-key: sk-2"], CHAT)
        rig.ask("POST", "/v1/x", (), CHAT)
        keys = sorted(str(gate.key) for gate in rig.gateway.gates())
    host = f"127.0.0.1:{rig.api.port}"
    assert len(keys) == 3
    assert keys[0] == host
    assert all(key.startswith(f"{host} key ") for key in keys[1:])
    assert not any("sk-" in key for key in keys)


def test_the_key_in_the_environment_has_the_gate_that_headgate_run_shares(tmp_path):
    store = f"sqlite:///{tmp_path}/limits.db"
    with Rig() as api:
        given = Settings(upstreams=(Upstream(name="", url=api.api.url, key_env="THE_KEY"),))
        behind = with_environment(given, {"THE_KEY": "sk-own"}).upstreams
        with Rig(upstreams=behind, store=store, rates=["50/s burst 5"]) as rig:
            assert rig.ask("GET", "/v1/models", ["Authorization: Bearer sk-own"]).status == 200
            assert [gate.key for gate in rig.gateway.gates()] == [f"127.0.0.1:{api.api.port}"]
        pools = json.loads(headgate("watch", store, "--once", "--json").stdout)["pools"]
        assert list(pools) == [f"127.0.0.1:{api.api.port}"]


def test_limits_of_a_pool_that_the_settings_leave_open_stay_as_they_are(tmp_path):
    store = f"sqlite:///{tmp_path}/limits.db"
    with Rig() as api:
        key = f"127.0.0.1:{api.api.port}"
        with Dispatch(key, rates=["50/s burst 5"], concurrency=7, store=store):
            behind = (upstream("", api.api.url),)
            with Rig(upstreams=behind, store=store, rates=["50/s burst 5"]) as rig:
                rig.ask("GET", "/v1/models")
                assert limits_in(store, key).places == 7


# -- ending


def test_draining_refuses_those_that_wait_and_lets_the_others_end(busy):
    waiting = busy.open("POST", "/v1/messages", (), CHAT)
    busy.waits(1)
    draining = threading.Thread(target=lambda: busy.loop.run(busy.gateway.drain()))
    draining.start()
    refused = read_response(waiting)
    assert refused.status == 503
    assert refused.headers["x-should-retry"] == "true"
    assert "being stopped; send the call again" in refused.json()["error"]["message"]
    assert draining.is_alive(), "a call is still running"
    busy.release()
    draining.join(10)
    assert not draining.is_alive()
    assert read_response(busy.blocker).status == 200
    waiting.close()


def test_a_day_of_holds_leaves_nothing_behind(monkeypatch):
    """As many holds and signs of life as 24 hours of waiting have: 360 holds of 240 s, 24 signs in each."""
    monkeypatch.setattr(hold, "_SHORTEST", 0.002)
    with Busy(patience=0.002) as busy:

        def wave(count):
            opened = [busy.open("POST", "/v1/messages", (), STREAM) for _ in range(count)]
            busy.waits(count)
            eventually(lambda: all(signs(one) for one in opened), "each was kept")
            for connection in opened:
                connection.close()
            busy.waits(0)

        def signs(connection):
            return connection.recv(65_536).count(b"ping") >= 0

        tracemalloc.start()  # before the first wave: what takes the place of its memory is no growth
        try:
            wave(40)
            eventually(lambda: tasks(busy) <= 4, "tasks have ended")
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(8):
                wave(40)
            eventually(lambda: tasks(busy) <= 4, "tasks have ended")
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 200_000
        assert busy.gateway.gates()[0].waiting == 0


def tasks(rig):
    async def count():
        return len(asyncio.all_tasks())

    return rig.loop.run(count())
