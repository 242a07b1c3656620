"""For the Anthropic SDK: a middleware that waits at a gate before each of its attempts.

    Anthropic(middleware=[middleware(dispatch)])
    AsyncAnthropic(middleware=[middleware_async(dispatch)])

Nothing of the SDK is imported. A middleware runs inside the SDK's own retries, and its exceptions reach the
caller unchanged, while the SDK wraps and retries the exceptions of a transport.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack
from urllib.parse import urlsplit

from ..errors import InvalidConfig
from .exchange import GatedSender, SendOptions
from .gates import Gates
from .httpx import AsyncHttpxAnswer, HttpxAnswer, library_of
from .response import Answer, OpenResponse


def middleware(
    gate: Gates = None, **options: Unpack[SendOptions]
) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """A middleware for Anthropic that sends no faster than the gate admits.

    `gate` is that of `headgate.http.httpx.Transport`. The options are `headgate.http.exchange.SendOptions`.
    The SDK does not tell a middleware the `base_url` of the client: if you set one, give a gate.

    >>> from anthropic import Anthropic
    >>> claude = Anthropic(api_key="any", middleware=[middleware()])
    """
    sender = _sender(gate, **options)

    def gated(request: Any, call_next: Callable[[Any], Any]) -> Any:
        results: list[Any] = []

        def send() -> Any:
            results.append(call_next(request))
            return _answer(results[-1], HttpxAnswer)

        sender.run(*_parts_of(request), send)
        return results[-1]

    return gated


def middleware_async(
    gate: Gates = None, **options: Unpack[SendOptions]
) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:
    """A middleware for AsyncAnthropic; `gate` and the options are those of `middleware`.

    >>> from anthropic import AsyncAnthropic
    >>> claude = AsyncAnthropic(api_key="any", middleware=[middleware_async()])
    """
    sender = _sender(gate, **options)

    async def gated(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        results: list[Any] = []

        async def send() -> Any:
            results.append(await call_next(request))
            return _answer(results[-1], AsyncHttpxAnswer)

        await sender.run_async(*_parts_of(request), send)
        return results[-1]

    return gated


def _sender(gate: Gates, **options: Unpack[SendOptions]) -> GatedSender:
    if options.get("choose") is not None:
        raise InvalidConfig(
            "a middleware cannot choose where a request goes; give the SDK a client: "
            "Anthropic(http_client=headgate.http.httpx.client(gate, choose=...))"
        )
    return GatedSender(gate, **options)


def _answer(result: Any, kind: Any) -> Any:
    response = getattr(result, "http_response", None)
    return _LocalResult(None) if response is None else kind(library_of(response), response)


class _LocalResult(Answer):
    """A result that another middleware produced without sending a request."""

    status = 200
    headers: Mapping[str, str] = {}

    def watch(self, reading: OpenResponse) -> None:
        reading.end()


def _parts_of(request: Any) -> tuple[str, str, dict[str, str], bytes | None]:
    """Its method, URL, headers and body, as GatedSender takes them."""
    url = str(request.url)
    if not urlsplit(url).netloc:
        base = os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
        url = base.rstrip("/") + "/" + url.lstrip("/")
    given = dict(request.headers).items()
    headers = {str(name).lower(): value for name, value in given if isinstance(value, str)}
    headers["x-stainless-retry-count"] = str(request.retries_taken)
    return request.method.upper(), url, headers, _body_of(request)


def _body_of(request: Any) -> bytes | None:
    """The body that will be sent, approximately: the SDK encodes it anew for every attempt."""
    if request.json is None:
        return None
    try:
        return json.dumps(request.json, default=str, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        return None
