"""Why a run does not start, why it stops early, and its exit status."""

from enum import IntEnum
from typing import Literal, NamedTuple

from ..options import CommandError


class BadTarget(CommandError, ValueError):
    """Nothing can be sent to the address given as --to."""


class BadJournal(CommandError):
    """Answers cannot be kept in the given file."""


class BadJob(CommandError, ValueError):
    """A line is not a job. `where` names the file and the line."""

    def __init__(self, where: str, why: str, hint: str, custom_id: str | None = None) -> None:
        super().__init__(f"{where}: {why}", hint)
        self.complaint = why
        self.custom_id = custom_id


class Stop(NamedTuple):
    """Why a run ended before all jobs were tried: for programs, for people, and what people can do."""

    reason: Literal["interrupted", "budget", "quota", "refused", "unreachable", "output", "changed"]
    why: str
    hint: str = ""


class ExitStatus(IntEnum):
    ALL_ANSWERED = 0
    SOME_FAILED = 1
    WRONG_USAGE = 2
    STOPPED_EARLY = 3
    STOPPED_AT_ONCE = 130
