"""What SPEC parts 12 and 17.4, R-6, D-45 to D-49, D-83 and D-90 to D-95 say, each on a timeline."""

import asyncio
import contextvars
import email.message
import functools
import gc
import inspect
import logging
import pickle
import random
import sys
import threading
import tracemalloc
import urllib.error
from datetime import timedelta

import pytest

from headgate import (
    BreakerRegistry,
    BudgetExceeded,
    CircuitBreaker,
    CircuitBreakerOpen,
    CircuitState,
    Dispatch,
    HeadgateError,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    Refused,
    WaitTimeout,
    events,
)
from headgate.breaker import registry as registry_module
from headgate.testing import ManualClock, Recorder, run
from patience import PATIENCE

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


class Down(ConnectionError):
    """What the far side does when it is not well."""


class Stop(BaseException):
    """Somebody wants to leave, as with Ctrl-C."""


class Throttled(Exception):
    """What client libraries raise for a response that is no success."""

    def __init__(self, status_code=429, body=None, headers=None):
        super().__init__(status_code)
        self.status_code = status_code
        self.body = body
        self.headers = headers or {}


def raising(error):
    def function():
        raise error

    return function


def well():
    return "well"


def down():
    raise Down("no answer")


# -- callers of both worlds


class Held:
    """A call under way that ends when told to."""

    result = error = None


class Threads:
    """Each call in this thread; each that is held in one of its own."""

    def __init__(self):
        self._threads = []

    def call(self, breaker, fn):
        return breaker.call(fn)

    def decorated(self, breaker, fn):
        return breaker(fn)

    def nest(self, breakers, fn):
        """Call the function inside of all of them, the first outermost."""
        for breaker in reversed(breakers):
            fn = functools.partial(breaker.call, fn)
        return fn()

    def hold(self, breaker):
        held, inside, leave = Held(), threading.Event(), threading.Event()

        def body():
            inside.set()
            assert leave.wait(PATIENCE)
            if held.raises is not None:
                raise held.raises
            return "well"

        def visit():
            try:
                held.result = breaker.call(body)
            except BaseException as error:  # noqa: BLE001 - whatever befell it is the result
                held.error = error
            finally:
                inside.set()

        thread = threading.Thread(target=visit, daemon=True)
        self._threads.append(thread)
        thread.start()
        assert inside.wait(PATIENCE)
        if isinstance(held.error, CircuitBreakerOpen):
            raise held.error

        def end(raises=None):
            held.raises = raises
            leave.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            return held

        held.end = end
        return held

    def close(self):
        assert not any(thread.is_alive() for thread in self._threads), "a call was left under way"


class Tasks:
    """Each call in a task of one event loop."""

    def __init__(self):
        self._runner = asyncio.Runner()
        self._tasks = []

    def call(self, breaker, fn):
        async def body():
            await asyncio.sleep(0)
            return fn()

        return self._runner.run(breaker.call_async(body))

    def decorated(self, breaker, fn):
        @functools.wraps(fn)
        async def body(*args, **kwargs):
            await asyncio.sleep(0)
            return fn(*args, **kwargs)

        guarded = breaker(body)
        assert inspect.iscoroutinefunction(guarded)

        @functools.wraps(guarded)
        def call(*args, **kwargs):
            return self._runner.run(guarded(*args, **kwargs))

        return call

    def nest(self, breakers, fn):
        async def body():
            await asyncio.sleep(0)
            return fn()

        for breaker in reversed(breakers):
            body = functools.partial(breaker.call_async, body)
        return self._runner.run(body())

    def hold(self, breaker):
        held, inside = Held(), []

        async def body():
            inside.append(True)
            await held.leave.wait()
            if held.raises is not None:
                raise held.raises
            return "well"

        async def start():
            held.leave = asyncio.Event()
            held.task = asyncio.create_task(breaker.call_async(body))
            self._tasks.append(held.task)
            await asyncio.sleep(0)  # it goes as far as it can: inside, or it is refused

        async def leave():
            held.leave.set()
            await asyncio.wait([held.task])

        self._runner.run(start())
        if not inside:
            raise held.task.exception()

        def end(raises=None):
            held.raises = raises
            try:
                self._runner.run(leave())
            except BaseException as error:  # noqa: BLE001 - an interrupt goes through the loop
                assert error is raises  # noqa: PT017
            held.error = held.task.exception()
            held.result = None if held.error else held.task.result()
            return held

        held.end = end
        return held

    def cancel(self, held):
        async def cancel():
            held.task.cancel()
            await asyncio.wait([held.task])

        self._runner.run(cancel())
        assert held.task.cancelled()

    def close(self):
        self._runner.close()
        assert all(task.done() for task in self._tasks), "a call was left under way"


@pytest.fixture(params=[Threads, Tasks], ids=["threads", "asyncio"])
def world(request):
    world = request.param()
    yield world
    world.close()


@pytest.fixture
def tasks():
    world = Tasks()
    yield world
    world.close()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def breaker(clock):
    """Three failures in a row open it, for thirty seconds."""
    return CircuitBreaker(3, 30, clock=clock)


def fail(world, breaker, times=1, error=None):
    for _ in range(times):
        with pytest.raises(type(error or Down())):
            world.call(breaker, down if error is None else raising(error))


def refused(world, breaker):
    """Is a call refused, without being made? Returns the refusal."""
    made = []
    with pytest.raises(CircuitBreakerOpen) as caught:
        world.call(breaker, lambda: made.append(1))
    assert not made
    return caught.value


def opened(world, breaker):
    fail(world, breaker, 3)
    assert breaker.state is OPEN
    return breaker


# -- TC-01 to TC-03, CB-01, CB-02: closed


def test_the_three_states_have_the_names_everybody_uses():
    """TC-01."""
    assert [state.value for state in CircuitState] == ["closed", "open", "half_open"]


def test_without_options_five_failures_in_a_row_open_it_for_thirty_seconds(world, clock):
    """TC-01, CB-01: and one probe at a time."""
    breaker = CircuitBreaker(clock=clock)
    assert breaker.state is CLOSED
    fail(world, breaker, 4)
    assert breaker.state is CLOSED
    fail(world, breaker, error=ValueError())  # any Exception
    assert breaker.state is OPEN
    clock.advance(29.999999999)
    refused(world, breaker)
    clock.advance(0.000000001)
    probe = world.hold(breaker)
    refused(world, breaker)
    probe.end()
    assert breaker.state is CLOSED


def test_the_parameters_of_the_tutorial_may_be_given_in_order_or_by_name(clock):
    """TC-01."""
    signature = inspect.signature(CircuitBreaker)
    assert list(signature.parameters)[:3] == ["failure_threshold", "recovery_timeout", "expected_exceptions"]
    CircuitBreaker(3, 60, (ValueError,), clock=clock)
    CircuitBreaker(
        failure_threshold=3, recovery_timeout=timedelta(seconds=60), expected_exceptions=ValueError
    )


def test_an_answer_is_handed_through_and_an_exception_is_the_very_same(world, breaker):
    """TC-02."""
    answer, error = object(), Down()
    assert world.call(breaker, lambda: answer) is answer
    with pytest.raises(Down) as caught:
        world.call(breaker, raising(error))
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert error.__cause__ is None


def test_success_begins_the_count_anew(world, breaker):
    """TC-02, CB-02: two failures and a success, for ever, open nothing."""
    for _ in range(10):
        fail(world, breaker, 2)
        assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED
    fail(world, breaker, 3)
    assert breaker.state is OPEN


def test_a_raised_exception_counts_however_the_function_is_called(world, breaker):
    """D-47, CB-11: the functional form, and the decorator, share one count."""
    guarded = world.decorated(breaker, down)
    fail(world, breaker, 2)
    with pytest.raises(Down):
        guarded()
    assert breaker.state is OPEN
    with pytest.raises(CircuitBreakerOpen):
        guarded()


def gather(*args, **kwargs):
    return args, kwargs


