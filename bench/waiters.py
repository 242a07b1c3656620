"""Fifty thousand asyncio tasks in one line, in real time: order, limits, wake-ups, CPU and memory.

Three things are looked at. A counted run, on a clock whose parkers count: are waiters let in in
the order they joined, does any stretch of time hold more than the limit, is the permitted
rate used, is any task woken in vain? Timed runs, without counting: CPU per admission, from the
moment all tasks wait until the last is done, beside asyncio.Semaphore(1) handing the same tasks on.
And memory: what one waiting task takes, beside one that waits for a bare future.

A semaphore has no limit to keep: it does not read the clock, set timers or sleep. So others are
shown too. The Dispatch with only `concurrency=1` does what the semaphore does. A semaphore that a timer
releases, as many at a time as the Dispatch lets in, does what a Dispatch with a rate does. And a
deque of bare futures that a timer lets go one by one, with no lock and no way to leave, is
what a limiter costs that sets a timer for each.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from headgate import Dispatch
from headgate.gate.clock import SystemClock
from headgate.gate.parking import LoopParker
from headgate.testing import ManualClock, run
from measure import against, number, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

RATE = 5000  # a second, which is also the default burst
SECOND = 1_000_000_000


# -- a clock that counts


class Counts:
    """What the gate did, and to which waiter; waiters are numbered as they join."""

    def __init__(self) -> None:
        self.joined = 0
        self.woken: list[int] = []
        self.timers = 0


class CountingParker(LoopParker):
    __slots__ = ("counts", "number")

    def _fire(self) -> None:
        self.counts.timers += 1
        super()._fire()

    def add_done_callback(self, step, *, context) -> None:
        def counted(future) -> None:
            self.counts.woken.append(self.number)
            step(future)

        super().add_done_callback(counted, context=context)


class CountingClock(SystemClock):
    """The machine's clock, with parkers that keep count."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = Counts()

    def loop_parker(self, ring, ticket) -> LoopParker:
        parker = CountingParker(asyncio.get_running_loop(), self.now, ring, ticket)
        parker.counts = self.counts
        parker.number = self.counts.joined
        self.counts.joined += 1
        return parker


# -- the counted run


def rate_only(clock: SystemClock) -> Dispatch:
    return Dispatch(
        rates=f"{RATE}/s", concurrency=None, throttled_concurrency=None, byte_budget=None, clock=clock
    )


def empty_bucket(gate: Dispatch) -> list[int]:
    """Take all units of the rate; return the moments of admission."""
    taken = []
    while (permit := gate.try_admit()) is not None:
        taken.append(permit.taken_at)  # the moment the rule was asked about, not when we got to run
    return taken


def most_at_once(taken: Sequence[int]) -> float:
    """The largest excess over the rate in any stretch of time: what burst would have allowed it?

    A stretch from admission i to admission j holds j - i + 1 of them and earns RATE times its
    length. The worst j - i + 1 - earned is found in one pass by remembering the best start so
    far; in integers, so that one admission too many cannot hide in rounding.
    """
    worst = lowest = 0
    for i, at in enumerate(taken):
        standing = i * SECOND - RATE * (at - taken[0])
        lowest = min(lowest, standing)
        worst = max(worst, standing - lowest + SECOND)
    return worst / SECOND


def most_since_start(taken: Sequence[int]) -> float:
    """The largest excess in stretches that begin with the first admission."""
    return max((i + 1) * SECOND - RATE * (at - taken[0]) for i, at in enumerate(taken)) / SECOND


def rate_used(taken: Sequence[int], burst: int) -> float:
    """How much of what the limit permitted by the end was let through."""
    return len(taken) / (burst + RATE * (taken[-1] - taken[0]) / SECOND)


