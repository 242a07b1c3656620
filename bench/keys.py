"""A million keys once each, time and memory; and many threads or tasks at one key.

Every candidate asks for each key once, "10/minute", in a process of its own, so that none inherits
the heap of another. The key strings are the same for all and exist before anything is measured.
Memory is how much the process has grown since then (resident pages), garbage collected on both
sides. The floor is a dictionary that keeps a number for each key: less is hardly possible.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import peers
from contention import CHUNK, THREADS, alternate, in_threads, repeated
from headgate import MemoryLimiter, RateLimiter
from measure import number, table

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = 1000


# -- a million keys


def plain_dict(_count: int) -> Callable[[str], object]:
    seen: dict[str, int] = {}
    now = time.monotonic_ns

    def act(key: str) -> None:
        seen[key] = now()

    return act


def headgate_keys(_count: int) -> Callable[[str], object]:
    return MemoryLimiter(rates="10/minute").try_acquire


def headgate_two(_count: int) -> Callable[[str], object]:
    return MemoryLimiter(rates=["10/minute", "100/hour"]).try_acquire


def limits_keys(strategy: str, _count: int) -> Callable[[str], object]:
    import limits

    limiter = getattr(limits.strategies, f"{strategy}RateLimiter")(limits.storage.MemoryStorage())
    return partial(limiter.hit, limits.RateLimitItemPerMinute(10))


def pyrate_keys(kind: str, _count: int) -> Callable[[str], object]:
    """The factory of their README: a bucket for each name, made by `create` when it is first seen."""
    import pyrate_limiter as pyrate

    class PerKey(pyrate.BucketFactory):
        def __init__(self) -> None:
            self.clock = pyrate.MonotonicClock()
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return pyrate.RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                rates = [pyrate.Rate(10, pyrate.Duration.MINUTE)]
                if kind == "GCRA":
                    bucket = self.create(pyrate.StateBucket, rates, pyrate.GCRA())
                else:
                    bucket = self.create(pyrate.InMemoryBucket, rates)
                self.buckets[item.name] = bucket
            return bucket

    limiter = pyrate.Limiter(PerKey())
    return partial(limiter.try_acquire, blocking=False)


def throttled_keys(using: str, count: int) -> Callable[[str], object]:
    """With a store that is told to keep them all: by default it evicts beyond 1024."""
    import throttled

    limiter = throttled.Throttled(
        using=using,
        quota=throttled.per_min(10),
        store=throttled.MemoryStore(options={"MAX_SIZE": count + 1}),
    )
    return limiter.limit


KEYED: dict[str, Callable[[int], Callable[[str], object]]] = {
    "dict[key] = now()": plain_dict,
    "MemoryLimiter.try_acquire": headgate_keys,
    "MemoryLimiter, two rates": headgate_two,
    "limits FixedWindow": partial(limits_keys, "FixedWindow"),
    "limits MovingWindow": partial(limits_keys, "MovingWindow"),
    "throttled-py token_bucket": partial(throttled_keys, "token_bucket"),
    "throttled-py gcra": partial(throttled_keys, "gcra"),
    "pyrate-limiter sliding log": partial(pyrate_keys, "sliding log"),
    "pyrate-limiter GCRA": partial(pyrate_keys, "GCRA"),
}


def resident() -> int:
    """How much memory this process occupies, in bytes; 0 where that cannot be told."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def measure_one(name: str, count: int) -> None:
    """In a process of its own: touch every key once, and print what it took as JSON."""
    act = KEYED[name](count)
    act("warm up")
    keys = [f"user:{i:08d}" for i in range(count)]
    gc.collect()
    before = resident()
    began = time.perf_counter_ns()
    for key in keys:
        act(key)
    took = time.perf_counter_ns() - began
    gc.collect()
    print(json.dumps({"ns": took / count, "bytes": (resident() - before) / count}), flush=True)
    os._exit(0)  # some have threads that would go on for a minute


