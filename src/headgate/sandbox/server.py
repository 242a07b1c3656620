"""The sandbox on a port: HTTP/1.1 over asyncio, and a thread to run it in.

Sockets, bytes and waiting are here; every decision is the provider's. Whatever a client sends, it gets an
answer or loses its connection, and no traceback is printed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from typing import Self, Unpack

from ..errors import InvalidConfig
from ..gate.clock import OWN_THREADS, SYSTEM
from .control import ROOT
from .live import Live, LiveScenario, Options
from .provider import Provider
from .steps import Cut, Data, Head, Pause
from .styles.formats import encode
from .styles.values import Pairs, Request

_LONGEST_HEAD = 65_536
_LARGEST_BODY = 32 * 1024 * 1024
_LONGEST_LINE = 4096  # of a chunked body
_OPENINGS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_NAME = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}
_LINGER_NOT = struct.pack("ii", 1, 0)  # closing sends a reset


class _Bad(Exception):
    """The request is not HTTP, or not of a kind that is served here."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Gone(Exception):
    """The client has left."""


class _Reader(asyncio.StreamReader):
    """A reader that tells when the client leaves, though it may still have bytes to be read."""

    def __init__(self) -> None:
        super().__init__(limit=_LONGEST_HEAD, loop=asyncio.get_running_loop())
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.gone.set()


