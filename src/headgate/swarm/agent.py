"""One agent among the others: what it hears, what it sends, and when.

Rules of this room: what to do is decided under one lock, by pure code; sending, bringing the gates to it and
telling observers come after. No method waits for the bus.
"""

from __future__ import annotations

import hashlib
import os
from _thread import allocate_lock
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .. import events, telling
from ..arguments import SECOND
from ..events import Event
from ..limiters.resource import Capacity
from ..limits import Rate
from .bus.bus import Bus
from .membership import Membership
from .messages import Envelope, Grant, Note, Oversized, Report, is_possible_term
from .recovery import Level
from .resource import Options, SharedResource
from .shares import agent_of
from .signatures import STALE, Expired, Replayed, Unsigned
from .transport import Callbacks, Transport, weakly
from .update import CapacityUpdate, ReceivedUpdate, UpdateFilter, is_possible

T = TypeVar("T")

_LONGEST_PAUSE = 86_400 * SECOND
# What is wrong with a message that is not read.
_WHY_NOT: dict[type[Exception], str] = {
    Unsigned: "unsigned",
    Expired: "expired",
    Replayed: "replayed",
    Oversized: "oversized",
}
# For how many agents the leader remembers which runs it heard.
_MOST_AGENTS = 10_000


class Agent:
    """Speaks for all resources of one limiter. `ignored` counts messages that changed nothing, by reason."""

    def __init__(self, bus: Bus, options: Options, callback: Callable[[CapacityUpdate], Any] | None) -> None:
        self.resources: dict[str, SharedResource] = {}
        self.callback = callback
        self.connected = True
        self.ignored: dict[str, int] = {}
        self.agent_id = options.agent_id
        self._run = os.urandom(6).hex()  # tells it apart from agents of the same id, earlier ones too
        self._options = options
        self._clock = options.clock
        self._lock = allocate_lock()
        self._closed = False
        self._rings_at: int | None = None  # when the earliest timer rings that was set
        self._updates = UpdateFilter()
        self._sequence = self._memberships = 0
        self._news: list[Event | CapacityUpdate] = []
        self._outbox: list[tuple[str, bytes, bool]] = []  # subject, data, and whether it is retained
        # On an exact clock nothing may be late, as another thread may.
        self._callbacks = Callbacks(threaded=self._clock.quantum > 0)
        self._transport = Transport(
            bus, namespace=options.namespace, run=self._run, secret=options.secret, wall=options.wall
        )
        self._settings = replace(
            options.settings,
            # Another thread may deliver an answer, and be as late as a timer.
            settle=max(round(self._transport.settles * SECOND), self._clock.quantum),
            splits=self._transport.splits,
            # Another number for every id, and the same in every run.
            turn=int.from_bytes(hashlib.sha256(self.agent_id.encode()).digest()[:4], "big") % 1_000_000,
        )
        self._transport.listen(self._hear_update, self._hear, self._hear_bus)

    # -- coming and going

    def new_membership(self) -> Membership:
        self._memberships += 1
        return Membership(f"{self.agent_id}#{self._run}.{self._memberships}", self._settings)

    def join(self, resource: SharedResource) -> None:
        """Ask which agents share this resource."""

        def begin(now: int) -> None:
            self.resources[resource.name] = resource
            resource.membership.start(now)

        self._act(begin, resource)
        self._transport.recall(resource.name, self._hear_note)
        self._tick()  # on a bus that delivers at once, the answers are there

    def leave(self, name: str) -> None:
        """Leave the share of a resource to the other agents."""

        def end(now: int) -> None:
            resource = self.resources.pop(name, None)
            if resource is not None:
                resource.membership.leave(now)
                self._gather(resource, now)

        self._act(end)

    def configure(self, resource: SharedResource, rates: tuple[Rate, ...]) -> None:
        self._act(lambda _now: resource.configure(rates), resource)

    def close(self) -> None:
        self._closed = True
        for name in list(self.resources):
            self.leave(name)
        self._transport.close()
        self._callbacks.close()

    def after_fork(self) -> None:
        """In a forked child: no thread holds the lock."""
        self._lock = allocate_lock()

    # -- looking

    def capacity_of(self, name: str) -> Capacity | None:
        with self._lock:
            resource = self.resources.get(name)
            if resource is None:
                return None
            total, share = resource.total.amount, resource.share(self._clock.now())
        return resource.capacity(total, share)

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            levels = {
                name: list(resource.total.level)
                for name, resource in self.resources.items()
                if resource.total.level is not None and resource.total.reduced
            }
        return {"at": self._options.wall(), "levels": levels}

    def restore(self, levels: Mapping[str, Level], said_at: int, younger_than: int) -> None:
        def learn(now: int) -> None:
            for name, level in levels.items():
                if name in self.resources and is_possible(level, self._options.wall()):
                    self.resources[name].total.hear(level, now)

        if self._options.wall() - said_at < younger_than:
            self._act(learn, *self.resources.values())

    # -- announcing

    def announce(self, name: str, reason: str, pause: int = 0, sent: int | None = None) -> None:
        """The API gives less: cut the total, once an episode, and admit no call during the pause."""
        pause = min(pause, _LONGEST_PAUSE)
        resource = self.resources.get(name)
        if resource is None or self._closed:
            return

        def announce(now: int) -> None:
            self._news.append(events.CapacityReduced(key=name, at=now / SECOND, reason=reason))
            cuts = not resource.total.same_episode(sent, now)
            if cuts:
                resource.total.cut(now)
                resource.begin_episode(reason)
            self._sequence += 1
            pauses = pause > 0 and resource.pause(pause, f"{self._run}.{self._sequence}", now)
            if cuts or pauses:
                self._send_update(resource, reason, pause)

        self._act(announce, resource)

    def _send_update(self, resource: SharedResource, reason: str, pause: int) -> None:
        total = resource.total
        update = CapacityUpdate(
            resource=resource.name,
            agent_id=self.agent_id,
            new_capacity=total.amount,
            reason=reason,
            timestamp_ns=self._options.wall(),
            retry_after=pause / SECOND if pause else None,
        )
        extra = {
            "run": self._run,
            "sequence": self._sequence,
            "epoch": total.epoch,
            "factor": round(total.amount / total.base, 6),
            "level": total.level,
        }
        self._outbox.append((self._transport.capacity, update.to_json(extra), False))

    # -- hearing of reductions

    def _hear_update(self, data: bytes, subject: str) -> None:
        received = self._read(ReceivedUpdate.from_json, data, subject)
        if received is None:
            return
        update = received.update
        own = update.agent_id == self.agent_id
        if own and received.run in ("", self._run):
            return
        resource = self.resources.get(update.resource)

        def hear(now: int) -> None:
            if own:
                self._tell_duplicate(update.agent_id, update.resource, now)
            self._news.append(update)
            why = "unknown resource"
            if resource is not None:
                why = self._updates.why_not(received, resource.total, self._options.wall(), now)
            if why or resource is None:
                self._note_ignored(why, update.agent_id, now)
                return
            if received.cut(resource.total, now):
                resource.begin_episode(update.reason)
            if update.retry_after:
                resource.pause(round(update.retry_after * SECOND), received.name, now)

        self._act(hear, *([] if resource is None else [resource]))

    # -- hearing members and the leader

    def _hear(self, data: bytes, subject: str) -> None:
        if subject == self._transport.greetings and not any(
            resource.membership.greets for resource in list(self.resources.values())
        ):
            return  # most agents of a large swarm need not even read what newcomers ask
        envelope = self._read(Envelope.from_json, data, subject)
        resource = None if envelope is None else self.resources.get(envelope.resource)
        if envelope is not None and resource is not None:
            self._act(lambda now: self._hear_member(resource, envelope, now), resource)

    def _hear_member(self, resource: SharedResource, envelope: Envelope, now: int) -> None:
        membership, message = resource.membership, envelope.message
        wall, level = self._options.wall(), envelope.level
        if not is_possible_term(message, wall):
            self._note_ignored("out of range", "", now)
            return
        if level is not None and not is_possible(level, wall):
            # By the clock of the member that says so it may be possible: its share and who leads count.
            self._note_ignored("out of range", "", now)
            level = None
        membership.hear(message, now)
        if membership.candidate and isinstance(message, Report):
            self._look_for_duplicates(resource, message.key, now)
            if membership.is_leader:
                resource.total.count(envelope.admitted, envelope.succeeded)
        elif envelope.duplicate and isinstance(message, Grant) and message.to == membership.member.key:
            self._tell_duplicate(self.agent_id, resource.name, now)
        if level is not None:
            if resource.total.hear(level, now):
                resource.begin_episode(resource.reason)
            if level.epoch == resource.total.epoch and membership.follows(message):
                resource.total.hear_leader(self._settings.interval, now)
        if envelope.pause is not None:
            resource.pause(*envelope.pause, now)

    def _look_for_duplicates(self, resource: SharedResource, key: str, now: int) -> None:
        """Notice an agent that runs twice. After a restart the old run is not heard any more."""
        agent = agent_of(key)
        if key == resource.membership.member.key or agent in resource.duplicates:
            return
        if len(resource.runs) >= _MOST_AGENTS:
            resource.runs.clear()
        heard = resource.runs.setdefault(agent, [])
        if agent == self.agent_id or key in heard[:-1]:
            resource.duplicates.add(agent)
            self._tell_duplicate(agent, resource.name, now)
        elif key not in heard:
            heard[:] = [*heard[-1:], key]

    def _tell_duplicate(self, agent_id: str, name: str, now: int) -> None:
        if not self.ignored.get("duplicate agent"):
            self._news.append(events.DuplicateAgent(key=name, at=now / SECOND, agent_id=agent_id))
        self.ignored["duplicate agent"] = self.ignored.get("duplicate agent", 0) + 1

    def _hear_note(self, data: bytes, subject: str) -> None:
        """The level that the last leader retained on the bus."""
        note = self._read(Note.from_json, data, subject, again=True)
        resource = None if note is None else self.resources.get(note.resource)
        if note is None or resource is None:
            return
        wall = self._options.wall()
        if abs(wall - note.at) < STALE and is_possible(note.level, wall):
            self._act(lambda now: resource.total.hear(note.level, now), resource)

    def _hear_bus(self, connected: bool) -> None:
        """The connection of the bus was lost, or is back."""

        def note(now: int) -> None:
            if connected == self.connected or self._closed:
                return
            self.connected = connected
            kind = events.BusRegained if connected else events.BusLost
            self._news.append(kind(key=self._transport.capacity, at=now / SECOND))
            for resource in self.resources.values() if connected else ():
                resource.membership.hurry(now)
                resource.membership.tick(now)

        self._act(note, *self.resources.values())

    def _read(
        self, read: Callable[[bytes], T], data: bytes, subject: str, *, again: bool = False
    ) -> T | None:
        """What a message says. None, and it is counted: it cannot be read, or its signature does not count.

        With `again`, a message that was heard before counts.
        """
        try:
            return read(self._transport.verify(data, subject, again=again))
        except ValueError as error:
            why = _WHY_NOT.get(type(error), "malformed")
            self._act(lambda now: self._note_ignored(why, "", now))
            return None

    def _note_ignored(self, why: str, agent_id: str, now: int) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1
        self._news.append(
            events.UpdateIgnored(key=self._transport.capacity, at=now / SECOND, agent_id=agent_id, reason=why)
        )

    # -- deciding under the lock, acting after it

    def _act(self, act: Callable[[int], object], *resources: SharedResource, ticks: bool = False) -> None:
        """Do something that concerns these resources, and then what follows from it."""
        with self._lock:
            now = self._clock.now()
            act(now)
            changed = []
            for resource in resources:
                self._gather(resource, now)
                before = resource.target.rates
                if resource.decide(now):
                    changed.append(resource)
                    if resource.target.rates != before:
                        self._news.append(resource.changed(now))
                # Work that is due at this very moment is still to do, unless this is the tick that does it.
                due = resource.next_at(now)
                resource.due = due if ticks else min(resource.due, due)
            outbox, self._outbox = self._outbox, []
            news, self._news = self._news, []
            leads = any(resource.membership.candidate for resource in self.resources.values())
            ring_at = self._next_ring(now)
        if ring_at is not None:
            self._clock.call_at(ring_at, weakly(self._ring))
        self._transport.listen_as_leader(self._hear if leads else None)
        for resource in changed:
            resource.apply()
        for subject, data, retain in outbox:
            self._transport.publish(subject, data, retain=retain)
        for piece in news:
            self._tell(piece)

    def _next_ring(self, now: int) -> int | None:
        """When to set a timer to; None if one rings in time, or there is nothing to do."""
        if not self.resources or self._closed:
            return None
        due = max(now + 1, min(resource.due for resource in self.resources.values()))
        if self._rings_at is not None and self._rings_at <= due:
            return None
        self._rings_at = due
        return due

    def _ring(self) -> None:
        with self._lock:
            # A timer that an earlier one has replaced may still ring: then the one that is set stays.
            if self._rings_at is not None and self._clock.now() >= self._rings_at:
                self._rings_at = None
        self._tick()

    def _tick(self) -> None:
        """Do what is due by now."""
        now = self._clock.now()
        due = [resource for resource in list(self.resources.values()) if now >= resource.due]

        def tick(now: int) -> None:
            for resource in due:
                membership = resource.membership
                if now >= resource.measure_at:
                    resource.measure_at = now + self._settings.interval
                    resource.measure(now)
                if membership.is_leader or membership.out_of_touch(now):
                    resource.grow(now)
                if membership.is_leader:
                    resource.total.hear_leader(self._settings.interval, now)
                membership.tick(now)

        if not self._closed:
            self._act(tick, *due, ticks=True)

    def _gather(self, resource: SharedResource, now: int) -> None:
        """Put messages of the member into the outbox, with what else there is to tell of the resource."""
        membership, total = resource.membership, resource.total
        for where, message in membership.member.take_outbox():
            data = resource.envelope(message, now).to_json()
            self._outbox.append((self._transport.subject(where), data, False))
        often_enough = now - resource.retained_at >= 5 * self._settings.interval
        if total.level not in (None, resource.retained) and membership.is_leader and often_enough:
            resource.retained, resource.retained_at = total.level, now
            note = Note(resource.name, total.level, self._options.wall())
            self._outbox.append((self._transport.note(resource.name), note.to_json(), True))

    def _tell(self, piece: Event | CapacityUpdate) -> None:
        callback = self.callback
        if not isinstance(piece, CapacityUpdate):
            telling.tell(self._options.observer, piece)
        elif callback is not None and not self._closed:
            self._callbacks.call(callback, piece)
