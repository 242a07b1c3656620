"""A circuit breaker closed, open and half-open, in threads and in tasks."""

import asyncio
import gc
import inspect
import pickle
import threading
from datetime import timedelta

import pytest

from breaker.callers import (
    CLOSED,
    HALF_OPEN,
    OPEN,
    Down,
    Stop,
    Threads,
    Throttled,
    down,
    fail,
    opened,
    raising,
    refused,
    well,
)
from headgate import CircuitBreaker, CircuitBreakerOpen, CircuitState, Refused
from headgate.testing import run
from patience import PATIENCE

# -- closed


def test_the_three_states_are_closed_open_and_half_open():
    assert [state.value for state in CircuitState] == ["closed", "open", "half_open"]


def test_by_default_five_failures_in_a_row_open_the_circuit_for_thirty_seconds(world, clock):
    """One probe goes at a time."""
    breaker = CircuitBreaker(clock=clock)
    assert breaker.state is CLOSED
    fail(world, breaker, 4)
    assert breaker.state is CLOSED
    fail(world, breaker, error=ValueError())  # any Exception
    assert breaker.state is OPEN
    clock.advance(29.999999999)
    refused(world, breaker)
    clock.advance(0.000000001)
    probe = world.hold(breaker)
    refused(world, breaker)
    probe.end()
    assert breaker.state is CLOSED


def test_the_first_three_parameters_may_be_given_in_order_or_by_name(clock):
    signature = inspect.signature(CircuitBreaker)
    assert list(signature.parameters)[:3] == ["failure_threshold", "recovery_timeout", "expected_exceptions"]
    CircuitBreaker(3, 60, (ValueError,), clock=clock)
    CircuitBreaker(
        failure_threshold=3, recovery_timeout=timedelta(seconds=60), expected_exceptions=ValueError
    )


def test_the_result_or_the_very_same_exception_reaches_the_caller(world, breaker):
    answer, error = object(), Down()
    assert world.call(breaker, lambda: answer) is answer
    with pytest.raises(Down) as caught:
        world.call(breaker, raising(error))
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert error.__cause__ is None


def test_a_success_starts_the_count_of_failures_in_a_row_anew(world, breaker):
    """Two failures and a success in turn never open the circuit."""
    for _ in range(10):
        fail(world, breaker, 2)
        assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED
    fail(world, breaker, 3)
    assert breaker.state is OPEN


def test_a_raised_exception_counts_however_the_function_is_called(world, breaker):
    """`call` and the decorator share one count."""
    guarded = world.decorated(breaker, down)
    fail(world, breaker, 2)
    with pytest.raises(Down):
        guarded()
    assert breaker.state is OPEN
    with pytest.raises(CircuitBreakerOpen):
        guarded()


def gather(*args, **kwargs):
    return args, kwargs


def test_arguments_reach_the_function(world, breaker):
    async def gather_async(*args, **kwargs):
        return args, kwargs

    expected = ((1, 2), {"timeout": 5})
    assert breaker.call(gather, 1, 2, timeout=5) == expected
    assert asyncio.run(breaker.call_async(gather_async, 1, 2, timeout=5)) == expected
    assert world.decorated(breaker, gather)(1, 2, timeout=5) == expected


@pytest.mark.parametrize("name", ["fn", "self", "args", "kwargs"])
def test_a_decorated_function_may_have_parameters_of_any_name(world, breaker, name):
    """Names of parameters of the breaker's own methods are free too."""
    assert world.decorated(breaker, gather)(**{name: 3}) == ((), {name: 3})


@pytest.mark.parametrize("name", ["fn", "self"])
def test_a_function_that_is_called_may_have_parameters_of_any_name(breaker, name):
    assert breaker.call(gather, **{name: 3}) == ((), {name: 3})


