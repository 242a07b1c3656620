"""One process and a shared limit that is far away: acquires a second, and questions to the store for each.

The peers ask the server for every acquire; headgate asks for batches. All use one valkey-server, in one run,
interleaved. And how many questions a second one key of a PostgreSQL server answers.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

ROUNDS = 3


def ours(url, seconds):
    from headgate import Dispatch

    gate = Dispatch(
        f"bench-{time.time_ns()}",
        rates=["10_000_000/s"],
        concurrency=None,
        throttled_concurrency=None,
        byte_budget=None,
        store=url,
    )
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(50):
            with gate.admit(timeout=5):
                pass
        done += 50
    asked = gate._member.questions
    gate.close()
    return done / seconds, asked / done


def peer_limits(url, seconds):
    from limits import RateLimitItemPerSecond
    from limits.storage import RedisStorage
    from limits.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(RedisStorage(url))
    item = RateLimitItemPerSecond(10_000_000)
    return _per_second(lambda: limiter.hit(item, "bench"), seconds)


def peer_throttled(url, seconds):
    from throttled import RateLimiterType, Throttled, rate_limiter, store

    limiter = Throttled(
        key="bench",
        using=RateLimiterType.GCRA.value,
        quota=rate_limiter.per_sec(10_000_000, burst=10_000_000),
        store=store.RedisStore(server=url),
    )
    return _per_second(limiter.limit, seconds)


def peer_pyrate(url, seconds):
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis import Redis

    bucket = RedisBucket.init([Rate(10_000_000, 1000)], Redis.from_url(url), f"bench-{time.time_ns()}")
    limiter = Limiter(bucket)
    return _per_second(lambda: limiter.try_acquire("bench"), seconds)


def _per_second(call, seconds):
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(50):
            call()
        done += 50
    return done / seconds, 1.0


PARTS = {
    "headgate": ours,
    "limits, fixed window": peer_limits,
    "throttled-py, GCRA": peer_throttled,
    "pyrate-limiter": peer_pyrate,
}


def _ask(url, number, seconds, counted):
    """Ask one pool of a PostgreSQL server, one question after the other."""
    import asyncio

    import pool_questions
    from headgate.sharing.postgres import PostgresStore

    async def ask():
        store, done, end = PostgresStore(url), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            rates = [[500, 1_000_000, 500]]
            await store.ask("one", pool_questions.question(f"m{number}", rates=rates, batches=[[1]]))
            done += 1
        await store.close()
        counted.put(done)

    asyncio.run(ask())


def questions(url, processes, seconds):
    """Return how many questions a second one key of a PostgreSQL server answers."""
    from multiprocessing import get_context

    context = get_context("spawn")
    counted = context.Queue()
    asking = [context.Process(target=_ask, args=(url, n, seconds, counted)) for n in range(processes)]
    for process in asking:
        process.start()
    done = sum(counted.get() for _ in asking)
    for process in asking:
        process.join()
    return done / seconds


def on_postgres(*, quick):
    from faults.postgres import PostgresServer

    seconds = 0.5 if quick else 2.0
    with PostgresServer() as server:
        best = {
            n: max(questions(server.url, n, seconds) for _ in range(1 if quick else ROUNDS)) for n in (1, 4)
        }
    print("\n| one key in PostgreSQL | questions/s |")
    print("| --- | ---: |")
    for processes, speed in best.items():
        print(f"| from {processes} process{'es' if processes > 1 else ''} | {speed:,.0f} |")
    verdict = "met" if best[4] >= 800 else "MISSED"
    print(f"\nquestions/s from 4 processes: {best[4]:,.0f} (target: 800, {verdict})")


def main(*, quick=False):
    from faults import rig

    seconds = 0.2 if quick else 1.5
    best = {}
    with rig.Server("--appendonly", "no") as server:
        for _ in range(1 if quick else ROUNDS):
            for name, part in PARTS.items():
                speed, trips = part(server.url, seconds)
                if speed > best.get(name, (0.0, 0.0))[0]:
                    best[name] = (speed, trips)
    mine = best["headgate"][0]
    print("| one process, limit far away | acquires/s | × ours | questions per acquire |")
    print("| --- | ---: | ---: | ---: |")
    for name, (speed, trips) in best.items():
        print(f"| {name} | {speed:,.0f} | {speed / mine:.3f} | {trips:.4f} |")
    nearest = max(speed for name, (speed, _) in best.items() if name != "headgate")
    verdict = "met" if mine >= 10 * nearest else "MISSED"
    print(f"\nours / best peer: {mine / nearest:.1f} (target: 10, {verdict})")
    on_postgres(quick=quick)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
