"""The demo's charts, as a picture and on a terminal."""

from io import BytesIO

import pytest
from matplotlib.image import imread

from headgate.cli.demo.chart import Panel, Series, Shade, draw, plot, short

PNG = b"\x89PNG\r\n\x1a\n"


def panel(points):
    return Panel("A title", "a note", [Series("one", "#c80000", points)])


def test_a_picture_is_a_png_with_the_colour_of_its_line():
    png = draw("Title", "note", [panel([(0, 0), (5, 3), (10, 8)])], Shade(2, 4, "trouble"))
    assert png.startswith(PNG)
    pixels = imread(BytesIO(png))[..., :3].reshape(-1, 3)
    assert (abs(pixels - [200 / 255, 0, 0]) < 0.01).all(axis=1).any()


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(0, 0), (0, 0)], [(0, 1e9), (1e-9, 0)]])
def test_any_points_can_be_drawn(points):
    assert draw("T", "", [panel(points), panel(points), panel(points)]).startswith(PNG)
    assert len(list(plot(panel(points), width=20, height=4))) == 6


def test_a_plot_in_a_terminal_rises_from_left_to_right():
    rows = ["".join(text for text, _ in row) for row in plot(panel([(0, 0), (10, 10)]), width=20, height=5)]
    assert len(rows) == 7
    assert rows[0].rstrip()[-1] != "┤"
    assert rows[4].lstrip().startswith("0 ┤")
    first = [min((i for i, c in enumerate(row) if ord(c) > 0x2800), default=99) for row in rows[:5]]
    assert first == sorted(first, reverse=True)


def test_numbers_beside_an_axis_are_short():
    assert [short(value) for value in (0, 2.5, 1234, 25_000, 3e6)] == ["0", "2.5", "1,234", "25k", "3M"]
