"""The limiter of a swarm, as one agent sees it: demand, loss, leaders that go, forks, and what is told."""

import gc
import random
import weakref
from itertools import pairwise

import pytest

from forks import in_a_child, needs_fork
from headgate import DistributedLimiter, Rate, WaitTimeout, events
from headgate.swarm.bus.memory import MemoryBus
from headgate.testing import ManualClock, Recorder, UnreliableBus, run

LEASE = 10.0
FORGET = 120.0


class Team:
    """So many agents who share 100 a minute, on a rough bus that is not rough yet."""

    def __init__(self, many, **options):
        self.clock = ManualClock()
        self.bus = UnreliableBus(self.clock, random.Random(many).random)
        self.bus.splits = options.pop("splits", False)
        self.bus.settles = 0.5
        self.options = options
        self.agents = []
        for n in range(many):
            self.join(f"agent-{n}")
        self.clock.advance(20)

    def join(self, name, **options):
        options = {**self.options, **options}
        bus = self.bus.endpoint(name)
        agent = DistributedLimiter(bus=bus, agent_id=name, clock=self.clock, **options)
        agent.set_capacity("api", 100, 60)
        self.agents.append(agent)
        self.clock.advance(1)
        return agent

    @property
    def shares(self):
        return [agent.get_capacity("api").share for agent in self.agents]

    @property
    def totals(self):
        return {agent.get_capacity("api").total for agent in self.agents}


@pytest.fixture
def team():
    return Team


# -- by demand


def test_whoever_needs_more_gets_what_others_leave_and_gives_it_back(team):
    """R-4: weighted max-min, by how much was used and who waits; nobody below half an equal share."""
    swarm = team(4)
    busy = swarm.agents[2]
    for _ in range(60):
        swarm.clock.advance(0.5)
        while busy.try_acquire("api"):
            pass
    assert swarm.shares[2] > 55
    assert min(swarm.shares) >= 12
    assert sum(swarm.shares) <= 100
    swarm.clock.advance(60)
    assert swarm.shares == [25, 25, 25, 25]


def test_an_agent_may_weigh_more(team):
    swarm = team(1)
    swarm.join("heavy", weight=3)
    swarm.clock.advance(30)
    assert swarm.shares == [25, 75]


def test_a_share_of_less_than_one_is_still_something():
    """Ten agents and three a minute: each goes now and then, all together three times a minute."""
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(10)]
    for agent in agents:
        agent.set_capacity("api", 3, 60, burst=1)
    clock.advance(120)
    for agent in agents:
        while agent.try_acquire("api"):
            pass
    taken = 0
    for _ in range(1200):
        clock.advance(1)
        taken += sum(agent.try_acquire("api") for agent in agents)
    assert 54 <= taken <= 70


def test_after_a_cut_a_crowd_goes_evenly_one_by_one():
    """However many they are: who has less than a call at a time has its turn between those of the others.

    A crowd that goes in no order has the API refuse calls when it takes no more than there is, and each of
    those refusals would be taken for the reason of another cut.
    """
    clock = ManualClock()
    bus = UnreliableBus(clock, random.Random(7).random, fastest=0.005, slowest=0.02)
    bus.splits = False
    agents = []
    for n in range(60):
        endpoint = bus.endpoint(f"agent-{n}")
        agents.append(
            DistributedLimiter(bus=endpoint, agent_id=f"agent-{n}", recovery="stepwise", clock=clock)
        )
        agents[-1].set_capacity("api", 120, 10, burst=1)
        clock.advance(0.1)

    def calls(seconds):
        """How many were let in by the end of each tenth of a second, if all ask all the time."""
        taken = [0]
        for _ in range(10 * seconds):
            clock.advance(0.1)
            taken.append(taken[-1] + sum(agent.try_acquire("api") for agent in agents))
        return taken

    calls(30)
    for per_second, seconds in ((6, 4), (3, 22)):
        agents[17].announce_reduced("api", "429", sent_at=clock.seconds())
        for tenth, taken in enumerate(calls(seconds)):
            assert abs(taken - per_second * tenth / 10) <= 2, tenth
    for agent in agents:
        agent.close()


def test_a_crowd_takes_breath_at_a_cut_and_then_has_what_is_left():
    """The API had nothing left when it refused: whoever goes at once is refused too, for no other reason."""
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(60)]
    for agent in agents:
        agent.set_capacity("api", 1200, 10, burst=1)
    clock.advance(20)

    def calls(seconds):
        taken = 0
        for _ in range(round(100 * seconds)):
            clock.advance(0.01)
            taken += sum(agent.try_acquire("api") for agent in agents)
        return taken

    calls(2)
    agents[17].announce_reduced("api", "429", sent_at=clock.seconds())
    assert calls(0.09) == 0
    assert abs(calls(1.01) - 60) <= 1
    bus.close()


