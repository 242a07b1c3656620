"""What the observer of a circuit breaker is told, and when."""

import logging
import threading

import pytest

from breaker.callers import CLOSED, HALF_OPEN, OPEN, Down, Threads, down, fail, opened, refused, well
from headgate import BreakerRegistry, CircuitBreaker, events
from headgate.testing import ManualClock, Recorder
from patience import PATIENCE


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


def test_an_observer_is_told_once_of_two_probes(world, clock):
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


def test_an_observer_is_told_of_a_reset_that_changed_something(world, clock):
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
    """The observer is called outside the lock."""
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


def test_a_finalizer_tells_no_observer_and_draws_no_random_number(clock):
    """A call fails while its coroutine is closed: that says nothing about the far side."""
    seen = Recorder()
    breaker = CircuitBreaker(
        1, 30, recovery_jitter=0.5, random=lambda: pytest.fail("drawn"), observer=seen, clock=clock
    )

    async def fails_when_closed():
        try:
            await Forever()
        finally:
            raise Down

    calling = breaker.call_async(fails_when_closed)
    calling.send(None)
    with pytest.raises(Down):
        calling.close()
    assert breaker.state is CLOSED
    assert seen.events == []


class Forever:
    def __await__(self):
        yield


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
