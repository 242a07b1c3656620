"""DistributedLimiter as one process uses it: options, MemoryLimiter's methods, events, its life."""

import asyncio
import gc
import inspect
import random
import threading
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forks import in_a_child, needs_fork
from headgate import (
    CapacityExhausted,
    Closed,
    DistributedLimiter,
    InvalidConfig,
    MemoryLimiter,
    UnknownResource,
    WaitTimeout,
    events,
)
from headgate.swarm.bus.memory import MemoryBus
from headgate.testing import ManualClock, Recorder, UnreliableBus, run
from swarm.team import API, FORGET, LEASE

DOCS = Path(__file__).parent.parent.parent / "docs"


# -- options


def test_options_have_the_documented_defaults():
    parameters = inspect.signature(DistributedLimiter).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    for name, value in {
        "bus": inspect.Parameter.empty,
        "agent_id": inspect.Parameter.empty,
        "reduce_factor": 0.5,
        "recovery_interval": 30.0,
        "recovery_factor": 1.1,
        "max_recovery": True,
        "sharing": "total",
    }.items():
        assert defaults[name] == value


@pytest.mark.parametrize(
    "wrong",
    [
        {"bus": None},
        {"bus": ""},
        {"bus": 7},
        {"bus": "carrier pigeon"},
        {"agent_id": ""},
        {"agent_id": None},
        {"agent_id": 7},
        {"reduce_factor": 0},
        {"reduce_factor": 1},
        {"reduce_factor": 2.0},
        {"reduce_factor": -0.5},
        {"reduce_factor": float("nan")},
        {"recovery_factor": 1},
        {"recovery_factor": 0.9},
        {"recovery_factor": float("nan")},
        {"recovery_interval": 0},
        {"recovery_interval": -1},
        {"recovery_interval": float("inf")},
        {"recovery": "someday"},
        {"sharing": "none"},
        {"on_loss": "panic"},
        {"lease": 0},
        {"forget_after": -1},
        {"secret": ""},
        {"namespace": "a b"},
        {"namespace": "a.*"},
        {"namespace": ">"},
        {"weight": 0},
        {"on_capacity_change": 7},
        {"observer": 7},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused_at_construction(wrong):
    with pytest.raises((InvalidConfig, ValueError)):
        DistributedLimiter(**{"bus": MemoryBus(), "agent_id": "agent-1", **wrong})


def test_a_bus_that_cannot_subscribe_fails_the_construction():
    class Deaf:
        def publish(self, subject, data, *, retain=False):
            pass

        def subscribe(self, subject, deliver):
            raise ConnectionRefusedError("connection refused")

    with pytest.raises(ConnectionRefusedError, match="connection refused"):
        DistributedLimiter(bus=Deaf(), agent_id="agent-1")


# -- as a MemoryLimiter


operations = st.one_of(
    st.tuples(st.just("try_acquire"), st.integers(1, 3)),
    st.tuples(st.just("release"), st.booleans()),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.3, 1.7, 11.0, 70.0])),
    st.tuples(st.just("set_capacity"), st.integers(1, 30)),
    st.tuples(st.just("slot"), st.integers(1, 3)),
    st.tuples(st.just("acquire"), st.integers(1, 3)),
)


@settings(max_examples=40)
@given(story=st.lists(operations, max_size=25))
def test_an_agent_on_its_own_behaves_as_a_memory_limiter(story):
    clock = ManualClock()
    agent = DistributedLimiter(bus=MemoryBus(), agent_id="agent-1", clock=clock)
    twin = MemoryLimiter(clock=clock)
    for each in (agent, twin):
        each.set_capacity(API, 10, 60)
    for what, how in story:
        outcomes = []
        if what == "advance":
            clock.advance(how)
        for each in (agent, twin):
            try:
                outcomes.append(do(each, what, how))
            except Exception as error:  # noqa: BLE001 - they are compared
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1], (what, how)
        assert agent.get_capacity(API) == twin.get_capacity(API), (what, how)
    agent.close()


def do(limiter, what, how):
    if what == "try_acquire":
        return limiter.try_acquire(API, cost=how)
    if what == "release":
        return limiter.release(API, refund=how)
    if what == "set_capacity":
        return limiter.set_capacity(API, how, 60)
    if what == "acquire":
        return limiter.acquire(API, cost=how, timeout=0)
    if what == "slot":
        with limiter.slot(API, cost=how, timeout=0):
            return limiter.get_capacity(API).in_flight
    return None


