"""Line charts: as a picture, by matplotlib, and in dots of Braille on a terminal."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from math import ceil
from typing import Any, NamedTuple

Point = tuple[float, float]

_INK, _FAINT, _GRID, _SHADE = "#262c38", "#808896", "#e5e8ee", "#f4ead2"


class Series(NamedTuple):
    """A line of a chart: its colour as `#rrggbb`, its points by time, and a few words for the legend."""

    name: str
    colour: str
    points: Sequence[Point]
    does: str = ""

    def at(self, time: float) -> float:
        """The value of the last point before a time."""
        index = bisect_right(self.points, time, key=lambda point: point[0])
        return self.points[index - 1][1] if index else 0.0


class Panel(NamedTuple):
    """One chart: lines over the same time."""

    title: str
    note: str
    series: Sequence[Series]

    @property
    def last(self) -> float:
        """The end of the time."""
        return max((point[0] for series in self.series for point in series.points), default=0.0) or 1.0

    @property
    def most(self) -> float:
        """The highest value."""
        return max((value for series in self.series for _, value in series.points), default=0.0) or 1.0


class Shade(NamedTuple):
    """A time that is marked in every panel."""

    begin: float
    end: float
    name: str


def draw(title: str, note: str, panels: Sequence[Panel], shade: Shade | None = None) -> bytes:
    """The panels, two in a row, as a PNG. Needs matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, which only pictures need
    from matplotlib.patches import Patch  # noqa: PLC0415

    rows = ceil(len(panels) / 2)
    lines = panels[0].series
    labels = [f"{line.name}: {line.does}" if line.does else line.name for line in lines]
    entries = len(lines) + (shade is not None)
    columns = 1 if any(line.does for line in lines) else entries
    legend = 0.2 * ceil(entries / columns)
    height = 1.3 + legend + 2.7 * rows
    figure = Figure(figsize=(10, height), dpi=130, facecolor="white")
    top = 1 - (1.55 + legend) / height
    figure.subplots_adjust(left=0.075, right=0.965, top=top, bottom=0.4 / height, wspace=0.22, hspace=0.48)
    figure.text(0.03, 1 - 0.42 / height, title, size=16, weight="bold", color=_INK)
    figure.text(0.03, 1 - 0.68 / height, note, size=9.5, color=_FAINT)
    last = max(panel.last for panel in panels)
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for panel, axis in zip(panels, axes, strict=False):
        _draw_panel(axis, panel, last, shade)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles = figure.axes[0].get_legend_handles_labels()[0]
    if shade is not None:
        handles, labels = [*handles, Patch(color=_SHADE)], [*labels, shade.name]
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.022, 1 - 0.74 / height),
        ncols=columns,
        frameon=False,
        fontsize=9.5,
        labelcolor=_INK,
    )
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_panel(axis: Any, panel: Panel, last: float, shade: Shade | None) -> None:
    axis.set_title(panel.title, loc="left", size=11.5, weight="bold", color=_INK, pad=20)
    axis.text(0, 1.04, panel.note, transform=axis.transAxes, size=8.5, color=_FAINT)
    if shade is not None:
        axis.axvspan(shade.begin, min(last, shade.end), color=_SHADE, linewidth=0)
    for series in panel.series:
        times, values = zip(*series.points, strict=True) if series.points else ((), ())
        axis.plot(times, values, color=series.colour, label=series.name, linewidth=1.8)
        axis.plot(
            times[-1:], values[-1:], color=series.colour, marker="o", markersize=5, clip_on=False, zorder=3
        )
    axis.set_xlim(0, last * 1.02)
    axis.set_ylim(0, panel.most * 1.05)
    axis.xaxis.set_major_formatter(lambda value, _position: f"{value:g} s")
    axis.yaxis.set_major_formatter(lambda value, _position: short(value))
    axis.locator_params(axis="y", nbins=5)
    axis.grid(axis="y", color=_GRID)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_FAINT, labelsize=8.5, length=0)
    axis.spines[["top", "left", "right"]].set_visible(False)
    axis.spines["bottom"].set_color(_FAINT)


def short(value: float) -> str:
    """A number that fits beside an axis.

    >>> short(0), short(1500), short(250_000), short(3_000_000)
    ('0', '1,500', '250k', '3M')
    """
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 10_000 else f"{value:,.0f}" if value >= 10 else f"{value:g}"


# -- on a terminal

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(panel: Panel, width: int = 64, height: int = 10) -> Iterator[list[tuple[str, int | None]]]:
    """Rows of (text, number of the series or None), with the lines in dots of Braille."""
    last, most = panel.last, panel.most
    cells: dict[tuple[int, int], tuple[int, int]] = {}  # the dots, and the first series that has some there
    for number, series in enumerate(panel.series):
        end = series.points[-1][0] if series.points else 0.0
        before: int | None = None
        for column in range(2 * width):
            time = last * column / (2 * width - 1)
            if time > end + last / width:
                break
            level = 4 * height - 1 - round((4 * height - 1) * series.at(time) / most)
            low, high = sorted((level, level if before is None else before))
            for row in range(low, high + 1):
                at = (column // 2, row // 4)
                dots, owner = cells.get(at, (0, number))
                cells[at] = (dots | _DOTS[row % 4][column % 2], owner)
            before = level
    for row in range(height):
        label = short(most) if row == 0 else "0" if row == height - 1 else ""
        spans: list[tuple[str, int | None]] = [(f"{label:>7} ┤", None)]
        for column in range(width):
            dots, owner = cells.get((column, row), (0, -1))
            spans.append((chr(0x2800 + dots), owner) if dots else (" ", None))
        yield spans
    yield [(" " * 8 + "└" + "─" * width, None)]
    yield [(" " * 9 + f"0 s{f'{last:.0f} s':>{width - 3}}", None)]
