"""For the Anthropic SDK: a middleware that waits at a gate before each of its attempts.

    Anthropic(middleware=[middleware(dispatch)])
    AsyncAnthropic(middleware=[middleware_async(dispatch)])

Rules of this room: nothing of the SDK is imported. A middleware runs inside the SDK's own retries, and what
it raises reaches the caller as it is, while the SDK wraps and retries what a transport raises.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .exchange import Exchange
from .httpx import AsyncHttpxAnswer, HttpxAnswer, library_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ..backoff import Backoff
    from ..retries.budget import RetryBudget
    from ..typing import Seconds
    from .exchange import Attempt, Estimate, Gates


def middleware(
    gate: Gates = None,
    *,
    retries: int = 0,
    backoff: Backoff | None = None,
    retry_budget: RetryBudget | None = None,
    estimate: Estimate | None = None,
    lease: Seconds = 600.0,
    timeout: Seconds | None = None,
) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """A middleware that sends no faster than the gate admits.

    The arguments are those of `headgate.http.httpx.Transport`. It is not told the `base_url` of the client:
    for one of your own, give it a gate.
    """
    exchange = Exchange(
        gate,
        retries=retries,
        backoff=backoff,
        retry_budget=retry_budget,
        estimate=estimate,
        lease=lease,
        timeout=timeout,
    )

    def gated(request: Any, call_next: Callable[[Any], Any]) -> Any:
        results: list[Any] = []

        def send() -> Any:
            results.append(call_next(request))
            return _answer(results[-1], HttpxAnswer)

        exchange.run(request.method.upper(), _url_of(request), _headers_of(request), _body_of(request), send)
        return results[-1]

    return gated


def middleware_async(
    gate: Gates = None,
    *,
    retries: int = 0,
    backoff: Backoff | None = None,
    retry_budget: RetryBudget | None = None,
    estimate: Estimate | None = None,
    lease: Seconds = 600.0,
    timeout: Seconds | None = None,
) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:
    """The same for AsyncAnthropic."""
    exchange = Exchange(
        gate,
        retries=retries,
        backoff=backoff,
        retry_budget=retry_budget,
        estimate=estimate,
        lease=lease,
        timeout=timeout,
    )

    async def gated(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        results: list[Any] = []

        async def send() -> Any:
            results.append(await call_next(request))
            return _answer(results[-1], AsyncHttpxAnswer)

        await exchange.run_async(
            request.method.upper(), _url_of(request), _headers_of(request), _body_of(request), send
        )
        return results[-1]

    return gated


def _answer(result: Any, kind: Any) -> Any:
    response = getattr(result, "http_response", None)
    return _Value() if response is None else kind(library_of(response), response)


class _Value:
    """What another middleware answered by itself, without asking anybody."""

    status = 200
    headers: Mapping[str, str] = {}

    def read_error(self) -> None:
        raise NotImplementedError  # it is none

    def watch(self, attempt: Attempt) -> None:
        attempt.end()

    def forbid_retries(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError


def _url_of(request: Any) -> str:
    url = str(request.url)
    if urlsplit(url).netloc:
        return url
    base = os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
    return base.rstrip("/") + "/" + url.lstrip("/")


def _headers_of(request: Any) -> dict[str, str]:
    headers = {
        str(name).lower(): value for name, value in dict(request.headers).items() if isinstance(value, str)
    }
    headers["x-stainless-retry-count"] = str(request.retries_taken)
    return headers


def _body_of(request: Any) -> bytes | None:
    """What will be sent, near enough: the SDK writes it out anew for every attempt."""
    if request.json is None:
        return None
    try:
        return json.dumps(request.json, default=str, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        return None
