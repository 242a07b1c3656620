"""Clocks: reading time, sleeping, and having something done at a moment."""

import gc
import sys
import threading
import time

import pytest

from forks import in_a_child, needs_fork
from headgate.gate import clock
from headgate.gate.clock import SYSTEM, sleep
from headgate.gate.forks import reset_in_child
from headgate.testing import ManualClock
from patience import PATIENCE
from stress.interrupts import interrupt_everywhere

MS = 1_000_000


def test_system_timers_fire_in_order_of_their_moments():
    fired, done = [], threading.Event()
    now = SYSTEM.now()
    SYSTEM.call_at(now + 60 * MS, lambda: (fired.append("last"), done.set()))
    SYSTEM.call_at(now + 20 * MS, lambda: fired.append("first"))
    SYSTEM.call_at(now + 40 * MS, lambda: fired.append("second"))
    assert done.wait(PATIENCE)
    assert fired == ["first", "second", "last"]


def test_a_system_timer_of_the_past_fires_at_once():
    done = threading.Event()
    SYSTEM.call_at(SYSTEM.now() - 1, done.set)
    assert done.wait(PATIENCE)


def test_a_cancelled_system_timer_does_not_fire_and_keeps_nothing_alive():
    class Thing:
        def act(self):
            raise AssertionError

    thing = Thing()
    timer = SYSTEM.call_at(SYSTEM.now() + 10 * MS, thing.act)
    timer.cancel()
    assert timer.cancelled
    assert [kind for kind in gc.get_referrers(thing) if getattr(kind, "__func__", None) is Thing.act] == []
    done = threading.Event()
    SYSTEM.call_at(SYSTEM.now() + 20 * MS, done.set)
    assert done.wait(PATIENCE)


def test_an_error_of_a_timer_is_logged_and_the_next_one_fires(caplog):
    done = threading.Event()
    SYSTEM.call_at(SYSTEM.now(), lambda: 1 / 0)
    SYSTEM.call_at(SYSTEM.now() + MS, done.set)
    assert done.wait(PATIENCE)
    assert "a timer of headgate failed" in caplog.text


def test_timers_are_added_again_after_their_thread_has_ended(monkeypatch):
    monkeypatch.setattr(clock, "_LINGER", 0.0)
    for _ in range(20):
        done = threading.Event()
        SYSTEM.call_at(SYSTEM.now() + MS, done.set)
        assert done.wait(PATIENCE)


def test_a_thousand_cancelled_timers_do_not_delay_the_others():
    timers = [SYSTEM.call_at(SYSTEM.now() + 3600 * 1000 * MS, print) for _ in range(1000)]
    for timer in timers:
        timer.cancel()
    done = threading.Event()
    SYSTEM.call_at(SYSTEM.now() + MS, done.set)
    assert done.wait(PATIENCE)


@needs_fork
def test_timers_work_in_a_forked_child():
    def child():
        done = threading.Event()
        SYSTEM.call_at(SYSTEM.now() + MS, done.set)
        assert done.wait(PATIENCE)

    done = threading.Event()
    SYSTEM.call_at(SYSTEM.now() + MS, done.set)
    assert done.wait(PATIENCE)
    assert in_a_child(child) == 0


def test_manual_timers_fire_when_the_clock_reaches_them():
    clock = ManualClock()
    fired = []
    clock.call_at(2_000 * MS, lambda: fired.append(clock.seconds()))
    cancelled = clock.call_at(1_000 * MS, lambda: fired.append("cancelled"))
    cancelled.cancel()
    clock.advance(1.5)
    assert fired == []
    clock.advance(1)
    assert fired == [2.0]


@pytest.mark.parametrize("duration", [0, 5 * MS])
def test_sleep_lets_time_pass_in_the_calling_thread(duration):
    began = time.monotonic_ns()
    sleep(SYSTEM, duration)
    assert time.monotonic_ns() - began >= duration


def test_a_timer_that_exits_does_not_end_the_others(caplog):
    done = threading.Event()
    SYSTEM.call_at(SYSTEM.now(), lambda: sys.exit("from a timer"))
    SYSTEM.call_at(SYSTEM.now() + MS, done.set)
    assert done.wait(PATIENCE)
    later = threading.Event()
    SYSTEM.call_at(SYSTEM.now() + MS, later.set)
    assert later.wait(PATIENCE)
    assert "a timer of headgate failed" in caplog.text


def test_an_interrupt_while_a_timer_is_added_leaves_later_timers_working():
    def scenario(interrupt):
        timers = clock._Timers()
        with interrupt:
            timers.add(SYSTEM.now(), lambda: None)
        done = threading.Event()
        timers.add(SYSTEM.now(), done.set)
        assert done.wait(PATIENCE)

    interrupt_everywhere(scenario)


@needs_fork
def test_timers_that_are_added_while_a_child_starts_clean_fire_in_it():
    class StartsTimer:
        def after_fork(self):
            self.done = threading.Event()
            SYSTEM.call_at(SYSTEM.now(), self.done.set)

    things = [StartsTimer() for _ in range(20)]
    for thing in things:
        reset_in_child(thing)
    SYSTEM.call_at(SYSTEM.now() + 50 * MS, lambda: None)  # the thread of the parent is on duty

    def child():
        for thing in things:
            assert thing.done.wait(PATIENCE)

    assert in_a_child(child) == 0
