"""Pure. Again, when, or stop: the rules of trying once more.

Rules of this room: the server is never asked earlier than it said; a limit only ever stops another
try, it never takes back what a call returned.
"""

from __future__ import annotations

from ..arguments import SECOND, within_bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..backoff import Backoff


class Attempts:
    """One call and its retries."""

    __slots__ = (
        "_backoff",
        "_deadline",
        "_max_retries",
        "_progress_at",
        "_progress_timeout",
        "_wait",
        "retries",
    )

    def __init__(
        self,
        backoff: Backoff,
        max_retries: int | None,
        now: int,
        *,
        deadline: int | None = None,
        progress_timeout: int | None = None,
    ) -> None:
        self._backoff = backoff
        self._max_retries = max_retries
        self._deadline = None if deadline is None else now + deadline
        self._progress_timeout = progress_timeout
        self._progress_at = now
        self._wait: int | None = None  # the last one
        self.retries = 0

    def progress(self, now: int) -> None:
        """The call is getting somewhere."""
        self._progress_at = now

    def left(self, now: int) -> int | None:
        """How long until the deadline; None if there is none."""
        return None if self._deadline is None else max(0, self._deadline - now)

    def again(self, now: int, draw: float, told: int | None) -> int | str:
        """How long to wait before the next try, or why there is none. Changes nothing yet."""
        if self._max_retries is not None and self.retries >= self._max_retries:
            return "no retries are left" if self._max_retries else "retries are off"
        wait = self._backoff.delay_ns(self.retries, draw, self._wait)
        if told is not None:
            wait = max(wait, told if self._backoff.jitter == "none" else after_told(told, draw))
        if self._deadline is not None and now + wait > self._deadline:
            left = max(0, self._deadline - now) / SECOND
            return f"the next try, in {wait / SECOND:.2f} s, would be after the deadline in {left:.2f} s"
        late = self._progress_timeout is not None and now + wait - self._progress_at > self._progress_timeout
        if late and self.retries:
            return f"nothing has got any further for {(now - self._progress_at) / SECOND:.2f} s"
        return wait

    def retry(self, wait: int) -> None:
        """It will be tried again, after so long."""
        self._wait = wait
        self.retries += 1


def after_told(told: int, draw: float) -> int:
    """A little later than the server said, so that not everybody it told comes back together."""
    return told + int(min(told // 10 + min(told, SECOND), 30 * SECOND) * within_bounds(draw))


class Allowance:
    """Retries as a part of all calls: never more than `ratio` of them, or `burst` if that is more.

    The first `burst` retries are lent. The calls that would have earned them earn nothing, so the
    loan is paid back before anything is saved up. A retry that succeeds costs nothing.
    """

    __slots__ = ("_balance", "_cost", "_earning", "_lent", "_most")

    def __init__(self, ratio: tuple[int, int], burst: int) -> None:
        self._earning, self._cost = ratio
        self._most = burst * self._cost
        self._balance = self._most
        self._lent = self._most

    def earn(self) -> None:
        """A call was made, for the first time."""
        earned = self._earning
        if self._lent:
            paid = min(self._lent, earned)
            self._lent -= paid
            earned -= paid
        self._balance = min(self._most, self._balance + earned)

    def spend(self) -> bool:
        """May one be retried?"""
        if self._balance < self._cost:
            return False
        self._balance -= self._cost
        return True

    def refund(self) -> None:
        """A retry helped."""
        self._balance = min(self._most, self._balance + self._cost)

    def available(self) -> int:
        """Retries that could be made right now."""
        return self._balance // self._cost
