"""`headgate watch`: the processes that share limits in a store, what they hold, and why calls wait.

Looking changes nothing. No colour carries a meaning alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..arguments import US_PER_S
from ..errors import InvalidConfig, InvalidLimit, StoreError
from ..gate.clock import SYSTEM
from ..sharing.pool.view import view_of
from ..sharing.store import open_store, plain_name
from ..words import soon
from .options import Command, CommandError, section
from .system import until_stopped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from rich.console import RenderableType
    from rich.table import Table

    from ..sharing.pool.view import MemberView, PoolView, RateView, Use
    from ..sharing.store import Store

# Seconds between two searches for new keys; and at most one part in _LIST_PART of the time is spent on them.
_LIST_EVERY, _LIST_PART = 1.0, 20

_showing = section("Showing")
_EVERY = click.FloatRange(0.05, 3600)


@click.command(cls=Command, short_help="Who shares limits in a store, and why others wait.")
@click.argument("store")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@_showing("--every", type=_EVERY, default=0.5, metavar="SECONDS", help="How often to look.")
@_showing("--once", is_flag=True, help="Look once, and end.")
@_showing("--json", "as_json", is_flag=True, help="An object a line for each look.")
def watch(store: str, keys: tuple[str, ...], **options: Any) -> None:
    """Show the processes that share limits in STORE, what each holds, and why calls wait; until Ctrl-C.

    \b
    headgate watch sqlite:///limits.db
    headgate watch redis://limits.internal/0 api.openai.com
    headgate watch redis://limits.internal/0 --once --json

    STORE is what programs give as store=, and `headgate run` as --store. For each KEY, or for all keys in it:
    rates, places and bytes, the backoff window, and the processes that share them. Looking changes nothing.

    Exit status: 0, or 2 if the store cannot be read.
    """
    try:
        asyncio.run(until_stopped(show_store(store, keys, sys.stdout, **options)))
    except (InvalidLimit, StoreError) as error:
        hint = "write STORE as the programs do that share by it, e.g. sqlite:///limits.db"
        raise CommandError(str(error).removeprefix("store="), hint) from None


class StoreView(NamedTuple):
    """One look at a store: the pool of each key, None if it has none. `trouble`: why the look failed."""

    store: str
    at: datetime
    pools: dict[str, PoolView | None]
    trouble: str = ""

    def facts(self) -> dict[str, Any]:
        """The same as plain data, for JSON; times in seconds. A store that failed has no pools."""
        pools = {} if self.trouble else self.pools
        return {
            "at": self.at.isoformat(timespec="milliseconds"),
            "store": self.store,
            "error": self.trouble or None,
            "pools": {key: None if pool is None else _facts_of(pool) for key, pool in pools.items()},
        }


async def show_store(
    url: str, keys: Sequence[str], out: TextIO, *, every: float, once: bool = False, as_json: bool = False
) -> None:
    """Show the pools of a store: once, or every `every` seconds until cancelled.

    An error of the first look is raised. Errors of later looks are shown, and the next look tries again.
    """
    if url.partition(":")[0] == "memory":
        raise InvalidConfig("memory: is inside one process, and no other can look into it")
    store = open_store(url, SYSTEM)
    pools = _Pools(store, keys)
    try:
        seen = StoreView(plain_name(url), datetime.now(UTC), await pools.look())
        shown = _Lines(out) if as_json else _Picture(out, live=not once)
        with shown:
            while True:
                shown.show(seen)
                if once:
                    return
                await asyncio.sleep(every)
                try:
                    seen = StoreView(seen.store, datetime.now(UTC), await pools.look())
                except StoreError as error:
                    seen = seen._replace(at=datetime.now(UTC), trouble=str(error))
    finally:
        await store.close()


class _Pools:
    """The pools of the given keys, or of all keys.

    A server may have millions of keys of other programs: the longer a search for pools among them takes, the
    less often it is done.
    """

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self._store = store
        self._wanted = keys
        self._found: Sequence[str] = keys
        self._list_at = SYSTEM.seconds()

    async def look(self) -> dict[str, PoolView | None]:
        began = SYSTEM.seconds()
        if not self._wanted and began >= self._list_at:
            self._found = await self._store.keys()
            took = SYSTEM.seconds() - began
            self._list_at = began + max(_LIST_EVERY, _LIST_PART * took)
        states = {key: await self._store.look(key) for key in self._found}
        return {
            key: None if state is None else view_of(state)
            for key, state in states.items()
            if state is not None or self._wanted
        }


# -- for programs


class _Lines:
    """An object a line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, seen: StoreView) -> None:
        print(json.dumps(seen.facts()), file=self._out, flush=True)


