"""The file of the jobs that failed, beside the file of answers.

Its first line says which answers it belongs to. A file without that line, or with any other line in it, was
not written by a run for these answers: it is never changed. Failures are added as they happen; when a run
ends, those of jobs that have an answer by now are taken out.
"""

import json
import os
import stat
from pathlib import Path

from ..system import lock_file
from .answers import failed_in
from .errors import BadJournal
from .journal import BINARY, check_room, words, write_all
from .seen import ANSWERED, FAILED, SeenIds

_OTHER = "give another one with --errors; this one is left as it is"


def errors_beside(output: Path) -> Path:
    """The file of failures for a file of answers.

    >>> errors_beside(Path("answers.jsonl")).name, errors_beside(Path("part.1")).name
    ('answers.errors.jsonl', 'part.1.errors.jsonl')
    """
    return output.parent / (output.name.removesuffix(".jsonl") + ".errors.jsonl")


class ErrorsFile:
    """The failures of all runs for one file of answers, `output`; `failed` has their ids.

    The file is there while the run goes on, and is removed when it ends if no failure is left.
    """

    def __init__(self, path: Path, output: Path | None) -> None:
        self.path = path
        self.failed = SeenIds()
        self._real = Path(os.path.realpath(path))
        of = None if output is None else os.path.relpath(os.path.realpath(output), self._real.parent)
        self._header = json.dumps({"headgate": "failures", "answers": of}).encode() + b"\n"
        self._made = not path.exists()
        self._ours = False  # an empty file that was there before is not removed
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o666)
        except FileNotFoundError:
            hint = "make it first, or give another"
            raise BadJournal(f"cannot write {path}: there is no such folder", hint) from None
        except OSError as error:
            raise BadJournal(f"cannot write {path}: {words(error)}", _OTHER) from None
        try:
            self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
            self._end = 0
            if self._regular:
                self._recognise()
        except BaseException:
            os.close(self._fd)
            raise

    def _recognise(self) -> None:
        """Read what is there, and remove a torn line. Raises BadJournal if a run did not write all of it."""
        if not lock_file(self._fd):
            raise BadJournal(f"another run is writing {self.path}", "give this one another with --errors")
        with open(self._fd, "rb", closefd=False) as file:
            first = file.readline()
            if not self._header.startswith(first):  # it may be torn
                raise BadJournal(f"{self.path} does not hold the failures of these answers", _OTHER)
            self._ours = bool(first) or self._made
            lines = [len(first)] if first == self._header else []
            for number, line in enumerate(file, 2):
                torn = not line.endswith(b"\n")
                custom_id = failed_in(line)
                if custom_id is None and not (torn and line.startswith(b'{"id": "job_'[: len(line)])):
                    raise BadJournal(f"{self.path}, line {number} is not a failure", _OTHER)
                if not torn:
                    assert custom_id is not None
                    lines.append(len(line))
                    self.failed.add(custom_id, FAILED)
        self._end = sum(lines)
        os.ftruncate(self._fd, self._end)
        check_room(self._fd, self._end, str(self.path))
        if not self._end:
            self.write(self._header)

    def write(self, lines: bytes) -> None:
        """Add whole lines. If that raises, the file ends where it ended before."""
        try:
            write_all(self._fd, lines)
        except BaseException:
            if self._regular:
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(lines)

    @property
    def takes_back(self) -> bool:
        return self._regular

    def finish(self, seen: SeenIds) -> None:
        """Keep the last failure of each job that has no answer; remove the file if there is none."""
        if not self._regular or not self._is_there():
            return
        last: dict[str, int] = {}
        with self._real.open("rb") as file:
            for number, line in enumerate(file):
                custom_id = failed_in(line) if number else None
                if custom_id is not None and not seen.get(custom_id).marks & ANSWERED:
                    last[custom_id] = number
            if not last:
                if self._ours:
                    self._real.unlink()
                else:
                    os.ftruncate(self._fd, 0)
                return
            kept = set(last.values())
            beside = self._real.with_name(f".{self._real.name}.{os.getpid()}")
            file.seek(0)
            try:
                with beside.open("xb") as fresh:
                    fresh.writelines(line for number, line in enumerate(file) if not number or number in kept)
                beside.replace(self._real)
            except OSError:  # a full disk: the longer list stands
                beside.unlink(missing_ok=True)

    def _is_there(self) -> bool:
        """Whether the file of that name is still the one that was opened."""
        try:
            return os.path.samestat(self._real.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._fd)
