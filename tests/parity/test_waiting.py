"""Waiting at gates: each scenario is run by threads, by tasks of asyncio and of trio, and by all of them."""

import pytest

from headgate import BackoffWindow, Closed, CostTooLarge, Dispatch, FirstFree, WaitTimeout, events
from headgate.testing import Recorder
from parity.conftest import KINDS
from patience import eventually


def test_callers_are_admitted_in_the_order_they_joined(visitors, clock):
    """Threads and tasks stand in one line."""
    seen = Recorder()
    gate = Dispatch("gate", concurrency=1, observer=seen, clock=clock)
    inside = gate.try_admit()
    visits = visitors.join(gate, 40)
    inside.settle()
    for i, visit in enumerate(visits):
        eventually(lambda visit=visit: visit.permit, "the next is let in")
        assert not any(later.permit for later in visits[i + 1 :])
        visitors.leave(visit)
    assert gate.snapshot().in_flight == 0
    assert gate.snapshot().waiting == 0


def test_a_rate_admits_waiting_callers_at_exact_moments(visitors, clock):
    """Ten a second, one at a time: 0, 0.1, 0.2, …"""
    gate = Dispatch("gate", rates="10/s burst 1", clock=clock)
    visits = visitors.join(gate, 8)
    clock.advance(10)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert [visit.permit.waited for visit in visits] == [i / 10 for i in range(8)]
    for visit in visits:
        visitors.leave(visit)


def test_one_advance_of_the_clock_admits_each_caller_at_its_own_moment(visitors, clock):
    """With a limit on tokens and on concurrency together."""
    gate = Dispatch("gate", rates="60 tokens/minute burst 10", concurrency=3, clock=clock)
    visits = visitors.join(gate, 3, tokens=10)
    clock.advance(100)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert [visit.permit.waited for visit in visits] == [0.0, 10.0, 20.0]
    late = visitors.join(gate, 1)[0]
    assert late.permit is None
    assert gate.snapshot().binding == "concurrency"
    visitors.leave(visits[1])
    eventually(lambda: late.permit, "the freed place is handed over")
    for visit in (visits[0], visits[2], late):
        visitors.leave(visit)


def test_a_timeout_ends_the_wait_on_time_and_the_others_move_up(visitors, clock):
    gate = Dispatch("gate", concurrency=1, clock=clock)
    inside = gate.try_admit()
    impatient = visitors.join(gate, 1, timeout=5)[0]
    patient = visitors.join(gate, 1)[0]
    clock.advance(4.999)
    assert gate.snapshot().waiting == 2
    clock.advance(0.001)
    assert impatient.over.wait(20)
    assert isinstance(impatient.error, WaitTimeout)
    assert gate.snapshot().waiting == 1
    inside.settle()
    eventually(lambda: patient.permit, "the patient one is let in")
    visitors.leave(patient)


def test_when_the_first_in_line_times_out_another_caller_keeps_the_time(visitors, clock):
    gate = Dispatch("gate", rates="60 tokens/minute burst 60", clock=clock)
    holder = gate.try_admit(tokens=60)
    first = visitors.join(gate, 1, tokens=60, timeout=5)[0]
    second = visitors.join(gate, 1, tokens=10)[0]
    clock.advance(5)
    assert first.over.wait(20)
    assert isinstance(first.error, WaitTimeout)
    clock.advance(5)
    eventually(lambda: second.permit, "the second is let in")
    assert second.permit.waited == 10.0
    visitors.leave(second)
    holder.settle()


def test_paused_callers_go_in_order_after_the_window_ends(visitors, clock):
    window = BackoffWindow(spread=4, clock=clock)
    gate = Dispatch("gate", window=window, pause=True, clock=clock)
    gate.set_backoff(30)
    visits = visitors.join(gate, 4)
    clock.advance(29.999)
    assert gate.snapshot().waiting == 4
    assert (gate.snapshot().binding, gate.snapshot().next_at) == ("window", 30.0)
    clock.advance(10)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert [visit.permit.waited for visit in visits] == [30.0, 31.0, 32.0, 33.0]
    for visit in visits:
        visitors.leave(visit)


