"""Circuit breakers by key: one for each, forgotten when there is nothing to remember."""

import gc
import threading
import tracemalloc

import pytest

from breaker.callers import CLOSED, HALF_OPEN, OPEN, Down, down, fail, opened, refused, well
from headgate import BreakerRegistry, CircuitBreaker, InvalidCapacity, InvalidConfig
from headgate.breaker import registry as registry_module
from headgate.testing import Recorder
from patience import PATIENCE


def test_every_caller_that_asks_for_a_key_gets_the_same_breaker(clock):
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    assert registry.for_key("stripe") is registry.for_key("stripe")
    assert registry.for_key("stripe") is not registry.for_key("paypal")
    assert registry.for_key(("eu", 7)) is registry.for_key(("eu", 7))
    assert CircuitBreaker.for_key("stripe", registry=registry) is registry.for_key("stripe")


def test_each_key_has_a_circuit_of_its_own_with_the_options_of_the_registry(world, clock):
    """One target that fails does not stop the others."""
    seen = Recorder()
    registry = BreakerRegistry(failure_threshold=3, recovery_timeout=7, observer=seen, clock=clock)
    opened(world, registry.for_key("stripe"))
    assert world.call(registry.for_key("paypal"), well) == "well"
    refusal = refused(world, registry.for_key("stripe"))
    assert refusal.retry_after == 7
    assert "'stripe'" in str(refusal)
    assert [event.key for event in seen.events] == ["stripe"]


def test_states_lists_every_breaker_that_is_remembered(world, clock):
    """By key, with the state of each."""
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
    """The state of an unknown key is closed."""
    registry = BreakerRegistry(clock=clock)
    assert registry.state("never heard of") is CLOSED
    registry.reset("never heard of")
    assert len(registry) == 0
    assert registry.states() == {}


def test_one_key_may_be_reset(world, clock):
    registry = BreakerRegistry(failure_threshold=3, clock=clock)
    for key in "ab":
        opened(world, registry.for_key(key))
    registry.reset("a")
    assert registry.states() == {"a": CLOSED, "b": OPEN}


@pytest.fixture
def _names_of_its_own(monkeypatch):
    monkeypatch.setattr(registry_module, "_named", {})


@pytest.mark.usefixtures("_names_of_its_own")
def test_a_named_registry_is_found_from_anywhere():
    """Options may be left out, or given again."""
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
    """Other options are not silently ignored, and change nothing."""
    payments = BreakerRegistry.named("payments", **first)
    with pytest.raises(InvalidConfig, match="'payments' exists already"):
        BreakerRegistry.named("payments", failure_threshold=7)
    with pytest.raises(InvalidConfig):
        BreakerRegistry.named("payments", **first, recovery_timeout=1)
    assert BreakerRegistry.named("payments") is payments


@pytest.mark.usefixtures("_names_of_its_own")
def test_a_registry_name_is_free_after_wrong_options():
    with pytest.raises(InvalidCapacity):
        BreakerRegistry.named("payments", failure_threshold=0)
    assert BreakerRegistry.named("payments", failure_threshold=3) is BreakerRegistry.named("payments")


@pytest.mark.parametrize("name", ["", None, 7, ("a",)])
def test_the_name_of_a_registry_is_a_string(name):
    with pytest.raises(InvalidConfig, match="is not a name"):
        BreakerRegistry.named(name)


@pytest.mark.usefixtures("_names_of_its_own")
def test_threads_that_come_at_once_get_one_registry_and_one_breaker():
    """Thirty threads, a hundred keys."""
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


def test_twenty_thousand_breakers_without_failures_leave_almost_nothing(clock):
    """Memory follows the breakers that remember something, not all that were ever asked for."""
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


def test_a_breaker_with_a_failure_rate_is_kept_for_its_window_and_then_forgotten(clock):
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
def test_a_failure_is_remembered_though_the_registry_let_go_of_the_breaker_during_the_call(clock, threshold):
    """During the call thousands of other keys are asked for; its outcome is not lost."""
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


def test_a_failure_rate_is_remembered_though_the_registry_let_go_of_the_breaker_during_the_call(clock):
    registry = BreakerRegistry(failure_threshold=None, failure_rate=0.5, minimum_calls=4, clock=clock)

    def lasting():
        for key in range(1000):
            registry.for_key(key)

    for end in (well, well, down, down):
        with pytest.raises(Down) if end is down else threading.Lock():
            registry.for_key("target").call(lambda end=end: (lasting(), end()))
        gc.collect()
    assert registry.state("target") is OPEN


def test_a_breaker_that_a_caller_holds_is_the_one_that_others_get(clock):
    registry = BreakerRegistry(failure_threshold=1, clock=clock)
    held = registry.for_key("target")
    for key in range(1000):
        registry.for_key(key)
    gc.collect()
    with pytest.raises(Down):
        held.call(down)
    assert registry.for_key("target") is held
    assert registry.state("target") is OPEN


def test_breakers_of_one_key_without_a_store_are_independent(world, clock):
    """The key identifies a circuit only in a store."""
    one, two = (CircuitBreaker(3, 30, key="stripe", clock=clock) for _ in range(2))
    opened(world, one)
    assert two.state is CLOSED
