"""The file of answers: it only grows, and it tells which jobs need not be sent again.

Answers are whole lines; a line that a crash has torn is removed before the next is written. The answers are
the only record of what was done: there is no second file that could contradict them.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..system import lock_file
from .answers import begins_an_answer, recorded_in
from .errors import BadJournal
from .packing import PackedLines, packing_of
from .seen import ANSWERED, SeenIds

_CHUNK = 1 << 20
_LEFT_AS_IT_IS = "give another file with -o; this one is left as it is"
BINARY = getattr(os, "O_BINARY", 0)  # on Windows
ROOM = 1 << 18  # bytes that must fit on the disk before anything is sent
# A packed member that was torn holds the answers of one batch: a few, or one that may be of any length. If it
# is longer than a few can be and has several, another program wrote it, and it is not removed.
_LONGEST_TORN_MEMBER = 1 << 24
_NOT_SUPPORTED = (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)


class Journal:
    """An open file of answers. `known` has the ids of the answers that were in it when it was opened.

    `repaired`: the bytes of a torn line that were removed from its end. After a run into a pipe, which is not
    `resumable`, the next run does not know what was answered.
    """

    def __init__(self, fd: int, name: str, *, path: Path | None = None, resumable: bool = False) -> None:
        self._fd = fd
        self.resumable = resumable
        packing = packing_of(path)
        self._packing = packing
        self._end = 0  # the end of the last complete line, or of the last complete member
        self._dirty = False
        self.name = name
        self.known = SeenIds()
        self.before = 0  # how many answers were in it when it was opened
        self.repaired = 0

    @classmethod
    def open(cls, path: Path, *, each: Callable[[bytes], None] | None = None) -> "Journal":
        """Go on with the answers in a file, or begin a new file. `each` is given every line that is there."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o666)
        except OSError as error:
            raise BadJournal(f"cannot write {path}: {words(error)}", _what_to_do(error, path)) from None
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            journal = cls(fd, str(path), path=path, resumable=regular)
            if regular:
                journal._go_on(each or (lambda _line: None))
        except BaseException:
            os.close(fd)
            raise
        return journal

    # -- the answers that are there already

    def _go_on(self, each: Callable[[bytes], None]) -> None:
        if not lock_file(self._fd):
            hint = "wait for it, or give this one another file with -o"
            raise BadJournal(f"another run is writing {self.name}", hint)
        with open(self._fd, "rb", buffering=_CHUNK, closefd=False) as file:
            if self._packing is None:
                self._read_lines(file, each)
            else:
                self._read_members(file, each)
        self.before = len(self.known)
        check_room(self._fd, self._end, self.name)

    def _read_lines(self, file: IO[bytes], each: Callable[[bytes], None]) -> None:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                self._repair(line, each)
                break
            self._end += len(line)
            self._note(line, number, each)

    def _read_members(self, file: IO[bytes], each: Callable[[bytes], None]) -> None:
        assert self._packing is not None
        members, number = PackedLines(file, self._packing), 0
        noted: list[str] = []  # in the member that is being read
        for lines, end in members:
            for line in lines:
                number += 1
                custom_id = self._note(line, number, each)
                if custom_id is not None:
                    noted.append(custom_id)
            if end is not None:
                self._end = end
                noted.clear()
        if members.rest and not members.torn:
            raise BadJournal(f"{self.name} does not end with a whole line", _LEFT_AS_IT_IS)
        if not members.torn:
            return
        size = os.fstat(self._fd).st_size - self._end
        one = len(noted) + bool(members.rest) == 1
        if (size > _LONGEST_TORN_MEMBER and not one) or not self._is_ours(members.rest, noted):
            raise BadJournal(f"{self.name} is cut off or not a packed file of answers", _LEFT_AS_IT_IS)
        for custom_id in noted:
            self.known.remove(custom_id)
        self._cut_off(size)

    def _is_ours(self, rest: bytes, noted: list[str]) -> bool:
        """Whether a torn member is the beginning of one that a run was writing."""
        assert self._packing is not None
        if noted or rest:
            return begins_an_answer(rest)
        start = os.pread(self._fd, 4, self._end) if hasattr(os, "pread") else b""
        return start.startswith(self._packing.begins[: len(start)]) or not start.strip(b"\0")

    def _note(self, line: bytes, number: int, each: Callable[[bytes], None]) -> str | None:
        """Note what a line records. The id, if it is an answer."""
        if line.isspace():
            return None
        recorded = recorded_in(line)
        if recorded is None:
            why = f"{self.name}, line {number} is not an answer: {line[:60]!r}"
            raise BadJournal(why, _LEFT_AS_IT_IS)
        if not recorded.answered:
            return None
        self.known.add(recorded.custom_id, ANSWERED, recorded.digest)
        each(line)
        return recorded.custom_id

    def _repair(self, line: bytes, each: Callable[[bytes], None]) -> None:
        """Complete the last line, which has no newline, if nothing else is missing; remove it otherwise."""
        recorded = recorded_in(line)
        if recorded is not None:
            self._note(line, 0, each)
            self._write(b"\n")
            self._end += len(line) + 1
        elif begins_an_answer(line):
            self._cut_off(len(line))
        else:
            why = f"{self.name} ends with something that is not an answer: {line[:60]!r}"
            raise BadJournal(why, _LEFT_AS_IT_IS)

    def _cut_off(self, size: int) -> None:
        self.repaired = size
        os.ftruncate(self._fd, self._end)

    # -- writing

    def write(self, lines: bytes) -> None:
        """Add whole lines. If that raises, the file ends where it ended before."""
        if self._packing is not None:
            lines = self._packing.pack(lines)
        try:
            self._write(lines)
        except BaseException:
            if self.resumable:
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(lines)
        self._dirty = True

    def _write(self, content: bytes) -> None:
        write_all(self._fd, content)

    @property
    def takes_back(self) -> bool:
        return self.resumable

    def sync(self) -> None:
        """Have the system write everything to the disk. This may take a while."""
        if self._dirty and self.resumable:
            self._dirty = False
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd > 2:
            os.close(self._fd)


def write_all(fd: int, content: bytes) -> None:
    """Write all bytes, however many system calls that takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def check_room(fd: int, end: int, name: str) -> None:
    """Raise BadJournal if the disk has no room for the next answers after `end`."""
    if not hasattr(os, "posix_fallocate") or os.fstat(fd).st_size != end:
        return
    try:
        os.posix_fallocate(fd, end, ROOM)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise BadJournal(f"cannot write {name}: {words(error)}", "make room, and go on") from None
    finally:
        os.ftruncate(fd, end)


def answers_in(path: Path) -> SeenIds:
    """The ids of all answers in a file, which is only read."""
    packing, known = packing_of(path), SeenIds()
    with path.open("rb", buffering=_CHUNK) if packing is None else packing.open(path) as file:
        for line in file:
            recorded = recorded_in(line)
            if recorded is not None and recorded.answered:
                known.add(recorded.custom_id, ANSWERED, recorded.digest)
    return known


def words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _what_to_do(error: OSError, path: Path) -> str:
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it first: mkdir -p {path.parent}"
    if isinstance(error, IsADirectoryError):
        return f"name a file in it, e.g. -o {path / 'answers.jsonl'}"
    return "give another file with -o"
