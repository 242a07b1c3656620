"""How messages of one limiter reach the bus and come from it: subjects, signatures, callbacks.

Rules of this room: no method waits for the bus but `listen`, and no error of the bus reaches a caller. A
subscription does not keep a limiter alive.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import time_ns
from typing import Any, TypeAlias
from weakref import WeakMethod

from ..gate.clock import OWN_THREADS
from .bus.bus import Bus
from .messages import ALL, GREETERS, LEADERS
from .signatures import HeardNumbers, Stamp, check_age, sign, verified
from .update import CapacityUpdate

SUBJECT_PREFIX = "ratelimit."

# Called with the data of a message and its subject.
Hear: TypeAlias = Callable[[bytes, str], None]


class Transport:
    """One limiter's end of the bus. `run` tells the limiter apart from all others, of its own name too.

    With a `secret`, messages are signed, at the time that `wall` tells, in nanoseconds since 1970.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        namespace: str,
        run: str,
        secret: bytes | None,
        wall: Callable[[], int] = time_ns,
    ) -> None:
        prefix = SUBJECT_PREFIX + (f"{namespace}." if namespace else "")
        self.capacity = f"{prefix}capacity"  # the subject of updates, which Go agents use too
        self._members = f"{prefix}swarm"
        self.greetings = self.subject(GREETERS)  # the subject on which newcomers ask
        # Seconds within which every agent that is there has received a question and answered it; and whether
        # the bus may fall into parts without connection.
        self.settles = float(getattr(bus, "settles", 0.5))
        self.splits = bool(getattr(bus, "splits", False))
        self._bus = bus
        self._run = run
        self._secret = secret
        self._wall = wall
        self._numbers: dict[str, int] = {}  # of the last message that was signed, by subject
        self._heard = HeardNumbers()
        self._lock = threading.Lock()
        self._subscriptions: list[Any] = []
        self._as_leader: Any = None

    # -- listening

    def listen(self, update: Hear, message: Hear, watch: Callable[[bool], None]) -> None:
        """Have these called: with updates, with messages of members, and when the bus is lost or back."""
        subscribe = self._bus.subscribe
        self._subscriptions = [self._hear(subscribe, self.capacity, update)]
        for where in (ALL, GREETERS, self._run):
            self._subscriptions.append(self._hear(subscribe, self.subject(where), message))
        tell = getattr(self._bus, "watch", None)
        if tell is not None:
            tell(weakly(watch))

    def listen_as_leader(self, message: Hear | None) -> None:
        """Have `message` called with what members report to the leader and candidates. None: no longer."""
        with self._lock:
            if (message is None) is (self._as_leader is None):
                return
            ended, self._as_leader = self._as_leader, None
            if message is not None:
                # Without waiting for the bus, if it can: this may be the thread of timers.
                subscribe = getattr(self._bus, "subscribe_soon", self._bus.subscribe)
                self._as_leader = self._hear(subscribe, self.subject(LEADERS), message)
        if ended is not None:
            ended.close()

    def recall(self, resource: str, note: Hear) -> None:
        """Have `note` called with the note that was retained about a resource, if there is one."""
        recall = getattr(self._bus, "recall", None)
        if recall is not None:
            self._hear(recall, self.note(resource), note)

    def _hear(self, subscribe: Callable[..., Any], subject: str, hear: Hear) -> Any:
        hear = weakly(hear)
        return subscribe(subject, lambda heard: hear(heard.data, subject))

    def close(self) -> None:
        self.listen_as_leader(None)
        for each in self._subscriptions:
            each.close()

    # -- sending

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        """Send a message. With `retain` it is a note for agents that come when no other is there."""
        if retain and getattr(self._bus, "recall", None) is None:
            return
        if self._secret is not None:
            with self._lock:
                number = self._numbers[subject] = self._numbers.get(subject, 0) + 1
            data = sign(data, subject, self._secret, Stamp(self._run, number, self._wall()))
        try:
            if retain:
                self._bus.publish(subject, data, retain=True)
            else:
                self._bus.publish(subject, data)  # a bus without `recall` need not know `retain`
        except Exception as error:  # noqa: BLE001 - the next message says it again
            logging.getLogger("headgate").debug("%s was not published: %r", subject, error)

    # -- subjects and signatures

    def subject(self, where: str) -> str:
        """The subject of all members, of the leader, of greeters, or of the member of that key."""
        # A key is an agent's id, "#", its run, ".", and a number; one run listens on one subject.
        return f"{self._members}.{where.rpartition('#')[2].partition('.')[0]}"

    def note(self, resource: str) -> str:
        """The subject of the note about a resource."""
        return f"{self._members}.last.{hashlib.sha256(resource.encode()).hexdigest()[:16]}"

    def verify(self, data: bytes, subject: str, *, again: bool = False) -> bytes:
        """The message without its signature. Raises Unsigned, Expired, and Replayed unless `again`."""
        if self._secret is None:
            return data
        unsigned, stamp = verified(data, subject, self._secret)
        check_age(stamp, self._wall())
        if not again:
            with self._lock:
                self._heard.note(stamp, subject)
        return unsigned


class Callbacks:
    """Calls callbacks. If `threaded`, in a thread: one that blocks does not keep the agent from hearing."""

    def __init__(self, *, threaded: bool) -> None:
        self._threaded = threaded
        self._started = False
        self._calls: SimpleQueue[tuple[Callable[[CapacityUpdate], Any], CapacityUpdate] | None] = (
            SimpleQueue()
        )

    def call(self, callback: Callable[[CapacityUpdate], Any], update: CapacityUpdate) -> None:
        if not self._threaded:
            self._call(callback, update)
            return
        self._calls.put((callback, update))
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name=f"{OWN_THREADS}callbacks", daemon=True).start()

    def close(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._call(*call)

    def _call(self, callback: Callable[[CapacityUpdate], Any], update: CapacityUpdate) -> None:
        try:
            callback(update)
        except Exception:
            logging.getLogger("headgate").exception("the callback %r raised on %r", callback, update)


def weakly(method: Callable[..., Any]) -> Callable[..., None]:
    """The method, without keeping its object alive: a call does nothing once the object is gone."""
    weak = WeakMethod(method)

    def call(*args: Any) -> None:
        found = weak()
        if found is not None:
            found(*args)

    return call
