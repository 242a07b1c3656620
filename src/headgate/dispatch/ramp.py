"""Pure. A rate that is found by trying: doubled until it is refused, then cut, and back along a cubic."""

from __future__ import annotations

from ..arguments import SECOND
from ..hints import Any

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
# Between the first refusals of two episodes as many calls are accepted as the limit allows in that time. From
# so many calls on it is a measurement, and two that differ by no more than a part in so many are a finding.
_ENOUGH = 20
_AGREE = 16
_AGREE_IN_WINDOWS = 8
# What a cut leaves of the limit of a bucket that was found so. In fixed windows nothing is cut: calls that
# are evenly apart are refused at the end only, and where not all windows were used up too little was found.
_FOUND_CUT = (9, 10)


class Ramp:
    """A rate found by trying, from `start` up to `most`: calls a minute, or parts of what was configured."""

    __slots__ = (
        "_ahead",
        "_cut_at",
        "_far_off",
        "_floor",
        "_goal",
        "_grows_from",
        "_looked_at",
        "_measured",
        "_most",
        "_period",
        "_refused_sent",
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
        self._refused_sent: int | None = None  # when the call was sent that was answered by the last cut
        self._ahead = 0  # how many calls had been sent before it whose success was not known
        self._measured = 0  # calls a minute that were accepted from one cut to the next; 0: not known
        self._period = 0  # of the fixed windows that the limit was found to be counted in

    def saved(self, now: int) -> list[int | None]:
        """What it has found out, with ages in place of times."""
        ages = (now - self._cut_at, now - self._grows_from, now - self._looked_at)
        refused = None if self._refused_sent is None else now - self._refused_sent
        found = (refused, self._ahead, self._measured, self._period)
        return [self.rate, self._most, self._goal, self._floor, *ages, self._went, int(self._far_off), *found]

    @classmethod
    def restored(cls, saved: list[Any], now: int) -> Ramp:
        """What was saved, in another process."""
        rate, most, goal, floor, cut, grows, looked, went, far_off, refused, *found = saved
        ramp = cls(now, rate, most)
        ramp._goal, ramp._floor, ramp._went, ramp._far_off = goal, floor, went, bool(far_off)
        ramp._cut_at, ramp._grows_from, ramp._looked_at = now - cut, now - grows, now - looked
        ramp._refused_sent = None if refused is None else now - refused
        ramp._ahead, ramp._measured, ramp._period = found
        return ramp

    def count(self, successes: int) -> None:
        """So many calls of other processes went well."""
        self._successes += successes
        self._went += successes

    def congested(self, sent_at: int, now: int, until: int, in_flight: int = 0, period: int = 0) -> bool:
        """A call sent then was told to slow down. True: that cut the rate, as one call of an episode does.

        `period` is that of the fixed windows in which the limit is counted, 0 if it is not known to be.
        """
        if self._goal is not None and sent_at <= self._cut_at:
            return False
        found = self._find(sent_at, now, in_flight, period)
        lower = self._goal is not None and self.rate < self._goal
        unknown = self._goal is None and self._most != ALL
        self._far_off = unknown or (self._far_off and self._went < _FEW)
        self._period = period if found else 0
        if found:
            self._goal = min(self.rate, found)
            part, whole = (1, 1) if period else _FOUND_CUT
            self.rate = self._floor = max(1, self._goal * part // whole)
        else:
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

    def _find(self, sent_at: int, now: int, in_flight: int, period: int) -> int:
        """The limit by what was accepted between the last refusals; 0 if that does not tell it."""
        # Calls went evenly at the rate after the one that was refused.
        ahead = in_flight - self.rate * (now - sent_at) // _MINUTE
        accepted, self._ahead = self._went + ahead - self._ahead, ahead
        before, self._refused_sent = self._refused_sent, sent_at
        last, self._measured = self._measured, 0
        if self._most == ALL or before is None or accepted < _ENOUGH:
            return 0
        elapsed = max(1, sent_at - before)
        if period:  # as many windows were used up
            elapsed = max(1, round(elapsed / period)) * period
        self._measured = accepted * _MINUTE // elapsed
        if period:  # those between were perhaps not used up
            return max(self._measured, last) if self._agrees(last, _AGREE_IN_WINDOWS) else 0
        return (self._measured + last) // 2 if self._agrees(last, _AGREE) else 0

    def _agrees(self, last: int, parts: int) -> bool:
        return abs(self._measured - last) * parts <= last

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
        if self._period:
            # A hundredth more, and three times as much with each window that allows it.
            more = self._goal * 3 ** (min(span, 8 * self._period) / self._period) / 100
            return max(self.rate, self._goal + max(1, round(more)))
        if span <= _REGROW:
            depth = max(1, self._goal - self._floor)
            return max(self.rate, self._goal - depth * (_REGROW - span) ** 3 // _REGROW**3)
        beyond = span - _REGROW
        return max(self.rate, self._goal + max(1, self._goal // 4) * beyond**3 // _BEYOND**3)
