"""How long an open circuit is remembered, and when a caller that found all probes out may come again."""

from breaker.circuits import SECOND, circuit, fail, opened_at
from headgate.breaker.circuit import HALF_OPEN


def test_a_circuit_that_stays_open_for_long_is_remembered_ten_times_as_long():
    it = opened_at(0, recovery=300 * SECOND)
    assert not it.pristine(3000 * SECOND)
    assert it.pristine(3000 * SECOND + 1)


def test_a_circuit_is_remembered_from_the_moment_at_which_it_opened():
    it = circuit(recovery=60 * SECOND)
    fail(it, 0, times=2)
    fail(it, 500 * SECOND)
    assert not it.pristine(601 * SECOND)
    assert not it.pristine(1100 * SECOND)
    assert it.pristine(1100 * SECOND + 1)


def test_of_several_probes_the_one_whose_lease_ends_first_makes_room():
    it = opened_at(0, probes=2)
    it.enter(30 * SECOND)
    it.enter(35 * SECOND)
    assert it.state == HALF_OPEN
    assert it.opens_in(40 * SECOND) == 20 * SECOND
    assert it.opens_in(60 * SECOND - 1) == 1
    assert it.opens_in(60 * SECOND) == 0
    it.enter(60 * SECOND)
    assert it.opens_in(60 * SECOND) == 5 * SECOND  # the first probe's lease is over, and does not count
