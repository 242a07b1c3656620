"""Usage that survives a restart, in one SQLite file.

Rules of this room: one process at a time, and it has the file to itself. What was written is on
disk when `write` returns, all of it or nothing, whatever kills the process. One row for each
budget, never larger than its windows may grow. Times on disk are wall-clock nanoseconds; the
difference to the clock inside is taken once, at the opening, so that a step of the wall clock
changes nothing while the file is open. A file that is not ours is not touched.
"""

from __future__ import annotations

import os
from time import time_ns

from ..errors import InvalidConfig, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from sqlite3 import Connection
    from typing import TypeAlias

    Row: TypeAlias = tuple[str, str]  # what kind of budget, and its name
    Windows: TypeAlias = list[tuple[int, int, list[int]]]  # column, period, what the window remembers

_SUPPORTED = '"sqlite:////absolute/path.db" or "sqlite:///relative/path.db"'
_SCHEME = "sqlite:///"

# Says in the header of the file whose it is: "hgub", headgate's usage of budgets, and its layout.
_APPLICATION = 0x68677562
_LAYOUT = 1
_TABLE = (
    "CREATE TABLE usage ("
    "kind TEXT NOT NULL, name BLOB NOT NULL, windows TEXT NOT NULL, PRIMARY KEY (kind, name))"
)

_BUSY = 5  # SQLITE_BUSY; newer Pythons have a name for it

# Connections of a parent process, in a forked child: must never be closed here.
_parents: list[Connection] = []


def read_store(store: str) -> str:
    """The path that a store's address names."""
    if not isinstance(store, str):
        raise InvalidConfig(f"store={store!r} is not an address; write {_SUPPORTED}")
    if not store.startswith("sqlite:"):
        raise InvalidConfig(f"store={store!r}: budgets are kept in a file; write {_SUPPORTED}")
    path = store.removeprefix(_SCHEME)
    if path == store or not path or path.endswith("/") or "\0" in path or path == ":memory:":
        raise InvalidConfig(f"store={store!r} names no file; write {_SUPPORTED}")
    return path


class UsageFile:
    """The rows of a usage file, held open for one book.

    `now` is the moment of opening on the clock inside. `wall` is the wall clock, in nanoseconds.
    """

    __slots__ = ("_connection", "path", "shift")

    def __init__(self, path: str, *, now: int, wall: Callable[[], int] | None = None) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100 - importing pathlib takes longer than all of this
        self.shift = (time_ns if wall is None else wall)() - now
        self._connection: Connection | None = None
        from sqlite3 import Error  # noqa: PLC0415 - only those who keep a file wait for it

        try:
            self._look_first()
            self._open()
        except (Error, OSError) as error:
            self.close()
            raise self._why(error, "opened") from error
        except BaseException:
            self.close()
            raise

    def load(self) -> dict[Row, Windows]:
        """Everything that is kept. StoreError if it cannot be read: then nothing is changed."""
        from sqlite3 import Error  # noqa: PLC0415 - as above

        assert self._connection is not None
        try:
            found = self._connection.execute("SELECT kind, name, windows FROM usage").fetchall()
        except Error as error:
            raise self._why(error, "read") from error
        rows = {}
        for kind, name, windows in found:
            try:
                rows[kind, name.decode("utf-8", "surrogatepass")] = _parse(windows)
            except (ValueError, TypeError, AttributeError) as error:
                raise self.damaged(f"the row of {name!r} cannot be read: {error}") from None
        return rows

    def write(self, changes: Mapping[Row, Windows]) -> None:
        """Replace these rows, all or none; a row of no windows is deleted. On disk when it returns."""
        from sqlite3 import Error  # noqa: PLC0415 - as above

        connection = self._connection
        if connection is None:
            raise StoreError(f"{self.path} was closed; nothing more can be written to it")
        gone, kept = [], []
        for (kind, name), windows in changes.items():
            key = kind, name.encode("utf-8", "surrogatepass")
            if windows:
                kept.append((*key, _format(windows)))
            else:
                gone.append(key)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM usage WHERE kind = ? AND name = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?)", kept)
            connection.execute("COMMIT")
        except BaseException as error:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except Error:
                pass  # whatever is the matter has a name already
            if isinstance(error, Error):
                raise self._why(error, "written") from error
            raise

    def close(self) -> None:
        """Let somebody else have the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's.

        SQLite does not know that it was forked. Closing the child's copy would tidy up, that
        is, take the journal away from under the parent; so it must outlive even the interpreter.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        _parents.append(connection)
        try:
            import ctypes  # noqa: PLC0415 - a rare need, and not every Python has it

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        except (ImportError, AttributeError):
            pass  # such a Python does not tidy up at its end

    def damaged(self, why: str) -> StoreError:
        """What to raise when what is in the file makes no sense."""
        return StoreError(f"{self.path} is damaged: {why}; put it right, or move it away to start anew")

    def __repr__(self) -> str:
        return f"<UsageFile {self.path!r}{'' if self._connection else ', closed'}>"

    # -- opening

    def _look_first(self) -> None:
        """Is what is there ours? Looks without locking, recovering or changing anything."""
        if not os.path.exists(self.path) or not os.path.getsize(self.path):  # noqa: PTH110, PTH202 - as above
            return
        from pathlib import Path  # noqa: PLC0415 - as above
        from sqlite3 import DatabaseError, connect  # noqa: PLC0415 - as above

        whole = not any(os.path.exists(self.path + rest) for rest in ("-wal", "-journal"))  # noqa: PTH110
        look = connect(f"{Path(self.path).as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            _must_be_ours(look, self.path)
            # What is still in a journal may be missing here, and is not damage.
            if whole and look.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise DatabaseError("its pages do not fit together")
        finally:
            look.close()

    def _open(self) -> None:
        from sqlite3 import connect  # noqa: PLC0415 - as above

        # Any thread may write, one at a time; transactions are begun by hand.
        connection = self._connection = connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            # In one step, and before the journal is changed: the file is ours or still empty.
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_LAYOUT}")
            connection.execute(_TABLE)
        _must_be_ours(connection, self.path)
        connection.execute("SELECT kind, name, windows FROM usage LIMIT 0")
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")

    def _why(self, error: Exception, done: str) -> StoreError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == _BUSY:
            return StoreError(
                f"{self.path} is in use by another process or another book; one at a time can keep its "
                "usage there: close the other, or write a file of its own"
            )
        hint = "; write the path of a file of its own, in a directory that exists" if done == "opened" else ""
        return StoreError(f"{self.path} cannot be {done}: {error}{hint}")


def _must_be_ours(connection: Connection, path: str) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise StoreError(f"{path} belongs to another program; write the path of a file of its own")
    if layout != _LAYOUT:
        raise StoreError(
            f"{path} was written by another version of headgate (layout {layout}, not {_LAYOUT})"
        )


def _format(windows: Windows) -> str:
    return "\n".join(" ".join(map(str, (column, per, *state))) for column, per, state in windows)


def _parse(text: str) -> Windows:
    windows = []
    for line in text.split("\n"):
        column, per, *state = map(int, line.split(" "))
        windows.append((column, per, state))
    return windows
