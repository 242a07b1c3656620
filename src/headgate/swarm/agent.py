"""One agent among the others: what it hears, what it says, and when.

Rules of this room: what to do is decided under one lock, by rules; saying it, bringing the gates to it and
telling observers comes after. Nobody here waits for the bus.
"""

from __future__ import annotations

import hashlib
import os
from _thread import allocate_lock
from typing import TYPE_CHECKING, Any

from .. import events
from ..arguments import SECOND, seconds_to_ns
from .membership import Council, read_number
from .messages import LONGEST_LETTER, CapacityUpdate, Oversized, read_object, write_object
from .recovery import read_level
from .shares import agent_of
from .ticker import Ticker
from .transport import Post, Unsigned, Voice, call_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..events import Event
    from ..limits import Rate
    from ..typing import Clock, Observer
    from ..verdict import Verdict
    from .bus.bus import Bus
    from .recovery import Level
    from .resource import Pool

# Whatever was said longer ago is not news, whatever the clocks of machines may differ by.
_STALE = 600 * SECOND
_LONGEST_PAUSE = 86_400 * SECOND
# Even a bus that answers at once may be left to another thread to deliver, which takes its time.
_OTHER_THREADS = 50_000_000
# Of so many agents it is remembered what they said last.
_MOST_SENDERS = 10_000
# What may be said: a council hears each by a method of its own.
_KINDS = ("hello", "here", "beat", "echo", "roll", "grant", "bye", "yield", "estate")


