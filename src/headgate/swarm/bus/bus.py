"""A bus: what one says on a subject, everybody who listens there hears. And one of them, in this process.

Rules of this room: whoever speaks never waits and never fails because nobody could be reached; a message is
heard once, or not at all. A bus says when it is deaf, and listens again by itself where it listened before.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ...arguments import SECOND, positive_seconds_to_ns
from ...errors import Closed, InvalidConfig, StoreError, WaitTimeout
from ...sharing.courier import COURIER
from ...sharing.store import without_password

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeAlias

    from ...typing import Seconds

    Deliver: TypeAlias = Callable[["Message"], object]

    class Subscribed(Protocol):
        """Somebody who listens."""

        def close(self) -> None:
            """Listen no more. Twice is fine."""

    class Bus(Protocol):
        """What a swarm needs of a bus."""

        settles: float  # seconds within which whoever is there has heard a question and answered it
        splits: bool  # may it fall into parts that do not know of each other? A cluster of servers may

        def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
            """Say it, now or as soon as possible. `retain`: and have it repeated to whoever recalls it."""

        def subscribe(self, subject: str, deliver: Deliver) -> Subscribed:
            """Have it called with every message on exactly this subject, one's own included."""

        def recall(self, subject: str, deliver: Deliver) -> None:
            """Have it called with what was retained there last, if anything was and it is not too old."""

        def watch(self, notify: Callable[[bool], object]) -> None:
            """Have it called with False when the bus goes deaf, with True when it hears again."""

        def close(self) -> None:
            """Say and hear no more. Twice is fine."""


# How many messages wait for one who does not fetch them, and how long a retained one is worth anything.
BUFFER = 256
RETAINED = 600.0


class Message(NamedTuple):
    """What was said on a subject. `reply` is where to answer, if an answer is wanted."""

    subject: str
    data: bytes
    reply: str = ""


