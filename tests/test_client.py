"""Breaker, window, admission, budget and retries around one call (RS-01 … RS-05, D-83, D-95 … D-98)."""

import asyncio
import inspect
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    BudgetExceeded,
    CircuitBreakerOpen,
    CircuitState,
    CostTooLarge,
    InvalidCapacity,
    InvalidConfig,
    InvalidWindow,
    ResilienceConfig,
    ResilientClient,
    RetryBudget,
    TokenBudget,
    WaitTimeout,
    verdict,
)
from headgate import events as ev
from headgate.testing import ManualClock, Recorder, run


class Slow(Exception):
    """An API's "slow down"."""

    status_code = 429

    def __init__(self, retry_after=None):
        super().__init__("429")
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


class Broken(Exception):
    status_code = 500


class Wrong(Exception):
    status_code = 400


class FarSide:
    """Raises or answers as told, one thing a call; the last is repeated."""

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
def in_colour(request):
    """Call the far side through a client, in one colour or the other."""

    def call(client, far_side, *args, **kwargs):
        if request.param == "sync":
            return client.call(far_side.ask, *args, **kwargs)
        return asyncio.run(client.call_async(far_side.ask_async, *args, **kwargs))

    return call


def client_on(clock, *, middle=True, **options):
    """A client whose jitter is in the middle, so that delays are 1, 2, 4 seconds."""
    fields = {name: options.pop(name) for name in ResilienceConfig.__slots__ if name in options}
    fields.setdefault("requests_per_minute", None)
    draw = (lambda: 0.5) if middle else random.Random(1).random
    return ResilientClient(ResilienceConfig(**fields), clock=clock, random=draw, **options)


def jumping():
    return ManualClock(auto_advance=True)


# -- the seed's behaviour


def test_the_defaults_are_the_seeds():
    """RS-01."""
    config = ResilientClient().config
    assert (config.max_retries, config.base_delay, config.max_delay) == (3, 1.0, 60.0)
    assert config.requests_per_minute == 60
    assert (config.circuit_failure_threshold, config.circuit_recovery_timeout) == (5, 30.0)
    assert ResilienceConfig(1, 2.0, 3.0, 4, 5, 6.0).circuit_recovery_timeout == 6.0


def test_the_config_of_a_client_is_the_one_given_and_cannot_be_changed():
    config = ResilienceConfig(max_retries=2)
    client = ResilientClient(config)
    assert client.config == config
    with pytest.raises(AttributeError):
        client.config.max_retries = 4


def test_arguments_and_result_pass_through(in_colour):
    clock = jumping()
    seen = []

    class Echo(FarSide):
        def ask(self, *args, **kwargs):
            seen.append((args, kwargs))
            return self.answers[0]

    answer = object()
    assert in_colour(client_on(clock), Echo(clock, answer), "Hi", model="m") is answer
    assert seen == [(("Hi",), {"model": "m"})]


def test_an_exhausted_call_raises_what_came_last_with_a_note(in_colour):
    """RS-04: four calls, delays 1, 2, 4, the last exception itself."""
    clock = jumping()
    last = Broken("the last")
    far_side = FarSide(clock, Broken(), Broken(), Broken(), last)
    with pytest.raises(Broken) as caught:
        in_colour(client_on(clock), far_side)
    assert caught.value is last
    assert caught.value.__notes__ == ["headgate: gave up after 4 calls: no retries are left"]
    assert far_side.sent == [0.0, 1.0, 3.0, 7.0]


def test_the_breaker_sees_every_try_and_opens_on_the_fifth(in_colour):
    """RS-05, D-97: stopped as soon as it opens, and the real cause is there."""
    clock = jumping()
    client = client_on(clock)
    first, second = FarSide(clock, Broken("a")), FarSide(clock, Broken("b"))
    with pytest.raises(Broken):
        in_colour(client, first)
    assert len(first.sent) == 4
    before = clock.seconds()
    with pytest.raises(CircuitBreakerOpen) as caught:
        in_colour(client, second)
    assert len(second.sent) == 1
    assert clock.seconds() == before  # no sleep for a call that would be refused anyway
    assert caught.value.__cause__ is second.answers[0]
    assert caught.value.retry_after == 30.0


