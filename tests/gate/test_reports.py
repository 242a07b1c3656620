"""A settled cost that is too large to be true is charged in part, and told once."""

from __future__ import annotations

import logging

import pytest

from headgate import Dispatch
from headgate.testing import ManualClock

ABSURD = 10**30


def records(caplog):
    return [record for record in caplog.records if record.name == "headgate"]


@pytest.mark.parametrize("rates", ["1000 tokens/minute", "1000 tokens/minute strict"])
def test_one_absurd_settlement_closes_a_gate_for_ten_minutes_and_not_longer(rates, caplog):
    clock = ManualClock()
    api = Dispatch("absurd", rates=rates, clock=clock)
    with api.admit(tokens=5) as permit:
        permit.settle(tokens=ABSURD)

    level = api.snapshot().rates[0].level
    assert -10_005 <= level <= -9_000
    (record,) = records(caplog)
    assert record.levelno == logging.WARNING
    assert "absurd" in record.getMessage()
    assert f"{ABSURD:,} tokens are charged as 10,005" in record.getMessage()
    clock.advance(11 * 60)
    assert api.try_admit(tokens=5) is not None


def test_an_absurd_settlement_is_told_once_for_each_gate(caplog):
    for key in ("one", "other"):
        api = Dispatch(key, rates="1000 tokens/minute", clock=ManualClock())
        for _ in range(3):
            permit = api.admit().enter()
            permit.settle(tokens=ABSURD)
    assert len(records(caplog)) == 2


def test_a_large_cost_that_may_be_true_is_charged_in_full_and_not_told(caplog):
    """
    9000 tokens of a call that was estimated at 5, where a minute has 1000.
    """
    api = Dispatch("large", rates="1000 tokens/minute", clock=ManualClock())
    with api.admit(tokens=5) as permit:
        permit.settle(tokens=9000)
    assert api.snapshot().rates[0].level == 16 - 9000
    assert not records(caplog)


def test_of_several_rates_each_takes_on_the_debt_that_is_possible_for_it():
    api = Dispatch("both", rates=["1000 tokens/minute", "5000 tokens/day strict"], clock=ManualClock())
    with api.admit(tokens=5) as permit:
        permit.settle(tokens=ABSURD)
    minute, day = api.snapshot().rates
    assert (minute.level, day.level) == (16 - 10_005, 5000 - 5005)


def test_the_warning_is_given_outside_the_lock_of_the_gate():
    api = Dispatch("unlocked", rates="1000 tokens/minute", clock=ManualClock())
    seen = []

    class Asks(logging.Handler):
        def emit(self, record):
            seen.append((record.levelno, api.try_admit(), api.snapshot().rates[0].level < 0))

    handler = Asks()
    logging.getLogger("headgate").addHandler(handler)
    try:
        with api.admit(tokens=5) as permit:
            permit.settle(tokens=ABSURD)
    finally:
        logging.getLogger("headgate").removeHandler(handler)
    assert [(level, in_debt) for level, _permit, in_debt in seen] == [(logging.WARNING, True)]


def test_an_absurd_settlement_left_by_a_finalizer_is_told_at_the_end_of_the_next_call(caplog):
    api = Dispatch("left", rates="1000 tokens/minute", clock=ManualClock())
    permit = api.admit(tokens=5).enter()
    permit.leave({"tokens": ABSURD})
    api.snapshot()
    assert len(records(caplog)) == 1
