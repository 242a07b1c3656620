"""What members were granted and have not used when their callers go, and what the pool keeps back for it."""

from random import Random

import pytest

from fleet import Fleet
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, SECOND, START, question


@pytest.mark.parametrize("gap", [0.12, 0.2, 0.6])
@pytest.mark.parametrize(
    ("rate", "burst", "many"),
    [
        (55, 4, 1),
        (55, 4, 2),
        (100, 9, 8),
        (500, 50, 2),
        (1000, 100, 4),
        (978, 55, 1),
        (978, 55, 4),
        (978, 55, 8),
        (200, 60, 16),
    ],
)
def test_callers_that_all_go_and_return_together_stay_within_the_rate(rate, burst, many, gap):
    """The burst is earned in between, and members have units that were granted to callers that went."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(many, trip=0.001)
        fleet.run(1)
        for turn in range(8):
            fleet.work(tasks=40)
            fleet.run(0.4 + 0.013 * turn)
            fleet.stop_work()
            fleet.run(gap)
        assert fleet.excess(rate, burst) <= 0
        assert len(fleet.times()) >= 8 * 0.4 * rate


@pytest.mark.parametrize(
    ("rate", "burst", "many", "trip", "tasks"),
    [
        (65, 5, 11, 0.0, 1),
        (142, 5, 11, 0.004, 4),
        (699, 4, 5, 0.0, 4),
        (31, 10, 10, 0.002, 1),
        (500, 20, 12, 0.002, 40),
        (500, 30, 9, 0.004, 20),
        (978, 55, 4, 0.004, 40),
        (978, 55, 10, 0.004, 4),
        (319, 9, 12, 0.0, 4),
        (140, 7, 9, 0.01, 1),
    ],
)
def test_callers_that_go_and_return_at_any_moment_stay_within_a_small_burst(rate, burst, many, trip, tasks):
    """Also where there are more processes than calls in the burst, and a little away from the store."""
    pick = Random(f"{rate} {burst} {many}").uniform
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(many, trip=trip)
        fleet.run(1)
        for turn in range(9):
            fleet.work(tasks=tasks)
            fleet.run(pick(0.1, 0.7))
            fleet.stop_work()
            fleet.run((0, pick(0, 0.05), pick(0, 0.6))[turn % 3])
        fleet.work(tasks=40)
        fleet.run(0.5)
        steady = fleet.now
        fleet.run(3)
        # A call may be late by up to a quarter of the time in which the burst is earned.
        assert fleet.excess(rate, burst) < 0.25
        assert len(fleet.times(steady)) >= 0.98 * rate * 3


@pytest.mark.parametrize(
    ("rate", "burst", "many", "trip", "heavy"),
    [(933, 93, 8, 0.001, 9), (275, 137, 5, 0.0, 20), (487, 97, 8, 0.004, 29), (1846, 184, 8, 0.001, 55)],
)
def test_callers_of_heavy_calls_that_go_and_return_at_any_moment_stay_within_the_rate(
    rate, burst, many, trip, heavy
):
    """Single calls take from a tenth to a third of the burst."""
    pick = Random(f"{rate} {burst}").uniform
    with Fleet(rates=[f"{rate} tokens/s burst {burst}"]) as fleet:
        fleet.join(many, trip=trip)
        fleet.run(1)
        for turn in range(9):
            fleet.work(tasks=10, tokens=(heavy, 1, burst // 20))
            fleet.run(pick(0.1, 0.7))
            fleet.stop_work()
            fleet.run((0, pick(0, 0.05), pick(0, 0.6))[turn % 3])
        lowest, used = float("inf"), 0
        calls = sorted(
            (at, tokens)
            for each in fleet.processes
            for at, tokens in zip(each.times, each.tokens, strict=True)
        )
        for at, tokens in calls:
            lowest = min(lowest, used - rate * at)
            used += tokens
            assert used - rate * at - lowest <= burst + 0.001


def test_a_caller_that_does_not_wait_finds_what_it_was_granted_when_it_looks_again():
    """It looks every fifth of a second, long after callers in line would have used it or gone."""
    with Fleet(rates=["20/s burst 4"]) as fleet:
        looking, *others = fleet.join(5, trip=0.001)
        fleet.run(1)
        fleet.work(*others, tasks=4)
        found = 0
        for _ in range(25):
            fleet.run(0.2)
            found += looking.gate.try_admit() is not None
        assert found >= 5
        assert fleet.excess(20, 4) <= 0


def starts_at_once(pool, who, rates, units, at):
    given = answer(pool, question(who, rates=rates, batches=[[1]] * units), START + at)
    return sum(start == 0 for start in given["starts"])


SMALL = [[10, SECOND, 5]]


def test_of_a_small_burst_a_unit_is_kept_back_for_each_process_that_was_granted_one_of_late():
    pool = Pool()
    assert starts_at_once(pool, "a", SMALL, 1, 0) == 1
    assert starts_at_once(pool, "b", SMALL, 1, 300 * MILLI) == 1
    assert starts_at_once(pool, "c", SMALL, 5, 600 * MILLI) == 3


def test_what_can_be_used_no_longer_is_not_kept_back():
    pool = Pool()
    assert starts_at_once(pool, "a", SMALL, 1, 0) == 1
    assert starts_at_once(pool, "b", SMALL, 1, 300 * MILLI) == 1
    assert starts_at_once(pool, "c", SMALL, 5, 1301 * MILLI) == 5


def test_for_a_process_that_has_left_nothing_is_kept_back():
    pool = Pool()
    assert starts_at_once(pool, "a", SMALL, 1, 0) == 1
    answer(pool, question("a", rates=SMALL, leaves=True), START + 200 * MILLI)
    assert starts_at_once(pool, "b", SMALL, 5, 400 * MILLI) == 5


@pytest.mark.parametrize("many", [1, 2, 5])
def test_where_a_tenth_of_the_burst_is_enough_for_a_batch_of_each_process_no_more_is_kept_back(many):
    pool, rates = Pool(), [[100, SECOND, 50]]
    for i in range(many):
        assert starts_at_once(pool, f"m{i}", rates, 1, 0) == 1
    assert starts_at_once(pool, "another", rates, 50, 500 * MILLI) == 45
