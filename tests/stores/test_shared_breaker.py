"""One circuit for all processes: opened by one it is open for all, and all of them probe as one.

What can be seen in virtual time is, with the store in this process; the rest by real processes and servers.
"""

import asyncio
import json
import select
import time
from contextlib import closing
from uuid import uuid4

import pytest

from faults.rig import Proxy, Server, free_port
from forks import in_a_child
from headgate import (
    BreakerRegistry,
    CircuitBreaker,
    CircuitBreakerOpen,
    CircuitState,
    InvalidConfig,
    ResilienceConfig,
    ResilientClient,
    StoreError,
)
from headgate import events as ev
from headgate.sharing.memory import MemoryStore
from headgate.testing import ManualClock, Recorder
from patience import PATIENCE, eventually
from stores.processes import Processes

pytestmark = pytest.mark.alone

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


@pytest.fixture
def key():
    return f"circuit {uuid4().hex}"


@pytest.fixture
def clock():
    return ManualClock()


class Fleet:
    """Breakers that share one circuit in this process, on a clock that the test moves."""

    def __init__(self, clock, many=3, threshold=2, recovery=30, **options):
        self.clock = clock
        self.store = MemoryStore(clock)
        self.seen = Recorder()
        self.options = {"key": "far side", "store": self.store, "observer": self.seen, "clock": clock}
        self.options |= options
        self.threshold, self.recovery = threshold, recovery
        self.breakers = [self.one_more() for _ in range(many)]

    def one_more(self):
        return CircuitBreaker(self.threshold, self.recovery, **self.options)

    def trip(self, breaker=None):
        breaker = breaker or self.breakers[0]
        for _ in range(self.threshold):
            assert isinstance(outcome(breaker, fail), ConnectionError)

    @property
    def states(self):
        return [breaker.state for breaker in self.breakers]


@pytest.fixture
def fleet(clock):
    return Fleet(clock)


def fail():
    raise ConnectionError("down")


def well():
    return "well"


def outcome(breaker, fn, *args):
    try:
        return breaker.call(fn, *args)
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error


# -- virtual time


def test_a_circuit_opened_by_one_breaker_is_open_for_all_and_for_later_ones(fleet, clock):
    fleet.trip()
    assert fleet.states == [OPEN] * 3
    clock.advance(12)
    later = fleet.one_more()
    assert later.state is OPEN
    refusal = outcome(later, well)
    assert isinstance(refusal, CircuitBreakerOpen)
    assert refusal.retry_after == pytest.approx(18, abs=0.01)
    assert "2 calls in a row failed" in str(refusal)


def test_each_breaker_counts_its_own_failures(fleet):
    """Four failures in all, and only the last two in a row by one breaker."""
    for breaker in fleet.breakers:
        outcome(breaker, fail)
    assert fleet.states == [CLOSED] * 3
    outcome(fleet.breakers[1], fail)
    assert fleet.states == [OPEN] * 3


def test_one_probe_goes_in_the_fleet_and_its_success_closes_the_circuit_for_all(fleet, clock):
    fleet.trip()
    clock.advance(30)
    assert fleet.states == [HALF_OPEN] * 3
    others = []

    def probe():
        others.extend(outcome(breaker, well) for breaker in (fleet.breakers[0], fleet.breakers[2]))
        return "well"

    assert outcome(fleet.breakers[1], probe) == "well"
    assert [type(other) for other in others] == [CircuitBreakerOpen] * 2
    assert fleet.states == [CLOSED] * 3
    assert [outcome(breaker, well) for breaker in fleet.breakers] == ["well"] * 3


def test_half_open_probes_is_the_number_of_probes_of_all_breakers_together(clock):
    """`half_open_probes=2` for five breakers."""
    fleet = Fleet(clock, many=5, half_open_probes=2)

    async def main():
        running = asyncio.Event()

        async def ask():
            await running.wait()
            return "well"

        tasks = [
            asyncio.ensure_future(breaker.call_async(ask)) for breaker in fleet.breakers for _ in range(4)
        ]
        await asyncio.sleep(0)
        running.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    fleet.trip()
    clock.advance(30)
    replies = asyncio.run(main())
    assert replies.count("well") == 2
    assert fleet.states == [CLOSED] * 5


def test_a_probe_that_fails_opens_the_circuit_for_all_for_twice_as_long_with_one_draw(clock):
    """The breaker that opens the circuit draws the jitter for all."""
    fleet = Fleet(clock, many=0, max_recovery_timeout=300, recovery_jitter=0.2)
    for drawn in (0.5, 0.25, 0.75):
        fleet.options["random"] = lambda drawn=drawn: drawn
        fleet.breakers.append(fleet.one_more())
    fleet.trip()
    for waits, prober in ((33, 1), (63, 2), (138, 0)):
        refusals = [outcome(breaker, well).retry_after for breaker in fleet.breakers]
        assert refusals == pytest.approx([waits] * 3, abs=0.01)
        clock.advance(waits)
        assert isinstance(outcome(fleet.breakers[prober], fail), ConnectionError)
        assert fleet.states == [OPEN] * 3


