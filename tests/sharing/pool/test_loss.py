"""Processes that lose their store, in virtual time: together they never use more than the limits."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import Fleet
from headgate import events
from headgate.limits import read_rates
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.parts import PRESENT, WHOLE, parts_for
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, RATE, SECOND, START, question


def lose_the_store(fleet):
    for process in fleet.processes:
        process.line.away = True


@pytest.mark.parametrize("quiet", [0.0, 1.0, 200.0])
def test_processes_that_start_quietly_and_lose_the_store_together_stay_within_the_rate(quiet):
    """Whether they have heard of each other, or the store has forgotten them since."""
    with Fleet(rates=["500/s"]) as fleet:
        fleet.join(4)
        fleet.run(quiet)
        lose_the_store(fleet)
        fleet.work(tasks=50)
        fleet.run(4)
        assert len(fleet.times()) <= 500 * 4
        assert fleet.excess(500, 500) <= 0
        if quiet:
            assert len(fleet.times()) >= 0.95 * 500 * 4


@pytest.mark.parametrize(
    ("rate", "burst", "near", "far", "moment", "tasks"),
    [
        (2599, 734, [0.001] * 4, 0.7, 0.4774, 50),
        (706, 652, [0.02], 1.0, 0.3781, 4),
        (1762, 48, [0.0] * 2, 1.0, 0.7743, 50),
    ],
)
@pytest.mark.parametrize("how", ["away", "dead"])
def test_processes_begin_with_their_parts_when_one_far_away_and_all_beside_it_have_used_what_they_had(
    rate, burst, near, far, moment, tasks, how
):
    """While one of them is far away, all are granted units for longer in advance."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in [*near, far]:
            fleet.join(trip=trip)
        fleet.run(0.5)
        fleet.work(tasks=tasks)
        fleet.run(moment)
        for process in fleet.processes:
            setattr(process.line, how, True)
        fleet.run(4.5)
        assert fleet.excess(rate, burst) <= 0
        parts = sum(process.gate._member._part.rates for process in fleet.processes) / WHOLE
        assert len(fleet.times(fleet.now - 0.5)) >= 0.95 * parts * rate * 0.5


def test_busy_processes_that_lose_the_store_and_find_it_again_stay_within_the_rate():
    with Fleet(rates=["500/s"]) as fleet:
        fleet.join(4)
        fleet.work(tasks=50)
        fleet.run(2)
        lose_the_store(fleet)
        fleet.run(3)
        for process in fleet.processes:
            process.line.away = False
        fleet.run(3)
        assert fleet.excess(500, 500) <= 0
        assert all(process.seen.of(events.StoreRegained) for process in fleet.processes)


@pytest.mark.parametrize("how", ["away", "dead"])
@pytest.mark.parametrize(
    ("rate", "burst", "many", "trip", "moment"),
    [(30, 3, 2, 0.003, 0.283), (80, 57, 8, 0.0, 0.263), (30, 5, 5, 0.0, 0.277), (122, 11, 4, 0.0, 0.077)],
)
def test_processes_that_lose_the_store_soon_after_their_first_calls_stay_within_the_rate(
    rate, burst, many, trip, moment, how
):
    """Those that came last have been granted more in advance than the others, to catch up with them."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        fleet.join(many, trip=trip)
        fleet.run(0.5)
        fleet.work(tasks=20)
        fleet.run(moment)
        for process in fleet.processes:
            setattr(process.line, how, True)
        fleet.run(6)
        assert fleet.excess(rate, burst) <= 0
        parts = sum(process.gate._member._part.rates for process in fleet.processes) / WHOLE
        assert len(fleet.times(fleet.now - 2)) >= 0.9 * parts * rate * 2


def test_what_was_granted_is_used_after_a_loss_until_processes_begin_with_their_parts():
    """One of them is a second away, so all have been granted units for longer in advance."""
    with Fleet(rates=["200/s burst 100"]) as fleet:
        fleet.join(3)
        fleet.join(trip=0.7)
        fleet.run(1)
        fleet.work(tasks=50)
        fleet.run(3)
        lost = fleet.now
        lose_the_store(fleet)
        fleet.run(4)
        assert fleet.excess(200, 100) <= 0
        assert sum(at < lost + 1.5 for at in fleet.times(lost)) >= 0.55 * 200 * 1.5


@pytest.mark.parametrize(
    ("rate", "burst", "trips", "how"),
    [
        (464, 464, [0.0, 0.127], "dead"),
        (41, 41, [0.003] * 7, "dead"),
        (200, 75, [0.0] * 4 + [0.826], "away"),
    ],
)
def test_processes_that_hear_at_other_moments_that_the_store_is_back_stay_within_the_rate(
    rate, burst, trips, how
):
    """Questions hang for up to two seconds, and one that is far away hears of it later."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip, back=0)
        fleet.run(0.5)
        fleet.work(tasks=20)
        fleet.run(1.6)
        for process in fleet.processes:
            setattr(process.line, how, True)
        fleet.run(5)
        for process in fleet.processes:
            setattr(process.line, how, False)
        fleet.run(6)
        assert fleet.excess(rate, burst) <= 0
        assert all(process.seen.of(events.StoreRegained) for process in fleet.processes)
        assert len(fleet.times(fleet.now - 1)) >= 0.9 * rate


