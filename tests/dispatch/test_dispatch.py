"""Dispatch: its options, single calls, snapshots, settling and closing."""

import asyncio
import sys
import threading
import weakref
from operator import length_hint

import pytest

from dispatch.gates import only_places, only_rates
from headgate import (
    BackoffWindow,
    Closed,
    CostTooLarge,
    Dispatch,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    Refused,
    UnknownName,
)
from headgate.testing import ManualClock, run

# -- options


def test_a_dispatch_without_a_window_makes_its_own(clock):
    """Two Dispatches with one key share nothing unless they are given the same window."""
    one, two = Dispatch("api", clock=clock), Dispatch("api", clock=clock)
    one.set_backoff(30)
    assert one.window.should_backoff()
    assert not two.snapshot().backoff_active


def test_without_options_only_concurrency_and_bytes_are_limited():
    snapshot = Dispatch().snapshot()
    assert snapshot.concurrency == 400
    assert snapshot.throttled_concurrency == 10
    assert snapshot.byte_budget == 5_242_880
    assert snapshot.rates == ()
    assert not snapshot.backoff_active


def test_a_dispatch_is_found_by_its_name_until_it_is_closed():
    dispatch = Dispatch("api", name="tests: by name")
    assert Dispatch.named("tests: by name") is dispatch
    dispatch.close()
    with pytest.raises(UnknownName, match="make one with Dispatch"):
        Dispatch.named("tests: by name")
    with pytest.raises(KeyError):
        Dispatch.named("tests: by name")


def test_a_name_that_is_taken_is_refused():
    with Dispatch(name="tests: taken").admit():
        with pytest.raises(InvalidConfig, match="exists already"):
            Dispatch(name="tests: taken")
        Dispatch.named("tests: taken").close()


@pytest.mark.parametrize(
    "option",
    ["concurrency", "throttled_concurrency", "byte_budget", "byte_penalty_multiplier", "max_waiting"],
)
@pytest.mark.parametrize("value", [-1, 2.5, "10", float("nan"), float("inf"), True, [1], b"4"])
def test_a_limit_that_cannot_work_is_refused_with_the_value_and_what_to_write(option, value):
    with pytest.raises(InvalidCapacity) as caught:
        Dispatch(**{option: value})
    assert f"{option}={value!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize(
    "option", ["concurrency", "throttled_concurrency", "byte_budget", "byte_penalty_multiplier"]
)
def test_a_limit_of_zero_is_refused_because_no_call_would_ever_be_admitted(option):
    with pytest.raises(InvalidCapacity, match="would let nothing through; write at least 1"):
        Dispatch(**{option: 0})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"backoff_window": -1}, InvalidWindow),
        ({"backoff_window": "10"}, InvalidWindow),
        ({"rates": "10"}, InvalidLimit),
        ({"rates": "10/minutte"}, InvalidLimit),
        ({"rates": 10}, InvalidConfig),
        ({"rates": [10]}, InvalidLimit),
        ({"window": "api"}, InvalidConfig),
        ({"name": 7}, InvalidConfig),
        ({"observer": "print"}, InvalidConfig),
        ({"concurrency": None, "throttled_concurrency": "adaptive"}, InvalidConfig),
        ({"throttled_concurrency": "adaptiv"}, InvalidCapacity),
        ({"pause": "no"}, InvalidConfig),
        ({"random": 0.5}, InvalidConfig),
        ({"on_loss": "shared"}, InvalidConfig),
        ({"rates": ["auto", "5/s"]}, InvalidConfig),
        ({"clock": ManualClock(), "window": BackoffWindow()}, InvalidConfig),
    ],
)
def test_options_that_cannot_work_are_refused(options, error):
    with pytest.raises(error) as caught:
        Dispatch(**options)
    assert len(str(caught.value)) > 20


def test_the_error_for_a_misspelt_rate_names_the_value_and_a_correct_spelling():
    with pytest.raises(InvalidLimit) as caught:
        Dispatch(rates="500/minutte")
    assert "'500/minutte'" in str(caught.value)
    assert "did you mean 'minute'?" in str(caught.value)
    assert '"500/minute"' in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": "7"},
        {"cost": -1},
        {"cost": 2.5},
        {"bytes": "x"},
        {"cost": {"images": 1}},
    ],
)
def test_a_cost_that_is_not_an_amount_is_refused_and_takes_nothing(arguments, clock):
    dispatch = Dispatch(rates=["10/s", "100 tokens/s"], clock=clock)
    before = dispatch.snapshot()
    with pytest.raises(InvalidLimit):
        dispatch.try_admit(**arguments)
    with pytest.raises(InvalidLimit):
        dispatch.admit(**arguments)  # where it is written, not where the admission is entered
    assert dispatch.snapshot() == before


def test_positional_amounts_are_refused_because_they_do_not_say_what_they_count(clock):
    dispatch = Dispatch(clock=clock)
    for method in (dispatch.admit, dispatch.try_admit):
        with pytest.raises(TypeError, match="positional argument"):
            method(1200)


