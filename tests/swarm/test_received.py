"""Which updates of other agents are applied to a total, and what they leave of it."""

import pytest

from headgate.arguments import SECOND
from headgate.swarm import update
from headgate.swarm.recovery import Level, Stepwise, Total
from headgate.swarm.update import CapacityUpdate, ReceivedUpdate, UpdateFilter

WALL = 1_800_000_000 * SECOND  # since 1970
CURVE = Stepwise((1, 2), (11, 10), 30 * SECOND, beyond=False)


def received(new_capacity=50, *, agent="go", at=WALL, run="", sequence=0, level=None, retry_after=None):
    said = CapacityUpdate(
        resource="api",
        agent_id=agent,
        new_capacity=new_capacity,
        reason="429",
        timestamp_ns=at,
        retry_after=retry_after,
    )
    return ReceivedUpdate(said, run, sequence, level)


def total(base=100):
    return Total(base, CURVE, 0)


def why_not(said, known=None, now=SECOND):
    return UpdateFilter().why_not(said, total() if known is None else known, WALL, now)


def test_an_update_of_a_go_agent_cuts_the_total_once_an_episode():
    known, heard = total(), UpdateFilter()
    assert heard.why_not(received(50), known, WALL, SECOND) == ""
    assert received(50).cut(known, SECOND)
    assert known.amount == 50
    again = received(20, at=WALL + 1)
    assert heard.why_not(again, known, WALL, 2 * SECOND) == "same episode"
    assert not again.cut(known, 2 * SECOND)
    assert known.amount == 50
    later = 40 * SECOND
    assert heard.why_not(received(20, at=WALL + 2), known, WALL, later) == ""
    assert received(20).cut(known, later)
    assert known.amount == 20


def test_an_update_that_is_not_lower_than_the_total_changes_nothing():
    known = total()
    assert why_not(received(100), known) == "not lower"
    assert not received(100).cut(known, SECOND)
    assert known.amount == 100


def test_an_update_that_only_asks_for_a_pause_is_applied_whatever_its_total():
    assert why_not(received(100, retry_after=5.0)) == ""


@pytest.mark.parametrize("amount", [0, -1, -(1 << 63)])
def test_a_total_below_one_is_out_of_range(amount):
    assert why_not(received(amount)) == "out of range"


def test_a_level_of_more_cuts_than_there_can_have_been_since_1970_is_out_of_range():
    most = WALL // SECOND + 600
    for epoch, why in ((most, ""), (most + 1, "out of range")):
        assert why_not(received(run="a", sequence=1, level=Level(epoch, 100, 50, 100, 0))) == why


def test_a_level_with_fewer_cuts_than_are_known_is_stale_and_one_that_would_raise_is_not_lower():
    known = total()
    assert received(run="a", sequence=1, level=Level(2, 100, 25, 50, 0)).cut(known, SECOND)
    assert known.amount == 25
    for level, why in (
        (Level(1, 100, 10, 100, 0), "stale"),
        (Level(3, 100, 40, 50, 0), "not lower"),
        (Level(3, 100, 20, 25, 0), ""),
    ):
        assert why_not(received(run="a", sequence=2, level=level), known) == why


@pytest.mark.parametrize(("run", "sequences"), [("", (0, 0, 0)), ("run", (7, 7, 6))])
def test_every_update_of_a_sender_counts_once_and_in_order(run, sequences):
    heard = UpdateFilter()
    whys = [
        heard.why_not(received(50, at=WALL - late, run=run, sequence=sequence), total(), WALL, SECOND)
        for late, sequence in zip((0, 0, 1), sequences, strict=True)
    ]
    assert whys == ["", "stale", "stale"]
    assert heard.why_not(received(50, agent="another", run=run), total(), WALL, SECOND) == ""


