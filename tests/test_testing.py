"""The clock and loop that users test their own code with."""

import asyncio
import threading

import pytest

from headgate import BackoffWindow, Dispatch
from headgate.gate import clock as clock_module
from headgate.gate.clock import SYSTEM
from headgate.testing import ManualClock, Recorder, run
from patience import eventually


def test_a_manual_clock_moves_only_when_it_is_advanced():
    clock = ManualClock(start=5)
    assert (clock.now(), clock.seconds()) == (5_000_000_000, 5.0)
    clock.advance(0.25)
    assert clock.seconds() == 5.25
    with pytest.raises(ValueError, match="negative"):
        clock.advance(-1)
    assert clock.seconds() == 5.25


def test_callbacks_run_at_their_own_moments_in_order():
    clock = ManualClock()
    log = []
    clock.at(3, lambda: log.append(("three", clock.seconds())))
    clock.at(1, lambda: log.append(("one", clock.seconds())))
    clock.at(1, lambda: clock.at(2, lambda: log.append(("two", clock.seconds()))))
    clock.advance(10)
    assert log == [("one", 1.0), ("two", 2.0), ("three", 3.0)]
    clock.at(4, lambda: log.append("at once, for it is past"))
    assert log[-1] == "at once, for it is past"


def test_a_manual_clock_may_be_moved_to_an_exact_nanosecond():
    clock = ManualClock()
    log = []
    clock.call_at(5, lambda: log.append(clock.now()))
    clock.advance_to_ns(4)
    assert (clock.now(), log, clock.timers, clock.next_due()) == (4, [], 1, 5)
    clock.advance_to_ns(7)
    assert (clock.now(), log, clock.timers, clock.next_due()) == (7, [5], 0, None)


def test_a_manual_clock_may_be_set_back_and_forward_without_doing_what_is_due():
    clock = ManualClock(start=5)
    log = []
    clock.at(6, lambda: log.append(clock.seconds()))
    clock.set_ns(7_000_000_000)
    assert (clock.seconds(), log) == (7.0, [])
    clock.set_ns(0)
    assert (clock.seconds(), log) == (0.0, [])
    clock.advance(6)
    assert log == [6.0]


def test_an_error_of_a_timer_reaches_the_caller_of_advance():
    clock = ManualClock()
    clock.at(1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clock.advance(2)


def test_jump_goes_to_the_next_timer_that_was_not_cancelled():
    clock = ManualClock()
    clock.call_at(1_000_000_000, list).cancel()
    clock.call_at(3_000_000_000, list)
    assert clock.jump()
    assert (clock.seconds(), clock.sleeps) == (3.0, [3.0])
    assert not clock.jump()


def test_with_auto_advance_a_single_waiting_thread_moves_the_time_itself():
    clock = ManualClock(auto_advance=True)
    gate = Dispatch(rates="1/s burst 1", clock=clock)
    for _ in range(4):
        with gate.admit():
            pass
    assert clock.sleeps == [1.0, 1.0, 1.0]


def test_with_auto_advance_a_single_waiting_task_moves_the_time_itself():
    async def main():
        clock = ManualClock(auto_advance=True)
        gate = Dispatch(rates="1/s burst 1", clock=clock)
        for _ in range(4):
            async with gate.admit():
                pass
        return clock.sleeps

    assert asyncio.run(main()) == [1.0, 1.0, 1.0]


def test_with_auto_advance_a_wait_without_a_timer_ends_when_another_thread_settles():
    clock = ManualClock(auto_advance=True)
    gate = Dispatch(concurrency=1, clock=clock)
    permit = gate.try_admit()
    got = []

    def wait():
        with gate.admit():
            got.append(clock.seconds())

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: gate.snapshot().waiting, "it is in line")
    permit.settle()
    thread.join(20)
    assert got == [0.0]


def test_with_auto_advance_a_thread_moves_the_time_also_after_another_has_settled():
    """It waits for a place first, and only then for the rate."""
    clock = ManualClock(auto_advance=True)
    gate = Dispatch(concurrency=1, rates="1/s burst 1", clock=clock)
    permit = gate.try_admit()
    got = []

    def wait():
        with gate.admit():
            got.append(clock.seconds())

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: gate.snapshot().waiting, "it is in line")
    permit.settle()
    thread.join(20)
    assert got == [1.0]


def test_cancelled_timers_are_not_slept_for():
    clock = ManualClock(auto_advance=True)
    gate = Dispatch(rates="1/s burst 1", clock=clock)
    for _ in range(3):
        with gate.admit(timeout=50):
            pass
    window = BackoffWindow(clock=clock)
    window.set(100)
    window.wait()
    assert clock.sleeps == [1.0, 1.0, 100.0]


def test_an_hour_of_a_thousand_tasks_takes_no_real_hour():
    async def main(clock):
        gate = Dispatch(rates="1000/hour burst 1", clock=clock)

        async def call():
            async with gate.admit():
                await asyncio.sleep(10)

        await asyncio.gather(*(call() for _ in range(1000)))
        return clock.seconds()

    assert run(main) == pytest.approx(3600 - 3.6 + 10)


def test_timeouts_of_asyncio_follow_virtual_time():
    async def main(clock):
        window = BackoffWindow(clock=clock)
        window.set(100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await window.wait_async()
        return clock.seconds()

    assert run(main) == 30.0


def test_tasks_that_wait_for_nothing_are_reported_instead_of_hanging():
    async def main(clock):
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing can ever happen"):
        run(main)


def test_the_thread_that_keeps_timers_counts_as_none_that_may_wake_a_task():
    asked = threading.Event()

    def ask_for_the_thread():
        threading.current_thread()  # from now on `threading` lists the thread of the timers
        asked.set()

    later = SYSTEM.call_at(SYSTEM.now() + 3_600_000_000_000, lambda: None)  # keeps the thread
    SYSTEM.call_at(SYSTEM.now(), ask_for_the_thread)
    assert asked.wait(10)
    try:
        with pytest.raises(RuntimeError, match="nothing is due"):
            run(lambda _clock: asyncio.Event().wait())
    finally:
        later.cancel()


def test_a_thread_may_complete_a_future_of_a_virtual_loop():
    async def main(clock):
        return await asyncio.to_thread(lambda: 7)

    assert run(main) == 7


def test_a_thread_that_waits_on_the_clock_of_a_virtual_loop_is_woken():
    """The loop sleeps in real time until the thread waits; then virtual time passes."""

    async def main(clock):
        gate = Dispatch(rates="1/s burst 1", clock=clock)
        begun = threading.Event()

        def work():
            begun.wait(0.02)
            for _ in range(3):
                with gate.admit():
                    pass
            return clock.seconds()

        return await asyncio.to_thread(work)

    assert run(main) == 2.0


def test_a_recorder_returns_events_by_kind():
    seen = Recorder()
    gate = Dispatch(observer=seen)
    with gate.admit():
        pass
    assert len(seen.events) == 2
    assert repr(seen) == "<Recorder of 2 events>"


def test_a_thread_that_got_the_identity_of_an_ended_timer_thread_may_still_wake_a_task(monkeypatch):
    def work():
        monkeypatch.setattr(clock_module._TIMERS, "thread", threading.get_ident())
        threading.Event().wait(0.05)  # the loop has nothing to do meanwhile
        return "done"

    async def main(_clock):
        return await asyncio.to_thread(work)

    assert run(main) == "done"
