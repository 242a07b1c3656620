"""The demo's charts, and the demo itself in short."""

import struct
import zlib

import pytest
from click.testing import CliRunner

from headgate.cli.app import main
from headgate.cli.demo.chart import Panel, Picture, Series, draw, plot, short, text_width, thinned, ticks
from headgate.cli.demo.race import ideal_seconds

RED = (200, 0, 0)


def panel(points):
    return Panel("A title", "a note", [Series("one", RED, points)])


def decoded(png):
    """Width, height and rows of a picture."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    assert b"IEND" in chunks
    return width, height, raw


def test_a_picture_is_a_png_with_the_colour_of_its_line():
    _, _, raw = decoded(draw("Title", "note", [panel([(0, 0), (5, 3), (10, 8)])], (2, 4, "trouble")))
    assert bytes(RED) in raw


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(0, 0), (0, 0)], [(0, 1e9), (1e-9, 0)]])
def test_anything_can_be_drawn(points):
    decoded(draw("T", "", [panel(points), panel(points)]))
    assert len(list(plot(panel(points), width=20, height=4))) == 6


def test_a_stroke_is_dark_in_the_middle_and_soft_at_its_edge():
    picture = Picture(20, 9)
    picture.line((2, 4), (17, 4), (0, 0, 0), 3)
    column = [picture._pixels[3 * (20 * y + 10)] for y in range(9)]
    assert column == [255, 255, 255, 0, 0, 0, 255, 255, 255]
    picture.line((2, 4), (17, 6), (0, 0, 0), 1)
    assert len(set(picture._pixels)) > 2


def test_words_have_a_width_and_unknown_letters_a_gap():
    assert text_width("wide", 12) > text_width("wi", 12) > 0
    assert text_width("", 12) == 0
    Picture(50, 20).text(2, 15, "ä\N{SNOWMAN}", size=10)


def test_a_plot_in_a_terminal_rises_from_left_to_right():
    rows = ["".join(text for text, _ in row) for row in plot(panel([(0, 0), (10, 10)]), width=20, height=5)]
    assert len(rows) == 7
    assert rows[0].rstrip()[-1] != "┤"
    assert rows[4].lstrip().startswith("0 ┤")
    first = [min((i for i, c in enumerate(row) if ord(c) > 0x2800), default=99) for row in rows[:5]]
    assert first == sorted(first, reverse=True)


def test_axes_have_round_numbers():
    assert ticks(0) == [0, 1]
    assert ticks(953) == [0, 250, 500, 750, 1000]
    assert short(1234) == "1,234"
    assert short(2.5) == "2.5"
    assert thinned([(0, 0), (1, 1), (2, 2), (3, 3)], 2) == [(0, 0), (2, 2), (3, 3)]


def test_the_ideal_knows_of_the_outage_only_where_it_is_reached():
    assert ideal_seconds(30) == 0
    assert ideal_seconds(60) == pytest.approx(0.5)
    assert ideal_seconds(600) == pytest.approx(19.0)


def test_a_short_demo_ends_with_a_table_and_two_plots(tmp_path):
    plot_to = tmp_path / "demo.png"
    done = CliRunner().invoke(main, ["demo", "--jobs", "30", "--plot", str(plot_to)])
    assert done.exit_code == 0, done.output
    for word in ("trying again", "limiter and retries", "headgate", "30/30", "Requests refused", "× ideal"):
        assert word in done.output
    decoded(plot_to.read_bytes())
