"""Pure. What a member asks the pool of its key, and what it is answered.

Both travel as JSON. Times are durations in integer microseconds, measured from the moment of the answer by
the store's clock, so that the clocks of the members do not matter. Which moment that was is told too, `at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from ...arguments import NS_PER_US
from ...errors import InvalidConfig
from ...gate.supply import Batch
from ...limits import Rate
from .rate import BUCKET, GROWING, STRICT


class PoolLimits(NamedTuple):
    """The limits of a pool besides its rates. 0 places or bytes: no limit."""

    places: int = 0
    throttled_places: int = 0  # while a window is active, and for `throttled_for` µs after its end
    bytes: int = 0
    throttled_for: int = 0


class Question(TypedDict):
    """One question of one member. Two questions with one `id` are the same question."""

    member: str
    id: int
    lease: int  # how long the pool remembers the member without another question
    born: int  # of the pool that the member knows, if the store should still have it; 0: it knows none
    reach: int  # how long questions of the member and their answers travel, together
    back: int  # of this the answers, from the moment that the member takes them to be of
    doubt: int  # by how much later than the store means the member may use units, for it cannot know better
    version: int  # of the limits that the member knows
    rates: list[list[int]]  # [amount, period, burst, kind] of each rate: the limits of a pool that is new
    units: list[str]  # what each rate counts
    limits: Sequence[int]  # PoolLimits
    # [rates, limits] that are to replace those of the pool, None for its rates. With a lesson:
    # [rates, limits, units, configured], the rates that were learned from those that are configured.
    set: Sequence[Any] | None
    batches: list[list[int]]  # of each wanted batch: units of each rate
    returned: list[list[list[int]]]  # of each rate: [units, stamp] that were granted and not needed
    owed: list[int]  # of each rate: units that were used without a grant
    # Of each rate: [remaining, allowed, age], what a call that was sent `age` ago was told to remain and up
    # to which burst that may raise the level; or nothing.
    stated: list[list[int]]
    uses: list[int]  # [places, bytes] of the calls in flight
    may_use: list[int]  # [places, bytes] that may be in use before the member has heard the answer
    wants: list[int]  # [places, bytes] of the waiting calls
    spare: list[int]  # [places, bytes] for calls that may come, if no other member wants them
    part: list[int]  # of the rates and of the places, that the member goes by without the store
    granted_for: int  # as the latest answer told, which may be of a pool that the store has lost
    lost_for: int  # how long ago the first question was asked that had no answer
    apart: int  # for how long others may go by their parts that had no answer either; BY_POOL, WAITS or LATE
    next_bytes: int  # of the call at the head of the line
    waiting: int  # calls in line
    waits_for_window: bool  # does the member hold back its calls while a window is active?
    window: int | None  # how long the window is to last from now, CLEARED, ENDED, or None: no signal
    manner: int  # of that window: USUAL, GENTLE or PROBING
    recalls: int  # how long a window lasts that the pool should know; a pool that never had one takes it
    lesson: Sequence[Any] | None  # [version, episode, cut, text] of what the member learned
    lesson_version: int  # of the lesson that it knows
    successes: int  # calls that went well and were not told yet, while that teaches something
    leaves: bool  # this is the last question of the member


class Answer(TypedDict):
    """What the pool decided. `rates`, `limits` and `units` are there if the member knows other ones."""

    starts: list[int]  # when each granted batch may be used
    first_stamp: int  # of the first of these batches; each of the others has the next number
    ask_again_in: int  # when to ask for the batches that were not granted; 0: all were
    places: int
    bytes: int
    crowded: bool  # do other members want places or bytes that they have not got?
    members: int
    version: int
    window_left: int  # 0: no window is active
    window_generation: int  # another number with each start, extension and clearing of a window
    window_gentle: int  # 1: calls come back at the full rate at once
    probes: int  # NO_PROBES, OWN_PROBES or OTHERS_PROBES
    lesson_version: int
    lesson_episode: int
    successes: int  # of all members
    lesson: list[Any]  # [how long ago it was told, text], if the member knows another one
    raised: int  # batches with a smaller stamp that start later would start sooner now
    born: int  # another number if the store lost the pool and began anew
    kept: int  # how long the store keeps the pool if no member asks
    at: int  # the time of the pool, by which moments of two answers can be compared
    part: list[int]  # of the rates and of the places, without the store; 1: final, 0: ask again
    granted_for: int  # how long any member may use what it was granted, if the store is lost now
    farthest: int  # how long questions of the member that is farthest away and their answers travel
    apart: int  # how long from now all members go by their parts; 0: the member goes by the pool
    rates: NotRequired[list[list[int]]]
    limits: NotRequired[list[int]]
    units: NotRequired[list[str]]


def empty_question(
    member: str,
    number: int,
    *,
    lease: int = 0,
    rates: Sequence[Sequence[int]] = (),
    units: Sequence[str] = (),
    limits: Sequence[int] = PoolLimits(),
) -> Question:
    """Return a question that wants, holds and tells nothing."""
    return {
        "member": member,
        "id": number,
        "lease": lease,
        "born": 0,
        "reach": 0,
        "back": 0,
        "doubt": 0,
        "version": 0,
        "rates": [list(terms) for terms in rates],
        "units": list(units),
        "limits": limits,
        "set": None,
        "batches": [],
        "returned": [[] for _ in rates],
        "owed": [0 for _ in rates],
        "stated": [[] for _ in rates],
        "uses": [0, 0],
        "may_use": [0, 0],
        "wants": [0, 0],
        "spare": [0, 0],
        "part": [0, 0],
        "granted_for": 0,
        "lost_for": 0,
        "apart": 0,
        "next_bytes": 0,
        "waiting": 0,
        "waits_for_window": False,
        "window": None,
        "manner": 0,
        "recalls": 0,
        "lesson": None,
        "lesson_version": 0,
        "successes": 0,
        "leaves": False,
    }


def window_left(until: int | None, now: int) -> int | None:
    """Return the `window` of a question, for a window that ends at `until` ns, or was CLEARED or ENDED."""
    if until is None or until < 0:
        return until
    return -(-(until - now) // NS_PER_US) if until > now else None


def terms_of(rates: Sequence[Rate]) -> list[list[int]]:
    """The rates as a question states them."""
    return [
        [rate.amount, rate.per_ns // NS_PER_US, rate.burst, *([kind] if (kind := _kind_of(rate)) else ())]
        for rate in rates
    ]


def _kind_of(rate: Rate) -> int:
    if rate.strict:
        return STRICT
    return BUCKET if rate.burst_given else GROWING


def rate_of_terms(terms: Sequence[int], unit: str) -> Rate:
    """The rate of which a question or an answer states the terms."""
    amount, period, burst, kind = (*terms, BUCKET)[:4]
    given = burst if kind == BUCKET else None
    return Rate.of_ns(amount, period * NS_PER_US, given, unit, strict=kind == STRICT)


def granted_batches(answer: Answer, batches: Sequence[Sequence[int]], now: int) -> list[Batch]:
    """The batches that were granted to a question that asked for these, on the clock of the member."""
    starts = zip(answer["starts"], batches, strict=False)
    return [
        Batch(now + start * NS_PER_US, stamp, units)
        for stamp, (start, units) in enumerate(starts, answer["first_stamp"])
    ]


def check_units(key: str, rates: Sequence[Rate], answer: Answer) -> None:
    """Raise InvalidConfig if the rates of the pool count other units than these."""
    ours = [rate.unit for rate in rates]
    theirs = answer.get("units", ours)
    if theirs != ours:
        said = ", ".join(theirs) or "none"
        raise InvalidConfig(
            f"{key!r} is shared by others, whose rates are of {said}; write rates of the same"
        )
