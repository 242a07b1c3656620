"""Agents that share a total: by demand, in turns, after losses, with other leaders, with a secret."""

import random
from itertools import pairwise

import pytest

from headgate import DistributedLimiter, Rate, WaitTimeout, events
from headgate.swarm.bus.memory import MemoryBus
from headgate.testing import ManualClock, Recorder, UnreliableBus
from swarm.team import API, FORGET, LEASE, NetworkTeam

# -- shares


def test_a_busy_agent_gets_what_others_leave_and_gives_it_back():
    """Weighted max-min by calls used and waiting; no agent falls below half an equal share."""
    swarm = NetworkTeam(4)
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


def test_an_agent_of_weight_three_gets_three_quarters_beside_one_of_weight_one():
    swarm = NetworkTeam(1)
    swarm.join("heavy", weight=3)
    swarm.clock.advance(30)
    assert swarm.shares == [25, 75]


def test_a_share_of_less_than_one_call_is_still_used():
    """Ten agents share three calls a minute: together they make three calls a minute."""
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


def test_a_newcomer_uses_no_more_than_its_share_in_its_first_minute(team):
    """It begins with an empty bucket: agents that were there may just have spent the burst."""
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    late = swarm.join("late")
    granted, due = 0, 0.0
    for _ in range(600):
        due += late.get_capacity(API).share / 600
        swarm.clock.advance(0.1)
        granted += late.try_acquire(API)
    assert 0 < granted <= due + 1


def test_agents_together_take_no_more_than_one_bucket_would_give(team):
    swarm = team(1)
    taken = sum(swarm.agents[0].try_acquire(API) for _ in range(200))
    for n in range(4):
        swarm.join(f"late-{n}")
    taken += sum(agent.try_acquire(API) for agent in swarm.agents for _ in range(200))
    assert taken <= 100


def test_every_rate_of_a_resource_is_shared():
    """Requests and tokens, a minute and a longer period: each agent has its share of each."""
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=agent_id, clock=clock) for agent_id in "ab"]
    for agent in agents:
        agent.set_rates(
            API, ["100/minute burst 100", "1000 tokens/minute burst 1000", "150 per 600s burst 150"]
        )
    clock.advance(600)
    calls = sum(agent.try_acquire(API) for agent in agents for _ in range(101))
    assert 90 <= calls <= 100
    clock.advance(60)
    calls += sum(agent.try_acquire(API) for agent in agents for _ in range(101))
    assert calls <= 150 + 60 * 150 // 600
    clock.advance(600)
    tokens = 0
    for agent in agents:
        while agent.try_acquire(API, cost={"requests": 1, "tokens": 100}):
            tokens += 100
    assert 800 <= tokens <= 1000
    for agent in agents:
        agent.close()


def test_a_strict_rate_is_shared_strictly():
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(2)]
    for agent in agents:
        agent.set_rates("api", Rate(10, 60, strict=True))
    clock.advance(60)
    assert [sum(agent.try_acquire("api") for _ in range(20)) for agent in agents] == [5, 5]


def test_an_agent_whose_strict_share_grows_waits_until_what_the_others_used_has_left_the_window():
    """Two agents use five of ten a minute each; one leaves. Any minute has ten calls, not fifteen."""
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(2)]
    for agent in agents:
        agent.set_rates("api", Rate(10, 60, strict=True))
    clock.advance(60)
    calls = [clock.seconds() for agent in agents for _ in range(20) if agent.try_acquire("api")]
    assert len(calls) == 10
    agents[1].close()
    for _ in range(180):
        clock.advance(1)
        calls += [clock.seconds() for _ in range(20) if agents[0].try_acquire("api")]

    assert max(sum(at <= other < at + 60 for other in calls) for at in calls) == 10
    assert sum(at > 180 for at in calls) >= 10


# -- turns


def test_after_a_cut_sixty_agents_go_evenly_one_by_one():
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


