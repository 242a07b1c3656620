"""A process with one gate or several, each shared with other processes by a store of its own.

Takes the options of its gates as JSON, by name. It writes every admission and every end of a call to a file
of that gate at once, so that what it did is known after kill -9: the time, of the monotonic clock, and +1 or
-1. It prints "ready", and reads when to begin, when to end, and backoff windows to start: when, and how long.
In the end it prints what was heard of each store, and for how long the machine did not let it run.
"""

import asyncio
import json
import os
import struct
import sys
import time

from headgate import Dispatch, WaitTimeout
from headgate.events import StoreForgot, StoreLost, StoreRegained
from headgate.gate.clock import SystemClock
from headgate.gate.parking import LoopParker


class WrongClock(SystemClock):
    """The machine's clock, `off` seconds ahead."""

    def __init__(self, off):
        self.now = lambda: time.monotonic_ns() + int(off * 1e9)

    def loop_parker(self, ring, ticket):
        return LoopParker(asyncio.get_running_loop(), self.now, ring, ticket)


class Worker:
    """One gate, the tasks that call at it, and the file of what they did."""

    def __init__(self, options):
        self._log = os.open(options["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._told = []
        self._takes, self._tasks, self._signals = options["takes"], options["tasks"], options["signals"]
        self._gate = Dispatch(
            options["key"],
            rates=options["rates"],
            concurrency=options["concurrency"],
            throttled_concurrency=None,
            byte_budget=None,
            pause=True,
            store=opened(options["store"]),
            on_loss=options["on_loss"],
            observer=self._told.append,
            **({"clock": WrongClock(options["off"])} if options["off"] else {}),
        )

    def _note(self, change):
        os.write(self._log, struct.pack("<dq", time.monotonic(), change))

    async def run(self, end, windows):
        tasks = [self._call(end) for _ in range(self._tasks)]
        if self._signals:
            tasks += [self._signal(at, length) for at, length in windows]
        await asyncio.gather(*tasks)

    async def _call(self, end):
        while time.monotonic() < end:
            try:
                async with self._gate.admit(timeout=1):
                    self._note(1)
                    if self._takes:
                        await asyncio.sleep(self._takes)
                    self._note(-1)
            except WaitTimeout:
                pass

    async def _signal(self, at, length):
        await asyncio.sleep(at - time.monotonic())
        self._gate.set_backoff(length)

    def close(self):
        """Leave the pool. Return what was heard of the store."""
        asked = self._gate._member.questions
        self._gate.close()
        kinds = {"forgotten": StoreForgot, "lost": StoreLost, "regained": StoreRegained}
        counts = {name: sum(isinstance(each, kind) for each in self._told) for name, kind in kinds.items()}
        reasons = [each.reason for each in self._told if isinstance(each, StoreLost)]
        return {**counts, "asked": asked, "reasons": reasons}


def opened(store):
    """Return what `store=` takes. A cluster whose servers are reached by other ports is a ready client."""
    if isinstance(store, str):
        return store
    from cluster_client import client_through

    return client_through(store)


async def longest_pause(end):
    """Return for how long, until the end, this process did not run although it wanted to."""
    longest, last = 0.0, time.monotonic()
    while last < end:
        await asyncio.sleep(0.01)
        now = time.monotonic()
        longest, last = max(longest, now - last - 0.01), now
    return longest


async def main(gates):
    made = [asyncio.to_thread(Worker, options) for options in gates.values()]
    workers = await asyncio.gather(*made)  # at the same time: some of their stores may be far away
    print("ready", flush=True)
    begin, end, *windows = map(float, sys.stdin.readline().split())
    await asyncio.sleep(begin - time.monotonic())
    windows = list(zip(windows[::2], windows[1::2], strict=True))
    pause, *_ = await asyncio.gather(longest_pause(end), *(worker.run(end, windows) for worker in workers))
    said = {name: worker.close() for name, worker in zip(gates, workers, strict=True)}
    said["longest pause"] = pause
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
