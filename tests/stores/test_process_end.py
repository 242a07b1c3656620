"""What a process does with its connections to a store when it ends without closing what it shares."""

import subprocess
import sys
import textwrap

import pytest

from forks import needs_fork

BEGINNING = """
import atexit, logging, os, sys

logging.disable()  # a busy machine may answer late, which is told
later = []  # what an exit handler does that runs after those of headgate
atexit.register(lambda: [act() for act in later])

from headgate import BackoffWindow, CircuitBreaker, Dispatch

store = sys.argv[1]
gate = Dispatch("gate", store=store, rates="100/s")
window = BackoffWindow(store=store, key="window")
breaker = CircuitBreaker(key="breaker", store=store)
with gate.admit():
    window.set(1)
    breaker.call(lambda: None)
"""


def run(store, program, *options):
    source = BEGINNING + textwrap.dedent(program)
    command = [sys.executable, *options, "-c", source, store]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_that_closes_nothing_ends_without_a_warning(store):
    """In the development mode of Python, which shows every connection that is still open."""
    ended = run(store, "print('done')", "-X", "dev")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no thread can be started by an exit handler")
def test_an_exit_handler_that_runs_later_can_still_use_the_store(store):
    ended = run(
        store,
        """
        def act():
            with gate.admit(timeout=10), gate.admit(timeout=10):
                print(CircuitBreaker(key="breaker", store=store).call(lambda: "called"))
        later.append(act)
        """,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "called\n", "")


@needs_fork
def test_a_forked_child_that_ends_leaves_the_connections_of_its_parent_alone(store):
    ended = run(
        store,
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        if not os.fork():
            sys.exit(0)  # with its exit handlers
        assert os.wait()[1] == 0
        with gate.admit(timeout=10):
            print(breaker.call(lambda: "called"))
        """,
        "-X",
        "dev",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "called\n", "")