def test_a_decorated_function_keeps_its_name_docstring_and_signature(world, breaker):
    def ask(question: str, *, loud: bool = False) -> str:
        """Ask a question."""
        return question.upper() if loud else question

    guarded = world.decorated(breaker, ask)
    assert (guarded.__name__, guarded.__doc__, guarded.__module__) == ("ask", "Ask a question.", __name__)
    assert inspect.signature(guarded) == inspect.signature(ask)
    assert guarded("why", loud=True) == "WHY"


def test_a_method_may_be_decorated(breaker):
    class Client:
        @breaker
        def ask(self, question):
            return self, question

        @breaker
        async def ask_async(self, question):
            return self, question

        @staticmethod
        @breaker
        def ping():
            return "pong"

    client = Client()
    assert client.ask(1) == (client, 1)
    assert asyncio.run(client.ask_async(2)) == (client, 2)
    assert client.ping() == "pong"


# -- open


def test_an_open_circuit_refuses_without_calling_until_its_time_is_up(world, breaker, clock):
    """A probe goes at exactly thirty seconds."""
    opened(world, breaker)
    clock.advance(29.999999999)
    refused(world, breaker)
    assert breaker.state is OPEN
    clock.advance(0.000000001)
    assert breaker.state is HALF_OPEN
    assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED


def test_the_time_runs_from_the_opening_and_refusals_do_not_lengthen_it(world, breaker, clock):
    fail(world, breaker, 2)
    clock.advance(1000)
    fail(world, breaker)
    for _ in range(29):
        clock.advance(1)
        refused(world, breaker)
    clock.advance(1)
    assert world.call(breaker, well) == "well"


def test_a_late_failure_of_an_earlier_call_does_not_put_the_probe_off(world, breaker, clock):
    """The circuit opens at 0, an earlier call fails at 29, and a probe goes at 30."""
    straggler = world.hold(breaker)
    opened(world, breaker)
    clock.advance(29)
    assert isinstance(straggler.end(Down()).error, Down)
    assert breaker.state is OPEN
    assert refused(world, breaker).retry_after == 1.0
    clock.advance(1)
    assert world.call(breaker, well) == "well"


def test_a_late_success_of_an_earlier_call_does_not_close_an_open_circuit(world, breaker, clock):
    """The next probe that fails opens the circuit again."""
    straggler = world.hold(breaker)
    opened(world, breaker)
    clock.advance(10)
    assert straggler.end().result == "well"
    assert breaker.state is OPEN
    clock.advance(20)
    fail(world, breaker)  # the probe
    assert breaker.state is OPEN
    refused(world, breaker)


@pytest.mark.parametrize("error", [None, Down()], ids=["success", "failure"])
def test_a_call_let_in_while_closed_decides_nothing_while_half_open(world, breaker, clock, error):
    """The earlier call does not take the probe's place either."""
    straggler = world.hold(breaker)
    opened(world, breaker)
    clock.advance(30)
    probe = world.hold(breaker)
    straggler.end(error)
    assert breaker.state is HALF_OPEN
    refused(world, breaker)
    probe.end()
    assert breaker.state is CLOSED


def test_a_call_let_in_before_it_opened_counts_for_nothing_after_it_closed(world, breaker, clock):
    """Three earlier calls fail, and the circuit stays closed."""
    stragglers = [world.hold(breaker) for _ in range(3)]
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)
    for straggler in stragglers:
        straggler.end(Down())
    assert breaker.state is CLOSED
    fail(world, breaker, 2)
    assert breaker.state is CLOSED


# -- half-open


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_half_open_probes_calls_go_at_a_time_and_no_more(world, clock, probes):
    breaker = opened(world, CircuitBreaker(3, 30, half_open_probes=probes, clock=clock))
    clock.advance(30)
    held = [world.hold(breaker) for _ in range(probes)]
    for _ in range(10):
        refused(world, breaker)
    assert breaker.state is HALF_OPEN
    held[-1].end()
    assert breaker.state is CLOSED
    for probe in held[:-1]:
        probe.end(Down())
    assert breaker.state is CLOSED  # they were of another time


