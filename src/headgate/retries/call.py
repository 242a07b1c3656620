"""RetriedCall: one call under a RetryPolicy, from its first attempt to its last.

The decision itself is RetryState's. Here are its effects: the time, the draw, the retry budget, the log, the
observer, and the note on the exception.
"""

from __future__ import annotations

from ..events import tell
from ..typing import Clock
from .budget import RetryBudget
from .classify import retry_after_of, verdict_of
from .policy import OnRetry, RetryPolicy
from .state import RetryState, Stop, Wait


class RetriedCall:
    """One call and its attempts. After a failed attempt ask `decide`, then `announce` what it returned.

    >>> from headgate import Backoff
    >>> from headgate.retries.policy import RetryPolicy
    >>> from headgate.testing import ManualClock
    >>> call = RetriedCall(RetryPolicy(1, backoff=Backoff(2), clock=ManualClock()), "ask")
    >>> for number in range(2):
    ...     call.begin_attempt()
    ...     try:
    ...         raise TimeoutError  # the attempt
    ...     except TimeoutError as error:
    ...         decision = call.decide(error, retry_after=3_000_000_000)
    ...         call.announce(decision)
    ...     finally:
    ...         call.end_attempt()
    ...     print(decision.delay)
    3000000000
    None
    >>> decision.why, decision.error.__notes__
    ('no retries are left', ['headgate: gave up after 2 calls: no retries are left'])

    After a Wait, sleep for its `delay`. After a Stop, raise the error. After a success call `succeeded`: the
    retry that helped costs nothing.
    """

    __slots__ = ("_before", "_budget", "_clock", "_on_retry", "_policy", "state")

    def __init__(
        self, policy: RetryPolicy, key: str, *, clock: Clock | None = None, on_retry: OnRetry | None = None
    ) -> None:
        """Count the call. `clock` and `on_retry` replace those of the policy."""
        self._policy = policy
        self._clock = policy.clock if clock is None else clock
        self._on_retry = policy.on_retry if on_retry is None else on_retry
        self._budget = policy.retry_budget
        self._before: tuple[RetryBudget, ...] | None = None
        self.state = RetryState(policy, key, self._clock.now())
        if self._budget is not None:
            self._budget.earn()

    def begin_attempt(self) -> None:
        """Calls made within the attempt do not count for the same retry budget again."""
        if self._budget is not None:
            self._before = self._budget.begin_attempt()

    def end_attempt(self) -> None:
        """The attempt is over, whatever came of it. May be called without an attempt."""
        if self._before is not None and self._budget is not None:
            self._budget.end_attempt(self._before)
            self._before = None

    def succeeded(self) -> None:
        """The last attempt succeeded: if it was a retry, the retry budget gets it back."""
        if self._budget is not None and self.state.retries:
            self._budget.refund()

    def decide(
        self,
        error: Exception,
        *,
        again: bool = True,
        may_have_run: bool = False,
        retry_after: int | None = None,
        held: bool = False,
    ) -> Wait | Stop:
        """`RetryState.decide`, now, with a random draw and the retry budget of the policy."""
        return self.state.decide(
            error,
            self._clock.now(),
            self._policy.random(),
            again=again,
            may_have_run=may_have_run,
            retry_after=retry_after,
            held=held,
            spend=None if self._budget is None else self._budget.spend,
        )

    def failed(self, error: Exception) -> Wait | Stop:
        """Read what the exception says, decide by the policy, and announce it."""
        verdict = verdict_of(error)
        decision = self.decide(
            error,
            again=self._policy.retries_on(error, verdict),
            may_have_run=verdict.may_have_run,
            retry_after=retry_after_of(error, verdict),
        )
        self.announce(decision)
        return decision

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
            "%s failed (%r); retry %d%s in %.2f s",
            event.key,
            event.error,
            event.retry,
            "" if event.max_retries is None else f" of {event.max_retries}",
            event.delay,
        )
        tell(self._on_retry, event)
