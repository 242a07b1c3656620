"""Random APIs with mishaps: every job is done in the end, and nothing goes above what was configured.

After outages of any length calls are back soon, and few probes were sent.
"""

import pytest

from goodput.rig import Drive
from goodput.scenarios import random_outage, random_scenario


@pytest.mark.parametrize("seed", range(16))
def test_no_run_stands_still_or_goes_above_what_was_configured(seed):
    figures = Drive(random_scenario(seed), 1).figures()
    assert figures["over"] < 30
    assert not figures.get("above")


@pytest.mark.parametrize("seed", range(40))
def test_after_an_outage_of_any_length_calls_are_back_soon_and_few_probes_were_sent(seed):
    scenario = random_outage(seed)
    assert scenario.missed(Drive(scenario, seed).figures()) == []
