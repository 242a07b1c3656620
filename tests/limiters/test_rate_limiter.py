"""RateLimiter: never more than n calls in any trailing minute, as object, `with` block or decorator."""

import asyncio
import functools
import inspect
import time
from itertools import pairwise

import pytest

from headgate import (
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    Rate,
    RateLimiter,
    WaitTimeout,
    events,
)
from headgate.testing import ManualClock, Recorder, run
from limiters.crowd import InThreads, race
from patience import eventually

SECOND = 1_000_000_000


def test_sixty_a_minute_is_the_default(clock):
    limiter = RateLimiter(clock=clock)
    assert sum(limiter.try_acquire() for _ in range(100)) == 60


def test_acquire_returns_when_there_is_a_place():
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(1, clock=clock)
    limiter.acquire()
    assert clock.seconds() == 0.0
    limiter.acquire()
    assert clock.seconds() == 60.0
    assert clock.sleeps == [60.0]


def test_inside_the_window_calls_are_not_paced(clock):
    """All of them may come at once."""
    limiter = RateLimiter(30, clock=clock)
    assert sum(limiter.try_acquire() for _ in range(100)) == 30


def test_a_call_waits_until_the_oldest_one_is_a_minute_old():
    """Three a minute, calls at 0, 10, 20, 20 and 20 s: the fourth goes at 60 s, the fifth at 70 s."""
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(3, clock=clock)
    moments = []
    for at in (0, 10, 20, 20, 20):
        clock.advance_to_ns(at * SECOND)
        limiter.acquire()
        moments.append(clock.seconds())
    assert moments == [0.0, 10.0, 20.0, 60.0, 70.0]


def test_a_decorated_function_takes_a_place_before_each_call():
    clock = ManualClock(auto_advance=True)

    @RateLimiter(2, clock=clock)
    def call(n, *, twice=False):
        return (n * (1 + twice), clock.seconds())

    assert [call(1), call(2, twice=True), call(n=3)] == [(1, 0.0), (4, 0.0), (3, 60.0)]


def test_a_decorated_coroutine_function_is_awaited_and_the_loop_stays_free():
    async def main(clock):
        limiter = RateLimiter(2, clock=clock)
        ticks = []

        @limiter
        async def call(n):
            await asyncio.sleep(1)
            return n, clock.seconds()

        async def tick():
            while True:
                await asyncio.sleep(10)
                ticks.append(clock.seconds())

        assert inspect.iscoroutinefunction(call)
        ticking = asyncio.ensure_future(tick())
        results = await asyncio.gather(*(call(n) for n in range(3)))
        ticking.cancel()
        return results, ticks

    results, ticks = run(main)
    assert results == [(0, 1.0), (1, 1.0), (2, 61.0)]
    assert ticks == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def test_async_methods_partials_and_callable_objects_can_be_decorated():
    async def main(clock):
        limiter = RateLimiter(2, clock=clock)

        class Client:
            @limiter
            async def method(self, n):
                return self, n

            async def __call__(self, n):
                return n, clock.seconds()

        client = Client()
        assert await client.method(1) == (client, 1)
        assert await limiter(functools.partial(client.method.__wrapped__, client))(2) == (client, 2)
        # If it were taken for a plain function, calling it now would stop the whole loop for a minute.
        assert inspect.iscoroutinefunction(limiter(client))
        return await limiter(client)(3)

    assert run(main) == (3, 60.0)


def test_a_decorated_function_keeps_its_metadata():
    limiter = RateLimiter()

    def call(n: int = 5) -> str:
        """Call it."""

    async def call_async(n: int = 5) -> str:
        """Call it."""

    for fn in (call, call_async):
        decorated = limiter(fn)
        assert (decorated.__name__, decorated.__doc__) == (fn.__name__, "Call it.")
        assert decorated.__qualname__ == fn.__qualname__
        assert decorated.__wrapped__ is fn
        assert inspect.signature(decorated) == inspect.signature(fn)


def test_a_call_that_fails_has_used_its_place():
    """In every form."""

    async def main(clock):
        limiter = RateLimiter(4, clock=clock)

        @limiter
        def fails():
            raise RuntimeError("boom")

        @limiter
        async def fails_async():
            raise RuntimeError("boom")

        with pytest.raises(RuntimeError):
            fails()
        with pytest.raises(RuntimeError):
            await fails_async()
        with pytest.raises(RuntimeError), limiter:
            raise RuntimeError("boom")
        with pytest.raises(RuntimeError):
            async with limiter:
                raise RuntimeError("boom")
        return limiter.try_acquire()

    assert run(main) is False


