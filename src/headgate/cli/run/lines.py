"""The lines of the files of jobs, or of a pipe, with their numbers and without the blank ones."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from .packing import packing_of

_LONGEST_LINE = 64 << 20
_CHUNK = 1 << 18
_BOM = b"\xef\xbb\xbf"  # the byte order mark of Windows programs


class Line(NamedTuple):
    """A line: the name of its file, its number there, and its bytes.

    `prefix` sets lines apart that have no id of their own and come from several files.
    """

    file: str
    number: int
    content: bytes
    prefix: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}, line {self.number}"


class Lines:
    """The lines of one file after the other. They are read as they are asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._file: IO[bytes] | None = None

    def __iter__(self) -> Iterator[Line]:
        several = len(self._paths) > 1
        for path in self._paths:
            file = self._file = _opened(path)
            readline, name, number = file.readline, path.name, 0
            prefix = f"{name}:" if several else ""
            while line := readline(_LONGEST_LINE):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BOM)
                if not line.isspace():
                    yield Line(name, number, line, prefix)
            file.close()

    def count(self) -> int:
        """The number of lines. It reads all files: call it in another thread."""
        total = 0
        for path in self._paths:
            with _opened(path) as file:
                total += sum(not line.isspace() for line in file)
        return total

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _opened(path: Path) -> IO[bytes]:
    packing = packing_of(path)
    return path.open("rb", buffering=_CHUNK) if packing is None else packing.open(path)


class Pipe:
    """The lines of a pipe. A thread reads them, because reading blocks and an event loop must not.

    At most `ahead` lines are held; then the program that writes into the pipe has to wait.
    """

    def __init__(self, fd: int, name: str, loop: asyncio.AbstractEventLoop, ahead: int = 64) -> None:
        self._name = name
        self._loop = loop
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(ahead)
        # A daemon thread does not keep the process from ending while no line comes.
        threading.Thread(target=self._read, args=(fd,), name="headgate-stdin", daemon=True).start()

    async def next(self) -> Line | None:
        """The next line, or None after the last."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)  # every caller finds the end
        return line

    def _read(self, fd: int) -> None:
        with open(fd, "rb", buffering=_CHUNK, closefd=False) as file, suppress(RuntimeError, CancelledError):
            with suppress(OSError):
                for number, line in enumerate(file, 1):
                    if not line.isspace():
                        self._hand_over(Line(self._name, number, line))
            self._hand_over(None)

    def _hand_over(self, line: Line | None) -> None:
        """Wait until there is room for a line. Raises if the event loop has ended."""
        putting = self._lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except RuntimeError:
            putting.close()
            raise

    def close(self) -> None:
        pass
