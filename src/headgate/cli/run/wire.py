"""The connections to the API, by aiohttp.

What a server sends without having been asked never becomes the answer to the next request: a connection that
has anything to read before it is used again is closed.
"""

import select
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.request import getproxies
from weakref import WeakSet

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from yarl import URL

from .target import Target

_KEEP_ALIVE = 60.0
_CONNECT_WITHIN = 30.0
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "headgate",
}
_MOST_ADDRESSES = 256


class RawReply(NamedTuple):
    """A response that was read to its end, and unpacked."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Wire(Protocol):
    """What carries requests to the API and the responses back."""

    async def send(self, method: str, url: str, body: bytes | None) -> RawReply: ...

    async def close(self) -> None: ...


class _Connector(TCPConnector):
    """Connections that are used again only if the server has been silent since the last response."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakSet[Any] = WeakSet()

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            connection = await super().connect(*args, **kwargs)
            protocol = connection.protocol
            if protocol not in self._used:
                self._used.add(protocol)
                return connection
            silent = protocol is not None and not protocol.should_close
            if silent and not _has_something_to_read(connection.transport):
                return connection
            connection.close()


def _has_something_to_read(transport: Any) -> bool:
    """Whether bytes have come, or the end of the connection, that the event loop has not seen yet."""
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None:
        return True
    if hasattr(select, "poll"):  # `select` takes no descriptors above 1,023
        poll = select.poll()
        poll.register(socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([socket.fileno()], [], [], 0)[0])


class AiohttpWire:
    """Connections that stay open between requests, as many as are needed."""

    def __init__(self, target: Target, *, timeout: float, headers: Mapping[str, str]) -> None:
        encrypted = target.parts.scheme == "https"
        proxies = getproxies()
        # The certificates are read only if a connection will be encrypted, because that takes a while.
        verify: Any = ssl.create_default_context() if encrypted or proxies else False
        self._session = ClientSession(
            connector=_Connector(limit=0, ssl=verify, keepalive_timeout=_KEEP_ALIVE),
            headers={**_HEADERS, **headers},
            timeout=ClientTimeout(total=timeout, sock_connect=min(_CONNECT_WITHIN, timeout)),
            cookie_jar=DummyCookieJar(),
            trust_env=bool(proxies),
            max_line_size=65_536,
            max_field_size=65_536,
        )
        self._urls: dict[str, URL] = {}

    async def send(self, method: str, url: str, body: bytes | None) -> RawReply:
        address = self._urls.get(url)
        if address is None:
            address = URL(url, encoded=True)
            if len(self._urls) < _MOST_ADDRESSES:
                self._urls[url] = address
        async with self._session.request(
            method, address, data=body, headers=_JSON if body else None, allow_redirects=False
        ) as response:
            return RawReply(response.status, response.headers, await response.read())

    async def close(self) -> None:
        await self._session.close()


_JSON = {"content-type": "application/json"}
