"""Functions given to headgate: whether they are async, and what is refused because it could not work."""

import asyncio
import functools
import gc
import inspect
from datetime import timedelta
from enum import IntEnum

import pytest

from headgate import (
    Backoff,
    BackoffWindow,
    BreakerRegistry,
    CircuitBreaker,
    Dispatch,
    DistributedLimiter,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    MemoryLimiter,
    Rate,
    RateLimiter,
    ResilienceConfig,
    ResilientClient,
    TokenBudget,
    WindowRegistry,
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
)
from headgate.arguments import is_async, shown
from headgate.responses import read_signal
from headgate.swarm.bus.memory import MemoryBus
from headgate.testing import ManualClock, run
from headgate.verdict import throttled

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


# -- durations: one ceiling, checked where they are given


def limiter_of_one():
    limiter = MemoryLimiter(clock=ManualClock())
    limiter.set_capacity("api", 1, 60)
    limiter.acquire("api")
    return limiter


def swarm(**options):
    return DistributedLimiter(bus=MemoryBus(), agent_id="a", **options)


DURATIONS = {
    "BackoffWindow.set": lambda t: BackoffWindow().set(t),
    "BackoffWindow.wait": lambda t: BackoffWindow().wait(timeout=t),
    "BackoffWindow.ceiling": lambda t: BackoffWindow(ceiling=t),
    "BackoffWindow.spread": lambda t: BackoffWindow(spread=t),
    "WindowRegistry.ceiling": lambda t: WindowRegistry(ceiling=t),
    "Dispatch.backoff_window": lambda t: Dispatch(backoff_window=t),
    "Dispatch.set_backoff": lambda t: Dispatch().set_backoff(t),
    "Dispatch.admit": lambda t: Dispatch().admit(timeout=t),
    "Rate": lambda t: Rate(1, t),
    "RateLimiter.acquire": lambda t: RateLimiter().acquire(timeout=t),
    "MemoryLimiter.acquire": lambda t: limiter_of_one().acquire("api", timeout=t),
    "MemoryLimiter.slot": lambda t: limiter_of_one().slot("api", timeout=t),
    "MemoryLimiter.set_capacity": lambda t: MemoryLimiter().set_capacity("api", 1, t),
    "MemoryLimiter.recovery_interval": lambda t: MemoryLimiter(recovery_interval=t),
    "Backoff.base": lambda t: Backoff(t, cap=None),
    "Backoff.cap": lambda t: Backoff(1, cap=t),
    "Backoff.delay": lambda t: Backoff(1, jitter="decorrelated").delay(1, previous=t),
    "retry.base_delay": lambda t: retry(base_delay=t),
    "retry.max_delay": lambda t: retry(max_delay=t),
    "retry.deadline": lambda t: retry(deadline=t),
    "throttled": lambda t: throttled(t),
    "CircuitBreaker.recovery_timeout": lambda t: CircuitBreaker(recovery_timeout=t),
    "CircuitBreaker.max_recovery_timeout": lambda t: CircuitBreaker(max_recovery_timeout=t),
    "CircuitBreaker.slow_after": lambda t: CircuitBreaker(slow_after=t),
    "CircuitBreaker.probe_timeout": lambda t: CircuitBreaker(probe_timeout=t),
    "CircuitBreaker.window": lambda t: CircuitBreaker(window=t),
    "ResilienceConfig.recovery": lambda t: ResilientClient(ResilienceConfig(circuit_recovery_timeout=t)),
    "ResilienceConfig.deadline": lambda t: ResilientClient(ResilienceConfig(deadline=t)),
    "TokenBudget.windows": lambda t: TokenBudget(windows={t: 100}),
    "DistributedLimiter.lease": lambda t: swarm(lease=t),
    "DistributedLimiter.forget_after": lambda t: swarm(forget_after=t),
    "DistributedLimiter.recovery_interval": lambda t: swarm(recovery_interval=t),
    "ManualClock.advance": lambda t: ManualClock().advance(t),
}


@pytest.mark.parametrize("given", [1e300, 10**400, 10**5000, 1e11, timedelta.max], ids=shown)
@pytest.mark.parametrize("entry", DURATIONS)
def test_a_duration_of_more_than_146_years_is_refused_where_it_is_given(entry, given):
    with pytest.raises(InvalidLimit, match=r"146 years|not a stretch of time"):
        DURATIONS[entry](given)


@pytest.mark.parametrize("entry", DURATIONS)
def test_a_negative_duration_of_any_length_is_refused(entry):
    with pytest.raises(InvalidLimit, match=r"is negative|not a stretch of time"):
        DURATIONS[entry](-(10**5000))


@pytest.mark.parametrize("duration", [1e300, 10**400, 10**5000], ids=shown)
def test_a_window_that_was_given_an_absurd_duration_has_not_changed(duration):
    clock = ManualClock()
    window = BackoffWindow(clock=clock)
    window.set(5)
    before = window.remaining, window.generation
    with pytest.raises(InvalidWindow, match="longer than 146 years"):
        window.set(duration)
    assert (window.remaining, window.generation) == before
    clock.advance(5)
    assert not window.should_backoff()
    assert window.wait(timeout=0)


def test_a_hundred_years_are_a_duration():
    clock = ManualClock()
    window = BackoffWindow(clock=clock)
    window.set(100 * 365 * 86400)
    assert window.remaining == 100 * 365 * 86400


