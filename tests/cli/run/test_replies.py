"""What a reply, or an exception instead of one, means for its job."""

import json
import ssl

import pytest

from headgate.cli.run.replies import Trouble, no_reply, read_reply, said_by


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (200, {"content-type": "application/json"}, b'{"a": 1}', None),
        (200, {"content-type": "application/json"}, b'{"a": 1', "failed"),
        (200, {"content-type": "text/plain"}, b"fine", None),
        (200, {}, b'{"error": {"code": 429, "message": "slow down"}}', "refused"),
        (200, {}, b'{"error": null, "output": []}', None),
        (201, {}, b"{}", None),
        (308, {"location": "https://elsewhere"}, b"", "rejected"),
        (400, {}, b'{"error": {"message": "no"}}', "rejected"),
        (401, {}, b"", "key"),
        (403, {}, b'{"error": {"message": "no"}}', "forbidden"),
        (200, {"content-type": "text/html"}, b"<p>sign in", "failed"),
        (200, {"content-type": "text/plain"}, b" <!DOCTYPE html><html>sign in</html>", "failed"),
        (200, {"content-type": "application/json"}, b'{"a": NaN}', "failed"),
        (200, {"content-type": "application/json"}, b'{"a": -Infinity}', "failed"),
        (200, {"content-type": "application/json"}, b'{"a": 1e999}', None),
        (204, {}, b"", None),
        (200, {"content-length": "0"}, b"", None),
        (402, {}, b"", "quota"),
        (404, {}, b"<html>", "rejected"),
        (408, {}, b"", "failed"),
        (413, {}, b"", "rejected"),
        (429, {}, b'{"error": {"message": "Request too large", "code": "rate_limit_exceeded"}}', "rejected"),
        (200, {"content-type": "application/json"}, b"[1, 2]", None),
        (200, {"content-type": "application/json"}, b'"error"', None),
        (200, {}, b'{"error": {"message": "a warning of a model"}}', None),
        (429, {"retry-after": "3"}, b"", "refused"),
        (429, {}, b'{"error": {"code": "insufficient_quota"}}', "quota"),
        (500, {}, b"", "failed"),
        (529, {}, b"", "refused"),
    ],
)
def test_the_kind_of_trouble_in_a_reply(status, headers, body, kind):
    reply = read_reply(status, headers, body)
    assert (reply.trouble and reply.trouble.kind) == kind
    if kind is None:
        json.loads(reply.body, parse_constant=pytest.fail)


@pytest.mark.parametrize(("kind", "body"), [("text/plain", b"fine"), ("application/json", b""), ("", b"")])
def test_a_model_answers_with_json(kind, body):
    assert read_reply(200, {"content-type": kind}, body, generates=True).trouble.kind == "failed"


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\xff", b"\0", b""])
def test_a_body_in_any_encoding_is_kept_as_utf8(body):
    json.loads(read_reply(200, {"content-type": "text/plain"}, body).body.decode("utf-8"))


def test_the_kind_of_trouble_in_an_exception():
    assert no_reply(TimeoutError(), 5).trouble.message == "no answer within 5 s"
    assert no_reply(ConnectionRefusedError("refused"), 5).trouble.kind == "unreachable"
    assert no_reply(ConnectionResetError("reset"), 5).trouble.kind == "failed"
    untrusted = no_reply(ssl.SSLCertVerificationError(1, "certificate verify failed"), 5).trouble
    assert untrusted == Trouble("certificate", "certificate verify failed")
    assert no_reply(OSError(), 5).trouble.message == "the connection broke: OSError"


def test_why_calls_are_held_back_after_a_trouble():
    assert said_by(None) == "told to slow down"
    assert said_by(Trouble("refused", "429: easy")) == "told to slow down (429: easy)"
    assert said_by(Trouble("unreachable", "cannot connect: refused")) == "cannot connect: refused"
