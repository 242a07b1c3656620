"""ResilientClient: breaker, window, admission, budget and retries around one call."""

import asyncio
import contextvars
import inspect
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    Backoff,
    BudgetExceeded,
    CircuitBreakerOpen,
    CircuitState,
    Closed,
    CostTooLarge,
    InvalidCapacity,
    InvalidConfig,
    InvalidWindow,
    ResilienceConfig,
    ResilientClient,
    RetryBudget,
    StoreError,
    TokenBudget,
    WaitTimeout,
    verdict,
)
from headgate import events as ev
from headgate.testing import ManualClock, Recorder, run
from stress.interrupts import interrupt_everywhere


class SlowDown(Exception):
    """The answer "slow down" of an API."""

    status_code = 429

    def __init__(self, retry_after=None):
        super().__init__("429")
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


class Broken(Exception):
    status_code = 500


class Wrong(Exception):
    status_code = 400


class FarSide:
    """Raises or returns the given answers, one for each call; the last one is repeated."""

    def __init__(self, clock, *answers):
        self.clock = clock
        self.answers = list(answers)
        self.sent = []  # when

    def ask(self, *_args, **_kwargs):
        self.sent.append(self.clock.seconds())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def ask_async(self, *args, **kwargs):
        return self.ask(*args, **kwargs)


@pytest.fixture(params=["sync", "async"])
def call_of_kind(request):
    """Calls the far side through a client, sync or async."""

    def call(client, far_side, *args, **kwargs):
        if request.param == "sync":
            return client.call(far_side.ask, *args, **kwargs)
        return asyncio.run(client.call_async(far_side.ask_async, *args, **kwargs))

    return call


def client_on(clock, *, middle=True, **options):
    """A client whose draws are one half, so that delays are 1, 2 and 4 seconds."""
    fields = {name: options.pop(name) for name in ResilienceConfig.__slots__ if name in options}
    fields.setdefault("requests_per_minute", None)
    draw = (lambda: 0.5) if middle else random.Random(1).random
    return ResilientClient(ResilienceConfig(**fields), clock=clock, random=draw, **options)


def jumping():
    return ManualClock(auto_advance=True)


# -- defaults, retries, breaker and limits


def test_the_defaults_of_resilience_config():
    config = ResilientClient().config
    assert (config.max_retries, config.base_delay, config.max_delay) == (3, 1.0, 60.0)
    assert config.requests_per_minute == 60
    assert (config.circuit_failure_threshold, config.circuit_recovery_timeout) == (5, 30.0)
    assert ResilienceConfig(1, 2.0, 3.0, 4, 5, 6.0).circuit_recovery_timeout == 6.0


def test_a_backoff_replaces_the_delays_of_the_config(call_of_kind):
    clock = jumping()
    far_side = FarSide(clock, Broken(), Broken(), "hello")
    assert call_of_kind(client_on(clock, backoff=Backoff(5, cap=60, factor=3)), far_side) == "hello"
    assert far_side.sent == [0.0, 5.0, 20.0]
    with pytest.raises(InvalidConfig, match="backoff= says all about delays; leave out base_delay"):
        ResilienceConfig(base_delay=2, backoff=Backoff(5))
    with pytest.raises(InvalidConfig, match="backoff=5 is not a Backoff"):
        ResilienceConfig(backoff=5)


def test_the_config_of_a_client_is_the_one_given_and_cannot_be_changed():
    config = ResilienceConfig(max_retries=2)
    client = ResilientClient(config)
    assert client.config == config
    with pytest.raises(AttributeError):
        client.config.max_retries = 4


def test_arguments_and_result_pass_through(call_of_kind):
    clock = jumping()
    seen = []

    class Echo(FarSide):
        def ask(self, *args, **kwargs):
            seen.append((args, kwargs))
            return self.answers[0]

    answer = object()
    assert call_of_kind(client_on(clock), Echo(clock, answer), "Hi", model="m") is answer
    assert seen == [(("Hi",), {"model": "m"})]


