"""The options of a circuit breaker, read into the settings of its circuit."""

from __future__ import annotations

from ..arguments import SECOND, positive_seconds_to_ns, ratio
from ..errors import InvalidCapacity, InvalidConfig
from ..hints import Seconds
from .circuit import CircuitSettings

# A probe that takes longer than this makes room for another, unless the recovery time is longer still.
_SHORTEST_LEASE = 30 * SECOND


def read_settings(
    failure_threshold: int | None,
    recovery_timeout: Seconds,
    *,
    half_open_probes: int,
    probe_timeout: Seconds | None,
    failure_rate: float | None,
    slow_after: Seconds | None,
    slow_rate: float,
    window: Seconds,
    minimum_calls: int,
    max_recovery_timeout: Seconds | None,
    recovery_jitter: float,
) -> CircuitSettings:
    """What the options of a breaker say about its circuit; raises for what cannot work."""
    if failure_threshold is not None:
        _at_least_one(failure_threshold, "failure_threshold", example=5)
    elif failure_rate is None and slow_after is None:
        raise InvalidConfig(
            "with failure_threshold=None nothing would ever open the circuit; write e.g. failure_rate=0.5"
        )
    recovery = positive_seconds_to_ns(recovery_timeout, "recovery_timeout")
    longest = recovery
    if max_recovery_timeout is not None:
        longest = positive_seconds_to_ns(max_recovery_timeout, "max_recovery_timeout")
        if longest < recovery:
            raise InvalidConfig(
                f"max_recovery_timeout={max_recovery_timeout!r} is less than "
                f"recovery_timeout={recovery_timeout!r}, where it starts; write e.g. 300"
            )
    if recovery_jitter != 0:
        ratio(recovery_jitter, "recovery_jitter", low=0, high=float("inf"), example=0.2)
    if slow_after is not None:
        positive_seconds_to_ns(slow_after, "slow_after")
    lease = max(recovery, _SHORTEST_LEASE)
    if probe_timeout is not None:
        lease = positive_seconds_to_ns(probe_timeout, "probe_timeout")
    slow_part = _part(slow_rate, "slow_rate")
    return CircuitSettings(
        threshold=failure_threshold,
        recovery=recovery,
        max_recovery=longest,
        jitter=recovery_jitter,
        probes=_at_least_one(half_open_probes, "half_open_probes", example=1),
        lease=lease,
        failure_rate=None if failure_rate is None else _part(failure_rate, "failure_rate"),
        slow_rate=None if slow_after is None else slow_part,
        window=positive_seconds_to_ns(window, "window"),
        minimum=_at_least_one(minimum_calls, "minimum_calls", example=10),
    )


def kinds_of(given: object, what: str) -> tuple[type[BaseException], ...]:
    """The kinds of exceptions that an option names: one or several."""
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidConfig(
                f"{what}={given!r}: {kind!r} is not a kind of exception; write e.g. {what}=(TimeoutError,)"
            )
    return kinds


def _part(value: float, what: str) -> tuple[int, int]:
    """A part of all calls: more than none, at most all."""
    if value == 1 and not isinstance(value, bool):
        return 1, 1
    return ratio(value, what, low=0, high=1, example=0.5)


def _at_least_one(value: object, what: str, *, example: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCapacity(f"{what}={value!r} is not a whole number; write e.g. {what}={example}")
    if value < 1:
        raise InvalidCapacity(f"{what}={value!r} is less than one; write e.g. {what}={example}")
    return value
