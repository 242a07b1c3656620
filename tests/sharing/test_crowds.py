"""Many members on one key, and many keys, in virtual time. `bench/crowds.py` has the same in full size."""

import logging

import pytest

from crowds import Crowd, ManyKeys
from fleet import Fleet, unevenness

SECOND = 1_000_000


def test_forty_members_share_a_rate_evenly_for_few_questions_and_recover_from_deaths_and_a_loss():
    with Crowd(400, 400, 40) as crowd:
        crowd.begin(5)
        crowd.run(8)
        assert crowd.use >= 0.99
        assert unevenness(crowd.parts(crowd.marked)) <= 0.15  # 80 calls each, a turn is ten of them
        assert crowd.per_second <= 0.25 * 400
        for process in crowd.processes[:4]:
            crowd.kill(process)
        assert crowd.used_again_after() <= 1
        for process in crowd.processes:
            process.line.away = True
        crowd.run(5)
        for process in crowd.processes:
            process.line.away = False
        assert crowd.used_again_after() <= 1
        assert crowd.excess(400, 400) <= 0


def test_a_store_that_is_too_small_for_its_members_costs_evenness_and_no_calls(caplog):
    """Each of them takes the store for lost once, until it knows how long the store takes."""
    caplog.set_level(logging.CRITICAL, "headgate")
    with Crowd(400, 400, 40, takes=lambda _members: 1 / 35) as crowd:
        crowd.begin(5)
        lost = crowd.lost
        crowd.run(8)
        assert crowd.use >= 0.97
        assert crowd.lost - lost <= 4
        assert crowd.per_second == pytest.approx(35, abs=1)
        assert crowd.excess(400, 400) <= 0.2 * 400  # while some have lost it and others have not


@pytest.mark.parametrize("pause", [0.5, 1.0, 5.0])
def test_every_single_call_costs_one_question_for_a_real_member_and_for_the_model_of_many_keys(pause):
    with Fleet(rates=["10/s burst 10"]) as fleet:
        (process,) = fleet.join()
        fleet.run(2)
        before = process.asked
        fleet.work(tasks=1, pause=pause)
        fleet.run(20.5 * pause)
        real = (process.asked - before) / len(fleet.times())
    model = ManyKeys(200, 4, [[10, SECOND, 10]])
    for n in range(1_000):
        model.call_at(2 * SECOND + n * SECOND // 20, n % 200, n % 4)
    model.run_until(60 * SECOND)
    assert model.calls == 1_000
    assert model.asked / model.calls == pytest.approx(1)
    assert real == pytest.approx(1, abs=0.1)


def test_calls_of_many_keys_go_on_after_the_store_has_lost_all_of_them():
    """No call costs more than a few questions, and none is lost."""
    model = ManyKeys(1_000, 4, [[10, SECOND, 10]])
    for n in range(2_000):
        model.call_at(2 * SECOND + n * SECOND // 200, n * 7 % 1_000, n % 4)
    model.run_until(7 * SECOND)
    asked = model.asked
    model.forget()
    model.run_until(8 * SECOND)
    assert model.asked - asked <= 2 * 400
    model.run_until(60 * SECOND)
    assert model.calls == 2_000
