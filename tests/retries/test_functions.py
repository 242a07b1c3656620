"""What `retry` and `retry_with_backoff` accept: functions, methods and callable objects of both kinds."""

import asyncio
import functools
import gc
import inspect

import pytest

from headgate import (
    InvalidConfig,
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
)
from headgate.testing import ManualClock, run
from retries.forms import (
    FarSide,
)


def failing_once(result="hello"):
    far = FarSide(TimeoutError(), lambda: result)
    far.clock = ManualClock(auto_advance=True)
    return far


def test_arguments_results_name_and_signature_are_kept():
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


def test_a_decorated_async_function_stays_async():

    @retry()
    async def ask(prompt: str) -> str:
        """Ask the model."""
        return prompt

    assert inspect.iscoroutinefunction(ask)
    assert (ask.__name__, ask.__doc__) == ("ask", "Ask the model.")

    async def main(clock):
        return await ask("hi")

    assert run(main) == "hi"


def test_methods_class_methods_and_static_methods_can_be_decorated():
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
        def without_class(prompt):
            return prompt

    client = Client()
    assert client.ask("hi") == (client, "hi")
    assert client.calls == 2
    assert client.of_class("hi") == Client.of_class("hi") == (Client, "hi")
    assert client.without_class("hi") == Client.without_class("hi") == "hi"
    assert retry_with_backoff(functools.partial(client.ask, "bound"), clock=clock) == (client, "bound")


def test_async_methods_can_be_decorated():
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
    """A callable object that fails once."""

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


def test_partials_lambdas_builtins_and_callable_objects_can_be_retried():
    clock = ManualClock(auto_advance=True)
    assert retry(clock=clock)(functools.partial(Asking(), 1))(2) == (1, 2)
    assert retry(clock=clock)(Asking())(3) == (3,)
    assert retry(clock=clock)(len)("abc") == 3
    assert retry(clock=clock)(str.upper)("abc") == "ABC"
    assert retry_with_backoff(Asking(), clock=clock) == ()
    assert retry_with_backoff(failing_once("x"), clock=clock) == "x"
    assert retry_with_backoff(dict, clock=clock) == {}


def test_async_partials_lambdas_and_callable_objects_can_be_retried():

    async def ask(*arguments):
        return arguments

    async def main(clock):
        assert await retry(clock=clock)(functools.partial(ask, 1))(2) == (1, 2)
        assert await retry(clock=clock)(AskingAsync())(3) == (3,)
        assert await retry_with_backoff_async(AskingAsync(), clock=clock) == ()
        assert await retry_with_backoff_async(functools.partial(ask, 5), clock=clock) == (5,)
        # retry_with_backoff_async awaits any result: it need not know the kind of function beforehand.
        assert await retry_with_backoff_async(lambda: ask(4), clock=clock) == (4,)
        assert await retry_with_backoff_async(functools.partial(AskingAsync(), 6), clock=clock) == (6,)
        future = asyncio.get_running_loop().create_future()
        future.set_result("done")
        return await retry_with_backoff_async(lambda: future, clock=clock)

    assert run(main) == "done"


def test_retry_with_backoff_refuses_async_functions_before_calling_them():

    async def ask(): ...

    for fn in (ask, functools.partial(ask), AskingAsync()):
        with pytest.raises(InvalidConfig, match="retry_with_backoff_async"):
            retry_with_backoff(fn, clock=ManualClock())


def test_a_sync_function_that_returns_a_coroutine_is_an_error():
    """The coroutine is closed, so that Python does not warn about it."""

    async def ask(): ...

    clock = ManualClock(auto_advance=True)
    with pytest.raises(InvalidConfig, match="is async"):
        retry_with_backoff(lambda: ask(), clock=clock)
    with pytest.raises(InvalidConfig, match="is async"):
        retry(clock=clock)(lambda: ask())()
    gc.collect()


def test_a_retry_that_returns_a_coroutine_is_an_error_too():

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
    """Their body would run out of reach of the retries."""

    def generator():
        yield 1

    async def async_generator():
        yield 1

    for fn in (generator, async_generator, functools.partial(generator)):
        with pytest.raises(InvalidConfig, match="is a generator"):
            form(fn)


@pytest.mark.parametrize("thing", [None, 7, "ask", ConnectionResetError()], ids=repr)
def test_objects_that_cannot_be_called_are_refused(thing):
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
def test_retry_with_backoff_async_refuses_objects_that_cannot_be_called(thing):
    assert moment_of_refusal(thing) == 0.0


def test_retry_with_backoff_async_refuses_generators():
    async def async_generator():
        yield 1

    def generator():
        yield 1

    assert moment_of_refusal(async_generator) == 0.0
    assert moment_of_refusal(generator) == 0.0


def test_retry_with_backoff_async_does_not_call_a_sync_function_again():
    """It succeeded; that its result cannot be awaited is a mistake in the program."""
    calls = []

    async def main(clock):
        with pytest.raises((InvalidConfig, TypeError)):
            await retry_with_backoff_async(lambda: calls.append(1), exceptions=Exception, clock=clock)

    run(main)
    assert len(calls) <= 1
