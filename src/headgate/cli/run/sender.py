"""Sending one job through the gate, and reading what comes back.

Retries are decided by the runner: whatever happens to a request is a Reply.
"""

from collections.abc import Callable

from ...dispatch.dispatch import Dispatch
from ...errors import HeadgateError
from ...http.exchange import GatedSender
from ...http.response import Answer, OpenResponse
from .jobs import Job
from .replies import Reply, no_reply, read_reply
from .wire import RawReply, Wire

_NO_HEADERS: dict[str, str] = {}


class Sender:
    """Sends the jobs of a run by a wire, no faster than the gate admits."""

    def __init__(self, gate: Dispatch, wire: Wire, *, timeout: float) -> None:
        self._gated = GatedSender(gate)
        self._wire = wire
        self._timeout = timeout
        self.stats = self._gated.stats

    async def send(self, job: Job, sent: Callable[[], object]) -> Reply:
        """Wait at the gate, call `sent`, send, and read the reply. The time at the gate is not limited."""

        async def send() -> _WholeAnswer:
            sent()
            return _WholeAnswer(await self._wire.send(job.method, job.url, job.body or None))

        try:
            answer = await self._gated.run_async(
                job.method, job.url, _NO_HEADERS, job.body or None, send, job.shape
            )
        except HeadgateError:
            raise
        except Exception as error:  # noqa: BLE001 - a client may raise anything, and it concerns this job only
            return no_reply(error, self._timeout)
        reply: RawReply = answer.response
        return read_reply(reply.status, reply.headers, reply.content, generates=job.shape.generates)


class _WholeAnswer(Answer):
    """A response that has been read to its end."""

    @property
    def status(self) -> int:
        status: int = self.response.status
        return status

    async def read_error(self) -> bytes:
        content: bytes = self.response.content
        return content

    def watch(self, reading: OpenResponse) -> None:
        reading.chunk(self.response.content)
        reading.end(whole=True)

    async def drop(self) -> None:
        """Nothing is left to be released."""