def test_sixty_agents_pause_at_a_cut_and_then_use_the_rate_that_is_left():
    """The API had nothing left when it refused: calls sent at once would be refused too."""
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
def test_a_cut_never_lets_a_call_go_sooner(many):
    """With one call a second and no burst, two calls are never closer than a second."""
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


# -- timers


def test_a_timer_that_an_earlier_one_replaced_sets_no_other():
    """Otherwise every change that needs an earlier timer would leave one more timer for good."""

    class Counting(ManualClock):
        timers = 0

        def call_at(self, at, act):
            self.timers += 1
            return super().call_at(at, act)

    clock = Counting()
    agent = DistributedLimiter(bus=MemoryBus(), agent_id="one", clock=clock)
    for n in range(20):
        agent.set_capacity(f"api-{n}", 100, 60)
        clock.advance(0.01)
    clock.advance(60)
    before = clock.timers
    clock.advance(60)
    assert clock.timers - before == 20 * 60  # one heartbeat a second for each resource
    agent.close()


# -- losses and leaders


@pytest.mark.parametrize(("on_loss", "left"), [("share", 12), ("closed", 0), ("open", 25)])
def test_an_agent_that_lost_the_others_goes_by_on_loss(on_loss, left):
    swarm = NetworkTeam(4, on_loss=on_loss)
    swarm.bus.disconnected.add("agent-1")
    swarm.clock.advance(2 * LEASE)
    assert swarm.shares[1] == left
    swarm.bus.disconnected.clear()
    swarm.clock.advance(2 * LEASE)
    assert swarm.shares == [25, 25, 25, 25]


def test_a_call_without_a_share_waits_for_one():
    """A call is not refused because the leader is lost: it waits, or times out, as at any gate."""
    swarm = NetworkTeam(2, on_loss="closed")
    swarm.bus.disconnected.add("agent-1")
    swarm.clock.advance(2 * LEASE)
    assert not swarm.agents[1].try_acquire("api")
    swarm.clock.auto_advance = True
    with pytest.raises(WaitTimeout) as refused:
        swarm.agents[1].acquire("api", timeout=1)
    assert refused.value.rule == "share"
    swarm.bus.disconnected.clear()
    swarm.agents[1].acquire("api", timeout=60)


def test_a_leader_that_leaves_hands_over_at_once():
    swarm = NetworkTeam(5)
    for left in (4, 3, 2, 1):
        swarm.agents.pop(0).close()
        swarm.clock.advance(0.1)
        assert sum(swarm.shares) in range(100 - left, 101)


@pytest.mark.parametrize("splits", [False, True])
def test_another_agent_takes_over_from_a_leader_that_crashed(splits):
    """Within a lease where the bus cannot split; where it can, after a majority has waited two more."""
    swarm = NetworkTeam(4, splits=splits)
    swarm.bus.disconnected.add("agent-0")
    swarm.agents.pop(0)
    swarm.clock.advance(LEASE if not splits else 3 * LEASE)
    assert sum(swarm.shares) >= 85  # all but what is safe for it
    swarm.clock.advance(FORGET + LEASE)
    assert sum(swarm.shares) >= 98


def test_in_a_split_the_majority_goes_on_and_the_minority_has_safe_shares():
    swarm = NetworkTeam(5, splits=True)
    swarm.bus.partitions = {"agent-0": 1, "agent-1": 1}
    swarm.clock.advance(4 * LEASE)
    assert swarm.shares[:2] == [10, 10]
    assert sum(swarm.shares[2:]) >= 78
    swarm.bus.partitions = {}
    swarm.clock.advance(2 * LEASE)
    assert swarm.shares == [20] * 5


