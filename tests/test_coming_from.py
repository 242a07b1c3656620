"""Every row of docs/coming-from.md runs: the line in its middle, and what it says is different.

A row without a check fails, and so does a check without a row, or a name of theirs without a row.
"""

import ast
import asyncio
import contextlib
import inspect
import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import headgate
from headgate import (
    Backoff,
    BackoffWindow,
    BudgetBook,
    BudgetExceeded,
    CapacityExhausted,
    CircuitBreaker,
    CircuitBreakerOpen,
    CircuitState,
    Closed,
    Dispatch,
    DistributedLimiter,
    InvalidCapacity,
    InvalidConfig,
    InvalidWindow,
    LineFull,
    MemoryLimiter,
    RateLimiter,
    Refused,
    ResilienceConfig,
    ResilientClient,
    TokenBudget,
    UnknownName,
    UnknownResource,
    WaitTimeout,
    WindowRegistry,
    events,
    retry,
    retry_with_backoff,
)
from headgate.swarm.bus.bus import open_bus
from headgate.testing import ManualClock, Recorder, run
from patience import eventually

PAGE = Path(__file__).parent.parent / "docs" / "coming-from.md"
CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    line: int
    there: str
    code: tuple[str, ...]


def read_rows():
    rows, inside = [], False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 3, f"line {number} has {len(cells)} cells"
        if not inside:
            assert cells == ["there", "here", "what is different"], f"line {number}"
            inside = True
        elif not cells[0].startswith("---"):
            assert CODE.search(cells[1]), f"line {number} has nothing to run"
            assert cells[2].endswith("."), f"line {number} does not say what is different"
            rows.append(Row(number, cells[0].replace("`", ""), tuple(CODE.findall(cells[1]))))
    return rows


ROWS = read_rows()
CHECKS = {}


def row(there):
    """The check of one row, by its first cell. It is given `here`, which runs the middle one."""

    def keep(check):
        assert there not in CHECKS, f"{there!r} is checked twice"
        CHECKS[there] = check
        return check

    return keep


class Here:
    """The line in the middle of a row, to be run with the names it needs."""

    def __init__(self, code):
        self.code = code
        self.ran = False

    def __call__(self, **names):
        """What the last expression gives. A line that awaits gives a coroutine."""
        self.ran = True
        namespace = {
            **{name: getattr(headgate, name) for name in headgate.__all__},
            "ManualClock": ManualClock,
            "asyncio": asyncio,
            "timedelta": timedelta,
            **names,
        }
        given = None
        for piece in self.code:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            try:
                code = compile(piece, str(PAGE), "eval", flags, dont_inherit=True)
            except SyntaxError:
                code = compile(piece, str(PAGE), "exec", flags, dont_inherit=True)
            given = eval(code, namespace)
        return namespace["reply"] if given is None and "reply" in namespace else given


@pytest.fixture(autouse=True)
def _names_of_its_own(monkeypatch):
    monkeypatch.setattr(Dispatch, "_names", {})
    monkeypatch.setattr(WindowRegistry, "_named", {})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.there)
def test_a_row_does_what_it_says(row):
    check = CHECKS.get(row.there)
    assert check is not None, f"line {row.line} has no check: {row.there}"
    here = Here(row.code)
    with swarm():
        check(here)
    assert here.ran, f"the check of line {row.line} does not run what it says"


def test_no_check_is_without_a_row():
    assert CHECKS.keys() == {row.there for row in ROWS}
    assert len(CHECKS) == len(ROWS)


# Everything that the documents of the Elixir library, the Go package and the tutorial name.
THEIRS = """
for_key new_registry set should_backoff? wait clear parse_retry_after
start_link with_rate_limit set_backoff snapshot backoff_active? pid :global :via
:limiter :key :name :concurrency :throttled_concurrency :byte_budget :backoff_window_ms
:byte_penalty_multiplier :acquire_backoff :sleep_fun
SubjectPrefix ErrClosed ErrResourceUnknown ErrCapacityExhausted ErrInvalidCapacity ErrInvalidWindow
ErrInvalidConfig Canceled DeadlineExceeded Resource Available Total Window InFlight
AgentID NewCapacity Reason Timestamp Bus ReduceFactor RecoveryInterval RecoveryFactor MaxRecovery
DefaultDistributedConfig Validate NewDistributedLimiter NewMemoryLimiter Acquire TryAcquire Release
SetCapacity GetCapacity AnnounceReduced Close OnCapacityChange RateLimiter WatchOption WithCapacityCallback
retry_with_backoff max_retries base_delay max_delay exponential_base jitter retry exceptions
requests_per_minute acquire rpm interval timestamps lock failure_threshold recovery_timeout
expected_exceptions CLOSED OPEN HALF_OPEN state failure_count last_failure_time call CircuitBreakerOpen
ResilientClient circuit_failure_threshold circuit_recovery_timeout config rate_limiter circuit_breaker
stop_after_attempt wait_exponential retry_if_exception_type before_sleep_log reraise RetryError
max_tokens_per_hour max_tokens_per_request usage_log check_budget record_usage remaining_budget
user_budgets get_user_budget handle_request
""".split()  # noqa: SIM905 - words, to be read as such


@pytest.mark.parametrize("name", THEIRS)
def test_every_name_of_theirs_has_a_row(name):
    assert any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", row.there) for row in ROWS)


