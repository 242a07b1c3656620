"""RetryBudget: retries as a part of all calls."""

import asyncio
import contextlib
import contextvars
import logging
import random
import sys
import threading

import pytest

from forks import in_a_child, needs_fork
from headgate import (
    InvalidCapacity,
    InvalidConfig,
    RetryBudget,
    retry,
    retrying,
)
from headgate.testing import ManualClock, run
from patience import PATIENCE
from retries.forms import (
    FarSide,
    notes,
)
from stress.interrupts import interrupt_everywhere


def test_when_everything_fails_a_budget_of_a_fifth_retries_exactly_a_fifth(ask, quiet):
    budget = RetryBudget(0.2)
    sent = 0
    for _ in range(100):
        far = FarSide(TimeoutError)
        ask(far, retry_budget=budget)
        sent += far.calls
    assert sent == 120


def hammer(requests_made, ask_once, **options):
    """(attempts, successes) of that many calls."""
    clock = ManualClock(auto_advance=True)
    sent = 0

    @retry(clock=clock, **options)
    def ask():
        nonlocal sent
        sent += 1
        ask_once()

    succeeded = 0
    for _ in range(requests_made):
        try:
            ask()
        except TimeoutError:
            continue
        succeeded += 1
    return sent, succeeded


def fail():
    raise TimeoutError


@pytest.mark.parametrize("requests_made", [1_000, 10_000])
@pytest.mark.parametrize(("ratio", "most"), [(0.2, 1.2), (0.1, 1.1)])
def test_a_budget_bounds_the_attempts_per_call(requests_made, ratio, most, quiet):
    sent, _ = hammer(requests_made, fail, max_retries=3, retry_budget=RetryBudget(ratio))
    assert sent == round(requests_made * most)


def test_without_a_budget_every_call_makes_four_attempts(quiet):
    assert hammer(1_000, fail, max_retries=3) == (4_000, 0)


@pytest.mark.parametrize("number", range(3))
def test_when_three_in_ten_fail_a_budget_still_saves_four_fifths_of_them(number, quiet):
    draws = random.Random(number)
    clock = ManualClock(auto_advance=True)
    failures = []

    @retry(max_retries=3, retry_budget=RetryBudget(0.2), clock=clock)
    def ask():
        failures.append(draws.random() < 0.3)
        if failures[-1]:
            raise TimeoutError

    failed_at_first = rescued = 0
    for _ in range(5_000):
        first = len(failures)
        with contextlib.suppress(TimeoutError):
            ask()
        failed_at_first += failures[first]
        rescued += failures[first] and not failures[-1]
    assert 1_300 < failed_at_first < 1_700
    assert rescued >= 0.8 * failed_at_first


def nested(requests_made, layers):
    """Attempts when each layer makes up to three calls on one budget, and everything fails."""
    budget = RetryBudget(0.2)
    clock = ManualClock(auto_advance=True)
    sent = 0

    def send():
        nonlocal sent
        sent += 1
        raise TimeoutError

    for _ in range(layers):
        send = retry(max_retries=2, retry_budget=budget, clock=clock)(send)
    for _ in range(requests_made):
        with pytest.raises(TimeoutError):
            send()
    return sent


def test_one_layer_of_retries_makes_a_fifth_more_attempts(quiet):
    assert nested(1_000, layers=1) == 1_200


@pytest.mark.parametrize("layers", [2, 3])
def test_nested_layers_on_one_budget_do_not_multiply_attempts(layers, quiet):
    assert nested(1_000, layers) <= 1_200


def test_two_layers_on_one_budget_stay_below_two_fifths_more_attempts(quiet):
    """Without a budget there would be nine attempts for a call."""
    assert nested(1_000, layers=2) <= 1_400


def earned_by(calls, budget):
    """Retries that become available by that many good calls, after all were spent."""
    hammer(50, fail, max_retries=1, retry_budget=budget)
    assert budget.available == 0
    hammer(calls, lambda: None, max_retries=1, retry_budget=budget)
    return budget.available


@pytest.mark.parametrize("end", ["open", "dropped", "closed elsewhere"])
def test_the_reader_of_a_stream_inside_an_attempt_earns_for_its_calls(end, quiet):
    """A stream that is read, or was abandoned, is no reason not to count the calls of its reader."""
    budget = RetryBudget(0.5, burst=10)

    async def stream():
        async for attempt in retrying(retry_budget=budget):
            with attempt:
                yield 1
                yield 2

    async def main():
        pieces = stream()
        async for _ in pieces:
            break
        if end == "closed elsewhere":
            await asyncio.create_task(pieces.aclose())
        if end == "dropped":
            del pieces
        return earned_by(100, budget)

    assert asyncio.run(main()) == 10


def test_an_attempt_that_ends_in_another_context_is_over_in_all(quiet):
    budget = RetryBudget(0.5, burst=10)
    stack = contextlib.ExitStack()
    stack.enter_context(next(iter(retrying(retry_budget=budget))))
    contextvars.copy_context().run(stack.close)
    assert earned_by(100, budget) == 10


def test_a_task_that_outlives_the_attempt_that_started_it_earns(quiet):
    budget = RetryBudget(0.5, burst=10)
    tasks = []

    async def later(over):
        await over.wait()
        return earned_by(100, budget)

    @retry(retry_budget=budget)
    async def start(over):
        tasks.append(asyncio.create_task(later(over)))

    async def main():
        over = asyncio.Event()
        await start(over)
        over.set()
        return await tasks[0]

    assert asyncio.run(main()) == 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("form", ["function", "block"])
