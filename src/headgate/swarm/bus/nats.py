"""A bus of NATS servers. The courier does the travelling; whoever publishes only leaves the message."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...errors import InvalidConfig, StoreError
from ...sharing.courier import COURIER
from .bus import RETAINED, Message, NetworkBus, call, check_subject, not_installed

if TYPE_CHECKING:
    from .bus import Deliver

# How long the first connection may take, and how often a lost one is looked for.
_FIRST = 5.0
_AGAIN = 0.1
# How often the server is asked whether it is there: a connection that was cut is not always told so.
_PING = 2
_BUCKET = "headgate"


class NatsBus(NetworkBus):
    """`NatsBus("nats://host:4222")`; several servers are separated by commas."""

    def __init__(self, address: str, *, connect_timeout: float = _FIRST) -> None:
        try:
            import nats  # noqa: PLC0415 - an extra
        except ImportError:
            raise not_installed(address, "nats-py", "nats") from None
        self._connect = nats.connect
        self._servers = address.split(",")
        self._shelf: Any = None  # its key-value bucket, where there is one
        super().__init__(address, connect_timeout)

    async def _begin(self) -> None:
        self._client = await self._connect(
            servers=self._servers,
            name="headgate",
            connect_timeout=_FIRST,
            reconnect_time_wait=_AGAIN,
            max_reconnect_attempts=-1,
            ping_interval=_PING,
            disconnected_cb=self._is_deaf,
            reconnected_cb=self._hears_again,
            error_cb=self._complain,
        )
        # Servers of a cluster may lose each other and each go on with those who are connected to it.
        self.splits = len(self._client.servers) > 1 or len(self._client.discovered_servers) > 0

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        """Leave it with the courier."""
        check_subject(subject)
        self._raise_if_closed()

        async def travel() -> None:
            client = self._client
            try:
                if client.is_connected:  # what could not be said in time is better not said at all
                    await client.publish(subject, data)
                    if retain:
                        await self._keep(subject, data)
            except Exception as error:  # noqa: BLE001 - whoever listens is told again by the next message
                logging.getLogger("headgate").debug("%s was not published: %r", subject, error)

        COURIER.send(travel)

    def subscribe(self, subject: str, deliver: Deliver, *, queue: str | None = None) -> NatsSubscription:
        """Have it called, by the courier, with every message on the subject."""
        check_subject(subject)
        if queue == "":
            raise InvalidConfig('queue="" has no name; write one, e.g. queue="workers", or leave it out')
        self._raise_if_closed()
        subscription = NatsSubscription(deliver)

        async def begin() -> None:
            if not self._client.is_closed:
                subscription.there = await self._client.subscribe(
                    subject, queue=queue or "", cb=subscription.hear
                )
                if self._client.is_connected:
                    await self._client.flush()  # from now on nothing is missed
                if subscription.closed:
                    await subscription.there.unsubscribe()

        if COURIER.here:
            COURIER.send(begin)
        else:
            try:
                COURIER.wait_for(begin, _FIRST)
            except Exception as error:
                raise StoreError(f"{subject!r} cannot be subscribed to: {error!r}") from error
        return subscription

    def request(self, subject: str, data: bytes, *, timeout: float = 5.0) -> Message:
        """Ask, and wait for the first answer: for threads that may wait. Raises StoreError if none comes."""

        async def ask() -> Message:
            answer = await self._client.request(subject, data, timeout=timeout)
            return Message(answer.subject, answer.data, answer.reply)

        try:
            answer: Message = COURIER.wait_for(ask, timeout + 1)
        except Exception as error:
            raise StoreError(f"nobody answered on {subject!r}: {error!r}") from error
        return answer

    def recall(self, subject: str, deliver: Deliver) -> None:
        """Have it called with what was retained there, if the server keeps anything (JetStream)."""

        async def look() -> None:
            shelf = await self._find_shelf()
            if shelf is not None:
                try:
                    entry = await shelf.get(subject)
                except Exception:  # noqa: BLE001 - nothing was kept, or it cannot be had now
                    return
                if entry.value:
                    deliver(Message(subject, entry.value))

        COURIER.send(look)

    async def _keep(self, subject: str, data: bytes) -> None:
        shelf = await self._find_shelf()
        if shelf is not None:
            await shelf.put(subject, data)

    async def _find_shelf(self) -> Any:
        if self._shelf is None:
            try:
                jetstream = self._client.jetstream(timeout=1.0)
                self._shelf = await jetstream.create_key_value(bucket=_BUCKET, history=1, ttl=RETAINED)
            except Exception:  # noqa: BLE001 - most servers have none, and we do without
                self._shelf = False
        return self._shelf or None

    async def _is_deaf(self) -> None:
        self._tell(hears=False)

    async def _hears_again(self) -> None:
        self._tell(hears=True)

    async def _complain(self, error: Exception) -> None:
        # What the server said explains more than that the line was cut, as it is after every refusal.
        if self._complaint is None or not isinstance(error, OSError):
            self._complaint = error
        logging.getLogger("headgate").debug("the bus complains: %r", error)

    async def _end(self) -> None:
        try:
            await self._client.flush(timeout=1)
        except Exception:  # noqa: BLE001 - nobody is there to hear it
            logging.getLogger("headgate").debug("the bus was closed while it was deaf")
        await self._client.close()


class NatsSubscription:
    """Somebody who listens."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self.there: Any = None
        self.closed = False

    async def hear(self, message: Any) -> None:
        if not self.closed:
            call(self._deliver, Message(message.subject, message.data, message.reply))

    def close(self) -> None:
        """Listen no more. Twice is fine."""
        if self.closed:
            return
        self.closed = True

        async def end() -> None:
            try:
                if self.there is not None:
                    await self.there.unsubscribe()
            except Exception:  # noqa: BLE001 - then nothing comes from there anyway
                logging.getLogger("headgate").debug("unsubscribed from a bus that is gone")

        COURIER.send(end)
