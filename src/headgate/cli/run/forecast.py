"""`headgate run --dry-run`: read every line, estimate what a run would take, and send nothing."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TextIO

from ...limits import Rate
from ...responses.estimate import INPUT, OUTPUT, TOKENS, TokenStats, reservation
from ...words import duration
from .errors import BadJob, ExitStatus
from .jobs import read_jobs
from .journal import answers_in
from .lines import Line, Lines
from .options import RunOptions
from .preflight import check_files
from .seen import SeenIds
from .target import Target

_MOST_NAMED = 20  # bad lines


class Forecast(NamedTuple):
    """What all jobs together would use; `seconds` is None if no limits are given."""

    jobs: int
    answered: int  # jobs with an answer, which are not counted below
    bad: tuple[BadJob, ...]
    bad_lines: int
    input_tokens: int
    output_tokens: int  # at most; the usual length for a job that sets no limit
    unbounded: int  # jobs that set no limit
    seconds: float | None
    binding: str | None
    cost: float | None

    def facts(self) -> dict[str, Any]:
        """The same by name, for JSON."""
        return {**self._asdict(), "bad": [str(error) for error in self.bad]}


def forecast(options: RunOptions) -> Forecast:
    """Read all jobs and add up what they are likely to use."""
    target = Target(options.to)
    answers = options.answers
    before = answers_in(answers) if answers is not None and answers.is_file() else SeenIds()
    stats = TokenStats()
    bad: list[BadJob] = []
    jobs = answered = bad_lines = unbounded = most = 0
    prices = options.price_list(always=True)
    assert prices is not None
    cost: float | None = 0.0
    sums = {"requests": 0, TOKENS: 0, INPUT: 0, OUTPUT: 0}
    for job in read_jobs(_lines(options), target):
        if isinstance(job, BadJob):
            bad_lines += 1
            if len(bad) < _MOST_NAMED:
                bad.append(job)
            continue
        jobs += 1
        if before.get(job.custom_id).marks:
            answered += 1
            continue
        shape = job.shape
        sums["requests"] += 1
        if shape.style == "free":
            continue
        likely = stats.output(target.host, shape.model, shape.max_output)
        for unit, amount in reservation(shape, 1.0, likely).items():
            sums[unit] += amount
        output = 0
        if shape.generates:
            unbounded += shape.max_output is None
            output = likely if shape.max_output is None else shape.max_output
            most += output
        price = prices.get(shape.model)
        cost = None if cost is None or price is None else cost + price.of(shape.input, output)
    seconds, binding = _time(options.rates, sums)
    return Forecast(
        jobs, answered, tuple(bad), bad_lines, sums[INPUT], most, unbounded, seconds, binding, cost
    )


def _lines(options: RunOptions) -> Iterable[Line]:
    if not options.from_stdin:
        return Lines(options.jobs)
    numbered = enumerate(sys.stdin.buffer, 1)
    return (Line("stdin", number, line) for number, line in numbered if not line.isspace())


def _time(rates: tuple[Rate | str, ...], sums: Mapping[str, int]) -> tuple[float | None, str | None]:
    """The time that the slowest limit takes for these amounts, and its name."""
    times = [
        (max(0, sums.get(rate.unit, 0) - rate.burst) * rate.per / rate.amount, rate.name)
        for rate in rates
        if not isinstance(rate, str)
    ]
    return max(times, key=lambda time: time[0], default=(None, None))


def dry_run(options: RunOptions, out: TextIO, err: TextIO) -> int:
    """Write what a run would take. The exit status."""
    check_files(options, sends=False)
    found = forecast(options)
    out.write((json.dumps(found.facts()) if options.as_json else _in_words(options, found)) + "\n")
    err.writelines(f"error: {error}\n" for error in found.bad)
    if found.bad_lines > len(found.bad):
        err.write(f"error: {found.bad_lines - len(found.bad):,} more bad lines\n")
    if found.bad:
        err.write(f"\nhint: {found.bad[0].hint}\n")
    return ExitStatus.WRONG_USAGE if found.bad and not options.skip_invalid else ExitStatus.ALL_ANSWERED


def _in_words(options: RunOptions, found: Forecast) -> str:
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
    prices = options.price_list(always=True)
    if found.cost is not None and prices is not None:
        listed = f", by prices of {prices.date}" if prices.date else ""
        rows.append(("cost", f"{says} {found.cost:,.2f}{listed}"))
    else:
        rows.append(("cost", "not known for these models; give --price IN/OUT, of a million tokens"))
    rows.append(("sent", "nothing"))
    return "\n".join(f"{name:<10} {value}" for name, value in rows)