@pytest.mark.parametrize("moment", [1.0, 1.013, 1.039, 1.078])
@pytest.mark.parametrize("many", [2, 4])
def test_a_store_that_answers_with_errors_is_lost_by_all_in_turns_and_the_rate_holds(many, moment):
    """A process that hears of it goes by its part when the others have used what they were granted."""
    with Fleet(rates=["200/s burst 50"]) as fleet:
        fleet.join(many)
        fleet.work(tasks=50)
        fleet.run(moment)
        lose_the_store(fleet)
        fleet.run(2)
        assert fleet.excess(200, 50) <= 0
        assert len(fleet.times(fleet.now - 1.5)) >= 0.95 * 200 * 1.5


@pytest.mark.parametrize("moment", [0.6, 0.665, 0.7])
@pytest.mark.parametrize(
    ("many", "rate", "options"),
    [
        (2, "200/s burst 50", {"tasks": 6, "takes": 0.02}),
        (4, "100/s burst 50", {"tasks": 6, "takes": 0.02}),
        (8, "100/s burst 50", {"tasks": 50}),
        (8, "500/s", {"tasks": 50}),
    ],
)
def test_what_a_store_has_granted_before_it_lost_everything_counts_afterwards(many, rate, options, moment):
    """It is used in the time from which the new pool saves nothing up."""
    with Fleet(rates=[rate], concurrency=8 if "takes" in options else None) as fleet:
        fleet.join(many)
        fleet.work(**options)
        fleet.run(moment)
        fleet.store._pools._kept.clear()
        fleet.run(3)
        (limit,) = read_rates(rate)
        assert fleet.excess(limit.amount, limit.burst) <= 0
        assert all(process.seen.of(events.StoreForgot) for process in fleet.processes)
        assert len(fleet.times(fleet.now - 1)) >= 0.9 * limit.amount


@pytest.mark.parametrize(
    ("rate", "burst", "trips"),
    [
        (2274, 25, [0.0] * 3),
        (978, 55, [0.001] * 8),
        (500, 20, [0.001] * 3),
        (55, 4, [0.003] * 8),
        (978, 55, [0.003] * 6 + [0.2]),
    ],
)
@pytest.mark.parametrize("first", ["flush", "stop"])
def test_callers_that_go_and_return_while_the_store_loses_everything_stay_within_the_rate(
    rate, burst, trips, first
):
    """What was granted to callers that have gone is not used in addition to what the new pool grants."""
    pick = Random(f"{rate} {len(trips)} {first}").uniform
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip)
        fleet.run(1)
        for turn in range(8):
            fleet.work(tasks=20)
            fleet.run(pick(0.1, 0.7))
            if first == "flush":
                fleet.store._pools._kept.clear()
            else:
                fleet.stop_work()
            fleet.run((0, pick(0, 0.05), pick(0, 0.4))[turn % 3])
            fleet.store._pools._kept.clear()
            fleet.stop_work()
            fleet.run((pick(0, 0.6), 0, pick(0, 0.05))[turn % 3])
        fleet.work(tasks=20)
        fleet.run(4)
        assert fleet.excess(rate, burst) <= 0
        assert len(fleet.times(fleet.now - 1)) >= 0.9 * rate


