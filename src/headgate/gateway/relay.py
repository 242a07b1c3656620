"""One request of a client: it waits at the gate, goes to the API, and the answer goes back.

The decisions are those of every adapter (`headgate.http.call`). What is added here is the client that waits
at the other end: it is kept by what it tolerates, and told in the words of its API if it waits in vain.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from aiohttp import ClientConnectionResetError, ClientError, ClientResponse
from aiohttp.web import BaseRequest, StreamResponse

from ..arguments import SECOND
from ..errors import HeadgateError, Refused, WaitTimeout
from ..gate.admission import Permit
from ..gate.clock import sleep_async
from ..http.call import Call
from ..http.exchange import GatedSender
from ..responses.usage import Usage, unpacked
from .answer import RelayedResponse, Unpacked, UpstreamAnswer
from .body import BodyStopped
from .dialects import Dialect, error_document, error_event
from .hold import Hold

if TYPE_CHECKING:
    from .app import Gateway

_MARK = "x-headgate"
_WINDOW = "window"  # as gates name this rule
_WAITED = "x-headgate-waited-ms"
_EVENTS_HEAD = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
_WRITTEN_AT_ONCE = 16_384  # bytes that a socket takes without waiting
_END_OF_EVENT = (b"\n\n", b"\r\n\r\n")
_RETRY_AFTER = 5.0  # seconds, if nothing says when another try is worth it


class GatewayCall(Call):
    """A call that also tells the gateway how many tokens were used."""

    __slots__ = ("_count",)

    def __init__(
        self,
        count: Callable[[Usage], None],
        sender: GatedSender,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> None:
        self._count = count
        super().__init__(sender, method, url, headers, body)

    def cost_of(self, usage: Usage | None, model: str | None) -> dict[str, int] | None:
        if usage is not None:
            self._count(usage)
        return super().cost_of(usage, model)


class Relay:
    """One request. `waiting_since` is the time at which it began to wait, None while the API has it."""

    __slots__ = (
        "_dialect",
        "_gateway",
        "_hold",
        "_in_vain",
        "_keeper",
        "_kept",
        "_request",
        "_send",
        "_task",
        "_waiter",
        "call",
        "limit",
        "priority",
        "tenant",
        "waited",
        "waiting_since",
    )

    def __init__(
        self,
        gateway: Gateway,
        request: BaseRequest,
        call: GatewayCall,
        send: Callable[[bool], Awaitable[ClientResponse]],
        *,
        dialect: Dialect,
        hold: Hold,
        tenant: str,
        priority: int,
        limit: float,
    ) -> None:
        """`send(plain)` sends the request; `plain` asks for an answer that is not packed."""
        self._gateway = gateway
        self._request = request
        self.call = call
        self._send = send
        self._dialect = dialect
        self._hold = hold
        self.tenant = tenant
        self.priority = priority
        self.limit = limit  # seconds that it may wait, all attempts together
        self.waiting_since: float | None = None
        self.waited = 0.0
        self._kept: StreamResponse | None = None  # the stream of events that keeps the client
        self._keeper: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Task[object] | None = None  # while it stands in line
        self._in_vain = False

    # -- the loop of attempts

    async def run(self) -> StreamResponse:
        """Answer the client. BodyStopped is raised if it stops sending its request."""
        call, refused = self.call, None  # the last refusal of the API, until another attempt begins
        if self._hold.kind != "silent":
            self._look_in(self._gateway.settings.patience)
        try:
            while True:
                try:
                    permit = await self._admitted()
                except Refused as refusal:
                    if refused is not None and refused.whole and self._kept is None:
                        refused.final = True
                        return await self._pass_on(refused)
                    return await self._refuse(refusal)
                answer = None
                try:
                    call.begin(permit)
                    answer = UpstreamAnswer(await self._send(self._kept is not None))
                    error_body = await answer.read_error() if answer.status >= 400 else None
                    delay = call.answered(answer, error_body)
                except BaseException as error:
                    delay = call.failed(error)
                    if answer is not None:
                        answer.release()
                    if delay is None:
                        if isinstance(error, BodyStopped):
                            raise  # the API is not to blame
                        if not isinstance(error, (ClientError, OSError, TimeoutError)):
                            raise
                        return await self._unreachable(error)
                else:
                    if answer.status >= 400:
                        self._gateway.note_error(call.gate, answer)
                    if delay is None:
                        return await self._pass_on(answer)
                    answer.release()
                    refused = answer
                self._gateway.counts.retried += 1
                if delay:
                    await self._pause(call, delay)
        finally:
            self._stop_keeping()

    async def _admitted(self) -> Permit:
        gateway, call, limit = self._gateway, self.call, max(0.0, self.limit - self.waited)
        if call.gate.window.remaining > limit:
            raise self._pause_too_long()
        admission = call.admission()
        admission.tenant, admission.priority = self.tenant, self.priority
        admission.timeout = round(limit * SECOND)
        started = self.waiting_since = gateway.now()
        self._waiter = asyncio.current_task()
        gateway.waiting[id(self)] = self
        try:
            return await admission.enter_async()
        except asyncio.CancelledError:
            if self._in_vain and self._waiter is not None and not self._waiter.uncancel():
                raise self._pause_too_long() from None
            gateway.counts.hung_up += 1
            raise
        finally:
            self._waiter = None
            del gateway.waiting[id(self)]
            self.waiting_since = None
            self.waited += gateway.now() - started

    def look_at_window(self) -> None:
        """A window has started. If it is longer than the client may still wait, the wait ends now."""
        if self._waiter is None or self.waiting_since is None or self._in_vain:
            return
        left = self.limit - self.waited - (self._gateway.now() - self.waiting_since)
        if self.call.gate.window.remaining > left:
            self._in_vain = True
            self._waiter.cancel()

    def _pause_too_long(self) -> WaitTimeout:
        seconds = self.call.gate.window.remaining
        why = f"the API asked for a pause of {seconds:.0f} s more"
        return WaitTimeout(why, rule=_WINDOW, retry_after=seconds)

    async def _pause(self, call: Call, delay: int) -> None:
        started = self.waiting_since = self._gateway.now()
        try:
            await sleep_async(call.gate.clock, delay)
        finally:
            self.waiting_since = None
            self.waited += self._gateway.now() - started

    # -- keeping the client

    def _look_in(self, seconds: float) -> None:
        self._keeper = asyncio.get_running_loop().call_later(seconds, self._keep)

    def _keep(self) -> None:
        """The client has heard nothing for a while."""
        hold = self._hold
        if self._kept is None and self.waiting_since is None:
            self._look_in(hold.every)  # the API has the call, and may still answer with any status
            return
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        if hold.kind == "interim":
            transport.write(hold.sign)
            self._look_in(hold.every)
        else:
            self._task = asyncio.ensure_future(self._keep_by_events())

    async def _keep_by_events(self) -> None:
        hold = self._hold
        response = self._kept = RelayedResponse(200, None, [*_EVENTS_HEAD, (_MARK, "waiting")], at_once=True)
        with suppress(ClientError, ConnectionError):  # a client that has gone: its handler is cancelled
            await response.prepare(self._request)
            while True:
                await response.write(hold.sign)
                await asyncio.sleep(hold.every)

    def _stop_keeping(self) -> None:
        """Before the first real byte: no sign of life may stand inside the answer."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # -- answering

    @property
    def _waited_ms(self) -> tuple[str, str]:
        return _WAITED, str(round(self.waited * 1_000))

    async def _pass_on(self, answer: UpstreamAnswer) -> StreamResponse:
        """The answer of the API, unchanged."""
        try:
            if self._kept is not None:
                return await self._pass_on_in(self._kept, answer)
            upstream = answer.response
            headers = [*answer.headers_for_client(), self._waited_ms]
            at_once = "content-length" not in upstream.headers
            response = RelayedResponse(upstream.status, upstream.reason, headers, at_once=at_once)
            self._stop_keeping()
            await response.prepare(self._request)
            await self._write(response, answer)
            return response
        finally:
            answer.release()

    async def _write(self, response: StreamResponse, answer: UpstreamAnswer, coding: str = "") -> None:
        """Write the body piece by piece. If it breaks off between two events, an event says why."""
        unpack, last = Unpacked(coding), _END_OF_EVENT[0]
        try:
            while piece := await answer.next_piece():
                plain = unpack(piece)
                last = plain[-4:] if len(plain) >= 4 else (last + plain)[-4:]
                if len(piece) > _WRITTEN_AT_ONCE:
                    answer.note(piece)  # a client that reads slowly does not hold the place
                    await response.write(plain)
                else:
                    await response.write(plain)  # the client does not wait for the reading
                    answer.note(piece)
            answer.note(b"")
        except (ClientError, TimeoutError) as error:
            if isinstance(error, ClientConnectionResetError):
                raise  # the client has gone
            if not answer.is_events or not last.endswith(_END_OF_EVENT):
                self._break_off()
                raise ConnectionResetError from error
            await response.write(error_event(self._dialect, self._document(502, _broke(error))))
        await response.write_eof()

    def _break_off(self) -> None:
        """The answer of the API ended too early, and so does this one: the client must not use it."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _pass_on_in(self, response: StreamResponse, answer: UpstreamAnswer) -> StreamResponse:
        """The answer of the API, in a stream of events that has begun."""
        self._stop_keeping()
        coding = answer.response.headers.get("content-encoding", "")
        if answer.status < 400 and answer.is_events:
            await self._write(response, answer, coding)
            return response
        body = await answer.rest()
        text = (unpacked(body, coding) if coding else body) or b""
        try:
            document = json.loads(text)
        except ValueError:
            document = text.decode("utf-8", "replace")[:2_000]
        if answer.status < 400:
            await response.write(b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n")
        else:
            await response.write(error_event(self._dialect, document))
        await response.write_eof()
        return response

    async def _refuse(self, refusal: Refused) -> StreamResponse:
        """The gate has given up: say so, and when another try is worth it."""
        seconds = _RETRY_AFTER if refusal.retry_after is None else refusal.retry_after
        self._gateway.counts.refused += 1
        why = "this gateway is being stopped; send the call again" if self._gateway.draining else refusal
        message = f"headgate waited {self.waited:.1f} s: {why}"
        headers = [
            ("retry-after", str(max(1, ceil(seconds)))),
            ("x-should-retry", "true"),
            (_MARK, f"waited; rule={_plain(refusal.rule)}; eta={seconds:.3f}"),
        ]
        return await self._say(503, message, headers, seconds)

    async def _unreachable(self, error: BaseException) -> StreamResponse:
        headers = [(_MARK, "unreachable")]
        if self._gateway.settings.retries:
            headers.append(("x-should-retry", "false"))
        return await self._say(502, _broke(error), headers)

    def _document(self, status: int, message: str, seconds: float | None = None) -> dict[str, object]:
        return error_document(self._dialect, status, message, seconds)

    async def _say(
        self, status: int, message: str, headers: list[tuple[str, str]], seconds: float | None = None
    ) -> StreamResponse:
        """An error of the gateway itself: a response, or an event if a stream has begun."""
        self._stop_keeping()
        document = self._document(status, message, seconds)
        if self._kept is not None:
            await self._kept.write(error_event(self._dialect, document))
            await self._kept.write_eof()
            return self._kept
        return await say(self._request, status, document, [*headers, self._waited_ms])


async def say(
    request: BaseRequest, status: int, document: object, headers: list[tuple[str, str]]
) -> StreamResponse:
    """A response of the gateway itself, as JSON."""
    body = json.dumps(document).encode()
    head = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]
    response = RelayedResponse(status, None, head, at_once=False)
    await response.prepare(request)
    await response.write_eof(b"" if request.method == "HEAD" else body)
    return response


def _broke(error: BaseException) -> str:
    said = "" if isinstance(error, HeadgateError) else str(error)
    return f"headgate cannot get an answer of the API: {said or type(error).__name__}"


def _plain(text: str) -> str:
    """Text that can stand in a header."""
    return "".join(c if c.isascii() and c.isprintable() and c != ";" else "?" for c in text)[:200]
