"""RetryBudget: retries as a part of all calls, however many layers retry."""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar

from ..arguments import positive_int, ratio
from ..errors import InvalidConfig
from ..gate.forks import reset_in_child
from ..gate.pickling import only_here
from ..nesting import Inside, come_out, go_in, is_around, still_running
from .state import Allowance

# The attempts that the running code is part of: several layers of retries around one call count it once.
_attempts: ContextVar[Inside | None] = ContextVar("headgate_attempts", default=None)


class RetryBudget:
    """Retries as a part of all calls, shared by every function and client that is given the same object.

    >>> from headgate import retry
    >>> budget = RetryBudget(0.2)
    >>> @retry(retry_budget=budget)
    ... def ask(): ...

    When everything fails, retrying everything multiplies the load by four; with this, by 1.2. At most
    `ratio_of_calls` of the calls are retried, or `burst` of them where that is more. A retry that succeeds
    costs nothing.

    Raises InvalidConfig if `ratio_of_calls` is not a number above 0 (2 is two retries for each call), and
    InvalidCapacity if `burst` is not a whole number above 0.
    """

    __reduce__ = only_here("make one per process")

    def __init__(self, ratio_of_calls: float = 0.2, *, burst: int = 10) -> None:
        parts = ratio(ratio_of_calls, "ratio_of_calls", low=0, high=float("inf"), example=0.2)
        positive_int(burst, "burst", example=10)
        self._ratio = ratio_of_calls
        self._burst = burst
        self._allowance = Allowance(parts, burst)
        self._lock = allocate_lock()
        reset_in_child(self)

    @staticmethod
    def checked(value: object) -> RetryBudget | None:
        """The value of an argument `retry_budget=`, if it is one."""
        if value is not None and not isinstance(value, RetryBudget):
            raise InvalidConfig(
                f"retry_budget={value!r} is not a RetryBudget; write e.g. retry_budget=RetryBudget(0.2)"
            )
        return value

    @property
    def available(self) -> int:
        """How many retries could be made right now."""
        return self._allowance.available()

    # -- for the loops that retry

    def earn(self) -> None:
        """Count a call, unless it is made within an attempt of a call that was counted already."""
        if not is_around(self, still_running(_attempts.get())):
            with self._lock:
                self._allowance.earn()

    def begin_attempt(self) -> Inside | None:
        """From here on, calls made by this thread or task earn nothing. Give the result to `end_attempt`."""
        return go_in(_attempts, self)

    @staticmethod
    def end_attempt(attempt: Inside) -> None:
        """The attempt is over, in the context that it began in or in another: calls count again."""
        come_out(_attempts, attempt)

    def spend(self) -> bool:
        """Take one retry if there is one."""
        with self._lock:
            return self._allowance.spend()

    def refund(self) -> None:
        """Give one retry back: it succeeded, or was not made."""
        with self._lock:
            self._allowance.refund()

    def after_fork(self) -> None:
        self._lock = allocate_lock()

    def __repr__(self) -> str:
        return f"<RetryBudget of {self._ratio:g}, {self.available} retries available>"
