"""Members that have gone leave no listener behind in a store that others go on using."""

import asyncio
import gc
from contextlib import closing, suppress
from uuid import uuid4

import pytest

from faults.rig import Proxy
from headgate import BackoffWindow, CircuitBreaker, CircuitBreakerOpen, CircuitState, Dispatch
from headgate.sharing.courier import COURIER
from headgate.sharing.memory import MemoryStore
from headgate.sharing.postgres import PostgresStore
from patience import PATIENCE, eventually


@pytest.fixture
def key():
    return f"listened to {uuid4().hex}"


@pytest.fixture
def shared(opened):
    """A store that the program made itself. Members do not close it."""
    store = opened()
    yield store
    COURIER.wait_for(store.close, PATIENCE)


def listened_to(store):
    """The keys that have listeners."""
    if isinstance(store, MemoryStore):
        asyncio.run(store.listen("to look", print))  # which dismisses those that have left
        asyncio.run(store.unlisten("to look", print))
        return store._listeners.keys() - {"to look"}
    return set(getattr(store, "_heard", None) or getattr(store, "_listeners", ()))


MEMBERS = {
    "gate": lambda store, key: Dispatch(key, rates="10/s", store=store),
    "window": lambda store, key: BackoffWindow(store=store, key=key),
    "breaker": lambda store, key: used(CircuitBreaker(key=key, store=store)),
}


def used(breaker):
    breaker.call(int)  # with its first call it joins the circuit of its key
    return breaker


@pytest.mark.parametrize("make", MEMBERS.values(), ids=MEMBERS)
def test_a_member_that_is_closed_leaves_no_listener(shared, key, make):
    for number in range(2):
        member = make(shared, f"{key} {number}")
        eventually(lambda: listened_to(shared), "it listens")
        member.close()
        eventually(lambda: not listened_to(shared), "nothing listens")


@pytest.mark.parametrize("make", MEMBERS.values(), ids=MEMBERS)
def test_a_member_that_is_dropped_leaves_no_listener(shared, key, make):
    member = make(shared, key)
    eventually(lambda: listened_to(shared), "it listens")
    del member

    def gone():
        gc.collect()
        return not listened_to(shared)

    eventually(gone, "nothing listens")


def test_breakers_that_come_and_go_leave_the_others_their_listener(key, any_store):
    def breaker():
        made = CircuitBreaker(1, 600, key=key, store=any_store)
        made.call(int)
        return made

    def fail():
        raise ConnectionError

    one, other = breaker(), breaker()
    one.close()
    another = breaker()
    with pytest.raises(ConnectionError):
        another.call(fail)
    eventually(lambda: other.state is CircuitState.OPEN, "the one that is left hears of it")
    other.close()
    another.reset()
    later = breaker()
    another.close()
    assert later.state is CircuitState.CLOSED
    with closing(breaker()) as latest, pytest.raises(ConnectionError):
        latest.call(fail)
    eventually(lambda: later.state is CircuitState.OPEN, "a later one hears of it too")
    later.close()


def test_a_breaker_that_is_closed_right_after_a_failure_tells_it_on_its_connection_and_lets_that_go(
    server, client, key, caplog
):
    """The store is 40 ms away, so the breaker is closed while it is being asked."""
    before = len(client.client_list())
    with Proxy(server.port) as proxy:
        proxy.delay = 0.02
        breaker = CircuitBreaker(1, 600, key=key, store=proxy.url)
        with pytest.raises(ZeroDivisionError):
            breaker.call(lambda: 1 / 0)
        breaker.close()
        eventually(lambda: len(client.client_list()) == before, "its connections are closed")
    with closing(CircuitBreaker(1, 600, key=key, store=server.url)) as other:
        with suppress(CircuitBreakerOpen):
            other.call(int)
        eventually(lambda: other.state is CircuitState.OPEN, "it was told")
    assert "cannot be asked" not in caplog.text


def test_windows_that_are_dropped_while_they_connect_leave_no_connection_and_no_task(server, client, key):
    """redis-py may lose a cancellation that comes while it connects."""
    before = len(client.client_list())
    for number in range(30):
        BackoffWindow(store=server.url, key=f"{key} {number}")
    gc.collect()
    eventually(lambda: len(client.client_list()) <= before, "their connections are closed")


def test_connections_in_common_lose_the_listeners_of_each_member_that_is_closed(postgres, key):
    kept = Dispatch(f"{key} kept", rates="10/s", store=postgres)
    store = PostgresStore.shared(postgres)
    for number in range(3):
        Dispatch(f"{key} {number}", rates="10/s", store=postgres).close()
    eventually(lambda: len(listened_to(store)) == 1, "only the other gate listens")
    kept.close()
    COURIER.wait_for(store.close, PATIENCE)
