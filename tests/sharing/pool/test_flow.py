"""Members far from the store, whatever each way takes: never above the rate, and all of it is used."""

from itertools import pairwise
from random import Random

import pytest

from fleet import Fleet, unevenness
from headgate import events
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.flow import MOST_LONGER, WHOLE, kept_for
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, RATE, SECOND, START, question

WAYS = [(there, back) for there in (0, 0.3, 1) for back in (0, 0.3, 1)]


@pytest.mark.parametrize("jitter", [0, 0.1])
@pytest.mark.parametrize("way", WAYS)
def test_a_process_far_from_the_store_and_three_near_it_stay_within_the_rate(way, jitter):
    """Callers come, give up and come back."""
    with Fleet(rates=["500/s burst 100"]) as fleet:
        for there, back in [(0, 0), (0, 0), (0, 0), way]:
            fleet.join(trip=there + back, back=back, jitter=jitter)
        fleet.run(2.5)
        for seconds in (1.1, 1.1, 2.0):
            fleet.work(tasks=50)
            fleet.run(seconds)
            fleet.stop_work()
            fleet.run(0.4)
        assert fleet.excess(500, 100) <= 0
        assert len(fleet.processes[3].times) > 0


@pytest.mark.parametrize("burst", [50, 100, 500])
@pytest.mark.parametrize(
    "ways",
    [
        [(0, 0.3), (0.3, 0), (0.15, 0.15), (0, 0)],
        [(0, 0.3), (0.3, 0), (0.3, 0), (0.15, 0.15)],
        [(0, 1), (1, 0), (0.5, 0.5), (0, 0.3)],
        WAYS,
    ],
)
def test_processes_of_which_each_is_far_in_its_own_way_stay_within_the_rate(ways, burst):
    with Fleet(rates=[f"500/s burst {burst}"]) as fleet:
        for there, back in ways:
            fleet.join(trip=there + back, back=back)
        fleet.run(2.5)
        for turn in range(4):
            working = [each for n, each in enumerate(fleet.processes) if turn == 3 or (n + turn) % 2]
            fleet.work(*working, tasks=50)
            fleet.run(1.3)
            fleet.stop_work()
            fleet.run(0.02)
        assert fleet.excess(500, burst) <= 0


@pytest.mark.parametrize("burst", [100, 500])
@pytest.mark.parametrize("way", [(0.5, 0.5), (1, 0), (0, 1), (0.3, 0.3), (0.3, 0)])
def test_the_rate_is_used_from_the_second_trip_on(way, burst):
    """The first question asks for what callers will use until the answer to the second one."""
    with Fleet(rates=[f"500/s burst {burst}"]) as fleet:
        for _ in range(4):
            fleet.join(trip=sum(way), back=way[1])
        fleet.run(2.5)
        begin = fleet.now
        fleet.work(tasks=50)
        fleet.run(10)
        times = fleet.times()
        for second in range(2, 10):
            assert sum(begin + second <= at < begin + second + 1 for at in times) >= 0.9 * 500
        assert len(times) >= 0.9 * 500 * (10 - sum(way))
        assert fleet.excess(500, burst) <= 0
        assert unevenness(fleet.parts()) <= 0.1
        assert not any(process.seen.of(events.StoreLost) for process in fleet.processes)


