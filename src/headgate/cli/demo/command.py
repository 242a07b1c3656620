"""`headgate demo`: its options, and what they need."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from ..options import Command, CommandError, section

_what = section("What")
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=Command, short_help="The same jobs four ways, and a picture of how it went.")
@_what("--jobs N", "How many.", click.IntRange(30, 100_000), default=600)
@_what("--plot FILE", "Where a picture goes, a PNG. Needs matplotlib.  [default: none]", _FILE)
def demo(jobs: int, plot: Path | None) -> None:
    """Send the same jobs four ways, side by side, through the same limited API on this machine.

    By trying again; with a limiter for requests, and with one for tokens too, as they are usually set up; and
    by headgate. Takes less than a minute and no network. Ends with a table and two plots, and a picture if
    FILE is given.
    """
    from .race import show  # noqa: PLC0415 - loads what --help can do without

    # Better now than in half a minute:
    if plot is not None and find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib", 'pip install "headgate[plot]"')
    if plot is not None and not os.access(plot if plot.exists() else plot.parent, os.W_OK):
        why = "it may not be written" if plot.parent.is_dir() else f"there is no folder {plot.parent}"
        raise CommandError(f"the picture cannot be {plot}: {why}", "name another file with --plot")
    sys.exit(show(jobs, plot))
