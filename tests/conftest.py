"""For all tests: Hypothesis settings, and collections of garbage that look at the test's own objects only.

And a PostgreSQL server, which takes seconds to start: one for each process that runs tests.
"""

import gc

import pytest
from hypothesis import HealthCheck, Phase, settings

# `make test` tries the same examples in every run; `make search` tries new ones. `make quality` asks only
# whether a test fails, so the example that fails is not made smaller.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", UNHURRIED, derandomize=True, database=None)
settings.register_profile("searching", UNHURRIED)
settings.register_profile(
    "mutants",
    UNHURRIED,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """Set all tests, modules and their objects apart: `gc.collect()` would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server():
    from faults.postgres import PostgresServer

    with PostgresServer() as server:
        yield server
