"""What `view_of` says of pools that are written down by hand."""

import pytest

from headgate import Rate
from headgate.sharing.pool.question import PoolLimits
from headgate.sharing.pool.rate import PoolRate
from headgate.sharing.pool.state import MemberState, Pool, PoolWindow
from headgate.sharing.pool.view import MemberView, Use, view_of

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND  # as large as a server's clock will be for decades


def member(*, lease=3, start=0, places=0, load=0, wants=0, wants_bytes=0, put_off=0, in_flight=0, waiting=0):
    return MemberState(
        NOW + lease * SECOND,
        last_start=start,
        holds=[places, load],
        wants=[wants, wants_bytes],
        put_off=put_off,
        in_flight=in_flight,
        waiting=waiting,
    )


def state(*, backlog=0.0, members=None, limits=(0, 0, 0, 10 * SECOND), window=None, units=("requests",)):
    """A pool of one rate that is full in `backlog` seconds, or of one such rate for each unit.

    Ten units a second, and 90 may be granted at once.
    """
    pool = Pool()
    full_at = NOW + int(backlog * SECOND)
    pool.rates = [PoolRate(600, 60 * SECOND, 100, full_at=full_at) for _ in units]
    pool.units = list(units)
    pool.limits = PoolLimits(*limits)
    pool.members = members or {}
    pool.window = PoolWindow(None if window is None else NOW + int(window * SECOND), 1)
    pool.version = 1
    pool.now = NOW
    return pool


def test_a_new_pool():
    seen = view_of(Pool().as_of(NOW))
    assert seen == ((), Use(0, 0), 0, Use(0, 0), 0, 0, (), ())


@pytest.mark.parametrize(
    ("backlog", "level", "next_one"),
    [
        (-100, 90, 0),  # full, and has been for long: a tenth of the burst is kept back
        (0, 90, 0),
        (4.0, 50, 0),
        (8.9, 1, 0),
        (9.0, 0, 0.1),
        (9.35, -4, 0.45),
        (20, -110, 11.1),
    ],
)
def test_the_level_of_a_rate(backlog, level, next_one):
    (seen,) = view_of(state(backlog=backlog)).levels
    assert seen.rate == Rate(600, 60, burst=100)
    assert (seen.level, seen.most, seen.next) == (level, 90, round(next_one * SECOND))


def test_what_each_member_holds():
    pool = state(
        members={
            "b-2-ff": member(places=30, load=1_000, in_flight=26, waiting=7, lease=2),
            "a-1-ff": member(places=10, in_flight=10),
        },
        limits=(64, 10, 5_000, 10 * SECOND),
    )
    seen = view_of(pool)
    assert (seen.places, seen.bytes) == (Use(40, 64), Use(1_000, 5_000))
    assert seen.members == (
        MemberView("a-1-ff", in_flight=10, waiting=0, places=10, bytes=0, lease=3 * SECOND),
        MemberView("b-2-ff", in_flight=26, waiting=7, places=30, bytes=1_000, lease=2 * SECOND),
    )
    assert (seen.waiting, seen.waits) == (7, ())


def test_a_member_that_has_left_is_not_shown():
    pool = state(members={"a-1-ff": member(), "b-2-ff": member(waiting=1)})
    assert [seen.name for seen in view_of(pool).members] == ["b-2-ff"]


def test_members_whose_lease_has_ended_hold_nothing():
    pool = state(members={"a-1-ff": member(places=10), "b-2-ff": member(places=10, lease=2)})
    assert [seen.name for seen in view_of(pool.as_of(NOW + 2 * SECOND)).members] == ["a-1-ff"]


LATER = "throttled by a backoff window; any number of places in 11 s"


@pytest.mark.parametrize(
    ("facts", "waits"),
    [
        ({}, []),
        ({"backlog": 8.9}, []),
        ({"backlog": 9.3}, ["requests/minute: next in 0.4 s"]),
        ({"backlog": 9.3, "units": ["tokens"]}, ["tokens/minute: next in 0.4 s"]),
        ({"window": 11.2}, ["window: 12 s left"]),
        ({"window": 11.2, "backlog": 20}, ["window: 12 s left"]),  # the rate is empty because of it
        ({"window": -1}, []),
        ({"limits": (64, 0, 0, 0), "members": {"a": member(places=63, wants=63)}}, []),
        ({"limits": (64, 0, 0, 0), "members": {"a": member(places=64)}}, []),  # held for what may come
        (
            {"limits": (64, 0, 0, 0), "members": {"a": member(places=5, wants=9)}},
            [],
        ),  # it has not asked again
        (
            {
                "limits": (64, 0, 0, 0),
                "members": {"a": member(places=63, in_flight=35), "b": member(places=1, wants=9)},
            },
            ["concurrency: processes hold all 64 places, 35 of them in use"],
        ),
        (
            {"limits": (64, 0, 0, 0), "members": {"a": member(places=64, in_flight=64)}},
            ["concurrency: all 64 places are taken"],
        ),
        (
            {
                "limits": (64, 5, 0, 10 * SECOND),
                "members": {"a": member(places=7, in_flight=7)},
                "window": -8,
            },
            ["concurrency: all 5 places are taken (throttled by a backoff window; 64 places in 2.0 s)"],
        ),
        (
            {"limits": (0, 5, 0, 10 * SECOND), "members": {"a": member(places=5, wants=6)}, "window": 1},
            ["window: 1.0 s left", f"concurrency: processes hold all 5 places, 0 of them in use ({LATER})"],
        ),
        ({"limits": (64, 5, 0, 10 * SECOND), "members": {"a": member(in_flight=7)}, "window": -11}, []),
        ({"limits": (0, 0, 0, 0), "members": {"a": member(places=9, in_flight=9)}}, []),
        (
            {"limits": (0, 0, 99, 0), "members": {"a": member(load=99, wants_bytes=100)}},
            ["bytes: as many as may be are in flight"],
        ),
        ({"limits": (0, 0, 99, 0), "members": {"a": member(load=99)}}, []),
        (
            {"backlog": 5, "members": {"a": member(put_off=NOW - SECOND)}},
            ["requests/minute: 40 left, and the next call needs more"],
        ),
        (
            {"backlog": 5, "members": {"a": member(start=NOW + 1)}},
            ["requests/minute: 40 left, and the next call needs more"],
        ),
    ],
)
def test_what_the_next_call_waits_for(facts, waits):
    assert view_of(state(**facts)).waits == tuple(waits)


def test_the_rate_that_takes_longest_is_named_first():
    pool = state(backlog=9.5, units=["requests", "tokens"])
    pool.rates[1].full_at += SECOND
    assert view_of(pool).waits == ("tokens/minute: next in 1.6 s", "requests/minute: next in 0.6 s")
