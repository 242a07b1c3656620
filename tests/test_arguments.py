"""Functions given to headgate: whether they are async, and what is refused because it could not work."""

import asyncio
import functools
import gc
import inspect

import pytest

from headgate import (
    CircuitBreaker,
    Dispatch,
    InvalidConfig,
    RateLimiter,
    ResilientClient,
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
)
from headgate.arguments import is_async
from headgate.testing import ManualClock, run

DECORATORS = {
    "RateLimiter": lambda: RateLimiter(clock=ManualClock()),
    "CircuitBreaker": lambda: CircuitBreaker(clock=ManualClock()),
    "retry": lambda: retry(clock=ManualClock()),
    "ResilientClient": lambda: ResilientClient(clock=ManualClock()),
}
CALLERS = {
    "Dispatch.with_rate_limit": lambda fn: Dispatch("api", clock=ManualClock()).with_rate_limit(10, fn),
    "CircuitBreaker.call": lambda fn: CircuitBreaker(clock=ManualClock()).call(fn),
    "retry_with_backoff": lambda fn: retry_with_backoff(fn, clock=ManualClock()),
    "ResilientClient.call": lambda fn: ResilientClient(clock=ManualClock()).call(fn),
    **{
        f"@{name}": lambda fn, make=make: make()(fn)()  # a sync function that returns a coroutine
        for name, make in DECORATORS.items()
    },
}
ASYNC_CALLERS = {
    "Dispatch.with_rate_limit_async": lambda fn, clock: Dispatch("api", clock=clock).with_rate_limit_async(
        10, fn
    ),
    "CircuitBreaker.call_async": lambda fn, clock: CircuitBreaker(clock=clock).call_async(fn),
    "retry_with_backoff_async": lambda fn, clock: retry_with_backoff_async(fn, clock=clock),
    "ResilientClient.call_async": lambda fn, clock: ResilientClient(clock=clock).call_async(fn),
}


@pytest.fixture(params=DECORATORS)
def decorator(request):
    return DECORATORS[request.param]()


def generator():
    yield 1


async def async_generator():
    yield 1


class Generator:
    def __call__(self):
        yield 1


class AsyncGenerator:
    async def __call__(self):
        yield 1


@pytest.mark.parametrize(
    "fn",
    [generator, async_generator, functools.partial(generator), Generator(), AsyncGenerator()],
    ids=["generator", "async generator", "partial", "object", "async object"],
)
def test_decorators_refuse_generators(decorator, fn):
    with pytest.raises(InvalidConfig, match="is a generator: its body runs while it is iterated"):
        decorator(fn)


@pytest.mark.parametrize("thing", [5, None, "ask", [], ConnectionResetError()], ids=repr)
def test_decorators_refuse_what_cannot_be_called(decorator, thing):
    with pytest.raises(InvalidConfig, match=r"takes a function, not .*without calling it"):
        decorator(thing)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("wrap", ["as it is", "lambda", "partial of a lambda"])
def test_sync_callers_refuse_a_coroutine_and_run_nothing_of_it(caller, wrap):
    ran = []

    async def ask():
        ran.append(1)

    fn = {"as it is": ask, "lambda": lambda: ask(), "partial of a lambda": functools.partial(lambda: ask())}
    if caller.startswith("@") and wrap == "as it is":
        assert inspect.iscoroutinefunction(DECORATORS[caller[1:]]()(ask))
        return
    with pytest.raises(InvalidConfig, match=r"ask is async.*; write "):
        CALLERS[caller](fn[wrap])
    gc.collect()  # a coroutine that is left over would warn, and warnings are errors here
    assert not ran


@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_async_callers_refuse_a_result_that_cannot_be_awaited(caller):
    async def main(clock):
        with pytest.raises(InvalidConfig, match=r"ask is not async.*; write "):
            await ASYNC_CALLERS[caller](ask, clock)
        return clock.seconds()

    def ask():
        return 1

    assert run(main) == 0.0


@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_async_callers_take_any_awaitable(caller):
    class Later:
        def __await__(self):
            yield from asyncio.sleep(1).__await__()
            return "well"

    async def main(clock):
        return await ASYNC_CALLERS[caller](Later, clock), clock.seconds()

    assert run(main) == ("well", 1.0)


def test_with_rate_limit_gives_the_place_back_after_an_async_function():
    async def ask():
        pass

    api = Dispatch("api", concurrency=1, clock=ManualClock())
    with pytest.raises(InvalidConfig, match=r"write `await with_rate_limit_async\(\.\.\.\)`"):
        api.with_rate_limit(10, ask)
    assert api.with_rate_limit(10, lambda: api.snapshot().in_flight) == 1
    assert api.snapshot().in_flight == 0


class Ask:
    """Called, an object of it is async; calling the class makes an object."""

    async def __call__(self):
        return 1

    async def method(self):
        return 1

    @staticmethod
    async def static():
        return 1


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (Ask(), True),
        (Ask().method, True),
        (Ask.static, True),
        (functools.partial(Ask()), True),
        (functools.partial(functools.partial(Ask().method)), True),
        (Ask, False),
        (functools.partial(Ask), False),
        (print, False),
        (lambda: Ask()(), False),
    ],
    ids=[
        "object",
        "method",
        "static",
        "partial",
        "two partials",
        "class",
        "partial class",
        "builtin",
        "lambda",
    ],
)
def test_is_async_says_whether_a_call_gives_a_coroutine(fn, expected):
    assert is_async(fn, "retry") is expected