def test_an_open_circuit_is_never_retried_and_costs_no_place_and_no_wait(in_colour):
    """RS-03, D-96: with one call a minute each refusal would have blocked for 60 s."""
    clock = jumping()
    client = client_on(clock, requests_per_minute=1, circuit_failure_threshold=1, max_retries=0)
    with pytest.raises(Broken):
        in_colour(client, FarSide(clock, Broken()))
    far_side = FarSide(clock, "hello")
    for _ in range(10):
        with pytest.raises(CircuitBreakerOpen) as caught:
            in_colour(client, far_side)
        assert isinstance(caught.value.__cause__, Broken)
    assert clock.seconds() == 0.0
    assert far_side.sent == []
    clock.advance(60)
    assert in_colour(client, far_side) == "hello"
    assert far_side.sent == [60.0]  # none of the ten had taken the place of that minute


def test_the_limit_is_never_more_than_so_many_in_any_minute(in_colour):
    clock = jumping()
    client = client_on(clock, requests_per_minute=3)
    far_side = FarSide(clock, "hello")
    for _ in range(7):
        in_colour(client, far_side)
    assert far_side.sent == [0, 0, 0, 60, 60, 60, 120]


def test_retries_take_places_like_any_call(in_colour):
    clock = jumping()
    client = client_on(clock, requests_per_minute=2)
    far_side = FarSide(clock, Broken(), Broken(), "hello")
    assert in_colour(client, far_side) == "hello"
    assert far_side.sent == [0.0, 1.0, 60.0]


# -- what is retried, and what counts


@pytest.mark.parametrize("error", [ValueError("temperature"), Wrong(), KeyError("model")])
def test_what_cannot_pass_is_raised_at_once_and_is_not_the_far_sides_fault(in_colour, error):
    """D-78, D-95."""
    clock = jumping()
    client = client_on(clock, circuit_failure_threshold=1)
    far_side = FarSide(clock, error)
    with pytest.raises(type(error)) as caught:
        in_colour(client, far_side)
    assert caught.value is error
    assert not getattr(error, "__notes__", [])
    assert far_side.sent == [0.0]
    assert client.breakers.state("default") is CircuitState.CLOSED


def test_slow_down_is_heard_once_by_everybody_and_nobody_goes_before(in_colour):
    """R-9, D-80: the window is shared, the told wait is never shortened, the breaker does not count it."""
    clock = jumping()
    client = client_on(clock, circuit_failure_threshold=1)
    far_side = FarSide(clock, Slow(20), "hello")
    assert in_colour(client, far_side) == "hello"
    assert far_side.sent == [0.0, 20.0]
    assert client.breakers.state("default") is CircuitState.CLOSED


def test_slow_down_without_a_time_backs_everybody_off(in_colour):
    clock = jumping()
    client = client_on(clock)
    assert in_colour(client, FarSide(clock, Slow(), Slow(), "hello")) == "hello"
    assert clock.seconds() == 3.0


def test_others_wait_for_a_window_that_one_was_told_of():
    async def main(clock):
        client = client_on(clock)
        far_side = FarSide(clock, Slow(30), "hello")
        first = asyncio.create_task(client.call_async(far_side.ask_async))
        await asyncio.sleep(1)
        others = [asyncio.create_task(client.call_async(far_side.ask_async)) for _ in range(9)]
        await asyncio.gather(first, *others)
        assert far_side.sent[0] == 0.0
        assert min(far_side.sent[1:]) >= 30.0
        assert max(far_side.sent) <= 31.0
        assert len(set(far_side.sent[1:])) == 10  # and they come back one by one

    run(main)


def test_a_failure_does_not_make_others_wait():
    async def main(clock):
        client = client_on(clock)
        first = asyncio.create_task(client.call_async(FarSide(clock, Broken(), "a").ask_async))
        await asyncio.sleep(0.5)
        other = FarSide(clock, "b")
        await client.call_async(other.ask_async)
        assert other.sent == [0.5]
        assert await first == "a"

    run(main)


def test_no_place_is_held_while_backing_off():
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


