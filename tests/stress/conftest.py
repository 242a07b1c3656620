"""What interrupts, where there is such a thing."""

import signal
from contextlib import closing

import pytest

from stress.interrupts import Alarm


@pytest.fixture
def alarm():
    if not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers on this platform")
    with closing(Alarm()) as alarm:
        yield alarm
