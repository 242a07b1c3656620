"""A window of its own in a store: set by one, heard by all, also by a Dispatch of that key."""

import asyncio
from uuid import uuid4

import pytest

from forks import in_a_child, needs_fork
from headgate import BackoffWindow, Dispatch, InvalidConfig, StoreError
from headgate.sharing.memory import MemoryStore
from headgate.testing import ManualClock
from patience import PATIENCE, eventually


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


def test_what_one_signals_closes_the_window_of_all(any_store, key):
    """BW, 2d: extends, never shortens; a clear reaches everybody too."""
    one, other = (BackoffWindow(store=any_store, key=key) for _ in range(2))
    one.set(60, reason="429")
    eventually(other.should_backoff, "the other hears of it")
    assert 59 < other.remaining <= 60
    other.set(5)
    other.set(90)
    eventually(lambda: one.remaining > 80, "it was extended")
    one.clear()
    eventually(lambda: not other.should_backoff(), "the other hears that it is over")


def test_other_keys_hear_nothing(any_store, key):
    one, other = BackoffWindow(store=any_store, key=key), BackoffWindow(store=any_store, key="another")
    one.set(60)
    third = BackoffWindow(store=any_store, key=key)
    eventually(third.should_backoff, "it was told")
    assert not other.should_backoff()


def test_a_newcomer_knows_at_once(any_store, key):
    """D-09: it survives those who opened it."""
    first = BackoffWindow(store=any_store, key=key)
    first.set(60)
    second = BackoffWindow(store=any_store, key=key)
    eventually(second.should_backoff, "it was told")
    del first, second
    assert 0 < BackoffWindow(store=any_store, key=key).remaining <= 60


def test_a_dispatch_of_that_key_shares_it_and_keeps_its_limits(any_store, key):
    """DESIGN 2: equal keys share everything, window included; a window brings no limits of its own."""
    window = BackoffWindow(store=any_store, key=key)
    gate = Dispatch(key, rates="77/day", pause=True, store=any_store)
    try:
        window.set(60)
        eventually(gate.window.should_backoff, "the Dispatch hears of it")
        late = BackoffWindow(store=any_store, key=key)
        assert late.should_backoff()
        gate.window.clear()
        eventually(lambda: not window.should_backoff(), "the window hears of the Dispatch")
        assert gate.snapshot().rates[0].limit == 77
    finally:
        gate.close()


def test_what_is_over_is_over_for_all_and_nothing_is_said(key):
    clock = ManualClock(1_000)
    store = MemoryStore(clock)
    one, other = (BackoffWindow(store=store, key=key, clock=clock) for _ in range(2))
    one.set(5)
    eventually(other.should_backoff, "the other hears of it")
    clock.advance(5)
    assert not one.should_backoff()
    assert not other.should_backoff()
    other.set(1)
    eventually(one.should_backoff, "the next one")


def test_a_store_that_is_away_is_told_when_it_is_back(key):
    """What was signalled meanwhile closes it here at once, and for the others later."""

    class Away(MemoryStore):
        away = False

        async def ask(self, key, question):
            if self.away:
                raise StoreError("away")
            return await super().ask(key, question)

    store = Away()
    one, other = (BackoffWindow(store=store, key=key) for _ in range(2))
    store.away = True
    one.set(60)
    assert one.should_backoff()
    assert not other.should_backoff()
    store.away = False
    eventually(other.should_backoff, "the other hears of it")


def test_waiting_is_as_in_one_process(any_store, key):
    one, other = (BackoffWindow(store=any_store, key=key) for _ in range(2))
    one.set(60)
    eventually(other.should_backoff, "the other hears of it")

    async def wait_until_cleared():
        waiting = asyncio.create_task(other.wait_async(PATIENCE))
        await asyncio.sleep(0)
        one.clear()
        return await waiting

    assert asyncio.run(wait_until_cleared())


@needs_fork
def test_a_forked_child_hears_and_is_heard(sqlite, key):
    window = BackoffWindow(store=sqlite, key=key)

    def child():
        window.set(60)
        eventually(lambda: BackoffWindow(store=sqlite, key=key).remaining, "it is told")

    assert in_a_child(child) == 0
    eventually(window.should_backoff, "the parent hears of it")


@pytest.mark.parametrize(
    "options",
    [{"store": "memory:"}, {"key": "api"}, {"store": "memory:", "key": ""}, {"store": "memory:", "key": 7}],
)
def test_a_store_needs_a_key_and_a_key_a_store(options):
    with pytest.raises(InvalidConfig, match=r'key="openai"'):
        BackoffWindow(**options)


def test_a_store_that_is_not_there_is_a_clear_error(key):
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        BackoffWindow(store="redis://:secret@127.0.0.1:1/0", key=key)
