"""Pure. What the far side says that it has left, and what follows for a rate of ours.

A bucket says when it will be full, and has units for us long before; a fixed window has none before its
reset. Which of the two it is shows in how the reset moves while calls go.
"""

from __future__ import annotations

from math import ceil

from ..arguments import SECOND
from ..gate.bucket import RateRule
from ..hints import AnyRate, Literal
from ..limits import Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from ..responses.scopes import Scope

    # What the far side keeps count of: name, limit, remaining, nanoseconds until its reset, and the period of
    # the limit in nanoseconds.
    Figures: TypeAlias = tuple[str, int | None, int | None, int | None, int | None]

MINUTE = 60 * SECOND
_NAMED = {"second": SECOND, "hour": 3600 * SECOND, "day": 86_400 * SECOND, "month": 30 * 86_400 * SECOND}
_USUAL = (SECOND, MINUTE, 3600 * SECOND, 86_400 * SECOND)


def figures_of(scopes: Sequence[Scope]) -> list[Figures]:
    """The scopes in whole numbers. A share of a quota counts only when none of it is left."""
    figures: list[Figures] = []
    for name, limit, remaining, reset, period in scopes:
        most = None if limit is None else int(limit)
        if name.startswith("unified"):
            if remaining != 0:
                continue
            most = None
        figures.append(
            (
                name,
                most,
                None if remaining is None else ceil(remaining),
                None if reset is None else round(reset * SECOND),
                None if period is None else round(period * SECOND),
            )
        )
    return figures


def unit_of(name: str) -> str:
    """What a scope counts, by its name."""
    for unit in ("input_tokens", "output_tokens"):
        if name.startswith(unit):
            return unit
    return "tokens" if "token" in name else "requests"