def test_later_calls_earn_after_an_interrupt_at_any_moment_of_an_attempt(form, quiet):
    """Ctrl-C on the way into an attempt, or out of it, is no reason not to count the calls after it."""

    def scenario(interrupt):
        budget = RetryBudget(0.5, burst=10)

        def call():
            if form == "function":
                retry(retry_budget=budget)(len)("")
            else:
                for attempt in retrying(retry_budget=budget):
                    with attempt:
                        pass

        def main():
            with interrupt:
                call()
            assert earned_by(100, budget) == 10

        contextvars.Context().run(main)

    interrupt_everywhere(scenario)


def test_calls_within_an_attempt_earn_nothing_for_its_budget_but_for_others(quiet):
    budget, other = RetryBudget(0.5, burst=10), RetryBudget(0.5, burst=10)
    for attempt in retrying(retry_budget=budget):
        with attempt:
            assert earned_by(100, other) == 10
            hammer(50, fail, max_retries=1, retry_budget=budget)
            hammer(100, lambda: None, max_retries=1, retry_budget=budget)
            assert budget.available == 0


def test_an_empty_budget_raises_the_last_error_without_a_delay(ask):
    budget = RetryBudget(0.2, burst=1)
    ask(FarSide(TimeoutError), retry_budget=budget, max_retries=1)
    error = TimeoutError()
    far = FarSide(error)
    outcome = ask(far, retry_budget=budget)
    assert outcome.error is error
    assert (far.calls, outcome.at) == (1, 0.0)
    assert notes(error) == ["headgate: gave up after 1 call: the retry budget is used up"]


def test_a_retry_that_succeeds_costs_nothing(ask):
    budget = RetryBudget(0.2, burst=2)
    for _ in range(20):
        assert ask(FarSide(TimeoutError(), "hello"), retry_budget=budget).result == "hello"
    assert budget.available == 2


def test_calls_without_a_retry_spend_nothing(ask):
    budget = RetryBudget(0.2, burst=5)
    ask(FarSide(ValueError), retry_budget=budget)
    ask(FarSide("hello"), retry_budget=budget)
    ask(FarSide(TimeoutError), retry_budget=budget, max_retries=0)
    ask(FarSide(TimeoutError), retry_budget=budget, deadline=0)
    ask(FarSide(ConnectionResetError), retry_budget=budget, idempotent=False)
    assert budget.available == 5


def test_five_calls_earn_one_retry_after_the_burst_is_paid_back(quiet):
    budget = RetryBudget(0.2, burst=1)
    assert hammer(5, fail, max_retries=1, retry_budget=budget)[0] == 6  # the one that was lent
    assert hammer(5, fail, max_retries=1, retry_budget=budget)[0] == 6
    assert hammer(4, fail, max_retries=1, retry_budget=budget)[0] == 4
    assert hammer(1, fail, max_retries=1, retry_budget=budget)[0] == 2


def test_only_functions_with_the_same_budget_object_share_it(quiet):
    mine, yours = RetryBudget(0.2, burst=3), RetryBudget(0.2, burst=3)
    assert hammer(1, fail, max_retries=3, retry_budget=mine)[0] == 4
    assert hammer(1, fail, max_retries=3, retry_budget=mine)[0] == 1
    assert hammer(1, fail, max_retries=3, retry_budget=yours)[0] == 4


def test_available_and_repr_of_a_budget():
    budget = RetryBudget(0.25, burst=4)
    assert budget.available == 4
    assert repr(budget) == "<RetryBudget of 0.25, 4 retries available>"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), InvalidConfig, "=0 "),
        ((-0.1,), InvalidConfig, "=-0.1 "),
        ((float("nan"),), InvalidConfig, "=nan "),
        ((float("inf"),), InvalidConfig, "=inf "),
        (("0.2",), InvalidConfig, "='0.2' "),
        ((True,), InvalidConfig, "=True "),
    ],
)
def test_ratio_of_calls_must_be_above_zero(arguments, error, says):
    with pytest.raises(error) as caught:
        RetryBudget(*arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, None])
def test_burst_must_be_at_least_one(burst):
    with pytest.raises(InvalidCapacity, match="burst="):
        RetryBudget(0.2, burst=burst)


def test_fifty_threads_on_one_budget_lose_and_invent_no_retry(quiet):
    """5,000 calls that all fail make 1,000 retries."""
    budget = RetryBudget(0.2)
    barrier = threading.Barrier(50)
    sent = []

    def work():
        barrier.wait(PATIENCE)
        sent.append(hammer(100, fail, max_retries=3, retry_budget=budget)[0])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, daemon=True) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert len(sent) == 50
    # A few earned retries may be left over when the last thread ends.
    assert 5_950 <= sum(sent) <= 6_000


@needs_fork
def test_a_child_forked_while_another_thread_holds_the_budget_is_not_stuck():
    budget = RetryBudget(0.2)
    locked, release = threading.Event(), threading.Event()

    def hold():
        with budget._lock:
            locked.set()
            assert release.wait(PATIENCE)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert locked.wait(PATIENCE)

    def check():
        logging.disable(logging.CRITICAL)
        sent, _ = hammer(10, fail, max_retries=3, retry_budget=budget)
        assert sent == 20

    status = in_a_child(check)
    release.set()
    holder.join(PATIENCE)
    assert status == 0
    assert budget.available == 10  # what the child spends is its own


def test_a_task_cancelled_during_a_delay_leaves_the_budget_usable(quiet):
    async def main(clock):
        budget = RetryBudget(0.2, burst=2)

        @retry(retry_budget=budget, clock=clock)
        async def ask():
            raise TimeoutError

        task = asyncio.ensure_future(ask())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return budget.available

    assert run(main) >= 1


def test_a_ratio_of_two_lets_two_retries_for_each_call_pass_and_no_more():
    budget = RetryBudget(2, burst=10)
    made = 0
    for _ in range(100):
        budget.earn()
        while budget.spend():
            made += 1
    assert made == 200
