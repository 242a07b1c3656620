"""Reductions of a swarm's total: announced, heard, told to callbacks, paused for, recovered from, saved."""

import json
import threading
from datetime import UTC, datetime

import pytest

from headgate import Closed, DistributedLimiter, InvalidConfig
from headgate.swarm.bus.memory import MemoryBus
from headgate.verdict import throttled
from swarm.team import API, LEASE, NetworkTeam, Team

# -- announcing


@pytest.mark.parametrize(
    ("capacity", "factor", "left"),
    [(100, 0.5, 50), (100, 0.75, 75), (3, 0.5, 1), (1, 0.5, 1), (10, 0.01, 1), (7, 0.9, 6)],
)
def test_an_announcement_cuts_the_total_of_every_agent(team, capacity, factor, left):
    swarm = team(3, capacity=capacity, reduce_factor=factor)
    swarm.agents[1].announce_reduced(API, "429")
    assert swarm.totals() == [left] * 3


def test_agents_share_the_total_that_a_cut_leaves(team):
    swarm = team(4)
    assert swarm.shares() == [25] * 4
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [50] * 4
    assert swarm.shares() == [12] * 4


def test_sharing_each_gives_every_agent_the_whole_total(team):
    swarm = team(4, sharing="each")
    assert swarm.shares() == [100] * 4
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.shares() == [50] * 4
    assert sum(agent.try_acquire(API) for agent in swarm.agents for _ in range(60)) == 200


