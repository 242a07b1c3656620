"""Connections to a PostgreSQL server: made in time, given up in time, and one that listens.

A query that does not end in time is ended by hanging up: psycopg would wait for the server to confirm that a
query was cancelled, and a server that is stopped or far away does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfig, StoreError
from .store import without_password

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from psycopg import AsyncConnection

CHANNEL = "headgate"  # of all news; the payload says of what
# How many seconds pass between two looks for news where the server cannot send them.
_LOOK = 0.05
# After how many silent seconds a listener asks whether the server is still there.
_QUIET = 5.0
# How many seconds a listener waits before it connects again: doubled each time, up to the latter.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5

_DEFAULTS = {
    "application_name": "headgate",
    "client_encoding": "utf8",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}


class Address:
    """Where the server is, and how long it may take to connect and to answer."""

    def __init__(self, url: str, *, timeout: float, connect_timeout: float) -> None:
        self.shown = without_password(url)
        self.timeout = timeout
        self._connect_timeout = connect_timeout
        try:
            import psycopg  # noqa: PLC0415 - an extra
            from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - as above
        except ImportError as error:
            raise InvalidConfig(
                f"store={self.shown!r} needs a client that is not installed; "
                'run: pip install "headgate[postgres]"'
            ) from error
        try:
            given = conninfo_to_dict(url)
            ports = str(given.get("port") or "").split(",")
            readable = all(not port or port.isdecimal() for port in ports) and not self.shown.endswith("…")
        except psycopg.Error:  # its own words may quote the password
            readable = False
        if not readable:
            raise InvalidConfig(
                f"store={self.shown!r} cannot be read; write e.g. postgresql://user:password@host/database "
                "(in a password, write %40 for @, %2F for /, %23 for #)"
            )
        self._arguments: dict[str, Any] = _DEFAULTS | {name: str(value) for name, value in given.items()}

    async def connect(self) -> AsyncConnection[Any]:
        """Return a new connection. Each statement is a transaction of its own unless it says BEGIN.

        No statement is prepared, and values are put into the text of a statement: so several statements
        make one trip, and a pooler may hand each transaction to another server process.
        """
        from psycopg import AsyncClientCursor, AsyncConnection  # noqa: PLC0415 - an extra

        try:
            async with asyncio.timeout(self._connect_timeout):
                return await AsyncConnection.connect(
                    **self._arguments,
                    autocommit=True,
                    prepare_threshold=None,
                    cursor_factory=AsyncClientCursor,
                )
        except TimeoutError:
            raise self.unanswered() from None

    @asynccontextmanager
    async def in_time(self, connection: AsyncConnection[Any]) -> AsyncGenerator[None, None]:
        """Hang up, and raise a StoreError, if the block does not end in time."""
        late: list[bool] = []

        def give_up() -> None:
            late.append(True)
            hang_up(connection)

        alarm = asyncio.get_running_loop().call_later(self.timeout, give_up)
        try:
            yield
        except Exception:
            if late:
                raise self.unanswered() from None
            raise
        finally:
            alarm.cancel()

    def unanswered(self) -> StoreError:
        return StoreError(f"{self.shown} does not answer in time ({self.timeout:g} s)")


def hang_up(connection: AsyncConnection[Any]) -> None:
    """End the connection below psycopg, whose pending query fails at once."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class Listener:
    """Hears of news on a connection of its own, and on another one when that is lost.

    Where a pooler stands between, a server process that listens serves other clients the next moment. There
    the table is read every 50 milliseconds. `marks(connection)` reads, for all that is wanted, what differs
    after each change. `heard(news)` is called with the text of every change, or the name that changed; and
    with None, for all names, when the connection is there.
    """

    def __init__(
        self,
        address: Address,
        marks: Callable[[AsyncConnection[Any]], Any],
        heard: Callable[[str | None], None],
    ) -> None:
        self._address = address
        self._marks = marks
        self._heard = heard
        self._connection: AsyncConnection[Any] | None = None
        self._stopped = False
        self.polls = False  # news are looked for, not sent
        self.hears = False  # the server sends news now
        self.task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """End the task. While it has a connection, by hanging up: a query that is cancelled is waited for."""
        self._stopped = True
        if self._connection is None:
            self.task.cancel()
        else:
            hang_up(self._connection)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped:
            try:
                self._connection = connection = await self._address.connect()
                self.polls = await self._is_pooled(connection)
                if self.polls:
                    await self._poll(connection)
                else:
                    async with self._address.in_time(connection):
                        await connection.execute(f"LISTEN {CHANNEL}")
                    self.hears = True
                    self._heard(None)
                    pause = _FIRST_PAUSE
                    await self._listen(connection)
            except Exception as error:  # noqa: BLE001 - whatever it was, the answer is a new connection
                logging.getLogger("headgate").debug("a listener lost its connection: %r", error)
            finally:
                self.hears = False
                lost, self._connection = self._connection, None
                if lost is not None:
                    await lost.close()
            if not self._stopped:
                await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _is_pooled(self, connection: AsyncConnection[Any]) -> bool:
        """Return whether the process that answers is another than the one that was connected to."""
        async with self._address.in_time(connection):
            row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
        return row is None or row[0] != connection.info.backend_pid

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        loop, ready, wire = asyncio.get_running_loop(), asyncio.Event(), connection.fileno()
        connection.add_notify_handler(lambda news: self._heard(news.payload))
        loop.add_reader(wire, ready.set)
        try:
            while True:
                self._hear(connection)
                try:
                    async with asyncio.timeout(_QUIET):
                        await ready.wait()
                    ready.clear()
                except TimeoutError:
                    loop.remove_reader(wire)
                    async with self._address.in_time(connection):
                        await connection.execute("SELECT 1")
                    loop.add_reader(wire, ready.set)
        finally:
            loop.remove_reader(wire)

    def _hear(self, connection: AsyncConnection[Any]) -> None:
        connection.pgconn.consume_input()  # raises if the connection is lost
        while (news := connection.pgconn.notifies()) is not None:
            self._heard(news.extra.decode())

    async def _poll(self, connection: AsyncConnection[Any]) -> None:
        seen: dict[str, object] = {}
        while True:
            async with self._address.in_time(connection):
                marks = await self._marks(connection)
            for name in changed(seen, marks):
                self._heard(name)
            seen = marks
            await asyncio.sleep(_LOOK)


def changed(before: dict[str, object], after: dict[str, object]) -> Iterable[str]:
    """Return the names whose marks differ, and those that are only in one of the two."""
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
