"""What all tests share: laws are searched for without a stopwatch; real time has the machine to itself."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Several processes, real servers, real signals: `make test` runs these one by one, after all the others.
ALONE = {
    "bulk",
    "faults",
    "stores",
    "stress",
    "test_cli",
    "test_learning_live",
    "test_sdk_adapters",
    "test_sdks_at_the_limit",
    "test_server",
    "test_watch",
}


def pytest_collection_modifyitems(items):
    for item in items:
        path = Path(item.path)
        if ALONE.intersection((*path.parts, path.stem)):
            item.add_marker(pytest.mark.alone)
