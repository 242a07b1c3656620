"""How fast a run goes."""

import pytest

from headgate import Dispatch
from headgate.cli.run.tally import Meter, Speed, Tally
from headgate.testing import ManualClock


def test_speed_is_measured_over_the_last_seconds_only():
    clock, count = ManualClock(), 0
    speed = Speed(clock, over=10)
    assert speed.of({"jobs": count}) == {}
    for _ in range(60):
        clock.advance(1)
        count += 5
        speed.of({"jobs": count})
    assert speed.of({"jobs": count})["jobs"] == pytest.approx(5)
    for _ in range(20):
        clock.advance(1)
        speed.of({"jobs": count})
    assert speed.of({"jobs": count})["jobs"] == 0


def test_the_time_left_follows_from_the_speed():
    clock = ManualClock()
    tally = Tally(clock)
    tally.speed()
    clock.advance(10)
    tally.answered, tally.output_tokens, tally.kept = 20, 300, 5
    speed, tokens = tally.speed()
    assert (speed, tokens) == (2.0, 30.0)
    assert tally.left(speed) is None
    tally.total = 125
    assert tally.left(speed) == 50.0


def test_a_meter_counts_what_a_gate_admits_and_settles():
    clock = ManualClock()
    meter = Meter(clock)
    gate = Dispatch("api", rates="600 tokens/minute", clock=clock, observer=meter)
    meter.rates()
    for _ in range(4):
        with gate.try_admit(tokens=2) as permit:
            permit.settle(tokens=3)
        clock.advance(1)
    assert meter.rates() == {"requests": 1.0, "tokens": 3.0, "bytes": 0.0}
