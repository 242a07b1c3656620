"""A swarm while the API gives less: how much of it is used, how often it refuses, how soon all is back.

Virtual time, real code: N agents, each a DistributedLimiter on a bus that takes 5 to 20 ms, share 100 calls a
second of an API that takes 0.2 s to answer, and always want more. After 100 s it gives 30 a second for five
minutes, then 100 again. "Use" is the part of possible calls that were answered; "rejected" is the part of
calls that were answered 429; "back" is when ten seconds in a row had 90 % of the whole. The rules of the Go
package are measured too: each agent is given an equal part, halves it at every 429 it sees, tells all others,
and grows by a tenth every 30 s.

A swarm goes up and down about once a minute, and how soon it is back depends on where it is when the drop
ends. So with `--seeds 8` names and delays differ from run to run, each drop is 8 s longer than the one
before, and the median is shown with the worst.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from headgate import DistributedLimiter, MemoryLimiter
from headgate.cli.demo.chart import Panel, Series, Shade, draw
from headgate.testing import UnreliableBus, run
from measure import table

CAPACITY = 100
LATENCY = 0.2
BEFORE, DROP, AFTER = 100, 300, 300
LONGER = 8  # from seed to seed
LEFT = 0.3
MARKS = "▁▂▃▄▅▆▇█"


class Api:
    """A bucket of one second's worth of calls, filled at a rate that changes."""

    def __init__(self, clock, seed):
        self.clock = clock
        self.began = clock.seconds()
        self.level = float(CAPACITY)
        self.at = self.began
        self.over = BEFORE + DROP + LONGER * seed  # when it gives all again
        self.end = self.over + AFTER
        seconds = self.end + 60
        self.answered = [0] * seconds
        self.refused = [0] * seconds

    def rate(self, now):
        return CAPACITY * (LEFT if BEFORE <= now - self.began < self.over else 1.0)

    def take(self):
        now = self.clock.seconds()
        rate = self.rate(now)
        self.level = min(rate, self.level + (now - self.at) * rate)
        self.at = now
        second = int(now - self.began)
        if self.level >= 1:
            self.level -= 1
            self.answered[second] += 1
            return True
        self.refused[second] += 1
        return False


class Outcome(NamedTuple):
    use: float  # during the drop
    rejected: float
    back: float | None  # seconds after its end
    afterwards: float  # use in the last 100 s
    rejected_in_all: int
    cuts: int
    answered: list[int]  # in each second
    refused: list[int]


def judge(api, cuts):
    drop = slice(BEFORE, api.over)
    answered, refused = sum(api.answered[drop]), sum(api.refused[drop])
    back = None
    for second in range(api.over, api.end - 10):
        if sum(api.answered[second : second + 10]) >= 0.9 * CAPACITY * 10:
            back = second - api.over
            break
    last = api.answered[api.end - 100 : api.end]
    return Outcome(
        use=answered / (CAPACITY * LEFT * (api.over - BEFORE)),
        rejected=refused / max(1, answered + refused),
        back=back,
        afterwards=sum(last) / (CAPACITY * 100),
        rejected_in_all=sum(api.refused),
        cuts=cuts,
        answered=api.answered[: api.end],
        refused=api.refused[: api.end],
    )


async def busy(acquire, call):
    """Wait for the next call all the time, without waiting for answers."""
    underway = set()
    while True:
        await acquire()
        task = asyncio.create_task(call())
        underway.add(task)
        task.add_done_callback(underway.discard)


