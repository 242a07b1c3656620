"""Many threads at one gate: throughput, what it costs, and whether the limit holds.

Every run lasts a fixed time, long against the 5 ms after which Python lets another thread go,
and counts what each thread got done. Runs of all candidates alternate, and the median of
them is reported. Where threads wait for places, the share of the thread that got least stands
beside the throughput: 1 is as much as the average, 0 is a thread that starved.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any

import peers
from headgate import Dispatch
from measure import number, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THREADS = 64
PLACES = 4
CHUNK = 20  # operations between two looks at whether to stop


@dataclass
class Outcome:
    """What a run of many threads achieved."""

    per_second: float
    cpu_us: float  # for each operation
    least_share: float
    most_inside: int


class Inside:
    """Counts the calls in flight, and the most there ever were.

    Without a lock, which would queue the threads before they meet: each step on the list and
    the set is atomic, and the list never holds more calls than are in flight.
    """

    def __init__(self) -> None:
        self._now: list[None] = []
        self._seen: set[int] = set()

    @property
    def most(self) -> int:
        return max(self._seen)

    def visit(self, stay: float | None) -> None:
        self._now.append(None)
        self._seen.add(len(self._now))
        if stay is not None:
            time.sleep(stay)
        self._now.pop()


def in_threads(count: int, seconds: float, chunk: Callable[[], object], each: int = CHUNK) -> Outcome:
    """Have every thread do chunks of `each` operations until time is up."""
    ready = threading.Barrier(count + 1)
    stop = threading.Event()
    done = [0] * count

    def work(i: int) -> None:
        ready.wait()
        while not stop.is_set():
            chunk()
            done[i] += each

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    began, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    total = sum(done)
    return Outcome(total / took, cpu / total * 1e6, min(done) * count / total, 0)


def alternate(runs: dict[Any, Callable[[], Outcome]], repeats: int) -> dict[Any, Outcome]:
    """Run all candidates several times; the median of each figure, and the most calls in flight."""
    outcomes: dict[Any, list[Outcome]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name in runs if turn % 2 == 0 else reversed(runs):
            outcomes[name].append(runs[name]())
    return {
        name: Outcome(
            median(one.per_second for one in many),
            median(one.cpu_us for one in many),
            median(one.least_share for one in many),
            max(one.most_inside for one in many),
        )
        for name, many in outcomes.items()
    }


# -- four places for sixty-four threads


def few_places() -> Dispatch:
    return Dispatch(concurrency=PLACES, throttled_concurrency=None, byte_budget=None)


def through_semaphore(seconds: float, stay: float | None) -> Outcome:
    semaphore, inside = threading.Semaphore(PLACES), Inside()

    def chunk() -> None:
        with semaphore:
            inside.visit(stay)

    outcome = in_threads(THREADS, seconds, chunk, each=1)
    outcome.most_inside = inside.most
    return outcome


def through_gate(seconds: float, stay: float | None) -> Outcome:
    gate, inside = few_places(), Inside()

    def chunk() -> None:
        with gate.admit():
            inside.visit(stay)

    outcome = in_threads(THREADS, seconds, chunk, each=1)
    outcome.most_inside = inside.most
    return outcome


def print_places(seconds: float, repeats: int) -> None:
    stays = {"nothing inside": None, "0.2 ms of I/O inside": 0.0002}
    ways = {"threading.Semaphore": through_semaphore, "with Dispatch.admit": through_gate}
    runs = {
        (way, stay): partial(go, seconds, wait) for stay, wait in stays.items() for way, go in ways.items()
    }
    outcomes = alternate(runs, repeats)
    rows = []
    for (way, stay), outcome in outcomes.items():
        floor = outcomes["threading.Semaphore", stay]
        rows.append(
            (
                f"{way}, {stay}",
                number(outcome.per_second),
                f"{outcome.per_second / floor.per_second:.2f}",
                number(outcome.cpu_us),
                f"{outcome.least_share:.2f}",
                outcome.most_inside,
                f"≤ {PLACES} {'met' if outcome.most_inside <= PLACES else 'MISSED'}",
            )
        )
    print(f"{THREADS} threads, {PLACES} places:")
    table(("", "a second", "× semaphore", "CPU µs", "least share", "most inside", "target"), rows)


# -- a rate that is far away


def far_rate() -> Dispatch:
    return Dispatch(
        rates="1000/s burst 1_000_000_000", concurrency=None, throttled_concurrency=None, byte_budget=None
    )


def repeated(act: Callable[[], object]) -> Callable[[], None]:
    def chunk() -> None:
        for _ in repeat(None, CHUNK):
            act()

    return chunk


def admitting() -> Callable[[], None]:
    gate = far_rate()

    def chunk() -> None:
        for _ in repeat(None, CHUNK):
            with gate.admit():
                pass

    return chunk


def lock_and_clock() -> Callable[[], int]:
    lock, now = threading.Lock(), time.monotonic_ns

    def act() -> int:
        with lock:
            return now()

    return act


def print_rates(seconds: float, repeats: int) -> None:
    theirs = peers.blocking()

    def run(chunk: Callable[[], None], clean: Callable[[], object] | None = None) -> Callable[[], Outcome]:
        def measured() -> Outcome:
            outcome = in_threads(THREADS, seconds, chunk)
            if clean is not None:
                clean()
            return outcome

        return measured

    runs = {
        "lock + monotonic_ns()": run(repeated(lock_and_clock())),
        "Dispatch.try_admit": run(repeated(far_rate().try_admit)),
        "with Dispatch.admit": run(admitting()),
    }
    for peer in theirs:
        runs[peer.name] = run(repeated(peer.acquire), peer.clean)
    outcomes = alternate(runs, repeats)
    for peer in theirs:
        if peer.close is not None:
            peer.close()
    ours = outcomes["Dispatch.try_admit"]
    print(f"{THREADS} threads, a rate that is far away:")
    table(
        ("", "a second", "× try_admit", "CPU µs"),
        (
            (
                name,
                number(outcome.per_second),
                f"{outcome.per_second / ours.per_second:.2f}",
                number(outcome.cpu_us),
            )
            for name, outcome in outcomes.items()
        ),
    )


# -- is the overhead flat?


def print_flatness(seconds: float, repeats: int, counts: Sequence[int] = (1, 4, 16, 64)) -> None:
    acts = {"lock + monotonic_ns()": lock_and_clock(), "Dispatch.try_admit": far_rate().try_admit}
    runs = {
        (name, count): partial(in_threads, count, seconds, repeated(act))
        for name, act in acts.items()
        for count in counts
    }
    outcomes = alternate(runs, repeats)
    rows = []
    for name in acts:
        alone = outcomes[name, counts[0]].per_second
        for count in counts:
            outcome = outcomes[name, count]
            rows.append(
                (
                    f"{name}, {count} thread{'s' * (count > 1)}",
                    number(outcome.per_second),
                    f"{outcome.per_second / alone:.2f}",
                    number(outcome.cpu_us),
                )
            )
    print("The same call from more and more threads (they share one interpreter lock, so 1 is flat):")
    table(("", "a second", "× one thread", "CPU µs"), rows)


def main(*, seconds: float, repeats: int) -> None:
    print_places(seconds, repeats)
    print_rates(seconds, repeats)
    print_flatness(seconds, repeats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it runs")
    quick = parser.parse_args().quick
    main(seconds=0.1 if quick else 0.5, repeats=1 if quick else 4)