def test_arguments_reach_the_function(world, breaker):
    """TC-07."""

    async def gather_async(*args, **kwargs):
        return args, kwargs

    expected = ((1, 2), {"timeout": 5})
    assert breaker.call(gather, 1, 2, timeout=5) == expected
    assert asyncio.run(breaker.call_async(gather_async, 1, 2, timeout=5)) == expected
    assert world.decorated(breaker, gather)(1, 2, timeout=5) == expected


@pytest.mark.parametrize("name", ["fn", "self", "args", "kwargs"])
def test_a_decorated_function_may_have_parameters_of_any_name(world, breaker, name):
    """TC-07: also those that the breaker's own methods have."""
    assert world.decorated(breaker, gather)(**{name: 3}) == ((), {name: 3})


@pytest.mark.parametrize("name", ["fn", "self"])
def test_a_function_that_is_called_may_have_parameters_of_any_name(breaker, name):
    """TC-07."""
    assert breaker.call(gather, **{name: 3}) == ((), {name: 3})


def test_a_decorated_function_keeps_its_name_docstring_and_signature(world, breaker):
    """TC-07."""

    def ask(question: str, *, loud: bool = False) -> str:
        """Ask somebody."""
        return question.upper() if loud else question

    guarded = world.decorated(breaker, ask)
    assert (guarded.__name__, guarded.__doc__, guarded.__module__) == ("ask", "Ask somebody.", __name__)
    assert inspect.signature(guarded) == inspect.signature(ask)
    assert guarded("why", loud=True) == "WHY"


def test_a_method_may_be_decorated(breaker):
    class Client:
        @breaker
        def ask(self, question):
            return self, question

        @breaker
        async def ask_async(self, question):
            return self, question

        @staticmethod
        @breaker
        def ping():
            return "pong"

    client = Client()
    assert client.ask(1) == (client, 1)
    assert asyncio.run(client.ask_async(2)) == (client, 2)
    assert client.ping() == "pong"


# -- TC-04, CB-03, R-6: open


def test_an_open_circuit_refuses_without_calling_until_its_time_is_up(world, breaker, clock):
    """TC-04, CB-03, R-6: at thirty seconds to the nanosecond, not after them."""
    opened(world, breaker)
    clock.advance(29.999999999)
    refused(world, breaker)
    assert breaker.state is OPEN
    clock.advance(0.000000001)
    assert breaker.state is HALF_OPEN
    assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED


def test_the_time_runs_from_the_opening_and_refusals_do_not_lengthen_it(world, breaker, clock):
    """TC-04, D-92."""
    fail(world, breaker, 2)
    clock.advance(1000)
    fail(world, breaker)
    for _ in range(29):
        clock.advance(1)
        refused(world, breaker)
    clock.advance(1)
    assert world.call(breaker, well) == "well"


def test_a_stragglers_failure_while_open_does_not_put_the_probe_off(world, breaker, clock):
    """D-92, CB-07: opened at 0, a straggler fails at 29, and at 30 a probe goes."""
    straggler = world.hold(breaker)
    opened(world, breaker)
    clock.advance(29)
    assert isinstance(straggler.end(Down()).error, Down)
    assert breaker.state is OPEN
    assert refused(world, breaker).retry_after == 1.0
    clock.advance(1)
    assert world.call(breaker, well) == "well"


def test_a_stragglers_success_while_open_closes_nothing_and_forgives_nothing(world, breaker, clock):
    """D-91, CB-07: the next probe that fails re-opens the circuit all the same."""
    straggler = world.hold(breaker)
    opened(world, breaker)
    clock.advance(10)
    assert straggler.end().result == "well"
    assert breaker.state is OPEN
    clock.advance(20)
    fail(world, breaker)  # the probe
    assert breaker.state is OPEN
    refused(world, breaker)


@pytest.mark.parametrize("error", [None, Down()], ids=["success", "failure"])
def test_a_call_let_in_while_closed_decides_nothing_while_half_open(world, breaker, clock, error):
    """D-46: neither may it take the probe's place."""
    straggler = world.hold(breaker)
    opened(world, breaker)
    clock.advance(30)
    probe = world.hold(breaker)
    straggler.end(error)
    assert breaker.state is HALF_OPEN
    refused(world, breaker)
    probe.end()
    assert breaker.state is CLOSED


def test_a_call_let_in_before_it_opened_counts_for_nothing_after_it_closed(world, breaker, clock):
    """D-46: three stragglers fail, and the circuit stays closed."""
    stragglers = [world.hold(breaker) for _ in range(3)]
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)
    for straggler in stragglers:
        straggler.end(Down())
    assert breaker.state is CLOSED
    fail(world, breaker, 2)
    assert breaker.state is CLOSED


# -- TC-05, CB-04, CB-05, D-90: half-open


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_so_many_probes_go_at_a_time_and_no_more(world, clock, probes):
    """TC-05, CB-04, D-90."""
    breaker = opened(world, CircuitBreaker(3, 30, half_open_probes=probes, clock=clock))
    clock.advance(30)
    held = [world.hold(breaker) for _ in range(probes)]
    for _ in range(10):
        refused(world, breaker)
    assert breaker.state is HALF_OPEN
    held[-1].end()
    assert breaker.state is CLOSED
    for probe in held[:-1]:
        probe.end(Down())
    assert breaker.state is CLOSED  # they were of another time (D-46)


def test_a_probe_that_fails_opens_the_circuit_again_for_the_whole_time(world, breaker, clock):
    """TC-05, CB-05: from the moment it failed."""
    opened(world, breaker)
    clock.advance(100)
    probe = world.hold(breaker)
    clock.advance(7)
    probe.end(Down())
    assert breaker.state is OPEN
    assert refused(world, breaker).retry_after == 30.0
    clock.advance(30)
    assert breaker.state is HALF_OPEN


def test_a_probe_that_succeeds_zeroes_everything(world, breaker, clock):
    """CB-05: it takes three failures again."""
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)
    fail(world, breaker, 2)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_an_unexpected_exception_in_a_probe_decides_nothing_and_frees_the_probe(world, clock):
    """D-93: the state stays, and so does the limit of one."""
    breaker = CircuitBreaker(3, 30, (Down,), clock=clock)
    opened(world, breaker)
    clock.advance(30)
    for _ in range(5):
        probe = world.hold(breaker)
        refused(world, breaker)
        probe.end(ValueError("a bug in the caller"))
        assert breaker.state is HALF_OPEN
    world.call(breaker, well)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    "error",
    [Throttled(429), CircuitBreakerOpen("elsewhere", rule="r"), Stop(), KeyboardInterrupt(), SystemExit()],
    ids=lambda error: type(error).__name__,
)
def test_a_probe_that_says_nothing_about_the_far_side_is_given_back_at_once(world, breaker, clock, error):
    """CB-06, D-45, D-93, B23: ignored, refused elsewhere, or interrupted."""
    opened(world, breaker)
    clock.advance(30)
    probe = world.hold(breaker)
    refused(world, breaker)
    assert probe.end(error).error is error
    assert breaker.state is HALF_OPEN
    assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED


def test_a_probe_in_ignore_is_given_back_at_once(world, clock):
    """CB-06."""
    breaker = opened(world, CircuitBreaker(3, 30, ignore=LookupError, clock=clock))
    clock.advance(30)
    world.hold(breaker).end(KeyError("no such user"))
    assert breaker.state is HALF_OPEN
    assert world.call(breaker, well) == "well"


def test_a_probe_that_is_cancelled_is_given_back_at_once(tasks, breaker, clock):
    """D-45, B23."""
    opened(tasks, breaker)
    clock.advance(30)
    for _ in range(3):
        probe = tasks.hold(breaker)
        refused(tasks, breaker)
        tasks.cancel(probe)
        assert breaker.state is HALF_OPEN
    assert tasks.call(breaker, well) == "well"


def test_a_probe_whose_task_is_destroyed_is_given_back(clock):
    """D-45, B23: its loop was closed, and nobody will ever end it."""
    breaker = opened(Threads(), CircuitBreaker(3, 30, clock=clock))
    clock.advance(30)

    async def hang():
        await loop.create_future()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # it says that a task was destroyed
    probe = loop.create_task(breaker.call_async(hang))
    loop.run_until_complete(asyncio.sleep(0))
    refused(Threads(), breaker)
    loop.close()
    del probe
    gc.collect()
    assert breaker.state is HALF_OPEN
    assert breaker.call(well) == "well"


