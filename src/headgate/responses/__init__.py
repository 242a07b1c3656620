"""What an HTTP response says about limits, usage and cost.

The files of this package are pure. The two functions here read the wall clock if `now` is not given.
"""

from __future__ import annotations

import time

from .head import head_of
from .signals import Signal, retry_after_of, signal_of


def parse_retry_after(headers: object, *, default: float = 1.0, now: float | None = None) -> float:
    """Seconds to wait according to `headers`, or `default` (1.0) if they do not say. Zero means at once.

    `headers` is a mapping, an iterable of pairs or the headers object of any client library. `Retry-After`
    may be seconds or a date. Dates are measured from the Date header of the response, so that a wrong local
    clock does not matter; `now`, in seconds since 1970, is used where that header is missing. A wait is at
    most 31 days. Never raises: what cannot be read counts as not said.

    >>> parse_retry_after({"Retry-After": "7"}), parse_retry_after({}, default=2.0)
    (7.0, 2.0)
    >>> parse_retry_after({"Retry-After": "soon"})
    1.0
    """
    retry_after = retry_after_of(headers, time.time() if now is None else now)
    return default if retry_after is None else retry_after


def read_signal(
    status: int,
    headers: object,
    body: object = None,
    *,
    now: float | None = None,
    provider: str | None = None,
) -> Signal:
    """Everything a response says about limits: its `status`, its `headers` and, on errors, its `body`.

    `headers` is a mapping, an iterable of pairs or the headers object of any client library; `body` is bytes,
    text or parsed JSON. `provider` helps where two providers use one name differently (`"groq"`). `now` is
    the wall time in seconds since 1970, for tests. Never raises: what cannot be read counts as not said.

    >>> read_signal(429, {}, {"error": {"type": "insufficient_quota"}}).should_retry
    False
    """
    present = time.time() if now is None else now
    if body is None and provider is None and type(status) is int and status < 400:
        return head_of(status, headers, present)[0]
    return signal_of(status, headers, body, now=present, provider=provider)
