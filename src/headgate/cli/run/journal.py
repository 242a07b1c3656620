"""Where answers are kept: a file that only grows, and that tells what need not be sent again.

Rules of this room: an answer is one line, written by one call of the system, so that it is there whole or not
at all; a line that a crash has torn is taken off before the next is written. The answers are the journal:
there is nothing beside them that could contradict them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from typing import TYPE_CHECKING

from .errors import BadJournal
from .seen import SeenIds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .jobs import Job
    from .replies import Reply

_CHUNK = 1 << 20
# As `answer_line` writes it. Anything else is parsed.
_OURS = re.compile(rb'\{"id": "job_[0-9]+", "custom_id": ("(?:[^"\\]|\\.)*"), "response": \{"status_code": 2')
_ANSWER = (
    b'{"id": "job_%d", "custom_id": %b, '
    b'"response": {"status_code": %d, "request_id": %b, "body": %b}, "error": null}\n'
)


def answer_line(job: Job, status: int, request_id: str, body: bytes) -> bytes:
    """An answer as OpenAI's batches write it. `body` is JSON, and stays as it came but for line breaks."""
    return _ANSWER % (
        job.number,
        json.dumps(job.custom_id).encode(),
        status,
        json.dumps(request_id).encode(),
        body.strip().translate(None, b"\r\n"),
    )


def failure_line(number: int, custom_id: str, code: str, message: str, reply: Reply | None) -> bytes:
    """What became of a job that has no answer, in the same shape."""
    response = None
    if reply is not None and reply.status is not None:
        response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.document}
    document = {
        "id": f"job_{number}",
        "custom_id": custom_id,
        "response": response,
        "error": {"code": code, "message": message},
    }
    return json.dumps(document).encode() + b"\n"


class Journal:
    """An open file of answers. `known` holds the names of what was in it when it was opened."""

    def __init__(self, fd: int, name: str, *, regular: bool) -> None:
        self._fd = fd
        self._regular = regular
        self._end = 0  # of the last whole line
        self._dirty = False
        self.name = name
        self.known = SeenIds()
        self.mended = 0  # bytes of a torn line that were taken off

    @classmethod
    def open(cls, path: Path, *, each: Callable[[bytes], None] | None = None) -> Journal:
        """Go on with the answers at *path*, or begin. `each` is shown every line that is there."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadJournal(f"cannot write {path}: {_words(error)}", _what_to_do(error, path)) from None
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            journal = cls(fd, str(path), regular=regular)
            if regular:
                journal._lock()
                journal._recover(each)
        except BaseException:
            os.close(fd)
            raise
        return journal

    @classmethod
    def on(cls, fd: int, name: str) -> Journal:
        """Answers go down a pipe: what was sent there is not known afterwards."""
        return cls(fd, name, regular=False)

    @property
    def resumable(self) -> bool:
        return self._regular

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadJournal(
                f"another run is writing {self.name}", "wait for it, or give this one another file with -o"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            # A file system without locks: we have asked.

    # -- what is there already

    def _recover(self, each: Callable[[bytes], None] | None) -> None:
        number = 0
        with open(self._fd, "rb", buffering=_CHUNK, closefd=False) as file:
            for line in file:
                number += 1
                if not line.endswith(b"\n"):
                    self._mend(line)
                    break
                self._end += len(line)
                if line.isspace():
                    continue
                custom_id = _answered_in(line)
                if custom_id is None:
                    raise BadJournal(
                        f"{self.name}, line {number} is not an answer: {line[:60]!r}",
                        "give another file with -o; this one is left as it is",
                    )
                self.known.add(custom_id)
                if each is not None:
                    each(line)

    def _mend(self, line: bytes) -> None:
        """The last line has no end. If nothing else is missing, it gets one; else it goes."""
        if self._end == 0 and not line.startswith(b'{"id": "job_'[: len(line)]):
            raise BadJournal(
                f"{self.name} is not a file of answers: {line[:60]!r}",
                "give another file with -o; this one is left as it is",
            )
        custom_id = _answered_in(line)
        if custom_id is not None:
            self.known.add(custom_id)
            self._write(b"\n")
            self._end += len(line) + 1
        else:
            self.mended = len(line)
            os.ftruncate(self._fd, self._end)

    # -- writing

    def write(self, line: bytes) -> None:
        """Add a line. After an error the file ends where it ended before."""
        try:
            self._write(line)
        except BaseException:
            if self._regular:
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(line)
        self._dirty = True

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> None:
        """Onto the disk, for when the power fails. May take a while."""
        if self._dirty and self._regular:
            self._dirty = False
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd > 2:
            os.close(self._fd)


class Failures:
    """The jobs of this run that failed, one a line. The file is made when there is one to write.

    Those of the run before are let go: whoever failed then is tried again now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        try:
            if path.is_file():
                with path.open("rb") as file:
                    first = file.readline()
                if first and b'"error"' not in first:
                    raise BadJournal(f"{path} is not a file of failures", "give another one with --errors")
                path.unlink()
            elif not path.parent.is_dir():
                raise BadJournal(
                    f"cannot write {path}: there is no such folder", "make it first, or give another"
                )
            elif not os.access(path if path.exists() else path.parent, os.W_OK):
                raise BadJournal(f"cannot write {path}: permission denied", "give another one with --errors")
        except OSError as error:
            raise BadJournal(
                f"cannot write {path}: {_words(error)}", "give another one with --errors"
            ) from None

    def write(self, line: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.write(self._fd, line)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def answers_in(path: Path) -> SeenIds:
    """What is answered in a file, which is only read."""
    ids = SeenIds()
    with path.open("rb", buffering=_CHUNK) as file:
        for line in file:
            custom_id = _answered_in(line)
            if custom_id is not None:
                ids.add(custom_id)
    return ids


def _answered_in(line: bytes) -> str | None:
    """The custom_id that a line answers; None if it is no answer."""
    ours = _OURS.match(line)
    if ours and line.endswith(b"null}\n"):
        name: str = json.loads(ours[1])
        return name
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("response"), dict):
        return None
    custom_id = document.get("custom_id")
    return custom_id if isinstance(custom_id, str) else None


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _what_to_do(error: OSError, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no folder {path.parent}; make it first: mkdir -p {path.parent}"
    if isinstance(error, IsADirectoryError):
        return f"name a file in it, e.g. -o {path / 'answers.jsonl'}"
    return "give another file with -o"
