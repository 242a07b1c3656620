"""Refusals of a gate as responses, in the words of the API that was not asked.

The SDKs of OpenAI and Anthropic, and others that are generated like them, wrap every exception of a transport
in an APIConnectionError and retry it. A response with status 429 they turn into their RateLimitError, which
shows the sentence of the gate, and the header `x-should-retry` keeps them from retrying. A model without a
price is their BadRequestError, by status 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ..errors import Refused, UnknownName
from ..retries.classify import REFUSAL


def wraps_exceptions(headers: Mapping[str, str]) -> bool:
    """Whether an SDK sends the request that would hide an exception of the transport."""
    return "x-stainless-lang" in headers


def response_to(refusal: Refused | UnknownName, library: Any, request: Any) -> Any:
    """A response of httpx or httpx2 that says to the sender of a request what the refusal says."""
    headers = {"x-should-retry": "false"}
    seconds = refusal.retry_after if isinstance(refusal, Refused) else None
    if seconds is not None:
        headers |= {"retry-after": str(ceil(seconds)), "retry-after-ms": str(ceil(seconds * 1000))}
    return library.Response(
        429 if isinstance(refusal, Refused) else 400,
        headers=headers,
        json=error_body(refusal, str(request.url.host), request.url.path, request.headers),
        extensions={REFUSAL: refusal},
        request=request,
    )


def error_body(
    refusal: Refused | UnknownName, host: str, path: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    """The error body, in the form of the API."""
    message = str(refusal)
    if isinstance(refusal, UnknownName):
        return {"error": {"type": "invalid_request_error", "message": message, "code": "no_price"}}
    if "anthropic-version" in headers or host.endswith("anthropic.com") or path.endswith("/v1/messages"):
        return {"type": "error", "error": {"type": "rate_limit_error", "message": message}}
    # Google writes a method of its own behind a colon. It also has an API in the form of OpenAI's.
    if ":" in path.rpartition("/")[2] or (host.endswith("googleapis.com") and "/openai/" not in path):
        details = []
        if refusal.retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            details.append({"@type": kind, "retryDelay": f"{refusal.retry_after:.3f}s"})
        error = {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}
        return {"error": error}
    return {
        "error": {
            "message": message,
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }
