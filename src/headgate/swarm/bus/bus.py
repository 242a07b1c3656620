"""What a swarm needs of a message bus, and how an address becomes one.

Rules of this room: publishing never waits and never fails because an agent cannot be reached; a message
arrives once or not at all. A bus says when it lost its connection, and subscribes again by itself when it is
back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...errors import InvalidConfig
from ...sharing.store import without_password

Deliver: TypeAlias = Callable[["Message"], object]


class Bus(Protocol):
    """What a swarm needs of a message bus: an object with these methods can be given as `bus=`.

    `settles` is in how many seconds each agent that is there has received a question and answered, and
    `splits` says whether the bus may fall into parts without connection.
    """

    settles: float  # seconds within which every agent that is there has received a question and answered
    splits: bool  # whether it may fall into parts without connection, as a cluster of servers may

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        """Send `data` on `subject` now or as soon as possible. With `retain` it is kept for `recall` too."""

    def subscribe(self, subject: str, deliver: Deliver) -> Any:
        """Have `deliver` called with every message on exactly this `subject`, one's own included.

        Returns something with a method `close()` that ends it.
        """

    def recall(self, subject: str, deliver: Deliver) -> None:
        """Have `deliver` called with the last message retained on `subject`, unless it is too old."""

    def watch(self, notify: Callable[[bool], object]) -> None:
        """Have `notify` called with False when the connection is lost, with True when it is back."""

    def close(self) -> None:
        """End all subscriptions and publish no more. A second call does nothing."""


# For how many seconds a retained message is kept.
RETAINED = 600.0


class Message(NamedTuple):
    """One message on a subject."""

    subject: str
    data: bytes


class Subscription:
    """One subscription of a bus of this library; `end()` is called when it is closed."""

    def __init__(self, subject: str, deliver: Deliver, end: Callable[[], object]) -> None:
        self.subject = check_subject(subject)
        self.closed = False
        self._deliver = deliver
        self._end = end

    def hear(self, message: Message) -> None:
        """Deliver a message. An error of the receiver is logged and does not reach the bus."""
        try:
            if not self.closed:
                self._deliver(message)
        except Exception:
            logging.getLogger("headgate").exception("%r raised on %r", self._deliver, message.subject)

    def close(self) -> None:
        """End the subscription. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self._end()


def open_bus(where: object) -> tuple[Bus, bool]:
    """The bus of that address, and whether the caller has to close it. A bus object is taken as it is."""
    if isinstance(where, str):
        scheme, colon, rest = where.partition(":")
        if scheme == "memory" and colon:
            from .memory import MemoryBus  # noqa: PLC0415 - it imports this file

            return MemoryBus.named(rest.strip("/")), False
        if scheme in ("nats", "tls"):
            from .nats import NatsBus  # noqa: PLC0415 - an extra

            return NatsBus(where), True
        if scheme in ("redis", "rediss", "valkey", "valkeys", "unix"):
            from .redis import RedisBus  # noqa: PLC0415 - an extra

            return RedisBus(where), True
    elif callable(getattr(where, "publish", None)) and callable(getattr(where, "subscribe", None)):
        return where, False  # type: ignore[return-value]  # as far as can be checked here
    shown = without_password(where) if isinstance(where, str) and "@" in where else where
    raise InvalidConfig(
        f'bus={shown!r} is not a bus; write "nats://host:4222", "redis://host:6379/0", "memory:", '
        "or give an object with publish and subscribe"
    )


def check_subject(subject: object) -> str:
    if not isinstance(subject, str) or not subject:
        raise InvalidConfig(f'subject {subject!r} is not a name; write e.g. "ratelimit.capacity"')
    return subject
