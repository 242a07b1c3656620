"""What the referee counts, of times that are made up."""

import pytest

from faults.referee import use_of, worst_excess

EVEN = [n / 100 for n in range(400)]


def use(times):
    return use_of(sorted(times), 100, early=(0.5, 1.5), late=(3, 4))


def test_use_is_the_part_of_a_rate_that_was_used():
    assert use(EVEN) == pytest.approx(1, abs=0.01)
    assert use(n / 95 for n in range(380)) == pytest.approx(0.95, abs=0.01)
    assert 0.85 < use(at for at in EVEN if not 2 <= at < 2.2) < 0.95


def test_what_was_saved_up_and_used_later_is_neither_loss_nor_gain():
    stood_still = [at for at in EVEN if not 0.8 <= at < 1.2] + [1.2] * 40
    assert use(stood_still) == pytest.approx(1, abs=0.01)
    stood_still = [at for at in EVEN if not 2 <= at < 2.4] + [2.4] * 40
    assert use(stood_still) == pytest.approx(1, abs=0.01)
    assert use(at for at in EVEN if at < 3.6) == pytest.approx(1, abs=0.01)


def test_the_worst_excess_is_that_of_any_stretch():
    assert worst_excess(EVEN, 100, 1) == pytest.approx(0, abs=1e-6)
    assert worst_excess(sorted([*EVEN, *[2.0] * 7]), 100, 1) == pytest.approx(7, abs=1e-6)
