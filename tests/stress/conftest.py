"""What interrupts, where there is such a thing."""

import gc
import signal
from contextlib import closing

import pytest

from stress.interrupts import Alarm


@pytest.fixture
def alarm():
    if not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers on this platform")
    gc.collect()  # Python ignores what is raised in a weak reference's callback: leave none to earlier tests
    # Likewise in what Hypothesis has called at every collection.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    try:
        with closing(Alarm()) as alarm:
            yield alarm
    finally:
        gc.callbacks[:] = callbacks
