"""A view of the pools in a shared store: who holds what, and why others wait.

Rules of this room: looking changes nothing. What is shown is what `view_of` says; no colour carries a
meaning alone.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidConfig, StoreError
from ..gate.clock import SYSTEM
from ..sharing.pool.view import soon, view_of
from ..sharing.store import open_store, plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from ..sharing.pool.view import MemberView, PoolView, RateView, Use
    from ..sharing.store import Store

_MICRO = 1_000_000
# How often to look for new keys, in seconds; and no more than one part of the time is spent on it.
_LIST_EVERY, _LIST_PART = 1.0, 20


class Look(NamedTuple):
    """One look at a store: the pool of each key, None if it has none. `trouble` is why there is no more."""

    store: str
    at: datetime
    pools: dict[str, PoolView | None]
    trouble: str = ""


async def watch(
    url: str, keys: Sequence[str], out: TextIO, *, every: float, once: bool = False, as_json: bool = False
) -> None:
    """Show how the pools of a store stand, every so many seconds until cancelled, or once.

    What is wrong with the first look is raised; later on it is shown, and the next look tries again.
    """
    if url.partition(":")[0] == "memory":
        raise InvalidConfig("memory: is inside one process, and nobody else can look into it")
    store = open_store(url, SYSTEM)
    pools = _Pools(store, keys)
    try:
        seen = Look(plain_name(url), datetime.now(UTC), await pools.look())
        if as_json:
            shown: _Lines | _Picture = _Lines(out)
        else:
            shown = _Picture(out, live=not once)
        with shown:
            while True:
                shown.show(seen)
                if once:
                    return
                await asyncio.sleep(every)
                try:
                    seen = Look(seen.store, datetime.now(UTC), await pools.look())
                except StoreError as error:
                    seen = seen._replace(at=datetime.now(UTC), trouble=str(error))
    finally:
        await store.close()


class _Pools:
    """Those of some keys, or of all there are.

    A server may have millions of keys that are not ours: the longer it takes to find ours among them, the
    more seldom is looked for new ones.
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


# -- for machines


class _Lines:
    """An object a line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, seen: Look) -> None:
        print(json.dumps(facts_of(seen)), file=self._out, flush=True)


def facts_of(seen: Look) -> dict[str, Any]:
    """The same as plain data; times in seconds."""
    return {
        "at": seen.at.isoformat(timespec="milliseconds"),
        "store": seen.store,
        "error": seen.trouble or None,
        "pools": {
            key: None if pool is None else _pool_facts(pool)
            for key, pool in seen.pools.items()
            if not seen.trouble  # it is not known any longer
        },
    }


def _pool_facts(pool: PoolView) -> dict[str, Any]:
    return {
        "rates": [
            {
                "name": level.rate.name,
                "unit": level.rate.unit,
                "limit": level.rate.amount,
                "per": level.rate.per,
                "burst": level.rate.burst,
                "level": level.level,
                "next": level.next / _MICRO,
            }
            for level in pool.levels
        ],
        "window": pool.window / _MICRO,
        "throttled": pool.throttled / _MICRO,
        "places": _use_facts(pool.places),
        "bytes": _use_facts(pool.bytes),
        "members": [{**member._asdict(), "lease": member.lease / _MICRO} for member in pool.members],
        "waits": list(pool.waits),
    }


def _use_facts(use: Use) -> dict[str, int | None]:
    return {"held": use.held, "limit": use.limit or None}


# -- for people


class _Picture:
    """On a terminal it keeps changing; elsewhere one follows the other."""

    def __init__(self, out: TextIO, *, live: bool) -> None:
        from rich.console import Console  # noqa: PLC0415 - only who wants pictures needs it
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

    def show(self, seen: Look) -> None:
        if self._live is None:
            self._console.print(picture_of(seen, self._console.width))
        else:
            size = self._console.size
            self._live.update(picture_of(seen, size.width, size.height), refresh=True)


def picture_of(seen: Look, width: int, height: int | None = None) -> RenderableType:
    """All pools, one below the other; no taller than `height` lines."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    clock = f"{seen.at.astimezone():%H:%M:%S}"
    lines: list[RenderableType] = [Text.assemble((seen.store, "bold"), (f"   {clock}", "dim"))]
    if seen.trouble:
        lines.append(Text(f"{seen.trouble}; trying again. This is how it stood before:", "bold red"))
    if not seen.pools:
        lines.append(Text("nothing is shared here yet: no pools", "italic"))
    # Of each busy pool: a blank line, its head, at most six bars, and the heading of its members.
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
        return [Text.assemble((key, "bold"), ("   nobody has shared it yet", "dim"))]
    if not pool.members:
        limits = [_limit(level) for level in pool.levels]
        limits += [f"{pool.places.limit:,} at once"] if pool.places.limit else []
        there = Text.assemble((key, "bold"), ("   nobody is here", "dim"), f"   {', '.join(limits)}")
        if pool.waits:
            there.append(f"   {'; '.join(pool.waits)}", "yellow")
        return [there]
    head = Text.assemble((key, "bold"), "   ")
    if not pool.waits:
        head.append("nobody has to wait", "green")
    elif pool.waiting:
        head.append(f"{pool.waiting:,} {'waits' if pool.waiting == 1 else 'wait'}", "bold yellow")
        head.append(f" for {'; '.join(pool.waits)}", "yellow")
    else:
        head.append(f"nobody waits; whoever comes would for {'; '.join(pool.waits)}")
    return [
        head,
        Padding(_bars(pool, max(10, min(40, width - 62))), (0, 0, 0, 2), expand=False),
        Padding(_members(pool.members, pool.bytes, most), (0, 0, 0, 2), expand=False),
    ]


