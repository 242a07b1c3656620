"""What SPEC parts 9 to 11, 17.1, 17.2, R-7, R-13, R-14, D-33 to D-41 and D-78 to D-84 say about retrying.

Every scenario is run in each form there is: decorator, function and loop, in a thread and in a task.
"""

import asyncio
import contextlib
import email.message
import functools
import gc
import inspect
import logging
import random
import sys
import threading
import urllib.error
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import aiohttp
import httpx
import httpx2
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from forks import in_a_child, needs_fork
from headgate import (
    Backoff,
    CapacityExhausted,
    HeadgateError,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    RetryBudget,
    events,
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
    retrying,
)
from headgate.retries.policy import default_backoff
from headgate.testing import ManualClock, Recorder, run
from patience import PATIENCE, eventually

ADDRESS = "https://api.example.com/v1/things"


def middle():
    """Dice that always show the middle: U = 1."""
    return 0.5


# -- the far side, and the forms of asking it


class FarSide:
    """Answers one after the other, the last one for ever. What is an exception is raised."""

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
    """How it ended: `result` or `error`, and `at` what time."""


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
            except BaseException as error:  # noqa: BLE001 - whatever came out is the outcome
                return Outcome(result=None, error=error, at=clock.seconds())

        return run(main)
    clock = far.clock = ManualClock(auto_advance=True)
    try:
        return Outcome(result=form(far, clock, options), error=None, at=clock.seconds())
    except BaseException as error:  # noqa: BLE001 - likewise
        return Outcome(result=None, error=error, at=clock.seconds())


@pytest.fixture(params=FORMS)
def ask(request):
    """Ask the far side in one of the forms, in virtual time."""
    return lambda far, **options: outcome_of(FORMS[request.param], far, options)


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "headgate")


class Passing(Exception):
    """Transient, as it says itself."""

    retry_after = 0


def notes(error):
    return getattr(error, "__notes__", [])


# -- TR-01 to TR-07, TD-01 to TD-05: the tutorial's retry


def test_a_call_that_succeeds_is_made_once(ask):
    """TR-02: its result is returned as it is."""
    result = object()
    far = FarSide(lambda: result)
    outcome = ask(far)
    assert outcome.result is result
    assert (far.calls, outcome.at) == (1, 0.0)


@pytest.mark.parametrize("result", [None, False, 0, "", Exception, ValueError("a value")])
def test_whatever_is_returned_is_a_success(ask, result):
    """RR-01: no result is taken for a failure, nor for a reason to wait (D-39)."""
    far = FarSide(lambda: result)
    assert ask(far).result is result
    assert far.calls == 1


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_the_first_success_is_returned(ask, failures):
    """TR-02, TR-03: with U = 1 the waits are 1, 2 and 4."""
    far = FarSide(*[ConnectionResetError() for _ in range(failures)], "hello")
    outcome = ask(far)
    assert (outcome.result, far.calls) == ("hello", failures + 1)
    assert far.waits == [1.0, 2.0, 4.0][:failures]


def test_three_retries_are_four_calls_and_no_sleep_after_the_last(ask):
    """TR-01, TR-02, TR-04, R-13."""
    errors = [ConnectionResetError(number) for number in range(4)]
    far = FarSide(*errors)
    outcome = ask(far)
    assert far.calls == 4
    assert far.waits == [1.0, 2.0, 4.0]
    assert outcome.at == 7.0
    assert outcome.error is errors[3]


@pytest.mark.parametrize("max_retries", [0, 1, 2, 7])
def test_n_retries_are_n_plus_one_calls(ask, max_retries):
    """R-13, TR-07, PO-03."""
    far = FarSide(TimeoutError)
    ask(far, max_retries=max_retries)
    assert far.calls == max_retries + 1


def test_retries_that_are_off_mean_one_call_and_no_sleep(ask):
    """TR-07, D-38."""
    error = ConnectionResetError()
    far = FarSide(error)
    outcome = ask(far, max_retries=0)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)


def test_without_a_limit_it_goes_on_until_it_works(ask, quiet):
    """RT-01, D-33: 1 100 retries pass the point where 2.0 ** retry overflows."""
    far = FarSide(*[TimeoutError() for _ in range(1_100)], "at last")
    assert ask(far, max_retries=None).result == "at last"
    assert far.calls == 1_101
    assert set(far.waits[10:]) == {40.0}  # the cap of 60 is 1.5 times as much


@pytest.mark.parametrize(("draw", "waits"), [(0.0, [0.5, 1.0, 2.0]), (1.0, [1.5, 3.0, 6.0])])
def test_jitter_is_from_half_to_one_and_a_half(ask, draw, waits):
    """TR-03, TD-03."""
    far = FarSide(TimeoutError)
    ask(far, random=lambda: draw)
    assert far.waits == waits


def test_without_jitter_the_dice_do_not_matter(ask):
    """TR-03."""
    far = FarSide(TimeoutError)
    ask(far, jitter=False, random=lambda: 0.0)
    assert far.waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999999, 1.0])
@pytest.mark.parametrize("jitter", [True, False])
def test_no_wait_is_longer_than_max_delay(ask, draw, jitter):
    """D-79, D-82, R-14: the seed waited up to 90 s at a cap of 60, and its decorator for ever."""
    far = FarSide(TimeoutError)
    ask(far, max_retries=12, jitter=jitter, random=lambda: draw)
    assert max(far.waits) <= 60.0
    assert far.waits[0] <= 1.5


def test_waits_grow_by_the_exponential_base_up_to_max_delay(ask):
    """TR-01, TR-03."""
    far = FarSide(TimeoutError)
    ask(far, max_retries=5, base_delay=0.5, max_delay=10, exponential_base=3, jitter=False)
    assert far.waits == [0.5, 1.5, 4.5, 10.0, 10.0]


def test_delays_may_be_timedeltas(ask):
    """R-16."""
    far = FarSide(TimeoutError)
    ask(far, base_delay=timedelta(seconds=2), max_delay=timedelta(seconds=5), jitter=False)
    assert far.waits == [2.0, 4.0, 5.0]


def test_a_backoff_says_all_about_delays(ask):
    """BO-11, PO-02."""
    far = FarSide(TimeoutError)
    ask(far, backoff=Backoff(3, 7, strategy="linear"))
    assert far.waits == [3.0, 6.0, 7.0]


def test_a_decorrelated_backoff_goes_by_the_wait_before(ask):
    """D-32."""
    far = FarSide(TimeoutError)
    ask(far, max_retries=4, backoff=Backoff(1, 30, jitter="decorrelated"), random=lambda: 1.0)
    assert far.waits == [3.0, 9.0, 27.0, 30.0]


def test_a_wait_of_nothing_is_no_obstacle(ask):
    far = FarSide(TimeoutError)
    ask(far, backoff=Backoff(1, 30, jitter="full"), random=lambda: 0.0)
    assert far.waits == [0.0, 0.0, 0.0]


# -- what is retried


@pytest.mark.parametrize(
    "error", [ValueError("temperature"), KeyError("x"), TypeError(), ZeroDivisionError(), PermissionError()]
)
def test_by_default_only_what_may_pass_is_retried(ask, error):
    """D-78: one call, no sleep, and nothing was added to the error."""
    far = FarSide(error)
    outcome = ask(far)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(error) == []


