"""A forked child starts clean: a free lock, an empty line, nobody inside."""

import asyncio
import threading

from forks import in_a_child, needs_fork
from headgate import BackoffWindow, Dispatch, WindowRegistry
from patience import PATIENCE, eventually

pytestmark = needs_fork


def test_a_child_forked_in_the_middle_of_everything_starts_clean_and_the_parent_goes_on():
    """B29: places held, threads waiting; the child inherits neither."""
    gate = Dispatch("gate", concurrency=2, byte_budget=100, rates="1000/s")
    held = [gate.try_admit(bytes=10) for _ in range(2)]
    got = []

    def wait():
        with gate.admit(bytes=5):
            got.append(1)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: gate.snapshot().waiting == 3, "all are in line")

    def check():
        snapshot = gate.snapshot()
        assert (snapshot.in_flight, snapshot.bytes_in_flight, snapshot.waiting) == (0, 0, 0)
        with gate.admit(), gate.admit(timeout=5):
            assert gate.try_admit() is None
            for permit in held:
                permit.settle()  # the parent's: they must free nothing here
            assert gate.snapshot().in_flight == 2
        assert gate.snapshot().in_flight == 0

    assert in_a_child(check) == 0
    assert gate.snapshot().in_flight == 2
    for permit in held:
        permit.settle()
    for thread in threads:
        thread.join(PATIENCE)
    assert got == [1, 1, 1]
    assert gate.snapshot().in_flight == 0


def test_a_lock_that_another_thread_holds_at_the_fork_is_free_in_the_child():
    gate = Dispatch("gate", concurrency=1)
    registry = WindowRegistry()
    window = registry.for_key("k")
    locked, release = threading.Event(), threading.Event()

    def hold():
        with gate._lock, window._gate._lock, registry._lock:
            locked.set()
            assert release.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(PATIENCE)

    def check():
        with gate.admit(timeout=5):
            pass
        window.set(10)
        assert registry.for_key("k").should_backoff()

    try:
        assert in_a_child(check) == 0
    finally:
        release.set()
        thread.join()


def test_what_was_used_stays_used_and_an_open_window_stays_open_in_the_child():
    gate = Dispatch("gate", window=BackoffWindow(), rates="2/hour burst 2")
    gate.try_admit().settle()
    gate.set_backoff(60)

    def check():
        assert gate.snapshot().rates[0].level == 1
        assert gate.snapshot().backoff_active
        assert 59 < gate.window.remaining <= 60

    assert in_a_child(check) == 0


def test_tickets_of_the_parent_give_nothing_back_in_the_child():
    """One granted and not yet claimed, one waiting: the child may close both, and nothing is invented."""
    gate = Dispatch("gate", concurrency=1)
    holder = gate.try_admit()
    visits = [gate.admit().__aenter__() for _ in range(2)]

    async def main():
        for visit in visits:
            visit.send(None)  # each now waits in line
        holder.settle()  # the first is granted, and does not know it yet

    asyncio.run(main())

    def check():
        for visit in visits:
            visit.close()
        snapshot = gate.snapshot()
        assert (snapshot.in_flight, snapshot.waiting) == (0, 0)
        with gate.admit(timeout=5):
            assert gate.try_admit() is None

    assert in_a_child(check) == 0
    for visit in visits:
        visit.close()
    assert gate.snapshot().in_flight == 0
