"""Messages of strangers without a secret, and replayed messages with one: what they cannot change."""

import pytest

from headgate import DistributedLimiter
from headgate.arguments import SECOND
from headgate.swarm.bus.memory import MemoryBus
from headgate.swarm.messages import Envelope, Grant, Heartbeat, Here, Note, Report
from headgate.swarm.recovery import Level
from headgate.swarm.transport import Transport
from headgate.swarm.update import CapacityUpdate
from headgate.testing import ManualClock
from swarm.team import API, LEASE, NetworkTeam

STRANGER = "stranger#abc.1"
SUBJECTS = Transport(MemoryBus(), namespace="", run="abc", secret=None)


class Overheard(MemoryBus):
    """A bus that keeps every message, with its subject, so that it can be sent once more."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def publish(self, subject, data, *, retain=False):
        self.messages.append((subject, data))
        super().publish(subject, data, retain=retain)


def term_of(swarm):
    (leader,) = (agent for agent in swarm.agents if membership(agent).is_leader)
    return membership(leader).term


def membership(agent):
    return agent._agent.resources[API].membership


def say(swarm, message, level=None):
    """Send a well-made message to all agents, on every subject that one of them listens to."""
    data = Envelope(API, message, level).to_json()
    to = [membership(agent).member.key for agent in swarm.agents]
    for where in ("all", "leaders", *to):
        swarm.bus.publish(SUBJECTS.subject(where), data)


def messages_of(swarm):
    """A report, a heartbeat of the leader, and a grant of the leader to each agent."""
    term = term_of(swarm)
    yield Report(STRANGER, term, 1, 0, 1, 0, 0, 0, 1)
    yield Heartbeat(term, 1_000_000, is_leader=True, size=3, successor="")
    for agent in swarm.agents:
        yield Grant(membership(agent).member.key, term, 1, 0, 0, 0, 3, None)


NOTHING_CUT = [
    Level(epoch=epoch, base=base, floor=base, goal=base, grown=grown)
    for epoch in (1, 2, 1_000, (1 << 62) - 1, 1 << 62)
    for base in (1, 400)
    for grown in (0, 1 << 62)
]


@pytest.mark.parametrize(
    "level", [*NOTHING_CUT, Level(1, 400, 200, 400, 1 << 62), Level(2, 400, 400, 400, 0)]
)
def test_no_message_raises_the_total_or_keeps_later_cuts_from_counting(team, level):
    swarm = team(3, capacity=400)
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [200] * 3
    for message in messages_of(swarm):
        say(swarm, message, level)
        assert swarm.totals() == [200] * 3
    note = Note(API, level, swarm.agents[0]._options.wall())
    swarm.bus.publish(SUBJECTS.note(API), note.to_json(), retain=True)
    late = swarm.join("late", 400)
    swarm.clock.advance(20)
    assert late.get_capacity(API).total <= max(swarm.totals())
    swarm.agents[1].announce_reduced(API, "429")
    assert len(set(swarm.totals())) == 1
    assert swarm.totals()[0] < 400
    before = swarm.totals()[0]
    swarm.clock.advance(20)
    swarm.agents[2].announce_reduced(API, "429")
    assert set(swarm.totals()) <= set(range(before))


def test_messages_raise_the_total_only_as_fast_as_it_comes_back_by_itself(team):
    """A stranger says ten times a second that a later cut left everything."""
    swarm, alone = team(3, capacity=400), team(1, capacity=400)
    for each in (swarm, alone):
        each.agents[0].announce_reduced(API, "429")
    curve = swarm.agents[0]._options.curve
    cut = swarm.agents[0]._agent.resources[API].total.level
    for n in range(1, 60):
        swarm.clock.advance(0.1)
        say(swarm, Report(STRANGER, term_of(swarm), n, 0, 1, 0, 0, 0, 1), Level(n + 1, 400, 400, 400, 0))
        assert max(swarm.totals()) <= curve.total(cut._replace(grown=n * 100_000_000))


@pytest.mark.parametrize("recovery", ["cubic", "stepwise"])
@pytest.mark.parametrize(
    "level", [Level(1, 400, 200, 400, 1 << 62), Level(2, 400, 400, 400, 0), Level(1_000, 400, 399, 400, 0)]
)
def test_a_message_long_after_a_cut_brings_back_one_step_of_what_was_cut(team, recovery, level):
    """No call has succeeded meanwhile, and the leader has said so all the time."""
    swarm = team(3, capacity=400, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.clock.advance(600)
    assert swarm.totals() == [200] * 3
    say(swarm, Report(STRANGER, term_of(swarm), 1, 0, 1, 0, 0, 0, 1), level)
    swarm.clock.advance(20)
    # Two seconds of the cubic, or one step of a tenth.
    assert max(swarm.totals()) <= 230
    assert len(set(swarm.totals())) == 1


@pytest.mark.parametrize("number", [1 << 61, (1 << 62) - 1, 1 << 62])
def test_a_term_that_no_swarm_can_have_reached_is_not_followed(team, number):
    """Otherwise no later term could be told, and no agent could lead."""
    swarm = team(3)
    leader = next(agent for agent in swarm.agents if membership(agent).is_leader)
    forged = (number, membership(leader).term[1])
    say(swarm, Heartbeat(forged, 1, is_leader=True, size=3, successor=""))
    say(swarm, Heartbeat((number, STRANGER), 1, is_leader=True, size=3, successor=""))
    assert all(agent.ignored.get("out of range") for agent in swarm.agents)
    leader._agent._closed = True  # as if its process had died
    swarm.agents.remove(leader)
    swarm.clock.advance(3 * LEASE)
    assert membership(swarm.agents[0]).term == membership(swarm.agents[1]).term == term_of(swarm)
    assert term_of(swarm)[0] < 100


class Behind:
    """A wall clock that passes with the clock of the swarm, and is that many seconds behind."""

    def __init__(self, clock, seconds):
        self._clock = clock
        self._began = 1_800_000_000 * SECOND - seconds * SECOND

    def __call__(self):
        return self._began + self._clock.now()


@pytest.mark.parametrize("seconds", [60, 500])
def test_a_number_of_cuts_that_only_some_clocks_allow_parts_no_agent_from_its_leader(seconds):
    """A stranger says one that is possible by all clocks but one."""
    swarm = NetworkTeam(0)
    for name, behind in (("one", 0), ("two", 0), ("behind", seconds)):
        swarm.join(name, wall=Behind(swarm.clock, behind))
    swarm.clock.advance(30)
    shares = swarm.shares
    epoch = swarm.agents[0]._options.wall() // SECOND + 599
    said = Envelope("api", Here(STRANGER), Level(epoch, 100, 100, 100, 0))
    swarm.bus.endpoint("stranger").publish(SUBJECTS.subject("all"), said.to_json())
    for _ in range(70):
        swarm.clock.advance(1)
        assert swarm.shares == shares
    assert sum(agent._agent.resources["api"].membership.is_leader for agent in swarm.agents) == 1
    assert swarm.agents[-1].ignored["out of range"] > 1
    for agent in swarm.agents:
        agent.close()


def test_a_reduction_in_the_name_of_a_go_agent_does_not_keep_its_next_one_from_counting(team):
    """A stranger says that it is of the year 2100."""
    swarm = team(3, capacity=400)
    for at, amount in ((4_102_444_800 * SECOND, 399), (None, 100)):
        update = CapacityUpdate(
            resource=API,
            agent_id="go",
            new_capacity=amount,
            reason="429",
            timestamp_ns=at or swarm.agents[0]._options.wall(),
            retry_after=None,
        )
        swarm.clock.advance(20)
        swarm.bus.publish(SUBJECTS.capacity, update.to_json())
        assert swarm.totals() == [amount] * 3


# -- with a secret


def secret_swarm(many=3):
    clock, bus = ManualClock(), Overheard()
    agents = []
    for n in range(many):
        agent = DistributedLimiter(bus=bus, agent_id=f"agent-{n}", secret="open sesame", clock=clock)
        agent.set_capacity(API, 90, 60)
        agents.append(agent)
    clock.advance(30)
    return clock, bus, agents


def shares_after_the_leader_died(replayed):
    """What the others have, while the last messages are replayed several times a heartbeat, or are not."""
    clock, bus, agents = secret_swarm()
    said = bus.messages[-60:] if replayed else []
    leader = next(agent for agent in agents if membership(agent).is_leader)
    leader._agent._closed = True  # as if its process had died: it neither speaks nor says good-bye
    agents.remove(leader)
    for _ in range(100):
        clock.advance(0.4)
        for subject, data in said:
            MemoryBus.publish(bus, subject, data)
    assert sum(membership(agent).is_leader for agent in agents) == 1
    assert all((agent.ignored.get("replayed", 0) > 100) is replayed for agent in agents)
    shares = [agent.get_capacity(API).share for agent in agents]
    for agent in agents:
        agent.close()
    return sum(shares)


def test_replayed_messages_of_a_dead_leader_do_not_keep_another_agent_from_leading():
    """What is left to the dead one for two minutes is its safe share."""
    assert shares_after_the_leader_died(True) == shares_after_the_leader_died(False) > 60


def test_a_signature_is_good_for_ten_minutes():
    """A newcomer, which has heard nothing yet, does not believe what was said an hour ago."""
    clock, bus, agents = secret_swarm()
    agents[0].announce_reduced(API, "429")
    said = list(bus.messages)
    for agent in agents:
        agent.close()
    later = Overheard()
    hour = 3_600 * 10**9
    newcomer = DistributedLimiter(
        bus=later,
        agent_id="new",
        secret="open sesame",
        clock=clock,
        wall=lambda: agents[0]._options.wall() + hour,
    )
    newcomer.set_capacity(API, 90, 60)
    for subject, data in said:
        later.publish(subject, data)
    clock.advance(30)
    assert newcomer.get_capacity(API).share == newcomer.get_capacity(API).total == 90
    assert newcomer.ignored["expired"] > 10
    newcomer.close()


def test_a_network_that_repeats_and_reorders_messages_does_not_look_like_a_replay_of_all():
    """Each message counts once, also one that another overtook."""
    swarm = NetworkTeam(5, secret="open sesame")
    swarm.bus.repeats = 0.3
    swarm.clock.advance(60)
    assert sum(swarm.shares) in range(95, 101)
    assert all(agent.ignored.get("replayed", 0) > 5 for agent in swarm.agents)
    swarm.agents[0].announce_reduced("api", "429")
    swarm.clock.advance(5)
    assert swarm.totals == {50}
    for agent in swarm.agents:
        agent.close()


# -- closing


def test_agents_that_are_closed_one_after_the_other_do_not_all_lead_first():
    """Otherwise each of them would hand all shares over to the next one: 30,000 messages here."""
    clock, bus = ManualClock(), Overheard()
    agents = [DistributedLimiter(bus=bus, agent_id=f"agent-{n:03}", clock=clock) for n in range(150)]
    for agent in agents:
        agent.set_capacity(API, 9_000, 60)
    clock.advance(30)
    bus.messages.clear()
    for agent in agents:
        agent.close()
    assert len(bus.messages) < 6_000
