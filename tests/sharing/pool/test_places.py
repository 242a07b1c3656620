"""Places that processes share: never more calls inside than the limit, none unused while a caller waits."""

import pytest

from fleet import Fleet
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import START, question

TEN = [10, 0, 0, 0]


def test_a_place_that_may_be_in_use_before_the_answer_is_heard_is_given_to_no_other_member():
    """Calls begin by the earlier grant while an answer that takes it back is on its way."""
    pool = Pool()
    assert answer(pool, question(limits=TEN, wants=[10, 0]), START)["places"] == 10
    answer(pool, question("b", limits=TEN, wants=[10, 0]), START)
    given = answer(pool, question(limits=TEN, uses=[2, 0], may_use=[10, 0], wants=[9, 0]), START)
    assert given["places"] == 5
    assert answer(pool, question("b", limits=TEN, wants=[10, 0]), START)["places"] == 0
    answer(pool, question(limits=TEN, uses=[2, 0], may_use=[5, 0], wants=[9, 0]), START)
    assert answer(pool, question("b", limits=TEN, wants=[10, 0]), START)["places"] == 5


def test_a_silent_member_with_spare_places_is_called_once_when_another_member_wants_them():
    pool = Pool()
    answer(pool, question("b", limits=TEN), START)
    answer(pool, question(limits=TEN, uses=[2, 0], spare=[4, 0]), START)
    quiet = pool.news
    answer(pool, question("b", limits=TEN, wants=[4, 0]), START)
    assert pool.news == quiet
    answer(pool, question("b", limits=TEN, wants=[7, 0]), START)
    called = pool.news
    assert called != quiet
    answer(pool, question("b", limits=TEN, wants=[7, 0]), START)
    assert pool.news == called
    assert answer(pool, question(limits=TEN, uses=[2, 0], may_use=[6, 0]), START)["crowded"]


def test_free_places_are_granted_while_a_member_holds_more_than_its_share():
    """One member holds six of ten and gives up four only when its calls end."""
    pool = Pool()
    answer(pool, question("a", limits=TEN, uses=[6, 0]), START)
    for name in "bcd":
        answer(pool, question(name, limits=TEN, wants=[9, 0]), START)
    granted = {
        name: answer(pool, question(name, limits=TEN, wants=[9, 0]), START)["places"] for name in "bcd"
    }
    assert sum(granted.values()) == 4


@pytest.mark.parametrize("trip", [0.0, 0.04])
def test_a_greedy_and_three_light_processes_never_have_more_inside_than_the_limit(trip):
    """The light ones get all they want, the greedy one the rest, and few questions are asked."""
    with Fleet(concurrency=10) as fleet:
        (greedy,), light = fleet.join(trip=trip), fleet.join(3, trip=trip)
        fleet.run(0.5)
        fleet.work(greedy, tasks=30, takes=0.05)
        fleet.work(*light, tasks=2, takes=0.05, pause=0.03)
        fleet.run(3)
        assert fleet.most_inside() == 10
        alone, *others = fleet.parts()
        assert alone >= 0.95 * 4 * 3 / 0.05  # four places
        assert min(others) >= 0.9 * 2 * 3 / 0.08  # all that two tasks can
        assert fleet.questions() <= 0.25


def test_callers_that_wait_for_a_rate_do_not_ask_for_places():
    """Of 64 places a few are in use. The store is asked for units only."""
    with Fleet(rates=["500/s"], concurrency=64) as fleet:
        fleet.join(4)
        fleet.run(0.5)
        fleet.work(tasks=50, takes=0.02)
        fleet.run(3)
        assert fleet.questions() <= 0.15
        assert fleet.most_inside() <= 64
