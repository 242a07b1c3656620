"""The race of the demo: four ways to send the same jobs, at the same time, each with an API of its own.

Nothing is made up: the figures are those of the sandbox, which counts what each of the four has sent.
"""

import asyncio
import json
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ...gate.clock import SYSTEM
from ...limits import Rate
from ...responses import parse_retry_after
from ...sandbox.live import Live as LiveApi
from ...sandbox.live import Options
from ...sandbox.server import Sandbox
from ...typing import Clock
from ..run.journal import Journal
from ..run.lines import Lines
from ..run.options import RunOptions, Settings
from ..run.preflight import make_gate
from ..run.progress import Tally
from ..run.runner import Runner
from ..run.target import Target
from ..run.wire import AiohttpWire, RawReply, Wire
from ..run.writer import Writer
from .chart import Panel, Series, Shade, draw, plot

REQUESTS, TOKENS = 3_600, 1_440_000  # the limits of the API, for a minute
PATH = "/v1/chat/completions"
_WORKERS = 64
BURST = 1.5  # seconds' worth of requests and tokens that the API lets through at once
TOKENS_PER_JOB = 800
OUTAGE_AT, OUTAGE = 6.0, 2.0
LONGEST = 45.0  # seconds after which the race ends
API: Options = {
    "requests": f"{REQUESTS}/minute burst {round(REQUESTS / 60 * BURST)}",
    "tokens": f"{TOKENS}/minute burst {round(TOKENS / 60 * BURST)}",
    "first_token": 0.25,
    "spread": 0.35,
}


# -- four ways, each written as it would be outside of a demo


class Way:
    """One way to send jobs, with an API of its own. `seconds` is the time it took, None until it is done.

    All ways have the same connections. Unless a way says otherwise, 64 workers take jobs from the file and
    try each of them ten times.
    """

    name = does = colour = style = ""
    seconds: float | None = None

    def __init__(self, api: LiveApi, *, clock: Clock = SYSTEM, writer: Callable[[], Writer] = Writer) -> None:
        self._random = Random(1).random  # noqa: S311 - the same in every demo
        self._clock = clock
        self._writer = writer
        self.tally = Tally(clock)
        self.api = api

    async def run(self, jobs: Path, target: Target, wire: Wire) -> None:
        self.api.fault("overload", after=OUTAGE_AT, duration=OUTAGE, retry_after=1)
        began = self._clock.seconds()
        try:
            await self._send_all(jobs, target, wire)
            self.seconds = self._clock.seconds() - began
        finally:
            await wire.close()

    async def _send_all(self, jobs: Path, target: Target, wire: Wire) -> None:
        todo = (json.dumps(json.loads(line.content)["body"]).encode() for line in Lines([jobs]))
        await asyncio.gather(*(self._work(todo, target, wire) for _ in range(_WORKERS)))

    async def _work(self, todo: Iterator[bytes], target: Target, wire: Wire) -> None:
        for body in todo:
            for attempt in range(10):
                await self._wait_for_turn()
                self.tally.sent += 1
                reply = await wire.send("POST", target.join(PATH), body)
                if reply.status == 200:
                    self.tally.answered += 1
                    break
                await asyncio.sleep(self._delay(attempt, reply))

    async def _wait_for_turn(self) -> None:
        pass

    def _delay(self, attempt: int, reply: RawReply) -> float:
        raise NotImplementedError


class Naive(Way):
    """Send, and after a failure wait a little longer each time and send again."""

    name, colour, style = "trying again", "#e2583e", "red"
    does = "after a failure each worker waits 0.25, 0.5, 1 … 8 s"

    def _delay(self, attempt: int, reply: RawReply) -> float:  # noqa: ARG002 - it does not look at it
        return min(8.0, 0.25 * 2.0**attempt) * (0.5 + self._random())


