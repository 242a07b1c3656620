"""Pure. Records that many processes change by compare-and-swap.

A record's text is a JSON pair: the last exchange of each member that wrote it, and the content, which the
kind of record knows how to read. By the first part a member whose reply was lost finds out whether its
change was made, so that no change is made twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...arguments import NS_PER_US
from ...errors import StoreError

if TYPE_CHECKING:
    from .client import Change

# For how long a record remembers the exchanges of a member, in microseconds.
_REMEMBERED = 600_000_000
# How long a member may keep the others waiting when it has a turn, in microseconds.
_TURN = 500_000

# What reading a text may raise that this code did not write.
DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)


class Times(NamedTuple):
    """The time in a store, in nanoseconds: not before `early` and not after `late`, on the store's clock.

    By the wall clock of the store it is `ahead` of that.
    """

    early: int
    late: int
    ahead: int = 0

    @property
    def walls(self) -> tuple[int, int]:
        """Not before and not after which moment it is by wall time."""
        return self.early + self.ahead, self.late + self.ahead


def contents(text: str) -> tuple[dict[str, Any], Any]:
    """The last exchange of each member, and the content; None if the record was never written."""
    members, written = json.loads(text) if text else ({}, None)
    if not isinstance(members, dict):
        raise TypeError("it is not a record of headgate")
    return members, written


def kept_until(text: str) -> int:
    """Until when, in µs of the store's clock, the store keeps this text at least. 0: that is not known."""
    try:
        return max((what[2] for what in contents(text)[0].values()), default=-_REMEMBERED) + _REMEMBERED
    except DAMAGE:
        return 0


class Record:
    """One record as last heard from the store. Subclasses know what its content means."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept = ("", "")  # mark and text, replaced together: other threads read them without a lock
        self.heard_at: int | None = None  # on the clock of this process

    @property
    def mark(self) -> str:
        return self.kept[0]

    @property
    def text(self) -> str:
        return self.kept[1]

    def keep(self, mark: str, text: str, times: Times) -> bool:
        """Hear what the store has at that time. True: it has lost the record.

        Until another member has written it again, the text stays as it was last heard, and the next change is
        made to that: however often it is looked at meanwhile.
        """
        stays = bool(self.text) and not mark and self.is_needed(times)
        lost = stays and bool(self.mark)
        self.kept = (mark, self.text if stays else text)
        return lost

    def is_needed(self, times: Times) -> bool:
        """Whether the store should still have the text that was last heard."""
        return kept_until(self.text) > times.early // NS_PER_US

    def read(self, written: Any, times: Times) -> Any:
        """The state that was written; None: none was. Raises one of DAMAGE for what makes no sense."""
        raise NotImplementedError

    def write(self, state: Any, times: Times) -> tuple[Any, int]:
        """What to write, as JSON, and for how many nanoseconds it is worth keeping."""
        raise NotImplementedError

    def heard(self, early: int) -> None:
        """The text may be a new one. It is at least `early` on the store's clock."""

    def damaged(self, error: Exception) -> StoreError:
        """The error for a text that makes no sense."""
        return StoreError(f"what the store keeps of {self.name} cannot be read ({error}); delete it there")


class Turn(Record):
    """Whose turn it is to write. A member far from the store would always be too late without one."""

    def take(self, member: str, late: int) -> tuple[str | None, str, int]:
        """The change that asks the others to let this member write first."""
        return None, json.dumps([member, late // NS_PER_US + _TURN]), 2 * _TURN

    def passed(self, member: str) -> tuple[str, str | None, int]:
        """The change that goes with a write: it ends this member's turn. Another's must be as it was seen."""
        return self.mark, json.dumps(["", 0]) if self._holder()[0] == member else None, _TURN

    def is_of_another(self, member: str, now: int) -> bool:
        """Whether another member has the turn at that time of the store's clock."""
        who, until = self._holder()
        return who not in ("", member) and until * NS_PER_US > now

    def _holder(self) -> tuple[str, int]:
        try:
            who, until = json.loads(self.text)
            return str(who), int(until)
        except (ValueError, TypeError):
            return "", 0


def rewrite(
    batch: Sequence[Change], records: Sequence[Record], exchange: tuple[str, int, int], times: Times
) -> tuple[dict[str, tuple[str | None, str | None, int]], list[Any]]:
    """Make every change of the batch, in order, to the records as last heard.

    `exchange` is the member, its exchange and the attempt. The answer is what to swap in the store, and
    what each change came to: a StoreError where one of its records cannot be read.
    """
    forgotten = times.early // NS_PER_US - _REMEMBERED
    members: dict[str, dict[str, Any]] = {}
    states: dict[str, Any] = {}
    for record in records:
        try:
            known, written = contents(record.text)
            members[record.name] = {who: what for who, what in known.items() if what[2] > forgotten}
            states[record.name] = record.read(written, times)
        except DAMAGE as error:
            states[record.name] = record.damaged(error)
    outcomes = []
    changed: set[str] = set()
    for change in batch:
        given = [states[record.name] for record in change.records]
        outcome: Any = next((state for state in given if isinstance(state, StoreError)), None)
        if outcome is None and change.wanted:
            outcome, touched = change.act(given, times)
            if touched:
                changed.update(record.name for record in change.records)
        outcomes.append(outcome)
    swaps: dict[str, tuple[str | None, str | None, int]] = {}
    member, number, attempt = exchange
    for record in records:
        if record.name not in changed:
            swaps[record.name] = (record.mark, None, 0)
            continue
        members[record.name][member] = (number, attempt, times.late // NS_PER_US)
        written, keep = record.write(states[record.name], times)
        text = json.dumps([members[record.name], written], separators=(",", ":"))
        swaps[record.name] = (record.mark, text, max(_REMEMBERED, keep // NS_PER_US + 1))
    return swaps, outcomes


def attempt_made(records: Iterable[Record], member: str, number: int) -> int:
    """Which attempt of this exchange the records say was written, though the reply was lost. -1: none."""
    for record in records:
        try:
            exchange, attempt, _ = contents(record.text)[0][member]
            if exchange == number:
                return int(attempt)
        except DAMAGE:
            continue
    return -1
