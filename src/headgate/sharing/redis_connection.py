"""Valkey or Redis servers, as the store and the bus of those servers reach them.

Rules of this room: a command is sent a second time only if the first connection was lost, so it must be safe
to repeat. A lost listener reconnects until it is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .redis_address import close_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

    from .redis_address import Address

    Command = tuple[Any, ...]
    Heard = Callable[[str, bytes, Any], object]
    # After how many silent seconds a listener asks whether the server is still there, and how many it waits.
    Times = tuple[float, float]

T = TypeVar("T")

# How many seconds a listener waits before it reconnects: doubled each time, up to the latter.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5

# The servers that this process has warned about.
_warned: set[str] = set()


class Servers(Protocol):
    """What a store asks: one server, or the primaries of a cluster."""

    def lane(self, key: bytes) -> Hashable:
        """Return what the commands for this key are sent together with."""

    async def send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        """Send commands, each with its key. Return replies, or exceptions; raise if no server is reached."""

    async def clients(self) -> list[Redis]:
        """Return a client of every server that has keys."""

    def listener(self, wanted: Callable[[], Sequence[bytes]], heard: Heard, times: Times) -> AnyListener:
        """Return what listens to the channels."""

    async def close(self) -> None:
        """Close all connections."""


class AnyListener(Protocol):
    """Listens to channels, and reconnects when that is needed."""

    async def run(self) -> None:
        """Listen until this task is cancelled."""

    async def subscribe(self, channel: bytes) -> None:
        """Listen to another channel, which is wanted by now."""

    async def unsubscribe(self, channel: bytes) -> None:
        """Listen no longer to a channel, which is not wanted any more."""


class Node:
    """One server. With the first commands it is asked what it does when its memory is full."""

    def __init__(self, client: Redis, shown: str) -> None:
        self.client = client
        self._shown = shown
        self._looked = False

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together. Return the reply to each, or an exception; raise if it is not reached."""
        looks = not self._looked
        async with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            if looks:
                pipeline.execute_command("INFO", "memory")
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        if looks:
            self._looked = True
            self._look(replies.pop())
        return replies

    def _look(self, memory: Any) -> None:
        """Warn about a server that may forget pools. A user who may not ask is not told."""
        policy = memory.get("maxmemory_policy", "noeviction") if isinstance(memory, dict) else "noeviction"
        if policy != "noeviction" and self._shown not in _warned:
            _warned.add(self._shown)
            logging.getLogger("headgate").warning(
                "%s has the maxmemory-policy %s: when its memory is full, it deletes keys, and forgets "
                "what was used; set it to noeviction",
                self._shown,
                policy,
            )


class OneServer:
    """A single server, or the one that sentinels name."""

    def __init__(self, address: Address) -> None:
        self.client = address.client()
        self._node = Node(self.client, address.shown)

    def lane(self, _key: bytes) -> Hashable:
        return None

    async def send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        from redis import exceptions  # noqa: PLC0415 - an extra

        together = [command for _, command in commands]
        replies = await send_again_if_lost(lambda: self._node.send(together))
        if any(isinstance(reply, exceptions.ReadOnlyError) for reply in replies):
            # The primary has become a replica, and its name may lead to another server by now.
            await self.client.connection_pool.disconnect()
        return replies

    async def clients(self) -> list[Redis]:
        return [self.client]

    def listener(self, wanted: Callable[[], Sequence[bytes]], heard: Heard, times: Times) -> AnyListener:
        return Listener(self.client, wanted, heard, times)

    async def close(self) -> None:
        await close_client(self.client)


async def send_again_if_lost(send: Callable[[], Awaitable[T]]) -> T:
    """Send, and once more if the connection was lost: it may have broken while it was idle."""
    from redis import exceptions  # noqa: PLC0415 - an extra

    try:
        return await send()
    except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.BusyLoadingError):
        raise  # connection errors by their class, but answers of a server that was reached
    except exceptions.ConnectionError:
        return await send()


