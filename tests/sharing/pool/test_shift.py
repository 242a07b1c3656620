"""Bursts of few calls and processes far from the store: never above, and used by one after the other."""

import pytest

from fleet import Fleet, unevenness
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, SECOND, START, question


def fleet_at(fleet, trips, ways):
    for trip, way in zip(trips, ways, strict=True):
        fleet.join(trip=trip, back=trip * way)


@pytest.mark.parametrize("ways", [(0, 0, 0, 0), (1, 1, 1, 1), (0.5, 0.5, 0.5, 0.5), (0, 1, 0.5, 1)])
@pytest.mark.parametrize(
    ("rate", "burst", "trips"),
    [
        (464, 2, [0.072, 0.0007, 0.0041, 0.001]),
        (464, 3, [0.23, 0.038, 0.94, 0.27]),
        (20, 1, [0.229, 0.113, 0.7, 0]),
        (20, 3, [0.092, 0.074, 0.08, 0.9]),
        (500, 1, [0.17, 0.29, 0.12, 0.001]),
        (100, 2, [0.88, 0.27, 0.002, 0.003]),
    ],
)
def test_processes_stay_within_a_small_burst_however_a_trip_divides_into_two_ways(rate, burst, trips, ways):
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet_at(fleet, trips, ways)
        fleet.run(2)
        fleet.work(tasks=20)
        fleet.run(12)
        assert fleet.excess(rate, burst) <= 0.1
        assert all(process.times for process in fleet.processes)