@pytest.mark.parametrize(
    ("options", "lease"),
    [
        ({}, 30.0),
        ({"recovery_timeout": 5}, 30.0),
        ({"recovery_timeout": 300}, 300.0),
        ({"probe_timeout": 2.5}, 2.5),
        ({"probe_timeout": timedelta(minutes=2)}, 120.0),
    ],
    ids=str,
)
def test_a_probe_that_hangs_makes_room_when_its_lease_is_over(world, clock, options, lease):
    """D-45, B23: not a nanosecond earlier, and for one other."""
    breaker = opened(world, CircuitBreaker(3, **options, clock=clock))
    clock.advance(options.get("recovery_timeout", 30))
    hung = world.hold(breaker)
    assert refused(world, breaker).retry_after == lease
    clock.advance(lease)
    clock.set_ns(clock.now() - 1)
    assert refused(world, breaker).retry_after == 1e-9
    clock.set_ns(clock.now() + 1)
    second = world.hold(breaker)
    refused(world, breaker)
    second.end()
    assert breaker.state is CLOSED
    hung.end(Down())
    assert breaker.state is CLOSED


def test_a_late_success_of_the_same_half_open_period_closes_it(world, breaker, clock):
    """D-45: its lease was over, but it knows that the far side is well."""
    opened(world, breaker)
    clock.advance(30)
    hung = world.hold(breaker)
    clock.advance(30)
    other = world.hold(breaker)
    hung.end()
    assert breaker.state is CLOSED
    other.end(Down())
    assert breaker.state is CLOSED


def test_a_late_result_of_an_earlier_half_open_period_decides_nothing(world, breaker, clock):
    """D-46: success or failure."""
    opened(world, breaker)
    clock.advance(30)
    late = world.hold(breaker)
    clock.advance(30)
    later = world.hold(breaker)
    clock.advance(30)
    fail(world, breaker)
    assert breaker.state is OPEN
    assert late.end().result == "well"
    assert breaker.state is OPEN
    clock.advance(30)
    probe = world.hold(breaker)
    later.end(Down())
    assert breaker.state is HALF_OPEN
    refused(world, breaker)
    probe.end()
    assert breaker.state is CLOSED


def test_two_callers_at_once_and_one_probe_exactly_one_runs():
    """CB-10."""

    async def main(clock):
        breaker = CircuitBreaker(1, 30, clock=clock)
        with pytest.raises(Down):
            breaker.call(down)
        await asyncio.sleep(30)

        async def answer():
            await asyncio.sleep(1)
            return "well"

        return await asyncio.gather(*(breaker.call_async(answer) for _ in range(2)), return_exceptions=True)

    first, second = run(main)
    assert first == "well"
    assert isinstance(second, CircuitBreakerOpen)


# -- TC-06, D-95, CB-06: what counts


def test_only_expected_exceptions_count(world, clock):
    """TC-06: others pass through; they neither count nor forgive."""
    breaker = CircuitBreaker(3, 30, (Down, TimeoutError), clock=clock)
    fail(world, breaker, 2)
    fail(world, breaker, 10, ValueError())
    assert breaker.state is CLOSED
    fail(world, breaker, error=TimeoutError())
    assert breaker.state is OPEN


def test_a_kind_of_exception_includes_what_derives_from_it(world, clock):
    """TC-06."""
    breaker = CircuitBreaker(1, 30, OSError, clock=clock)
    fail(world, breaker)
    assert breaker.state is OPEN


def test_what_is_in_ignore_does_not_count_though_it_is_expected(world, clock):
    """D-95, CB-06."""
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
def test_an_answer_of_slow_down_does_not_count(world, clock, error):
    """D-95: the far side is well, and we are too many. It neither counts nor forgives."""
    breaker = CircuitBreaker(2, 30, clock=clock)
    fail(world, breaker)
    fail(world, breaker, 5, error)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_a_429_that_speaks_of_money_does_not_count_either(world, clock):
    """D-95, CB-06, ALGORITHMS 2h: 429 is ignored. The far side answers, and is well."""
    breaker = CircuitBreaker(1, 30, clock=clock)
    body = {"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}
    fail(world, breaker, error=Throttled(429, body))
    assert breaker.state is CLOSED


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_an_answer_that_something_is_broken_counts(world, clock, status):
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
    """D-95: the call was not made, whatever was said to be expected."""
    breaker = CircuitBreaker(1, 30, (Exception, type(error)), clock=clock)
    fail(world, breaker, 5, error)
    assert breaker.state is CLOSED


def test_a_dispatch_with_no_place_inside_a_breaker_does_not_count(world, clock):
    """D-95: the real thing."""
    breaker, api = CircuitBreaker(1, 30, clock=clock), Dispatch("api", concurrency=1, clock=clock)
    with api.admit():
        for _ in range(3):
            with pytest.raises(Refused):
                world.call(breaker, lambda: api.admit(timeout=0).__enter__())
    assert breaker.state is CLOSED


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Stop])
def test_interrupts_never_count_though_somebody_expects_them(clock, kind):
    """TC-06: they say that the caller wants to leave, and nothing about the far side."""
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


def test_an_inner_refusal_does_not_count_when_it_comes_in_a_group(clock):
    """D-95: open errors never count, also not as a task group hands them on."""
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


# -- D-83: async functions


def test_an_async_function_under_the_decorator_is_awaited_and_its_failure_counts():
    """D-83."""
    breaker = CircuitBreaker(2)

    @breaker
    async def ask():
        await asyncio.sleep(0)
        raise Down

    async def main():
        for _ in range(2):
            with pytest.raises(Down):
                await ask()
        with pytest.raises(CircuitBreakerOpen):
            await ask()

    asyncio.run(main())
    assert breaker.state is OPEN


@pytest.mark.parametrize("wrap", [lambda fn: fn, functools.partial, lambda fn: lambda: fn()])
def test_call_says_so_when_the_function_is_async_and_counts_nothing(wrap):
    """D-83: and nothing of it was run, and no coroutine is left over."""
    breaker, ran = CircuitBreaker(1), []

    async def ask():
        ran.append(1)

    with pytest.raises(InvalidConfig, match=r"ask is async.*await call_async"):
        breaker.call(wrap(ask))
    gc.collect()
    assert not ran
    assert breaker.state is CLOSED


def test_call_of_an_async_function_in_a_probe_gives_the_probe_back(clock):
    """D-83, B23."""
    breaker = opened(Threads(), CircuitBreaker(3, 30, clock=clock))
    clock.advance(30)

    async def ask():
        pass

    with pytest.raises(InvalidConfig):
        breaker.call(ask)
    assert breaker.state is HALF_OPEN
    assert breaker.call(well) == "well"


def test_call_async_of_a_sync_function_counts_nothing():
    """DESIGN 4.12: bad input changes nothing."""
    breaker = CircuitBreaker(1)
    with pytest.raises((TypeError, InvalidConfig)):
        asyncio.run(breaker.call_async(well))
    assert breaker.state is CLOSED


def test_a_callable_object_may_be_async():
    class Ask:
        async def __call__(self):
            raise Down

    breaker = CircuitBreaker(1)
    with pytest.raises(Down):
        asyncio.run(breaker(Ask())())
    assert breaker.state is OPEN


def test_generators_cannot_be_decorated(breaker):
    def items():
        yield 1

    async def items_async():
        yield 1

    for function in (items, items_async):
        with pytest.raises(InvalidConfig, match="is a generator"):
            breaker(function)
    with pytest.raises(InvalidConfig, match="takes a function"):
        breaker("ask")


def test_a_coroutine_that_is_never_awaited_has_entered_nothing(clock):
    breaker = opened(Threads(), CircuitBreaker(3, 30, clock=clock))
    clock.advance(30)

    async def ask():
        return "well"

    never = breaker.call_async(ask)
    assert breaker.call(well) == "well"
    never.close()


# -- D-94, TC-08: nesting


