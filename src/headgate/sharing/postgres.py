"""Pools and records in PostgreSQL, for a fleet that has a database and no other server.

One table has everything. A transaction locks what it reads, by numbers that are made of the keys, decides
here, in Python, by the clock of the server, and writes: two trips for all questions that wait at that moment.
The locks are those of the transaction, so a pooler may stand between. The server puts out a process that is
stopped inside a transaction. A question may reach the server twice and is decided once, by its id.
"""

from __future__ import annotations

import asyncio
import json
import time
from _thread import allocate_lock
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import StoreError
from ..gate.forks import around_fork, never_free, reset_in_child
from .courier import COURIER, settle
from .pool.answer import answer
from .pool.heard import news_text, read_news
from .pool.state import KEPT_IDLE, Pool
from .postgres_connection import CHANNEL, Address, Listener, hang_up
from .postgres_statements import BEGINNING, NOW, SWEEPING, TABLE, WRITING
from .store import Heard, Records, add_listener, drop_listener, tell_all, texts_to_write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import AsyncConnection

    from .pool.question import Answer, Question
    from .store import Changes

# How many questions are answered in one transaction.
_MOST_TOGETHER = 64
# For how many milliseconds, and for how many trips, a transaction may wait for this process.
_IDLE, _IDLE_TRIPS = 200, 4
# How often rows whose time is over are deleted, in µs; how many together; how long news are kept.
_SWEEP = 60_000_000
_MOST_DELETED = 1_000
_NEWS = 3_600_000_000
_MINUTE = 60_000_000


class _Row(NamedTuple):
    """A pool, a record, or the mark of the latest news of a key."""

    id: bytes
    name: bytes | None
    mark: str
    text: str
    expires: int


class _Decision(NamedTuple):
    """The reply to a request, the rows to write, the key that has news, and what they say of its window."""

    reply: Any
    rows: list[_Row]
    news: str | None
    said: str = ""


class _Request(NamedTuple):
    """What to lock and to read, and how to decide, given the rows that are there and the server's time."""

    lock: int
    ids: list[bytes]
    decide: Callable[[dict[bytes, _Row], int], _Decision]
    reply: asyncio.Future[Any]