def test_clearing_the_window_admits_paused_callers_at_once(visitors, clock):
    gate = Dispatch("gate", pause=True, clock=clock)
    gate.set_backoff(60)
    visits = visitors.join(gate, 3)
    clock.advance(5)
    gate.window.clear()
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert {visit.permit.waited for visit in visits} == {5.0}
    for visit in visits:
        visitors.leave(visit)


def test_close_refuses_all_waiting_callers(visitors, clock):
    gate = Dispatch("gate", concurrency=1, clock=clock)
    inside = gate.try_admit()
    visits = visitors.join(gate, 5)
    gate.close()
    for visit in visits:
        assert visit.over.wait(20)
        assert isinstance(visit.error, Closed)
    inside.settle()


def test_set_rates_takes_effect_for_waiting_callers(visitors, clock):
    gate = Dispatch("gate", rates="1/minute", clock=clock)
    visits = visitors.join(gate, 3)
    gate.set_rates("10/s burst 1")
    clock.advance(1)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    for visit in visits:
        visitors.leave(visit)


def test_a_call_that_can_never_fit_is_refused_at_once(visitors, clock):
    gate = Dispatch("gate", rates="10 tokens/s", clock=clock)
    visit = visitors.join(gate, 1, tokens=11)[0]
    assert visit.over.wait(20)
    assert isinstance(visit.error, CostTooLarge)


def test_observers_are_told_how_long_each_call_waited_and_for_which_rule(visitors, clock):
    seen = Recorder()
    gate = Dispatch("gate", concurrency=None, rates="1/s burst 1", observer=seen, clock=clock)
    visits = visitors.join(gate, 3, tenant="t")
    clock.advance(2)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    for visit in visits:
        visitors.leave(visit)
    eventually(lambda: len(seen.of(events.Settled)) == 3, "all are settled")
    admitted = sorted(seen.of(events.Admitted), key=lambda event: event.at)
    assert [(event.at, event.waited, event.rule) for event in admitted] == [
        (0.0, 0.0, None),
        (1.0, 1.0, "requests/second"),
        (2.0, 2.0, "requests/second"),
    ]
    assert {event.tenant for event in admitted} == {"t"}


@pytest.mark.parametrize("visitors", ["asyncio", *(kind for kind in KINDS if kind == "trio")], indirect=True)
def test_a_task_that_is_cancelled_while_it_waits_leaves_the_line(visitors, clock):
    gate = Dispatch("gate", concurrency=1, clock=clock)
    inside = gate.try_admit()
    first, second = visitors.join(gate, 2)
    visitors.cancel(first)
    assert gate.snapshot().waiting == 1
    inside.settle()
    eventually(lambda: second.permit, "the next is let in")
    visitors.leave(second)
    assert gate.snapshot().in_flight == 0


def test_a_window_that_ends_wakes_waiting_threads_and_tasks(visitors, clock):
    window = BackoffWindow(clock=clock)
    window.set(10)

    class Door:
        """The window in the shape of a gate, so that visitors can wait at it."""

        def snapshot(self):
            return type("Snapshot", (), {"waiting": window._gate.waiting})

        def admit(self):
            return window._gate.admit()

    visits = visitors.join(Door(), 4)
    clock.advance(10)
    for visit in visits:
        eventually(lambda visit=visit: visit.permit, "the window has ended")
        visitors.leave(visit)
    assert not window.should_backoff()


def test_callers_at_several_gates_go_in_order_through_the_first_that_has_room(visitors, clock):
    """Ten and five a second: places at 0, 0, 0.1, 0.2, 0.2, 0.3, 0.4, 0.4, …"""
    fast, slow = (Dispatch(rate, rates=f"{rate}/s burst 1", clock=clock) for rate in (10, 5))

    class Door(FirstFree):
        """Both gates, with a snapshot of the line that all callers stand in."""

        snapshot = staticmethod(fast.snapshot)

    visits = visitors.join(Door([fast, slow]), 8)
    clock.advance(10)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert [(visit.permit.waited, visit.permit.gate.key) for visit in visits] == [
        *((0.0, 10), (0.0, 5), (0.1, 10), (0.2, 10), (0.2, 5), (0.3, 10), (0.4, 10), (0.4, 5))
    ]
    for visit in visits:
        visitors.leave(visit)
    assert fast.waiting == slow.waiting == 0
