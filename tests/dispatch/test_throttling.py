"""A Dispatch that is throttled: tighter limits, adaptive concurrency, pauses, and how calls come back."""

import asyncio

import pytest

from dispatch.gates import only_rates
from headgate import BackoffWindow, CostTooLarge, Dispatch, InvalidWindow, Refused
from headgate.http import read_signal
from headgate.testing import ManualClock, run
from headgate.verdict import throttled

# -- the throttled mode


def test_outside_of_backoff_no_throttled_place_is_taken_and_a_byte_costs_a_byte(clock):
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


def test_while_throttled_a_call_holds_a_throttled_place_and_its_bytes_are_multiplied(clock):
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


def test_while_throttled_at_most_throttled_concurrency_calls_are_admitted(clock):
    """Calls admitted before may still be finishing."""
    dispatch = Dispatch(concurrency=10, throttled_concurrency=2, clock=clock)
    permits = [dispatch.try_admit() for _ in range(5)]
    dispatch.set_backoff(10)
    permits += [dispatch.try_admit() for _ in range(3)]
    assert [permit is not None for permit in permits] == [True] * 7 + [False]
    for permit in permits[:7]:
        permit.settle()


def test_a_call_gives_back_the_bytes_it_was_charged_though_the_mode_has_changed(clock):
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


def test_by_default_a_dispatch_is_throttled_for_ten_seconds_after_the_window_and_bytes_count_twentyfold(
    clock,
):
    dispatch = Dispatch(clock=clock)
    dispatch.set_backoff(0)
    with dispatch.admit(bytes=3):
        assert dispatch.snapshot().bytes_in_flight == 60
    clock.advance(9.999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.001)
    assert not dispatch.snapshot().backoff_active


def test_a_dispatch_is_throttled_until_exactly_the_end_of_the_tail(clock):
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(5)
    clock.advance(14.999999999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.000000001)
    assert not dispatch.snapshot().backoff_active


def test_a_backoff_of_zero_throttles_for_exactly_the_tail(clock):
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(0)
    assert dispatch.snapshot().backoff_active
    assert not dispatch.window.should_backoff()
    clock.advance(10)
    assert not dispatch.snapshot().backoff_active


def test_a_window_set_directly_throttles_with_its_tail(clock):
    window = BackoffWindow(clock=clock)
    dispatch = Dispatch(window=window, backoff_window=10, clock=clock)
    window.set(5)
    clock.advance(14)
    assert dispatch.snapshot().backoff_active


def test_a_shorter_backoff_never_ends_the_throttling_earlier(clock):
    """A backoff of 60 s and then one of 1 s: throttled at 69.999 s, not at 70 s."""
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(60)
    dispatch.set_backoff(1)
    clock.advance(69.999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.001)
    assert not dispatch.snapshot().backoff_active


def test_clearing_the_window_does_not_end_the_tail(clock):
    """The tail counts from the moment of the clear."""
    dispatch = Dispatch(backoff_window=10, clock=clock)
    dispatch.set_backoff(60)
    clock.advance(5)
    dispatch.window.clear()
    assert dispatch.snapshot().backoff_active
    clock.advance(10)
    assert not dispatch.snapshot().backoff_active


def test_all_dispatches_of_a_window_are_throttled_at_the_same_instants(clock):
    window = BackoffWindow(clock=clock)
    first, second = Dispatch("a", window=window, clock=clock), Dispatch("b", window=window, clock=clock)
    first.set_backoff(3)
    for _ in range(140):
        clock.advance(0.1)
        assert first.snapshot().backoff_active == second.snapshot().backoff_active
    assert not first.snapshot().backoff_active


def test_set_backoff_starts_the_window_and_does_not_itself_make_a_call_wait(clock):
    dispatch = Dispatch(clock=clock)
    dispatch.set_backoff(30, reason="429")
    assert dispatch.window.remaining == 30.0
    dispatch.try_admit().settle()


@pytest.mark.parametrize("duration", [-1, "1", float("nan"), None])
def test_a_backoff_that_is_not_a_time_is_refused(duration):
    with pytest.raises(InvalidWindow):
        Dispatch().set_backoff(duration)


def test_a_verdict_of_throttled_starts_the_window(clock):
    dispatch = Dispatch(clock=clock)
    with dispatch.admit() as permit:
        permit.settle(verdict=throttled(12))
    assert dispatch.window.remaining == 12.0


# -- callers that wait while the mode changes


def test_a_waiting_call_is_admitted_under_the_rules_of_the_moment_of_admission():
    """Joined at 100 s, backoff at 500 s, place free at 1000 s: throttled at 1000 s."""

    async def main(clock):
        dispatch = Dispatch(concurrency=1, throttled_concurrency=1, byte_penalty_multiplier=20, clock=clock)
        await asyncio.sleep(100)
        holder = dispatch.try_admit()
        clock.at(500, lambda: dispatch.set_backoff(600))
        clock.at(1000, holder.settle)
        async with dispatch.admit(bytes=7) as permit:
            return clock.seconds(), permit.throttled, dispatch.snapshot().bytes_in_flight

    assert run(main) == (1000.0, True, 140)


