"""What SPEC parts 3 to 6 and D-13 to D-31 say about Dispatch, case by case."""

import asyncio
import threading
import weakref

import pytest

from headgate import (
    BackoffWindow,
    CapacityExhausted,
    Closed,
    CostTooLarge,
    Dispatch,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    LineFull,
    Refused,
    UnknownName,
    WaitTimeout,
    events,
)
from headgate.http import read_signal
from headgate.testing import ManualClock, Recorder, run
from headgate.verdict import throttled


@pytest.fixture
def clock():
    return ManualClock()


def only_places(n, **more):
    return Dispatch("places", concurrency=n, throttled_concurrency=None, byte_budget=None, **more)


def only_rates(rates, **more):
    return Dispatch(
        "rates", concurrency=None, throttled_concurrency=None, byte_budget=None, rates=rates, **more
    )


# -- construction


def test_a_dispatch_without_a_window_makes_its_own(clock):
    """DP-01 as DESIGN has it: two Dispatches share nothing unless given the same window."""
    one, two = Dispatch("api", clock=clock), Dispatch("api", clock=clock)
    one.set_backoff(30)
    assert one.window.should_backoff()
    assert not two.snapshot().backoff_active


def test_the_defaults_are_those_of_the_seed():
    """DP-02, DP-03, R-15."""
    snapshot = Dispatch().snapshot()
    assert snapshot.concurrency == 400
    assert snapshot.throttled_concurrency == 10
    assert snapshot.byte_budget == 5_242_880
    assert snapshot.rates == ()
    assert not snapshot.backoff_active


def test_the_mode_lasts_ten_seconds_beyond_the_window_and_bytes_count_twenty_times_by_default(clock):
    """DP-02."""
    dispatch = Dispatch(clock=clock)
    dispatch.set_backoff(0)
    with dispatch.admit(bytes=3):
        assert dispatch.snapshot().bytes_in_flight == 60
    clock.advance(9.999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.001)
    assert not dispatch.snapshot().backoff_active


def test_a_dispatch_is_found_by_its_name_until_it_is_closed():
    """DP-06."""
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
    """D-21: invalid limits raise at construction."""
    with pytest.raises(InvalidCapacity) as caught:
        Dispatch(**{option: value})
    assert f"{option}={value!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize(
    "option", ["concurrency", "throttled_concurrency", "byte_budget", "byte_penalty_multiplier"]
)
def test_a_limit_of_zero_is_refused_because_everyone_would_wait_for_ever(option):
    """D-21."""
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
        ({"clock": ManualClock(), "window": BackoffWindow()}, InvalidConfig),
    ],
)
def test_options_that_cannot_work_are_refused(options, error):
    """D-21, rule 12."""
    with pytest.raises(error) as caught:
        Dispatch(**options)
    assert len(str(caught.value)) > 20


def test_a_rate_with_a_typo_names_the_value_and_a_correct_spelling():
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
def test_a_cost_that_is_no_amount_is_refused_and_takes_nothing(arguments, clock):
    dispatch = Dispatch(rates=["10/s", "100 tokens/s"], clock=clock)
    before = dispatch.snapshot()
    with pytest.raises(InvalidLimit):
        dispatch.try_admit(**arguments)
    with pytest.raises(InvalidLimit), dispatch.admit(**arguments):
        pass
    assert dispatch.snapshot() == before


def test_arguments_without_a_name_are_refused_because_nobody_could_tell_what_they_mean(clock):
    dispatch = Dispatch(clock=clock)
    for method in (dispatch.admit, dispatch.try_admit):
        with pytest.raises(TypeError, match=r"write \w+\(tokens=1200\) or"):
            method(1200)


# -- executing


def test_with_rate_limit_returns_what_the_function_returned(clock):
    """DP-09."""
    dispatch = Dispatch(clock=clock)
    assert dispatch.with_rate_limit(10, lambda: {"a": 1}) == {"a": 1}
    assert dispatch.snapshot().in_flight == 0


def test_with_rate_limit_async_awaits_the_function():
    """DP-09."""

    async def main(clock):
        dispatch = Dispatch(clock=clock)

        async def fn():
            return dispatch.snapshot().in_flight

        return await dispatch.with_rate_limit_async(10, fn), dispatch.snapshot().in_flight

    assert run(main) == (1, 0)


def test_everything_is_given_back_when_the_function_raises_and_the_error_is_untouched(clock):
    """DP-10, WS-08."""
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


def test_outside_backoff_the_throttled_layer_is_untouched_and_a_byte_costs_a_byte(clock):
    """DP-11: limits 2/1/100, multiplier 10, 10 bytes."""
    dispatch = Dispatch(
        concurrency=2, throttled_concurrency=1, byte_budget=100, byte_penalty_multiplier=10, clock=clock
    )
    with dispatch.admit(bytes=10) as permit:
        inside = dispatch.snapshot()
        assert not permit.throttled
    assert (inside.in_flight, inside.throttled_in_flight, inside.byte_budget - inside.bytes_in_flight) == (
        1,
        0,
        90,
    )


