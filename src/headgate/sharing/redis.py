"""Pools and records in Valkey or Redis, for a fleet: one server, a cluster, or servers behind sentinels.

Scripts decide, on the server and by its clock; this file only carries questions. One connection to each
server asks, for all its keys, and sends together what waits; another one listens. A question may reach the
server twice and is decided once, by its id. Every failure is a StoreError, in time and without the password.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from ..gate.forks import never_free, reset_in_child
from .courier import COURIER, settle, stop
from .pool.flow import FAR_PART, HALF, MOST_LONGER
from .pool.grants import (
    AGAIN,
    CALLS,
    EARLY,
    ENOUGH,
    FAR,
    GRACE,
    LATELY,
    LEAST_AHEAD,
    MOST_AHEAD,
    SOONEST,
    STALE,
)
from .pool.heard import read_news
from .pool.parts import DIVIDED_FOR, PRESENT, WHOLE
from .pool.question import Answer
from .pool.rate import (
    FEW_PART,
    LONG_AGO,
    MOST_MARKS,
    NEAR_PART,
    NOT_KNOWN,
    SHORTEST_MOMENT,
    SPACING,
    USED_WITHIN,
)
from .pool.reunion import GAP, HUNG, LONGEST, REUNION
from .pool.shift import GAPS, LONGEST_ROUND
from .pool.state import KEPT_IDLE, LAYOUT, SET_BACK, Pool
from .pool.strict import GROUPS, LIFE_PART, LONGEST_LIFE, SHORTEST_LIFE
from .redis_address import address_of
from .redis_connection import OneServer, code_of
from .store import Heard, Records, add_listener, drop_listener

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .pool.question import Question
    from .redis_connection import AnyListener, Servers
    from .store import Changes

    # A script, its arguments, and the future of its reply.
    Request = tuple[str, tuple[Any, ...], asyncio.Future[Any]]


def _script(*names: str) -> str:
    """Return files of Lua as one script."""
    folder = Path(__file__).with_name("scripts")
    return "".join(folder.joinpath(name).read_text("utf-8") for name in names)


SCRIPT = _script(
    *("integers.lua", "state.lua", "rates.lua", "flow.lua", "shift.lua", "episode.lua"),
    *("reunion.lua", "grants.lua", "unused.lua", "parts.lua", "news.lua", "pool.lua"),
)
# What the script is given besides a question, in the order in which it reads them.
_CONSTANTS = [
    *(LAYOUT, CALLS, LEAST_AHEAD, MOST_AHEAD, EARLY, SOONEST, GRACE, FAR, AGAIN, SET_BACK, KEPT_IDLE),
    *(MOST_MARKS, SPACING, USED_WITHIN, LONG_AGO, NEAR_PART),
    *(GROUPS, LIFE_PART, SHORTEST_LIFE, LONGEST_LIFE, REUNION, NOT_KNOWN),
    *(WHOLE, PRESENT, DIVIDED_FOR, MOST_LONGER, FEW_PART, SHORTEST_MOMENT, ENOUGH, LATELY),
    *(HALF, FAR_PART, GAPS, STALE, LONGEST_ROUND, [GAP, HUNG, LONGEST]),
]
CONSTANTS = json.dumps([*_CONSTANTS, False])
_IN_A_CLUSTER = json.dumps([*_CONSTANTS, True])  # news go to the listeners of one shard
LOOK = _script("state.lua", "look.lua")
_RECORDS = _script("news.lua", "records.lua")
_NAMES = {
    script: sha1(script.encode(), usedforsecurity=False).hexdigest() for script in (SCRIPT, LOOK, _RECORDS)
}

# How many questions are sent together: the server does nothing else while it answers them.
_MOST_TOGETHER = 64
# After how many silent seconds the listener asks whether the server is still there.
_QUIET = 5.0


class RedisStore:
    """Pools and records in the Valkey or Redis servers of that URL, or of a client of redis-py or valkey-py.

    From a ready client the store takes where the servers are and how to connect to them. It connects by
    itself, on its own event loop, and leaves the client as it is.

    A server that does not answer costs an `ask` at most `timeout` seconds, and `connect_timeout` more if it
    is not connected yet; in a cluster twice as much more, because one server says which other one has the
    key. Whether such a question was decided is unknown: ask again with the same id.
    """

    def __init__(self, where: Any, *, timeout: float = 2.5, connect_timeout: float = 2.5) -> None:
        self._address = address_of(where, "store", timeout=timeout, connect_timeout=connect_timeout)
        self.url = self._address.shown
        self._sharded = self._address.kind == "cluster"  # whether news go to the listeners of one shard only
        self._timeout = timeout
        self._patience = timeout + connect_timeout * (2 if self._sharded else 1)
        self._closed = False
        self._heard: dict[bytes, list[Heard]] = {}
        self._start(None)
        reset_in_child(self, first=True)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._servers: Servers | None = None
        # By lane: a server that does not answer holds up only the questions for its own keys.
        self._waiting: dict[Hashable, list[Request]] = {}
        self._sending: dict[Hashable, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._listener: AnyListener | None = None

    def __repr__(self) -> str:
        return f"<RedisStore {self.url}{', closed' if self._closed else ''}>"

    async def ask(self, key: str, question: Question) -> Answer:
        asked = json.dumps(question, separators=(",", ":"))
        constants = _IN_A_CLUSTER if self._sharded else CONSTANTS
        return read_answer(await self._run(SCRIPT, 1, _key(key), asked, constants))

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        facts = [
            fact
            for seen, text, keep in changes.values()
            for fact in (
                "*" if seen is None else seen,
                "" if text is None else max(1, -(-keep // 1000)),
                text or "",
            )
        ]
        keys = [_record(group, name) for name in changes]
        now, swapped, *found = await self._run(
            _RECORDS, len(keys), *keys, mark, _key(group) + b":news", int(self._sharded), *facts
        )
        marks, texts = map(_text, found[::2]), map(_text, found[1::2])
        current = {
            name: (by_now, given if swapped and given is not None else text)
            for (name, (_, given, _)), by_now, text in zip(changes.items(), marks, texts, strict=True)
        }
        return Records(int(now), bool(swapped), current)

    async def _run(self, script: str, *facts: Any) -> Any:
        """Run a script, in one round trip with all others that wait for the same server."""
        lane = self._connect().lane(facts[1])
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lane, []).append((script, facts, reply))
        if lane not in self._sending:
            self._sending[lane] = asyncio.create_task(self._send(lane))
        try:
            async with asyncio.timeout(self._patience):
                return await reply
        except TimeoutError:
            raise self._unanswered(self._patience) from None

    async def listen(self, key: str, heard: Heard) -> None:
        """Have `heard` called when the window, the limits or a record has changed, or may have without news.

        Returns at once. The first call of `heard` says that the connection is there, and so does one after
        every reconnection.
        """
        channel = _key(key) + b":news"
        add_listener(self._heard, channel, heard)
        self._connect()
        if self._listener is not None:  # the server confirms a channel again that is known
            await self._listener.subscribe(channel)

    async def unlisten(self, key: str, heard: Heard) -> None:
        channel = _key(key) + b":news"
        if not drop_listener(self._heard, channel, heard) or self._loop is not asyncio.get_running_loop():
            return
        listening, listener = self._listening, self._listener
        if listening is None or listener is None or self._sharded:
            return  # of a cluster the channel stays subscribed on its connection
        if self._heard:
            await listener.unsubscribe(channel)
        else:  # a connection that listens to nothing would not notice that it is lost
            self._listening = self._listener = None
            await stop(listening, again=1.0)

    async def keys(self) -> list[str]:
        """Return the keys of all pools. Reads all keys of the servers, a few at a time."""
        servers = self._connect()
        try:
            found = [
                key
                for client in await servers.clients()
                async for key in client.scan_iter(match=b"headgate:{*}", count=1_000)
            ]
        except Exception as error:
            raise self._why(error) from error
        return sorted({_name_of(key) for key in found})

    async def look(self, key: str) -> Pool | None:
        seen = await self._run(LOOK, 1, _key(key), LAYOUT)
        if seen is None:
            return None
        layout, rates, limits, units, version, members, *others, now = seen
        units = [_text(unit) for unit in units]
        members = {_text(name): member for name, member in members}
        window, *times, lesson, configured, raised, born, grants_from = others
        window[5], lesson[3] = (
            _text(window[5]),
            _text(lesson[3]),
        )
        learned = [lesson, configured, raised, born, grants_from]
        packed = [layout, rates, limits, units, version, members, window, *times, *learned]
        return Pool.unpacked(packed).as_of(now)

    async def close(self) -> None:
        """Close the connections. Questions that wait for an answer get a StoreError."""
        if not self._closed:
            self._closed = True
            await self.let_go()

    async def let_go(self) -> None:
        """Close the connections. Unless the store is closed, the next question makes others."""
        tasks = [*self._sending.values(), *([] if self._listening is None else [self._listening])]
        servers, waiting = self._servers, [request for lane in self._waiting.values() for request in lane]
        here = self._loop is asyncio.get_running_loop()
        self._start(self._loop)
        self._fail(waiting)
        if not here:
            return  # the tasks are those of another loop, which has ended
        await stop(*tasks, again=1.0)
        if servers is not None:
            with suppress(Exception):  # the connection may be lost already
                await servers.close()

    # -- connections

    def _connect(self) -> Servers:
        """Make clients and a listener for the running loop: connections cannot move to another loop."""
        if self._closed:
            raise self._is_closed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._start(loop)
        COURIER.let_go_at_end(self)
        servers = self._servers
        if servers is None:
            servers = self._servers = self._open()
        if self._heard and self._listening is None:
            self._listener = servers.listener(lambda: list(self._heard), self._hear, (_QUIET, self._timeout))
            self._listening = loop.create_task(self._listener.run())
        return servers

    def _open(self) -> Servers:
        if not self._sharded:
            return OneServer(self._address)
        from .redis_cluster import Cluster  # noqa: PLC0415 - most fleets have one server

        return Cluster(self._address)

    def after_fork(self) -> None:
        """Leave the connections to the parent: to close the copies would end them in its event loop too."""
        if self._loop is not None:
            never_free(vars(self).copy())
        self._start(None)

    # -- asking

    async def _send(self, lane: Hashable) -> None:
        """Send what waits for one server, until nothing does."""
        batch: list[Request] = []
        try:
            while self._waiting.get(lane):
                waiting = self._waiting.pop(lane)
                batch, self._waiting[lane] = waiting[:_MOST_TOGETHER], waiting[_MOST_TOGETHER:]
                batch = [request for request in batch if not request[2].done()]  # some were cancelled
                replies = await self._ask_all(batch) if batch else []
                for (_, _, reply), given in zip(batch, replies, strict=True):
                    settle(reply, self._why(given) if isinstance(given, Exception) else given)
        except asyncio.CancelledError:
            self._fail(batch)
            raise
        except Exception as error:  # noqa: BLE001 - any error here means that none was answered
            # The questions that came in the meantime wait for the same server.
            self._fail(batch + self._waiting.pop(lane, []), error)
        finally:
            if self._sending.get(lane) is asyncio.current_task():
                del self._sending[lane]
                self._waiting.pop(lane, None)  # empty

    async def _ask_all(self, batch: Sequence[Request]) -> list[Any]:
        """Return the reply to each: a text or an exception. Raises if the server cannot be reached at all."""
        from redis import exceptions  # noqa: PLC0415 - an extra

        # Ids and marks make it safe to send a question twice.
        servers = self._connect()
        replies = await servers.send(
            [(facts[1], ("EVALSHA", _NAMES[script], *facts)) for script, facts, _ in batch]
        )
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
        if unknown:
            whole = [batch[i] for i in unknown]
            again = await servers.send([(facts[1], ("EVAL", script, *facts)) for script, facts, _ in whole])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        return replies

    # -- listening

    def _hear(self, kind: str, channel: bytes, data: bytes | str) -> None:
        news = read_news(data) if kind == "message" else None
        for heard in self._heard.get(channel, ()):
            asyncio.get_running_loop().call_soon(heard, news)

    # -- errors

    def _fail(self, requests: Sequence[Request], error: Exception | None = None) -> None:
        """Answer with that error, or that the store was closed."""
        for _, _, reply in requests:
            settle(reply, self._is_closed() if error is None else self._why(error))

    def _is_closed(self) -> StoreError:
        return StoreError(f"{self.url} was closed; nothing more can be asked there")

    def _unanswered(self, seconds: float) -> StoreError:
        return StoreError(f"{self.url} does not answer in time ({seconds:g} s)")

    def _why(self, error: Exception) -> StoreError:
        from redis import exceptions  # noqa: PLC0415 - as above

        words = str(error).rstrip(".")
        if isinstance(error, exceptions.TimeoutError):
            why = self._unanswered(self._timeout)
        elif isinstance(error, exceptions.AuthenticationError):
            why = StoreError(
                f"{self.url} does not let us in: {words}; write its user and password as "
                "redis://user:password@host/0, with %40 for @ and %2F for /"
            )
        elif code_of(error) == "MOVED":
            why = StoreError(
                f"{self.url} is one server of a cluster, and another has this key; write redis+cluster://host"
            )
        elif isinstance(error, exceptions.ConnectionError):
            why = StoreError(f"{self.url} cannot be reached: {words}")
        else:
            why = StoreError(f"{self.url} cannot answer: {words}")
        why.__cause__ = error
        return why


def read_answer(reply: list[Any]) -> Answer:
    """Read what the script replies: the values of an answer, in the order of its fields."""
    given: Any = dict(zip(Answer.__annotations__, reply, strict=False))
    given["crowded"] = bool(given["crowded"])
    given["lesson"] = [_text(each) if isinstance(each, bytes) else each for each in given["lesson"]]
    if "units" in given:
        given["units"] = [_text(unit) for unit in given["units"]]
    return given  # type: ignore[no-any-return]  # an Answer


def _key(key: str) -> bytes:
    """Return the key of a pool. It and its channel are in one slot of a cluster."""
    return b"headgate:{%b}" % _tag(key)


def _record(group: str, name: str) -> bytes:
    """Return the key of a record. All records of a group are in one slot."""
    return b"headgate-record:{%b}:%b" % (_tag(group), name.encode("utf-8", "surrogatepass"))


def _tag(key: str) -> bytes:
    """Return a key as it stands in braces, after a zero if nothing would be before the first }."""
    text = key.encode("utf-8", "surrogatepass")
    return b"\0" + text if text[:1] in (b"", b"}", b"\0") else text


def _text(reply: bytes | str) -> str:
    return reply if isinstance(reply, str) else reply.decode()  # the URL may have asked for decoded replies


def _name_of(key: bytes | str) -> str:
    if isinstance(key, str):  # the URL asked for decoded replies
        key = key.encode("utf-8", "surrogateescape")
    tag = key[len(b"headgate:{") : -1]
    return tag.removeprefix(b"\0").decode("utf-8", "surrogatepass")
