"""Pure. How a pool answers the questions of its members.

Each question is decided by itself, at one moment of the store's clock. The script for Valkey and Redis takes
the same decisions, step by step: `tests/stores` compares the two.

A member asks for *batches*: what its next few calls cost together. Each batch is given a start, the moment
at which it fits every rate, and is charged at that moment. A member whose last batch starts beyond HORIZON
is granted no more before that start comes near, so members that want more than there is take turns. Each
batch has a stamp, and the member returns what it did not need of a batch by that stamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .question import PoolLimits
from .rate import PoolRate
from .state import BYTES, PLACES, MemberState

if TYPE_CHECKING:
    from .question import Answer, Question
    from .state import Pool

# How far ahead of its start a batch is granted if the member has others, in microseconds.
HORIZON = 100_000
# How far ahead of its start any batch is granted: returns of other members may make it sooner. A member whose
# batch is put off asks again after AGAIN, and is granted it after FAR.
FAR = 2_000_000
AGAIN = 500_000


def answer(pool: Pool, question: Question, now: int) -> Answer:
    """Decide a question and change the pool. A question that was answered before is given the same answer."""
    who = question["member"]
    known = pool.members.get(who)
    if known is not None and known.answer is not None and question["id"] <= known.answered:
        return known.answer
    pool.advance(now)
    now = pool.now
    _read_limits(pool, question, now)
    member = pool.members.setdefault(who, MemberState())
    member.expires = now + question["lease"]
    _signal_window(pool, question["window"], now)
    if question["waits_for_window"]:
        _resume(pool, now)
    _charge_and_return(pool, question, now)
    starts, ask_again_in = _grant(pool, member, question, now)
    first_stamp = pool.stamp - len(starts) + 1
    places, load, crowded = _hold(pool, who, member, question, now)
    until = pool.window.until
    given: Answer = {
        "starts": [start - now for start in starts],
        "first_stamp": first_stamp,
        "ask_again_in": ask_again_in,
        "places": places,
        "bytes": load,
        "crowded": crowded,
        "members": len(pool.members),
        "version": pool.version,
        "window_left": 0 if until is None else max(0, until - now),
        "window_generation": pool.window.generation,
    }
    if question["version"] != pool.version:
        given["rates"] = [rate.terms for rate in pool.rates]
        given["limits"] = list(pool.limits)
        given["units"] = list(pool.units)
    if question["leaves"]:  # it stays known until its lease ends, in case it has to say so twice
        member = pool.members[who] = MemberState(member.expires)
    member.answered, member.answer = question["id"], given
    return given


# -- limits and the window


def _read_limits(pool: Pool, question: Question, now: int) -> None:
    """Take over limits that a member sets. What was used stays used."""
    if question["set"] is None and pool.version:
        return
    wanted, limits = question["set"] or (question["rates"], question["limits"])
    limits = PoolLimits(*limits)
    old = pool.rates
    if [rate.terms for rate in old] == wanted and pool.limits == limits:
        return
    units = question["units"]
    alike = len(wanted) == len(old) and (units == pool.units or not pool.version)
    if not alike and any(name != question["member"] for name in pool.members):
        return  # the other members ask for batches of the rates they know
    version = pool.version = pool.next_stamp()
    pool.rates = [_successor(old, i, terms, version, now) for i, terms in enumerate(wanted)]
    pool.limits = limits
    pool.units = list(units)


def _successor(old: list[PoolRate], i: int, terms: list[int], stamp: int, now: int) -> PoolRate:
    """Return the rate that replaces the i-th of the old ones. A change of limits creates no units."""
    amount, period, burst = terms
    rate = PoolRate(amount, period, burst, full_stamp=stamp)
    before = next((each for each in old if each.terms == terms), old[i] if i < len(old) else None)
    if before is not None:
        left = max(0, before.burst - before.missing(now))
        rate.full_at = now + rate.time_for(max(0, rate.burst - left))
    return rate


def _signal_window(pool: Pool, duration: int | None, now: int) -> None:
    """Start, extend or clear the window. A signal never makes it shorter, unless it clears it."""
    if not duration:
        return
    window = pool.window
    if duration < 0:
        window.until = now if window.until is None else min(window.until, now)
    elif window.until is None or now + duration > window.until:
        window.until = now + duration
    else:
        return
    window.generation = pool.next_stamp()


def _resume(pool: Pool, now: int) -> None:
    """After a window, let calls come back at the rate: nothing was saved up while it was active."""
    window = pool.window
    if window.until is not None and window.until != window.resumed and window.until <= now:
        for rate in pool.rates:
            rate.charge(0, window.until + rate.tolerance(), pool.next_stamp())
        window.resumed = window.until


# -- rates


def _charge_and_return(pool: Pool, question: Question, now: int) -> None:
    """Take back what was not needed, and charge what was used without a grant."""
    same_rates = len(question["owed"]) == len(pool.rates)
    for i, rate in enumerate(pool.rates):
        if rate.full_at <= now:
            rate.fill(pool.next_stamp())
        if same_rates:
            for units, stamp in question["returned"][i]:
                rate.take_back(units, stamp, now)
            if question["owed"][i]:
                rate.charge(question["owed"][i], now, pool.next_stamp())


def _grant(pool: Pool, member: MemberState, question: Question, now: int) -> tuple[list[int], int]:
    """Return the start of each batch that is granted now, and when to ask again for the others."""
    starts: list[int] = []
    if len(question["owed"]) != len(pool.rates):
        return starts, 0  # asked under other limits: the member is told these, and asks again
    batches, until = question["batches"], pool.window.until
    if batches and question["waits_for_window"] and until is not None and until > now:
        return starts, until - now
    for batch in batches:
        if member.last_start > now + HORIZON:
            return starts, member.last_start - HORIZON - now
        needs = [(rate, units) for rate, units in zip(pool.rates, batch, strict=True) if units]
        start = max([now, *(rate.fits_at(units, now) for rate, units in needs)])
        if start > now + FAR and (not member.put_off or now - member.put_off < FAR):
            # Not put off for longer than FAR: a large batch would never be granted.
            member.put_off = member.put_off or now
            return starts, min(start - FAR - now, AGAIN)
        member.put_off = 0
        stamp = pool.next_stamp()
        for rate, units in needs:
            rate.charge(units, start, stamp)
        member.last_start = start
        starts.append(start)
    return starts, 0


# -- places and bytes


def _hold(pool: Pool, who: str, member: MemberState, question: Question, now: int) -> tuple[int, int, bool]:
    """Return how many places and bytes the member may use, and whether other members want more of them."""
    limits, until = pool.limits, pool.window.until
    places = limits.places
    if limits.throttled_places and until is not None and now < until + limits.throttled_for:
        places = min(places, limits.throttled_places) if places else limits.throttled_places
    crowded = False
    granted = []
    member.next_bytes = question["next_bytes"]
    member.in_flight, member.waiting = question["uses"][PLACES], question["waiting"]
    for kind, limit in ((PLACES, places), (BYTES, limits.bytes)):
        used = question["uses"][kind]
        member.wants[kind] = want = used + question["wants"][kind]
        target = want + question["spare"][kind]
        if limit:
            others = [other for name, other in pool.members.items() if name != who]
            crowded = crowded or any(other.wants[kind] > other.holds[kind] for other in others)
            left = limit - sum(max(other.holds[kind], other.wants[kind]) for other in others)
            # Spare ones are those that no other member holds or wants.
            target = min(target, left) if want <= left else _share(pool, who, kind, limit)
        # What is in use counts until it is reported to have ended, even if the share is smaller by now.
        member.holds[kind] = max(used, target)
        granted.append(target)
    return granted[PLACES], granted[BYTES], crowded


def _share(pool: Pool, who: str, kind: int, limit: int) -> int:
    """Return one member's share of what all want, as far as the others do not hold it.

    Members that want little get it, and the rest is divided evenly. Where that is nothing, or not enough
    for the next call, members take turns.
    """
    members = pool.members
    left, sharing, share = limit, len(members), 0
    for want in sorted(member.wants[kind] for member in members.values()):
        share = left // sharing
        if want > share:
            break
        left -= want
        sharing -= 1
    remainder = left - share * sharing
    left, own, even_own, held = limit, 0, 0, 0
    for name, member in sorted(members.items(), key=lambda item: (item[1].turn, item[0])):
        most = even = min(member.wants[kind], share)
        if member.wants[kind] > share:
            if remainder > 0:
                remainder -= 1
                most += 1
            if kind == BYTES:  # less than the next call needs is of no use
                most = max(most, min(member.next_bytes, limit))
        most = min(most, left)
        left -= most
        if name == who:
            own, even_own = most, even
        else:
            held += max(member.holds[kind], most)
    own = max(0, min(own, limit - held))
    if own > even_own + (even_own > 0):  # one more than the others have is a remainder, not a turn
        members[who].turn = pool.next_stamp()
    return own
