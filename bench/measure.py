"""Measuring side by side, and tables that read well in a terminal and in Markdown.

A shared machine changes its speed from second to second, so a time alone says little. All
candidates are therefore measured in every round, forwards and backwards in turn, and compared
with the floor of the same round: what slowed one down slowed the other down too. The median
of those ratios is the figure to quote; the best time of all rounds is what the code can do.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from inspect import isawaitable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence


@dataclass
class Candidate:
    """Something that can be done many times: `batch(n)` does it n times and answers in nanoseconds."""

    name: str
    batch: Callable[[int], int | Awaitable[int]]
    floor: str  # the name of the candidate it is compared with
    target: float | None = None  # as a ratio to the floor
    clean: Callable[[], object] | None = None  # forgets what a batch left behind, outside the time taken
    rounds: list[float] = field(default_factory=list)  # nanoseconds for one, in each round

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def middle(self) -> float:
        return median(self.rounds)

    def ratio_to(self, other: Candidate) -> float:
        return median(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True))


async def interleave(candidates: Sequence[Candidate], *, rounds: int, times: int) -> None:
    """Fill in the rounds of every candidate."""
    await _one_round(candidates, times // 10)  # caches and adaptive bytecode warm up unrecorded
    for candidate in candidates:
        candidate.rounds.clear()
    for turn in range(rounds):
        await _one_round(candidates if turn % 2 == 0 else candidates[::-1], times)


async def _one_round(candidates: Sequence[Candidate], times: int) -> None:
    for candidate in candidates:
        # As timeit does: which candidate's allocation starts a collection is a matter of luck.
        gc.collect()
        gc.disable()
        try:
            took = candidate.batch(times)
            candidate.rounds.append((await took if isawaitable(took) else took) / times)
        finally:
            gc.enable()
        if candidate.clean is not None:
            left = candidate.clean()
            if isawaitable(left):
                await left


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: the first column to the left, figures to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join([first, *others])} |"

    print()
    print(line(columns))
    print(f"| {'-' * widths[0]} | {' | '.join('-' * (width - 1) + ':' for width in widths[1:])} |")
    for cells in texts:
        print(line(cells))
    print(flush=True)


def against(value: float, limit: float, *, at_most: bool = True) -> str:
    """A target beside what was reached. It is reported, never enforced: machines differ."""
    reached = value <= limit if at_most else value >= limit
    return f"{'≤' if at_most else '≥'} {limit:g} {'met' if reached else 'MISSED'}"


def number(value: float) -> str:
    """A figure with as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