def test_in_backoff_a_throttled_place_is_held_and_bytes_are_multiplied(clock):
    """DP-12: 5 bytes × 10."""
    dispatch = Dispatch(
        concurrency=2, throttled_concurrency=1, byte_budget=100, byte_penalty_multiplier=10, clock=clock
    )
    dispatch.set_backoff(10)
    with dispatch.admit(bytes=5) as permit:
        inside = dispatch.snapshot()
        assert permit.throttled
    assert (inside.in_flight, inside.throttled_in_flight, inside.byte_budget - inside.bytes_in_flight) == (
        1,
        1,
        50,
    )


def test_in_backoff_at_most_the_throttled_number_admitted_in_it_run_at_once(clock):
    """DP-12a: calls admitted before may still be finishing."""
    dispatch = Dispatch(concurrency=10, throttled_concurrency=2, clock=clock)
    permits = [dispatch.try_admit() for _ in range(5)]
    dispatch.set_backoff(10)
    permits += [dispatch.try_admit() for _ in range(3)]
    assert [permit is not None for permit in permits] == [True] * 7 + [False]
    for permit in permits[:7]:
        permit.settle()


def test_a_negative_estimate_counts_as_nothing(clock):
    """DP-13."""
    dispatch = Dispatch(clock=clock)
    with dispatch.admit(bytes=-5):
        assert dispatch.snapshot().bytes_in_flight == 0
    assert dispatch.with_rate_limit(-5, lambda: dispatch.snapshot().bytes_in_flight) == 0


def test_what_was_charged_is_given_back_although_the_mode_has_changed(clock):
    """DP-14."""
    dispatch = Dispatch(byte_budget=1000, byte_penalty_multiplier=10, clock=clock)
    plain = dispatch.try_admit(bytes=50)
    dispatch.set_backoff(1)
    penalised = dispatch.try_admit(bytes=50)
    assert dispatch.snapshot().bytes_in_flight == 550
    plain.settle()
    assert dispatch.snapshot().bytes_in_flight == 500
    clock.advance(60)
    penalised.settle()
    assert dispatch.snapshot().bytes_in_flight == 0
    assert dispatch.snapshot().throttled_in_flight == 0


# -- signalling backoff


def test_set_backoff_sets_the_shared_window_and_does_not_itself_put_anyone_to_sleep(clock):
    """DP-17, DP-18, R-9."""
    dispatch = Dispatch(clock=clock)
    dispatch.set_backoff(30, reason="429")
    assert dispatch.window.remaining == 30.0
    dispatch.try_admit().settle()


@pytest.mark.parametrize("duration", [-1, "1", float("nan"), None])
def test_a_backoff_that_is_no_time_is_refused(duration):
    """DP-17."""
    with pytest.raises(InvalidWindow):
        Dispatch().set_backoff(duration)


def test_the_mode_is_on_until_the_tail_is_over_and_off_at_its_end(clock):
    """DP-19, DP-24: strict at deadline + window."""
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(5)
    clock.advance(14.999999999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.000000001)
    assert not dispatch.snapshot().backoff_active


def test_a_backoff_of_zero_activates_the_mode_for_exactly_the_tail(clock):
    """DP-20."""
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(0)
    assert dispatch.snapshot().backoff_active
    assert not dispatch.window.should_backoff()
    clock.advance(10)
    assert not dispatch.snapshot().backoff_active


def test_a_window_set_directly_activates_the_mode_with_its_tail(clock):
    """DP-21, D-17."""
    window = BackoffWindow(clock=clock)
    dispatch = Dispatch(window=window, backoff_window=10, clock=clock)
    window.set(5)
    clock.advance(14)
    assert dispatch.snapshot().backoff_active


def test_a_shorter_backoff_never_ends_the_mode_earlier(clock):
    """DP-22, D-16: 60 then 1: on at 69.999, off at 70."""
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(60)
    dispatch.set_backoff(1)
    clock.advance(69.999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.001)
    assert not dispatch.snapshot().backoff_active


def test_clearing_the_window_does_not_end_the_tail(clock):
    """DP-23: what was signalled is still recent, from the moment it was cleared."""
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(60)
    clock.advance(5)
    dispatch.window.clear()
    assert dispatch.snapshot().backoff_active
    clock.advance(10)
    assert not dispatch.snapshot().backoff_active


def test_all_dispatches_of_a_window_are_in_the_same_mode_at_every_instant(clock):
    """D-17."""
    window = BackoffWindow(clock=clock)
    first, second = Dispatch("a", window=window, clock=clock), Dispatch("b", window=window, clock=clock)
    first.set_backoff(3)
    for _ in range(140):
        clock.advance(0.1)
        assert first.snapshot().backoff_active == second.snapshot().backoff_active
    assert not first.snapshot().backoff_active


