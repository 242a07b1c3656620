"""The picture of a run on terminals of three widths, at many moments: its figures agree with each other."""

import asyncio
import io
import re

import pytest
from rich.console import Console

from cli.run.virtual_run import Run, until
from headgate.budgets.prices import Prices
from headgate.cli.picture import run_picture
from headgate.cli.run.errors import Stop
from headgate.cli.run.spending import Spending
from headgate.cli.run.summary import Ending

WIDTHS = (60, 80, 140)
TITLE = "requests-of-the-whole-last-quarter.jsonl and 3 more → api.example.com"


def number(text):
    return float(text.replace(",", ""))


def shown(view, width):
    """The lines of the picture, without the blank ones at its end."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(run_picture(view, TITLE, width))
    return console.export_text().rstrip("\n").split("\n")


def check(view, width):
    """Read every figure of a picture, and compare it with the others."""
    lines = shown(view, width)
    text = "\n".join(lines)
    assert all(len(line) <= width for line in lines)
    bars = 1 + len(view.uses)
    # A head, a bar for each, the figures in at most three lines, and why it waits: nothing is wrapped.
    assert bars + 2 <= len(lines) <= bars + 5, text
    tally = view.tally
    done = re.search(r"^jobs\s.*?([\d,]+)(?: of ([\d,]+)   (\d+)%(?:   (\S+(?: s)?) left)?)?\s*$", lines[1])
    assert done, text
    assert number(done[1]) == tally.kept + tally.answered + tally.failed
    if done[2]:
        assert number(done[1]) <= number(done[2])
        assert (done[3] == "100") == (done[1] == done[2])
        assert int(done[3]) == int(100 * number(done[1]) / number(done[2]))
    if view.left is not None:
        assert done[4] not in (None, "0 s")
    for use, line in zip(view.uses, lines[2:], strict=False):
        found = re.search(r"([\d,]+) of ([\d,]+) a minute   (\d+)%$", line.rstrip())
        assert found, text
        assert line.startswith(use.unit)
        assert number(found[1]) <= number(found[2])
        assert (found[3] == "100") <= (found[1] == found[2])
    figures = dict(re.findall(r"(in flight|answers/s|tokens/min|429s|failed|kept|cost) ([\d,.]+)", text))
    assert number(figures["in flight"]) == view.in_flight <= view.concurrency
    assert number(figures["failed"]) == tally.failed
    assert number(figures["429s"]) == tally.refused
    assert number(figures.get("kept", "0")) == tally.kept
    assert ("tokens/min" in figures) != any(use.unit == "tokens" for use in view.uses)
    if not view.stopping:
        assert tally.sent == view.in_flight + tally.answered + tally.failed + tally.retried
    if view.stopping and view.in_flight:
        assert "stopping" in lines[-1]
        assert " left" not in lines[1]
    for line in lines[1:]:  # a shortened text ends with a whole word
        assert "…" not in line or line.rstrip().endswith(" …"), text


def watched(tmp_path, count, *, act=None, **options):
    """A run of which pictures are checked again and again, and at its end."""
    looks = 0

    async def look(run):
        nonlocal looks
        script = None if act is None else asyncio.create_task(act(run))
        while run.tally.done < run.tally.total and not (
            run.runner.stopping and not run.runner.view().in_flight
        ):
            for width in WIDTHS:
                check(run.runner.view(), width)
            looks += 1
            await asyncio.sleep(0.5 if run.tally.seconds < 20 else 50)
        if script is not None:
            await script

    more = {"total": count, **options.pop("more", {})}
    done = Run(tmp_path, count, during=look, more=more, **options)
    assert looks > 3
    view = done.runner.view().at_the_end()
    for width in WIDTHS:
        check(view, width)
        assert "left" not in shown(view, width)[1]
    return done


LIMITS = {"requests": "600/minute burst 10", "tokens": "60_000/minute burst 3000"}


def test_with_failures_refusals_and_an_outage(tmp_path):
    async def act(run):
        await until(lambda: run.tally.answered >= 30)
        run.api.fault("error", status=400, count=5)
        await until(lambda: run.tally.answered >= 60)
        run.api.fault("storm", duration=1.0)
        await until(lambda: run.tally.answered >= 90)
        run.api.fault("error", status=500, duration=6.0)

    done = watched(tmp_path, 250, act=act, api=LIMITS, rates="auto", concurrency=64)
    assert done.tally.failed == 5
    assert done.tally.refused


def test_with_a_long_wait_that_the_api_asks_for(tmp_path):
    async def act(run):
        await until(lambda: run.tally.answered >= 20)
        run.api.fault("storm", count=1, retry_after=3_000)

    done = watched(tmp_path, 100, act=act, api=LIMITS, rates="auto", patience=4_000)
    assert done.seconds > 3_000


def test_with_a_stop_and_a_resume(tmp_path):
    async def act(run):
        await until(lambda: run.tally.answered >= 40)
        run.runner.stop(Stop("interrupted", "stopped by Ctrl-C"))

    first = watched(tmp_path, 150, act=act, api=LIMITS | {"first_token": 1.0}, rates="auto")
    kept = first.tally.answered
    again = watched(tmp_path, 150, api=LIMITS, rates="auto", more={"kept": kept})
    assert again.tally.kept == kept
    assert again.tally.done == 150


def test_with_a_budget_that_ends_the_run(tmp_path):
    spending = Spending(max_cost=0.0003, prices=Prices({"*": (0.15, 0.6)}))
    done = watched(tmp_path, 100, api=LIMITS, rates="600/minute burst 10", spending=spending, concurrency=8)
    assert done.stop.reason == "budget"
    spent, limit, job = map(number, re.findall(r"[\d.]+\d", done.stop.why))
    assert spent <= limit < spent + job
    lines = list(Ending(done.runner.view(), done.stop, "answers.jsonl", 0, None).lines())
    assert f"answered  {done.tally.answered} in" in "\n".join(lines)


def test_tokens_are_counted_from_the_first_job_where_their_limit_is_learned(tmp_path):
    """Jobs that waited at the gate before the limit was known count as well."""
    seen = []

    async def look(run):
        while run.tally.done < 200:
            seen.append({use.unit: use.now for use in run.runner.view().uses})
            await asyncio.sleep(0.5)

    done = Run(tmp_path, 200, api=LIMITS, rates="auto", concurrency=200, during=look, more={"total": 200})
    assert done.api.report().refused <= 1
    assert all(uses["tokens"] > 0 for uses in seen[3:-1])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_title_that_is_too_long_is_shortened_and_the_time_stays(tmp_path, width):
    done = Run(tmp_path, 3)
    (head, *_) = shown(done.runner.view(), width)
    assert len(head) <= width
    assert head.rstrip().endswith(" s")
