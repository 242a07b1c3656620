"""The file of answers: it only grows, and it tells which jobs need not be sent again.

An answer is one line, written by one system call, so that it is there completely or not at all; a line that
a crash has torn is removed before the next is written. The answers are the only record of what was done:
there is no second file that could contradict them.
"""

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from ..system import lock_file
from .errors import BadJournal
from .jobs import Job
from .replies import Reply

_CHUNK = 1 << 20
_LEFT_AS_IT_IS = "give another file with -o; this one is left as it is"
_OTHER_ERRORS = "give another one with --errors"
_BINARY = getattr(os, "O_BINARY", 0)  # on Windows
# A line as `answer_line` writes it. Any other line is parsed.
_OURS = re.compile(rb'\{"id": "job_[0-9]+", "custom_id": ("(?:[^"\\]|\\.)*"), "response": \{"status_code": 2')
_ANSWER = (
    b'{"id": "job_%d", "custom_id": %b, '
    b'"response": {"status_code": %d, "request_id": %b, "body": %b}, "error": null}\n'
)


def answer_line(job: Job, status: int, request_id: str, body: bytes) -> bytes:
    """An answer in the shape of OpenAI's batches. `body` is JSON, and only its line breaks are removed."""
    return _ANSWER % (
        job.number,
        json.dumps(job.custom_id).encode(),
        status,
        json.dumps(request_id).encode(),
        body.strip().translate(None, b"\r\n"),
    )


def failure_line(number: int, custom_id: str, code: str, message: str, reply: Reply | None) -> bytes:
    """The failure of a job, in the same shape as an answer."""
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


class SeenIds(dict[str, bool]):
    """The ids of jobs that have an answer or were read, each with a note whether a line with it was read.

    The ids themselves are kept, not hashes of them: if two ids counted as one, a job would never be sent.
    """

    def add(self, custom_id: str) -> bool:
        """Add an id. False: it was there already."""
        if custom_id in self:
            return False
        self[custom_id] = False
        return True

    def was_read(self, custom_id: str) -> bool:
        return self.get(custom_id, False)

    def read(self, custom_id: str) -> bool:
        """Note that a line with this id was read. False: another line had it before."""
        before = self.was_read(custom_id)
        self[custom_id] = True
        return not before


class Journal:
    """An open file of answers. `known` has the ids of the answers that were in it when it was opened.

    `repaired`: the bytes of a torn line that were removed from its end. After a run into a pipe, which is not
    `resumable`, the next run does not know what was answered.
    """

    def __init__(self, fd: int, name: str, *, resumable: bool = False) -> None:
        self._fd = fd
        self.resumable = resumable
        self._end = 0  # the end of the last complete line
        self._dirty = False
        self.name = name
        self.known = SeenIds()
        self.repaired = 0

    @classmethod
    def open(cls, path: Path, *, each: Callable[[bytes], None] | None = None) -> "Journal":
        """Go on with the answers in a file, or begin a new file. `each` is given every line that is there."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o666)
        except OSError as error:
            raise BadJournal(f"cannot write {path}: {_words(error)}", _what_to_do(error, path)) from None
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            journal = cls(fd, str(path), resumable=regular)
            if regular:
                journal._go_on(each)
        except BaseException:
            os.close(fd)
            raise
        return journal

    # -- the answers that are there already

    def _go_on(self, each: Callable[[bytes], None] | None) -> None:
        if not lock_file(self._fd):
            hint = "wait for it, or give this one another file with -o"
            raise BadJournal(f"another run is writing {self.name}", hint)
        with open(self._fd, "rb", buffering=_CHUNK, closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self._repair(line)
                    break
                self._end += len(line)
                if line.isspace():
                    continue
                custom_id = _answered_in(line)
                if custom_id is None:
                    why = f"{self.name}, line {number} is not an answer: {line[:60]!r}"
                    raise BadJournal(why, _LEFT_AS_IT_IS)
                self.known.add(custom_id)
                if each is not None:
                    each(line)

    def _repair(self, line: bytes) -> None:
        """Complete the last line, which has no newline, if nothing else is missing; remove it otherwise."""
        if self._end == 0 and not line.startswith(b'{"id": "job_'[: len(line)]):
            raise BadJournal(f"{self.name} is not a file of answers: {line[:60]!r}", _LEFT_AS_IT_IS)
        custom_id = _answered_in(line)
        if custom_id is not None:
            self.known.add(custom_id)
            self._write(b"\n")
            self._end += len(line) + 1
        else:
            self.repaired = len(line)
            os.ftruncate(self._fd, self._end)

    # -- writing

    def write(self, line: bytes) -> None:
        """Add a line. If that raises, the file ends where it ended before."""
        try:
            self._write(line)
        except BaseException:
            if self.resumable:
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(line)
        self._dirty = True

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> None:
        """Have the system write everything to the disk. This may take a while."""
        if self._dirty and self.resumable:
            self._dirty = False
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd > 2:
            os.close(self._fd)


class Failures:
    """The file of the jobs that failed in this run, one a line. It is made when the first one fails.

    The failures of the run before are deleted, because this run tries those jobs again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        try:
            if path.is_file():
                with path.open("rb") as file:
                    first = file.readline()
                if first and b'"error"' not in first:
                    raise BadJournal(f"{path} is not a file of failures", _OTHER_ERRORS)
                path.unlink()
            elif not path.parent.is_dir():
                hint = "make it first, or give another"
                raise BadJournal(f"cannot write {path}: there is no such folder", hint)
            elif not os.access(path if path.exists() else path.parent, os.W_OK):
                raise BadJournal(f"cannot write {path}: permission denied", _OTHER_ERRORS)
        except OSError as error:
            raise BadJournal(f"cannot write {path}: {_words(error)}", _OTHER_ERRORS) from None

    def write(self, line: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY, 0o666)
        os.write(self._fd, line)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def answers_in(path: Path) -> set[str]:
    """The ids of all answers in a file, which is only read."""
    with path.open("rb", buffering=_CHUNK) as file:
        return {custom_id for line in file if (custom_id := _answered_in(line)) is not None}


def _answered_in(line: bytes) -> str | None:
    """The custom_id that a line answers; None if the line is not an answer."""
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