def test_time_outs_and_errors_are_those_of_the_memory_limiter(team):
    swarm = team(1, capacity=1)
    agent = swarm.agents[0]
    agent.acquire(API)
    with pytest.raises(WaitTimeout):
        agent.acquire(API, timeout=1)
    with pytest.raises(CapacityExhausted):
        agent.acquire(API, timeout=0)
    with pytest.raises(UnknownResource):
        agent.acquire("another")
    assert agent.try_acquire("another") is False
    assert agent.get_capacity("another") is None
    agent.remove(API)
    with pytest.raises(UnknownResource):
        agent.acquire(API)


def test_tasks_wait_in_line():
    async def main(clock):
        agent = DistributedLimiter(bus=MemoryBus(), agent_id="agent-1", clock=clock)
        agent.set_capacity(API, 1, 1)
        order = []

        async def work(n):
            await agent.acquire_async(API)
            order.append((n, clock.seconds()))

        await asyncio.gather(*(work(n) for n in range(4)))
        agent.close()
        return order

    assert run(main) == [(n, float(n)) for n in range(4)]


def test_a_new_capacity_takes_effect_at_once_and_recovery_leads_to_it(team):
    swarm = team(1, recovery="stepwise")
    agent = swarm.agents[0]
    agent.set_capacity(API, 200, 60)
    assert swarm.totals() == [200]
    agent.announce_reduced(API, "429")
    assert swarm.totals() == [100]
    agent.set_capacity(API, 400, 60)
    assert 100 < swarm.totals()[0] <= 400
    swarm.work(400)
    assert swarm.totals() == [400]


def test_release_refunds_unless_told_otherwise_and_a_slot_never_does(team):
    swarm = team(1, capacity=5)
    agent = swarm.agents[0]
    agent.acquire(API)
    agent.release(API)
    assert agent.get_capacity(API).available == 5
    agent.acquire(API)
    agent.release(API, refund=False)
    assert agent.get_capacity(API).available == 4
    with agent.slot(API):
        assert agent.get_capacity(API).in_flight == 1
    assert (agent.get_capacity(API).available, agent.get_capacity(API).in_flight) == (3, 0)


def test_announce_reduced_of_a_memory_limiter_tells_its_observer_only():
    seen = Recorder()
    limiter = MemoryLimiter(observer=seen, clock=ManualClock())
    limiter.set_capacity(API, 100, 60)
    limiter.announce_reduced(API, "429")
    assert limiter.get_capacity(API).total == 100
    assert len(seen.of(events.CapacityReduced)) == 1


def test_release_of_a_full_bucket_ends_the_call_and_adds_no_token(team):
    swarm = team(1, capacity=5)
    agent = swarm.agents[0]
    agent.acquire(API)
    swarm.clock.advance(60)
    agent.release(API)
    assert (agent.get_capacity(API).available, agent.get_capacity(API).in_flight) == (5, 0)
    agent.release(API)
    assert agent.get_capacity(API).available == 5


def test_waiting_calls_are_admitted_when_the_share_arrives():
    """A call of a newcomer, here in a task, waits in line until the newcomer has a share."""

    async def main(clock):
        bus = UnreliableBus(clock, random.Random(5).random)
        bus.settles = 0.5
        agent = DistributedLimiter(bus=bus.endpoint("one"), agent_id="one", clock=clock)
        agent.set_capacity("api", 10, 1)
        assert not agent.try_acquire("api")
        await agent.acquire_async("api", timeout=5)
        waited = clock.seconds()
        agent.close()
        return waited

    assert 0.5 <= run(main) <= 0.6


def test_a_time_out_is_foreseen_only_if_the_share_cannot_grow():
    """A waiting call makes the share grow. An agent alone has the whole, so the time-out is certain."""
    clock, bus = ManualClock(auto_advance=True), MemoryBus()
    one, two = (DistributedLimiter(bus=bus, agent_id=name, clock=clock) for name in ("one", "two"))
    one.set_capacity("api", 6, 60, burst=1)
    one.acquire("api")
    with pytest.raises(WaitTimeout):
        one.acquire("api", timeout=5)
    assert clock.seconds() == 0
    two.set_capacity("api", 6, 60, burst=1)
    with pytest.raises(WaitTimeout):
        one.acquire("api", timeout=5)
    assert clock.seconds() == 5


# -- events


def test_an_observer_hears_of_changes_of_the_total_and_the_share():
    clock, bus, seen = ManualClock(), MemoryBus(), Recorder()
    one = DistributedLimiter(bus=bus, agent_id="one", clock=clock, observer=seen)
    one.set_capacity("api", 100, 60)
    two = DistributedLimiter(bus=bus, agent_id="two", clock=clock)
    two.set_capacity("api", 100, 60)
    two.announce_reduced("api", "too many")
    changes = seen.of(events.CapacityChanged)
    assert [(each.total, each.share, each.reason) for each in changes] == [
        (100, 100, ""),
        (100, 50, ""),
        (50, 25, "too many"),
    ]
    assert seen.of(events.CapacityReduced) == []  # that is told where it is announced
    bus.publish("ratelimit.capacity", b"nonsense")
    assert [each.reason for each in seen.of(events.UpdateIgnored)] == ["malformed"]