def test_a_bus_that_loses_its_connection_is_told_and_recovers():
    class Watched(MemoryBus):
        def watch(self, notify):
            self.notify = notify

    clock, bus, seen = ManualClock(), Watched(), Recorder()
    agent = DistributedLimiter(bus=bus, agent_id="agent-1", observer=seen, clock=clock)
    agent.set_capacity(API, 100, 60)
    clock.advance(30)
    assert agent.connected
    bus.notify(False)
    assert not agent.connected
    assert len(seen.of(events.BusLost)) == 1
    bus.notify(True)
    assert agent.connected
    assert len(seen.of(events.BusRegained)) == 1
    clock.advance(30)
    assert agent.get_capacity(API).share == 100
    agent.close()


# -- who may speak


def signed(agent_id, clock, bus, secret, **options):
    agent = DistributedLimiter(bus=bus, agent_id=agent_id, secret=secret, clock=clock, **options)
    agent.set_capacity(API, 100, 60)
    return agent


def test_messages_without_the_secret_are_ignored():
    clock, bus = ManualClock(), MemoryBus()
    friends = [signed(agent_id, clock, bus, "open sesame") for agent_id in "ab"]
    stranger = signed("stranger", clock, bus, "guessed")
    plain = signed("plain", clock, bus, None)
    clock.advance(30)
    for agent in (stranger, plain):
        agent.announce_reduced(API, "sabotage")
    bus.publish("ratelimit.capacity", b'{"resource":"shared-api","agent_id":"go","new_capacity":1}')
    assert [agent.get_capacity(API).total for agent in friends] == [100, 100]
    assert all(agent.ignored.get("unsigned", 0) >= 3 for agent in friends)
    friends[0].announce_reduced(API, "429")
    assert [agent.get_capacity(API).total for agent in friends] == [50, 50]
    assert [agent.get_capacity(API).share for agent in friends] == [25, 25]
    for agent in (*friends, stranger, plain):
        agent.close()


def test_a_signed_message_cannot_be_changed_or_replayed_on_another_subject():
    clock, bus = ManualClock(), MemoryBus()
    said = []
    bus.subscribe("ratelimit.capacity", lambda message: said.append(message.data))
    one = signed("one", clock, bus, "open sesame")
    one.announce_reduced(API, "429")
    (genuine,) = said
    elsewhere = MemoryBus()
    two = signed("two", clock, elsewhere, "open sesame", namespace="team-b")
    clock.advance(30)
    elsewhere.publish("ratelimit.team-b.capacity", genuine)
    elsewhere.publish("ratelimit.team-b.capacity", genuine.replace(b":50,", b":20,"))
    assert two.get_capacity(API).total == 100
    assert two.ignored["unsigned"] == 2
    three = signed("three", clock, MemoryBus(), "open sesame")
    clock.advance(30)
    three._bus.publish("ratelimit.capacity", genuine.replace(b":50,", b":20,"))
    assert three.get_capacity(API).total == 100
    three._bus.publish("ratelimit.capacity", genuine)
    assert three.get_capacity(API).total == 50
    for agent in (one, two, three):
        agent.close()


def test_two_live_agents_of_one_id_are_noticed(team):
    swarm = team(0)
    for _ in range(2):
        swarm.join("same")
    swarm.clock.advance(60)
    told = swarm.seen.of(events.DuplicateAgent)
    assert told
    assert told[0].agent_id == "same"
    assert sum(swarm.shares()) <= 100


def test_an_agent_that_was_restarted_is_not_a_duplicate(team):
    swarm = team(1)
    first = swarm.join("again")
    swarm.clock.advance(30)
    first.close()
    swarm.agents.remove(first)
    swarm.join("again")
    swarm.clock.advance(60)
    assert swarm.seen.of(events.DuplicateAgent) == []
    assert 98 <= sum(swarm.shares()) <= 100
    assert min(swarm.shares()) >= 25


def test_swarms_of_other_namespaces_do_not_hear_each_other(team):
    swarm = team(1)
    other = swarm.join("other", namespace="team-b")
    swarm.clock.advance(30)
    assert swarm.shares() == [100, 100]
    other.announce_reduced(API, "429")
    assert swarm.totals() == [100, 50]
