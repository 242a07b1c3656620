"""Connections to the API without a session of aiohttp around them: its parser reads, and the rest is here.

A session makes several objects for each request. All requests of a run go to one host with the same headers,
so the head of a request is made once for each address, and one timer watches all requests.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aiohappyeyeballs import start_connection
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from ...errors import InvalidConfig
from .target import Target
from .wire import CONNECT_WITHIN, KEEP_ALIVE, LONGEST_FIELD, MOST_ADDRESSES, RawReply, fields_of, poll_of

_KNOWN_FOR = 10.0  # seconds that the addresses of a host are remembered
_STAGGER = 0.25  # seconds before the next address of a host is tried, too


class ConnectError(ConnectionError):
    """There is no connection: nothing was sent."""


class ConnectTimeout(TimeoutError):
    """There was no connection in time: nothing was sent."""


class _Connection(NamedTuple):
    protocol: ResponseHandler
    transport: asyncio.Transport
    poll: Callable[[int], object]


class _Sent:
    """A request that waits for its response."""

    __slots__ = ("connection", "deadline", "payload")

    def __init__(self, connection: _Connection, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.payload: Any = None

    def expire(self) -> None:
        for reader in (self.connection.protocol, self.payload):
            if reader is not None:
                reader.set_exception(TimeoutError())


class DirectWire:
    """Connections that stay open between requests, as many as are needed."""

    def __init__(self, target: Target, *, timeout: float, headers: Mapping[str, str]) -> None:
        parts = target.parts
        self._name = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        # The certificates are read only if connections will be encrypted, because that takes a while.
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout = timeout
        fields = fields_of({"host": target.host, **headers})
        if any(letter in text for pair in fields.items() for text in pair for letter in "\r\n\0"):
            raise InvalidConfig("a header has a line break in it")
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._heads: dict[tuple[str, str], bytes] = {}
        self._idle: list[tuple[_Connection, float]] = []  # and since when
        self._sent: dict[_Sent, None] = {}  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._resolving: tuple[float, asyncio.Future[Any]] | None = None

    async def send(self, method: str, url: str, body: bytes | None) -> RawReply:
        head = self._heads.get((method, url)) or self._head(method, url)
        loop = asyncio.get_running_loop()
        connection = self._reused(loop.time()) if self._idle else None
        if connection is None:
            connection = await self._connect(loop)
        protocol, transport, _ = connection
        sent = _Sent(connection, loop.time() + self._timeout)
        kept = False
        try:
            self._sent[sent] = None
            if self._timer is None:
                self._timer = loop.call_at(sent.deadline, self._look)
            protocol.set_response_params(
                skip_payload=method == "HEAD",
                read_until_eof=True,
                max_line_size=LONGEST_FIELD,
                max_field_size=LONGEST_FIELD,
            )
            length = b"" if body is None and method in ("GET", "HEAD") else b"%d" % len(body or b"")
            size = b"content-length: %b\r\n\r\n" % length if length else b"\r\n"
            transport.write(head + size + (body or b""))
            message, payload = await protocol.read()
            while message.code < 200 and message.code != 101:
                message, payload = await protocol.read()
            sent.payload = payload
            content = await payload.read()
            kept = not (message.should_close or protocol.should_close)
        finally:
            del self._sent[sent]
            if kept:
                self._idle.append((connection, loop.time()))
            else:
                protocol.close()
        return RawReply(message.code, message.headers, content, message.raw_headers)

    def _head(self, method: str, url: str) -> bytes:
        path = URL(url, encoded=True).raw_path_qs
        if not path.isascii() or any(letter <= " " for letter in path):
            path = URL(url).raw_path_qs
        head = f"{method} {path} HTTP/1.1\r\n{self._fields}".encode()
        if len(self._heads) < MOST_ADDRESSES:
            self._heads[method, url] = head
        return head

    # -- connections

    def _reused(self, now: float) -> _Connection | None:
        """A connection whose server has been silent since the last response."""
        while self._idle:
            connection, since = self._idle.pop()
            # What the event loop has read already, and what it has not seen yet: bytes, or the end.
            if now - since < KEEP_ALIVE and not connection.protocol.should_close and not connection.poll(0):
                return connection
            connection.protocol.close()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        try:
            async with asyncio.timeout(min(CONNECT_WITHIN, self._timeout)):
                socket = await start_connection(await self._addresses(loop), happy_eyeballs_delay=_STAGGER)
                transport, protocol = await loop.create_connection(
                    lambda: ResponseHandler(loop=loop),
                    sock=socket,
                    ssl=self._tls,
                    server_hostname=self._name if self._tls else None,
                )
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection to {self._name} in time") from error
        except OSError as error:
            raise ConnectError(f"{self._name}:{self._port}: {error.strerror or error}") from error
        return _Connection(protocol, transport, poll_of(transport))

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> Any:
        """The addresses of the host, asked for once for many connections."""
        if self._resolving is None or loop.time() > self._resolving[0] + _KNOWN_FOR:
            asking = loop.getaddrinfo(self._name, self._port, type=1)
            self._resolving = (loop.time(), asyncio.ensure_future(asking))
        try:
            return await asyncio.shield(self._resolving[1])
        except OSError:
            self._resolving = None
            raise

    # -- timeouts

    def _look(self) -> None:
        """End requests that have waited too long. All may wait equally long: the first is due first."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for sent in self._sent:
            if sent.deadline > loop.time():
                self._timer = loop.call_at(sent.deadline, self._look)
                return
            sent.expire()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for connection, _ in self._idle:
            connection.protocol.close()
        for sent in self._sent:
            sent.connection.protocol.close()
        self._idle.clear()
        await asyncio.sleep(0)  # for the transports to close