@pytest.mark.parametrize("way", [0, 0.5, 1])
@pytest.mark.parametrize(
    ("rate", "burst", "trips"),
    [
        (100, 3, [0.3, 0, 0.002, 0.2]),
        (50, 1, [0.4, 0.1]),
        (500, 2, [0.3, 0.1, 0.05]),
        (100, 1, [0.0025, 0.001, 0.06]),
    ],
)
def test_callers_that_give_up_and_return_stay_within_a_small_burst(rate, burst, trips, way):
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet_at(fleet, trips, [way] * len(trips))
        fleet.run(2)
        for turn in range(6):
            working = [each for n, each in enumerate(fleet.processes) if turn > 3 or (n + turn) % 2]
            fleet.work(*working, tasks=(20, 1, 3)[turn % 3])
            fleet.run((0.7, 1.3)[turn % 2])
            fleet.stop_work()
            fleet.run((0.02, 0.3)[turn // 2 % 2])
        assert fleet.excess(rate, burst) <= 0.3


@pytest.mark.parametrize(
    ("rate", "burst", "trips", "used", "uneven"),
    [
        (50, 1, [0.1], 0.99, 0),
        (50, 5, [0.3] * 4, 0.97, 0.06),  # as many calls as processes: each has an even part, and none waits
        (10, 1, [0.04] * 4, 0.88, 0.1),
        (50, 2, [0.1] * 4, 0.88, 0.1),
        (10, 1, [0.3] * 2, 0.88, 0.1),
        (200, 2, [0.3] * 4, 0.82, 0.3),
        (978, 2, [0.41, 0.003, 0.003], 0.84, 0.15),
        (1_000, 2, [0.23, 0.002, 0.004], 0.86, 0.15),
        (100, 1, [0, 0, 0, 0.2], 0.88, 0.1),
    ],
)
def test_a_small_burst_is_used_at_any_distance_in_equal_parts(rate, burst, trips, used, uneven):
    """Gaps take a tenth of the rate, and a little more is lost while members have few callers."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet_at(fleet, trips, [0.5] * len(trips))
        fleet.run(1)
        fleet.work(tasks=50)
        fleet.run(5)
        steady, seconds = fleet.now, max(12, min(60, 6_000 // rate))
        fleet.run(seconds)
        assert len(fleet.times(steady)) >= used * rate * seconds
        assert fleet.excess(rate, burst) <= 0.1
        assert unevenness(fleet.parts(steady)) <= uneven


@pytest.mark.parametrize("trip", [0.0005, 0.003])
@pytest.mark.parametrize("many", [4, 16])
@pytest.mark.parametrize(("rate", "burst"), [(500, 4), (5_000, 50)])
def test_processes_of_one_network_use_all_of_a_small_burst(rate, burst, many, trip):
    """Units that may be used later are missing for that long, and not for much longer."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(many, trip=trip)
        fleet.run(1)
        fleet.work(tasks=20)
        fleet.run(1)
        steady = fleet.now
        fleet.run(1)
        assert len(fleet.times(steady)) >= 0.99 * rate
        assert fleet.excess(rate, burst) <= 0


def test_a_process_far_away_with_a_call_now_and_then_costs_the_others_a_tenth_of_the_rate():
    """Each of its calls costs a gap, so it waits until the others have had a turn."""
    with Fleet(rates=["50/s burst 1"]) as fleet:
        fleet.join(3, trip=0.001)
        (light,) = fleet.join(trip=0.3)
        fleet.run(2)
        fleet.work(*fleet.processes[:3], tasks=20)
        fleet.work(light, tasks=1, pause=0.1)
        fleet.run(5)
        steady = fleet.now
        fleet.run(30)
        assert fleet.excess(50, 1) <= 0
        assert len(fleet.times(steady)) >= 0.85 * 50 * 30
        assert sum(at >= steady for at in light.times) >= 8


@pytest.mark.parametrize("hours", [1, 8])
@pytest.mark.parametrize("waking", [1, 3])
def test_processes_that_were_idle_for_hours_know_the_clock_of_the_store_again_before_they_call(hours, waking):
    """By then it may differ from theirs by seconds. A gap of that length would hold all calls back."""
    with Fleet(rates=["50/s burst 2"]) as fleet:
        fleet.join(3, trip=0.001)
        fleet.run(1)
        fleet.work(tasks=10)
        fleet.run(2)
        fleet.stop_work()
        fleet.run(3_600 * hours)
        woken = fleet.now
        fleet.work(*fleet.processes[:waking], tasks=10)
        fleet.run(10)
        assert fleet.excess(50, 2) <= 0.1
        assert len(fleet.times(woken)) >= 0.97 * 50 * 10
        assert fleet.times(woken)[0] - woken <= 0.1


@pytest.mark.parametrize(
    ("rate", "burst", "trips"),
    [
        (200, 2, [0.001] * 15 + [0.3]),
        (100, 2, [0.001] * 14 + [0.5] * 2),
        (200, 1, [0.5, 0.2, 0.001]),
    ],
)
def test_no_process_starves_beside_others_that_are_nearer_or_farther(rate, burst, trips):
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet_at(fleet, trips, [0.5] * len(trips))
        fleet.run(2)
        fleet.work(tasks=20)
        fleet.run(5)
        steady = fleet.now
        fleet.run(40)
        even = rate * 40 / len(trips)
        assert min(fleet.parts(steady)) >= 0.5 * even
        assert len(fleet.times(steady)) >= 0.8 * rate * 40


def test_a_process_with_few_calls_does_not_end_the_shifts_of_others_again_and_again():
    with Fleet(rates=["200/s burst 1"]) as fleet:
        one, other, light = (fleet.join(trip=trip)[0] for trip in (0.5, 0.2, 0.001))
        fleet.run(2)
        fleet.work(one, tasks=2)
        fleet.work(other, tasks=50)
        fleet.work(light, tasks=5, pause=0.05)
        fleet.run(5)
        steady = fleet.now
        fleet.run(40)
        assert len(fleet.times(steady)) >= 0.6 * 200 * 40
        assert min(fleet.parts(steady)) >= 100
        assert fleet.excess(200, 1) <= 0


# -- what the pool grants. A unit takes ten milliseconds, and there is one at once.

ONE = [[100, SECOND, 1]]


def ask(pool, who, batches, at, doubt=0, rates=ONE):
    asked = question(who, rates=rates, batches=[[1]] * batches, waiting=batches, doubt=doubt, reach=doubt)
    return answer(pool, asked, START + at * MILLI)


def pool_of_three(rates=ONE):
    """Three processes are known, so that there is not one call for each of them at once."""
    pool = Pool()
    for who in ("near", "far", "third"):
        answer(pool, question(who, rates=rates), START)
    return pool


def test_a_gap_is_left_free_behind_the_calls_of_a_member_far_away():
    pool = pool_of_three()
    assert ask(pool, "far", 4, 0, 200 * MILLI)["starts"] == [n * 10 * MILLI for n in range(4)]
    assert ask(pool, "near", 1, 0)["starts"] == []  # the far one goes on first
    assert ask(pool, "near", 1, 220)["starts"] == [20 * MILLI]


def test_the_member_whose_shift_it_is_goes_on_without_a_gap():
    pool = pool_of_three()
    ask(pool, "far", 3, 0, 200 * MILLI)
    assert ask(pool, "far", 2, 5, 200 * MILLI)["starts"] == [25 * MILLI, 35 * MILLI]
    assert ask(pool, "near", 1, 240)["starts"] == [10 * MILLI]


def test_a_member_far_away_waits_until_those_that_are_near_have_had_a_turn():
    pool = pool_of_three()
    ask(pool, "near", 8, 0)
    given = ask(pool, "far", 3, 0, 200 * MILLI)
    assert (given["starts"], given["ask_again_in"] > 0) == ([], True)
    assert pool.apart == ""


def test_a_gap_that_has_passed_is_worth_nothing():
    pool = pool_of_three()
    ask(pool, "far", 1, 0, 200 * MILLI)
    assert ask(pool, "near", 1, 1_000)["starts"] == [0]
    assert pool.rates[0].gap == 0


def test_a_rate_that_replaces_one_with_a_gap_has_as_little():
    pool = pool_of_three()
    ask(pool, "far", 1, 0, 200 * MILLI)
    slower = question("far", rates=ONE, set=[[[50, SECOND, 1]], [0, 0, 0, 0]])
    answer(pool, slower, START + MILLI)
    assert pool.rates[0].missing(START + MILLI) >= 1
    assert pool.apart == ""


def test_a_single_call_of_a_member_far_away_costs_no_gap_if_there_are_two():
    two = [[100, SECOND, 2]]
    pool = pool_of_three(two)
    assert ask(pool, "far", 1, 0, 200 * MILLI, two)["starts"] == [0]
    assert ask(pool, "near", 2, 0, 0, two)["starts"] == [0, 10 * MILLI]
    assert pool.rates[0].gap == 0
