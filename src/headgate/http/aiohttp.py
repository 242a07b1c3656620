"""For aiohttp: a middleware that waits at a gate before it sends.

    ClientSession(middlewares=(middleware(dispatch),))

A request waits before it takes a connection. The total timeout of aiohttp includes the wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, Unpack

from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse, StreamReader
from aiohttp.payload import BytesPayload
from yarl import URL

from .exchange import GatedSender, SendOptions
from .gates import Gates, Target
from .response import MOST_OF_ERROR, Answer, OpenResponse


def middleware(gate: Gates = None, **options: Unpack[SendOptions]) -> ClientMiddlewareType:
    """A middleware for aiohttp that sends no faster than the gate admits.

    `gate` is that of `headgate.http.httpx.Transport`. The options are `headgate.http.exchange.SendOptions`.
    If the gate refuses a request, its exception is raised. Raises InvalidConfig, InvalidCapacity or
    InvalidWindow for arguments that cannot work.

    >>> import aiohttp
    >>> async def ask(url):
    ...     async with aiohttp.ClientSession(middlewares=[middleware()]) as session:
    ...         async with session.get(url) as response:
    ...             return await response.text()
    >>> from headgate.sandbox import Sandbox
    >>> import asyncio
    >>> with Sandbox("plain") as api:
    ...     answer = asyncio.run(ask(api.url))
    """
    sender = GatedSender(gate, **options)

    async def gated(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        url = request.url

        async def send(target: Target | None = None) -> _Answer:
            if target is not None:
                request.url = URL(target.url_of(str(url)), encoded=True)
                request.headers.update(target.headers_for(str(request.url)))
            return _Answer(await handler(request))

        answer = await sender.run_async(
            request.method, str(request.url), request.headers, await _body_of(request), send
        )
        response: ClientResponse = answer.response
        return response

    return gated


async def _body_of(request: ClientRequest) -> bytes | None:
    """The body, if it is in memory."""
    body: Any = request.body
    if isinstance(body, BytesPayload):
        return bytes(await body.as_bytes())
    return bytes(body) if isinstance(body, (bytes, bytearray)) and body else None


class _Answer(Answer):
    @property
    def status(self) -> int:
        status: int = self.response.status
        return status

    @property
    def header_pairs(self) -> object:
        return self.response.raw_headers or self.response.headers

    async def read_error(self) -> bytes | None:
        content = _Content(self.response.content)
        self.response.content = content
        return await content.fill()

    def watch(self, reading: OpenResponse) -> None:
        if self.response.content.at_eof():
            reading.end(whole=True)
        else:
            reading.keep()
            self.response.content = _Content(self.response.content, reading)

    def forbid_retries(self) -> None:
        """No client above aiohttp retries by such a header."""

    async def drop(self) -> None:
        self.response.release()


class _Content(StreamReader):
    """The body of a response, which tells what is read of it and when that ends.

    The beginning of an error has been read before, and its caller reads it again from the start.
    """

    __slots__ = ("_inner", "_kept", "_reading")

    def __init__(self, inner: StreamReader, reading: OpenResponse | None = None) -> None:
        self._inner = inner
        self._reading = reading
        self._kept = b""

    async def fill(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while size <= MOST_OF_ERROR:
                piece = await self._inner.readany()
                if not piece:
                    break
                pieces.append(piece)
                size += len(piece)
        except Exception:  # noqa: BLE001, S110 - a caller who reads that far gets it again
            pass
        self._kept = b"".join(pieces)
        return self._kept

    async def read(self, n: int = -1) -> bytes:
        if self._kept and n >= 0:
            return self._take(n)
        return self._take() + await self._watched(self._inner.read(n))

    async def readany(self) -> bytes:
        if self._kept:
            return self._take()
        try:
            data = await self._inner.readany()
        except Exception:
            self._broke()
            raise
        self._note(data)
        return data

    async def readchunk(self) -> tuple[bytes, bool]:
        if self._kept:
            return self._take(), False
        try:
            chunk = await self._inner.readchunk()
        except Exception:
            self._broke()
            raise
        self._note(chunk[0])
        return chunk

    async def readline(self, **limits: Any) -> bytes:
        return await self._until(b"\n", lambda: self._inner.readline(**limits))

    async def readuntil(self, separator: bytes = b"\n", **limits: Any) -> bytes:
        return await self._until(separator, lambda: self._inner.readuntil(separator, **limits))

    async def _until(self, separator: bytes, read: Callable[[], Awaitable[bytes]]) -> bytes:
        if self._kept:
            at = self._kept.find(separator)
            if at >= 0:
                return self._take(at + len(separator))
        return self._take() + await self._watched(read())

    async def readexactly(self, n: int) -> bytes:
        start = self._take(n)
        return (
            start + await self._watched(self._inner.readexactly(n - len(start))) if n > len(start) else start
        )

    def read_nowait(self, n: int = -1) -> bytes:
        if self._kept:
            return self._take(n)
        data = self._inner.read_nowait(n)
        self._note(data)
        return data

    def _take(self, n: int = -1) -> bytes:
        if not self._kept:
            return b""
        n = len(self._kept) if n < 0 else n
        data, self._kept = self._kept[:n], self._kept[n:]
        return data

    async def _watched(self, reading: Awaitable[bytes]) -> bytes:
        try:
            data = await reading
        except Exception:
            self._broke()
            raise
        self._note(data)
        return data

    def _broke(self) -> None:
        """Reading has failed: the connection broke. After a line that was too long, reading goes on."""
        if self._reading is not None and self._inner.exception() is not None:
            self._reading.end()

    def _note(self, data: bytes) -> None:
        reading = self._reading
        if reading is not None:
            reading.chunk(data)
            if self._inner.at_eof():
                reading.end(whole=True)

    def set_exception(self, exc: BaseException, *cause: Any, **causes: Any) -> None:
        """Called by a response when it is closed or released."""
        self._inner.set_exception(exc, *cause, **causes)
        if self._reading is not None:
            self._reading.end()

    def at_eof(self) -> bool:
        return not self._kept and self._inner.at_eof()

    def __repr__(self) -> str:
        return repr(self._inner)


# The rest of a StreamReader is that of the inner one.
for _name in (
    *("exception", "is_eof", "wait_eof", "on_eof", "feed_eof", "feed_data", "unread_data"),
    *("get_read_buffer_limits", "set_read_chunk_size"),
    *("total_bytes", "total_compressed_bytes", "total_raw_bytes"),
):
    setattr(_Content, _name, property(attrgetter(f"_inner.{_name}")))