def test_every_link_of_the_page_leads_somewhere():
    for target in re.findall(r"\]\(([a-z-]+\.md)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target


# -- what the checks need


class Flaky:
    """Fails as often as it is told, and says when it was called."""

    def __init__(self, *failures, clock=None):
        self.failures = list(failures)
        self.clock = clock
        self.calls = []

    def __call__(self):
        self.calls.append(self.clock.seconds() if self.clock else None)
        if self.failures:
            raise self.failures.pop(0)
        return "hello"


class TooManyError(Exception):
    status_code = 429


class RateLimitError(Exception):
    pass


class APIError(Exception):
    pass


def lost(times):
    return [ConnectionResetError() for _ in range(times)]


def on(clock, thing, **more):
    return partial(thing, clock=clock, **more)


class swarm:  # noqa: N801 - reads as a block
    """Whatever agents a check makes are on virtual time, and gone when it ends, with all they have said."""

    agents: list[DistributedLimiter]
    buses: set[str]

    def __enter__(self):
        swarm.agents, swarm.buses = [], set()
        return self

    def __exit__(self, *_error):
        for agent in swarm.agents:
            with contextlib.suppress(Closed):
                agent.close()
        for bus in swarm.buses:
            open_bus(bus)[0].close()


def agent(clock, **more):
    """Makes an agent with that clock, whatever else the line says."""

    def make(**options):
        made = DistributedLimiter(**{**options, **more}, clock=clock)
        swarm.agents.append(made)
        swarm.buses.add(options["bus"])
        return made

    return make


def defaults(thing):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(thing).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


# -- everywhere


@row("milliseconds, time.Duration")
def _(here):
    window = BackoffWindow(clock=ManualClock())
    here(window=window)
    assert window.remaining == 60.0


@row("{:ok, result}, {:error, reason}, result, err")
def _(here):
    dispatch = Dispatch(rates="1/s burst 1", clock=ManualClock())
    result = object()
    assert here(dispatch=dispatch, send=lambda: result) is result
    with pytest.raises(Refused) as refusal, dispatch.admit(timeout=0):
        pass
    assert (refusal.value.rule, refusal.value.retry_after) == ("requests/second", 1.0)
    dispatch = Dispatch(clock=ManualClock())
    error = KeyError("mine")
    with pytest.raises(KeyError) as raised:
        here(dispatch=dispatch, send=partial(_raise, error))
    assert raised.value is error


def _raise(error):
    raise error


@row("a process, a goroutine, a lock held while sleeping")
def _(here):
    async def main(clock):
        dispatch = Dispatch(concurrency=1, clock=clock)
        with dispatch.admit():
            waiting = asyncio.create_task(wait_and_leave(dispatch))
            await asyncio.sleep(0)
            tried = here(dispatch=dispatch)
            seen = dispatch.snapshot().waiting
        await waiting
        return tried, seen, clock.sleeps

    assert run(main) == (None, 1, [])


async def wait_and_leave(dispatch):
    async with dispatch.admit():
        pass


@row("context.Context")
def _(here):
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("openai", 60, 60, burst=1)
    assert limiter.try_acquire("openai")
    with pytest.raises(WaitTimeout):
        here(limiter=limiter)  # on a clock that nobody moves: it cannot have waited
    clock.advance(1)
    assert limiter.get_capacity("openai").available == 1


@row("print(...), log lines")
def _(here):
    seen = Recorder()
    dispatch = here(observer=seen)
    dispatch.try_admit().settle()
    assert [type(event) for event in seen.events] == [events.Admitted, events.Settled]


@row("time.time(), time.sleep()")
def _(here):
    dispatch = here()
    dispatch.set_backoff(3600)
    assert dispatch.window.remaining == 3600.0


@row("a sync function")
def _(here):
    async def main(clock):
        dispatch = Dispatch(clock=clock)
        with dispatch.admit():
            await here(dispatch=dispatch)
        return dispatch.snapshot().in_flight

    assert run(main) == 0
    assert all(hasattr(MemoryLimiter, name) for name in ("acquire", "acquire_async"))


# -- BackoffWindow


@row("BackoffWindow.for_key(:openai_api)")
def _(here):
    window = here()
    assert here() is window
    registry = WindowRegistry()
    for key in range(1000):
        registry.for_key((key, "anything hashable"))
    assert len(registry) == 0


@row("BackoffWindow.new_registry(name: :my_rate_limiters)")
def _(here):
    registry = here()
    stripe = registry.for_key("stripe")
    assert here() is registry
    assert registry.for_key("stripe") is stripe
    with pytest.raises(InvalidConfig):
        WindowRegistry.named(7)


@row("BackoffWindow.new_registry()")
def _(here):
    one, other = here(), here()
    assert one.for_key("stripe") is not other.for_key("stripe")
    assert defaults(WindowRegistry).keys() == {"ceiling", "spread", "observer", "clock"}


@row("BackoffWindow.for_key(registry, :stripe_api)")
def _(here):
    registry = WindowRegistry.named("payments")
    assert here(registry=registry) is registry.for_key("stripe_api")
    assert here(registry="payments") is registry.for_key("stripe_api")
    assert here(registry=registry) is not BackoffWindow.for_key("stripe_api")


@row("BackoffWindow.set(limiter, 30_000)")
def _(here):
    clock = ManualClock()
    window = BackoffWindow(clock=clock)
    here(window=window)
    window.set(5)
    assert window.remaining == 30.0
    clock.advance(10)
    window.set(60)
    assert window.remaining == 60.0
    with pytest.raises(InvalidWindow):
        window.set(-1)
    assert window.remaining == 60.0
    short = BackoffWindow(ceiling=10, clock=clock)
    here(window=short)
    assert short.remaining == 10.0


@row("BackoffWindow.should_backoff?(limiter)")
def _(here):
    clock = ManualClock()
    window = BackoffWindow(clock=clock)
    assert here(window=window) is False
    window.set(30)
    clock.advance(29.5)
    assert here(window=window) is True
    assert window.remaining == 0.5
    clock.advance(0.5)
    assert here(window=window) is False


@row("BackoffWindow.wait(limiter)")
def _(here):
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    window.set(60)
    clock.at(5, window.clear)
    assert here(window=window) is True
    assert clock.seconds() == 5.0
    window.set(60)
    assert window.wait(timeout=1) is False

    async def main(clock):
        window = BackoffWindow(spread=5, clock=clock)
        window.set(60)
        gone = []

        async def wait():
            await window.wait_async()
            gone.append(clock.seconds())

        await asyncio.gather(*(wait() for _ in range(100)))
        return gone

    gone = run(main)
    assert min(gone) >= 60
    assert max(gone) <= 65
    assert max(gone) - min(gone) > 4


@row("BackoffWindow.clear(limiter)")
def _(here):
    window = BackoffWindow(clock=ManualClock())
    window.set(30)
    generation = window.generation
    assert here(window=window) is True
    assert not window.should_backoff()
    window.set(120)
    assert window.clear(generation=generation) is False
    assert window.remaining == 120.0


@row("Foundation.Retry.HTTP.parse_retry_after(headers)")
def _(here):
    def seconds(value, **more):
        return here(headers={"Retry-After": value, **more})

    assert seconds("7") == 7.0
    assert seconds("2.5") == 2.5
    assert seconds("0") == 0.0
    assert seconds("10abc") == seconds("-5") == here(headers={}) == here(headers=None) == 1.0
    theirs = datetime.now(UTC) - timedelta(hours=5)  # one of the two clocks is wrong
    date, later = (format_datetime(theirs + timedelta(seconds=more), usegmt=True) for more in (0, 120))
    assert seconds(later, Date=date) == 120.0


@row("wait, send, set on 429: call_api(limiter, request)")
def _(here):
    clock = ManualClock(auto_advance=True)
    window = BackoffWindow(clock=clock)
    replies = iter([(429, {"retry-after": "7"}), (429, {}), (200, {})])

    def send():
        status, headers = next(replies)
        return SimpleNamespace(status=status, headers=headers, at=clock.seconds())

    sent = [here(window=window, send=send) for _ in range(3)]
    assert [reply.at for reply in sent] == [0.0, 7.0, 8.0]

    clock = ManualClock(auto_advance=True)
    dispatch = Dispatch(pause=True, clock=clock)
    dispatch.set_backoff(7)
    with dispatch.admit():
        assert clock.seconds() == 7.0


# -- Dispatch


@row("Dispatch.start_link(...)")
def _(here):
    dispatch = here()
    assert isinstance(dispatch, Dispatch)
    dispatch.close()
    with pytest.raises(Closed), dispatch.admit():
        pass


@row(":limiter")
def _(here):
    window = BackoffWindow()
    assert here(window=window).window is window
    assert Dispatch("my_api").window is not Dispatch("my_api").window


@row(":key")
def _(here):
    one, other = here(), here()
    with one.admit():
        assert (one.snapshot().in_flight, other.snapshot().in_flight) == (1, 0)
    one.set_backoff(30)
    assert not other.snapshot().backoff_active


@row(":name")
def _(here):
    dispatch = here()
    with pytest.raises(InvalidConfig):
        here()
    dispatch.close()
    assert here() is not dispatch


@row("a locally registered name")
def _(here):
    dispatch = Dispatch("my_api", name="MyApp.ApiDispatch")
    assert here() is dispatch
    dispatch.close()
    with pytest.raises(UnknownName):
        here()


@row("a pid")
def _(here):
    dispatch = Dispatch()
    with here(dispatch=dispatch).admit():
        assert dispatch.snapshot().in_flight == 1


@row("{:global, term}")
def _(here):
    one, other = here(), here()
    try:
        one.set_backoff(30)
        eventually(lambda: other.snapshot().backoff_active, "the other hears of it")
    finally:
        one.close()
        other.close()


@row("{:via, module, term}")
def _(here):
    dispatch = Dispatch()
    assert here(registry={"my_api": dispatch}) is dispatch


@row(":concurrency")
def _(here):
    dispatch = here()
    inside = [dispatch.try_admit() for _ in range(101)]
    assert (inside[99] is not None, inside[100]) == (True, None)
    assert defaults(Dispatch)["concurrency"] == 400
    assert Dispatch(concurrency=None).snapshot().concurrency is None
    with pytest.raises(InvalidCapacity):
        Dispatch(concurrency=0)
    for permit in inside[:100]:
        permit.settle()


@row(":throttled_concurrency")
def _(here):
    assert defaults(Dispatch)["throttled_concurrency"] == 10

    async def main(clock):
        dispatch = here(Dispatch=on(clock, Dispatch, concurrency=6))
        dispatch.set_backoff(1)
        inside = [dispatch.try_admit() for _ in range(5)]
        waiting = asyncio.create_task(wait_and_leave(dispatch))
        await asyncio.sleep(0.1)
        standing = dispatch.snapshot()
        for permit in inside:
            permit.settle()
        await waiting
        return standing

    standing = run(main)
    assert (standing.waiting, standing.in_flight, standing.throttled_in_flight) == (1, 5, 5)
    Dispatch(throttled_concurrency="adaptive")


@row(":byte_budget")
def _(here):
    assert defaults(Dispatch)["byte_budget"] == 5 * 1024 * 1024
    dispatch = here()
    with dispatch.admit(bytes=4_999_999):
        assert dispatch.try_admit(bytes=2) is None
        assert dispatch.try_admit(bytes=6_000_000) is None
    with dispatch.admit(bytes=6_000_000):
        assert dispatch.try_admit(bytes=1) is None


@row(":backoff_window_ms")
def _(here):
    assert defaults(Dispatch)["backoff_window"] == 10.0
    clock = ManualClock()
    dispatch = here(Dispatch=on(clock, Dispatch))
    dispatch.set_backoff(5)
    clock.advance(14.999)
    assert dispatch.snapshot().backoff_active
    clock.advance(0.001)
    assert not dispatch.snapshot().backoff_active


@row(":byte_penalty_multiplier")
def _(here):
    assert defaults(Dispatch)["byte_penalty_multiplier"] == 20
    dispatch = here()
    dispatch.set_backoff(5)
    with dispatch.admit(bytes=10):
        assert dispatch.snapshot().bytes_in_flight == 200


@row(":acquire_backoff")
def _(here):
    here().close()
    with pytest.raises(InvalidConfig):
        Dispatch(acquire_backoff=Backoff(0.002, cap=0.05))

    async def main(clock):
        dispatch = Dispatch(concurrency=1, clock=clock)
        order = []

        async def work(n):
            async with dispatch.admit():
                order.append((n, clock.seconds()))
                await asyncio.sleep(1)

        await asyncio.gather(*(work(n) for n in range(4)))
        return order, clock.sleeps

    order, sleeps = run(main)
    assert order == [(n, float(n)) for n in range(4)]
    assert sleeps == []  # nothing of ours was ever due


@row(":sleep_fun")
def _(here):
    dispatch = here(Dispatch=partial(Dispatch, rates="1/s burst 1"))
    for _ in range(3):
        with dispatch.admit():
            pass
    assert dispatch._clock.sleeps == [1.0, 1.0]


@row("Dispatch.with_rate_limit(dispatch, byte_size(body), fun)")
def _(here):
    dispatch = Dispatch(concurrency=2, throttled_concurrency=1, byte_budget=100, clock=ManualClock())

    def send():
        standing = dispatch.snapshot()
        return standing.in_flight, standing.throttled_in_flight, standing.bytes_in_flight

    assert here(dispatch=dispatch, body=b"0123456789", send=send) == (1, 0, 10)
    assert dispatch.snapshot().in_flight == 0

    async def main(clock):
        dispatch = Dispatch(concurrency=1, clock=clock)
        inside = dispatch.try_admit()

        async def wait():
            async with dispatch.admit() as permit:
                return permit.throttled

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.5)
        dispatch.set_backoff(5)
        await asyncio.sleep(0.5)
        inside.settle()
        return await waiting

    assert run(main) is True  # D-13: it queued before the signal


