"""What retries and circuit breakers cost a call that succeeds, beside the bare call and beside peers.

Nothing fails here: a failure takes its time anyway, but the way past a decorator is paid on every
call. The function does nothing, `def bare(x): return x`, or its async twin; everything runs inside
one event loop, so that `await` is measured without starting a loop. What is compared is the time
over the bare call of the same round: the `for` statement and the function itself cancel out.

All are set alike: three retries with exponential delays from 1 s to 60 s and jitter (opnieuw: within
60 s), or five failures in a row and 30 s of rest. Decorators are compared with our decorator, `call`
with our `call`. A library that cannot do a thing is not in its table: hyx only awaits, pybreaker awaits
only with tornado, and circuitbreaker's own `call` does not look whether the circuit is open.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from datetime import timedelta
from itertools import repeat
from statistics import median, quantiles
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import aiobreaker
import backoff
import circuitbreaker
import hyx.retry
import hyx.retry.backoffs
import hyx.retry.jitters
import opnieuw
import purgatory
import pybreaker
import stamina
import tenacity

from headgate import CircuitBreaker, ResilienceConfig, ResilientClient, retry
from measure import Candidate, against, interleave, number, table

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = "headgate"

# Ours must cost less than these. Beside the others it is only reported.
TO_BEAT = {"opnieuw", "hyx", "backoff", "purgatory", "circuitbreaker"}

# A hundred times as slow as the rest: a tenth of the calls tells as much.
SLOW = {"tenacity": 10, "stamina": 10}


def bare(x: int) -> int:
    return x


async def bare_async(x: int) -> int:
    return x


# -- how each is called. Written out, because another function around the call would be measured too.


def calls(fn: Callable[[int], object], share: int = 1) -> Callable[[int], int]:
    """A batch that makes only one call in `share` and counts it `share` times."""

    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times // share):
            fn(1)
        return (perf_counter_ns() - start) * share

    return batch


def awaits(fn: Callable[[int], Any], share: int = 1) -> Callable[[int], Any]:
    async def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times // share):
            await fn(1)
        return (perf_counter_ns() - start) * share

    return batch


def calls_through(call: Callable[..., object]) -> Callable[[int], int]:
    def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            call(bare, 1)
        return perf_counter_ns() - start

    return batch


def awaits_through(call: Callable[..., Any]) -> Callable[[int], Any]:
    async def batch(times: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, times):
            await call(bare_async, 1)
        return perf_counter_ns() - start

    return batch


# -- the candidates


class Field(NamedTuple):
    """Candidates that do the same, and the bare call that they wrap."""

    title: str
    bare: Candidate
    candidates: list[Candidate]


def field(title: str, bare_batch: Callable[[int], Any], batches: dict[str, Callable[[int], Any]]) -> Field:
    """Candidates, each compared with the one of headgate that is called the same way."""
    candidates = []
    for name, batch in batches.items():
        way = name.partition(", ")[2]
        like = f"{OURS}, {way}" if way and not name.startswith(OURS) else OURS
        candidates.append(Candidate(name, batch, like))
    return Field(title, Candidate("bare call", bare_batch, ""), candidates)


def retry_decorators() -> dict[str, Callable[[Any], Any]]:
    return {
        OURS: retry(),
        "tenacity": tenacity.retry(
            stop=tenacity.stop_after_attempt(4),
            wait=tenacity.wait_exponential_jitter(initial=1, max=60),
            reraise=True,
        ),
        "stamina": stamina.retry(on=OSError, attempts=4, timeout=None, wait_initial=1, wait_max=60),
        "backoff": backoff.on_exception(backoff.expo, OSError, max_tries=4, max_value=60),
        "opnieuw": opnieuw.retry(
            retry_on_exceptions=OSError, max_calls_total=4, retry_window_after_first_call_in_seconds=60
        ),
    }


def hyx_retry() -> Callable[[Any], Any]:
    delays = hyx.retry.backoffs.expo(min_delay_secs=1, max_delay_secs=60, jitter=hyx.retry.jitters.full)
    return hyx.retry.retry(on=OSError, attempts=3, backoff=delays)


def retries() -> list[Field]:
    blocking = retry_decorators()
    awaitable = {**retry_decorators(), "hyx": hyx_retry()}
    return [
        field(
            "Retry, a function",
            calls(bare),
            {name: calls(decorate(bare), SLOW.get(name, 1)) for name, decorate in blocking.items()},
        ),
        field(
            "Retry, a coroutine function",
            awaits(bare_async),
            {name: awaits(decorate(bare_async), SLOW.get(name, 1)) for name, decorate in awaitable.items()},
        ),
    ]


def aiobreaker_breaker() -> aiobreaker.CircuitBreaker:
    return aiobreaker.CircuitBreaker(fail_max=5, timeout_duration=timedelta(seconds=30))


def pybreaker_breaker() -> pybreaker.CircuitBreaker:
    return pybreaker.CircuitBreaker(fail_max=5, reset_timeout=30)


def circuitbreaker_breaker() -> circuitbreaker.CircuitBreaker:
    return circuitbreaker.circuit(failure_threshold=5, recovery_timeout=30)


def breakers() -> list[Field]:
    blocking = purgatory.SyncCircuitBreakerFactory(default_threshold=5, default_ttl=30)
    awaitable = purgatory.AsyncCircuitBreakerFactory(default_threshold=5, default_ttl=30)
    return [
        field(
            "Circuit breaker, a function",
            calls(bare),
            {
                OURS: calls(CircuitBreaker()(bare)),
                f"{OURS}, call": calls_through(CircuitBreaker().call),
                f"{OURS}, failure_rate=0.5": calls(CircuitBreaker(failure_rate=0.5)(bare)),
                "purgatory": calls(blocking("bench")(bare)),
                "circuitbreaker": calls(circuitbreaker_breaker()(bare)),
                "pybreaker": calls(pybreaker_breaker()(bare)),
                "pybreaker, call": calls_through(pybreaker_breaker().call),
                "aiobreaker": calls(aiobreaker_breaker()(bare)),
                "aiobreaker, call": calls_through(aiobreaker_breaker().call),
            },
        ),
        field(
            "Circuit breaker, a coroutine function",
            awaits(bare_async),
            {
                OURS: awaits(CircuitBreaker()(bare_async)),
                f"{OURS}, call_async": awaits_through(CircuitBreaker().call_async),
                f"{OURS}, failure_rate=0.5": awaits(CircuitBreaker(failure_rate=0.5)(bare_async)),
                "purgatory": awaits(awaitable("bench")(bare_async)),
                "circuitbreaker": awaits(circuitbreaker_breaker()(bare_async)),
                "aiobreaker": awaits(aiobreaker_breaker()(bare_async)),
                "aiobreaker, call_async": awaits_through(aiobreaker_breaker().call_async),
            },
        ),
    ]


def client() -> ResilientClient:
    return ResilientClient(ResilienceConfig(requests_per_minute=1_000_000_000))


def clients() -> list[Field]:
    """Everything at once: breaker, window, admission, retries. No peer does all of it."""
    return [
        field(
            "ResilientClient, a function",
            calls(bare),
            {OURS: calls(client()(bare)), f"{OURS}, call": calls_through(client().call)},
        ),
        field(
            "ResilientClient, a coroutine function",
            awaits(bare_async),
            {
                OURS: awaits(client()(bare_async)),
                f"{OURS}, call_async": awaits_through(client().call_async),
            },
        ),
    ]


# -- reporting


def over(candidate: Candidate, least: Candidate) -> list[float]:
    """Nanoseconds over the bare call, in each round."""
    return [mine - bare for mine, bare in zip(candidate.rounds, least.rounds, strict=True)]


def print_field(title: str, least: Candidate, candidates: list[Candidate]) -> None:
    named = {candidate.name: candidate for candidate in candidates}
    rows = [(least.name, number(least.best), number(least.middle), "", "", "")]
    for candidate in candidates:
        overhead, ours = over(candidate, least), over(named[candidate.floor], least)
        ratio = median(theirs / mine for theirs, mine in zip(overhead, ours, strict=True))
        target = against(ratio, 1, at_most=False) if candidate.name in TO_BEAT else ""
        figures = (number(value) for value in (candidate.best, candidate.middle, median(overhead)))
        rows.append((candidate.name, *figures, f"{ratio:.2f}", target))
    print(f"{title}:")
    table(("", "best ns", "median ns", "over bare", "× ours", "target"), rows)


async def main(*, rounds: int, times: int) -> None:
    fields = [*retries(), *breakers(), *clients()]
    # With this many libraries loaded, a garbage collection would take longer than a batch.
    gc.collect()
    gc.freeze()
    await interleave(
        [each for _, least, others in fields for each in (least, *others)], rounds=rounds, times=times
    )
    noise = fields[0].bare
    print(
        f"{rounds} rounds of {times} calls each, in alternating order. The noise: the bare call\n"
        f"took {number(noise.best)} ns in the best round, {number(noise.middle)} in the median and "
        f"{number(quantiles(noise.rounds, n=10)[-1])} or more in the worst tenth.\n"
        "Over bare: the median of what each took more than the bare call of its round. × ours: that, beside\n"
        "what ours took more; above one is slower than we are.\n"
    )
    for each in fields:
        print_field(*each)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    quick = parser.parse_args().quick
    asyncio.run(main(rounds=6 if quick else 150, times=500 if quick else 1000))
