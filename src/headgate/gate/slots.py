"""Pure. How many may be inside at once, and how many while the API is throttling us.

It says whether there is a place; who takes one and who leaves it is
counted by the rules, in one step with everything else.
"""

from __future__ import annotations

# What a signal leaves of the concurrency in force when it is adaptive. One cut an episode.
_CUT_NUMERATOR, _CUT_DENOMINATOR = 7, 10

# Of fewer places than these, one that is left tells nothing of what is left of many.
_FEW = 4

# All places, where a part of them is told as a whole number.
_ALL = 1_000_000


class ConcurrencyRule:
    """Places inside; and tighter places for those admitted while throttled.

    With `throttled_limit=None` and `adaptive=False` throttling does not concern it. Adaptive
    means: an episode of throttling cuts what was in force to 70 %, at least one place, for
    all callers; once it is over the places grow back evenly over `regrow` nanoseconds.
    """

    __slots__ = (
        "_ceiling",
        "_cut_of",
        "_episode",
        "_part",
        "_regrow",
        "_regrows_from",
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
        self._ceiling = limit or 0  # what that cut left ...
        self._cut_of = limit or 0  # ... of so many places ...
        self._part = _ALL  # ... and, with the cuts before it, of any number of places
        self._regrows_from: int | None = None  # when what was cut begins to grow back

    def fits(self) -> bool:
        """Is there a place, when nothing throttles and nothing is growing back?"""
        return self.limit is None or self.in_flight < self.limit

    def fits_throttled(self) -> bool:
        """Is there a place for one who is admitted while throttled?"""
        if not self.fits():
            return False
        if self.adaptive:
            return self.in_flight < self._left()
        return self.throttled_limit is None or self.throttled_in_flight < self.throttled_limit

    def fits_regrowing(self, now: int) -> bool:
        """Is there a place while what was cut grows back?"""
        return self.in_flight < self.in_force(now)

    def hear(self, episode: int, began_at: int, throttled_until: int, before: int | None = None) -> None:
        """There has been a signal. An episode cuts, once, what was in force when it began.

        `before` is when the throttling by the episode before it ended.
        """
        if episode != self._episode:
            if before is not None:
                self._regrows_from = before
            self._ceiling = max(1, self.in_force(began_at) * _CUT_NUMERATOR // _CUT_DENOMINATOR)
            self._cut_of = self.limit or 0
            part = self._grown(self._part, _ALL, began_at)
            # One place is always left, so the part is at least one of those that there were: while an API is
            # down a process holds few places, for probes, and each probe that fails is an episode.
            least = min(part, _ALL // max(self._cut_of, _FEW))
            self._part = max(least, part * _CUT_NUMERATOR // _CUT_DENOMINATOR)
            self._episode = episode
        self._regrows_from = throttled_until

    def _left(self) -> int:
        """What the cuts leave of the places that there are now.

        Where places are granted by a store, they are others at every grant: more when more callers wait,
        none while the store cannot be asked. What the cuts leave of them follows from the part.
        """
        limit = self.limit or 0
        left = max(1, limit * self._part // _ALL)
        if limit == self._cut_of:
            left = self._ceiling
        elif limit < self._cut_of:  # fewer places do not become more by having been rounded less often
            left = min(left, self._ceiling)
        return min(left, limit)

    def _grown(self, left: int, whole: int, now: int) -> int:
        """What was left of a whole, with what has grown back by now."""
        if self._regrows_from is None:
            return whole
        grown = now - self._regrows_from
        if grown < 0:
            return left
        if grown >= self._regrow:
            return whole
        return left + (whole - left) * grown // self._regrow

    def in_force(self, now: int) -> int:
        """Adaptive: how many places there are, with what has grown back by now."""
        assert self.limit is not None  # there is a concurrency to adapt
        return self._grown(self._left(), self.limit, now)

    def grows_at(self) -> int | None:
        """When will growing back alone make room for one more? None: it will not."""
        if self._regrows_from is None or self.limit is None or self.in_flight >= self.limit:
            return None
        left = self._left()
        missing = self.in_flight + 1 - left
        if missing <= 0:
            return self._regrows_from
        return self._regrows_from + -(-missing * self._regrow // (self.limit - left))

    def throttled_places(self, now: int) -> int | None:
        """How many may be inside while throttled; None if throttling does not limit them."""
        return self.in_force(now) if self.adaptive else self.throttled_limit


class WeightRule:
    """A budget of bytes that calls hold while they run."""

    __slots__ = ("budget", "in_flight", "penalty", "whole")

    def __init__(self, budget: int, penalty: int) -> None:
        self.budget = self.whole = budget  # where it is shared, this process's part and all of it
        self.penalty = penalty  # a byte counts so often when it is admitted while throttled
        self.in_flight = 0

    def fits(self, weight: int) -> bool:
        return self.in_flight + min(weight, self.whole) <= self.budget
