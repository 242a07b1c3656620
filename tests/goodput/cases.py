"""The scenarios as parameters of tests. Those that do not reach their bars yet are marked with the reason."""

import pytest

# The bars that are not reached yet.
NOT_YET = {
    "1.027 of the ideal and not 1.02: resets in whole seconds do not show at once that it is a bucket": [
        "stated known, anthropic",
    ],
}
REASONS = {name: reason for reason, names in NOT_YET.items() for name in names}


def cases(scenarios):
    return [
        pytest.param(
            scenario,
            id=scenario.name,
            marks=pytest.mark.xfail(reason=REASONS[scenario.name], strict=True)
            if scenario.name in REASONS
            else (),
        )
        for scenario in scenarios
    ]