@pytest.mark.parametrize("priority", [None, "high", 1.5, True])
def test_a_priority_that_is_not_an_integer_is_refused_even_if_no_call_waits(priority, clock):
    with pytest.raises(InvalidConfig, match="priority="):
        Dispatch(clock=clock).admit(priority=priority)


# -- single calls


def test_with_rate_limit_returns_the_result_of_the_function(clock):
    dispatch = Dispatch(clock=clock)
    assert dispatch.with_rate_limit(10, lambda: {"a": 1}) == {"a": 1}
    assert dispatch.snapshot().in_flight == 0


def test_with_rate_limit_async_awaits_the_function():
    async def main(clock):
        dispatch = Dispatch(clock=clock)

        async def fn():
            return dispatch.snapshot().in_flight

        return await dispatch.with_rate_limit_async(10, fn), dispatch.snapshot().in_flight

    assert run(main) == (1, 0)


def test_a_function_that_raises_gives_everything_back_and_its_error_is_unchanged(clock):
    dispatch = Dispatch(clock=clock)
    dispatch.set_backoff(10)
    boom = RuntimeError("boom")

    def fn():
        raise boom

    with pytest.raises(RuntimeError) as caught:
        dispatch.with_rate_limit(10, fn)
    assert caught.value is boom
    snapshot = dispatch.snapshot()
    assert (snapshot.in_flight, snapshot.throttled_in_flight, snapshot.bytes_in_flight) == (0, 0, 0)


def test_a_negative_number_of_bytes_counts_as_zero(clock):
    dispatch = Dispatch(clock=clock)
    with dispatch.admit(bytes=-5):
        assert dispatch.snapshot().bytes_in_flight == 0
    assert dispatch.with_rate_limit(-5, lambda: dispatch.snapshot().bytes_in_flight) == 0


def test_bytes_in_flight_never_exceed_the_budget(clock):
    dispatch = Dispatch(byte_budget=10, clock=clock)
    first = dispatch.try_admit(bytes=6)
    assert dispatch.try_admit(bytes=5) is None
    second = dispatch.try_admit(bytes=4)
    assert dispatch.snapshot().bytes_in_flight == 10
    dispatch.try_admit(bytes=0).settle()
    first.settle()
    second.settle()


def test_a_call_above_the_concurrency_is_refused_and_the_count_stays(clock):
    dispatch = only_places(2, clock=clock)
    permits = [dispatch.try_admit(), dispatch.try_admit()]
    assert dispatch.try_admit() is None
    assert dispatch.snapshot().in_flight == 2
    permits[0].settle()
    assert dispatch.snapshot().in_flight == 1
    permits[1].settle()


def test_a_cost_that_can_never_fit_is_refused_at_once(clock):
    dispatch = only_rates("100 tokens/minute", clock=clock)
    for attempt in (lambda: dispatch.try_admit(tokens=101), lambda: dispatch.admit(tokens=101).__enter__()):
        with pytest.raises(CostTooLarge) as caught:
            attempt()
        assert isinstance(caught.value, Refused)
        assert caught.value.rule == "tokens/minute"
    assert dispatch.try_admit(tokens=100) is not None


def test_try_admit_answers_at_once(clock):
    dispatch = only_places(1, clock=clock)
    permit = dispatch.try_admit()
    assert dispatch.try_admit() is None
    permit.settle()
    with dispatch.try_admit() as permit:
        assert dispatch.snapshot().in_flight == 1
    assert dispatch.snapshot().in_flight == 0


def test_a_call_that_need_not_wait_joins_no_line(clock):
    dispatch = Dispatch(clock=clock)
    for _ in range(1000):
        with dispatch.admit() as permit:
            assert permit.waited == 0.0
    assert dispatch.callers.line.tickets() == []


# -- snapshots


def test_a_snapshot_has_the_usage_and_the_rule_that_the_first_in_line_waits_for():
    async def main(clock):
        dispatch = Dispatch("api", rates=["1000/s", "60 tokens/minute burst 60"], concurrency=5, clock=clock)
        async with dispatch.admit(tokens=60):
            waiter = asyncio.ensure_future(dispatch.admit(tokens=30).__aenter__())
            await asyncio.sleep(10)
            snapshot = dispatch.snapshot()
        waiter.cancel()
        return snapshot

    snapshot = run(main)
    assert (snapshot.in_flight, snapshot.waiting) == (1, 1)
    assert snapshot.binding == "tokens/minute"
    assert snapshot.next_at == 30.0
    tokens = snapshot.rates[1]
    assert (tokens.unit, tokens.limit, tokens.level, tokens.per) == ("tokens", 60, 10, 60.0)


