"""Pools and records in one file, for the processes of one machine. No server.

Rules of this room: every question is one short immediate transaction, so a process may be killed at any
instant. Time is the machine's monotonic clock, the same for all its processes; after a restart of the machine
what was remembered is moved by the time that has passed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from ..errors import InvalidConfig, StoreError
from .pool.answer import answer
from .pool.state import Pool
from .store import Records, as_seen, tell_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pool.question import Answer, Question
    from .store import Changes

T = TypeVar("T")

# Connections of a parent process, in a forked child: must never be closed there.
_parents: list[sqlite3.Connection | None] = []
_stores: WeakSet[SqliteStore] = WeakSet()

# How often the file is looked at for news of others.
_LOOK = 0.05
# How long to wait for others who write, and how long until the next try where SQLite does not wait itself.
_BUSY = 1.0
_A_MOMENT = 0.005
_LOCKED = 5  # SQLITE_BUSY


class SqliteStore:
    """One file. `sqlite:///relative/path` or `sqlite:////absolute/path`."""

    def __init__(self, url: str) -> None:
        scheme, slashes, path = url.partition(":///")
        if scheme != "sqlite" or not slashes or path in ("", ":memory:") or "\0" in path:
            raise InvalidConfig(
                f"store={url!r} has no path; write sqlite:///limits.db or sqlite:////var/tmp/limits.db"
            )
        self._path = Path(path)
        self._closed = False
        self._start()
        _stores.add(self)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._hand = _Hand()  # others' locks must not hold the courier
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._news: dict[str, str] = {}
        self._marks: dict[str, list[tuple[str]]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def ask(self, key: str, question: Question) -> Answer:
        return await self._in_thread(self._ask, key, question)

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        records, wrote = await self._in_thread(self._swap, group, changes, mark)
        if wrote:
            tell_all(self._listeners.get(group, ()))  # the file has news for other connections only
        return records

    async def _in_thread(self, act: Callable[..., T], *args: object) -> T:
        if self._pid != os.getpid():  # forked: thread, connection and listeners are the parent's
            _parents.append(self._connection)  # to close it here would end the parent's locks
            self._start()
        if self._closed:
            raise StoreError(f"{self._path} was closed; nothing more can be asked there")
        return await self._hand.do(act, args)

    async def listen(self, key: str, heard: Callable[[], None]) -> None:
        self._listeners.setdefault(key, []).append(heard)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def keys(self) -> list[str]:
        rows = await self._in_thread(self._read, "SELECT key FROM pools ORDER BY key")
        return [key for (key,) in rows]

    async def look(self, key: str) -> Pool | None:
        rows = await self._in_thread(self._read, "SELECT state, boot, wall FROM pools WHERE key = ?", (key,))
        if not rows:
            return None
        now = time.monotonic_ns() // 1000
        try:
            return _moved(rows[0], now).as_of(now)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"{self._path}: {key!r} cannot be read: {error}") from error

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._connection is not None:
            await self._in_thread(self.hang_up)
        self._closed = True
        self._hand.rest()

    # -- in the thread of its own

    def _ask(self, key: str, question: Question) -> Answer:
        connection = self._open()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                row = connection.execute(
                    "SELECT state, boot, wall FROM pools WHERE key = ?", (key,)
                ).fetchone()
                now = time.monotonic_ns() // 1000
                pool = Pool() if row is None else _moved(row, now)
                given = answer(pool, question, now)
                news = f"{pool.window.generation} {pool.version}"
                connection.execute(
                    "REPLACE INTO pools (key, state, boot, wall, news) VALUES (?, ?, ?, ?, ?)",
                    (key, json.dumps(pool.packed()), _boot(), time.time_ns() // 1000, news),
                )
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"{self._path}: {error}") from error
        if key in self._listeners:
            self._news[key] = news  # our own
        return given

    def _swap(self, group: str, changes: Changes, mark: str) -> tuple[Records, bool]:
        connection = self._open()
        where, current, wrote = _blob(group), {}, False
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                now = _time_of_records(connection)
                for name in changes:
                    row = connection.execute(
                        "SELECT mark, text FROM records WHERE place = ? AND name = ? AND expires > ?",
                        (where, _blob(name), now),
                    ).fetchone()
                    current[name] = ("", "") if row is None else (str(row[0]), str(row[1]))
                swapped = as_seen(changes, current, mark)
                for name, (_, text, keep) in changes.items():
                    if swapped and text is not None and current[name][0] != mark:
                        connection.execute(
                            "REPLACE INTO records (place, name, mark, text, expires) VALUES (?, ?, ?, ?, ?)",
                            (where, _blob(name), mark, text, now + keep),
                        )
                        current[name] = (mark, text)
                        wrote = True
                connection.execute("DELETE FROM records WHERE expires <= ?", (now,))
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, TypeError, OverflowError) as error:
            raise StoreError(f"{self._path}: {error}") from error
        return Records(now, swapped, current), wrote

    def _open(self) -> sqlite3.Connection:
        began = time.monotonic_ns()
        while self._connection is None:
            connection = None
            try:
                connection = sqlite3.connect(
                    self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False
                )
                self._furnish(connection)
            except sqlite3.Error as error:
                if connection is not None:
                    connection.close()
                # While somebody else makes the same file, SQLite itself does not wait.
                locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == _LOCKED
                if locked and time.monotonic_ns() - began < _BUSY * 1e9:
                    time.sleep(_A_MOMENT)
                    continue
                raise StoreError(f"{self._path} cannot be opened as a store: {error}") from error
            self._connection = connection
        return self._connection

    def _furnish(self, connection: sqlite3.Connection) -> None:
        _must_not_be_of_others(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS pools "
            "(key TEXT PRIMARY KEY, state TEXT, boot TEXT, wall INTEGER, news TEXT) WITHOUT ROWID"
        )
        for statement in _TABLES_OF_RECORDS:
            connection.execute(statement)

    def hang_up(self) -> None:
        """Close the file. Whoever asks next opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _read(self, query: str, facts: tuple[str, ...] = ()) -> list[Any]:
        """What a query finds, by a connection that can write nothing and makes no file."""
        if not self._path.exists():
            raise StoreError(f"{self._path} does not exist: nobody has used it as a store yet")
        uri = f"file:{quote(str(self._path))}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, timeout=_BUSY, uri=True)) as connection:
                return connection.execute(query, facts).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} cannot be read as a store: {error}") from error

    def _changed(self) -> list[str]:
        connection = self._open()
        rows = connection.execute("SELECT key, news FROM pools").fetchall()
        changed = [key for key, news in rows if key in self._listeners and self._news.get(key) != news]
        self._news.update(rows)
        for key in self._listeners:
            marks = connection.execute("SELECT mark FROM records WHERE place = ?", (_blob(key),)).fetchall()
            if self._marks.get(key, []) != marks:
                self._marks[key] = marks
                changed.append(key)
        return changed

    async def _watch(self) -> None:
        seen = None
        while True:
            await asyncio.sleep(_LOOK)
            try:
                version = await self._in_thread(self._data_version)
                if version != seen:
                    seen = version
                    for key in await self._in_thread(self._changed):
                        tell_all(self._listeners[key])
            except (sqlite3.Error, StoreError):
                continue  # whoever asks next will be told

    def _data_version(self) -> tuple[sqlite3.Connection, int]:
        """Another one: others have written something. Each connection counts for itself."""
        connection = self._open()
        return connection, int(connection.execute("PRAGMA data_version").fetchone()[0])