@pytest.mark.parametrize(
    "kind", [ConnectionResetError, ConnectionRefusedError, BrokenPipeError, TimeoutError, Passing]
)
def test_what_may_pass_is_retried(ask, kind):
    """TR-06a."""
    far = FarSide(kind)
    ask(far)
    assert far.calls == 4


@pytest.mark.parametrize("exceptions", [KeyError, (KeyError,), (ValueError, KeyError), LookupError])
def test_only_the_listed_types_are_retried(ask, exceptions):
    """TD-01, TD-02: subclasses too; nothing else, not even a time-out."""
    far = FarSide(KeyError("x"))
    ask(far, exceptions=exceptions)
    assert far.calls == 4
    far = FarSide(TimeoutError())
    outcome = ask(far, exceptions=exceptions)
    assert (far.calls, outcome.at, notes(outcome.error)) == (1, 0.0, [])


def test_a_listed_error_may_turn_into_one_that_is_not(ask):
    """TD-02."""
    last = ValueError("final")
    far = FarSide(KeyError("x"), last)
    outcome = ask(far, exceptions=KeyError)
    assert outcome.error is last
    assert far.calls == 2
    assert notes(last) == []


def test_everything_may_be_listed(ask):
    """TD-01: as the seed has it by default."""
    far = FarSide(ZeroDivisionError)
    ask(far, exceptions=Exception)
    assert far.calls == 4


def test_nothing_may_be_listed(ask):
    far = FarSide(TimeoutError)
    ask(far, exceptions=())
    assert far.calls == 1


def test_a_question_that_always_says_yes_ends_with_the_retries(ask):
    """D-36, RR-05: max_retries 3 and always true are exactly four calls."""
    far = FarSide(ValueError)
    ask(far, exceptions=lambda error: True)
    assert far.calls == 4


def test_a_question_is_asked_about_each_error(ask):
    """RR-03."""
    seen = []

    def temporary(error):
        seen.append(error)
        return error.args == ("again",)

    errors = [ValueError("again"), ValueError("again"), ValueError("enough")]
    far = FarSide(*errors)
    outcome = ask(far, exceptions=temporary)
    assert seen == errors
    assert outcome.error is errors[2]
    assert far.calls == 3


def test_a_refusal_of_our_own_is_not_retried_unless_it_is_listed(ask):
    """RS-03: then its own retry_after counts."""

    def refused():
        raise CapacityExhausted("nothing left", rule="requests/minute", retry_after=20.0)

    far = FarSide(refused)
    ask(far)
    assert far.calls == 1
    far = FarSide(refused, "hello")
    assert ask(far, exceptions=CapacityExhausted, jitter=False).result == "hello"
    assert far.waits == [20.0]


# -- TR-05: what is not an Exception passes at once


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("options", [{}, {"exceptions": Exception}, {"exceptions": lambda error: True}])
def test_interrupts_exits_and_cancellation_pass_at_once(ask, kind, options):
    """TR-05."""
    stop = kind()
    far = FarSide(stop)
    outcome = ask(far, **options)
    assert outcome.error is stop
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(stop) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_the_same_after_a_retry(ask, kind):
    far = FarSide(TimeoutError(), kind())
    outcome = ask(far)
    assert type(outcome.error) is kind
    assert (far.calls, outcome.at) == (2, 1.0)


@pytest.mark.parametrize(
    "form", [decorator_async, function_async, loop_async], ids=lambda form: form.__name__
)
def test_a_task_can_be_cancelled_while_it_waits(form):
    """TR-05: it ends at that moment, and is not asked again."""

    async def main(clock):
        far = FarSide(TimeoutError)
        far.clock = clock
        task = asyncio.ensure_future(form(far, clock, {"base_delay": 50, "jitter": False}))
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        moment = clock.seconds()
        await asyncio.sleep(1_000)
        return far.calls, moment

    assert run(main) == (1, 10.0)


@pytest.mark.parametrize(
    "form", [decorator_async, function_async, loop_async], ids=lambda form: form.__name__
)
def test_a_timeout_around_it_ends_the_wait(form):
    async def main(clock):
        far = FarSide(TimeoutError)
        far.clock = clock
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(10):
                await form(far, clock, {"base_delay": 50, "jitter": False})
        return far.calls, clock.seconds(), notes(caught.value)

    assert run(main) == (1, 10.0, [])


# -- what is raised in the end


def test_the_last_exception_is_raised_itself_with_a_note(ask):
    """TR-04, TD-05: unwrapped, and not chained to anything of ours."""
    errors = [ConnectionResetError(number) for number in range(4)]
    outcome = ask(FarSide(*errors))
    assert outcome.error is errors[3]
    assert outcome.error.__cause__ is None
    assert notes(outcome.error) == ["headgate: gave up after 4 calls: no retries are left"]
    assert all(notes(error) == [] for error in errors[:3])


def test_with_retries_off_the_note_says_so(ask):
    outcome = ask(FarSide(TimeoutError()), max_retries=0)
    assert notes(outcome.error) == ["headgate: gave up after 1 call: retries are off"]


def test_the_same_object_raised_again_and_again_gets_one_note(ask):
    """An error that somebody keeps and raises for ever does not grow."""
    error = TimeoutError()
    for _ in range(3):
        assert ask(FarSide(error)).error is error
    assert len(notes(error)) == 1


def test_an_exception_that_takes_no_note_is_raised_all_the_same(ask):
    """TR-04: a frozen dataclass, for one."""

    @dataclass(frozen=True)
    class Frozen(Exception):
        status_code: int = 503

    error = Frozen()
    assert ask(FarSide(error)).error is error


def test_an_exception_whose_notes_are_no_list_is_raised_all_the_same(ask):
    """TR-04."""
    error = TimeoutError()
    error.__notes__ = None
    assert ask(FarSide(error)).error is error


def test_an_exception_that_cannot_be_read_is_raised_as_it_is(ask):
    """TR-04: reading it is our business, and our trouble."""

    class Hostile(Exception):
        @property
        def retry_after(self):
            raise RuntimeError("do not touch")

    error = Hostile()
    far = FarSide(error)
    assert ask(far, exceptions=Hostile).error is error
    assert far.calls == 4


# -- Retry-After


def of_httpx(status, headers=(), method="POST", sent=(), library=httpx):
    request = library.Request(method, ADDRESS, headers=dict(sent))
    response = library.Response(status, headers=dict(headers), request=request)
    return library.HTTPStatusError(f"{status}", request=request, response=response)


def of_httpx2(*arguments, **options):
    return of_httpx(*arguments, **options, library=httpx2)


def of_requests(status, headers=(), method="POST", sent=()):
    response = requests.Response()
    response.status_code = status
    response.headers.update(dict(headers))
    response._content = b""
    response.request = requests.Request(method, ADDRESS, headers=dict(sent)).prepare()
    return requests.HTTPError(f"{status}", response=response)


def of_aiohttp(status, headers=(), method="POST", sent=()):
    info = aiohttp.RequestInfo(URL(ADDRESS), method, CIMultiDictProxy(CIMultiDict(sent)), URL(ADDRESS))
    return aiohttp.ClientResponseError(
        info, (), status=status, headers=CIMultiDictProxy(CIMultiDict(headers))
    )