def test_announcing_an_unknown_resource_changes_nothing(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced("another", "429")
    assert swarm.totals() == [100] * 2
    assert swarm.agents[1].get_capacity("another") is None


def test_ten_refusals_of_one_burst_cut_once(team):
    swarm = team(1)
    for _ in range(10):
        swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [50]


def test_refusals_of_calls_sent_before_the_cut_do_not_cut_again(team):
    swarm = team(5)
    sent_at = swarm.clock.seconds()
    for agent in swarm.agents:
        swarm.clock.advance(2)
        agent.announce_reduced(API, "429", sent_at=sent_at)
    assert swarm.totals() == [50] * 5


def test_a_refusal_of_a_call_sent_after_the_cut_cuts_again(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.clock.advance(60)
    swarm.agents[1].announce_reduced(API, "429", sent_at=swarm.clock.seconds() - 1)
    assert swarm.totals()[0] < 50
    assert len(set(swarm.totals())) == 1


def test_settling_a_permit_as_throttled_announces_a_reduction(team):
    swarm = team(2)
    with swarm.agents[0].slot(API) as permit:
        permit.settle(verdict=throttled())
    assert swarm.totals() == [50] * 2


def test_a_cut_scales_the_share_of_every_agent(team):
    """Two agents of weight one and three want all there is: the proportion stays after a cut."""
    swarm = team(0)
    for agent_id, weight in (("light", 1), ("heavy", 3)):
        swarm.join(agent_id, weight=weight)
    swarm.work(120)
    light, heavy = swarm.shares()
    assert light + heavy <= 100
    assert 2.8 <= heavy / light <= 3.2
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.shares() == [light // 2, heavy // 2]


def test_agents_with_different_totals_are_cut_by_the_same_factor(team):
    """Messages carry the factor, because a total means nothing to an agent with another one."""
    swarm = team(0, sharing="each")
    for agent_id, capacity in (("small", 10), ("large", 1000)):
        swarm.join(agent_id, capacity=capacity, sharing="each")
    swarm.clock.advance(30)
    swarm.agents[0].announce_reduced(API, "429")
    assert swarm.totals() == [5, 500]


def test_agents_of_go_and_python_on_one_bus_agree_on_the_total(team):
    """An update of a Go agent cuts all agents once; a Go agent reads the updates of this library."""
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


# -- newcomers


def test_a_newcomer_knows_of_the_cut_before_it_has_a_share(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429")
    late = swarm.join("late")
    standing = late.get_capacity(API)
    assert standing.total == 50 or standing.share == 0
    swarm.clock.advance(30)
    assert swarm.totals() == [50] * 3
    assert sum(swarm.shares()) <= 50


def test_an_agent_that_comes_when_no_other_is_there_finds_the_retained_level(team):
    """A deploy that stops all agents at once need not learn the limit by 429s again."""
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


# -- pauses


def test_a_reduction_with_retry_after_pauses_all_agents(team):
    swarm = team(3)
    swarm.agents[0].announce_reduced(API, "429", retry_after=10)
    assert [agent.try_acquire(API) for agent in swarm.agents] == [False] * 3
    swarm.clock.advance(9.9)
    assert [agent.try_acquire(API) for agent in swarm.agents] == [False] * 3
    swarm.clock.advance(60)
    assert [agent.try_acquire(API) for agent in swarm.agents] == [True] * 3


def test_a_newcomer_hears_of_the_pause(team):
    swarm = team(2)
    swarm.agents[0].announce_reduced(API, "429", retry_after=60)
    late = swarm.join("late")
    swarm.clock.advance(50)
    assert late.try_acquire(API) is False
    swarm.clock.advance(120)
    assert late.try_acquire(API) is True


def test_settling_a_permit_with_retry_after_pauses_all_agents(team):
    swarm = team(2)
    with swarm.agents[0].slot(API) as permit:
        permit.settle(verdict=throttled(10))
    assert swarm.agents[1].try_acquire(API) is False


# -- callbacks


def test_the_last_callback_hears_every_update_of_other_agents(team):
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


def test_own_announcements_and_recovery_do_not_call_the_callback(team):
    swarm = team(2)
    heard = []
    swarm.agents[0].on_capacity_change(heard.append)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(200)
    assert swarm.totals() == [100] * 2
    assert heard == []


def test_the_callback_may_be_given_at_construction(team):
    swarm = team(1)
    heard = []
    swarm.join("watcher", on_capacity_change=heard.append)
    swarm.clock.advance(30)
    swarm.agents[0].announce_reduced(API, "429")
    assert len(heard) == 1


def test_a_callback_that_raises_or_closes_its_limiter_does_no_harm(team, caplog):
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


def test_a_callback_that_blocks_does_not_keep_its_agent_from_hearing():
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


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
def test_recovery_ends_at_the_configured_capacity(team, recovery):
    swarm = team(1, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    highest = 0
    for _ in range(60):
        swarm.work(5)
        highest = max(highest, *swarm.totals())
    assert highest == 100


def test_stepwise_recovery_grows_by_a_tenth_in_each_interval(team):
    swarm = team(2, recovery="stepwise")
    swarm.agents[0].announce_reduced(API, "429")
    steps = []
    for _ in range(700):
        swarm.work(1)
        totals = swarm.totals()
        if len(set(totals)) == 1 and (not steps or steps[-1] != totals[0]):
            steps.append(totals[0])
    assert steps == [50, 55, 60, 66, 72, 79, 86, 94, 100]


def test_stepwise_recovery_waits_for_a_whole_interval(team):
    swarm = team(1, recovery="stepwise", recovery_interval=30)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(29)
    assert swarm.totals() == [50]
    swarm.work(33)
    assert swarm.totals()[0] in (55, 60)


def test_max_recovery_false_lets_the_last_step_end_above_the_capacity(team):
    swarm = team(1, 10, window=1, recovery="stepwise", recovery_factor=3, max_recovery=False)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(200)
    assert swarm.totals() == [15]
    swarm.work(200)
    assert swarm.totals() == [15]


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 9, 10])
def test_the_smallest_capacities_recover_fully(team, capacity, recovery):
    swarm = team(1, capacity, window=1, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.work(8 * 31)
    assert swarm.totals() == [capacity]


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
def test_the_total_does_not_grow_before_a_call_succeeds(team, recovery):
    swarm = team(2, recovery=recovery)
    swarm.agents[0].announce_reduced(API, "429")
    swarm.clock.advance(300)
    assert swarm.totals() == [50] * 2
    swarm.work(200, fails=True)
    assert swarm.totals() == [50] * 2
    swarm.work(400)
    assert swarm.totals() == [100] * 2


@pytest.mark.parametrize("recovery", ["stepwise", "cubic"])
def test_all_agents_recover_along_one_curve(team, recovery):
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


def test_an_agent_that_was_cut_off_takes_over_the_growth_it_missed():
    """The leader lets the total grow, and tells an agent that comes back how far it has grown."""
    swarm = NetworkTeam(3, recovery="stepwise", recovery_interval=5)
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


# -- snapshots


def test_a_snapshot_survives_a_restart_unless_it_is_too_old(team):
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


def test_a_snapshot_is_plain_values(team):
    swarm = team(1)
    swarm.agents[0].announce_reduced(API, "429")
    saved = swarm.agents[0].snapshot()
    assert json.loads(json.dumps(saved)) == saved
