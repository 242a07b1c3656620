"""Processes that want less than their part of a rate beside busy ones, in virtual time."""

import pytest

from fleet import Fleet, unevenness
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, RATE, START, question


@pytest.mark.parametrize(
    ("rate", "burst", "light", "busy", "questions"),
    [
        (978, 55, 3, 3, 0.08),
        (978, 55, 2, 12, 0.2),
        (500, 500, 3, 13, 0.25),
        (200, 20, 1, 3, 0.17),
        (500, 30, 6, 2, 0.2),
    ],
)
def test_busy_processes_ask_seldom_although_others_make_a_call_now_and_then(
    rate, burst, light, busy, questions
):
    """They let these go first, and take a turn each as the rate would run dry: not one unit each."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(light + busy, trip=0.002)
        fleet.run(1)
        for n, process in enumerate(fleet.processes[:light]):
            fleet.work(process, tasks=2, pause=0.13 + 0.04 * n)
        fleet.work(*fleet.processes[light:], tasks=40)
        fleet.run(4)
        steady, asked = fleet.now, sum(process.asked for process in fleet.processes[light:])
        fleet.run(6)
        calls = fleet.parts(steady)
        asked = sum(process.asked for process in fleet.processes[light:]) - asked
        assert asked <= questions * sum(calls[light:])
        # Of a small burst more is kept back for units that members may have unused.
        assert sum(calls) >= (0.98 if burst >= 50 else 0.92) * rate * 6
        assert fleet.excess(rate, burst) <= 0
        assert unevenness(calls[light:]) <= 0.1
        # A call of theirs waits no longer than a turn of another one and a moment.
        assert min(calls[:light]) >= 2 * 6 / (0.13 + 0.04 * light + 0.15)


@pytest.mark.parametrize(("rate", "many", "tasks"), [(100, 100, 4), (200, 100, 4), (50, 16, 4)])
def test_a_process_that_had_most_of_what_was_saved_up_has_its_part_from_then_on(rate, many, tasks):
    """Also where each of many processes has a call in a second, so that its turn is a single one."""
    with Fleet(rates=[f"{rate}/s burst {rate}"]) as fleet:
        fleet.join(many)
        fleet.run(1)
        fleet.work(tasks=tasks)
        fleet.run(10)
        for _ in range(2):
            steady = fleet.now
            fleet.run(20)
            assert unevenness(fleet.parts(steady)) <= 0.06


def test_a_member_that_had_its_turn_takes_another_one_at_once_where_the_one_with_least_has_all_it_wants():
    """A unit takes a millisecond, and a turn of two members 75 of them."""
    pool = Pool()
    for _ in range(6):
        answer(pool, question("a", rates=RATE, batches=[[10]] * 60, waiting=60), START)
    answer(pool, question("b", rates=RATE, batches=[[1]], waiting=1), START)
    given = answer(pool, question("a", rates=RATE, batches=[[10]] * 60, waiting=60), START)
    assert given["starts"] == []
    dry = START + given["ask_again_in"]
    given = answer(pool, question("a", rates=RATE, batches=[[10]] * 60, waiting=60), dry)
    assert 7 <= len(given["starts"]) <= 9


def test_what_is_asked_for_beyond_the_callers_in_line_is_granted_up_to_half_a_turn_while_others_are_short():
    pool = Pool()
    for _ in range(6):
        answer(pool, question("a", rates=RATE, batches=[[10]] * 60, waiting=60), START)
    given = answer(pool, question("b", rates=RATE, batches=[[5]] * 40, waiting=2), START)
    assert len(given["starts"]) == 7  # 35 ms of 75
    assert given["ask_again_in"] > MILLI
