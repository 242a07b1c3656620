"""BreakerOptions: what a BreakerRegistry takes. Only annotations need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from ..typing import Clock, Observer, Seconds


class BreakerOptions(TypedDict, total=False):
    """The options of CircuitBreaker that are the same for every key."""

    failure_threshold: int | None
    recovery_timeout: Seconds
    expected_exceptions: type[BaseException] | tuple[type[BaseException], ...]
    half_open_probes: int
    probe_timeout: Seconds | None
    failure_rate: float | None
    slow_after: Seconds | None
    slow_rate: float
    window: Seconds
    minimum_calls: int
    max_recovery_timeout: Seconds | None
    recovery_jitter: float
    ignore: type[BaseException] | tuple[type[BaseException], ...]
    observer: Observer | None
    clock: Clock
    random: Callable[[], float]
