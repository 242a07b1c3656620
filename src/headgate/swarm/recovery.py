"""Pure. How far a total that many agents share was cut, and how it comes back: one curve for all of them.

Rules of this room: a level is a value that every member can reach by merging what it hears, in any order and
however often. The total follows from the level alone, so members that agree on it agree on the total. A
signal counts once, a reduction never raises, and only success makes anything grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, NamedTuple

from ..arguments import SECOND
from ..limiters.reduction import cut_by, grow_by
from .rules import NEVER

# Two cuts are never closer than this: the first must have reached all members.
_BETWEEN_CUTS = SECOND

# Of the cubic curve: how long the way back to what was refused takes, and after how much of it the next cut
# may be small.
_REGROW = 40 * SECOND
_SETTLED = 2 * SECOND
_SMALL_CUT = Fraction(9, 10)
_LARGER_CUT = Fraction(7, 10)


class Level(NamedTuple):
    """What is left of `base`: cut number `epoch` cut it to `floor`, and it has grown for `grown` since.

    `goal` is the total that was refused. Two members that heard the same levels, in whatever order, have the
    same by `merged`.
    """

    epoch: int
    base: int
    floor: int
    goal: int
    grown: int  # nanoseconds of growing, not of waiting

    def after(self, grown: int) -> Level:
        """The same cut, after it has grown for that long."""
        return Level(self.epoch, self.base, self.floor, self.goal, grown)


def merged(one: Level | None, other: Level) -> Level:
    """The level of the later cut; for one cut, the lowest total and the longest growth of both."""
    if one is None or other.epoch > one.epoch:
        return other
    if other.epoch < one.epoch:
        return one

    def depth(level: Level) -> tuple[Fraction, Fraction, int]:
        return Fraction(level.floor, level.base), Fraction(level.goal, level.base), level.base

    return min(one, other, key=depth).after(max(one.grown, other.grown))


def _next_level(level: Level | None, base: int, floor: int, goal: int) -> Level:
    return Level(1 if level is None else level.epoch + 1, base, floor, goal, 0)


@dataclass(frozen=True, slots=True)
class Stepwise:
    """Cut by a factor; then grow by another factor every `interval`.

    `beyond` says whether the last step may lead above what was configured.
    """

    factor: tuple[int, int]
    growth: tuple[int, int]
    interval: int
    beyond: bool
    smooth: ClassVar = False

    @property
    def cool_down(self) -> int:
        return self.interval

    def cut(self, total: int, level: Level | None, base: int) -> Level:
        """One cut further, from this total."""
        total = min(total, base)
        return _next_level(level, base, cut_by(total, self.factor), total)

    def total(self, level: Level) -> int:
        amount = grow_by(level.floor, self.growth, level.grown // self.interval, level.base)
        return amount if self.beyond else min(amount, level.base)


@dataclass(frozen=True, slots=True)
class Cubic:
    """Cut by a factor; then grow quickly most of the way back, slowly past what was refused, quickly again.

    A total that is refused again after it has grown for a while was nearly right: then a small cut will do.
    If that was too small, the next one is larger.
    """

    factor: tuple[int, int]
    beyond: bool
    smooth: ClassVar = True
    interval: ClassVar[int] = SECOND
    cool_down: ClassVar[int] = 5 * SECOND

    def cut(self, total: int, level: Level | None, base: int) -> Level:
        """One cut further, from this total."""
        total = min(total, base)
        factor = Fraction(*self.factor)
        if level is not None and level.base == base:
            if level.grown >= _SETTLED:
                factor = max(factor, _SMALL_CUT)
            elif 5 * level.floor > 4 * level.goal:  # the last one was small
                factor = max(factor, _LARGER_CUT)
        return _next_level(level, base, cut_by(total, factor.as_integer_ratio()), total)

    def total(self, level: Level) -> int:
        # Divided by _REGROW ** 3 this goes from -1 at the cut through 0 at the goal.
        progress = (level.grown - _REGROW) ** 3
        depth = max(1, level.goal - level.floor)
        if progress > 0:  # beyond what was refused
            depth = max(depth, level.base * 3 // 10)
        total = max(level.floor, level.goal + depth * progress // _REGROW**3)
        return total if self.beyond and total < 2 * level.base else min(total, level.base)


class Total:
    """The total for all members together, as one of them knows it, and when it grows."""

    def __init__(self, base: int, curve: Cubic | Stepwise, now: int) -> None:
        self.base = base
        self.level: Level | None = None
        self._curve = curve
        self.cut_at = NEVER  # when the last cut was
        self._grown_at = now
        self._admitted = self._succeeded = 0  # calls since the last look
        self._before = (0, 0, 0)  # calls admitted and succeeded before that look, and over how long
        self._known_since = now  # when this cut became known here, and how far it had grown by then
        self._known_grown = 0

    @property
    def amount(self) -> int:
        return self.base if self.level is None else self._amount_of(self.level)

    def _amount_of(self, level: Level) -> int:
        total = self._curve.total(level)
        # Another member may have been configured with another base: the proportion counts.
        return total if level.base == self.base else max(1, total * self.base // level.base)

    @property
    def epoch(self) -> int:
        """How often the total was cut."""
        return 0 if self.level is None else self.level.epoch

    @property
    def reduced(self) -> bool:
        return self.amount < self.base

    # -- less

    def same_episode(self, sent_at: int | None, now: int) -> bool:
        """Whether the call that was refused was sent before the last cut, which answers the refusal."""
        if sent_at is None:
            return now - self.cut_at < self._curve.cool_down
        return sent_at <= self.cut_at or now - self.cut_at < _BETWEEN_CUTS

    def cut(self, now: int) -> None:
        self._take_over(self._curve.cut(self.amount, self.level, self.base), now)
        self._begin_episode(now)

    def cut_to(self, amount: int, now: int) -> None:
        """Cut to a total that an agent without levels announced: less than there was."""
        self._take_over(_next_level(self.level, self.base, amount, min(self.amount, self.base)), now)
        self._begin_episode(now)

    def hear(self, level: Level, now: int) -> bool:
        """Merge the level of another member. True: the total is less now.

        What a member says may lower the total at once. It raises the total only as fast as the curve of the
        last known cut rises by itself, and beyond what the leader says by a step of it: no message can end a
        reduction.
        """
        before, heard = self.amount, merged(self.level, level)
        if self._amount_of(heard) <= before:
            self._take_over(heard, now)
        elif self.level is not None:
            own = self.level.after(max(self.level.grown, self._known_grown + max(0, now - self._known_since)))
            if heard.epoch == own.epoch:
                self.level = heard.after(min(heard.grown, own.grown))
            elif self._amount_of(heard) <= self._amount_of(own):
                self._take_over(heard, now)
            else:  # this member has missed a cut, or the other does not tell the truth
                self.level = own
        less = self.amount < before
        if less:
            self._begin_episode(now)
        return less

    def hear_leader(self, reports_every: int, now: int) -> None:
        """The leader knows of this cut, and its level was heard: it has not grown further than that.

        Time that passed without success is not made up for by what others say later, but for the last step.
        """
        if self.level is not None:
            step = max(self._curve.interval, reports_every)
            allowed = self._known_grown + max(0, now - self._known_since)
            self._known_since, self._known_grown = now, min(allowed, self.level.grown + step)

    def _take_over(self, level: Level, now: int) -> None:
        if self.level is None or level.epoch != self.level.epoch:
            self._known_since, self._known_grown = now, level.grown
        self.level = level

    def would_raise(self, level: Level) -> bool:
        """Whether this is a later cut that leaves more than there is: then an earlier one was missed."""
        return level.epoch > self.epoch and self._curve.total(level) * self.base > self.amount * level.base

    def hear_cut(self, level: Level, now: int) -> None:
        """Merge the level of an announced reduction, which says nothing about growth since then."""
        if self.level is not None and self.level.epoch == level.epoch:
            level = level.after(self.level.grown)
        self.hear(level, now)

    def _begin_episode(self, now: int) -> None:
        self.cut_at = self._grown_at = now
        self._admitted = self._succeeded = 0
        self._before = (0, 0, 0)

    # -- more

    def count(self, admitted: int, succeeded: int) -> None:
        """Count calls that a member reported."""
        self._admitted += admitted
        self._succeeded += succeeded

    def looks_at(self, reports_every: int) -> int:
        """When to look again whether there is reason to grow."""
        curve = self._curve
        return self._grown_at + (max(curve.interval, reports_every) if curve.smooth else curve.interval)

    def grow(self, per_ns: int, reports_every: int, now: int, *, paused: bool = False) -> None:
        """Grow, while calls succeed and there is no pause. The base is calls per `per_ns`."""
        level, since, curve = self.level, now - self._grown_at, self._curve
        if level is None or paused or not self.reduced:
            self._grown_at = now
            return
        if now < self.looks_at(reports_every):
            return
        if curve.smooth:
            # Members do not report all at the same moment: this look and the last one count together.
            admitted, succeeded = self._admitted + self._before[0], self._succeeded + self._before[1]
            span = since + self._before[2]
            # With less than half in use, success does not show that there is more.
            if succeeded and 2 * admitted * per_ns >= self.amount * span:
                self.level = level.after(level.grown + since)
            self._before = (self._admitted, self._succeeded, since)
        elif self._succeeded:
            self.level = level.after(level.grown + curve.interval)
        else:
            return  # the step is taken as soon as a call has succeeded
        self._admitted = self._succeeded = 0
        self._grown_at = now