async def drive(seconds, agents, acquire, call):
    workers = [asyncio.create_task(busy(partial(acquire, agent), partial(call, agent))) for agent in agents]
    await asyncio.sleep(seconds)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def ours(clock, *, size, seed, options):
    dice = random.Random(size + 1000 * seed)
    names = [f"agent-{1000 * seed + n:03}" for n in range(size)]  # another order in each run
    bus = UnreliableBus(clock, dice.random, fastest=0.005, slowest=0.02)
    bus.splits = False
    bus.settles = 0.5
    agents = [
        DistributedLimiter(bus=bus.endpoint(name), agent_id=name, clock=clock, **options) for name in names
    ]
    for agent in agents:  # one after the other, as machines start
        agent.set_capacity("api", CAPACITY, 1, burst=CAPACITY // 10)
        await asyncio.sleep(1 if agent is agents[0] else 0.01)
    await asyncio.sleep(5)
    api = Api(clock, seed)

    async def call(agent):
        sent_at = clock.seconds()
        fine = api.take()
        await asyncio.sleep(LATENCY)
        if not fine:
            agent.announce_reduced("api", "429", sent_at=sent_at)

    await drive(api.end, agents, lambda agent: agent.acquire_async("api"), call)
    level = agents[0]._agent.resources["api"].total.level
    for agent in agents:
        agent.close()
    return judge(api, 0 if level is None else level.epoch)


async def by_hand(clock, *, size, seed, options):
    """The rules of the Go package: a 429 halves what its agent has, and all agents take that figure."""
    dice = random.Random(size + 1000 * seed)
    original = max(1, CAPACITY // size)
    window = original * size / CAPACITY  # so that the swarm begins with the whole
    agents = [MemoryLimiter(clock=clock) for _ in range(size)]
    totals = dict.fromkeys(agents, original)
    reduced_at = {}
    cuts = count()
    for agent in agents:
        agent.set_capacity("api", original, window)
    api = Api(clock, seed)

    def adopt(agent, total):
        totals[agent] = total
        agent.set_capacity("api", total, window)

    def hear(agent, total):
        if total < original:
            if total != totals[agent]:
                adopt(agent, total)
            reduced_at[agent] = clock.seconds()

    def announce(agent):
        next(cuts)
        adopt(agent, max(1, totals[agent] // 2))
        reduced_at[agent] = clock.seconds()
        for other in agents if totals[agent] < original else ():  # they ignore anything else
            if other is not agent:
                delay = 0.005 + 0.015 * dice.random()
                clock.at(clock.seconds() + delay, partial(hear, other, totals[agent]))

    async def recover(agent):
        while True:
            await asyncio.sleep(30)
            if agent in reduced_at and clock.seconds() - reduced_at[agent] >= 30:
                adopt(agent, min(original, int(totals[agent] * 1.1)))

    async def call(agent):
        fine = api.take()
        await asyncio.sleep(LATENCY)
        if not fine:
            announce(agent)

    healing = [asyncio.create_task(recover(agent)) for agent in agents]
    await drive(api.end, agents, lambda agent: agent.acquire_async("api"), call)
    for task in healing:
        task.cancel()
    return judge(api, next(cuts))


RULES = {
    "cubic": (ours, {"recovery": "cubic"}),
    "×1.1 every 30 s, exact and shared": (ours, {"recovery": "stepwise"}),
    "the Go package's": (by_hand, {}),
}


def spark(seconds):
    """Calls answered, ten seconds a mark, as a part of the whole."""
    tens = [sum(seconds[i : i + 10]) / (10 * CAPACITY) for i in range(0, len(seconds), 10)]
    return "".join(MARKS[min(7, int(8 * part))] for part in tens)


COLOURS = ["#1874cd", "#d68a10", "#c4343e"]


def by_tens(seconds):
    """Points of a line: the mean of ten seconds each, as calls a second."""
    return [(i + 5, sum(seconds[i : i + 10]) / 10) for i in range(0, len(seconds), 10)]


def picture(outcomes):
    """For each size, what was answered and what was refused, as a PNG."""
    panels = []
    for size in dict.fromkeys(size for _, size in outcomes):
        lines = {name: outcome for (name, n), outcome in outcomes.items() if n == size}
        for what in ("answered", "refused"):
            series = [
                Series(name, colour, by_tens(getattr(outcome, what)))
                for (name, outcome), colour in zip(lines.items(), COLOURS, strict=False)
            ]
            panels.append(Panel(f"{size} agents: {what}", "calls a second, over ten seconds each", series))
    note = "100 calls a second for all of them; 30 for five minutes; then 100 again. Virtual time, real code."
    drop = Shade(BEFORE, BEFORE + DROP, "the API gives 30 %")
    return draw("A swarm while the API gives less", note, panels, drop)


def met(outcome):
    return outcome.use >= 0.95 and outcome.rejected <= 0.015 and (outcome.back or 999) <= 120


def figures(values, write, worst):
    """The median, and of several the worst behind it."""
    middle = write(median(values))
    return middle if len(values) == 1 else f"{middle} ({write(worst(values))})"


def row(name, size, outcomes):
    misses = sum(not met(outcome) for outcome in outcomes)

    def cell(what, write, worst):
        return figures([getattr(outcome, what) for outcome in outcomes], write, worst)

    return (
        name,
        size,
        cell("use", "{:.1%}".format, min),
        cell("rejected", "{:.2%}".format, max),
        figures(
            [inf if outcome.back is None else outcome.back for outcome in outcomes],
            lambda back: "never" if back == inf else f"{back:.0f} s",
            max,
        ),
        cell("afterwards", "{:.1%}".format, min),
        cell("rejected_in_all", "{:.0f}".format, max),
        cell("cuts", "{:.0f}".format, max),
        f"MISSED {misses} of {len(outcomes)}" if misses and outcomes[1:] else "MISSED" if misses else "met",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only 10 agents")
    parser.add_argument("--only", help="one set of rules")
    parser.add_argument("--sizes", help="how many agents, e.g. 10,50")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs of each")
    parser.add_argument("--plot", help="where to put a picture, a PNG, of the first seed")
    arguments = parser.parse_args()
    sizes = [int(n) for n in arguments.sizes.split(",")] if arguments.sizes else [10, 50, 500]
    if arguments.quick:
        sizes = [10]
    rows, curves, outcomes = [], [], {}
    began = time.monotonic()
    for name, (rules, options) in RULES.items():
        if arguments.only not in (None, name):
            continue
        for size in sizes:
            thrown = []
            for seed in range(arguments.seeds):
                thrown.append(run(partial(rules, size=size, seed=seed, options=options)))
                if arguments.seeds > 1:  # a large swarm takes minutes, so say at once what is known
                    print(*row(name, size, thrown[-1:]), sep="  ", flush=True)
            outcomes[name, size] = thrown[0]
            rows.append(row(name, size, thrown))
            curves.append((name, size, spark(thrown[0].answered)))
    if arguments.seeds > 1:
        print(f"\nThe median of {arguments.seeds} seeds (the worst):")
    table(
        (
            "rules",
            "agents",
            "use in the drop",
            "rejected",
            "back at 90 %",
            "use at the end",
            "429s",
            "cuts",
            "≥ 95 %, ≤ 1.5 %, ≤ 120 s",
        ),
        rows,
    )
    print("\nCalls answered, ten seconds a mark, full height 100 a second:\n")
    print("```")
    for name, size, curve in curves:
        print(f"{name:34} {size:4}  {curve}")
    print("```")
    if arguments.plot:
        Path(arguments.plot).write_bytes(picture(outcomes))
    print(f"\n{time.monotonic() - began:.0f} s of real time.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
