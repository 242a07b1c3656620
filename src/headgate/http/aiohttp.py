"""For aiohttp: a middleware that waits at a gate before it sends.

    ClientSession(middlewares=(middleware(dispatch),))

A request waits before it takes a connection. The total timeout of aiohttp includes the wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, Unpack

from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse, StreamReader
from aiohttp.payload import BytesPayload

from .answers import MOST_OF_ERROR, Reading
from .exchange import GatedSender
from .gates import Gates
from .options import SendOptions

T = TypeVar("T")


def middleware(gate: Gates = None, **options: Unpack[SendOptions]) -> ClientMiddlewareType:
    """A middleware that sends no faster than the gate admits.

    `gate` is that of `headgate.http.httpx.Transport`, and so are the options.
    """
    sender = GatedSender(gate, **options)

    async def gated(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        async def send() -> _Answer:
            return _Answer(await handler(request))

        answer = await sender.run_async(
            request.method, str(request.url), request.headers, await _body_of(request), send
        )
        return answer.response

    return gated


async def _body_of(request: ClientRequest) -> bytes | None:
    """The body, if it is in memory."""
    body: Any = request.body
    if isinstance(body, BytesPayload):
        return bytes(await body.as_bytes())
    return bytes(body) if isinstance(body, (bytes, bytearray)) and body else None


class _Answer:
    def __init__(self, response: ClientResponse) -> None:
        self.response = response

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.response.headers

    async def read_error(self) -> bytes | None:
        content = _Content(self.response.content)
        self.response.content = content
        return await content.fill()

    def watch(self, reading: Reading) -> None:
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

    def __init__(self, inner: StreamReader, reading: Reading | None = None) -> None:
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
        if n < 0:
            return self._take() + await self._watched(self._inner.read())
        return self._take(n) if self._kept else await self._watched(self._inner.read(n))

    async def readany(self) -> bytes:
        return self._take() or await self._watched(self._inner.readany())

    async def readchunk(self) -> tuple[bytes, bool]:
        if self._kept:
            return self._take(), False
        data, ends = await self._guarded(self._inner.readchunk())
        self._note(data)
        return data, ends

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
        n = len(self._kept) if n < 0 else n
        data, self._kept = self._kept[:n], self._kept[n:]
        return data

    async def _watched(self, reading: Awaitable[bytes]) -> bytes:
        data = await self._guarded(reading)
        self._note(data)
        return data

    async def _guarded(self, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except Exception:
            if self._reading is not None and self._inner.exception() is not None:
                self._reading.end()  # the connection broke; after a line that was too long, reading goes on
            raise

    def _note(self, data: bytes) -> None:
        if self._reading is not None:
            self._reading.chunk(data)
            if self._inner.at_eof():
                self._reading.end(whole=True)

    def set_exception(self, exc: BaseException, *cause: Any, **causes: Any) -> None:
        """Called by a response when it is closed or released."""
        self._inner.set_exception(exc, *cause, **causes)
        if self._reading is not None:
            self._reading.end()

    def at_eof(self) -> bool:
        return not self._kept and self._inner.at_eof()

    # -- the rest of a StreamReader

    def exception(self) -> BaseException | None:
        return self._inner.exception()

    def is_eof(self) -> bool:
        return self._inner.is_eof()

    async def wait_eof(self) -> None:
        await self._inner.wait_eof()

    def on_eof(self, callback: Callable[[], None]) -> None:
        self._inner.on_eof(callback)

    def feed_eof(self) -> None:
        self._inner.feed_eof()

    def feed_data(self, data: bytes, *size: int) -> Any:
        return self._inner.feed_data(data, *size)

    def unread_data(self, data: bytes) -> None:
        self._inner.unread_data(data)

    def get_read_buffer_limits(self) -> tuple[int, int]:
        return self._inner.get_read_buffer_limits()

    def set_read_chunk_size(self, n: int) -> None:
        self._inner.set_read_chunk_size(n)

    @property
    def total_bytes(self) -> int:  # type: ignore[override]  # a field there
        return self._inner.total_bytes

    @property
    def total_compressed_bytes(self) -> int | None:  # type: ignore[override]  # a field there
        return self._inner.total_compressed_bytes

    @property
    def total_raw_bytes(self) -> int:
        return self._inner.total_raw_bytes

    def __repr__(self) -> str:
        return repr(self._inner)