@pytest.mark.parametrize("ahead", [5, 300, 3_600, 250_000_000])
def test_an_update_with_a_time_of_the_future_counts_once_and_does_not_keep_later_ones_from_counting(ahead):
    heard, known = UpdateFilter(), total()
    early = received(99, at=WALL + ahead * SECOND)
    assert heard.why_not(early, known, WALL, SECOND) == ""
    assert heard.why_not(early, known, WALL + SECOND, 2 * SECOND) == "stale"
    later = received(50, at=WALL + 2 * SECOND)
    assert heard.why_not(later, known, WALL + 2 * SECOND, 3 * SECOND) == ""
    assert heard.why_not(later, known, WALL + 3 * SECOND, 4 * SECOND) == "stale"
    assert heard.why_not(received(at=WALL - SECOND), known, WALL + 3 * SECOND, 4 * SECOND) == "stale"


def test_an_update_of_more_than_ten_minutes_ago_is_stale_and_one_without_a_time_is_not():
    assert why_not(received(at=WALL - 600 * SECOND)) == ""
    assert why_not(received(at=WALL - 600 * SECOND - 1)) == "stale"
    assert why_not(received(at=0)) == ""
    assert why_not(received(at=-62_135_596_800 * SECOND)) == ""


def test_of_too_many_senders_the_one_that_was_heard_first_is_forgotten(monkeypatch):
    """A stranger that invents senders fills no memory."""
    monkeypatch.setattr(update, "_MOST_SENDERS", 3)
    heard, known = UpdateFilter(), total()
    for number in range(4):
        assert heard.why_not(received(agent=f"agent-{number}"), known, WALL, SECOND) == ""
    assert len(heard._latest) == 3
    assert heard.why_not(received(agent="agent-1"), known, WALL, SECOND) == "stale"
    assert heard.why_not(received(agent="agent-0"), known, WALL, SECOND) == ""


def test_a_member_hears_of_a_cut_that_it_missed_and_never_of_more_than_its_own_curve_says():
    """What others say lowers the total at once, and raises it no faster than the known cut rises itself."""
    known = total()
    known.cut(0)
    assert known.amount == 50
    grown = known.level.after(600 * SECOND)
    assert not known.hear(grown, 31 * SECOND)
    assert known.amount == 55  # one interval has passed since the cut became known
    assert not known.hear(Level(2, 100, 90, 100, 0), 61 * SECOND)  # it was missed, or it is not true
    assert known.amount == 60
    assert known.epoch == 1
    assert not known.hear(Level(3, 100, 70, 100, 0), 200 * SECOND)  # by then 70 are allowed here too
    assert (known.amount, known.epoch) == (70, 3)
    assert known.hear(Level(4, 100, 30, 70, 0), 200 * SECOND)
    assert (known.amount, known.epoch) == (30, 4)


def test_what_the_leader_did_not_let_grow_others_raise_by_one_step_at_most():
    known = total()
    known.cut(0)
    for now in range(1, 601):
        known.hear(Level(1, 100, 50, 100, 0), now * SECOND)
        known.hear_leader(SECOND, now * SECOND)
    assert known.amount == 50
    assert not known.hear(Level(1, 100, 50, 100, 600 * SECOND), 600 * SECOND)
    assert known.amount == 55
    for now in range(601, 629):
        known.hear_leader(SECOND, now * SECOND)
        known.hear(Level(1, 100, 50, 100, 600 * SECOND), now * SECOND)
        assert known.amount == 55  # that step took a whole interval
    assert not known.hear(Level(1, 100, 50, 100, 600 * SECOND), 700 * SECOND)  # the leader was silent
    assert known.amount == 72


def test_a_member_that_knows_of_no_cut_goes_by_the_level_of_another_only_if_it_leaves_no_more():
    known = total()
    assert not known.hear(Level(1, 100, 100, 100, 0), 0)
    assert known.amount == 100
    beyond = Total(100, Stepwise((1, 2), (2, 1), SECOND, beyond=True), 0)
    assert not beyond.hear(Level(1, 100, 60, 100, SECOND), 0)  # it has grown to 120
    assert (beyond.amount, beyond.level) == (100, None)