def print_keys(count: int, repeats: int) -> None:
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in KEYED}
    for turn in range(repeats):
        for name in KEYED if turn % 2 == 0 else reversed(KEYED):
            command = [sys.executable, __file__, "--one", name, "--keys", str(count)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures[name].append(json.loads(done.stdout.splitlines()[-1]))
    ours = figures["MemoryLimiter.try_acquire"]
    rows = []
    for name, many in figures.items():
        slower = median(one["ns"] / mine["ns"] for one, mine in zip(many, ours, strict=True))
        bytes_each = median(one["bytes"] for one in many)
        more = median(one["bytes"] / max(1, mine["bytes"]) for one, mine in zip(many, ours, strict=True))
        rows.append(
            (
                name,
                number(median(one["ns"] for one in many)),
                f"{slower:.1f}",
                number(bytes_each),
                f"{more:.1f}",
            )
        )
    print(f"{count:,} keys, each asked for once:")
    table(("", "ns a key", "× ours", "bytes a key", "× ours"), rows)
    theirs = [row for row in rows if not row[0].startswith(("dict", "Memory"))]
    fastest, smallest = (min(float(row[i]) for row in theirs) for i in (2, 4))
    print(f"The nearest peer takes {fastest:.1f} times as long and {smallest:.1f} times as much memory.\n")


# -- one key, many threads


def at_one_key() -> dict[str, Callable[[], object]]:
    far = "1000/s burst 1_000_000_000"
    template = MemoryLimiter(rates=far)
    configured = MemoryLimiter()
    configured.set_rates("bench", far)
    return {
        "MemoryLimiter.acquire, template": partial(template.acquire, "bench"),
        "MemoryLimiter.acquire, configured": partial(configured.acquire, "bench"),
        "RateLimiter.acquire": RateLimiter(rate=far).acquire,
        "RateLimiter.acquire, strict": RateLimiter(peers.FAR).acquire,
    }


def print_threads(seconds: float, repeats: int) -> None:
    theirs = peers.blocking()
    runs: dict[str, Callable[[], Any]] = {
        name: partial(in_threads, THREADS, seconds, repeated(act)) for name, act in at_one_key().items()
    }

    def measured(peer: peers.Peer) -> Any:
        outcome = in_threads(THREADS, seconds, repeated(peer.acquire))
        if peer.clean is not None:
            peer.clean()
        return outcome

    for peer in theirs:
        runs[peer.name] = partial(measured, peer)
    outcomes = alternate(runs, repeats)
    for peer in theirs:
        if peer.close is not None:
            peer.close()
    ours = outcomes["MemoryLimiter.acquire, template"].per_second
    print(f"{THREADS} threads at one key, a rate that is far away:")
    table(
        ("", "a second", "× template", "CPU µs"),
        (
            (name, number(one.per_second), f"{one.per_second / ours:.2f}", number(one.cpu_us))
            for name, one in outcomes.items()
        ),
    )


# -- one key, many tasks


async def in_tasks(acquire: Callable[[], Any], seconds: float) -> float:
    """A thousand tasks, each giving way to the others after every chunk. Acquired in a second."""
    stop = time.perf_counter() + seconds
    done = 0

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            for _ in range(CHUNK):
                await acquire()
            done += CHUNK
            await asyncio.sleep(0)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    return done / (time.perf_counter() - began)


async def print_tasks(seconds: float, repeats: int) -> None:
    far = "1000/s burst 1_000_000_000"
    template = MemoryLimiter(rates=far)
    configured = MemoryLimiter()
    configured.set_rates("bench", far)
    candidates = [
        peers.Peer("MemoryLimiter.acquire_async, template", partial(template.acquire_async, "bench")),
        peers.Peer("MemoryLimiter.acquire_async, configured", partial(configured.acquire_async, "bench")),
        peers.Peer("RateLimiter.acquire_async", RateLimiter(rate=far).acquire_async),
        *peers.awaitable(),
    ]
    figures: dict[str, list[float]] = {peer.name: [] for peer in candidates}
    for turn in range(repeats):
        for peer in candidates if turn % 2 == 0 else candidates[::-1]:
            figures[peer.name].append(await in_tasks(peer.acquire, seconds))
            if peer.clean is not None:
                left = peer.clean()
                if asyncio.iscoroutine(left):
                    await left
    for peer in candidates:
        if peer.close is not None:
            peer.close()
    ours = figures[candidates[0].name]
    print(f"{TASKS:,} tasks at one key, a rate that is far away:")
    table(
        ("", "a second", "× template"),
        (
            (
                name,
                number(median(many)),
                f"{median(one / mine for one, mine in zip(many, ours, strict=True)):.2f}",
            )
            for name, many in figures.items()
        ),
    )


def main(*, count: int, seconds: float, repeats: int) -> None:
    print_keys(count, max(1, repeats // 2))
    print_threads(seconds, repeats)
    asyncio.run(print_tasks(seconds, repeats))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few keys, short runs: to see that it runs")
    parser.add_argument("--one", choices=KEYED, help="only this candidate, in this process, as JSON")
    parser.add_argument("--keys", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.one:
        measure_one(arguments.one, arguments.keys)
    elif arguments.quick:
        main(count=20_000, seconds=0.1, repeats=1)
    else:
        main(count=arguments.keys, seconds=0.5, repeats=4)
