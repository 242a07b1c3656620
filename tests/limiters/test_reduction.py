"""Cutting once per episode and growing back, whatever the amount."""

import pytest

from headgate import Rate
from headgate.limiters.reduction import Reduction

SECOND = 1_000_000_000
INTERVAL = 30 * SECOND


def a_reduction(amount, *, now=0):
    return Reduction(
        [Rate(amount, 60, burst=amount)], factor=(1, 2), growth=(11, 10), interval=INTERVAL, now=now
    )


def amount_at(reduction, now):
    return reduction.rates(now)[0].amount


def test_what_was_cut_grows_back_by_a_tenth_every_interval():
    """
    DL-19: 100 to 50, then 55, 60, 66, 72, 79, 86, 94, 100.
    """
    reduction = a_reduction(100)

    amounts = [amount_at(reduction, i * INTERVAL) for i in range(10)]

    assert amounts == [50, 55, 60, 66, 72, 79, 86, 94, 100, 100]


@pytest.mark.parametrize("amount", range(1, 1001))
def test_every_amount_comes_back(amount):
    """
    D-68, B9: also those too small for a tenth to be a whole one.
    """
    reduction = a_reduction(amount)
    assert 1 <= amount_at(reduction, 0) <= max(1, amount // 2)

    assert amount_at(reduction, 12 * INTERVAL) == amount
    assert reduction.rates(12 * INTERVAL) == reduction.original


def test_a_second_announcement_of_the_same_episode_cuts_nothing():
    """
    D-62: ten at once are one cut; one after the first step back is another.
    """
    reduction = a_reduction(100)
    assert not any(reduction.cut_again((1, 2), INTERVAL - 1) for _ in range(10))
    assert amount_at(reduction, INTERVAL - 1) == 50

    assert reduction.cut_again((1, 2), INTERVAL)

    assert amount_at(reduction, INTERVAL) == 27


def test_the_burst_is_cut_with_the_amount_and_a_strict_rate_stays_strict():
    rates = [Rate(100, 60, burst=20), Rate(1000, 3600, strict=True)]
    reduction = Reduction(rates, factor=(1, 2), growth=(11, 10), interval=INTERVAL, now=0)

    paced, strict = reduction.rates(0)

    assert (paced.amount, paced.burst, strict.amount, strict.strict) == (50, 10, 500, True)
