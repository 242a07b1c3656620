"""Members that could not ask their store and go by it again, all at the same moment: decisions and fleets."""

import pytest

from fleet import Fleet, unevenness
from headgate import events
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.reunion import BY_POOL, GAP, HUNG, LATE, LONGEST, REUNION, WAITS
from headgate.sharing.pool.state import Pool
from headgate.sharing.pool.trips import RoundTrips
from sharing.pool.pools import MILLI, RATE, SECOND, START, pool_level, question

# One unit in a millisecond, and a hundred at once.
SHORT, LONG = REUNION, REUNION + HUNG


def ask(pool, who, at, **facts):
    """Ask at so many milliseconds after the start. A member that could not ask tried a second before."""
    lost_for = SECOND if facts.get("apart", BY_POOL) != BY_POOL else 0
    facts = {"rates": RATE, "lost_for": lost_for, **facts}
    return answer(pool, question(who, **facts), START + at * MILLI)


def asked_until(pool, end, *, begin=0, who="busy"):
    """Have a member ask every 50 ms."""
    for at in range(begin, end, 50):
        ask(pool, who, at, waiting=1)


def refused(pool, who):
    """Have a member wait for more than there is."""
    assert ask(pool, who, 0, waiting=3_000, batches=[[10]] * 100)["ask_again_in"]


def test_the_first_member_that_could_not_ask_has_all_go_by_their_parts_until_the_same_moment():
    pool = Pool()
    for who in "abc":
        ask(pool, who, 0)
    assert ask(pool, "a", 5_000, apart=SHORT, lost_for=4 * SECOND)["apart"] == SHORT
    assert ask(pool, "b", 5_100, apart=SHORT, lost_for=4 * SECOND)["apart"] == SHORT - 100 * MILLI
    given = ask(pool, "c", 5_200, batches=[[1]], waiting=1)  # it was quiet, and has missed nothing
    assert (given["apart"], given["starts"], given["ask_again_in"]) == (SHORT - 200 * MILLI, [], 150 * MILLI)
    assert ask(pool, "a", 5_349, apart=WAITS)["apart"] == 1 * MILLI
    assert [ask(pool, who, 5_350)["apart"] for who in "abc"] == [0, 0, 0]


def test_the_others_are_called_when_it_begins():
    pool = Pool()
    ask(pool, "a", 0)
    before = pool.news
    ask(pool, "b", 5_000, apart=SHORT)
    assert pool.news != before


def test_it_lasts_longer_for_members_whose_questions_hung():
    pool = Pool()
    ask(pool, "a", 5_000, apart=SHORT)
    assert ask(pool, "b", 5_100, apart=LONG)["apart"] == LONG - 100 * MILLI
    assert ask(pool, "a", 5_200, apart=WAITS)["apart"] == LONG - 200 * MILLI
    assert ask(pool, "b", 5_300, apart=LONG)["apart"] == LONG - 300 * MILLI  # and not longer each time


@pytest.mark.parametrize("absurd", [{"apart": 1 << 60}, {"reach": 1 << 50}])
def test_no_member_can_make_the_others_wait_for_long(absurd):
    pool = Pool()
    refused(pool, "silent")
    assert ask(pool, "a", 5_000, **absurd)["apart"] == LONGEST


def test_afterwards_nothing_is_saved_up_and_what_is_told_late_counts_too():
    pool = Pool()
    ask(pool, "a", 0)
    ask(pool, "a", 5_000, apart=SHORT)
    ask(pool, "a", 5_360)
    assert pool_level(pool, START + 5_350 * MILLI) <= 10  # a tenth of the burst is kept back anyway
    before = pool_level(pool, START + 5_360 * MILLI)
    ask(pool, "b", 5_360, owed=[5])
    assert pool_level(pool, START + 5_360 * MILLI) == before - 5