@row("Dispatch.set_backoff(dispatch, retry_after)")
def _(here):
    clock = ManualClock()
    window = BackoffWindow(clock=clock)
    dispatch, other = (Dispatch(window=window, clock=clock) for _ in range(2))
    here(dispatch=dispatch)
    with dispatch.admit(timeout=0) as permit:
        assert permit.throttled
    dispatch.set_backoff(1)
    clock.advance(39.999)
    assert dispatch.snapshot().backoff_active
    assert other.snapshot().backoff_active
    clock.advance(0.001)
    assert not dispatch.snapshot().backoff_active
    assert not other.snapshot().backoff_active
    paused = Dispatch(pause=True, clock=clock)
    here(dispatch=paused)
    assert paused.try_admit() is None


@row("Dispatch.snapshot(dispatch)")
def _(here):
    dispatch = Dispatch(rates="1/s burst 1", clock=ManualClock(start=5))
    with dispatch.admit():
        standing = here(dispatch=dispatch)
    assert (standing.in_flight, standing.waiting, standing.binding, standing.next_at) == (1, 0, None, None)


@row("snapshot.backoff_active?")
def _(here):
    dispatch = Dispatch(clock=ManualClock())
    assert here(dispatch=dispatch) is False
    dispatch.set_backoff(5)
    assert here(dispatch=dispatch) is True


# -- the Go package: errors and records


def openai(capacity=60, **more):
    """A limiter with one resource, and its clock."""
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("openai", capacity, 60, **more)
    return clock, limiter


@row("ErrClosed")
def _(here):
    with pytest.raises(Refused) as refusal:
        here()
    assert isinstance(refusal.value, Closed)
    _, limiter = openai()
    limiter.close()
    with pytest.raises(Closed):
        limiter.acquire("openai")


@row("ErrResourceUnknown")
def _(here):
    with pytest.raises(UnknownResource) as refusal:
        here(limiter=openai()[1])
    assert isinstance(refusal.value, KeyError)


@row("ErrCapacityExhausted")
def _(here):
    _, limiter = openai(1)
    here(limiter=limiter)
    with pytest.raises(CapacityExhausted):
        here(limiter=limiter)


@row("ErrInvalidCapacity")
def _(here):
    _, limiter = openai()
    with pytest.raises(InvalidCapacity):
        here(limiter=limiter)
    assert limiter.get_capacity("openai").total == 60
    limiter.remove("openai")
    assert limiter.get_capacity("openai") is None


