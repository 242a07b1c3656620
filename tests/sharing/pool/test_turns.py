"""Rates that processes share, in virtual time: equal parts, few questions, at any distance from the store."""

import pytest

from fleet import Fleet, unevenness
from headgate import events
from headgate.sharing.pool.trips import RoundTrips

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("rate", "burst", "many", "seconds", "questions"),
    [
        (50, 5, 2, 20, 0.06),
        (50, 5, 4, 20, 0.09),
        (50, 5, 8, 32, 0.2),
        (50, 5, 16, 35, 0.36),  # three calls a second each, and more than one in a turn
        (50, 50, 4, 35, 0.09),
        (500, 10, 4, 3, 0.05),
        (500, 25, 16, 10, 0.1),
        (500, 100, 4, 3, 0.05),
        (500, 500, 4, 3, 0.05),
        (500, 500, 16, 5, 0.1),
        (5_000, 500, 4, 2, 0.05),
        (5_000, 1_000, 8, 2, 0.03),
    ],
)
def test_processes_have_equal_parts_of_a_rate_at_every_burst_for_few_questions(
    rate, burst, many, seconds, questions
):
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(many)
        fleet.run(0.5)
        joined = sum(process.asked for process in fleet.processes)
        fleet.work(tasks=50)
        fleet.run(seconds)
        assert len(fleet.times()) >= 0.99 * rate * seconds
        assert fleet.excess(rate, burst) <= 0
        assert unevenness(fleet.parts()) <= 0.05
        assert fleet.questions() - joined / len(fleet.times()) <= questions


@pytest.mark.parametrize(
    ("rate", "burst", "many", "seconds"), [(50, 50, 8, 32), (50, 50, 16, 70), (500, 500, 16, 8)]
)
def test_parts_are_equal_soon_after_the_burst_that_was_saved_up_has_gone_to_the_processes_that_came_first(
    rate, burst, many, seconds
):
    """Those that had none of it have more for a moment: at most a turn of all, less than a second.

    Each has so many calls that a turn of ten is not much more than a twentieth of them.
    """
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(many)
        fleet.run(5)
        fleet.work(tasks=50)
        fleet.run(500 / rate)
        first = fleet.parts()
        assert min(first) >= 0.6 * sum(first) / many
        steady = fleet.now
        fleet.run(seconds)
        assert unevenness(fleet.parts(steady)) <= 0.05
        assert fleet.excess(rate, burst) <= 0


