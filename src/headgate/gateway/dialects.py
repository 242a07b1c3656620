"""Pure. How APIs say things: which one a request speaks, and errors in its words.

A client that gets an error of the gateway reads it with the code it has for errors of its API.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

Dialect: TypeAlias = Literal["openai", "responses", "anthropic", "gemini", "other"]

# What the field `type` of an error is called for each status that the gateway gives by itself.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
_GOOGLE = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    503: "UNAVAILABLE",
}


def dialect_of(path: str, host: str = "") -> Dialect:
    """The dialect of a request by its path, without the query, and the host that it goes to.

    >>> dialect_of("/v1/chat/completions"), dialect_of("/v1/messages"), dialect_of("/v2/chat")
    ('openai', 'anthropic', 'other')
    """
    last = path.rpartition("/")[2]
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/completions") or "/openai/" in path:
        return "openai"
    if "/messages" in path or host.endswith("anthropic.com"):
        return "anthropic"
    if ":" in last or host.endswith("googleapis.com"):
        return "gemini"
    if "/responses/" in path or path.startswith("/v1/") or host.endswith("openai.com"):
        return "openai"
    return "other"


def error_document(
    dialect: Dialect, status: int, message: str, retry_after: float | None = None
) -> dict[str, Any]:
    """An error of the gateway, as the body of a response in that dialect."""
    if dialect == "anthropic":
        kind = _TYPES.get(status, "overloaded_error" if status == 503 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    if dialect == "gemini":
        details = []
        if retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            details.append({"@type": kind, "retryDelay": f"{retry_after:.3f}s"})
        word = _GOOGLE.get(status, "INTERNAL")
        return {"error": {"code": status, "message": message, "status": word, "details": details}}
    kind = _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": f"headgate_{status}"}}


def error_event(dialect: Dialect, document: Any) -> bytes:
    """An error in a stream of server-sent events that has begun; `document` is the body of the error."""
    if dialect == "responses":
        error = document.get("error") if isinstance(document, dict) else None
        if not isinstance(error, dict):
            error = {"message": str(document)}
        code = error.get("code") or error.get("type") or "server_error"
        message = error.get("message") or "the API answered with an error"
        event = {"type": "error", "code": code, "message": message, "param": error.get("param")}
        # The documented fields, and the object at which the SDKs raise.
        event |= {"sequence_number": 0, "error": {**error, "code": code, "message": message}}
        return _event("error", event)
    if dialect == "anthropic":
        if not isinstance(document, dict) or document.get("type") != "error":
            document = error_document("anthropic", 500, _text_of(document))
        return _event("error", document)
    if not isinstance(document, dict) or "error" not in document:
        document = error_document("openai", 500, _text_of(document))
    return _event("", document)


def _event(name: str, document: Any) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def _text_of(document: Any) -> str:
    return document if isinstance(document, str) else json.dumps(document)
