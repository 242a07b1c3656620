"""Our waits, stops and predicates for those who retry with tenacity.

Rules of this room: each is a tenacity strategy like its own, and combines with them by `+`, `|` and `&`.
It needs tenacity, which headgate itself does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import wait_base, wait_random_exponential

from .arguments import SECOND
from .backoff import Backoff
from .breaker.breaker import CircuitState
from .errors import InvalidConfig
from .gate.clock import default_random
from .retries.classify import retry_after_of, verdict_of
from .retries.state import spread_retry_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity import RetryCallState
    from tenacity.wait import WaitBaseT

    from .breaker.breaker import CircuitBreaker
    from .dispatch.backoff_window import BackoffWindow

__all__ = ["retry_if_transient", "stop_when_open", "wait_backoff", "wait_for_window", "wait_retry_after"]


class wait_for_window(wait_base):  # noqa: N801 - tenacity's strategies are spelled so
    """Wait until the shared backoff window is over, and at least as long as `otherwise` says.

    >>> from headgate import BackoffWindow
    >>> import tenacity
    >>> window = BackoffWindow()
    >>> @tenacity.retry(wait=wait_for_window(window), stop=tenacity.stop_after_attempt(3))
    ... def ask(): ...
    """

    def __init__(self, window: BackoffWindow, otherwise: WaitBaseT | None = None) -> None:
        self._window = window
        self._otherwise = wait_random_exponential(max=60) if otherwise is None else otherwise

    def __call__(self, retry_state: RetryCallState) -> float:
        return max(self._window.remaining, float(self._otherwise(retry_state)))


class wait_retry_after(wait_base):  # noqa: N801 - likewise
    """Wait as long as the far side said and a little more, or what `otherwise` says if that is longer."""

    def __init__(
        self, otherwise: WaitBaseT | None = None, *, random: Callable[[], float] = default_random
    ) -> None:
        self._otherwise = wait_random_exponential(max=60) if otherwise is None else otherwise
        self._random = random

    def __call__(self, retry_state: RetryCallState) -> float:
        wait = float(self._otherwise(retry_state))
        error = _error_of(retry_state)
        retry_after = None if error is None else retry_after_of(error, verdict_of(error))
        if retry_after is None:
            return wait
        return max(wait, spread_retry_after(retry_after, self._random()) / SECOND)


class wait_backoff(wait_base):  # noqa: N801 - likewise
    """Wait as a Backoff says, jitter and all."""

    def __init__(self, backoff: Backoff, *, random: Callable[[], float] = default_random) -> None:
        if not isinstance(backoff, Backoff):
            raise InvalidConfig(f"{backoff!r} is not a Backoff; write e.g. Backoff(0.5, cap=10)")
        self._backoff = backoff
        self._random = random

    def __call__(self, retry_state: RetryCallState) -> float:
        previous = retry_state.upcoming_sleep or None  # of the last round, until this one is known
        return self._backoff.delay(retry_state.attempt_number - 1, previous=previous, random=self._random)


class stop_when_open(stop_base):  # noqa: N801 - likewise
    """Stop as soon as the circuit is open: the next try would be refused anyway."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def __call__(self, retry_state: RetryCallState) -> bool:  # noqa: ARG002 - what tenacity calls it with
        return self._breaker.state is CircuitState.OPEN


class retry_if_transient(retry_base):  # noqa: N801 - likewise
    """Retry what may pass: lost connections, time-outs, "slow down" and failures of the far side."""

    def __call__(self, retry_state: RetryCallState) -> bool:
        error = _error_of(retry_state)
        return error is not None and verdict_of(error).again


def _error_of(retry_state: RetryCallState) -> Exception | None:
    outcome = retry_state.outcome
    error = outcome.exception() if outcome is not None and outcome.failed else None
    return error if isinstance(error, Exception) else None
