"""The scenarios as parameters of tests. Those that do not reach their bars yet are marked with the reason."""

import pytest

# The bars that are not reached yet.
NOT_YET = {
    "refusals come late, and calls that were sent meanwhile are refused as well": [
        "silent bucket 10 s, 50 callers, slow answers",
        "silent fixed minute, 50 callers, slow answers and refusals",
    ],
    "a reset in whole seconds does not show at once that the API keeps a bucket": [
        "stated known, anthropic",
    ],
}
REASONS = {name: reason for reason, names in NOT_YET.items() for name in names}


def cases(scenarios):
    return [
        pytest.param(
            scenario,
            id=scenario.name,
            marks=pytest.mark.xfail(reason=REASONS[scenario.name], strict=False)
            if scenario.name in REASONS
            else (),
        )
        for scenario in scenarios
    ]