# -- its life


def test_a_closed_agent_refuses_and_leaves_its_share(team):
    swarm = team(2)
    agent, other = swarm.agents
    agent.close()
    agent.close()
    with pytest.raises(Closed):
        agent.acquire(API)
    assert agent.try_acquire(API) is False
    agent.release(API)
    with pytest.raises(Closed):
        agent.set_capacity("another", 1, 1)
    swarm.clock.advance(1)
    assert other.get_capacity(API).share == 100


def test_leaving_a_with_block_closes_the_limiter(team):
    swarm = team(1)
    with swarm.join("guest") as guest:
        assert guest.get_capacity(API).share > 0
    with pytest.raises(Closed):
        guest.acquire(API)

    async def visit():
        async with swarm.join("another") as another:
            pass
        with pytest.raises(Closed):
            await another.acquire_async(API)

    asyncio.run(visit())
    assert swarm.agents[0].get_capacity(API).share == 100


def test_a_caller_that_waits_when_the_limiter_is_closed_raises_closed():
    async def main(clock):
        agent = DistributedLimiter(bus=MemoryBus(), agent_id="agent-1", clock=clock)
        agent.set_capacity(API, 1, 60)
        agent.acquire(API)
        waiting = asyncio.create_task(agent.acquire_async(API))
        await asyncio.sleep(1)
        agent.close()
        with pytest.raises(Closed):
            await waiting
        return clock.seconds()

    assert run(main) == 1.0


def test_an_agent_without_references_is_collected_and_its_share_is_not_lost():
    clock, bus = ManualClock(), MemoryBus()
    one, two = (DistributedLimiter(bus=bus, agent_id=name, clock=clock) for name in ("one", "two"))
    for agent in (one, two):
        agent.set_capacity("api", 100, 60)
    gone = weakref.ref(one)
    del one, agent
    gc.collect()
    assert gone() is None
    clock.advance(LEASE + FORGET + 2 * LEASE)
    assert two.get_capacity("api").share == 100


def test_a_removed_resource_leaves_its_share_and_may_come_back():
    clock, bus = ManualClock(), MemoryBus()
    one, two = (DistributedLimiter(bus=bus, agent_id=name, clock=clock) for name in ("one", "two"))
    for agent in (one, two):
        agent.set_capacity("api", 100, 60)
        agent.set_capacity("other", 10, 60)
    one.remove("api")
    assert one.get_capacity("api") is None
    assert (two.get_capacity("api").share, two.get_capacity("other").share) == (100, 5)
    one.set_capacity("api", 100, 60)
    assert one.get_capacity("api").share + two.get_capacity("api").share == 100


@needs_fork
def test_a_forked_child_is_another_agent_and_joins_by_itself():
    """The child has fresh locks, and a share only when it has joined, here on a bus of its own."""
    clock, bus = ManualClock(), MemoryBus()
    parent = DistributedLimiter(bus=bus, agent_id="one", clock=clock)
    parent.set_capacity("api", 100, 60)
    parent.acquire("api")

    def check():
        clock.auto_advance = True
        parent.acquire("api", timeout=600)

    assert in_a_child(check) == 0
    assert parent.get_capacity("api").share == 100


def test_threads_may_use_all_agents_of_a_process_at_once():
    """A bus in memory delivers in the publishing thread: agents call each other without a deadlock."""
    bus = MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}") for n in range(4)]
    for agent in agents:
        agent.set_capacity(API, 1000, 60)
    errors = []

    def busy(number):
        mine = agents[number % 4]
        try:
            for turn in range(60):
                mine.try_acquire(API)
                mine.get_capacity(API)
                if turn % 7 == number % 7:
                    mine.announce_reduced(API, "429", retry_after=0.001)
                if turn % 11 == 0:
                    mine.set_capacity(f"own-{number}", 10 + turn, 60)
                if turn % 13 == 0:
                    mine.remove(f"own-{number}")
        except Exception as error:  # noqa: BLE001 - whatever it is
            errors.append(error)

    threads = [threading.Thread(target=busy, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert len({agent.get_capacity(API).total for agent in agents}) == 1
    assert sum(agent.get_capacity(API).share for agent in agents) <= agents[0].get_capacity(API).total
    for agent in agents:
        agent.close()


def test_the_documentation_gives_the_best_practices():
    pages = [DOCS / name for name in ("swarm.md", "earlier-designs.md")]
    text = " ".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
    for advice in ("below the real limit", "slot(", "try_acquire(", "observer"):
        assert advice in text
