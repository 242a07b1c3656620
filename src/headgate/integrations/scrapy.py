"""For Scrapy: a downloader middleware that lets requests wait at a gate.

DOWNLOADER_MIDDLEWARES = {"headgate.integrations.scrapy.GateMiddleware": 999}
HEADGATE_GATE = lambda request: gate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ..http.call import Call
from ..http.exchange import GatedSender
from ..http.response import Answer, OpenResponse

_CALL = "headgate_call"


class GateMiddleware:
    """A downloader middleware of Scrapy: a request waits before it is downloaded, its response settles it.

    Scrapy makes it. The setting `HEADGATE_GATE` is a function of the request that returns a Dispatch: Scrapy
    copies settings, and a Dispatch cannot be copied. Without it every host has a gate that learns what
    responses say. `HEADGATE_TIMEOUT` is how many seconds a request may wait; then its errback gets a Refused.
    A request waits once for each attempt. It has to be the middleware that is nearest to the downloader.
    """

    def __init__(self, sender: GatedSender) -> None:
        self._sender = sender

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        """As Scrapy makes it."""
        settings = crawler.settings
        timeout = (
            settings.getfloat("HEADGATE_TIMEOUT") if settings.get("HEADGATE_TIMEOUT") is not None else None
        )
        return cls(GatedSender(settings.get("HEADGATE_GATE"), timeout=timeout))

    async def process_request(self, request: Any, spider: Any = None) -> None:  # noqa: ARG002 - Scrapy's
        """Wait until the request may go."""
        headers = request.headers.to_unicode_dict()
        call = Call(self._sender, request.method, request.url, headers, request.body or None)
        try:
            if call.budget is not None:
                await call.reserve_async(call.budget)
            call.begin(call.take() or await call.next_admission().enter_async())
        except BaseException as error:
            call.failed(error)
            raise
        request.meta[_CALL] = call

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:  # noqa: ARG002 - Scrapy's
        """Settle the request, and learn from what the response says about limits."""
        call: Call | None = request.meta.pop(_CALL, None)
        if call is not None:
            answer = _Answer(response)
            call.answered(answer, answer.read_error() if answer.status >= 400 else None)
        return response

    def process_exception(self, request: Any, exception: Exception, spider: Any = None) -> None:  # noqa: ARG002 - Scrapy's
        """Settle a request that has no response."""
        call: Call | None = request.meta.pop(_CALL, None)
        if call is not None:
            call.failed(exception)


class _Answer(Answer):
    """A response of Scrapy, whose body is there."""

    @property
    def status(self) -> int:
        return int(self.response.status)

    @property
    def headers(self) -> Mapping[str, str]:
        headers = self.response.headers.to_unicode_dict()
        return {name.lower(): value for name, value in headers.items()}

    def read_error(self) -> bytes | None:
        body: bytes = self.response.body
        return body

    def watch(self, reading: OpenResponse) -> None:
        reading.chunk(self.response.body)
        reading.end(whole=True)

    def forbid_retries(self) -> None:
        """Scrapy's own middleware retries; each retry waits at the gate."""

    def drop(self) -> None:
        """Nothing of it is open."""
