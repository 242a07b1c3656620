"""A clock that the test moves."""

import pytest

from headgate.testing import ManualClock


@pytest.fixture
def clock():
    return ManualClock()