def test_a_rate_that_fills_up_slowly_keeps_what_is_known_of_it():
    """Of a thousand an hour, what a minute earns is taken away, and what members tell."""
    pool, rate = Pool(), [[1_000, 3_600 * SECOND, 1_000]]
    ask(pool, "a", 0, rates=rate)
    ask(pool, "a", 5_000, rates=rate, apart=SHORT, owed=[10])
    ask(pool, "a", 6_000, rates=rate)
    assert 1_000 - 10 - 17 - 1 <= pool_level(pool, START + 6_000 * MILLI) <= 1_000 - 10


def test_what_was_used_of_a_strict_rate_is_what_members_tell():
    pool, rate = Pool(), [[100, 60 * SECOND, 100, 2]]
    ask(pool, "a", 0, rates=rate)
    ask(pool, "a", 5_000, rates=rate, apart=SHORT, owed=[10])
    ask(pool, "a", 6_000, rates=rate)
    assert pool.rates[0].left(START + 6_000 * MILLI) == 90


def test_a_member_that_was_alone_goes_by_the_pool_at_once_and_the_others_go_on():
    pool = Pool()
    ask(pool, "alone", 0)
    asked_until(pool, 5_000)
    assert ask(pool, "alone", 5_000, apart=LONG, lost_for=4 * SECOND)["apart"] == 0
    assert pool_level(pool, START + 5_000 * MILLI) <= 10
    assert ask(pool, "busy", 5_050, batches=[[1]], waiting=1)["starts"]


