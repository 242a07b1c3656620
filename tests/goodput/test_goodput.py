"""A Dispatch uses what an API has room for, and is hardly ever refused: the scenarios with their bars."""

import pytest

from goodput.rig import worst
from goodput.scenarios import LEARNED, OUTAGES, STATED

# The bars that are not reached yet.
NOT_YET = {
    "a probe that is refused cuts the rate again, although it belongs to the same episode": [
        "silent fixed minute",
        "silent fixed minute, phase 37",
        "silent bucket 1 s",
        "silent fixed second",
        "silent bucket 10 s, drop",
        "silent fixed minute, neighbour",
        "silent bucket 10 s, 50 callers, slow answers",
        "silent fixed minute, 50 callers, slow answers and refusals",
    ],
    "what an answer says to remain never raises the level of a rate": [
        "stated known, fixed minute",
        "stated known, fixed minute, phase 37",
        "stated unknown, fixed minute",
        "stated unknown, fixed minute, phase 37",
        "stated bucket of 500, 200 jobs, 500/minute",
        "stated bucket of 500, 200 jobs, auto",
    ],
    "where nothing remains, all callers wait until the bucket is full": [
        "stated known",
        "stated known, anthropic",
        "stated known, cut to half",
        "stated unknown, cut to half",
        "stated known, started empty",
        "stated unknown, started empty",
        "stated 600/minute, empty at the start, 50 jobs",
        "stated retry-after of 25 ms, reset of 1 s",
    ],
    "the API counts arrivals, and a late batch is followed by one that is not late": [
        "stated known, jitter",
        "stated known, cold connections",
        "stated known, cold connections and jitter",
    ],
    "a limit that is not known is tried slowly until the first answer, which may take four seconds": [
        "stated unknown",
        "stated unknown, jitter",
        "stated unknown, anthropic",
    ],
    "a stated limit below a strict rate is charged as usage": ["stated lower than the strict rate"],
    "the pauses of an outage double, and more than one call probes": [
        "outage of 6 s, 503",
        "outage of 20 s, 503",
        "outage of 600 s, 503",
        "outage of 6 s, 529",
        "outage of 60 s, 500",
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


@pytest.mark.parametrize("scenario", cases(LEARNED))
def test_a_limit_that_is_never_stated_is_used_with_few_refusals(scenario):
    assert scenario.missed(worst(scenario)) == []


@pytest.mark.parametrize("scenario", cases(STATED))
def test_a_limit_that_answers_state_is_used_from_the_first_second(scenario):
    assert scenario.missed(worst(scenario, seeds=3)) == []


@pytest.mark.parametrize("scenario", cases(OUTAGES))
def test_after_an_outage_calls_are_back_soon_and_few_probes_were_sent(scenario):
    assert scenario.missed(worst(scenario)) == []


def test_every_scenario_has_a_name_of_its_own_and_every_mark_a_scenario():
    names = [scenario.name for scenario in LEARNED + STATED + OUTAGES]
    assert len(set(names)) == len(names)
    assert set(names) >= REASONS.keys()