def code_of(reply: Any) -> str:
    """The first word of an error that a server answered, e.g. MOVED; "" for anything else.

    Only recent versions of redis-py have classes for what a cluster answers to a client of one server.
    """
    from redis import exceptions  # noqa: PLC0415 - an extra

    if not isinstance(reply, exceptions.ResponseError):
        return ""
    for kind, code in (
        (exceptions.MovedError, "MOVED"),  # before AskError, which it is too
        (exceptions.AskError, "ASK"),
        (exceptions.TryAgainError, "TRYAGAIN"),
        (exceptions.ClusterDownError, "CLUSTERDOWN"),
        (exceptions.ReadOnlyError, "READONLY"),
    ):
        if isinstance(reply, kind):
            return code
    return str(reply).partition(" ")[0]


class Listener:
    """Subscribes to channels on a connection of its own, and on another one when that is lost.

    `wanted()` lists the channels. `heard(kind, channel, data)` is called with kind "message" for every
    message, and with kind "subscribe" once a subscription is in force, after a reconnection too.
    `changed(True)` is called when a connection is there and `changed(False)` when it is lost. A server that
    is silent for the first of `times` is asked to answer within the second. With `sharded`, the channels are
    those of a shard of a cluster, unless the server does not know such.
    """

    def __init__(
        self,
        client: Redis,
        wanted: Callable[[], Sequence[bytes]],
        heard: Heard,
        times: Times,
        *,
        changed: Callable[[bool], object] = bool,
        sharded: bool = False,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._heard = heard
        self._changed = changed
        self._quiet, self._timeout = times
        self._sharded = sharded
        self._pubsub: PubSub | None = None
        self.channels: set[bytes] = set()  # those that this connection was asked for

    @property
    def connected(self) -> bool:
        return self._pubsub is not None

    async def run(self) -> None:
        """Listen until this task is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._client.pubsub() as pubsub:
                    self.channels.clear()
                    await self._subscribe(pubsub, self._wanted())
                    self._pubsub = pubsub
                    late = [channel for channel in self._wanted() if channel not in self.channels]
                    if late:
                        await self._subscribe(pubsub, late)
                    for channel in self.channels.difference(self._wanted()):
                        await self._unsubscribe(pubsub, channel)
                    self._changed(True)
                    while True:
                        await self._hear(pubsub)
                        pause = _FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 - whatever it was, the answer is a new connection
                logging.getLogger("headgate").debug("a listener lost its connection: %r", error)
                self._sharded = self._sharded and not _does_not_shard(error)
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
                await self._subscribe(self._pubsub, [channel])

    async def unsubscribe(self, channel: bytes) -> None:
        if self._pubsub is not None:
            with suppress(Exception):  # from a lost connection nothing comes
                await self._unsubscribe(self._pubsub, channel)

    async def _unsubscribe(self, pubsub: PubSub, channel: bytes) -> None:
        self.channels.discard(channel)
        if not self._sharded:
            await pubsub.unsubscribe(channel)
        elif hasattr(pubsub, "sunsubscribe"):
            await pubsub.sunsubscribe(channel)
        else:  # an earlier redis-py
            await pubsub.execute_command("SUNSUBSCRIBE", channel)

    async def _subscribe(self, pubsub: PubSub, channels: Sequence[bytes]) -> None:
        self.channels.update(channels)
        if not self._sharded:
            await pubsub.subscribe(*channels)
            return
        for channel in channels:  # one by one: they are not all in one slot
            if hasattr(pubsub, "ssubscribe"):
                await pubsub.ssubscribe(channel)
            else:  # an earlier redis-py
                await pubsub.execute_command("SSUBSCRIBE", channel)

    async def _hear(self, pubsub: PubSub) -> None:
        message = await pubsub.get_message(timeout=self._quiet)
        if message is None:
            await pubsub.ping()
            message = await pubsub.get_message(timeout=self._timeout)
            if message is None:
                raise TimeoutError("the server does not answer")
        kind, channel = message["type"], message["channel"]
        if isinstance(channel, str):  # the URL asked for decoded replies
            channel = channel.encode("utf-8", "surrogateescape")
        if kind == "sunsubscribe" and channel in self.channels:
            raise ConnectionError("the slot of this channel has moved to another server")
        if kind in ("subscribe", "message", "ssubscribe", "smessage"):
            self._heard("message" if "message" in kind else "subscribe", channel, message["data"])


def _does_not_shard(error: Exception) -> bool:
    """Whether the server says that it has no channels of shards, or that this user may not use them."""
    from redis import exceptions  # noqa: PLC0415 - an extra

    return isinstance(error, exceptions.NoPermissionError) or "unknown command" in str(error).lower()
