"""A bus of one Redis or Valkey server, by its publish and subscribe. The courier does the I/O."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ...sharing.courier import COURIER
from ...sharing.redis_connection import Listener, client_of, send_again_if_lost
from .bus import RETAINED, Message, Subscription, check_subject
from .network import CONNECT_TIMEOUT, NetworkBus

if TYPE_CHECKING:
    from .bus import Deliver

# How long the server may be silent before it is asked to answer, and how long it may take to answer.
_PING = 2.0
# A channel without messages: a connection without any subscription would not notice that it is lost.
_SILENT = b"headgate.silent"


class RedisBus(NetworkBus):
    """`RedisBus("redis://host:6379/0")` or `"valkey://…"`."""

    def __init__(self, address: str, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self._client_of = client_of(
            address,
            "bus",
            timeout=_PING,
            connect_timeout=_PING,
            client_name="headgate",
            single_connection_client=True,  # keeps the order in which messages were published
        )
        self._subscriptions: dict[bytes, list[Subscription]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._publishing: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Task[None] | None = None
        super().__init__(address, connect_timeout)

    async def _begin(self) -> None:
        self._client = self._client_of()
        await self._client.ping()
        self._ready = asyncio.Event()
        self._listener = Listener(
            self._client,
            self._wanted,
            self._hear,
            quiet=_PING,
            timeout=_PING,
            changed=self._connection_changed,
        )
        self._listening = asyncio.create_task(self._listener.run())
        await self._ready.wait()

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        """Hand the message to the courier; never waits."""
        check_subject(subject)
        self._raise_if_closed()

        async def send() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._publishing.add(task)
            try:
                if not self._listener.connected:
                    return  # a message that would arrive late is worse than none
                if retain:
                    await self._send("SET", f"headgate:{subject}", data, "EX", round(RETAINED))
                await self._send("PUBLISH", subject, data)
            except Exception as error:  # noqa: BLE001 - the next message says it again
                logging.getLogger("headgate").debug("%s was not published: %r", subject, error)
            finally:
                self._publishing.discard(task)

        COURIER.send(send)

    async def _send(self, *command: Any) -> None:
        await send_again_if_lost(lambda: self._client.execute_command(*command))

    def subscribe_soon(self, subject: str, deliver: Deliver) -> Subscription:
        self._raise_if_closed()
        subscription = Subscription(subject, deliver, self._unsubscribe)
        channel = subject.encode()
        with self._lock:
            self._subscriptions.setdefault(channel, []).append(subscription)
        COURIER.send(lambda: self._listener.subscribe(channel))
        return subscription

    async def _confirm(self, subscription: Subscription) -> None:
        await self._confirmed.setdefault(subscription.subject.encode(), asyncio.Event()).wait()

    def _unsubscribe(self, subscription: Subscription) -> None:
        """Forget a subscription, and end the server's for the channel if it was the last one."""
        channel = subscription.subject.encode()
        with self._lock:
            self._subscriptions[channel].remove(subscription)

        async def end() -> None:
            if not self._subscriptions.get(channel):
                self._confirmed.pop(channel, None)
                await self._listener.unsubscribe(channel)

        COURIER.send(end)

    def recall(self, subject: str, deliver: Deliver) -> None:
        """Have `deliver` called with the message that was retained there, if there is one."""

        async def look() -> None:
            try:
                data = await self._client.get(f"headgate:{subject}")
            except Exception:  # noqa: BLE001 - then there is nothing to recall
                return
            if data:
                deliver(Message(subject, data))

        COURIER.send(look)

    # -- listening

    def _wanted(self) -> list[bytes]:
        with self._lock:
            return [_SILENT, *(channel for channel, listening in self._subscriptions.items() if listening)]

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

    async def _end(self) -> None:
        await asyncio.gather(*list(self._publishing), return_exceptions=True)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        try:
            await self._client.aclose()
        except Exception:  # noqa: BLE001 - the connection was lost before
            logging.getLogger("headgate").debug("the bus was closed while its connection was lost")
