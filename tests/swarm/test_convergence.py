"""Agents on bad networks never have more than the total, and agree again when the network is well.

Messages take their time and overtake each other, are lost, arrive twice, or do not reach the other side of a
partition. All of it is drawn by Hypothesis, and the same in every run.
"""

import gc
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import DistributedLimiter
from headgate.arguments import SECOND
from headgate.swarm.bus.memory import MemoryBus
from headgate.swarm.recovery import Cubic, Total
from headgate.testing import ManualClock

CAPACITY = 1_000_000
LEASE = 10.0
FORGET = 120.0
STEP = 0.25


class Message:
    def __init__(self, subject, data):
        self.subject = subject
        self.data = data


class Network:
    """The bus of all agents, as bad as it is told to be."""

    def __init__(self, clock, dice):
        self.clock = clock
        self.dice = dice
        self.slowest = 0.02
        self.loss = 0.0
        self.twice = 0.0
        self.side = {}  # which side of a partition an agent is on; 0 for agents that are not named
        self.gone = set()  # agents that crashed: neither heard nor hearing
        self.listening = []
        self.delivered = lambda who: None  # told after each message

    def reaches(self, speaker, listener):
        if speaker in self.gone or listener in self.gone:
            return False
        return self.side.get(speaker, 0) == self.side.get(listener, 0)

    def carry(self, speaker, message):
        for subject, listener, deliver in list(self.listening):
            if subject != message.subject:
                continue
            for _ in range(1 + (self.dice.random() < self.twice)):
                if speaker != listener and self.dice.random() < self.loss:
                    continue
                if self.reaches(speaker, listener):
                    delay = 0.001 + self.slowest * self.dice.random()
                    self.clock.at(self.clock.seconds() + delay, self.arrival(listener, deliver, message))

    def arrival(self, listener, deliver, message):
        def arrive():
            if listener not in self.gone:
                deliver(message)
                self.delivered(listener)

        return arrive


class Endpoint:
    """The network as the bus of one agent."""

    settles = 3.0
    splits = True

    def __init__(self, network, who):
        self.network = network
        self.who = who

    def publish(self, subject, data, *, retain=False):
        self.network.carry(self.who, Message(subject, data))

    def subscribe(self, subject, deliver):
        network, place = self.network, (subject, self.who, deliver)

        class Subscribed:
            def close(self):
                if place in network.listening:
                    network.listening.remove(place)

        network.listening.append(place)
        return Subscribed()


def standing_of(agent):
    standing = agent.get_capacity("api")
    return standing.share, standing.total


class Swarm:
    """Agents on a network, looked at after every message and every quarter of a second."""

    def __init__(self, seed=0, **options):
        self.clock = ManualClock()
        self.network = Network(self.clock, Random(seed))
        self.network.delivered = self.look_at
        self.options = {"lease": LEASE, "forget_after": FORGET, **options}
        self.agents = {}
        self.held = {}  # what each has of the whole, as of when it was last looked at
        self.names = iter(range(1000))

    def join(self, side=0, name=None):
        name = name or f"agent-{next(self.names)}"
        if side:
            self.network.side[name] = side
        self.network.gone.discard(name)
        agent = DistributedLimiter(
            bus=Endpoint(self.network, name), agent_id=name, clock=self.clock, **self.options
        )
        self.agents[name] = agent
        agent.set_capacity("api", CAPACITY, 60)
        self.look_at(name)
        return agent

    def leave(self, name):
        self.agents.pop(name).close()
        self.held.pop(name)

    def crash(self, name):
        self.network.gone.add(name)
        self.network.listening = [place for place in self.network.listening if place[1] != name]
        self.held.pop(name)
        del self.agents[name]
        gc.collect()

    def look_at(self, name):
        agent = self.agents.get(name)
        if agent is not None:
            before = self.held.get(name, (0, CAPACITY))
            self.held[name] = standing_of(agent)
            assert self.held[name][1] <= before[1], "no calls are made here, so nothing can have grown back"
            if not self.fits():  # by what is remembered of the others, which may be less by now
                self.held = {other: standing_of(agent) for other, agent in self.agents.items()}
                assert self.fits(), self.held

    def fits(self):
        """Whether shares fit into the configured total, and into the totals that agents know after a cut."""
        return (
            sum(share for share, _ in self.held.values()) <= CAPACITY
            and sum(Fraction(share, total) for share, total in self.held.values()) <= 1
        )

    def wait(self, seconds):
        for _ in range(round(seconds / STEP)):
            self.clock.advance(STEP)
            self.look()

    def look(self):
        for name in list(self.agents):
            self.look_at(name)

    def standings(self):
        return [agent.get_capacity("api") for agent in self.agents.values()]

    def heal(self):
        self.network.side.clear()
        self.network.loss = self.network.twice = 0.0
        self.network.slowest = 0.02

    def used(self):
        return sum(standing.share for standing in self.standings())

    def agrees(self):
        """Whether all agents see one total, and together have nearly all of it."""
        totals = {standing.total for standing in self.standings()}
        return len(totals) == 1 and 0.95 * max(totals) <= self.used() <= max(totals)

    def close(self):
        for agent in self.agents.values():
            agent.close()


