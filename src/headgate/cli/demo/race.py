"""Three ways to drain the same jobs, at the same time, each with an API of its own that is limited alike.

Rules of this room: each way is written as it would be outside of a demo. What is shown is what the sandbox
saw.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from bisect import bisect_right
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httpx2
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...dispatch.dispatch import Dispatch
from ...responses import parse_retry_after
from ...sandbox.server import Sandbox
from ..run.jobs import Lines, Target
from ..run.journal import Journal
from ..run.runner import Runner, Settings
from .chart import Panel, Series, draw, plot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...sandbox.referee import Report

REQUESTS, TOKENS = 3_600, 1_440_000  # a minute
BURST = 1.5  # seconds' worth that the API lets through at once
A_JOB = 800  # tokens
WORKERS = 64
OUTAGE_AT, OUTAGE = 6.0, 2.0
LONGEST = 45.0  # seconds after which it is over, whoever has finished
_PATH = "/v1/chat/completions"


class Way(Protocol):
    """One way to do it."""

    @property
    def name(self) -> str: ...

    @property
    def does(self) -> str: ...

    @property
    def answered(self) -> int: ...

    @property
    def sent(self) -> int: ...

    @property
    def gave_up(self) -> int: ...

    async def drain(self, jobs: Path, url: str) -> None: ...


def bodies(jobs: Path) -> Iterator[bytes]:
    with jobs.open() as file:
        for line in file:
            yield json.dumps(json.loads(line)["body"]).encode()


class Naive:
    """Send, and if that fails wait a little longer each time and send again."""

    name = "trying again"
    does = "64 workers; after a failure wait 0.25, 0.5, 1 … 8 s, and at most 10 tries"

    def __init__(self) -> None:
        self.answered = self.sent = self.gave_up = 0
        self._dice = Random(1).random  # noqa: S311 - to be had again, not to be secret

    async def drain(self, jobs: Path, url: str) -> None:
        todo = bodies(jobs)
        async with _client(url) as client:
            await asyncio.gather(*(self._work(todo, client) for _ in range(WORKERS)))

    async def _work(self, todo: Iterator[bytes], client: httpx2.AsyncClient) -> None:
        for body in todo:
            for attempt in range(10):
                self.sent += 1
                reply = await client.post(_PATH, content=body)
                if reply.status_code == 200:
                    self.answered += 1
                    break
                await asyncio.sleep(min(8.0, 0.25 * 2**attempt) * (0.5 + self._dice()))
            else:
                self.gave_up += 1


class Usual:
    """As it is done with care: a limiter for the requests a minute, and retries that heed Retry-After."""

    name = "limiter and retries"
    does = "64 workers behind a limiter set to the requests a minute; retries heed Retry-After"

    def __init__(self) -> None:
        self.answered = self.sent = self.gave_up = 0
        self._next = 0.0
        self._dice = Random(2).random  # noqa: S311 - likewise

    async def drain(self, jobs: Path, url: str) -> None:
        todo = bodies(jobs)
        async with _client(url) as client:
            await asyncio.gather(*(self._work(todo, client) for _ in range(WORKERS)))

    async def _turn(self) -> None:
        """Evenly, at the rate."""
        now = monotonic()
        self._next = max(now, self._next + 60 / REQUESTS)
        await asyncio.sleep(self._next - now)

    async def _work(self, todo: Iterator[bytes], client: httpx2.AsyncClient) -> None:
        for body in todo:
            for attempt in range(10):
                await self._turn()
                self.sent += 1
                reply = await client.post(_PATH, content=body)
                if reply.status_code == 200:
                    self.answered += 1
                    break
                wait = parse_retry_after(reply.headers, default=min(8.0, 0.5 * 2**attempt))
                await asyncio.sleep(wait * (1 + 0.25 * self._dice()))
            else:
                self.gave_up += 1


class Gated:
    """As `headgate run --rate 3600/minute --rate '1_440_000 tokens/minute'` does it."""

    name = "headgate"
    does = "as `headgate run` does it, with --rate for requests and for tokens"

    def __init__(self) -> None:
        self.gave_up = 0
        self._runner: Runner | None = None

    @property
    def answered(self) -> int:
        return 0 if self._runner is None else self._runner.tally.answered

    @property
    def sent(self) -> int:
        return 0 if self._runner is None else self._runner.tally.sent

    async def drain(self, jobs: Path, url: str) -> None:
        gate = Dispatch(
            "demo",
            rates=[f"{REQUESTS}/minute", f"{TOKENS} tokens/minute"],
            concurrency=WORKERS,
            throttled_concurrency="adaptive",
            pause=True,
            byte_budget=None,
        )
        journal, source = Journal.open(jobs.with_suffix(".answers.jsonl")), Lines(jobs)
        try:
            self._runner = Runner(source, Target(url), gate, journal, settings=Settings(concurrency=WORKERS))
            await self._runner.run()
        finally:
            journal.close()
            source.close()
        self.gave_up = self._runner.tally.failed


def _client(url: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(
        base_url=url, limits=limits, timeout=60, headers={"content-type": "application/json"}, trust_env=False
    )


# -- the race


class Lane:
    """One way, its API, and how it stands."""

    def __init__(self, way: Way, colour: tuple[int, int, int], style: str) -> None:
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
        self.seconds: float | None = None  # when it was done

    async def run(self, jobs: Path) -> None:
        began = monotonic()
        await self.way.drain(jobs, self.api.url)
        self.seconds = monotonic() - began


class Standing(NamedTuple):
    answered: int
    requests: int
    refused: int
    wasted: int  # tokens of requests that brought nothing


def standing(report: Report) -> Standing:
    in_vain = report.requests - report.admitted
    return Standing(report.admitted, report.requests, in_vain, in_vain * A_JOB)


async def _race(lanes: list[Lane], jobs: Path, count: int, console: Console) -> float:
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
                    way = lane.way
                    console.print(
                        f"{elapsed:5.1f} s  {way.name:<20} {way.answered:>4}/{count}  {way.sent:>5,} requests"
                    )
            if not left or elapsed > LONGEST:
                break
    for task in left:
        task.cancel()
    for task in done:
        task.result()
    await asyncio.gather(*left, return_exceptions=True)
    return monotonic() - began


def _scene(lanes: list[Lane], count: int, elapsed: float, width: int) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=20)
    table.add_column(width=max(16, min(40, width - 74)))
    for _ in range(4):
        table.add_column(justify="right", min_width=8)
    table.add_row("", "", *(Text(name, "dim") for name in ("answered", "requests", "for each", "seconds")))
    for lane in lanes:
        way = lane.way
        seconds = elapsed if lane.seconds is None else lane.seconds
        each = way.sent / way.answered if way.answered else 0.0
        table.add_row(
            Text(way.name, f"bold {lane.style}"),
            ProgressBar(
                total=count, completed=way.answered, complete_style=lane.style, finished_style=lane.style
            ),
            f"{way.answered:,}",
            f"{way.sent:,}",
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
            body = {"model": "demo", "max_tokens": A_JOB, "messages": [{"role": "user", "content": question}]}
            file.write(json.dumps({"custom_id": f"job-{number}", "url": _PATH, "body": body}) + "\n")


def ideal_seconds(count: int) -> float:
    """How long it takes if the API is never idle while it lets calls through."""
    # Its bucket is full at the start, and again after the time in which nobody got through.
    seconds = max(0.0, count * A_JOB / (TOKENS / 60) - BURST)
    return seconds if seconds <= OUTAGE_AT else max(OUTAGE_AT, seconds - BURST) + OUTAGE


def show(count: int, plot_to: Path) -> int:
    """Run the race and show it. The exit status."""
    console = Console(highlight=False)
    lanes = [
        Lane(Naive(), (226, 88, 62), "red"),
        Lane(Usual(), (222, 160, 38), "yellow"),
        Lane(Gated(), (22, 138, 128), "cyan"),
    ]
    ideal = ideal_seconds(count)
    console.print(f"[bold]{count} jobs of {A_JOB} tokens, three ways at the same time.[/]")
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
    note = (
        f"{count} jobs of {A_JOB} tokens, through an API that allows {REQUESTS:,} requests "
        f"and {TOKENS:,} tokens a minute"
    )
    try:
        plot_to.write_bytes(
            draw("The same jobs, three ways", note, panels, (OUTAGE_AT, OUTAGE_AT + OUTAGE, "overloaded"))
        )
    except OSError as error:
        console.print(f"\nThe picture could not be written to {plot_to}: {error.strerror}")
    else:
        console.print(f"\nThe same as a picture: [bold]{plot_to}[/]")
    return 0 if lanes[-1].way.answered == count else 1


def _table(lanes: list[Lane], count: int, ideal: float) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="dim", caption_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("answered", "requests", "refused", "tokens\nin vain", "seconds", "× ideal"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for lane in lanes:
        now = standing(lane.api.report())
        table.add_row(
            Text(lane.way.name, f"bold {lane.style}"),
            f"{lane.way.answered:,}/{count:,}",
            f"{now.requests:,}",
            f"{now.refused:,}",
            f"{now.wasted:,}",
            "not done" if lane.seconds is None else f"{lane.seconds:.1f}",
            f"{lane.seconds / ideal:.2f}" if lane.seconds is not None and ideal else "",
        )
    table.caption = f"ideal: {ideal:.1f} s, if the API were never idle while it lets calls through"
    table.caption_style = "dim"
    return table


def _each_second(moments: list[float]) -> list[tuple[float, float]]:
    """How many there were in the second before, every quarter of one."""
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
        wasted.append(Series(name, colour, [(at, value * A_JOB) for at, value in in_vain]))
    return [
        Panel("Jobs let through", "in all; more is better", answered),
        Panel("Requests sent", "each second, those that are tried again included", sent),
        Panel("Requests refused", "in all; less is better", refused),
        Panel("Tokens sent in vain", "in all; less is better", wasted),
    ]