@row("ErrInvalidWindow")
def _(here):
    _, limiter = openai()
    with pytest.raises(InvalidWindow):
        here(limiter=limiter)
    assert limiter.get_capacity("openai").total == 60


@row("ErrInvalidConfig")
def _(here):
    with pytest.raises(InvalidConfig) as refusal:
        here()
    assert isinstance(refusal.value, ValueError)


@row("context.Canceled, context.DeadlineExceeded")
def _(here):
    _, limiter = openai(1)
    limiter.acquire("openai")
    with pytest.raises(TimeoutError) as refusal:
        here(limiter=limiter)
    assert isinstance(refusal.value, WaitTimeout)

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("openai", 1, 60)
        limiter.acquire("openai")
        cancelled, next_one = (asyncio.create_task(limiter.acquire_async("openai")) for _ in range(2))
        await asyncio.sleep(1)
        cancelled.cancel()
        await next_one
        return cancelled.cancelled(), clock.seconds()

    assert run(main) == (True, 60.0)


@row("Capacity.Resource")
def _(here):
    assert here(limiter=openai()[1]) == "openai"


@row("Capacity.Available")
def _(here):
    clock, limiter = openai(10)
    for _ in range(10):
        limiter.acquire("openai")
    for _ in range(100):  # six seconds a token, looked at every 0.3
        clock.advance(0.3)
        limiter.get_capacity("openai")
    assert here(limiter=limiter) == 5


@row("Capacity.Total")
def _(here):
    assert here(limiter=openai()[1]) == 60
    clock = ManualClock()
    one, other = (
        agent(clock)(bus="memory:coming-from", agent_id=agent_id) for agent_id in ("agent-1", "agent-2")
    )
    for each in (one, other):
        each.set_capacity("openai", 60, 60)
    clock.advance(30)
    assert here(limiter=one) == here(limiter=other) == 60
    assert [each.get_capacity("openai").share for each in (one, other)] == [30, 30]


@row("Capacity.Window")
def _(here):
    assert here(limiter=openai()[1]) == 60.0


@row("Capacity.InFlight")
def _(here):
    clock, limiter = openai()
    for _ in range(600):
        limiter.acquire("openai")
        clock.advance(1)
    assert here(limiter=limiter) == 60


@row("RateLimiter (the interface)")
def _(here):
    assert here() is True
    methods = "acquire try_acquire release set_capacity announce_reduced get_capacity close"
    for method in methods.split():
        assert callable(getattr(MemoryLimiter, method))
        assert callable(getattr(DistributedLimiter, method))
    assert "requests_per_minute" in inspect.signature(RateLimiter).parameters


# -- the Go package: MemoryLimiter


@row("NewMemoryLimiter()")
def _(here):
    assert here().get_capacity("openai") is None
    limiter = MemoryLimiter(rates="60/minute")
    assert limiter.try_acquire("anybody")


@row('SetCapacity("openai", 60, time.Minute)')
def _(here):
    clock = ManualClock()
    limiter = MemoryLimiter(clock=clock)
    here(limiter=limiter)
    assert [limiter.try_acquire("openai") for _ in range(61)] == [True] * 60 + [False]
    clock.advance(1)
    assert [limiter.try_acquire("openai") for _ in range(2)] == [True, False]
    # D-52: half a minute at ten a minute is worth five, whatever comes after.
    limiter.set_capacity("slow", 10, 60)
    assert all(limiter.try_acquire("slow") for _ in range(10))
    clock.advance(30)
    limiter.set_capacity("slow", 600, 60)
    assert limiter.get_capacity("slow").available == 5
    assert {"burst", "strict"} <= defaults(MemoryLimiter.set_capacity).keys()


@row('Acquire(ctx, "openai")')
def _(here):
    _, limiter = openai(3)
    here(limiter=limiter)
    limiter.acquire("openai", cost=2)
    assert limiter.get_capacity("openai").available == 0

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("openai", 1, 1)
        order = []

        async def work(n):
            await limiter.acquire_async("openai")
            order.append(n)

        await asyncio.gather(*(work(n) for n in range(5)))
        return order, clock.seconds()

    assert run(main) == ([0, 1, 2, 3, 4], 4.0)


@row('TryAcquire("openai")')
def _(here):
    _, limiter = openai(1)
    assert [here(limiter=limiter) for _ in range(2)] == [True, False]

    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("openai", 2, 2)
        limiter.acquire("openai", cost=2)
        waiting = asyncio.create_task(limiter.acquire_async("openai", cost=2))
        await asyncio.sleep(1)
        tried = here(limiter=limiter)  # one token is there, and somebody waits for two
        await waiting
        return tried

    assert run(main) is False


@row('defer limiter.Release("openai")')
def _(here):
    _, limiter = openai(2)
    here(limiter=limiter)
    here(limiter=limiter)
    standing = limiter.get_capacity("openai")
    assert (standing.available, standing.in_flight) == (0, 0)


@row('Release("openai")')
def _(here):
    _, limiter = openai(2)
    for _ in range(100):
        limiter.acquire("openai")
        here(limiter=limiter)  # D-50: a hundred at once on two a minute
    assert limiter.get_capacity("openai").available == 2
    limiter.acquire("openai")
    limiter.release("openai", refund=False)
    here(limiter=limiter)
    standing = limiter.get_capacity("openai")
    assert (standing.available, standing.in_flight) == (1, 0)


@row('GetCapacity("openai")')
def _(here):
    _, limiter = openai()
    assert here(limiter=limiter).total == 60
    assert here(limiter=MemoryLimiter()) is None


@row('AnnounceReduced("openai", "received 429")')
def _(here):
    seen = Recorder()
    limiter = MemoryLimiter(observer=seen)
    limiter.set_capacity("openai", 100, 60)
    here(limiter=limiter)
    assert limiter.get_capacity("openai").total == 100
    assert seen.of(events.CapacityReduced)[0].reason == "received 429"
    clock = ManualClock()
    limiter = MemoryLimiter(reduce_factor=0.5, clock=clock)
    limiter.set_capacity("openai", 100, 60)
    here(limiter=limiter)
    here(limiter=limiter)
    assert limiter.get_capacity("openai").total == 50
    clock.advance(3600)
    assert limiter.get_capacity("openai").total == 100


@row("Close()")
def _(here):
    async def main(clock):
        limiter = MemoryLimiter(clock=clock)
        limiter.set_capacity("openai", 1, 60)
        limiter.acquire("openai")
        waiting = asyncio.create_task(limiter.acquire_async("openai"))
        await asyncio.sleep(1)
        here(limiter=limiter)
        with pytest.raises(Closed):
            await waiting
        here(limiter=limiter)
        return clock.seconds()

    assert run(main) == 1.0


# -- the Go package: DistributedLimiter


def pair(resource="shared-api", capacity=100, **more):
    """Two agents on one bus that have found each other, and their clock."""
    clock = ManualClock()
    agents = [
        agent(clock)(bus="memory:coming-from", agent_id=agent_id, **more)
        for agent_id in ("agent-1", "agent-2")
    ]
    for each in agents:
        each.set_capacity(resource, capacity, 60)
    clock.advance(30)
    return clock, *agents


