"""Our strategies inside tenacity, tenacity inside ours, and who counts what (TN-01 … TN-07, D-99)."""

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
    """A far side that raises what it is told to, then answers; callable in both colours."""

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
def in_colour(request):
    """Decorate the far side's function of a colour, and call the result."""

    def call(far_side, decorate):
        if request.param == "sync":
            return decorate(far_side.sync)()
        decorated = decorate(far_side.asynchronous)
        assert inspect.iscoroutinefunction(decorated)
        return asyncio.run(decorated())

    return call


class Naps:
    """Stands in for tenacity's sleep, in both colours."""

    def __init__(self):
        self.taken = []

    def __call__(self, seconds):
        self.taken.append(seconds)
        return asyncio.sleep(0) if asyncio._get_running_loop() is not None else None


def test_wait_for_window_waits_out_what_everybody_heard(in_colour):
    clock, naps = ManualClock(), Naps()
    window = BackoffWindow(clock=clock)
    window.set(30)
    far_side = Down(ConnectionResetError())
    decorate = tenacity.retry(wait=wait_for_window(window, tenacity.wait_none()), sleep=naps)
    assert in_colour(far_side, decorate) == "hello"
    assert naps.taken == [30.0]


def test_wait_for_window_still_backs_off_when_there_is_no_window(in_colour):
    naps = Naps()
    decorate = tenacity.retry(wait=wait_for_window(BackoffWindow(), tenacity.wait_fixed(2)), sleep=naps)
    assert in_colour(Down(ConnectionResetError()), decorate) == "hello"
    assert naps.taken == [2.0]


def test_wait_retry_after_is_never_earlier_than_told(in_colour):
    """TN-07, D-80."""
    naps = Naps()
    wait = wait_retry_after(tenacity.wait_none(), random=lambda: 0.0)
    decorate = tenacity.retry(wait=wait, sleep=naps, retry=retry_if_transient())
    assert in_colour(Down(throttled(7), throttled(0), ConnectionResetError()), decorate) == "hello"
    assert naps.taken == [7.0, 0.0, 0.0]


def test_wait_retry_after_spreads_those_who_were_told_the_same(in_colour):
    naps = Naps()
    wait = wait_retry_after(tenacity.wait_none(), random=lambda: 0.5)
    assert in_colour(Down(throttled(10)), tenacity.retry(wait=wait, sleep=naps)) == "hello"
    assert naps.taken == [11.0]


def test_wait_backoff_is_a_jittered_wait(in_colour):
    """D-99."""
    naps = Naps()
    wait = wait_backoff(Backoff(1, cap=60, jitter="full"), random=lambda: 0.5)
    decorate = tenacity.retry(wait=wait, sleep=naps)
    assert in_colour(Down(*[OSError()] * 4), decorate) == "hello"
    assert naps.taken == [0.5, 1.0, 2.0, 4.0]


def test_wait_backoff_decorrelates_from_its_own_last_wait(in_colour):
    naps = Naps()
    wait = wait_backoff(Backoff(1, cap=60, jitter="decorrelated"), random=lambda: 1.0)
    assert in_colour(Down(*[OSError()] * 5), tenacity.retry(wait=wait, sleep=naps)) == "hello"
    assert naps.taken == [3.0, 9.0, 27.0, 60.0, 60.0]


def test_strategies_combine_with_those_of_tenacity(in_colour):
    naps = Naps()
    breaker = CircuitBreaker()
    decorate = tenacity.retry(
        wait=wait_backoff(Backoff(1, cap=60)) + tenacity.wait_fixed(1),
        stop=stop_when_open(breaker) | tenacity.stop_after_attempt(3),
        retry=retry_if_transient() | tenacity.retry_if_exception_type(KeyError),
        sleep=naps,
        reraise=True,
    )
    far_side = Down(ConnectionResetError(), KeyError(), ConnectionAbortedError())
    with pytest.raises(ConnectionAbortedError):
        in_colour(far_side, decorate)
    assert naps.taken == [2.0, 3.0]
    assert far_side.calls == 3


@pytest.mark.parametrize("error", [ValueError("temperature"), throttled(1, status=400), KeyError("model")])
def test_retry_if_transient_leaves_the_rest_alone(in_colour, error):
    """TN-04."""
    far_side = Down(error)
    with pytest.raises(type(error)):
        in_colour(far_side, tenacity.retry(retry=retry_if_transient(), sleep=Naps()))
    assert far_side.calls == 1


