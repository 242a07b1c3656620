"""A bus that delays, loses and repeats messages, for tests and simulations; `headgate.testing` exports it.

Rules of this room: time is a ManualClock and random numbers are given, so equal runs are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from ...hints import later
from .bus import Deliver, Message, Subscription

if TYPE_CHECKING:
    from ...testing import ManualClock
else:
    ManualClock = later("headgate.testing", "ManualClock")


@dataclass(eq=False, repr=False)
class UnreliableBus:
    """A bus that behaves like a bad network. Each agent gets an `endpoint` of its own.

    `clock` is a `ManualClock`, and `random` a function from 0 to 1, e.g. `random.Random(7).random`. Messages
    take from `fastest` to `slowest` seconds, so one may overtake another; the fraction `loss` of them is lost
    and the fraction `repeats` arrives twice. Endpoints that `partitions` puts into different partitions do
    not hear each other; those in `disconnected` neither hear nor are heard. Agents are told that a question
    is answered within `settles` seconds, and by `splits` whether the bus may fall into parts.

    >>> import random
    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock()
    >>> bus = UnreliableBus(clock, random.Random(7).random)
    >>> one, two = bus.endpoint("one"), bus.endpoint("two")
    >>> heard = []
    >>> _ = two.subscribe("greetings", lambda message: heard.append(message.data))
    >>> one.publish("greetings", b"good morning")
    >>> clock.advance(0.01)
    >>> heard
    [b'good morning']
    """

    clock: ManualClock
    random: Callable[[], float]
    _: KW_ONLY
    fastest: float = 0.001
    slowest: float = 0.01
    loss: float = 0.0
    repeats: float = 0.0
    settles: float = 3.0
    splits: bool = True
    partitions: dict[str, int] = field(default_factory=dict)  # by name of an endpoint; 0 for those not listed
    disconnected: set[str] = field(default_factory=set)
    retained: dict[str, Message] = field(default_factory=dict, init=False)
    sent: int = field(default=0, init=False)
    _subscriptions: dict[str, list[tuple[str, Subscription]]] = field(default_factory=dict, init=False)

    def endpoint(self, name: str) -> Endpoint:
        """The bus as the agent of that `name` uses it, to be given as `bus=`."""
        return Endpoint(self, name)

    def subscribe(self, name: str, subject: str, deliver: Deliver) -> Subscription:
        """A subscription of the endpoint of that name."""
        subscription = Subscription(subject, deliver, bool)
        self._subscriptions.setdefault(subject, []).append((name, subscription))
        return subscription

    def send(self, sender: str, message: Message) -> None:
        """Deliver a message of the endpoint `sender`, as far as the network lets it through."""
        self.sent += 1
        listening = [each for each in self._subscriptions.get(message.subject, ()) if not each[1].closed]
        self._subscriptions[message.subject] = listening
        for name, each in listening:
            for _ in range(1 + (self.random() < self.repeats)):
                if self._reaches(sender, name):
                    delay = self.fastest + (self.slowest - self.fastest) * self.random()
                    self.clock.at(self.clock.seconds() + delay, lambda heard=each: heard.hear(message))  # type: ignore[misc]

    def _reaches(self, sender: str, receiver: str) -> bool:
        if sender in self.disconnected or receiver in self.disconnected:
            return False
        if self.partitions.get(sender, 0) != self.partitions.get(receiver, 0):
            return False
        return self.random() >= self.loss


class Endpoint:
    """The UnreliableBus of one agent: a bus to be given to a `DistributedLimiter`."""

    def __init__(self, bus: UnreliableBus, name: str) -> None:
        self._bus = bus
        self._name = name
        self.settles = bus.settles
        self.splits = bus.splits

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        message = Message(subject, data)
        if retain and self._name not in self._bus.disconnected:
            self._bus.retained[subject] = message
        self._bus.send(self._name, message)

    def subscribe(self, subject: str, deliver: Deliver) -> Subscription:
        return self._bus.subscribe(self._name, subject, deliver)

    def recall(self, subject: str, deliver: Deliver) -> None:
        retained = self._bus.retained.get(subject)
        if retained is not None and self._name not in self._bus.disconnected:
            deliver(retained)

    def watch(self, notify: Callable[[bool], object]) -> None:
        """An agent that is cut off is not told so and has to find out: `notify` is never called."""

    def close(self) -> None:
        """Nothing to do: other endpoints use the same bus."""
