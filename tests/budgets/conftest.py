"""Fixtures for the tests of budgets: a clock that the test moves, and a budget on it."""

import pytest

from headgate import TokenBudget
from headgate.testing import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def budget(clock):
    """Ten thousand an hour, for ann."""
    return TokenBudget(10_000, key="ann", clock=clock)
