"""Agents of one swarm in one process, on virtual time, for the tests of this folder."""

import random

from headgate import CapacityExhausted, DistributedLimiter
from headgate.swarm.bus.memory import MemoryBus
from headgate.testing import ManualClock, Recorder, UnreliableBus

API = "shared-api"
LEASE = 10.0
FORGET = 120.0


class Team:
    """`many` agents on one bus in memory, which have found each other."""

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
        """Every agent calls as often as it may, and all calls succeed, or fail."""
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


class NetworkTeam:
    """`many` agents that share 100 calls a minute, on a network that works until it is told otherwise."""

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
