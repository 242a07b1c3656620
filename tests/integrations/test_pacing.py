"""Pace: a gate for frameworks that ask before each call and say nothing after it."""

import asyncio

import pytest

import headgate
from headgate import Dispatch, FirstFree, InvalidConfig, WaitTimeout
from headgate.events import Admitted
from headgate.integrations.pacing import Pace
from headgate.testing import ManualClock, Recorder


def test_calls_wait_for_rates_and_windows_and_hold_no_place():
    clock = ManualClock(auto_advance=True)
    pace = Pace(Dispatch("api", rates="1/s burst 1", concurrency=1, pause=True, clock=clock))
    for _ in range(3):
        pace.wait()
    assert clock.seconds() == 2
    assert not pace.may_go()
    pace.gate.set_backoff(10)
    asyncio.run(pace.wait_async())
    assert clock.seconds() >= 12
    assert pace.gate.snapshot().in_flight == 0


def test_call_options_say_for_whom_a_call_waits_and_how_long():
    seen, clock = Recorder(), ManualClock()
    gate = Dispatch("api", rates=["2/s burst 2", "100 tokens/s burst 100"], clock=clock, observer=seen)
    pace = Pace(FirstFree([gate]))
    with headgate.call_options(tenant="ann", cost={"tokens": 60}, timeout=0.1):
        assert pace.may_go(tokens=5)
        assert not pace.may_go()
        with pytest.raises(WaitTimeout):
            pace.wait()
    assert [event.tenant for event in seen.of(Admitted)] == ["ann"]
    assert [rate.level for rate in gate.snapshot().rates] == [1, 40]


def test_another_object_is_refused():
    with pytest.raises(InvalidConfig, match="is not a Dispatch"):
        Pace("api")
