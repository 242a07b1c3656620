"""The swarm, statement by statement: DL-01 to DL-22, BU-01 to BU-04, D-62 to D-77, R-1 to R-5.

What the wire looks like is in test_wire.py, what happens on bad networks in test_convergence.py,
and the arithmetic in test_membership.py.
"""

import asyncio
import inspect
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from headgate.testing import ManualClock, Recorder, run
from headgate.verdict import throttled

HERE = Path(__file__).parent
API = "shared-api"


class Team:
    """So many agents on one bus in memory, who have found each other."""

    def __init__(self, many=2, capacity=100, window=60, **options):
        self.clock = ManualClock()
        self.bus = MemoryBus()
        self.seen = Recorder()
        self.agents = []
        for n in range(many):
            self.join(f"agent-{n}", capacity, window, **options)
        self.clock.advance(30)

    def join(self, agent_id, capacity=100, window=60, **options):
        agent = DistributedLimiter(
            bus=self.bus, agent_id=agent_id, observer=self.seen, clock=self.clock, **options
        )
        if capacity:
            agent.set_capacity(API, capacity, window)
        self.agents.append(agent)
        return agent

    def totals(self):
        return [agent.get_capacity(API).total for agent in self.agents]

    def shares(self):
        return [agent.get_capacity(API).share for agent in self.agents]

    def work(self, seconds, *, fails=False):
        """Everybody calls as often as it may, and all of it goes well, or none of it."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            for agent in self.agents:
                for _ in range(agent.get_capacity(API).available):
                    try:
                        with agent.slot(API, timeout=0):
                            if fails:
                                raise ConnectionError
                    except (ConnectionError, CapacityExhausted):
                        pass

    def close(self):
        for agent in self.agents:
            agent.close()


@pytest.fixture
def team():
    made = []

    def make(*args, **options):
        made.append(Team(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# -- configuration


def test_dl01_the_options_and_their_defaults_are_those_of_the_seed():
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
def test_dl02_and_d76_what_cannot_work_is_refused_when_it_is_made(wrong):
    with pytest.raises((InvalidConfig, ValueError)):
        DistributedLimiter(**{"bus": MemoryBus(), "agent_id": "agent-1", **wrong})


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
def test_dl03_and_d69_unless_told_otherwise_nothing_ends_above_what_it_was(team, recovery):
    """R-3: there the quick start ends at 103 of 100, for ever."""
    swarm = team(1, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    highest = 0
    for _ in range(60):
        swarm.work(5)
        highest = max(highest, *swarm.totals())
    assert highest == 100


def test_dl04_if_it_cannot_listen_it_is_not_made():
    class Deaf:
        def publish(self, subject, data, *, retain=False):
            pass

        def subscribe(self, subject, deliver):
            raise ConnectionRefusedError("nobody there")

    with pytest.raises(ConnectionRefusedError, match="nobody there"):
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
def test_dl05_an_agent_on_its_own_behaves_as_a_memory_limiter(story):
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


def test_dl05_waiting_time_outs_and_errors_are_those_of_the_memory_limiter(team):
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


def test_dl05_tasks_wait_in_line():
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


def test_dl06_another_capacity_is_the_one_it_recovers_to_and_takes_effect_at_once(team):
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


def test_r1_release_gives_back_refund_false_does_not_and_the_block_keeps_it_spent(team):
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


def test_r2_on_its_own_a_memory_limiter_announces_to_nobody():
    seen = Recorder()
    limiter = MemoryLimiter(observer=seen, clock=ManualClock())
    limiter.set_capacity(API, 100, 60)
    limiter.announce_reduced(API, "429")
    assert limiter.get_capacity(API).total == 100
    assert len(seen.of(events.CapacityReduced)) == 1


def test_r5_release_at_capacity_ends_what_is_under_way_and_adds_nothing(team):
    swarm = team(1, capacity=5)
    agent = swarm.agents[0]
    agent.acquire(API)
    swarm.clock.advance(60)
    agent.release(API)
    assert (agent.get_capacity(API).available, agent.get_capacity(API).in_flight) == (5, 0)
    agent.release(API)
    assert agent.get_capacity(API).available == 5


# -- reducing


@pytest.mark.parametrize(
    ("capacity", "factor", "left"),
    [(100, 0.5, 50), (100, 0.75, 75), (3, 0.5, 1), (1, 0.5, 1), (10, 0.01, 1), (7, 0.9, 6)],
)
def test_dl07_and_dl08_an_announcement_cuts_here_and_everywhere(team, capacity, factor, left):
    swarm = team(3, capacity=capacity, reduce_factor=factor)
    swarm.agents[1].announce_reduced(API, "429")
    assert swarm.totals() == [left] * 3


def test_dl11_and_r4_the_agents_share_what_remains(team):
    swarm = team(4)
    assert swarm.shares() == [25] * 4
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [50] * 4
    assert swarm.shares() == [12] * 4


def test_r4_each_gets_the_whole_figure_where_that_is_asked_for(team):
    swarm = team(4, sharing="each")
    assert swarm.shares() == [100] * 4
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.shares() == [50] * 4
    assert sum(agent.try_acquire(API) for agent in swarm.agents for _ in range(60)) == 200


def test_dl09_an_unknown_resource_cannot_be_reduced(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced("another", "429")
    assert swarm.totals() == [100] * 2
    assert swarm.agents[1].get_capacity("another") is None


def test_d62_ten_refusals_of_one_burst_cut_once(team):
    swarm = team(1)
    for _ in range(10):
        swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [50]


def test_d62_five_agents_that_report_what_was_in_flight_in_turn_cut_once(team):
    swarm = team(5)
    sent_at = swarm.clock.seconds()
    for agent in swarm.agents:
        swarm.clock.advance(2)
        agent.announce_reduced(API, "429", sent_at=sent_at)
    assert swarm.totals() == [50] * 5


def test_d62_what_is_refused_after_the_cut_cuts_again(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.clock.advance(60)
    swarm.agents[1].announce_reduced(API, "429", sent_at=swarm.clock.seconds() - 1)
    assert swarm.totals()[0] < 50
    assert len(set(swarm.totals())) == 1


def test_d62_a_refusal_told_by_settling_is_an_announcement(team):
    swarm = team(2)
    with swarm.agents[0].slot(API) as permit:
        permit.settle(verdict=throttled())
    assert swarm.totals() == [50] * 2


def test_d65_a_newcomer_knows_of_the_cut_before_its_first_grant(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    late = swarm.join("late")
    standing = late.get_capacity(API)
    assert standing.total == 50 or standing.share == 0
    swarm.clock.advance(30)
    assert swarm.totals() == [50] * 3
    assert sum(swarm.shares()) <= 50


def test_d65_and_d75_who_comes_when_nobody_is_there_learns_what_was_known_last(team):
    """From what the bus keeps: a deploy that stops all agents at once need not learn by 429s again."""
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.clock.advance(10)
    for agent in swarm.agents:
        agent.close()
    swarm.agents.clear()
    swarm.clock.advance(10)
    late = swarm.join("late")
    taken = 0
    for _ in range(300):
        swarm.clock.advance(0.1)
        taken += late.try_acquire(API)
        if taken:
            break
    assert taken
    assert late.get_capacity(API).total == 50


def test_b10_a_newcomer_uses_no_more_than_its_share_in_its_first_minute(team):
    """It brings no tokens of its own: those who were there may just have spent them."""
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    late = swarm.join("late")
    granted, due = 0, 0.0
    for _ in range(600):
        due += late.get_capacity(API).share / 600
        swarm.clock.advance(0.1)
        granted += late.try_acquire(API)
    assert 0 < granted <= due + 1


def test_d66_and_b10_together_they_take_no_more_than_one_bucket_would_give(team):
    swarm = team(1)
    taken = sum(swarm.agents[0].try_acquire(API) for _ in range(200))
    for n in range(4):
        swarm.join(f"late-{n}")
    taken += sum(agent.try_acquire(API) for agent in swarm.agents for _ in range(200))
    assert taken <= 100


def test_d67_everybody_scales_its_own_share(team):
    """Both want all there is: by weight, three to one, and so after a cut."""
    swarm = team(0)
    for agent_id, weight in (("light", 1), ("heavy", 3)):
        swarm.join(agent_id, weight=weight)
    swarm.work(120)
    light, heavy = swarm.shares()
    assert light + heavy <= 100
    assert 2.8 <= heavy / light <= 3.2
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.shares() == [light // 2, heavy // 2]


def test_d67_agents_that_configured_other_totals_scale_theirs(team):
    """A factor travels, and not a number that means nothing to who hears it."""
    swarm = team(0, sharing="each")
    for agent_id, capacity in (("small", 10), ("large", 1000)):
        swarm.join(agent_id, capacity=capacity, sharing="each")
    swarm.clock.advance(30)
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [5, 500]


def test_d66_every_rate_of_a_resource_is_shared():
    """Requests and tokens, the minute and a longer time: each agent has its part of each."""
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


def test_dl11_agents_of_both_languages_on_one_bus_end_at_one_figure(team):
    """What a Go agent says cuts us all once; what we say it reads as it always did."""
    swarm = team(3)
    said = []
    swarm.bus.subscribe("ratelimit.capacity", lambda message: said.append(message.data))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    swarm.bus.publish(
        "ratelimit.capacity",
        b'{"resource":"shared-api","agent_id":"go-1","new_capacity":40,"reason":"received 429 from API",'
        b'"timestamp":"' + now.encode() + b'"}',
    )
    swarm.clock.advance(10)
    assert swarm.totals() == [40] * 3
    swarm.clock.advance(60)
    swarm.agents[2].announce_reduced(API, "429")
    assert len(set(swarm.totals())) == 1
    assert b'"new_capacity":%d,' % swarm.totals()[0] in said[-1]


# -- being told


def test_dl16_the_last_callback_hears_every_update_of_others_applied_or_not(team):
    swarm = team(2)
    first, last = [], []
    swarm.agents[1].on_capacity_change(first.append)
    swarm.agents[1].on_capacity_change(last.append)
    swarm.agents[0].announce_reduced(API, "429")
    assert first == []
    (update,) = last
    assert (update.resource, update.agent_id, update.new_capacity, update.reason) == (
        API,
        "agent-0",
        50,
        "429",
    )
    assert abs((datetime.now(UTC) - update.timestamp).total_seconds()) < 60
    swarm.bus.publish("ratelimit.capacity", b'{"resource":"never set","agent_id":"go","new_capacity":5}')
    assert [update.resource for update in last] == [API, "never set"]


def test_dl16_own_announcements_and_recovery_call_nobody(team):
    swarm = team(2)
    heard = []
    swarm.agents[0].on_capacity_change(heard.append)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(200)
    assert swarm.totals() == [100] * 2
    assert heard == []


def test_dl17_the_callback_may_be_an_option(team):
    swarm = team(1)
    heard = []
    swarm.join("watcher", on_capacity_change=heard.append)
    swarm.clock.advance(30)
    swarm.agents[0].announce_reduced(API, "429")
    assert len(heard) == 1


def test_d74_a_callback_that_raises_or_closes_harms_nobody(team, caplog):
    swarm = team(3)

    def raises(update):
        raise RuntimeError("a mistake")

    swarm.agents[1].on_capacity_change(raises)
    swarm.agents[2].on_capacity_change(lambda update: swarm.agents[2].close())
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.agents[1].get_capacity(API).total == 50
    with pytest.raises(Closed):
        swarm.agents[2].acquire(API)
    assert "a mistake" in caplog.text


def test_d74_a_callback_that_blocks_keeps_nobody_from_hearing():
    bus = MemoryBus()
    blocked, go_on = threading.Event(), threading.Event()
    one, two = (DistributedLimiter(bus=bus, agent_id=agent_id) for agent_id in ("one", "two"))
    try:
        for agent in (one, two):
            agent.set_capacity(API, 100, 60)

        def blocks(update):
            blocked.set()
            go_on.wait(10)

        two.on_capacity_change(blocks)
        one.announce_reduced(API, "429")
        assert blocked.wait(10)
        assert two.get_capacity(API).total == 50
    finally:
        go_on.set()
        one.close()
        two.close()


# -- recovery


def test_dl18_and_dl19_by_the_seeds_steps_if_that_is_asked_for(team):
    swarm = team(2, recovery="stepwise")
    swarm.agents[0].announce_reduced(API, "429")
    steps = []
    for _ in range(700):
        swarm.work(1)
        totals = swarm.totals()
        if len(set(totals)) == 1 and (not steps or steps[-1] != totals[0]):
            steps.append(totals[0])
    assert steps == [50, 55, 60, 66, 72, 79, 86, 94, 100]


def test_dl19_not_before_an_interval_has_passed(team):
    swarm = team(1, recovery="stepwise", recovery_interval=30)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(29)
    assert swarm.totals() == [50]
    swarm.work(33)
    assert swarm.totals()[0] in (55, 60)


def test_dl20_beyond_the_original_only_where_that_is_asked_for(team):
    swarm = team(1, 10, window=1, recovery="stepwise", recovery_factor=3, max_recovery=False)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(200)
    assert swarm.totals() == [15]
    swarm.work(200)
    assert swarm.totals() == [15]


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 9, 10])
def test_d68_the_smallest_capacities_come_back(team, capacity, recovery):
    swarm = team(1, capacity, window=1, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(8 * 31)
    assert swarm.totals() == [capacity]


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
def test_d70_nothing_grows_before_something_succeeds(team, recovery):
    swarm = team(2, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.clock.advance(300)
    assert swarm.totals() == [50] * 2
    swarm.work(200, fails=True)
    assert swarm.totals() == [50] * 2
    swarm.work(400)
    assert swarm.totals() == [100] * 2


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
def test_d70_the_whole_swarm_is_on_one_curve(team, recovery):
    swarm = team(5, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    apart = 0
    for _ in range(120):
        swarm.work(0.5)
        totals = swarm.totals()
        apart = max(apart, max(totals) - min(totals))
    assert apart <= 10
    swarm.work(300)
    assert swarm.totals() == [100] * 5


# -- closing


def test_dl21_closing_leaves_refuses_and_is_done_once(team):
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


def test_dl21_who_waits_is_told_closed():
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


def test_dl22_the_documentation_gives_the_seeds_advice():
    pages = [HERE.parent.parent / "docs" / name for name in ("swarm.md", "coming-from.md")]
    text = " ".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
    for advice in ("below the real limit", "slot(", "try_acquire(", "observer"):
        assert advice in text


# -- security


def signed(agent_id, clock, bus, secret, **options):
    agent = DistributedLimiter(bus=bus, agent_id=agent_id, secret=secret, clock=clock, **options)
    agent.set_capacity(API, 100, 60)
    return agent


def test_d71_only_who_knows_the_secret_is_heard():
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


def test_d71_a_signed_message_cannot_be_changed_or_said_elsewhere():
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


def test_d71_two_live_agents_of_one_id_are_noticed(team):
    swarm = team(0)
    for _ in range(2):
        swarm.join("same")
    swarm.clock.advance(60)
    told = swarm.seen.of(events.DuplicateAgent)
    assert told
    assert told[0].agent_id == "same"
    assert sum(swarm.shares()) <= 100


def test_d71_an_agent_that_was_restarted_is_no_duplicate(team):
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


# -- the bus


def test_d72_a_bus_that_goes_deaf_is_told_and_healed():
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


def test_d75_what_was_learned_survives_a_restart_unless_it_is_too_old(team):
    swarm = team(1)
    swarm.agents[0].announce_reduced(API, "429")
    saved = swarm.agents[0].snapshot()
    for younger_than, total in ((600.0, 50), (1e-9, 100)):
        again = Team(1)
        again.agents[0].restore(saved, younger_than=younger_than)
        assert again.totals() == [total]
        again.close()
    with pytest.raises(InvalidConfig):
        swarm.agents[0].restore({"levels": "nonsense"})


def test_d75_a_snapshot_is_plain_values(team):
    import json

    swarm = team(1)
    swarm.agents[0].announce_reduced(API, "429")
    saved = swarm.agents[0].snapshot()
    assert json.loads(json.dumps(saved)) == saved


def test_d77_a_reduction_may_say_for_how_long_nobody_goes(team):
    swarm = team(3)
    swarm.agents[0].announce_reduced(API, "429", retry_after=10)
    assert [agent.try_acquire(API) for agent in swarm.agents] == [False] * 3
    swarm.clock.advance(9.9)
    assert [agent.try_acquire(API) for agent in swarm.agents] == [False] * 3
    swarm.clock.advance(60)
    assert [agent.try_acquire(API) for agent in swarm.agents] == [True] * 3


def test_d77_a_newcomer_hears_of_the_pause(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429", retry_after=60)
    late = swarm.join("late")
    swarm.clock.advance(50)
    assert late.try_acquire(API) is False
    swarm.clock.advance(120)
    assert late.try_acquire(API) is True


def test_d77_a_pause_is_told_by_settling_too(team):
    swarm = team(2)
    with swarm.agents[0].slot(API) as permit:
        permit.settle(verdict=throttled(10))
    assert swarm.agents[1].try_acquire(API) is False


def test_x05_threads_may_do_everything_at_once():
    """A bus in memory delivers in the thread that speaks: agents call each other, and nobody gets stuck."""
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
