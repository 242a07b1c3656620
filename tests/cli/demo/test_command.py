"""`headgate demo`: a short one, and what keeps it from starting."""

import select
import signal
import sys
import time

import pytest
from click.testing import CliRunner

from cli.commands import headgate, start, told
from headgate.cli.app import main
from headgate.cli.demo.race import WAYS, ideal_seconds
from patience import eventually

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_ideal_time_includes_the_outage_only_if_the_jobs_reach_it():
    assert ideal_seconds(30) == 0
    assert ideal_seconds(60) == pytest.approx(0.5)
    assert ideal_seconds(600) == pytest.approx(19.0)


def test_a_short_demo_ends_with_a_table_and_two_plots(tmp_path):
    plot_to = tmp_path / "demo.png"
    done = CliRunner().invoke(main, ["demo", "--jobs", "30", "--plot", str(plot_to)])
    assert done.exit_code == 0, done.output
    for word in ("30/30", "Requests refused", "× ideal"):
        assert word in done.output
    for way in WAYS:  # in eighty columns
        assert f"{way.name:<19}  {way.does}" in [line.rstrip() for line in done.output.splitlines()]
    assert plot_to.read_bytes().startswith(PNG)


def test_a_picture_without_matplotlib_is_an_error_before_the_demo_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(main, ["demo", "--plot", str(tmp_path / "demo.png")])
    assert done.exit_code == 2
    assert "--plot needs matplotlib" in done.output
    assert 'pip install "headgate[plot]"' in done.output


def test_a_demo_does_not_begin_if_its_picture_cannot_be_written(tmp_path):
    done = headgate("demo", "--plot", tmp_path / "no" / "such.png")
    assert done.returncode == 2
    error, hint = told(done)
    assert "there is no folder" in error
    assert "--plot" in hint


def test_ctrl_c_ends_a_demo(tmp_path):
    run = start("demo", "--plot", tmp_path / "demo.png")
    eventually(lambda: select.select([run.stdout], [], [], 0)[0], "it has begun")
    time.sleep(0.5)  # in the middle of it, when it says nothing
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "Traceback" not in words