def test_the_tutorials_own_example_counts_each_failure_once(world, clock):
    """D-94, TC-08: decorated, and called through the breaker again; threshold 3 opens on the third."""
    breaker = CircuitBreaker(failure_threshold=3, recovery_timeout=60, clock=clock)
    for k in range(3):
        assert breaker.state is CLOSED, k
        with pytest.raises(Down):
            world.nest([breaker, breaker], down)
    assert breaker.state is OPEN


def test_a_decorated_function_called_through_the_same_breaker_counts_once(breaker):
    """D-94, TC-08: as written in the tutorial."""
    guarded = breaker(down)
    for _ in range(2):
        with pytest.raises(Down):
            breaker.call(guarded)
    assert breaker.state is CLOSED
    with pytest.raises(Down):
        breaker.call(guarded)
    assert breaker.state is OPEN


def test_the_fallback_of_the_tutorial(world, breaker):
    """TC-08."""
    opened(world, breaker)
    try:
        result = world.call(breaker, well)
    except CircuitBreakerOpen:
        result = "fallback"
    assert result == "fallback"


@pytest.mark.parametrize("depth", [2, 5, 50])
def test_recursion_is_one_call(world, breaker, depth):
    """D-94."""
    with pytest.raises(Down):
        world.nest([breaker] * depth, down)
    fail(world, breaker)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_an_inner_failure_that_the_outer_call_got_over_is_a_success(world, breaker):
    """D-94: the outermost outcome counts."""
    fail(world, breaker, 2)

    def robust():
        try:
            return breaker.call(down)
        except Down:
            return "well all the same"

    def outer():
        for _ in range(5):
            robust()
        return "well"

    assert world.call(breaker, outer) == "well"
    fail(world, breaker, 2)
    assert breaker.state is CLOSED


def test_a_probe_that_calls_through_the_same_breaker_is_not_in_its_own_way(world, breaker, clock):
    """D-94: with one probe allowed."""
    opened(world, breaker)
    clock.advance(30)
    assert world.nest([breaker, breaker, breaker], well) == "well"
    assert breaker.state is CLOSED


def test_a_call_that_began_goes_on_though_the_circuit_opens_meanwhile(world, breaker):
    """D-94: its inner calls are part of it."""

    def outer():
        contextvars.Context().run(fail, Threads(), breaker, 3)  # others
        assert breaker.state is OPEN
        return breaker.call(well)

    assert world.call(breaker, outer) == "well"
    refused(world, breaker)


def test_two_breakers_in_each_other_count_one_each(world, clock):
    inner, outer = CircuitBreaker(2, 30, clock=clock), CircuitBreaker(3, 30, clock=clock)
    for _ in range(2):
        with pytest.raises(Down):
            world.nest([outer, inner, outer, inner], down)
    assert (outer.state, inner.state) == (CLOSED, OPEN)
    for _ in range(5):
        with pytest.raises(CircuitBreakerOpen):
            world.nest([outer, inner], well)
    assert outer.state is CLOSED  # an open error does not count (D-95)
    fail(world, outer)
    assert outer.state is OPEN


def test_an_inner_breaker_that_is_open_does_not_use_up_the_outer_ones_probe(world, clock):
    """D-95, D-93."""
    inner, outer = CircuitBreaker(3, 300, clock=clock), CircuitBreaker(3, 30, clock=clock)
    opened(world, inner)
    opened(world, outer)
    clock.advance(30)
    for _ in range(3):
        with pytest.raises(CircuitBreakerOpen) as caught:
            world.nest([outer, inner], well)
        assert caught.value.retry_after == 270.0
        assert outer.state is HALF_OPEN
    assert world.call(outer, well) == "well"


def test_calls_one_after_the_other_are_not_nested(world, breaker):
    """Leaving a call leaves it, also by an exception."""
    fail(world, breaker, 2)
    with pytest.raises(CircuitBreakerOpen):
        world.nest([CircuitBreaker(1), breaker], raising(CircuitBreakerOpen("x", rule="r")))
    fail(world, breaker)
    assert breaker.state is OPEN
    refused(world, breaker)


def test_child_tasks_of_a_call_belong_to_it(breaker):
    """D-94: twenty children fail, one call failed."""

    async def ask():
        await asyncio.sleep(0)
        raise Down

    async def outer():
        results = await asyncio.gather(*(breaker.call_async(ask) for _ in range(20)), return_exceptions=True)
        raise results[0]

    with pytest.raises(Down):
        asyncio.run(breaker.call_async(outer))
    assert breaker.state is CLOSED
    fail(Threads(), breaker)
    assert breaker.state is CLOSED
    fail(Threads(), breaker)
    assert breaker.state is OPEN


def test_work_that_a_call_hands_to_a_thread_belongs_to_it(breaker):
    """D-94: asyncio.to_thread takes the context along."""

    async def outer():
        for _ in range(5):
            with pytest.raises(Down):
                await asyncio.to_thread(breaker.call, down)

    asyncio.run(breaker.call_async(outer))
    assert breaker.state is CLOSED


@pytest.mark.skipif(
    getattr(sys.flags, "thread_inherit_context", 0), reason="here a thread inherits what it was started in"
)
def test_a_thread_of_its_own_is_a_caller_of_its_own(breaker):
    """It may outlive the call, and nothing ties them together."""

    def in_a_thread():
        thread = threading.Thread(target=fail, args=(Threads(), breaker))
        thread.start()
        thread.join(PATIENCE)

    def outer():
        for _ in range(3):
            in_a_thread()
        return "well"

    assert breaker.call(outer) == "well"
    assert breaker.state is OPEN


def test_a_background_task_that_outlives_the_call_is_not_inside():
    """Its calls are counted and refused like anybody's."""

    async def main(clock):
        breaker = CircuitBreaker(2, 30, clock=clock)
        states = []

        async def ask():
            raise Down

        async def background():
            await asyncio.sleep(1)
            for _ in range(2):
                with pytest.raises(Down):
                    await breaker.call_async(ask)
                states.append(breaker.state)
            with pytest.raises(CircuitBreakerOpen):
                await breaker.call_async(ask)
            with pytest.raises(CircuitBreakerOpen):
                breaker.call(well)
            return "done"

        async def outer():
            return asyncio.create_task(background())

        task = await breaker.call_async(outer)
        assert await task == "done"
        assert states == [CLOSED, OPEN]

    run(main)


def test_a_background_task_of_an_inner_call_is_inside_the_outer_one_as_long_as_that_runs():
    async def main(clock):
        outer, inner = CircuitBreaker(1, 30, clock=clock), CircuitBreaker(1, 30, clock=clock)

        async def ask():
            raise Down

        async def background():
            await asyncio.sleep(1)  # the inner call is over, the outer one is not
            with pytest.raises(Down):
                await outer.call_async(ask)
            assert outer.state is CLOSED
            with pytest.raises(Down):
                await inner.call_async(ask)
            assert inner.state is OPEN
            await asyncio.sleep(2)  # now that is over too
            with pytest.raises(Down):
                await outer.call_async(ask)
            assert outer.state is OPEN

        async def start():
            return asyncio.create_task(background())

        async def around():
            task = await inner.call_async(start)
            await asyncio.sleep(2)
            return task

        await (await outer.call_async(around))

    run(main)


def test_closing_a_call_of_another_task_does_not_change_what_one_is_inside_of(breaker):
    """D-94: the coroutine of a dead task is closed wherever it is collected, also inside other calls."""

    class Forever:
        def __await__(self):
            yield

    async def hang():
        await Forever()

    abandoned = breaker.call_async(hang)
    contextvars.Context().run(abandoned.send, None)

    def outer():
        abandoned.close()
        breaker.call(down)  # part of this call, so one outcome

    for _ in range(2):
        with pytest.raises(Down):
            breaker.call(outer)
    assert breaker.state is CLOSED


