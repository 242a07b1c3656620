"""Events: what observers are told, and that an observer that raises changes nothing."""

import logging
import pickle

import pytest

from headgate import BackoffWindow, CostTooLarge, Dispatch, LineFull, events
from headgate.errors import Refused, UnknownName, WaitTimeout
from headgate.testing import ManualClock, Recorder
from headgate.verdict import Verdict, throttled


def test_a_call_that_goes_at_once_is_admitted_and_settled():
    clock, seen = ManualClock(), Recorder()
    dispatch = Dispatch("api", rates="100 tokens/s burst 100", observer=seen, clock=clock)
    with dispatch.admit(tokens=10, bytes=3, tenant="acme") as permit:
        clock.advance(2)
        permit.settle(tokens=25)
    assert seen.events == [
        events.Admitted(key="api", at=0.0, waited=0.0, rule=None, throttled=False, tenant="acme"),
        events.Settled(
            key="api",
            at=2.0,
            held=2.0,
            cost={"requests": 1, "tokens": 10, "bytes": 3},
            actual={"requests": 1, "tokens": 25, "bytes": 3},
        ),
    ]


def test_a_refusal_is_told_with_the_rule_and_the_error():
    clock, seen = ManualClock(), Recorder()
    dispatch = Dispatch("api", rates="10 tokens/s", concurrency=1, max_waiting=0, observer=seen, clock=clock)
    with pytest.raises(CostTooLarge):
        dispatch.try_admit(tokens=11)
    with dispatch.admit(), pytest.raises(LineFull), dispatch.admit():
        pass
    refused = seen.of(events.Refused)
    assert [(event.error, event.rule) for event in refused] == [
        ("CostTooLarge", "tokens/second"),
        ("LineFull", "concurrency"),
    ]


def test_every_dispatch_that_uses_a_window_is_told_once_what_happens_to_it():
    clock, seen, other = ManualClock(), Recorder(), Recorder()
    window = BackoffWindow(observer=seen, clock=clock)
    first = Dispatch("a", window=window, observer=seen, clock=clock)
    second = Dispatch("b", window=window, observer=other, clock=clock)
    first.set_backoff(5, reason="429")
    second.window.clear()
    for recorder in (seen, other):
        assert [type(event).__name__ for event in recorder.events] == ["WindowSet", "WindowCleared"]


def test_an_observer_that_raises_is_reported_and_changes_nothing(caplog):
    """The observer calls back into the gate as well: no lock is held."""
    clock = ManualClock()

    def observer(event):
        dispatch.snapshot()
        raise RuntimeError("the observer is broken")

    dispatch = Dispatch("api", observer=observer, clock=clock)
    with caplog.at_level(logging.ERROR, logger="headgate"), dispatch.admit():
        assert dispatch.snapshot().in_flight == 1
    assert dispatch.snapshot().in_flight == 0
    assert len(caplog.records) == 2
    assert "the observer is broken" in caplog.text
    assert "Admitted" in caplog.text


def test_events_and_errors_can_be_compared_and_pickled():
    event = events.WindowSet(key="k", at=1.0, generation=2, duration=3.0, reason="429")
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(AttributeError):
        event.at = 2.0
    with pytest.raises(TypeError, match="takes exactly"):
        events.WindowEnded(key="k")
    assert event != events.WindowEnded(key="k", at=1.0, generation=2)
    error = WaitTimeout("waited 2.0 s for a place", rule="concurrency", retry_after=0.4)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rule, again.retry_after) == (str(error), "concurrency", 0.4)
    assert str(error) == "waited 2.0 s for a place (concurrency); worth another try in 0.4 s"
    assert isinstance(error, (Refused, TimeoutError))
    assert str(UnknownName("no Dispatch is named 'x'")) == "no Dispatch is named 'x'"


def test_verdicts_are_values():
    assert throttled(3) == Verdict(kind="throttled", retry_after=3, again=True, may_have_run=False)
    with pytest.raises(ValueError, match="retry_after=-1"):
        throttled(-1)
