"""The courier: one thread with an event loop, which does errands."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from forks import in_a_child, needs_fork
from headgate.sharing.courier import COURIER, Courier
from patience import PATIENCE


@pytest.fixture
def courier():
    courier = Courier()
    yield courier
    courier.retire()


async def nothing():
    pass


def test_errands_run_on_one_thread_of_the_courier(courier):
    names = []

    async def note():
        names.append((threading.current_thread().name, courier.here))

    for _ in range(3):
        courier.wait_for(note, PATIENCE)
    assert names == [("headgate courier", True)] * 3
    assert not courier.here


def test_no_thread_is_started_before_the_first_errand(courier):
    before = threading.active_count()
    courier.retire()
    assert threading.active_count() == before


def test_an_errand_that_fails_is_logged_and_the_next_one_is_done(courier, caplog):
    async def fail():
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, "headgate"):
        courier.send(fail)
        courier.wait_for(nothing, PATIENCE)
    assert "an errand of the courier failed" in caplog.text


def test_retire_waits_for_last_errands_and_cancels_the_others(courier):
    done, started = [], threading.Event()

    async def last():
        await asyncio.sleep(0.05)
        done.append("last")

    async def endless():
        started.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    courier.send(endless)
    courier.send_last(last)
    assert started.wait(PATIENCE)
    courier.retire()
    assert done == ["last", "cancelled"]


def test_a_retired_courier_starts_again_with_the_next_errand(courier):
    courier.wait_for(nothing, PATIENCE)
    courier.retire()
    courier.wait_for(nothing, PATIENCE)


def test_the_end_of_a_process_waits_for_last_errands():
    program = """
import asyncio
from headgate.sharing.courier import COURIER

async def last():
    await asyncio.sleep(0.1)
    print("done", flush=True)

COURIER.send_last(last)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


@needs_fork
def test_a_forked_child_has_a_courier_of_its_own_although_the_lock_was_held():
    COURIER.wait_for(nothing, PATIENCE)

    def child():
        COURIER.wait_for(nothing, PATIENCE)

    with COURIER._lock:
        assert in_a_child(child) == 0
    COURIER.wait_for(nothing, PATIENCE)


def test_a_finalizer_may_leave_an_errand_while_the_same_thread_starts_the_courier(monkeypatch):
    """Garbage is collected at any moment: a store that was dropped is then closed by the courier."""
    courier, first, second = Courier(), threading.Event(), threading.Event()
    new_event_loop = asyncio.new_event_loop

    def new_event_loop_and_garbage():
        monkeypatch.undo()
        courier.soon(second.set)
        return new_event_loop()

    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop_and_garbage)
    thread = threading.Thread(target=lambda: courier.soon(first.set), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert first.wait(PATIENCE)
    assert second.wait(PATIENCE)
    courier.retire()