def grown(many, **options):
    """A swarm of `many` agents that have found each other."""
    swarm = Swarm(**options)
    for _ in range(many):
        swarm.join()
        swarm.wait(1)
    swarm.wait(2 * LEASE)
    return swarm


# -- random events


steps = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0, 3.0, 12.0])),
    st.tuples(st.just("join"), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("crash"), st.integers(0, 9)),
    st.tuples(st.just("return"), st.integers(0, 9)),
    st.tuples(st.just("announce"), st.integers(0, 9)),
    st.tuples(st.just("partition"), st.lists(st.integers(0, 2), min_size=8, max_size=8)),
    st.tuples(st.just("loss"), st.sampled_from([0.1, 0.3, 0.6])),
    st.tuples(st.just("twice"), st.sampled_from([0.2, 0.9])),
    st.tuples(st.just("slow"), st.sampled_from([0.1, 0.5, 2.0])),
    st.tuples(st.just("heal"), st.just(0)),
)


def take(swarm, step, given):
    """One event. Agents that cannot hear each other at all cannot join one swarm."""
    network, names = swarm.network, list(swarm.agents)
    if step == "wait":
        swarm.wait(given)
    elif step == "join":
        if len(names) < 7 and not network.side and network.loss < 0.3:
            swarm.join()
            swarm.wait(1)
    elif step in ("leave", "crash") and len(names) > 1:
        name = names[given % len(names)]
        swarm.leave(name) if step == "leave" else swarm.crash(name)
    elif step == "return" and len(names) > 1 and not network.side and network.loss < 0.3:
        name = names[given % len(names)]
        swarm.crash(name)
        swarm.join(name=name)
        swarm.wait(1)
    elif step == "announce":
        swarm.agents[names[given % len(names)]].announce_reduced("api", "429")
        swarm.look()
    elif step == "partition":
        network.side = {name: side for name, side in zip(names, given, strict=False) if side}
    elif step == "loss":
        network.loss = given
    elif step == "twice":
        network.twice = given
    elif step == "slow":
        network.slowest = given
    elif step == "heal":
        swarm.heal()


@settings(max_examples=8)
@given(many=st.integers(2, 5), story=st.lists(steps, min_size=4, max_size=14), seed=st.integers(0, 10**6))
def test_on_any_network_agents_never_have_more_than_the_total_and_agree_in_the_end(many, story, seed):
    """Messages are lost, repeated and reordered; agents join, leave and crash; the network splits."""
    swarm = grown(many, seed=seed)
    apart = 0.0
    for step, given_ in story:
        before = swarm.clock.seconds()
        take(swarm, step, given_)
        network = swarm.network
        if network.side or network.loss or network.slowest > 1:
            apart += swarm.clock.seconds() - before
        if apart > FORGET / 3:  # an agent cut off for longer is taken for dead
            swarm.heal()
            swarm.wait(3 * LEASE)
            apart = 0.0
    swarm.heal()
    swarm.wait(FORGET + 4 * LEASE)
    assert swarm.agrees(), swarm.standings()
    swarm.close()


