"""What keeps a run from starting. Every error says what to do about it."""

from __future__ import annotations

from ...errors import HeadgateError


class RunError(HeadgateError):
    """The run cannot start; `why` says what is wrong and `hint` what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


class BadTarget(RunError, ValueError):
    """Nothing can be sent to the address given as --to."""


class BadJournal(RunError):
    """Answers cannot be kept in the given file."""


class BadJob(RunError, ValueError):
    """A line is not a job. `where` names the file and the line."""

    def __init__(self, where: str, why: str, hint: str, custom_id: str | None = None) -> None:
        super().__init__(f"{where}: {why}", hint)
        self.where = where
        self.complaint = why
        self.custom_id = custom_id