def of_urllib(status, headers=(), method="POST", sent=()):
    message = email.message.Message()
    for name, value in dict(headers).items():
        message[name] = value
    return urllib.error.HTTPError(ADDRESS, status, "no", message, None)


def of_sdk(name):
    """As openai and anthropic shape theirs; they are not installed here."""

    def of(status, headers=(), method="POST", sent=()):
        error = type("APIStatusError", (Exception,), {"__module__": name})(f"Error code: {status}")
        error.response = of_httpx2(status, headers, method, sent).response
        error.request, error.status_code, error.body = error.response.request, status, None
        return error

    return of


CLIENTS = {
    "httpx": of_httpx,
    "httpx2": of_httpx2,
    "requests": of_requests,
    "aiohttp": of_aiohttp,
    "urllib": of_urllib,
    "openai": of_sdk("openai"),
    "anthropic": of_sdk("anthropic"),
}


@pytest.fixture(params=CLIENTS)
def of(request):
    return CLIENTS[request.param]


@pytest.fixture(params=[name for name in CLIENTS if name != "urllib"])
def of_knowing(request):
    """Clients whose errors know what was sent."""
    return CLIENTS[request.param]


@pytest.mark.parametrize("status", [429, 503, 529, 500])
@pytest.mark.parametrize(
    ("headers", "told"),
    [({"Retry-After": "30"}, 30.0), ({"retry-after-ms": "2500"}, 2.5), ({"Retry-After": "90"}, 90.0)],
)
def test_the_far_side_is_asked_when_it_said_without_jitter(ask, of, status, headers, told):
    """D-80, R-7, RT-04, R-14: even later than max_delay."""
    far = FarSide(of(status, headers), "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [told]


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.999])
def test_with_jitter_never_earlier_and_only_a_little_later(ask, of, draw):
    """D-80, B5."""
    far = FarSide(of(429, {"Retry-After": "30"}), "hello")
    assert ask(far, random=lambda: draw).result == "hello"
    assert 30.0 <= far.waits[0] <= 35.0
    assert (far.waits[0] == 30.0) == (draw == 0.0)


def test_dice_that_are_wrong_do_not_bring_the_try_forward(ask):
    """D-80."""
    far = FarSide(of_httpx(429, {"Retry-After": "30"}), "hello")
    ask(far, random=lambda: -1.0)
    assert far.waits[0] >= 30.0


def test_a_shorter_wait_than_the_backoff_does_not_shorten_it(ask, of):
    far = FarSide(of(429, {"Retry-After": "0"}))
    ask(far, jitter=False)
    assert far.waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("value", ["-5", "soon", "", "nan", "1e999", "2026-99-99T00:00:00Z"])
