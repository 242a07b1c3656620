"""Waits, stops and predicates of headgate for functions that are retried with tenacity.

Each is a strategy like those of tenacity, and combines with them by `+`, `|` and `&`. This module needs
tenacity to be installed; headgate itself does not.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import RetryCallState
from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import WaitBaseT, wait_base, wait_random_exponential

from .arguments import SECOND, read_random
from .backoff import Backoff
from .breaker.breaker import CircuitBreaker, CircuitState
from .dispatch.backoff_window import BackoffWindow
from .errors import InvalidConfig
from .gate.clock import default_random
from .retries.classify import retry_after_of, verdict_of
from .retries.state import spread_retry_after

__all__ = ["retry_if_transient", "stop_when_open", "wait_backoff", "wait_for_window", "wait_retry_after"]


class wait_for_window(wait_base):  # noqa: N801 - spelled like the strategies of tenacity
    """Wait until the backoff `window` ends, and at least as long as the wait strategy `otherwise` says.

    Raises InvalidConfig for what is not a BackoffWindow or not a wait strategy.

    >>> from headgate import BackoffWindow
    >>> import tenacity
    >>> window = BackoffWindow()
    >>> @tenacity.retry(wait=wait_for_window(window), stop=tenacity.stop_after_attempt(3))
    ... def ask(): ...
    """

    def __init__(self, window: BackoffWindow, otherwise: WaitBaseT | None = None) -> None:
        if not isinstance(window, BackoffWindow):
            raise InvalidConfig(f'{window!r} is not a BackoffWindow; write e.g. BackoffWindow.for_key("api")')
        self._window = window
        self._otherwise = _wait_of(otherwise)

    def __call__(self, retry_state: RetryCallState) -> float:
        return max(self._window.remaining, float(self._otherwise(retry_state)))


class wait_retry_after(wait_base):  # noqa: N801 - as above
    """Wait a little longer than the far side said, and at least as long as `otherwise` says.

    `random`, a function from 0 to 1, draws by how much longer. Raises InvalidConfig for what is not a wait
    strategy.

    >>> import tenacity
    >>> @tenacity.retry(wait=wait_retry_after(), retry=retry_if_transient())
    ... def ask(): ...
    """

    def __init__(
        self, otherwise: WaitBaseT | None = None, *, random: Callable[[], float] = default_random
    ) -> None:
        self._otherwise = _wait_of(otherwise)
        self._random = read_random(random)

    def __call__(self, retry_state: RetryCallState) -> float:
        wait = float(self._otherwise(retry_state))
        error = _error_of(retry_state)
        retry_after = None if error is None else retry_after_of(error, verdict_of(error))
        if retry_after is None:
            return wait
        return max(wait, spread_retry_after(retry_after, self._random()) / SECOND)


class wait_backoff(wait_base):  # noqa: N801 - as above
    """Wait as `backoff`, a `Backoff`, says, jitter included.

    `random`, a function from 0 to 1, draws the jitter. Raises InvalidConfig for what is not a Backoff.

    >>> import tenacity
    >>> @tenacity.retry(wait=wait_backoff(Backoff(0.5, cap=10)))
    ... def ask(): ...
    """

    def __init__(self, backoff: Backoff, *, random: Callable[[], float] = default_random) -> None:
        if not isinstance(backoff, Backoff):
            raise InvalidConfig(f"{backoff!r} is not a Backoff; write e.g. Backoff(0.5, cap=10)")
        self._backoff = backoff
        self._random = read_random(random)

    def __call__(self, retry_state: RetryCallState) -> float:
        previous = retry_state.upcoming_sleep or None  # until this delay is known, that of the last round
        return self._backoff.delay(retry_state.attempt_number - 1, previous=previous, random=self._random)


class stop_when_open(stop_base):  # noqa: N801 - as above
    """Stop as soon as the circuit of `breaker` is open, because it would refuse the next attempt.

    Raises InvalidConfig for what is not a CircuitBreaker.

    >>> import tenacity
    >>> @tenacity.retry(stop=stop_when_open(CircuitBreaker()) | tenacity.stop_after_attempt(5))
    ... def ask(): ...
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        if not isinstance(breaker, CircuitBreaker):
            raise InvalidConfig(
                f'{breaker!r} is not a CircuitBreaker; write e.g. CircuitBreaker.for_key("api")'
            )
        self._breaker = breaker

    def __call__(self, retry_state: RetryCallState) -> bool:  # noqa: ARG002 - the signature of tenacity
        return self._breaker.state is CircuitState.OPEN


class retry_if_transient(retry_base):  # noqa: N801 - as above
    """Retry lost connections, timeouts, "slow down" and failures of the far side, and nothing else.

    >>> import tenacity
    >>> @tenacity.retry(retry=retry_if_transient(), stop=tenacity.stop_after_attempt(3))
    ... def ask(): ...
    """

    def __call__(self, retry_state: RetryCallState) -> bool:
        error = _error_of(retry_state)
        return error is not None and verdict_of(error).again


def _wait_of(otherwise: WaitBaseT | None) -> WaitBaseT:
    """The wait strategy for what headgate does not decide."""
    if otherwise is None:
        return wait_random_exponential(max=60)
    if isinstance(otherwise, type) or not callable(otherwise):
        raise InvalidConfig(
            f"otherwise={otherwise!r} is not a wait strategy; write e.g. otherwise=tenacity.wait_fixed(2)"
        )
    return otherwise


def _error_of(retry_state: RetryCallState) -> Exception | None:
    outcome = retry_state.outcome
    error = outcome.exception() if outcome is not None and outcome.failed else None
    return error if isinstance(error, Exception) else None