# Records, and the clock they are kept by. Names are bytes: a name may be anything, a text in SQLite may not.
_TABLES_OF_RECORDS = (
    """CREATE TABLE IF NOT EXISTS records (
        place BLOB, name BLOB, mark TEXT NOT NULL, text TEXT NOT NULL, expires INTEGER NOT NULL,
        PRIMARY KEY (place, name)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS records_by_expiry ON records (expires)",
    """CREATE TABLE IF NOT EXISTS clock (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        boot TEXT NOT NULL, ahead INTEGER NOT NULL, seen INTEGER NOT NULL, wall INTEGER NOT NULL
    )""",
)


def _must_not_be_of_others(connection: sqlite3.Connection) -> None:
    """A database of another program is not touched."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not tables & {"pools", "records", "clock"}:
        raise sqlite3.DatabaseError("it belongs to another program; write the path of a file of its own")


def _blob(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _time_of_records(connection: sqlite3.Connection) -> int:
    """Microseconds that never go back: what is in a record cannot be moved, so the clock goes on instead.

    While the machine runs it is the monotonic clock, `ahead` of it by a constant. After a restart it goes on
    from where it was last `seen`, by the time that the wall clock says has passed since.
    """
    monotonic, wall, boot = time.monotonic_ns() // 1000, time.time_ns() // 1000, _boot()
    row: tuple[str, int, int, int] | None = connection.execute(
        "SELECT boot, ahead, seen, wall FROM clock"
    ).fetchone()
    if row is None:
        ahead = 0
    elif row[0] == boot and monotonic + row[1] >= row[2]:
        ahead = row[1]
        if monotonic + ahead - row[2] < 1_000_000:
            return monotonic + ahead  # noted not long ago
    else:
        ahead = row[2] + max(0, wall - row[3]) - monotonic
    connection.execute(
        "REPLACE INTO clock (one, boot, ahead, seen, wall) VALUES (1, ?, ?, ?, ?)",
        (boot, ahead, monotonic + ahead, wall),
    )
    return monotonic + ahead


class _Hand:
    """A thread that does one thing after the other, also while the process ends: executors do not."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]] | None]
        self._tasks = SimpleQueue()
        self._thread: Thread | None = None

    async def do(self, act: Callable[..., T], args: tuple[object, ...]) -> T:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="headgate sqlite", daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.put((done, act, args))
        return await done

    def rest(self) -> None:
        self._tasks.put(None)
        self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            done, act, args = task
            result, error = None, None
            try:
                with _at_work:
                    result = act(*args)
            except BaseException as raised:  # noqa: BLE001 - it is raised again, where it was asked for
                error = raised
            with suppress(RuntimeError):  # that loop was closed meanwhile
                done.get_loop().call_soon_threadsafe(_deliver, done, result, error)


class _AtWork:
    """Who is inside SQLite. Whoever forks waits until nobody is, and keeps them out until it is done.

    A child has its parent's memory, and SQLite remembers there which locks the process has: with a file open
    the child would believe that it holds them, and within a call it would wait for ever for one who is not
    there. So before a fork every file is closed; whoever asks next, on either side, opens it again.
    """

    def __init__(self) -> None:
        self._change = Condition()
        self._inside = 0
        self._forking = False

    def __enter__(self) -> None:
        with self._change:
            self._change.wait_for(lambda: not self._forking)
            self._inside += 1

    def __exit__(self, *_raised: object) -> None:
        with self._change:
            self._inside -= 1
            self._change.notify_all()

    def before_fork(self) -> None:
        self._change.acquire()
        self._forking = True
        if self._change.wait_for(lambda: not self._inside, 2 * _BUSY):
            for store in _all_of(_stores):
                store.hang_up()

    def after_in_parent(self) -> None:
        self._forking = False
        self._change.notify_all()
        self._change.release()

    def after_in_child(self) -> None:
        self._inside = 0  # they stayed with the parent
        self.after_in_parent()


def _all_of(things: WeakSet[T]) -> list[T]:
    while True:
        with suppress(RuntimeError):  # another thread made one meanwhile
            return list(things)


_at_work = _AtWork()
if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(
        before=_at_work.before_fork,
        after_in_parent=_at_work.after_in_parent,
        after_in_child=_at_work.after_in_child,
    )


def _deliver(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():
        return  # whoever asked has gone
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _boot() -> str:
    """Which start of the machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _moved(row: tuple[str, str, int], now: int) -> Pool:
    """The pool as it was, its times counted from this start of the machine."""
    state, boot, wall = row
    pool = Pool.unpacked(json.loads(state))
    if boot != _boot() or pool.now > now:
        passed = max(0, time.time_ns() // 1000 - wall)
        pool.shift(now - passed - pool.now)
    return pool
