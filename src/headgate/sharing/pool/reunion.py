"""Pure. How the members of a pool go by it again, when they could not ask its store for a while.

A member that could not ask goes by its part of the limits, and each of them hears at another moment that
the store is back. If one were granted units while others still use their parts, both together would be too
much. So the first one that asks again begins a reunion, and until its end all members go by their parts,
those that have missed nothing, too. Then all go by the pool, with nothing saved up: parts are no more than
the rates earn.

While the store answers questions without a gap, it is there, and a member that could not ask was alone with
that. It goes by the pool at once. And if questions come again after a gap, while a member whose callers were
waiting before is silent, it may go by its part: there is a reunion, too.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts import ASKS_BY, PRESENT, UNTIL
from .rate import PoolRate

if TYPE_CHECKING:
    from .question import Question
    from .state import Pool

# If questions come more often than that, the store can be asked: a member that takes it for lost has waited
# for longer (trips.py).
GAP = 200_000
# What a member says for how long others may go by their parts that could not ask either, if that is no time:
# it goes by the pool; it goes by its part and knows until when, or it uses nothing; or its question was
# answered, but late.
BY_POOL, WAITS, LATE = 0, -1, -2
# After how long without an answer a question that hangs is given up, besides two round trips.
HUNG = 2_250_000
# No member can make the others wait for longer than that.
LONGEST = 10_000_000
# For how long members are waited for that hear that the store is back a moment later: they ask every quarter
# of a second. As long is a pool that follows a lost one without grants.
REUNION = 350_000


def reunite(pool: Pool, question: Question, now: int) -> int:
    """Return for how long from now on the member goes by its part."""
    if 0 < pool.reunion_until <= now:
        if pool.reunion_from:
            _begin_empty(pool, pool.reunion_until)
        pool.reunion_from = pool.reunion_until = 0
    if now > pool.asked_until + GAP:
        pool.asked_from = now
    pool.asked_until, apart = now, min(question["apart"], LONGEST)
    alone = pool.asked_from <= now - question["lost_for"] - question["reach"]
    if pool.reunion_until:
        if apart > 0 or apart == LATE:
            pool.reunion_from = pool.reunion_from or now
            pool.reunion_until = max(pool.reunion_until, pool.reunion_from + apart)
    elif apart == LATE or (apart > 0 and alone):
        _begin_empty(pool, now)  # what it used is not known, and others may have used as much
    elif apart > 0:
        pool.reunion_from = now
        _begin(pool, now, apart)
    elif apart == BY_POOL and _one_is_silent(pool, question["member"], now):
        farthest = max(each.reach for each in pool.members.values())
        _begin(pool, now, REUNION + HUNG + 3 * max(farthest, question["reach"]))
    return max(0, pool.reunion_until - now)


def asks_by(question: Question, ask_again_in: int, now: int) -> int:
    """Return when a member has asked again, if its callers wait for more and it can; else 0."""
    waits = ask_again_in and question["waiting"] and question["apart"] == BY_POOL
    return now + max(ask_again_in, question["lease"]) + 2 * question["reach"] if waits else 0


def _one_is_silent(pool: Pool, who: str, now: int) -> bool:
    """Return whether another member, whose callers wait, was last heard before questions came with a gap."""
    return any(
        0 < each[ASKS_BY] < now and each[UNTIL] - PRESENT < pool.asked_from
        for name, each in pool.present.items()
        if name != who
    )


def _begin(pool: Pool, now: int, length: int) -> None:
    pool.reunion_until = now + min(length, LONGEST)
    for each in pool.present.values():
        each[ASKS_BY] = 0  # it is waited for now, and not again
    pool.called = pool.next_stamp()


def _begin_empty(pool: Pool, at: int) -> None:
    """Save nothing up before that moment. What was used of a strict rate has been told."""
    for rate in pool.rates:
        if isinstance(rate, PoolRate):
            rate.begin_empty(at, pool.next_stamp)
