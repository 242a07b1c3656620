"""A table of bars for a terminal: a name, how full it is, and words."""

from __future__ import annotations

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


class Bars:
    """Rows of bars, each `width` characters long; `table` is what rich shows."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.table = Table.grid(padding=(0, 2))
        self.table.add_column(min_width=8, no_wrap=True)
        self.table.add_column(width=width)
        self.table.add_column(no_wrap=True, overflow="ellipsis")

    def add(self, name: Text, part: float, words: Text, colour: str) -> None:
        """A row whose bar is full when `part` is 1 or more."""
        bar = ProgressBar(
            total=1, completed=min(1.0, part), width=self._width, complete_style=colour, finished_style=colour
        )
        self.table.add_row(name, bar, words)
