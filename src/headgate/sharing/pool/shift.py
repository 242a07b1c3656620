"""Pure. Shifts: times for which members far from the store have the rates to themselves.

What such a member is granted may be used later than the pool means, by up to its `doubt`. If the burst is of
too few calls to keep an even part of the rates for each of them (`flow.py`), calls of two members would come
together. So they use the rates one after the other, each for a shift, and the members near the store have
theirs together. Behind the shift of a member that is far, so much time is left free as its calls may be
late: its *gap*. The longer the shifts are, the less is lost by gaps, and the longer others wait.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rate import PoolRate

if TYPE_CHECKING:
    from .state import MemberState, Pool

# A member goes on until it had a turn more than the others, and begins when it had a turn less. A round of
# all members lasts so many times as long as all gaps in it, but not much longer than this. No shift is
# shorter than the gap behind it, if there are callers for it.
GAPS = 10
LONGEST_ROUND = 10_000_000


def turn_apart(pool: Pool, member: MemberState, many: int, now: int) -> int:
    """Return how long a turn of members far away is, if that many members are short. 0: there are none."""
    members = pool.members.values()
    gaps = sum(each.gap for each in members if each is member or each.short_until > now)
    return min((GAPS - 1) * gaps, LONGEST_ROUND) // many * (many - 1) // many


def others_first(pool: Pool, member: MemberState, who: str, turn: int, now: int) -> bool:
    """Return whether the members whose shift it is go on first, or others are to begin the next one."""
    apart = pool.apart
    if apart == who:
        return False
    return any(
        _goes_on(pool, name, each, member, turn)
        if apart or member.gap
        else each.gap and member.served >= each.served + turn
        for name, each in pool.members.items()
        if each is not member and each.short_until > now
    )


def _goes_on(pool: Pool, name: str, each: MemberState, member: MemberState, turn: int) -> bool:
    """Return whether it is the shift of `each`, which has not had a turn more than the member."""
    theirs = name == pool.apart if pool.apart else not each.gap and not each.flows
    return theirs and (each.served < member.served + turn or (pool.apart == name and pool.prepaid > 0))


def take_shift(pool: Pool, member: MemberState, who: str, now: int, *, briefly: bool, few: bool) -> None:
    """Have the shift be that of this member, or of all that are near. The gap of the last one passes.

    `briefly`: only because the rates would run dry. Others come first that had less. `few`: few callers are
    in line. However little they had, the next shift of others ends no sooner than after a turn.
    """
    apart = who if member.gap else ""
    if pool.apart == apart:
        return
    for rate in pool.rates:
        if isinstance(rate, PoolRate):
            rate.full_at += rate.gap
            rate.gap = 0
    short = [each.served for each in pool.members.values() if each is not member and each.short_until > now]
    if few and short:
        member.served = max(member.served, min(short))
    # A member that has few calls has as much time as the others, not as many calls: each shift costs a gap.
    pool.apart, pool.prepaid = apart, 0 if briefly else member.gap
    member.served += member.gap


def serve(pool: Pool, member: MemberState, takes: int) -> None:
    """Count what was granted to the member whose shift it is, and leave a gap behind it."""
    paid = min(pool.prepaid, takes)
    pool.prepaid -= paid
    member.served += takes - paid
    if member.gap:
        for rate in pool.rates:
            if isinstance(rate, PoolRate):
                rate.gap = max(rate.gap, member.gap)