def test_a_probe_that_fails_opens_the_circuit_again_for_the_whole_time(world, breaker, clock):
    """The time runs from the moment at which the probe failed."""
    opened(world, breaker)
    clock.advance(100)
    probe = world.hold(breaker)
    clock.advance(7)
    probe.end(Down())
    assert breaker.state is OPEN
    assert refused(world, breaker).retry_after == 30.0
    clock.advance(30)
    assert breaker.state is HALF_OPEN


def test_a_probe_that_succeeds_sets_the_count_of_failures_to_zero(world, breaker, clock):
    """It takes three failures to open the circuit again."""
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)
    fail(world, breaker, 2)
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_an_unexpected_exception_in_a_probe_decides_nothing_and_frees_the_probe(world, clock):
    """The circuit stays half-open, with one probe at a time."""
    breaker = CircuitBreaker(3, 30, (Down,), clock=clock)
    opened(world, breaker)
    clock.advance(30)
    for _ in range(5):
        probe = world.hold(breaker)
        refused(world, breaker)
        probe.end(ValueError("a bug in the caller"))
        assert breaker.state is HALF_OPEN
    world.call(breaker, well)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    "error",
    [Throttled(429), CircuitBreakerOpen("elsewhere", rule="r"), Stop(), KeyboardInterrupt(), SystemExit()],
    ids=lambda error: type(error).__name__,
)
def test_a_probe_that_says_nothing_about_the_far_side_is_given_back_at_once(world, breaker, clock, error):
    """The probe is told to slow down, refused elsewhere, or interrupted."""
    opened(world, breaker)
    clock.advance(30)
    probe = world.hold(breaker)
    refused(world, breaker)
    assert probe.end(error).error is error
    assert breaker.state is HALF_OPEN
    assert world.call(breaker, well) == "well"
    assert breaker.state is CLOSED


def test_a_probe_in_ignore_is_given_back_at_once(world, clock):
    breaker = opened(world, CircuitBreaker(3, 30, ignore=LookupError, clock=clock))
    clock.advance(30)
    world.hold(breaker).end(KeyError("no such user"))
    assert breaker.state is HALF_OPEN
    assert world.call(breaker, well) == "well"


def test_a_probe_that_is_cancelled_is_given_back_at_once(tasks, breaker, clock):
    opened(tasks, breaker)
    clock.advance(30)
    for _ in range(3):
        probe = tasks.hold(breaker)
        refused(tasks, breaker)
        tasks.cancel(probe)
        assert breaker.state is HALF_OPEN
    assert tasks.call(breaker, well) == "well"


def test_a_probe_whose_task_is_destroyed_is_given_back(clock):
    """The loop of the task was closed, so the call never ends."""
    breaker = opened(Threads(), CircuitBreaker(3, 30, clock=clock))
    clock.advance(30)

    async def hang():
        await loop.create_future()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # it says that a task was destroyed
    probe = loop.create_task(breaker.call_async(hang))
    loop.run_until_complete(asyncio.sleep(0))
    refused(Threads(), breaker)
    loop.close()
    del probe
    gc.collect()
    assert breaker.state is HALF_OPEN
    assert breaker.call(well) == "well"


@pytest.mark.parametrize(
    ("options", "lease"),
    [
        ({}, 30.0),
        ({"recovery_timeout": 5}, 30.0),
        ({"recovery_timeout": 300}, 300.0),
        ({"probe_timeout": 2.5}, 2.5),
        ({"probe_timeout": timedelta(minutes=2)}, 120.0),
    ],
    ids=str,
)
def test_a_probe_that_hangs_makes_room_when_its_lease_is_over(world, clock, options, lease):
    """At exactly that nanosecond, one other probe may go."""
    breaker = opened(world, CircuitBreaker(3, **options, clock=clock))
    clock.advance(options.get("recovery_timeout", 30))
    hung = world.hold(breaker)
    assert refused(world, breaker).retry_after == lease
    clock.advance(lease)
    clock.set_ns(clock.now() - 1)
    assert refused(world, breaker).retry_after == 1e-9
    clock.set_ns(clock.now() + 1)
    second = world.hold(breaker)
    refused(world, breaker)
    second.end()
    assert breaker.state is CLOSED
    hung.end(Down())
    assert breaker.state is CLOSED


