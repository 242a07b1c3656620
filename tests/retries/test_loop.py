"""`retry`, `retry_with_backoff` and `retrying`: calls and delays, loops, kinds of functions, cancellation.

Most tests run in each form: decorator, function and loop, in a thread and in a task.
"""

import asyncio
import logging
import threading
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    Backoff,
    HeadgateError,
    retry,
    retrying,
)
from headgate.testing import ManualClock, run
from patience import PATIENCE, eventually
from retries.forms import (
    FORMS,
    FarSide,
    decorator_async,
    function_async,
    loop_async,
    notes,
    outcome_of,
    run_loop,
)

# -- calls and delays


def test_a_call_that_succeeds_is_made_once(ask):
    result = object()
    far = FarSide(lambda: result)
    outcome = ask(far)
    assert outcome.result is result
    assert (far.calls, outcome.at) == (1, 0.0)


@pytest.mark.parametrize("result", [None, False, 0, "", Exception, ValueError("a value")])
def test_every_returned_value_is_a_success(ask, result):
    far = FarSide(lambda: result)
    assert ask(far).result is result
    assert far.calls == 1


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_the_result_of_the_first_success_is_returned(ask, failures):
    far = FarSide(*[ConnectionResetError() for _ in range(failures)], "hello")
    outcome = ask(far)
    assert (outcome.result, far.calls) == ("hello", failures + 1)
    assert far.waits == [1.0, 2.0, 4.0][:failures]


def test_max_retries_of_three_is_four_calls_and_no_delay_after_the_last(ask):
    errors = [ConnectionResetError(number) for number in range(4)]
    far = FarSide(*errors)
    outcome = ask(far)
    assert far.calls == 4
    assert far.waits == [1.0, 2.0, 4.0]
    assert outcome.at == 7.0
    assert outcome.error is errors[3]


@pytest.mark.parametrize("max_retries", [0, 1, 2, 7])
def test_max_retries_of_n_is_n_plus_one_calls(ask, max_retries):
    far = FarSide(TimeoutError)
    ask(far, max_retries=max_retries)
    assert far.calls == max_retries + 1


def test_max_retries_of_zero_is_one_call_and_no_delay(ask):
    error = ConnectionResetError()
    far = FarSide(error)
    outcome = ask(far, max_retries=0)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)


def test_max_retries_of_none_goes_on_until_the_call_succeeds(ask, quiet):
    """1,100 retries pass the point where 2.0 ** retry overflows."""
    far = FarSide(*[TimeoutError() for _ in range(1_100)], "at last")
    assert ask(far, max_retries=None).result == "at last"
    assert far.calls == 1_101
    assert set(far.waits[10:]) == {40.0}  # the cap of 60 is 1.5 times as much


@pytest.mark.parametrize(("draw", "waits"), [(0.0, [0.5, 1.0, 2.0]), (1.0, [1.5, 3.0, 6.0])])
def test_jitter_multiplies_delays_by_half_to_one_and_a_half(ask, draw, waits):
    far = FarSide(TimeoutError)
    ask(far, random=lambda: draw)
    assert far.waits == waits


def test_without_jitter_the_draws_do_not_matter(ask):
    far = FarSide(TimeoutError)
    ask(far, jitter=False, random=lambda: 0.0)
    assert far.waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999999, 1.0])
@pytest.mark.parametrize("jitter", [True, False])
def test_no_delay_is_longer_than_max_delay(ask, draw, jitter):
    far = FarSide(TimeoutError)
    ask(far, max_retries=12, jitter=jitter, random=lambda: draw)
    assert max(far.waits) <= 60.0
    assert far.waits[0] <= 1.5


def test_delays_grow_by_exponential_base_up_to_max_delay(ask):
    far = FarSide(TimeoutError)
    ask(far, max_retries=5, base_delay=0.5, max_delay=10, exponential_base=3, jitter=False)
    assert far.waits == [0.5, 1.5, 4.5, 10.0, 10.0]


def test_base_delay_and_max_delay_may_be_timedeltas(ask):
    far = FarSide(TimeoutError)
    ask(far, base_delay=timedelta(seconds=2), max_delay=timedelta(seconds=5), jitter=False)
    assert far.waits == [2.0, 4.0, 5.0]


