"""A bus that behaves like the worst of networks, by plan: for tests and simulations.

Rules of this room: time is a ManualClock and the dice are given, so every run with the same seed is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bus import MemoryBus, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .bus import Deliver, Subscription


class RoughBus:
    """Messages take from `fastest` to `slowest` seconds, so they overtake each other; some are lost
    (`loss`), some come twice (`twice`). Who is on another side by `apart`, or `deaf`, does not hear them.

    >>> import random
    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock()
    >>> bus = RoughBus(clock, random.Random(7).random)
    >>> one, two = bus.seat("one"), bus.seat("two")
    >>> heard = []
    >>> _ = two.subscribe("greetings", lambda message: heard.append(message.data))
    >>> one.publish("greetings", b"good morning")
    >>> clock.advance(0.01)
    >>> heard
    [b'good morning']
    """

    def __init__(
        self, clock: Any, random: Callable[[], float], *, fastest: float = 0.001, slowest: float = 0.01
    ) -> None:
        self._clock = clock
        self._random = random
        self._bus = MemoryBus()
        self._seats: dict[Subscription, str] = {}
        self.fastest = fastest
        self.slowest = slowest
        self.loss = 0.0
        self.twice = 0.0
        self.apart: dict[str, int] = {}  # who is on which side; those not named are on side 0
        self.deaf: set[str] = set()
        self.settles = 3.0
        self.splits = True
        self.sent = 0

    def seat(self, who: str) -> Seat:
        """The bus as one of those on it has it."""
        return Seat(self, who)

    def _spread(self, speaker: str, message: Message) -> None:
        self.sent += 1
        for listener in self._bus._listeners.get(message.subject, ()):
            for _ in range(1 + (self._random() < self.twice)):
                if self._reaches(speaker, self._seats[listener]):
                    delay = self.fastest + (self.slowest - self.fastest) * self._random()
                    self._clock.at(self._clock.seconds() + delay, lambda heard=listener: heard._hear(message))

    def _reaches(self, speaker: str, listener: str) -> bool:
        if speaker in self.deaf or listener in self.deaf:
            return False
        if self.apart.get(speaker, 0) != self.apart.get(listener, 0):
            return False
        return self._random() >= self.loss


class Seat:
    """One agent's place on a RoughBus."""

    def __init__(self, bus: RoughBus, who: str) -> None:
        self._bus = bus
        self._who = who
        self.settles = bus.settles
        self.splits = bus.splits

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        message = Message(subject, data)
        if retain and self._who not in self._bus.deaf:
            self._bus._bus._retained[subject] = message
        self._bus._spread(self._who, message)

    def subscribe(self, subject: str, deliver: Deliver) -> Subscription:
        subscription = self._bus._bus.subscribe(subject, deliver)
        self._bus._seats[subscription] = self._who
        return subscription

    def recall(self, subject: str, deliver: Deliver) -> None:
        if self._who not in self._bus.deaf:
            self._bus._bus.recall(subject, deliver)

    def watch(self, notify: Callable[[bool], object]) -> None:
        """Nobody is told: whoever is cut off has to find out."""

    def close(self) -> None:
        """The bus is the others' as well."""
