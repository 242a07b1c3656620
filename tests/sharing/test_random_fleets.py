"""Fleets chosen at random stay within small bursts. More of them: `python tests/sharing/random_fleets.py`."""

import pytest

from sharing.random_fleets import calling, forgetting, losing, returning


@pytest.mark.parametrize("number", [0, 1, 2, 13, 19, 28])
def test_processes_that_call_all_the_time_stay_within_a_small_burst_and_use_most_of_the_rate(number):
    found = calling(number, seconds=20)
    assert found.above <= 0.1, found
    assert found.used >= 0.7, found


@pytest.mark.parametrize("number", range(12))
def test_callers_that_give_up_and_return_at_random_are_less_than_a_call_above(number):
    found = returning(number)
    assert found.above <= 0.6, found


@pytest.mark.parametrize("number", range(12))
def test_the_same_holds_while_the_store_loses_everything_again_and_again(number):
    found = forgetting(number)
    assert found.above <= 0.6, found


@pytest.mark.parametrize("number", [17, 18, 49, 67, 81, 131, 150, 156, 194])
def test_fleets_that_lose_their_store_and_find_it_again_stay_within_a_larger_burst(number):
    found = losing(number)
    assert found.burst > len(found.trips)
    assert found.above <= 0.01, found
