"""Which outcomes of calls a circuit breaker counts."""

import asyncio
import email.message
import urllib.error

import pytest

from breaker.callers import CLOSED, OPEN, Down, Stop, Threads, Throttled, fail, raising
from headgate import (
    BudgetExceeded,
    CircuitBreaker,
    CircuitBreakerOpen,
    Dispatch,
    HeadgateError,
    Refused,
    WaitTimeout,
)


def test_only_expected_exceptions_count(world, clock):
    """Other exceptions reach the caller; they neither count nor end a row of failures."""
    breaker = CircuitBreaker(3, 30, (Down, TimeoutError), clock=clock)
    fail(world, breaker, 2)
    fail(world, breaker, 10, ValueError())
    assert breaker.state is CLOSED
    fail(world, breaker, error=TimeoutError())
    assert breaker.state is OPEN


def test_a_kind_of_exception_includes_what_derives_from_it(world, clock):
    breaker = CircuitBreaker(1, 30, OSError, clock=clock)
    fail(world, breaker)
    assert breaker.state is OPEN


def test_an_ignored_exception_does_not_count_though_it_is_expected(world, clock):
    breaker = CircuitBreaker(1, 30, ignore=(LookupError, Throttled), clock=clock)
    for error in (KeyError(), IndexError(), Throttled(500)):
        fail(world, breaker, error=error)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


class Answer:
    def __init__(self, status_code, headers=()):
        self.status_code = status_code
        self.headers = dict(headers)


class ClientError(Exception):
    """As httpx, requests and the SDKs raise it: with the response."""

    def __init__(self, response):
        super().__init__("no success")
        self.response = response


def asks_to_wait(seconds):
    error = RuntimeError("slow down")
    error.retry_after = seconds
    return error


SLOW_DOWN = {
    "status": Throttled(429),
    "status and header": Throttled(429, headers={"retry-after": "5"}),
    "told not to retry": Throttled(429, headers={"x-should-retry": "false"}),
    "response": ClientError(Answer(429)),
    "response and header": ClientError(Answer(429, {"Retry-After": "60"})),
    "urllib": urllib.error.HTTPError("http://x", 429, "Too Many Requests", email.message.Message(), None),
    "retry_after": asks_to_wait(5),
}


@pytest.mark.parametrize("error", SLOW_DOWN.values(), ids=SLOW_DOWN.keys())
def test_an_answer_that_asks_to_slow_down_does_not_count(world, clock, error):
    """The far side works, and has too many callers. The answer neither counts nor ends a row of failures."""
    breaker = CircuitBreaker(2, 30, clock=clock)
    fail(world, breaker)
    fail(world, breaker, 5, error)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_a_429_about_an_exhausted_quota_does_not_count(world, clock):
    """The far side answers, so it works."""
    breaker = CircuitBreaker(1, 30, clock=clock)
    body = {"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}
    fail(world, breaker, error=Throttled(429, body))
    assert breaker.state is CLOSED


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_an_answer_with_a_server_error_counts(world, clock, status):
    breaker = CircuitBreaker(1, 30, clock=clock)
    fail(world, breaker, error=Throttled(status))
    assert breaker.state is OPEN


REFUSALS = {
    "circuit breaker": CircuitBreakerOpen("elsewhere", rule="circuit breaker", retry_after=5),
    "timeout": WaitTimeout("no place", rule="concurrency"),
    "budget": BudgetExceeded("spent", rule="hour", budget="ann", remaining=0),
    "any other": HeadgateError("no"),
}


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_by_headgate_never_counts(world, clock, error):
    """The call was not made, also if the refusal is in `expected_exceptions`."""
    breaker = CircuitBreaker(1, 30, (Exception, type(error)), clock=clock)
    fail(world, breaker, 5, error)
    assert breaker.state is CLOSED


def test_a_dispatch_with_no_place_inside_a_breaker_does_not_count(world, clock):
    """A Dispatch refuses the call for lack of a place."""
    breaker, api = CircuitBreaker(1, 30, clock=clock), Dispatch("api", concurrency=1, clock=clock)
    with api.admit():
        for _ in range(3):
            with pytest.raises(Refused):
                world.call(breaker, lambda: api.admit(timeout=0).__enter__())
    assert breaker.state is CLOSED


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Stop])
def test_interrupts_never_count_though_they_are_expected(clock, kind):
    """An interrupt says that the caller wants to leave, and nothing about the far side."""
    breaker = CircuitBreaker(1, 30, (BaseException, kind), clock=clock)
    for _ in range(3):
        with pytest.raises(kind):
            breaker.call(raising(kind()))
    assert breaker.state is CLOSED


def test_a_cancelled_call_counts_neither_way(tasks, breaker):
    fail(tasks, breaker, 2)
    for _ in range(3):
        tasks.cancel(tasks.hold(breaker))
    assert breaker.state is CLOSED
    fail(tasks, breaker)
    assert breaker.state is OPEN


def test_a_group_of_failures_is_one_failure(world, breaker):
    group = ExceptionGroup("two at once", [Down(), Down()])
    fail(world, breaker, 2, group)
    assert breaker.state is CLOSED
    fail(world, breaker, 1, group)
    assert breaker.state is OPEN


def test_a_refusal_of_an_inner_breaker_in_an_exception_group_does_not_count(clock):
    """A task group raises the refusal inside an ExceptionGroup."""
    inner, outer = CircuitBreaker(1, 30, clock=clock), CircuitBreaker(1, 30, clock=clock)
    fail(Threads(), inner)

    async def answer():
        return "well"

    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(inner.call_async(answer))

    with pytest.raises(ExceptionGroup):
        asyncio.run(outer.call_async(both))
    assert outer.state is CLOSED