def test_classify_decides_in_its_own_words(in_colour):
    clock = jumping()

    def classify(error):
        return verdict.throttled(5) if isinstance(error, LookupError) else verdict.REJECTED

    client = client_on(clock, classify=classify)
    assert in_colour(client, FarSide(clock, LookupError(), "hello")) == "hello"
    assert clock.seconds() == 5.0
    with pytest.raises(ConnectionResetError):
        in_colour(client, FarSide(clock, ConnectionResetError(), "hello"))


def test_classify_that_returns_something_else_is_told_so(in_colour):
    clock = jumping()
    with pytest.raises(InvalidConfig, match="classify returned True; return a Verdict") as caught:
        in_colour(client_on(clock, classify=lambda _error: True), FarSide(clock, Broken()))
    assert isinstance(caught.value.__cause__, Broken)


# -- targets, costs, budgets


def test_every_target_has_a_circuit_of_its_own():
    """D-98."""
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


def test_tokens_are_estimated_from_the_arguments_and_settled_from_the_result(in_colour):
    """TB-06a."""
    clock = jumping()
    client = client_on(clock, tokens_per_minute=60_000, tokens=lambda prompt: len(prompt), usage=len)
    far_side = FarSide(clock, "x" * 400)
    in_colour(client, far_side, "y" * 1000)
    assert client.dispatch.snapshot().rates[0].level == 1000 - 400
    assert in_colour(client, far_side, "y" * 1000)
    assert clock.seconds() == pytest.approx(0.4)


def test_a_call_that_can_never_fit_is_refused_before_it_is_made(in_colour):
    clock = jumping()
    client = client_on(clock, tokens_per_minute=100, tokens=500)
    far_side = FarSide(clock, "hello")
    with pytest.raises(CostTooLarge):
        in_colour(client, far_side)
    assert far_side.sent == []


def test_one_client_serves_several_kinds_of_call():
    clock = jumping()
    client = client_on(clock, requests_per_minute=1)
    chat = client.using(target="chat", tokens=10)
    assert chat.dispatch is client.dispatch
    far_side = FarSide(clock, "hello")
    chat.call(far_side.ask)
    client.call(far_side.ask)
    assert far_side.sent == [0.0, 60.0]
    assert set(client.breakers.states()) == {"chat", "default"}


def test_a_budget_is_charged_for_what_was_used_and_refuses_before_anybody_waits(in_colour):
    clock = jumping()
    budget = TokenBudget(10_000, 5_000, clock=clock)
    client = client_on(clock, requests_per_minute=1, budget=budget, tokens=4_000, usage=len)
    in_colour(client, FarSide(clock, "x" * 7_000))
    assert budget.remaining_budget == 3_000
    far_side = FarSide(clock, "hello")
    with pytest.raises(BudgetExceeded):
        in_colour(client, far_side)
    assert (far_side.sent, clock.seconds()) == ([], 0.0)


@pytest.mark.parametrize(
    ("error", "charged"), [(Slow(1), 0), (Wrong(), 0), (TimeoutError(), 4_000), (Broken(), 4_000)]
)
def test_a_failed_call_is_charged_if_it_may_have_been_billed(in_colour, error, charged):
    """D-103."""
    clock = jumping()
    budget = TokenBudget(100_000, clock=clock)
    client = client_on(clock, budget=budget, tokens=4_000, max_retries=0)
    with pytest.raises(type(error)):
        in_colour(client, FarSide(clock, error))
    assert budget.remaining_budget == 100_000 - charged


def test_a_budget_may_be_found_by_the_arguments():
    clock = jumping()
    budgets = {"ann": TokenBudget(1_000, clock=clock), "bob": TokenBudget(1_000, clock=clock)}
    client = client_on(clock, budget=lambda user: budgets[user], tokens=600)
    far_side = FarSide(clock, "hello")
    client.call(far_side.ask, "ann")
    client.call(far_side.ask, "bob")
    with pytest.raises(BudgetExceeded):
        client.call(far_side.ask, "ann")


def test_ten_at_once_on_a_budget_for_two():
    """D-100."""

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


def test_a_deadline_stops_before_a_sleep_that_would_pass_it(in_colour):
    """D-35, D-98."""
    clock = jumping()
    far_side = FarSide(clock, Broken())
    with pytest.raises(Broken) as caught:
        in_colour(client_on(clock, deadline=2.5), far_side)
    assert far_side.sent == [0.0, 1.0]
    assert clock.seconds() == 1.0
    assert "deadline" in caught.value.__notes__[0]