@pytest.mark.parametrize("how", ["429", "cancelled"])
def test_a_probe_without_a_verdict_makes_room_for_another_in_any_breaker(fleet, clock, how):
    class TooManyRequests(Exception):
        status_code = 429

    def probe():
        raise TooManyRequests if how == "429" else asyncio.CancelledError

    fleet.trip()
    clock.advance(30)
    with pytest.raises((TooManyRequests, asyncio.CancelledError)):
        fleet.breakers[0].call(probe)
    assert fleet.states == [HALF_OPEN] * 3
    assert outcome(fleet.breakers[1], well) == "well"
    assert fleet.states == [CLOSED] * 3


def test_a_lost_probe_is_in_the_way_until_its_lease_ends(clock):
    fleet = Fleet(clock, probe_timeout=7)
    fleet.trip()
    clock.advance(30)
    lost = fleet.breakers[0].enter()  # and its process dies
    refusal = outcome(fleet.breakers[1], well)
    assert refusal.retry_after == pytest.approx(7, abs=0.01)
    clock.advance(6.9)
    assert isinstance(outcome(fleet.breakers[2], well), CircuitBreakerOpen)
    clock.advance(0.11)
    assert outcome(fleet.breakers[1], well) == "well"
    fleet.breakers[0].failed(lost, ConnectionError(), 0)  # it was only slow: of another generation by now
    assert fleet.states == [CLOSED] * 3


def test_calls_from_before_a_shared_circuit_opened_decide_nothing(fleet, clock):
    early = [breaker.enter() for breaker in fleet.breakers]
    fleet.trip()
    clock.advance(30)
    fleet.breakers[1].succeeded(early[1], 0)
    fleet.breakers[2].failed(early[2], ConnectionError(), 0)
    assert fleet.states == [HALF_OPEN] * 3
    assert outcome(fleet.breakers[1], well) == "well"
    assert fleet.states == [CLOSED] * 3


def test_reset_closes_a_shared_circuit_for_all(fleet):
    fleet.trip()
    fleet.breakers[2].reset()
    assert fleet.states == [CLOSED] * 3
    fleet.breakers[1].reset()  # nothing to close
    fleet.trip(fleet.breakers[1])
    assert fleet.states == [OPEN] * 3


def test_every_observer_is_told_once_of_every_change(fleet, clock):
    fleet.trip()
    clock.advance(30)
    outcome(fleet.breakers[1], fail)
    clock.advance(30)
    outcome(fleet.breakers[2], well)
    kinds = [type(event) for event in fleet.seen.events]
    assert kinds.count(ev.CircuitOpened) == 6
    assert kinds.count(ev.CircuitClosed) == 3
    assert kinds.count(ev.CircuitProbing) == 2
    assert {event.key for event in fleet.seen.events} == {"far side"}


def test_a_record_that_is_lost_while_open_lets_one_probe_through(fleet, clock):
    """After FLUSHALL each breaker goes on from what it has heard."""
    fleet.trip()
    fleet.store._records._kept.clear()
    clock.advance(30)
    reached = []

    def probe():
        reached.extend(outcome(breaker, well) for breaker in fleet.breakers[1:])
        raise ConnectionError

    outcome(fleet.breakers[0], probe)
    assert [type(each) for each in reached] == [CircuitBreakerOpen] * 2
    assert fleet.states == [OPEN] * 3


def test_a_registry_shares_by_key(clock):
    store = MemoryStore(clock)
    one, other = (BreakerRegistry(failure_threshold=1, store=store, clock=clock) for _ in range(2))
    outcome(one.for_key("a"), fail)
    assert (other.for_key("a").state, other.for_key("b").state) == (OPEN, CLOSED)
    other.reset("a")
    assert one.state("a") is CLOSED
    with pytest.raises(InvalidConfig, match="write a string"):
        one.for_key(5)


def test_registries_share_within_their_own_key(clock):
    store = MemoryStore(clock)
    one, other, stranger = (
        BreakerRegistry(key=key, failure_threshold=1, store=store, clock=clock) for key in ("a", "a", "b")
    )
    outcome(one.for_key("target"), fail)
    assert (other.for_key("target").state, stranger.for_key("target").state) == (OPEN, CLOSED)


