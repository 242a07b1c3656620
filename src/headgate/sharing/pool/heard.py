"""Pure. What a member has told the pool of the window and has heard of it, and what that means to its gate.

Times are nanoseconds on the member's own clock. The moment of an answer is known to lie between those of
asking and of hearing, so the end of a window is known as exactly as that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ...arguments import NS_PER_US, SECOND
from ...gate.window import WindowSignal
from .episode import CLEARED, ENDED, USUAL
from .question import window_left

if TYPE_CHECKING:
    from .question import Answer, Question
    from .trips import RoundTrips

# By how much an end comes back later because it was rounded up and the store's time down.
_ROUNDED = 2 * NS_PER_US
# By how much the end of one window may differ among members, because they have heard of it late.
_ALIKE = SECOND // 4
# Stores count exactly up to this number.
_EXACT = 1 << 53


class WindowNews(NamedTuple):
    """What a store says of the window when a pool has changed. The values are those of an answer.

    >>> read_news("1700000000000000 7 30000000 0 1700000500000000")
    WindowNews(born=1700000000000000, generation=7, left=30000000, gentle=0, at=1700000500000000)
    """

    born: int
    generation: int
    left: int
    gentle: int
    at: int


def read_news(text: bytes | str) -> WindowNews | None:
    """Return what the text of a message says of the window; None if it says nothing of that."""
    try:
        born, generation, left, gentle, at = (int(each) for each in text.split())
    except ValueError:  # it has more or fewer figures, or none
        return None
    news = WindowNews(born, generation, left, gentle, at)
    return news if all(0 <= each < _EXACT for each in news) else None


def news_text(answer: Answer) -> str:
    """Return the text of a message that `read_news` reads, about the window that an answer tells of."""
    return " ".join(map(str, news_of(answer)))


def news_of(answer: Answer) -> WindowNews:
    """Return what the answer that changed a pool says of the window to all other members."""
    window = answer["window_generation"], answer["window_left"], int(answer["window_gentle"])
    return WindowNews(answer["born"], *window, answer["at"])


class HeardWindow:
    """What one member has told the pool of the window, and heard of it.

    All but `leave` is called on the courier's loop. `generation` is 0 as long as it has heard of no window.
    """

    __slots__ = (
        "_born",
        "_by_news",
        "_left",
        "_manner",
        "_signal",
        "_telling",
        "_then",
        "_unasked",
        "generation",
    )

    def __init__(self) -> None:
        self._left: deque[tuple[int, int]] = deque()  # signals by callers' threads
        self._signal: int | None = None  # the end of the window, or CLEARED, that the pool has not heard of
        self._manner = USUAL  # of that window
        self._then: tuple[int, int] | None = None  # a window that was set after one that has to be cleared
        self._telling: int | None = None  # what the latest question told
        self.generation = self._born = 0
        self._by_news = False  # news told of the window, and no answer has confirmed it
        self._unasked = False  # no question was written since

    # -- telling

    def leave(self, until: int, manner: int) -> None:
        """The window was changed in this process, in any thread: a question tells it to the pool."""
        self._left.append((until, manner))

    @property
    def signal(self) -> int | None:
        """The end of the window, CLEARED or ENDED, that the pool has not heard of; None: it has heard all."""
        while self._left:
            until, manner = self._left.popleft()
            if until == ENDED and self._signal is not None:
                continue
            if self._signal == CLEARED and until >= 0:
                self._then = (until, manner)  # both are told: alone, a shorter window would change nothing
            else:
                self._signal, self._manner, self._then = until, manner, None
        return self._signal

    def tells_more(self) -> bool:
        """Whether there is more to tell, now that a question was answered."""
        if self.signal is None and self._then is not None:
            (self._signal, self._manner), self._then = self._then, None
        return self._signal is not None

    def write(self, question: Question, own: int | None, now: int) -> None:
        """Have a question tell what the pool has not heard, and the window that ends at `own` here."""
        question["window"], question["manner"] = window_left(self.signal, now), self._manner
        question["recalls"] = self.recalls(own, now)
        self._telling, self._signal = self._signal, None
        self._unasked = False

    def write_again(self, question: Question, now: int) -> None:
        """The same question is asked later: less is left of the window that it tells."""
        question["window"] = window_left(self._telling, now)

    def tell_again(self) -> None:
        """Whether the pool has heard the last question is unknown: the next one tells the same."""
        if self.signal is None or (self._signal == ENDED and self._telling is not None):
            self._signal = self._telling
        elif self._telling == CLEARED and self._signal is not None and self._signal >= 0:
            self._signal, self._then = CLEARED, (self._signal, self._manner)

    def recalls(self, own: int | None, now: int) -> int:
        """The `recalls` of a question: a window ends at `own` here that the pool should know.

        Of one that only news told of, the pool may know nothing: news may be forged.
        """
        return (window_left(own, now) or 0) if self.generation and not self._by_news else 0

    # -- hearing

    def news(self, answer: Answer, own: int | None, asked_at: int, now: int, *, forgot: bool) -> int | None:
        """The end of the window to go by from now on, CLEARED, or None: all is as this member knows it.

        `asked_at` is the moment from which the question counts how long its window lasts, or an earlier one.
        A pool that the store has lost and that began anew clears no window.
        """
        generation, left, self._born = (
            answer["window_generation"],
            answer["window_left"] * NS_PER_US,
            answer["born"],
        )
        by_news, active = self._by_news, own is not None and own > now
        if by_news and self._unasked and generation < self.generation and not forgot:
            return None  # the pool has answered before its window changed
        self._by_news = False
        if generation == self.generation and not forgot:
            # News may be wrong: this process may have been stopped while they came.
            return CLEARED if by_news and not left and own is not None and own > now + _ALIKE else None
        if window_left(self.signal, now) is not None:
            return None  # what was changed here since is not told yet: the answer to that decides
        self.generation = generation
        if left:
            # An end that may be ours is ours: otherwise members would extend a window by telling each other.
            return None if active and own is not None and asked_at + left <= own + _ROUNDED else now + left
        return CLEARED if active and not forgot else None

    def take(
        self, answer: Answer, own: int | None, asked_at: int, now: int, origin: object, *, forgot: bool
    ) -> WindowSignal | None:
        """What the answer means to the gate: a signal, or None. A pool that began anew is told the window."""
        until = self.news(answer, own, asked_at, now, forgot=forgot)
        if until is not None:
            return heard_signal(until, origin, gentle=answer["window_gentle"])
        if forgot:
            self.tell_anew(answer, own, now)
        return None

    def told(
        self, news: WindowNews, own: int | None, trips: RoundTrips, now: int, *, asking: bool
    ) -> int | None:
        """The end of the window to go by from now on, if the news is of a window that another member set.

        If that window may be the one that this member has set, also because it is `asking` and tells the pool
        of that, or if it is not known here when the news was sent, the next answer decides.
        """
        at = trips.moment(news.at * NS_PER_US, now)
        telling = self.signal is not None or (asking and self._telling is not None)
        if at is None or telling or news.born != self._born or news.generation <= self.generation:
            return None
        end = at + news.left * NS_PER_US
        if end <= now or (own is not None and end <= own + trips.patience):
            return None
        self.generation, self._by_news, self._unasked = news.generation, True, True
        return end

    def tell_anew(self, answer: Answer, own: int | None, now: int) -> None:
        """Tell the window that ends at `own` here, if a pool that began anew knows of a shorter one only.

        One that ends a moment earlier is the same, as another member has heard of it. To tell it once more
        could undo that it was cleared in the meantime.
        """
        latest = now + answer["window_left"] * NS_PER_US
        if self.signal is None and own is not None and own > latest + _ALIKE:
            self._signal = own


def heard_signal(until: int, origin: object, *, gentle: int) -> WindowSignal:
    """The signal to the gate of a member, for a window that ends then, or was CLEARED."""
    end = None if until == CLEARED else until
    return WindowSignal(until=end, origin=origin, gentle=bool(gentle), probes=None)
