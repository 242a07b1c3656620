"""Pure. A rate that is found by trying: doubled until it is refused, then cut, and back along a cubic."""

from __future__ import annotations

from ..arguments import SECOND

_MINUTE = 60 * SECOND

# Where nothing is known, calls a minute to start with, and the most that is ever tried.
START = 600
_MOST = 6_000_000
# All of what was configured, in parts.
ALL = 1_000_000
# What a cut leaves. Until a limit has been found, and after a few calls only, the rate was far off:
# doubling goes up to twice too far. Refused again soon, it was still too high.
_CUT = (85, 100)
_STEEP_CUT = (1, 2)
_FEW = 10
_SOON_CUT = (3, 4)
SOON = 10 * SECOND
# How long the way back to the rate that was refused takes, and beyond it the way to a quarter more: the
# limit may have been raised.
_REGROW = 60 * SECOND
_BEYOND = 30 * SECOND
# Fast convergence: a limit lower than the last time was probably lowered, so aim below it.
_AIM_BELOW = (97, 100)
# While trying, how often more is tried.
_STEP = SECOND


class Ramp:
    """A rate found by trying, from `start` up to `most`: calls a minute, or parts of what was configured."""

    __slots__ = (
        "_cut_at",
        "_far_off",
        "_floor",
        "_goal",
        "_grows_from",
        "_looked_at",
        "_most",
        "_successes",
        "_went",
        "rate",
    )

    def __init__(self, now: int, start: int = START, most: int = _MOST) -> None:
        self.rate = start
        self._most = most
        self._goal: int | None = None  # what was refused last; None until then
        self._floor = 0  # what the last cut left
        self._cut_at = now
        self._grows_from = now
        self._looked_at = now
        self._successes = 0  # since then
        self._went = 0  # how many calls have gone well since the last cut
        self._far_off = False  # the last cut was one of a rate that nothing was known about

    def saved(self, now: int) -> list[int | None]:
        """What it has found out, with ages in place of times."""
        ages = (now - self._cut_at, now - self._grows_from, now - self._looked_at)
        return [self.rate, self._most, self._goal, self._floor, *ages, self._went, int(self._far_off)]

    @classmethod
    def restored(cls, saved: list[int], now: int) -> Ramp:
        """What was saved, in another process."""
        rate, most, goal, floor, cut, grows, looked, went, far_off = saved
        ramp = cls(now, rate, most)
        ramp._goal, ramp._floor, ramp._went, ramp._far_off = goal, floor, went, bool(far_off)
        ramp._cut_at, ramp._grows_from, ramp._looked_at = now - cut, now - grows, now - looked
        return ramp

    def count(self, successes: int) -> None:
        """So many calls of other processes went well."""
        self._successes += successes
        self._went += successes

    def congested(self, sent_at: int, now: int, until: int) -> bool:
        """A call sent then was told to slow down. True: that cut the rate, as one call of an episode does."""
        if self._goal is not None and sent_at <= self._cut_at:
            return False
        lower = self._goal is not None and self.rate < self._goal
        self._far_off = self._goal is None or (self._far_off and self._went < _FEW)
        if self._far_off:
            part, whole = _STEEP_CUT
        else:
            part, whole = _SOON_CUT if now - self._grows_from < SOON else _CUT
        self._goal = max(1, self.rate * _AIM_BELOW[0] // _AIM_BELOW[1] if lower else self.rate)
        self.rate = self._floor = max(1, self.rate * part // whole)
        self._cut_at = self._looked_at = now
        self._grows_from = max(now, until)
        self._successes = self._went = 0
        return True

    def succeeded(self, now: int, per_minute: int) -> bool:
        """A call went well while `per_minute` calls a minute went. True: the learned rate grew by it."""
        self._successes += 1
        self._went += 1
        elapsed = now - self._looked_at
        if elapsed < _STEP:
            return False
        # A process that uses less than half learns nothing about the rest.
        used = 2 * self._successes * _MINUTE >= per_minute * elapsed
        self._looked_at = now
        self._successes = 0
        if not used:
            self._grows_from += elapsed  # the way back waits as well
            return False
        before = self.rate
        self.rate = min(self._most, self._grown(now))
        return self.rate != before

    def _grown(self, now: int) -> int:
        if self._goal is None:
            return 2 * self.rate
        span = now - self._grows_from
        if span <= 0:
            return self.rate
        if span <= _REGROW:
            depth = max(1, self._goal - self._floor)
            return max(self.rate, self._goal - depth * (_REGROW - span) ** 3 // _REGROW**3)
        return max(self.rate, self._goal + max(1, self._goal // 4) * (span - _REGROW) ** 3 // _BEYOND**3)
