"""A process that shares a Dispatch while things fail. Takes its options as JSON.

It writes every admission and every end of a call to a file of its own at once, so that what it did is known
after kill -9: the time, of the monotonic clock, and +1 or -1. It prints "ready", and reads when to begin, to
end, and to start a backoff window, if it is to start one.
"""

import asyncio
import json
import os
import struct
import sys
import time

from headgate import Dispatch, WaitTimeout
from headgate.events import StoreForgot, StoreLost, StoreRegained


async def main(options):
    log = os.open(options["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    told = []

    def note(change):
        os.write(log, struct.pack("<dq", time.monotonic(), change))

    gate = Dispatch(
        options["key"],
        rates=options["rates"],
        concurrency=options["concurrency"],
        throttled_concurrency=None,
        byte_budget=None,
        pause=True,
        store=options["store"],
        on_loss=options.get("on_loss", "share"),
        observer=told.append,
    )
    print("ready", flush=True)
    begin, end, window_at, window = map(float, sys.stdin.readline().split())
    await asyncio.sleep(begin - time.monotonic())

    async def work():
        while time.monotonic() < end:
            try:
                async with gate.admit(timeout=1):
                    note(1)
                    await asyncio.sleep(options["takes"])
                    note(-1)
            except WaitTimeout:
                pass

    async def signal():
        await asyncio.sleep(window_at - time.monotonic())
        gate.set_backoff(window)

    tasks = [work() for _ in range(options["tasks"])]
    if options["signals"] and window:
        tasks.append(signal())
    await asyncio.gather(*tasks)
    gate.close()
    kinds = {"forgotten": StoreForgot, "lost": StoreLost, "regained": StoreRegained}
    print(
        json.dumps({name: sum(isinstance(each, kind) for each in told) for name, kind in kinds.items()}),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