@pytest.mark.parametrize(
    ("rate", "burst", "trips"),
    [
        (464, 16, [0, 0, 0.02]),
        (464, 16, [0, 0, 0.035]),
        (464, 16, [0, 0, 0.2]),
        (500, 17, [0, 0.035, 0.2, 0, 0]),
        (200, 10, [0, 0.05]),
        (50, 5, [0, 0.4, 0.035, 0.1]),
        (200, 10, [0, 0.05, 0.02, 0, 0]),
    ],
)
def test_a_small_burst_is_used_up_in_equal_parts_by_processes_near_and_far(rate, burst, trips):
    """Near ones are told when to use what flows leave: the later, the further in advance."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip)
        fleet.run(1)
        fleet.work(tasks=50)
        fleet.run(3)
        steady, seconds = fleet.now, max(8, 600 / rate * len(trips))
        fleet.run(seconds)
        assert len(fleet.times(steady)) >= 0.97 * rate * seconds
        assert fleet.excess(rate, burst) <= 0
        assert unevenness(fleet.parts(steady)) <= 0.06


def test_processes_that_join_others_which_are_far_have_their_part_soon():
    with Fleet(rates=["500/s burst 100"]) as fleet:
        far = fleet.join(3, trip=0.6)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(4)
        near, other = *fleet.join(), *fleet.join(trip=0.6)
        fleet.work(near, other, tasks=50)
        fleet.run(3)
        steady = fleet.now
        fleet.run(4)
        assert fleet.excess(500, 100) <= 0
        assert unevenness([sum(at >= steady for at in each.times) for each in [*far, near, other]]) <= 0.3
        assert len(fleet.times(steady)) >= 0.9 * 500 * 4


def test_what_a_far_process_has_no_callers_for_is_used_by_the_others():
    with Fleet(rates=["500/s burst 100"]) as fleet:
        fleet.join(2)
        (far,) = fleet.join(trip=1.0)
        fleet.run(2)
        fleet.work(*fleet.processes[:2], tasks=50)
        fleet.work(far, tasks=1, pause=0.2)
        fleet.run(3)
        steady = fleet.now
        fleet.run(5)
        assert fleet.excess(500, 100) <= 0
        assert len(fleet.times(steady)) >= 0.9 * 500 * 5


# -- what the pool keeps. A unit takes a millisecond, the burst is a hundred.


def ask(pool, who, batches, at, doubt):
    asked = question(who, rates=RATE, batches=[[1]] * batches, doubt=doubt, reach=doubt)
    return answer(pool, asked, START + at)


def test_a_far_member_is_granted_an_even_flow_of_its_part():
    """Of two members that are present each has half: a unit in two milliseconds."""
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    given = ask(pool, "a", 30, 0, 500 * MILLI)
    assert given["starts"] == [(2 + 2 * n) * MILLI for n in range(30)]
    # Until the last one is used at the latest.
    assert pool.members["a"].flows == [[START + 560 * MILLI, WHOLE // 2]]


def test_a_flow_goes_on_without_a_gap_and_becomes_wider_if_the_others_want_nothing():
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "a", 50, 0, 500 * MILLI)
    # All but a hundredth: the other one waits no longer than a hundred times as long.
    assert ask(pool, "a", 2, 60 * MILLI, 500 * MILLI)["starts"] == [41 * MILLI + 11, 42 * MILLI + 22]
    assert pool.members["a"].flows == [[START + 602 * MILLI + 22, WHOLE - WHOLE // MOST_LONGER]]


def test_the_others_have_what_was_saved_up_and_then_what_is_not_kept():
    """Of ninety two are left for the flow, whose batches are of one unit: one may lie unused."""
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "a", 50, 0, 500 * MILLI)
    assert ask(pool, "b", 91, 60 * MILLI, 0)["starts"] == [0] * 88 + [2 * MILLI, 4 * MILLI, 6 * MILLI]


def test_what_is_used_beside_a_flow_that_ends_is_not_granted_to_others_meanwhile():
    """The flow may be used until 600 ms. A unit in two milliseconds was granted to b until 742 ms."""
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "a", 50, 0, 500 * MILLI)
    ask(pool, "b", 400, 590 * MILLI, 0)
    assert pool.members["b"].last_start == START + 742 * MILLI
    starts = ask(pool, "c", 60, 700 * MILLI, 0)["starts"]
    assert starts == [52 * MILLI + n * MILLI for n in range(60)]


def test_what_is_to_be_used_beside_a_flow_counts_as_used_when_the_rates_have_earned_it():
    """As many units are missing at each moment as were used before and are not earned back yet."""
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "a", 150, 0, 500 * MILLI)
    ask(pool, "b", 400, 60 * MILLI, 0)
    assert pool.rates[0].doubts == []
    starts = ask(pool, "b", 400, 200 * MILLI, 0)["starts"]
    assert {later - start for start, later in pairwise(starts)} == {2 * MILLI}


def test_what_is_kept_beside_a_flow_is_remembered_once_however_often_the_others_ask():
    pool, pick = Pool(), Random(1).randrange
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "a", 50, 0, 900 * MILLI)
    for number in range(300):
        ask(pool, f"near {pick(20)}", 1, number * MILLI, pick(60) * MILLI)
        assert len(pool.beside) <= 3


def test_nothing_is_kept_beside_a_flow_before_it_begins():
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "b", 190, 0, 0)
    ask(pool, "a", 50, 0, 300 * MILLI)
    (begins, nothing), (_until, part) = pool.members["a"].flows
    assert (nothing, part) == (0, WHOLE // 2)
    last = START + ask(pool, "b", 20, 0, 0)["starts"][-1]
    assert begins < last
    assert pool.beside == [[begins, 0], [last, part]]


def test_parts_never_add_up_to_more_than_the_rate():
    """A third member joins two that have all of it: its flow begins when one of theirs is over."""
    pool = Pool()
    answer(pool, question("b", rates=RATE), START)
    ask(pool, "a", 150, 0, 300 * MILLI)
    ask(pool, "b", 150, 0, 300 * MILLI)
    assert sum(map(kept_for, pool.members.values())) == WHOLE
    ((last, _part),) = pool.members["b"].flows
    given = ask(pool, "c", 30, 10 * MILLI, 300 * MILLI)
    assert START + 10 * MILLI + given["starts"][0] > last


def test_a_flow_is_not_larger_before_what_others_were_granted_beside_it_is_used():
    """It is asked for again and again meanwhile: each time the part is the one that the others know."""
    pool, starts = Pool(), []
    for who in "bcd":
        answer(pool, question(who, rates=RATE), START)
    ask(pool, "a", 25, 0, 200 * MILLI)
    told_until = 90 * MILLI + ask(pool, "b", 400, 90 * MILLI, 0)["starts"][-1]
    for at in range(90 * MILLI, told_until, 10 * MILLI):
        starts += [at + start for start in ask(pool, "a", 5, at, 200 * MILLI)["starts"]]
    meanwhile = [start for start in starts if start < told_until - 20 * MILLI]
    assert len(meanwhile) > 10
    assert {later - start for start, later in pairwise(meanwhile)} == {4 * MILLI}


def test_single_units_of_far_members_come_at_once():
    """They are few, and as many are missing until they are used at the latest."""
    pool = Pool()
    assert ask(pool, "a", 20, 0, 500 * MILLI)["starts"] == [0] * 20
    assert pool.members["a"].flows == []
    assert sum(start == 0 for start in ask(pool, "b", 90, 400 * MILLI, 0)["starts"]) == 70


@pytest.mark.parametrize("doubt", [0, 4 * MILLI])
def test_what_is_known_to_be_used_soon_is_a_burst(doubt):
    assert ask(Pool(), "a", 90, 0, doubt)["starts"] == [0] * 90


def test_what_may_be_used_later_is_not_earned_back_before():
    """Ninety units may be used until 40 ms, and a moment more: ten are there again at 60 ms."""
    for at, there in ((39 * MILLI, 0), (60 * MILLI, 10)):
        pool = Pool()
        ask(pool, "a", 90, 0, 40 * MILLI)
        starts = ask(pool, "b", 30, at, 0)["starts"]
        assert sum(start == 0 for start in starts) == there


def test_a_strict_rate_counts_units_of_a_far_member_for_longer():
    rates = [[100, SECOND, 100, 2]]
    pool = Pool()
    answer(pool, question("a", rates=rates, batches=[[100]], doubt=300 * MILLI), START)
    at = START + SECOND + 100 * MILLI
    near = answer(pool, question("b", rates=rates, batches=[[1]]), at)
    assert near["starts"] == [250 * MILLI]  # half of the usual 100 ms are for the way of the answer
