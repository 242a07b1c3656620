"""Pure. What the limits are, found out from what responses say.

What was configured is never exceeded. A limit that the far side states is taken at its
word; where it states none, one is found by trying: more and more until it refuses, then one cut for each
episode of refusals, and back along a cubic. Only success makes anything grow.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..limits import Rate, rate_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    # What the far side keeps count of: name, limit, remaining, and nanoseconds until its reset.
    Scope: TypeAlias = tuple[str, int | None, int | None, int | None]

_MINUTE = 60 * SECOND
_PERIODS = {"second": SECOND, "hour": 3600 * SECOND, "day": 86_400 * SECOND, "month": 30 * 86_400 * SECOND}
_USUAL = (SECOND, _MINUTE, 3600 * SECOND, 86_400 * SECOND)

# Where nothing is known, calls a minute to start with, and the most that is ever tried.
_START = 300
_MOST = 6_000_000
# All of what was configured, in parts.
_ALL = 1_000_000
# What a cut leaves, and how long the way back to where it was takes. Until a limit has been found, or
# refused again so soon, the rate was far off: doubling goes up to twice too far.
_CUT = (7, 10)
_STEEP_CUT = (1, 2)
_SOON = 10 * SECOND
_REGROW = 60 * SECOND
# Fast convergence: a limit lower than the last time was probably lowered, so aim below it.
_AIM_BELOW = (85, 100)
# While trying, how often more is tried.
_STEP = SECOND


class Ramp:
    """A rate found by trying, from `start` up to `most`: calls a minute, or parts of what was configured."""

    __slots__ = ("_cut_at", "_floor", "_goal", "_grows_from", "_looked_at", "_most", "_successes", "rate")

    def __init__(self, now: int, start: int = _START, most: int = _MOST) -> None:
        self.rate = start
        self._most = most
        self._goal: int | None = None  # what was refused last; None until then
        self._floor = 0  # what the last cut left
        self._cut_at = now
        self._grows_from = now
        self._looked_at = now
        self._successes = 0  # since then

    def congested(self, sent_at: int, now: int, until: int) -> bool:
        """A call sent then was told to slow down. True: that cut the rate, as one call of an episode does."""
        if self._goal is not None and sent_at <= self._cut_at:
            return False
        lower = self._goal is not None and self.rate < self._goal
        far_off = self._goal is None or now - self._grows_from < _SOON
        part, whole = _STEEP_CUT if far_off else _CUT
        self._goal = max(1, self.rate * _AIM_BELOW[0] // _AIM_BELOW[1] if lower else self.rate)
        self.rate = self._floor = max(1, self.rate * part // whole)
        self._cut_at = self._looked_at = now
        self._grows_from = max(now, until)
        self._successes = 0
        return True

    def succeeded(self, now: int, per_minute: int) -> bool:
        """A call went well while `per_minute` calls a minute went. True: the learned rate grew by it."""
        self._successes += 1
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
        part = (span - _REGROW) ** 3  # of _REGROW ** 3: from minus one, through zero at the goal
        depth = max(1, self._goal - self._floor)
        if part > 0:  # beyond what was refused: by as much as a usual cut would have left, at least
            depth = max(depth, self._goal * (_CUT[1] - _CUT[0]) // _CUT[1])
        return max(self.rate, self._goal + depth * part // _REGROW**3)


class Learner:
    """The rates to go by. `configured` of None: whatever they turn out to be."""

    __slots__ = ("_configured", "_heard_at", "_hints", "_periods", "_ramp", "_refused", "_told")

    def __init__(self, configured: tuple[Rate, ...] | None, now: int) -> None:
        self._configured = configured
        self._ramp = Ramp(now) if configured is None else None
        self._refused: tuple[int, int] | None = None  # the last episode: when it began, and ended
        self._told: dict[str, Rate] = {}  # by name of the scope
        self._periods: dict[str, int] = {}  # those that were found out
        self._hints: dict[str, tuple[int, int]] = {}  # what would be one, and how much was used then
        self._heard_at: int | None = None  # when the call was sent that told the newest

    def configure(self, rates: tuple[Rate, ...]) -> None:
        """Other rates were set by hand."""
        self._configured = rates
        self._ramp = self._refused = None

    @property
    def has_learned(self) -> bool:
        """Whether limits were learned that a new learner would not know."""
        return self._configured is None or bool(self._told)

    @property
    def automatic(self) -> bool:
        return self._configured is None

    def rates(self) -> tuple[Rate, ...]:
        """What to go by now."""
        told: dict[str, Rate] = {}  # by unit: the slowest
        for name, rate in self._told.items():
            if rate.unit == "tokens" and name == "tokens" and "input_tokens" in self._told:
                continue  # there, it only repeats the tighter of the two
            known = told.get(rate.unit)
            if known is None or _slower(rate, known):
                told[rate.unit] = rate
        if self._configured is not None:
            return tuple(
                _at_most(rate, told[rate.unit]) if rate.unit in told else self._reduced(rate)
                for rate in self._configured
            )
        if told:
            return tuple(told.values())
        assert self._ramp is not None
        return (_per_minute(self._ramp.rate),)

    # -- what responses say

    def heard(self, scopes: Iterable[Scope], sent_at: int) -> bool:
        """Learn limits from the scopes of a response. False: a newer one has told already."""
        if self._heard_at is not None and sent_at < self._heard_at:
            return False
        self._heard_at = sent_at
        for name, limit, remaining, reset in scopes:
            if limit is None or limit < 1:
                continue
            period = self._period(name, limit, remaining, reset)
            if period <= _MINUTE:  # a day's worth is not given out evenly
                self._told[name] = Rate(limit, period / SECOND, unit=unit_of(name))
        return True

    def pause(self, name: str, limit: int | None, reset: int) -> int:
        """Nothing remains: how long until the next one goes.

        A bucket says when it will be full, and has one for us long before; a window says when it ends.
        """
        if limit:
            for period in _USUAL:
                if abs(reset - period) <= period // 10 and self._periods.get(name) == period:
                    return min(reset, -(-period // limit))
        return reset

    def congested(self, sent_at: int, now: int, until: int) -> bool:
        """A call was told to slow down. True: the rates are others now.

        What was configured is only doubted when it is refused again right after a pause.
        """
        if self._told:
            return False
        if self._ramp is None and self._configured:
            if self._refused is not None and sent_at <= self._refused[0]:
                return False
            again = self._refused is not None and now - self._refused[1] < _SOON
            self._refused = (now, max(now, until))
            if not again:
                return False
            self._ramp = Ramp(now, _ALL, _ALL)
        return self._ramp is not None and self._ramp.congested(sent_at, now, until)

    def succeeded(self, now: int) -> bool:
        """A call went well. True: the rates are others now."""
        ramp = self._ramp
        if ramp is None or self._told:
            return False
        grew = ramp.succeeded(now, self._per_minute())
        if grew and self._configured is not None and ramp.rate == _ALL:
            self._ramp = None  # back to what was configured
        return grew

    def _per_minute(self) -> int:
        """How many requests a minute are possible at best; 0 if no rate counts them."""
        counted = [rate for rate in self.rates() if rate.unit == "requests"]
        return min((rate.amount * _MINUTE // rate.per_ns for rate in counted), default=0)

    def _reduced(self, rate: Rate) -> Rate:
        """What was configured, or the part of it that is not refused."""
        if self._ramp is None:
            return rate
        return rate_of(rate, max(1, rate.amount * self._ramp.rate // _ALL))

    def _period(self, name: str, limit: int, remaining: int | None, reset: int | None) -> int:
        """Over which time the limit is meant. A minute, unless the name or the figures say otherwise."""
        suffix = name.rpartition("_")[2]
        if suffix in _PERIODS:
            return _PERIODS[suffix]
        coarse = reset is not None and reset % SECOND == 0 and reset < 10 * SECOND  # rounded, perhaps
        if reset and not coarse and remaining is not None and 0 <= remaining < limit:
            # A bucket is full again after as much of its period as is missing of its limit.
            used = limit - remaining
            implied = reset * limit // used
            for period in _USUAL:
                # Nearly empty, a bucket that holds less than its limit looks as if the limit were a second's.
                if period < _MINUTE and 2 * used > limit:
                    continue
                if abs(implied - period) <= period // 10:
                    hint = self._hints.get(name)
                    if hint is not None and hint[0] == period and hint[1] != used:
                        self._periods[name] = period
                    self._hints[name] = (period, used)
                    break
        known = self._periods.get(name)
        if known is not None:
            return known
        return next((period for period in _USUAL[1:] if (reset or 0) <= period), _USUAL[-1])


def unit_of(name: str) -> str:
    """What a scope counts, by its name."""
    for unit in ("input_tokens", "output_tokens"):
        if name.startswith(unit):
            return unit
    return "tokens" if "token" in name else "requests"


def _per_minute(amount: int) -> Rate:
    # A tenth of a second at once: where the limit is not known, its burst is not known either.
    return Rate(amount, 60, burst=max(1, amount // 600))


def _slower(one: Rate, other: Rate) -> bool:
    return one.amount * other.per_ns < other.amount * one.per_ns


def _at_most(configured: Rate, told: Rate) -> Rate:
    """What was configured, or less if the far side states less."""
    if not _slower(told, configured):
        return configured
    if configured.strict:
        return Rate(told.amount, told.per, unit=told.unit, strict=True)
    return Rate(told.amount, told.per, unit=told.unit, burst=min(told.amount, configured.burst))
