"""A bus of one Redis or Valkey server, or of the one that sentinels name. The courier does the I/O."""

from __future__ import annotations

import asyncio
from typing import Any

from ...errors import InvalidConfig
from ...sharing.redis_address import address_of, close_client
from ...sharing.redis_connection import Listener, send_again_if_lost
from .bus import RETAINED, Message, Subscription
from .network import CONNECT_TIMEOUT, NetworkBus

# How long the server may be silent before it is asked to answer, and how long it may take to answer.
_PING = 2.0
# A channel without messages: a connection without any subscription would not notice that it is lost.
_SILENT = b"headgate.silent"


class RedisBus(NetworkBus):
    """`RedisBus("redis://host:6379/0")` or `"valkey://…"`."""

    def __init__(self, address: str, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self._servers = address_of(
            address, "bus", timeout=_PING, connect_timeout=_PING, client_name="headgate"
        )
        if self._servers.kind == "cluster":
            raise InvalidConfig(
                f"bus={self._servers.shown!r}: a bus is one server, or one behind sentinels; write e.g. "
                "redis+sentinel://host:26379/name"
            )
        self._subscriptions: dict[bytes, list[Subscription]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._listening: asyncio.Task[None] | None = None
        super().__init__(address, connect_timeout)

    async def _connect(self) -> None:
        # One connection keeps the order in which messages were published.
        self._client = self._servers.client(one_connection=True)
        await self._client.ping()
        self._ready = asyncio.Event()
        wanted, changed = lambda: [_SILENT, *self._subscriptions], self._connection_changed
        self._listener = Listener(self._client, wanted, self._hear, (_PING, _PING), changed=changed)
        self._listening = asyncio.create_task(self._listener.run())
        await self._ready.wait()

    async def _publish(self, subject: str, data: bytes, retain: bool) -> None:
        if self._listener.connected:  # a message that would arrive late is worse than none
            if retain:
                await self._send("SET", f"headgate:{subject}", data, "EX", round(RETAINED))
            await self._send("PUBLISH", subject, data)

    async def _send(self, *command: Any) -> None:
        await send_again_if_lost(lambda: self._client.execute_command(*command))

    async def _subscribe(self, subscription: Subscription) -> None:
        channel = subscription.subject.encode()
        self._subscriptions.setdefault(channel, []).append(subscription)
        await self._listener.subscribe(channel)

    async def _confirm(self, subscription: Subscription) -> None:
        await self._confirmed.setdefault(subscription.subject.encode(), asyncio.Event()).wait()

    async def _unsubscribe(self, subscription: Subscription) -> None:
        channel = subscription.subject.encode()
        self._subscriptions[channel].remove(subscription)
        if not self._subscriptions[channel]:
            del self._subscriptions[channel]
            self._confirmed.pop(channel, None)
            await self._listener.unsubscribe(channel)

    async def _recall(self, subject: str) -> bytes | None:
        data: bytes | None = await self._client.get(f"headgate:{subject}")
        return data

    # -- listening

    def _hear(self, kind: str, channel: bytes, data: Any) -> None:
        if kind == "subscribe":
            self._confirmed.setdefault(channel, asyncio.Event()).set()
        else:
            for each in list(self._subscriptions.get(channel, ())):
                each.hear(Message(channel.decode(), data))

    def _connection_changed(self, connected: bool) -> None:
        if not connected:
            for confirmed in self._confirmed.values():
                confirmed.clear()
        if self._ready.is_set():  # the first connection is not a change
            self._tell(connected=connected)
        self._ready.set()

    async def _disconnect(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await close_client(self._client)