class _Connection:
    """One client, whose requests are answered one after the other."""

    def __init__(self, live: Live, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._live = live
        self._reader = reader
        self._writer = writer
        self._keep = True
        self._old = False  # HTTP/1.0, which has no chunks

    async def serve(self) -> None:
        with suppress(_Gone, ConnectionError, asyncio.IncompleteReadError):
            while self._keep:
                try:
                    request = await self._read()
                except _Bad as bad:
                    await self._object(bad)
                    break
                if request is None:
                    break
                if request.path.startswith(ROOT):
                    self._say(*self._live.control(request), mute=request.method == "HEAD")
                else:
                    await self._carry_out(self._live.open(request), mute=request.method == "HEAD")
                await self._writer.drain()
        self._writer.close()

    # -- Reading

    async def _read(self) -> Request | None:
        try:
            first = await self._reader.readexactly(1)
            if first not in _OPENINGS:  # TLS, perhaps: both sides would wait
                raise _Bad(400, "this is not HTTP")
            head = first + await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial.strip():
                raise _Bad(400, "the request ends before its headers do") from None
            return None
        except asyncio.LimitOverrunError:
            raise _Bad(431, "the headers are too long") from None
        lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")[:-2]
        method, path, version = _request_line(lines[0] if lines else "")
        headers = _fields(lines[1:])
        options = headers.get("connection", "").lower()
        self._old = version == "HTTP/1.0"
        self._keep = "close" not in options and (not self._old or "keep-alive" in options)
        return Request(method, path, headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        length = headers.get("content-length")
        encoding = headers.get("transfer-encoding")
        if encoding is not None:
            if length is not None:
                raise _Bad(400, "a body has a length or an encoding, not both")
            if encoding.lower() != "chunked":
                raise _Bad(501, "the only transfer encoding taken is chunked")
        elif length is None:
            return b""
        elif not (length.isascii() and length.isdigit()) or len(length) > 18:
            raise _Bad(400, "the content length is not a number")
        elif int(length) > _LARGEST_BODY:
            raise _Bad(413, "the body is too large")
        if headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            return await (self._chunks() if length is None else self._reader.readexactly(int(length)))
        except asyncio.IncompleteReadError:
            raise _Gone from None

    async def _chunks(self) -> bytes:
        chunks: list[bytes] = []
        total = 0
        while True:
            size = (await self._line()).partition(b";")[0].strip()
            if not size or len(size) > 8 or size.strip(b"0123456789abcdefABCDEF"):
                raise _Bad(400, "a chunk has no size")
            count = int(size, 16)
            if count == 0:
                break
            total += count
            if total > _LARGEST_BODY:
                raise _Bad(413, "the body is too large")
            chunks.append(await self._reader.readexactly(count))
            if await self._reader.readexactly(2) != b"\r\n":
                raise _Bad(400, "a chunk is longer than its size")
        for _ in range(100):
            if not await self._line():  # trailers are ignored
                return b"".join(chunks)
        raise _Bad(400, "too many trailers")

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError:
            raise _Bad(400, "a line of a chunked body is too long") from None
        if len(line) > _LONGEST_LINE:
            raise _Bad(400, "a line of a chunked body is too long")
        return line[:-2]

    # -- Answering

    async def _object(self, bad: _Bad) -> None:
        self._keep = False
        self._say(bad.status, encode({"error": {"message": str(bad), "code": bad.status}}))
        await self._writer.drain()
        # Closing while the client still sends would reset the connection and lose the answer.
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.25):
                while await self._reader.read(65_536):
                    pass

    def _say(self, status: int, body: bytes, *, mute: bool = False) -> None:
        head = self._head(status, [("content-type", "application/json")], len(body))
        self._writer.write(head if mute else head + body)

    async def _carry_out(self, scenario: LiveScenario, *, mute: bool) -> None:
        """Write all steps. On return everything is written, though perhaps not everything is sent."""
        writer = self._writer
        waiting = b""  # the head, which is sent together with the first data
        chunked = False
        with closing(scenario):
            while (step := scenario.step()) is not None:
                if isinstance(step, Head):
                    chunked = step.length is None and not self._old
                    self._keep = self._keep and (chunked or step.length is not None)
                    waiting = self._head(step.status, step.headers, step.length)
                elif isinstance(step, Data):
                    if not mute:
                        await writer.drain()
                        writer.write(waiting + (_chunk(step.data) if chunked else step.data))
                        waiting = b""
                else:
                    writer.write(waiting)
                    waiting = b""
                    if isinstance(step, Pause):
                        await self._pause(step.until)
                    else:
                        self._cut(step)
        writer.write(waiting + (b"0\r\n\r\n" if chunked and not mute else b""))

    def _head(self, status: int, headers: Pairs, length: int | None) -> bytes:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if length is not None:
            lines.append(f"content-length: {length}")
        elif not self._old:
            lines.append("transfer-encoding: chunked")
        if not self._keep:
            lines.append("connection: close")
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    async def _pause(self, until: int) -> None:
        """Sleep until that moment, or until the client leaves."""
        left = until - SYSTEM.now()
        if left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left / 1e9):
                    await self._reader.gone.wait()
        if self._reader.gone.is_set():
            raise _Gone

    def _cut(self, cut: Cut) -> None:
        self._keep = False
        if cut.reset:
            connection = self._writer.get_extra_info("socket")
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._writer.transport.abort()
        else:
            self._writer.close()
        raise _Gone


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _request_line(line: str) -> tuple[str, str, str]:
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/"):
        raise _Bad(400, "the first line is not METHOD TARGET HTTP/1.1")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise _Bad(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if method not in _METHODS:
        raise _Bad(501 if method.isalpha() and method.isascii() else 400, "this method is not known")
    if "://" in target.partition("?")[0]:  # the form in which a proxy is asked
        target = "/" + target.partition("://")[2].partition("/")[2]
    if not target.startswith("/") or not target.isprintable():
        raise _Bad(400, "the target is not a path")
    return method, target, version


def _fields(lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or not _NAME.issuperset(name):
            raise _Bad(400, "a header is not NAME: VALUE")
        value = value.strip(" \t")
        if "\r" in value or "\n" in value or "\0" in value:
            raise _Bad(400, "a header has a value that is more than one line")
        if name in fields:
            if name in ("content-length", "transfer-encoding") and value != fields[name]:
                raise _Bad(400, f"two different values for {name}")
            if name not in ("content-length", "host"):
                value = f"{fields[name]}, {value}"
        fields[name] = value
    return fields


async def serve(
    provider: Provider,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    started: Callable[[str], object] | None = None,
) -> None:
    """Serve the `provider` at `host` and `port` until cancelled. `started` is called with the address.

    Port 0 is a free one. Raises OSError if it cannot listen.

    >>> async def for_a_moment():
    ...     async with asyncio.timeout(0.05):
    ...         await serve(Provider("plain"), started=addresses.append)
    >>> addresses = []
    >>> with suppress(TimeoutError):
    ...     asyncio.run(for_a_moment())
    >>> addresses[0].startswith("http://127.0.0.1:")
    True
    """
    await _serve(Live(provider), host, _port(port), started)


async def _serve(live: Live, host: str, port: int, started: Callable[[str], object] | None) -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, _Reader)
        task = loop.create_task(_Connection(live, reader, writer).serve())
        tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:  # also if the task was cancelled before it began
            tasks.discard(task)
            if not writer.transport.is_closing():
                writer.transport.abort()  # unsent bytes are dropped

        task.add_done_callback(over)

    server = await loop.create_server(
        lambda: asyncio.StreamReaderProtocol(_Reader(), connected, loop=loop), host, port, backlog=1024
    )
    try:
        live.provider.anchor(SYSTEM.now(), time.time_ns())
        if started is not None:
            started(f"http://{host}:{server.sockets[0].getsockname()[1]}")
        await loop.create_future()
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        while tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()
        await asyncio.sleep(0)  # transports are closed in the next round


def _port(port: object) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65_535:
        raise InvalidConfig(f"port={port!r} is not a port; write a number up to 65535, or 0 for a free one")
    return port


class Sandbox(Live):
    """An API on a local port, in a thread of its own, for as long as the block lasts.

    >>> from urllib.request import urlopen
    >>> with Sandbox("plain", requests="60/hour") as api:
    ...     with urlopen(f"{api.url}/greeting") as reply:
    ...         reply.status, reply.headers["x-ratelimit-remaining"]
    (200, '59')

    `style` and the options are those of `Provider`, or `style` is a Provider that you have made. It listens
    at `host` and `port`, where 0 is a free one. The report can be asked for during the run and after it.
    Raises InvalidConfig or InvalidLimit for options that cannot work, and OSError if it cannot listen.
    """

    def __init__(
        self,
        style: str | Provider = "openai",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(style, **options)
        self._host = host
        self._port = _port(port)
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Where it listens, e.g. `http://127.0.0.1:40123`."""
        if not self._url:
            raise InvalidConfig(
                'the sandbox has no address yet; start it: with Sandbox("openai") as api: ...'
            )
        return self._url

    def start(self) -> Self:
        """Listen. `with` does it for you."""
        if self._thread is not None:
            raise InvalidConfig(f"the sandbox runs already, on {self._url}; make another one")
        ready: Future[str] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"{OWN_THREADS}sandbox", daemon=True
        )
        self._thread.start()
        try:
            self._url = ready.result()
        except Exception:
            self._thread.join()
            self._thread = None
            raise
        return self

    def stop(self) -> None:
        """Close every connection and the port. The report stays."""
        thread, end = self._thread, self._end
        if thread is not None and end is not None:
            end()
            thread.join()
            self._thread = self._end = None

    def _run(self, ready: Future[str]) -> None:
        async def main() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._end = partial(loop.call_soon_threadsafe, task.cancel)
            await _serve(self, self._host, self._port, ready.set_result)

        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again in start()
            ready.set_exception(error)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = self._url if self._thread is not None else "not running"
        return f"<Sandbox {self.provider.style.name}, {where}>"
