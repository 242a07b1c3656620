"""A bus of one Redis or Valkey server, by its publish and subscribe. The courier does the travelling."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ...errors import InvalidConfig, StoreError
from ...sharing.courier import COURIER
from .bus import RETAINED, Message, NetworkBus, _check_subject, call, not_installed

if TYPE_CHECKING:
    from .bus import Deliver

# How long the first connection may take, and how soon a lost one is looked for again.
_FIRST = 5.0
_AGAIN = 0.1
# How long the server may be silent before it is asked whether it is there, and again before it is not.
_PING = 2.0
# A connection that listens nowhere would not be told that it is lost.
_NOBODY = "headgate.nobody"


class RedisBus(NetworkBus):
    """`RedisBus("redis://host:6379/0")` or `"valkey://…"`."""

    def __init__(self, address: str, *, connect_timeout: float = _FIRST) -> None:
        try:
            import redis.asyncio  # noqa: PLC0415 - an extra
            import redis.exceptions  # noqa: PLC0415
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415
        except ImportError:
            raise not_installed(address, "redis-py", "redis") from None
        self._module = redis.asyncio
        self._lost = redis.exceptions.ConnectionError
        self._no_retry = Retry(NoBackoff(), 0)
        self._address = "redis" + address.removeprefix("valkey") if address.startswith("valkey") else address
        self._listeners: dict[str, list[RedisSubscription]] = {}
        self._ears: Any = None  # the connection that listens, while there is one
        self._confirmed: dict[str, asyncio.Event] = {}
        self._underway: set[asyncio.Task[Any]] = set()
        self._ready: asyncio.Event | None = None
        super().__init__(address, connect_timeout)

    async def _begin(self) -> None:
        self._client = self._module.Redis.from_url(
            self._address,
            socket_timeout=_PING,
            socket_connect_timeout=_PING,
            client_name="headgate",
            single_connection_client=True,  # so that what is said first is heard first
            retry=self._no_retry,
        )
        await self._client.ping()
        self._ready = asyncio.Event()
        COURIER.send(self._listen)
        await self._ready.wait()

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        """Leave it with the courier."""
        _check_subject(subject)
        self._raise_if_closed()

        async def travel() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._underway.add(task)
            try:
                if self._ears is None:
                    return  # what cannot be said in time is better not said at all
                if retain:
                    await self._say("SET", f"headgate:{subject}", data, "EX", round(RETAINED))
                await self._say("PUBLISH", subject, data)
            except Exception as error:  # noqa: BLE001 - whoever listens is told again by the next message
                logging.getLogger("headgate").debug("%s was not published: %r", subject, error)
            finally:
                self._underway.discard(task)

        COURIER.send(travel)

    async def _say(self, *command: Any) -> None:
        try:
            await self._client.execute_command(*command)
        except self._lost:  # by a connection that broke while nobody used it: once more, on another
            await self._client.execute_command(*command)

    def subscribe(self, subject: str, deliver: Deliver, *, queue: str | None = None) -> RedisSubscription:
        """Have it called, by the courier, with every message on the subject."""
        _check_subject(subject)
        if queue is not None:
            raise InvalidConfig(f"queue={queue!r}: Redis has no queues of subscribers; leave it out")
        self._raise_if_closed()
        subscription = RedisSubscription(self, subject, deliver)
        with self._lock:
            self._listeners.setdefault(subject, []).append(subscription)

        async def begin() -> None:
            confirmed = self._confirmed.setdefault(subject, asyncio.Event())
            try:
                if self._ears is not None:
                    await self._ears.subscribe(subject)
                await asyncio.wait_for(confirmed.wait(), _FIRST)
            except Exception as error:
                if waited:
                    raise
                logging.getLogger("headgate").debug("%s is not heard yet: %r", subject, error)

        waited = not COURIER.here
        if not waited:
            COURIER.send(begin)
        else:
            try:
                COURIER.wait_for(begin, _FIRST + 1)
            except Exception as error:
                raise StoreError(f"{subject!r} cannot be subscribed to: {error!r}") from error
        return subscription

    def recall(self, subject: str, deliver: Deliver) -> None:
        """Have it called with what was retained there."""

        async def look() -> None:
            try:
                data = await self._client.get(f"headgate:{subject}")
            except Exception:  # noqa: BLE001 - then there is nothing to recall
                return
            if data:
                deliver(Message(subject, data))

        COURIER.send(look)

    # -- listening

    async def _listen(self) -> None:
        """Listen where somebody wants to, on a connection of our own, and on another when it is lost."""
        deaf = False
        while not self._closed:
            try:
                async with self._client.pubsub() as ears:
                    with self._lock:
                        wanted = [subject for subject, listening in self._listeners.items() if listening]
                    await ears.subscribe(_NOBODY, *wanted)
                    self._ears = ears
                    assert self._ready is not None
                    self._ready.set()
                    if deaf:
                        deaf = False
                        self._tell(hears=True)
                    await self._hear(ears)
            except Exception as error:  # noqa: BLE001 - whatever it was: try again
                logging.getLogger("headgate").debug("the bus is deaf: %r", error)
            self._ears = None
            if not deaf and not self._closed:
                deaf = True
                self._tell(hears=False)
            for confirmed in self._confirmed.values():
                confirmed.clear()
            await asyncio.sleep(_AGAIN)

    async def _hear(self, ears: Any) -> None:
        """Whatever comes. Raises what ends the connection."""
        asked = False
        while not self._closed:
            reply = await ears.parse_response(block=False, timeout=_PING)
            if reply is not None:
                asked = False
                self._take(reply)
            elif asked:
                raise TimeoutError("the server does not answer")
            else:
                asked = True
                await ears.ping()

    def _take(self, reply: Any) -> None:
        kind = reply[0].decode() if isinstance(reply[0], bytes) else reply[0]
        subject = reply[1].decode() if len(reply) > 1 and isinstance(reply[1], bytes) else ""
        if kind == "subscribe":
            self._confirmed.setdefault(subject, asyncio.Event()).set()
        elif kind == "message":
            for each in list(self._listeners.get(subject, ())):
                each.hear(Message(subject, reply[2]))

    async def _end(self) -> None:
        await asyncio.gather(*list(self._underway), return_exceptions=True)
        try:
            await self._client.aclose()
        except Exception:  # noqa: BLE001 - nobody is there any more
            logging.getLogger("headgate").debug("the bus was closed while it was deaf")


class RedisSubscription:
    """Somebody who listens."""

    def __init__(self, bus: RedisBus, subject: str, deliver: Deliver) -> None:
        self._bus = bus
        self._subject = subject
        self._deliver = deliver
        self.closed = False

    def hear(self, message: Message) -> None:
        if not self.closed:
            call(self._deliver, message)

    def close(self) -> None:
        """Listen no more. Twice is fine."""
        if self.closed:
            return
        self.closed = True
        with self._bus._lock:
            listening = self._bus._listeners.get(self._subject, [])
            if self in listening:
                listening.remove(self)
            last = not listening

        async def end() -> None:
            ears = self._bus._ears
            try:
                if last and ears is not None and not self._bus._listeners.get(self._subject):
                    self._bus._confirmed.pop(self._subject, None)
                    await ears.unsubscribe(self._subject)
            except Exception:  # noqa: BLE001 - then nothing comes from there anyway
                logging.getLogger("headgate").debug("unsubscribed from a bus that is gone")

        COURIER.send(end)
