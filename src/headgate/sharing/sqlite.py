"""Pools in one file, for the processes of one machine. No server.

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import InvalidConfig, StoreError
from ..rules.pool import answer, new_pool, shift

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..rules.pool import Answer, Question, State

T = TypeVar("T")

# How often the file is looked at for news of others.
_LOOK = 0.05
# How long to wait for others who write.
_BUSY = 1.0


class SqliteStore:
    """One file. `sqlite:///relative/path` or `sqlite:////absolute/path`."""

    def __init__(self, url: str) -> None:
        scheme, slashes, path = url.partition(":///")
        if scheme != "sqlite" or not slashes or not path:
            raise InvalidConfig(
                f"store={url!r} has no path; write sqlite:///limits.db or sqlite:////var/tmp/limits.db"
            )
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._thread = ThreadPoolExecutor(
            1, "headgate sqlite"
        )  # a lock held by others must not hold the courier
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._news: dict[str, str] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def ask(self, key: str, question: Question) -> Answer:
        return await self._in_thread(self._ask, key, question)

    async def _in_thread(self, act: Callable[..., T], *args: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, act, *args)
        except RuntimeError as error:  # the interpreter is shutting down
            raise StoreError(f"{self._path}: {error}") from error

    async def listen(self, key: str, heard: Callable[[], None]) -> None:
        self._listeners.setdefault(key, []).append(heard)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._in_thread(connection.close)
        self._thread.shutdown(wait=False)

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
                pool = new_pool() if row is None else _moved(row, now)
                given = answer(pool, question, now)
                news = f"{pool['window'][3]} {pool['version']}"
                connection.execute(
                    "REPLACE INTO pools (key, state, boot, wall, news) VALUES (?, ?, ?, ?, ?)",
                    (key, json.dumps(pool), _boot(), time.time_ns() // 1000, news),
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

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                connection = sqlite3.connect(
                    self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False
                )
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS pools "
                    "(key TEXT PRIMARY KEY, state TEXT, boot TEXT, wall INTEGER, news TEXT) WITHOUT ROWID"
                )
            except sqlite3.Error as error:
                raise StoreError(f"{self._path} cannot be opened as a store: {error}") from error
            self._connection = connection
        return self._connection

    def _changed(self) -> list[str]:
        connection = self._open()
        rows = connection.execute("SELECT key, news FROM pools").fetchall()
        changed = [key for key, news in rows if key in self._listeners and self._news.get(key) != news]
        self._news.update(rows)
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
                        for heard in self._listeners[key]:
                            heard()
            except (sqlite3.Error, StoreError):
                continue  # whoever asks next will be told

    def _data_version(self) -> int:
        return int(self._open().execute("PRAGMA data_version").fetchone()[0])


def _boot() -> str:
    """Which start of the machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _moved(row: tuple[str, str, int], now: int) -> State:
    """The pool as it was, its times counted from this start of the machine."""
    state, boot, wall = row
    pool: State = json.loads(state)
    if boot != _boot() or pool["now"] > now:
        passed = max(0, time.time_ns() // 1000 - wall)
        shift(pool, now - passed - pool["now"])
    return pool
