"""What a run would take: every line read, nothing sent.

Rules of this room: figures are estimates and say so; a line that is wrong is named.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ...responses.estimate import INPUT, OUTPUT, TOKENS, TokenStats, read_shape, reservation
from .command import ALL_ANSWERED, WRONG_USAGE, answered_before, check_files, source_of
from .errors import BadJob
from .jobs import Target, read_job, twice
from .progress import duration
from .seen import SeenIds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from ...limits import Rate
    from .command import Order

_MOST_NAMED = 20  # bad lines


class Forecast(NamedTuple):
    """What all jobs together would use; `seconds` is None if no limits are known."""

    jobs: int
    answered: int  # before, and not counted in what follows
    bad: tuple[BadJob, ...]
    bad_lines: int
    input_tokens: int
    output_tokens: int  # at most, or what is usual where a job does not say
    unbounded: int  # jobs that do not say
    seconds: float | None
    binding: str | None
    cost: float | None


def forecast(order: Order) -> Forecast:
    """Read all jobs and add up what they are likely to use."""
    target = Target(order.to)
    before = answered_before(order)
    seen, stats = SeenIds(), TokenStats()
    bad: list[BadJob] = []
    jobs = answered = bad_lines = unbounded = 0
    sums = {"requests": 0, TOKENS: 0, INPUT: 0, OUTPUT: 0}
    most = 0
    lines = source_of(order)
    for number, line in lines:
        where = f"{order.name}, line {number}"
        try:
            job = read_job(line, where, number, target)
            if not seen.add(job.custom_id):
                raise twice(where, job.custom_id)
        except BadJob as error:
            bad_lines += 1
            if len(bad) < _MOST_NAMED:
                bad.append(error)
            continue
        jobs += 1
        if before is not None and job.custom_id in before:
            answered += 1
            continue
        parts = urlsplit(job.url)
        shape = read_shape(job.method, parts.netloc, parts.path, job.body)
        sums["requests"] += 1
        if shape.style == "free":
            continue
        likely = stats.output(parts.netloc, shape.model, shape.max_output)
        for unit, amount in reservation(shape, 1.0, likely).items():
            sums[unit] += amount
        if shape.generates:
            unbounded += shape.max_output is None
            most += likely if shape.max_output is None else shape.max_output
    seconds, binding = _time(order.rates, sums)
    cost = None if order.price is None else order.price.of(sums[INPUT], most)
    return Forecast(
        jobs, answered, tuple(bad), bad_lines, sums[INPUT], most, unbounded, seconds, binding, cost
    )


def _time(rates: tuple[Rate | str, ...], sums: Mapping[str, int]) -> tuple[float | None, str | None]:
    """How long the slowest limit takes for it."""
    slowest: tuple[float | None, str | None] = (None, None)
    for rate in rates:
        if isinstance(rate, str):
            continue
        seconds = max(0, sums.get(rate.unit, 0) - rate.burst) * rate.per / rate.amount
        if slowest[0] is None or seconds > slowest[0]:
            slowest = (seconds, rate.name)
    return slowest


def dry_run(order: Order, out: TextIO, err: TextIO) -> int:
    """Say what a run would take. The exit status."""
    check_files(order, dry=True)
    found = forecast(order)
    out.write((_as_json(found) if order.as_json else _in_words(order, found)) + "\n")
    err.writelines(f"error: {error}\n" for error in found.bad)
    if found.bad_lines > len(found.bad):
        err.write(f"error: {found.bad_lines - len(found.bad):,} more bad lines\n")
    if found.bad:
        err.write(f"\nhint: {found.bad[0].hint}\n")
    return WRONG_USAGE if found.bad and not order.skip_invalid else ALL_ANSWERED


def _as_json(found: Forecast) -> str:
    facts: dict[str, Any] = found._asdict()
    facts["bad"] = [str(error) for error in found.bad]
    return json.dumps(facts)


def _in_words(order: Order, found: Forecast) -> str:
    to_send = found.jobs - found.answered
    kept = f", {found.answered:,} answered before" if found.answered else ""
    rows = [("jobs", f"{to_send:,} to send{kept}")]
    if found.bad_lines:
        rows.append(("bad lines", f"{found.bad_lines:,}"))
    rows.append(("input", f"about {found.input_tokens:,} tokens"))
    says = "at most" if not found.unbounded else "about"
    usual = f" ({found.unbounded:,} jobs set no limit)" if found.unbounded else ""
    rows.append(("output", f"{says} {found.output_tokens:,} tokens{usual}"))
    if found.seconds is not None:
        rows.append(("time", f"{duration(found.seconds)}, held by {found.binding}"))
    else:
        rows.append(("time", "not known before the first answer tells the limits; give --rate"))
    if found.cost is not None:
        rows.append(("cost", f"{says} {found.cost:,.2f}"))
    elif order.price is None:
        rows.append(("cost", "give --price IN/OUT, of a million tokens"))
    rows.append(("sent", "nothing"))
    return "\n".join(f"{name:<10} {value}" for name, value in rows)
