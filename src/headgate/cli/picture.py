"""Pictures on a terminal: how a run stands, and the pools of a store. No colour carries a meaning alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ..arguments import US_PER_S
from ..sharing.pool.view import MemberView, PoolView, RateView, Use, why_fewer
from ..words import duration, soon
from .run.progress import Progress, RunView, percent
from .watch import StoreView

_GAP = 2  # spaces between two columns
_SHORTEST_BAR = 4


class Screen:
    """Shows a picture that keeps changing if `live`; otherwise one picture after the other."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._live = None
        if live:
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()

    def show(self, draw: Callable[[int, int | None], RenderableType]) -> None:
        """Show `draw(width, height)`; the height is None if the picture may have any."""
        if self._live is None:
            self._console.print(draw(self._console.width, None))
        else:
            size = self._console.size
            self._live.update(draw(size.width, size.height), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class _Row(NamedTuple):
    name: Text
    part: float
    words: Text
    colour: str


class Bars:
    """Bars one below the other, each with a name and words, in a picture of that `width`.

    The bars are `longest` characters long, and shorter where the words need the room.
    """

    def __init__(self, width: int, longest: int) -> None:
        self._width = width
        self._longest = longest
        self._rows: list[_Row] = []

    def add(self, name: Text, part: float, words: Text, colour: str) -> None:
        """A bar that is full when `part` is 1 or more."""
        self._rows.append(_Row(name, part, words, colour))

    @property
    def table(self) -> Table:
        names = max((8, *(row.name.cell_len for row in self._rows)))
        words = max((0, *(row.words.cell_len for row in self._rows)))
        length = min(self._longest, self._width - names - words - 2 * _GAP)
        columns = [Column(width=names, no_wrap=True), Column(no_wrap=True, overflow="ellipsis")]
        if length >= _SHORTEST_BAR:
            columns.insert(1, Column(width=length))
        table = Table.grid(*columns, padding=(0, _GAP))
        for name, part, text, colour in self._rows:
            bar = ProgressBar(
                total=1, completed=min(1.0, part), width=length, complete_style=colour, finished_style=colour
            )
            table.add_row(name, *([bar] if length >= _SHORTEST_BAR else []), text)
        return table


# -- a run


class RunPicture(Progress):
    """A few lines that keep changing, and messages above them."""

    def __init__(self, out: TextIO, title: str) -> None:
        super().__init__(out)
        self._console = Console(file=out)
        self._title = title
        self._screen = Screen(self._console, live=True)

    def tell(self, text: str) -> None:
        self._console.print(text, style="yellow", highlight=False, markup=False)

    def show(self, view: RunView) -> None:
        self._screen.show(lambda width, _height: run_picture(view, self._title, width))

    def end(self, view: RunView, ending: Mapping[str, Any]) -> None:  # noqa: ARG002 - told in words afterwards
        self.show(view.at_the_end())
        self._screen.close()


def run_picture(view: RunView, title: str, width: int) -> RenderableType:
    """How a run stands, in a few lines."""
    tally = view.tally
    time = f"   {duration(tally.seconds)}"
    shown = Text(title, "bold")
    shown.truncate(max(1, width - len(time)), overflow="ellipsis")
    head = Text.assemble(shown, (time, "dim"), no_wrap=True)
    bars = Bars(width, max(16, min(width - 52, 48)))
    done = Text(f"{tally.done:,}", "bold")
    if tally.total is not None:
        left = "" if view.left is None else f"   {duration(max(1, view.left))} left"
        done = Text.assemble(
            (f"{tally.done:,} of {tally.total:,}", "bold"), f"   {percent(view.share or 0)}{left}"
        )
    bars.add(Text("jobs", "bold"), view.share or 0, done, "green")
    for use in view.uses:
        part = use.now / use.limit if use.limit else 0.0
        words = Text.assemble(
            f"{use.now:,.0f} of {use.limit:,}", (f" a {use.period}   {percent(part)}", "dim")
        )
        bars.add(Text(use.unit.replace("_", " "), "dim"), part, words, "cyan")
    figures, used = Text(), 0
    for name, value, style in (
        ("in flight", f"{view.in_flight}", ""),
        ("answers/s", f"{view.speed:.1f}", ""),
        ("tokens/min", "" if view.counts_tokens else f"{view.tokens_per_minute:,.0f}", ""),
        ("429s", f"{tally.refused}", "bold yellow" if tally.refused else ""),
        ("failed", f"{tally.failed}", "bold red" if tally.failed else ""),
        ("kept", f"{tally.kept:,}" if tally.kept else "", ""),
        ("cost", "" if view.cost is None else f"{view.cost:,.4f}", ""),
    ):
        if value:
            length = len(name) + len(value) + 1
            if used and used + 3 + length > width:  # a name and its figure stay together
                figures.append("\n")
                used = 0
            figures.append("   " if used else "").append(f"{name} ", "dim").append(value, style)
            used += length + (3 if used else 0)
    waits = Text(_in_one_line(view.waits, width) or " ", style="italic dim", no_wrap=True)
    return Group(head, bars.table, figures, waits)


def _in_one_line(text: str, width: int) -> str:
    """The text, or as many whole words of it as fit."""
    if len(text) <= width:
        return text
    return text[: width - 1].rpartition(" ")[0] + " …"


# -- a store


class StoreScreen(Screen):
    """A screen for the pools of a store, live only on a terminal."""

    def __init__(self, out: TextIO, *, live: bool) -> None:
        console = Console(file=out, highlight=False)
        super().__init__(console, live=live and console.is_terminal)


def store_picture(seen: StoreView, width: int, height: int | None = None) -> RenderableType:
    """All pools, one below the other; no taller than `height` lines."""
    clock = f"{seen.at.astimezone():%H:%M:%S}"
    lines: list[RenderableType] = [Text.assemble((seen.store, "bold"), (f"   {clock}", "dim"))]
    if seen.trouble:
        lines.append(Text(f"{seen.trouble}; trying again. This is how it stood before:", "bold red"))
    if not seen.pools:
        lines.append(Text("nothing is shared here yet: no pools", "italic"))
    # A busy pool takes a blank line, its head, at most six bars, and the heading of its members.
    busy = sum(pool is not None and bool(pool.members) for pool in seen.pools.values())
    lines_left = None if height is None else height - 4 - 9 * busy - 2 * (len(seen.pools) - busy)
    most = None if lines_left is None else max(2, lines_left // max(1, busy))
    for key, pool in seen.pools.items():
        lines += [Text(), *_pool(key, pool, width, most)]
    lines.append(Text())
    return Group(*lines)


def _pool(key: str, pool: PoolView | None, width: int, most: int | None) -> list[RenderableType]:
    if pool is None:
        return [Text.assemble((key, "bold"), ("   no process has shared it yet", "dim"))]
    if not pool.members:
        limits = [_limit(level) for level in pool.levels]
        limits += [f"{pool.places.limit:,} at once{why_fewer(pool)}"] if pool.places.limit else []
        there = Text.assemble((key, "bold"), ("   no process uses it now", "dim"), f"   {', '.join(limits)}")
        if pool.waits:
            there.append(f"   {'; '.join(pool.waits)}", "yellow")
        return [there]
    head = Text.assemble((key, "bold"), "   ")
    if not pool.waits:
        head.append("no call has to wait", "green")
    elif pool.waiting:
        head.append(f"{pool.waiting:,} {'waits' if pool.waiting == 1 else 'wait'}", "bold yellow")
        head.append(f" for {'; '.join(pool.waits)}", "yellow")
    else:
        head.append(f"no call waits; the next would for {'; '.join(pool.waits)}")
    return [
        head,
        Padding(_bars(pool, width - 2), (0, 0, 0, 2), expand=False),
        Padding(_members(pool.members, pool.bytes, most), (0, 0, 0, 2), expand=False),
    ]


def _bars(pool: PoolView, width: int) -> Table:
    """A bar for each limit: a full one is what calls wait for."""
    bars = Bars(width, max(10, min(40, width - 60)))

    def row(name: str, used: float, of: float, words: Text) -> None:
        bars.add(Text(name, "dim"), used / of if of else 1.0, words, "yellow" if used >= of else "cyan")

    for level in pool.levels:
        next_in = level.next / US_PER_S
        left = f"next in {soon(next_in)}" if next_in else f"{level.level:,} could go now"
        used = level.most if next_in else level.most - level.level
        name = level.rate.unit.replace("_", " ")
        row(name, used, level.most, Text.assemble(_limit(level), (f"   {left}", "dim")))
    places, load = pool.places, pool.bytes
    if places.limit:
        inside = pool.in_flight
        held = f", {places.held:,} held" if places.held > inside else ""
        full = any(reason.startswith("concurrency") for reason in pool.waits)
        words = Text(f"{inside:,} of {places.limit:,} in flight{held}")
        row("places", places.limit if full else inside, places.limit, words)
    if load.limit:
        row("bytes", load.held, load.limit, Text(f"{decimal(load.held)} of {decimal(load.limit)} held"))
    if pool.window:
        then = f"; {pool.usual_again}" if pool.usual_again else ""
        told = f"told to slow down: {soon(pool.window / US_PER_S)} left{then}"
        row("window", 1, 1, Text(told, "bold yellow"))
    elif pool.throttled:
        left = f"throttled for another {soon(pool.throttled / US_PER_S)}"
        then = f"throttled: {pool.usual_again}" if pool.usual_again else left
        row("window", 0, 1, Text(f"over; {then}"))
    return bars.table


def _members(members: Sequence[MemberView], load: Use, most: int | None) -> Table:
    names = ["host", "process", "in flight", "waiting", "holds", *(["bytes"] if load.limit else []), "lease"]
    figures = [Column(justify="right", no_wrap=True) for _ in names[1:]]
    table = Table.grid(Column(min_width=8, no_wrap=True), *figures, padding=(0, 2))
    table.add_row(*names, style="dim")
    shown = members if most is None or len(members) <= most else members[: most - 1]
    for member in shown:
        host, process = who(member.name)
        row = [f"{member.in_flight:,}", f"{member.waiting:,}", f"{member.places:,}"]
        if load.limit:
            row.append(decimal(member.bytes))
        table.add_row(host, process, *row, soon(member.lease / US_PER_S))
    if len(shown) < len(members):
        table.add_row(f"and {len(members) - len(shown):,} more", style="dim")
    return table


def who(member: str) -> tuple[str, str]:
    """The host and the process in the name of a member.

    >>> who("batch-7.internal-4711-9f86d081884c")
    ('batch-7.internal', '4711')
    """
    host, _, process = member.rpartition("-")[0].rpartition("-")
    return (host, process) if host else (member, "")


def _limit(level: RateView) -> str:
    period = level.rate.name.partition("/")[2]
    each = f"{'an' if period == 'hour' else 'a'} {period}" if period.isalpha() else f"every {period}"
    unit = "" if level.rate.unit == "requests" else f" {level.rate.unit.replace('_', ' ')}"
    return f"{level.rate.amount:,}{unit} {each}"
