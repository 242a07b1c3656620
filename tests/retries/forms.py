"""Every form of retrying (decorator, function, loop; sync and async), and a far side to call with it."""

import inspect
from itertools import pairwise
from types import SimpleNamespace

from headgate import (
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
    retrying,
)
from headgate.retries import policy
from headgate.testing import ManualClock, run


def middle():
    """A draw of one half, for which jitter leaves delays as they are."""
    return 0.5


class FarSide:
    """Gives one answer after the other, and the last one again and again. Exceptions are raised."""

    def __init__(self, *answers, takes=0.0):
        self.answers = list(answers)
        self.takes = takes  # seconds that each answer takes
        self.asked_at = []
        self.clock = None

    def __call__(self):
        self.asked_at.append(self.clock.seconds())
        self.clock.advance(self.takes)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException) or (
            isinstance(answer, type) and issubclass(answer, BaseException)
        ):
            raise answer
        return answer() if callable(answer) else answer

    @property
    def calls(self):
        return len(self.asked_at)

    @property
    def waits(self):
        """From the end of one call to the beginning of the next."""
        return [round(later - earlier - self.takes, 9) for earlier, later in pairwise(self.asked_at)]


class Outcome(SimpleNamespace):
    """How a call ended: `result` or `error`, and `at` what time."""


def decorator(ask, clock, options):
    return retry(clock=clock, **options)(ask)()


def function(ask, clock, options):
    return retry_with_backoff(ask, clock=clock, **options)


def with_backoff(options):
    """The same options for `retrying`, which takes all delays as one Backoff."""
    names = ("base_delay", "max_delay", "exponential_base", "jitter")
    delays = {name: options[name] for name in names if name in options}
    rest = {name: value for name, value in options.items() if name not in names}
    return {"backoff": policy.delays(None, **delays), **rest} if delays else rest


def loop(ask, clock, options):
    for attempt in retrying(clock=clock, **with_backoff(options)):
        with attempt:
            return ask()
    raise AssertionError("the loop ended without a result or an error")


async def decorator_async(ask, clock, options):
    @retry(clock=clock, **options)
    async def ask_async():
        return ask()

    return await ask_async()


async def function_async(ask, clock, options):
    async def ask_async():
        return ask()

    return await retry_with_backoff_async(ask_async, clock=clock, **options)


async def loop_async(ask, clock, options):
    async for attempt in retrying(clock=clock, **with_backoff(options)):
        with attempt:
            return ask()
    raise AssertionError("the loop ended without a result or an error")


FORMS = {
    "decorator": decorator,
    "function": function,
    "loop": loop,
    "decorator, async": decorator_async,
    "function, async": function_async,
    "loop, async": loop_async,
}


def outcome_of(form, far, options):
    options = {"random": middle, **options}
    if inspect.iscoroutinefunction(form):

        async def main(clock):
            far.clock = clock
            try:
                return Outcome(result=await form(far, clock, options), error=None, at=clock.seconds())
            except BaseException as error:  # noqa: BLE001 - this is the outcome
                return Outcome(result=None, error=error, at=clock.seconds())

        return run(main)
    clock = far.clock = ManualClock(auto_advance=True)
    try:
        return Outcome(result=form(far, clock, options), error=None, at=clock.seconds())
    except BaseException as error:  # noqa: BLE001 - this is the outcome too
        return Outcome(result=None, error=error, at=clock.seconds())


def notes(error):
    return getattr(error, "__notes__", [])


def run_loop(kind, body, **options):
    """Run a loop with `for` or `async for`: `body(attempt, clock)` is the work. Returns (error, moment)."""

    async def main(clock):
        try:
            async for attempt in retrying(clock=clock, random=middle, **options):
                with attempt:
                    body(attempt, clock)
        except Exception as error:  # noqa: BLE001 - the outcome
            return error, clock.seconds()
        return None, clock.seconds()

    if kind == "async":
        return run(main)
    clock = ManualClock(auto_advance=True)
    try:
        for attempt in retrying(clock=clock, random=middle, **options):
            with attempt:
                body(attempt, clock)
    except Exception as error:  # noqa: BLE001 - the outcome
        return error, clock.seconds()
    return None, clock.seconds()
