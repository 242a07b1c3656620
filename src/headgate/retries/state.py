"""Pure. What happens after a failed attempt: another one after a delay, or the end.

The far side is never asked earlier than it said, and a limit only stops further attempts: it never takes
back what a call returned.
"""

from __future__ import annotations

from ..arguments import SECOND, within_bounds
from ..events import Retrying
from ..hints import Callable, later
from ..light import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy import RetryPolicy
else:
    RetryPolicy = later("headgate.retries.policy", "RetryPolicy")


class Failure(NamedTuple):
    """An attempt that failed with `error`.

    `again` says whether the error is one to retry, `may_have_run` whether the far side may have carried out
    the attempt although it failed, and `retry_after` how many nanoseconds the far side asked to wait. If a
    gate will hold back the next attempt (`held`), the Wait has no delay of its own.
    """

    error: Exception
    again: bool = True
    may_have_run: bool = False
    retry_after: int | None = None
    held: bool = False


class Wait(NamedTuple):
    """The call is tried again after `delay` nanoseconds. `event` says so to logs and observers.

    If it is `held`, it then waits at a gate until a backoff window ends.
    """

    delay: int
    event: Retrying
    held: bool = False


class Stop(NamedTuple):
    """The call is not tried again after `error`, which was its attempt number `calls`.

    `why` is empty if the error is not one to retry; otherwise it is the limit that was reached. `delay` is
    the delay that the backoff asked for, or None if the number of retries or the time is used up.
    """

    error: BaseException
    calls: int
    why: str = ""
    delay: int | None = None

    def annotate(self) -> None:
        """Write the reason on the exception as a note, once. An exception may refuse notes."""
        if not self.why:
            return
        note = f"headgate: gave up after {self.calls} {'call' if self.calls == 1 else 'calls'}: {self.why}"
        try:
            if note not in getattr(self.error, "__notes__", ()):
                self.error.add_note(note)
        except Exception:  # noqa: BLE001, S110 - the exception itself matters more than the note
            pass


class RetryState:
    """One call and its retries so far, under a RetryPolicy. Times are nanoseconds.

    >>> from headgate import Backoff
    >>> from headgate.retries.policy import RetryPolicy
    >>> state = RetryState(RetryPolicy(1, backoff=Backoff(2)), "ask", now=0)
    >>> decision = state.decide(Failure(TimeoutError()), now=5, random=0.5)
    >>> decision.delay, decision.event.retry
    (2000000000, 1)
    >>> state.decide(Failure(TimeoutError()), now=2000000009, random=0.5).why
    'no retries are left'
    """

    def __init__(self, policy: RetryPolicy, key: str, now: int) -> None:
        self._policy = policy
        self._deadline = None if policy.deadline is None else now + policy.deadline
        self._progress_at = now
        self._last_delay: int | None = None
        self.key = key
        self.retries = 0

    def progress(self, now: int) -> None:
        """Count `progress_timeout` from now on: the call is getting further."""
        self._progress_at = now

    def left(self, now: int) -> int | None:
        """Nanoseconds until the deadline; None if there is none."""
        return None if self._deadline is None else max(0, self._deadline - now)

    def decide(
        self, failure: Failure, now: int, random: float, spend: Callable[[], bool] | None = None
    ) -> Wait | Stop:
        """Decide what happens after a failed attempt. A Wait counts as a retry at once.

        `random` is a draw from 0 to 1. `spend` takes a retry out of a retry budget; it is called last, so
        that no retry is lost.
        """
        delay = self._delay(random, failure.retry_after)
        limit = self._limit(now, delay)
        if not failure.again:
            why = ""
        elif failure.may_have_run and not self._policy.idempotent:
            why = "it may have been carried out, and doing it twice is not allowed"
        elif limit:
            why = limit
        elif spend is not None and not spend():
            why = "the retry budget is used up"
        else:
            self._last_delay = delay
            self.retries += 1
            delay = 0 if failure.held else delay
            event = Retrying(
                key=self.key,
                at=now / SECOND,
                retry=self.retries,
                max_retries=self._policy.max_retries,
                delay=delay / SECOND,
                error=failure.error,
            )
            return Wait(delay, event, failure.held)
        return Stop(failure.error, self.retries + 1, why, delay=None if limit else delay)

    def _delay(self, random: float, retry_after: int | None) -> int:
        backoff = self._policy.backoff
        delay = backoff.delay_ns(self.retries, random, self._last_delay)
        if retry_after is None:
            return delay
        if backoff.jitter != "none":
            retry_after = spread_retry_after(retry_after, random)
        return max(delay, retry_after)

    def _limit(self, now: int, delay: int) -> str:
        """The limit that forbids an attempt after this delay, in words; empty if none does."""
        most, patience = self._policy.max_retries, self._policy.progress_timeout
        if most is not None and self.retries >= most:
            return "no retries are left" if most else "retries are off"
        if self._deadline is not None and now + delay > self._deadline:
            left = max(0, self._deadline - now) / SECOND
            return f"the next try, in {delay / SECOND:.2f} s, would be after the deadline in {left:.2f} s"
        if patience is not None and self.retries and now + delay - self._progress_at > patience:
            return f"nothing has got any further for {(now - self._progress_at) / SECOND:.2f} s"
        return ""


def spread_retry_after(retry_after: int, random: float) -> int:
    """A little more than `retry_after`, so that callers who were told the same do not return together."""
    longest = min(retry_after // 10 + min(retry_after, SECOND), 30 * SECOND)
    return retry_after + int(longest * within_bounds(random))


class Allowance:
    """Retries as a part of all calls: never more than `ratio` of them, or `burst` if that is more.

    The first `burst` retries are lent. The calls that would have earned them earn nothing, so the
    loan is paid back before anything is saved up. A retry that succeeds costs nothing.
    """

    def __init__(self, ratio: tuple[int, int], burst: int) -> None:
        self._earning, self._cost = ratio
        self._most = burst * self._cost
        self._balance = self._most
        self._lent = self._most

    def earn(self) -> None:
        """Count a call at its first attempt."""
        paid = min(self._lent, self._earning)
        self._lent -= paid
        self._balance = min(self._most, self._balance + self._earning - paid)

    def spend(self) -> bool:
        """Take one retry if there is one."""
        if self._balance < self._cost:
            return False
        self._balance -= self._cost
        return True

    def refund(self) -> None:
        """Give one retry back: it succeeded."""
        self._balance = min(self._most, self._balance + self._cost)

    def available(self) -> int:
        """Retries that could be made right now."""
        return self._balance // self._cost
