"""What all who share a key decide together: one pool of rates, places and bytes, and one window.

Rules of this room: one question, one answer, nothing in between. Time is the store's own, in integer
microseconds; what goes out of here is measured from now, so that nobody's clock matters. The script for
Valkey and Redis does the same arithmetic, step by step: `tests/stores` compares the two.

A process asks for *lumps*: what its next few calls cost together. Each is given a start, the moment at
which it fits every rate, and is charged at that moment. Whoever has a lump that starts beyond the horizon
asks no further before it comes near, so those who want more than there is take turns.
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
# How many low-water marks a rate remembers for refunds.
_MOST_MARKS = 32


def new_pool() -> State:
    """A pool that nothing was ever taken from."""
    return {
        "rates": [],  # of each: [amount, period, burst, tat, full_at, mark times, mark backlogs]
        "limits": [0, 0, 0, 0],  # places, places while throttled, bytes (0: no limit), and the tail
        "version": 0,  # of the limits
        "members": {},  # of each: [expires, last start, places, bytes, wants places, wants bytes, put off]
        "window": [0, 0, 0, 0, 0],  # until, opened at, the end before, generation, episode
        "answered": {},  # of each member: [id of its last question, the answer]
        "now": 0,  # a clock that goes back grants nothing again
    }


def answer(pool: State, question: Question, now: int) -> Answer:
    """Decide. Changes the pool, and says what is given; asked again by the same id, says the same."""
    who, number = question["member"], question["id"]
    known = pool["answered"].get(who)
    if known is not None and number <= known[0]:  # again, or late: it was decided already
        return known[1]  # type: ignore[no-any-return]  # an answer, as it was given
    now = pool["now"] = max(now, pool["now"])
    _forget_the_dead(pool, now)
    _read_limits(pool, question, now)
    member = pool["members"].setdefault(who, [0, 0, 0, 0, 0, 0, 0])
    member[0] = now + question["lease"]
    _close_window(pool, question, now)
    # What was asked under other limits may not even be of as many rates: that one asks again.
    alike = len(question["extra"]) == len(pool["rates"])
    lumps = question["lumps"] if alike else []
    for i, rate in enumerate(pool["rates"]):
        _touch(rate, now)
        if not alike:
            continue
        for units, ago in question["back"][i]:
            _give_back(rate, units, now - ago, now)
        if question["extra"][i]:
            rate[3] = max(rate[3], now) + _span(rate, question["extra"][i])
    starts, again = _book(pool, member, lumps, question["pauses"], now)
    places, load, crowded = _hold(pool, who, member, question, now)
    until, opened_at, _before, generation, episode = pool["window"]
    given = {
        "starts": [start - now for start in starts],
        "again": again,
        "places": places,
        "bytes": load,
        "crowded": crowded,
        "members": len(pool["members"]),
        "version": pool["version"],
        "window": [max(0, until - now), now - opened_at if episode else 0, generation, episode],
    }
    if question["version"] != pool["version"]:
        given["rates"] = [rate[:3] for rate in pool["rates"]]
        given["limits"] = list(pool["limits"])
    if question["bye"]:  # it stays known until its lease ends, in case it has to say so twice
        member[1:] = [0] * 6
    pool["answered"][who] = [number, given]
    return given


def idle_for(pool: State, now: int) -> int:
    """How long until there is nothing worth remembering, in microseconds."""
    ends = [now, pool["window"][0] + pool["limits"][3]]
    ends += [rate[3] for rate in pool["rates"]]
    ends += [member[0] for member in pool["members"].values()]
    return int(max(ends)) - now


def shift(pool: State, by: int) -> None:
    """Count all its times from another beginning."""
    pool["now"] += by
    for rate in pool["rates"]:
        rate[3] += by
        rate[4] += by
        rate[5] = [time + by for time in rate[5]]
    for member in pool["members"].values():
        member[0] += by
        member[1] += by
        member[6] += by if member[6] else 0
    pool["window"][:3] = [time + by for time in pool["window"][:3]]


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
    if [rate[:3] for rate in pool["rates"]] == wanted and pool["limits"] == limits:
        return
    if len(wanted) != len(pool["rates"]) and any(who != question["member"] for who in pool["members"]):
        return  # the others could not follow
    old = {(rate[1], i): rate for i, rate in enumerate(pool["rates"])}
    rates = []
    for i, (amount, period, burst) in enumerate(wanted):
        before = old.get((period, i))
        rate = [amount, period, burst, 0, now, [], []]
        if before is not None:
            # As many units are missing as before: a change of limits creates nothing.
            missing = -(-max(0, before[3] - now) * before[0] // before[1])
            left = max(0, before[2] - missing)
            rate[3] = now + _span(rate, max(0, burst - left) if burst > left else 0)
        rates.append(rate)
    pool["rates"], pool["limits"] = rates, list(limits)
    pool["version"] += 1


def _close_window(pool: State, question: Question, now: int) -> None:
    if not question["pause"]:
        return
    duration, ago = question["pause"]
    window = pool["window"]
    sent_at = now - ago
    if not window[4] or sent_at > window[1]:
        window[4] += 1
        window[1] = now
        window[2] = window[0]
    if duration < 0:  # cleared by hand
        window[0] = min(window[0], now)
        window[3] += 1
    elif now + duration > window[0]:
        window[0] = now + duration
        window[3] += 1
    if question["pauses"]:
        # Nothing is saved up while nobody goes: the crowd comes back at the rate, not with a burst.
        for rate in pool["rates"]:
            empty = window[0] + _tolerance(rate)
            rate[3] = min(rate[3], empty) if duration < 0 else max(rate[3], empty)


# -- rates


def _span(rate: list[Any], units: int) -> int:
    """How long so many units take to be earned, rounded up."""
    return int(-(-units * rate[1] // rate[0]))


def _tolerance(rate: list[Any]) -> int:
    """A tenth of the burst is kept back for what processes hold and have not used yet."""
    return int(_span(rate, rate[2] - rate[2] // 10))


def _touch(rate: list[Any], now: int) -> None:
    if rate[3] <= now:
        rate[4] = now
        rate[5], rate[6] = [], []


def _fits_at(rate: list[Any], units: int, now: int) -> int:
    """When so many units fit; what is more than the burst waits until all of it is there."""
    need = _span(rate, units)
    tolerance = _tolerance(rate)
    return int(max(now, rate[3] + min(need, tolerance) - tolerance))


def _charge(rate: list[Any], units: int, start: int, now: int) -> None:
    backlog = max(0, rate[3] - now)
    if backlog:
        times, lows = rate[5], rate[6]
        while lows and lows[-1] >= backlog:
            lows.pop()
            times.pop()
        if not times or now > times[-1]:
            times.append(now)
            lows.append(backlog)
            if len(lows) > _MOST_MARKS:  # the lower of the two oldest, for the longer time
                lows.pop(1)
                times.pop(0)
    rate[3] = max(rate[3], start) + _span(rate, units)


def _give_back(rate: list[Any], units: int, taken_at: int, now: int) -> None:
    """Only as far as it would still be missing: the pool never holds more than if it had not been taken."""
    backlog = rate[3] - now
    if backlog <= 0 or rate[4] > taken_at:
        return
    lowest = backlog
    for time, low in zip(rate[5], rate[6], strict=True):
        if time > taken_at:
            lowest = min(lowest, low)
    credit = min(units * rate[1] // rate[0], lowest)
    rate[3] -= credit
    rate[6] = [low - credit if time > taken_at else low for time, low in zip(rate[5], rate[6], strict=True)]


def _book(
    pool: State, member: list[int], lumps: list[list[int]], pauses: bool, now: int
) -> tuple[list[int], int]:
    """When each lump may start, as many as may be given out now; and when to ask again for the rest."""
    starts: list[int] = []
    for lump in lumps:
        if member[1] > now + HORIZON:
            return starts, member[1] - HORIZON - now
        start = now
        for i, rate in enumerate(pool["rates"]):
            if lump[i]:
                start = max(start, _fits_at(rate, lump[i], now))
        if pauses and pool["window"][0] > start:
            return starts, pool["window"][0] - now  # nobody is sent ahead into a window
        if start > now + FAR and (not member[6] or now - member[6] < FAR):
            member[6] = member[6] or now  # put off, but not for ever: a heavy one would never come
            return starts, min(start - FAR - now, AGAIN)
        member[6] = 0
        for i, rate in enumerate(pool["rates"]):
            if lump[i]:
                _charge(rate, lump[i], start, now)
        member[1] = start
        starts.append(start)
    return starts, 0


# -- places and bytes


def _hold(pool: State, who: str, member: list[int], question: Question, now: int) -> tuple[int, int, bool]:
    """How many places and bytes are this one's to use: what it uses now, and what is left for more."""
    places, throttled, load, tail = pool["limits"]
    if throttled and now < pool["window"][0] + tail:
        places = min(places, throttled) if places else throttled
    crowded = False
    granted = []
    for column, limit in ((2, places), (3, load)):
        used, wanted = question["uses"][column - 2], question["wants"][column - 2]
        member[column + 2] = used + wanted
        if not limit:
            member[column] = used + wanted
            granted.append(used + wanted)
            continue
        others = [other for name, other in pool["members"].items() if name != who]
        wanting = sum(other[column + 2] > other[column] for other in others)
        crowded = crowded or wanting > 0
        # Everybody who wants it gets an equal part before anybody gets more.
        share = limit // (wanting + 1)
        most = limit - sum(max(other[column], min(other[column + 2], share)) for other in others)
        target = max(0, min(used + wanted, most))
        # What is in use counts until it is told to be over, even if it is to be less.
        member[column] = max(used, target)
        granted.append(target)
    return granted[0], granted[1], crowded
