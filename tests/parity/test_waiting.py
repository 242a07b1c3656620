"""How callers of every world wait at one gate: the same scenarios for threads, tasks and both."""

import pytest

from headgate import BackoffWindow, Closed, CostTooLarge, Dispatch, WaitTimeout, events
from headgate.testing import Recorder
from patience import eventually


def test_first_come_first_served(visitors, clock):
    """Whoever joined first is admitted first, whatever world they wait in."""
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


def test_a_rate_lets_them_in_at_exact_moments(visitors, clock):
    """Ten a second, one at a time: 0, 0.1, 0.2, …"""
    gate = Dispatch("gate", rates="10/s burst 1", clock=clock)
    visits = visitors.join(gate, 8)
    clock.advance(10)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert [visit.permit.waited for visit in visits] == [i / 10 for i in range(8)]
    for visit in visits:
        visitors.leave(visit)


def test_those_who_were_due_on_the_way_get_their_own_moment(visitors, clock):
    """Tokens and places together; one advance over several moments."""
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


def test_a_timeout_ends_the_wait_at_its_moment_and_the_others_move_up(visitors, clock):
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


def test_a_timeout_of_the_first_hands_the_time_keeping_to_the_next(visitors, clock):
    """The first in line keeps the time; when it gives up, somebody else must."""
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


def test_pausing_until_the_window_ends_then_going_in_order(visitors, clock):
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


def test_clearing_the_window_lets_them_go_at_once(visitors, clock):
    gate = Dispatch("gate", pause=True, clock=clock)
    gate.set_backoff(60)
    visits = visitors.join(gate, 3)
    clock.advance(5)
    gate.window.clear()
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    assert {visit.permit.waited for visit in visits} == {5.0}
    for visit in visits:
        visitors.leave(visit)


def test_closing_refuses_everyone_who_waits(visitors, clock):
    gate = Dispatch("gate", concurrency=1, clock=clock)
    inside = gate.try_admit()
    visits = visitors.join(gate, 5)
    gate.close()
    for visit in visits:
        assert visit.over.wait(20)
        assert isinstance(visit.error, Closed)
    inside.settle()


def test_retuning_reaches_those_who_wait(visitors, clock):
    gate = Dispatch("gate", rates="1/minute", clock=clock)
    visits = visitors.join(gate, 3)
    gate.set_rates("10/s burst 1")
    clock.advance(1)
    eventually(lambda: all(visit.permit for visit in visits), "all are let in")
    for visit in visits:
        visitors.leave(visit)


def test_one_who_can_never_fit_is_told_at_once(visitors, clock):
    gate = Dispatch("gate", rates="10 tokens/s", clock=clock)
    visit = visitors.join(gate, 1, tokens=11)[0]
    assert visit.over.wait(20)
    assert isinstance(visit.error, CostTooLarge)


def test_observers_hear_how_long_each_waited_and_for_what(visitors, clock):
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


@pytest.mark.parametrize("visitors", ["asyncio"], indirect=True)
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


def test_a_window_wakes_its_waiters_in_every_world(visitors, clock):
    """BackoffWindow.wait and wait_async, at the end and by clear."""
    window = BackoffWindow(clock=clock)
    window.set(10)

    class Door:
        """The window in the shape of a gate, so that visitors can come to it."""

        def snapshot(self):
            return type("Snapshot", (), {"waiting": window._gate._line.waiting})

        def admit(self):
            return window._gate.admit()

    visits = visitors.join(Door(), 4)
    clock.advance(10)
    for visit in visits:
        eventually(lambda visit=visit: visit.permit, "the window has ended")
        visitors.leave(visit)
    assert not window.should_backoff()