def test_closing_a_call_of_another_task_lets_nobody_past_an_open_circuit(breaker, clock):
    """D-94, TC-04: one who is not inside of anything does not come to be by closing a coroutine."""
    other = CircuitBreaker(1, 30, clock=clock)

    class Forever:
        def __await__(self):
            yield

    async def hang():
        await Forever()

    context, coroutines = contextvars.Context(), []

    async def around():
        coroutines.append(other.call_async(hang))
        coroutines[0].send(None)
        await Forever()

    running = breaker.call_async(around)
    context.run(running.send, None)
    opened(Threads(), breaker)
    try:
        contextvars.copy_context().run(lambda: (coroutines[0].close(), refused(Threads(), breaker)))
    finally:
        context.run(running.close)


def test_tasks_that_start_each_other_for_ever_leave_no_trail():
    """A crawler: each page starts the next while its own call is under way, on two breakers in turn."""

    async def main(clock):
        breakers = [CircuitBreaker(clock=clock), CircuitBreaker(clock=clock)]
        tasks = []

        async def fetch(k):
            await asyncio.sleep(1)
            if not k:
                gc.collect()
                return len(gc.get_objects())
            tasks.append(asyncio.create_task(breakers[k % 2].call_async(fetch, k - 1)))
            return await asyncio.sleep(0.5)  # the next has begun, and outlives this one

        pages = []
        for length in (50, 50, 550):
            tasks.append(asyncio.create_task(breakers[1].call_async(fetch, length)))
            while tasks:
                things = await tasks.pop(0)
            pages.append(things)
        return pages

    _, short, long = run(main)
    assert long - short < 100  # two calls at any time, however many there were


# -- calls run side by side


