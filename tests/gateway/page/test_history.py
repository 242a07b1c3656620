"""History: the last hour of a gateway, made of the events of its gates."""

from headgate import Dispatch
from headgate.events import ResponseObserved
from headgate.gateway.page.history import STEPS, History
from headgate.testing import ManualClock, run


def gate_with(history, **options):
    clock = ManualClock(1000)
    return Dispatch("api", observer=history.hear, clock=clock, **options), clock


def test_calls_are_counted_a_minute_in_the_step_in_which_they_were_admitted():
    history = History()
    gate, clock = gate_with(history)
    for _ in range(3):
        gate.try_admit().settle()
    clock.advance(10)
    gate.try_admit().settle()
    series = history.series(clock.seconds())
    assert series["admitted"][-3:] == [0, 18, 6]
    assert all(len(points) == STEPS for points in series.values())


def test_the_most_calls_in_flight_of_a_step_are_shown():
    history = History()
    gate, clock = gate_with(history)
    permits = [gate.try_admit() for _ in range(5)]
    for permit in permits:
        permit.settle()
    clock.advance(10)
    gate.try_admit().settle()
    assert history.series(clock.seconds())["in_flight"][-2:] == [5, 1]


def test_refusals_of_the_api_are_counted_and_other_responses_are_not():
    history = History()
    for reason in ("ok", "rate_limited", "overloaded"):
        history.hear(ResponseObserved(key="api", at=1000.0, status=None, reason=reason, retry_after=None))
    assert history.series(1000.0)["refused"][-1] == 12


def test_half_of_the_waits_and_the_longest_are_shown():
    history = History()

    async def main(clock):
        gate = Dispatch("api", observer=history.hear, clock=clock, rates="1/s burst 1")
        for _ in range(5):
            async with gate.admit():
                pass
        return clock.seconds()

    end = run(main)
    series = history.series(end)
    assert (series["p50"][-1], series["p95"][-1]) == (1.0, 1.0)


def test_a_step_keeps_a_bounded_number_of_waits():
    history = History()
    gate, clock = gate_with(history, concurrency=None, byte_budget=None)
    for _ in range(5_000):
        gate.try_admit().settle()
    assert history.series(clock.seconds())["admitted"][-1] == 30_000
    assert len(history.step(clock.seconds()).waits) <= 256


def test_an_hour_later_nothing_is_left():
    history = History()
    gate, clock = gate_with(history)
    gate.try_admit().settle()
    clock.advance(3600)
    assert not any(history.series(clock.seconds())["admitted"])
