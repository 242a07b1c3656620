"""A store that has lost what it knew: windows go on, limits hold, and it is said."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from headgate import BackoffWindow, BudgetExceeded, CircuitBreaker, Dispatch, TokenBudget, events
from headgate.sharing.memory import MemoryStore
from headgate.testing import ManualClock, Recorder
from patience import eventually


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


def in_memory(request):
    store = MemoryStore()

    def forget():
        store._pools.__init__()
        store._records.__init__()

    return store, forget


def in_a_file(request):
    url = request.getfixturevalue("sqlite")

    def forget():
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("DELETE FROM pools")
            connection.execute("DELETE FROM records")
            connection.commit()

    return url, forget


def on_a_server(request):
    client = request.getfixturevalue("client")
    return request.getfixturevalue("valkey"), client.flushall


def in_a_database(request):
    server = request.getfixturevalue("postgres_server")
    return server.url, server.forget


@pytest.fixture(params=[in_memory, in_a_file, on_a_server, in_a_database])
def forgetful(request):
    """A store, and a function that has it lose all it knows."""
    return request.param(request)


def test_a_window_goes_on_for_the_members_that_know_it_and_is_told_to_the_store_again(forgetful, key, caplog):
    store, forget = forgetful
    one, other = (BackoffWindow(store=store, key=key, observer=(seen := Recorder())) for _ in range(2))
    gate = Dispatch(key, rates="77/day", pause=True, store=store, observer=(told := Recorder()))
    third = None
    try:
        one.set(60)
        eventually(lambda: other.should_backoff() and gate.window.should_backoff(), "all have heard of it")
        caplog.clear()
        forget()
        third = BackoffWindow(store=store, key=key)  # by this the others hear that the pool is new
        eventually(third.should_backoff, "they tell it again")
        assert 30 < third.remaining <= 60
        for window in (one, other, gate.window):
            assert 30 < window.remaining <= 60
        eventually(lambda: seen.of(events.StoreForgot) and told.of(events.StoreForgot), "the loss is told")
        assert {event.key for event in told.of(events.StoreForgot)} == {key}
        assert (
            f"{key!r}: the {told.of(events.StoreForgot)[0].store} store has lost what it knew" in caplog.text
        )
        assert not seen.of(events.WindowCleared)
        other.clear()
        eventually(
            lambda: not (one.should_backoff() or third.should_backoff() or gate.window.should_backoff()),
            "cleared after that, it is over for all",
        )
    finally:
        for each in (one, other, gate, third):
            if each is not None:
                each.close()


def test_callers_wait_for_the_rest_of_the_window_although_the_store_has_lost_it(key):
    """In virtual time."""
    clock = ManualClock(1_000)
    store = MemoryStore(clock)
    gate = Dispatch(key, rates="100/s", pause=True, store=store, clock=clock)
    gate.set_backoff(8)
    eventually(lambda: BackoffWindow(store=store, key=key, clock=clock).should_backoff(), "it was told")
    clock.advance(2)
    store._pools.__init__()
    late = BackoffWindow(store=store, key=key, clock=clock)
    eventually(late.should_backoff, "it was told again")
    assert late.remaining == gate.window.remaining == 6
    assert gate.try_admit() is None
    clock.advance(6)
    assert not late.should_backoff()
    gate.close()


def test_a_pool_that_was_deleted_because_it_was_idle_is_not_lost(key, caplog):
    clock = ManualClock(1_000)
    store = MemoryStore(clock)
    window = BackoffWindow(store=store, key=key, clock=clock, observer=(seen := Recorder()))
    window.set(5)
    eventually(lambda: BackoffWindow(store=store, key=key, clock=clock).should_backoff(), "it was told")
    # A question that is asked now and answered after the next minute would find the pool deleted too early.
    eventually(lambda: not window._member._working, "there is nothing more to ask")
    clock.advance(5 + 61)
    window.set(5)
    eventually(lambda: BackoffWindow(store=store, key=key, clock=clock).should_backoff(), "it was told")
    assert not seen.of(events.StoreForgot)
    assert "has lost" not in caplog.text
    window.close()


# -- records


@pytest.mark.parametrize("place", [in_memory, in_a_file, on_a_server, in_a_database])
def test_what_a_budget_has_used_is_written_again_by_a_process_that_knows_it(place, request, key, caplog):
    """All of it that this process has heard."""
    store, forget = place(request)
    one = TokenBudget(1_000, key=key, store=store)
    one.record_usage(700)
    assert one.remaining_budget == 300
    eventually(lambda: TokenBudget(1_000, key=key, store=store).remaining_budget == 300, "it is told")
    assert one.check_budget(300)
    forget()
    one.reserve(100).settle(100)
    eventually(lambda: TokenBudget(1_000, key=key, store=store).remaining_budget == 200, "it is told")
    with pytest.raises(BudgetExceeded):
        TokenBudget(1_000, key=key, store=store).reserve(201)
    assert "store has lost what it knew" in caplog.text
    one.close()


def test_questions_and_refusals_after_a_loss_do_not_make_a_process_forget_what_a_budget_has_used(
    forgetful, key, caplog
):
    store, forget = forgetful
    budget = TokenBudget(1_000, key=key, store=store)
    assert budget.remaining_budget == 1_000
    budget.reserve(900)
    forget()
    for _ in range(3):
        with pytest.raises(BudgetExceeded, match="100 of 1000"):
            budget.reserve(101)
        assert budget.remaining_budget == 100
    budget.reserve(100)
    assert TokenBudget(1_000, key=key, store=store).remaining_budget == 0
    assert caplog.text.count("store has lost what it knew") == 1
    budget.close()


@pytest.mark.parametrize("limit", ["100 tokens/calendar month", "100 tokens/month"])
def test_what_was_used_long_before_a_loss_is_written_again_while_it_counts(key, limit, caplog):
    """In virtual time: from the first of November to the twelfth, and into December."""
    clock = ManualClock(1_000, wall=datetime(2026, 11, 1, tzinfo=UTC))
    store = MemoryStore(clock)
    one, other = (TokenBudget(limits=limit, key=key, store=store, clock=clock) for _ in range(2))
    one.reserve(70)
    clock.advance(11 * 86_400)
    store._records.__init__()
    with pytest.raises(BudgetExceeded):
        one.reserve(31)
    one.reserve(10)
    assert other.remaining_budget == 20
    assert "store has lost what it knew" in caplog.text
    caplog.clear()
    clock.advance(80 * 86_400)
    one.reserve(100)
    assert other.remaining_budget == 0
    assert "store has lost what it knew" not in caplog.text


@pytest.mark.parametrize("place", [in_memory, in_a_file, on_a_server, in_a_database])
def test_a_circuit_that_a_new_process_opens_after_a_loss_is_open_for_those_that_know_the_lost_one(
    place, request, key
):
    """These have heard of more generations than the new record has."""
    store, forget = place(request)
    knows = CircuitBreaker(1, 60, key=key, store=store)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            knows.call(lambda: 1 / 0)
        eventually(lambda: knows.state.name == "OPEN", "it is open")
        knows.reset()
    watcher = CircuitBreaker(1, 60, key=key, store=store)
    watcher.call(lambda: 1)
    forget()
    new = CircuitBreaker(1, 60, key=key, store=store)
    with pytest.raises(ZeroDivisionError):
        new.call(lambda: 1 / 0)
    eventually(lambda: knows.state.name == "OPEN", "it is told")
    new.reset()
    eventually(lambda: knows.state.name == "CLOSED", "it is told")
    for breaker in (knows, watcher, new):
        breaker.close()


def test_an_open_circuit_stays_open_for_a_process_that_knows_it_and_the_loss_is_told(key):
    store = MemoryStore()
    breaker = CircuitBreaker(1, 60, key=key, store=store, observer=(seen := Recorder()))
    with pytest.raises(ZeroDivisionError):
        breaker.call(lambda: 1 / 0)
    store._records.__init__()
    other = CircuitBreaker(1, 60, key=key, store=store)
    with pytest.raises(ZeroDivisionError):
        other.call(lambda: 1 / 0)  # it is new, and hears of no circuit
    assert breaker.state.name == "OPEN"
    breaker.reset()
    assert breaker.state.name == other.state.name == "CLOSED"
    assert [event.key for event in seen.of(events.StoreForgot)] == []
    with pytest.raises(ZeroDivisionError):
        breaker.call(lambda: 1 / 0)
    store._records.__init__()
    breaker.reset()
    assert [event.key for event in seen.of(events.StoreForgot)] == [key]


def test_a_record_whose_time_is_over_is_not_lost(key, caplog):
    clock = ManualClock(1_000)
    budget = TokenBudget(1_000, key=key, store=MemoryStore(clock), clock=clock)
    budget.record_usage(700)
    clock.advance(2 * 86_400)
    assert budget.remaining_budget == 1_000
    budget.record_usage(1)
    assert budget.remaining_budget == 999
    assert "has lost" not in caplog.text