def test_a_backoff_gives_all_delays(ask):
    far = FarSide(TimeoutError)
    ask(far, backoff=Backoff(3, 7, strategy="linear"))
    assert far.waits == [3.0, 6.0, 7.0]


def test_a_decorrelated_backoff_follows_from_the_delay_before(ask):
    far = FarSide(TimeoutError)
    ask(far, max_retries=4, backoff=Backoff(1, 30, jitter="decorrelated"), random=lambda: 1.0)
    assert far.waits == [3.0, 9.0, 27.0, 30.0]


def test_delays_of_zero_are_allowed(ask):
    far = FarSide(TimeoutError)
    ask(far, backoff=Backoff(1, 30, jitter="full"), random=lambda: 0.0)
    assert far.waits == [0.0, 0.0, 0.0]


@given(
    failures=st.integers(0, 8),
    max_retries=st.integers(0, 8),
    deadline=st.none() | st.floats(0, 100),
    takes=st.floats(0, 5),
    form=st.sampled_from(list(FORMS)),
)
@settings(max_examples=150, deadline=None)
def test_calls_delays_and_outcome_agree_with_a_model(failures, max_retries, deadline, takes, form):
    logging.getLogger("headgate").setLevel(logging.CRITICAL)
    try:
        far = FarSide(*[TimeoutError() for _ in range(failures)], "hello", takes=takes)
        options = {"max_retries": max_retries, "deadline": deadline, "jitter": False, "max_delay": 8}
        outcome = outcome_of(FORMS[form], far, options)
    finally:
        logging.getLogger("headgate").setLevel(logging.NOTSET)

    nano, now, calls, works = 1_000_000_000, 0, 0, False
    while True:
        now += round(takes * nano)
        calls += 1
        if calls > failures:
            works = True
            break
        wait = min(2 ** (calls - 1), 8) * nano
        if calls > max_retries or (deadline is not None and now + wait > round(deadline * nano)):
            break
        now += wait
    assert far.calls == calls
    assert (outcome.result == "hello") is works
    assert isinstance(outcome.error, TimeoutError) is not works
    assert outcome.at == pytest.approx(now / nano, abs=1e-6)
    assert not isinstance(outcome.error, HeadgateError)


# -- interrupts and cancellation


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("options", [{}, {"exceptions": Exception}, {"exceptions": lambda error: True}])
def test_interrupts_exits_and_cancellation_are_raised_at_once(ask, kind, options):
    stop = kind()
    far = FarSide(stop)
    outcome = ask(far, **options)
    assert outcome.error is stop
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(stop) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_interrupts_exits_and_cancellation_are_raised_at_once_in_a_retry_too(ask, kind):
    far = FarSide(TimeoutError(), kind())
    outcome = ask(far)
    assert type(outcome.error) is kind
    assert (far.calls, outcome.at) == (2, 1.0)


@pytest.mark.parametrize(
    "form", [decorator_async, function_async, loop_async], ids=lambda form: form.__name__
)
def test_a_task_can_be_cancelled_during_a_delay(form):
    """It ends at that moment, and no further attempt is made."""

    async def main(clock):
        far = FarSide(TimeoutError)
        far.clock = clock
        task = asyncio.ensure_future(form(far, clock, {"base_delay": 50, "jitter": False}))
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        moment = clock.seconds()
        await asyncio.sleep(1_000)
        return far.calls, moment

    assert run(main) == (1, 10.0)


@pytest.mark.parametrize(
    "form", [decorator_async, function_async, loop_async], ids=lambda form: form.__name__
)
def test_an_asyncio_timeout_ends_a_delay(form):
    async def main(clock):
        far = FarSide(TimeoutError)
        far.clock = clock
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(10):
                await form(far, clock, {"base_delay": 50, "jitter": False})
        return far.calls, clock.seconds(), notes(caught.value)

    assert run(main) == (1, 10.0, [])


# -- loops


def test_a_loop_numbers_its_attempts_and_ends_after_a_success(kind):
    numbers = []

    def body(attempt, clock):
        numbers.append(attempt.number)
        if attempt.number < 3:
            raise TimeoutError

    assert run_loop(kind, body) == (None, 3.0)
    assert numbers == [1, 2, 3]