def test_all_forms_of_one_rate_limiter_share_its_places():
    """Decorator, with, async with, acquire, acquire_async, try_acquire."""

    async def main(clock):
        limiter = RateLimiter(7, clock=clock)

        @limiter
        def call():
            pass

        @limiter
        async def call_async():
            pass

        call()
        await call_async()
        with limiter:
            pass
        async with limiter:
            pass
        limiter.acquire()
        await limiter.acquire_async()
        return limiter.try_acquire(), limiter.try_acquire(), clock.seconds()

    assert run(main) == (True, False, 0.0)


def test_threads_share_the_places_of_a_rate_limiter():
    """On the real clock."""
    limiter = RateLimiter(20)
    assert sum(race(8, lambda _i: sum(limiter.try_acquire() for _ in range(50)))) == 20


def test_threads_that_wait_go_as_places_come_free(threads, clock):
    """Two a minute, six threads: two at once, two at 60 s, two at 120 s."""
    limiter = RateLimiter(2, clock=clock)
    admitted = []

    def visit():
        with limiter:
            admitted.append(clock.seconds())

    for _ in range(6):
        threads.start(visit)
    line = limiter._gate.callers.line
    eventually(lambda: line.waiting == 4, "four wait")
    clock.advance(60)
    eventually(lambda: len(admitted) == 4, "two more go")
    clock.advance(60)
    threads.join()
    assert sorted(admitted) == [0.0, 0.0, 60.0, 60.0, 120.0, 120.0]


def test_while_one_thread_waits_others_may_try_and_wait_with_a_time_out(threads, clock):
    """Nothing is locked during a wait."""
    limiter = RateLimiter(1, clock=clock)
    limiter.acquire()
    threads.start(limiter.acquire)
    eventually(lambda: limiter._gate.waiting == 1, "one waits")
    others = InThreads()
    others.start(limiter.try_acquire)
    others.start(lambda: limiter.acquire(timeout=0))
    others.start(lambda: limiter.acquire(timeout=5))
    others.start(lambda: repr(limiter))
    results = others.join()
    assert sorted(type(result).__name__ for result in results) == [
        "CapacityExhausted",
        "WaitTimeout",
        "bool",
        "str",
    ]
    assert clock.seconds() == 0.0
    clock.advance(60)


def test_at_exactly_sixty_seconds_two_go_and_the_next_at_a_hundred_and_twenty():
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(2, clock=clock)
    assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]
    clock.advance(59.999999999)
    assert not limiter.try_acquire()
    clock.advance(0.000000001)
    assert sum(limiter.try_acquire() for _ in range(50)) == 2
    limiter.acquire()
    assert clock.seconds() == 120.0


@pytest.mark.parametrize("step", [-3600, 3600])
def test_steps_of_the_wall_clock_change_nothing(step, monkeypatch):
    limiter = RateLimiter(2)
    assert limiter.try_acquire()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    monkeypatch.setattr(time, "time_ns", lambda: round((real() + step) * SECOND))
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    with pytest.raises(WaitTimeout) as caught:
        limiter.acquire(timeout=1)
    assert 59 < caught.value.retry_after <= 60


def test_a_clock_that_goes_back_grants_nothing_and_delays_no_later_call():
    clock = ManualClock(10_000)
    limiter = RateLimiter(2, clock=clock)
    assert limiter.try_acquire()
    clock.set_ns(clock.now() - 3600 * SECOND)
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    clock.set_ns(10_060 * SECOND)
    assert sum(limiter.try_acquire() for _ in range(5)) == 2


def test_the_memory_of_a_rate_limiter_does_not_grow_with_its_limit(clock):
    """A log of a million calls would have a million entries."""
    limiter = RateLimiter(1_000_000, clock=clock)
    (rule,) = limiter._gate.rules.rates
    for _ in range(5000):
        clock.advance(0.01)
        assert limiter.try_acquire()
    assert len(rule._groups) <= 130


def test_a_rate_with_a_burst_paces_the_calls(clock):
    limiter = RateLimiter(rate="60/minute burst 1", clock=clock)
    assert [limiter.try_acquire() for _ in range(2)] == [True, False]
    clock.advance(1)
    assert [limiter.try_acquire() for _ in range(2)] == [True, False]
    assert RateLimiter(rate=Rate(5, 3600, strict=True), clock=clock).try_acquire()


