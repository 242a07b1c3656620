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
    """The base of all exceptions that headgate itself raises: `except HeadgateError` catches every one.

    An exception of your own function is passed on as it is.
    """


class InvalidLimit(HeadgateError, ValueError):
    """The limits as written cannot work; the message says what to write instead.

    Raised where the mistake is written, e.g. by `Dispatch(rates="500")`: `500/minute` was meant. It is a
    ValueError too, and the base of `InvalidCapacity`, `InvalidWindow` and `InvalidConfig`. Correct the
    program.
    """


class InvalidCapacity(InvalidLimit):
    """An argument is not an amount that something can hold, e.g. `Dispatch(concurrency=0)`.

    The message says which argument and what to write instead. Correct the program.
    """


class InvalidWindow(InvalidLimit):
    """An argument is not a time, e.g. `api.set_backoff(-1)`: write seconds or a timedelta.

    The message says which argument and what to write instead. Correct the program.
    """


class InvalidConfig(InvalidLimit):
    """Options do not go together, or an option is of the wrong kind, e.g. `Dispatch(on_loss="wait")`.

    The message says which option and what to write instead. Correct the program.
    """


class _Unknown(HeadgateError, KeyError):
    # KeyError would print the repr of the message.
    def __str__(self) -> str:
        return str(self.args[0])


class UnknownResource(_Unknown):
    """No limit was set for this resource of a limiter, e.g. `MemoryLimiter().acquire("openai")`.

    Set one by `set_capacity` or `set_rates`, or give the limiter `rates` for all names. Callers that wait for
    a resource that is removed get it too. It is a KeyError too.
    """


class UnknownName(_Unknown):
    """Nothing is registered under this name: a Dispatch, a tier of a budget book, a model with a price.

    The message says which name, and what to write instead. It is a KeyError too.
    """


class Refused(HeadgateError):
    """A call was not started, and nothing was taken for it: it is safe to try again.

    `why` is the reason as a sentence. `rule` names the limit that refused it. `retry_after` is the number of
    seconds after which another try could succeed, or None if no clock can tell: another call has to finish
    first, or it can never fit. `except Refused` catches every kind of refusal.
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
    """No place came free before the `timeout` of the caller, or none would: then it is raised at once.

    Try again after `retry_after` seconds, or give up as the service does when it is busy. It is a `Refused`
    with `why`, `rule` and `retry_after`, and a TimeoutError too.
    """


class LineFull(Refused):
    """As many callers wait at the gate as `max_waiting` allows, so this one was refused at once.

    Send the request away as busy, or raise `max_waiting`. It is a `Refused` with `why`, `rule` and
    `retry_after`.
    """


class CostTooLarge(Refused):
    """The call costs more than the limit can ever give, so that no wait would help.

    Make the call smaller, or the burst of the rate larger. It is a `Refused` with `why` and `rule`; its
    `retry_after` is None.
    """


class CapacityExhausted(Refused):
    """Nothing is free now, and the caller would not wait, because its `timeout` is 0.

    It is a `Refused` with `why`, `rule` and `retry_after`, after which another try could succeed.
    """


class CircuitBreakerOpen(Refused):
    """The far side is failing, so it was not called. `__cause__` is the failure that opened the circuit.

    Do without the answer, or try again after `retry_after` seconds, when a probe may go. It is a `Refused`
    with `why`, `rule` and `retry_after`.
    """


class BudgetExceeded(Refused):
    """A budget of tokens or money does not cover the call.

    `budget` names that budget, `remaining` is what it has left, and `retry_after` is the number of seconds
    after which the call would fit: None if it never will. It is a `Refused` with `why` and `rule`, the limit.
    """

    def __init__(
        self, why: str, *, rule: str, budget: str, remaining: int, retry_after: float | None = None
    ) -> None:
        super().__init__(why, rule=rule, retry_after=retry_after)
        self.budget = budget
        self.remaining = remaining


class Closed(Refused):
    """The gate, limiter or budget was closed by `close()` or the end of its block; it admits no more calls.

    Callers that waited get it too. It is a `Refused` with `why` and `rule`; its `retry_after` is None.
    """


class StoreError(HeadgateError):
    """The shared store or bus could not be asked, as a gate, breaker or budget with `store=` needs it to be.

    Check its address and that it runs. A gate that has lost its store later goes on as `on_loss` says
    instead.
    """