def test_a_call_without_retries_left_raises_the_last_exception_with_a_note(call_of_kind):
    clock = jumping()
    last = Broken("the last")
    far_side = FarSide(clock, Broken(), Broken(), Broken(), last)
    with pytest.raises(Broken) as caught:
        call_of_kind(client_on(clock), far_side)
    assert caught.value is last
    assert caught.value.__notes__ == ["headgate: gave up after 4 calls: no retries are left"]
    assert far_side.sent == [0.0, 1.0, 3.0, 7.0]


def test_the_breaker_counts_every_attempt_and_stops_the_retries_when_it_opens(call_of_kind):
    """The cause of the CircuitBreakerOpen is the failure that opened it."""
    clock = jumping()
    client = client_on(clock)
    first, second = FarSide(clock, Broken("a")), FarSide(clock, Broken("b"))
    with pytest.raises(Broken):
        call_of_kind(client, first)
    assert len(first.sent) == 4
    before = clock.seconds()
    with pytest.raises(CircuitBreakerOpen) as caught:
        call_of_kind(client, second)
    assert len(second.sent) == 1
    assert clock.seconds() == before  # no sleep for a call that would be refused anyway
    assert caught.value.__cause__ is second.answers[0]
    assert caught.value.retry_after == 30.0


def test_an_open_circuit_refuses_without_retry_admission_or_delay(call_of_kind):
    """With one call a minute, each refusal would otherwise have blocked for 60 s."""
    clock = jumping()
    client = client_on(clock, requests_per_minute=1, circuit_failure_threshold=1, max_retries=0)
    with pytest.raises(Broken):
        call_of_kind(client, FarSide(clock, Broken()))
    far_side = FarSide(clock, "hello")
    for _ in range(10):
        with pytest.raises(CircuitBreakerOpen) as caught:
            call_of_kind(client, far_side)
        assert isinstance(caught.value.__cause__, Broken)
    assert clock.seconds() == 0.0
    assert far_side.sent == []
    clock.advance(60)
    assert call_of_kind(client, far_side) == "hello"
    assert far_side.sent == [60.0]  # none of the ten had taken the place of that minute


def test_requests_per_minute_holds_in_any_minute(call_of_kind):
    clock = jumping()
    client = client_on(clock, requests_per_minute=3)
    far_side = FarSide(clock, "hello")
    for _ in range(7):
        call_of_kind(client, far_side)
    assert far_side.sent == [0, 0, 0, 60, 60, 60, 120]


def test_retries_are_admitted_like_first_attempts(call_of_kind):
    clock = jumping()
    client = client_on(clock, requests_per_minute=2)
    far_side = FarSide(clock, Broken(), Broken(), "hello")
    assert call_of_kind(client, far_side) == "hello"
    assert far_side.sent == [0.0, 1.0, 60.0]


# -- what is retried, and what counts


@pytest.mark.parametrize("error", [ValueError("temperature"), Wrong(), KeyError("model")])
def test_errors_of_the_request_are_raised_at_once_and_do_not_count_for_the_breaker(call_of_kind, error):
    clock = jumping()
    client = client_on(clock, circuit_failure_threshold=1)
    far_side = FarSide(clock, error)
    with pytest.raises(type(error)) as caught:
        call_of_kind(client, far_side)
    assert caught.value is error
    assert not getattr(error, "__notes__", [])
    assert far_side.sent == [0.0]
    assert client.breakers.state("default") is CircuitState.CLOSED


def test_a_429_with_retry_after_starts_a_window_for_exactly_that_time(call_of_kind):
    """The breaker does not count it."""
    clock = jumping()
    client = client_on(clock, circuit_failure_threshold=1)
    far_side = FarSide(clock, SlowDown(20), "hello")
    assert call_of_kind(client, far_side) == "hello"
    assert far_side.sent == [0.0, 20.0]
    assert client.breakers.state("default") is CircuitState.CLOSED


