"""The race of the demo: three ways to send the same jobs, at the same time, each with an API of its own.

Nothing is made up: the figures are those of the sandbox, which counts what each of the three has sent.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from bisect import bisect_right
from pathlib import Path
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...sandbox.server import Sandbox
from .chart import Panel, Series, Shade, draw, plot
from .ways import PATH, REQUESTS, TOKENS, Gated, Naive, Usual, Way

BURST = 1.5  # seconds' worth of requests and tokens that the API lets through at once
TOKENS_PER_JOB = 800
OUTAGE_AT, OUTAGE = 6.0, 2.0
LONGEST = 45.0  # seconds after which the race ends


class Lane:
    """One way and its API. `seconds` is the time it took, None until it is done."""

    def __init__(self, way: Way, colour: str, style: str) -> None:
        self.way = way
        self.colour = colour
        self.style = style
        self.api = Sandbox(
            "openai",
            requests=f"{REQUESTS}/minute burst {round(REQUESTS / 60 * BURST)}",
            tokens=f"{TOKENS}/minute burst {round(TOKENS / 60 * BURST)}",
            first_token=0.25,
            spread=0.35,
        )
        self.seconds: float | None = None

    async def run(self, jobs: Path) -> None:
        began = monotonic()
        await self.way.send_all(jobs, self.api.url)
        self.seconds = monotonic() - began


async def _race(lanes: list[Lane], jobs: Path, count: int, console: Console) -> None:
    began = monotonic()
    for lane in lanes:
        lane.api.fault("overload", after=OUTAGE_AT, duration=OUTAGE, retry_after=1)
    tasks = [asyncio.create_task(lane.run(jobs)) for lane in lanes]
    lines_at = 0.0
    with Live(console=console, auto_refresh=False) as live:
        while True:
            done, left = await asyncio.wait(tasks, timeout=0.15)
            elapsed = monotonic() - began
            if console.is_terminal:
                live.update(_scene(lanes, count, elapsed, console.width), refresh=True)
            elif elapsed >= lines_at or not left:
                lines_at = elapsed + 2.0
                for lane in lanes:
                    tally, name = lane.way.tally, lane.way.name
                    figures = f"{tally.answered:>4}/{count}  {tally.sent:>5,} requests"
                    console.print(f"{elapsed:5.1f} s  {name:<20} {figures}")
            if not left or elapsed > LONGEST:
                break
    for task in left:
        task.cancel()
    for task in done:
        task.result()
    await asyncio.gather(*left, return_exceptions=True)


def _scene(lanes: list[Lane], count: int, elapsed: float, width: int) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=20)
    table.add_column(width=max(16, min(40, width - 74)))
    for _ in range(4):
        table.add_column(justify="right", min_width=8)
    table.add_row("", "", *(Text(name, "dim") for name in ("answered", "requests", "for each", "seconds")))
    for lane in lanes:
        way, tally = lane.way, lane.way.tally
        seconds = elapsed if lane.seconds is None else lane.seconds
        each = tally.sent / tally.answered if tally.answered else 0.0
        table.add_row(
            Text(way.name, f"bold {lane.style}"),
            ProgressBar(
                total=count, completed=tally.answered, complete_style=lane.style, finished_style=lane.style
            ),
            f"{tally.answered:,}",
            f"{tally.sent:,}",
            Text(f"{each:.2f}", "bold"),
            Text(f"{seconds:.1f}", "bold green" if lane.seconds is not None else ""),
        )
    down = OUTAGE_AT <= elapsed < OUTAGE_AT + OUTAGE
    note = Text("the API is overloaded and refuses everything" if down else " ", "italic yellow")
    return Group(table, note)


def write_jobs(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            question = f"Job {number}: " + "how much water may come in? " * 8
            messages = [{"role": "user", "content": question}]
            body = {"model": "demo", "max_tokens": TOKENS_PER_JOB, "messages": messages}
            file.write(json.dumps({"custom_id": f"job-{number}", "url": PATH, "body": body}) + "\n")


def ideal_seconds(count: int) -> float:
    """The time it takes if the API is never idle while it lets calls through."""
    # The bucket of the API is full at the start, and again after the outage.
    seconds = max(0.0, count * TOKENS_PER_JOB / (TOKENS / 60) - BURST)
    return seconds if seconds <= OUTAGE_AT else max(OUTAGE_AT, seconds - BURST) + OUTAGE


def show(count: int, plot_to: Path | None) -> int:
    """Run the race and show it. The exit status."""
    console = Console(highlight=False)
    lanes = [
        Lane(Naive(), "#e2583e", "red"),
        Lane(Usual(), "#dea026", "yellow"),
        Lane(Gated(), "#168a80", "cyan"),
    ]
    ideal = ideal_seconds(count)
    console.print(f"[bold]{count} jobs of {TOKENS_PER_JOB} tokens, three ways at the same time.[/]")
    console.print(
        f"Each has an API that allows {REQUESTS:,} requests and {TOKENS:,} tokens a minute, "
        f"and is overloaded for {OUTAGE:g} s.\n"
    )
    ways = Table.grid(padding=(0, 0, 0, 2))
    for lane in lanes:
        ways.add_row(Text(lane.way.name, lane.style), Text(lane.way.does, "dim"))
    console.print(ways)
    console.print()
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        jobs = Path(folder) / "jobs.jsonl"
        write_jobs(jobs, count)
        for lane in lanes:
            lane.api.start()
        try:
            asyncio.run(_race(lanes, jobs, count, console))
        finally:
            for lane in lanes:
                lane.api.stop()
    console.print(_table(lanes, count, ideal))
    panels = _panels(lanes)
    for panel in panels[::2]:
        console.print(f"\n[bold]{panel.title}[/], {panel.note}")
        for row in plot(panel, width=max(30, min(70, console.width - 12))):
            console.print(
                Text.assemble(*((text, "dim" if of is None else lanes[of].style) for text, of in row))
            )
    if plot_to is not None:
        _write_picture(plot_to, count, panels, console)
    return 0 if lanes[-1].way.tally.answered == count else 1


def _write_picture(path: Path, count: int, panels: list[Panel], console: Console) -> None:
    note = (
        f"{count} jobs of {TOKENS_PER_JOB} tokens, through an API that allows {REQUESTS:,} requests "
        f"and {TOKENS:,} tokens a minute"
    )
    outage = Shade(OUTAGE_AT, OUTAGE_AT + OUTAGE, "overloaded")
    try:
        path.write_bytes(draw("The same jobs, three ways", note, panels, outage))
    except OSError as error:
        console.print(f"\nThe picture could not be written to {path}: {error.strerror}")
    else:
        console.print(f"\nThe same as a picture: [bold]{path}[/]")


def _table(lanes: list[Lane], count: int, ideal: float) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="dim", caption_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("answered", "requests", "refused", "tokens\nin vain", "seconds", "× ideal"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for lane in lanes:
        report = lane.api.report()
        refused = report.requests - report.admitted
        table.add_row(
            Text(lane.way.name, f"bold {lane.style}"),
            f"{lane.way.tally.answered:,}/{count:,}",
            f"{report.requests:,}",
            f"{refused:,}",
            f"{refused * TOKENS_PER_JOB:,}",
            "not done" if lane.seconds is None else f"{lane.seconds:.1f}",
            f"{lane.seconds / ideal:.2f}" if lane.seconds is not None and ideal else "",
        )
    table.caption = f"ideal: {ideal:.1f} s, if the API were never idle while it lets calls through"
    table.caption_style = "dim"
    return table


def _each_second(moments: list[float]) -> list[tuple[float, float]]:
    """For every quarter of a second, the number of moments in the second before."""
    last = moments[-1] if moments else 0.0
    times = [quarter / 4 for quarter in range(round(last * 4) + 1)]
    return [(at, float(bisect_right(moments, at) - bisect_right(moments, at - 1))) for at in times]


def _panels(lanes: list[Lane]) -> list[Panel]:
    answered, sent, refused, wasted = [], [], [], []
    for lane in lanes:
        report = lane.api.report()
        start = report.arrivals[0] if report.arrivals else 0.0
        admitted = [moment - start for moment, _tokens in report.admissions]
        arrived = [moment - start for moment in report.arrivals]
        name, colour = lane.way.name, lane.colour
        answered.append(Series(name, colour, [(0.0, 0.0), *((at, n + 1.0) for n, at in enumerate(admitted))]))
        in_vain = [(0.0, 0.0), *((at, n + 1.0 - bisect_right(admitted, at)) for n, at in enumerate(arrived))]
        refused.append(Series(name, colour, in_vain))
        sent.append(Series(name, colour, _each_second(arrived)))
        wasted.append(Series(name, colour, [(at, value * TOKENS_PER_JOB) for at, value in in_vain]))
    return [
        Panel("Jobs let through", "in all; more is better", answered),
        Panel("Requests sent", "each second, those that are tried again included", sent),
        Panel("Requests refused", "in all; less is better", refused),
        Panel("Tokens sent in vain", "in all; less is better", wasted),
    ]