@settings(max_examples=8)
@given(
    many=st.integers(2, 6),
    seed=st.integers(0, 10**6),
    who=st.lists(st.integers(0, 5), min_size=1, max_size=12),
)
def test_cuts_that_cross_each_other_end_in_one_value(many, seed, who):
    """Several agents announce at once, and messages arrive in any order and twice: one cut, one value."""
    swarm = grown(many, seed=seed)
    swarm.network.slowest, swarm.network.twice = 0.5, 0.5
    names = list(swarm.agents)
    for turn in who:
        swarm.agents[names[turn % many]].announce_reduced("api", "429")
    swarm.wait(3)
    assert {standing.total for standing in swarm.standings()} == {CAPACITY // 2}
    swarm.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_announcement_delays_agreement_by_a_few_heartbeats(seed):
    """An agent that missed the announcement learns of the cut from heartbeats and grants."""
    swarm = grown(5, seed=seed)
    swarm.network.loss = 1.0
    list(swarm.agents.values())[seed].announce_reduced("api", "429")
    swarm.network.loss = 0.0
    swarm.wait(LEASE / 2)
    assert {standing.total for standing in swarm.standings()} == {CAPACITY // 2}
    swarm.close()


# -- single events


def test_a_newcomer_gets_a_share_and_an_agent_that_leaves_gives_it_back():
    """Demand decides how much; half of an equal share is the least."""
    swarm = Swarm()
    for many in range(1, 6):
        swarm.join()
        swarm.wait(3 * LEASE)
        assert swarm.agrees()
        assert min(standing.share for standing in swarm.standings()) >= CAPACITY // (2 * many) - 1
    swarm.leave("agent-0")
    swarm.wait(LEASE)
    assert swarm.agrees()
    swarm.close()


@pytest.mark.parametrize("lost", range(4))
def test_others_use_the_share_of_a_crashed_agent_within_its_lease(lost):
    """All of it but the safe share, and that too when the agent is forgotten. Agent 0 is the leader."""
    swarm = grown(4)
    swarm.crash(f"agent-{lost}")
    swarm.wait(LEASE + STEP if lost else 3 * LEASE)  # another agent has to lead first
    assert swarm.used() >= CAPACITY * 7 // 8 - 4
    swarm.wait(FORGET + LEASE)
    assert swarm.used() >= CAPACITY - 4
    swarm.close()


def test_an_agent_that_lost_the_others_has_its_safe_share_and_comes_back():
    swarm = grown(4)
    swarm.network.side = {"agent-3": 1}
    swarm.wait(2 * LEASE)
    assert swarm.agents["agent-3"].get_capacity("api").share == CAPACITY // 8
    assert swarm.used() >= CAPACITY - 4
    swarm.heal()
    swarm.wait(2 * LEASE)
    assert swarm.agents["agent-3"].get_capacity("api").share >= CAPACITY // 8
    assert swarm.agrees()
    swarm.close()


def test_when_the_bus_dies_all_agents_together_use_half():
    swarm = grown(4)
    swarm.network.side = {name: side for side, name in enumerate(swarm.agents)}
    swarm.wait(2 * LEASE)
    assert abs(swarm.used() - CAPACITY // 2) <= 4
    swarm.heal()
    swarm.wait(3 * LEASE)
    assert swarm.agrees()
    swarm.close()


def test_an_agent_that_joins_late_knows_the_total_before_its_first_call():
    swarm = grown(3)
    swarm.agents["agent-0"].announce_reduced("api", "429")
    swarm.wait(1)
    late = swarm.join(name="late")
    granted = 0
    for _ in range(200):
        swarm.clock.advance(0.05)
        granted += late.try_acquire("api")
        if granted:
            break
        assert late.get_capacity("api").share == 0 or late.get_capacity("api").total == CAPACITY // 2
    assert granted
    assert late.get_capacity("api").total == CAPACITY // 2
    swarm.close()


def test_a_process_that_was_stopped_wakes_up_with_its_safe_share_only():
    """None of its timers ran meanwhile, and other agents have its share by then."""
    clock, its_own = ManualClock(), ManualClock()
    network = Network(clock, Random(0))
    agents = {
        name: DistributedLimiter(bus=Endpoint(network, name), agent_id=name, clock=time)
        for name, time in (("awake", clock), ("stopped", its_own))
    }

    def both_go_on(seconds):
        for _ in range(round(seconds * 50)):
            its_own.advance(0.02)
            clock.advance(0.02)

    for agent in agents.values():
        agent.set_capacity("api", 100, 60)
        both_go_on(4)
    both_go_on(90)
    stopped = agents["stopped"]
    assert stopped.get_capacity("api").available >= 45
    network.gone.add("stopped")
    clock.advance(60)
    its_own.set_ns(its_own.now() + 60_000_000_000)  # without ringing its timers
    assert _all_of(stopped) <= 25
    network.gone.clear()
    both_go_on(15)
    assert sum(agent.get_capacity("api").share for agent in agents.values()) <= 100
    assert stopped.get_capacity("api").share >= 25
    for agent in agents.values():
        agent.close()


# -- what the API sees


def greedy(agents):
    """Every agent takes all it can get."""
    return sum(_all_of(agent) for agent in agents)


def _all_of(agent):
    taken = 0
    while agent.try_acquire("api"):
        taken += 1
    return taken


@settings(max_examples=8)
@given(story=st.lists(st.sampled_from(["join", "leave", "crash", "split", "heal", "wait"]), max_size=10))
def test_the_api_never_sees_more_calls_than_one_bucket_would_admit(story):
    """In no stretch of time more than the capacity and the rate: a newcomer brings no tokens."""
    capacity = 600
    swarm = Swarm()
    seen = [(0.0, 0)]

    def join():
        name = f"agent-{next(swarm.names)}"
        agent = DistributedLimiter(
            bus=Endpoint(swarm.network, name),
            agent_id=name,
            clock=swarm.clock,
            lease=LEASE,
            forget_after=FORGET,
        )
        swarm.agents[name] = agent
        agent.set_capacity("api", capacity, 60)

    def run(seconds):
        for _ in range(round(seconds)):
            swarm.clock.advance(1)
            seen.append((swarm.clock.seconds(), greedy(swarm.agents.values())))

    swarm.network.delivered = lambda who: None
    join()
    run(5)
    for step in story:
        names = list(swarm.agents)
        if step == "join" and len(names) < 5 and not swarm.network.side:
            join()
        elif step == "leave" and len(names) > 1:
            swarm.agents.pop(names[0]).close()
        elif step == "crash" and len(names) > 1:
            swarm.network.gone.add(names[-1])
            del swarm.agents[names[-1]]
        elif step == "split":
            swarm.network.side = {names[-1]: 1} if len(names) > 1 else {}
        elif step == "heal":
            swarm.network.side = {}
        run(7)
    # Tokens that would be there if one bucket had served all of it.
    left, before = Fraction(capacity), 0.0
    for at, taken in seen:
        left = min(Fraction(capacity), left + Fraction(capacity * round(at - before), 60)) - taken
        before = at
        assert left >= -len(swarm.agents) - 5, (at, float(left))
    swarm.close()


# -- many agents


def test_five_hundred_agents_with_ten_refusals_each_cut_once():
    """5 000 simultaneous 429s are one cut, and so are answers that were long on their way."""
    clock, bus = ManualClock(), MemoryBus()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n}", clock=clock) for n in range(500)]
    for agent in agents:
        agent.set_capacity("api", CAPACITY, 60)
    clock.advance(1)
    sent_at = clock.seconds()
    clock.advance(0.2)
    for turn in range(10):
        for agent in agents:
            agent.announce_reduced("api", "429", sent_at=sent_at if turn % 2 else None)
    standings = [agent.get_capacity("api") for agent in agents]
    assert {standing.total for standing in standings} == {CAPACITY // 2}
    assert sum(standing.share for standing in standings) <= CAPACITY // 2
    clock.advance(1.5)
    for agent in agents:
        agent.announce_reduced("api", "429", sent_at=sent_at)
    assert {agent.get_capacity("api").total for agent in agents} == {CAPACITY // 2}
    bus.close()


def test_cuts_of_five_hundred_agents_merge_into_one_in_any_order():
    """By `Total` alone, with messages that are on their way while other agents are refused."""
    dice = Random(7)
    curve = Cubic((1, 2), beyond=False)
    totals = [Total(CAPACITY, curve, 0) for _ in range(500)]
    news = []
    sent_at, now = 10 * SECOND, 12 * SECOND
    refused = [total for total in totals for _ in range(10)]
    dice.shuffle(refused)
    for total in refused:
        now += SECOND // 100_000
        if not total.same_episode(dice.choice([None, sent_at]), now):
            total.cut(now)
            news.append(total.level)
        total.hear(dice.choice(news), now)  # a message that has arrived by now
    assert len(news) > 1  # several agents cut before they heard of another cut
    for total in totals:
        for level in dice.sample(news, min(20, len(news))):
            total.hear(level, now)
    assert {total.amount for total in totals} == {CAPACITY // 2}


def test_refusals_that_reach_all_agents_before_any_message_does_cut_once():
    """On a slow bus every agent cuts before it hears of the others: it is the same cut."""
    swarm = grown(12)
    swarm.network.slowest = 0.5
    sent_at = swarm.clock.seconds()
    swarm.clock.advance(0.1)
    for _ in range(10):
        for agent in swarm.agents.values():
            agent.announce_reduced("api", "429", sent_at=sent_at)
    swarm.clock.advance(2)
    assert {standing.total for standing in swarm.standings()} == {CAPACITY // 2}
    swarm.close()