def test_waiting_for_a_place_ends_at_the_deadline(in_colour):
    clock = jumping()
    client = client_on(clock, requests_per_minute=1, deadline=10)
    far_side = FarSide(clock, "hello")
    in_colour(client, far_side)
    with pytest.raises(WaitTimeout):
        in_colour(client, far_side)
    assert clock.seconds() <= 10


def test_no_place_for_a_retry_raises_what_went_wrong_not_that(in_colour):
    clock = jumping()
    client = client_on(clock, requests_per_minute=1, deadline=30)
    error = Broken()
    with pytest.raises(Broken) as caught:
        in_colour(client, FarSide(clock, error))
    assert caught.value is error
    assert "no place for another" in caught.value.__notes__[0]


def test_a_late_success_is_a_success(in_colour):
    """D-34."""
    clock = ManualClock()

    class Late(FarSide):
        def ask(self):
            self.clock.advance(99)
            return "hello"

    assert in_colour(client_on(clock, deadline=5), Late(clock)) == "hello"


def test_a_retry_budget_keeps_a_storm_small():
    """M10: everything fails, and 1,000 calls are sent at most 1,200 times."""
    clock = jumping()
    client = client_on(clock, retry_budget=RetryBudget(0.2), circuit_failure_threshold=10**9)
    far_side = FarSide(clock, Broken())
    for _ in range(1_000):
        with pytest.raises(Broken):
            client.call(far_side.ask)
    assert len(far_side.sent) <= 1_200


# -- decorator, colours, hooks


def test_decorated_functions_keep_their_looks_and_their_colour():
    """D-83."""
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


def test_an_async_function_given_to_call_is_refused_clearly():
    client = ResilientClient()

    async def ask():
        return "hello"

    with pytest.raises(InvalidConfig, match=r"ask is async.*write `await call_async"):
        client.call(ask)


def test_observers_hear_of_everything_in_order():
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
def test_a_bad_config_says_so_when_it_is_written(options, error):
    with pytest.raises(error, match=next(iter(options))):
        ResilienceConfig(**options)


@pytest.mark.parametrize(
    "options", [{"config": 3}, {"classify": 3}, {"budget": 3}, {"usage": 3}, {"observer": 3}]
)
def test_a_bad_client_says_so_when_it_is_made(options):
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        ResilientClient(**options)


# -- cancellation


def test_a_cancelled_call_gives_everything_back():
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


def test_a_cancelled_probe_lets_the_next_one_probe():
    """D-45."""

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


def test_a_circuit_that_opens_while_one_waits_refuses_it_and_its_place_goes_back():
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


# -- the law: never a call beyond the limits, never a lost slot, never a swallowed exception

OUTCOMES = st.sampled_from(["ok", "broken", "slow", "slow 3", "wrong", "cancel", "cancel soon", "hang"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(OUTCOMES, st.sampled_from([0.0, 0.3, 1.0, 7.0, 31.0, 61.0])), min_size=1, max_size=25),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_whatever_happens_the_limits_hold_and_everything_comes_back(
    steps, per_minute, concurrency, threshold, dice
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
            random=dice.random,
        )
        starts, inside, most = [], 0, 0
        raised, answered = [], []

        def plan(outcome):
            made = {"ok": None, "broken": Broken(), "slow": Slow(), "slow 3": Slow(3), "wrong": Wrong()}

            async def ask():
                nonlocal inside, most
                starts.append(clock.now())
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(dice.choice([0.0, 0.5, 2.0]) if outcome != "hang" else 50.0)
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
            except Exception as error:  # noqa: BLE001 - whatever it is, it is examined below
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
                error, (Broken, Slow, Wrong, CircuitBreakerOpen, WaitTimeout)
            )
            if isinstance(error, CircuitBreakerOpen):
                assert isinstance(error.__cause__, (Broken, Slow))
        # Whoever comes after all this gets through.
        await asyncio.sleep(500)
        assert await client.call_async(plan("ok")) == "ok"

    run(main)
