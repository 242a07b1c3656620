"""Backoff windows and their registries: setting, clearing, waiting, events and forgetting."""

import asyncio
import gc
import threading
import time
from datetime import timedelta

import pytest

from headgate import BackoffWindow, InvalidConfig, InvalidWindow, WindowRegistry, events, parse_retry_after
from headgate.testing import ManualClock, Recorder, run


@pytest.fixture
def window(clock):
    return BackoffWindow(clock=clock)


# -- obtaining a window


def test_the_same_key_yields_the_same_window():
    """A key is anything hashable; a window set through one handle is seen through the other."""
    registry = WindowRegistry(clock=ManualClock())
    one, two = registry.for_key(("openai", 7)), registry.for_key(("openai", 7))
    one.set(30)
    assert two is one
    assert two.should_backoff()


def test_without_a_registry_the_one_of_the_process_is_used():
    window = BackoffWindow.for_key("the default registry is shared")
    assert window is BackoffWindow.for_key("the default registry is shared")
    assert window is WindowRegistry.named("default").for_key("the default registry is shared")


def test_the_same_key_in_two_registries_is_two_windows(clock):
    first, second = WindowRegistry(clock=clock), WindowRegistry(clock=clock)
    first.for_key("api").set(30)
    assert not second.for_key("api").should_backoff()


def test_a_named_registry_is_made_on_first_use_and_joined_after():
    """Joining an existing name neither fails nor clears it."""
    window = BackoffWindow.for_key("stripe", registry="tests: payments")
    window.set(60)
    assert WindowRegistry.named("tests: payments").for_key("stripe") is window
    assert window.should_backoff()
    window.clear()


def test_a_registry_outlives_the_thread_that_made_it():
    made = []
    thread = threading.Thread(
        target=lambda: made.append(WindowRegistry.named("tests: outlives").for_key("k"))
    )
    thread.start()
    thread.join()
    assert WindowRegistry.named("tests: outlives").for_key("k") is made[0]


def test_fifty_threads_racing_on_first_use_get_one_window():
    """Also for the registry itself."""
    barrier = threading.Barrier(50)
    seen = []

    def race():
        barrier.wait()
        seen.append(BackoffWindow.for_key("k", registry="tests: race"))

    threads = [threading.Thread(target=race) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(window) for window in seen}) == 1


@pytest.mark.parametrize("name", [7, "", b"x", ("a",)])
def test_a_registry_name_that_is_not_a_string_is_refused_with_the_value(name):
    with pytest.raises(InvalidConfig, match="write a string") as caught:
        WindowRegistry.named(name)
    assert repr(name) in str(caught.value)


# -- setting, checking, clearing


def test_a_window_is_active_for_its_duration_and_not_at_its_end(window, clock):
    window.set(30)
    clock.advance(29.999999999)
    assert window.should_backoff()
    clock.advance(0.000000001)
    assert not window.should_backoff()
    assert window.remaining == 0.0


def test_the_end_of_a_window_never_moves_earlier(window, clock):
    """30 s and then 5 s leaves 30 s; 60 s after that count from the moment of that call."""
    window.set(30)
    window.set(5)
    assert window.remaining == 30.0
    clock.advance(10)
    window.set(60)
    assert window.remaining == 60.0