def test_a_429_without_a_time_starts_a_window_of_the_backoff_delay(call_of_kind):
    clock = jumping()
    client = client_on(clock)
    assert call_of_kind(client, FarSide(clock, SlowDown(), SlowDown(), "hello")) == "hello"
    assert clock.seconds() == 3.0


def test_a_429_of_one_call_holds_back_other_calls():
    async def main(clock):
        client = client_on(clock)
        far_side = FarSide(clock, SlowDown(30), "hello")
        first = asyncio.create_task(client.call_async(far_side.ask_async))
        await asyncio.sleep(1)
        others = [asyncio.create_task(client.call_async(far_side.ask_async)) for _ in range(9)]
        await asyncio.gather(first, *others)
        assert far_side.sent[0] == 0.0
        assert min(far_side.sent[1:]) >= 30.0
        assert max(far_side.sent) <= 31.0
        assert len(set(far_side.sent[1:])) == 10  # and they come back one by one

    run(main)


def test_a_failure_of_one_call_does_not_hold_back_other_calls():
    async def main(clock):
        client = client_on(clock)
        first = asyncio.create_task(client.call_async(FarSide(clock, Broken(), "a").ask_async))
        await asyncio.sleep(0.5)
        other = FarSide(clock, "b")
        await client.call_async(other.ask_async)
        assert other.sent == [0.5]
        assert await first == "a"

    run(main)


def test_no_concurrency_is_held_during_a_delay():
    async def main(clock):
        client = client_on(clock, concurrency=1)
        first = asyncio.create_task(client.call_async(FarSide(clock, Broken(), "a").ask_async))
        await asyncio.sleep(0.1)
        assert client.dispatch.snapshot().in_flight == 0
        other = FarSide(clock, "b")
        await client.call_async(other.ask_async)
        assert other.sent == [0.1]
        await first

    run(main)


def test_classify_replaces_the_verdict(call_of_kind):
    clock = jumping()

    def classify(error):
        return verdict.throttled(5) if isinstance(error, LookupError) else verdict.REJECTED

    client = client_on(clock, classify=classify)
    assert call_of_kind(client, FarSide(clock, LookupError(), "hello")) == "hello"
    assert clock.seconds() == 5.0
    with pytest.raises(ConnectionResetError):
        call_of_kind(client, FarSide(clock, ConnectionResetError(), "hello"))


def test_classify_must_return_a_verdict(call_of_kind):
    clock = jumping()
    with pytest.raises(InvalidConfig, match="classify returned True; return a Verdict") as caught:
        call_of_kind(client_on(clock, classify=lambda _error: True), FarSide(clock, Broken()))
    assert isinstance(caught.value.__cause__, Broken)


# -- targets, costs, budgets


def test_every_target_has_a_circuit_of_its_own():
    clock = jumping()
    client = client_on(
        clock, target=lambda url, **_: url.partition("/")[0], circuit_failure_threshold=1, max_retries=0
    )
    with pytest.raises(Broken):
        client.call(FarSide(clock, Broken()).ask, "a/1")
    with pytest.raises(CircuitBreakerOpen, match="'a'"):
        client.call(FarSide(clock, "hello").ask, "a/2")
    assert client.call(FarSide(clock, "hello").ask, "b/1") == "hello"
    assert client.breakers.states() == {"a": CircuitState.OPEN, "b": CircuitState.CLOSED}


def test_tokens_are_estimated_from_the_arguments_and_settled_from_the_result(call_of_kind):
    clock = jumping()
    client = client_on(clock, tokens_per_minute=60_000, tokens=lambda prompt: len(prompt), usage=len)
    far_side = FarSide(clock, "x" * 400)
    call_of_kind(client, far_side, "y" * 1000)
    assert client.dispatch.snapshot().rates[0].level == 1000 - 400
    assert call_of_kind(client, far_side, "y" * 1000)
    assert clock.seconds() == pytest.approx(0.4)