def test_a_process_that_joins_makes_the_parts_of_the_others_smaller_although_they_are_quiet():
    with Fleet(rates=["500/s"]) as fleet:
        for many in range(1, 6):
            fleet.join()
            fleet.run(1)
            parts = [process.gate._member._part.rates for process in fleet.processes]
            assert parts == [WHOLE // parts_for(many)] * many
            asked = sum(process.asked for process in fleet.processes)
            fleet.run(30)
            assert sum(process.asked for process in fleet.processes) <= asked + many  # quiet again


@pytest.mark.parametrize(("on_loss", "inside"), [("share", 10), ("closed", 0), ("open", 40), ("lease", 0)])
def test_on_loss_holds_for_places_alone(on_loss, inside):
    """Four processes that were quiet before. Without rates, too, "closed" admits nothing."""
    with Fleet(concurrency=10, on_loss=on_loss) as fleet:
        fleet.join(4)
        fleet.run(4)
        lose_the_store(fleet)
        fleet.work(tasks=15, takes=0.1)
        fleet.run(1)
        assert fleet.most_inside() == inside


@pytest.mark.parametrize("many", [4, 16])
def test_places_are_never_exceeded_when_the_store_is_lost_in_the_middle_of_calls(many):
    """Also with more processes than places: some of them have none."""
    with Fleet(concurrency=10) as fleet:
        greedy, *_light = fleet.join(many)
        fleet.run(1)
        fleet.work(greedy, tasks=10, takes=0.05)
        fleet.run(1)
        lose_the_store(fleet)
        fleet.work(tasks=10, takes=0.05)
        fleet.run(2)
        assert fleet.most_inside() <= 10
        lost = fleet.now
        fleet.run(4)
        assert fleet.most_inside() <= 10
        assert len(fleet.times(lost)) >= 0.5 * 10 * 4 / 0.05


@pytest.mark.parametrize(("on_loss", "most"), [("share", 1.25), ("lease", 1.0)])
def test_a_process_that_is_cut_off_alone_uses_its_part_in_addition_unless_on_loss_is_lease(on_loss, most):
    """One of four hears nothing of the store for 6 seconds, and the others ask on."""
    with Fleet(rates=["500/s"], on_loss=on_loss) as fleet:
        alone, *_others = fleet.join(4)
        fleet.run(0.5)
        fleet.work(tasks=50)
        fleet.run(3)
        alone.line.dead = True
        cut_off = fleet.now
        fleet.run(6)
        used = len(fleet.times(cut_off)) / (500 * 6)
        assert most - 0.05 <= used <= most + 0.01
        if on_loss == "lease":
            assert fleet.excess(500, 500) <= 0
            assert sum(at > cut_off + 3 for at in alone.times) == 0  # nothing after a lease
        assert len(alone.seen.of(events.StoreLost)) == 1


# -- the arithmetic


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefg"), st.booleans(), st.sampled_from([0, 1_000, PRESENT // 2])),
        max_size=60,
    ),
    st.integers(0, 12),
)
def test_the_parts_that_processes_go_by_never_add_up_to_more_than_the_whole(steps, places):
    """Processes ask in any order, and some leave. One that is silent for long is not heard of again."""
    pool, now = Pool(), START
    goes_by, asked = {}, {}
    for who, leaves, gap in steps:
        now += gap
        told = goes_by.get(who, [0, 0])
        given_part = answer(pool, question(who, limits=[places, 0, 0, 0], part=told, leaves=leaves), now)[
            "part"
        ]
        goes_by[who], asked[who] = given_part[:2], now
        present = [name for name, at in asked.items() if now - at < PRESENT]
        goes_by = {name: part for name, part in goes_by.items() if name in present}
        assert sum(part[0] for part in goes_by.values()) <= WHOLE
        assert sum(part[1] for part in goes_by.values()) <= places


@pytest.mark.parametrize("many", [1, 2, 3, 5, 7, 16, 40])
def test_each_process_has_an_equal_part_when_all_have_asked(many):
    pool, parts = Pool(), {f"m{n:02}": [0, 0] for n in range(many)}
    for _ in range(3):
        for name, part in parts.items():
            parts[name] = answer(pool, question(name, limits=[10, 0, 0, 0], part=part), START)["part"][:2]
    even = WHOLE // parts_for(many)
    assert all(even <= part[0] <= even + 1 for part in parts.values())
    assert sum(part[1] for part in parts.values()) >= 10 * many // parts_for(many) - 1


def told_for(pool, *askers, at):
    """Have members ask a pool that follows another one; answer what the last one is told."""
    facts = {"rates": RATE, "born": 1, "part": [WHOLE, 0]}
    for who, granted_for in askers:
        given = answer(pool, question(who, granted_for=granted_for, **facts), at)
    return given["granted_for"]


def test_a_pool_that_follows_a_lost_one_goes_by_what_any_member_knows_of_it_and_tells_it_to_all():
    """A member far away made it longer. It has not asked again, and the store may lose that pool as well."""
    first, lost = Pool(), START
    told = told_for(first, ("a", 150 * MILLI), ("b", 600 * MILLI), ("c", 300 * MILLI), at=lost)
    assert told == 600 * MILLI
    second, lost = Pool(), lost + 100 * MILLI
    told = told_for(second, ("c", told), ("a", 150 * MILLI), at=lost)
    assert told == 600 * MILLI
    given = answer(second, question("a", rates=RATE, batches=[[1]], waiting=1), lost + 400 * MILLI)
    assert 400 * MILLI + given["starts"][0] >= told
    assert answer(second, question("a", rates=RATE), lost + SECOND)["granted_for"] < told  # that is over


def test_there_are_at_most_half_as_many_parts_more_as_processes():
    for many in range(1, 2_000):
        assert many <= parts_for(many) <= max(many, 1.5 * many)