def test_sixteen_threads_are_inside_at_the_same_time(clock):
    """The lock is held to count, never while a call runs."""
    breaker, barrier, met = CircuitBreaker(clock=clock), threading.Barrier(16), []

    def meet():
        met.append(barrier.wait(PATIENCE))

    threads = [threading.Thread(target=breaker.call, args=(meet,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(met) == list(range(16))


@pytest.mark.parametrize("options", [{}, {"failure_rate": 0.5, "slow_after": 5}], ids=["count", "rate"])
def test_a_thousand_tasks_are_inside_at_the_same_time(options):
    async def main(clock):
        breaker = CircuitBreaker(clock=clock, **options)
        inside = most = 0

        async def ask():
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(1)
            inside -= 1

        await asyncio.gather(*(breaker.call_async(ask) for _ in range(1000)))
        return most, clock.seconds()

    assert run(main) == (1000, 1.0)


def test_probes_run_side_by_side_too(clock):
    """The five that are let through do not wait for each other."""
    breaker = opened(Threads(), CircuitBreaker(3, 30, half_open_probes=5, clock=clock))
    clock.advance(30)
    barrier, met = threading.Barrier(5), []

    def meet():
        met.append(barrier.wait(PATIENCE))

    threads = [threading.Thread(target=breaker.call, args=(meet,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(met) == list(range(5))
    assert breaker.state is CLOSED


# -- D-48, B24, B25: of all calls in a window


def test_half_of_the_calls_failing_never_opens_a_count_and_opens_a_rate(world, clock):
    """D-48."""
    count = CircuitBreaker(3, 30, clock=clock)
    rate = CircuitBreaker(3, 30, failure_rate=0.5, minimum_calls=10, clock=clock)
    for k in range(10):
        assert rate.state is CLOSED
        for breaker in (count, rate):
            fail(world, breaker) if k % 2 else world.call(breaker, well)
        clock.advance(1)
    assert (count.state, rate.state) == (CLOSED, OPEN)
    assert "5 of 10 calls within 60 s failed" in str(refused(world, rate))


def test_five_failures_spread_over_a_week_do_not_open_a_rate(world, clock):
    """D-48."""
    breaker = CircuitBreaker(None, failure_rate=0.5, minimum_calls=2, clock=clock)
    for _ in range(5):
        fail(world, breaker)
        clock.advance(timedelta(days=1))
    assert breaker.state is CLOSED


def test_the_rate_counts_from_the_minimum_of_calls_on(world, clock):
    """D-48: a minimum volume."""
    breaker = CircuitBreaker(None, failure_rate=0.1, minimum_calls=5, clock=clock)
    fail(world, breaker, 4)
    assert breaker.state is CLOSED
    world.call(breaker, well)  # the fifth call; what goes well opens nothing
    assert breaker.state is CLOSED
    error = Down()
    fail(world, breaker, error=error)
    assert breaker.state is OPEN
    assert "5 of 6 calls" in str(refused(world, breaker))
    assert refused(world, breaker).__cause__ is error


def test_a_rate_of_one_means_all_of_them(world, clock):
    breaker = CircuitBreaker(None, failure_rate=1.0, minimum_calls=3, clock=clock)
    world.call(breaker, well)
    fail(world, breaker, 20)
    assert breaker.state is CLOSED
    clock.advance(66)
    fail(world, breaker, 3)
    assert breaker.state is OPEN


def test_what_is_ignored_is_no_call_of_the_window(world, clock):
    """CB-06: neither good nor bad."""
    breaker = CircuitBreaker(None, failure_rate=0.5, minimum_calls=4, clock=clock)
    fail(world, breaker, 2)
    fail(world, breaker, 10, Throttled(429))
    assert breaker.state is CLOSED  # two calls so far
    fail(world, breaker, 2)
    assert breaker.state is OPEN


def test_after_two_idle_windows_nothing_counts_any_longer(world, clock):
    """B24."""
    breaker = CircuitBreaker(None, failure_rate=0.5, window=60, minimum_calls=10, clock=clock)
    fail(world, breaker, 9)
    clock.advance(120)
    fail(world, breaker, 9)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_calls_that_last_longer_than_the_window_count_when_they_end(tasks, clock):
    """B25: 120 s each, on a window of 60."""
    breaker = CircuitBreaker(None, failure_rate=0.5, window=60, minimum_calls=10, clock=clock)
    calls = [tasks.hold(breaker) for _ in range(10)]
    clock.advance(120)
    for call in calls[:9]:
        call.end(Down())
    assert breaker.state is CLOSED
    calls[9].end(Down())
    assert breaker.state is OPEN


def test_slow_calls_open_it_though_all_succeed(world, clock):
    """Longer than `slow_after`, not as long as."""
    breaker = CircuitBreaker(slow_after=2, slow_rate=0.5, minimum_calls=4, clock=clock)

    def taking(seconds):
        clock.advance(seconds)
        return "well"

    for seconds in (2.0, 2.0, 2.000000001):
        world.call(breaker, lambda seconds=seconds: taking(seconds))
    assert breaker.state is CLOSED
    world.call(breaker, lambda: taking(3))
    assert breaker.state is OPEN
    refusal = refused(world, breaker)
    assert "2 of 4 calls within 60 s were slow" in str(refusal)
    assert refusal.__cause__ is None


def test_a_probe_that_is_slow_opens_it_again(world, clock):
    breaker = CircuitBreaker(3, 30, slow_after=2, clock=clock)
    opened(world, breaker)
    clock.advance(30)
    assert world.call(breaker, lambda: clock.advance(3)) is None
    assert breaker.state is OPEN
    assert "too slowly" in str(refused(world, breaker))
    clock.advance(30)
    world.call(breaker, lambda: clock.advance(2))
    assert breaker.state is CLOSED


# -- how long it stays open


def test_it_stays_open_twice_as_long_after_each_probe_that_failed(world, clock):
    breaker = CircuitBreaker(3, 5, max_recovery_timeout=60, clock=clock)
    opened(world, breaker)
    lasted = []
    for _ in range(6):
        lasted.append(refused(world, breaker).retry_after)
        clock.advance(lasted[-1])
        fail(world, breaker)
    assert lasted == [5, 10, 20, 40, 60, 60]
    clock.advance(60)
    world.call(breaker, well)
    opened(world, breaker)
    assert refused(world, breaker).retry_after == 5


def test_without_a_longest_time_it_is_the_same_each_time(world, breaker, clock):
    opened(world, breaker)
    for _ in range(5):
        clock.advance(30)
        fail(world, breaker)
        assert refused(world, breaker).retry_after == 30


@pytest.mark.parametrize(("draw", "lasting"), [(0.0, 30.0), (0.5, 33.0), (0.75, 34.5)])
def test_jitter_makes_it_longer_by_the_part_that_was_drawn(world, clock, draw, lasting):
    breaker = CircuitBreaker(3, 30, recovery_jitter=0.2, random=lambda: draw, clock=clock)
    opened(world, breaker)
    assert refused(world, breaker).retry_after == lasting


def test_without_jitter_nothing_is_drawn(world, clock):
    breaker = CircuitBreaker(3, 30, clock=clock, random=lambda: pytest.fail("drawn"))
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)


def peak_per_100_ms(seed, jitter):
    """A thousand processes whose target died: how many probes reach it in the worst 100 ms?

    Each has its own breaker, opened within half a second, and callers who come back as soon as they may.
    """
    dice, clock, dues = random.Random(seed), ManualClock(), []
    for opens_at in sorted(dice.uniform(0, 0.5) for _ in range(1000)):
        breaker = CircuitBreaker(1, 30, recovery_jitter=jitter, clock=clock, random=dice.random)
        clock.advance(opens_at - clock.seconds())
        with pytest.raises(Down):
            breaker.call(down)
        with pytest.raises(CircuitBreakerOpen) as refusal:
            breaker.call(down)
        dues.append((clock.seconds() + refusal.value.retry_after, breaker))
    probes = []
    for due, breaker in sorted(dues, key=lambda pair: pair[0]):
        clock.advance(max(0.0, due - clock.seconds()))
        clock.advance(1e-9)  # seconds as float may be one nanosecond off
        with pytest.raises(Down):
            breaker.call(lambda: probes.append(clock.seconds()) or down())
    assert len(probes) == 1000  # one each
    return max(sum(start <= probe < start + 0.1 for probe in probes) for start in probes[::5])


def test_a_thousand_breakers_without_a_store_do_not_probe_in_one_instant():
    """M11, A11: about 26 in the worst 100 ms with a jitter of a fifth, 215 without."""
    with_jitter = sorted(peak_per_100_ms(seed, 0.2) for seed in range(5))
    assert with_jitter[2] <= 32  # in any 100 ms, not only in those that begin on a tenth
    assert with_jitter[-1] <= 42  # a thousand over six seconds is 17 on average
    assert peak_per_100_ms(0, 0.0) > 150


# -- reset


def test_reset_closes_it_and_forgets_everything(world, breaker, clock):
    """CB-08."""
    opened(world, breaker)
    breaker.reset()
    assert breaker.state is CLOSED
    fail(world, breaker, 2)
    breaker.reset()
    fail(world, breaker, 2)
    assert breaker.state is CLOSED


def test_a_probe_from_before_the_reset_decides_nothing(world, breaker, clock):
    """D-46."""
    opened(world, breaker)
    clock.advance(30)
    probe = world.hold(breaker)
    breaker.reset()
    fail(world, breaker, 2)
    probe.end(Down())
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_calls_from_before_the_reset_count_for_nothing(world, breaker):
    stragglers = [world.hold(breaker) for _ in range(5)]
    breaker.reset()
    for straggler in stragglers:
        straggler.end(Down())
    assert breaker.state is CLOSED


def test_the_state_cannot_be_assigned(breaker):
    with pytest.raises(AttributeError):
        breaker.state = OPEN


def test_asking_for_the_state_changes_nothing(world, breaker, clock):
    """CB-08: half-open whether or not somebody comes; the probe is still free."""
    opened(world, breaker)
    clock.advance(30)
    assert [breaker.state for _ in range(5)] == [HALF_OPEN] * 5
    assert world.call(breaker, well) == "well"


# -- the refusal


def test_the_refusal_says_why_and_until_when(world, clock):
    breaker = CircuitBreaker(3, 30, key="stripe", clock=clock)
    first, second, last = Down(1), Down(2), Down(3)
    for error in (first, second, last):
        with pytest.raises(Down):
            world.call(breaker, raising(error))
    clock.advance(17.75)
    refusal = refused(world, breaker)
    assert isinstance(refusal, Refused)
    assert refusal.__cause__ is last
    assert refusal.rule == "circuit breaker"
    assert refusal.retry_after == 12.25
    assert str(refusal) == (
        "the circuit 'stripe' is open: 3 calls in a row failed (circuit breaker); worth another try in 12.2 s"
    )


def test_after_that_many_seconds_the_call_is_let_through(world, clock):
    """To the nanosecond, with times that no float holds."""
    breaker = CircuitBreaker(1, 0.1 + 0.2, clock=clock)
    fail(world, breaker)
    clock.advance(0.07)
    clock.advance(refused(world, breaker).retry_after)
    assert world.call(breaker, well) == "well"


def test_the_cause_is_the_failure_that_opened_it_last(world, breaker, clock):
    opened(world, breaker)
    clock.advance(30)
    error = Down("the probe")
    fail(world, breaker, error=error)
    assert refused(world, breaker).__cause__ is error


def test_the_cause_is_let_go_when_it_closes(world, breaker, clock):
    """It holds the frames of the call that failed."""
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)
    assert breaker._counter.cause is None
    opened(world, breaker)
    breaker.reset()
    assert breaker._counter.cause is None


def test_a_refusal_while_a_probe_is_under_way_says_when_another_could_go_at_the_latest(world, clock):
    breaker = CircuitBreaker(3, 30, half_open_probes=2, probe_timeout=10, clock=clock)
    opened(world, breaker)
    clock.advance(30)
    first = world.hold(breaker)
    clock.advance(4)
    second = world.hold(breaker)
    refusal = refused(world, breaker)
    assert refusal.retry_after == 6.0
    assert isinstance(refusal.__cause__, Down)
    first.end()
    second.end()


def test_a_refusal_pickles(world, clock):
    breaker = CircuitBreaker(3, 30, key="stripe", clock=clock)
    opened(world, breaker)
    refusal = refused(world, breaker)
    copy = pickle.loads(pickle.dumps(refusal))
    assert type(copy) is CircuitBreakerOpen
    assert (str(copy), copy.rule, copy.retry_after) == (str(refusal), refusal.rule, refusal.retry_after)


def test_a_breaker_prints_its_name_and_state(world, clock):
    breaker = CircuitBreaker(3, 30, key="stripe", clock=clock)
    assert repr(breaker) == "<CircuitBreaker 'stripe', closed>"
    opened(world, breaker)
    assert repr(breaker) == "<CircuitBreaker 'stripe', open>"
    clock.advance(30)
    assert repr(breaker) == "<CircuitBreaker 'stripe', half_open>"
    assert repr(CircuitBreaker()) == "<CircuitBreaker, closed>"


# -- events


def test_an_observer_hears_every_change_once_and_in_order(world, clock):
    seen = Recorder()
    breaker = CircuitBreaker(2, 30, key="stripe", max_recovery_timeout=60, observer=seen, clock=clock)
    error, worse = Down(), Down()
    world.call(breaker, well)
    fail(world, breaker, 2, error)
    refused(world, breaker)
    clock.advance(30)
    assert breaker.state is HALF_OPEN  # looking is not a change
    probe = world.hold(breaker)
    refused(world, breaker)
    probe.end(worse)
    clock.advance(60)
    world.call(breaker, well)
    world.call(breaker, well)
    assert seen.events == [
        events.CircuitOpened(
            key="stripe",
            at=0.0,
            generation=1,
            duration=30.0,
            reason="2 calls in a row failed",
            error=error,
        ),
        events.CircuitProbing(key="stripe", at=30.0, generation=1),
        events.CircuitOpened(
            key="stripe", at=30.0, generation=2, duration=60.0, reason="a probe failed", error=worse
        ),
        events.CircuitProbing(key="stripe", at=90.0, generation=2),
        events.CircuitClosed(key="stripe", at=90.0, generation=3),
    ]


def test_the_duration_told_includes_the_jitter(clock):
    seen = Recorder()
    breaker = CircuitBreaker(
        3, 30, recovery_jitter=0.5, random=lambda: 0.5, key="api", observer=seen, clock=clock
    )
    opened(Threads(), breaker)
    assert seen.events[0].duration == 37.5


def test_two_probes_are_told_once(world, clock):
    seen = Recorder()
    breaker = CircuitBreaker(3, 30, half_open_probes=2, observer=seen, clock=clock)
    opened(world, breaker)
    clock.advance(30)
    probes = [world.hold(breaker) for _ in range(2)]
    for probe in probes:
        probe.end()
    assert [type(event) for event in seen.events] == [
        events.CircuitOpened,
        events.CircuitProbing,
        events.CircuitClosed,
    ]


def test_a_reset_is_told_if_it_changed_something(world, clock):
    seen = Recorder()
    breaker = CircuitBreaker(3, 30, observer=seen, clock=clock)
    fail(world, breaker)
    breaker.reset()
    assert seen.events == []
    opened(world, breaker)
    breaker.reset()
    breaker.reset()
    assert [type(event) for event in seen.events] == [events.CircuitOpened, events.CircuitClosed]


def test_an_opening_without_a_failure_has_no_error(clock):
    seen = Recorder()
    breaker = CircuitBreaker(slow_after=1, minimum_calls=1, observer=seen, clock=clock)
    breaker.call(clock.advance, 2)
    (event,) = seen.of(events.CircuitOpened)
    assert event.error is None
    assert event.reason == "1 of 1 calls within 60 s were slow"


def test_an_observer_that_raises_changes_nothing(world, clock, caplog):
    def observer(event):
        raise ValueError("in the observer")

    breaker = CircuitBreaker(3, 30, observer=observer, clock=clock)
    with caplog.at_level(logging.ERROR, logger="headgate"):
        opened(world, breaker)
        clock.advance(30)
        assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED
    assert len(caplog.records) == 3


def test_an_observer_may_ask_and_call_and_reset_the_breaker(world, clock):
    """B28: it is called outside the lock."""
    heard = []

    def observer(event):
        heard.append((type(event), breaker.state, repr(breaker)))
        if isinstance(event, events.CircuitOpened) and len(heard) < 3:
            breaker.reset()

    breaker = CircuitBreaker(3, 30, observer=observer, clock=clock)
    fail(world, breaker, 3)
    assert breaker.state is CLOSED
    assert [kind for kind, _, _ in heard] == [events.CircuitOpened, events.CircuitClosed]


class Interleaved(ManualClock):
    """A clock that calls a function when the time is asked for the nth time."""

    turn = None

    def now(self):
        if self.turn is not None:
            count, act = self.turn
            self.turn = (count - 1, act) if count else None
            if not count:
                act()
        return super().now()


def test_an_event_tells_of_its_own_opening_though_another_thread_resets_at_once():
    """The second time the clock is asked is under the lock; the reset waits for that lock."""
    clock, seen = Interleaved(), Recorder()
    breaker = CircuitBreaker(1, 30, observer=seen, clock=clock)
    resetting = threading.Thread(target=breaker.reset)
    clock.turn = (1, resetting.start)
    with pytest.raises(Down):
        breaker.call(down)
    resetting.join(PATIENCE)
    (event,) = seen.of(events.CircuitOpened)
    assert (event.generation, event.duration, event.reason) == (1, 30.0, "1 call failed")
    assert isinstance(event.error, Down)
    assert breaker.state is CLOSED


# -- bad arguments


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"failure_threshold": 0}, InvalidCapacity, "failure_threshold=0"),
        ({"failure_threshold": -1}, InvalidCapacity, "failure_threshold=-1"),
        ({"failure_threshold": 2.5}, InvalidCapacity, "failure_threshold=2.5"),
        ({"failure_threshold": True}, InvalidCapacity, "failure_threshold=True"),
        ({"failure_threshold": "5"}, InvalidCapacity, "failure_threshold='5'"),
        ({"failure_threshold": None}, InvalidConfig, "nothing would ever open"),
        ({"recovery_timeout": 0}, InvalidWindow, "recovery_timeout=0"),
        ({"recovery_timeout": -1}, InvalidWindow, "recovery_timeout=-1"),
        ({"recovery_timeout": float("inf")}, InvalidWindow, "recovery_timeout=inf"),
        ({"recovery_timeout": float("nan")}, InvalidWindow, "recovery_timeout=nan"),
        ({"recovery_timeout": "30"}, InvalidWindow, "recovery_timeout='30'"),
        ({"recovery_timeout": None}, InvalidWindow, "recovery_timeout=None"),
        ({"max_recovery_timeout": 29}, InvalidConfig, "max_recovery_timeout=29 is less"),
        ({"max_recovery_timeout": 0}, InvalidWindow, "max_recovery_timeout=0"),
        ({"half_open_probes": 0}, InvalidCapacity, "half_open_probes=0"),
        ({"half_open_probes": 1.5}, InvalidCapacity, "half_open_probes=1.5"),
        ({"probe_timeout": 0}, InvalidWindow, "probe_timeout=0"),
        ({"failure_rate": 0}, InvalidConfig, "failure_rate=0"),
        ({"failure_rate": 1.01}, InvalidConfig, "failure_rate=1.01"),
        ({"failure_rate": 50}, InvalidConfig, "failure_rate=50"),
        ({"failure_rate": True}, InvalidConfig, "failure_rate=True"),
        ({"failure_rate": "0.5"}, InvalidConfig, "failure_rate='0.5'"),
        ({"slow_after": 0}, InvalidWindow, "slow_after=0"),
        ({"slow_after": 1, "slow_rate": 0}, InvalidConfig, "slow_rate=0"),
        ({"slow_rate": 2}, InvalidConfig, "slow_rate=2"),
        ({"failure_rate": 0.5, "window": 0}, InvalidWindow, "window=0"),
        ({"failure_rate": 0.5, "minimum_calls": 0}, InvalidCapacity, "minimum_calls=0"),
        ({"recovery_jitter": -0.1}, InvalidConfig, "recovery_jitter=-0.1"),
        ({"recovery_jitter": float("nan")}, InvalidConfig, "recovery_jitter=nan"),
        ({"recovery_jitter": float("inf")}, InvalidConfig, "recovery_jitter=inf"),
        ({"recovery_jitter": "0.2"}, InvalidConfig, "recovery_jitter='0.2'"),
        pytest.param(
            {"recovery_jitter": None},
            InvalidConfig,
            "recovery_jitter=None",
        ),
        ({"expected_exceptions": "ValueError"}, InvalidConfig, "expected_exceptions='ValueError'"),
        ({"expected_exceptions": [ValueError]}, InvalidConfig, "expected_exceptions="),
        ({"expected_exceptions": (ValueError, int)}, InvalidConfig, "is not a kind of exception"),
        ({"expected_exceptions": ValueError()}, InvalidConfig, "is not a kind of exception"),
        ({"ignore": (None,)}, InvalidConfig, "ignore=(None,)"),
        ({"observer": "log"}, InvalidConfig, "observer='log'"),
    ],
    ids=str,
)
def test_options_that_cannot_work_say_so(options, kind, says):
    with pytest.raises(kind) as caught:
        CircuitBreaker(**options)
    assert says in str(caught.value)
    assert isinstance(caught.value, (InvalidLimit, ValueError))
    with pytest.raises(kind):
        BreakerRegistry(**options)


