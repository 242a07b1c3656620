"""The observers of a gate: when they are found, and what they are told that finalizers left."""

import threading

from headgate import Dispatch, observe_all
from headgate.gate.audience import Audience
from headgate.telling import CallMeter, Meter
from patience import PATIENCE


class QuietMeter(CallMeter):
    __slots__ = ()

    def admitted(self, waited, rule, tenant):
        pass

    def settled(self, held, units, cost, actual):
        pass


class QuietMeterOfAll(Meter):
    def __call__(self, event):
        pass

    def of_gate(self, key):
        return QuietMeter()


class AsksTheGate(Meter):
    """When it is asked for the meter of a gate, it looks at that gate from another thread."""

    def __init__(self, gate):
        self.gate = gate
        self.seen = []

    def __call__(self, event):
        pass

    def of_gate(self, key):
        if key == self.gate.key:
            thread = threading.Thread(target=lambda: self.seen.append(self.gate.snapshot().waiting))
            thread.start()
            thread.join(PATIENCE)
        return QuietMeter()


def test_a_meter_is_asked_for_without_the_lock_of_the_gate():
    gate = Dispatch("asked for its meter")
    meter = AsksTheGate(gate)
    stop = observe_all(meter)
    stop()
    assert meter.seen == [0]


def test_an_observer_of_everything_that_comes_while_a_gate_is_made_hears_of_it():
    late, asked, stops = [], [], []

    class BringsAnother(QuietMeterOfAll):
        def of_gate(self, key):
            asked.append(key)
            if len(asked) == 1:
                stops.append(observe_all(late.append))
            return QuietMeter()

    try:
        with Dispatch("being made", observer=BringsAnother()).admit():
            pass
    finally:
        for stop in stops:
            stop()
    assert [type(event).__name__ for event in late if event.key == "being made"] == ["Admitted", "Settled"]


def test_what_is_left_is_told_once_although_two_threads_tell():
    audience, told = Audience("gate", None), []
    start = threading.Barrier(2)
    for number in range(1000):
        audience.left.append(lambda number=number: told.append(number))

    def tell():
        start.wait(PATIENCE)
        audience.tell_left()

    threads = [threading.Thread(target=tell) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(told) == list(range(1000))


def test_a_silent_audience_hears_of_nothing():
    told = []
    stop = observe_all(told.append)
    audience = Audience("silent", told.append, silent=True)
    audience.gather()
    audience.retuned((), 0)
    stop()
    assert audience.observer is None
    assert [event for event in told if event.key == "silent"] == []


def test_what_a_finalizer_leaves_while_a_call_goes_on_without_its_permit_is_told_at_the_end_of_that():
    """As when the collector runs there: it tells nothing by itself, and the next call may be far off."""
    told = []
    gate = Dispatch("detaching", concurrency=2, observer=told.append)
    first, second = gate.try_admit(), gate.try_admit()
    gate.detach(first, second.leave)
    assert [type(event).__name__ for event in told] == ["Admitted", "Admitted", "Settled"]
