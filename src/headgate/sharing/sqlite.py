"""Pools and records in one file, for the processes of one machine, without a server.

Every question is one short immediate transaction, so a process may be killed at any instant. All processes of
the machine go by the clock that the file keeps: see `_now`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections import deque
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from ..arguments import NS_PER_US
from ..errors import InvalidConfig, StoreError
from ..gate.clock import OWN_THREADS
from ..gate.forks import around_fork, never_free, reset_in_child
from .courier import COURIER, settle
from .pool.answer import answer
from .pool.state import KEPT_IDLE, Pool
from .store import Heard, Records, add_listener, drop_listener, tell_all, texts_to_write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .pool.question import Answer, Question
    from .store import Changes

T = TypeVar("T")

# How many seconds pass between two looks at the file for changes of other processes.
_LOOK = 0.05
# How many seconds to wait for other writers, and until the next try where SQLite does not wait itself.
_BUSY = 1.0
_RETRY = 0.005
_LOCKED = 5  # SQLITE_BUSY
_DISK, _FULL = 10, 13  # SQLITE_IOERR, SQLITE_FULL
# How often idle pools are deleted, and how often the time is noted in the file, in microseconds.
_SWEEP = 60_000_000
_NOTE = 1_000_000

_TABLES = (
    """CREATE TABLE IF NOT EXISTS pools (
        key TEXT PRIMARY KEY, state TEXT, news TEXT, expires INTEGER
    ) WITHOUT ROWID""",
    # Names are bytes: a name may be any Python string, a text in SQLite may not.
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
_FIND = "SELECT state FROM pools WHERE key = ? AND expires > ?"


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
        self._ahead = 0  # how far the time of the file is ahead of the monotonic clock: see `_now`
        self._start()
        with _in_use:
            _stores.add(self)
        reset_in_child(self, first=True)

    def _start(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # that the connection has open
        self._worker = _Worker()  # the courier must not wait for locks of other processes
        self._listeners: dict[str, list[Heard]] = {}
        self._new: deque[str] = deque()  # keys with a listener that was not called yet
        self._news: dict[str, str] = {}
        self._marks: dict[str, list[tuple[str]]] = {}
        self._version: object = None  # of the file, when it was last looked at for changes
        self._watcher: asyncio.Task[None] | None = None
        self._sweep_at = 0

    def after_fork(self) -> None:
        never_free((self._connection, self._watcher))  # to close it here would end the parent's locks
        self._start()

    async def ask(self, key: str, question: Question) -> Answer:
        given, news = await self._in_thread(self._ask, key, question)
        listeners = self._listeners.get(key, ())
        if news and len(listeners) > 1:  # the file shows a change to other connections only
            tell_all(listeners)
        return given

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        records, wrote = await self._in_thread(self._swap, group, changes, mark)
        if wrote:
            tell_all(self._listeners.get(group, ()))  # as above
        return records

    async def _in_thread(self, act: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise StoreError(f"{self._path} was closed; nothing more can be asked there")
        COURIER.let_go_at_end(self)
        return await self._worker.run(act, args)

    async def listen(self, key: str, heard: Heard) -> None:
        add_listener(self._listeners, key, heard)
        self._new.append(key)  # what has changed since it asked was perhaps told to the other listeners only
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def unlisten(self, key: str, heard: Heard) -> None:
        drop_listener(self._listeners, key, heard)
        if not self._listeners:
            self._stop_watching()

    def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()

    async def keys(self) -> list[str]:
        query = "SELECT key FROM pools WHERE expires > ? ORDER BY key"
        _, rows = await self._in_thread(self._read, query)
        return [key for (key,) in rows]

    async def look(self, key: str) -> Pool | None:
        now, rows = await self._in_thread(self._read, _FIND, key)
        try:
            return Pool.unpacked(json.loads(rows[0][0])).as_of(now) if rows else None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"{self._path}: {key!r} cannot be read: {error}") from error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.let_go()
        self._worker.stop()

    async def let_go(self) -> None:
        """Close the file after all that was asked before. The next question opens it again."""
        self._stop_watching()
        if self._worker.started:
            await self._worker.run(self.disconnect, ())

    # -- on the worker's thread

    def _ask(self, key: str, question: Question) -> tuple[Answer, bool]:
        with self._transaction() as (connection, now):
            row = connection.execute(_FIND, (key, now)).fetchone()
            pool = Pool() if row is None else Pool.unpacked(json.loads(row[0]))
            given = answer(pool, question, now)
            news = " ".join(map(str, pool.news))
            connection.execute(
                "REPLACE INTO pools (key, state, news, expires) VALUES (?, ?, ?, ?)",
                (key, json.dumps(pool.packed()), news, now + pool.idle_for() + KEPT_IDLE),
            )
            if now >= self._sweep_at:
                self._sweep_at = now + _SWEEP
                connection.execute("DELETE FROM pools WHERE expires <= ?", (now,))
        if key not in self._listeners:
            return given, False
        before, self._news[key] = self._news.get(key), news  # the member that asked knows
        return given, before != news

    def _swap(self, group: str, changes: Changes, mark: str) -> tuple[Records, bool]:
        where, current = _blob(group), {}
        with self._transaction() as (connection, now):
            # The wall clock is the same for all processes of the machine. It may be put back; `now` never is.
            # Both are read before the file is written, which may take long.
            ahead = time.time_ns() // NS_PER_US - now
            for name in changes:
                row = connection.execute(
                    "SELECT mark, text FROM records WHERE place = ? AND name = ? AND expires > ?",
                    (where, _blob(name), now),
                ).fetchone()
                current[name] = ("", "") if row is None else (str(row[0]), str(row[1]))
            texts = texts_to_write(changes, current, mark)
            for name, (text, keep) in (texts or {}).items():
                connection.execute(
                    "REPLACE INTO records (place, name, mark, text, expires) VALUES (?, ?, ?, ?, ?)",
                    (where, _blob(name), mark, text, now + keep),
                )
                current[name] = (mark, text)
            connection.execute("DELETE FROM records WHERE expires <= ?", (now,))
        return Records(now, texts is not None, current, ahead), bool(texts)

    @contextmanager
    def _transaction(self) -> Generator[tuple[sqlite3.Connection, int], None, None]:
        """Make all changes of the block, at one time, or raise a StoreError and make none."""
        connection = self._open()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                now = _now(connection, note=True, ahead=self._ahead)
                self._ahead = now - time.monotonic_ns() // NS_PER_US
                yield connection, now
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise StoreError(f"{self._path}: {_why(error)}") from error

    def _open(self) -> sqlite3.Connection:
        began = time.monotonic_ns()
        if self._connection is not None and _file_at(self._path) != self._file:
            # Other processes find another file there, or none: to go on with this one would make two pools.
            logging.getLogger("headgate").warning(
                "%s was deleted or moved while it was in use; going on with a new file",
                self._path,
            )
            self.disconnect()
        while self._connection is None:
            connection, before = None, _file_at(self._path)
            try:
                connection = sqlite3.connect(
                    self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False
                )
                _make_tables(connection)
            except sqlite3.Error as error:
                if connection is not None:
                    connection.close()
                # While another process makes the same file, SQLite itself does not wait.
                locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == _LOCKED
                if locked and time.monotonic_ns() - began < _BUSY * 1e9:
                    time.sleep(_RETRY)
                    continue
                folder = Path(self._path).parent
                why = _why(error) if folder.is_dir() else f"there is no folder {folder}; make it first"
                raise StoreError(f"{self._path} cannot be opened as a store: {why}") from error
            self._file = _file_at(self._path) if before is None else before
            self._connection = connection
        return self._connection

    def disconnect(self) -> None:
        """Close the file. The next question opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _read(self, query: str, *facts: str) -> tuple[int, list[Any]]:
        """Return the time, and what a query for these facts and that time finds. Writes and makes nothing."""
        if not self._path.exists():
            raise StoreError(f"{self._path} does not exist: no process has used it as a store yet")
        uri = f"file:{quote(str(self._path))}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, timeout=_BUSY, uri=True)) as connection:
                now = _now(connection, note=False)
                return now, connection.execute(query, (*facts, now)).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} cannot be read as a store: {error}") from error

    async def _watch(self) -> None:
        """Tell the listeners of changes that other connections make."""
        while True:
            await asyncio.sleep(_LOOK)
            with suppress(sqlite3.Error, StoreError):  # the next question reports what is wrong
                new = list(self._new)
                changed = await self._in_thread(self._changed, new)
                for _ in new:  # not by a look that is broken off, whose listeners have gone
                    self._new.popleft()
                for key in changed:
                    tell_all(self._listeners.get(key, ()))

    def _data_version(self) -> tuple[sqlite3.Connection, int]:
        """Return what differs after a write by another connection. Each connection counts for itself."""
        connection = self._open()
        return connection, int(connection.execute("PRAGMA data_version").fetchone()[0])

    def _changed(self, new: list[str]) -> list[str]:
        """Return the keys with listeners that are new, or that others have changed since the last call."""
        version = connection, _ = self._data_version()
        if version == self._version and not new:
            return []
        keys = list(self._listeners)  # others may come in the meantime
        rows = connection.execute("SELECT key, news FROM pools").fetchall()
        found = {key: news for key, news in rows if key in keys}
        marks = {
            key: connection.execute("SELECT mark FROM records WHERE place = ?", (_blob(key),)).fetchall()
            for key in keys
        }
        changed = [
            key
            for key in keys
            if key in new or self._news.get(key) != found.get(key) or self._marks.get(key, []) != marks[key]
        ]
        self._news, self._marks, self._version = found, marks, version
        return changed


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file. A file of another program, or of another headgate, is not touched."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not tables & {"pools", "records", "clock"}:
        raise sqlite3.DatabaseError("it belongs to another program; write the path of a file of its own")
    columns = {row[1] for row in connection.execute("PRAGMA table_info(pools)")}
    if columns and "expires" not in columns:
        raise sqlite3.DatabaseError("another version of headgate made it; write the path of another file")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    for statement in _TABLES:
        connection.execute(statement)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return what tells one file from another: device and inode; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _why(error: Exception) -> str:
    """Return what is wrong, in words. A disk is named as the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == _FULL:
        return "the disk is full"
    if code == _DISK:
        return f"the disk cannot be read or written ({error})"
    return str(error)


def _blob(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _now(connection: sqlite3.Connection, *, note: bool, ahead: int = 0) -> int:
    """Return the time of the file in microseconds. It never goes back, not even by a restart of the machine.

    While the machine runs it is the monotonic clock, `ahead` of it by a constant. After a restart it goes on
    from where it was last `seen`, by the time that the wall clock says has passed since. A new file goes on
    from one that was deleted, which was `ahead`.
    """
    monotonic, wall, boot = time.monotonic_ns() // NS_PER_US, time.time_ns() // NS_PER_US, _boot()
    row: tuple[str, int, int, int] | None = connection.execute(
        "SELECT boot, ahead, seen, wall FROM clock"
    ).fetchone()
    if row is not None and row[0] == boot and monotonic + row[1] >= row[2]:
        ahead = row[1]
        note = note and monotonic + ahead - row[2] >= _NOTE
    elif row is not None:
        ahead = row[2] + max(0, wall - row[3]) - monotonic
    if note:
        connection.execute(
            "REPLACE INTO clock (one, boot, ahead, seen, wall) VALUES (1, ?, ?, ?, ?)",
            (boot, ahead, monotonic + ahead, wall),
        )
    return monotonic + ahead


def _boot() -> str:
    """Return a name for this start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


