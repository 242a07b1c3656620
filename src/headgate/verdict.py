"""Verdict: what the outcome of a call means for limits, retries, breakers and budgets.

`permit.settle(verdict=...)` tells it to the gate. `headgate.retries.classify` reads it from an exception.
"""

from __future__ import annotations

from .arguments import seconds_to_ns
from .frozen import Frozen
from .hints import Literal


class Verdict(Frozen):
    """What an outcome was, e.g. `throttled(retry_after)`.

    `retry_after` is how many seconds the far side asked to wait, None if it did not say. `again` says whether
    another attempt is worth it, and `may_have_run` whether the call may have been carried out all the same.
    """

    __slots__ = ("again", "kind", "may_have_run", "retry_after")
    kind: Literal["succeeded", "throttled", "overloaded", "failed", "rejected", "exhausted"]
    retry_after: float | None
    again: bool
    may_have_run: bool


SUCCEEDED = Verdict(kind="succeeded", retry_after=None, again=False, may_have_run=True)

# The far side answered no. It would answer the same request in the same way again.
REJECTED = Verdict(kind="rejected", retry_after=None, again=False, may_have_run=False)

# No wait helps: a quota is used up, or the request is larger than the limit.
EXHAUSTED = Verdict(kind="exhausted", retry_after=None, again=False, may_have_run=False)


def throttled(retry_after: float | None = None, *, again: bool = True) -> Verdict:
    """The far side said "slow down", for `retry_after` seconds if it said how long.

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
    """The far side has too much to do for any caller right now."""
    return _verdict("overloaded", retry_after, again, may_have_run=False)


def failed(retry_after: float | None = None, *, again: bool = True, may_have_run: bool = True) -> Verdict:
    """The connection or the far side broke; the next attempt may succeed."""
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