def test_a_closed_breaker_leaves_the_store_and_goes_on_by_itself(fleet, clock):
    closed, other, third = fleet.breakers
    with closed:
        pass
    closed.close()
    fleet.trip(other)
    assert fleet.states == [CLOSED, OPEN, OPEN]
    clock.advance(30)
    assert outcome(third, well) == "well"
    fleet.trip(closed)
    assert fleet.states == [OPEN, CLOSED, CLOSED]
    clock.advance(30)
    assert outcome(closed, well) == "well"
    assert fleet.states == [CLOSED] * 3


def test_a_breaker_that_is_closed_hands_back_the_probe_that_it_was_lent(fleet, clock):
    async def closing():
        async with fleet.breakers[0] as breaker:
            breaker.check()  # asks for the probe

    fleet.trip()
    clock.advance(30)
    asyncio.run(closing())
    assert outcome(fleet.breakers[1], well) == "well"


def test_the_breakers_of_a_closed_registry_go_on_by_themselves(clock):
    store = MemoryStore(clock)
    one, other = (BreakerRegistry(failure_threshold=1, store=store, clock=clock) for _ in range(2))
    before = one.for_key("a")
    with one:
        pass
    one.close()
    outcome(other.for_key("a"), fail)
    outcome(other.for_key("b"), fail)
    assert (before.state, one.for_key("a").state, one.for_key("b").state) == (CLOSED, CLOSED, CLOSED)


def test_clients_of_one_key_share_their_circuits():
    clock = ManualClock()
    store = MemoryStore(clock)
    config = ResilienceConfig(max_retries=0, circuit_failure_threshold=1, requests_per_minute=None)
    one, other, stranger = (
        ResilientClient(config, key=key, store=store, clock=clock) for key in ("api", "api", "another")
    )
    try:
        with pytest.raises(ConnectionError):
            one.call(fail)
        with pytest.raises(CircuitBreakerOpen):
            other.call(well)
        assert stranger.call(well) == "well"
        clock.advance(30)
        assert other.call(well) == "well"
        assert one.call(well) == "well"
    finally:
        for client in (one, other, stranger):
            client.close()


def test_an_idle_shared_breaker_is_forgotten(clock):
    registry = BreakerRegistry(store=MemoryStore(clock), clock=clock)
    for k in range(1_000):
        assert registry.for_key(f"target {k}").call(well) == "well"
    assert len(registry) <= 128


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"key": "", "store": "memory:x"}, InvalidConfig, "write a string"),
        ({"key": "a", "store": "http://host"}, InvalidConfig, "not a kind of store"),
        ({"key": "a", "store": 5}, InvalidConfig, "is not a store"),
    ],
)
def test_a_store_that_cannot_work_says_so(options, error, said):
    with pytest.raises(error, match=said):
        CircuitBreaker(**options)


def test_a_server_that_is_not_there_is_a_store_error_without_its_password():
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    for make in (lambda: CircuitBreaker(key="a", store=url), lambda: BreakerRegistry(store=url)):
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            make()
        assert "secret" not in str(caught.value)


# -- real stores


def test_news_arrive_in_time_and_outlive_the_processes(store, key):
    """About 50 ms on Valkey and 150 ms on SQLite; a busy machine may take longer."""
    one, other = (CircuitBreaker(1, 60, key=key, store=store) for _ in range(2))
    outcome(one, fail)
    begun = time.monotonic()
    eventually(lambda: other.state is OPEN, "the other hears of it")
    assert time.monotonic() - begun < 1
    assert one.state is OPEN
    later = CircuitBreaker(1, 60, key=key, store=store)
    assert later.state is OPEN


def test_a_forked_child_shares_the_circuit_and_has_no_probe_of_its_parent(store, key):
    breaker = CircuitBreaker(1, 0.3, key=key, store=store)

    def closes_it():
        eventually(lambda: outcome(breaker, well) == "well", "the child becomes the probe")
        eventually(lambda: breaker.state is CLOSED, "the child hears that it is closed")

        eventually(lambda: not breaker._member.client.untold(), "all is told")

    outcome(breaker, fail)
    assert in_a_child(closes_it) == 0
    eventually(lambda: breaker.state is CLOSED, "the parent hears of it")
    assert outcome(breaker, well) == "well"


def test_a_lent_probe_that_no_call_uses_goes_back(server, key):
    """The breaker that asked for the probe makes no further call: the others do not wait for the lease."""
    one, other = (CircuitBreaker(1, 0.05, key=key, store=server.url, probe_timeout=60) for _ in range(2))
    outcome(one, fail)
    eventually(lambda: one.state is HALF_OPEN, "its time is up")
    assert isinstance(outcome(one, well), CircuitBreakerOpen)
    eventually(lambda: one._circuit._lent, "the probe is lent")
    begun = time.monotonic()
    eventually(lambda: outcome(other, well) == "well", "the other becomes the probe")
    assert time.monotonic() - begun < 10