def _bars(pool: PoolView, width: int) -> Table:
    """A full bar is what others wait for."""
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=8, no_wrap=True)
    table.add_column(width=width)
    table.add_column(no_wrap=True, overflow="ellipsis")

    def row(name: str, used: float, of: float, words: Text) -> None:
        colour = "yellow" if used >= of else "cyan"
        bar = ProgressBar(
            total=of, completed=min(of, used), width=width, complete_style=colour, finished_style=colour
        )
        table.add_row(Text(name, "dim"), bar, words)

    for level in pool.levels:
        left = f"next in {soon(level.next)}" if level.next else f"{level.level:,} could go now"
        used = level.most if level.next else level.most - level.level
        name = level.rate.unit.replace("_", " ")
        row(name, used, level.most, Text.assemble(_limit(level), (f"   {left}", "dim")))
    places, load = pool.places, pool.bytes
    if places.limit:
        inside = sum(member.in_flight for member in pool.members)
        row("places", inside, places.limit, Text(f"{inside:,} of {places.limit:,} under way"))
    if load.limit:
        row("bytes", load.held, load.limit, Text(f"{_size(load.held)} of {_size(load.limit)} held"))
    if pool.window:
        row("window", 1, 1, Text(f"told to slow down: {soon(pool.window)} left", "bold yellow"))
    elif pool.throttled:
        row("window", 0, 1, Text(f"over; tighter rules for {soon(pool.throttled)}"))
    return table


def _members(members: Sequence[MemberView], load: Use, most: int | None) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=8, no_wrap=True)
    names = ["host", "process", "under way", "waiting", "holds", *(["bytes"] if load.limit else []), "lease"]
    for _ in names[1:]:
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*names, style="dim")
    shown = members if most is None or len(members) <= most else members[: most - 1]
    for member in shown:
        host, process = who(member.name)
        figures = [f"{member.in_flight:,}", f"{member.waiting:,}", f"{member.places:,}"]
        if load.limit:
            figures.append(_size(member.bytes))
        table.add_row(host, process, *figures, soon(member.lease))
    if len(shown) < len(members):
        table.add_row(f"and {len(members) - len(shown):,} more", style="dim")
    return table


def who(member: str) -> tuple[str, str]:
    """Host and process, of the name by which a member is known.

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
