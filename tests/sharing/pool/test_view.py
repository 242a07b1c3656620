"""What is said of a shared pool, by states written down by hand."""

import pytest

from headgate import Rate
from headgate.sharing.pool.answer import as_of, new_pool
from headgate.sharing.pool.view import Member, Use, standing

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND  # as large as a server's clock will be for decades
PER_MINUTE = [600, 60 * SECOND, 100, 0, 0, [], []]  # ten a second; 90 may be booked at once


def member(*, lease=3, start=0, places=0, load=0, wants=0, wants_bytes=0, put_off=0, under_way=0, waiting=0):
    return [NOW + lease * SECOND, start, places, load, wants, wants_bytes, put_off, 0, 0, under_way, waiting]


def state(*, backlog=0.0, members=None, limits=(0, 0, 0, 10 * SECOND), window=None, units=("requests",)):
    """A pool of one rate that is as many seconds in debt, or of one for each unit."""
    rate = [*PER_MINUTE[:3], NOW + int(backlog * SECOND), *PER_MINUTE[4:]]
    return new_pool() | {
        "rates": [list(rate) for _ in units],
        "units": list(units),
        "limits": list(limits),
        "members": members or {},
        "window": [None if window is None else NOW + int(window * SECOND), 1],
        "version": 1,
        "now": NOW,
    }


def test_a_pool_that_nobody_has_used():
    seen = standing(as_of(new_pool(), NOW))
    assert seen == ((), Use(0, 0), Use(0, 0), 0, 0, (), ())


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
def test_how_a_rate_stands(backlog, level, next_one):
    (seen,) = standing(state(backlog=backlog)).levels
    assert seen.rate == Rate(600, 60, burst=100)
    assert (seen.level, seen.most, seen.next) == (level, 90, round(next_one * SECOND))


def test_who_holds_what():
    pool = state(
        members={
            "b-2-ff": member(places=30, load=1_000, under_way=26, waiting=7, lease=2),
            "a-1-ff": member(places=10, under_way=10),
        },
        limits=(64, 10, 5_000, 10 * SECOND),
    )
    seen = standing(pool)
    assert (seen.places, seen.bytes) == (Use(40, 64), Use(1_000, 5_000))
    assert seen.members == (
        Member("a-1-ff", under_way=10, waiting=0, places=10, bytes=0, lease=3 * SECOND),
        Member("b-2-ff", under_way=26, waiting=7, places=30, bytes=1_000, lease=2 * SECOND),
    )
    assert (seen.waiting, seen.waits) == (7, ())


def test_who_has_left_is_not_there():
    pool = state(members={"a-1-ff": member(), "b-2-ff": member(waiting=1)})
    assert [seen.name for seen in standing(pool).members] == ["b-2-ff"]


def test_the_dead_hold_nothing():
    pool = state(members={"a-1-ff": member(places=10), "b-2-ff": member(places=10, lease=2)})
    assert [seen.name for seen in standing(as_of(pool, NOW + 2 * SECOND)).members] == ["a-1-ff"]
    assert len(pool["members"]) == 2  # looking has changed nothing


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
            {"limits": (64, 0, 0, 0), "members": {"a": member(places=63), "b": member(places=1, wants=9)}},
            ["concurrency: all 64 places are taken"],
        ),
        (
            {"limits": (64, 0, 0, 0), "members": {"a": member(places=64, under_way=64)}},
            ["concurrency: all 64 places are taken"],
        ),
        (
            {
                "limits": (64, 5, 0, 10 * SECOND),
                "members": {"a": member(places=7, under_way=7)},
                "window": -8,
            },
            ["concurrency: all 5 places are taken for another 2.0 s"],
        ),
        (
            {"limits": (0, 5, 0, 10 * SECOND), "members": {"a": member(places=5, wants=6)}, "window": 1},
            ["window: 1.0 s left", "concurrency: all 5 places are taken"],
        ),
        ({"limits": (64, 5, 0, 10 * SECOND), "members": {"a": member(under_way=7)}, "window": -11}, []),
        ({"limits": (0, 0, 0, 0), "members": {"a": member(places=9, under_way=9)}}, []),
        (
            {"limits": (0, 0, 99, 0), "members": {"a": member(load=99, wants_bytes=100)}},
            ["bytes: as many as may be are under way"],
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
def test_why_others_wait(facts, waits):
    assert standing(state(**facts)).waits == tuple(waits)


def test_of_several_rates_the_one_that_takes_longest_is_named_first():
    pool = state(backlog=9.5, units=["requests", "tokens"])
    pool["rates"][1][3] += SECOND
    assert standing(pool).waits == ("tokens/minute: next in 1.6 s", "requests/minute: next in 0.6 s")
