"""Which jobs are sent: those of the lines that are whole, new, and have no answer."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from .errors import BadJob, Stop
from .jobs import Job, digest_of, quick_id, read_job, twice
from .lines import Line, Lines, Pipe
from .progress import Tally
from .seen import ANSWERED, FAILED, READ, Seen, SeenIds
from .target import Target

Changed: TypeAlias = Literal["keep", "send"]

CHOICES = "give another file with -o, or --changed send to send them again, or --changed keep to leave them"


class ChangedJob(Exception):
    """A job has an answer, but its line was another one then."""

    def __init__(self, line: Line, custom_id: str) -> None:
        super().__init__(f"{line.where}: {custom_id[:80]!r} was answered when its line was another one")
        self.stop = Stop("changed", str(self), CHOICES)


class Intake:
    """The jobs of a source, one after the other.

    `known` has what earlier runs have answered. `failed`: only jobs with these ids are sent. `changed`: what
    happens to jobs whose line has changed since they were answered; without it ChangedJob is raised. Bad
    lines are given to `bad`. `counts_kept`: whether the tally counts jobs that have an answer as they come.
    """

    def __init__(
        self,
        source: Lines | Pipe,
        target: Target,
        known: SeenIds,
        tally: Tally,
        *,
        bad: Callable[[Line, BadJob], None],
        failed: SeenIds | None = None,
        changed: Changed | None = None,
        counts_kept: bool = True,
    ) -> None:
        self._source = source
        self._lines: Iterator[Line] | None = iter(source) if isinstance(source, Lines) else None
        self._target = target
        self._known = known
        self._before = bool(len(known))
        self._tally = tally
        self._counts_kept = counts_kept
        self._bad = bad
        self._failed = failed
        self._changed = changed
        self.exhausted = False

    async def next(self, stopping: asyncio.Event) -> Job | None:
        """The next job; None if there is none, or if the run stops meanwhile."""
        passed = 0
        while not self.exhausted:
            line = next(self._lines, None) if self._lines is not None else await self._piped(stopping)
            if line is None:
                if not stopping.is_set():
                    self.exhausted = True
                    self._tally.total = self._tally.read
                return None
            self._tally.read += 1
            job = self._read(line)
            if job is not None:
                return job
            passed += 1
            if passed % 256 == 0:
                await asyncio.sleep(0)
                if stopping.is_set():
                    return None
        return None

    def _read(self, line: Line) -> Job | None:
        """The job of a line; None if the line is bad or is not to be sent."""
        known = self._known
        if self._before or self._failed is not None:
            custom_id = quick_id(line.content)
            if custom_id is not None:
                if self._left_out(custom_id):
                    return None
                before = known.get(custom_id)
                if before.marks & (ANSWERED | READ) == ANSWERED and self._has_answer(line, custom_id, before):
                    known.add(custom_id, READ)
                    self._tally.kept += self._counts_kept
                    return None
        try:
            job = read_job(line, self._target)
            if self._left_out(job.custom_id):
                return None
            before = known.add(job.custom_id, READ)
            if before.marks & READ:
                raise twice(line.where, job.custom_id)
        except BadJob as error:
            self._bad(line, error)
            return None
        if before.marks & ANSWERED and self._has_answer(line, job.custom_id, before):
            self._tally.kept += self._counts_kept
            return None
        return job

    def _left_out(self, custom_id: str) -> bool:
        if self._failed is None or self._failed.get(custom_id).marks & FAILED:
            return False
        self._tally.read -= 1
        return True

    def _has_answer(self, line: Line, custom_id: str, before: Seen) -> bool:
        if before.digest is None or before.digest == digest_of(line.content) or self._changed == "keep":
            return True
        if self._changed is None:
            raise ChangedJob(line, custom_id)
        return False

    async def _piped(self, stopping: asyncio.Event) -> Line | None:
        assert isinstance(self._source, Pipe)
        line = asyncio.ensure_future(self._source.next())
        stop = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((line, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not line.done():
            line.cancel()
            return None
        return line.result()