def test_a_verdict_of_throttled_opens_the_window(clock):
    dispatch = Dispatch(clock=clock)
    with dispatch.admit() as permit:
        permit.settle(verdict=throttled(12))
    assert dispatch.window.remaining == 12.0


# -- inspection


def test_a_snapshot_says_what_is_used_and_why_the_first_in_line_waits():
    """DP-25: usage, the binding rule, and until when."""

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
def test_every_rule_can_be_named_as_the_one_that_binds(options, hold, ask, binding):
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


# -- D-13 to D-28


def test_one_who_waited_is_admitted_under_the_rules_of_the_moment_of_admission():
    """D-13, DP-16, R-10: queued at 100, backoff at 500, place free at 1000: throttled at 1000."""

    async def main(clock):
        dispatch = Dispatch(concurrency=1, throttled_concurrency=1, byte_penalty_multiplier=20, clock=clock)
        await asyncio.sleep(100)
        holder = dispatch.try_admit()
        clock.at(500, lambda: dispatch.set_backoff(600))
        clock.at(1000, holder.settle)
        async with dispatch.admit(bytes=7) as permit:
            return clock.seconds(), permit.throttled, dispatch.snapshot().bytes_in_flight

    assert run(main) == (1000.0, True, 140)


def test_one_who_waits_for_the_throttled_layer_occupies_no_ordinary_place():
    """D-14."""

    async def main(clock):
        dispatch = Dispatch(concurrency=2, throttled_concurrency=1, clock=clock)
        dispatch.set_backoff(100)
        async with dispatch.admit():
            waiter = asyncio.ensure_future(dispatch.admit().__aenter__())
            await asyncio.sleep(1)
            snapshot = dispatch.snapshot()
        (await waiter).settle()
        return snapshot

    snapshot = run(main)
    assert (snapshot.in_flight, snapshot.waiting) == (1, 1)


def test_at_the_end_of_the_mode_everybody_is_judged_by_the_normal_rules():
    """D-15: without waiting for a throttled place, and without the penalty."""

    async def main(clock):
        dispatch = Dispatch(concurrency=10, throttled_concurrency=1, backoff_window=5, clock=clock)
        dispatch.set_backoff(5)
        holder = dispatch.try_admit()
        admitted = []

        async def visitor():
            async with dispatch.admit(bytes=3) as permit:
                admitted.append((clock.seconds(), permit.throttled))
                await asyncio.sleep(100)

        await asyncio.gather(*(visitor() for _ in range(5)))
        holder.settle()
        return admitted

    assert run(main) == [(10.0, False)] * 5


def test_a_freed_place_is_handed_to_the_longest_waiter_at_that_instant():
    """D-18."""

    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        order = []

        async def visitor(i):
            async with dispatch.admit():
                order.append((i, clock.seconds()))

        visitors = [asyncio.ensure_future(visitor(i)) for i in range(5)]
        await asyncio.sleep(3)
        holder.settle()
        assert dispatch.try_admit() is None
        await asyncio.gather(*visitors)
        return order

    assert run(main) == [(i, 3.0) for i in range(5)]


def test_a_thousand_who_wait_for_a_place_wake_up_not_once_while_nobody_leaves():
    """D-18: no release, no wake-up, no timer."""

    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        visitors = [asyncio.ensure_future(dispatch.admit().__aenter__()) for _ in range(1000)]
        await asyncio.sleep(0)
        timers = clock._next_due()
        await asyncio.sleep(3600)
        waiting = dispatch.snapshot().waiting
        for visitor in visitors:
            visitor.cancel()
        await asyncio.gather(*visitors, return_exceptions=True)
        holder.settle()
        return timers, waiting, dispatch.snapshot().waiting

    assert run(main) == (None, 1000, 0)


def test_one_may_wait_an_hour_for_a_place_and_then_gets_it():
    """D-19."""

    async def main(clock):
        dispatch = only_places(1, clock=clock)
        clock.at(3600, dispatch.try_admit().settle)
        async with dispatch.admit() as permit:
            return permit.waited

    assert run(main) == 3600.0


def test_a_lowered_rate_takes_effect_for_those_who_wait():
    """D-20, set_rates: one pool; retuned while others wait, and an event says so."""

    async def main(clock):
        seen = Recorder()
        dispatch = only_rates("10/s burst 1", clock=clock, observer=seen)
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        visitors = asyncio.gather(*(visitor() for _ in range(5)))
        await asyncio.sleep(0.15)
        dispatch.set_rates("1/s burst 1")
        await visitors
        return times, seen.of(events.Retuned)

    times, retuned = run(main)
    assert times == [0.0, 0.1, 0.65, 1.65, 2.65]
    assert retuned[0].rates == ("1 requests/second burst 1",)


