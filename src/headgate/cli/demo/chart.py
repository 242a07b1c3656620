"""Line charts, as a picture and in a terminal, with the standard library alone.

Rules of this room: pure. Points in, bytes or text out. The picture has an alphabet of its own, drawn in
strokes.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from math import ceil, floor, hypot, log10
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Colour = tuple[int, int, int]
    Point = tuple[float, float]

INK: Colour = (38, 44, 56)
FAINT: Colour = (128, 136, 150)
GRID: Colour = (229, 232, 238)
SHADE: Colour = (244, 240, 228)
PAPER: Colour = (255, 255, 255)
_WIDE, _HIGH = 480, 296  # of a panel


class Series(NamedTuple):
    """A line of a chart: points by time."""

    name: str
    colour: Colour
    points: Sequence[Point]

    def at(self, time: float) -> float:
        """Its value at a time: that of the last point before."""
        value = 0.0
        for when, what in self.points:
            if when > time:
                break
            value = what
        return value


class Panel(NamedTuple):
    title: str
    note: str
    series: Sequence[Series]


# -- the picture

# Strokes on a grid: x from 0 to 4 and y from 0 (top) through 6 (the line) to 8, two digits a corner.
_GLYPHS = {
    "A": "06 20 46/14 34", "B": "00 06 36 45 44 33 03/33 42 41 30 00", "C": "41 30 10 01 05 16 36 45",
    "D": "00 06 26 44 42 20 00", "E": "40 00 06 46/03 33", "F": "40 00 06/03 33",
    "G": "41 30 10 01 05 16 36 45 43 23", "H": "00 06/40 46/03 43", "I": "00 06", "J": "30 35 26 16 05",
    "K": "00 06/40 03 46", "L": "00 06 36", "M": "06 00 23 40 46", "N": "06 00 46 40",
    "O": "10 30 41 45 36 16 05 01 10", "P": "06 00 30 41 42 33 03", "Q": "10 30 41 45 36 16 05 01 10/24 46",
    "R": "06 00 30 41 42 33 03/23 46", "S": "41 30 10 01 02 13 33 44 45 36 16 05", "T": "00 40/20 26",
    "U": "00 05 16 36 45 40", "V": "00 26 40", "W": "00 16 22 36 40", "X": "00 46/40 06",
    "Y": "00 23 40/23 26", "Z": "00 40 06 46", "a": "12 22 33 36/33 24 14 05 16 26 35",
    "b": "00 06/03 12 22 33 35 26 16 05", "c": "33 22 12 03 05 16 26 35",
    "d": "30 36/33 22 12 03 05 16 26 35", "e": "04 34 33 22 12 03 05 16 26 35", "f": "30 20 11 16/02 22",
    "g": "32 37 28 18 07/33 22 12 03 05 16 26 35", "h": "00 06/03 12 22 33 36", "i": "02 06/00 00",
    "j": "12 17 08/10 10", "k": "00 06/32 04 36", "l": "00 05 16", "m": "02 06/03 12 23 26/23 32 43 46",
    "n": "02 06/03 12 22 33 36", "o": "12 22 33 35 26 16 05 03 12", "p": "02 08/03 12 22 33 35 26 16 05",
    "q": "32 38/33 22 12 03 05 16 26 35", "r": "02 06/03 12 22", "s": "32 12 03 14 24 35 26 06",
    "t": "10 15 26/02 22", "u": "02 05 16 26 35/32 36", "v": "02 16 32", "w": "02 16 23 36 42",
    "x": "02 36/32 06", "y": "02 16/32 08", "z": "02 32 06 36", "0": "10 20 31 35 26 16 05 01 10",
    "1": "01 10 16", "2": "01 10 20 31 32 06 36", "3": "01 10 20 31 32 23 13/23 34 35 26 16 05",
    "4": "26 20 04 34", "5": "30 00 03 12 22 33 35 26 16 05", "6": "31 20 10 01 05 16 26 35 34 23 13 04",
    "7": "00 30 16", "8": "13 02 01 10 20 31 32 23 13 04 05 16 26 35 34 23",
    "9": "05 16 26 35 31 20 10 01 02 13 23 32", ".": "06 06", ",": "06 07", ":": "03 03/06 06",
    "/": "06 30", "%": "06 30/00 00/36 36", "-": "03 23", "+": "03 23/12 14", "(": "10 02 04 16",
    ")": "00 12 14 06", "'": "00 01", "=": "02 32/04 34", "×": "03 25/23 05", ";": "03 03/06 07",
    "…": "06 06/26 26/46 46",
}  # fmt: skip


class Picture:
    """Pixels, and strokes on them with soft edges."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._pixels = bytearray(PAPER * (width * height))

    def blend(self, x: int, y: int, colour: Colour, cover: float) -> None:
        if cover <= 0 or not (0 <= x < self.width and 0 <= y < self.height):
            return
        cover = min(cover, 1.0)
        at = 3 * (y * self.width + x)
        for index in range(3):
            below = self._pixels[at + index]
            self._pixels[at + index] = round(below + (colour[index] - below) * cover)

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        for y in range(round(y0), round(y1)):
            for x in range(round(x0), round(x1)):
                self.blend(x, y, colour, 1.0)

    def line(self, one: Point, other: Point, colour: Colour, width: float = 1.0) -> None:
        self.path([one, other], colour, width)

    def path(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """A stroke through points, with round ends. It is drawn as one, so that corners are not darker."""
        covers: dict[tuple[int, int], float] = {}
        reach = width / 2 + 1
        for (x0, y0), (x1, y1) in pairwise(points):
            dx, dy = x1 - x0, y1 - y0
            length = dx * dx + dy * dy
            for y in range(floor(min(y0, y1) - reach), ceil(max(y0, y1) + reach) + 1):
                for x in range(floor(min(x0, x1) - reach), ceil(max(x0, x1) + reach) + 1):
                    part = (
                        0.0 if length == 0 else max(0.0, min(1.0, ((x - x0) * dx + (y - y0) * dy) / length))
                    )
                    cover = width / 2 + 0.5 - hypot(x - x0 - part * dx, y - y0 - part * dy)
                    if cover > covers.get((x, y), 0.0):
                        covers[x, y] = cover
        for (x, y), cover in covers.items():
            self.blend(x, y, colour, cover)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: Colour = INK,
        size: float = 11,
        *,
        bold: bool = False,
        align: float = 0,
    ) -> None:
        """Words that stand on the line *y*. `align` is the part of them left of *x*."""
        unit = size / 6
        x -= align * text_width(words, size)
        weight = size / (5.6 if bold else 8.2)
        for letter in words:
            for stroke in _strokes(letter):
                self.path([(x + px * unit, y + (py - 6) * unit) for px, py in stroke], colour, weight)
            x += _advance(letter) * unit

    def png(self) -> bytes:
        """As a file."""
        row = 3 * self.width
        lines = b"".join(
            b"\0" + bytes(self._pixels[at : at + row]) for at in range(0, len(self._pixels), row)
        )

        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        return (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", head)
            + chunk(b"IDAT", zlib.compress(lines, 9))
            + chunk(b"IEND", b"")
        )