def test_a_late_success_of_the_same_half_open_period_closes_it(world, breaker, clock):
    """Its lease was over, but its result says that the far side works."""
    opened(world, breaker)
    clock.advance(30)
    hung = world.hold(breaker)
    clock.advance(30)
    other = world.hold(breaker)
    hung.end()
    assert breaker.state is CLOSED
    other.end(Down())
    assert breaker.state is CLOSED


def test_a_late_result_of_an_earlier_half_open_period_decides_nothing(world, breaker, clock):
    """A success and a failure, both too late."""
    opened(world, breaker)
    clock.advance(30)
    late = world.hold(breaker)
    clock.advance(30)
    later = world.hold(breaker)
    clock.advance(30)
    fail(world, breaker)
    assert breaker.state is OPEN
    assert late.end().result == "well"
    assert breaker.state is OPEN
    clock.advance(30)
    probe = world.hold(breaker)
    later.end(Down())
    assert breaker.state is HALF_OPEN
    refused(world, breaker)
    probe.end()
    assert breaker.state is CLOSED


def test_two_callers_at_once_and_one_probe_exactly_one_runs():
    async def main(clock):
        breaker = CircuitBreaker(1, 30, clock=clock)
        with pytest.raises(Down):
            breaker.call(down)
        await asyncio.sleep(30)

        async def answer():
            await asyncio.sleep(1)
            return "well"

        return await asyncio.gather(*(breaker.call_async(answer) for _ in range(2)), return_exceptions=True)

    first, second = run(main)
    assert first == "well"
    assert isinstance(second, CircuitBreakerOpen)


# -- calls run side by side


