"""One Valkey or Redis server, as the store and the bus of that server reach it.

Rules of this room: a URL that cannot work is refused before anything is connected, without its password. A
command is sent a second time only if the first connection was lost, so it must be safe to repeat. A lost
listener reconnects until it is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ..errors import InvalidConfig
from .store import without_password

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import NoReturn

    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

T = TypeVar("T")

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss", "unix": "unix"}

# How many seconds a listener waits before it reconnects: doubled each time, up to the latter.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5


def client_of(
    url: str, what: str, *, timeout: float, connect_timeout: float, **options: Any
) -> Callable[[], Redis]:
    """A function that makes a client of that server.

    Raises InvalidConfig, which begins with `what` ("store" or "bus"), if the URL cannot work or redis-py is
    not installed. Connects to nothing yet.
    """
    shown = without_password(url)

    def wrong(why: str) -> NoReturn:
        raise InvalidConfig(f"{what}={shown!r} {why}; write e.g. redis://user:password@host:6379/0") from None

    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in _SCHEMES:
        wrong("is not the URL of a Valkey or Redis server")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its own words may quote the password
        wrong("has a host or port that cannot be read (in a password, write %40 for @, %2F for /, %23 for #)")
    if scheme != "unix":
        if not parts.hostname or port == 0:
            wrong("names no server")
        if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
            wrong("has a path that is not the number of a database")
    try:
        from redis.asyncio import Redis  # noqa: PLC0415 - an extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415 - as above
        from redis.backoff import NoBackoff  # noqa: PLC0415 - as above
        from redis.exceptions import RedisError  # noqa: PLC0415 - as above
    except ImportError as error:
        raise InvalidConfig(
            f'{what}={shown!r} needs a client that is not installed; run: pip install "headgate[redis]"'
        ) from error

    def client() -> Redis:
        return Redis.from_url(
            f"{_SCHEMES[scheme]}://{rest}",
            socket_timeout=timeout,
            socket_connect_timeout=connect_timeout,
            retry=Retry(NoBackoff(), 0),  # `send_again_if_lost` knows better what may be sent twice
            protocol=2,
            **options,
        )

    try:
        client().connection_pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py has no types
    except (ValueError, TypeError, RedisError):
        wrong("has options that cannot be read")
    return client


async def send_again_if_lost(send: Callable[[], Awaitable[T]]) -> T:
    """Send, and once more if the connection was lost: it may have broken while it was idle."""
    from redis import exceptions  # noqa: PLC0415 - an extra

    try:
        return await send()
    except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.BusyLoadingError):
        raise  # connection errors by their class, but answers of a server that was reached
    except exceptions.ConnectionError:
        return await send()


class Listener:
    """Subscribes to channels on a connection of its own, and on another one when that is lost.

    `wanted()` lists the channels. `heard(kind, channel, data)` is called with kind "message" for every
    message, and with kind "subscribe" once a subscription is in force, after a reconnection too.
    `changed(True)` is called when a connection is there and `changed(False)` when it is lost. A server that
    is silent for `quiet` seconds is asked to answer within `timeout` seconds.
    """

    def __init__(
        self,
        client: Redis,
        wanted: Callable[[], Sequence[bytes]],
        heard: Callable[[str, bytes, Any], object],
        *,
        quiet: float,
        timeout: float,
        changed: Callable[[bool], object] = bool,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._heard = heard
        self._changed = changed
        self._quiet = quiet
        self._timeout = timeout
        self._pubsub: PubSub | None = None

    @property
    def connected(self) -> bool:
        return self._pubsub is not None

    async def run(self) -> None:
        """Listen until this task is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._client.pubsub() as pubsub:
                    channels = self._wanted()
                    await pubsub.subscribe(*channels)
                    self._pubsub = pubsub
                    late = [channel for channel in self._wanted() if channel not in channels]
                    if late:
                        await pubsub.subscribe(*late)
                    self._changed(True)
                    while True:
                        await self._hear(pubsub)
                        pause = _FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 - whatever it was, the answer is a new connection
                logging.getLogger("headgate").debug("a listener lost its connection: %r", error)
            finally:
                was_connected, self._pubsub = self.connected, None
            if was_connected:
                self._changed(False)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def subscribe(self, channel: bytes) -> None:
        """Listen on another channel, which `wanted` lists by now: without a connection, on the next one."""
        if self._pubsub is not None:
            with suppress(Exception):  # `run` notices a lost connection too, and begins another
                await self._pubsub.subscribe(channel)

    async def unsubscribe(self, channel: bytes) -> None:
        if self._pubsub is not None:
            with suppress(Exception):  # from a lost connection nothing comes
                await self._pubsub.unsubscribe(channel)

    async def _hear(self, pubsub: PubSub) -> None:
        message = await pubsub.get_message(timeout=self._quiet)
        if message is None:
            await pubsub.ping()
            message = await pubsub.get_message(timeout=self._timeout)
            if message is None:
                raise TimeoutError("the server does not answer")
        if message["type"] in ("subscribe", "message"):
            channel = message["channel"]
            if isinstance(channel, str):  # the URL asked for decoded replies
                channel = channel.encode("utf-8", "surrogateescape")
            self._heard(message["type"], channel, message["data"])
