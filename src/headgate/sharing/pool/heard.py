"""Pure. What a member has told the pool of the window and has heard of it, and what that means to its gate.

Times are nanoseconds on the member's own clock. The moment of an answer is known to lie between those of
asking and of hearing, so the end of a window is known as exactly as that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...arguments import NS_PER_US, SECOND
from ...gate.window import WindowSignal
from .episode import CLEARED, ENDED, USUAL
from .question import window_left

if TYPE_CHECKING:
    from .question import Answer, Question

# By how much an end comes back later because it was rounded up and the store's time down.
_ROUNDED = 2 * NS_PER_US
# By how much the end of one window may differ among members, because they have heard of it late.
_ALIKE = SECOND // 4
# Stores count exactly up to this number.
_EXACT = 1 << 53


class WindowNews(NamedTuple):
    """What a store says of the window when a pool has changed. The values are those of an answer.

    >>> read_news("1700000000000000 7 30000000 0")
    WindowNews(born=1700000000000000, generation=7, left=30000000, gentle=0)
    """

    born: int
    generation: int
    left: int
    gentle: int


def read_news(text: bytes | str) -> WindowNews | None:
    """Return what the text of a message says of the window; None if it says nothing of that."""
    try:
        figures = [int(each) for each in text.split()]
    except ValueError:
        return None
    if len(figures) != len(WindowNews._fields) or not all(0 <= each < _EXACT for each in figures):
        return None
    return WindowNews(*figures)


def news_text(answer: Answer) -> str:
    """Return the text of a message that `read_news` reads, about the window that an answer tells of."""
    return " ".join(map(str, news_of(answer)))


def news_of(answer: Answer) -> WindowNews:
    """Return what the answer that changed a pool says of the window to all other members."""
    window = answer["window_generation"], answer["window_left"], int(answer["window_gentle"])
    return WindowNews(answer["born"], *window)


class HeardWindow:
    """What one member has told the pool of the window, and heard of it. `generation` is 0: of none so far."""

    __slots__ = ("_born", "_heard_at", "_telling", "generation", "manner", "signal")

    def __init__(self) -> None:
        self.signal: int | None = None  # the end of the window, or CLEARED, that the pool has not heard of
        self.manner = USUAL  # of that window
        self._telling: int | None = None  # the signal that the question tells that was asked last
        self.generation = self._born = 0
        self._heard_at: int | None = None  # when news told of a window before an answer did

    # -- telling

    def note(self, until: int, manner: int) -> None:
        """The window was changed in this process: the next question tells it."""
        if until != ENDED or self.signal is None:
            self.signal, self.manner = until, manner

    def write(self, question: Question, own: int | None, now: int) -> None:
        """Have a question tell what the pool has not heard, and the window that ends at `own` here."""
        question["window"], question["manner"] = window_left(self.signal, now), self.manner
        question["recalls"] = self.recalls(own, now)
        self._telling, self.signal = self.signal, None

    def write_again(self, question: Question, now: int) -> None:
        """The same question is asked later: less is left of the window that it tells."""
        question["window"] = window_left(self._telling, now)

    def tell_again(self) -> None:
        """Whether the pool has heard the last question is unknown: the next one tells the same."""
        if self.signal is None:
            self.signal = self._telling

    def recalls(self, own: int | None, now: int) -> int:
        """The `recalls` of a question: a window ends at `own` here that the pool should know."""
        return (window_left(own, now) or 0) if self.generation else 0

    # -- hearing

    def news(
        self, question: Question, answer: Answer, own: int | None, asked_at: int, now: int, *, forgot: bool
    ) -> int | None:
        """The end of the window to go by from now on, CLEARED, or None: all is as this member knows it.

        `asked_at` is the moment from which the question counts how long its window lasts, or an earlier one.
        A pool that the store has lost and that began anew clears no window.
        """
        generation, left = answer["window_generation"], answer["window_left"] * NS_PER_US
        heard_at, self._heard_at, self._born = self._heard_at, None, answer["born"]
        if generation == self.generation and not forgot:
            return None
        if heard_at is not None and asked_at <= heard_at and not forgot:
            self._heard_at = heard_at  # the pool may have answered before its window changed
            return None
        self.generation = generation
        active = own is not None and own > now
        if left:
            # An end that may be ours is ours: otherwise members would extend a window by telling each other.
            return None if active and own is not None and asked_at + left <= own + _ROUNDED else now + left
        return CLEARED if active and not forgot and question["window"] != CLEARED else None

    def told(self, news: WindowNews, own: int | None, now: int, *, late: int, asking: bool) -> int | None:
        """The end of the window to go by from now on, if news tell of a window that another member set.

        News may come as much as `late` after the moment that they tell of. If that window may be the one that
        this member has set, also because it is `asking` and tells the pool of that, the next answer decides.
        """
        end = now + news.left * NS_PER_US
        telling = self.signal is not None or (asking and self._telling is not None)
        ours = telling or (own is not None and end <= own + late)
        if not news.left or ours or news.born != self._born or news.generation <= self.generation:
            return None
        self.generation, self._heard_at = news.generation, now
        return end

    def untold(self, answer: Answer, own: int | None, now: int) -> int | None:
        """The end of the window here, if a pool that began anew knows of a shorter one only.

        One that ends a moment earlier is the same, as another member has heard of it. To tell it once more
        could undo that it was cleared in the meantime.
        """
        latest = now + answer["window_left"] * NS_PER_US
        return own if own is not None and own > latest + _ALIKE else None


def heard_signal(until: int, origin: object, *, gentle: int) -> WindowSignal:
    """The signal to the gate of a member, for a window that ends then, or was CLEARED."""
    end = None if until == CLEARED else until
    return WindowSignal(until=end, origin=origin, gentle=bool(gentle), probes=None)
