"""headgate.tenacity: its strategies inside tenacity, and tenacity inside retry and CircuitBreaker."""

import asyncio
import inspect
import logging
from types import SimpleNamespace

import httpx
import pytest
import tenacity

import headgate
from headgate import Backoff, BackoffWindow, CircuitBreaker, CircuitBreakerOpen, CircuitState, retry
from headgate.tenacity import (
    retry_if_transient,
    stop_when_open,
    wait_backoff,
    wait_for_window,
    wait_retry_after,
)
from headgate.testing import ManualClock


class Down:
    """A far side that raises these errors one by one, then answers; as a sync and an async function."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def sync(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "hello"

    async def asynchronous(self):
        return self.sync()


def throttled(retry_after, status=429):
    request = httpx.Request("POST", "http://api.test/v1")
    response = httpx.Response(status, headers={"retry-after": str(retry_after)}, request=request)
    return httpx.HTTPStatusError("no", request=request, response=response)


@pytest.fixture(params=["sync", "async"])
def call_of_kind(request):
    """Decorates the sync or the async function of a far side, and calls the result."""

    def call(far_side, decorate):
        if request.param == "sync":
            return decorate(far_side.sync)()
        decorated = decorate(far_side.asynchronous)
        assert inspect.iscoroutinefunction(decorated)
        return asyncio.run(decorated())

    return call


class Sleeps:
    """Stands in for the sleep of tenacity, sync and async, and records the delays."""

    def __init__(self):
        self.taken = []

    def __call__(self, seconds):
        self.taken.append(seconds)
        return asyncio.sleep(0) if asyncio._get_running_loop() is not None else None


def test_wait_for_window_waits_until_the_window_ends(call_of_kind):
    clock, sleeps = ManualClock(), Sleeps()
    window = BackoffWindow(clock=clock)
    window.set(30)
    far_side = Down(ConnectionResetError())
    decorate = tenacity.retry(wait=wait_for_window(window, tenacity.wait_none()), sleep=sleeps)
    assert call_of_kind(far_side, decorate) == "hello"
    assert sleeps.taken == [30.0]


def test_wait_for_window_without_a_window_waits_as_otherwise_says(call_of_kind):
    sleeps = Sleeps()
    decorate = tenacity.retry(wait=wait_for_window(BackoffWindow(), tenacity.wait_fixed(2)), sleep=sleeps)
    assert call_of_kind(Down(ConnectionResetError()), decorate) == "hello"
    assert sleeps.taken == [2.0]


def test_wait_retry_after_is_never_shorter_than_the_retry_after(call_of_kind):
    sleeps = Sleeps()
    wait = wait_retry_after(tenacity.wait_none(), random=lambda: 0.0)
    decorate = tenacity.retry(wait=wait, sleep=sleeps, retry=retry_if_transient())
    assert call_of_kind(Down(throttled(7), throttled(0), ConnectionResetError()), decorate) == "hello"
    assert sleeps.taken == [7.0, 0.0, 0.0]


def test_wait_retry_after_adds_a_random_tenth(call_of_kind):
    sleeps = Sleeps()
    wait = wait_retry_after(tenacity.wait_none(), random=lambda: 0.5)
    assert call_of_kind(Down(throttled(10)), tenacity.retry(wait=wait, sleep=sleeps)) == "hello"
    assert sleeps.taken == [11.0]


def test_wait_backoff_has_the_delays_of_its_backoff(call_of_kind):
    sleeps = Sleeps()
    wait = wait_backoff(Backoff(1, cap=60, jitter="full"), random=lambda: 0.5)
    decorate = tenacity.retry(wait=wait, sleep=sleeps)
    assert call_of_kind(Down(*[OSError()] * 4), decorate) == "hello"
    assert sleeps.taken == [0.5, 1.0, 2.0, 4.0]


def test_wait_backoff_with_decorrelated_jitter_follows_from_its_last_delay(call_of_kind):
    sleeps = Sleeps()
    wait = wait_backoff(Backoff(1, cap=60, jitter="decorrelated"), random=lambda: 1.0)
    assert call_of_kind(Down(*[OSError()] * 5), tenacity.retry(wait=wait, sleep=sleeps)) == "hello"
    assert sleeps.taken == [3.0, 9.0, 27.0, 60.0, 60.0]


def test_strategies_combine_with_those_of_tenacity(call_of_kind):
    sleeps = Sleeps()
    breaker = CircuitBreaker()
    decorate = tenacity.retry(
        wait=wait_backoff(Backoff(1, cap=60)) + tenacity.wait_fixed(1),
        stop=stop_when_open(breaker) | tenacity.stop_after_attempt(3),
        retry=retry_if_transient() | tenacity.retry_if_exception_type(KeyError),
        sleep=sleeps,
        reraise=True,
    )
    far_side = Down(ConnectionResetError(), KeyError(), ConnectionAbortedError())
    with pytest.raises(ConnectionAbortedError):
        call_of_kind(far_side, decorate)
    assert sleeps.taken == [2.0, 3.0]
    assert far_side.calls == 3


@pytest.mark.parametrize("error", [ValueError("temperature"), throttled(1, status=400), KeyError("model")])
def test_retry_if_transient_does_not_retry_errors_of_the_request(call_of_kind, error):
    far_side = Down(error)
    with pytest.raises(type(error)):
        call_of_kind(far_side, tenacity.retry(retry=retry_if_transient(), sleep=Sleeps()))
    assert far_side.calls == 1


def test_stop_when_open_stops_as_soon_as_the_circuit_opens(call_of_kind):
    """A breaker inside tenacity: no delay for a call that would be refused."""
    sleeps = Sleeps()
    breaker = CircuitBreaker(failure_threshold=2, clock=ManualClock())
    far_side = Down(*[ConnectionResetError()] * 9)
    with pytest.raises(ConnectionResetError):
        call_of_kind(
            far_side,
            lambda fn: tenacity.retry(stop=stop_when_open(breaker), sleep=sleeps, reraise=True)(breaker(fn)),
        )
    assert far_side.calls == 2
    assert len(sleeps.taken) == 1
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(CircuitBreakerOpen):
        call_of_kind(Down(), breaker)


def test_a_breaker_around_tenacity_counts_all_its_attempts_as_one_outcome(call_of_kind):
    breaker = CircuitBreaker(failure_threshold=2, clock=ManualClock())
    for left in (1, 0):
        far_side = Down(*[ConnectionResetError()] * 3)
        with pytest.raises(tenacity.RetryError):
            call_of_kind(
                far_side,
                lambda fn: breaker(tenacity.retry(stop=tenacity.stop_after_attempt(3), sleep=Sleeps())(fn)),
            )
        assert far_side.calls == 3
        assert breaker.state is (CircuitState.CLOSED if left else CircuitState.OPEN)


def test_retry_around_tenacity_reads_the_cause_of_its_retry_error(call_of_kind):
    """RetryError wraps a lost connection, which is worth a retry."""
    clock = ManualClock(auto_advance=True)
    far_side = Down(*[ConnectionResetError()] * 4)
    decorate = tenacity.retry(stop=tenacity.stop_after_attempt(3), sleep=Sleeps())
    assert call_of_kind(far_side, lambda fn: retry(jitter=False, clock=clock)(decorate(fn))) == "hello"
    assert far_side.calls == 5
    assert clock.sleeps == [1.0]


def test_retry_around_tenacity_does_not_retry_errors_of_the_request(call_of_kind):
    far_side = Down(*[ValueError("temperature")] * 9)
    decorate = tenacity.retry(stop=tenacity.stop_after_attempt(2), sleep=Sleeps())
    with pytest.raises(tenacity.RetryError):
        call_of_kind(far_side, lambda fn: retry()(decorate(fn)))
    assert far_side.calls == 2


def test_tenacity_around_retry_multiplies_the_attempts(call_of_kind):
    """Three calls by tenacity, each of one call and two retries by headgate."""
    clock = ManualClock(auto_advance=True)
    far_side = Down(*[ConnectionResetError()] * 99)
    with pytest.raises(tenacity.RetryError) as caught:
        call_of_kind(
            far_side,
            lambda fn: tenacity.retry(stop=tenacity.stop_after_attempt(3), sleep=Sleeps())(
                retry(max_retries=2, jitter=False, clock=clock)(fn)
            ),
        )
    assert far_side.calls == 9
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_waits_and_before_sleep_of_tenacity_work_with_retry_if_transient(call_of_kind, caplog):
    sleeps = Sleeps()
    decorate = tenacity.retry(
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_exponential(multiplier=1, min=4, max=60),
        retry=retry_if_transient(),
        before_sleep=tenacity.before_sleep_log(logging.getLogger("app"), logging.WARNING),
        sleep=sleeps,
        reraise=True,
    )
    with pytest.raises(TimeoutError), caplog.at_level(logging.WARNING, "app"):
        call_of_kind(Down(*[TimeoutError()] * 5), decorate)
    assert sleeps.taken == [4, 4, 4, 8]
    assert len(caplog.records) == 4


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (tenacity.wait_exponential(multiplier=1, min=1, max=60), Backoff(1, cap=60)),
        (tenacity.wait_exponential(), Backoff(1, cap=None)),
    ],
    ids=["capped", "without a cap"],
)
def test_a_backoff_has_the_delays_of_wait_exponential(theirs, ours):
    assert [ours.delay(retry) for retry in range(20)] == delays_of(theirs)
    assert delays_of(wait_backoff(ours)) == delays_of(theirs)


def test_a_backoff_doubles_from_its_base_where_wait_exponential_stays_at_min():
    assert [Backoff(4, cap=60).delay(retry) for retry in range(4)] == [4, 8, 16, 32]
    assert delays_of(tenacity.wait_exponential(multiplier=1, min=4, max=60))[:4] == [4, 4, 4, 8]


def delays_of(wait):
    """The first twenty delays of a wait strategy of tenacity."""
    return [wait(SimpleNamespace(attempt_number=attempt, upcoming_sleep=0.0)) for attempt in range(1, 21)]


def test_no_name_of_headgate_tenacity_is_also_one_of_tenacity():
    assert not set(headgate.tenacity.__all__) & set(tenacity.__all__)


def test_wait_backoff_refuses_what_is_not_a_backoff():
    with pytest.raises(headgate.InvalidConfig, match=r"not a Backoff; write e\.g\. Backoff"):
        wait_backoff(2.0)
