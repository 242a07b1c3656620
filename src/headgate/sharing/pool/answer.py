"""Pure. How a pool answers the questions of its members.

Each question is decided by itself, at one moment of the store's clock. The script for Valkey and Redis takes
the same decisions, step by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .episode import USUAL
from .grants import grant, granted_ahead, granted_for, knows_rates, time_for_calls
from .parts import ASKS_BY, WHOLE, divide, taken_by_parts
from .question import PoolLimits
from .reunion import REUNION, asks_by, reunite
from .state import BYTES, KEPT_IDLE, PLACES, MemberState, pool_rate
from .unused import keep_back

if TYPE_CHECKING:
    from .question import Answer, Question
    from .state import AnyPoolRate, Pool


def answer(pool: Pool, question: Question, now: int) -> Answer:
    """Decide a question and change the pool. A question that was answered before is given the same answer."""
    who = question["member"]
    known = pool.members.get(who)
    if known is not None and known.answer is not None and question["id"] <= known.answered:
        return known.answer
    pool.advance(now)
    now = pool.now
    lesson, taught = pool.lesson, question["lesson"]
    heard = taught is not None and lesson.hear(taught, now, pool.next_stamp)
    lesson.count(question["successes"])
    if heard or taught is None:
        _read_limits(pool, question, now)
    member = pool.members.setdefault(who, MemberState())
    member.expires = now + question["lease"]
    _begin_again(pool, question, now)
    apart = reunite(pool, question, now)
    member.reach, member.back = question["reach"], question["back"]
    window = pool.window
    window.signal(question["window"] or 0, question["manner"], who, now, pool.next_stamp)
    prober = window.prober
    probes = window.assign(who, question["waiting"], question["uses"][PLACES], pool.members)
    if prober not in ("", window.prober):
        pool.called = pool.next_stamp()  # for the member that sent the probes until now
    if question["waits_for_window"]:
        _resume(pool, now)
    _charge_and_return(pool, question, now)
    keep_back(pool, now)
    starts, ask_again_in = grant(pool, member, question, now)
    first_stamp = pool.stamp - len(starts) + 1
    places, load, crowded = _hold(pool, who, member, question, now)
    until = window.until
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
        "window_generation": window.generation,
        "window_gentle": window.gentle,
        "probes": probes,
        "lesson_version": lesson.version,
        "lesson_episode": lesson.episode,
        "successes": lesson.successes,
        "lesson": [],
        "raised": pool.raised,
        "born": pool.born,
        "kept": pool.idle_for() + KEPT_IDLE,
        "at": now,
        "part": divide(pool, question, now),
        "granted_for": granted_for(pool),
        "farthest": max(each.reach for each in pool.members.values()),
        "apart": apart,
    }
    if who in pool.present:
        pool.present[who][ASKS_BY] = asks_by(question, ask_again_in, now)
    if lesson.text and not heard and question["lesson_version"] != lesson.version:
        given["lesson"] = [now - lesson.at, lesson.text]
    if question["version"] != pool.version or (taught and not heard):
        given["rates"] = [rate.terms for rate in pool.rates]
        given["limits"] = list(pool.limits)
        given["units"] = list(pool.units)
    if question["leaves"]:  # it stays known until its lease ends, in case it has to say so twice
        member = pool.members[who] = MemberState(member.expires, flows=member.flows, lump=member.lump)
    member.answered, member.answer = question["id"], given
    return given


# -- limits and the window


def _read_limits(pool: Pool, question: Question, now: int) -> None:
    """Take over limits that a member sets. What was used stays used."""
    if question["set"] is None and pool.version:
        return
    wanted, limits, *learned = question["set"] or (question["rates"], question["limits"])
    limits = PoolLimits(*limits)
    old, units = pool.rates, question["units"]
    in_force = [rate.terms for rate in old]
    if learned:  # all members can follow: what their rates count is learned as well
        units, pool.configured = learned
    else:
        if wanted is None and not pool.version:
            wanted = question["rates"]
        elif wanted is None or wanted == pool.configured:
            wanted, units = in_force, pool.units  # what was learned since stays
        alike = len(wanted) == len(old) and (units == pool.units or not pool.version)
        if not alike and any(name != question["member"] for name in pool.members):
            return  # the other members ask for batches of the rates they know
        if wanted != in_force:
            pool.configured = wanted
    if in_force == wanted and pool.limits == limits and (not learned or units == pool.units):
        return
    version = pool.version = pool.next_stamp()
    rates = [pool_rate(terms, version) for terms in wanted]
    for i, rate in enumerate(rates):
        before = _replaced(pool, i, rate.terms, units)
        if before is not None:
            rate.follow(before, now)
    pool.rates, pool.limits, pool.units, pool.apart = rates, limits, list(units), ""


def _replaced(pool: Pool, i: int, terms: list[int], units: list[str]) -> AnyPoolRate | None:
    """Return the rate that the i-th of new ones replaces. A change of limits creates no units."""
    old = pool.rates
    if units != pool.units:  # the one that counts the same
        return next((rate for rate, unit in zip(old, pool.units, strict=False) if unit == units[i]), None)
    return next((rate for rate in old if rate.terms == terms), old[i] if i < len(old) else None)


def _begin_again(pool: Pool, question: Question, now: int) -> None:
    """Follow a pool that the store has lost, if the member knows one: its window, and nothing saved up.

    What the rates earn until the members have used what that pool had granted to them is for that. A member
    that asked that pool long ago does not know of all: the others are heard before anything is granted.
    """
    pool.born = pool.born or max(1, now)
    lost = question["born"] not in (0, pool.born)
    if lost and now < pool.born + REUNION:
        parts = WHOLE // max(1, question["part"][0])  # at least as many as there were members
        ahead = granted_ahead(time_for_calls(pool) * parts)
        until = pool.born + question["granted_for"]
        if not pool.grants_from:
            until = now + max(ahead + ahead // 2 + 3 * question["reach"], question["granted_for"])
        pool.grants_from = pool.born + REUNION
        if until > pool.granted_until:
            pool.granted_until = until
            for rate in pool.rates:
                rate.begin_empty(until + ahead // 2, pool.next_stamp)
    if question["recalls"] and pool.window.until is None:
        pool.window.signal(question["recalls"], USUAL, question["member"], now, pool.next_stamp)


def _resume(pool: Pool, now: int) -> None:
    """After a window, let calls come back at the rate: nothing was saved up while it was active."""
    window = pool.window
    if window.until is not None and window.until != window.resumed and window.until <= now:
        if not window.gentle:
            for rate in pool.rates:
                rate.resume(window.until, pool.next_stamp)
        window.resumed = window.until


# -- rates


def _charge_and_return(pool: Pool, question: Question, now: int) -> None:
    """Take back what was not needed, charge what was used without a grant, and hear what remains."""
    same_rates = knows_rates(pool, question)
    flows = pool.members[question["member"]].flows  # what was kept for it cannot be returned
    raised = False
    for i, rate in enumerate(pool.rates):
        rate.advance(now, pool.next_stamp)
        if same_rates:
            for units, stamp in () if flows else question["returned"][i]:
                rate.take_back(units, stamp, now)
            if owed := question["owed"][i]:
                rate.charge(owed, now, pool.next_stamp())
                rate.tell_taken(owed, now)
            if question["stated"][i]:
                remaining, allowed, age = question["stated"][i]
                raised |= rate.hear(remaining, allowed, now - age, now)
    if raised:  # batches that start later than they would now are no reason to grant no others
        pool.raised = pool.called = pool.next_stamp()
        for member in pool.members.values():
            member.last_start = min(member.last_start, now)


# -- places and bytes


def _hold(pool: Pool, who: str, member: MemberState, question: Question, now: int) -> tuple[int, int, bool]:
    """Return how many places and bytes the member may use, and whether other members want more of them."""
    limits, until = pool.limits, pool.window.until
    places = limits.places
    gentle = pool.window.gentle or not limits.throttled_places
    if not gentle and until is not None and now < until + limits.throttled_for:
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
            if now < pool.grants_from:
                target = min(target, max(used, question["may_use"][kind]))
            elif now < pool.reunion_until:
                free = limit - taken_by_parts(pool, who, kind)
                target = min(target, max(used, question["may_use"][kind], free))
        # What may be in use counts until the member tells otherwise, even if the share is smaller by now:
        # calls may begin by the earlier grant before the member has heard this answer.
        member.holds[kind] = max(used, question["may_use"][kind], target)
        granted.append(target)
        if limit and target < want:
            _call_for_spare(pool, who, kind)
    member.crowded = int(crowded)
    return granted[PLACES], granted[BYTES], crowded


def _call_for_spare(pool: Pool, who: str, kind: int) -> None:
    """Have the news tell members that hold more than they want to come and hear that others want it."""
    for name, other in pool.members.items():
        if name != who and other.holds[kind] > other.wants[kind] and not other.crowded:
            other.crowded = 1
            pool.called = pool.next_stamp()


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
    # Free are those that no other member holds. Members go first that had more than their share longest ago.
    free = not_held = limit - sum(member.holds[kind] for name, member in members.items() if name != who)
    left, own, even_own = limit, 0, 0
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
            # What it holds of its share it keeps, although a member that comes first still has less.
            own, even_own = max(0, min(most, max(free, min(member.holds[kind], not_held)))), even
            break
        free -= max(0, most - member.holds[kind])
    if own > even_own + (even_own > 0):  # one more than the others have is a remainder, not a turn
        members[who].turn = pool.next_stamp()
    return own
