"""Pure. How far a total that many share was cut, and how it comes back: one curve for all of them.

Rules of this room: a level is a value that every member can reach by merging what it hears, in any order and
however often. What it amounts to follows from the level alone, so those who agree on it agree on the total.
A signal counts once, a reduction never raises, and only success makes anything grow.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ..arguments import SECOND

# Whatever is larger was not written by us.
_LARGEST = 1 << 62
_LONG_AGO = -(1 << 62)

# Two cuts are never closer than this: the first must have reached everybody.
_GUARD = SECOND


class Level(NamedTuple):
    """What is left of `base`: cut number `epoch` cut it to `floor`, and it has grown for so long since.

    `goal` is what was refused. Whatever two members heard, in whatever order, `merged` is one for both.
    """

    epoch: int
    base: int
    floor: int
    goal: int
    grown: int  # nanoseconds of growing, not of waiting


def merged(one: Level | None, other: Level) -> Level:
    """Later cuts win. Of one cut, the lowest figure and the longest growth anybody has seen."""
    if one is None or other.epoch > one.epoch:
        return other
    if other.epoch < one.epoch:
        return one
    lower = min(one, other, key=_depth)
    return lower._replace(grown=max(one.grown, other.grown))


def _depth(level: Level) -> tuple[Fraction, Fraction, int]:
    return Fraction(level.floor, level.base), Fraction(level.goal, level.base), level.base


def read_level(given: object) -> Level:
    """What somebody wrote. ValueError: no cut leaves this."""
    numbers = given if isinstance(given, list) and len(given) == len(Level._fields) else []
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _LARGEST:
            raise ValueError(f"{number!r} is not a number from 0 to {_LARGEST}")
    if not numbers:
        raise ValueError("a level is five numbers")
    level = Level(*numbers)
    if level.epoch < 1 or not 1 <= level.floor <= level.goal <= level.base:
        raise ValueError("no cut leaves this")
    return level


class Stepwise:
    """Cut by a factor; every `interval` of growing, more by another."""

    smooth = False

    def __init__(
        self, factor: tuple[int, int], growth: tuple[int, int], interval: int, *, beyond: bool
    ) -> None:
        self._factor = factor
        self._growth = growth
        self.interval = interval
        self.cool_down = interval
        self._beyond = beyond  # the last step may lead above what it was

    def cut(self, total: int, level: Level | None, base: int) -> Level:
        """One cut further, from this total."""
        total = min(total, base)
        return Level(1 if level is None else level.epoch + 1, base, _cut(total, self._factor), total, 0)

    def total(self, level: Level) -> int:
        numerator, denominator = self._growth
        amount, steps = level.floor, level.grown // self.interval
        while steps and amount < level.base:
            amount = max(amount + 1, amount * numerator // denominator)
            steps -= 1
        return amount if self._beyond else min(amount, level.base)


class Cubic:
    """Cut by a factor; then quickly most of the way back, slowly past what was refused, and quickly again.

    What is refused again after it has grown for a while is known well enough: then a small cut will do. If
    that was too little, the next one is larger.
    """

    smooth = True
    interval = SECOND
    cool_down = 5 * SECOND

    # How long the way back to what was refused takes, and after how long of it a cut may be small.
    _regrow = 40 * SECOND
    _settled = 2 * SECOND
    _small = (9, 10)
    _larger = (7, 10)

    def __init__(self, factor: tuple[int, int], *, beyond: bool) -> None:
        self._factor = factor
        self._beyond = beyond

    def cut(self, total: int, level: Level | None, base: int) -> Level:
        """One cut further, from this total."""
        total = min(total, base)
        factor = Fraction(*self._factor)
        if level is not None and level.base == base:
            if level.grown >= self._settled:
                factor = max(factor, Fraction(*self._small))
            elif 5 * level.floor > 4 * level.goal:  # the last one was small
                factor = max(factor, Fraction(*self._larger))
        return Level(
            1 if level is None else level.epoch + 1, base, _cut(total, factor.as_integer_ratio()), total, 0
        )

    def total(self, level: Level) -> int:
        part = (level.grown - self._regrow) ** 3  # of _regrow ** 3: from minus one, through zero at the goal
        depth = max(1, level.goal - level.floor)
        if part > 0:  # beyond what was refused
            depth = max(depth, level.base * 3 // 10)
        total = max(level.floor, level.goal + depth * part // self._regrow**3)
        return total if self._beyond and total < 2 * level.base else min(total, level.base)


def _cut(amount: int, factor: tuple[int, int]) -> int:
    return max(1, amount * factor[0] // factor[1])


class Total:
    """What there is for all together, as one member knows it, and whether there is reason to have more."""

    __slots__ = ("_before", "_curve", "_cut_at", "_granted", "_grown_at", "_well", "base", "level")

    def __init__(self, base: int, curve: Cubic | Stepwise, now: int) -> None:
        self.base = base
        self.level: Level | None = None
        self._curve = curve
        self._cut_at = _LONG_AGO
        self._grown_at = now
        self._granted = self._well = 0  # calls, and those that ended well, since the last look
        self._before = (0, 0, 0)  # the same at that look: granted, well, and over how long

    @property
    def amount(self) -> int:
        if self.level is None:
            return self.base
        total = self._curve.total(self.level)
        # Others may have been configured otherwise: what counts is the proportion.
        return total if self.level.base == self.base else max(1, total * self.base // self.level.base)

    @property
    def reduced(self) -> bool:
        return self.amount < self.base

    # -- less

    def same_episode(self, sent_at: int | None, now: int) -> bool:
        """Was this refusal caused by what the last cut has put right?"""
        if sent_at is None:
            return now - self._cut_at < self._curve.cool_down
        return sent_at <= self._cut_at or now - self._cut_at < _GUARD

    def cut(self, now: int) -> None:
        self.level = self._curve.cut(self.amount, self.level, self.base)
        self._begin_episode(now)

    def cut_to(self, amount: int, now: int) -> None:
        """Somebody who knows of no levels says how much there is: less than there was."""
        epoch = 1 if self.level is None else self.level.epoch + 1
        self.level = Level(epoch, self.base, amount, min(self.amount, self.base), 0)
        self._begin_episode(now)

    def hear(self, level: Level, now: int) -> bool:
        """What others know. True: we have less by that."""
        before, self.level = self.amount, merged(self.level, level)
        less = self.amount < before
        if less:
            self._begin_episode(now)
        return less

    def would_raise(self, level: Level) -> bool:
        """Is this a later cut that leaves more than we have? Then we have missed something."""
        later = self.level is None or level.epoch > self.level.epoch
        return later and self._curve.total(level) * self.base > self.amount * level.base

    def hear_cut(self, level: Level, now: int) -> None:
        """Of a reduction, which never raises: it says nothing about how much has grown since."""
        if self.level is not None and self.level.epoch == level.epoch:
            level = level._replace(grown=self.level.grown)
        self.hear(level, now)

    def _begin_episode(self, now: int) -> None:
        self._cut_at = self._grown_at = now
        self._granted = self._well = 0
        self._before = (0, 0, 0)

    def began_after(self, at: int) -> bool:
        """Was the last cut later than that?"""
        return at <= self._cut_at

    # -- more

    def count(self, granted: int, well: int) -> None:
        """So many calls were let in, and so many ended well."""
        self._granted += granted
        self._well += well

    def hold(self, now: int) -> None:
        """Nothing grows now, e.g. because nobody may go."""
        self._grown_at = now

    def looks_at(self, beat: int) -> int:
        """When it is worth looking again whether there is reason to grow. Reports come once a `beat`."""
        curve = self._curve
        return self._grown_at + (max(curve.interval, beat) if curve.smooth else curve.interval)

    def grow(self, per_ns: int, beat: int, now: int) -> None:
        """By whoever leads: as long as calls end well, more comes back. The base is for so long a time."""
        level, since = self.level, now - self._grown_at
        if level is None or not self.reduced:
            self._grown_at = now
            return
        if now < self.looks_at(beat):
            return
        granted, well, span = self._granted + self._before[0], self._well + self._before[1], since
        curve = self._curve
        if not curve.smooth:
            if not well:
                return  # the step is taken as soon as something has ended well
            self.level = level._replace(grown=level.grown + curve.interval)
        else:
            # Members speak once a beat, and not all in the same: what counts is this look and the last.
            span += self._before[2]
            if well and 2 * granted * per_ns >= self.amount * span:  # who uses less learns nothing
                self.level = level._replace(grown=level.grown + since)
        self._before = (self._granted, self._well, since) if curve.smooth else (0, 0, 0)
        self._granted = self._well = 0
        self._grown_at = now
