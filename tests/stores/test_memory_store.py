"""The store in memory: how long it keeps pools, and which gates of one process share it."""

import asyncio
import gc
from weakref import ref

import pytest

from headgate.gate.clock import SYSTEM
from headgate.sharing.memory import MemoryStore, _stores
from headgate.sharing.records.client import hold
from headgate.sharing.store import open_store
from headgate.testing import ManualClock
from pool_questions import SECOND, question

MINUTE = 60


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


def ask(store, key, **facts):
    return asyncio.run(store.ask(key, question(**facts)))


def keys(store):
    return asyncio.run(store.keys())


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"lease": 5 * SECOND}, 5),
        ({"rates": [[1, 3_600 * SECOND, 1]], "batches": [[1]], "lease": 0}, 3_600),
        ({"window": 600 * SECOND, "limits": [0, 0, 0, 10 * SECOND], "lease": 0}, 610),
    ],
    ids=["a lease", "a rate", "a window"],
)
def test_a_pool_is_deleted_a_minute_after_there_is_nothing_to_remember(store, clock, facts, seconds):
    ask(store, "api", **facts)
    clock.advance(seconds + MINUTE - 1)
    assert keys(store) == ["api"]
    clock.advance(1)
    assert keys(store) == []
    assert asyncio.run(store.look("api")) is None


def test_the_limits_of_a_deleted_pool_are_those_of_the_next_member(store, clock):
    slow, fast = [[1, SECOND, 1]], [[9, SECOND, 9]]
    first = ask(store, "api", rates=slow)
    assert ask(store, "api", rates=fast)["version"] == first["version"]
    clock.advance(2 * MINUTE)
    assert ask(store, "api", rates=fast)["rates"] == fast


def test_idle_pools_do_not_pile_up(store, clock):
    for number in range(1_000):
        ask(store, f"key {number}", lease=SECOND)
        clock.advance(10)
    assert len(store._pools) <= 128


def test_a_url_is_one_store_for_each_clock(clock):
    """A pool's times are those of one clock, so two tests with one URL do not disturb each other."""
    assert open_store("memory:clocks", clock) is open_store("memory:clocks", clock)
    assert open_store("memory:clocks", clock) is not open_store("memory:clocks", SYSTEM)
    assert open_store("memory:clocks", clock) is not open_store("memory:others", clock)
    ask(open_store("memory:clocks", clock), "api")
    assert keys(open_store("memory:clocks", clock)) == ["api"]
    assert keys(open_store("memory:clocks", ManualClock())) == []


def test_a_store_of_a_url_goes_with_its_clock():
    clock = ManualClock()
    store = ref(open_store("memory:clocks", clock))
    gc.collect()
    assert store() is not None, "no gate holds it, but its clock is there"
    place = "memory:clocks", id(clock)
    assert place in _stores
    del clock
    gc.collect()
    assert store() is None
    assert place not in _stores


def test_a_clock_that_cannot_be_referred_to_weakly_has_a_store_too():
    class Slotted:
        __slots__ = ()

        def now(self):
            return 7_000

    clock = Slotted()
    store = open_store("memory:slots", clock)
    assert store is open_store("memory:slots", clock)
    ask(store, "api")
    assert keys(store) == ["api"]


def test_breakers_and_budgets_of_one_url_share_by_clock_too(clock):
    one, same, other = hold("memory:held", clock), hold("memory:held", clock), hold("memory:held", SYSTEM)
    assert one is same
    assert other.store is not one.store
    assert other.store is open_store("memory:held", SYSTEM)
