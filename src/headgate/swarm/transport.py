"""What comes from the bus and goes to it: subjects, signatures, and who is told of it where.

Rules of this room: nobody here waits for the bus, and nothing that it does reaches a caller. Listening is no
reason to keep a limiter alive.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from .membership import ANSWERERS, EVERYBODY, LEADERS
from .messages import sign, verified

if TYPE_CHECKING:
    from collections.abc import Callable

    from .bus.bus import Bus, Subscription
    from .messages import CapacityUpdate

SUBJECT_PREFIX = "ratelimit."


class Post:
    """One limiter's way to the others. `run` tells it apart from every other, of its own name too."""

    def __init__(self, bus: Bus, *, namespace: str, run: str, secret: bytes | None) -> None:
        prefix = SUBJECT_PREFIX + (f"{namespace}." if namespace else "")
        self.capacity = f"{prefix}capacity"
        self._talk = f"{prefix}swarm"
        self._asking = self._subject(ANSWERERS)
        self._bus = bus
        self._run = run
        self._secret = secret
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._leading: Subscription | None = None

    @property
    def settles(self) -> float:
        """Seconds within which whoever is there has heard a question and answered it."""
        return float(getattr(self._bus, "settles", 0.5))

    @property
    def splits(self) -> bool:
        """May the bus fall into parts that do not know of each other?"""
        return bool(getattr(self._bus, "splits", False))

    # -- listening

    def listen(
        self,
        update: Callable[[bytes], None],
        letter: Callable[[bytes, str], None],
        watch: Callable[[bool], None],
    ) -> None:
        """Have these called: with updates, with letters of the swarm, and when the bus is lost or back."""
        hear_update, hear_letter = _weakly(update), _weakly(letter)
        subscribe = self._bus.subscribe
        self._subscriptions = [subscribe(self.capacity, lambda message: hear_update(message.data))]
        for where in (EVERYBODY, ANSWERERS, self._run):
            subject = self._subject(where)
            self._subscriptions.append(
                subscribe(subject, lambda message, subject=subject: hear_letter(message.data, subject))  # type: ignore[misc]
            )
        tell = getattr(self._bus, "watch", None)
        if tell is not None:
            tell(_weakly(watch))

    def listen_as_leader(self, leads: bool, letter: Callable[[bytes, str], None]) -> None:
        """Only whoever leads, or would, hears what every member says."""
        with self._lock:
            if leads is (self._leading is not None):
                return
            ended, self._leading = self._leading, None
            if leads:
                hear, subject = _weakly(letter), self._subject(LEADERS)
                self._leading = self._bus.subscribe(subject, lambda message: hear(message.data, subject))
        if ended is not None:
            ended.close()

    def close(self) -> None:
        with self._lock:
            ended, self._leading = self._leading, None
        for each in [*self._subscriptions, *([] if ended is None else [ended])]:
            each.close()

    # -- saying

    def send(self, where: str, data: bytes) -> None:
        """To everybody, to whoever leads, or to the member of that key."""
        self._publish(self._subject(where), data)

    def send_update(self, data: bytes) -> None:
        self._publish(self.capacity, data)

    def leave_note(self, resource: str, data: bytes) -> None:
        """For those who come when nobody is there, on a bus that keeps it."""
        if getattr(self._bus, "recall", None) is not None:
            self._publish(self._note(resource), data, retain=True)

    def find_note(self, resource: str, letter: Callable[[bytes, str], None]) -> None:
        recall = getattr(self._bus, "recall", None)
        if recall is not None:
            hear, subject = _weakly(letter), self._note(resource)
            recall(subject, lambda message: hear(message.data, subject))

    def _publish(self, subject: str, data: bytes, **how: bool) -> None:
        if self._secret is not None:
            data = sign(data, subject, self._secret)
        try:
            self._bus.publish(subject, data, **how)
        except Exception as error:  # noqa: BLE001 - what happened here stands; the others are told again
            logging.getLogger("headgate").debug("%s was not published: %r", subject, error)

    # -- names and signatures

    def _subject(self, where: str) -> str:
        if where in (EVERYBODY, LEADERS, ANSWERERS):
            return f"{self._talk}.{where}"
        # A key is the name of an agent, its run, and a number; one run listens in one place.
        return f"{self._talk}.{where.rpartition('#')[2].partition('.')[0]}"

    def _note(self, resource: str) -> str:
        return f"{self._talk}.last.{hashlib.sha256(resource.encode()).hexdigest()[:16]}"

    def asks(self, subject: str) -> bool:
        """Is this where newcomers ask?"""
        return subject == self._asking

    def opened(self, data: bytes, subject: str) -> bytes:
        """The letter, if it is by one of us. Raises Unsigned."""
        if self._secret is None:
            return data
        try:
            return verified(data, subject, self._secret)
        except ValueError as error:
            raise Unsigned(str(error)) from None


class Unsigned(ValueError):
    """Not by one of us."""


class Voice:
    """Calls callbacks in a thread of its own: one that blocks keeps nobody from hearing."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[CapacityUpdate], Any], CapacityUpdate] | None] = (
            SimpleQueue()
        )
        threading.Thread(target=self._speak, name="headgate callbacks", daemon=True).start()

    def say(self, callback: Callable[[CapacityUpdate], Any], update: CapacityUpdate) -> None:
        self._calls.put((callback, update))

    def close(self) -> None:
        self._calls.put(None)

    def _speak(self) -> None:
        while (call := self._calls.get()) is not None:
            call_back(*call)


def call_back(callback: Callable[[CapacityUpdate], Any], update: CapacityUpdate) -> None:
    try:
        callback(update)
    except Exception:
        logging.getLogger("headgate").exception("the callback %r raised on %r", callback, update)


def _weakly(method: Callable[..., Any]) -> Callable[..., None]:
    weak = WeakMethod(method)

    def call(*args: Any) -> None:
        found = weak()
        if found is not None:
            found(*args)

    return call
