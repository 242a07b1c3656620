"""Verdict: what the outcome of a call means for limits, retries, breakers and budgets.

`permit.settle(verdict=...)` tells it to the gate. `headgate.retries.classify` reads it from an exception.
"""

from __future__ import annotations

from .arguments import seconds_to_ns
from .frozen import Frozen
from .hints import Literal


class Verdict(Frozen):
    """What an outcome was: `throttled()`, `overloaded()`, `failed()`, SUCCEEDED, REJECTED or EXHAUSTED.

    `kind` is that word in lower case. `retry_after` is how many seconds the far side asked to wait, None if
    it did not say. `again` says whether another attempt is worth it, and `may_have_run` whether the call may
    have been carried out all the same.
    """

    __slots__ = ("again", "kind", "may_have_run", "retry_after")
    kind: Literal["succeeded", "throttled", "overloaded", "failed", "rejected", "exhausted"]
    retry_after: float | None
    again: bool
    may_have_run: bool


#: The far side did what it was asked for.
SUCCEEDED = Verdict(kind="succeeded", retry_after=None, again=False, may_have_run=True)

#: The far side answered no. It would answer the same request in the same way again.
REJECTED = Verdict(kind="rejected", retry_after=None, again=False, may_have_run=False)

#: No wait helps: a quota is used up, or the request is larger than the limit.
EXHAUSTED = Verdict(kind="exhausted", retry_after=None, again=False, may_have_run=False)


def throttled(retry_after: float | None = None, *, again: bool = True) -> Verdict:
    """The far side said "slow down", for `retry_after` seconds if it said how long.

    Given to `permit.settle` of a Dispatch it starts a backoff window of that time, and late refusals of one
    burst count as one episode; without a time it starts none. `again=False` says that another attempt is not
    worth it. Raises InvalidWindow if `retry_after` is not a time.

    >>> from headgate import Dispatch
    >>> from headgate.verdict import throttled
    >>> api = Dispatch("api")
    >>> with api.admit() as permit:
    ...     permit.settle(verdict=throttled(30))
    >>> api.snapshot().backoff_active
    True
    """
    return _verdict("throttled", retry_after, again, may_have_run=False)


def overloaded(retry_after: float | None = None, *, again: bool = True) -> Verdict:
    """The far side has too much to do for any caller right now, as it says by 503 or 529.

    `retry_after` is how many seconds it asked to wait, if it said so. `again=False` says that another attempt
    is not worth it. A ResilientClient starts a backoff window if there is a time, and its breaker counts a
    failure. Raises InvalidWindow if `retry_after` is not a time.

    >>> from headgate import ResilientClient, verdict
    >>> def classify(error):
    ...     return verdict.overloaded(5) if "too busy" in str(error) else verdict.failed()
    >>> client = ResilientClient(classify=classify)
    """
    return _verdict("overloaded", retry_after, again, may_have_run=False)


def failed(retry_after: float | None = None, *, again: bool = True, may_have_run: bool = True) -> Verdict:
    """The connection or the far side broke; the next attempt may succeed.

    `may_have_run=False` says that the call was certainly not carried out, as when no connection was made: a
    ResilientClient then charges its budget nothing. `retry_after` is how many seconds the far side asked to
    wait, if it said so. `again=False` says that another attempt is not worth it. Raises InvalidWindow if
    `retry_after` is not a time.

    >>> from headgate import ResilientClient, verdict
    >>> def classify(error):
    ...     return verdict.REJECTED if isinstance(error, LookupError) else verdict.failed()
    >>> client = ResilientClient(classify=classify)
    """
    return _verdict("failed", retry_after, again, may_have_run=may_have_run)


def _verdict(
    kind: Literal["throttled", "overloaded", "failed"],
    retry_after: float | None,
    again: bool,
    *,
    may_have_run: bool,
) -> Verdict:
    if retry_after is not None:
        seconds_to_ns(retry_after, "retry_after")
    return Verdict(kind=kind, retry_after=retry_after, again=again, may_have_run=may_have_run)
