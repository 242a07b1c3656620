"""The entry point of all commands: without the extra `cli`, and interrupted at any moment."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headgate
import headgate.cli
from cli.commands import KEYLESS
from headgate import Dispatch

# Hides a module, as if it were not installed.
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
sys.argv = sys.argv[1:]
from headgate.cli import main
main()
"""

# Presses Ctrl-C at the n-th call of a function since the entry point was entered, for 0 only when the
# interpreter ends. Without Ctrl-C it writes to stderr how many calls there were.
INTERRUPTED = """
import atexit, os, signal, sys

def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

at = int(sys.argv[1])
sys.argv = sys.argv[1:]
calls = 0
if at == 0:
    atexit.register(ctrl_c)

def count(frame, event, argument):
    global calls
    if event == "call":
        calls += 1
        if calls == at:
            ctrl_c()

from headgate.cli import main
sys.setprofile(count)
try:
    main()
finally:
    sys.setprofile(None)
    if at < 0:
        print(calls, file=sys.stderr)
"""


@pytest.fixture
def store(tmp_path):
    store = f"sqlite:///{tmp_path}/limits.db"
    Dispatch("api", rates="5/s", store=store).close()
    return store


def run(script, *args):
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=KEYLESS, check=False)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("click", ["--help"]),
        ("rich", ["watch", "STORE", "--once"]),
        ("aiohttp", ["demo"]),
        ("aiohttp", ["run", "-", "--to", "http://127.0.0.1:9/v1/chat/completions"]),
    ],
)
def test_without_the_extra_a_command_says_in_one_sentence_what_to_install(module, command, store):
    done = run(WITHOUT, module, *(store if word == "STORE" else word for word in command))
    assert done.stderr == (
        f'headgate: commands need {module}, which is not installed; write: pip install "headgate[cli]"\n'
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_the_modules_of_the_extra_are_those_that_it_installs():
    project = Path(headgate.__file__).parents[2] / "pyproject.toml"
    extra = tomllib.loads(project.read_text())["project"]["optional-dependencies"]["cli"]
    assert {need.partition(">")[0] for need in extra} == set(headgate.cli._EXTRA)


def test_another_module_that_is_missing_is_a_bug_and_shown_as_one():
    done = run(WITHOUT, "headgate.cli.watch", "--help")
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("command", ["watch", "completion"])
def test_ctrl_c_at_any_moment_ends_a_command_with_130_and_without_a_word(command, store):
    args = {"watch": [store, "--once"], "completion": ["bash"]}.get(command, [])
    whole = run(INTERRUPTED, -1, command, *args)
    assert whole.returncode == 0, whole.stderr
    calls = int(whole.stderr.split()[-1])
    for call in [20, *(calls * percent // 100 for percent in (30, 90, 99)), 0]:
        done = run(INTERRUPTED, call, command, *args)
        assert done.stderr == "", f"at call {call} of {calls}"
        # The last look at a store may be over before its event loop hears of Ctrl-C.
        too_late = (
            command == "watch" and call > calls // 2 and done.stdout.count("\n") == whole.stdout.count("\n")
        )
        assert done.returncode == 130 or too_late, f"at call {call} of {calls}"