@pytest.mark.parametrize("rpm", [0, -1, 2.5, "60", None, True, float("nan")])
def test_an_impossible_requests_per_minute_is_refused(rpm):
    """The error says what was given and what to write."""
    with pytest.raises(ValueError) as caught:
        RateLimiter(rpm)
    assert isinstance(caught.value, InvalidCapacity)
    assert f"requests_per_minute={rpm!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize(
    "rate", ["", "60", "60/minutte", "0/s", "5 tokens/s", 60, ["1/s", "2/s"], [], Rate(5, unit="bytes")]
)
def test_a_rate_that_a_rate_limiter_cannot_keep_is_refused(rate):
    with pytest.raises(InvalidLimit) as caught:
        RateLimiter(rate=rate)
    assert "e.g." in str(caught.value)


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), True])
def test_a_rate_limiter_refuses_a_time_out_that_is_not_a_time(timeout):
    limiter = RateLimiter()
    with pytest.raises(InvalidWindow):
        limiter.acquire(timeout=timeout)
    with pytest.raises(InvalidWindow):
        asyncio.run(limiter.acquire_async(timeout=timeout))


def test_a_task_that_gives_up_at_a_rate_limiter_leaves_its_place_to_the_next():
    async def main(clock):
        limiter = RateLimiter(1, clock=clock)
        limiter.acquire()
        gives_up = asyncio.ensure_future(limiter.acquire_async())
        await asyncio.sleep(0)
        next_one = asyncio.ensure_future(limiter.acquire_async())
        await asyncio.sleep(30)
        gives_up.cancel()
        await next_one
        return clock.seconds()

    assert run(main) == 60.0


def test_under_load_each_call_is_a_window_later_than_the_fifth_before_it():
    """Five a minute, for a whole hour."""
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(5, clock=clock)
    moments = []
    while clock.seconds() < 3600:
        limiter.acquire()
        moments.append(clock.now())
    assert all(later - earlier >= 60 * SECOND for earlier, later in zip(moments, moments[5:], strict=False))
    assert all(later >= earlier for earlier, later in pairwise(moments))
    assert len(moments) == 301


def test_every_wait_of_a_rate_limiter_is_reported_to_its_observer():
    """The fourth call of three a minute comes at 20 s and waits 40 s."""
    clock, seen = ManualClock(auto_advance=True), Recorder()
    limiter = RateLimiter(3, observer=seen, clock=clock)
    for gap in (10, 10, 0, 0):
        limiter.acquire()
        clock.advance(gap)
    assert [(event.at, event.waited) for event in seen.of(events.Admitted)] == [
        (0.0, 0.0),
        (10.0, 0.0),
        (20.0, 0.0),
        (60.0, 40.0),
    ]
    with pytest.raises(InvalidConfig, match="observer="):
        RateLimiter(observer="print")


@pytest.mark.parametrize(
    "limiter",
    [
        lambda clock: RateLimiter(10, clock=clock),
        lambda clock: RateLimiter("10/minute", clock=clock),
        lambda clock: RateLimiter("10 calls per minute", clock=clock),
        lambda clock: RateLimiter("10 rpm", clock=clock),
        lambda clock: RateLimiter(rate="10/minute", clock=clock),
        lambda clock: RateLimiter(rate="10/minute strict", clock=clock),
        lambda clock: RateLimiter(Rate(10, 60, strict=True), clock=clock),
    ],
)
def test_ten_a_minute_is_the_same_limit_however_it_is_written(limiter, clock):
    """All ten at once, the eleventh when the first is a minute old."""
    limiter = limiter(clock)
    assert [limiter.try_acquire() for _ in range(12)] == [True] * 10 + [False] * 2
    clock.advance(59.999)
    assert not limiter.try_acquire()
    clock.advance(0.001)
    assert [limiter.try_acquire() for _ in range(12)] == [True] * 10 + [False] * 2


@pytest.mark.parametrize("rate", ["10/minute burst 2", "10/Minute BURST 2", Rate(10, 60, burst=2)])
def test_a_burst_paces_the_calls(rate, clock):
    for limiter in (RateLimiter(rate, clock=clock), RateLimiter(rate=rate, clock=clock)):
        assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]
        clock.advance(6)
        assert [limiter.try_acquire() for _ in range(2)] == [True, False]


def test_a_rate_as_the_first_argument_and_another_one_by_name_are_two_limits():
    with pytest.raises(InvalidConfig, match="are two limits"):
        RateLimiter("10/s", rate="20/s")


def test_asking_says_when_to_come_again(clock):
    limiter = RateLimiter(1, clock=clock)
    assert limiter.ask()
    answer = limiter.ask()
    assert (bool(answer), answer.rule, answer.retry_after) == (False, "requests/minute", 60.0)
    clock.advance(60)
    assert limiter.ask()
