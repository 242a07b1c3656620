"""Hypothesis settings for all tests: no deadlines, and the same examples in every run of `make test`."""

from hypothesis import HealthCheck, settings

# `make test` tries the same examples in every run; `make search` tries new ones.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", UNHURRIED, derandomize=True, database=None)
settings.register_profile("searching", UNHURRIED)
settings.load_profile("steady")
