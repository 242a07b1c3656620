"""Fixtures of the tests of swarms."""

import pytest

from swarm.team import Team


@pytest.fixture
def team():
    """Makes teams of agents, and closes them."""
    made = []

    def make(*args, **options):
        made.append(Team(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
