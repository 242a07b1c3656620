"""Calls that cost much of a shared rate, in virtual time: each has all its units at once, in one batch."""

from itertools import cycle

import pytest

from fleet import Fleet
from headgate.gate.supply import Demand, RateDemand
from headgate.limits import Rate
from headgate.sharing.pool.demand import Forecast

TOKENS = [500, 7_900, 2_100, 4_400, 6_300, 1_200, 8_000, 3_000]
SECOND = 1_000_000_000


@pytest.mark.parametrize("many", [1, 4])
@pytest.mark.parametrize(
    ("rates", "tokens", "use"),
    [
        # A call of more than the burst leaves a tenth of the burst unused.
        (["500/minute", "200_000 tokens/minute"], TOKENS, 0.93),
        (["500/minute", "200_000 tokens/minute"], [200, 200, 15_000], 0.93),
        (["1000 tokens/s burst 300"], [100], 0.98),
        (["1000 tokens/s burst 300"], [50, 200], 0.98),
        (["10/s", "1000 tokens/s burst 300"], [300, 100, 90, 10], 0.93),
    ],
)
def test_calls_of_many_different_costs_use_all_of_a_rate_of_tokens(rates, tokens, use, many):
    """Also those that cost more than the burst, in one process or several."""
    with Fleet(rates=rates) as fleet:
        fleet.join(many, trip=0.002)
        fleet.run(1)
        fleet.work(tasks=8, tokens=tokens)
        fleet.run(10)
        steady = fleet.now
        fleet.run(120)
        calls = [
            each for process in fleet.processes for each in zip(process.times, process.tokens, strict=True)
        ]
        limit = Rate.parse(rates[-1])
        per_second = limit.amount * SECOND / limit.per_ns
        used = sum(cost for at, cost in calls if at >= steady)
        assert use <= used / (120 * per_second) <= 1.05
        assert excess(calls, per_second, max(limit.burst, *tokens)) <= 0
        assert all(process.times[-1] > steady + 60 for process in fleet.processes)


def excess(calls, rate, burst):
    """The most tokens that any stretch of time held beyond burst + rate × its length."""
    lowest, worst, used = float("inf"), float("-inf"), 0
    for at, cost in sorted(calls):
        lowest = min(lowest, used - rate * at)
        used += cost
        worst = max(worst, used - rate * at - lowest - burst)
    return round(worst, 6)


@pytest.mark.parametrize("burst", [50, 100])
def test_a_small_burst_is_enough_for_batches_of_processes_that_are_far_away_and_need_many(burst):
    """All batches of all processes together are a half of it at most, so that each has a part of the rate."""
    with Fleet(rates=[f"1800/s burst {burst}"]) as fleet:
        fleet.join(8, trip=0.8)
        fleet.run(2.5)
        fleet.work(tasks=200)
        fleet.run(4)
        steady = fleet.now
        fleet.run(4)
        assert fleet.excess(1_800, burst) <= 0
        assert len(fleet.times(steady)) >= 0.97 * 1_800 * 4


# -- what is asked for


def batches(
    costs, *, free=(0, 0), used=(0, 0), rates=("10/s", "1000 tokens/s burst 300"), members=1, waiting=True
):
    """What one member asks for whose callers used so much in the last tenth of a second."""
    limits = [Rate.parse(each) for each in rates]
    forecast = Forecast(len(limits), 0)
    have = [RateDemand(units, 0, taken, [], 0) for units, taken in zip(free, used, strict=True)]
    demand = Demand(
        SECOND // 10, tuple(costs), len(costs) if waiting else 0, 0, 0, (0, 0), 1, False, tuple(have)
    )
    return forecast.batches(demand, costs, limits, range(len(limits)), members, members)


def test_each_batch_is_of_whole_calls_in_their_order():
    """Light ones share one of ten tokens, which the rate earns in ten milliseconds."""
    calls = [(1, 200), (1, 50), (1, 3), (1, 7), (1, 2)]
    assert batches(calls, rates=("1000/s", "1000 tokens/s")) == [[1, 200], [1, 50], [2, 10], [1, 2]]


def test_a_call_for_which_only_a_part_is_there_is_granted_in_one_piece():
    assert batches([(1, 200), (1, 50)], free=(1, 150)) == [[1, 200]]
    assert batches([(1, 200), (1, 50)], free=(2, 249)) == [[1, 50]]
    assert batches([(1, 200), (1, 50)], free=(2, 250)) == []


def test_callers_to_come_are_expected_to_cost_what_those_cost_that_wait():
    assert batches([(1, 200)], used=(2, 400)) == [[1, 200]] * 5
    assert batches([(1,)], free=(0,), used=(20,), rates=("500/s",)) == [[1], *[[5]] * 12]


def test_several_groups_of_costs_are_expected_in_turns():
    """Each of the two costs is more than half of a batch, so that no two calls share one."""
    given = batches([(1, 200), (1, 150)], used=(4, 700))
    assert given[:4] == [[1, 200], [1, 150], [1, 200], [1, 150]]


def test_a_call_that_costs_nothing_of_the_shared_rates_is_not_asked_for():
    assert batches([(0, 0), (1, 200), (0, 0)]) == [[1, 200]]


def test_no_question_is_of_more_than_128_batches():
    assert len(batches([(1, 200)] * 200)) == 128
    assert sum(map(sum, batches([(1,)] * 200, free=(0,), used=(10_000,), rates=("100000/s",)))) >= 25_000
    given = batches(
        [(cost,) for cost, _ in zip(cycle([1, 2, 3]), range(500))],
        free=(0,),
        used=(0,),
        rates=("5000/s burst 10",),
    )
    assert len(given) == 128
