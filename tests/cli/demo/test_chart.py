"""The demo's charts, and a short demo."""

import sys

import pytest
from click.testing import CliRunner

from headgate.cli.app import main
from headgate.cli.demo.chart import Panel, Series, Shade, draw, plot, short
from headgate.cli.demo.race import ideal_seconds

PNG = b"\x89PNG\r\n\x1a\n"


def panel(points):
    return Panel("A title", "a note", [Series("one", "#c80000", points)])


def test_a_picture_is_a_png_with_the_colour_of_its_line():
    from matplotlib.image import imread

    png = draw("Title", "note", [panel([(0, 0), (5, 3), (10, 8)])], Shade(2, 4, "trouble"))
    assert png.startswith(PNG)
    from io import BytesIO

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


def test_the_ideal_time_includes_the_outage_only_if_the_jobs_reach_it():
    assert ideal_seconds(30) == 0
    assert ideal_seconds(60) == pytest.approx(0.5)
    assert ideal_seconds(600) == pytest.approx(19.0)


def test_a_short_demo_ends_with_a_table_and_two_plots(tmp_path):
    plot_to = tmp_path / "demo.png"
    done = CliRunner().invoke(main, ["demo", "--jobs", "30", "--plot", str(plot_to)])
    assert done.exit_code == 0, done.output
    for word in ("trying again", "limiter and retries", "headgate", "30/30", "Requests refused", "× ideal"):
        assert word in done.output
    assert plot_to.read_bytes().startswith(PNG)


def test_a_picture_without_matplotlib_is_an_error_before_the_demo_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(main, ["demo", "--plot", str(tmp_path / "demo.png")])
    assert done.exit_code == 2
    assert "--plot needs matplotlib" in done.output
    assert 'pip install "headgate[plot]"' in done.output
