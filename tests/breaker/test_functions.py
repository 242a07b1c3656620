"""Sync and async functions called through a circuit breaker, and those that it cannot take."""

import asyncio
import functools
import gc

import pytest

from breaker.callers import CLOSED, HALF_OPEN, OPEN, Down, Threads, opened, well
from headgate import CircuitBreaker, CircuitBreakerOpen, InvalidConfig, ResilienceConfig, ResilientClient


def test_an_async_function_under_the_decorator_is_awaited_and_its_failure_counts():
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
    """The function was not run, and no coroutine is left over."""
    breaker, ran = CircuitBreaker(1), []

    async def ask():
        ran.append(1)

    with pytest.raises(InvalidConfig, match=r"ask is async.*await call_async"):
        breaker.call(wrap(ask))
    gc.collect()
    assert not ran
    assert breaker.state is CLOSED


def test_call_of_an_async_function_in_a_probe_gives_the_probe_back(clock):
    breaker = opened(Threads(), CircuitBreaker(3, 30, clock=clock))
    clock.advance(30)

    async def ask():
        pass

    with pytest.raises(InvalidConfig):
        breaker.call(ask)
    assert breaker.state is HALF_OPEN
    assert breaker.call(well) == "well"


def test_call_async_of_a_sync_function_counts_nothing():
    """A mistake of the caller changes nothing."""
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


@pytest.mark.parametrize("given", ["answer", None], ids=repr)
def test_a_result_in_place_of_the_function_is_refused_and_is_no_failure_of_the_far_side(given):
    breaker = CircuitBreaker(failure_threshold=1)

    with pytest.raises(InvalidConfig, match=r"call takes a function, not .*; write call\(fn\)"):
        breaker.call(given)
    with pytest.raises(InvalidConfig, match="call_async takes a function"):
        asyncio.run(breaker.call_async(given))

    assert breaker.state is CLOSED


def test_a_client_refuses_a_result_in_place_of_the_function_and_that_is_no_failure_of_the_far_side():
    client = ResilientClient(ResilienceConfig(circuit_failure_threshold=1), key="api")

    with pytest.raises(InvalidConfig, match=r"call takes a function, not 'answer'; write call\(fn\)"):
        client.call("answer")
    with pytest.raises(InvalidConfig, match="call takes a function"):
        asyncio.run(client.call_async("answer"))

    assert client.breakers.for_key("api").state is CLOSED
