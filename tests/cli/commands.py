"""Running commands in this process, in one of their own, and on a terminal."""

import os
import pty
import select
import subprocess
import sys
from typing import NamedTuple

from click.testing import CliRunner

from headgate.cli.app import main

KEYLESS = {name: text for name, text in os.environ.items() if not name.endswith("_API_KEY")}
BODY = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def headgate(*args, env=None):
    """Run a command in this process."""
    without_keys = {name: None for name in os.environ if name not in KEYLESS}
    result = CliRunner().invoke(
        main, [*map(str, args)], prog_name="headgate", env={**without_keys, **(env or {})}
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def headgate_alone(*args, stdin=None):
    """Run a command in a process of its own, with real pipes."""
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, env=KEYLESS, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def told(done):
    """The one error of a command that failed, and its hint."""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    error, _, hint = done.stderr[done.stderr.index("error: ") :].partition("hint: ")
    return error.strip(), hint.strip()


def start(*args, stderr=subprocess.PIPE):
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    return subprocess.Popen(command, stderr=stderr, stdout=subprocess.PIPE, text=True, env=KEYLESS)


def on_a_terminal(*args, env=None):
    """What a terminal would have been sent."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    environment = {**KEYLESS, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **(env or {})}
    run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    return run.wait(timeout=10), shown.decode()