def test_code_after_the_block_runs_after_every_attempt():
    """Code that belongs to the success stands in the block, or after the loop."""
    reached = []
    for attempt in retrying(clock=ManualClock(auto_advance=True)):
        with attempt:
            if attempt.number < 3:
                raise TimeoutError
        reached.append(attempt.number)
    assert reached == [1, 2, 3]


def test_a_loop_left_by_break_makes_no_further_attempt():
    far = FarSide(TimeoutError)
    far.clock = clock = ManualClock(auto_advance=True)
    for attempt in retrying(clock=clock):
        with attempt:
            if attempt.number == 2:
                break
            far()
    assert far.calls == 1


def test_an_attempt_that_is_not_entered_raises_at_once(kind):
    """Without this, the loop would end after one round even if the work failed."""

    def forgotten():
        for _attempt in retrying(clock=ManualClock()):
            pass

    async def forgotten_async(clock):
        async for _attempt in retrying(clock=clock):
            pass

    with pytest.raises(RuntimeError, match="with attempt:"):
        run(forgotten_async) if kind == "async" else forgotten()


def test_an_attempt_is_entered_once():
    for attempt in retrying(clock=ManualClock()):
        with attempt:
            pass
        with pytest.raises(RuntimeError, match="entered once"), attempt:
            pass


def test_the_same_retrying_object_serves_loops_one_after_the_other_and_nested():
    clock = ManualClock(auto_advance=True)
    retries = retrying(max_retries=1, backoff=Backoff(1), clock=clock)
    numbers = []

    def one_inside_the_other():
        for attempt in retries:
            with attempt:
                numbers.append(attempt.number)
                for inner in retries:
                    with inner:
                        raise TimeoutError

    for _ in range(3):
        with pytest.raises(TimeoutError):
            one_inside_the_other()
    assert numbers == [1, 2, 1, 2, 1, 2]


def test_the_repr_of_attempts_and_retries_names_their_state():
    clock = ManualClock(auto_advance=True)
    retries = retrying(2, clock=clock)
    assert "2 retries" in repr(retries)
    assert "any number of retries" in repr(retrying(None))
    for attempt in retries:
        assert repr(attempt) == "<Attempt 1, waiting>"
        with attempt as entered:
            assert entered is attempt
            assert repr(attempt) == "<Attempt 1, running>"
    assert repr(attempt) == "<Attempt 1, over>"


# -- calls side by side


@pytest.mark.parametrize(
    "form", [decorator_async, function_async, loop_async], ids=lambda form: form.__name__
)
def test_an_event_loop_goes_on_during_a_delay(form):
    """Seven seconds of delays are seven ticks of another task."""

    async def main(clock):
        far = FarSide(*[TimeoutError() for _ in range(3)], "hello")
        far.clock = clock
        ticks = []

        async def tick():
            while True:
                await asyncio.sleep(1)
                ticks.append(clock.seconds())

        ticking = asyncio.ensure_future(tick())
        result = await form(far, clock, {"jitter": False})
        await asyncio.sleep(0.5)
        ticking.cancel()
        return result, ticks

    assert run(main) == ("hello", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_a_thousand_tasks_are_delayed_side_by_side(quiet):
    async def main(clock):
        @retry(clock=clock, jitter=False)
        async def ask(state):
            state.append(clock.seconds())
            if len(state) < 4:
                raise TimeoutError
            return state

        states = await asyncio.gather(*(ask([]) for _ in range(1_000)))
        return {tuple(state) for state in states}, clock.seconds()

    assert run(main) == ({(0.0, 1.0, 3.0, 7.0)}, 7.0)


def test_threads_are_delayed_side_by_side(quiet):
    """While one thread sleeps, others call the same decorated function."""
    clock = ManualClock()
    asked, done = [], []

    @retry(clock=clock, jitter=False)
    def ask(name):
        asked.append((name, clock.seconds()))
        if name != "quick" and sum(other == name for other, _ in asked) < 3:
            raise TimeoutError
        return name

    threads = [threading.Thread(target=lambda n=n: done.append(ask(n)), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(asked) == 8 and clock.timers == 8, "all of them sleep")
    assert ask("quick") == "quick"
    clock.advance(1)
    eventually(lambda: len(asked) == 17 and clock.timers == 8, "all of them sleep again")
    clock.advance(2)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(done) == list(range(8))
    assert sorted({moment for _, moment in asked}) == [0.0, 1.0, 3.0]