def test_a_call_that_can_never_fit_is_refused_before_it_is_made(call_of_kind):
    clock = jumping()
    client = client_on(clock, tokens_per_minute=100, tokens=500)
    far_side = FarSide(clock, "hello")
    with pytest.raises(CostTooLarge):
        call_of_kind(client, far_side)
    assert far_side.sent == []


def test_using_makes_a_client_for_another_kind_of_call_with_the_same_limits():
    clock = jumping()
    client = client_on(clock, requests_per_minute=1)
    chat = client.using(target="chat", tokens=10)
    assert chat.dispatch is client.dispatch
    far_side = FarSide(clock, "hello")
    chat.call(far_side.ask)
    client.call(far_side.ask)
    assert far_side.sent == [0.0, 60.0]
    assert set(client.breakers.states()) == {"chat", "default"}


def test_a_budget_is_charged_for_what_was_used_and_refuses_before_admission(call_of_kind):
    clock = jumping()
    budget = TokenBudget(10_000, 5_000, clock=clock)
    client = client_on(clock, requests_per_minute=1, budget=budget, tokens=4_000, usage=len)
    call_of_kind(client, FarSide(clock, "x" * 7_000))
    assert budget.remaining_budget == 3_000
    far_side = FarSide(clock, "hello")
    with pytest.raises(BudgetExceeded):
        call_of_kind(client, far_side)
    assert (far_side.sent, clock.seconds()) == ([], 0.0)


@pytest.mark.parametrize(
    ("error", "charged"), [(SlowDown(1), 0), (Wrong(), 0), (TimeoutError(), 4_000), (Broken(), 4_000)]
)
def test_a_failed_call_is_charged_if_it_may_have_been_billed(call_of_kind, error, charged):
    clock = jumping()
    budget = TokenBudget(100_000, clock=clock)
    client = client_on(clock, budget=budget, tokens=4_000, max_retries=0)
    with pytest.raises(type(error)):
        call_of_kind(client, FarSide(clock, error))
    assert budget.remaining_budget == 100_000 - charged


def test_budget_may_be_a_function_of_the_arguments():
    clock = jumping()
    budgets = {"ann": TokenBudget(1_000, clock=clock), "bob": TokenBudget(1_000, clock=clock)}
    client = client_on(clock, budget=lambda user: budgets[user], tokens=600)
    far_side = FarSide(clock, "hello")
    client.call(far_side.ask, "ann")
    client.call(far_side.ask, "bob")
    with pytest.raises(BudgetExceeded):
        client.call(far_side.ask, "ann")


def test_a_retry_that_the_budget_refuses_names_the_failure_before_it_as_its_cause(call_of_kind):
    clock = jumping()
    failure = Broken()
    far_side = FarSide(clock, failure)
    with pytest.raises(BudgetExceeded) as caught:
        call_of_kind(client_on(clock, budget=TokenBudget(150, clock=clock), tokens=100), far_side)
    assert caught.value.__cause__ is failure
    assert far_side.sent == [0.0]


def test_a_retry_whose_budget_cannot_ask_its_store_names_the_failure_before_it():
    clock = jumping()
    failure = Broken()
    budget = TokenBudget(1_000, clock=clock)

    def lost(*_arguments):
        raise StoreError("redis://limits.internal/0 cannot be reached")

    def ask():
        budget.account.usage.take = lost
        raise failure

    with pytest.raises(StoreError) as caught:
        client_on(clock, budget=budget, tokens=100).call(ask)
    assert caught.value.__cause__ is failure


