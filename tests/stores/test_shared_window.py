"""BackoffWindow(store=, key=): signals reach all windows and gates of the key."""

import asyncio
from uuid import uuid4

import pytest

from forks import in_a_child, needs_fork
from headgate import BackoffWindow, Dispatch, InvalidConfig, StoreError, events
from headgate.sharing.memory import MemoryStore
from headgate.testing import ManualClock, Recorder
from patience import PATIENCE, eventually


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


def test_a_signal_to_one_window_reaches_all_of_its_key(any_store, key):
    """A signal extends and never shortens. Clearing reaches all of them too."""
    one, other = (BackoffWindow(store=any_store, key=key) for _ in range(2))
    one.set(60, reason="429")
    eventually(other.should_backoff, "the other hears of it")
    assert 59 < other.remaining <= 60
    other.set(5)
    other.set(90)
    eventually(lambda: one.remaining > 80, "it was extended")
    one.clear()
    eventually(lambda: not other.should_backoff(), "the other hears that it is over")


def test_a_member_that_tells_a_shorter_window_hears_of_the_longer_one(key):
    """Also when the news of the longer one did not reach it."""

    class Silent(MemoryStore):
        async def listen(self, key, heard):
            pass

    store = Silent()
    one, other = (BackoffWindow(store=store, key=key) for _ in range(2))
    one.set(60)
    eventually(lambda: BackoffWindow(store=store, key=key).should_backoff(), "the pool knows it")
    other.set(5)
    eventually(lambda: other.remaining > 50, "the answer to its own signal says so")


def test_a_window_of_another_key_hears_nothing(any_store, key):
    one, other = BackoffWindow(store=any_store, key=key), BackoffWindow(store=any_store, key="another")
    one.set(60)
    third = BackoffWindow(store=any_store, key=key)
    eventually(third.should_backoff, "it was told")
    assert not other.should_backoff()


def test_a_new_window_is_active_at_once_if_its_key_is(any_store, key):
    """Also after all the others of that key were dropped."""
    first = BackoffWindow(store=any_store, key=key)
    first.set(60)
    second = BackoffWindow(store=any_store, key=key)
    eventually(second.should_backoff, "it was told")
    del first, second
    assert 0 < BackoffWindow(store=any_store, key=key).remaining <= 60


def test_a_dispatch_shares_the_window_of_its_key_and_keeps_its_limits(any_store, key):
    """A window sets no limits."""
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


def test_a_window_ends_for_all_at_the_same_time_and_may_start_again(key):
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


def test_a_signal_during_a_loss_of_the_store_is_told_when_it_is_back(key):
    """It holds here at once, and for the others later."""

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


def test_a_waiting_task_goes_on_when_another_window_of_the_key_is_cleared(any_store, key):
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
def test_a_signal_of_a_forked_child_reaches_the_parent(sqlite, key):
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


def test_a_server_that_cannot_be_reached_is_named_without_its_password(key):
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        BackoffWindow(store="redis://:secret@127.0.0.1:1/0", key=key)


@pytest.mark.parametrize("kind", ["dispatch", "window"])
def test_a_window_is_not_extended_by_telling_it_to_the_store(any_store, key, kind):
    """The end that comes back is rounded, and some time has passed."""
    seen = Recorder()
    if kind == "dispatch":
        one = Dispatch(key, rates="77/day", pause=True, store=any_store, observer=seen)
        set_window = one.set_backoff
    else:
        one = BackoffWindow(store=any_store, key=key, observer=seen)
        set_window = one.set
    with one:
        for seconds in (60, 61.000_000_3, 62.000_000_7):
            set_window(seconds)
            other = BackoffWindow(store=any_store, key=key)
            eventually(lambda at_least=seconds - 0.9: other.remaining > at_least, "it was told")  # noqa: B023
            other.close()
        assert len(seen.of(events.WindowEvent)) == 3


@pytest.mark.parametrize("stores", [("memory:one", "memory:one"), ("memory:one", "memory:two")])
def test_two_dispatches_of_one_window_do_not_extend_it_by_telling_each_other(stores, key):
    window = BackoffWindow(observer=(seen := Recorder()))
    gates = [Dispatch(key, store=store, window=window) for store in stores]
    try:
        window.set(60)
        for _ in range(20):  # each waits for an answer of the store
            eventually(BackoffWindow(store=stores[0], key=key).should_backoff, "it was told")
        assert len(seen.of(events.WindowEvent)) <= 4
    finally:
        for gate in gates:
            gate.close()


def test_a_window_in_a_store_and_its_dispatch_of_the_same_store_do_not_extend_each_other(key):
    window = BackoffWindow(store="memory:one", key=key, observer=(seen := Recorder()))
    gate = Dispatch(key, store="memory:one", window=window)
    far = Dispatch(key, store="memory:one")
    try:
        far.set_backoff(60)
        eventually(window.should_backoff, "the window hears of it")
        for _ in range(20):  # each waits for an answer of the store
            assert BackoffWindow(store="memory:one", key=key).should_backoff()
        assert len(seen.of(events.WindowEvent)) <= 4
    finally:
        gate.close()
        far.close()
        window.close()


# -- closing


def test_what_a_window_was_told_last_reaches_the_others_although_it_is_closed_at_once(any_store, key):
    for number in range(5):
        with BackoffWindow(store=any_store, key=f"{key} {number}") as window:
            window.set(60)
        eventually(BackoffWindow(store=any_store, key=f"{key} {number}").should_backoff, "it was told")


class Noting(MemoryStore):
    """Counts how often it was closed. The first questions fail in the given way."""

    def __init__(self, *failures):
        super().__init__()
        self.failures = list(failures)
        self.closed = 0

    async def ask(self, key, question):
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        return await super().ask(key, question)

    async def close(self):
        self.closed += 1


@pytest.fixture
def opened(monkeypatch):
    """Has a URL open the given store."""

    def opened(store):
        monkeypatch.setattr("headgate.sharing.pool.client.open_store", lambda *_, **_given: store)
        return store

    return opened


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_leaving_the_block_of_a_window_closes_its_store_once(opened, key, colour):
    store = opened(Noting())
    window = BackoffWindow(store="sqlite:///limits.db", key=key)

    async def use():
        async with window as entered:
            assert entered is window

    if colour == "async":
        asyncio.run(use())
    else:
        with window as entered:
            assert entered is window
    window.close()
    window.close()
    eventually(lambda: store.closed, "the store is closed")
    window.set(5)  # it goes on alone
    assert window.should_backoff()
    window.close()
    assert store.closed == 1


@pytest.mark.parametrize("failure", [StoreError("away"), ValueError("a bug of the store")])
def test_a_window_whose_first_question_fails_closes_its_store(opened, key, failure):
    store = opened(Noting(failure))
    with pytest.raises(type(failure)):
        BackoffWindow(store="sqlite:///limits.db", key=key)
    eventually(lambda: store.closed, "the store is closed")


def test_a_window_that_cannot_tell_its_last_signal_says_so_and_closes_its_store(opened, key, caplog):
    store = opened(Noting(None, *[StoreError("away")] * 9))
    with BackoffWindow(store="sqlite:///limits.db", key=key) as window:
        window.set(60)
    eventually(lambda: store.closed, "the store is closed")
    assert f"other processes do not hear of the window of {key!r} that was set last" in caplog.text


def test_a_store_object_that_was_given_stays_open(key):
    store = Noting()
    with BackoffWindow(store=store, key=key):
        pass
    other = BackoffWindow(store=store, key=key)
    other.set(5)
    assert store.closed == 0
