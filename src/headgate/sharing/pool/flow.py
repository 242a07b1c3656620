"""Pure. Parts of the rates of a pool that are kept for members far from its store: flows.

A member cannot tell how much of a round trip each of the two ways takes, so what it was granted may be used
later than the pool means, by up to its `doubt`. If a burst is earned in less time than that, units of several
such members would come together. So such a member is granted an even flow, a part of the rate for a time,
and the part is kept until the member cannot use it any more: an even flow is the same at any later time.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rate import FEW_PART, STRICT, PoolRate

if TYPE_CHECKING:
    from .state import AnyPoolRate, MemberState, Pool

# What all parts of a rate are together.
WHOLE = 1_000_000
# Units of a burst that is too small for flows are few if they are no more than half of it.
HALF = 2
# If the burst is of few batches, a member is far whose doubt is a larger part than that of the time in which
# the burst is earned.
FAR_PART = 8
# How many times longer members without a flow wait at most than they would without flows: others will soon be
# told a smaller part, because they wait.
MOST_LONGER = 100


def is_far(rates: list[AnyPoolRate], doubt: int, batches: list[list[int]]) -> bool:
    """Whether what a member of that doubt is granted has to be a flow, or a shift (shift.py).

    So it is sooner if the burst is of so few of these batches that none is kept back for those that may be
    used later (`PoolRate.charge`).
    """
    if any(rate.kind == STRICT for rate in rates):
        return False
    for i, rate in enumerate(rates):
        heavy = FEW_PART * max(batch[i] for batch in batches) > rate.most
        if (FAR_PART if heavy else HALF) * doubt > rate.time_for(rate.most):
            return True
    return False


def are_few(rates: list[AnyPoolRate], batches: list[list[int]], part: int = FEW_PART) -> bool:
    """Whether these are so few units, with those that may be used late, that they may come together.

    That is so if they are no more than that `part` of a burst.
    """
    return all(
        part * rate.time_for(sum(batch[i] for batch in batches) + rate.doubted) <= rate.time_for(rate.most)
        for i, rate in enumerate(rates)
        if isinstance(rate, PoolRate)
    )


def kept_for(member: MemberState, at: int = 0) -> int:
    """Return the part that is kept for a member, at that moment or later."""
    return max((share for until, share in member.flows if until > at), default=0)


def room_from(others: list[MemberState], share: int, at: int) -> int:
    """Return from when on, and not before `at`, that part can be kept beside those of these members."""
    ends = sorted(until for each in others for until, _share in each.flows if until > at)
    for end in [at, *ends]:
        at = end
        if sum(kept_for(each, at) for each in others) + share <= WHOLE:
            break
    return at


def _part_at(parts: list[list[int]], at: int, last: int = 0) -> int:
    """Return the part at that moment, if each of these is kept until then, and the next one from then on."""
    return next((share for until, share in parts if until > at), last)


def pass_by(pool: Pool, since: int) -> None:
    """Take from the rates what was kept since the pool was asked last."""
    now, used, begin = pool.now, 0, since
    flows = [member.flows for member in pool.members.values() if member.flows]
    ends = {until for parts in [*flows, pool.beside] for until, _share in parts if until > since}
    for end in sorted({min(until, now) for until in ends}):
        kept = sum(_part_at(flow, begin) for flow in flows)
        used += (end - begin) * max(kept, _part_at(pool.beside, begin))
        begin = end
    for member in pool.members.values():
        member.flows = [flow for flow in member.flows if flow[0] > now]
    pool.beside = [part for part in pool.beside if part[0] > now]
    if used:
        for rate in pool.rates:
            rate.flow_by(since, -(-used // WHOLE))


def kept_from_now(pool: Pool) -> list[list[int]]:
    """Return until when which part is kept for all members. The last one is for ever: flows will go on."""
    flows = [member.flows for member in pool.members.values() if member.flows]
    last = sum(flow[-1][1] for flow in flows)
    ends = {until for parts in (pool.beside, *(flow[:-1] for flow in flows)) for until, _share in parts}
    parts, begin = [], pool.now
    for end in sorted(ends):
        kept = sum(_part_at(flow, begin, flow[-1][1]) for flow in flows)
        parts.append([end, max(kept, _part_at(pool.beside, begin))])
        begin = end
    return [*parts, [0, last]]


def _free(kept: int) -> int:
    """Return what is left beside that part: at least a little, so that every moment comes."""
    return max(WHOLE - kept, WHOLE // MOST_LONGER)


def beside(kept: list[list[int]], at: int, now: int) -> int:
    """Return when that moment comes, if it was reckoned without what is kept from now on."""
    begin, left = now, at - now
    for until, part in kept[:-1]:
        passes = (until - begin) * _free(part) // WHOLE
        if left < passes:
            return begin + left * WHOLE // _free(part)
        begin, left = until, left - passes
    return begin + left * WHOLE // _free(kept[-1][1])


def alone(kept: list[list[int]], at: int, now: int) -> int:
    """Return which moment is reached by then, if it is reckoned without what is kept from now on."""
    begin = reached = now
    for until, part in kept[:-1]:
        if at < until:
            return reached + (at - begin) * _free(part) // WHOLE
        reached += (until - begin) * _free(part) // WHOLE
        begin = until
    return reached + (at - begin) * _free(kept[-1][1]) // WHOLE


def keep_beside(pool: Pool, kept: list[list[int]], until: int) -> None:
    """Keep that until then, if flows end before: others were told by it when they may use the rest."""
    until = max([until, *(end for end, _part in pool.beside)])
    parts = [each for each in kept[:-1] if each[0] < until]
    parts.append([until, _part_at(kept[:-1], until - 1, kept[-1][1])])
    if any(part for _end, part in parts):
        pool.beside = []
        for end, part in parts:
            part = WHOLE - _free(part)  # noqa: PLW2901 - in the same words as in the script
            if pool.beside and pool.beside[-1][1] == part:
                pool.beside[-1][0] = (
                    end  # each grant may add an end: so there are no more than there are parts
                )
            else:
                pool.beside.append([end, part])


def together(pool: Pool, lump: int = 0) -> int:
    """Return what may be used at once of all flows, as time of the rates. `lump`: of one more flow.

    Of each it is a batch, and another one that lies unused, if the burst is not of so few calls.
    """
    lumps = lump + sum(member.lump for member in pool.members.values() if member.flows)
    times = [rate.time_for(rate.most) for rate in pool.rates if isinstance(rate, PoolRate)]
    few = min(times, default=0) // FEW_PART
    return max(lumps, min(2 * lumps, few))


def keep(member: MemberState, share: int, begins: int, until: int, now: int) -> None:
    """Keep that part of the rates for a member. A larger one was told to it before: that is used first."""
    flows = member.flows
    if not flows and begins > now:
        flows.append([begins, 0])
        flows.append([until, share])
    elif flows and flows[-1][1] > share:
        flows.append([max(until, flows[-1][0]), share])
    elif flows:
        member.flows = [*flows[:-1], [max(until, flows[-1][0]), share]]
    else:
        flows.append([until, share])