@pytest.mark.parametrize("trips", [[0.04] * 4, [0.3] * 4, [0, 0, 0, 0.3]])
def test_a_slow_line_costs_neither_the_limit_nor_calls(trips):
    with Fleet(rates=["500/s burst 100"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(2)
        steady = fleet.now
        fleet.run(6)
        assert len(fleet.times(steady)) >= 0.98 * 500 * 6
        assert fleet.excess(500, 100) <= 0
        assert unevenness(fleet.parts(steady)) <= 0.1
        assert not any(process.seen.of(events.StoreLost) for process in fleet.processes)


@pytest.mark.parametrize(("trips", "warm"), [([1.0], 5), ([1.0] * 4, 5), ([0, 0, 0, 1.0], 10)])
def test_a_store_that_answers_after_a_second_is_not_lost(trips, warm):
    with Fleet(rates=["500/s burst 500"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(warm)
        steady = fleet.now
        fleet.run(8)
        assert len(fleet.times(steady)) >= 0.95 * 500 * 8
        assert fleet.excess(500, 500) <= 0
        assert unevenness(fleet.parts(steady)) <= 0.25
        assert not any(process.seen.of(events.StoreLost) for process in fleet.processes)


def test_a_line_that_becomes_slow_is_noticed_once_and_what_was_used_meanwhile_is_charged():
    with Fleet(rates=["500/s burst 500"]) as fleet:
        fleet.join(4)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(2)
        for process in fleet.processes:
            process.line.trip = 0.3
        slow = fleet.now
        fleet.run(5)
        for process in fleet.processes:
            assert len(process.seen.of(events.StoreLost)) == len(process.seen.of(events.StoreRegained)) == 1
        assert fleet.excess(500, 500) <= 0
        assert len(fleet.times(slow)) >= 0.9 * 500 * 5


@pytest.mark.parametrize("gap", [0.1, 0.9])
def test_units_of_callers_that_have_gone_are_not_used_in_addition_by_those_that_come_back(gap):
    """Batches are granted in advance; all callers give up, and others come a moment later."""
    with Fleet(rates=["500/s burst 100"]) as fleet:
        fleet.join(4)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(2)
        fleet.stop_work()
        fleet.run(gap)
        fleet.work(tasks=300)
        fleet.run(1)
        assert fleet.excess(500, 100) <= 0


def test_a_process_that_dies_is_waited_for_no_longer_than_a_moment():
    """The others use its part at once, and share it equally."""
    with Fleet(rates=["500/s burst 100"]) as fleet:
        fleet.join(4)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(2)
        fleet.kill(fleet.processes[0])
        died = fleet.now
        fleet.run(3)
        assert len(fleet.times(died)) >= 0.93 * 500 * 3
        assert unevenness(fleet.parts(died)[1:]) <= 0.08
        assert fleet.excess(500, 100) <= 0


def test_patience_grows_with_the_round_trip_and_connecting_counts_for_little():
    trips = RoundTrips()
    assert trips.patience == SECOND // 4
    trips.note(SECOND, connecting=True)
    assert trips.patience >= 2 * SECOND
    for _ in range(20):
        trips.note(SECOND // 100)
    assert trips.patience < 0.28 * SECOND


MILLI = SECOND // 1_000
STORE = 7_000 * SECOND  # its clock is so far ahead of ours


def test_the_moment_of_an_answer_is_taken_to_be_the_latest_possible_one_and_the_doubt_is_told():
    """The clock is known as well as the shortest of each way allows."""
    trips = RoundTrips()
    assert trips.moment_of(STORE + 500 * MILLI, 0, SECOND) == SECOND
    assert (trips.doubt(SECOND), trips.back) == (SECOND, 0)
    # The next one took 10 ms. Its answer was given after 8 of them, if the first one was given half way.
    moment = trips.moment_of(STORE + 2_008 * MILLI, 2_000 * MILLI, 2_010 * MILLI)
    assert (moment, trips.doubt(2_010 * MILLI)) == (2_010 * MILLI, 10 * MILLI)
    assert trips.sooner == 498 * MILLI  # than it was taken to be so far
    # From now on it is known to some milliseconds, also if a question waits for a second before the store ...
    asked, heard = 3_000 * MILLI, 4_000 * MILLI
    assert trips.moment_of(STORE + 3_999 * MILLI, asked, heard) == pytest.approx(4_000 * MILLI, abs=2 * MILLI)
    # ... or its answer for a second behind it, which is told too.
    asked, heard = 4_000 * MILLI, 5_000 * MILLI
    assert trips.moment_of(STORE + 4_001 * MILLI, asked, heard) == pytest.approx(4_002 * MILLI, abs=2 * MILLI)
    assert trips.back == pytest.approx(998 * MILLI, abs=2 * MILLI)


def test_one_answer_that_is_heard_very_late_because_the_process_was_stopped_is_not_expected_again():
    trips = RoundTrips()
    heard_late = [0, 3, 20, 8, 4_000, 5, 12, 9, 4, 2, 1]
    backs = []
    for n, late in enumerate(heard_late):
        asked = 10 * n * SECOND
        trips.moment_of(STORE + asked + 5 * MILLI, asked, asked + (10 + late) * MILLI)
        backs.append(trips.back // MILLI)
    assert backs[4] >= 3_980
    assert max(backs[5:]) <= 2 * 24  # the clocks are known to some milliseconds
    assert min(backs[5:]) >= 10  # others count for longer


def test_the_doubt_grows_while_no_answer_comes_because_clocks_drift_apart():
    trips = RoundTrips()
    assert trips.doubt(0) >= SECOND // 10  # nothing is known yet
    trips.moment_of(STORE, 0, MILLI)
    assert MILLI < trips.doubt(10 * SECOND) <= 6 * MILLI


@pytest.mark.parametrize("by", [-3_600 * SECOND, -SECOND, SECOND, 3_600 * SECOND])
def test_the_moment_of_an_answer_is_between_asking_and_hearing_when_the_clock_of_the_store_was_set(by):
    trips = RoundTrips()
    trips.moment_of(STORE, 0, MILLI)
    for at in (SECOND, 2 * SECOND):
        moment = trips.moment_of(STORE + by + at, at, at + MILLI)
        assert at <= moment <= at + MILLI
    assert moment == pytest.approx(2 * SECOND, abs=MILLI)


def test_clocks_that_drift_apart_by_a_ten_thousandth_are_followed():
    trips = RoundTrips()
    for at in range(0, 3_600 * SECOND, SECOND):
        moment = trips.moment_of(STORE + at + at // 10_000, at, at + 2 * MILLI)
        assert moment - at == pytest.approx(MILLI, abs=MILLI)


def test_a_queue_before_the_store_costs_neither_the_limit_nor_calls():
    """Questions of one process after the other begin to wait there; their answers come back at once."""
    with Fleet(rates=["500/s burst 100"]) as fleet:
        fleet.join(4)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(1)
        for process in fleet.processes:
            for trip in (0.1, 0.2, 0.3):
                process.line.trip, process.line.back = trip, 0.0
                fleet.run(0.5)
        steady = fleet.now
        fleet.run(4)
        assert fleet.excess(500, 100) <= 0
        assert len(fleet.times(steady)) >= 0.97 * 500 * 4
