"""What all tests share: laws are searched for without a stopwatch; real time has the machine to itself."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `make test` tries the same examples every time, to mean the same everywhere; `make search` tries others.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", UNHURRIED, derandomize=True, database=None)
settings.register_profile("searching", UNHURRIED)
settings.load_profile("steady")

# Several processes, or so much work that others would be late: `make test` runs these one by one, at the end.
ALONE = {
    "test_runner",
    "test_sdks_at_the_limit",
    "test_shared_breaker",
    "test_shared_budget",
    "test_shared_run",
    "test_sharing",
    "test_swarm_servers",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).stem in ALONE:
            item.add_marker(pytest.mark.alone)