def work(clock, agents, seconds, resource="shared-api"):
    """Have them call all the time, and all of it go well."""
    for _ in range(seconds):
        for each in agents:
            for _ in range(5):
                if each.get_capacity(resource).available:
                    with each.slot(resource, timeout=0):
                        pass
        clock.advance(1)


@row("SubjectPrefix")
def _(here):
    assert here() == "ratelimit."


@row("NewDistributedLimiter(config)")
def _(here):
    made = here(DistributedLimiter=agent(ManualClock()))
    assert made.get_capacity("shared-api") is None
    with pytest.raises(InvalidConfig):
        DistributedLimiter(bus="carrier pigeons", agent_id="agent-1")


@row("DistributedConfig.Bus")
def _(here):
    here(DistributedLimiter=agent(ManualClock()))
    with pytest.raises(InvalidConfig):
        DistributedLimiter(bus=None, agent_id="agent-1")


@row("DistributedConfig.AgentID")
def _(here):
    clock = ManualClock()
    seen = Recorder()
    agents = [here(DistributedLimiter=agent(clock, observer=seen)) for _ in range(2)]
    for each in agents:
        each.set_capacity("shared-api", 100, 60)
    clock.advance(60)
    assert any("Duplicate" in type(event).__name__ for event in seen.events)


@row("DistributedConfig.ReduceFactor")
def _(here):
    clock = ManualClock()
    made = here(DistributedLimiter=agent(clock))
    made.set_capacity("shared-api", 1000, 60)
    clock.advance(30)
    seeds = 1000
    for _ in range(10):
        made.announce_reduced("shared-api", "429")
        seeds = max(1, int(seeds * 0.5))
    assert (made.get_capacity("shared-api").total, seeds) == (500, 1)
    assert defaults(DistributedLimiter)["reduce_factor"] == 0.5
    for wrong in (0.0, 1.0, 2.0, -0.5):
        with pytest.raises(InvalidConfig):
            DistributedLimiter(bus="memory:", agent_id="agent-1", reduce_factor=wrong)


@row("DistributedConfig.RecoveryInterval")
def _(here):
    clock = ManualClock()
    made = here(DistributedLimiter=agent(clock))
    made.set_capacity("shared-api", 100, 60)
    clock.advance(30)
    made.announce_reduced("shared-api", "429")
    work(clock, [made], 29)
    assert made.get_capacity("shared-api").total == 50
    work(clock, [made], 33)
    assert made.get_capacity("shared-api").total in (55, 60)
    assert defaults(DistributedLimiter)["recovery_interval"] == 30.0


@row("DistributedConfig.RecoveryFactor")
def _(here):
    clock = ManualClock()
    made = here(DistributedLimiter=agent(clock))
    made.set_capacity("shared-api", 10, 1)
    clock.advance(30)
    made.announce_reduced("shared-api", "429")
    assert made.get_capacity("shared-api").total == 5
    work(clock, [made], 8 * 31)
    assert made.get_capacity("shared-api").total == 10
    assert int(5 * 1.1) == 5  # there
    assert defaults(DistributedLimiter)["recovery_factor"] == 1.1
    with pytest.raises(InvalidConfig):
        DistributedLimiter(bus="memory:", agent_id="agent-1", recovery_factor=0.9)


@row("DistributedConfig.MaxRecovery")
def _(here):
    here(DistributedLimiter=agent(ManualClock()))
    assert defaults(DistributedLimiter)["max_recovery"] is True


@row("DefaultDistributedConfig()")
def _(here):
    here(DistributedLimiter=agent(ManualClock()))
    expected = {
        "reduce_factor": 0.5,
        "recovery_interval": 30.0,
        "recovery_factor": 1.1,
        "max_recovery": True,
    }
    assert expected.items() <= defaults(DistributedLimiter).items()


@row("config.Validate()")
def _(here):
    with pytest.raises(InvalidConfig):
        here()
    with pytest.raises(InvalidConfig):
        DistributedLimiter(bus="memory:", agent_id="agent-1", recovery_interval=-1)


@row('limiter.SetCapacity("shared-api", 100, time.Minute)')
def _(here):
    clock = ManualClock()
    for sharing, shares in (("total", [50, 50]), ("each", [100, 100])):
        agents = [
            agent(clock)(bus="memory:sharing-" + sharing, agent_id=name, sharing=sharing) for name in "ab"
        ]
        for each in agents:
            here(limiter=each)
        clock.advance(30)
        assert [each.get_capacity("shared-api").share for each in agents] == shares


@row('limiter.Acquire(ctx, "shared-api")')
def _(here):
    _, one, other = pair()
    here(limiter=one)
    assert one.get_capacity("shared-api").in_flight == 1
    assert other.get_capacity("shared-api").in_flight == 0


@row('limiter.TryAcquire("shared-api")')
def _(here):
    _, one, other = pair()
    taken = sum(here(limiter=each) for each in (one, other) for _ in range(101))
    assert taken <= 100


@row('limiter.Release("shared-api")')
def _(here):
    _, one, _other = pair()
    one.acquire("shared-api")
    here(limiter=one)
    assert one.get_capacity("shared-api").in_flight == 0


@row('limiter.GetCapacity("shared-api")')
def _(here):
    _, one, _other = pair()
    assert (here(limiter=one).total, here(limiter=one).share) == (100, 50)


@row('limiter.AnnounceReduced("shared-api", "received 429")')
def _(here):
    clock, one, other = pair()
    heard = []
    other.on_capacity_change(heard.append)
    here(limiter=one)
    clock.advance(0.1)
    assert other.get_capacity("shared-api").total == 50
    assert not other.try_acquire("shared-api")  # all of them pause
    clock.advance(10)
    assert other.try_acquire("shared-api")
    assert len(heard) == 1
    one.close()
    one.announce_reduced("shared-api", "closed")
    clock.advance(10)
    assert len(heard) == 1


@row("limiter.OnCapacityChange(callback)")
def _(here):
    clock, one, other = pair()
    heard = []

    def callback(update):
        heard.append(update.reason)
        raise RuntimeError("a mistake of the caller")

    here(limiter=other, callback=callback)
    one.announce_reduced("shared-api", "received 429")
    clock.advance(0.1)
    assert heard == ["received 429"]
    assert other.get_capacity("shared-api").total == 50
    here(limiter=other, callback=lambda _update: other.close())
    clock.advance(600)
    one.announce_reduced("shared-api", "again")
    with pytest.raises(Closed):
        other.acquire("shared-api")


@row("OnCapacityChange (the type)")
def _(here):
    _, one, _other = pair()
    here(limiter=one)


@row("WatchOption, WithCapacityCallback(callback)")
def _(here):
    clock = ManualClock()
    heard = []
    made = here(DistributedLimiter=agent(clock), callback=heard.append)
    made.set_capacity("shared-api", 100, 60)
    other = agent(clock)(bus="memory:", agent_id="agent-2")
    other.set_capacity("shared-api", 100, 60)
    clock.advance(30)
    other.announce_reduced("shared-api", "received 429")
    clock.advance(0.1)
    assert [update.new_capacity for update in heard] == [50]


@row("limiter.Close()")
def _(here):
    clock, one, other = pair()
    here(limiter=one)
    clock.advance(1)
    assert other.get_capacity("shared-api").share == 100


