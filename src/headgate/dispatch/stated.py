"""Pure. What the far side says that it has left, and what follows for a rate of ours.

A bucket says when it will be full, and has units for us long before; a fixed window has none before its
reset. Which of the two it is shows in how the reset moves while calls go.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..gate.bucket import RateRule
from ..hints import AnyRate, Literal


class StatedScope:
    """One budget of the far side, as its responses describe it."""

    __slots__ = ("_before", "_ends_after", "ends_at", "form", "limit", "period")

    def __init__(self) -> None:
        self.form: Literal["bucket", "window"] = "window"
        self.limit: int | None = None
        self.period = 60 * SECOND
        # The window ends between these moments.
        self._ends_after = self.ends_at = 0
        # An earlier response: when its call was sent, when it came, what remained, and the reset.
        self._before: tuple[int, int, int, int] | None = None

    def hear(
        self, limit: int | None, remaining: int, reset: int | None, period: int, sent: int, now: int
    ) -> None:
        """A response to a call sent then states these figures."""
        self.limit, self.period = limit, period
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
        soonest, latest = sorted((sent - sent_then, now - now_then))
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
