"""What each kind of client tolerates while it waits, as a table."""

import pytest

from headgate.gateway.dialects import dialect_of, error_document, error_event
from headgate.gateway.hold import COMMENT, INTERIM, PING, hold_for

SDK_PYTHON, SDK_JS = {"x-stainless-lang": "python"}, {"x-stainless-lang": "js"}
TABLE = [
    ("openai", True, {}, "events", COMMENT),
    ("responses", True, {"user-agent": "codex_cli_rs/1"}, "events", COMMENT),
    ("anthropic", True, SDK_JS, "events", PING),
    ("gemini", True, {}, "silent", b""),
    ("gemini", True, {"user-agent": "google-genai-sdk/3.1 gl-python/3.11"}, "interim", INTERIM),
    ("other", True, {}, "silent", b""),
    ("openai", False, SDK_PYTHON, "interim", INTERIM),
    ("anthropic", False, SDK_JS, "interim", INTERIM),
    ("openai", False, {"user-agent": "python-httpx/0.28"}, "interim", INTERIM),
    ("openai", False, {"user-agent": "python-httpx2/2.16"}, "interim", INTERIM),
    ("openai", False, {"user-agent": "Python/3.11 aiohttp/3.14"}, "interim", INTERIM),
    ("openai", False, {"user-agent": "node"}, "interim", INTERIM),
    ("openai", False, {"user-agent": "python-requests/2.34"}, "silent", b""),
    ("openai", False, {"user-agent": "python-urllib3/2"}, "silent", b""),
    ("openai", False, {"user-agent": "Python-urllib/3.11"}, "silent", b""),
    ("openai", False, {"user-agent": "Go-http-client/1.1"}, "silent", b""),
    ("openai", False, {"user-agent": "curl/8"}, "silent", b""),
    ("openai", False, {}, "silent", b""),
]


@pytest.mark.parametrize(("dialect", "streams", "headers", "kind", "sign"), TABLE)
def test_a_client_is_held_by_what_it_tolerates(dialect, streams, headers, kind, sign):
    held = hold_for(dialect, headers, streams=streams, http_1_1=True, patience=15)
    assert (held.kind, held.sign) == (kind, sign)
    assert held.every == {"silent": 0.0, "events": 10.0, "interim": 15.0}[kind]
    assert hold_for(dialect, headers, streams=streams, http_1_1=False, patience=15).kind == "silent"


def test_a_short_patience_is_also_the_time_between_two_signs_of_life():
    assert hold_for("openai", {}, streams=True, http_1_1=True, patience=2).every == 2
    assert hold_for("openai", {}, streams=True, http_1_1=True, patience=0).every > 0


@pytest.mark.parametrize(
    ("path", "host", "dialect"),
    [
        ("/v1/chat/completions", "", "openai"),
        ("/openai/v1/chat/completions", "api.groq.com", "openai"),
        ("/v1beta/openai/chat/completions", "generativelanguage.googleapis.com", "openai"),
        ("/v1/responses", "", "responses"),
        ("/v1/messages", "", "anthropic"),
        ("/v1/messages/count_tokens", "", "anthropic"),
        ("/v1/models", "api.anthropic.com", "anthropic"),
        ("/v1beta/models/m:generateContent", "", "gemini"),
        ("/v1/models", "", "openai"),
        ("/v2/chat", "api.cohere.com", "other"),
    ],
)
def test_the_dialect_of_a_request(path, host, dialect):
    assert dialect_of(path, host) == dialect


def test_errors_in_the_words_of_each_api():
    assert error_document("anthropic", 503, "m")["error"] == {"type": "overloaded_error", "message": "m"}
    assert error_document("openai", 503, "m")["error"]["type"] == "server_error"
    gemini = error_document("gemini", 503, "m", 1.5)["error"]
    assert (gemini["code"], gemini["status"], gemini["details"][0]["retryDelay"]) == (
        503,
        "UNAVAILABLE",
        "1.500s",
    )


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "gemini", "other"])
@pytest.mark.parametrize(
    "document", [{"error": {"message": "m"}}, "plain text", ["list"], None, {"other": 1}]
)
def test_an_error_event_is_one_whole_event_whatever_the_error_was(dialect, document):
    event = error_event(dialect, document)
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    assert b"data: {" in event
