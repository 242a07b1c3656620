"""Large crowds in virtual time: many processes on one key, and many keys.

Processes are real gates and members (`Fleet`); their store keeps pools as they are, without packing them,
and answers one question after the other, each of which may take some time. Keys by the hundred thousand are
served by the pool's arithmetic alone: `LightMember` asks what a real member asks for single calls.
"""

import asyncio
from heapq import heappop, heappush
from itertools import count

from fleet import Fleet
from headgate.events import StoreLost
from headgate.sharing.memory import MemoryStore
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.demand import LEASE
from headgate.sharing.pool.question import empty_question
from headgate.sharing.pool.state import Pool
from headgate.sharing.store import tell_all


class OneServer(MemoryStore):
    """Answers questions one after the other; `takes` says how many seconds one takes in a pool of so many."""

    def __init__(self, clock, takes=lambda _members: 0.0):
        super().__init__(clock)
        self.pools = {}
        self.asked_at = []
        self._clock = clock
        self._takes = takes
        self._free_at = 0.0

    async def ask(self, key, question):
        now = self._clock.seconds()
        pool = self.pools.setdefault(key, Pool())
        self._free_at = max(self._free_at, now) + self._takes(len(pool.members))
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
        self.asked_at.append(self._clock.seconds())
        before = pool.news
        given = answer(pool, question, self._now())
        if pool.news != before:
            tell_all(self._listeners.get(key, ()))
        return given

    def questions(self, since, until):
        return sum(since <= at < until for at in self.asked_at)


class Crowd(Fleet):
    """A fleet of many processes on one key. Its figures are of the time since `mark`."""

    def __init__(self, rate, burst, many, *, takes=lambda _members: 0.0, tasks=4, **options):
        super().__init__(rates=[f"{rate}/s burst {burst}"], **options)
        self.store = OneServer(self.clock, takes)
        self.rate, self.burst, self.many, self.tasks = rate, burst, many, tasks
        self.marked = 0.0

    def begin(self, settle):
        """Start all, have them call, and let a while pass."""
        self.join(self.many)
        self.run(1)
        self.work(tasks=self.tasks)
        self.run(settle)
        self.mark()

    def mark(self):
        self.marked = self.now

    @property
    def use(self):
        return len(self.times(self.marked)) / (self.rate * (self.now - self.marked))

    @property
    def per_second(self):
        """Questions a second."""
        return self.store.questions(self.marked, self.now) / (self.now - self.marked)

    @property
    def lost(self):
        """How often a process lost the store, so far."""
        return sum(len(process.seen.of(StoreLost)) for process in self.processes)

    def used_again_after(self, step=0.5, within=30.0):
        """How many seconds pass until nine tenths of the rate are used again."""
        began = self.now
        while self.now - began < within:
            before = self.now
            self.run(step)
            if len(self.times(before)) >= 0.9 * self.rate * step:
                return before - began
        return None


class LightMember:
    """A member of one key whose calls come one by one: it asks for each."""

    def __init__(self, name, terms):
        self.name, self.terms, self.numbers = name, terms, count(1)
        self.born = 0

    def question(self, **facts):
        question = empty_question(
            self.name, next(self.numbers), lease=LEASE // 1_000, rates=self.terms, units=["requests"]
        )
        return {**question, "born": self.born, **facts}


class ManyKeys:
    """Keys that are called now and then, each by several members in turn. Times in µs of the store."""

    def __init__(self, keys, members, terms):
        self.pools = [Pool() for _ in range(keys)]
        self.members = [[LightMember(f"m{n}", terms) for n in range(members)] for _ in range(keys)]
        self.now, self.asked, self.calls = 1_000_000, 0, 0
        self._due = []  # (time, number, key, member)
        self._numbers = count()

    def call_at(self, at, key, member):
        heappush(self._due, (at, next(self._numbers), key, member))

    def ask(self, key, member, **facts):
        self.asked += 1
        light = self.members[key][member]
        given = answer(self.pools[key], light.question(**facts), self.now)
        light.born = given["born"]
        return given

    def run_until(self, end):
        while self._due and self._due[0][0] <= end:
            self.now, _, key, member = heappop(self._due)
            given = self.ask(key, member, batches=[[1]], waiting=1)
            if given["starts"]:
                self.calls += 1
            else:
                self.call_at(self.now + given["ask_again_in"], key, member)
        self.now = end

    def forget(self):
        """The store loses all pools."""
        self.pools = [Pool() for _ in self.pools]