class Usual(Way):
    """As most programs do it: a limiter for the requests a minute, and retries that heed Retry-After.

    The limiter is a bucket that holds one second's worth, as a gate of headgate does by default.
    """

    name, colour, style = "limiter and retries", "#dea026", "yellow"
    does = "a limiter for requests; retries heed Retry-After"
    _spacing = 60 / REQUESTS
    _next = 0.0

    async def _wait_for_turn(self) -> None:
        now = self._clock.seconds()
        self._next = max(now - 1.0, self._next) + self._spacing
        await asyncio.sleep(max(0.0, self._next - now))

    def _delay(self, attempt: int, reply: RawReply) -> float:
        wait = parse_retry_after(reply.headers, default=min(8.0, 0.5 * 2.0**attempt))
        return wait * (1 + 0.25 * self._random())


class Careful(Usual):
    """As careful programs do it: the limiter counts tokens too, and so is told what headgate is told."""

    name, colour, style = "two limiters", "#5b8def", "blue"
    does = "limiters for requests and for tokens; the same retries"
    _spacing = max(60 / REQUESTS, 60 * TOKENS_PER_JOB / TOKENS)


class Gated(Way):
    """As `headgate run --rate 3600/minute --rate '1_440_000 tokens/minute'` does it."""

    name, colour, style = "headgate", "#168a80", "cyan"
    does = "as `headgate run`, with --rate for requests and for tokens"

    async def _send_all(self, jobs: Path, target: Target, wire: Wire) -> None:
        rates = (Rate.parse(f"{REQUESTS}/minute"), Rate.parse(f"{TOKENS} tokens/minute"))
        options = RunOptions(jobs=(jobs,), to=target.whole, rates=rates, concurrency=_WORKERS)
        gate, concurrency, _ = make_gate(options, target.host, clock=self._clock)
        journal, source = Journal.open(jobs.with_suffix(".answers.jsonl")), Lines([jobs])
        with closing(gate), closing(journal), closing(source):
            runner = Runner(
                *(source, target, gate, journal, wire),
                settings=Settings(concurrency=concurrency),
                clock=self._clock,
                writer=self._writer,
            )
            self.tally = runner.tally
            await runner.run()


WAYS: list[type[Way]] = [Naive, Usual, Careful, Gated]

# -- the race


async def _race(ways: list[Way], urls: list[str], jobs: Path, count: int, console: Console) -> None:
    began = monotonic()
    tasks = []
    for way, url in zip(ways, urls, strict=True):
        target = Target(url)
        wire = AiohttpWire(target, timeout=60, headers={})
        tasks.append(asyncio.create_task(way.run(jobs, target, wire)))
    lines_at = 0.0
    with Live(console=console, auto_refresh=False) as live:
        while True:
            done, left = await asyncio.wait(tasks, timeout=0.15)
            elapsed = monotonic() - began
            if console.is_terminal:
                live.update(_scene(ways, count, elapsed, console.width), refresh=True)
            elif elapsed >= lines_at or not left:
                lines_at = elapsed + 2.0
                for way in ways:
                    figures = f"{way.tally.answered:>4}/{count}  {way.tally.sent:>5,} requests"
                    console.print(f"{elapsed:5.1f} s  {way.name:<20} {figures}")
            if not left or elapsed > LONGEST:
                break
    for task in left:
        task.cancel()
    for task in done:
        task.result()
    await asyncio.gather(*left, return_exceptions=True)


