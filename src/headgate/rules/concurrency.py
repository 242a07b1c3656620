"""How many may be inside at once, and how many while the API is throttling us.

Rules of this room: it says whether there is a place; who takes one and who leaves it is
counted by the layers, in one step with everything else.
"""

from __future__ import annotations

# What a signal leaves of the concurrency in force when it is adaptive. One cut an episode.
_CUT_NUMERATOR, _CUT_DENOMINATOR = 7, 10


class ConcurrencyRule:
    """Places inside; and tighter places for those admitted while throttled.

    With `throttled_limit=None` and `adaptive=False` throttling does not concern it. Adaptive
    means: an episode of throttling cuts what was in force to 70 %, at least one place, for
    everybody; once it is over the places grow back evenly over `regrow` nanoseconds.
    """

    __slots__ = (
        "_ceiling",
        "_episode",
        "_in_force",
        "_regrow",
        "adaptive",
        "in_flight",
        "limit",
        "throttled_in_flight",
        "throttled_limit",
    )

    def __init__(
        self, limit: int | None, throttled_limit: int | None, *, adaptive: bool = False, regrow: int = 0
    ) -> None:
        self.limit = limit
        self.throttled_limit = throttled_limit
        self.adaptive = adaptive
        self.in_flight = 0
        self.throttled_in_flight = 0
        self._regrow = regrow
        self._episode = 0  # the last one that was answered by a cut
        self._ceiling: int | None = None  # what that cut left; None when it has grown back
        self._in_force = limit  # at the last decision

    def fits(self) -> bool:
        """Is there a place, when nothing throttles and nothing is growing back?"""
        return self.limit is None or self.in_flight < self.limit

    def fits_throttled(self, episode: int) -> bool:
        """Is there a place for one who is admitted while throttled?"""
        if not self.fits():
            return False
        if not self.adaptive:
            return self.throttled_limit is None or self.throttled_in_flight < self.throttled_limit
        assert self._in_force is not None  # adaptive has a concurrency to adapt
        if episode != self._episode:
            self._episode = episode
            self._in_force = self._ceiling = max(1, self._in_force * _CUT_NUMERATOR // _CUT_DENOMINATOR)
        return self.in_flight < self._in_force

    @property
    def throttled_places(self) -> int | None:
        """How many may be inside while throttled; None if throttling does not limit them."""
        return self._in_force if self.adaptive else self.throttled_limit

    @property
    def regrowing(self) -> bool:
        """Has a cut not been made good yet?"""
        return self._ceiling is not None

    def fits_regrowing(self, now: int, ended_at: int) -> bool:
        """Is there a place while what was cut grows back, from the end of the throttling on?"""
        assert self.limit is not None
        assert self._ceiling is not None
        missing = self.limit - self._ceiling
        if now - ended_at >= self._regrow:
            self._in_force, self._ceiling = self.limit, None
        else:
            self._in_force = self._ceiling + missing * (now - ended_at) // self._regrow
        return self.in_flight < self._in_force

    def grows_at(self, ended_at: int) -> int | None:
        """When will growing back alone make room for one more? None: it will not."""
        if self._ceiling is None or self.limit is None or self.in_flight >= self.limit:
            return None
        missing = self.in_flight + 1 - self._ceiling
        return ended_at + -(-missing * self._regrow // (self.limit - self._ceiling))