def test_a_call_that_waits_for_a_throttled_place_holds_no_ordinary_place():
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


def test_when_the_throttling_ends_waiting_calls_are_judged_by_the_normal_rules():
    """They wait for no throttled place, and their bytes count once."""

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


# -- adaptive concurrency


def test_adaptive_concurrency_is_cut_once_per_episode_and_comes_back_gradually():
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


def test_a_waiting_call_is_admitted_at_the_instant_a_place_grows_back():
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


def test_a_refusal_of_a_call_sent_before_the_cut_does_not_cut_again(clock):
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


def test_two_episodes_cut_adaptive_concurrency_twice_whether_or_not_it_was_looked_at_between(clock):
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


# -- pauses, and the way back


def test_with_pause_no_call_goes_before_the_window_ends_and_then_they_are_spread():
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


def test_paused_calls_wait_for_an_extended_window_and_go_when_it_is_cleared():
    async def main(clock):
        dispatch = Dispatch("api", pause=True, clock=clock)
        dispatch.set_backoff(10)
        clock.at(5, lambda: dispatch.set_backoff(60))
        clock.at(20, dispatch.window.clear)
        async with dispatch.admit():
            return clock.seconds()

    assert run(main) == 20.0


def test_a_window_that_starts_again_during_the_spread_is_waited_for_anew():
    """The second in line was due at 40 s; a new window from 11 s to 12 s lets it go at 12 s."""

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


def paused_crowd(change, *, rates="1/s burst 100", crowd=3, pause=10):
    """The moments at which calls go that wait for a window; at 2 s `change` happens."""

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


def test_waiting_calls_come_back_from_a_window_at_the_rate_and_not_with_a_burst():
    """No burst is saved up while no call goes."""
    assert paused_crowd(lambda _dispatch: None) == [10.0, 11.0, 12.0]


def test_waiting_calls_come_back_from_a_cleared_window_at_the_rate():
    assert paused_crowd(lambda dispatch: dispatch.window.clear()) == [2.0, 3.0, 4.0]


def test_a_rate_that_becomes_faster_during_a_window_saves_nothing_up_for_its_end():
    assert paused_crowd(lambda dispatch: dispatch.set_rates("10/s burst 100")) == [10.0, 10.1, 10.2]


def test_a_rate_that_becomes_slower_during_a_window_does_not_delay_the_first_call_after_it():
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


def test_a_call_from_before_a_window_is_not_refunded_after_it(clock):
    """The bucket would have been full again long before: at the end one call goes, and no more."""
    dispatch = only_rates("1 tokens/s burst 10", pause=True, clock=clock)
    permit = dispatch.try_admit(tokens=10)
    dispatch.set_backoff(60)
    clock.advance(60)
    assert dispatch.try_admit(tokens=4) is not None
    permit.settle(tokens=1)
    assert dispatch.snapshot().rates[0].level == 0


@pytest.mark.parametrize("tokens", [0, 1, 40, 100])
def test_the_first_call_goes_as_the_window_ends_however_heavy_and_the_next_at_the_rate(clock, tokens):
    dispatch = only_rates(
        ["1/s burst 5", "10 tokens/s burst 100", "500 tokens/minute"], pause=True, clock=clock
    )
    dispatch.set_backoff(10)
    clock.advance(10)
    assert dispatch.try_admit(tokens=tokens) is not None
    assert dispatch.try_admit(tokens=tokens) is None
    clock.advance(0.99)
    assert dispatch.try_admit(tokens=tokens) is None


def test_a_refund_of_the_first_call_after_a_window_admits_no_other_call(clock):
    """The first call was admitted whatever it cost, so its estimate took nothing from the others."""
    dispatch = only_rates("1 tokens/s burst 100", pause=True, clock=clock)
    dispatch.set_backoff(10)
    clock.advance(10)
    dispatch.try_admit(tokens=100).settle(tokens=1)
    assert dispatch.try_admit(tokens=1) is None
    clock.advance(1)
    dispatch.try_admit(tokens=1).settle(tokens=0)  # one that came at the rate gives back
    assert dispatch.try_admit(tokens=1) is not None


@pytest.mark.parametrize("first", ["too large", "no place", "gone", "another signal"])
def test_a_call_that_asks_and_does_not_go_is_not_the_first_after_a_window(clock, first):
    """Its attempt leaves no units with which other calls could enter."""
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
    """Enter, if there is room, and leave."""
    permit = dispatch.try_admit(**cost)
    if permit is not None:
        permit.settle()
    return permit is not None


def test_a_stated_remaining_of_zero_holds_until_the_stated_reset_though_the_rate_changes(clock):
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
