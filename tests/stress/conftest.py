"""A fixture that interrupts the main thread, on platforms with interval timers."""

import gc
import signal
from contextlib import closing

import pytest

from stress.interrupts import Alarm


@pytest.fixture
def alarm():
    if not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers on this platform")
    # Python ignores errors raised in callbacks of weak references and of the garbage collector, so an
    # interrupt there would be lost: collect the objects of earlier tests, and remove Hypothesis' callbacks.
    gc.collect()
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    try:
        with closing(Alarm()) as alarm:
            yield alarm
    finally:
        gc.callbacks[:] = callbacks