# -- threads and forks


class _Worker:
    """A thread that does one thing after the other, also while the process ends: executors do not."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]] | None]
        self._tasks = SimpleQueue()
        self._thread: Thread | None = None

    async def run(self, act: Callable[..., T], args: tuple[object, ...]) -> T:
        if self._thread is None:
            self._thread = Thread(target=self._work, name=f"{OWN_THREADS}sqlite", daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.put((done, act, args))
        return await done

    @property
    def started(self) -> bool:
        return self._thread is not None

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            done, act, args = task
            try:
                with _in_use:
                    given = act(*args)
            except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
                given = error
            with suppress(RuntimeError):  # that loop was closed in the meantime
                done.get_loop().call_soon_threadsafe(settle, done, given)


class _InUse:
    """Counts the threads inside SQLite. A fork waits until there are none, and keeps others out.

    A child has its parent's memory, where SQLite remembers which locks the process has: with a file open the
    child would believe that it holds them, and within a call of SQLite it would wait for a thread that is not
    there. So before a fork every file is closed; the next question, on either side, opens it again.
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
            for store in _stores:
                store.disconnect()

    def in_parent(self) -> None:
        self._forking = False
        self._change.notify_all()
        self._change.release()

    def in_child(self) -> None:
        self._inside = 0  # those threads stayed with the parent
        self.in_parent()


_stores: WeakSet[SqliteStore] = WeakSet()
_in_use = _InUse()
around_fork(before=_in_use.before_fork, in_parent=_in_use.in_parent, in_child=_in_use.in_child)
