"""Pure. Into how many parts a pool is divided while its store cannot be asked.

Each process holds the part that it was told, and goes by it when the store is lost. The parts of all of them
never add up to more than the whole: a new process gets its part when the others have told that theirs are
smaller. There are a few more parts than processes, so that not every new process makes all the others ask.

The script for Valkey and Redis does the same arithmetic, step by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .question import Question
    from .state import Pool

# What all parts of the rates add up to: a number that up to sixteen processes divide without a rest.
WHOLE = 720_720
# For how many µs a silent process counts, and the largest number of parts of late.
PRESENT = 60_000_000
DIVIDED_FOR = 600_000_000

# What a pool remembers of a process besides its parts, which are in between: until when it counts, and when
# it should have asked again if its callers wait (reunion.py).
UNTIL, ASKS_BY = 0, 3
# Its parts of the rates and of the places.
RATES_PART, PLACES_PART = 1, 2


def parts_for(processes: int) -> int:
    """Return 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, whichever is enough."""
    parts = 1
    while parts < processes:
        parts *= 2
    return parts * 3 // 4 if parts >= 4 and parts * 3 // 4 >= processes else parts


def taken_by_parts(pool: Pool, who: str, kind: int) -> int:
    """Return how many places, or bytes, others may use that hold them or go by their parts."""
    taken = 0
    for name in {*pool.present, *pool.members} - {who}:
        present, member = pool.present.get(name), pool.members.get(name)
        part = 0
        if present is not None:
            part = present[PLACES_PART] if kind == 0 else pool.limits.bytes * present[RATES_PART] // WHOLE
        taken += max(part, 0 if member is None else member.holds[kind])
    return taken


def divide(pool: Pool, question: Question, now: int) -> list[int]:
    """Return the part of the rates, of the places, and 1 if both are final: if not, the member asks again."""
    who, present = question["member"], pool.present
    for name in [name for name, each in present.items() if each[UNTIL] <= now]:
        del present[name]
    if question["leaves"] or not question["lease"]:
        present.pop(who, None)
        return [0, 0, 1]
    own = present.setdefault(who, [0, 0, 0, 0])
    own[UNTIL] = now + PRESENT
    needed = parts_for(len(present))
    if needed >= pool.parts or now >= pool.parts_until:
        if needed > pool.parts > 0:
            pool.called = pool.next_stamp()  # the others have too much
        pool.parts, pool.parts_until = needed, now + DIVIDED_FOR
    before = sum(name < who for name in present)
    given, final = [], 1
    for kind, whole in enumerate((WHOLE, pool.limits.places), 1):
        even = whole // pool.parts + (before < whole % pool.parts)
        free = whole - sum(each[kind] for name, each in present.items() if name != who)
        part, told = max(0, min(even, free)), question["part"][kind - 1]
        if part < even or told > part:
            final = 0
        own[kind] = max(part, told)  # until it tells that it goes by the smaller one
        given.append(part)
    return [*given, final]
