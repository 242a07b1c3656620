"""Pure. How long questions to a store and their answers travel, and so how long an answer is waited for.

Times are nanoseconds on the member's own clock.
"""

from __future__ import annotations

from ...arguments import SECOND

# After how long without an answer a store that is near counts as lost, and one that is far away at most.
_PROMPT = SECOND // 4
_MOST_PATIENCE = SECOND * 5 // 2


# By which part of the time that passes two clocks may drift apart.
_DRIFT = 5_000


class RoundTrips:
    """What was measured so far.

    An answer was given at some moment between asking and hearing, and tells which moment of the store's
    clock that was. So by how much the two clocks differ is known within bounds, which are the closer the
    shorter one of the ways ever was: also when later answers wait before the store or on their way back.
    """

    __slots__ = ("_at", "_earliest", "_latest", "_measured", "typical")

    def __init__(self) -> None:
        self.typical = 0
        self._measured = False  # a trip that made no connection
        self._at: int | None = None  # when the bounds were last narrowed
        self._earliest = self._latest = 0  # our clock less the store's

    def note(self, trip: int, *, connecting: bool = False) -> None:
        """An answer came after that time, in which a connection was made if `connecting`."""
        self.typical = self.typical + (trip - self.typical) // 4 if self._measured else trip
        self._measured = self._measured or not connecting

    @property
    def patience(self) -> int:
        """After how long without an answer the store counts as lost. A slow answer is not a loss."""
        return min(_PROMPT + 2 * self.typical, _MOST_PATIENCE)

    def moment_of(self, stated: int, asked: int, heard: int) -> int:
        """Return when an answer was given, on our clock, that the store's clock states to be of then."""
        earliest, latest = asked - stated, heard - stated
        if self._at is not None:
            drift = max(0, heard - self._at) // _DRIFT
            known = self._earliest - drift, self._latest + drift
            if max(earliest, known[0]) <= min(latest, known[1]):  # else one of the clocks was set
                earliest, latest = max(earliest, known[0]), min(latest, known[1])
        self._at, self._earliest, self._latest = heard, earliest, latest
        return min(max(asked, stated + (earliest + latest) // 2), heard)
