"""Run a check in a forked child, which ends in any case."""

import faulthandler
import os
import signal
import sys
import warnings

import pytest

from patience import PATIENCE

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")


def in_a_child(check):
    """Run the check in a forked child; the exit status is 0 if it passed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        pid = os.fork()
    if pid == 0:
        status = 1
        # A child that hangs prints where, and ends.
        faulthandler.register(signal.SIGALRM, sys.__stderr__, chain=True)
        signal.alarm(int(PATIENCE))
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
