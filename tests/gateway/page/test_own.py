"""The live page of a gateway over HTTP: its policy, its token, its events, and what it may change."""

import contextlib
import json
import re
import socket

import pytest

from gateway.rig import Rig
from headgate.gateway.keys import COOKIE, Keys, Token
from patience import eventually

WORD = "4f1c0a9d7e55"


@pytest.fixture(scope="module")
def rig():
    with Rig(rates="60/minute", allow_control=True) as rig:
        rig.ask("POST", "/v1/chat/completions", body=b"{}")
        yield rig


@pytest.fixture(scope="module")
def locked():
    with Rig(keys=Keys((Token(WORD, "ann"),), required=True)) as rig:
        yield rig


def first_event(rig, headers=()):
    """The document in the first event of the page."""
    with socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        lines = ["GET /.headgate/events HTTP/1.1", f"Host: 127.0.0.1:{rig.port}", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode())
        file = connection.makefile("rb")
        for line in file:
            if line.startswith(b"data: "):
                return json.loads(line[6:])
    return None


def order(rig, headers=("Content-Type: application/json",), **body):
    return rig.ask("POST", "/.headgate/control", headers, json.dumps(body).encode())


def test_the_page_needs_nothing_from_elsewhere_and_its_policy_allows_nothing_else(rig):
    response = rig.ask("GET", "/.headgate/ui")
    policy = response.headers["content-security-policy"]
    assert response.status == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(rb'(src|href)="(?!data:)', response.body)
    assert b"innerHTML" not in response.body


def test_events_carry_the_whole_document(rig):
    document = first_event(rig)
    assert document["title"] == f"headgate {rig.url}"
    assert document["sentence"]
    assert [len(line["points"]) for line in document["lines"]] == [360] * 4
    assert {row["name"] for row in document["limits"]} == {"60 requests/minute", "calls in flight"}
    assert document["control"] is True


def test_a_browser_that_leaves_is_looked_at_no_more(rig):
    assert first_event(rig)
    live = rig.gateway.pages["events"].__self__
    eventually(lambda: live.watchers == 0, "the stream of the browser has ended")


def test_the_page_asks_for_the_token_and_exchanges_it_for_a_cookie(locked):
    assert locked.ask("GET", "/.headgate/ui").status == 401
    assert locked.ask("GET", "/.headgate/ui?token=wrong").status == 401
    response = locked.ask("GET", f"/.headgate/ui?token={WORD}")
    assert (response.status, response.headers["location"]) == (303, "/.headgate/ui")
    cookie = response.headers["set-cookie"]
    assert WORD not in cookie
    assert all(flag in cookie for flag in ("HttpOnly", "SameSite=Strict", "Path=/.headgate/"))
    kept = [f"Cookie: a=b; {cookie.partition(';')[0]}"]
    assert locked.ask("GET", "/.headgate/ui", kept).status == 200
    assert first_event(locked, kept)["state"] == "idle"


def test_the_cookie_of_the_page_lets_no_call_pass(locked):
    cookie = locked.ask("GET", f"/.headgate/ui?token={WORD}").headers["set-cookie"].partition(";")[0]
    assert locked.ask("POST", "/v1/chat/completions", [f"Cookie: {cookie}"], b"{}").status == 401


def test_a_wrong_cookie_opens_nothing(locked):
    for value in ("", "0" * 64, "\xe9"):
        assert locked.ask("GET", "/.headgate/ui", [f"Cookie: {COOKIE}={value}"]).status == 401


def test_a_page_of_another_site_sees_and_changes_nothing(rig):
    foreign = ["Origin: https://evil.example", "Content-Type: application/json"]
    assert rig.ask("GET", "/.headgate/events", foreign[:1]).status == 403
    assert order(rig, foreign, action="clear", gate="x").status == 403


def test_rates_are_set_and_a_window_is_cleared_by_the_page(rig):
    gate = rig.gateway.gates()[0]
    gate.set_backoff(60, reason="slow down")
    assert order(rig, action="clear", gate=str(gate.key)).json() == {
        "done": f"the backoff window of {gate.key} was cleared"
    }
    assert gate.window.remaining == 0
    assert order(rig, action="retune", gate=str(gate.key), rates=["77/minute"]).status == 200
    assert gate.snapshot().rates[0].limit == 77


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"action": "clear", "gate": "other"}, 404, "no gate has that name"),
        ({"action": "close"}, 400, "JSON object"),
        ({"action": "close", "gate": "GATE"}, 400, "clear"),
        ({"action": "retune", "gate": "GATE", "rates": ["fast"]}, 400, "fast"),
        ({"action": "retune", "gate": "GATE"}, 400, "rates"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(rig, body, status, message):
    gate = rig.gateway.gates()[0]
    before = [rate.limit for rate in gate.snapshot().rates]
    response = order(rig, **{name: str(gate.key) if text == "GATE" else text for name, text in body.items()})
    assert response.status == status
    assert message in json.dumps(response.json())
    assert [rate.limit for rate in gate.snapshot().rates] == before


def test_an_order_in_another_form_is_refused(rig):
    assert order(rig, ["Content-Type: text/plain"], action="clear", gate="x").status == 400
    assert rig.ask("GET", "/.headgate/control").status == 400


def test_without_allow_control_nothing_can_be_changed(locked):
    headers = ["Content-Type: application/json", f"X-Headgate-Token: {WORD}"]
    assert order(locked, headers, action="clear", gate="x").status == 403


def test_a_gateway_that_is_stopped_ends_the_events_of_its_page():
    with Rig(drain=5.0) as rig, socket.create_connection(("127.0.0.1", rig.port), 5) as connection:
        connection.sendall(f"GET /.headgate/events HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\n\r\n".encode())
        file = connection.makefile("rb")
        with contextlib.suppress(StopIteration):
            next(line for line in file if line.startswith(b"data: "))
        rig.loop.run(rig.gateway.drain(), timeout=3)
        assert any(line == b"0\r\n" for line in file)  # the last chunk of the stream
