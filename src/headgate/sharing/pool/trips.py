"""Pure. How long questions to a store and their answers travel, and so how long an answer is waited for.

Times are nanoseconds on the member's own clock.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from ...arguments import NS_PER_US, SECOND

if TYPE_CHECKING:
    from .question import Question

# After how long without an answer a store that is near counts as lost, and one that is far away at most.
_PROMPT = SECOND // 4
_MOST_PATIENCE = SECOND * 5 // 2

# By which part of the time that passes two clocks may drift apart.
_DRIFT = 5_000


class RoundTrips:
    """What was measured so far.

    An answer was given at some moment between asking and hearing, and tells which moment of the store's
    clock that was. So by how much the two clocks differ is known within bounds, which are the closer the
    shorter each of the ways ever was: also when later answers wait before the store or on their way back.
    How long each way takes alone cannot be known. A member goes by the later bound, so it uses no unit before
    the moment that the store means, and tells how much later that may be: `doubt`.
    """

    __slots__ = ("_at", "_earliest", "_late", "_latest", "_measured", "back", "sooner", "typical")

    def __init__(self) -> None:
        self.typical = 0
        self.back = 0  # by how much answers are heard later than at the moment that they are taken to be of
        self._late = [0, 0]  # of the two latest ones, less an eighth with each answer since
        self.sooner = 0  # how much earlier than so far a moment of the store's clock is taken to be
        self._measured = False  # a trip that made no connection
        self._at: int | None = None  # when the bounds were last narrowed
        self._earliest = self._latest = 0  # our clock less the store's

    def note(self, trip: int, *, connecting: bool = False) -> None:
        """An answer came after that time, in which a connection was made if `connecting`.

        No answer is waited for much longer than the patience: if one was, this process was stopped meanwhile.
        """
        if self._measured and trip > self.patience + _MOST_PATIENCE:
            return
        self.typical = self.typical + (trip - self.typical) // 4 if self._measured else trip
        self._measured = self._measured or not connecting

    @property
    def patience(self) -> int:
        """After how long without an answer the store counts as lost. A slow answer is not a loss."""
        return min(_PROMPT + 2 * self.typical, _MOST_PATIENCE)

    def doubt(self, now: int) -> int:
        """Return by how much later than the store means units may be used: clocks cannot be compared."""
        if self._at is None:
            return _PROMPT
        return self._latest - self._earliest + 2 * (max(0, now - self._at) // _DRIFT)

    def tell(self, question: Question, now: int) -> None:
        """Tell of the ways to the store and back."""
        question["reach"] = self.typical // NS_PER_US
        question["back"] = -(-self.back // NS_PER_US)
        question["doubt"] = -(-self.doubt(now) // NS_PER_US)

    def moment_of(self, stated: int, asked: int, heard: int) -> int:
        """Return when an answer was given at the latest, on our clock, that is of `stated` on the store's."""
        earliest, latest = asked - stated, heard - stated
        self.sooner = 0
        if self._at is not None:
            drift = max(0, heard - self._at) // _DRIFT
            known = self._earliest - drift, self._latest + drift
            if max(earliest, known[0]) <= min(latest, known[1]):  # else one of the clocks was set
                earliest, latest = max(earliest, known[0]), min(latest, known[1])
                self.sooner = self._latest - latest
        self._at, self._earliest, self._latest = heard, earliest, latest
        moment = stated + latest
        self._note_late(heard - moment)
        return moment

    def moment(self, stated: int, now: int) -> int | None:
        """Return the latest moment, on our clock, at which the store's showed `stated`. None: not known."""
        if self._at is None:
            return None
        return min(now, stated + self._latest + max(0, now - self._at) // _DRIFT)

    def _note_late(self, late: int) -> None:
        """An answer was heard by that much later than at its moment.

        If that was much more than with any other one, it says nothing of those to come: this process was
        stopped meanwhile. Only the last answer is believed alone.
        """
        self._late = nlargest(2, [late, *(each - each // 8 for each in self._late)])
        most, second = self._late
        self.back = max(late, min(most, 2 * second))