def test_the_smallest_of_rates_is_not_opened_by_calls_that_succeed():
    breaker = CircuitBreaker(None, failure_rate=1e-10, minimum_calls=2)
    breaker.call(well)
    breaker.call(well)
    assert breaker.state is CLOSED


def test_an_option_that_does_not_exist_is_an_error_at_once():
    with pytest.raises(TypeError, match="threshold"):
        BreakerRegistry(threshold=3)


# -- CB-09, D-49: the registry


def test_everybody_who_asks_for_a_key_gets_the_same_breaker(clock):
    """CB-09."""
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    assert registry.for_key("stripe") is registry.for_key("stripe")
    assert registry.for_key("stripe") is not registry.for_key("paypal")
    assert registry.for_key(("eu", 7)) is registry.for_key(("eu", 7))
    assert CircuitBreaker.for_key("stripe", registry=registry) is registry.for_key("stripe")


def test_each_key_has_a_circuit_of_its_own_with_the_options_of_the_registry(world, clock):
    """D-98: one target that fails does not stop the others."""
    seen = Recorder()
    registry = BreakerRegistry(failure_threshold=3, recovery_timeout=7, observer=seen, clock=clock)
    opened(world, registry.for_key("stripe"))
    assert world.call(registry.for_key("paypal"), well) == "well"
    refusal = refused(world, registry.for_key("stripe"))
    assert refusal.retry_after == 7
    assert "'stripe'" in str(refusal)
    assert [event.key for event in seen.events] == ["stripe"]


