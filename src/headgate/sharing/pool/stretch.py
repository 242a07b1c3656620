"""Pure. Stretches of time for which members far from the store have the rates to themselves.

What such a member is granted may be used later than the pool means, by up to its `doubt`. If the burst is of
too few calls to keep an even part of the rates for each of them (`flow.py`), calls of two members would come
together. So they use the rates one after the other, each for a stretch, and the members near the store have
theirs together. Behind the stretch of a member that is far, so much time is left free as its calls may be
late: its *guard*. The longer the stretches are, the less is lost by guards, and the longer others wait.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rate import PoolRate

if TYPE_CHECKING:
    from .state import MemberState, Pool

# A member goes on until it had a turn more than the others, and begins when it had a turn less. So a round of
# all members lasts two turns of each. Guards take a tenth of it, or more if it would last longer than this.
GUARDED = 10
LONGEST_ROUND = 10_000_000


def turn_apart(pool: Pool, member: MemberState, many: int, now: int) -> int:
    """Return how long a turn is at least, if that many members are short and some of them go apart."""
    members = pool.members.values()
    guards = [each.guard for each in members if each is member or each.short_until > now]
    turn = min((GUARDED - 1) * sum(guards), LONGEST_ROUND) // many
    return max(turn * (many - 1) // many, max(guards) // 2)


def goes_on_first(pool: Pool, member: MemberState, who: str, turn: int, now: int) -> bool:
    """Return whether the members whose stretch it is go on before this one begins another."""
    if pool.apart == who or (not pool.apart and not member.guard):
        return False
    return any(
        (name == pool.apart or (not pool.apart and not each.guard and not each.flows))
        and each.short_until > now
        and each.served < member.served + turn
        for name, each in pool.members.items()
    )


def take_stretch(pool: Pool, member: MemberState, who: str) -> None:
    """Have the stretch be that of this member, or of all that are near. The guard of the last one passes."""
    apart = who if member.guard else ""
    if pool.apart == apart:
        return
    for rate in pool.rates:
        if isinstance(rate, PoolRate):
            rate.full_at += rate.guard
            rate.guard = 0
    # A member that has few calls has as much time as the others, not as many calls: each costs a guard.
    pool.apart, pool.prepaid = apart, member.guard
    member.served += pool.prepaid


def serve(pool: Pool, member: MemberState, takes: int) -> None:
    """Count what was granted to the member whose stretch it is, and guard what comes after it."""
    paid = min(pool.prepaid, takes)
    pool.prepaid -= paid
    member.served += takes - paid
    if member.guard:
        for rate in pool.rates:
            if isinstance(rate, PoolRate):
                rate.guard = max(rate.guard, member.guard)
