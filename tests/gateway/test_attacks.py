"""Clients and APIs that mean harm: what they try, and what they get."""

import contextlib
import json
import socket

import pytest

from gateway.rig import Rig, read_response, reply
from headgate.gateway import app, body
from headgate.gateway.keys import COOKIE, Token, cookie_for
from headgate.gateway.page import live
from headgate.gateway.upstreams import Upstream, upstream
from patience import eventually

KEY = "sk-the-real-key"
WORD = "token-of-the-tests"
BEARER = f"Authorization: Bearer {WORD}"


@contextlib.contextmanager
def holding_a_key(path="", **settings):
    """A gateway that injects its key, in front of a recording API that is reached below a path."""
    with Rig() as placeholder:
        behind = Upstream(name="", url=placeholder.api.url + path, secret=KEY, header="x-goog-api-key")
        with Rig(upstreams=(behind,), tokens=(Token(WORD, "ann"),), inject=True, **settings) as rig:
            rig.behind = placeholder.api
            yield rig


# -- what an API answers


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTQ/9.9 xx\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
    ids=["no HTTP", "length", "long header", "chunks", "redirect", "nothing"],
)
def test_an_answer_that_cannot_be_read_shows_the_key_neither_to_the_client_nor_in_the_log(answer, caplog):
    caplog.set_level("DEBUG")
    with holding_a_key(retries=1) as rig:
        rig.behind.answer = lambda request: [answer, None]
        with contextlib.suppress(IndexError, ValueError):  # the connection may end with the answer
            response = rig.ask("POST", f"/v1beta/models/m:x?key={WORD}", body=b"{}")
            assert KEY not in json.dumps([response.pairs, response.body.decode("latin-1")])
        assert any(KEY in request.target for request in rig.behind.requests)
        state = rig.ask("GET", "/.headgate/state", [BEARER])
        assert KEY.encode() not in state.body
    assert KEY not in caplog.text
    assert WORD not in caplog.text


def test_metrics_and_state_name_a_key_by_its_digest_only():
    with Rig() as rig:
        rig.api.answer = lambda request: reply(b'{"error": {"message": "no"}}', "401 Unauthorized")
        rig.ask("POST", "/v1/x", [f"Authorization: Bearer {KEY}"], b"{}")
        for page in ("metrics", "state"):
            shown = rig.ask("GET", f"/.headgate/{page}").body
            assert b"127.0.0.1" in shown
            assert KEY.encode() not in shown


@pytest.mark.parametrize(
    ("status", "attempts"), [("407 Proxy Authentication Required", 1), ("503 Service Unavailable", 2)]
)
def test_a_proxy_that_refuses_is_named_and_the_request_counts_as_not_sent(monkeypatch, status, attempts):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Rig() as placeholder:
        proxy = placeholder.api
        proxy.answer = lambda request: [reply(b"", status), None]
        monkeypatch.setenv("https_proxy", proxy.url.replace("://", "://user:secret@"))
        behind = upstream("", "https://api.example.invalid")
        with Rig(upstreams=(behind,), rates="1/hour", retries=1) as rig:
            for _ in range(2):  # the only call of the hour is not used up
                response = rig.ask("POST", f"/v1/x?key={KEY}", body=b"{}")
                assert (response.status, response.headers["x-headgate"]) == (502, "unreachable")
                message = response.json()["error"]["message"]
                assert message.endswith(f"the proxy refused to connect: {status}"), message
        assert [request.method for request in proxy.requests] == ["CONNECT"] * 2 * attempts


# -- paths