@pytest.mark.parametrize("gap", [GAP // MILLI - 1, GAP // MILLI + 1])
def test_a_gap_in_all_questions_means_that_the_store_could_not_be_asked(gap):
    pool = Pool()
    ask(pool, "alone", 0)
    asked_until(pool, 5_000)
    asked_until(pool, 6_000, begin=4_950 + gap)
    apart = ask(pool, "alone", 6_000, apart=SHORT, lost_for=SECOND + 100 * MILLI)["apart"]
    assert apart == (SHORT if gap * MILLI > GAP else 0)


def test_a_member_that_was_answered_late_goes_by_the_pool_at_once_with_nothing_saved_up():
    pool = Pool()
    ask(pool, "a", 0)
    assert ask(pool, "a", 5_000, apart=LATE, lost_for=600 * MILLI)["apart"] == 0
    assert pool_level(pool, START + 5_000 * MILLI) <= 10
    ask(pool, "b", 5_000, apart=SHORT)
    assert ask(pool, "a", 5_000, apart=LATE)["apart"] == SHORT  # others have to be waited for


def test_a_member_whose_callers_wait_and_that_is_silent_is_waited_for_once_when_questions_come_again():
    pool = Pool()
    refused(pool, "waiting")
    assert ask(pool, "quiet", 3_000, waiting=1, batches=[[1]])["apart"] == 0  # it may come in time
    assert ask(pool, "quiet", 3_300, waiting=1, batches=[[1]])["apart"] == REUNION + HUNG
    assert ask(pool, "quiet", 5_899, waiting=1, batches=[[1]])["apart"] == 1 * MILLI
    assert ask(pool, "quiet", 5_900, waiting=1, batches=[[1]])["apart"] == 0
    assert ask(pool, "quiet", 9_500, waiting=1, batches=[[1]])["apart"] == 0
    assert pool_level(pool, START + 9_500 * MILLI) > 90  # no member told that it could not ask


def test_a_member_that_is_killed_while_others_ask_is_not_waited_for():
    pool = Pool()
    refused(pool, "killed")
    asked_until(pool, 5_000)
    assert ask(pool, "quiet", 5_000, waiting=1, batches=[[1]])["apart"] == 0


@pytest.mark.parametrize("last", [{}, {"waiting": 1, "batches": [[1]]}])
def test_a_member_that_has_no_callers_or_was_granted_all_that_they_want_is_not_waited_for(last):
    pool = Pool()
    refused(pool, "quiet")
    ask(pool, "quiet", 200, **last)
    assert ask(pool, "another", 50_000, waiting=1)["apart"] == 0


def test_a_process_whose_callers_give_up_tells_it_and_is_not_waited_for():
    with Fleet(rates=["6/minute burst 1"]) as fleet:
        given_up, another = fleet.join(2)
        fleet.work(given_up, tasks=3)
        fleet.run(1)
        fleet.stop_work()
        fleet.run(8)
        fleet.work(another, tasks=3)
        began = fleet.now
        fleet.run(2)
        assert [at - began < 1.1 for at in another.times] == [True]
        assert sum(process.asked for process in fleet.processes) <= 12


# -- fleets, in virtual time


def lose(fleet, how, *, lost):
    for process in fleet.processes:
        setattr(process.line, how, lost)


@pytest.mark.parametrize("how", ["away", "dead"])
@pytest.mark.parametrize(
    ("rate", "burst", "trips"),
    [
        (200, 50, [0.002] * 2),
        (978, 14, [0.065, *[0.003] * 7]),
        (464, 404, [0.003] * 8),
        (200, 10, [0.233, *[0.002] * 4]),
    ],
)
def test_a_process_that_was_quiet_while_the_others_lost_the_store_stays_within_the_rate_beside_them(
    rate, burst, trips, how
):
    """Its first callers come when the store is back, and before the others have heard that it is."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        for trip in trips:
            fleet.join(trip=trip)
        quiet = fleet.processes[-1]
        fleet.run(1)
        fleet.work(*fleet.processes[:-1], tasks=20)
        fleet.run(2)
        lose(fleet, how, lost=True)
        fleet.run(4.1)
        lose(fleet, how, lost=False)
        fleet.work(quiet, tasks=20)
        fleet.run(6)
        assert fleet.excess(rate, burst) <= 0
        assert not quiet.seen.of(events.StoreLost)
        assert all(process.seen.of(events.StoreRegained) for process in fleet.processes[:-1])
        steady = fleet.now
        fleet.run(3)
        assert len(fleet.times(steady)) >= 0.95 * rate * 3
        assert unevenness(fleet.parts(steady)) <= 0.15


def test_all_processes_go_by_the_pool_again_at_the_same_moment():
    """Each of them hears at another moment that the store is back. Those that are far end a little sooner."""
    with Fleet(rates=["500/s burst 100"]) as fleet:
        for n in range(6):
            fleet.join(trip=0.01 * n)
        fleet.work(tasks=20)
        fleet.run(2)
        lose(fleet, "dead", lost=True)
        fleet.run(3)
        lose(fleet, "dead", lost=False)
        fleet.run(8)
        moments = [process.seen.of(events.StoreRegained)[0].at for process in fleet.processes]
        assert max(moments) - min(moments) <= 0.05
        assert fleet.excess(500, 100) <= 0
        assert len(fleet.times(fleet.now - 2)) >= 0.97 * 500 * 2


def test_a_process_that_alone_could_not_ask_for_a_moment_costs_the_others_nothing():
    with Fleet(rates=["500/s burst 100"]) as fleet:
        alone, *_others = fleet.join(4, trip=0.002)
        fleet.work(tasks=50)
        fleet.run(3)
        alone.line.dead = True
        fleet.run(1)
        alone.line.dead = False
        back = fleet.now
        fleet.run(4)
        (regained,) = alone.seen.of(events.StoreRegained)
        assert regained.at <= back + 2.6  # the question that hung was given up by then
        assert len(fleet.times(back)) >= 0.98 * 500 * 4
        assert unevenness(fleet.parts(fleet.now - 1.5)) <= 0.1


@pytest.mark.parametrize("on_loss", ["closed", "lease"])
def test_processes_that_use_nothing_without_the_store_go_by_it_as_soon_as_it_answers(on_loss):
    with Fleet(rates=["500/s burst 100"], on_loss=on_loss) as fleet:
        fleet.join(4, trip=0.002)
        fleet.work(tasks=20)
        fleet.run(2)
        lose(fleet, "away", lost=True)
        fleet.run(4)
        lose(fleet, "away", lost=False)
        back = fleet.now
        fleet.run(3)
        assert len(fleet.times(back)) >= 0.9 * 500 * 2.7
        assert fleet.excess(500, 100) <= 0


def test_a_backoff_window_that_is_set_meanwhile_is_active_in_all_processes():
    with Fleet(rates=["500/s burst 100"], pause=True) as fleet:
        fleet.join(3, trip=0.002)
        fleet.work(tasks=20)
        fleet.run(2)
        lose(fleet, "dead", lost=True)
        fleet.run(3)
        lose(fleet, "dead", lost=False)
        fleet.run(2.6)
        fleet.processes[0].gate.set_backoff(2.0)
        fleet.run(0.2)
        began = fleet.now
        fleet.run(1.7)
        assert fleet.times(began) == []
        fleet.run(2)
        assert fleet.excess(500, 100) <= 0
        assert len(fleet.times(began)) > 100


@pytest.mark.parametrize(("rate", "burst", "trip"), [(2000, 200, 0.5), (464, 20, 0.5), (464, 20, 0.2)])
def test_processes_that_missed_nothing_begin_with_their_parts_when_one_far_away_has_used_what_it_had(
    rate, burst, trip
):
    """One process cannot ask for a moment. Quiet ones have their first callers when the others hear of it."""
    with Fleet(rates=[f"{rate}/s burst {burst}"]) as fleet:
        (alone,), (far,), quiet = fleet.join(trip=0.002), fleet.join(trip=trip), fleet.join(3, trip=0.002)
        fleet.run(2)
        fleet.work(far, tasks=400)
        fleet.run(3)
        fleet.work(alone, tasks=1, pause=0.9)
        fleet.run(0.5)
        alone.line.away = True
        fleet.run(1)
        alone.line.away = False
        fleet.run(0.3)
        fleet.work(*quiet, tasks=100)
        fleet.run(4)
        assert fleet.excess(rate, burst) <= 0
        assert len(fleet.times(fleet.now - 1)) >= 0.7 * rate


@pytest.mark.parametrize("quiet", [1, 6])
def test_processes_that_missed_nothing_have_the_places_that_the_pool_grants(quiet):
    """One has all places for long. Of those only the part of the one that lost the store is above."""
    with Fleet(rates=["100/s burst 50"], concurrency=16) as fleet:
        busy, alone, *others = fleet.join(2 + quiet, trip=0.002)
        fleet.run(8)
        fleet.work(busy, tasks=16, takes=10)
        fleet.run(1)
        fleet.work(alone, tasks=1, takes=0.1)
        alone.line.away = True
        fleet.run(2)
        alone.line.away = False
        fleet.work(*others, tasks=10, takes=5)
        fleet.run(6)
        assert fleet.most_inside() <= 17
        fleet.run(8)
        assert all(fleet.parts()[2:])


@pytest.mark.parametrize("early", [0.000_01, 0.001, 0.016])
def test_a_timer_that_rings_early_leaves_no_process_by_its_part(early):
    """The timers of some event loops are no more exact than that."""
    with Fleet(rates=["500/s burst 100"]) as fleet:
        fleet.join(2, trip=0.002)
        fleet.work(tasks=2, pause=0.3)
        fleet.run(2)
        loop = fleet._loop
        call_later = loop.call_later
        loop.call_later = lambda delay, act, *args: call_later(max(0, delay - early) or delay, act, *args)
        lose(fleet, "away", lost=True)
        fleet.run(3)
        lose(fleet, "away", lost=False)
        fleet.run(3)
        assert all(process.seen.of(events.StoreRegained) for process in fleet.processes)


def test_a_process_that_was_stopped_while_it_asked_does_not_take_that_time_for_a_round_trip():
    trips = RoundTrips()
    trips.note(50_000_000)
    trips.note(600 * 1_000_000_000)
    assert trips.typical == 50_000_000
