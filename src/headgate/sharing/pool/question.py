"""Pure. What a member asks the pool of its key, and what it is answered.

Both travel as JSON. Times are durations in integer microseconds, measured from the moment of the answer by
the store's clock, so that the clocks of the members do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from ...arguments import NS_PER_US

# The `window` of a question that clears the window.
CLEARED = -1


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
    version: int  # of the limits that the member knows
    rates: list[list[int]]  # [amount, period, burst] of each rate: the limits of a pool that is new
    units: list[str]  # what each rate counts
    limits: Sequence[int]  # PoolLimits
    set: Sequence[Any] | None  # [rates, limits] that are to replace those of the pool
    batches: list[list[int]]  # of each wanted batch: units of each rate
    returned: list[list[list[int]]]  # of each rate: [units, stamp] that were granted and not needed
    owed: list[int]  # of each rate: units that were used without a grant
    uses: list[int]  # [places, bytes] of the calls in flight
    wants: list[int]  # [places, bytes] of the waiting calls
    spare: list[int]  # [places, bytes] for calls that may come, if no other member wants them
    next_bytes: int  # of the call at the head of the line
    waiting: int  # calls in line
    waits_for_window: bool  # does the member hold back its calls while a window is active?
    window: int | None  # how long the window is to last from now, CLEARED, or None: no signal
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
        "version": 0,
        "rates": [list(terms) for terms in rates],
        "units": list(units),
        "limits": limits,
        "set": None,
        "batches": [],
        "returned": [[] for _ in rates],
        "owed": [0 for _ in rates],
        "uses": [0, 0],
        "wants": [0, 0],
        "spare": [0, 0],
        "next_bytes": 0,
        "waiting": 0,
        "waits_for_window": False,
        "window": None,
        "leaves": False,
    }


def window_left(until: int | None, now: int) -> int | None:
    """Return the `window` of a question, for a window that ends at `until` ns, or was CLEARED."""
    if until is None or until == CLEARED:
        return until
    return -(-(until - now) // NS_PER_US) if until > now else None
