"""What one uncontended admission costs, beside the cheapest thing that could do it and beside peers.

One thread, no waiting callers, limits far away. The floors are what Python itself must do for
anything of the kind: take a lock and read the clock; enter and leave a semaphore. Everything
runs inside one event loop, so that `await` is measured without starting a loop. The time of
the `for` statement around the call, some 20 ns, is in every figure, the floors included.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from itertools import repeat
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any

import peers
from headgate import Dispatch
from measure import Candidate, against, interleave, number, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOCK = "lock + monotonic_ns()"
SEMAPHORE = "threading.Semaphore: with"
ASYNC_SEMAPHORE = "asyncio.Semaphore: async with"

# Permits that hold a place are kept for this many calls, then settled outside the time taken. The
# default Dispatch has 400 places.
HELD = 400


def rate_only(rates: str) -> Dispatch:
    return Dispatch(rates=rates, concurrency=None, throttled_concurrency=None, byte_budget=None)


def full_bucket() -> Dispatch:
    """One rate so high that its bucket is full again at the next call."""
    return rate_only("1_000_000_000/s")


def bucket_in_use() -> Dispatch:
    """One rate whose bucket is never full again: the path of a limit that is really used."""
    return rate_only("1000/s burst 1_000_000_000")


def layered() -> Dispatch:
    """What `Dispatch(rates=...)` gives: concurrency, bytes and a rate."""
    return Dispatch(rates="1_000_000_000/s")


def four_rules(*, in_use: bool = False) -> Dispatch:
    """Concurrency, bytes, requests and tokens."""
    full = ["1_000_000_000/s", "1_000_000_000_000 tokens/s"]
    used = ["1000/s burst 1_000_000_000", "1000 tokens/s burst 1_000_000_000_000"]
    return Dispatch(rates=used if in_use else full, concurrency=1_000_000_000, byte_budget=1_000_000_000_000)


# -- how each is called. Written out, because another function around the call would be measured too.


def calls(act: Callable[[], object]) -> Callable[[int], int]:
    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            act()
        return perf_counter_ns() - start

    return batch


def awaits(act: Callable[[], Any]) -> Callable[[int], Any]:
    async def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            await act()
        return perf_counter_ns() - start

    return batch


def enters(thing: Any) -> Callable[[int], int]:
    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            with thing:
                pass
        return perf_counter_ns() - start

    return batch


def enters_async(thing: Any) -> Callable[[int], Any]:
    async def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            async with thing:
                pass
        return perf_counter_ns() - start

    return batch


def holds(gate: Dispatch) -> Callable[[int], int]:
    """`try_admit`, the permits kept and settled outside the time taken."""
    try_admit = gate.try_admit

    def batch(times: int) -> int:
        spent = 0
        for first in range(0, times, HELD):
            start = perf_counter_ns()
            permits = [try_admit() for _ in repeat(None, min(HELD, times - first))]
            spent += perf_counter_ns() - start
            for permit in permits:
                permit.settle()
        return spent

    return batch


def holds_weighed(gate: Dispatch) -> Callable[[int], int]:
    """`try_admit` for a call of 500 bytes and 100 tokens, settled outside the time taken."""
    try_admit = gate.try_admit

    def batch(times: int) -> int:
        spent = 0
        for first in range(0, times, HELD):
            start = perf_counter_ns()
            permits = [try_admit(bytes=500, tokens=100) for _ in repeat(None, min(HELD, times - first))]
            spent += perf_counter_ns() - start
            for permit in permits:
                permit.settle()
        return spent

    return batch


def settles(gate: Dispatch) -> Callable[[int], int]:
    try_admit = gate.try_admit

    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            try_admit().settle()
        return perf_counter_ns() - start

    return batch


def corrects(gate: Dispatch) -> Callable[[int], int]:
    """A whole call of estimated cost: admitted, then settled with the fact."""

    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            with gate.admit(bytes=500, tokens=100) as permit:
                permit.settle(tokens=90)
        return perf_counter_ns() - start

    return batch


def admits(gate: Dispatch) -> Callable[[int], int]:
    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            with gate.admit():
                pass
        return perf_counter_ns() - start

    return batch


def admits_async(gate: Dispatch) -> Callable[[int], Any]:
    async def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            async with gate.admit():
                pass
        return perf_counter_ns() - start

    return batch


# -- the candidates


def floors() -> list[Candidate]:
    lock = threading.Lock()

    def lock_and_clock() -> int:
        with lock:
            return monotonic_ns()

    return [
        Candidate(LOCK, calls(lock_and_clock), LOCK),
        Candidate(SEMAPHORE, enters(threading.Semaphore(4)), SEMAPHORE),
        Candidate(ASYNC_SEMAPHORE, enters_async(asyncio.Semaphore(4)), ASYNC_SEMAPHORE),
    ]


def acquiring() -> list[Candidate]:
    """Candidates that are admitted and not settled in the time taken."""
    return [
        Candidate("try_admit, one rate", calls(full_bucket().try_admit), LOCK, target=2.5),
        Candidate("try_admit, one rate in use", calls(bucket_in_use().try_admit), LOCK),
        Candidate("try_admit, default + rate", holds(layered()), LOCK),
        Candidate("try_admit, four rules", holds_weighed(four_rules()), LOCK, target=6),
        Candidate("try_admit, four rules in use", holds_weighed(four_rules(in_use=True)), LOCK),
    ]


def cycles() -> list[Candidate]:
    """Candidates that are admitted and settled in the time taken."""
    return [
        Candidate("try_admit + settle, one rate", settles(full_bucket()), SEMAPHORE),
        Candidate("try_admit + settle, default + rate", settles(layered()), SEMAPHORE),
        Candidate("with admit, one rate", admits(full_bucket()), SEMAPHORE),
        Candidate("with admit, one rate in use", admits(bucket_in_use()), SEMAPHORE),
        Candidate("with admit, default + rate", admits(layered()), SEMAPHORE),
        Candidate("with admit + settle(tokens=), four rules", corrects(four_rules()), SEMAPHORE),
        Candidate("async with admit, one rate", admits_async(full_bucket()), ASYNC_SEMAPHORE),
        Candidate("async with admit, one rate in use", admits_async(bucket_in_use()), ASYNC_SEMAPHORE),
        Candidate("async with admit, default + rate", admits_async(layered()), ASYNC_SEMAPHORE),
    ]


# -- reporting


def print_against_floors(candidates: Sequence[Candidate], floors: dict[str, Candidate]) -> None:
    rows = []
    for candidate in candidates:
        ratio = candidate.ratio_to(floors[candidate.floor])
        target = "" if candidate.target is None else against(ratio, candidate.target)
        rows.append(
            (candidate.name, number(candidate.best), number(candidate.middle), f"{ratio:.2f}", target)
        )
    table(("", "best ns", "median ns", "× floor", "target"), rows)


def print_against_ours(theirs: Sequence[Candidate], full: Candidate, in_use: Candidate) -> None:
    """How many times as long as headgate each peer takes; above one is slower."""
    rows = []
    for peer in theirs:
        ratio = peer.ratio_to(in_use)
        rows.append(
            (
                peer.name,
                number(peer.best),
                number(peer.middle),
                f"{peer.ratio_to(full):.2f}",
                f"{ratio:.2f}",
                against(ratio, 1, at_most=False),
            )
        )
    table(("", "best ns", "median ns", "× one rate", "× one rate in use", "target"), rows)


async def main(*, rounds: int, times: int) -> None:
    lowest, ways_in, whole = floors(), acquiring(), cycles()
    blocking, awaitable = peers.blocking(), peers.awaitable()
    sync_peers = [Candidate(peer.name, calls(peer.acquire), LOCK, clean=peer.clean) for peer in blocking]
    async_peers = [
        Candidate(f"{peer.name}, await", awaits(peer.acquire), ASYNC_SEMAPHORE, clean=peer.clean)
        for peer in awaitable
    ]
    # aiolimiter is the one peer whose `async with` is meant for daily use.
    aiolimiter = awaitable[0].acquire.__self__
    async_peers.insert(1, Candidate("aiolimiter, async with", enters_async(aiolimiter), ASYNC_SEMAPHORE))

    everyone = [*lowest, *ways_in, *whole, *sync_peers, *async_peers]
    await interleave(everyone, rounds=rounds, times=times)
    for peer in (*blocking, *awaitable):
        if peer.close is not None:
            peer.close()

    named = {candidate.name: candidate for candidate in everyone}
    print(f"{rounds} rounds of {times} calls each, in alternating order.")
    print_against_floors([lowest[0], *ways_in], named)
    print_against_floors([*lowest[1:], *whole], named)
    print("Peers in threads, beside our `try_admit`:")
    print_against_ours(sync_peers, named["try_admit, one rate"], named["try_admit, one rate in use"])
    print("Peers in tasks, beside our whole `async with admit`:")
    print_against_ours(
        async_peers, named["async with admit, one rate"], named["async with admit, one rate in use"]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    quick = parser.parse_args().quick
    asyncio.run(main(rounds=6 if quick else 32, times=800 if quick else 2000))
