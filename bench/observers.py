"""What observing costs an admission: with no observer, with Prometheus, OpenTelemetry and a plain function.

One thread, no waiting callers, limits far away. A call is admitted and settled. What an observer adds is the
difference to the same call without one, measured in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from admission import settles
from headgate import Dispatch, observers
from measure import Candidate, against, interleave, number, table

if TYPE_CHECKING:
    from headgate.typing import Observer

ALONE = "no observer"
MOST = 1_500  # nanoseconds that Prometheus may add


def candidates(**options: object) -> list[Candidate]:
    reader = InMemoryMetricReader()
    watching: dict[str, Observer | None] = {
        ALONE: None,
        "Prometheus": observers.prometheus(CollectorRegistry()),
        "Prometheus, by tenant": observers.prometheus(CollectorRegistry(), tenants=True),
        "OpenTelemetry, with its SDK": observers.opentelemetry(MeterProvider([reader]).get_meter("bench")),
        "a function that does nothing": lambda _event: None,
    }
    return [
        Candidate(name, settles(Dispatch(rates="1_000_000_000/s", observer=observer, **options)), ALONE)
        for name, observer in watching.items()
    ]


async def main(*, rounds: int, times: int) -> None:
    bare: dict[str, None] = dict.fromkeys(("concurrency", "throttled_concurrency", "byte_budget"))
    for title, options in (("One rate:", bare), ("Concurrency, bytes and a rate:", {})):
        found = candidates(**options)
        await interleave(found, rounds=rounds, times=times)
        alone, rows = found[0], []
        for candidate in found:
            added = [mine - floor for mine, floor in zip(candidate.rounds, alone.rounds, strict=True)]
            least = candidate.best - alone.best
            target = against(least, MOST) if candidate.name == "Prometheus" else ""
            rows.append(
                (candidate.name, number(candidate.best), number(least), number(median(added)), target)
            )
        print(title)
        table(("try_admit + settle", "best ns", "added ns", "added, median", "target"), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    quick = parser.parse_args().quick
    asyncio.run(main(rounds=6 if quick else 32, times=400 if quick else 1000))
