"""Random APIs with mishaps: every job is done in the end, and nothing goes above what was configured."""

import pytest

from goodput.rig import Drive
from goodput.scenarios import random_scenario


@pytest.mark.parametrize("seed", range(16))
def test_no_run_stands_still_or_goes_above_what_was_configured(seed):
    figures = Drive(random_scenario(seed), 1).figures()
    assert figures["over"] < 30
    assert not figures.get("above")