def test_sixteen_threads_run_calls_through_one_breaker_at_the_same_time(clock):
    """The lock is held to count, never while a call runs."""
    breaker, barrier, met = CircuitBreaker(clock=clock), threading.Barrier(16), []

    def meet():
        met.append(barrier.wait(PATIENCE))

    threads = [threading.Thread(target=breaker.call, args=(meet,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(met) == list(range(16))


@pytest.mark.parametrize("options", [{}, {"failure_rate": 0.5, "slow_after": 5}], ids=["count", "rate"])
def test_a_thousand_tasks_run_calls_through_one_breaker_at_the_same_time(options):
    async def main(clock):
        breaker = CircuitBreaker(clock=clock, **options)
        inside = most = 0

        async def ask():
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(1)
            inside -= 1

        await asyncio.gather(*(breaker.call_async(ask) for _ in range(1000)))
        return most, clock.seconds()

    assert run(main) == (1000, 1.0)


def test_five_probes_run_at_the_same_time(clock):
    """The probes do not wait for each other."""
    breaker = opened(Threads(), CircuitBreaker(3, 30, half_open_probes=5, clock=clock))
    clock.advance(30)
    barrier, met = threading.Barrier(5), []

    def meet():
        met.append(barrier.wait(PATIENCE))

    threads = [threading.Thread(target=breaker.call, args=(meet,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(met) == list(range(5))
    assert breaker.state is CLOSED


# -- reset


def test_reset_closes_the_circuit_and_forgets_the_failures(world, breaker, clock):
    opened(world, breaker)
    breaker.reset()
    assert breaker.state is CLOSED
    fail(world, breaker, 2)
    breaker.reset()
    fail(world, breaker, 2)
    assert breaker.state is CLOSED


def test_a_probe_from_before_the_reset_decides_nothing(world, breaker, clock):
    opened(world, breaker)
    clock.advance(30)
    probe = world.hold(breaker)
    breaker.reset()
    fail(world, breaker, 2)
    probe.end(Down())
    assert breaker.state is CLOSED
    fail(world, breaker)
    assert breaker.state is OPEN


def test_calls_from_before_the_reset_count_for_nothing(world, breaker):
    stragglers = [world.hold(breaker) for _ in range(5)]
    breaker.reset()
    for straggler in stragglers:
        straggler.end(Down())
    assert breaker.state is CLOSED


def test_the_state_cannot_be_assigned(breaker):
    with pytest.raises(AttributeError):
        breaker.state = OPEN


def test_asking_for_the_state_changes_nothing(world, breaker, clock):
    """The circuit is half-open, called or not, and the probe is still free."""
    opened(world, breaker)
    clock.advance(30)
    assert [breaker.state for _ in range(5)] == [HALF_OPEN] * 5
    assert world.call(breaker, well) == "well"


# -- the refusal


def test_the_refusal_says_why_and_until_when(world, clock):
    breaker = CircuitBreaker(3, 30, key="stripe", clock=clock)
    first, second, last = Down(1), Down(2), Down(3)
    for error in (first, second, last):
        with pytest.raises(Down):
            world.call(breaker, raising(error))
    clock.advance(17.75)
    refusal = refused(world, breaker)
    assert isinstance(refusal, Refused)
    assert refusal.__cause__ is last
    assert refusal.rule == "circuit breaker"
    assert refusal.retry_after == 12.25
    assert str(refusal) == (
        "the circuit 'stripe' is open: 3 calls in a row failed (circuit breaker); worth another try in 12.2 s"
    )


def test_after_retry_after_seconds_the_call_is_let_through(world, clock):
    """Exact to the nanosecond, with times that no float holds."""
    breaker = CircuitBreaker(1, 0.1 + 0.2, clock=clock)
    fail(world, breaker)
    clock.advance(0.07)
    clock.advance(refused(world, breaker).retry_after)
    assert world.call(breaker, well) == "well"


def test_the_cause_of_a_refusal_is_the_failure_that_opened_the_circuit_last(world, breaker, clock):
    opened(world, breaker)
    clock.advance(30)
    error = Down("the probe")
    fail(world, breaker, error=error)
    assert refused(world, breaker).__cause__ is error


def test_the_failure_behind_a_refusal_is_let_go_when_the_circuit_closes(world, breaker, clock):
    """The exception would keep the frames of the call that failed."""
    opened(world, breaker)
    clock.advance(30)
    world.call(breaker, well)
    assert breaker._counter.cause is None
    opened(world, breaker)
    breaker.reset()
    assert breaker._counter.cause is None


def test_a_refusal_while_a_probe_is_under_way_says_when_another_could_go_at_the_latest(world, clock):
    breaker = CircuitBreaker(3, 30, half_open_probes=2, probe_timeout=10, clock=clock)
    opened(world, breaker)
    clock.advance(30)
    first = world.hold(breaker)
    clock.advance(4)
    second = world.hold(breaker)
    refusal = refused(world, breaker)
    assert refusal.retry_after == 6.0
    assert isinstance(refusal.__cause__, Down)
    first.end()
    second.end()


def test_a_refusal_pickles(world, clock):
    breaker = CircuitBreaker(3, 30, key="stripe", clock=clock)
    opened(world, breaker)
    refusal = refused(world, breaker)
    copy = pickle.loads(pickle.dumps(refusal))
    assert type(copy) is CircuitBreakerOpen
    assert (str(copy), copy.rule, copy.retry_after) == (str(refusal), refusal.rule, refusal.retry_after)


def test_a_breaker_prints_its_key_and_state(world, clock):
    breaker = CircuitBreaker(3, 30, key="stripe", clock=clock)
    assert repr(breaker) == "<CircuitBreaker 'stripe', closed>"
    opened(world, breaker)
    assert repr(breaker) == "<CircuitBreaker 'stripe', open>"
    clock.advance(30)
    assert repr(breaker) == "<CircuitBreaker 'stripe', half_open>"
    assert repr(CircuitBreaker()) == "<CircuitBreaker, closed>"
