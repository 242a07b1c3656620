"""How far each store carries: questions a second, members of one key, keys; and four processes on one limit.

Real servers on loopback, on the same two cores as the processes that ask: a server of its own does more.
Questions are those of members that want one call each, sixteen at a time from each process, best of two.
What a fleet feels is the second table: the store is asked for a few calls in a hundred. It shows the worse of
two runs of eleven seconds, of which the first, with the opening burst, counts for neither use nor parts.
"""

import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

ROUNDS = 2
SECOND = 1_000_000
AT_ONCE = 16


async def _ask(url, number, keys, members, seconds):
    import pool_questions
    from headgate.errors import StoreError
    from headgate.gate.clock import SYSTEM
    from headgate.sharing.store import open_store

    store = open_store(url, SYSTEM)
    done, rates = 0, [[500, SECOND, 500]]

    async def ask(lane):
        nonlocal done
        turn = lane
        while time.perf_counter() < end:
            key, who = f"{keys} keys {turn * 7 % keys}", f"p{number} m{turn % members}"
            with suppress(StoreError):  # a file that others keep locked
                await store.ask(key, pool_questions.question(who, rates=rates, batches=[[1]], wants=[1, 0]))
                done += 1
            turn += AT_ONCE

    try:
        for member in range(members):  # all are there before it begins
            with suppress(StoreError):
                await store.ask(
                    f"{keys} keys 0", pool_questions.question(f"p{number} m{member}", rates=rates)
                )
        done, end = 0, time.perf_counter() + seconds
        await asyncio.gather(*(ask(lane) for lane in range(AT_ONCE)))
    finally:
        await store.close()
    return done / seconds


def _asking(url, number, keys, members, seconds, counted):
    counted.put(asyncio.run(_ask(url, number, keys, members, seconds)))


def questions(url, *, processes=1, keys=1, members=AT_ONCE, seconds=1.0):
    """How many questions a second a store answers."""
    context = get_context("spawn")
    counted = context.Queue()
    asking = [
        context.Process(target=_asking, args=(url, n, keys, members, seconds, counted))
        for n in range(processes)
    ]
    for process in asking:
        process.start()
    total = sum(counted.get(timeout=60) for _ in asking)
    for process in asking:
        process.join()
    return total


def four_processes(url, seconds):
    """Four processes of 50 tasks on 500/s: use, parts, questions for each admission, and calls too many."""
    from stores.processes import Processes
    from stores.test_sharing import times_of, worst_excess

    options = {"store": url, "key": f"four {time.time_ns()}", "rates": ["500/s"], "tasks": 50}
    fleet = Processes("sharer.py", [options] * 4)
    fleet.tell_all(seconds)
    results = fleet.results()
    times = times_of(results, fleet.begin)
    steady = [sum(1 <= at - fleet.begin < seconds for at in result["times"]) for result in results]
    return (
        sum(steady) / (500 * (seconds - 1)),
        max(abs(4 * part / sum(steady) - 1) for part in steady),
        sum(result["asked"] for result in results) / len(times),
        worst_excess(times, 500, 500),
    )


def stores(stack):
    """Every store, with its URL."""
    from faults.postgres import PostgresServer
    from faults.rig import Cluster, Server

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    yield "SQLite", f"sqlite:///{folder}/limits.db"
    yield "Valkey", stack.enter_context(Server()).url
    yield "Valkey Cluster, 3 primaries", stack.enter_context(Cluster()).url
    yield "PostgreSQL", stack.enter_context(PostgresServer()).url


def bytes_for_each_key(many=2_000):
    """Memory of a server for a pool of one rate and four members, and for each member more."""
    from faults.rig import Server
    from stores.on_redis import on, question

    with Server() as server, closing(server.client()) as client:

        def fill(prefix, members):
            async def scenario(store):
                await asyncio.gather(
                    *(
                        store.ask(f"{prefix}{n}", question(f"host-{n}-{m}", wants=[1, 0], lease=60 * SECOND))
                        for n in range(many)
                        for m in range(members)
                    )
                )

            before = client.info("memory")["used_memory"]
            on(server, scenario, timeout=60)
            return (client.info("memory")["used_memory"] - before) / many

        four, eight = fill("four ", 4), fill("eight ", 8)
        return four, (eight - four) / 4


def main(*, quick=False):
    seconds, rounds = (0.3, 1) if quick else (1.5, ROUNDS)

    def best(url, **facts):
        return max(questions(url, seconds=seconds, **facts) for _ in range(rounds))

    with ExitStack() as stack:
        places = list(stores(stack))
        print("| questions/s | one key, 1 process | one key, 4 processes | 300 keys, 4 processes | ", end="")
        print("one key, 100 members | one key, 300 members |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for name, url in places:
            found = [
                best(url),
                best(url, processes=4),
                best(url, processes=4, keys=300),
                best(url, processes=2, members=50),
                best(url, processes=2, members=150),
            ]
            print(f"| {name} | {' | '.join(f'{speed:,.0f}' for speed in found)} |", flush=True)
        print("\n| 4 processes × 50 tasks on 500/s | use | furthest from an equal part | ", end="")
        print("questions for each admission | calls above the limit |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, url in places:
            runs = [four_processes(url, 2 if quick else 11) for _ in range(1 if quick else 2)]
            uses, *others = zip(*runs, strict=True)
            use, (part, asked, above) = min(uses), map(max, others)
            print(f"| {name} | {use:.1%} | {part:.1%} | {asked:.3f} | {max(0, round(above))} |", flush=True)
    key, member = bytes_for_each_key()
    print(f"\nA pool of one rate and four members takes {key:,.0f} bytes of a Valkey server; ", end="")
    print(f"each further member {member:,.0f}.")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
