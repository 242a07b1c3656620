"""A forked child starts with a free lock, an empty line and no call in flight."""

import asyncio
import subprocess
import sys
import threading

from forks import in_a_child, needs_fork
from headgate import BackoffWindow, Dispatch, WindowRegistry
from patience import PATIENCE, eventually

pytestmark = needs_fork


def test_a_forked_child_inherits_no_permits_and_no_waiting_callers_and_the_parent_continues():
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
                permit.settle()  # permits of the parent must free no place here
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


def test_a_forked_child_keeps_the_levels_of_rates_and_the_active_window():
    gate = Dispatch("gate", window=BackoffWindow(), rates="2/hour burst 2")
    gate.try_admit().settle()
    gate.set_backoff(60)

    def check():
        assert gate.snapshot().rates[0].level == 1
        assert gate.snapshot().backoff_active
        assert 59 < gate.window.remaining <= 60

    assert in_a_child(check) == 0


def test_tickets_of_the_parent_give_no_place_back_in_the_child():
    """One was granted and not yet claimed, one waits: the child may close both, and no place is invented."""
    gate = Dispatch("gate", concurrency=1)
    holder = gate.try_admit()
    visits = [gate.admit().__aenter__() for _ in range(2)]

    async def main():
        for visit in visits:
            visit.send(None)  # each waits in line from here on
        holder.settle()  # grants the first, which does not know it yet

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


def test_modules_that_are_loaded_later_are_there_before_a_fork():
    """A child would wait without end for one that another thread of its parent was loading."""
    program = """
import os, sys
from headgate import Dispatch
later = ["headgate.gate.parking", "headgate.dispatch.learning", "headgate.backoff"]
assert not any(name in sys.modules for name in later)
if os.fork() == 0:
    os._exit(sum(name not in sys.modules for name in later))
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