def one_update():
    clock, one, other = pair()
    heard = []
    other.on_capacity_change(heard.append)
    one.announce_reduced("shared-api", "received 429")
    clock.advance(0.1)
    (update,) = heard
    return update


@row("CapacityUpdate.Resource")
def _(here):
    assert here(update=one_update()) == "shared-api"


@row("CapacityUpdate.AgentID")
def _(here):
    assert here(update=one_update()) == "agent-1"


@row("CapacityUpdate.NewCapacity")
def _(here):
    assert here(update=one_update()) == 50


@row("CapacityUpdate.Reason")
def _(here):
    assert here(update=one_update()) == "received 429"


@row("CapacityUpdate.Timestamp")
def _(here):
    assert here(update=one_update()).utcoffset() == timedelta(0)


@row("best practice: capacity below the real limit")
def _(here):
    _, one, _other = pair()
    here(limiter=one)
    assert one.get_capacity("shared-api").total == 95


@row("best practice: Release, to track what is in flight")
def _(here):
    _, one, _other = pair()
    here(limiter=one)
    assert one.get_capacity("shared-api").in_flight == 0


@row("best practice: watch for reductions")
def _(here):
    clock = ManualClock()
    seen = Recorder()
    made = here(DistributedLimiter=agent(clock), observer=seen)
    made.set_capacity("shared-api", 100, 60)
    clock.advance(30)
    made.announce_reduced("shared-api", "received 429")
    assert seen.of(events.CapacityReduced)[0].reason == "received 429"


@row("best practice: TryAcquire with a fallback")
def _(here):
    clock = ManualClock()
    made = agent(clock)(bus="memory:fallback", agent_id="agent-1")
    made.set_capacity("shared-api", 1, 60)
    clock.advance(30)
    assert [here(limiter=made, ask=lambda: "hello") for _ in range(2)] == ["hello", "later"]


# -- the tutorial: retries


def retried(here, *failures, **more):
    """(what came out, when it was called) of the line, on a clock of its own, with dice in the middle."""
    clock = ManualClock(auto_advance=True)
    func = Flaky(*failures, clock=clock)
    names = {
        "retry_with_backoff": on(clock, retry_with_backoff, random=lambda: 0.5),
        "retry": on(clock, retry, random=lambda: 0.5),
        "RateLimitError": RateLimitError,
        "APIError": APIError,
    }
    try:
        made = here(**{**names, **more}, func=func)
        came_out = made() if callable(made) else made
    except Exception as error:  # noqa: BLE001 - whatever it is
        came_out = error
    return came_out, func.calls


@row("retry_with_backoff(func)")
def _(here):
    assert retried(here, *lost(2)) == ("hello", [0.0, 1.0, 3.0])
    came_out, calls = retried(here, ValueError())
    assert (type(came_out), calls) == (ValueError, [0.0])
    told = TooManyError()
    told.headers = {"retry-after": "20"}
    came_out, calls = retried(here, told)
    assert came_out == "hello"
    assert calls[1] >= 20


@row("retry_with_backoff(max_retries=3)")
def _(here):
    came_out, calls = retried(here, *lost(9))
    assert (type(came_out), calls) == (ConnectionResetError, [0.0, 1.0, 3.0, 7.0])
    func = Flaky()
    with pytest.raises(ValueError):
        retry_with_backoff(func, max_retries=-1)
    assert func.calls == []
    assert defaults(retry_with_backoff)["max_retries"] == 3


@row("retry_with_backoff(base_delay=1.0)")
def _(here):
    assert retried(here, *lost(1)) == ("hello", [0.0, 1.0])
    assert defaults(retry_with_backoff)["base_delay"] == 1.0


@row("retry_with_backoff(max_delay=60.0)")
def _(here):
    clock = ManualClock(auto_advance=True)
    highest = on(clock, retry_with_backoff, random=lambda: 0.999_999, max_retries=9)
    assert here(retry_with_backoff=highest, func=Flaky(*lost(9))) == "hello"
    assert max(clock.sleeps) <= 60.0
    assert defaults(retry_with_backoff)["max_delay"] == 60.0


@row("retry_with_backoff(exponential_base=2.0)")
def _(here):
    assert retried(here, *lost(3)) == ("hello", [0.0, 1.0, 3.0, 7.0])
    assert defaults(retry_with_backoff)["exponential_base"] == 2.0
    assert Backoff(1, cap=60).delay(1_000_000) == 60.0


@row("retry_with_backoff(jitter=True)")
def _(here):
    for dice, wait in ((0.0, 0.5), (0.5, 1.0), (0.999_999_999, 1.5)):
        clock = ManualClock(auto_advance=True)
        throw = on(clock, retry_with_backoff, random=lambda dice=dice: dice)
        here(retry_with_backoff=throw, func=Flaky(*lost(1)))
        assert clock.sleeps == [pytest.approx(wait)]
    assert defaults(retry_with_backoff)["jitter"] is True
    assert "backoff" in defaults(retry)


@row("@retry(max_retries=3)")
def _(here):
    assert retried(here, *lost(3)) == ("hello", [0.0, 1.0, 3.0, 7.0])

    async def main(clock):
        func = Flaky(*lost(1))

        async def ask():
            return func()

        return await here(retry=on(clock, retry, jitter=False), func=ask)(), clock.seconds()

    assert run(main) == ("hello", 1.0)


@row("@retry(base_delay=1.0)")
def _(here):
    assert retried(here, *lost(1)) == ("hello", [0.0, 1.0])
    clock = ManualClock(auto_advance=True)
    here(retry=on(clock, retry, max_retries=11), func=Flaky(*lost(11)))()
    assert max(clock.sleeps) <= 60.0


@row("@retry(exceptions=(RateLimitError, APIError))")
def _(here):
    assert retried(here, RateLimitError(), APIError())[0] == "hello"
    came_out, calls = retried(here, ConnectionResetError())
    assert (type(came_out), calls) == (ConnectionResetError, [0.0])


@row('print("Retry 1/3 after 1.00s")')
def _(here):
    told = []
    retried(here, *lost(1), print=told.append)
    assert [(event.retry, event.max_retries, event.delay) for event in told] == [(1, 3, 1.0)]


# -- the tutorial: RateLimiter and CircuitBreaker


@row("RateLimiter(requests_per_minute=20)")
def _(here):
    clock = ManualClock()
    limiter = here(RateLimiter=on(clock, RateLimiter))
    assert sum(limiter.try_acquire() for _ in range(50)) == 20
    clock.advance(60)
    assert sum(limiter.try_acquire() for _ in range(50)) == 20  # D-86: there all of the fifty
    with pytest.raises(ValueError):
        RateLimiter(requests_per_minute=0)


@row("limiter.acquire()")
def _(here):
    clock = ManualClock(auto_advance=True)
    limiter = RateLimiter(2, clock=clock)
    for _ in range(3):
        here(limiter=limiter)
    assert clock.seconds() == 60.0
    limiter.acquire()
    with pytest.raises(WaitTimeout):
        limiter.acquire(timeout=1)


@row("@limiter")
def _(here):
    async def main(clock):
        limiter = RateLimiter(1, clock=clock)

        async def ask():
            return clock.seconds()

        func = here(limiter=limiter, func=ask)
        return [await func() for _ in range(3)]

    assert run(main) == [0.0, 60.0, 120.0]


