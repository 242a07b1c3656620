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

# A member goes on until it had a turn more than the others, and then the one begins that had least. A round
# of all members lasts so many times as long as all gaps in it, but not much longer than this.
GAPS = 10
LONGEST_ROUND = 10_000_000


def turn_apart(pool: Pool, member: MemberState, many: int, now: int) -> int:
    """Return how long a turn is at least, if that many members are short and some of them go apart."""
    members = pool.members.values()
    gaps = [each.gap for each in members if each is member or each.short_until > now]
    turn = min((GAPS - 1) * sum(gaps), LONGEST_ROUND) // many
    return max(turn * (many - 1) // many, max(gaps) // 2)


def goes_on_first(pool: Pool, member: MemberState, who: str, turn: int, now: int) -> bool:
    """Return whether the members whose shift it is go on before this one begins another."""
    if pool.apart == who or (not pool.apart and not member.gap):
        return False
    return any(
        (name == pool.apart or (not pool.apart and not each.gap and not each.flows))
        and each.short_until > now
        and each.served < member.served + turn
        for name, each in pool.members.items()
    )


def take_shift(pool: Pool, member: MemberState, who: str) -> None:
    """Have the shift be that of this member, or of all that are near. The gap of the last one passes."""
    apart = who if member.gap else ""
    if pool.apart == apart:
        return
    for rate in pool.rates:
        if isinstance(rate, PoolRate):
            rate.full_at += rate.gap
            rate.gap = 0
    # A member that has few calls has as much time as the others, not as many calls: each costs a gap.
    pool.apart, pool.prepaid = apart, member.gap
    member.served += pool.prepaid


def serve(pool: Pool, member: MemberState, takes: int) -> None:
    """Count what was granted to the member whose shift it is, and leave a gap behind it."""
    paid = min(pool.prepaid, takes)
    pool.prepaid -= paid
    member.served += takes - paid
    if member.gap:
        for rate in pool.rates:
            if isinstance(rate, PoolRate):
                rate.gap = max(rate.gap, member.gap)