def test_raising_a_rate_lets_those_who_wait_go_sooner_and_creates_nothing():
    async def main(clock):
        dispatch = only_rates("1/minute", clock=clock)
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        visitors = asyncio.gather(*(visitor() for _ in range(3)))
        await asyncio.sleep(30)
        dispatch.set_rates("1/s")
        await visitors
        return times

    assert run(main) == [0.0, 30.5, 31.5]


def test_a_retune_under_which_a_waiting_call_can_never_fit_refuses_it():
    async def main(clock):
        dispatch = only_rates("100 tokens/s burst 100", clock=clock)
        dispatch.try_admit(tokens=100)
        waiter = asyncio.ensure_future(dispatch.admit(tokens=80).__aenter__())
        await asyncio.sleep(0)
        dispatch.set_rates("50 tokens/s burst 50")
        with pytest.raises(CostTooLarge, match="80 tokens can never fit a limit of 50"):
            await waiter

    run(main)


def test_rates_may_count_units_of_their_own_also_after_a_retune():
    async def main(clock):
        dispatch = only_rates(["100/s", "4 images/minute burst 4"], clock=clock)
        assert dispatch.try_admit(cost={"images": 4}) is not None
        assert dispatch.try_admit(cost={"images": 1}) is None
        assert dispatch.try_admit() is not None
        waiter = asyncio.ensure_future(dispatch.admit(cost={"images": 1}).__aenter__())
        await asyncio.sleep(0)
        dispatch.set_rates(["100/s", "4 images/minute burst 4", "10 voices/minute burst 10"])
        assert dispatch.try_admit(cost={"voices": 1}) is None  # somebody waits
        permit = await waiter
        assert clock.seconds() == 15.0
        permit.settle(cost={"images": 1})
        assert dispatch.try_admit(cost={"voices": 10}) is not None

    run(main)


def test_cancelling_one_who_waits_or_runs_leaves_the_counters_as_if_it_had_never_come():
    """D-22."""

    async def main(clock):
        dispatch = Dispatch(concurrency=1, rates="10/s", clock=clock)

        async def body():
            async with dispatch.admit(bytes=10):
                await asyncio.sleep(1000)

        runs, waits = asyncio.ensure_future(body()), asyncio.ensure_future(body())
        await asyncio.sleep(1)
        waits.cancel()
        await asyncio.sleep(1)
        assert dispatch.snapshot().waiting == 0
        runs.cancel()
        await asyncio.sleep(1)
        return dispatch.snapshot()

    snapshot = run(main)
    assert (snapshot.in_flight, snapshot.bytes_in_flight, snapshot.waiting) == (0, 0, 0)
    assert snapshot.rates[0].level == 10


def test_a_grant_whose_waiter_is_cancelled_in_the_same_instant_passes_to_the_next():
    """B4: and what it had been charged comes back."""

    async def main(clock):
        dispatch = Dispatch(concurrency=1, rates="100 tokens/s burst 100", clock=clock)
        holder = dispatch.try_admit()
        first = asyncio.ensure_future(dispatch.admit(tokens=100).__aenter__())
        second = asyncio.ensure_future(dispatch.admit(tokens=100).__aenter__())
        await asyncio.sleep(1)
        holder.settle()
        first.cancel()
        permit = await second
        assert first.cancelled()
        permit.settle()
        return clock.seconds(), dispatch.snapshot().in_flight

    assert run(main) == (1.0, 0)


def test_bytes_in_flight_never_exceed_the_budget(clock):
    """D-23, R-8, WS-01."""
    dispatch = Dispatch(byte_budget=10, clock=clock)
    first = dispatch.try_admit(bytes=6)
    assert dispatch.try_admit(bytes=5) is None
    second = dispatch.try_admit(bytes=4)
    assert dispatch.snapshot().bytes_in_flight == 10
    dispatch.try_admit(bytes=0).settle()
    first.settle()
    second.settle()


def test_a_call_larger_than_the_whole_budget_runs_alone():
    """D-23, R-8: and those after it, however small, wait for it; those before it are waited for."""

    async def main(clock):
        dispatch = Dispatch(byte_budget=10, clock=clock)
        log = []

        async def visitor(size, duration):
            async with dispatch.admit(bytes=size):
                log.append((size, clock.seconds()))
                await asyncio.sleep(duration)

        await asyncio.gather(visitor(3, 1), visitor(25, 1), visitor(2, 1), visitor(3, 1))
        return log

    assert run(main) == [(3, 0.0), (25, 1.0), (2, 2.0), (3, 2.0)]


