"""publish: shows the gates of this process to people on the same machine, by a Unix socket.

Each connection gets a line with a JSON object that says how all gates stand, and is closed. If there are more
gates than it shows, a reader may write a line with a JSON list of keys, and gets the gates of these keys in
another line. Looking changes nothing. The socket is made with mode 0600: only the same user, and root, can
look.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .arguments import SECOND, read_path
from .dispatch.snapshot import DispatchSnapshot, facts_of_rate, snapshot_of
from .errors import InvalidConfig
from .gate.clock import OWN_THREADS, SYSTEM
from .gate.closing import Closing
from .gate.forks import living, reset_in_child
from .gate.gate import Gate

# At most this many gates are shown, those first at which callers wait.
MOST_GATES = 200

# How many seconds a reader may take, and how many bytes the keys may have that it asks for.
_PATIENCE = 2.0
_MOST_BYTES = 1 << 16


def publish(path: str | os.PathLike[str] | None = None) -> Publication:
    """Let `headgate watch unix:///...` on this machine show the gates of this process.

    It is off unless this is called. `path` is where the socket is made, with mode 0600; by default a file
    named by the process id, in the directory for such files of the user. The result has the `url`, and ends
    it by `close()` or at the end of a `with` block. A forked child does not publish. Raises InvalidConfig if
    `path` is not a path or the socket cannot be made there, if a process publishes there already, or where
    the system has no Unix sockets.

    >>> import headgate
    >>> with headgate.publish() as published:
    ...     published.url.startswith("unix:///")
    True
    """
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidConfig("publish() needs Unix sockets, which this system does not have")
    where = _default_path() if path is None else Path(read_path(path, "/run/headgate.sock")).absolute()
    return Publication(where)


def _default_path() -> Path:
    directory = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(directory) / f"headgate-{os.getpid()}.sock"


class Publication(Closing):
    """The gates of this process, published at `url` until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"unix://{path}"
        self._socket = _listen(path)
        self._inode = path.stat().st_ino
        self._closed = False
        thread = threading.Thread(target=self._serve, name=f"{OWN_THREADS}publish", daemon=True)
        thread.start()
        atexit.register(self.close)
        reset_in_child(self)

    def close(self) -> None:
        """Publish no longer, and take the socket away. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:  # unless another process has its own there by now
                self.path.unlink()

    def after_fork(self) -> None:
        """In a forked child: the socket is the parent's."""
        self._closed = True
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                continue
            with connection, suppress(OSError, ValueError, RecursionError):
                _tell(connection, SYSTEM.now() + round(_PATIENCE * SECOND))

    def __repr__(self) -> str:
        return f"<Publication {self.url}{', closed' if self._closed else ''}>"


def _listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(path)
        os.fchmod(listening.fileno(), 0o600)  # Linux makes the file with this mode ...
        listening.bind(str(path))
        path.chmod(0o600)  # ... and other systems are told here
        listening.listen(64)
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        raise InvalidConfig(f"publish() cannot make {path}: {why}; give another path") from None
    except BaseException:
        listening.close()
        raise
    return listening


def _make_way(path: Path) -> None:
    """Take away a socket that a process has left behind when it was killed. Never any other file."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise InvalidConfig(f"publish() cannot make {path}: there is a file that is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.settimeout(_PATIENCE)
        try:
            trying.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise InvalidConfig(f"publish() cannot make {path}: a process publishes there already")


def _tell(reader: socket.socket, until: int) -> None:
    """Tell how the gates stand. Raises if the reader has gone or takes longer, or if it asks for nonsense."""
    told = facts_of_process()
    _send(reader, told, until)
    if told["more"]:
        asked = _line_of(reader, until)
        if asked:
            _send(reader, facts_of_process(_keys_in(asked)), until)


def _send(reader: socket.socket, told: dict[str, Any], until: int) -> None:
    _wait_until(reader, until)
    reader.sendall(json.dumps(told).encode() + b"\n")


def _line_of(reader: socket.socket, until: int) -> bytes:
    line = b""
    while b"\n" not in line and len(line) < _MOST_BYTES:
        _wait_until(reader, until)  # again for each piece: a slow reader may send single bytes
        piece = reader.recv(_MOST_BYTES - len(line))
        if not piece:
            break
        line += piece
    return line.partition(b"\n")[0]


def _wait_until(reader: socket.socket, until: int) -> None:
    """Have the next call to the socket end by then."""
    left = until - SYSTEM.now()
    if left <= 0:
        raise TimeoutError
    reader.settimeout(left / SECOND)


def _keys_in(line: bytes) -> list[str]:
    keys = json.loads(line)
    if not isinstance(keys, list):
        raise ValueError(f"{keys!r} is not a list of keys")  # noqa: TRY004 - as for what is no JSON
    return keys


def facts_of_process(keys: Collection[str] | None = None) -> dict[str, Any]:
    """How all gates of this process stand, or those of these keys, as plain data. Times are in seconds."""
    found = [gate for gate in living(Gate) if gate.told and not gate.closed]
    gates = [(gate, snapshot_of(gate)) for gate in found if keys is None or str(gate.key) in keys]
    gates.sort(key=lambda pair: (-pair[1].waiting, str(pair[0].key)))
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "gates": [_facts_of(gate, seen) for gate, seen in gates[:MOST_GATES]],
        "more": max(0, len(gates) - MOST_GATES),
    }


def _facts_of(gate: Gate, seen: DispatchSnapshot) -> dict[str, Any]:
    now = gate.clock.now() / SECOND
    totals = seen.totals
    return {
        "key": str(gate.key),
        "kind": type(gate).__name__,
        "shared": gate.supply is not None,
        "waiting": seen.waiting,
        "waiting_by_priority": [list(pair) for pair in seen.waiting_by_priority],
        "binding": seen.binding,
        "next": None if seen.next_at is None else max(0.0, seen.next_at - now),
        "in_flight": seen.in_flight,
        "concurrency": seen.concurrency,
        "bytes": {"held": seen.bytes_in_flight, "limit": seen.byte_budget},
        "rates": [facts_of_rate(rate) for rate in seen.rates],
        "window": seen.window_remaining,
        "throttled": seen.backoff_active,
        "totals": {
            "admitted": totals.admitted,
            "waited": totals.waited,
            "seconds_waited": totals.seconds_waited,
            "refused": totals.refused,
            "cancelled": totals.cancelled,
            "responses": totals.responses,
            "limited": totals.limited,
            "windows": totals.windows,
        },
    }
