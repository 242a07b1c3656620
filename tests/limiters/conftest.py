"""A clock, a limiter and threads for the tests of limiters."""

import pytest

from headgate import MemoryLimiter
from headgate.testing import ManualClock
from limiters.crowd import InThreads


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def api(clock):
    """Two a minute, called "api"."""
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 2, 60)
    return limiter


@pytest.fixture
def threads():
    crowd = InThreads()
    yield crowd
    crowd.join()
