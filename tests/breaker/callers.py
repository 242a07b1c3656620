"""Callers of a circuit breaker in both worlds, and what they call."""

import asyncio
import functools
import inspect
import threading

import pytest

from headgate import CircuitBreakerOpen, CircuitState
from patience import PATIENCE

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


class Down(ConnectionError):
    """What the far side does when it does not work."""


class Stop(BaseException):
    """The caller wants to leave, as with Ctrl-C."""


class Throttled(Exception):
    """What client libraries raise for a response that is an error."""

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
