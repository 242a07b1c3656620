"""RetryPolicy: which failures are retried, how often, and after which delays."""

from __future__ import annotations

from ..arguments import (
    must_be_plain,
    positive_seconds_to_ns,
    read_observer,
    read_random,
    seconds_to_ns,
    shown,
    yes_or_no,
)
from ..backoff import Backoff
from ..errors import InvalidCapacity, InvalidConfig, InvalidLimit, InvalidWindow
from ..gate.clock import SYSTEM, default_random, read_clock
from ..hints import Callable, Clock, Seconds, later
from ..verdict import Verdict
from .budget import RetryBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import Exceptions, OnRetry
else:
    Exceptions = later("headgate.retries.options", "Exceptions")
    OnRetry = later("headgate.retries.options", "OnRetry")


class RetryPolicy:
    """Which failures are retried, how often and after which delays; the arguments are those of `retrying`.

    >>> RetryPolicy(5, backoff=Backoff(0.5, cap=10), deadline=60)
    <RetryPolicy, 5 retries, Backoff(0.5, cap=10.0, strategy='exponential', jitter='none')>
    """

    def __init__(
        self,
        max_retries: int | None = 3,
        *,
        exceptions: Exceptions = None,
        backoff: Backoff | None = None,
        idempotent: bool = True,
        deadline: Seconds | None = None,
        progress_timeout: Seconds | None = None,
        retry_budget: RetryBudget | None = None,
        on_retry: OnRetry | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = default_random,
    ) -> None:
        if callable(max_retries):
            raise InvalidConfig("retry takes options first; write @retry() with parentheses")
        self._exceptions = _checked_exceptions(exceptions)
        self.max_retries = None if max_retries is None else number_of_retries(max_retries)
        self.backoff = delays(backoff)
        self.idempotent = yes_or_no(idempotent, "idempotent")
        self.deadline = None if deadline is None else seconds_to_ns(deadline, "deadline")
        self.progress_timeout = (
            None if progress_timeout is None else positive_seconds_to_ns(progress_timeout, "progress_timeout")
        )
        self.retry_budget = RetryBudget.checked(retry_budget)
        self.on_retry = read_observer(on_retry, "on_retry")
        self.clock = read_clock(clock)
        self.random = read_random(random)

    @property
    def counts_from_the_start(self) -> bool:
        """Must a call be counted or timed before its first attempt?"""
        return self.retry_budget is not None or self.deadline is not None or self.progress_timeout is not None

    def retries_on(self, error: Exception, verdict: Verdict) -> bool:
        """Is this exception one to retry, by what the caller listed or else by its verdict?"""
        if isinstance(error, InvalidLimit):
            return False  # a mistake in the program, which another attempt repeats
        if self._exceptions is None:
            return verdict.again
        if isinstance(self._exceptions, tuple):
            return isinstance(error, self._exceptions)
        return bool(self._exceptions(error))

    def __repr__(self) -> str:
        most = "any number of" if self.max_retries is None else self.max_retries
        return f"<RetryPolicy, {most} retries, {self.backoff!r}>"


def delays(
    backoff: Backoff | None,
    base_delay: Seconds = 1.0,
    max_delay: Seconds = 60.0,
    exponential_base: float = 2.0,
    jitter: bool = True,
) -> Backoff:
    """The given backoff, or delays from `base_delay` to `max_delay`.

    With jitter, each of those is between half and one and a half times as long.
    """
    if backoff is not None:
        if not isinstance(backoff, Backoff):
            raise InvalidConfig(
                f"backoff={backoff!r} is not a Backoff; write e.g. backoff=Backoff(0.5, cap=10)"
            )
        if (base_delay, max_delay, exponential_base, jitter) != (1.0, 60.0, 2.0, True):
            raise InvalidConfig(
                "backoff= says all about delays; leave out base_delay, max_delay, exponential_base and jitter"
            )
        return backoff
    base = positive_seconds_to_ns(base_delay, "base_delay")
    if seconds_to_ns(max_delay, "max_delay") < base:
        raise InvalidWindow(
            f"max_delay={max_delay!r} is less than base_delay={base_delay!r}, which is the first delay; "
            "raise the one or lower the other"
        )
    if not isinstance(jitter, bool):
        raise InvalidConfig(
            f"jitter={jitter!r} is neither True nor False; for another kind write backoff=Backoff(jitter=...)"
        )
    if (
        isinstance(exponential_base, bool)
        or not isinstance(exponential_base, (int, float))
        or not (1 <= exponential_base < float("inf"))
    ):
        raise InvalidConfig(
            f"exponential_base={exponential_base!r} would not make delays grow; write at least 1, e.g. 2.0"
        )
    spread = ("range", 0.5, 1.5) if jitter else "none"
    return Backoff(base_delay, max_delay, factor=exponential_base, jitter=spread)


def number_of_retries(value: object, what: str = "max_retries") -> int:
    """How often to try again: a whole number, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidCapacity(
            f"{what}={shown(value)} is not a whole number of retries; write 0 or more, e.g. {what}=3"
        )
    return value


def _checked_exceptions(
    exceptions: Exceptions,
) -> tuple[type[Exception], ...] | Callable[[Exception], bool] | None:
    """The listed types as a tuple, or the function to ask."""
    if exceptions is None:
        return None
    listed = exceptions if isinstance(exceptions, tuple) else (exceptions,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in listed):
        return listed  # type: ignore[return-value]  # all of them are types
    if callable(exceptions) and not isinstance(exceptions, type):
        must_be_plain(exceptions, "exceptions", "an exception")
        return exceptions
    raise InvalidConfig(
        f"exceptions={exceptions!r} is not a kind of Exception; write e.g. "
        "exceptions=(TimeoutError, KeyError)"
    )
