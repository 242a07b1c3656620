"""observe_all: every gate, whichever code made it, and several observers at once."""

import pytest

import headgate
from headgate import (
    BackoffWindow,
    CircuitBreaker,
    Dispatch,
    InvalidConfig,
    MemoryLimiter,
    RateLimiter,
    observe_all,
    retry,
    telling,
)
from headgate.testing import ManualClock, Recorder


@pytest.fixture
def seen():
    recorder = Recorder()
    stop = observe_all(recorder)
    yield recorder
    stop()


def kinds(recorder):
    """What was told, apart from news of stores: shared gates of earlier tests still ask theirs."""
    names = [type(event).__name__ for event in recorder.events]
    return [name for name in names if not name.startswith("Store")]


def test_gates_that_exist_and_gates_made_later_are_reached():
    clock, seen = ManualClock(), Recorder()
    before = Dispatch("before", clock=clock)
    stop = observe_all(seen)
    after = Dispatch("after", clock=clock)
    with before.admit(), after.admit():
        pass
    stop()
    with before.admit(), after.admit():
        pass
    assert [(type(event).__name__, event.key) for event in seen.events] == [
        ("Admitted", "before"),
        ("Admitted", "after"),
        ("Settled", "after"),
        ("Settled", "before"),
    ]


def test_an_observer_that_is_also_given_to_a_gate_is_told_once(seen):
    api = Dispatch("api", observer=seen, clock=ManualClock())
    with api.admit():
        pass
    api.set_backoff(5)
    assert kinds(seen) == ["Admitted", "Settled", "WindowSet"]


def test_several_observers_are_told_at_once_and_one_that_raises_disturbs_no_other(seen, caplog):
    def broken(event):
        raise RuntimeError("broken")

    stop = observe_all(headgate.observers.together(broken, Recorder(), seen))
    own = Recorder()
    with Dispatch("api", observer=own, clock=ManualClock()).admit():
        pass
    stop()
    assert kinds(seen) == kinds(own) == ["Admitted", "Settled"]
    assert caplog.text.count("RuntimeError: broken") == 2


def test_limiters_windows_breakers_and_retries_are_reached(seen):
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    limiter.acquire("key")  # a key that is only a bucket
    limiter.announce_reduced("key", "402")
    RateLimiter(60, clock=clock).acquire()
    window = BackoffWindow(clock=clock)
    window.set(3)
    window.clear()
    breaker = CircuitBreaker(failure_threshold=1, clock=clock)

    @retry(1, clock=clock)
    def fails():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        breaker.call(fails)
    assert kinds(seen) == [
        *("Admitted", "CapacityReduced", "Admitted", "Settled"),
        *("WindowSet", "WindowCleared", "Retrying", "CircuitOpened"),
    ]


def test_waiting_for_the_end_of_a_window_is_not_told_as_a_call(seen):
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    window.set(3)
    assert window.wait()
    assert kinds(seen) == ["WindowSet", "WindowEnded"]


def test_what_is_not_an_observer_is_refused():
    with pytest.raises(InvalidConfig, match="observer"):
        observe_all("api")

    async def watch(event):
        pass

    with pytest.raises(InvalidConfig, match="observer"):
        observe_all(watch)
    assert telling.everywhere() == ()
