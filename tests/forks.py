"""Forked children that check something, and end whatever happens in them."""

import faulthandler
import os
import signal
import sys
import warnings

import pytest

from patience import PATIENCE

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")


def in_a_child(check):
    """Run the check in a forked child; its exit status says whether it held."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        pid = os.fork()
    if pid == 0:
        status = 1
        # A child that hangs says where, and ends all the same.
        faulthandler.register(signal.SIGALRM, sys.__stderr__, chain=True)
        signal.alarm(int(PATIENCE))
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
