"""A call through a breaker that is made inside another call through the same breaker."""

import asyncio
import contextvars
import gc
import sys
import threading

import pytest

from breaker.callers import CLOSED, HALF_OPEN, OPEN, Down, Threads, down, fail, opened, raising, refused, well
from headgate import CircuitBreaker, CircuitBreakerOpen
from headgate.testing import run
from patience import PATIENCE


def test_a_call_through_the_same_breaker_twice_counts_each_failure_once(world, clock):
    """A decorated function is called through its breaker again; the third failure opens the circuit."""
    breaker = CircuitBreaker(failure_threshold=3, recovery_timeout=60, clock=clock)
    for k in range(3):
        assert breaker.state is CLOSED, k
        with pytest.raises(Down):
            world.nest([breaker, breaker], down)
    assert breaker.state is OPEN


def test_a_decorated_function_called_through_the_same_breaker_counts_once(breaker):
    """The decorator and `call` of one breaker around one function."""
    guarded = breaker(down)
    for _ in range(2):
        with pytest.raises(Down):
            breaker.call(guarded)
    assert breaker.state is CLOSED
    with pytest.raises(Down):
        breaker.call(guarded)
    assert breaker.state is OPEN


def test_a_caller_may_fall_back_when_the_circuit_is_open(world, breaker):
    opened(world, breaker)
    try:
        result = world.call(breaker, well)
    except CircuitBreakerOpen:
        result = "fallback"
    assert result == "fallback"


@pytest.mark.parametrize("depth", [2, 5, 50])
def test_a_recursive_call_counts_as_one(world, breaker, depth):
    with pytest.raises(Down):
        world.nest([breaker] * depth, down)
    fail(world, breaker)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_an_inner_failure_that_the_outer_call_catches_counts_as_a_success(world, breaker):
    """Only the outcome of the outermost call counts."""
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


def test_a_probe_may_call_through_the_same_breaker(world, breaker, clock):
    """One probe is allowed, and the inner calls are part of it."""
    opened(world, breaker)
    clock.advance(30)
    assert world.nest([breaker, breaker, breaker], well) == "well"
    assert breaker.state is CLOSED


def test_a_call_that_began_goes_on_though_the_circuit_opens_meanwhile(world, breaker):
    """The inner calls are part of a call that was let in before."""

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
    assert outer.state is CLOSED  # an open error does not count
    fail(world, outer)
    assert outer.state is OPEN


def test_an_inner_breaker_that_is_open_does_not_use_up_the_outer_ones_probe(world, clock):
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


def test_calls_after_each_other_are_not_nested(world, breaker):
    """A call that ends by an exception has ended."""
    fail(world, breaker, 2)
    with pytest.raises(CircuitBreakerOpen):
        world.nest([CircuitBreaker(1), breaker], raising(CircuitBreakerOpen("x", rule="r")))
    fail(world, breaker)
    assert breaker.state is OPEN
    refused(world, breaker)


def test_child_tasks_of_a_call_belong_to_it(breaker):
    """Twenty child tasks fail, and one failure is counted."""

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
    """Asyncio.to_thread takes the context along."""

    async def outer():
        for _ in range(5):
            with pytest.raises(Down):
                await asyncio.to_thread(breaker.call, down)

    asyncio.run(breaker.call_async(outer))
    assert breaker.state is CLOSED


@pytest.mark.skipif(
    getattr(sys.flags, "thread_inherit_context", 0), reason="here a thread inherits what it was started in"
)
def test_a_thread_started_by_a_call_is_not_inside_of_it(breaker):
    """A new thread has an empty context, and may outlive the call."""

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
    """Its calls are counted and refused like those of other callers."""

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


def test_closing_the_coroutine_of_another_task_does_not_change_which_call_is_running(breaker):
    """The coroutine of a dead task is closed wherever it is collected, for example inside another call."""

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


def test_closing_the_coroutine_of_another_task_lets_no_call_past_an_open_circuit(breaker, clock):
    """Closing a coroutine inside of a breaker does not put the closing task inside of it."""
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


def test_tasks_that_start_each_other_do_not_keep_all_calls_before_them():
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
    assert long - short < 1_000  # two calls at any time: 500 that are kept would be many thousands
