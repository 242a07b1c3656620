"""The metrics of a gateway for Prometheus, at `/.headgate/metrics`, where prometheus_client is installed."""

from __future__ import annotations

from typing import Any

from aiohttp.web import BaseRequest, StreamResponse

from ..observers import prometheus
from .answer import RelayedResponse


class Metrics:
    """A registry of its own, the observer that fills it, and the page that shows it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._registry = client.CollectorRegistry()
        self.observer = prometheus(self._registry)

    @classmethod
    def installed(cls) -> Metrics | None:
        """The metrics, None if prometheus_client is not installed."""
        try:
            import prometheus_client  # noqa: PLC0415 - it need not be there
        except ModuleNotFoundError:
            return None
        return cls(prometheus_client)

    async def page(self, request: BaseRequest) -> StreamResponse:
        body: bytes = self._client.generate_latest(self._registry)
        head = [("Content-Type", self._client.CONTENT_TYPE_LATEST), ("Content-Length", str(len(body)))]
        response = RelayedResponse(200, None, head, at_once=False)
        await response.prepare(request)
        await response.write_eof(b"" if request.method == "HEAD" else body)
        return response
