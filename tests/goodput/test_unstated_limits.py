"""A Dispatch finds limits that no answer states, and uses them with few refusals."""

import pytest

from goodput.cases import cases
from goodput.rig import worst
from goodput.scenarios import LEARNED


@pytest.mark.parametrize("scenario", cases(LEARNED))
def test_a_limit_that_is_never_stated_is_used_with_few_refusals(scenario):
    assert scenario.missed(worst(scenario)) == []