def test_a_heavy_call_is_not_starved_by_light_ones():
    """D-23, B21: first come, first served."""

    async def main(clock):
        dispatch = Dispatch(byte_budget=100, concurrency=None, throttled_concurrency=None, clock=clock)
        done = asyncio.Event()

        async def light():
            while not done.is_set():
                async with dispatch.admit(bytes=20):
                    await asyncio.sleep(1)

        async def heavy():
            await asyncio.sleep(5.5)
            async with dispatch.admit(bytes=100) as permit:
                done.set()
                return permit.waited

        *_, waited = await asyncio.gather(*(light() for _ in range(12)), heavy())
        return waited

    assert run(main) <= 4.0


def test_adaptive_concurrency_is_cut_once_per_signal_and_comes_back_gradually():
    """D-24: 400 -> 280, not 10; after the tail it grows instead of jumping."""
    clock = ManualClock()
    dispatch = Dispatch(
        concurrency=100, throttled_concurrency="adaptive", backoff_window=10, byte_budget=None, clock=clock
    )
    permits = [dispatch.try_admit() for _ in range(60)]
    dispatch.set_backoff(5)
    dispatch.set_backoff(6)  # the same episode
    while (permit := dispatch.try_admit()) is not None:
        permits.append(permit)
    assert len(permits) == 70
    clock.advance(16)
    counts = []
    for _ in range(11):
        while (permit := dispatch.try_admit()) is not None:
            permits.append(permit)
        counts.append(len(permits))
        clock.advance(1)
    assert counts == [70, 73, 76, 79, 82, 85, 88, 91, 94, 97, 100]
    for permit in permits:
        permit.settle()


def test_one_who_waits_is_let_in_at_the_instant_a_place_grows_back():
    """D-24."""

    async def main(clock):
        dispatch = Dispatch(concurrency=10, throttled_concurrency="adaptive", backoff_window=10, clock=clock)
        dispatch.set_backoff(0)
        permits = [dispatch.try_admit() for _ in range(7)]
        assert dispatch.try_admit() is None
        async with dispatch.admit():
            at = clock.seconds()
        for permit in permits:
            permit.settle()
        return at

    assert run(main) == pytest.approx(10 + 10 / 3, abs=1e-6)


def test_a_signal_to_a_call_sent_before_the_cut_does_not_cut_again(clock):
    """Rule 10: one cut per episode."""
    dispatch = Dispatch(concurrency=100, throttled_concurrency="adaptive", clock=clock)
    permits = [dispatch.try_admit() for _ in range(10)]
    clock.advance(1)
    for permit in permits:
        permit.settle(verdict=throttled(5))
        dispatch.try_admit().settle()
    assert dispatch.snapshot().throttled_concurrency == 70
    clock.advance(1)
    late = dispatch.try_admit()
    clock.advance(1)
    late.settle(verdict=throttled(5))
    dispatch.try_admit().settle()
    assert dispatch.snapshot().throttled_concurrency == 49


def test_try_answers_at_once(clock):
    """D-25."""
    dispatch = only_places(1, clock=clock)
    permit = dispatch.try_admit()
    assert dispatch.try_admit() is None
    permit.settle()
    with dispatch.try_admit() as permit:
        assert dispatch.snapshot().in_flight == 1
    assert dispatch.snapshot().in_flight == 0


def test_a_wait_ends_at_its_timeout_and_leaves_the_line():
    """D-25: a deadline of 1 s ends the wait at 1 s."""

    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        with pytest.raises(WaitTimeout, match=r"waited 1.0 s for a place \(concurrency\)") as caught:
            async with dispatch.admit(timeout=1):
                pass
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.rule, caught.value.retry_after) == ("concurrency", None)
        holder.settle()
        return clock.seconds(), dispatch.snapshot().waiting

    assert run(main) == (1.0, 0)


def test_a_timeout_of_zero_refuses_at_once_and_says_when_to_try_again(clock):
    dispatch = only_rates("1/s burst 1", clock=clock)
    dispatch.try_admit()
    with pytest.raises(CapacityExhausted) as caught, dispatch.admit(timeout=0):
        pass
    assert (caught.value.rule, caught.value.retry_after) == ("requests/second", 1.0)


def test_a_timeout_that_cannot_be_met_is_refused_at_once():
    """D-56: nobody is inside who could give anything back."""
    clock = ManualClock(auto_advance=True)
    dispatch = Dispatch(rates="1/minute", clock=clock)
    dispatch.try_admit().settle()
    with pytest.raises(WaitTimeout) as caught, dispatch.admit(timeout=5):
        pass
    assert caught.value.retry_after == 60.0
    assert clock.seconds() == 0.0


def test_a_timeout_that_a_refund_could_meet_is_waited_for():
    async def main(clock):
        dispatch = Dispatch(rates="60 tokens/minute burst 60", clock=clock)
        holder = dispatch.try_admit(tokens=60)
        clock.at(2, lambda: holder.settle(tokens=1))
        async with dispatch.admit(tokens=30, timeout=5):
            return clock.seconds()

    assert run(main) == 2.0


