"""Processes that share one key, in virtual time: real gates and members, a store that is far away, a referee.

with Fleet(rates=["500/s"]) as fleet:
    fleet.join(4, trip=0.04)            # four processes, 40 ms from their store and back
    fleet.work(tasks=50)                # each with 50 tasks that want to call all the time
    fleet.run(5)                        # seconds
    fleet.parts(), fleet.excess(500, 500), fleet.most_inside()

All run on one event loop whose time is virtual, so that a second of a fleet takes a moment and is the same
every time. A process has a line of its own to the store: `process.line.trip` seconds long there and back, and
`process.line.dead` if nothing passes.
"""

import asyncio
from contextlib import ExitStack
from itertools import cycle
from random import Random
from unittest.mock import patch

from headgate import Dispatch
from headgate.errors import StoreError
from headgate.sharing.memory import MemoryStore
from headgate.testing import ManualClock, Recorder, _VirtualLoop

_COURIERS = (
    "headgate.sharing.pool.member.COURIER",
    "headgate.sharing.pool.client.COURIER",
)


class VirtualCourier:
    """What the courier does, on a loop whose time is virtual."""

    def __init__(self, loop):
        self._loop = loop
        self._tasks = set()

    def soon(self, act):
        if not self._loop.is_closed():  # members that the collector finds later have left with it
            self._loop.call_soon(act)

    def send(self, errand):
        self.soon(lambda: self.start(errand))

    send_last = send

    def start(self, errand):
        task = self._loop.create_task(errand())
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task):
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # an errand that fails is an error of the test

    def wait_for(self, errand, timeout):
        """Run the errand and wait for it. Only between two runs of the loop."""
        return self._loop.run_until_complete(asyncio.wait_for(errand(), timeout))


class FarStore:
    """A line to a store. What was sent arrives, although its sender has given up."""

    def __init__(self, store, trip=0.0, back=None, jitter=0.0):
        self.trip = trip  # seconds, there and back
        self.back = back  # of it the way back; None: half
        self.jitter = jitter  # how much longer each way may take
        self.dead = False  # nothing passes, and neither side is told
        self.away = False  # the store refuses connections
        self.asked = 0
        self._store = store
        self._on_the_way = set()
        self._hearing = {}
        self._random = Random(f"{trip} {back}").random

    async def ask(self, key, question):
        self.asked += 1
        if self.away:
            raise StoreError("away")
        travelling = asyncio.ensure_future(self._travel(key, question))
        self._on_the_way.add(travelling)
        travelling.add_done_callback(self._on_the_way.discard)
        return await asyncio.shield(travelling)

    async def _travel(self, key, question):
        back = self.trip / 2 if self.back is None else self.back
        await self._pass(self.trip - back)
        answer = await self._store.ask(key, question)
        await self._pass(back)
        return answer

    async def _pass(self, seconds):
        seconds += self.jitter * self._random()
        if seconds:
            await asyncio.sleep(seconds)
        if self.dead:
            await asyncio.Event().wait()

    async def listen(self, key, heard):
        def hear(news):
            if not (self.dead or self.away):
                asyncio.get_running_loop().call_later(self.trip / 2, heard, news)

        self._hearing[key, heard] = hear
        await self._store.listen(key, hear)

    async def unlisten(self, key, heard):
        await self._store.unlisten(key, self._hearing.pop((key, heard), heard))

    async def close(self):
        pass


class Process:
    """One process of a fleet: its gate, its line to the store, its calls."""

    def __init__(self, fleet, line, options):
        self.line = line
        self.seen = Recorder()
        self.times = []  # at which its calls began, in seconds
        self.tokens = []  # of each
        self.ends = []
        self.stopped = False  # killed: its tasks and its member do nothing more
        self.gate = Dispatch("key", store=line, clock=fleet.clock, observer=self.seen, **options)

    @property
    def asked(self):
        return self.gate._member.questions

    async def work(self, clock, takes, pause, tokens):
        while not self.stopped:
            cost = next(tokens)
            async with self.gate.admit(tokens=cost):
                if self.stopped:
                    return
                self.times.append(clock.seconds())
                self.tokens.append(cost)
                if takes:
                    await asyncio.sleep(takes)
                self.ends.append(clock.seconds())
            if pause:
                await asyncio.sleep(pause)


class Fleet:
    def __init__(self, **options):
        self.options = {"concurrency": None, "throttled_concurrency": None, "byte_budget": None, **options}
        self.clock = ManualClock(1_000)
        self.store = MemoryStore(self.clock)
        self.processes = []
        self._loop = _VirtualLoop(self.clock)
        self._workers = set()
        self._patched = ExitStack()

    def __enter__(self):
        courier = VirtualCourier(self._loop)
        for name in _COURIERS:
            self._patched.enter_context(patch(name, courier))
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stopped = True
        for process in self.processes:
            process.gate._member._closed = True  # cancelled with everything else
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._patched.close()
        self._loop.close()

    def join(self, many=1, *, trip=0.0, back=None, jitter=0.0, **options):
        """Start processes, one after the other."""
        new = []
        for _ in range(many):
            line = FarStore(self.store, trip, back, jitter)
            new.append(Process(self, line, {**self.options, **options}))
            self.processes.append(new[-1])
        return new

    def work(self, *processes, tasks=50, takes=0.0, pause=0.0, tokens=(0,)):
        """Have processes, or all, call all the time by many tasks; each call takes some time.

        `tokens`: of one call after the other, again and again.
        """
        costs = cycle(tokens)
        for process in processes or self.processes:
            for _ in range(tasks):
                task = self._loop.create_task(process.work(self.clock, takes, pause, costs))
                self._workers.add(task)
                task.add_done_callback(self._workers.discard)

    def run(self, seconds):
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def stop_work(self):
        """All waiting callers give up."""
        for task in self._workers:
            task.cancel()

    def kill(self, process):
        """kill -9: nothing more is heard of it."""
        process.stopped = process.line.dead = True
        process.gate._member._closed = True
        process.gate.closed = True

    # -- the referee

    @property
    def now(self):
        return self.clock.seconds()

    def parts(self, since=0.0):
        """How many calls each process began."""
        return [sum(at >= since for at in process.times) for process in self.processes]

    def times(self, since=0.0):
        return sorted(at for process in self.processes for at in process.times if at >= since)

    def excess(self, rate, burst, since=0.0):
        """The most that any stretch of time held beyond burst + rate × its length."""
        lowest, worst = float("inf"), float("-inf")
        for i, at in enumerate(self.times(since)):
            lowest = min(lowest, i - rate * at)
            worst = max(worst, i + 1 - rate * at - lowest - burst)
        return round(worst, 6)  # times are numbers with a rest

    def most_inside(self):
        """How many calls were inside at once."""
        changes = [(at, 1) for process in self.processes for at in process.times]
        changes += [(at, -1) for process in self.processes for at in process.ends]
        inside = most = 0
        for _, change in sorted(changes):
            inside += change
            most = max(most, inside)
        return most

    def questions(self):
        """Questions to the store for each call that began."""
        return sum(process.asked for process in self.processes) / max(1, len(self.times()))


def unevenness(parts):
    """How far the part that differs most is from the even one, as a fraction of that."""
    even = sum(parts) / len(parts)
    return max(abs(part - even) for part in parts) / even
