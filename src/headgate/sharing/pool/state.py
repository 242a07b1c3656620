"""Pure. A pool: the rates, places, bytes and the backoff window that the members of one key share.

Times are the store's, in integer microseconds. `packed` is what stores keep: lists without names, in the
order that `scripts/state.lua` gives too. LAYOUT is another number whenever that order or its meaning changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .question import PoolLimits
from .rate import PoolRate

if TYPE_CHECKING:
    from typing import Any

    from .question import Answer

LAYOUT = 4

# For how many µs a store keeps a pool after `idle_for` has passed.
KEPT_IDLE = 60_000_000

# Indices of what a member holds, uses and wants.
PLACES, BYTES = 0, 1


class PoolWindow:
    """The backoff window of a pool.

    `until` is its end, None if there never was one. `generation` is another number with each signal.
    `resumed` is the end after which the rates have begun to earn again.
    """

    __slots__ = ("generation", "resumed", "until")

    def __init__(self, until: int | None = None, generation: int = 0, resumed: int | None = None) -> None:
        self.until = until
        self.generation = generation
        self.resumed = resumed


class MemberState:
    """What a pool knows of one member, until `expires`.

    `holds` and `wants` are [places, bytes]. `last_start` is the start of the last batch granted to it.
    `put_off` is the moment since which a batch is put off because it starts too late, 0 if none is. `turn`
    is the stamp at which it last had more than its even share. `in_flight` and `waiting` are for `view_of`.
    `answered` is the id of its last question, and `answer` what it was answered.
    """

    __slots__ = (
        "answer",
        "answered",
        "expires",
        "holds",
        "in_flight",
        "last_start",
        "next_bytes",
        "put_off",
        "turn",
        "waiting",
        "wants",
    )

    def __init__(
        self,
        expires: int = 0,
        last_start: int = 0,
        holds: list[int] | None = None,
        wants: list[int] | None = None,
        put_off: int = 0,
        next_bytes: int = 0,
        turn: int = 0,
        in_flight: int = 0,
        waiting: int = 0,
        answered: int = 0,
        answer: Answer | None = None,
    ) -> None:
        self.expires = expires
        self.last_start = last_start
        self.holds = holds or [0, 0]
        self.wants = wants or [0, 0]
        self.put_off = put_off
        self.next_bytes = next_bytes
        self.turn = turn
        self.in_flight = in_flight
        self.waiting = waiting
        self.answered = answered
        self.answer = answer

    def packed(self) -> list[Any]:
        """Return the fields in the order in which they are stored."""
        return [
            self.expires,
            self.last_start,
            list(self.holds),
            list(self.wants),
            self.put_off,
            self.next_bytes,
            self.turn,
            self.in_flight,
            self.waiting,
            self.answered,
            self.answer,
        ]


class Pool:
    """All that a store remembers for one key. A new one has never been used.

    `stamp` is the last one given out: a number that only grows. `now` is the latest time it was asked at.
    """

    __slots__ = ("limits", "members", "now", "rates", "stamp", "units", "version", "window")

    def __init__(self) -> None:
        self.rates: list[PoolRate] = []
        self.limits = PoolLimits()
        self.units: list[str] = []  # what each rate counts
        self.version = 0  # of rates and limits
        self.members: dict[str, MemberState] = {}
        self.window = PoolWindow()
        self.stamp = 0
        self.now = 0

    def packed(self) -> list[Any]:
        """Return what `unpacked` reads, made of lists, numbers and texts."""
        window = self.window
        return [
            LAYOUT,
            [rate.packed() for rate in self.rates],
            list(self.limits),
            list(self.units),
            self.version,
            {name: member.packed() for name, member in self.members.items()},
            [window.until, window.generation, window.resumed],
            self.stamp,
            self.now,
        ]

    @classmethod
    def unpacked(cls, packed: list[Any]) -> Pool:
        """Read what `packed` wrote; ValueError if another version of headgate did."""
        if not isinstance(packed, list) or packed[:1] != [LAYOUT]:
            raise ValueError("not a pool of this version of headgate")
        pool = cls()
        _, rates, limits, pool.units, pool.version, members, window, pool.stamp, pool.now = packed
        pool.rates = [PoolRate(*rate) for rate in rates]
        pool.limits = PoolLimits(*limits)
        pool.members = {name: MemberState(*member) for name, member in members.items()}
        pool.window = PoolWindow(*window)
        return pool

    def copy(self) -> Pool:
        """Return an equal pool that changes independently."""
        return Pool.unpacked(self.packed())

    def as_of(self, now: int) -> Pool:
        """Return a copy for an onlooker: without members that have expired by then, and without answers."""
        seen = self.copy()
        seen.now = max(now, self.now)
        seen.drop_expired_members(seen.now)
        for member in seen.members.values():
            member.answered, member.answer = 0, None
        return seen

    def next_stamp(self, now: int) -> int:
        """Return a number larger than any before, those of a pool that was forgotten included."""
        self.stamp = max(self.stamp + 1, now)
        return self.stamp

    def drop_expired_members(self, now: int) -> None:
        """Forget the members that have not asked within their lease."""
        for name in [name for name, member in self.members.items() if member.expires <= now]:
            del self.members[name]

    def idle_for(self, now: int) -> int:
        """Return for how long from now the pool differs from a new one."""
        until = self.window.until
        ends = [now, *(member.expires for member in self.members.values())]
        if until is not None:
            ends.append(until + self.limits.throttled_for)
        for rate in self.rates:
            ends.append(rate.full_at + rate.time_for(rate.burst) - rate.tolerance())
            if until is not None and until != self.window.resumed:
                ends.append(until + rate.time_for(rate.burst))
        return max(ends) - now

    def shift(self, by: int) -> None:
        """Move all times, when the store's clock counts from another beginning. Stamps are not times."""
        self.now += by
        for rate in self.rates:
            rate.full_at += by
        for member in self.members.values():
            member.expires += by
            member.last_start += by
            if member.put_off:
                member.put_off += by
        window = self.window
        if window.until is not None:
            window.until += by
        if window.resumed is not None:
            window.resumed += by