def test_a_breaker_without_its_store_goes_on_by_itself_and_tells_it_later(key):
    """The observer is told of the loss and of the return."""
    with Server() as server, Proxy(server.port) as line:
        seen = Recorder()
        cut_off = CircuitBreaker(1, 0.3, key=key, store=line.url, observer=seen)
        other = CircuitBreaker(1, 60, key=key, store=server.url)
        line.open = False
        line.cut()
        outcome(cut_off, fail)
        assert cut_off.state is OPEN
        eventually(lambda: seen.of(ev.StoreLost), "the loss is noticed")
        assert other.state is CLOSED
        eventually(lambda: outcome(cut_off, well) == "well", "a probe of its own")
        assert cut_off.state is CLOSED
        outcome(cut_off, fail)
        line.open = True
        eventually(lambda: seen.of(ev.StoreRegained), "the return is noticed")
        eventually(lambda: other.state is not CLOSED, "the other hears what happened meanwhile")


def test_a_reply_that_is_lost_neither_loses_a_change_nor_makes_it_twice(server, key):
    with Proxy(server.port) as line:
        breaker = CircuitBreaker(1, 0.05, key=key, store=line.url)
        other = CircuitBreaker(1, 60, key=key, store=server.url)
        for turn in range(3):
            line.faults.extend(["lose", "lose"])  # the try, and the one that the store makes by itself
            outcome(breaker, fail)
            eventually(lambda: other.state is not CLOSED, "it is open for all")
            eventually(lambda: outcome(breaker, well) == "well", "a probe")
            eventually(lambda: other.state is CLOSED, "it is closed for all")
            eventually(lambda: breaker.state is CLOSED, "and here")
            assert other._circuit.generation == 2 * (turn + 1)


def sharing(many, store, key, *, recovery, seconds, takes=0.05, probe_timeout=30):
    """Several that share one circuit. One calls from the beginning, the others when its time is nearly up."""
    options = {"threshold": 2, "recovery": recovery, "key": key, "store": store}
    options |= {"takes": takes, "probe_timeout": probe_timeout}
    processes = Processes("circuit_sharer.py", [options] * many)
    for process in processes.running:
        first = process is processes.running[0]
        told = {
            "calls_from": processes.begin + (0 if first else recovery * 0.8),
            "down_until": processes.begin + recovery * 0.8,
            "end": processes.begin + seconds,
        }
        processes.tell(process, json.dumps(told))
    return processes


@pytest.mark.parametrize("store", ["sqlite", "valkey"], indirect=True)
def test_one_of_four_processes_probes_and_then_all_go(store, key):
    """No other process calls before the probe is over."""
    processes = sharing(4, store, key, recovery=0.6, seconds=1.2)
    results = processes.results()
    failed = [at for result in results for at, end in result["reached"] if at == end]
    assert len(failed) == 2  # one opened it, for all
    opened = [result["opened"] - max(failed) for result in results]
    assert max(opened) < 1
    went = sorted([at, end] for result in results for at, end in result["reached"] if at != end)
    assert went[0][0] >= max(failed) + 0.6
    assert all(at >= went[0][1] for at, _ in went[1:])  # no other call before the probe was over
    assert all(result["closed"] for result in results)
    assert all(any(at != end for at, end in result["reached"]) for result in results)


def test_a_process_that_dies_with_the_probe_costs_its_lease(server, key):
    """The probing process is killed; the next probe comes when its lease is over, and not before."""
    processes = sharing(3, server.url, key, recovery=0.3, seconds=1.9, takes=0.2, probe_timeout=0.7)
    # The process that probes says so; the others print nothing before that.
    (said, *_), _, _ = select.select([process.stdout for process in processes.running], [], [], PATIENCE)
    at = time.monotonic()
    processes.kill(next(process for process in processes.running if process.stdout is said))
    results = processes.results()
    went = sorted(begun for result in results for begun, end in result["reached"] if begun != end)
    assert went[0] >= at + 0.6
    assert went[0] < at + 1.5
    assert all(result["closed"] for result in results)


def test_a_flushed_server_lets_one_probe_through(server, key):
    """FLUSHALL while the circuit is open."""
    breakers = [CircuitBreaker(1, 0.2, key=key, store=server.url, probe_timeout=5) for _ in range(3)]
    outcome(breakers[0], fail)
    eventually(lambda: all(breaker.state is not CLOSED for breaker in breakers), "all are open")
    with closing(server.client()) as client:
        client.flushall()
    others = []

    def probe():
        for _ in range(20):
            others.extend(outcome(breaker, well) for breaker in breakers[1:])
            time.sleep(0.001)
        return "well"

    eventually(lambda: outcome(breakers[0], probe) == "well", "one probe")
    assert {type(other) for other in others} == {CircuitBreakerOpen}
    eventually(lambda: all(breaker.state is CLOSED for breaker in breakers), "closed for all")