@row("limiter.rpm, limiter.interval, limiter.timestamps, limiter.lock")
def _(here):
    limiter = RateLimiter(20)
    assert "20 requests/minute" in repr(here(limiter=limiter))
    assert not any(hasattr(limiter, name) for name in ("rpm", "interval", "timestamps", "lock"))


def fail(breaker, times, error=ConnectionError):
    for _ in range(times):
        with pytest.raises(error):
            breaker.call(partial(_raise, error()))


@row("CircuitBreaker(failure_threshold=5)")
def _(here):
    breaker = here()
    fail(breaker, 4)
    assert breaker.state is CircuitState.CLOSED
    fail(breaker, 1)
    assert breaker.state is CircuitState.OPEN
    assert {"failure_threshold": 5, "failure_rate": None}.items() <= defaults(CircuitBreaker).items()


@row("CircuitBreaker(recovery_timeout=30.0)")
def _(here):
    async def main(clock):
        breaker = here(CircuitBreaker=on(clock, CircuitBreaker, failure_threshold=1))

        async def fail_after(seconds):
            await asyncio.sleep(seconds)
            raise ConnectionError

        straggler = asyncio.create_task(breaker.call_async(fail_after, 29))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await breaker.call_async(fail_after, 0)
        with pytest.raises(ConnectionError):
            await straggler
        await asyncio.sleep(0.999)
        with pytest.raises(CircuitBreakerOpen):
            breaker.call(len, "")
        await asyncio.sleep(0.001)
        return breaker.call(len, ""), clock.seconds()

    assert run(main) == (0, 30.0)
    assert defaults(CircuitBreaker)["recovery_timeout"] == 30.0


@row("CircuitBreaker(expected_exceptions=(Exception,))")
def _(here):
    breaker = here(CircuitBreaker=partial(CircuitBreaker, failure_threshold=1))
    fail(breaker, 5, TooManyError)
    fail(breaker, 5, partial_error(LineFull))
    assert breaker.state is CircuitState.CLOSED
    fail(breaker, 1, ValueError)
    assert breaker.state is CircuitState.OPEN


def partial_error(kind):
    """An exception class that can be made of nothing."""

    class Made(kind):
        def __init__(self):
            super().__init__("too many wait", rule="line")

    return Made


@row("circuit.call(func)")
def _(here):
    circuit = CircuitBreaker(3)
    assert here(circuit=circuit, func=lambda: "hello") == "hello"
    for _ in range(2):  # D-94: nested in itself, it counts once
        with pytest.raises(ConnectionError):
            here(circuit=circuit, func=circuit(partial_call(ConnectionError)))
    assert circuit.state is CircuitState.CLOSED

    async def main(clock):
        circuit = CircuitBreaker(1, 30, clock=clock)
        fail(circuit, 1)
        await asyncio.sleep(30)

        async def ask():
            await asyncio.sleep(1)

        answers = [circuit.call_async(ask) for _ in range(10)]
        return await asyncio.gather(*answers, return_exceptions=True)

    assert sum(isinstance(answer, CircuitBreakerOpen) for answer in run(main)) == 9


def partial_call(error):
    def call():
        raise error

    return call


@row("@circuit")
def _(here):
    async def main(clock):
        circuit = CircuitBreaker(1, clock=clock)

        async def ask():
            raise ConnectionError

        with pytest.raises(ConnectionError):
            await here(circuit=circuit, func=ask)()
        return circuit.state

    assert run(main) is CircuitState.OPEN


@row("CircuitState.CLOSED")
def _(here):
    assert here().value == "closed"


@row("CircuitState.OPEN")
def _(here):
    assert here().value == "open"


@row("CircuitState.HALF_OPEN")
def _(here):
    assert here().value == "half_open"


@row("circuit.state")
def _(here):
    circuit = CircuitBreaker()
    assert here(circuit=circuit) is CircuitState.CLOSED
    with pytest.raises(AttributeError):
        circuit.state = CircuitState.OPEN


@row("circuit.failure_count, circuit.last_failure_time, circuit.lock")
def _(here):
    seen = Recorder()
    circuit = CircuitBreaker(1, observer=seen)
    fail(circuit, 1)
    here(circuit=circuit)
    assert circuit.state is CircuitState.CLOSED
    assert seen.of(events.CircuitOpened)[0].reason == "1 call failed"
    assert not any(hasattr(circuit, name) for name in ("failure_count", "last_failure_time", "lock"))


@row("CircuitBreakerOpen")
def _(here):
    circuit = CircuitBreaker(1, 30, clock=ManualClock())
    fail(circuit, 1)
    with pytest.raises(here()) as refusal:
        circuit.call(len, "")
    assert refusal.value.retry_after == 30.0
    assert isinstance(refusal.value.__cause__, ConnectionError)


# -- the tutorial: ResilientClient


@row("ResilientClient(config)")
def _(here):
    clock = ManualClock(auto_advance=True)
    client = here(ResilientClient=on(clock, ResilientClient))
    for _ in range(2):
        with pytest.raises((ConnectionError, CircuitBreakerOpen)):
            client.call(partial_call(ConnectionError))
    before = clock.seconds()
    with pytest.raises(CircuitBreakerOpen):
        client.call(len, "")
    assert clock.seconds() == before  # D-96
    assert client.using(target="elsewhere").call(len, "") == 0  # D-98


@row("ResilienceConfig(max_retries=3)")
def _(here):
    func = Flaky(*lost(9))
    client = ResilientClient(here(), clock=ManualClock(auto_advance=True))
    with pytest.raises(ConnectionResetError):
        client.call(func)
    assert len(func.calls) == 4
    assert ResilienceConfig().max_retries == 3


@row("ResilienceConfig(base_delay=1.0)")
def _(here):
    clock = ManualClock(auto_advance=True)
    client = ResilientClient(here(), clock=clock, random=lambda: 0.5)
    assert client.call(Flaky(*lost(2))) == "hello"
    assert clock.seconds() == 3.0
    assert ResilienceConfig().base_delay == 1.0


@row("ResilienceConfig(max_delay=60.0)")
def _(here):
    config = here(
        ResilienceConfig=partial(ResilienceConfig, max_retries=9, circuit_failure_threshold=99),
    )
    clock = ManualClock(auto_advance=True)
    client = ResilientClient(config, clock=clock, random=lambda: 0.999_999)
    assert client.call(Flaky(*lost(9))) == "hello"
    assert max(clock.sleeps) <= 60.0
    assert ResilienceConfig().max_delay == 60.0


@row("ResilienceConfig(requests_per_minute=60)")
def _(here):
    clock = ManualClock(auto_advance=True)
    client = ResilientClient(here(), clock=clock)
    for _ in range(60):
        client.call(len, "")
    assert clock.seconds() == 0.0
    client.call(len, "")
    assert clock.seconds() == 60.0
    assert ResilienceConfig(tokens_per_minute=90_000, concurrency=4).requests_per_minute == 60


@row("ResilienceConfig(circuit_failure_threshold=5)")
def _(here):
    client = ResilientClient(here(), clock=ManualClock(auto_advance=True))
    func = Flaky(*lost(99))
    for _ in range(2):
        with pytest.raises((ConnectionError, CircuitBreakerOpen)):
            client.call(func)
    assert len(func.calls) == 5
    assert ResilienceConfig().circuit_failure_threshold == 5


