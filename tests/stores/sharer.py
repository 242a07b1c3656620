"""A process that shares a Dispatch: takes its options as JSON, and prints what happened as JSON.

Times are of the monotonic clock, which all processes of a machine have in common.
"""

import asyncio
import json
import sys
import time

from headgate import Dispatch, WaitTimeout
from headgate.events import StoreLost


async def main(options):
    lost = []
    gate = Dispatch(
        options["key"],
        rates=options["rates"],
        concurrency=options.get("concurrency"),
        throttled_concurrency=None,
        byte_budget=None,
        pause=options.get("pause", False),
        store=options["store"],
        on_loss=options.get("on_loss", "share"),
        observer=lambda event: lost.append(event) if isinstance(event, StoreLost) else None,
    )
    print("ready", flush=True)
    begin, end = map(float, sys.stdin.readline().split())  # told when all are ready
    await asyncio.sleep(begin - time.monotonic())
    times, ends, tokens, refused = [], [], options.get("tokens", 0), 0

    async def work():
        nonlocal refused
        while time.monotonic() < end:
            try:
                async with gate.admit(tokens=tokens, timeout=options.get("timeout")):
                    times.append(time.monotonic())
                    if options.get("takes"):
                        await asyncio.sleep(options["takes"])
                    ends.append(time.monotonic())
            except WaitTimeout:
                refused += 1

    await asyncio.gather(*(work() for _ in range(options["tasks"])))
    asked = gate._member.questions
    gate.close()
    said = {"times": times, "ends": ends, "asked": asked, "refused": refused, "lost": len(lost)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
