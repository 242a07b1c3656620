"""Every form of retrying (decorator, function, loop; sync and async), and a far side to call with it."""

import email.message
import inspect
import urllib.error
from itertools import pairwise
from types import SimpleNamespace

import aiohttp
import httpx
import httpx2
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from headgate import (
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
    retrying,
)
from headgate.retries.policy import default_backoff
from headgate.testing import ManualClock, run

ADDRESS = "https://api.example.com/v1/things"


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
    return {"backoff": default_backoff(**delays), **rest} if delays else rest


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


def httpx_error(status, headers=(), method="POST", sent=(), library=httpx):
    request = library.Request(method, ADDRESS, headers=dict(sent))
    response = library.Response(status, headers=dict(headers), request=request)
    return library.HTTPStatusError(f"{status}", request=request, response=response)


def httpx2_error(*arguments, **options):
    return httpx_error(*arguments, **options, library=httpx2)


def requests_error(status, headers=(), method="POST", sent=()):
    response = requests.Response()
    response.status_code = status
    response.headers.update(dict(headers))
    response._content = b""
    response.request = requests.Request(method, ADDRESS, headers=dict(sent)).prepare()
    return requests.HTTPError(f"{status}", response=response)


def aiohttp_error(status, headers=(), method="POST", sent=()):
    info = aiohttp.RequestInfo(URL(ADDRESS), method, CIMultiDictProxy(CIMultiDict(sent)), URL(ADDRESS))
    return aiohttp.ClientResponseError(
        info, (), status=status, headers=CIMultiDictProxy(CIMultiDict(headers))
    )


def urllib_error(status, headers=(), method="POST", sent=()):
    message = email.message.Message()
    for name, value in dict(headers).items():
        message[name] = value
    return urllib.error.HTTPError(ADDRESS, status, "no", message, None)


def sdk_error(name):
    """Errors shaped as openai and anthropic do; the SDKs are not installed here."""

    def http_error(status, headers=(), method="POST", sent=()):
        error = type("APIStatusError", (Exception,), {"__module__": name})(f"Error code: {status}")
        error.response = httpx2_error(status, headers, method, sent).response
        error.request, error.status_code, error.body = error.response.request, status, None
        return error

    return http_error


CLIENTS = {
    "httpx": httpx_error,
    "httpx2": httpx2_error,
    "requests": requests_error,
    "aiohttp": aiohttp_error,
    "urllib": urllib_error,
    "openai": sdk_error("openai"),
    "anthropic": sdk_error("anthropic"),
}


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