def _scene(ways: list[Way], count: int, elapsed: float, width: int) -> Group:
    bar = Column(width=max(16, min(40, width - 74)))
    figures = [Column(justify="right", min_width=8) for _ in range(4)]
    table = Table.grid(Column(min_width=20), bar, *figures, padding=(0, 2))
    table.add_row("", "", *(Text(name, "dim") for name in ("answered", "requests", "for each", "seconds")))
    for way in ways:
        tally = way.tally
        seconds = elapsed if way.seconds is None else way.seconds
        each = tally.sent / tally.answered if tally.answered else 0.0
        table.add_row(
            Text(way.name, f"bold {way.style}"),
            ProgressBar(count, tally.answered, complete_style=way.style, finished_style=way.style),
            f"{tally.answered:,}",
            f"{tally.sent:,}",
            Text(f"{each:.2f}", "bold"),
            Text(f"{seconds:.1f}", "bold green" if way.seconds is not None else ""),
        )
    down = OUTAGE_AT <= elapsed < OUTAGE_AT + OUTAGE
    note = "the API is overloaded and refuses everything" if down else " "
    return Group(table, Text(note, "italic yellow"))


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
    apis = [Sandbox("openai", **API) for _ in WAYS]
    ways = [way(api) for way, api in zip(WAYS, apis, strict=True)]
    ideal = ideal_seconds(count)
    console.print(f"[bold]{count} jobs of {TOKENS_PER_JOB} tokens, four ways at the same time.[/]")
    console.print(
        f"Each has {_WORKERS} workers and an API that allows {REQUESTS:,} requests and {TOKENS:,} tokens "
        f"a minute, and is overloaded for {OUTAGE:g} s.\n"
    )
    table = Table.grid(padding=(0, 0, 0, 2))
    for way in ways:
        table.add_row(Text(way.name, way.style), Text(way.does, "dim"))
    console.print(table)
    console.print()
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder, ExitStack() as stack:
        jobs = Path(folder) / "jobs.jsonl"
        write_jobs(jobs, count)
        urls = [stack.enter_context(api).url for api in apis]
        asyncio.run(_race(ways, urls, jobs, count, console))
    console.print(_table(ways, count, ideal))
    panels = _panels(ways)
    for panel in panels[::2]:
        console.print(f"\n[bold]{panel.title}[/], {panel.note}")
        for row in plot(panel, width=max(30, min(70, console.width - 12))):
            console.print(
                Text.assemble(*((text, "dim" if of is None else ways[of].style) for text, of in row))
            )
    if plot_to is not None:
        console.print(f"\n{_write_picture(plot_to, count, panels)}")
    return 0 if ways[-1].tally.answered == count else 1


def _write_picture(path: Path, count: int, panels: list[Panel]) -> str:
    """Write the panels into a file, and say how that went."""
    limits = f"an API that allows {REQUESTS:,} requests and {TOKENS:,} tokens a minute"
    note = f"{count} jobs of {TOKENS_PER_JOB} tokens, through {limits}"
    outage = Shade(OUTAGE_AT, OUTAGE_AT + OUTAGE, "overloaded")
    try:
        path.write_bytes(draw("The same jobs, four ways", note, panels, outage))
    except OSError as error:
        return f"The picture could not be written to {path}: {error.strerror}"
    return f"The same as a picture: [bold]{path}[/]"


def _table(ways: list[Way], count: int, ideal: float) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="dim", caption_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("answered", "requests", "refused", "tokens\nin vain", "seconds", "× ideal"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for way in ways:
        report = way.api.report()
        refused = report.requests - report.admitted
        table.add_row(
            Text(way.name, f"bold {way.style}"),
            f"{way.tally.answered:,}/{count:,}",
            f"{report.requests:,}",
            f"{refused:,}",
            f"{refused * TOKENS_PER_JOB:,}",
            "not done" if way.seconds is None else f"{way.seconds:.1f}",
            f"{way.seconds / ideal:.2f}" if way.seconds is not None and ideal else "",
        )
    table.caption = f"ideal: {ideal:.1f} s, if the API were never idle while it lets calls through"
    table.caption_style = "dim"
    return table


def _each_second(moments: list[float]) -> list[tuple[float, float]]:
    """For every quarter of a second, the number of moments in the second before."""
    last = moments[-1] if moments else 0.0
    times = [quarter / 4 for quarter in range(round(last * 4) + 1)]
    return [(at, float(bisect_right(moments, at) - bisect_right(moments, at - 1))) for at in times]


def _panels(ways: list[Way]) -> list[Panel]:
    answered, sent, refused, wasted = [], [], [], []
    for way in ways:
        report = way.api.report()
        start = report.arrivals[0] if report.arrivals else 0.0
        admitted = [moment - start for moment, _tokens in report.admissions]
        arrived = [moment - start for moment in report.arrivals]
        name, colour = way.name, way.colour
        steps = [(0.0, 0.0), *((at, n + 1.0) for n, at in enumerate(admitted))]
        answered.append(Series(name, colour, steps, way.does))
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