async def counted_run(count: int) -> None:
    clock = CountingClock()
    gate = rate_only(clock)
    counts = clock.counts
    by_task = [0] * count

    async def waiter(i: int) -> None:
        async with gate.admit() as permit:
            by_task[i] = permit.taken_at

    tasks = [asyncio.create_task(waiter(i)) for i in range(count)]
    at_once = empty_bucket(gate)  # before the first task runs
    for task in tasks:
        await task

    # Tasks start in the order they were made, so the i-th task is the i-th to join.
    taken = at_once + by_task
    # A task that is admitted between joining and going to sleep need not be woken.
    in_order = taken == sorted(taken) and counts.woken == sorted(counts.woken)
    use = rate_used(taken, burst=RATE)
    print(f"{count:,} tasks at {RATE}/s, burst {RATE}, after {len(at_once):,} calls emptied the bucket:")
    table(
        ("", "found", "target"),
        [
            ("let in in the order they joined", "yes" if in_order else "NO", "yes"),
            ("most in any stretch, beyond its rate", *_at_most_burst(most_at_once(taken))),
            ("most since the first, beyond the rate", *_at_most_burst(most_since_start(taken))),
            ("use of the permitted rate", f"{use:.3%}", against(100 * use, 99, at_most=False)),
            ("had to wait", f"{counts.joined:,}", ""),
            ("let in before they slept", f"{counts.joined - len(set(counts.woken)):,}", ""),
            ("wake-ups of tasks", f"{len(counts.woken):,}", "one each"),
            ("wake-ups without admission", f"{len(counts.woken) - len(set(counts.woken)):,}", "0"),
            ("timers that rang", f"{counts.timers:,}", ""),
        ],
    )


def _at_most_burst(most: float) -> tuple[str, str]:
    return f"{most:,.3f}", against(most, RATE)


# -- the timed runs


class Cpu(NamedTuple):
    """Microseconds of CPU for each waiter."""

    handing_over: float  # from all waiting to all done
    altogether: float  # making and starting the tasks, too


async def timed(
    count: int,
    waiter: Callable[[], Awaitable[None]],
    waiting: Callable[[], int],
    release: Callable[[], object],
) -> Cpu:
    gc.collect()
    began = time.process_time_ns()
    tasks = [asyncio.create_task(waiter()) for _ in range(count)]
    await asyncio.sleep(0)  # every task has run up to where it waits
    if waiting() != count:
        sys.exit(f"error: {count - waiting()} of {count} tasks did not wait; is the machine very busy?")
    made = time.process_time_ns()
    gc.collect()  # garbage of making the tasks is not to be collected while they are admitted
    all_wait = time.process_time_ns()
    release()
    await tasks[-1]  # first come, first served: the last is done last, and awaiting all would cost more
    done = time.process_time_ns()
    for task in tasks:
        await task
    handing_over = done - all_wait
    return Cpu(handing_over / count / 1000, (made - began + handing_over) / count / 1000)


async def semaphore_run(count: int) -> Cpu:
    semaphore = asyncio.Semaphore(1)
    await semaphore.acquire()

    async def waiter() -> None:
        async with semaphore:
            pass

    return await timed(count, waiter, lambda: len(semaphore._waiters or ()), semaphore.release)


async def released_run(count: int) -> Cpu:
    loop = asyncio.get_running_loop()
    semaphore = asyncio.Semaphore(0)
    batch = RATE * SystemClock.quantum // SECOND

    async def waiter() -> None:
        await semaphore.acquire()  # a rate is not given back

    def release() -> None:
        for _ in range(batch):
            semaphore.release()
        if semaphore._waiters:
            loop.call_later(SystemClock.quantum / SECOND, release)

    return await timed(count, waiter, lambda: len(semaphore._waiters or ()), release)


async def timer_run(count: int) -> Cpu:
    loop = asyncio.get_running_loop()
    line: deque[asyncio.Future[None]] = deque()
    gone = 0
    start = 0

    async def waiter() -> None:
        future = loop.create_future()
        line.append(future)
        await future

    def open_up() -> None:
        nonlocal start
        start = time.monotonic_ns()
        ring()

    def ring() -> None:
        nonlocal gone
        due = RATE * (time.monotonic_ns() - start) // SECOND
        while line and gone < due:
            line.popleft().set_result(None)
            gone += 1
        if line:
            loop.call_later((gone + 1) / RATE - (time.monotonic_ns() - start) / SECOND, ring)

    return await timed(count, waiter, lambda: len(line), open_up)


async def one_place_run(count: int) -> Cpu:
    gate = Dispatch(concurrency=1, throttled_concurrency=None, byte_budget=None)
    held = gate.try_admit()

    async def waiter() -> None:
        async with gate.admit():
            pass

    return await timed(count, waiter, lambda: gate.snapshot().waiting, held.settle)


