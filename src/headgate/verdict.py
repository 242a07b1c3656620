"""What the outcome of a call means, in our words.

A verdict is what `permit.settle(verdict=...)` tells the gate, and the gate's rules learn from it.
"""

from __future__ import annotations

from .limits import seconds_to_ns
from .values import Value


class Verdict(Value):
    """What an outcome was, e.g. `throttled(retry_after)`."""

    __slots__ = ("kind", "retry_after")
    kind: str
    retry_after: float | None


def throttled(retry_after: float) -> Verdict:
    """The API said "slow down", and for how many seconds.

    >>> from headgate import Dispatch
    >>> from headgate.verdict import throttled
    >>> api = Dispatch("api")
    >>> with api.admit() as permit:
    ...     permit.settle(verdict=throttled(30))
    >>> api.snapshot().backoff_active
    True
    """
    seconds_to_ns(retry_after, "retry_after")
    return Verdict(kind="throttled", retry_after=retry_after)
