"""A process that ends without closing what it shares leaves no connection open behind it."""

import subprocess
import sys

PROGRAM = """
import sys

from headgate import BackoffWindow, CircuitBreaker, Dispatch

store = sys.argv[1]
gate = Dispatch("gate", store=store, rates="10/s")
window = BackoffWindow(store=store, key="window")
breaker = CircuitBreaker(key="breaker", store=store)
with gate.admit():
    window.set(1)
    breaker.call(lambda: None)
print("done")
"""


def test_a_program_that_closes_nothing_ends_without_a_warning(store):
    """In Python's development mode, which shows every connection that is still open."""
    command = [sys.executable, "-X", "dev", "-c", PROGRAM, store]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