@pytest.mark.parametrize("many", [1, 3])
def test_no_cut_lets_anybody_go_sooner(many):
    """One a second, without a burst: two calls are never closer than that, whenever it is cut."""
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(many)]
    for agent in agents:
        agent.set_capacity("api", 60, 60, burst=1)
    clock.advance(20)
    went = []
    for step in range(600):
        clock.advance(0.1)
        went += [clock.seconds() for agent in agents if agent.try_acquire("api")]
        if step % 47 == 46:
            agents[0].announce_reduced("api", "429", sent_at=clock.seconds())
        if step == 46:
            del went[:-1]  # from the first cut on they go in an order
    bus.close()
    assert min(later - sooner for sooner, later in pairwise(went)) >= 0.999


def test_a_strict_rate_is_shared_strictly():
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(2)]
    for agent in agents:
        agent.set_rates("api", Rate(10, 60, strict=True))
    clock.advance(60)
    assert [sum(agent.try_acquire("api") for _ in range(20)) for agent in agents] == [5, 5]


# -- what is lost


@pytest.mark.parametrize(("on_loss", "left"), [("share", 12), ("closed", 0), ("open", 25)])
def test_an_agent_that_lost_the_others_goes_by_what_it_was_told(team, on_loss, left):
    swarm = team(4, on_loss=on_loss)
    swarm.bus.disconnected.add("agent-1")
    swarm.clock.advance(2 * LEASE)
    assert swarm.shares[1] == left
    swarm.bus.disconnected.clear()
    swarm.clock.advance(2 * LEASE)
    assert swarm.shares == [25, 25, 25, 25]


def test_waiting_without_a_share_is_waiting_for_one(team):
    """Nobody is refused because the others are lost: it waits, or runs out of time, as at any gate."""
    swarm = team(2, on_loss="closed")
    swarm.bus.disconnected.add("agent-1")
    swarm.clock.advance(2 * LEASE)
    assert not swarm.agents[1].try_acquire("api")
    swarm.clock.auto_advance = True
    with pytest.raises(WaitTimeout) as refused:
        swarm.agents[1].acquire("api", timeout=1)
    assert refused.value.rule == "share"
    swarm.bus.disconnected.clear()
    swarm.agents[1].acquire("api", timeout=60)


def test_whoever_leads_may_go_and_another_goes_on_at_once(team):
    swarm = team(5)
    for left in (4, 3, 2, 1):
        swarm.agents.pop(0).close()
        swarm.clock.advance(0.1)
        assert sum(swarm.shares) in range(100 - left, 101)


@pytest.mark.parametrize("splits", [False, True])
def test_whoever_leads_may_crash_and_another_takes_over(team, splits):
    """Where the bus cannot split within a lease; where it can, when a majority has waited for another one."""
    swarm = team(4, splits=splits)
    swarm.bus.disconnected.add("agent-0")
    swarm.agents.pop(0)
    swarm.clock.advance(LEASE if not splits else 3 * LEASE)
    assert sum(swarm.shares) >= 85  # all but what is safe for it
    swarm.clock.advance(FORGET + LEASE)
    assert sum(swarm.shares) >= 98


def test_a_minority_waits_and_a_majority_goes_on(team):
    swarm = team(5, splits=True)
    swarm.bus.partitions = {"agent-0": 1, "agent-1": 1}
    swarm.clock.advance(4 * LEASE)
    assert swarm.shares[:2] == [10, 10]
    assert sum(swarm.shares[2:]) >= 78
    swarm.bus.partitions = {}
    swarm.clock.advance(2 * LEASE)
    assert swarm.shares == [20] * 5


def test_those_cut_together_come_back_together_although_they_were_apart(team):
    """D-70: whoever leads lets the total grow; who was away takes over what has grown meanwhile."""
    swarm = team(3, recovery="stepwise", recovery_interval=5)
    swarm.agents[0].announce_reduced("api", "429")
    swarm.clock.advance(1)
    assert swarm.totals == {50}
    swarm.bus.disconnected.add("agent-2")
    for _ in range(20):
        swarm.clock.advance(1)
        for agent in swarm.agents[:2]:
            agent.try_acquire("api")
    assert len(swarm.totals) == 2
    swarm.bus.disconnected.clear()
    swarm.clock.advance(LEASE)
    (total,) = swarm.totals
    assert total > 55


# -- what observers hear


def test_an_observer_hears_what_happens_to_its_share():
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


def test_calls_are_admitted_in_line_when_a_share_arrives():
    """A newcomer that waits for its share stands in line as everybody does, in tasks too."""

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


# -- its life


def test_an_agent_that_nobody_holds_is_gone_and_its_share_is_not_lost():
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


def test_a_resource_that_is_removed_leaves_its_share_and_may_come_back():
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
def test_a_forked_child_is_another_agent_with_nothing_of_its_parents():
    """Rule 7: fresh locks, and a share only when it has joined by itself; here, on a bus of its own."""
    clock, bus = ManualClock(), MemoryBus()
    parent = DistributedLimiter(bus=bus, agent_id="one", clock=clock)
    parent.set_capacity("api", 100, 60)
    parent.acquire("api")

    def check():
        clock.auto_advance = True
        parent.acquire("api", timeout=600)

    assert in_a_child(check) == 0
    assert parent.get_capacity("api").share == 100


def test_a_wait_that_only_a_larger_share_could_end_is_waited_out():
    """Waiting is what makes a share grow; on its own one knows that nothing will, and is told at once."""
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