def test_ten_concurrent_calls_on_a_budget_for_two_make_two():
    async def main(clock):
        budget = TokenBudget(10_000, 5_000, clock=clock)
        client = client_on(clock, budget=budget, tokens=4_000)
        running = []

        async def ask():
            running.append(1)
            await asyncio.sleep(1)

        done = await asyncio.gather(*(client.call_async(ask) for _ in range(10)), return_exceptions=True)
        assert len(running) == 2
        assert sum(isinstance(one, BudgetExceeded) for one in done) == 8

    run(main)


# -- deadline, retry budget


def test_no_delay_leads_past_the_deadline(call_of_kind):
    clock = jumping()
    far_side = FarSide(clock, Broken())
    with pytest.raises(Broken) as caught:
        call_of_kind(client_on(clock, deadline=2.5), far_side)
    assert far_side.sent == [0.0, 1.0]
    assert clock.seconds() == 1.0
    assert "deadline" in caught.value.__notes__[0]


def test_waiting_for_admission_ends_at_the_deadline(call_of_kind):
    clock = jumping()
    client = client_on(clock, requests_per_minute=1, deadline=10)
    far_side = FarSide(clock, "hello")
    call_of_kind(client, far_side)
    with pytest.raises(WaitTimeout):
        call_of_kind(client, far_side)
    assert clock.seconds() <= 10


def test_a_retry_that_is_not_admitted_raises_the_failure_before_it(call_of_kind):
    clock = jumping()
    client = client_on(clock, requests_per_minute=1, deadline=30)
    error = Broken()
    with pytest.raises(Broken) as caught:
        call_of_kind(client, FarSide(clock, error))
    assert caught.value is error
    assert "no place for another" in caught.value.__notes__[0]


def test_a_success_after_the_deadline_is_a_success(call_of_kind):
    clock = ManualClock()

    class Late(FarSide):
        def ask(self):
            self.clock.advance(99)
            return "hello"

    assert call_of_kind(client_on(clock, deadline=5), Late(clock)) == "hello"


def test_a_retry_budget_bounds_the_attempts_when_everything_fails():
    clock = jumping()
    client = client_on(clock, retry_budget=RetryBudget(0.2), circuit_failure_threshold=10**9)
    far_side = FarSide(clock, Broken())
    for _ in range(1_000):
        with pytest.raises(Broken):
            client.call(far_side.ask)
    assert len(far_side.sent) <= 1_200


def test_a_retry_that_an_open_circuit_forbids_costs_the_retry_budget_nothing(call_of_kind):
    clock, budget = jumping(), RetryBudget(0.2, burst=3)
    client = client_on(clock, retry_budget=budget, circuit_failure_threshold=1)
    with pytest.raises(CircuitBreakerOpen) as caught:
        call_of_kind(client, FarSide(clock, Broken()))
    assert isinstance(caught.value.__cause__, Broken)
    assert budget.available == 3
    assert clock.sleeps == []


# -- decorators and observers


def test_decorated_functions_keep_name_docstring_and_kind():
    clock = jumping()
    client = client_on(clock)

    @client
    def ask(prompt: str) -> str:
        """Ask."""
        return prompt.upper()

    @client
    async def ask_async(prompt):
        return prompt.upper()

    assert (ask.__name__, ask.__doc__) == ("ask", "Ask.")
    assert ask("hi") == "HI"
    assert inspect.iscoroutinefunction(ask_async)
    assert asyncio.run(ask_async("hi")) == "HI"


def test_call_refuses_async_functions():
    client = ResilientClient()

    async def ask():
        return "hello"

    with pytest.raises(InvalidConfig, match=r"ask is async.*write `await call_async"):
        client.call(ask)