@row("ResilienceConfig(circuit_recovery_timeout=30.0)")
def _(here):
    clock = ManualClock(auto_advance=True)
    config = here(ResilienceConfig=partial(ResilienceConfig, circuit_failure_threshold=1))
    client = ResilientClient(config, clock=clock)
    with pytest.raises((ConnectionError, CircuitBreakerOpen)):
        client.call(partial_call(ConnectionError))
    clock.advance(30)
    assert client.call(len, "") == 0
    assert ResilienceConfig().circuit_recovery_timeout == 30.0


@row("client.call(func)")
def _(here):
    clock = ManualClock(auto_advance=True)
    config = ResilienceConfig(circuit_failure_threshold=2)
    client = ResilientClient(config, clock=clock)
    func = Flaky(*lost(9))
    with pytest.raises(CircuitBreakerOpen) as refusal:
        here(client=client, func=func)
    assert len(func.calls) == 2
    assert isinstance(refusal.value.__cause__, ConnectionResetError)  # D-97
    wrong = Flaky(ValueError())
    with pytest.raises(ValueError):
        here(client=ResilientClient(clock=clock), func=wrong)
    assert len(wrong.calls) == 1


@row("client.config")
def _(here):
    config = ResilienceConfig()
    assert here(client=ResilientClient(config)) == config
    with pytest.raises(AttributeError):
        config.max_retries = 4


@row("client.rate_limiter")
def _(here):
    assert isinstance(here(client=ResilientClient()), Dispatch)


@row("client.circuit_breaker")
def _(here):
    client = ResilientClient(target="openai")
    client.call(len, "")
    assert here(client=client).states() == {"openai": CircuitState.CLOSED}


# -- the tutorial: tenacity


@row("stop_after_attempt(3)")
def _(here):
    came_out, calls = retried(here, *lost(9))
    assert (type(came_out), len(calls)) == (ConnectionResetError, 3)


def delays(backoff, many=4):
    return [backoff.delay(retry) for retry in range(many)]


def their_delays(wait, many=4):
    return [
        wait(SimpleNamespace(attempt_number=attempt, upcoming_sleep=0.0)) for attempt in range(1, many + 1)
    ]


@row("wait_exponential(multiplier=1, min=1, max=60)")
def _(here):
    import tenacity

    from headgate.tenacity import wait_backoff

    assert delays(here(), 8) == their_delays(tenacity.wait_exponential(multiplier=1, min=1, max=60), 8)
    assert their_delays(wait_backoff(here()), 8) == delays(here(), 8)
    assert retried(lambda **names: names["retry"](backoff=here())(names["func"]), *lost(1))[0] == "hello"


@row("wait_exponential(multiplier=1, min=4, max=60)")
def _(here):
    import tenacity

    assert delays(here()) == [4, 8, 16, 32]
    assert their_delays(tenacity.wait_exponential(multiplier=1, min=4, max=60)) == [4, 4, 4, 8]


@row("wait_exponential()")
def _(here):
    import tenacity

    assert delays(here(), 20) == their_delays(tenacity.wait_exponential(), 20)


@row("retry_if_exception_type((RateLimitError, APIError))")
def _(here):
    assert retried(here, APIError())[0] == "hello"
    came_out, calls = retried(here, ConnectionResetError())
    assert (type(came_out), calls) == (ConnectionResetError, [0.0])


@row("before_sleep_log(logger, logging.WARNING)")
def _(here):
    import logging

    lines = []
    handler = logging.Handler()
    handler.emit = lines.append
    logger = logging.getLogger("headgate")
    logger.addHandler(handler)
    try:
        retried(here, *lost(1), print=lambda event: None)
    finally:
        logger.removeHandler(handler)
    assert [line.levelno for line in lines] == [logging.WARNING]


@row("reraise=True")
def _(here):
    failures = lost(4)
    came_out, _ = retried(here, *failures)
    assert came_out is failures[-1]
    assert came_out.__notes__ == ["headgate: gave up after 4 calls: no retries are left"]


@row("RetryError")
def _(here):
    assert type(retried(here, *lost(4))[0]) is ConnectionResetError
    assert not hasattr(headgate, "RetryError")


# -- the tutorial: TokenBudget


@row("TokenBudget(max_tokens_per_hour=100_000)")
def _(here):
    clock = ManualClock()
    budget = here(TokenBudget=on(clock, TokenBudget, max_tokens_per_request=None))
    budget.record_usage(100_000)
    assert not budget.check_budget(1)
    clock.advance(3600)
    assert budget.check_budget(100_000)
    assert defaults(TokenBudget)["max_tokens_per_hour"] == 100_000
    assert TokenBudget(windows={60: 1_000, 3600: 5_000}).remaining_budget == 1_000


@row("TokenBudget(max_tokens_per_request=10_000)")
def _(here):
    assert [here().check_budget(tokens) for tokens in (10_000, 10_001)] == [True, False]
    assert defaults(TokenBudget)["max_tokens_per_request"] == 10_000


@row("budget.check_budget(estimated)")
def _(here):
    budget = TokenBudget(max_tokens_per_hour=10_000)
    assert [here(budget=budget, estimated=4_000) for _ in range(10)] == [True] * 10
    reserved = 0
    for _ in range(10):
        try:
            budget.reserve(4_000)
        except BudgetExceeded:
            continue
        reserved += 1
    assert reserved == 2


@row("budget.record_usage(tokens_used)")
def _(here):
    budget = TokenBudget(max_tokens_per_hour=10_000)
    here(budget=budget, tokens_used=12_000)
    assert budget.remaining_budget == 0
    with pytest.raises(ValueError):
        here(budget=budget, tokens_used=-1)


@row("budget.remaining_budget")
def _(here):
    budget = TokenBudget(max_tokens_per_hour=10_000)
    assert here(budget=budget) == 10_000
    budget.record_usage(4_000)
    assert here(budget=budget) == 6_000


@row("budget.usage_log")
def _(here):
    budget = TokenBudget()
    assert here(budget=budget) == 100_000
    assert not hasattr(budget, "usage_log")


@row("user_budgets, get_user_budget(user_id)")
def _(here):
    tiers = {"free": {"max_tokens_per_hour": 50_000, "max_tokens_per_request": 4_000}}
    book = BudgetBook(tiers)
    budget = here(book=book, user_id="ann")
    assert here(book=book, user_id="ann") is budget
    assert budget.remaining_budget == 50_000
    assert [budget.check_budget(tokens) for tokens in (4_000, 4_001)] == [True, False]
    assert here(book=book, user_id="bob") is not budget


@row("handle_request(user_id, prompt)")
def _(here):
    budget = TokenBudget(max_tokens_per_hour=10_000, name="ann", clock=ManualClock())
    here(budget=budget, estimated=4_000, tokens_used=120)
    assert budget.remaining_budget == 9_880
    budget.record_usage(9_000)
    with pytest.raises(BudgetExceeded) as refusal:
        here(budget=budget, estimated=1_000, tokens_used=0)
    assert (refusal.value.budget, refusal.value.remaining) == ("ann", 880)
    assert refusal.value.rule == "tokens/hour"
    assert refusal.value.retry_after == 3600.0
