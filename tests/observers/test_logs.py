"""Log lines: what headgate writes by itself, lines of single calls, and warnings of long waits."""

import asyncio
import logging

import pytest

import headgate
from headgate import Dispatch, events
from headgate.event_log import Line
from headgate.responses import read_signal
from headgate.testing import ManualClock, run
from observers.eventful import losing_a_store


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="headgate")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_window_that_starts_and_ends_is_logged_without_an_observer(lines):
    clock = ManualClock()
    api = Dispatch("api", clock=clock)
    api.observe(read_signal(429, {"retry-after": "8"}), status=429)
    clock.advance(20)
    api.snapshot()
    (first, started), (second, ended) = lines()
    assert first == second == "INFO"
    assert started.startswith("'api': a backoff window started: 8.")
    assert started.endswith("s, because of rate_limited, told by this process")
    assert ended == "'api': the backoff window ended"


def test_a_line_has_its_facts_as_fields(caplog):
    caplog.set_level(logging.INFO, logger="headgate")
    api = Dispatch("api", clock=ManualClock())
    api.set_backoff(3, reason="maintenance")
    (record,) = caplog.records
    assert record.headgate_event == "WindowSet"
    assert (record.headgate_key, record.headgate_duration) == ("api", 3.0)
    assert (record.headgate_reason, record.headgate_generation) == ("maintenance", 1)


def test_every_event_that_is_logged_by_itself_has_a_sentence():
    kinds = [
        kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)
    ]
    logged = [kind for kind in kinds if kind.level > logging.DEBUG]
    assert len(logged) > 10
    for kind in logged:
        names = [name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())]
        told = {"key": "api", "reason": "because", "rates": ("5/s",)}
        event = kind(**{name: told.get(name, 2) for name in names})
        assert str(Line(event)).startswith("'api': ")


def test_limits_that_are_learned_or_changed_are_logged_and_small_steps_are_not(lines):
    api = Dispatch("learning", rates="100/s", clock=ManualClock())
    for rate in ("90/s", "85/s", "60/s"):
        api.set_rates(rate)
    assert lines() == [
        ("INFO", "'learning': the rates are now 90 requests/second burst 90"),
        ("INFO", "'learning': the rates are now 60 requests/second burst 60"),
    ]


def test_a_store_that_is_lost_and_comes_back_is_logged(lines):
    def said(text):
        return lambda: any(text in line for _, line in lines())

    losing_a_store(None, said("the losable store is lost (away)"), said("the losable store is back"))


def test_single_calls_are_logged_at_debug_for_those_who_ask(caplog):
    caplog.set_level(logging.DEBUG, logger="headgate")
    clock = ManualClock(auto_advance=True)
    api = Dispatch("api", rates="10/s burst 1", observer=headgate.observers.logs(), clock=clock)
    for _ in range(2):
        with api.admit():
            pass
    api.set_backoff(2)  # written once, although two loggers could
    assert [record.getMessage() for record in caplog.records] == [
        "'api': admitted",
        "'api': ended after 0.00 s, {'requests': 1, 'tokens': 0, 'bytes': 0}",
        "'api': a caller waits for requests/second, number 1 in line, about 0.10 s",
        "'api': admitted after 0.10 s for requests/second",
        "'api': ended after 0.00 s, {'requests': 1, 'tokens': 0, 'bytes': 0}",
        "'api': a backoff window started: 2.0 s, because of a signal of this program, told by this process",
    ]
    assert [record.levelno for record in caplog.records] == [10] * 5 + [20]


def test_another_logger_gets_everything(caplog):
    caplog.set_level(logging.DEBUG, logger="mine")
    api = Dispatch("api", observer=headgate.observers.logs(logging.getLogger("mine")), clock=ManualClock())
    api.set_backoff(2)
    assert [record.name for record in caplog.records if record.name == "mine"] == ["mine"]


def test_a_caller_that_waits_for_long_is_warned_of_while_it_waits(caplog):
    async def main(clock):
        logs = headgate.observers.logs(slow_after=30)
        api = Dispatch("api", concurrency=1, rates="1/minute burst 1", observer=logs, clock=clock)
        async with api.admit():
            calls = []
            for priority in (0, 0, 1):
                calls.append(asyncio.create_task(api.admit(priority=priority).enter_async()))
                await asyncio.sleep(1)
            await asyncio.sleep(67)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    run(main)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.headgate_waited for record in warnings] == [30.0, 60.0]
    assert warnings[0].getMessage() == (
        "'api': 3 wait; the one that came first has waited 30.0 s and waits for concurrency, "
        "as number 2 in line, until other calls end"
    )
    assert [record.headgate_rule for record in warnings] == ["concurrency", "concurrency"]


def test_the_warning_of_a_long_wait_says_when_the_caller_can_go(caplog):
    async def main(clock):
        logs = headgate.observers.logs(slow_after=30)
        api = Dispatch("api", rates="1/minute burst 1", observer=logs, clock=clock)
        for _ in range(2):
            async with api.admit():
                pass
        await asyncio.sleep(100)  # no caller waits: no further warning, and no timer is left

    run(main)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().endswith("as number 1 in line, for about 30.00 s more")


def test_without_a_limit_no_caller_waits_too_long(caplog):
    clock = ManualClock(auto_advance=True)
    api = Dispatch("api", rates="1/hour", observer=headgate.observers.logs(slow_after=None), clock=clock)
    for _ in range(2):
        with api.admit():
            pass
    assert caplog.records == []


def test_an_error_in_a_line_is_named_by_its_kind_alone(caplog):
    """What an exception says may come from a response."""
    caplog.set_level(logging.INFO, logger="headgate")
    breaker = headgate.CircuitBreaker(failure_threshold=1, clock=ManualClock())

    def fails():
        raise ConnectionError("secret body")

    with pytest.raises(ConnectionError):
        breaker.call(fails)
    (record,) = caplog.records
    assert record.headgate_error == "ConnectionError"
    assert "secret" not in caplog.text


def test_a_logger_of_another_library_is_told_if_it_has_the_methods_of_one():
    class Other:
        def __init__(self):
            self.lines = []

        def isEnabledFor(self, _level):  # noqa: N802 - as of a logger
            return True

        def log(self, _level, text, *values, extra):
            self.lines.append((text % values, extra))

    other = Other()
    Dispatch("api", rates="10/s", observer=headgate.observers.logs(other), clock=ManualClock()).try_admit()
    assert "admitted" in other.lines[0][0]
