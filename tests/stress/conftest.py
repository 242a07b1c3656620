"""A fixture that interrupts the main thread, on platforms with interval timers."""

import gc
import logging
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
    # An interrupt inside of `logging` leaves its lock locked, and each thread of a later test that logs would
    # wait for it without end: headgate writes no line meanwhile, whatever level earlier tests have set.
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with closing(Alarm()) as alarm:
            yield alarm
    finally:
        logging.disable(disabled)
        gc.callbacks[:] = callbacks
