"""Sending one job through the gate, and reading what comes back.

Retries are decided by the runner: whatever happens to a request is a Reply.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from urllib.request import getproxies

import httpx2

from ...dispatch.dispatch import Dispatch
from ...errors import HeadgateError
from ...http.exchange import GatedSender
from ...http.httpx import AsyncHttpxAnswer
from .jobs import Job, Target
from .replies import Reply, no_reply, read_reply

_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60)
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": "headgate",
}


class Sender:
    """Sends the jobs of a run. `transport` replaces the network, in tests."""

    def __init__(
        self,
        target: Target,
        gate: Dispatch,
        *,
        timeout: float,
        headers: Mapping[str, str],
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._gated = GatedSender(gate)
        self.stats = self._gated.stats
        self._timeout = timeout
        self._headers = httpx2.Headers({**_HEADERS, **headers})
        self._times = httpx2.Timeout(timeout, connect=min(30.0, timeout)).as_dict()
        self._transport = transport
        # One context for all clients, because reading the certificates takes a while; and none are read if no
        # connection will be encrypted.
        encrypted = target.parts.scheme == "https" or getproxies()
        self._verify = ssl.create_default_context() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def client(self) -> httpx2.AsyncClient:
        """A client with connections of its own."""
        return httpx2.AsyncClient(limits=_LIMITS, verify=self._verify, transport=self._transport)

    async def send(self, job: Job, client: httpx2.AsyncClient, sent: Callable[[], object]) -> Reply:
        """Wait at the gate, call `sent`, send, and read the reply. The time at the gate is not limited."""
        body = job.body or None
        # As the client would build it, without merging headers and addresses again for each job.
        request = httpx2.Request(
            job.method, job.url, headers=self._headers, content=body, extensions={"timeout": self._times}
        )
        deadline = 0.0

        async def send() -> AsyncHttpxAnswer:
            nonlocal deadline
            sent()
            deadline = asyncio.get_running_loop().time() + self._timeout
            async with asyncio.timeout_at(deadline):
                return AsyncHttpxAnswer(httpx2, await client.send(request, stream=True))

        try:
            answer = await self._gated.run_async(job.method, job.url, request.headers, body, send, job.shape)
            response = answer.response
            try:
                async with asyncio.timeout_at(deadline):
                    content = await response.aread()
            finally:
                await response.aclose()
        except HeadgateError:
            raise
        except Exception as error:  # noqa: BLE001 - a client may raise anything, and it concerns this job only
            return no_reply(error, self._timeout)
        return read_reply(response.status_code, response.headers, content)