@pytest.mark.parametrize(
    "target",
    [
        "/../secret",
        "/v1/../../secret",
        "/v1/..",
        "/v1/%2e%2e/secret",
        "/v1/.%2E/secret?a=b",
        "/v1/..%2fsecret",
        "/v1/..%5csecret",
        "/v1/..\\secret",
        "/v1/%252e%252e/secret",
        "/v1/%25252e%25252e/secret",
        "/v1/..;/secret",
        "/v1/..;a=b/secret",
        "/v1/..%3b/secret",
        "/v1/..%253b/secret",
        "/v1/..%00/secret",
        "/v1/..%00a",
        "/v1/..%09/secret",
        "/v1/.%0a./secret",
        "/v1/%7f../secret",
        "/v1/..%20/secret",
        "/v1/..%3fa/secret",
        "/v1/" + "%" + "25" * 500 + "2e./secret",
    ],
)
def test_a_path_cannot_leave_an_api_that_is_a_part_of_its_host(target):
    with holding_a_key("/team-a/v1") as rig:
        response = rig.ask("GET", target, [BEARER])
        assert (response.status, rig.behind.requests) == (400, [])
        for inside in ("/v1/files/a..b?x=../y", "/v1/files/...;/a%2520b%25", "/v1/..a;b/100%25"):
            assert rig.ask("GET", inside, [BEARER]).status == 200
            assert rig.behind.requests[-1].target == f"/team-a{inside}"


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:PORT/.headgate/health", "//127.0.0.1", "*", "evil.example:80"]
)
def test_a_target_that_is_no_path_goes_nowhere_else(target):
    with Rig() as rig:
        response = rig.raw(
            f"GET {target.replace('PORT', str(rig.port))} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        assert response.status == 400 or rig.last.target == target


# -- requests that two servers would read differently


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: +4",
        b"Content-Length: 4, 4",
        b"Content-Length: 4\r\nContent-Length: 4",
        b"Content-Length: 4\r\ncontent-length: 0",
        b"Content-Length : 4",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity, chunked\r\nContent-Length: 4",
        b"Transfer-Encoding:\x0bchunked",
        b"X-A: a\r\n folded: b\r\nContent-Length: 4",
        b"X-A: a\x00b\r\nContent-Length: 4",
        b"X-A: a\nX-B: b\r\nContent-Length: 4",
        b"\xff\xfe: a\r\nContent-Length: 4",
    ],
)
def test_a_head_that_servers_read_differently_is_refused(head):
    with Rig() as rig, socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        connection.sendall(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\nabcd")
        assert read_response(connection).status in (400, 501)
        assert rig.api.requests == []


@pytest.mark.parametrize(
    "body", [b"4 ;x\r\nabcd\r\n0\r\n\r\n", b"0x4\r\nabcd\r\n0\r\n\r\n", b"4\nabcd\n0\n\n", b"-1\r\n\r\n"]
)
def test_chunks_that_servers_read_differently_are_not_sent_on(body):
    with Rig() as rig, socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        connection.sendall(
            b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body
        )
        with contextlib.suppress(IndexError, ConnectionError):  # it may hang up without an answer
            if read_response(connection).status < 400:
                assert rig.last.body == b"abcd", "it was read and framed anew"
        assert len(rig.api.requests) <= 1


# -- clients that take their time


def test_a_connection_on_which_no_request_comes_is_closed(monkeypatch):
    monkeypatch.setattr(app, "_HEAD_WITHIN", 0.3)
    with Rig() as rig:
        for start in (b"", b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nX-A: "):
            with socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
                connection.sendall(start)
                assert connection.recv(100) == b""


def test_a_body_that_does_not_come_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(body, "_PIECE_WITHIN", 0.2)
    with Rig() as rig, socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        connection.sendall(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        assert read_response(connection).status == 408
        assert rig.api.requests == []
        assert rig.gateway.gates() == []


@pytest.mark.parametrize("retries", [0, 2])
def test_a_body_too_long_to_keep_that_stops_coming_frees_its_place_and_is_told_so(monkeypatch, retries):
    monkeypatch.setattr(body, "MOST_KEPT", 10)
    monkeypatch.setattr(body, "_PIECE_WITHIN", 0.2)
    head = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n"
    with Rig(concurrency=1, retries=retries) as rig:
        with socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
            connection.sendall(head + b"a" * 500)
            response = read_response(connection)
        assert (response.status, response.headers["x-headgate"]) == (408, "refused")
        assert "the body of the request did not come" in response.body.decode()
        assert rig.gateway.gates()[0].snapshot().in_flight == 0
        assert rig.api.requests == []
        assert rig.ask("POST", "/v1/x", body=b"{}").status == 200


def test_browsers_beyond_a_number_get_no_events_until_another_leaves(monkeypatch):
    monkeypatch.setattr(live, "_MOST_WATCHERS", 3)
    with Rig() as rig:
        page = rig.gateway.pages["events"].__self__
        head = f"GET /.headgate/events HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\n\r\n".encode()
        opened = [socket.create_connection(("127.0.0.1", rig.port), 5) for _ in range(3)]
        for connection in opened:
            connection.sendall(head)
        eventually(lambda: page.watchers == 3, "three browsers are shown the page")
        refused = rig.raw(head)
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        opened[0].close()
        eventually(lambda: page.watchers == 2, "one has left")
        opened[0] = socket.create_connection(("127.0.0.1", rig.port), 5)
        opened[0].sendall(head)
        assert opened[0].recv(15) == b"HTTP/1.1 200 OK"
        for connection in opened:
            connection.close()


# -- names and words


def test_the_name_of_a_tenant_is_text_wherever_it_is_shown(caplog):
    caplog.set_level("DEBUG", "headgate")
    name = '"}, "x": <script>alert(1)</script> %0d%0aSet-Cookie: a=1 \xe9'
    with Rig(rates="1/s burst 1") as rig:
        rig.ask("GET", "/v1/x")
        waiting = socket.create_connection(("127.0.0.1", rig.port), 5)
        fields = f"Host: localhost\r\nx-headgate-tenant: {name}\r\nContent-Length: 0"
        waiting.sendall(f"POST /v1/x HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        eventually(lambda: rig.gateway.waiting, "it waits")
        gate = rig.ask("GET", "/.headgate/state").json()["gates"][0]
        assert [row["tenant"] for row in gate["tenants"]] == [name]
        assert b"script" not in rig.ask("GET", "/.headgate/metrics").body
        response = read_response(waiting)
        assert "set-cookie" not in response.headers
        waiting.close()
    assert "script" not in caplog.text


@pytest.mark.parametrize(
    "origin", ["null", "http://localhost:1", "https://127.0.0.1.evil.example", "file://"]
)
def test_an_origin_that_is_not_the_gateway_is_refused(origin):
    with Rig() as rig:
        assert rig.ask("POST", "/v1/x", [f"Origin: {origin}"], b"{}").status == 403
        assert rig.api.requests == []


def test_the_cookie_of_the_page_lets_no_call_pass():
    with holding_a_key() as rig:
        cookie = f"Cookie: {COOKIE}={cookie_for(WORD)}"
        assert rig.ask("GET", "/.headgate/state", [cookie]).status == 200
        assert rig.ask("POST", "/v1/x", [cookie], b"{}").status == 401
        assert rig.behind.requests == []


def test_the_token_in_the_address_of_the_page_is_not_logged_and_not_passed_on(caplog):
    caplog.set_level("DEBUG")
    with holding_a_key() as rig:
        response = rig.ask("GET", f"/.headgate/ui?token={WORD}")
        assert (response.status, response.headers["location"]) == (303, "/.headgate/ui")
        assert WORD not in json.dumps(response.pairs)
        for part in ("HttpOnly", "SameSite=Strict", "Path=/.headgate/"):
            assert part in response.headers["set-cookie"]
        page = rig.ask("GET", "/.headgate/ui", [BEARER])
        assert page.headers["referrer-policy"] == "no-referrer"
    assert WORD not in caplog.text