def test_one_more_than_may_wait_is_refused():
    """D-25: max_waiting k rejects the k+1st."""

    async def main(clock):
        dispatch = only_places(1, max_waiting=2, clock=clock)
        holder = dispatch.try_admit()
        waiters = [asyncio.ensure_future(dispatch.admit().__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LineFull, match="2 are waiting already"):
            async with dispatch.admit():
                pass
        holder.settle()
        for waiter in waiters:
            (await waiter).settle()
        return dispatch.snapshot().waiting

    assert run(main) == 0


def test_with_max_waiting_zero_nobody_waits(clock):
    dispatch = only_places(1, max_waiting=0, clock=clock)
    permit = dispatch.try_admit()
    with pytest.raises(LineFull), dispatch.admit():
        pass
    permit.settle()
    with dispatch.admit():
        pass


def test_a_higher_priority_goes_first():
    """D-25."""

    async def main(clock):
        dispatch = only_places(1, clock=clock)
        holder = dispatch.try_admit()
        order = []

        async def visitor(priority):
            async with dispatch.admit(priority=priority):
                order.append(priority)

        waiters = asyncio.gather(*(visitor(p) for p in (0, -1, 5, 0, 5)))
        await asyncio.sleep(0)
        holder.settle()
        await waiters
        return order

    assert run(main) == [5, 5, 0, 0, -1]


def test_a_tenant_with_a_thousand_waiting_does_not_delay_the_first_of_another():
    async def main(clock):
        dispatch = only_rates("10/s burst 1", clock=clock)
        order = []

        async def visitor(tenant):
            async with dispatch.admit(tenant=tenant):
                order.append(tenant)

        crowd = [asyncio.ensure_future(visitor("big")) for _ in range(1000)]
        await asyncio.sleep(0.05)
        ahead = len(order)
        await visitor("small")
        position = order.index("small") - ahead
        for task in crowd:
            task.cancel()
        return position

    assert run(main) <= 1


def test_tenants_share_by_cost():
    """A tenant of 900-token calls and one of 100-token calls get the same tokens, not the same calls."""

    async def main(clock):
        dispatch = only_rates("1000 tokens/s burst 1000", clock=clock)
        used = {"large": 0, "small": 0}

        async def visitor(tenant, tokens):
            async with dispatch.admit(tokens=tokens, tenant=tenant):
                used[tenant] += tokens

        tasks = [asyncio.ensure_future(visitor("large", 900)) for _ in range(200)]
        tasks += [asyncio.ensure_future(visitor("small", 100)) for _ in range(1000)]
        await asyncio.sleep(100)
        for task in tasks:
            task.cancel()
        return used

    used = run(main)
    assert abs(used["large"] - used["small"]) <= 2 * 900


def test_with_pause_nobody_goes_before_the_window_ends_and_then_they_are_spread():
    """D-26, R-9."""

    async def main(clock):
        window = BackoffWindow(spread=2, clock=clock)
        dispatch = Dispatch("api", window=window, pause=True, throttled_concurrency=None, clock=clock)
        dispatch.set_backoff(30)
        assert dispatch.try_admit() is None
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        await asyncio.gather(*(visitor() for _ in range(4)))
        return times

    assert run(main) == [30.0, 30.5, 31.0, 31.5]


def test_a_window_extended_while_all_pause_is_waited_for_and_a_clear_lets_them_go():
    """D-02, D-26."""

    async def main(clock):
        dispatch = Dispatch("api", pause=True, clock=clock)
        dispatch.set_backoff(10)
        clock.at(5, lambda: dispatch.set_backoff(60))
        clock.at(20, dispatch.window.clear)
        async with dispatch.admit():
            return clock.seconds()

    assert run(main) == 20.0


def paused_crowd(change, *, rates="1/s burst 100", crowd=3, pause=10):
    """When each of a crowd goes in that waits for a window, in the midst of which something changes."""

    async def main(clock):
        dispatch = only_rates(rates, pause=True, clock=clock)
        dispatch.set_backoff(pause)
        clock.at(2, lambda: change(dispatch))
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        await asyncio.gather(*(visitor() for _ in range(crowd)))
        return times

    return run(main)


def test_a_crowd_comes_back_from_a_window_at_the_rate_and_not_with_a_burst():
    """Rule 11, M7: nothing is saved up while nobody goes."""
    assert paused_crowd(lambda _dispatch: None) == [10.0, 11.0, 12.0]


def test_a_window_that_is_cleared_lets_them_go_at_the_rate_from_then_on():
    """D-02: what was held for the window's sake is held no longer."""
    assert paused_crowd(lambda dispatch: dispatch.window.clear()) == [2.0, 3.0, 4.0]


def test_a_rate_that_becomes_faster_during_a_window_saves_nothing_up_for_its_end():
    assert paused_crowd(lambda dispatch: dispatch.set_rates("10/s burst 100")) == [10.0, 10.1, 10.2]


def test_a_rate_that_becomes_slower_during_a_window_makes_nobody_wait_longer_for_its_end():
    assert paused_crowd(lambda dispatch: dispatch.set_rates("6/minute burst 100")) == [10.0, 20.0, 30.0]


def test_a_dispatch_made_during_a_window_comes_back_at_the_rate_too(clock):
    window = BackoffWindow(clock=clock)
    window.set(10)
    dispatch = only_rates("1/s burst 100", window=window, pause=True, clock=clock)
    clock.advance(10)
    assert dispatch.try_admit() is not None
    assert dispatch.try_admit() is None


def test_a_debt_from_before_a_window_outlasts_it_and_a_clear(clock):
    dispatch = only_rates("1 tokens/s burst 10", pause=True, clock=clock)
    dispatch.try_admit(tokens=5).settle(tokens=30)  # twenty missing
    dispatch.set_backoff(10)
    clock.advance(5)
    dispatch.window.clear()
    assert dispatch.snapshot().rates[0].level == -15
    dispatch.set_backoff(10)
    clock.advance(10)
    assert dispatch.snapshot().rates[0].level == -5


def test_what_was_used_before_a_window_is_not_given_back_after_it(clock):
    """The bucket would have been full again long before: at its end one call goes, and no more."""
    dispatch = only_rates("1 tokens/s burst 10", pause=True, clock=clock)
    permit = dispatch.try_admit(tokens=10)
    dispatch.set_backoff(60)
    clock.advance(60)
    assert dispatch.try_admit(tokens=4) is not None
    permit.settle(tokens=1)
    assert dispatch.snapshot().rates[0].level == 0


@pytest.mark.parametrize("tokens", [0, 1, 40, 100])
def test_the_first_goes_as_the_window_ends_however_heavy_and_the_next_at_the_rate(clock, tokens):
    dispatch = only_rates(
        ["1/s burst 5", "10 tokens/s burst 100", "500 tokens/minute"], pause=True, clock=clock
    )
    dispatch.set_backoff(10)
    clock.advance(10)
    assert dispatch.try_admit(tokens=tokens) is not None
    assert dispatch.try_admit(tokens=tokens) is None
    clock.advance(0.99)
    assert dispatch.try_admit(tokens=tokens) is None


def test_the_first_after_a_window_gives_back_nothing_that_others_could_come_in_with(clock):
    """It was let in however heavy. Had it been known to be light, no more would have been there for it."""
    dispatch = only_rates("1 tokens/s burst 100", pause=True, clock=clock)
    dispatch.set_backoff(10)
    clock.advance(10)
    dispatch.try_admit(tokens=100).settle(tokens=1)
    assert dispatch.try_admit(tokens=1) is None
    clock.advance(1)
    dispatch.try_admit(tokens=1).settle(tokens=0)  # one that came at the rate gives back
    assert dispatch.try_admit(tokens=1) is not None


@pytest.mark.parametrize("first", ["too large", "no place", "gone", "another signal"])
def test_only_who_goes_in_after_a_window_is_the_first(clock, first):
    """Whoever asks and does not go leaves nothing for the others to come in with."""
    dispatch = Dispatch(
        "rates", rates="1 tokens/s burst 100", pause=True, concurrency=1, byte_budget=None, clock=clock
    )
    inside = dispatch.try_admit(tokens=0)
    dispatch.set_backoff(10)
    clock.advance(10)
    if first == "too large":
        with pytest.raises(CostTooLarge):
            dispatch.try_admit(tokens=10**6)
    elif first == "no place":
        assert dispatch.try_admit(tokens=100) is None
    elif first == "gone":
        with pytest.raises(Refused), dispatch.admit(tokens=100, timeout=0):
            pass
    else:
        dispatch.set_backoff(0)
    inside.settle()
    assert sum(visit(dispatch, tokens=1) for _ in range(5)) == 1


def visit(dispatch, **cost):
    """Come in, if there is room, and go."""
    permit = dispatch.try_admit(**cost)
    if permit is not None:
        permit.settle()
    return permit is not None


def test_nothing_remains_until_a_moment_whatever_the_rate_becomes(clock):
    """Headers say that nothing is left for half a minute, and that the limit is another from now on."""
    dispatch = only_rates("auto", clock=clock)
    told = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "50"}
    dispatch.observe(read_signal(200, told))
    told = {
        "x-ratelimit-limit-requests": "30",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "30s",
    }
    dispatch.observe(read_signal(200, told))
    assert dispatch.snapshot().rates[0].limit == 30
    clock.advance(29.9)
    assert dispatch.try_admit() is None
    clock.advance(0.1)
    assert dispatch.try_admit() is not None