def test_the_observer_is_given_all_events_in_order():
    clock = jumping()
    seen = Recorder()
    client = client_on(clock, observer=seen, circuit_failure_threshold=2, max_retries=1)
    with pytest.raises(Broken):
        client.call(FarSide(clock, Broken()).ask)
    names = [type(event).__name__ for event in seen.events]
    assert names == ["Admitted", "Retrying", "Settled", "Admitted", "CircuitOpened", "Settled"]
    assert seen.of(ev.Retrying)[0].delay == 1.0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_retries": -1}, InvalidCapacity),
        ({"base_delay": 0}, InvalidWindow),
        ({"base_delay": 5, "max_delay": 1}, InvalidWindow),
        ({"requests_per_minute": 0}, InvalidCapacity),
        ({"circuit_failure_threshold": 0}, InvalidCapacity),
        ({"circuit_recovery_timeout": -1}, InvalidWindow),
        ({"tokens_per_minute": 1.5}, InvalidCapacity),
        ({"concurrency": 0}, InvalidCapacity),
        ({"deadline": 0}, InvalidWindow),
        ({"retry_budget": 0.2}, InvalidConfig),
    ],
)
def test_bad_values_of_a_config_raise_when_it_is_made(options, error):
    with pytest.raises(error, match=next(iter(options))):
        ResilienceConfig(**options)


@pytest.mark.parametrize(
    "options", [{"config": 3}, {"classify": 3}, {"budget": 3}, {"usage": 3}, {"observer": 3}]
)
def test_bad_arguments_of_a_client_raise_when_it_is_made(options):
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        ResilientClient(**options)


# -- cancellation


def test_a_cancelled_call_gives_back_its_permit_reservation_and_probe():
    async def main(clock):
        budget = TokenBudget(10_000, clock=clock)
        client = client_on(clock, concurrency=1, budget=budget, tokens=1_000, circuit_failure_threshold=1)

        async def hang():
            await asyncio.sleep(1_000)

        running = asyncio.create_task(client.call_async(hang))
        await asyncio.sleep(1)
        waiting = asyncio.create_task(client.call_async(hang))
        await asyncio.sleep(1)
        assert budget.remaining_budget == 8_000
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert budget.remaining_budget == 9_000  # it was never sent
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        snapshot = client.dispatch.snapshot()
        assert (snapshot.in_flight, snapshot.waiting) == (0, 0)
        assert client.breakers.state("default") is CircuitState.CLOSED

    run(main)


def test_after_a_cancelled_probe_the_next_call_probes():
    async def main(clock):
        client = client_on(clock, circuit_failure_threshold=1, max_retries=0)
        with pytest.raises(Broken):
            await client.call_async(FarSide(clock, Broken()).ask_async)
        await asyncio.sleep(30)

        async def hang():
            await asyncio.sleep(1_000)

        probe = asyncio.create_task(client.call_async(hang))
        await asyncio.sleep(1)
        with pytest.raises(CircuitBreakerOpen):
            await client.call_async(FarSide(clock, "hello").ask_async)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert await client.call_async(FarSide(clock, "hello").ask_async) == "hello"
        assert client.breakers.state("default") is CircuitState.CLOSED

    run(main)


