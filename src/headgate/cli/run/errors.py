"""What keeps a run from starting.

Rules of this room: everything that is wrong is said with what to do about it.
"""

from __future__ import annotations

from ...errors import HeadgateError


class Wrong(HeadgateError):
    """The run cannot start; `why` says what is wrong and `hint` what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


class BadTarget(Wrong, ValueError):
    """--to cannot be sent to."""


class BadJournal(Wrong):
    """Answers cannot be kept there."""


class BadJob(Wrong, ValueError):
    """A line is no job. `where` names the file and the line."""

    def __init__(self, where: str, why: str, hint: str, custom_id: str | None = None) -> None:
        super().__init__(f"{where}: {why}", hint)
        self.where = where
        self.complaint = why
        self.custom_id = custom_id
