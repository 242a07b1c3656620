"""RetriedCall: one call under a RetryPolicy, from its first attempt to its last.

The decision itself is RetryState's. Here are its effects: the time, the draw, the retry budget, the log, the
observer, and the note on the exception.
"""

from __future__ import annotations

from ..hints import Clock, later
from ..nesting import Inside
from ..telling import tell
from .budget import RetryBudget
from .classify import retry_after_of, verdict_of
from .policy import RetryPolicy
from .state import Failure, RetryState, Stop, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import OnRetry
else:
    OnRetry = later("headgate.retries.options", "OnRetry")


class RetriedCall:
    """One call and its attempts.

    >>> from headgate import Backoff
    >>> from headgate.retries.policy import RetryPolicy
    >>> from headgate.testing import ManualClock
    >>> call = RetriedCall(RetryPolicy(1, backoff=Backoff(2), clock=ManualClock()), "ask")
    >>> call.is_retried_after(TimeoutError()), call.delay
    (True, 2000000000)
    >>> error = TimeoutError()
    >>> call.is_retried_after(error), error.__notes__
    (False, ['headgate: gave up after 2 calls: no retries are left'])

    `delay` is how many nanoseconds to wait before the next attempt. An attempt stands between `begin_attempt`
    and `end_attempt`. After a success call `succeeded`: the retry that helped costs nothing. A client that
    reads failures in its own way calls `decide` and then `announce`.
    """

    _attempt: Inside | None = None  # that is under way

    def __init__(
        self, policy: RetryPolicy, key: str, *, clock: Clock | None = None, on_retry: OnRetry | None = None
    ) -> None:
        """Count the call. `clock` and `on_retry` replace those of the policy."""
        self._policy = policy
        self._clock = policy.clock if clock is None else clock
        self._on_retry = policy.on_retry if on_retry is None else on_retry
        self._budget = policy.retry_budget
        self.state = RetryState(policy, key, self._clock.now())
        self.delay = 0
        if self._budget is not None:
            self._budget.earn()

    def is_retried_after(self, error: Exception) -> bool:
        """Read what the exception says, decide by the policy, and announce it. Sets `delay`."""
        verdict = verdict_of(error)
        again = self._policy.retries_on(error, verdict)
        failure = Failure(error, again, verdict.may_have_run, retry_after_of(error, verdict))
        decision = self.decide(failure)
        self.announce(decision)
        self.delay = decision.delay or 0
        return isinstance(decision, Wait)

    def begin_attempt(self) -> None:
        """Calls made within the attempt do not count for the same retry budget again."""
        if self._budget is not None:
            self._attempt = self._budget.begin_attempt()

    def end_attempt(self) -> None:
        """The attempt is over, whatever came of it. May be called without an attempt."""
        if self._attempt is not None:
            RetryBudget.end_attempt(self._attempt)
            self._attempt = None

    def __del__(self) -> None:
        attempt = self._attempt
        if attempt is not None:  # Ctrl-C struck on the way into `end_attempt`
            attempt[0] = None

    def succeeded(self) -> None:
        """The last attempt succeeded: if it was a retry, the retry budget gets it back."""
        if self.state.retries:
            self.withdraw()

    def decide(self, failure: Failure) -> Wait | Stop:
        """`RetryState.decide`, now, with a random draw and the retry budget of the policy."""
        spend = None if self._budget is None else self._budget.spend
        return self.state.decide(failure, self._clock.now(), self._policy.random(), spend)

    def withdraw(self) -> None:
        """A retry that was decided is not made after all: the retry budget gets it back."""
        if self._budget is not None:
            self._budget.refund()

    def announce(self, decision: Wait | Stop) -> None:
        """Tell the log and the observer of a retry, or write on the exception why there is none."""
        if isinstance(decision, Stop):
            decision.annotate()
            return
        event = decision.event
        import logging  # noqa: PLC0415 - a call that fails has time for it

        logging.getLogger("headgate").warning(
            "%s failed (%r); retry %d%s %s",
            event.key,
            event.error,
            event.retry,
            "" if event.max_retries is None else f" of {event.max_retries}",
            "when the backoff window ends" if decision.held else f"in {event.delay:.2f} s",
        )
        tell(self._on_retry, event)