def test_what_cannot_be_read_is_no_wait_and_no_error(ask, of, value):
    """R-7."""
    far = FarSide(of(503, {"Retry-After": value}), "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits[0] >= 1.0


def test_an_exception_of_ones_own_may_say_how_long(ask):
    class Busy(Exception):
        retry_after = 12.5

    far = FarSide(Busy, "hello")
    assert ask(far, jitter=False).result == "hello"
    assert far.waits == [12.5]


@pytest.mark.parametrize("value", [-1, float("nan"), "soon", None, [], object()])
def test_what_is_no_wait_is_ignored(ask, value):
    """D-39: a reason never affects the delay."""

    class Busy(Exception):
        retry_after = value

    far = FarSide(Busy, "hello")
    assert ask(far, exceptions=Busy, jitter=False).result == "hello"
    assert far.waits == [1.0]


def test_true_is_no_number_of_seconds(ask):
    class Busy(Exception):
        retry_after = True

    far = FarSide(Busy, "hello")
    ask(far, exceptions=Busy, base_delay=0.25, jitter=False)
    assert far.waits == [0.25]


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_plain_no_is_not_repeated(ask, of, status):
    """D-78, HR-01."""
    far = FarSide(of(status))
    ask(far)
    assert far.calls == 1


def test_the_far_side_may_say_not_to_come_back(ask, of):
    """HR-02."""
    far = FarSide(of(503, {"x-should-retry": "false", "Retry-After": "1"}))
    ask(far)
    assert far.calls == 1
    far = FarSide(of(400, {"x-should-retry": "true"}))
    ask(far)
    assert far.calls == 4


@given(told=st.integers(0, 100_000), draw=st.floats(0, 1, exclude_max=True), jitter=st.booleans())
@settings(max_examples=50, deadline=None)
def test_never_earlier_than_told(told, draw, jitter):
    """D-80, as a law."""
    far = FarSide(of_httpx(429, {"Retry-After": str(told)}), "hello")
    outcome_of(decorator, far, {"jitter": jitter, "random": lambda: draw})
    assert far.waits[0] >= told


# -- D-41: what may have been carried out


@pytest.mark.parametrize("status", [500, 502, 504, 409])
def test_a_post_that_may_have_been_carried_out_is_not_repeated(ask, of, status):
    error = of(status, method="POST")
    far = FarSide(error)
    outcome = ask(far, idempotent=False)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(error) == [
        "headgate: gave up after 1 call: it may have been carried out, and doing it twice is not allowed"
    ]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_a_method_that_may_be_repeated_is(ask, of_knowing, method):
    far = FarSide(of_knowing(500, method=method))
    ask(far, idempotent=False)
    assert far.calls == 4


def test_a_post_with_a_key_is_repeated(ask, of_knowing):
    far = FarSide(of_knowing(500, method="POST", sent={"Idempotency-Key": "8e03978e"}))
    ask(far, idempotent=False)
    assert far.calls == 4


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_post_that_was_turned_away_is_repeated(ask, of, status):
    far = FarSide(of(status, method="POST"))
    ask(far, idempotent=False)
    assert far.calls == 4


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ConnectionRefusedError(), 4),
        (ConnectionResetError(), 1),
        (TimeoutError(), 1),
        (httpx.ConnectError("refused", request=httpx.Request("POST", ADDRESS)), 4),
        (httpx.ReadTimeout("slow", request=httpx.Request("POST", ADDRESS)), 1),
        (httpx.ReadTimeout("slow", request=httpx.Request("GET", ADDRESS)), 4),
        (httpx.ReadTimeout("slow"), 1),
        (requests.ConnectTimeout("slow"), 4),
        (requests.ReadTimeout("slow", request=requests.Request("POST", ADDRESS).prepare()), 1),
        (requests.ReadTimeout("slow", request=requests.Request("GET", ADDRESS).prepare()), 4),
        (aiohttp.ServerDisconnectedError(), 1),
        (aiohttp.ConnectionTimeoutError(), 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_was_never_sent_is_repeated_and_what_was_lost_is_not(ask, error, calls):
    far = FarSide(error)
    ask(far, idempotent=False)
    assert far.calls == calls


def test_it_holds_for_listed_errors_too(ask):
    """A list says what is worth it, not what is safe."""
    far = FarSide(ConnectionResetError())
    ask(far, exceptions=ConnectionError, idempotent=False)
    assert far.calls == 1


def test_by_default_all_of_it_is_repeated(ask, of):
    far = FarSide(of(500, method="POST"))
    ask(far)
    assert far.calls == 4


# -- the deadline


def test_no_try_starts_after_the_deadline_and_no_sleep_leads_past_it(ask):
    """D-35: waits of 1, 2, 4 from 0: the third would start at 7."""
    error = TimeoutError()
    far = FarSide(TimeoutError(), TimeoutError(), error)
    outcome = ask(far, deadline=6.5)
    assert far.asked_at == [0.0, 1.0, 3.0]
    assert outcome.at == 3.0
    assert outcome.error is error
    assert notes(error) == [
        "headgate: gave up after 3 calls: the next try, in 4.00 s, would be after the deadline in 3.50 s"
    ]


def test_a_try_at_the_deadline_itself_is_made(ask):
    """RT-05: strictly after."""
    far = FarSide(TimeoutError)
    ask(far, deadline=7)
    assert far.asked_at == [0.0, 1.0, 3.0, 7.0]


def test_the_time_that_calls_take_counts(ask):
    far = FarSide(TimeoutError, takes=10.0)
    outcome = ask(far, deadline=30)
    assert far.asked_at == [0.0, 11.0, 23.0]
    assert outcome.at == 33.0


def test_a_success_after_the_deadline_is_a_success(ask):
    """D-34, RT-09: limits only stop further tries."""
    far = FarSide("late", takes=100.0)
    assert ask(far, deadline=5).result == "late"
    far = FarSide(TimeoutError(), "late", takes=4.5)
    assert ask(far, deadline=6).result == "late"
    assert far.calls == 2


def test_a_wait_that_the_far_side_asked_for_is_not_cut_short_by_the_deadline(ask):
    """D-35, D-80: give up at once."""
    far = FarSide(of_httpx(429, {"Retry-After": "30"}))
    outcome = ask(far, deadline=20)
    assert (far.calls, outcome.at) == (1, 0.0)
    assert "deadline" in notes(outcome.error)[0]


def test_a_deadline_of_nothing_means_one_call(ask):
    far = FarSide(TimeoutError)
    ask(far, deadline=0)
    assert far.calls == 1


def test_a_deadline_may_be_a_timedelta_and_stop_what_has_no_other_limit(ask, quiet):
    far = FarSide(TimeoutError)
    outcome = ask(far, max_retries=None, deadline=timedelta(hours=1))
    assert outcome.at <= 3600.0
    assert far.calls > 80


def test_a_deadline_counts_for_each_call_by_itself():
    clock = ManualClock(auto_advance=True)
    far = FarSide(TimeoutError)
    far.clock = clock
    guarded = retry(deadline=3, jitter=False, clock=clock)(far)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            guarded()
        clock.advance(1_000)
    assert far.calls == 9


# -- D-37: progress


def run_loop(colour, body, **options):
    """A loop in either colour: `body(attempt, clock)` is the work. Gives (error, moment)."""

    async def main(clock):
        try:
            async for attempt in retrying(clock=clock, random=middle, **options):
                with attempt:
                    body(attempt, clock)
        except Exception as error:  # noqa: BLE001 - the outcome
            return error, clock.seconds()
        return None, clock.seconds()

    if colour == "async":
        return run(main)
    clock = ManualClock(auto_advance=True)
    try:
        for attempt in retrying(clock=clock, random=middle, **options):
            with attempt:
                body(attempt, clock)
    except Exception as error:  # noqa: BLE001 - the outcome
        return error, clock.seconds()
    return None, clock.seconds()


@pytest.fixture(params=["sync", "async"])
def colour(request):
    return request.param


def test_without_progress_a_job_is_given_up(colour):
    """D-37, RT-07: ten seconds a try and one in between; the fourth would start after 33."""
    tries = []

    def body(attempt, clock):
        tries.append(clock.seconds())
        clock.advance(10)
        raise ConnectionResetError

    error, _ = run_loop(
        colour, body, max_retries=None, backoff=Backoff(1, strategy="constant"), progress_timeout=30
    )
    assert tries == [0.0, 11.0, 22.0]
    assert isinstance(error, ConnectionResetError)
    assert notes(error) == ["headgate: gave up after 3 calls: nothing has got any further for 32.00 s"]


def test_with_progress_it_goes_on(colour):
    """D-37, RT-06: reported from inside the operation, on the same clock."""
    tries = []

    def body(attempt, clock):
        tries.append(clock.seconds())
        clock.advance(10)
        attempt.progress()
        if len(tries) < 20:
            raise ConnectionResetError

    error, moment = run_loop(
        colour, body, max_retries=None, backoff=Backoff(1, strategy="constant"), progress_timeout=30
    )
    assert error is None
    assert len(tries) == 20
    assert moment == 219.0


def test_a_late_success_without_progress_is_a_success(colour):
    """D-34."""
    error, moment = run_loop(colour, lambda attempt, clock: clock.advance(1_000), progress_timeout=5)
    assert (error, moment) == (None, 1_000.0)


# -- the loop


def test_a_loop_counts_its_tries_and_ends_after_the_one_that_worked(colour):
    numbers = []

    def body(attempt, clock):
        numbers.append(attempt.number)
        if attempt.number < 3:
            raise TimeoutError

    assert run_loop(colour, body) == (None, 3.0)
    assert numbers == [1, 2, 3]


def test_code_after_the_block_runs_after_every_try():
    """What is meant for the one that worked belongs into the block, or after the loop."""
    reached = []
    for attempt in retrying(clock=ManualClock(auto_advance=True)):
        with attempt:
            if attempt.number < 3:
                raise TimeoutError
        reached.append(attempt.number)
    assert reached == [1, 2, 3]


def test_a_loop_that_is_left_is_over():
    far = FarSide(TimeoutError)
    far.clock = clock = ManualClock(auto_advance=True)
    for attempt in retrying(clock=clock):
        with attempt:
            if attempt.number == 2:
                break
            far()
    assert far.calls == 1


def test_an_attempt_that_was_not_entered_is_said_at_once(colour):
    """Without it, the loop would be over after one round, whatever happened."""

    def forgotten():
        for _attempt in retrying(clock=ManualClock()):
            pass

    async def forgotten_async(clock):
        async for _attempt in retrying(clock=clock):
            pass

    with pytest.raises(RuntimeError, match="with attempt:"):
        run(forgotten_async) if colour == "async" else forgotten()


def test_an_attempt_is_entered_once():
    for attempt in retrying(clock=ManualClock()):
        with attempt:
            pass
        with pytest.raises(RuntimeError, match="entered once"), attempt:
            pass


def test_a_plan_may_be_gone_through_again_and_by_several_at_once():
    """Nothing of one call is kept on the plan (ANCHORS 5.5)."""
    clock = ManualClock(auto_advance=True)
    plan = retrying(max_retries=1, backoff=Backoff(1), clock=clock)
    numbers = []

    def one_inside_the_other():
        for attempt in plan:
            with attempt:
                numbers.append(attempt.number)
                for inner in plan:
                    with inner:
                        raise TimeoutError

    for _ in range(3):
        with pytest.raises(TimeoutError):
            one_inside_the_other()
    assert numbers == [1, 2, 1, 2, 1, 2]


def test_attempts_and_plans_say_what_they_are():
    clock = ManualClock(auto_advance=True)
    plan = retrying(2, clock=clock)
    assert "2 retries" in repr(plan)
    assert "any number of retries" in repr(retrying(None))
    for attempt in plan:
        assert repr(attempt) == "<Attempt 1, waiting>"
        with attempt as entered:
            assert entered is attempt
            assert repr(attempt) == "<Attempt 1, running>"
    assert repr(attempt) == "<Attempt 1, over>"


# -- D-84: what is reported


def test_each_retry_is_told(ask):
    """TR-06, TD-05, D-84: the first is number 1."""
    seen = Recorder()
    errors = [TimeoutError(number) for number in range(4)]
    ask(FarSide(*errors), on_retry=seen)
    told = seen.of(events.Retrying)
    assert len(told) == len(seen.events) == 3
    assert [event.retry for event in told] == [1, 2, 3]
    assert [event.max_retries for event in told] == [3, 3, 3]
    assert [event.delay for event in told] == [1.0, 2.0, 4.0]
    assert [event.error for event in told] == errors[:3]
    assert [event.at for event in told] == [0.0, 1.0, 3.0]


def test_nothing_is_told_when_nothing_is_retried(ask, caplog):
    seen = Recorder()
    ask(FarSide("hello"), on_retry=seen)
    ask(FarSide(ValueError()), on_retry=seen)
    ask(FarSide(TimeoutError()), on_retry=seen, max_retries=0)
    ask(FarSide(TimeoutError()), on_retry=seen, deadline=0)
    assert seen.events == []
    assert caplog.records == []


def test_without_a_limit_the_event_has_none():
    seen = Recorder()
    outcome_of(decorator, FarSide(TimeoutError(), "hello"), {"max_retries": None, "on_retry": seen})
    assert seen.events[0].max_retries is None


def test_the_key_of_the_event_is_the_name_of_the_function():
    seen = Recorder()
    clock = ManualClock(auto_advance=True)
    answers = iter([TimeoutError(), "hello"])

    @retry(on_retry=seen, clock=clock)
    def fetch_the_page():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer

    fetch_the_page()
    assert seen.events[0].key.endswith("fetch_the_page")


def test_each_retry_is_logged(ask, caplog):
    """TR-06, TD-05, TN-06, D-84: as a warning, with the error and the delay to two decimals."""
    ask(FarSide(TimeoutError("slow"), TimeoutError("slow"), "hello"))
    assert [(record.name, record.levelname) for record in caplog.records] == [("headgate", "WARNING")] * 2
    first, second = caplog.messages
    assert "TimeoutError('slow')" in first
    assert "retry 1 of 3 in 1.00 s" in first
    assert "retry 2 of 3 in 2.00 s" in second


def test_without_a_limit_the_record_has_none(caplog):
    outcome_of(decorator, FarSide(TimeoutError(), "hello"), {"max_retries": None})
    assert "retry 1 in 1.00 s" in caplog.text


def test_nothing_is_printed(ask, capsys):
    """D-84."""
    ask(FarSide(TimeoutError))
    assert capsys.readouterr() == ("", "")


def test_a_hook_that_raises_changes_nothing(ask, caplog):
    """D-84, events: it is logged, and the call goes on."""

    def broken(event):
        raise ZeroDivisionError("a bug in the hook")

    far = FarSide(TimeoutError(), TimeoutError(), "hello")
    assert ask(far, on_retry=broken).result == "hello"
    assert far.waits == [1.0, 2.0]
    assert caplog.text.count("a bug in the hook") >= 2


def test_a_hook_that_interrupts_does(ask):
    """TR-05."""

    def stop(event):
        raise KeyboardInterrupt

    far = FarSide(TimeoutError())
    assert isinstance(ask(far, on_retry=stop).error, KeyboardInterrupt)
    assert far.calls == 1


# -- bad arguments change nothing and call nothing


BAD = [
    ({"max_retries": -1}, InvalidCapacity, "max_retries=-1"),
    ({"max_retries": 1.5}, InvalidCapacity, "max_retries=1.5"),
    ({"max_retries": "3"}, InvalidCapacity, "max_retries='3'"),
    ({"max_retries": True}, InvalidCapacity, "max_retries=True"),
    ({"base_delay": 0}, InvalidWindow, "base_delay=0"),
    ({"base_delay": -1}, InvalidWindow, "base_delay=-1"),
    ({"base_delay": float("nan")}, InvalidWindow, "base_delay=nan"),
    ({"base_delay": "1"}, InvalidWindow, "base_delay='1'"),
    ({"base_delay": None}, InvalidWindow, "base_delay=None"),
    ({"max_delay": -1}, InvalidWindow, "max_delay=-1"),
    ({"max_delay": 0.5}, InvalidWindow, "max_delay=0.5"),
    ({"max_delay": float("inf")}, InvalidWindow, "max_delay=inf"),
    ({"exponential_base": 0.5}, InvalidConfig, "=0.5"),
    ({"exponential_base": float("nan")}, InvalidConfig, "=nan"),
    ({"exponential_base": "2"}, InvalidConfig, "='2'"),
    ({"deadline": -1}, InvalidWindow, "deadline=-1"),
    ({"deadline": float("nan")}, InvalidWindow, "deadline=nan"),
    ({"deadline": "5"}, InvalidWindow, "deadline='5'"),
    ({"exceptions": "TimeoutError"}, InvalidConfig, "exceptions='TimeoutError'"),
    ({"exceptions": [TimeoutError]}, InvalidConfig, "exceptions=["),
    ({"exceptions": (TimeoutError, "x")}, InvalidConfig, "exceptions=("),
    ({"exceptions": KeyboardInterrupt}, InvalidConfig, "exceptions="),
    ({"exceptions": BaseException}, InvalidConfig, "exceptions="),
    ({"exceptions": (ValueError, SystemExit)}, InvalidConfig, "exceptions="),
    ({"exceptions": int}, InvalidConfig, "exceptions="),
    ({"exceptions": 7}, InvalidConfig, "exceptions=7"),
    ({"retry_budget": 0.2}, InvalidConfig, "retry_budget=0.2"),
    ({"on_retry": "print"}, InvalidConfig, "on_retry='print'"),
    ({"backoff": 1.0}, InvalidConfig, "backoff=1.0"),
]


@pytest.mark.parametrize(("options", "error", "says"), BAD, ids=lambda value: str(value)[:40])
def test_bad_arguments_are_refused_before_anything_is_called(ask, options, error, says):
    """D-81, D-39, RT-02, RC-01: what was given, and never a call."""
    far = FarSide("hello")
    outcome = ask(far, **options)
    assert isinstance(outcome.error, error)
    assert isinstance(outcome.error, ValueError)
    assert says in str(outcome.error)
    assert far.calls == 0


@pytest.mark.parametrize(
    "delays", [{"base_delay": 2}, {"max_delay": 2}, {"exponential_base": 3}, {"jitter": False}]
)
def test_a_backoff_beside_other_delays_is_refused(delays):
    with pytest.raises(InvalidConfig, match="backoff="):
        retry(backoff=Backoff(), **delays)
    with pytest.raises(InvalidConfig, match="backoff="):
        retry_with_backoff(lambda: "hello", backoff=Backoff(), **delays)
    with pytest.raises(TypeError):
        retrying(**delays)


@pytest.mark.parametrize(("options", "error", "says"), BAD, ids=lambda value: str(value)[:40])
def test_a_decorator_refuses_them_where_it_is_written(options, error, says):
    """D-81: at decoration, not at the first call; and a budget has earned nothing."""
    with pytest.raises(error):
        retry(**options)


@pytest.mark.parametrize("progress_timeout", [0, -1, float("nan"), "5"])
def test_a_progress_timeout_is_a_time(progress_timeout):
    """RT-02."""
    with pytest.raises(InvalidWindow, match="progress_timeout="):
        retrying(progress_timeout=progress_timeout)


@pytest.mark.parametrize("value", [0.5, "2", float("nan")])
def test_the_complaint_names_what_was_written(value):
    """DESIGN 4.12: what was given, and what to write instead."""
    with pytest.raises(InvalidLimit, match="exponential_base="):
        retry(exponential_base=value)


@pytest.mark.parametrize("value", [-1, 1.5])
def test_the_complaint_about_retries_is_about_retries(value):
    """DESIGN 4.12."""
    with pytest.raises(InvalidLimit, match="max_retries=") as caught:
        retry(max_retries=value)
    assert "costs" not in str(caught.value)
    assert "1200" not in str(caught.value)


@pytest.mark.parametrize("value", ["full", "none", ("range", 0.5, 1.5)])
def test_a_jitter_that_belongs_into_a_backoff_is_refused(value):
    """DESIGN 4.12: jitter="none" silently means jitter."""
    with pytest.raises(InvalidLimit, match="jitter="):
        retry(jitter=value)


def test_a_decorator_without_parentheses_says_so():
    with pytest.raises(InvalidConfig, match=r"@retry\(\) with parentheses"):

        @retry
        def ask(): ...


@pytest.mark.parametrize("option", ["sleep", "max_attempts", "retries", "tries"])
def test_options_that_do_not_exist_are_refused(option):
    """R-13: retries are never called attempts."""
    with pytest.raises(TypeError, match=option):
        retry(**{option: 3})
    with pytest.raises(TypeError, match=option):
        retry_with_backoff(lambda: "hello", **{option: 3})


# -- what can be retried: functions of every kind


def failing_once(result="hello"):
    far = FarSide(TimeoutError(), lambda: result)
    far.clock = ManualClock(auto_advance=True)
    return far


def test_arguments_and_results_pass_through_and_the_name_is_kept():
    """TD-04."""
    clock = ManualClock(auto_advance=True)
    calls = []

    @retry(clock=clock)
    def ask(prompt, /, *more, model="m", **options) -> str:
        """Ask the model."""
        calls.append((prompt, more, model, options))
        if len(calls) == 1:
            raise TimeoutError
        return prompt

    ask.mark = 1
    assert ask("hi", 1, 2, model="n", top=3) == "hi"
    assert calls == [("hi", (1, 2), "n", {"top": 3})] * 2
    assert (ask.__name__, ask.__doc__, ask.__module__) == ("ask", "Ask the model.", __name__)
    assert list(inspect.signature(ask).parameters) == ["prompt", "more", "model", "options"]
    assert ask.__annotations__ == {"return": str}
    assert ask.__wrapped__ is not ask
    assert not inspect.iscoroutinefunction(ask)


def test_an_async_function_stays_one():
    """TD-04, D-83."""

    @retry()
    async def ask(prompt: str) -> str:
        """Ask the model."""
        return prompt

    assert inspect.iscoroutinefunction(ask)
    assert (ask.__name__, ask.__doc__) == ("ask", "Ask the model.")

    async def main(clock):
        return await ask("hi")

    assert run(main) == "hi"


def test_methods_class_methods_and_static_methods():
    clock = ManualClock(auto_advance=True)

    class Client:
        def __init__(self):
            self.calls = 0

        @retry(clock=clock)
        def ask(self, prompt):
            self.calls += 1
            if self.calls == 1:
                raise TimeoutError
            return self, prompt

        @classmethod
        @retry(clock=clock)
        def of_class(cls, prompt):
            return cls, prompt

        @staticmethod
        @retry(clock=clock)
        def of_nobody(prompt):
            return prompt

    client = Client()
    assert client.ask("hi") == (client, "hi")
    assert client.calls == 2
    assert client.of_class("hi") == Client.of_class("hi") == (Client, "hi")
    assert client.of_nobody("hi") == Client.of_nobody("hi") == "hi"
    assert retry_with_backoff(functools.partial(client.ask, "bound"), clock=clock) == (client, "bound")


def test_async_methods():
    async def main(clock):
        class Client:
            calls = 0

            @retry(clock=clock)
            async def ask(self, prompt):
                self.calls += 1
                if self.calls == 1:
                    raise TimeoutError
                return self, prompt

        client = Client()
        assert inspect.iscoroutinefunction(client.ask)
        return await client.ask("hi") == (client, "hi"), client.calls

    assert run(main) == (True, 2)


class Asking:
    """A thing that is called, and fails once."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls == 1:
            raise TimeoutError
        return arguments


class AskingAsync(Asking):
    async def __call__(self, *arguments):
        return super().__call__(*arguments)


def test_partials_lambdas_builtins_and_things_that_are_called():
    clock = ManualClock(auto_advance=True)
    assert retry(clock=clock)(functools.partial(Asking(), 1))(2) == (1, 2)
    assert retry(clock=clock)(Asking())(3) == (3,)
    assert retry(clock=clock)(len)("abc") == 3
    assert retry(clock=clock)(str.upper)("abc") == "ABC"
    assert retry_with_backoff(Asking(), clock=clock) == ()
    assert retry_with_backoff(failing_once("x"), clock=clock) == "x"
    assert retry_with_backoff(dict, clock=clock) == {}


def test_the_same_for_async_ones():
    """D-83: whatever gives something to await, if it can be told."""

    async def ask(*arguments):
        return arguments

    async def main(clock):
        assert await retry(clock=clock)(functools.partial(ask, 1))(2) == (1, 2)
        assert await retry(clock=clock)(AskingAsync())(3) == (3,)
        assert await retry_with_backoff_async(AskingAsync(), clock=clock) == ()
        assert await retry_with_backoff_async(functools.partial(ask, 5), clock=clock) == (5,)
        # The function form awaits whatever it is given: it need not know beforehand.
        assert await retry_with_backoff_async(lambda: ask(4), clock=clock) == (4,)
        assert await retry_with_backoff_async(functools.partial(AskingAsync(), 6), clock=clock) == (6,)
        future = asyncio.get_running_loop().create_future()
        future.set_result("done")
        return await retry_with_backoff_async(lambda: future, clock=clock)

    assert run(main) == "done"


def test_an_async_function_is_not_retried_as_a_sync_one():
    """D-83: refused before it is called, with what to write instead."""

    async def ask(): ...

    for fn in (ask, functools.partial(ask), AskingAsync()):
        with pytest.raises(InvalidConfig, match="retry_with_backoff_async"):
            retry_with_backoff(fn, clock=ManualClock())


def test_a_coroutine_that_comes_as_a_surprise_is_not_passed_on_unawaited():
    """D-83: nor is it recorded as a success; and it is closed, so that nothing warns."""

    async def ask(): ...

    clock = ManualClock(auto_advance=True)
    with pytest.raises(InvalidConfig, match="is async"):
        retry_with_backoff(lambda: ask(), clock=clock)
    with pytest.raises(InvalidConfig, match="is async"):
        retry(clock=clock)(lambda: ask())()
    gc.collect()


def test_not_even_after_a_retry():
    """D-83."""

    async def ask(): ...

    handed = []

    def surprise():
        handed.append(ask())
        return handed[-1]

    far = FarSide(TimeoutError(), surprise)
    far.clock = ManualClock(auto_advance=True)
    try:
        with pytest.raises(InvalidConfig, match="is async"):
            retry_with_backoff(far, clock=far.clock)
    finally:
        handed[-1].close()


@pytest.mark.parametrize("form", [retry(), lambda fn: retry_with_backoff(fn)], ids=["decorator", "function"])
def test_generators_are_refused(form):
    """D-83: their body would run out of reach."""

    def generator():
        yield 1

    async def async_generator():
        yield 1

    for fn in (generator, async_generator, functools.partial(generator)):
        with pytest.raises(InvalidConfig, match="is a generator"):
            form(fn)


@pytest.mark.parametrize("thing", [None, 7, "ask", ConnectionResetError()], ids=repr)
def test_what_cannot_be_called_is_refused(thing):
    with pytest.raises(InvalidConfig, match="takes a function"):
        retry()(thing)
    with pytest.raises(InvalidConfig, match="takes a function"):
        retry_with_backoff(thing, exceptions=Exception, clock=ManualClock())


def moment_of_refusal(thing):
    async def main(clock):
        with pytest.raises(InvalidConfig):
            await retry_with_backoff_async(thing, exceptions=Exception, clock=clock)
        return clock.seconds()

    return run(main)


@pytest.mark.parametrize("thing", [None, 7, "ask"])
def test_the_async_function_refuses_what_cannot_be_called_too(thing):
    """DESIGN 4.12."""
    assert moment_of_refusal(thing) == 0.0


def test_the_async_function_refuses_generators_too():
    async def async_generator():
        yield 1

    def generator():
        yield 1

    assert moment_of_refusal(async_generator) == 0.0
    assert moment_of_refusal(generator) == 0.0


def test_the_async_function_does_not_repeat_a_sync_one():
    """D-83: it succeeded; that nobody can await it is a mistake, not a failure."""
    calls = []

    async def main(clock):
        with pytest.raises((InvalidConfig, TypeError)):
            await retry_with_backoff_async(lambda: calls.append(1), exceptions=Exception, clock=clock)

    run(main)
    assert len(calls) <= 1


# -- D-83: nobody else is held up


@pytest.mark.parametrize(
    "form", [decorator_async, function_async, loop_async], ids=lambda form: form.__name__
)
def test_the_loop_goes_on_while_one_waits(form):
    """D-83: seven seconds of backoff are seven ticks of another task."""

    async def main(clock):
        far = FarSide(*[TimeoutError() for _ in range(3)], "hello")
        far.clock = clock
        ticks = []

        async def tick():
            while True:
                await asyncio.sleep(1)
                ticks.append(clock.seconds())

        ticking = asyncio.ensure_future(tick())
        result = await form(far, clock, {"jitter": False})
        await asyncio.sleep(0.5)
        ticking.cancel()
        return result, ticks

    assert run(main) == ("hello", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_a_thousand_tasks_wait_side_by_side(quiet):
    async def main(clock):
        @retry(clock=clock, jitter=False)
        async def ask(state):
            state.append(clock.seconds())
            if len(state) < 4:
                raise TimeoutError
            return state

        states = await asyncio.gather(*(ask([]) for _ in range(1_000)))
        return {tuple(state) for state in states}, clock.seconds()

    assert run(main) == ({(0.0, 1.0, 3.0, 7.0)}, 7.0)


def test_threads_wait_side_by_side(quiet):
    """While one sleeps, others call, with the same decorated function."""
    clock = ManualClock()
    asked, done = [], []

    @retry(clock=clock, jitter=False)
    def ask(name):
        asked.append((name, clock.seconds()))
        if name != "quick" and sum(other == name for other, _ in asked) < 3:
            raise TimeoutError
        return name

    threads = [threading.Thread(target=lambda n=n: done.append(ask(n)), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(asked) == 8 and len(clock._due) == 8, "all of them sleep")
    assert ask("quick") == "quick"
    clock.advance(1)
    eventually(lambda: len(asked) == 17 and len(clock._due) == 8, "all of them sleep again")
    clock.advance(2)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(done) == list(range(8))
    assert sorted({moment for _, moment in asked}) == [0.0, 1.0, 3.0]


# -- D-40, ALGORITHMS 2g, M10, B31: the budget


def test_everything_fails_and_a_fifth_is_retried(ask, quiet):
    """M10: in every form, to the last one."""
    budget = RetryBudget(0.2)
    sent = 0
    for _ in range(100):
        far = FarSide(TimeoutError)
        ask(far, retry_budget=budget)
        sent += far.calls
    assert sent == 120


def hammer(requests_made, ask_once, **options):
    """How many are sent, and how many requests succeed."""
    clock = ManualClock(auto_advance=True)
    sent = 0

    @retry(clock=clock, **options)
    def ask():
        nonlocal sent
        sent += 1
        ask_once()

    succeeded = 0
    for _ in range(requests_made):
        try:
            ask()
        except TimeoutError:
            continue
        succeeded += 1
    return sent, succeeded


def fail():
    raise TimeoutError


@pytest.mark.parametrize("requests_made", [1_000, 10_000])
@pytest.mark.parametrize(("ratio", "most"), [(0.2, 1.2), (0.1, 1.1)])
def test_at_most_so_many_sends_per_request(requests_made, ratio, most, quiet):
    """M10, D-40: without it, four."""
    sent, _ = hammer(requests_made, fail, max_retries=3, retry_budget=RetryBudget(ratio))
    assert sent == round(requests_made * most)


def test_without_a_budget_there_are_four(quiet):
    assert hammer(1_000, fail, max_retries=3) == (4_000, 0)


@pytest.mark.parametrize("seed", range(3))
def test_three_in_ten_fail_and_most_are_rescued(seed, quiet):
    """M10: at least 80 % of what failed at first succeeds in the end."""
    dice = random.Random(seed)
    clock = ManualClock(auto_advance=True)
    failures = []

    @retry(max_retries=3, retry_budget=RetryBudget(0.2), clock=clock)
    def ask():
        failures.append(dice.random() < 0.3)
        if failures[-1]:
            raise TimeoutError

    failed_at_first = rescued = 0
    for _ in range(5_000):
        first = len(failures)
        with contextlib.suppress(TimeoutError):
            ask()
        failed_at_first += failures[first]
        rescued += failures[first] and not failures[-1]
    assert 1_300 < failed_at_first < 1_700
    assert rescued >= 0.8 * failed_at_first


def nested(requests_made, layers):
    """Sends when each layer makes up to three calls, on one budget, and everything fails."""
    budget = RetryBudget(0.2)
    clock = ManualClock(auto_advance=True)
    sent = 0

    def send():
        nonlocal sent
        sent += 1
        raise TimeoutError

    for _ in range(layers):
        send = retry(max_retries=2, retry_budget=budget, clock=clock)(send)
    for _ in range(requests_made):
        with pytest.raises(TimeoutError):
            send()
    return sent


def test_without_layers_three_calls_are_at_most_a_fifth_more(quiet):
    """B31: what the layers below are measured by."""
    assert nested(1_000, layers=1) == 1_200


@pytest.mark.parametrize("layers", [2, 3])
def test_nested_layers_do_not_multiply(layers, quiet):
    """B31, D-40: 3 x 3 calls with a shared budget are at most 1.2 sends per request."""
    assert nested(1_000, layers) <= 1_200


def test_even_so_layers_are_far_from_multiplying(quiet):
    """B31: nine sends per request without a budget; with it, never above one fifth for each layer."""
    assert nested(1_000, layers=2) <= 1_400


def test_a_budget_that_is_used_up_fails_at_once_with_the_last_error(ask):
    """2g: marked, and without a sleep."""
    budget = RetryBudget(0.2, burst=1)
    ask(FarSide(TimeoutError), retry_budget=budget, max_retries=1)
    error = TimeoutError()
    far = FarSide(error)
    outcome = ask(far, retry_budget=budget)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(error) == ["headgate: gave up after 1 call: the retry budget is used up"]


def test_a_retry_that_helps_is_free(ask):
    budget = RetryBudget(0.2, burst=2)
    for _ in range(20):
        assert ask(FarSide(TimeoutError(), "hello"), retry_budget=budget).result == "hello"
    assert budget.available == 2


def test_what_is_not_retried_spends_nothing(ask):
    budget = RetryBudget(0.2, burst=5)
    ask(FarSide(ValueError), retry_budget=budget)
    ask(FarSide("hello"), retry_budget=budget)
    ask(FarSide(TimeoutError), retry_budget=budget, max_retries=0)
    ask(FarSide(TimeoutError), retry_budget=budget, deadline=0)
    ask(FarSide(ConnectionResetError), retry_budget=budget, idempotent=False)
    assert budget.available == 5


def test_calls_earn_retries(quiet):
    """D-40: once the burst is paid back, five calls for one retry."""
    budget = RetryBudget(0.2, burst=1)
    assert hammer(5, fail, max_retries=1, retry_budget=budget)[0] == 6  # the one that was lent
    assert hammer(5, fail, max_retries=1, retry_budget=budget)[0] == 6
    assert hammer(4, fail, max_retries=1, retry_budget=budget)[0] == 4
    assert hammer(1, fail, max_retries=1, retry_budget=budget)[0] == 2


def test_budgets_are_shared_by_those_who_are_given_the_same_one(quiet):
    """DESIGN: who shares with whom is explicit."""
    mine, yours = RetryBudget(0.2, burst=3), RetryBudget(0.2, burst=3)
    assert hammer(1, fail, max_retries=3, retry_budget=mine)[0] == 4
    assert hammer(1, fail, max_retries=3, retry_budget=mine)[0] == 1
    assert hammer(1, fail, max_retries=3, retry_budget=yours)[0] == 4


def test_a_budget_says_how_it_stands():
    budget = RetryBudget(0.25, burst=4)
    assert budget.available == 4
    assert repr(budget) == "<RetryBudget of 0.25, 4 retries available>"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), InvalidConfig, "=0 "),
        ((-0.1,), InvalidConfig, "=-0.1 "),
        ((float("nan"),), InvalidConfig, "=nan "),
        ((float("inf"),), InvalidConfig, "=inf "),
        (("0.2",), InvalidConfig, "='0.2' "),
        ((True,), InvalidConfig, "=True "),
    ],
)
def test_a_ratio_is_a_number_above_zero(arguments, error, says):
    with pytest.raises(error) as caught:
        RetryBudget(*arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, None])
def test_a_burst_is_at_least_one(burst):
    with pytest.raises(InvalidCapacity, match="burst="):
        RetryBudget(0.2, burst=burst)


def test_fifty_threads_on_one_budget_lose_and_invent_nothing(quiet):
    """X-05: 5 000 requests that all fail, and 1 000 retries among them."""
    budget = RetryBudget(0.2)
    barrier = threading.Barrier(50)
    sent = []

    def work():
        barrier.wait(PATIENCE)
        sent.append(hammer(100, fail, max_retries=3, retry_budget=budget)[0])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, daemon=True) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert len(sent) == 50
    # Nothing is invented. What the last thread has earned and nobody asked for is left over.
    assert 5_950 <= sum(sent) <= 6_000


@needs_fork
def test_a_child_forked_while_another_thread_holds_the_budget_is_not_stuck():
    """B29."""
    budget = RetryBudget(0.2)
    locked, release = threading.Event(), threading.Event()

    def hold():
        with budget._lock:
            locked.set()
            assert release.wait(PATIENCE)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert locked.wait(PATIENCE)

    def check():
        logging.disable(logging.CRITICAL)
        sent, _ = hammer(10, fail, max_retries=3, retry_budget=budget)
        assert sent == 20

    status = in_a_child(check)
    release.set()
    holder.join(PATIENCE)
    assert status == 0
    assert budget.available == 10  # what the child spends is its own


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_budget_usable(quiet):
    async def main(clock):
        budget = RetryBudget(0.2, burst=2)

        @retry(retry_budget=budget, clock=clock)
        async def ask():
            raise TimeoutError

        task = asyncio.ensure_future(ask())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return budget.available

    assert run(main) >= 1


# -- laws


@given(
    failures=st.integers(0, 8),
    max_retries=st.integers(0, 8),
    deadline=st.none() | st.floats(0, 100),
    takes=st.floats(0, 5),
    form=st.sampled_from(list(FORMS)),
)
@settings(max_examples=150, deadline=None)
def test_calls_waits_and_outcome_follow_from_the_rules(failures, max_retries, deadline, takes, form):
    """The whole of it against a model of a few lines."""
    logging.getLogger("headgate").setLevel(logging.CRITICAL)
    try:
        far = FarSide(*[TimeoutError() for _ in range(failures)], "hello", takes=takes)
        options = {"max_retries": max_retries, "deadline": deadline, "jitter": False, "max_delay": 8}
        outcome = outcome_of(FORMS[form], far, options)
    finally:
        logging.getLogger("headgate").setLevel(logging.NOTSET)

    nano, now, calls, works = 1_000_000_000, 0, 0, False
    while True:
        now += round(takes * nano)
        calls += 1
        if calls > failures:
            works = True
            break
        wait = min(2 ** (calls - 1), 8) * nano
        if calls > max_retries or (deadline is not None and now + wait > round(deadline * nano)):
            break
        now += wait
    assert far.calls == calls
    assert (outcome.result == "hello") is works
    assert isinstance(outcome.error, TimeoutError) is not works
    assert outcome.at == pytest.approx(now / nano, abs=1e-6)
    assert not isinstance(outcome.error, HeadgateError)
