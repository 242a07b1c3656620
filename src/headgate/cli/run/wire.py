"""The connections to the API, by aiohttp.

What a server sends without having been asked never becomes the answer to the next request: a connection that
has anything to read before it is used again is closed.
"""

import select
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.request import getproxies

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from multidict import CIMultiDict
from yarl import URL

from .target import Target

KEEP_ALIVE = 60.0
CONNECT_WITHIN = 30.0
LONGEST_FIELD = 65_536
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": "headgate",
}
MOST_ADDRESSES = 256
_MOST_POLLS = 1 << 14


class RawReply(NamedTuple):
    """A response that was read to its end, and unpacked. `pairs` are its headers as they came."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    pairs: tuple[tuple[bytes, bytes], ...] = ()


def fields_of(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers of every request: those that are given, and the usual ones."""
    fields = CIMultiDict(_HEADERS)
    fields.update(headers)
    return fields


class Wire(Protocol):
    """What carries requests to the API and the responses back."""

    async def send(self, method: str, url: str, body: bytes | None) -> RawReply: ...

    async def close(self) -> None: ...


class _Connector(TCPConnector):
    """Connections that are used again only if the server has been silent since the last response."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._polls: dict[object, Callable[[int], object]] = {}

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            connection = await super().connect(*args, **kwargs)
            protocol = connection.protocol
            if protocol is None:
                return connection
            poll = self._polls.get(protocol)
            if poll is None:
                if len(self._polls) >= _MOST_POLLS:
                    self._polls.clear()  # most of them are of connections that were closed
                self._polls[protocol] = poll_of(connection.transport)
                return connection
            # What the event loop has read already, and what it has not seen yet: bytes, or the end.
            if not protocol.should_close and not poll(0):
                return connection
            connection.close()


def poll_of(transport: Any) -> Callable[[int], object]:
    """A function that looks whether a connection has something to read, within milliseconds."""
    socket = transport.get_extra_info("socket")
    if not hasattr(select, "poll"):  # on Windows
        return lambda wait: select.select([socket.fileno()], [], [], wait / 1_000)[0]
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return poll.poll


class AiohttpWire:
    """Connections by way of the proxies that the environment names, by a session of aiohttp."""

    def __init__(self, target: Target, *, timeout: float, headers: Mapping[str, str]) -> None:
        encrypted = target.parts.scheme == "https"
        proxies = getproxies()
        # The certificates are read only if a connection will be encrypted, because that takes a while.
        verify: Any = ssl.create_default_context() if encrypted or proxies else False
        self._session = ClientSession(
            connector=_Connector(limit=0, ssl=verify, keepalive_timeout=KEEP_ALIVE),
            headers=fields_of(headers),
            timeout=ClientTimeout(total=timeout, sock_connect=min(CONNECT_WITHIN, timeout)),
            cookie_jar=DummyCookieJar(),
            trust_env=bool(proxies),
            max_line_size=LONGEST_FIELD,
            max_field_size=LONGEST_FIELD,
        )
        self._urls: dict[str, URL] = {}

    async def send(self, method: str, url: str, body: bytes | None) -> RawReply:
        address = self._urls.get(url)
        if address is None:
            address = URL(url, encoded=True)
            if len(self._urls) < MOST_ADDRESSES:
                self._urls[url] = address
        async with self._session.request(method, address, data=body, allow_redirects=False) as response:
            return RawReply(response.status, response.headers, await response.read(), response.raw_headers)

    async def close(self) -> None:
        await self._session.close()