class PostgresStore:
    """Pools and records in the PostgreSQL database of that URL.

    A server that does not answer costs an `ask` at most `timeout` seconds, and `connect_timeout` more if it
    is not connected yet. Whether such a question was decided is unknown: ask again with the same id.
    """

    def __init__(self, url: str, *, timeout: float = 2.5, connect_timeout: float = 2.5) -> None:
        self._address = Address(url, timeout=timeout, connect_timeout=connect_timeout)
        self.url = self._address.shown
        self._given = url
        self._patience = timeout + connect_timeout
        self._closed = False
        self._listeners: dict[str, list[Heard]] = {}
        self._start(None)
        reset_in_child(self, first=True)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._connection: AsyncConnection[Any] | None = None
        self._looking: AsyncConnection[Any] | None = None  # of `keys` and `look`
        self._waiting: list[_Request] = []
        self._sending: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._trip = 0.0  # how many seconds the server and the way to it have lately taken
        self._sweep_at = 0

    @classmethod
    def shared(cls, url: str) -> PostgresStore:
        """Return the store that all members of this process have in common: connections are scarce there.

        Each of them closes it, and the last one really does.
        """
        with _sharing:
            store, users = _shared.get(url, (None, 0))
            if store is None:
                store = cls(url)
            _shared[url] = (store, users + 1)
        return store

    def __repr__(self) -> str:
        return f"<PostgresStore {self.url}{', closed' if self._closed else ''}>"

    @property
    def polls(self) -> bool:
        """Whether news are looked for every 50 ms, because a pooler stands between."""
        return self._listener is not None and self._listener.polls

    async def ask(self, key: str, question: Question) -> Answer:
        pool_id = _id("pool", key)

        def decide(rows: dict[bytes, _Row], now: int) -> _Decision:
            row = rows.get(pool_id)
            pool = Pool() if row is None else Pool.unpacked(json.loads(row.text))
            before = pool.news
            given = answer(pool, question, now)
            text = json.dumps(pool.packed())
            if row is not None and row.text == text:
                return _Decision(given, [], None)
            new = _Row(pool_id, _bytes(key), "", text, now + pool.idle_for() + KEPT_IDLE)
            news = key if pool.news != before else None
            return _Decision(given, [new], news, news_text(given))

        given: Answer = await self._run(_lock(pool_id), [pool_id], decide)
        return given

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        ids = {name: _id("record", group, name) for name in changes}

        def decide(rows: dict[bytes, _Row], now: int) -> _Decision:
            current = {
                name: ("", "") if (row := rows.get(ids[name])) is None else (row.mark, row.text)
                for name in changes
            }
            texts = texts_to_write(changes, current, mark)
            new = [
                _Row(ids[name], None, mark, text, now + keep) for name, (text, keep) in (texts or {}).items()
            ]
            current |= {name: (mark, text) for name, (text, _) in (texts or {}).items()}
            return _Decision(Records(now, texts is not None, current), new, group if texts else None)

        records: Records = await self._run(_lock(_id("record", group)), list(ids.values()), decide)
        return records

    async def listen(self, key: str, heard: Heard) -> None:
        """Have `heard` called when the window, the limits or a record has changed, or may have without news.

        Returns at once. The first call of `heard` says that the connection is there, perhaps at once, and so
        does one after every reconnection.
        """
        add_listener(self._listeners, _news_of(key), heard)
        self._attach()
        if self._listener is not None and (self._listener.hears or self._listener.polls):
            tell_all([heard])  # what has changed since it asked was told to the other listeners only

    async def unlisten(self, key: str, heard: Heard) -> None:
        drop_listener(self._listeners, _news_of(key), heard)
        listener = self._listener
        if self._listeners or listener is None or self._loop is not asyncio.get_running_loop():
            return
        self._listener = None
        listener.stop()
        await asyncio.gather(listener.task, return_exceptions=True)

    async def keys(self) -> list[str]:
        query = f"SELECT name FROM headgate_state WHERE name IS NOT NULL AND expires > {NOW}"  # noqa: S608
        return sorted(name.decode("utf-8", "surrogatepass") for (name,) in await self._read(query))

    async def look(self, key: str) -> Pool | None:
        query = f"SELECT text, {NOW} FROM headgate_state WHERE id = %s AND expires > {NOW}"  # noqa: S608
        rows = await self._read(query, _id("pool", key))
        try:
            return Pool.unpacked(json.loads(rows[0][0])).as_of(rows[0][1]) if rows else None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"{self.url}: {key!r} cannot be read: {error}") from error

    async def close(self) -> None:
        """Close the connections. Questions that wait for an answer get a StoreError."""
        with _sharing:
            store, users = _shared.get(self._given, (None, 1))
            if store is self and users > 1:
                _shared[self._given] = (self, users - 1)
                return
            if store is self:
                del _shared[self._given]
        if not self._closed:
            self._closed = True
            await self.let_go()

    async def let_go(self) -> None:
        """Close the connections. Unless the store is closed, the next question makes others."""
        here = self._loop is asyncio.get_running_loop()
        sending, listener, connection = self._sending, self._listener, self._connection
        waiting, looking = self._waiting, self._looking
        self._start(self._loop)
        for request in waiting:
            settle(request.reply, self._is_closed())
        if not here:
            return  # the tasks are those of another loop, which has ended
        tasks = [] if sending is None else [sending]
        if listener is not None:
            listener.stop()
            tasks.append(listener.task)
        if sending is not None and connection is not None:
            hang_up(connection)  # to cancel the task would wait for the server
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in (connection, looking):
            if each is not None:
                await each.close()

    # -- connections

    def _attach(self) -> None:
        """Begin anew on the running loop: connections cannot move to another loop."""
        if self._closed:
            raise self._is_closed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._start(loop)
        COURIER.let_go_at_end(self)
        if self._listeners and self._listener is None:
            self._listener = Listener(self._address, self._marks, self._hear)

    async def _connected(self) -> AsyncConnection[Any]:
        if self._connection is None:
            self._connection = await self._address.connect()
            asked_at = time.monotonic()
            async with self._address.in_time(self._connection):
                await _make_table(self._connection)  # it may be another server, or an empty one
            self._trip = time.monotonic() - asked_at
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def after_fork(self) -> None:
        """Leave the connections to the parent: to close the copies would end them there too."""
        if self._loop is not None:
            never_free(vars(self).copy())
        self._start(None)

    # -- asking

    async def _run(
        self, lock: int, ids: list[bytes], decide: Callable[[dict[bytes, _Row], int], _Decision]
    ) -> Any:
        """Decide in one transaction with all requests that wait."""
        self._attach()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(lock, ids, decide, reply))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        try:
            async with asyncio.timeout(self._patience):
                return await reply
        except TimeoutError:
            raise self._address.unanswered() from None

    async def _send(self) -> None:
        """Answer what waits, until nothing does."""
        batch: list[_Request] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST_TOGETHER], self._waiting[_MOST_TOGETHER:]
                batch = [request for request in batch if not request.reply.done()]  # some were cancelled
                if batch:
                    replies = await self._again_if_lost(batch)
                    for request, given in zip(batch, replies, strict=True):
                        settle(request.reply, given)
        except Exception as error:  # noqa: BLE001 - any error here means that none was answered
            # The requests that came in the meantime wait for the same server.
            waiting, self._waiting = self._waiting, []
            why = self._why(error)
            for request in batch + waiting:
                settle(request.reply, why)
            await self._disconnect()
        finally:
            if self._sending is asyncio.current_task():
                self._sending = None

    async def _again_if_lost(self, batch: Sequence[_Request]) -> list[Any]:
        """Decide, and once more if the connection was lost: it may have broken while it was idle."""
        from psycopg import Error  # noqa: PLC0415 - an extra

        known = self._connection is not None
        try:
            return await self._transact(batch)
        except Error:
            if not known or self._connection is None or not self._connection.closed:
                raise
            await self._disconnect()
            return await self._transact(batch)

    async def _transact(self, batch: Sequence[_Request]) -> list[Any]:
        """Return the reply to each: an answer or an exception."""
        connection = await self._connected()
        async with self._address.in_time(connection):
            rows, now = await self._begin(connection, batch)
            replies: list[Any] = []
            new: dict[bytes, _Row] = {}
            news: dict[str, str] = {}
            for request in batch:
                try:
                    reply, written, told, said = request.decide(rows, now)
                except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
                    replies.append(StoreError(f"{self.url} cannot answer: {error}"))
                    continue
                replies.append(reply)
                rows |= {row.id: row for row in written}
                new |= {row.id: row for row in written}
                if told is not None:
                    news[told] = said or news.get(told, "")
            new |= {row.id: row for key in news if (row := _news_row(key, now))}
            committing = time.monotonic()
            await self._commit(connection, list(new.values()), news)
            self._trip = time.monotonic() - committing
            if now >= self._sweep_at:
                self._sweep_at = now + _SWEEP
                await connection.execute(SWEEPING, (now // _MINUTE, _MOST_DELETED))
        return replies

    async def _begin(
        self, connection: AsyncConnection[Any], batch: Sequence[_Request]
    ) -> tuple[dict[bytes, _Row], int]:
        """Lock and read what the batch asks for. Return the rows whose time is not over, and the time."""
        locks = sorted({request.lock for request in batch})
        idle = _IDLE + int(_IDLE_TRIPS * self._trip * 1000)
        cursor = await connection.execute(
            BEGINNING.format(locks=", ".join(["pg_advisory_xact_lock(%s)"] * len(locks))),
            (
                int(self._address.timeout * 900),
                idle,
                *locks,
                [each for request in batch for each in request.ids],
            ),
        )
        while cursor.nextset():
            pass
        found = await cursor.fetchall()
        now = int(found[0][0])
        rows = [_Row(*row) for _, *row in found if row[0] is not None]
        return {row.id: row for row in rows if row.expires > now}, now

    async def _commit(self, connection: AsyncConnection[Any], rows: list[_Row], news: dict[str, str]) -> None:
        statements, facts = [], []
        if rows:
            # In the order of their ids, as every transaction writes them.
            rows.sort()
            values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(rows))
            statements.append(WRITING.format(values=values))
            facts = [fact for row in rows for fact in (*row, row.expires // _MINUTE + 1)]
        for key, said in news.items():
            statements.append(f"SELECT pg_notify('{CHANNEL}', %s)")
            facts.append(f"{_news_of(key)} {said}")
        await connection.execute("; ".join([*statements, "COMMIT"]), facts)

    async def _read(self, query: str, *facts: object) -> list[Any]:
        """Return what a query finds, on the connection for looks. Writes and makes nothing."""
        from psycopg import errors  # noqa: PLC0415 - an extra

        self._attach()
        try:
            if self._looking is None:
                self._looking = await self._address.connect()
            connection = self._looking
            try:
                async with self._address.in_time(connection):
                    return await (await connection.execute(query, facts)).fetchall()
            except BaseException:
                self._looking = None
                await connection.close()
                raise
        except errors.UndefinedTable as error:
            raise StoreError(
                f"{self.url} has no table headgate_state: no process has used it as a store yet"
            ) from error
        except Exception as error:
            raise self._why(error) from error

    # -- listening

    async def _marks(self, connection: AsyncConnection[Any]) -> dict[str, object]:
        """Return the mark of the latest news of all keys that have listeners."""
        ids = {_id("news", news): news for news in self._listeners}
        query = "SELECT id, text FROM headgate_state WHERE id = ANY(%s)"
        rows = await (await connection.execute(query, (list(ids),))).fetchall()
        return {ids[each]: mark for each, mark in rows}

    def _hear(self, news: str | None) -> None:
        """Tell the listeners of all keys, or of the one that is named before the first space."""
        changed, _, said = (news or "").partition(" ")
        for name, listeners in list(self._listeners.items()):
            if changed in ("", name):
                tell_all(listeners, read_news(said))

    # -- errors

    def _is_closed(self) -> StoreError:
        return StoreError(f"{self.url} was closed; nothing more can be asked there")

    def _why(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        import psycopg  # noqa: PLC0415 - an extra

        if self._closed:
            return self._is_closed()
        words = " ".join(str(error).split())
        if isinstance(error, psycopg.errors.LockNotAvailable):
            why = StoreError(f"{self.url} does not answer in time: another process is in the same pool")
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            why = StoreError(f"{self.url} does not let us in: {words}; see Postgres in docs/sharing.md")
        elif isinstance(error, psycopg.OperationalError | OSError) and not _lacks_room(error):
            why = StoreError(f"{self.url} cannot be reached: {words}")
        else:
            why = StoreError(f"{self.url} cannot answer: {words}")
        why.__cause__ = error
        return why


async def _make_table(connection: AsyncConnection[Any]) -> None:
    """Make the table if it is not there. One process at a time does: otherwise one of them would fail."""
    there = await (await connection.execute("SELECT to_regclass('headgate_state')")).fetchone()
    if there is None or there[0] is None:
        locking = "BEGIN; SELECT pg_advisory_xact_lock(%s);"
        await connection.execute(f"{locking} {TABLE} COMMIT", (_lock(_id("table")),))


def _lacks_room(error: Exception) -> bool:
    """Whether the server was reached, and has no disk or no memory left: errors of class 53."""
    return str(getattr(error, "sqlstate", None)).startswith("53")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _id(*names: str) -> bytes:
    """Return a short name for names of any length and with any characters."""
    return blake2b(
        b"".join(b"%d:%b" % (len(each), each) for each in map(_bytes, names)), digest_size=16
    ).digest()


def _lock(of: bytes) -> int:
    return int.from_bytes(of[:8], signed=True)


def _news_of(key: str) -> str:
    return _id("key", key).hex()


def _news_row(key: str, now: int) -> _Row:
    return _Row(_id("news", _news_of(key)), None, "", str(now), now + _NEWS)


# Stores by URL, and by how many members they are used.
_shared: dict[str, tuple[PostgresStore, int]] = {}
_sharing = allocate_lock()


def _start_clean() -> None:
    """In a forked child: the stores are the parent's."""
    global _sharing  # noqa: PLW0603 - another thread of the parent may have held it
    _sharing = allocate_lock()
    _shared.clear()


around_fork(before=lambda: None, in_parent=lambda: None, in_child=_start_clean)