def test_the_quick_way_asks_no_server_and_joins_no_line(clock):
    """D-27: with nobody waiting, admission makes no ticket and wakes nobody."""
    dispatch = Dispatch(clock=clock)
    for _ in range(1000):
        with dispatch.admit() as permit:
            assert permit.waited == 0.0
    assert dispatch._line._bands == []


def test_an_estimate_can_be_replaced_by_the_fact_and_idle_means_all_is_back(clock):
    """D-28."""
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
    """D-30."""
    dispatch = Dispatch(concurrency=2, rates="100 tokens/minute burst 100", clock=clock)
    other = dispatch.try_admit()
    permit = dispatch.try_admit(tokens=50)
    permit.settle(tokens=40)
    permit.settle(tokens=0)
    permit.settle()
    assert dispatch.snapshot().in_flight == 1
    assert dispatch.snapshot().rates[0].level == 60
    other.settle()


def test_settling_from_many_threads_at_once_gives_back_once():
    """D-30."""
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


def test_nothing_ever_raises_what_is_left_above_the_maximum(clock):
    """D-31, WS-10."""
    dispatch = Dispatch(byte_budget=100, rates="10/s", clock=clock)
    for _ in range(5):
        permit = dispatch.try_admit(bytes=10)
        permit.settle(bytes=0, cost=0)
        permit.settle(bytes=0, cost=0)
    snapshot = dispatch.snapshot()
    assert snapshot.bytes_in_flight == 0
    assert snapshot.rates[0].level == 10


