"""The command line: one file per command, and the entry point of them all."""

import signal
import sys
from os import _exit

# Whether this process was started with Ctrl-C ignored, as shells start programs in the background.
INTERRUPT_IGNORED = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

# What the extra `cli` installs.
_EXTRA = ("click", "rich", "httpx2", "aiohttp")


def main() -> None:
    """Run a command. Ctrl-C ends it with status 130 and without a word, also while it is being loaded."""
    signal.signal(signal.SIGINT, _leave)
    try:
        from .app import main as commands  # noqa: PLC0415 - loading takes a while, in which Ctrl-C may come

        commands(prog_name="headgate")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        sys.stderr.write(
            f'headgate: commands need {missing}, which is not installed; write: pip install "headgate[cli]"\n'
        )
        sys.exit(2)
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(*_signal: object) -> None:
    """End the process at once: no command has begun yet, or it has ended."""
    _exit(130)
