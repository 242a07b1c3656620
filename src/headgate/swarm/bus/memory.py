"""A bus for the agents of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...errors import Closed
from .bus import Deliver, Message, Subscription, check_subject


class MemoryBus:
    """A bus for the agents of one process. `publish` delivers, in order, before it returns.

    >>> bus = MemoryBus()
    >>> heard = []
    >>> subscription = bus.subscribe("greetings", lambda message: heard.append(message.data))
    >>> bus.publish("greetings", b"good morning")
    >>> heard
    [b'good morning']

    While a call of `publish` delivers, in this thread or another, that call also delivers the messages
    published meanwhile.
    """

    settles = 0.0
    splits = False

    _named: dict[str, MemoryBus] = {}  # noqa: RUF012 - every bus of this process that has a name
    _naming = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._retained: dict[str, Message] = {}
        self._outbox: deque[Message] = deque()
        self._delivering = False
        self.closed = False

    @classmethod
    def named(cls, name: str) -> MemoryBus:
        """The bus of that name in this process, made if there is none or it was closed."""
        with cls._naming:
            bus = cls._named.get(name)
            if bus is None or bus.closed:
                bus = cls._named[name] = cls()
            return bus

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        message = Message(check_subject(subject), bytes(data))
        with self._lock:
            self._raise_if_closed()
            if retain:
                self._retained[subject] = message
            self._outbox.append(message)
            if self._delivering:
                return
            self._delivering = True
        while True:
            with self._lock:
                if not self._outbox:
                    self._delivering = False
                    return
                message = self._outbox.popleft()
                listening = list(self._subscriptions.get(message.subject, ()))
            for each in listening:
                each.hear(message)

    def subscribe(self, subject: str, deliver: Deliver) -> Subscription:
        subscription = Subscription(subject, deliver, lambda: self._forget(subscription))
        with self._lock:
            self._raise_if_closed()
            self._subscriptions.setdefault(subject, []).append(subscription)
        return subscription

    def _forget(self, subscription: Subscription) -> None:
        with self._lock:
            listening = self._subscriptions[subscription.subject]
            listening.remove(subscription)
            if not listening:
                del self._subscriptions[subscription.subject]

    def recall(self, subject: str, deliver: Deliver) -> None:
        retained = self._retained.get(subject)
        if retained is not None:
            deliver(retained)

    def watch(self, notify: Callable[[bool], object]) -> None:
        """A bus in memory never loses its connection, so `notify` is never called."""

    def close(self) -> None:
        """End every subscription. Later calls of `publish` and `subscribe` raise Closed."""
        with self._lock:
            self.closed = True
            subscriptions = [each for listening in self._subscriptions.values() for each in listening]
            self._outbox.clear()
        for each in subscriptions:
            each.close()

    def _raise_if_closed(self) -> None:
        if self.closed:
            raise Closed("the bus was closed", rule="closed")

    def __repr__(self) -> str:
        return f"<MemoryBus of {sum(map(len, self._subscriptions.values()))} subscriptions>"