def test_tenacity_stops_as_soon_as_the_circuit_opens(in_colour):
    """The breaker inside tenacity: no nap for a call that would be refused anyway (D-97)."""
    naps = Naps()
    breaker = CircuitBreaker(failure_threshold=2, clock=ManualClock())
    far_side = Down(*[ConnectionResetError()] * 9)
    with pytest.raises(ConnectionResetError):
        in_colour(
            far_side,
            lambda fn: tenacity.retry(stop=stop_when_open(breaker), sleep=naps, reraise=True)(breaker(fn)),
        )
    assert far_side.calls == 2
    assert len(naps.taken) == 1
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(CircuitBreakerOpen):
        in_colour(Down(), breaker)


def test_a_breaker_around_tenacity_counts_one_outcome_for_all_its_tries(in_colour):
    """TN-01, the other nesting: three tries that fail are one failure."""
    breaker = CircuitBreaker(failure_threshold=2, clock=ManualClock())
    for left in (1, 0):
        far_side = Down(*[ConnectionResetError()] * 3)
        with pytest.raises(tenacity.RetryError):
            in_colour(
                far_side,
                lambda fn: breaker(tenacity.retry(stop=tenacity.stop_after_attempt(3), sleep=Naps())(fn)),
            )
        assert far_side.calls == 3
        assert breaker.state is (CircuitState.CLOSED if left else CircuitState.OPEN)


def test_our_retry_around_tenacity_looks_through_its_wrapper(in_colour):
    """TN-05: RetryError hides a lost connection, which is worth another try."""
    clock = ManualClock(auto_advance=True)
    far_side = Down(*[ConnectionResetError()] * 4)
    decorate = tenacity.retry(stop=tenacity.stop_after_attempt(3), sleep=Naps())
    assert in_colour(far_side, lambda fn: retry(jitter=False, clock=clock)(decorate(fn))) == "hello"
    assert far_side.calls == 5
    assert clock.sleeps == [1.0]


def test_our_retry_around_tenacity_does_not_retry_what_cannot_pass(in_colour):
    far_side = Down(*[ValueError("temperature")] * 9)
    decorate = tenacity.retry(stop=tenacity.stop_after_attempt(2), sleep=Naps())
    with pytest.raises(tenacity.RetryError):
        in_colour(far_side, lambda fn: retry()(decorate(fn)))
    assert far_side.calls == 2


def test_tenacity_around_our_retry_multiplies(in_colour):
    """TN-02 and R-13: three calls of theirs, each of one call and two retries of ours."""
    clock = ManualClock(auto_advance=True)
    far_side = Down(*[ConnectionResetError()] * 99)
    with pytest.raises(tenacity.RetryError) as caught:
        in_colour(
            far_side,
            lambda fn: tenacity.retry(stop=tenacity.stop_after_attempt(3), sleep=Naps())(
                retry(max_retries=2, jitter=False, clock=clock)(fn)
            ),
        )
    assert far_side.calls == 9
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_the_tutorials_waits_and_hook_work_beside_ours(in_colour, caplog):
    """TN-03, TN-06: its example runs with our predicate in it."""
    naps = Naps()
    decorate = tenacity.retry(
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_exponential(multiplier=1, min=4, max=60),
        retry=retry_if_transient(),
        before_sleep=tenacity.before_sleep_log(logging.getLogger("app"), logging.WARNING),
        sleep=naps,
        reraise=True,
    )
    with pytest.raises(TimeoutError), caplog.at_level(logging.WARNING, "app"):
        in_colour(Down(*[TimeoutError()] * 5), decorate)
    assert naps.taken == [4, 4, 4, 8]
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


def test_no_name_of_ours_hides_one_of_tenacity():
    """D-99: `retry` is ours at the top; in `headgate.tenacity` every name says whose strategy it is."""
    assert not set(headgate.tenacity.__all__) & set(tenacity.__all__)


def test_a_backoff_that_is_none_is_refused():
    with pytest.raises(headgate.InvalidConfig, match=r"not a Backoff; write e\.g\. Backoff"):
        wait_backoff(2.0)