def test_places_are_refused_at_the_limit_whatever_is_held(clock):
    """D-29, CS-02, CS-08: refused at the limit; the count stays."""
    dispatch = only_places(2, clock=clock)
    permits = [dispatch.try_admit(), dispatch.try_admit()]
    assert dispatch.try_admit() is None
    assert dispatch.snapshot().in_flight == 2
    permits[0].settle()
    assert dispatch.snapshot().in_flight == 1
    permits[1].settle()


# -- closing, reusing, dropping


def test_close_refuses_those_who_wait_and_those_who_come_while_calls_finish():
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


def test_a_cost_that_can_never_fit_is_refused_at_once(clock):
    dispatch = only_rates("100 tokens/minute", clock=clock)
    for attempt in (lambda: dispatch.try_admit(tokens=101), lambda: dispatch.admit(tokens=101).__enter__()):
        with pytest.raises(CostTooLarge) as caught:
            attempt()
        assert isinstance(caught.value, Refused)
        assert caught.value.rule == "tokens/minute"
    assert dispatch.try_admit(tokens=100) is not None


def test_one_admission_is_for_one_call_at_a_time(clock):
    admission = Dispatch(clock=clock).admit()
    with admission, pytest.raises(RuntimeError, match="in use already"), admission:
        pass
    with admission:
        pass


def test_a_permit_that_is_dropped_is_recovered_with_a_warning(clock):
    """ALGORITHMS 2k: no permit is lost because somebody forgot it."""
    dispatch = only_places(1, clock=clock)
    permit = dispatch.try_admit()
    assert dispatch.snapshot().in_flight == 1
    with pytest.warns(ResourceWarning, match="dropped without settle"):
        del permit
    assert dispatch.snapshot().in_flight == 0


def test_a_window_that_opens_again_in_the_middle_of_the_spread_is_waited_for_anew():
    """The second in line was due at 40; a new window from 11 to 12 lets it go at 12."""

    async def main(clock):
        window = BackoffWindow(spread=60, clock=clock)
        dispatch = Dispatch("api", window=window, pause=True, clock=clock)
        window.set(10)
        times = []

        async def visitor():
            async with dispatch.admit():
                times.append(clock.seconds())

        clock.at(11, lambda: window.set(1))
        await asyncio.gather(visitor(), visitor())
        return times

    assert run(main) == [10.0, 12.0]


def test_what_adaptive_concurrency_does_to_episodes_nobody_saw_is_what_it_does_to_all(clock):
    """Two episodes are two cuts, whether or not somebody looked in between."""
    left = []
    for look in (True, False):
        dispatch = Dispatch(concurrency=100, throttled_concurrency="adaptive", backoff_window=10, clock=clock)
        dispatch.set_backoff(10)
        clock.advance(20)
        if look:
            dispatch.snapshot()
        dispatch.set_backoff(10)
        left.append(dispatch.snapshot().throttled_concurrency)
        clock.advance(100)
    assert left == [49, 49]


@pytest.mark.parametrize("priority", [None, "high", 1.5, True])
def test_a_priority_that_is_no_number_is_refused_also_when_nobody_waits(priority, clock):
    with pytest.raises(InvalidConfig, match="priority="):
        Dispatch(clock=clock).admit(priority=priority)


def test_a_dispatch_that_nobody_uses_any_more_is_gone_without_a_collection():
    dispatch = Dispatch("api", rates="10/s")
    dispatch.try_admit().settle()
    gone = weakref.ref(dispatch)
    del dispatch
    assert gone() is None