class Agent:
    """Speaks for all pools of one limiter. `ignored` counts the messages that changed nothing, by why."""

    def __init__(
        self,
        bus: Bus,
        agent_id: str,
        *,
        namespace: str,
        secret: bytes | None,
        council: Mapping[str, Any],
        wall: Callable[[], int],
        callback: Callable[[CapacityUpdate], Any] | None,
        observer: Observer | None,
        clock: Clock,
    ) -> None:
        self.pools: dict[str, Pool] = {}
        self.callback = callback
        self.connected = True
        self.ignored: dict[str, int] = {}
        # From 0 to a million: different for everybody, and the same every time.
        self.turn = int.from_bytes(hashlib.sha256(agent_id.encode()).digest()[:4], "big") % 1_000_000
        self._agent_id = agent_id
        self._run = os.urandom(6).hex()  # tells it apart from others of its name, earlier ones too
        self._council = council
        self._wall = wall
        self._observer = observer
        self._now = clock.now
        self._lock = allocate_lock()
        self._closed = False
        self._senders: dict[tuple[str, str, str], int] = {}
        self._sequence = self._councils = 0
        self._news: list[Event | CapacityUpdate] = []
        self._outbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._voice: Voice | None = None
        self._post = Post(bus, namespace=namespace, run=self._run, secret=secret)
        self._ticker = Ticker(clock, self._tick)
        self._post.listen(self._hear_update, self._hear, self._hear_bus)

    # -- coming and going

    def new_council(self) -> Council:
        self._councils += 1
        settle = round(self._post.settles * SECOND)
        if not self._ticker.virtual:
            settle = max(settle, _OTHER_THREADS)
        return Council(
            f"{self._agent_id}#{self._run}.{self._councils}",
            settle=settle,
            splits=self._post.splits,
            turn=self.turn,
            **self._council,
        )

    def join(self, pool: Pool) -> None:
        """Ask who shares this resource."""

        def begin(now: int) -> None:
            self.pools[pool.name] = pool
            pool.council.start(now)

        self._act(begin, [pool])
        self._post.find_note(pool.name, self._hear_note)
        self._tick()  # on a bus that answers at once, we have been answered

    def leave(self, resource: str) -> None:
        """The others may have our part of it."""

        def end(now: int) -> None:
            pool = self.pools.pop(resource, None)
            if pool is not None:
                pool.council.leave(now)
                self._gather(pool, now)

        self._act(end, [])

    def configure(self, pool: Pool, rates: tuple[Rate, ...]) -> None:
        self._act(lambda _now: pool.configure(rates), [pool])

    def close(self) -> None:
        self._closed = True
        for resource in list(self.pools):
            self.leave(resource)
        self._post.close()
        if self._voice is not None:
            self._voice.close()

    def after_fork(self) -> None:
        """In a forked child: nobody holds the lock."""
        self._lock = allocate_lock()

    # -- looking

    def standing(self, resource: str) -> tuple[Pool, int, int] | None:
        """The pool, the total of all and our share."""
        with self._lock:
            pool = self.pools.get(resource)
            return None if pool is None else (pool, pool.total.amount, pool.share(self._now()))

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            levels = {
                name: list(pool.total.level)
                for name, pool in self.pools.items()
                if pool.total.level is not None and pool.total.reduced
            }
        return {"at": self._wall(), "levels": levels}

    def restore(self, levels: Mapping[str, Level], said_at: int, younger_than: int) -> None:
        def learn(now: int) -> None:
            for name, level in levels.items():
                if name in self.pools:
                    self.pools[name].total.hear(level, now)

        if self._wall() - said_at < younger_than:
            self._act(learn, list(self.pools.values()))

    # -- announcing

    def announce(self, resource: str, reason: str, pause: int = 0, sent: int | None = None) -> None:
        """The API gives less: cut the total, once an episode; and nobody goes for as long as the pause."""
        pause = min(pause, _LONGEST_PAUSE)
        pool = self.pools.get(resource)
        if pool is None or self._closed:
            return

        def announce(now: int) -> None:
            self._news.append(events.CapacityReduced(key=resource, at=now / SECOND, reason=reason))
            cuts = not pool.total.same_episode(sent, now)
            if cuts:
                pool.total.cut(now)
                pool.begin_episode(reason)
            self._sequence += 1
            pauses = pause > 0 and pool.pause(pause, f"{self._run}.{self._sequence}", now)
            if cuts or pauses:
                self._send_update(pool, reason, pause)

        self._act(announce, [pool])

    def _send_update(self, pool: Pool, reason: str, pause: int) -> None:
        level, total = pool.total.level, pool.total.amount
        update = CapacityUpdate(
            resource=pool.name,
            agent_id=self._agent_id,
            new_capacity=total,
            reason=reason,
            timestamp_ns=self._wall(),
            retry_after=pause / SECOND if pause else None,
        )
        extra = {
            "run": self._run,
            "sequence": self._sequence,
            "epoch": 0 if level is None else level.epoch,
            "factor": round(total / pool.total.base, 6),
            "level": None if level is None else list(level),
        }
        self._outbox.append((self._post.send_update, (update.to_json(extra),)))

    def hear_verdict(self, resource: str, verdict: Verdict, sent_at: int) -> None:
        if verdict.kind in ("throttled", "overloaded"):
            pause = 0 if verdict.retry_after is None else seconds_to_ns(verdict.retry_after, "retry_after")
            self.announce(resource, verdict.kind, pause, sent_at)

    # -- hearing of reductions

    def _hear_update(self, data: bytes) -> None:
        try:
            update, fields = CapacityUpdate.from_json(self._post.opened(data, self._post.capacity))
            level = None if fields.get("level") is None else read_level(fields["level"])
            sequence = read_number(fields.get("sequence", 0))
            run = fields.get("run", "")
            if not isinstance(run, str) or len(run) > 64:
                raise ValueError("a run is a short text")  # noqa: TRY301
        except ValueError as error:
            self._ignore(_why(error))
            return
        if update.agent_id == self._agent_id and run in ("", self._run):
            return

        pool = self.pools.get(update.resource)

        def hear(now: int) -> None:
            if update.agent_id == self._agent_id:
                self._tell_twin(update.agent_id, update.resource, now)
            self._news.append(update)
            if pool is None:
                self._note_ignored("unknown resource", update.agent_id, now)
                return
            why = self._why_not(pool, update, run, sequence, level, now)
            if why is None:
                name = f"{run or update.agent_id}.{sequence or update.timestamp_ns}"
                self._heed(pool, update, name, level, now)
            else:
                self._note_ignored(why, update.agent_id, now)

        self._act(hear, [] if pool is None else [pool])

    def _heed(self, pool: Pool, update: CapacityUpdate, name: str, level: Level | None, now: int) -> None:
        before = pool.total.amount
        if level is not None:
            pool.total.hear_cut(level, now)
        elif update.new_capacity < before and not pool.total.same_episode(None, now):
            pool.total.cut_to(update.new_capacity, now)
        if pool.total.amount < before:
            pool.begin_episode(update.reason)
        if update.retry_after:
            pool.pause(round(update.retry_after * SECOND), name, now)

    def _why_not(
        self, pool: Pool, update: CapacityUpdate, run: str, sequence: int, level: Level | None, now: int
    ) -> str | None:
        """Why an update is not to be applied; None if it is."""
        if update.new_capacity < 1:
            return "out of range"
        sender = (update.agent_id, run, update.resource)
        stamp = sequence if run else update.timestamp_ns
        if run or update.timestamp_ns > 0:  # who does not say when cannot be late
            if stamp <= self._senders.get(sender, -1) or self._wall() - update.timestamp_ns > _STALE:
                return "stale"
            self._senders[sender] = stamp
        while len(self._senders) > _MOST_SENDERS:
            del self._senders[next(iter(self._senders))]
        total = pool.total
        if level is not None:
            if total.level is not None and level.epoch < total.level.epoch:
                return "stale"
            # A reduction never raises: what we have missed, we learn from whoever leads.
            return "not lower" if total.would_raise(level) else None
        if update.retry_after:
            return None
        if update.new_capacity >= total.amount:
            return "not lower"
        return "same episode" if total.same_episode(None, now) else None

    # -- hearing members and whoever leads

    def _hear(self, data: bytes, subject: str) -> None:
        if self._post.asks(subject) and not any(pool.council.answers for pool in list(self.pools.values())):
            return  # most of a large swarm need not even read what newcomers ask
        try:
            letter = read_object(self._post.opened(data, subject), LONGEST_LETTER)
            resource, kind = letter.get("resource"), letter.get("kind")
            if not isinstance(resource, str) or kind not in _KINDS:
                raise ValueError("it is about nothing")  # noqa: TRY301
            level = None if letter.get("level") is None else read_level(letter["level"])
            pause = _read_pause(letter.get("pause"))
            counts = read_number(letter.get("granted_calls", 0)), read_number(letter.get("well", 0))
        except ValueError as error:
            self._ignore(_why(error))
            return

        pool = self.pools.get(resource)
        if pool is None:
            return

        def hear(now: int) -> None:
            council = pool.council
            try:
                getattr(council, f"hear_{kind}")(letter, now)
            except ValueError:
                self._note_ignored("malformed", "", now)
                return
            if council.leads and kind in ("beat", "hello"):
                self._look_for_twins(pool, letter["key"], now)
                if council.reigns:
                    pool.total.count(*counts)
            elif kind == "grant" and letter.get("twin") is True and letter.get("to") == council.key:
                self._tell_twin(self._agent_id, pool.name, now)
            if level is not None and pool.total.hear(level, now):
                pool.begin_episode(pool.reason)
            if pause is not None:
                pool.pause(*pause, now)

        self._act(hear, [pool])

    def _look_for_twins(self, pool: Pool, key: str, now: int) -> None:
        """Does an agent run twice? One that was started again is not heard from its old run any more."""
        agent = agent_of(key)
        if key == pool.council.key or agent in pool.twins:
            return
        if len(pool.speakers) >= _MOST_SENDERS:
            pool.speakers.clear()
        heard = pool.speakers.setdefault(agent, [])
        if agent == self._agent_id or key in heard[:-1]:
            pool.twins.add(agent)
            self._tell_twin(agent, pool.name, now)
        elif key not in heard:
            heard[:] = [*heard[-1:], key]

    def _tell_twin(self, agent_id: str, resource: str, now: int) -> None:
        if not self.ignored.get("duplicate agent"):
            self._news.append(events.DuplicateAgent(key=resource, at=now / SECOND, agent_id=agent_id))
        self.ignored["duplicate agent"] = self.ignored.get("duplicate agent", 0) + 1

    def _hear_note(self, data: bytes, subject: str) -> None:
        """What the swarm knew last: from a bus that remembers, for one who comes when nobody is there."""
        try:
            note = read_object(self._post.opened(data, subject), LONGEST_LETTER)
            level = read_level(note.get("level"))
            said_at = read_number(note.get("at"))
        except ValueError as error:
            self._ignore(_why(error))
            return

        pool = self.pools.get(str(note.get("resource")))
        if pool is not None and abs(self._wall() - said_at) < _STALE:
            total = pool.total
            self._act(lambda now: total.hear(level, now), [pool])

    def _hear_bus(self, hears: bool) -> None:
        """The bus was lost, or is there again."""

        def note(now: int) -> None:
            if hears == self.connected or self._closed:
                return
            self.connected = hears
            kind = events.BusRegained if hears else events.BusLost
            self._news.append(kind(key=self._post.capacity, at=now / SECOND))
            for pool in self.pools.values() if hears else ():
                pool.council.hurry(now)
                pool.council.tick(now)

        self._act(note, list(self.pools.values()))

    def _ignore(self, why: str) -> None:
        self._act(lambda now: self._note_ignored(why, "", now), [])

    def _note_ignored(self, why: str, agent_id: str, now: int) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1
        self._news.append(
            events.UpdateIgnored(key=self._post.capacity, at=now / SECOND, agent_id=agent_id, reason=why)
        )

    # -- deciding under the lock, acting after it

    def _act(self, act: Callable[[int], object], pools: list[Pool], *, ticks: bool = False) -> None:
        """Do something that concerns these pools, and then what follows from it."""
        with self._lock:
            now = self._now()
            act(now)
            changed = []
            for pool in pools:
                self._gather(pool, now)
                before = pool.desired.rates
                if pool.settle(now):
                    changed.append(pool)
                    if pool.desired.rates != before:
                        self._news.append(pool.changed(now))
                # What is due at this very moment is still to come, unless this is the tick that does it.
                pool.due = self._due(pool, now) if ticks else min(pool.due, self._due(pool, now))
            outbox, self._outbox = self._outbox, []
            news, self._news = self._news, []
            due = min((pool.due for pool in self.pools.values()), default=None)
            leads = any(pool.council.leads for pool in self.pools.values())
        self._post.listen_as_leader(leads, self._hear)
        for pool in changed:
            pool.apply()
        for send, what in outbox:
            send(*what)
        for piece in news:
            self._tell(piece)
        if due is not None and not self._closed:
            self._ticker.set(due)

    def _tick(self) -> None:
        """Time has passed."""
        now = self._now()
        pools = [pool for pool in list(self.pools.values()) if now >= pool.due]

        def tick(now: int) -> None:
            for pool in pools:
                council = pool.council
                if now >= pool.beat_at:
                    pool.beat_at = now + council.beat
                    pool.measure(now)
                if council.reigns or council.alone(now):
                    pool.grow(now)
                council.tick(now)

        if not self._closed:
            self._act(tick, pools, ticks=True)

    def _due(self, pool: Pool, now: int) -> int:
        """When something is worth doing next for this pool."""
        council, due = pool.council, pool.council.next_at(now)
        if pool.total.reduced and (council.reigns or council.alone(now)):
            looks_at = pool.total.looks_at(council.beat)
            if looks_at > now:  # otherwise it waits for something to end well: the next beat may tell
                due = min(due, looks_at)
        return due

    def _gather(self, pool: Pool, now: int) -> None:
        """Put what the council has to say into the outbox, with what else there is to know."""
        council = pool.council
        out, council.out = council.out, []
        level = None if pool.total.level is None else list(pool.total.level)
        for where, letter in out:
            letter["resource"] = pool.name
            if letter["kind"] in ("beat", "hello", "roll", "grant"):
                letter["level"] = level
                letter["pause"] = pool.pause_left(now)
            if letter["kind"] in ("beat", "hello"):
                letter["granted_calls"], letter["well"] = pool.report()
            if letter["kind"] == "grant" and agent_of(letter["to"]) in pool.twins:
                letter["twin"] = True
            self._outbox.append((self._post.send, (where, write_object(letter))))
        news = pool.total.level != pool.noted
        if news and council.reigns and now - pool.noted_at >= 5 * council.beat:
            pool.noted, pool.noted_at = pool.total.level, now
            note = {"resource": pool.name, "level": level, "at": self._wall()}
            self._outbox.append((self._post.leave_note, (pool.name, write_object(note))))

    def _tell(self, piece: Event | CapacityUpdate) -> None:
        if not isinstance(piece, CapacityUpdate):
            events.tell(self._observer, piece)
            return
        callback = self.callback
        if callback is None or self._closed:
            return
        if self._ticker.virtual:
            call_back(callback, piece)
            return
        if self._voice is None:
            self._voice = Voice()
        self._voice.say(callback, piece)


def _why(error: ValueError) -> str:
    if isinstance(error, Unsigned):
        return "unsigned"
    return "oversized" if isinstance(error, Oversized) else "malformed"


def _read_pause(given: object) -> tuple[int, str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not isinstance(given[1], str) or len(given[1]) > 256:
        raise ValueError("a pause is a duration and a name")
    return read_number(given[0], most=_LONGEST_PAUSE), given[1]
