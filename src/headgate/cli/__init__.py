"""The command line: one file per command, and the entry point of them all."""

import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run a command. Ctrl-C ends it with status 130 and without a word, also while it is being loaded."""
    signal.signal(signal.SIGINT, _end)
    from .app import main as commands  # noqa: PLC0415 - loading takes a while, in which Ctrl-C may come

    commands(prog_name="headgate")


def _end(*_signal: object) -> NoReturn:
    sys.exit(130)