class Subscription:
    """Somebody who listens on one subject. Without `deliver`, messages wait here until they are fetched."""

    def __init__(
        self, bus: MemoryBus, subject: str, queue: str, deliver: Deliver | None, buffer: int
    ) -> None:
        self.subject = subject
        self.queue = queue
        self.dropped = 0  # messages that found no room
        self._bus = bus
        self._deliver = deliver
        self._buffer = buffer if buffer > 0 else BUFFER
        self._waiting: deque[Message] = deque()
        self._arrived = threading.Condition()
        self._closed = False

    def next(self, timeout: Seconds = 0.0) -> Message | None:
        """The oldest message that was not fetched yet; None if there is none, or will be none any more."""
        with self._arrived:
            if not self._waiting and not self._closed and timeout:
                self._arrived.wait(positive_seconds_to_ns(timeout, "timeout") / SECOND)
            return self._waiting.popleft() if self._waiting else None

    @property
    def closed(self) -> bool:
        """Will there be no more?"""
        return self._closed

    def close(self) -> None:
        """Listen no more. Twice is fine."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        self._bus._forget(self)

    def _hear(self, message: Message) -> None:
        if self._closed:
            return
        if self._deliver is not None:
            call(self._deliver, message)
            return
        with self._arrived:
            if len(self._waiting) >= self._buffer:
                self.dropped += 1
            else:
                self._waiting.append(message)
                self._arrived.notify()


class MemoryBus:
    """A bus for those in one process. Whoever publishes delivers, in order, before `publish` returns.

    >>> bus = MemoryBus()
    >>> heard = bus.subscribe("greetings")
    >>> bus.publish("greetings", b"good morning")
    >>> heard.next().data
    b'good morning'

    If somebody is delivering already, here or in another thread, it is left to them.
    """

    settles = 0.0
    splits = False

    _named: dict[str, MemoryBus] = {}  # noqa: RUF012 - found by name, by everybody in the process
    _naming = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, list[Subscription]] = {}
        self._retained: dict[str, Message] = {}
        self._turns: dict[tuple[str, str], int] = {}
        self._outbox: deque[Message] = deque()
        self._delivering = False
        self._inboxes = 0
        self._closed = False

    @classmethod
    def named(cls, name: str) -> MemoryBus:
        """The one of that name in this process, made if need be."""
        with cls._naming:
            bus = cls._named.get(name)
            if bus is None or bus._closed:
                bus = cls._named[name] = cls()
            return bus

    def publish(self, subject: str, data: bytes, *, reply: str = "", retain: bool = False) -> None:
        """Say it to everybody who listens on exactly this subject, and to one of each queue."""
        message = Message(check_subject(subject), bytes(data), reply)
        with self._lock:
            self._raise_if_closed()
            if retain:
                self._retained[subject] = message
            self._outbox.append(message)
            if self._delivering:
                return
            self._delivering = True
        self._deliver_all()

    def subscribe(
        self, subject: str, deliver: Deliver | None = None, *, queue: str | None = None, buffer: int = BUFFER
    ) -> Subscription:
        """Listen on a subject: `deliver` is called, or without it messages wait to be fetched by `next`.

        Of all who listen with the same `queue`, one gets each message. When `buffer` messages wait, more
        are dropped and counted.
        """
        if queue == "":
            raise InvalidConfig('queue="" has no name; write one, e.g. queue="workers", or leave it out')
        subscription = Subscription(self, check_subject(subject), queue or "", deliver, buffer)
        with self._lock:
            self._raise_if_closed()
            self._listeners.setdefault(subject, []).append(subscription)
        return subscription

    def request(self, subject: str, data: bytes, *, timeout: Seconds = 5.0) -> Message:
        """Ask, and wait for the first answer. Raises WaitTimeout if none comes in time."""
        wait = positive_seconds_to_ns(timeout, "timeout") / SECOND
        with self._lock:
            self._inboxes += 1
            inbox = f"_INBOX.{self._inboxes}"
        answers = self.subscribe(inbox)
        try:
            self.publish(subject, data, reply=inbox)
            answer = answers.next(wait)
        finally:
            answers.close()
        if answer is None:
            raise WaitTimeout(f"nobody answered on {subject!r} within {wait:g} s", rule="bus")
        return answer

    def recall(self, subject: str, deliver: Deliver) -> None:
        """Call it with what was retained there last."""
        retained = self._retained.get(subject)
        if retained is not None:
            deliver(retained)

    def watch(self, notify: Callable[[bool], object]) -> None:
        """A bus in memory is never deaf."""

    def close(self) -> None:
        """End every subscription; whoever publishes or subscribes from now on is told Closed."""
        with self._lock:
            self._closed = True
            listeners = [each for listening in self._listeners.values() for each in listening]
            self._outbox.clear()
        for each in listeners:
            each.close()

    def _deliver_all(self) -> None:
        while True:
            with self._lock:
                if not self._outbox:
                    self._delivering = False
                    return
                message = self._outbox.popleft()
                listening = self._whom_locked(message)
            for each in listening:
                each._hear(message)

    def _whom_locked(self, message: Message) -> list[Subscription]:
        """Everybody, but of each queue only whose turn it is."""
        everybody = self._listeners.get(message.subject, ())
        chosen = [each for each in everybody if not each.queue]
        for queue in sorted({each.queue for each in everybody if each.queue}):
            group = [each for each in everybody if each.queue == queue]
            turn = self._turns.get((message.subject, queue), 0)
            self._turns[message.subject, queue] = turn + 1
            chosen.append(group[turn % len(group)])
        return chosen

    def _forget(self, subscription: Subscription) -> None:
        with self._lock:
            listening = self._listeners.get(subscription.subject, [])
            if subscription in listening:
                listening.remove(subscription)
            if not listening:
                self._listeners.pop(subscription.subject, None)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the bus was closed", rule="closed")

    def __repr__(self) -> str:
        return f"<MemoryBus of {sum(map(len, self._listeners.values()))} who listen>"


class NetworkBus:
    """What buses over a network have in common. A kind of them says how to `_begin` and how to `_end`.

    It connects when it is made, and raises StoreError if it cannot. After that it reconnects for ever.
    """

    settles = 0.5
    splits = False
    _client: Any = None
    _complaint: Exception | None = None  # why it was not reached yet, as far as that is known

    def __init__(self, address: str, connect_timeout: float) -> None:
        self._watchers: list[Callable[[bool], object]] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            COURIER.wait_for(lambda: asyncio.wait_for(self._begin(), connect_timeout), connect_timeout + 1)
        except Exception as error:
            self.close()
            why = str(error) or f"no answer within {connect_timeout:g} s"
            if self._complaint is not None:
                why += f" ({self._complaint})"
            raise StoreError(f"bus={without_password(address)!r} cannot be reached: {why}") from error

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError

    def watch(self, notify: Callable[[bool], object]) -> None:
        """Have it called when the connection is lost, and when it is there again."""
        self._watchers.append(notify)

    def close(self) -> None:
        """Let what was published arrive, and go. Twice is fine."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed and self._client is not None:
            COURIER.part(self._end)

    def _tell(self, *, hears: bool) -> None:
        for notify in [] if self._closed else list(self._watchers):
            notify(hears)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the bus was closed", rule="closed")


def not_installed(address: str, library: str, extra: str) -> InvalidConfig:
    return InvalidConfig(
        f"bus={without_password(address)!r} needs {library}; install it with: pip install 'headgate[{extra}]'"
    )


def call(deliver: Deliver, message: Message) -> None:
    """Hand it over. What whoever hears it raises is its own affair."""
    try:
        deliver(message)
    except Exception:
        logging.getLogger("headgate").exception("%r raised on %r", deliver, message.subject)


def open_bus(where: object) -> tuple[Bus, bool]:
    """The bus of that address, and whether whoever asked has to close it. An object is taken as it is."""
    if isinstance(where, str):
        scheme, colon, rest = where.partition(":")
        if scheme == "memory" and colon:
            return MemoryBus.named(rest.strip("/")), False
        if scheme in ("nats", "tls"):
            from .nats import NatsBus  # noqa: PLC0415 - its library is loaded by those who use it

            return NatsBus(where), True
        if scheme in ("redis", "rediss", "valkey", "valkeys", "unix"):
            from .redis import RedisBus  # noqa: PLC0415

            return RedisBus(where), True
    elif callable(getattr(where, "publish", None)) and callable(getattr(where, "subscribe", None)):
        return where, False  # type: ignore[return-value]  # as far as one can see
    shown = without_password(where) if isinstance(where, str) and "@" in where else where
    raise InvalidConfig(
        f'bus={shown!r} is not a bus; write "nats://host:4222", "redis://host:6379/0", "memory:", '
        "or give an object with publish and subscribe"
    )


def check_subject(subject: object) -> str:
    if not isinstance(subject, str) or not subject:
        raise InvalidConfig(f'subject {subject!r} is not a name; write e.g. "ratelimit.capacity"')
    return subject
