"""A Dispatch uses what answers say there is, from the first second and after outages."""

import pytest

from goodput.cases import cases
from goodput.rig import worst
from goodput.scenarios import OUTAGES, SHARED, STATED


@pytest.mark.parametrize("scenario", cases(STATED))
def test_a_limit_that_answers_state_is_used_from_the_first_second(scenario):
    assert scenario.missed(worst(scenario, runs=3)) == []


@pytest.mark.parametrize("scenario", cases(OUTAGES))
def test_after_an_outage_calls_are_back_soon_and_few_probes_were_sent(scenario):
    assert scenario.missed(worst(scenario, runs=3)) == []


@pytest.mark.parametrize("scenario", cases(SHARED))
def test_dispatches_that_share_a_store_go_as_one(scenario):
    assert scenario.missed(worst(scenario)) == []
