"""The exceptions of headgate.

HeadgateError
├── InvalidLimit (ValueError)            the limits as written cannot work
│   ├── InvalidCapacity                    not an amount something can hold
│   ├── InvalidWindow                      not a duration
│   └── InvalidConfig                      options that do not go together
├── UnknownResource (KeyError)           no limit was set for this resource
├── UnknownName (KeyError)               nothing is registered under this name
├── Refused                              the call was not started; .rule .retry_after
│   ├── WaitTimeout (TimeoutError)         no place came free in time
│   ├── LineFull                           too many callers are waiting already
│   ├── CostTooLarge                       the call can never fit the limit
│   ├── CapacityExhausted                  nothing is left and the caller would not wait
│   ├── CircuitBreakerOpen                 the far side is failing; __cause__ is why
│   ├── BudgetExceeded                     .budget .remaining .retry_after (None: never)
│   └── Closed                             the gate or limiter was closed
└── StoreError                           the shared store or bus could not be asked

An exception of your own function is passed on as it is.
"""

from __future__ import annotations


class HeadgateError(Exception):
    """The base of all exceptions that headgate itself raises."""


class InvalidLimit(HeadgateError, ValueError):
    """The limits as written cannot work; the message says what to write instead."""


class InvalidCapacity(InvalidLimit):
    """Not an amount that something can hold."""


class InvalidWindow(InvalidLimit):
    """Not a duration."""


class InvalidConfig(InvalidLimit):
    """Options that do not go together, or an option of the wrong kind."""


class _Unknown(HeadgateError, KeyError):
    # KeyError would print the repr of the message.
    def __str__(self) -> str:
        return str(self.args[0])


class UnknownResource(_Unknown):
    """No limit was set for this resource."""


class UnknownName(_Unknown):
    """Nothing is registered under this name."""


class Refused(HeadgateError):
    """The call was not started.

    `rule` names the limit that refused it. `retry_after` is the number of seconds after which another try
    could succeed, or None if no clock can tell: another call has to finish first, or it can never fit.
    """

    def __init__(self, why: str, *, rule: str, retry_after: float | None = None) -> None:
        when = "" if retry_after is None else f"; worth another try in {_seconds(retry_after)}"
        super().__init__(f"{why} ({rule}){when}")
        self.why = why
        self.rule = rule
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling of exceptions.
        return _rebuild, (type(self), self.args, self.__dict__)


def _seconds(duration: float) -> str:
    """A duration that is never shown as nothing: 12.3 s, 0.4 s, 0.012 s."""
    return f"{duration:.1f} s" if duration >= 0.95 else f"{max(duration, 0.001):.2g} s"


def _rebuild(kind: type[Refused], args: tuple[object, ...], attributes: dict[str, object]) -> Refused:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class WaitTimeout(Refused, TimeoutError):
    """No place came free in time."""


class LineFull(Refused):
    """Too many callers are waiting already."""


class CostTooLarge(Refused):
    """The call costs more than the limit can ever give."""


class CapacityExhausted(Refused):
    """Nothing is left, and the caller would not wait."""


class CircuitBreakerOpen(Refused):
    """The far side is failing, so it was not called. `__cause__` is the failure that opened the circuit."""


class BudgetExceeded(Refused):
    """A budget does not cover the call.

    `budget` names that budget, `remaining` is what it has left, and `retry_after` is the number of seconds
    after which the call would fit: None if it never will.
    """

    def __init__(
        self, why: str, *, rule: str, budget: str, remaining: int, retry_after: float | None = None
    ) -> None:
        super().__init__(why, rule=rule, retry_after=retry_after)
        self.budget = budget
        self.remaining = remaining


class Closed(Refused):
    """The gate or limiter was closed."""


class StoreError(HeadgateError):
    """The shared store or bus could not be asked."""