def _facts_of(pool: PoolView) -> dict[str, Any]:
    return {
        "rates": [
            {
                "name": level.rate.name,
                "unit": level.rate.unit,
                "limit": level.rate.amount,
                "per": level.rate.per,
                "burst": level.rate.burst,
                "level": level.level,
                "next": level.next / US_PER_S,
            }
            for level in pool.levels
        ],
        "window": pool.window / US_PER_S,
        "throttled": pool.throttled / US_PER_S,
        "places": _use_facts(pool.places),
        "bytes": _use_facts(pool.bytes),
        "members": [{**member._asdict(), "lease": member.lease / US_PER_S} for member in pool.members],
        "waits": list(pool.waits),
    }


def _use_facts(use: Use) -> dict[str, int | None]:
    return {"held": use.held, "limit": use.limit or None}


# -- for people


class _Picture:
    """A picture that keeps changing on a terminal; elsewhere, one picture after the other."""

    def __init__(self, out: TextIO, *, live: bool) -> None:
        from rich.console import Console  # noqa: PLC0415 - not needed for JSON
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(file=out, highlight=False)
        self._live = None
        if live and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, seen: StoreView) -> None:
        if self._live is None:
            self._console.print(picture_of(seen, self._console.width))
        else:
            size = self._console.size
            self._live.update(picture_of(seen, size.width, size.height), refresh=True)


def picture_of(seen: StoreView, width: int, height: int | None = None) -> RenderableType:
    """All pools, one below the other; no taller than `height` lines."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

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
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if pool is None:
        return [Text.assemble((key, "bold"), ("   no process has shared it yet", "dim"))]
    if not pool.members:
        limits = [_limit(level) for level in pool.levels]
        limits += [f"{pool.places.limit:,} at once"] if pool.places.limit else []
        there = Text.assemble((key, "bold"), ("   no process is here", "dim"), f"   {', '.join(limits)}")
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
        Padding(_bars(pool, max(10, min(40, width - 62))), (0, 0, 0, 2), expand=False),
        Padding(_members(pool.members, pool.bytes, most), (0, 0, 0, 2), expand=False),
    ]


def _bars(pool: PoolView, width: int) -> Table:
    """A bar for each limit: a full one is what calls wait for."""
    from rich.text import Text  # noqa: PLC0415

    from .bars import Bars  # noqa: PLC0415

    bars = Bars(width)

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
        inside = sum(member.in_flight for member in pool.members)
        row("places", inside, places.limit, Text(f"{inside:,} of {places.limit:,} in flight"))
    if load.limit:
        row("bytes", load.held, load.limit, Text(f"{_size(load.held)} of {_size(load.limit)} held"))
    if pool.window:
        words = f"told to slow down: {soon(pool.window / US_PER_S)} left"
        row("window", 1, 1, Text(words, "bold yellow"))
    elif pool.throttled:
        row("window", 0, 1, Text(f"over; tighter rules for {soon(pool.throttled / US_PER_S)}"))
    return bars.table


def _members(members: Sequence[MemberView], load: Use, most: int | None) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=8, no_wrap=True)
    names = ["host", "process", "in flight", "waiting", "holds", *(["bytes"] if load.limit else []), "lease"]
    for _ in names[1:]:
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*names, style="dim")
    shown = members if most is None or len(members) <= most else members[: most - 1]
    for member in shown:
        host, process = who(member.name)
        figures = [f"{member.in_flight:,}", f"{member.waiting:,}", f"{member.places:,}"]
        if load.limit:
            figures.append(_size(member.bytes))
        table.add_row(host, process, *figures, soon(member.lease / US_PER_S))
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


def _size(amount: int) -> str:
    from rich.filesize import decimal  # noqa: PLC0415

    return decimal(amount)