def _strokes(letter: str) -> list[list[Point]]:
    shape = _GLYPHS.get(letter)
    if shape is None:
        return []
    return [[(int(corner[0]), int(corner[1])) for corner in stroke.split()] for stroke in shape.split("/")]


def _advance(letter: str) -> float:
    strokes = _strokes(letter)
    return max((x for stroke in strokes for x, _ in stroke), default=1.0) + 1.9


def text_width(words: str, size: float) -> float:
    return (sum(map(_advance, words)) - 1.9) * size / 6 if words else 0.0


def draw(
    title: str, note: str, panels: Sequence[Panel], shade: tuple[float, float, str] | None = None
) -> bytes:
    """The panels, two in a row, as a PNG. `shade` marks a time in all of them: from, to, and its name."""
    rows = -(-len(panels) // 2)
    picture = Picture(2 * _WIDE + 40, rows * _HIGH + 136)
    picture.text(32, 46, title, size=17, bold=True)
    picture.text(32, 72, note, FAINT, 11)
    x = 32.0
    for series in panels[0].series:
        picture.line((x, 99), (x + 20, 99), series.colour, 3.5)
        picture.text(x + 30, 103, series.name, size=11)
        x += 58 + text_width(series.name, 11)
    if shade is not None:
        picture.box(x, 93, x + 20, 105, SHADE)
        picture.text(x + 30, 103, shade[2], size=11)
    times = (point[0] for panel in panels for series in panel.series for point in series.points)
    last = max(times, default=1.0) or 1.0
    for number, panel in enumerate(panels):
        _panel(picture, panel, 30 + _WIDE * (number % 2), 136 + _HIGH * (number // 2), last, shade)
    return picture.png()


def _panel(
    picture: Picture, panel: Panel, left: int, top: int, last: float, shade: tuple[float, float, str] | None
) -> None:
    x0, x1, y0, y1 = left + 56, left + _WIDE - 34, top + 46, top + _HIGH - 46
    picture.text(left + 2, top + 12, panel.title, size=13, bold=True)
    picture.text(left + 2, top + 30, panel.note, FAINT, 9.5)
    most = max((value for series in panel.series for _, value in series.points), default=0.0)
    marks = ticks(most)
    highest = max(marks[-1], most)

    def place(time: float, value: float) -> Point:
        return x0 + (x1 - x0) * time / last, y1 - (y1 - y0) * value / highest

    if shade is not None and shade[0] < last:
        picture.box(place(shade[0], 0)[0], y0, place(min(last, shade[1]), 0)[0], y1, SHADE)
    for mark in marks:
        y = round(place(0, mark)[1])
        picture.line((x0, y), (x1, y), GRID if mark else FAINT, 1.0)
        picture.text(x0 - 9, y + 4, short(mark), FAINT, 9.5, align=1)
    for mark in ticks(last):
        if mark <= last:
            x = round(place(mark, 0)[0])
            picture.line((x, y1), (x, y1 + 4), FAINT, 1.0)
            picture.text(x, y1 + 19, f"{mark:g} s", FAINT, 9.5, align=0.5)
    for series in panel.series:
        if series.points:
            points = [place(*point) for point in thinned(series.points, last / (x1 - x0) * 1.5)]
            picture.path(points, series.colour, 2.4)
            picture.path([points[-1], points[-1]], series.colour, 7.5)


def thinned(points: Sequence[Point], gap: float) -> list[Point]:
    """The same line with points no nearer than *gap*; the first and the last stay."""
    kept = [points[0]]
    for point in points[1:-1]:
        if point[0] - kept[-1][0] >= gap:
            kept.append(point)
    if len(points) > 1:
        kept.append(points[-1])
    return kept


def ticks(most: float, count: int = 4) -> list[float]:
    """Round numbers from zero to about *most*.

    >>> ticks(23)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    """
    if most <= 0:
        return [0.0, 1.0]
    rough = most / count
    scale = 10.0 ** floor(log10(rough))
    step = next(step * scale for step in (1, 2, 2.5, 5, 10) if step * scale >= rough * 0.85)
    return [step * number for number in range(ceil(most / step - 1e-9) + 1)]


def short(value: float) -> str:
    """A number that fits beside an axis.

    >>> short(0), short(1500), short(250_000), short(3_000_000)
    ('0', '1,500', '250k', '3M')
    """
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 10_000 else f"{value:,.0f}" if value >= 10 else f"{value:g}"


# -- in a terminal

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(panel: Panel, width: int = 64, height: int = 10) -> Iterable[list[tuple[str, int | None]]]:
    """Rows of (text, number of the series or None), the lines drawn in dots of Braille."""
    last = max((point[0] for series in panel.series for point in series.points), default=1.0) or 1.0
    most = max((value for series in panel.series for _, value in series.points), default=0.0) or 1.0
    cells: dict[tuple[int, int], tuple[int, int]] = {}  # dots, and whose came first
    for number, series in enumerate(panel.series):
        end = series.points[-1][0] if series.points else 0.0
        before: int | None = None
        for column in range(2 * width):
            time = last * column / (2 * width - 1)
            if time > end + last / width:
                break
            level = 4 * height - 1 - round((4 * height - 1) * series.at(time) / most)
            for row in range(
                min(level, level if before is None else before),
                max(level, level if before is None else before) + 1,
            ):
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