def test_an_equal_end_changes_nothing_and_concurrent_setters_end_with_the_latest(window):
    window.set(30)
    generation = window.generation
    window.set(30)
    assert window.generation == generation
    threads = [threading.Thread(target=window.set, args=(30 + i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert window.remaining == 69.0


def test_a_duration_of_zero_never_makes_a_window_active(window):
    window.set(0)
    assert not window.should_backoff()


@pytest.mark.parametrize(
    "duration", [-1, -0.001, float("nan"), float("inf"), "10", None, True, timedelta(seconds=-1)]
)
def test_a_duration_that_is_not_a_time_is_refused_and_changes_nothing(window, duration):
    window.set(10)
    with pytest.raises(InvalidWindow) as caught:
        window.set(duration)
    assert repr(duration) in str(caught.value)
    assert window.remaining == 10.0


def test_a_duration_may_be_a_timedelta(window):
    window.set(timedelta(minutes=2))
    assert window.remaining == 120.0


def test_a_window_that_was_never_set_is_not_active(window):
    assert not window.should_backoff()
    assert window.remaining == 0.0
    assert window.generation == 0


def test_clear_ends_the_window_at_once_for_all_callers(clock):
    registry = WindowRegistry(clock=clock)
    one, two = registry.for_key("k"), registry.for_key("k")
    one.set(60)
    assert two.clear() is True
    assert not one.should_backoff()
    assert one.clear() is False


def test_after_a_clear_a_shorter_window_is_accepted(window, clock):
    window.set(60)
    window.clear()
    window.set(5)
    assert window.remaining == 5.0


def test_a_window_that_has_ended_cannot_be_cleared(window, clock):
    window.set(5)
    clock.advance(100)
    window.set(3)
    assert window.remaining == 3.0


# -- waiting


def test_wait_returns_at_once_when_no_window_is_active(window):
    assert window.wait() is True


def test_wait_sleeps_exactly_the_time_that_remains():
    """A window of 100 s set at 0, waited for from 20 s on: one sleep of 80 s."""
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    window.set(100)
    clock.advance(20)
    assert window.wait() is True
    assert clock.sleeps == [80.0]


def test_wait_sleeps_on_when_the_window_is_extended():
    """100 s at 0, extended by 50 s at 100 s: sleeps 100 s, then 50 s."""
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    window.set(100)
    clock.at(100, lambda: window.set(50))
    assert window.wait() is True
    assert clock.sleeps == [100.0, 50.0]
    assert clock.seconds() == 150.0


def test_clear_wakes_all_waiting_callers():
    """A window of 60 s that is cleared at 5 s lets its waiter go at 5 s."""
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    window.set(60)
    clock.at(5, window.clear)
    assert window.wait() is True
    assert clock.seconds() == 5.0


def test_a_wait_with_a_timeout_ends_at_the_timeout():
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    window.set(10)
    assert window.wait(timeout=1) is False
    assert clock.seconds() == 1.0
    assert window.remaining == 9.0
    assert window.wait(timeout=0) is False
    assert clock.seconds() == 1.0


def test_a_task_waits_times_out_and_is_woken_by_clear():
    async def main(clock):
        window = BackoffWindow(clock=clock)
        window.set(60)
        assert await window.wait_async(timeout=1) is False
        assert clock.seconds() == 1.0
        clock.at(5, window.clear)
        assert await window.wait_async() is True
        return clock.seconds()

    assert run(main) == 5.0


def test_a_ceiling_clamps_any_window(clock):
    """For example a hostile Retry-After of 31 years."""
    window = BackoffWindow(ceiling=120, clock=clock)
    window.set(999_999_999)
    assert window.remaining == 120.0


@pytest.mark.parametrize("ceiling", [0, -1, "60", float("nan")])
def test_a_ceiling_that_is_not_a_time_is_refused(ceiling):
    with pytest.raises(InvalidWindow, match="ceiling="):
        BackoffWindow(ceiling=ceiling)


def test_with_a_spread_waiting_callers_go_evenly_and_never_early():
    """All go within [end, end + spread]; no 5 % of the spread holds more than 20 of 100."""

    async def main(clock):
        window = BackoffWindow(spread=10, clock=clock)
        window.set(30)
        times = []

        async def visitor():
            await window.wait_async()
            times.append(clock.seconds())

        await asyncio.gather(*(visitor() for _ in range(100)))
        return times

    times = run(main)
    assert len(times) == 100
    assert min(times) >= 30.0
    assert max(times) <= 40.0
    for i in range(20):
        assert sum(30 + i / 2 <= at < 30 + (i + 1) / 2 for at in times) <= 20


def test_without_a_spread_all_waiting_callers_go_at_the_end():
    async def main(clock):
        window = BackoffWindow(clock=clock)
        window.set(30)
        await asyncio.gather(*(window.wait_async() for _ in range(100)))
        return clock.seconds()

    assert run(main) == 30.0


def test_a_window_is_kept_on_a_clock_below_zero():
    """A window of 1000 s set at -1000 s is active at -500 s and has ended at 0."""
    clock = ManualClock(start=-1000)
    window = BackoffWindow(clock=clock)
    window.set(1000)
    clock.advance(500)
    assert window.should_backoff()
    clock.advance(500)
    assert not window.should_backoff()


def test_a_clear_with_an_older_generation_is_ignored(window, clock):
    """A slow success must not clear a newer window."""
    window.set(10)
    seen = window.generation
    clock.advance(1)
    window.set(60)
    assert window.clear(generation=seen) is False
    assert window.remaining == 60.0
    assert window.clear(generation=window.generation) is True
    assert not window.should_backoff()


@pytest.mark.parametrize(
    "value", ["-5", "", "soon", "1e400", "nan", "١٢", "9" * 400, "-0", None, b"\xff", ["1", "2"], object()]
)
def test_no_header_makes_the_documented_handler_raise(value):
    """Whatever the header contains, the window is at least zero seconds long."""
    clock = ManualClock()
    window = BackoffWindow(clock=clock)
    window.set(parse_retry_after({"Retry-After": value}))
    assert window.remaining >= 0.0


def test_keys_whose_windows_have_ended_are_forgotten(clock):
    registry = WindowRegistry(clock=clock)
    for i in range(20_000):
        registry.for_key(i).set(0.001)
        clock.advance(0.0001)
    clock.advance(1)
    gc.collect()
    assert len(registry) <= 20


def test_a_window_that_is_active_or_referenced_is_never_forgotten(clock):
    registry = WindowRegistry(clock=clock)
    registry.for_key("open").set(60)
    held = registry.for_key("held")
    for i in range(100):
        registry.for_key(i).set(0)
    gc.collect()
    assert registry.for_key("open").remaining == 60.0
    assert registry.for_key("held") is held
    clock.advance(30)
    registry.for_key("open").set(60)
    clock.advance(59)
    gc.collect()
    assert registry.for_key("open").should_backoff()


def test_a_refusal_of_a_call_sent_before_the_window_extends_it_no_further_than_it_asks(window, clock):
    clock.advance(10)
    window.set(30)
    clock.advance(1)
    window.set(5, sent_at=9.0)
    assert window.remaining == 29.0
    window.set(40, sent_at=9.0)
    assert window.remaining == 40.0


def test_should_backoff_answers_at_once(window):
    window.set(30)
    assert window.should_backoff()


def test_a_date_is_measured_by_the_server_s_own_clock():
    """A client whose clock is five minutes fast still waits the sixty seconds it was told."""
    headers = {"Date": "Fri, 15 Jan 2027 08:00:00 GMT", "Retry-After": "Fri, 15 Jan 2027 08:01:00 GMT"}
    assert parse_retry_after(headers, now=1800000000 + 300) == 60.0


def test_everything_that_happens_to_a_window_can_be_observed(clock):
    """Set, extended, cleared and ended, with key, duration and reason."""
    seen = Recorder()
    window = WindowRegistry(observer=seen, clock=clock).for_key("openai")
    window.set(10, reason="429 on /chat")
    clock.advance(1)
    window.set(20, reason="again")
    window.set(1)
    window.clear()
    window.set(5)
    clock.advance(5)
    assert not window.should_backoff()
    kinds = [type(event).__name__ for event in seen.events]
    assert kinds == ["WindowSet", "WindowExtended", "WindowCleared", "WindowSet", "WindowEnded"]
    first, extended, cleared = seen.events[:3]
    assert first == events.WindowSet(key="openai", at=0.0, generation=1, duration=10.0, reason="429 on /chat")
    assert (extended.duration, extended.reason, extended.generation) == (20.0, "again", 2)
    assert cleared.remaining == 20.0
    assert seen.of(events.WindowEnded)[0].at == 6.0


def test_the_end_of_a_window_is_reported_once_and_before_the_next_window(clock):
    seen = Recorder()
    window = BackoffWindow(observer=seen, clock=clock)
    window.set(5)
    clock.advance(6)
    window.set(5)
    window.should_backoff()
    assert [type(event).__name__ for event in seen.events] == ["WindowSet", "WindowEnded", "WindowSet"]


# -- the documented pattern


def test_the_documented_pattern_waits_sends_and_reports():
    """A 429 sets the window and returns an error; success and other answers pass through."""
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    answers = iter([(429, {"Retry-After": "7"}), (200, {}), (429, {}), (500, {})])

    def call_api():
        window.wait()
        status, headers = next(answers)
        if status == 429:
            window.set(parse_retry_after(headers))
            return "rate limited"
        return status

    assert call_api() == "rate limited"
    assert clock.seconds() == 0.0
    assert call_api() == 200
    assert clock.seconds() == 7.0
    assert call_api() == "rate limited"
    assert window.remaining == 1.0
    assert call_api() == 500
    assert clock.seconds() == 8.0


def test_a_generation_of_a_forgotten_window_clears_no_newer_one(clock):
    """The object was forgotten and made again; its generations continue."""
    registry = WindowRegistry(clock=clock)
    window = registry.for_key("api")
    window.set(1)
    seen = window.generation
    del window
    clock.advance(2)
    registry.for_key("other")
    registry.for_key("api").set(60)
    assert registry.for_key("api").clear(generation=seen) is False
    assert registry.for_key("api").should_backoff()


def test_a_cleared_window_without_references_is_forgotten(clock):
    registry = WindowRegistry(clock=clock)
    registry.for_key("api").set(86_400)
    registry.for_key("api").clear()
    assert len(registry) == 0


def test_events_are_right_on_a_clock_below_zero():
    """No moment of the clock means "none"."""
    clock, seen = ManualClock(start=-1000), Recorder()
    window = BackoffWindow(observer=seen, clock=clock)
    window.set(1000)
    clock.advance(500)
    window.clear()
    assert (seen.events[0].duration, seen.events[1].remaining) == (1000.0, 500.0)


def test_the_end_of_a_window_is_reported_with_its_own_generation(clock):
    seen = Recorder()
    window = BackoffWindow(observer=seen, clock=clock)
    window.set(10)
    clock.advance(10)
    window.set(0)
    assert seen.of(events.WindowEnded)[0].generation == 1


def test_clearing_a_window_takes_as_long_among_many_active_ones_as_among_few():
    def time_per_clear(many):
        registry = WindowRegistry(clock=ManualClock())
        windows = [registry.for_key(i) for i in range(many)]
        for i, window in enumerate(windows):
            window.set(60 + i)
        sample = windows[:: many // 100]
        began = time.perf_counter()
        for window in sample:
            window.clear()
        return time.perf_counter() - began

    few, many = (min(time_per_clear(n) for _ in range(3)) for n in (200, 6400))
    assert many < 4 * few  # it was 30 times as long


def test_windows_that_are_set_and_cleared_a_thousand_times_leave_nothing_behind(clock):
    registry = WindowRegistry(clock=clock)
    for i in range(1000):
        registry.for_key(i % 7).set(3600)
        registry.for_key(i % 7).clear()
    assert len(registry) == 0
    window = registry.for_key(0)
    window.set(1)
    window.set(3600)
    del window
    clock.advance(1800)
    gc.collect()
    assert registry.for_key(0).remaining == 1800.0
    clock.advance(1800.01)
    gc.collect()
    assert len(registry) == 0
