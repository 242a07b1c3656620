"""Pure. How a pool grants batches of units to its members.

A member asks for *batches*: what its next few calls cost together. Each batch is given a start, the moment
at which it fits every rate, and is charged at that moment. Members that want more than there is take turns:
what each was granted is summed up, as time of the rate, and a member that had more than another one that is
short by a turn is granted no more, unless the rate would run dry. Where the one that had least is content, it
may want no more: then the others have a turn each, in order, as the rate would run dry. Each batch has a
stamp, and the member returns what it did not need of a batch by that stamp.

Units of a strict rate come back together. Members that are short divide them: each is granted no more than
brings all of them to the same sum. What no member has come for a moment later goes to those that wait for it.

Members that are far from the store and want much do not take turns: each has a part of the rate (`flow.py`),
or, if the burst is too small for that, the whole rate for a while (`shift.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .flow import (
    HALF,
    MOST_LONGER,
    WHOLE,
    alone,
    are_few,
    beside,
    is_far,
    keep,
    keep_beside,
    kept_for,
    kept_from_now,
    room_from,
    together,
)
from .rate import PoolRate
from .shift import others_first, serve, take_shift, turn_apart
from .strict import StrictPoolRate

if TYPE_CHECKING:
    from .question import Question
    from .state import MemberState, Pool

# For how long in advance all members that are short are granted batches, in microseconds: so many calls each,
# within these bounds; and longer by the longest round trip.
CALLS = 10
LEAST_AHEAD = 150_000
MOST_AHEAD = 800_000
# How long before the next batch can start it is granted to any member, and for how much longer than that a
# member that is short is waited for.
EARLY = 20_000
SOONEST = 1_000
GRACE = 200_000
# Units of a strict rate that a member leaves to others are those of this group if it did so lately.
LATELY = 100_000
# If there is room for more batches than that in a strict rate, it is divided as if there was for so many.
ENOUGH = 128
# How far ahead of its start any batch is granted: returns of other members may make it sooner. A member whose
# batch is put off asks again after AGAIN, and is granted it after FAR.
FAR = 2_000_000
AGAIN = 500_000
# A doubt that is more than two round trips and so much more has grown while the member was silent.
STALE = 5_000


def knows_rates(pool: Pool, question: Question) -> bool:
    """Return whether the question was asked under rates of the same units."""
    return len(question["owed"]) == len(pool.rates) and question["units"] == pool.units


def grant(pool: Pool, member: MemberState, question: Question, now: int) -> tuple[list[int], int]:
    """Return the start of each batch that is granted now, and when to ask again for the others."""
    starts: list[int] = []
    batches, until = question["batches"], pool.window.until
    if not batches or not knows_rates(pool, question):
        return starts, 0  # asked under other limits, the member is told these, and asks again
    if now < pool.grants_after:
        return starts, pool.grants_after - now
    if question["waits_for_window"] and until is not None and until > now:
        return starts, until - now
    if pool.window.probing:
        if pool.window.prober != question["member"]:
            return starts, AGAIN
        batches = batches[:1]  # for single calls
    gap, doubt = 0, question["doubt"]
    far = is_far(pool.rates, doubt, batches)
    if far and doubt > 2 * question["reach"] + STALE:
        return starts, SOONEST  # the member knows the clock better as soon as it has heard this
    if far and (member.flows or not are_few(pool.rates, batches)):
        flowing = _grant_flow(pool, member, question, batches, now)
        if flowing is not None:
            return flowing
        if not are_few(pool.rates, batches, HALF):
            gap = doubt
    member.gap = gap
    heard, forth = now + member.back, member.reach - member.back
    kept, less = kept_from_now(pool), together(pool)
    who, waiting = question["member"], question["waiting"]
    turns, level, level_at, pause = None, None, 0, SOONEST
    # If no more callers are in line than a turn has calls, a refusal changes nothing.
    few = waiting <= CALLS
    stays, member.content = few and member.content, 0
    for batch in batches:
        needs = [(rate, units) for rate, units in zip(pool.rates, batch, strict=True) if units]
        takes = max((rate.time_for(units) for rate, units in needs), default=0)
        apart = bool(member.gap) and pool.apart == who
        fits = max([now, *(rate.fits_at(units, now, less, apart=apart) for rate, units in needs)])
        # Not before the answer is heard: what is used later than it is charged would add to what others use.
        start = max(heard, beside(kept, fits, now))
        if turns is None:
            turns = _turns(pool, member, takes, now)
            ahead, least, light, turn, dry, turn_of_far = turns
            several = turn > takes  # else a turn is one batch, and there is nothing to save
            light = light and several and not gap
            had = 0 if least is None else least + turn
            enough, begun = had, member.served
            if light and begun >= had:
                first = _before(pool, member, who, had, now) == 0
                enough = begun + turn if start <= dry + first * turn else had
        strict = [(rate, units) for rate, units in needs if isinstance(rate, StrictPoolRate)]
        if strict and fits != level_at:
            # Others that come for what is there are waited for so long, and then it is late.
            reach = max((each.reach for each in pool.members.values() if each.short_until > now), default=0)
            pause = SOONEST + min(EARLY, reach)
            late = fits <= now and 0 < member.put_off <= now - pause
            room = min(min(rate.room(fits), ENOUGH * units) * takes // units for rate, units in strict)
            level, level_at = _level(pool, member, room, now, late=late), fits
        if strict and level is not None and member.served >= level:
            if late or not 0 < member.put_off <= now:
                member.put_off = fits
            again = fits + pause - forth
            member.short_until = max(again, member.last_start, now) + EARLY + 2 * member.reach + GRACE
            return starts, min(FAR, max(SOONEST, again - now))
        again, content = 0, few and 0 < waiting <= len(starts)
        most = begun + turn // 2 + member.reach
        if least is not None and several and content and member.served + takes > most:
            # It would return most of what it asks for besides, and others could not use it meanwhile.
            again = member.last_start - (dry - now) - forth
        elif start > dry:
            if member.last_start > now + (ahead if least is None else 2 * ahead):
                again = member.last_start - ahead
            elif any(rate.fits_at(units, now) == fits for rate, units in strict):
                pass  # it is divided by the level
            elif others_first(pool, member, who, turn_of_far, now):
                again = start - (dry - now) - forth
            elif light and member.served >= enough:
                # Half a turn earlier than the others leave it to this member: they may need less.
                halves = max(0, 2 * _before(pool, member, who, had, now) - 1)
                again = start - (dry - now) - forth + turn * halves // 2
            elif least is not None and member.served >= enough and not (apart and pool.prepaid):
                # It had its turn.
                next_start = member.last_start if member.last_start > dry else start
                again = next_start - (dry - now) - forth
        if again:
            member.content = int(content or (not starts and stays))
            member.short_until = max(again, member.last_start, now) + EARLY + 2 * member.reach + GRACE
            return starts, max(SOONEST, again - now)
        whole = 10 * kept[-1][1] > 9 * WHOLE
        if start > now + FAR and (whole or not member.put_off or now - member.put_off < FAR):
            # Not put off for longer than FAR: a large batch would never be granted. But where nearly all is
            # kept for flows, they will be smaller soon, because this member waits.
            member.put_off = member.put_off or now
            waits = kept[-1][1] or any(each.gap for each in pool.members.values())
            member.short_until = now + AGAIN + 2 * member.reach + GRACE if waits else 0
            return starts, min(start - FAR - now, AGAIN)
        member.put_off = 0
        stamp = pool.next_stamp()
        # The rates do not count what is kept as time that passes: for them, it is used sooner.
        used_by = start + question["doubt"]
        taken_at = max(fits, alone(kept, heard, now))
        later = 0 if member.gap else alone(kept, used_by, now) - taken_at
        take_shift(pool, member, who, now, briefly=least is not None and begun >= had, few=few)
        for rate, units in needs:
            rate.charge(units, taken_at, stamp, later)
            rate.tell_taken(units, start, question["doubt"])
        keep_beside(pool, kept, used_by)
        serve(pool, member, takes)
        member.last_start = start
        starts.append(start)
    # One that got all it asked for is short too if it has to wait for it: its callers may be back by then.
    # So it is where a rate is strict and many are in line: there may be units for all of them, and then none.
    many = not few and any(isinstance(rate, StrictPoolRate) for rate in pool.rates)
    waits = many or member.last_start > now + EARLY
    member.content = int(few)
    member.short_until = member.last_start + member.reach + GRACE if waits else 0
    return starts, 0


def _grant_flow(
    pool: Pool, member: MemberState, question: Question, batches: list[list[int]], now: int
) -> tuple[list[int], int] | None:
    """Do what `grant` does, for a member far from the store. None: its calls are too heavy for that."""
    starts: list[int] = []
    doubt = question["doubt"]
    sizes = [
        max(rate.time_for(units) for rate, units in zip(pool.rates, batch, strict=True)) for batch in batches
    ]
    lump = max(sizes)
    ahead, many = _turns(pool, member, lump, now)[0], _short(pool, member, now) + 1
    others = [each for each in pool.members.values() if each is not member and each.flows]
    # Other processes may want as much soon.
    present = 1 + sum(name != question["member"] for name in pool.present)
    lumps = max(lump * present, lump + sum(each.lump for each in others))
    if lumps > min(rate.time_for(rate.most) for rate in pool.rates):
        return None
    # From when on more can be kept: the others were told until then when to use what is not kept.
    fits = max(rate.fits_at(0, now, together(pool, lump)) for rate in pool.rates)
    more_from = beside(kept_from_now(pool), fits, now)
    if member.flows:
        begins = max(now + member.back, member.last_start)
        # Rather less than nothing.
        share = max(
            WHOLE // many // 2, min(WHOLE // many, WHOLE - sum(kept_for(each, begins) for each in others))
        )
        last = member.flows[-1][1]
        if len(member.flows) > 1:  # a smaller part is yet to begin
            share = max(share, last)
    else:
        member.lump = 0
        begins = max(now + member.back, more_from)
        share = last = WHOLE // max(many, present)  # more can be kept later
    # Others have a little of the rates before they are kept for them, too.
    share = max(1, min(share, WHOLE if present == 1 else WHOLE - WHOLE // MOST_LONGER))
    last = max(1, last)
    begins = room_from(others, share, begins)
    if begins > now + 2 * ahead:
        member.short_until = begins + member.reach + GRACE
        return starts, max(SOONEST, begins - 2 * ahead - now)
    at = begins
    for batch, takes in zip(batches, sizes, strict=True):
        if at > max(now + ahead, begins + ahead // 2):
            break
        at += -(-takes * WHOLE // (share if at >= more_from else min(share, last)))
        pool.next_stamp()
        for rate, units in zip(pool.rates, batch, strict=True):
            rate.tell_taken(units, at, doubt)
        member.served += takes
        starts.append(at)
    if at < more_from:  # until then others use the rest beside the part that was kept before
        share = min(share, last)
    keep(member, share, begins, at + doubt, now)
    member.lump = max(member.lump, lump)
    member.last_start = at
    member.put_off = 0
    member.expires = max(member.expires, at + doubt)
    member.short_until = at + member.reach + GRACE
    return starts, 0 if len(starts) == len(batches) else max(SOONEST, at - ahead - now)


def _short(pool: Pool, member: MemberState, now: int) -> int:
    """Return how many other members want more than they have."""
    return sum(each is not member and each.short_until > now for each in pool.members.values())


def _level(pool: Pool, member: MemberState, room: int, now: int, *, late: bool) -> int | None:
    """Return what members that are short may have had at most, if they divide that room. None: it is alone.

    If the member is `late`, they are those that have waited for this room, too.
    """
    others = [
        each.served
        for each in pool.members.values()
        if each is not member
        and each.short_until > now
        and not each.content
        and (not late or now - LATELY - each.reach < each.put_off <= now)
    ]
    if not others:
        return None
    served, level, left = sorted([member.served, *others]), 0, max(1, room)
    for many, (had, following) in enumerate(zip(served, [*served[1:], None], strict=True), 1):
        level = had + -(-left // many)
        if following is None or level <= following:
            break
        left -= (following - had) * many
    return level


def _before(pool: Pool, member: MemberState, who: str, had: int, now: int) -> int:
    """Return how many that had their turn, too, come before this member if the rate would run dry."""
    return sum(
        had <= each.served
        and (each.served, name) < (member.served, who)
        and each.short_until > now
        and not each.content
        for name, each in pool.members.items()
    )


def _turns(
    pool: Pool, member: MemberState, takes: int, now: int
) -> tuple[int, int | None, bool, int, int, int]:
    """How long in advance to grant, what the member had that is short and had least, whether that one is
    content, what a turn is, when the rate would run dry, and what a turn is of those that have shifts.

    All but the fifth in time of the rate. A turn is a batch, which takes that long, or more. No member stays
    behind another one by more than a turn of all. What starts before the member that is farthest away would
    hear of it is granted to any member: otherwise it could be used by none.
    """
    many = _short(pool, member, now) + 1
    # Those that have a part of their own do not take turns.
    short = [
        (each.served, -each.content)
        for each in pool.members.values()
        if each is not member and each.short_until > now and not each.flows and (member.gap or not each.gap)
    ]
    ahead = granted_ahead(time_for_calls(pool) * many)
    # Those that have a part of their own are not waited for.
    ahead += max([member.reach, *(each.reach for each in pool.members.values() if not each.flows)])
    turn, turn_of_far = max(takes, ahead // many), turn_apart(pool, member, many, now)
    # A turn of a strict rate is an even part of the period.
    periods = [rate.period // many for rate in pool.rates if isinstance(rate, StrictPoolRate)]
    behind = max(max(turn, turn_of_far) * many, 2 * LEAST_AHEAD, *periods)
    member.served = max([member.served, *(each.served - behind for each in pool.members.values())])
    latest = max(each.back for each in pool.members.values())
    least, content = min(short, default=(None, 0))
    turn = max(turn, turn_of_far) if member.gap else turn
    return ahead, least, content < 0, turn, now + EARLY + latest, turn_of_far


def time_for_calls(pool: Pool) -> int:
    """Return how long the calls of one turn take."""
    return min((rate.time_for(CALLS) for rate in pool.rates), default=0)


def granted_for(pool: Pool) -> int:
    """Return for how long members may use what they are granted, if all that there are want a turn.

    What is granted to any of them reaches as much further as the one that is farthest away is. One that had
    less than the others is granted up to twice as much. Half of the second half may be left when the others
    notice that the store is lost; they need not wait for what the pool keeps back for unused grants. A pool
    that follows a lost one tells what they may still use of that, too: it may be lost as well.
    """
    reach = max((each.reach for each in pool.members.values()), default=0)
    ahead = granted_ahead(time_for_calls(pool) * max(len(pool.present), len(pool.members)))
    tenths = (isinstance(rate, PoolRate) * rate.time_for(rate.burst // 10) for rate in pool.rates)
    more = max(0, ahead // 2 - min(tenths, default=0))
    return max(ahead + more + reach, pool.granted_until - pool.now)


def granted_ahead(turns: int) -> int:
    """Return for how long in advance batches are granted, if one turn of all members takes so long.

    A member that had less than the others is granted twice that, and one that is far away more.
    """
    return min(max(turns, LEAST_AHEAD), MOST_AHEAD)
