"""Pure. What the window in an answer means to a member: whether it is news, and whether the pool has lost it.

Times are nanoseconds on the member's own clock. The moment of an answer is known to lie between those of
asking and of hearing, so the end of a window is known as exactly as that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...arguments import NS_PER_US, SECOND
from ...gate.window import WindowSignal
from .episode import CLEARED
from .question import window_left

if TYPE_CHECKING:
    from .question import Answer, Question

# By how much an end comes back later because it was rounded up and the store's time down.
_ROUNDED = 2 * NS_PER_US
# By how much the end of one window may differ among members, because they have heard of it late.
_ALIKE = SECOND // 4


class HeardWindow:
    """What one member has heard of the window of its pool. `generation` is 0 until it has heard of any."""

    __slots__ = ("generation",)

    def __init__(self) -> None:
        self.generation = 0

    def recalls(self, own: int | None, now: int) -> int:
        """The `recalls` of a question: a window ends at `own` here that the pool should know."""
        return (window_left(own, now) or 0) if self.generation else 0

    def news(
        self, question: Question, answer: Answer, own: int | None, asked_at: int, now: int, *, forgot: bool
    ) -> int | None:
        """The end of the window to go by from now on, CLEARED, or None: all is as this member knows it.

        `asked_at` is the moment from which the question counts how long its window lasts, or an earlier one.
        A pool that the store has lost and that began anew clears no window.
        """
        generation, left = answer["window_generation"], answer["window_left"] * NS_PER_US
        if generation == self.generation and not forgot:
            return None
        self.generation = generation
        active = own is not None and own > now
        if left:
            # An end that may be ours is ours: otherwise members would extend a window by telling each other.
            return None if active and own is not None and asked_at + left <= own + _ROUNDED else now + left
        return CLEARED if active and not forgot and question["window"] != CLEARED else None

    def untold(self, answer: Answer, own: int | None, now: int) -> int | None:
        """The end of the window here, if a pool that began anew knows of a shorter one only.

        One that ends a moment earlier is the same, as another member has heard of it. To tell it once more
        could undo that it was cleared in the meantime.
        """
        latest = now + answer["window_left"] * NS_PER_US
        return own if own is not None and own > latest + _ALIKE else None


def heard_signal(until: int, answer: Answer, origin: object) -> WindowSignal:
    """The signal that an answer is to the gate of a member, for a window that ends then, or was CLEARED."""
    end = None if until == CLEARED else until
    return WindowSignal(until=end, origin=origin, gentle=bool(answer["window_gentle"]), probes=None)