@pytest.mark.parametrize(
    ("options", "hold", "ask", "binding"),
    [
        ({"concurrency": 1}, {}, {}, "concurrency"),
        ({"byte_budget": 10}, {"bytes": 10}, {"bytes": 1}, "bytes"),
        ({"throttled_concurrency": 1}, {}, {}, "throttled concurrency"),
        ({"rates": "1/minute"}, {}, {}, "requests/minute"),
        ({"pause": True}, {}, {}, "window"),
    ],
)
def test_a_snapshot_can_name_every_rule_as_the_one_that_the_first_in_line_waits_for(
    options, hold, ask, binding
):
    async def main(clock):
        dispatch = Dispatch("api", clock=clock, **options)
        held = dispatch.try_admit(**hold)
        if binding in {"throttled concurrency", "window"}:
            dispatch.set_backoff(5)
        if binding == "throttled concurrency":
            held.settle()
            held = dispatch.try_admit()
        waiter = asyncio.ensure_future(dispatch.admit(**ask).__aenter__())
        await asyncio.sleep(0)
        snapshot = dispatch.snapshot()
        waiter.cancel()
        held.settle()
        return snapshot

    assert run(main).binding == binding


# -- settling


def test_settle_replaces_the_estimate_by_the_true_cost(clock):
    dispatch = Dispatch(rates="1000 tokens/minute burst 1000", clock=clock)
    with dispatch.admit(tokens=800, bytes=500) as permit:
        assert dispatch.snapshot().rates[0].level == 200
        permit.settle(tokens=300, bytes=900)
    assert dispatch.snapshot().rates[0].level == 700
    assert dispatch.snapshot().bytes_in_flight == 0
    with dispatch.admit(tokens=100) as permit:
        permit.settle(tokens=1000)
    assert dispatch.snapshot().rates[0].level == -300


def test_a_second_settle_does_nothing(clock):
    dispatch = Dispatch(concurrency=2, rates="100 tokens/minute burst 100", clock=clock)
    other = dispatch.try_admit()
    permit = dispatch.try_admit(tokens=50)
    permit.settle(tokens=40)
    permit.settle(tokens=0)
    permit.settle()
    assert dispatch.snapshot().in_flight == 1
    assert dispatch.snapshot().rates[0].level == 60
    other.settle()


def test_settling_from_many_threads_at_once_gives_the_place_back_once():
    dispatch = only_places(10)
    for _ in range(50):
        permit = dispatch.try_admit()
        barrier = threading.Barrier(4)

        def race(permit=permit, barrier=barrier):
            barrier.wait()
            permit.settle()

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert dispatch.snapshot().in_flight == 0


def test_refunds_never_raise_a_level_above_its_maximum(clock):
    dispatch = Dispatch(byte_budget=100, rates="10/s", clock=clock)
    for _ in range(5):
        permit = dispatch.try_admit(bytes=10)
        permit.settle(bytes=0, cost=0)
        permit.settle(bytes=0, cost=0)
    snapshot = dispatch.snapshot()
    assert snapshot.bytes_in_flight == 0
    assert snapshot.rates[0].level == 10


# -- admissions, permits and Dispatches that are closed, reused or dropped


def test_close_refuses_waiting_and_new_callers_while_calls_in_flight_finish():
    async def main(clock):
        dispatch = only_places(1, clock=clock)
        permit = dispatch.try_admit()
        waiter = asyncio.ensure_future(dispatch.admit().__aenter__())
        await asyncio.sleep(0)
        dispatch.close()
        with pytest.raises(Closed):
            await waiter
        with pytest.raises(Closed):
            async with dispatch.admit():
                pass
        with pytest.raises(Closed):
            dispatch.try_admit()
        permit.settle()
        dispatch.close()
        return dispatch.snapshot().in_flight

    assert run(main) == 0


def test_one_admission_is_for_one_call_at_a_time(clock):
    admission = Dispatch(clock=clock).admit()
    with admission, pytest.raises(RuntimeError, match="in use already"), admission:
        pass
    with admission:
        pass


def test_a_permit_that_is_dropped_gives_its_place_back_with_a_warning(clock):
    dispatch = only_places(1, clock=clock)
    permit = dispatch.try_admit()
    assert dispatch.snapshot().in_flight == 1
    del permit
    with pytest.warns(ResourceWarning, match="dropped without settle"):  # not from a finalizer
        assert dispatch.snapshot().in_flight == 0


def test_an_unused_dispatch_is_freed_without_a_garbage_collection():
    dispatch = Dispatch("api", rates="10/s")
    dispatch.try_admit().settle()
    gone = weakref.ref(dispatch)
    del dispatch
    assert gone() is None


def test_calls_are_counted_up_to_the_largest_number_that_a_count_of_the_platform_holds():
    """A larger one could not even be made where it has 32 bits."""
    dispatch = Dispatch("counted")
    assert length_hint(dispatch._blanks) == sys.maxsize
    for _ in range(3):
        dispatch.try_admit().settle()
    assert length_hint(dispatch._blanks) == sys.maxsize - 3
    assert dispatch.snapshot().totals.admitted == 3