async def rate_run(count: int) -> Cpu:
    gate = rate_only(SystemClock())
    # A call that turns out to have cost more leaves debt: no task goes until it is paid, which
    # gives all tasks the time to join. Then they go at the rate, without a burst.
    seconds_to_join = 1 + count // 12_500
    gate.try_admit().settle(cost=RATE + RATE * seconds_to_join)

    async def waiter() -> None:
        async with gate.admit():
            pass

    return await timed(count, waiter, lambda: gate.snapshot().waiting, lambda: None)


async def jumping_run(count: int) -> Cpu:
    """The same gate, line and batches, but time jumps where the loop would sleep.

    What a process pays for waking up, cold, a thousand times is left out, as it is for the
    semaphore, which never sleeps.
    """

    async def main(clock: ManualClock) -> Cpu:
        clock.quantum = SystemClock.quantum
        gate = rate_only(clock)
        empty_bucket(gate)

        async def waiter() -> None:
            async with gate.admit():
                pass

        return await timed(count, waiter, lambda: gate.snapshot().waiting, lambda: None)

    return await asyncio.to_thread(run, main)


SEMAPHORE = "asyncio.Semaphore(1)"
RELEASED = f"asyncio.Semaphore(0) that a timer releases, {RATE}/s"
TIMER = f"bare futures and a timer, {RATE}/s"
PACED, JUMPING = f"Dispatch, {RATE}/s", f"Dispatch, {RATE}/s, without sleeping"
RUNS = {
    SEMAPHORE: semaphore_run,
    JUMPING: jumping_run,
    "Dispatch, concurrency=1": one_place_run,
    RELEASED: released_run,
    PACED: rate_run,
    TIMER: timer_run,
}
LIMITED = (JUMPING, PACED)  # may cost more than a semaphore, which has no limit to keep


async def timed_runs(count: int, repeats: int) -> None:
    runs: dict[str, list[Cpu]] = {name: [] for name in RUNS}
    for turn in range(repeats):
        for name in RUNS if turn % 2 == 0 else reversed(RUNS):
            runs[name].append(await RUNS[name](count))
    middle = {name: Cpu(*map(median, zip(*cpus, strict=True))) for name, cpus in runs.items()}
    floor = middle[SEMAPHORE]
    rows = []
    for name, cpu in middle.items():
        times = {other: cpu.handing_over / middle[other].handing_over for other in (SEMAPHORE, RELEASED)}
        rows.append(
            (
                name,
                number(cpu.handing_over),
                *(f"{ratio:.2f}" for ratio in times.values()),
                against(times[SEMAPHORE], 1.5) if name in LIMITED else "",
                number(cpu.altogether),
                f"{cpu.altogether / floor.altogether:.2f}",
            )
        )
    print(f"µs of CPU for each of {count:,} waiters, median of {repeats} runs:")
    table(
        (
            "",
            "waiting to done",
            "× semaphore",
            "× released by a timer",
            "target",
            "with making the task",
            "× semaphore",
        ),
        rows,
    )


# -- memory


async def bytes_per_waiter(count: int, waiter: Callable[[], Awaitable[None]]) -> float:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tasks = [asyncio.create_task(waiter()) for _ in range(count)]
    await asyncio.sleep(0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return (after - before) / count


async def memory(count: int) -> None:
    loop = asyncio.get_running_loop()
    semaphore = asyncio.Semaphore(1)
    await semaphore.acquire()
    gate = rate_only(SystemClock())
    gate.try_admit().settle(cost=RATE * 600)

    async def for_future() -> None:
        await loop.create_future()

    async def for_semaphore() -> None:
        async with semaphore:
            pass

    async def for_gate() -> None:
        async with gate.admit():
            pass

    bare = await bytes_per_waiter(count, for_future)
    rows = [("task waiting for a bare future", number(bare), "0")]
    for name, waiter in (("asyncio.Semaphore(1)", for_semaphore), (f"Dispatch, {RATE}/s", for_gate)):
        each = await bytes_per_waiter(count, waiter)
        rows.append((name, number(each), number(each - bare)))
    print(f"Memory for each of {count:,} waiting tasks (tracemalloc):")
    table(("", "bytes, task and all", "more than bare"), rows)


async def main(*, count: int, repeats: int) -> None:
    await counted_run(count)
    await timed_runs(count, repeats)
    await memory(min(count, 10_000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer waiters: to see that it runs")
    quick = parser.parse_args().quick
    asyncio.run(main(count=5_000 if quick else 50_000, repeats=1 if quick else 3))
