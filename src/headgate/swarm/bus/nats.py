"""A bus of NATS servers. The courier does the I/O; publishing only hands it a message."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from ...errors import InvalidConfig
from ...sharing.store import without_password
from .bus import RETAINED, Message, Subscription
from .network import CONNECT_TIMEOUT, NetworkBus

# How many seconds the client waits before it reconnects.
_RECONNECT_AFTER = 0.1
# How often the server is asked to answer: a connection that was cut is not always reported.
_PING = 2
_BUCKET = "headgate"


class NatsBus(NetworkBus):
    """`NatsBus("nats://host:4222")`; several servers are separated by commas."""

    def __init__(self, address: str, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        try:
            import nats  # noqa: PLC0415 - an extra
        except ImportError:
            raise InvalidConfig(
                f"bus={without_password(address)!r} needs a client that is not installed; "
                'run: pip install "headgate[nats]"'
            ) from None
        self._make_client = nats.connect
        self._servers = address.split(",")
        self._subscriptions: dict[Subscription, Any] = {}  # the client's, by ours
        self._bucket: Any = None  # the key-value bucket for retained messages; False if the server has none
        super().__init__(address, connect_timeout)

    async def _connect(self) -> None:
        self._client = await self._make_client(
            servers=self._servers,
            name="headgate",
            connect_timeout=max(0.5, CONNECT_TIMEOUT / len(self._servers)),  # so that each of them is tried
            reconnect_time_wait=_RECONNECT_AFTER,
            max_reconnect_attempts=-1,
            ping_interval=_PING,
            disconnected_cb=partial(self._changed, connected=False),
            reconnected_cb=partial(self._changed, connected=True),
            error_cb=self.note_error,
        )
        # Servers of a cluster may lose each other, and each go on with the agents connected to it.
        self.splits = len(self._client.servers) > 1 or len(self._client.discovered_servers) > 0

    async def _publish(self, subject: str, data: bytes, retain: bool) -> None:
        if self._client.is_connected:  # a message that would arrive late is worse than none
            await self._client.publish(subject, data)
            bucket = await self._find_bucket() if retain else None
            if bucket is not None:
                await bucket.put(subject, data)

    async def _subscribe(self, subscription: Subscription) -> None:
        async def hear(message: Any) -> None:
            subscription.hear(Message(message.subject, message.data))

        if not self._client.is_closed:
            self._subscriptions[subscription] = await self._client.subscribe(subscription.subject, cb=hear)

    async def _confirm(self, _subscription: Subscription) -> None:
        if self._client.is_connected:
            await self._client.flush()

    async def _unsubscribe(self, subscription: Subscription) -> None:
        await self._subscriptions.pop(subscription).unsubscribe()

    async def _recall(self, subject: str) -> bytes | None:
        bucket = await self._find_bucket()
        return None if bucket is None else (await bucket.get(subject)).value

    async def _find_bucket(self) -> Any:
        if self._bucket is None:
            try:
                jetstream = self._client.jetstream(timeout=1.0)
                self._bucket = await jetstream.create_key_value(bucket=_BUCKET, history=1, ttl=RETAINED)
            except Exception:  # noqa: BLE001 - most servers have no JetStream, and the swarm works without
                self._bucket = False
        return self._bucket or None

    async def _changed(self, *, connected: bool) -> None:
        self._tell(connected=connected)

    async def note_error(self, error: Exception) -> None:
        """Keep an error of the client for the message of StoreError."""
        # An answer of the server explains more than the cut connection that follows every refusal.
        if self._last_error is None or not isinstance(error, OSError):
            self._last_error = error
        logging.getLogger("headgate").debug("an error of the bus: %r", error)

    async def _disconnect(self) -> None:
        try:
            await self._client.flush(timeout=1)
        finally:
            await self._client.close()