def test_a_circuit_that_opens_while_calls_wait_refuses_them_and_charges_nothing():
    async def main(clock):
        client = client_on(clock, concurrency=1, requests_per_minute=2, circuit_failure_threshold=1)
        sent = []

        async def fail():
            sent.append(clock.seconds())
            await asyncio.sleep(5)
            raise Broken

        calls = [asyncio.create_task(client.call_async(fail)) for _ in range(5)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert sent == [0.0]
        assert all(isinstance(one, CircuitBreakerOpen) for one in done)
        assert all(isinstance(one.__cause__, Broken) for one in done)
        assert client.dispatch.snapshot().rates[0].level == 1  # only the call that was made counts

    run(main)


def test_threads_share_a_client():
    client = ResilientClient(ResilienceConfig(requests_per_minute=None, concurrency=4))
    inside, most, lock = 0, 0, threading.Lock()

    def ask():
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        with lock:
            inside -= 1

    threads = [threading.Thread(target=lambda: [client.call(ask) for _ in range(200)]) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 4
    assert client.dispatch.snapshot().in_flight == 0


# -- random outcomes

OUTCOMES = st.sampled_from(["ok", "broken", "slow", "slow 3", "wrong", "cancel", "cancel soon", "hang"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(OUTCOMES, st.sampled_from([0.0, 0.3, 1.0, 7.0, 31.0, 61.0])), min_size=1, max_size=25),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_random_outcomes_never_exceed_the_limits_lose_a_permit_or_swallow_an_exception(
    steps, per_minute, concurrency, threshold, draws
):
    async def main(clock):
        budget = TokenBudget(10**9, 10**9, clock=clock)
        client = ResilientClient(
            ResilienceConfig(
                requests_per_minute=per_minute,
                concurrency=concurrency,
                circuit_failure_threshold=threshold,
                deadline=400,
            ),
            tokens=100,
            budget=budget,
            clock=clock,
            random=draws.random,
        )
        starts, inside, most = [], 0, 0
        raised, answered = [], []

        def plan(outcome):
            made = {
                "ok": None,
                "broken": Broken(),
                "slow": SlowDown(),
                "slow 3": SlowDown(3),
                "wrong": Wrong(),
            }

            async def ask():
                nonlocal inside, most
                starts.append(clock.now())
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(draws.choice([0.0, 0.5, 2.0]) if outcome != "hang" else 50.0)
                    if made.get(outcome) is not None:
                        raise made[outcome]
                    return outcome
                finally:
                    inside -= 1

            return ask

        async def one(outcome):
            try:
                answered.append(await client.call_async(plan(outcome)))
            except asyncio.CancelledError:
                raised.append("cancelled")
                raise
            except Exception as error:  # noqa: BLE001 - it is examined below
                raised.append(error)

        tasks = []
        for outcome, step in steps:
            task = asyncio.create_task(one(outcome))
            tasks.append(task)
            if outcome.startswith("cancel"):
                asyncio.get_running_loop().call_later(0.1 if outcome.endswith("soon") else 5.0, task.cancel)
            await asyncio.sleep(step)
        await asyncio.gather(*tasks, return_exceptions=True)

        assert most <= concurrency
        starts.sort()
        for first, last in zip(starts, starts[per_minute:], strict=False):
            assert last - first >= 60 * 10**9
        snapshot = client.dispatch.snapshot()
        assert (snapshot.in_flight, snapshot.waiting) == (0, 0)
        assert len(raised) + len(answered) == len(steps)
        for error in raised:
            assert error == "cancelled" or isinstance(
                error, (Broken, SlowDown, Wrong, CircuitBreakerOpen, WaitTimeout)
            )
            if isinstance(error, CircuitBreakerOpen):
                assert isinstance(error.__cause__, (Broken, SlowDown))
        # A later call gets through.
        await asyncio.sleep(500)
        assert await client.call_async(plan("ok")) == "ok"

    run(main)


def test_a_client_is_a_context_manager_and_may_be_closed_twice():
    async def closing():
        async with ResilientClient() as client:
            assert await client.call_async(asyncio.sleep, 0, "well") == "well"
        return client

    with ResilientClient() as client:
        assert client.call(len, "well") == 4
    client.close()
    for closed in (client, asyncio.run(closing())):
        with pytest.raises(Closed):
            closed.call(len, "well")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_later_calls_count_for_the_breaker_after_an_interrupt_at_any_moment_of_a_call():
    """Ctrl-C on the way into an attempt, or out of it, leaves no later call inside of it."""

    def fail():
        raise Broken

    def scenario(interrupt):
        config = ResilienceConfig(max_retries=0, circuit_failure_threshold=1)
        client = ResilientClient(config, clock=ManualClock())

        def main():
            with interrupt:
                client.call(int)
            with pytest.raises(Broken):
                client.call(fail)
            with pytest.raises(CircuitBreakerOpen):
                client.call(int)

        contextvars.Context().run(main)

    interrupt_everywhere(scenario)
