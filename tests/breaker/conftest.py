"""Fixtures for the tests of circuit breakers: both worlds, a clock that the test moves, a breaker."""

import pytest

from breaker.callers import Tasks, Threads
from headgate import CircuitBreaker
from headgate.testing import ManualClock


@pytest.fixture(params=[Threads, Tasks], ids=["threads", "asyncio"])
def world(request):
    world = request.param()
    yield world
    world.close()


@pytest.fixture
def tasks():
    world = Tasks()
    yield world
    world.close()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def breaker(clock):
    """Three failures in a row open it, for thirty seconds."""
    return CircuitBreaker(3, 30, clock=clock)