class StatedScope:
    """One budget of the far side, as its responses describe it."""

    __slots__ = (
        "_before",
        "_ends_after",
        "_found",
        "_hint",
        "_named",
        "_risen",
        "ends_at",
        "form",
        "limit",
        "period",
        "unit",
    )

    def __init__(self, name: str) -> None:
        self.unit = unit_of(name)
        self.form: Literal["bucket", "window"] = "window"
        self.limit: int | None = None
        self.period = MINUTE  # over which time the limit is meant
        self._named = _NAMED.get(name.rpartition("_")[2])  # what the name says about it
        self._found: int | None = None  # what the figures have shown it to be
        self._hint: tuple[int, int] | None = None  # what it would be, and how much was used then
        self._risen: tuple[int, int, int] | None = None  # limit, what remained, and when that was asked
        # The window ends between these moments.
        self._ends_after = self.ends_at = 0
        # An earlier response: when its call was sent, when it came, what remained, and the reset.
        self._before: tuple[int, int, int, int] | None = None

    @property
    def found(self) -> int | None:
        """The period that the figures have shown, here or in another process."""
        return self._found

    @found.setter
    def found(self, period: int) -> None:
        self._found = period

    def find_period(
        self,
        limit: int | None,
        remaining: int | None,
        reset: int | None,
        sent: int,
        configured: tuple[Rate, ...] | None,
        stated: int | None = None,
    ) -> int:
        """Over which time the limit is meant. A minute, unless it is stated, or the name or figures tell."""
        if not limit:
            return self.period
        if stated:
            self.period = self._found = stated  # also for responses that state the limit alone
            return stated
        if remaining is not None and reset == SECOND:
            self._notice_seconds(limit, remaining, sent)
        else:  # finer figures tell the period, longer ones are no seconds
            self._risen = None
        period = self._named
        if period is None and configured:
            for rate in configured:
                if rate.amount == limit and rate.unit == self.unit:
                    period = rate.per_ns  # it states what was configured
                    break
        if period is None:
            # Whole seconds are rounded, perhaps.
            if reset and remaining is not None and (reset % SECOND or reset >= 10 * SECOND):
                self._notice_hint(limit, remaining, reset)
            period = self._found or _first_usual(reset or 0)
        self.period = period
        return period

    def _notice_seconds(self, limit: int, remaining: int, sent: int) -> None:
        """More came back than a limit for a minute gives back: the limit is one for a second."""
        before, self._risen = self._risen, (limit, remaining, sent)
        if before is None or before[0] != limit:
            return
        if 2 * (remaining - before[1]) > limit and sent - before[2] < MINUTE // 4:
            self._found = SECOND

    def _notice_hint(self, limit: int, remaining: int, reset: int) -> None:
        """A bucket is full again after as much of its period as is missing of its limit."""
        used = limit - remaining
        if not 0 < used <= limit:
            return
        implied = reset * limit // used
        for period in _USUAL:
            # Nearly empty, a bucket that holds less than its limit looks as if the limit were a second's.
            if period < MINUTE and 2 * used > limit:
                continue
            if abs(implied - period) <= period // 10:
                hint = self._hint
                if hint is not None and hint[0] == period and hint[1] != used:
                    self._found = period
                self._hint = (period, used)
                return

    def hear(self, limit: int | None, remaining: int, reset: int | None, sent: int, now: int) -> None:
        """A response to a call sent then states these figures."""
        self.limit, period = limit, self.period
        if reset is not None:
            # The far side measured the time to its reset after the call was sent and before it was answered.
            after, at = sent + reset, now + reset
            if after > self.ends_at or at < self._ends_after:  # that is another window
                self._ends_after, self.ends_at = after, at
            else:
                self._ends_after, self.ends_at = max(self._ends_after, after), min(self.ends_at, at)
        if not limit or reset is None:
            self.form = "bucket" if limit else "window"
            return
        resolution = SECOND if reset % SECOND == 0 else SECOND // 100
        if self._before is None:
            full = (limit - remaining) * period // limit
            self.form = "bucket" if abs(reset - full) <= max(full // 10, resolution) else "window"
            self._before = (sent, now, remaining, reset)
            return
        sent_then, now_then, remaining_then, reset_then = self._before
        moved = reset - reset_then
        # The reset of a bucket follows what is missing; that of a window only the time.
        as_bucket = (remaining_then - remaining) * period // limit
        soonest, latest = sent - sent_then, now - now_then
        if soonest > latest:
            soonest, latest = latest, soonest
        off_bucket = abs(moved - as_bucket)
        off_window = max(-latest - moved, moved + soonest, 0)
        if moved > resolution and remaining > remaining_then:
            off_bucket, off_window = max(off_bucket, 4 * resolution), 0  # a new window has begun
        if abs(off_bucket - off_window) > 2 * resolution:
            self.form = "bucket" if off_bucket < off_window else "window"
            self._before = (sent, now, remaining, reset)

    def wait(self, reset: int) -> int:
        """Nothing remains: how long until the next unit."""
        if self.form == "bucket" and self.limit:
            return min(reset, -(-self.period // self.limit))
        return reset

    def bounds(self, remaining: int, rule: AnyRate, sent: int, now: int) -> tuple[int, int, bool]:
        """At least and at most how many units the far side still has now, and whether that is none for sure.

        By a response to a call sent then, which states what remained.
        """
        if not isinstance(rule, RateRule):
            return 0, remaining, remaining == 0
        least, most = rule.spent_since(sent)
        if self.form == "window" or not self.limit:
            return remaining - most, remaining - most, remaining <= least
        refilled = -(-(now - sent) * self.limit // self.period)
        has = min(remaining + refilled, max(self.limit, remaining)) - least
        return remaining - most, has, has <= 0


def _first_usual(reset: int) -> int:
    """The shortest of the usual periods, from a minute on, that a reset can belong to."""
    for period in _USUAL[1:]:
        if reset <= period:
            return period
    return _USUAL[-1]


def fallen(before: Sequence[Rate], after: Sequence[Rate]) -> bool:
    """Whether a rate is lower than before by a tenth or more, and not only stated a little differently."""
    known = {rate.unit: rate for rate in before}
    return any(
        10 * rate.amount * known[rate.unit].per_ns <= 9 * known[rate.unit].amount * rate.per_ns
        for rate in after
        if rate.unit in known
    )