@pytest.mark.parametrize("number", [10**400, 10**5000], ids=shown)
def test_an_absurd_capacity_is_refused_with_a_message_that_can_be_printed(number):
    for act in (
        lambda: Dispatch(concurrency=number),
        lambda: Dispatch(byte_budget=number),
        lambda: RateLimiter(number),
        lambda: Rate(number, 60),
        lambda: Rate(1, 60, burst=number),
        lambda: MemoryLimiter().set_capacity("api", number, 60),
        lambda: Dispatch(concurrency=-number),
    ):
        with pytest.raises(InvalidCapacity, match=r"10\*\*\d+ or more"):
            act()


def test_the_largest_capacity_is_two_to_the_sixty_fourth():
    assert Dispatch(concurrency=2**64, byte_budget=2**64).try_admit() is not None


@pytest.mark.parametrize(
    "sent_at", [float("nan"), float("inf"), 1e300, 10**5000, True, "now", None], ids=shown
)
def test_a_sent_at_that_is_not_a_moment_changes_nothing(sent_at):
    dispatch = Dispatch("api", rates="auto", clock=ManualClock())
    limiter = swarm(clock=ManualClock())
    limiter.set_capacity("api", 100, 60)
    signal = read_signal(429, {"retry-after": "30"})
    for act in (
        lambda: dispatch.observe(signal, sent_at=sent_at),
        lambda: dispatch.window.set(30, sent_at=sent_at),
        lambda: limiter.announce_reduced("api", "429", sent_at=sent_at),
    ):
        if sent_at is None:
            act()
        else:
            with pytest.raises(InvalidWindow, match="is not a moment"):
                act()
    assert dispatch.snapshot().backoff_active is (sent_at is None)
    assert (limiter.get_capacity("api").total == 100) is (sent_at is not None)
    limiter.close()


# -- priorities, tenants and observers


class Level(IntEnum):
    LOW = 0
    HIGH = 10


def test_a_member_of_an_intenum_is_a_priority():
    order = []

    async def call(gate, priority):
        async with gate.admit(priority=priority):
            order.append(priority)

    async def main(clock):
        gate = Dispatch("api", concurrency=1, clock=clock)
        async with gate.admit():
            waiting = [asyncio.create_task(call(gate, p)) for p in (Level.LOW, 5, Level.HIGH)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    run(main)
    assert order == [Level.HIGH, 5, Level.LOW]


@pytest.mark.parametrize("admit", [Dispatch.admit, Dispatch.try_admit])
@pytest.mark.parametrize("priority", [True, 1.5, "high", None])
def test_a_priority_that_is_not_a_whole_number_is_refused(priority, admit):
    gate = Dispatch("api", concurrency=1)
    with pytest.raises(InvalidConfig, match="higher goes first"):
        admit(gate, priority=priority)
    assert gate.snapshot().in_flight == 0


@pytest.mark.parametrize("admit", [Dispatch.admit, Dispatch.try_admit])
@pytest.mark.parametrize("nothing", [None, "", [], {}])
def test_an_estimate_that_is_not_a_number_is_refused_although_it_is_empty(nothing, admit):
    gate = Dispatch("api", concurrency=1)
    for estimate in ("tokens", "bytes"):
        with pytest.raises(InvalidCapacity, match=f"{estimate}="):
            admit(gate, **{estimate: nothing})
    assert gate.snapshot().in_flight == 0


@pytest.mark.parametrize("make", [Dispatch, lambda key: CircuitBreaker(key=key)], ids=["gate", "breaker"])
def test_a_key_that_cannot_be_hashed_is_refused(make):
    with pytest.raises(InvalidConfig, match=r"key=\['api'\] is not hashable"):
        make(["api"])


@pytest.mark.parametrize("admit", [Dispatch.admit, Dispatch.try_admit])
def test_a_tenant_that_cannot_be_hashed_is_refused_although_no_caller_waits(admit):
    gate = Dispatch("api", concurrency=1)
    with pytest.raises(InvalidConfig, match=r"tenant=\['team'\] is not hashable"):
        admit(gate, tenant=["team"])
    assert gate.snapshot().in_flight == 0


async def async_observer(_event): ...


class AsyncObserver:
    async def __call__(self, _event): ...


OBSERVED = {
    "Dispatch": lambda o: Dispatch("api", observer=o),
    "RateLimiter": lambda o: RateLimiter(observer=o),
    "MemoryLimiter": lambda o: MemoryLimiter(observer=o),
    "BackoffWindow": lambda o: BackoffWindow(observer=o),
    "WindowRegistry": lambda o: WindowRegistry(observer=o),
    "CircuitBreaker": lambda o: CircuitBreaker(observer=o),
    "BreakerRegistry": lambda o: BreakerRegistry(observer=o),
    "ResilientClient": lambda o: ResilientClient(observer=o),
    "DistributedLimiter": lambda o: swarm(observer=o),
}


@pytest.mark.parametrize(
    "observer",
    [async_observer, AsyncObserver(), functools.partial(async_observer)],
    ids=["def", "object", "partial"],
)
@pytest.mark.parametrize("kind", OBSERVED)
def test_an_async_observer_is_refused_because_it_would_never_run(kind, observer):
    with pytest.raises(InvalidConfig, match="is async, and it would not be awaited"):
        OBSERVED[kind](observer)


@pytest.mark.parametrize("kind", OBSERVED)
def test_an_observer_that_cannot_be_called_is_refused(kind):
    with pytest.raises(InvalidConfig, match="cannot be called; give a function of one event"):
        OBSERVED[kind](7)