def test_the_states_are_those_of_all_that_are_remembered(world, clock):
    """CB-09: the list of names and states."""
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    opened(world, registry.for_key("b"))
    clock.advance(20)
    opened(world, registry.for_key("a"))
    registry.for_key("c")
    clock.advance(10)
    assert registry.states() == {"a": OPEN, "b": HALF_OPEN, "c": CLOSED}
    assert [registry.state(key) for key in "abc"] == [OPEN, HALF_OPEN, CLOSED]
    assert len(registry) == 3
    assert repr(registry) == "<BreakerRegistry of 3 circuit breakers>"


def test_asking_for_a_state_or_a_reset_makes_nothing(clock):
    """CB-09: unknown is closed."""
    registry = BreakerRegistry(clock=clock)
    assert registry.state("never heard of") is CLOSED
    registry.reset("never heard of")
    assert len(registry) == 0
    assert registry.states() == {}


def test_one_key_may_be_reset(world, clock):
    """CB-09."""
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    for key in "ab":
        opened(world, registry.for_key(key))
    registry.reset("a")
    assert registry.states() == {"a": CLOSED, "b": OPEN}


@pytest.fixture
def _names_of_its_own(monkeypatch):
    monkeypatch.setattr(registry_module, "_named", {})


@pytest.mark.usefixtures("_names_of_its_own")
def test_a_registry_of_a_name_is_found_by_everybody():
    """CB-09, D-49: options may be left out, or said again."""
    payments = BreakerRegistry.named("payments", failure_threshold=3)
    assert BreakerRegistry.named("payments") is payments
    assert BreakerRegistry.named("payments", failure_threshold=3) is payments
    assert BreakerRegistry.named("search") is not payments
    assert CircuitBreaker.for_key("x", registry="payments") is payments.for_key("x")
    assert CircuitBreaker.for_key("x") is BreakerRegistry.named("default").for_key("x")
    assert CircuitBreaker.for_key("x") is not payments.for_key("x")


@pytest.mark.usefixtures("_names_of_its_own")
@pytest.mark.parametrize("first", [{}, {"failure_threshold": 3}])
def test_other_options_for_a_name_that_exists_raise(first):
    """D-49: they are not silently ignored, and nothing changes."""
    payments = BreakerRegistry.named("payments", **first)
    with pytest.raises(InvalidConfig, match="'payments' exists already"):
        BreakerRegistry.named("payments", failure_threshold=7)
    with pytest.raises(InvalidConfig):
        BreakerRegistry.named("payments", **first, recovery_timeout=1)
    assert BreakerRegistry.named("payments") is payments


@pytest.mark.usefixtures("_names_of_its_own")
def test_a_name_whose_options_are_wrong_is_not_taken():
    with pytest.raises(InvalidCapacity):
        BreakerRegistry.named("payments", failure_threshold=0)
    assert BreakerRegistry.named("payments", failure_threshold=3) is BreakerRegistry.named("payments")


@pytest.mark.parametrize("name", ["", None, 7, ("a",)])
def test_a_name_is_a_string(name):
    with pytest.raises(InvalidConfig, match="is not a name"):
        BreakerRegistry.named(name)


@pytest.mark.usefixtures("_names_of_its_own")
def test_whoever_comes_first_all_get_one_registry_and_one_breaker():
    """CB-09: thirty threads, a hundred keys."""
    start, got = threading.Barrier(30), []

    def ask():
        start.wait(PATIENCE)
        registry = BreakerRegistry.named("race", failure_threshold=3)
        got.append([registry, *(CircuitBreaker.for_key(k, registry="race") for k in range(100))])

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(got) == 30
    assert all(a is b for row in got for a, b in zip(row, got[0], strict=True))


def test_twenty_thousand_targets_that_were_well_leave_almost_nothing(clock):
    """Memory follows what is remembered, not who was ever called."""
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    registry.for_key(-1).call(well)
    gc.collect()
    tracemalloc.start()
    try:
        for key in range(20_000):
            registry.for_key(key).call(well)
        gc.collect()
        kept, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(registry) <= 128
    assert kept < 1_000_000


def test_what_a_rate_counted_is_kept_for_its_window_and_then_forgotten(clock):
    registry = BreakerRegistry(failure_threshold=None, failure_rate=0.5, window=60, clock=clock)
    for key in range(1000):
        registry.for_key(key).call(well)
    gc.collect()
    assert len(registry) == 1000
    clock.advance(70)
    for key in range(1000, 5000):
        registry.for_key(key)
    gc.collect()
    assert len(registry) < 1500


def test_a_circuit_that_failed_or_is_open_is_never_forgotten(world, clock):
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    opened(world, registry.for_key("open"))
    fail(world, registry.for_key("failed"), 2)
    for key in range(2000):
        registry.for_key(key).call(well)
    gc.collect()
    assert registry.state("open") is OPEN
    fail(world, registry.for_key("failed"))
    assert registry.state("failed") is OPEN


@pytest.mark.parametrize("threshold", [1, 3])
def test_a_failure_is_remembered_though_the_registry_had_let_go_of_the_breaker_meanwhile(clock, threshold):
    """A call that lasts while thousands of others come by: what it finds out is not lost."""
    registry = BreakerRegistry(failure_threshold=threshold, clock=clock)

    def lasting():
        for key in range(1000):
            registry.for_key(key)
        raise Down

    for _ in range(threshold):
        with pytest.raises(Down):
            registry.for_key("target").call(lasting)
        gc.collect()
    assert registry.state("target") is OPEN


def test_a_rate_is_remembered_though_the_registry_had_let_go_of_the_breaker_meanwhile(clock):
    registry = BreakerRegistry(failure_threshold=None, failure_rate=0.5, minimum_calls=4, clock=clock)

    def lasting():
        for key in range(1000):
            registry.for_key(key)

    for end in (well, well, down, down):
        with pytest.raises(Down) if end is down else threading.Lock():
            registry.for_key("target").call(lambda end=end: (lasting(), end()))
        gc.collect()
    assert registry.state("target") is OPEN


def test_one_who_holds_a_breaker_and_one_who_asks_for_it_have_the_same(clock):
    registry = BreakerRegistry(failure_threshold=1, clock=clock)
    held = registry.for_key("target")
    for key in range(1000):
        registry.for_key(key)
    gc.collect()
    with pytest.raises(Down):
        held.call(down)
    assert registry.for_key("target") is held
    assert registry.state("target") is OPEN


def test_breakers_that_share_nothing_share_nothing(world, clock):
    """DESIGN 2: two objects of one name are two objects."""
    one, two = (CircuitBreaker(3, 30, key="stripe", clock=clock) for _ in range(2))
    opened(world, one)
    assert two.state is CLOSED


def test_an_observer_may_use_the_registry_while_another_key_is_asked_for():
    """A breaker fails while the registry asks it whether it is idle: no lock is held when that is told."""
    hook, told = [], []

    class Clock(ManualClock):
        def now(self):
            for act in hook:
                act()
            return super().now()

    registry = BreakerRegistry(
        failure_threshold=1, observer=lambda _event: told.append(len(registry)), clock=Clock()
    )
    first = registry.for_key("first")

    def fail_elsewhere():
        thread = threading.Thread(target=fail, args=(Threads(), first))
        thread.start()
        thread.join(PATIENCE)

    def fill():
        me = threading.get_ident()

        def while_first_is_asked():
            if threading.get_ident() == me and first._guard.lock.locked():
                hook.clear()
                fail_elsewhere()

        hook.append(while_first_is_asked)
        for key in range(200):
            registry.for_key(key)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    filling.join(PATIENCE)
    assert not filling.is_alive()
    assert not hook
    assert told
    assert registry.state("first") is OPEN
