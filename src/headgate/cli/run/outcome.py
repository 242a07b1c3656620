"""Pure. How a run ended."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

from .tally import Tally

Reason = Literal["interrupted", "budget", "quota", "refused", "unreachable", "output"]


class ExitStatus(IntEnum):
    ALL_ANSWERED = 0
    SOME_FAILED = 1
    WRONG_USAGE = 2
    STOPPED_EARLY = 3
    STOPPED_AT_ONCE = 130


class Stop(NamedTuple):
    """Why a run ended before all jobs were tried: for programs, for people, and what people can do."""

    reason: Reason
    why: str
    hint: str = ""


class Outcome(NamedTuple):
    """The figures at the end, and the reason if the run stopped early."""

    tally: Tally
    stop: Stop | None = None
