"""Every scenario can be told from the others, and every reason for a mark has scenarios."""

from goodput import scenarios
from goodput.cases import REASONS


def test_no_two_scenarios_have_the_same_name():
    lists = (scenarios.LEARNED, scenarios.STATED, scenarios.OUTAGES, scenarios.SHARED, scenarios.LONG)
    assert len(scenarios.SCENARIOS) == sum(map(len, lists))


def test_every_mark_is_of_a_scenario():
    assert scenarios.SCENARIOS.keys() >= REASONS.keys()
