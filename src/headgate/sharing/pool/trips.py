"""Pure. How long questions to a store and their answers travel, and so how long an answer is waited for.

Times are nanoseconds on the member's own clock.
"""

from __future__ import annotations

from ...arguments import SECOND

# After how long without an answer a store that is near counts as lost, and one that is far away at most.
_PROMPT = SECOND // 4
_MOST_PATIENCE = SECOND * 5 // 2


class RoundTrips:
    """What was measured so far."""

    __slots__ = ("shortest", "typical")

    def __init__(self) -> None:
        self.typical = 0
        self.shortest = 0  # 0: not measured yet

    def note(self, trip: int, *, connecting: bool = False) -> None:
        """An answer came after that time, in which a connection was made if `connecting`."""
        if connecting:
            self.typical = trip
            return
        self.typical = trip if not self.shortest else self.typical + (trip - self.typical) // 4
        # One that lasts longer waited somewhere, unless they all do by now.
        if not self.shortest or trip < self.shortest:
            self.shortest = trip
        else:
            self.shortest += (trip - self.shortest) // 16

    @property
    def patience(self) -> int:
        """After how long without an answer the store counts as lost. A slow answer is not a loss."""
        return min(_PROMPT + 2 * self.typical, _MOST_PATIENCE)

    @property
    def ago(self) -> int:
        """How long ago an answer that was heard just now was given, at least."""
        return self.shortest // 2
