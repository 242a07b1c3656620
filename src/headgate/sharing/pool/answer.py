"""Pure. What all who share a key decide together: one pool of rates, places and bytes, and one window.

Rules of this room: one question, one answer, nothing in between. Time is the store's own, in integer
microseconds; what goes out of here is measured from now, so that nobody's clock matters. The script for
Valkey and Redis does the same arithmetic, step by step: `tests/stores` compares the two.

A process asks for *lumps*: what its next few calls cost together. Each is given a start, the moment at
which it fits every rate, and is charged at that moment. Whoever has a lump that starts beyond the horizon
asks no further before it comes near, so those who want more than there is take turns. Each lump has a
stamp, and what was not needed of it goes back by that stamp: a number that only grows, and never returns,
not even when the store has forgotten everything.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    State: TypeAlias = dict[str, Any]
    Question: TypeAlias = dict[str, Any]
    Answer: TypeAlias = dict[str, Any]

# How far ahead of time more than one lump is given out, in microseconds.
HORIZON = 100_000
# How far ahead even one is: further off, what others give back may make it sooner. Asked again that often.
FAR = 2_000_000
AGAIN = 500_000
# A clock that goes back by less stands still until it has caught up; by more, it has been set.
SET_BACK = 1_000_000
# Where a member has what it holds. What it wants is two further.
_PLACES, _BYTES = 2, 3
# How many low-water marks a rate remembers for refunds.
_MOST_MARKS = 32


# What is told instead of the end of a window that was cleared.
CLEARED = -1


def time_left(until: int | None, now: int) -> int | None:
    """How long a window still lasts, as a pool is told: in microseconds, or CLEARED; None: no news."""
    if until is None or until == CLEARED:
        return until
    return -(-(until - now) // 1000) if until > now else None


def new_pool() -> State:
    """A pool that nothing was ever taken from."""
    return {
        "rates": [],  # of each: [amount, period, burst, tat, full at, mark stamps, mark backlogs]
        "limits": [0, 0, 0, 0],  # places, places while throttled, bytes (0: no limit), and the tail
        "units": [],  # what each rate counts: for those who look
        "version": 0,  # of the limits
        # of each: [expires, last start, places, bytes, wants places, wants bytes, put off, needs, turn,
        # and for those who look: how many are under way there, and how many wait]
        "members": {},
        # until when, if there ever was one; generation; the end that the rates have come back from
        "window": [None, 0, None],
        "answered": {},  # of each member: [id of its last question, the answer]
        "stamp": 0,  # the last one given
        "now": 0,  # a clock that goes back grants nothing again
    }


def answer(pool: State, question: Question, now: int) -> Answer:
    """Decide. Changes the pool, and says what is given; asked again by the same id, says the same."""
    who, number = question["member"], question["id"]
    known = pool["answered"].get(who)
    if known is not None and number <= known[0]:  # again, or late: it was decided already
        return known[1]  # type: ignore[no-any-return]  # an answer, as it was given
    if now < pool["now"] - SET_BACK:
        shift(pool, now - pool["now"])
    now = pool["now"] = max(now, pool["now"])
    _forget_the_dead(pool, now)
    _read_limits(pool, question, now)
    member = pool["members"].setdefault(who, [0] * 11)
    member[0] = now + question["lease"]
    _close_window(pool, question, now)
    if question["pauses"]:
        _resume(pool, now)
    # What was asked under other limits may not even be of as many rates: that one asks again.
    alike = len(question["extra"]) == len(pool["rates"])
    lumps = question["lumps"] if alike else []
    for i, rate in enumerate(pool["rates"]):
        if rate[3] <= now:
            _fill(pool, rate, now)
        if not alike:
            continue
        for units, stamp in question["back"][i]:
            _give_back(rate, units, stamp, now)
        if question["extra"][i]:
            _charge(rate, question["extra"][i], now, _next_stamp(pool, now))
    starts, again = _book(pool, member, lumps, question["pauses"], now)
    stamp = pool["stamp"] - len(starts) + 1
    places, load, crowded = _hold(pool, who, member, question, now)
    until, generation, _resumed = pool["window"]
    given = {
        "starts": [start - now for start in starts],
        "stamp": stamp,  # of the first of them; the others have the next ones
        "again": again,
        "places": places,
        "bytes": load,
        "crowded": crowded,
        "members": len(pool["members"]),
        "version": pool["version"],
        "window": [0 if until is None else max(0, until - now), generation],
    }
    if question["version"] != pool["version"]:
        given["rates"] = [rate[:3] for rate in pool["rates"]]
        given["limits"] = list(pool["limits"])
        given["units"] = list(pool["units"])
    if question["bye"]:  # it stays known until its lease ends, in case it has to say so twice
        member[1:] = [0] * 10
    pool["answered"][who] = [number, given]
    return given


def idle_for(pool: State, now: int) -> int:
    """How long until there is nothing worth remembering, in microseconds."""
    until, _generation, resumed = pool["window"]
    ends = [now] if until is None else [now, until + pool["limits"][3]]
    ends += [rate[3] + _span(rate, rate[2]) - _tolerance(rate) for rate in pool["rates"]]
    if until != resumed:
        ends += [until + _span(rate, rate[2]) for rate in pool["rates"]]
    ends += [member[0] for member in pool["members"].values()]
    return int(max(ends)) - now


def as_of(pool: State, now: int) -> State:
    """A copy for those who only look: who is dead by then is not there, nor what was answered to whom."""
    now = max(now, pool["now"])
    return {
        **pool,
        "rates": [list(rate) for rate in pool["rates"]],
        "limits": list(pool["limits"]),
        "units": list(pool["units"]),
        "members": {who: list(member) for who, member in pool["members"].items() if member[0] > now},
        "window": list(pool["window"]),
        "answered": {},
        "now": now,
    }


def shift(pool: State, by: int) -> None:
    """Count all its times from another beginning. Stamps are numbers, and stay."""
    pool["now"] += by
    for rate in pool["rates"]:
        rate[3] += by
    for member in pool["members"].values():
        member[0] += by
        member[1] += by
        member[6] += by if member[6] else 0
    window = pool["window"]
    pool["window"] = [at if at is None or i == 1 else at + by for i, at in enumerate(window)]


def _next_stamp(pool: State, now: int) -> int:
    """Larger than any before, also than those of a pool that has been forgotten."""
    pool["stamp"] = max(pool["stamp"] + 1, now)
    return int(pool["stamp"])


def _forget_the_dead(pool: State, now: int) -> None:
    gone = [who for who, member in pool["members"].items() if member[0] <= now]
    for who in gone:
        del pool["members"][who]
        pool["answered"].pop(who, None)


def _read_limits(pool: State, question: Question, now: int) -> None:
    """Limits that somebody set anew are everybody's from now on. What was used stays used."""
    if question["set"] is None and pool["version"]:
        return
    wanted, limits = question["set"] or (question["rates"], question["limits"])
    old = pool["rates"]
    if [rate[:3] for rate in old] == wanted and pool["limits"] == limits:
        return
    units = list(question.get("units", ()))
    alike = len(wanted) == len(old) and (units == pool["units"] or not pool["version"])
    if not alike and any(who != question["member"] for who in pool["members"]):
        return  # the others could not follow
    pool["version"] = _next_stamp(pool, now)
    rates = []
    for i, (amount, period, burst) in enumerate(wanted):
        rate = [amount, period, burst, 0, pool["version"], [], []]
        before = next((each for each in old if each[:3] == wanted[i]), old[i] if i < len(old) else None)
        if before is not None:
            # As many units are missing as before: a change of limits creates nothing.
            missing = -(-max(0, before[3] - now) * before[0] // before[1])
            left = max(0, before[2] - missing)
            rate[3] = now + _span(rate, max(0, burst - left))
        rates.append(rate)
    pool["rates"], pool["limits"] = rates, list(limits)
    pool["units"] = units


def _close_window(pool: State, question: Question, now: int) -> None:
    duration = question["pause"]
    if not duration:
        return
    until = pool["window"][0]
    if duration < 0:  # cleared by hand
        pool["window"][:2] = [now if until is None else min(until, now), _next_stamp(pool, now)]
    elif until is None or now + duration > until:
        pool["window"][:2] = [now + duration, _next_stamp(pool, now)]


def _resume(pool: State, now: int) -> None:
    """Nothing is saved up while nobody goes: the crowd comes back at the rate, not with a burst."""
    until, _generation, resumed = pool["window"]
    if until is not None and until != resumed and until <= now:
        for rate in pool["rates"]:
            _charge(rate, 0, until + _tolerance(rate), _next_stamp(pool, now))
        pool["window"][2] = until


# -- rates


def _span(rate: list[Any], units: int) -> int:
    """How long so many units take to be earned, rounded up."""
    return int(-(-units * rate[1] // rate[0]))


def _tolerance(rate: list[Any]) -> int:
    """A tenth of the burst is kept back for what processes hold and have not used yet."""
    return int(_span(rate, rate[2] - rate[2] // 10))


def _fits_at(rate: list[Any], units: int, now: int) -> int:
    """When so many units fit; what is more than the burst waits until all of it is there."""
    return int(max(now, rate[3] + _span(rate, min(units, rate[2])) - _tolerance(rate)))


def _fill(pool: State, rate: list[Any], now: int) -> None:
    """From here on nothing that was taken before is missing, so nothing of it can come back."""
    rate[4] = _next_stamp(pool, now)
    rate[5], rate[6] = [], []


def _charge(rate: list[Any], units: int, start: int, stamp: int) -> None:
    """Take them at that moment, and remember how much was missing then: no refund is worth more."""
    missing = rate[3] - start
    stamps, lows = rate[5], rate[6]
    if missing <= 0:
        rate[4] = stamp
        rate[5], rate[6] = [], []
    else:
        while lows and lows[-1] >= missing:
            lows.pop()
            stamps.pop()
        stamps.append(stamp)
        lows.append(missing)
        if len(lows) > _MOST_MARKS:  # the lower of the two oldest, for the longer time
            lows.pop(1)
            stamps.pop(0)
    rate[3] = max(rate[3], start) + _span(rate, units)


def _give_back(rate: list[Any], units: int, stamp: int, now: int) -> None:
    """Only as far as it would still be missing: the pool never holds more than if it had not been taken."""
    stamps, lows = rate[5], rate[6]
    if rate[4] > stamp or rate[3] <= now:
        return
    later = next((i for i, mark in enumerate(stamps) if mark > stamp), len(stamps))
    lowest = min([rate[3] - now, *lows[later:]])
    credit = min(units * rate[1] // rate[0], lowest)
    rate[3] -= credit
    lows[later:] = [low - credit for low in lows[later:]]
    while 0 < later < len(lows) and lows[later - 1] >= lows[later]:  # the first of each is the lowest since
        later -= 1
        del stamps[later], lows[later]


def _book(
    pool: State, member: list[int], lumps: list[list[int]], pauses: bool, now: int
) -> tuple[list[int], int]:
    """When each lump may start, as many as may be given out now; and when to ask again for the rest."""
    starts: list[int] = []
    until = pool["window"][0]
    if lumps and pauses and until is not None and until > now:
        return starts, until - now  # nobody is sent ahead into a window
    for lump in lumps:
        if member[1] > now + HORIZON:
            return starts, member[1] - HORIZON - now
        start = now
        for i, rate in enumerate(pool["rates"]):
            if lump[i]:
                start = max(start, _fits_at(rate, lump[i], now))
        if start > now + FAR and (not member[6] or now - member[6] < FAR):
            member[6] = member[6] or now  # put off, but not for ever: a heavy one would never come
            return starts, min(start - FAR - now, AGAIN)
        member[6] = 0
        stamp = _next_stamp(pool, now)
        for i, rate in enumerate(pool["rates"]):
            if lump[i]:
                _charge(rate, lump[i], start, stamp)
        member[1] = start
        starts.append(start)
    return starts, 0


# -- places and bytes


def _hold(pool: State, who: str, member: list[int], question: Question, now: int) -> tuple[int, int, bool]:
    """How many places and bytes are this one's to use: what it uses now, and what is left for more."""
    places, throttled, load, tail = pool["limits"]
    until = pool["window"][0]
    if throttled and until is not None and now < until + tail:
        places = min(places, throttled) if places else throttled
    crowded = False
    granted = []
    member[7] = question["needs"]
    member[9:] = [question["uses"][0], question.get("waiting", 0)]
    for column, limit in ((_PLACES, places), (_BYTES, load)):
        used, wanted, spare = (question[what][column - 2] for what in ("uses", "wants", "spare"))
        member[column + 2] = want = used + wanted
        target = want + spare
        if limit:
            others = [other for name, other in pool["members"].items() if name != who]
            crowded = crowded or any(other[column + 2] > other[column] for other in others)
            left = limit - sum(max(other[column], other[column + 2]) for other in others)
            # For those who may come there is what nobody else holds or wants.
            target = min(target, left) if want <= left else _part(pool, who, column, limit, now)
        # What is in use counts until it is told to be over, even if it is to be less.
        member[column] = max(used, target)
        granted.append(target)
    return granted[0], granted[1], crowded


def _part(pool: State, who: str, column: int, limit: int, now: int) -> int:
    """One's part of what all want, as far as the others do not hold it: who wants little gets it, the rest
    share evenly. Where that is nothing, or too little for the next call, they take turns.
    """
    members = pool["members"]
    left, sharing, share = limit, len(members), 0
    for want in sorted(member[column + 2] for member in members.values()):
        share = left // sharing
        if want > share:
            break
        left -= want
        sharing -= 1
    odd = left - share * sharing
    left, part, own, held = limit, 0, 0, 0
    for name in sorted(members, key=lambda name: (members[name][8], name)):
        member = members[name]
        even = min(member[column + 2], share)
        most = even
        if member[column + 2] > share:
            if odd > 0:
                odd -= 1
                most += 1
            if column == _BYTES:  # a call needs so many or none
                most = max(most, min(member[7], limit))
        most = min(most, left)
        left -= most
        if name == who:
            part, own = most, even
        else:
            held += max(member[column], most)
    part = max(0, min(part, limit - held))
    if part > own + (own > 0):  # one more than the others is no turn, but what remains of dividing
        members[who][8] = _next_stamp(pool, now)
    return part
