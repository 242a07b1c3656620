"""Pure. A pool: the rates, places, bytes and the backoff window that the members of one key share.

Times are the store's, in integer microseconds. `packed` is what stores keep: lists without names, in the
order that `scripts/state.lua` gives too. LAYOUT is another number whenever that order or its meaning changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .question import Answer, PoolLimits
from .rate import PoolRate

LAYOUT = 5

# A store's clock that goes back by less stands still until it has caught up; by more, it has been set.
SET_BACK = 1_000_000

# For how many µs a store keeps a pool after `idle_for` has passed.
KEPT_IDLE = 60_000_000

# Indices of what a member holds, uses and wants.
PLACES, BYTES = 0, 1


@dataclass(slots=True)
class PoolWindow:
    """The backoff window of a pool."""

    until: int | None = None  # its end; None: there never was one
    generation: int = 0  # another number with each signal
    resumed: int | None = None  # the end after which the rates have begun to earn again


@dataclass(slots=True)
class MemberState:
    """What a pool knows of one member."""

    expires: int = 0
    last_start: int = 0  # of the batches granted to it
    holds: list[int] = field(default_factory=lambda: [0, 0])
    wants: list[int] = field(default_factory=lambda: [0, 0])
    put_off: int = 0  # since when a batch is put off because it starts too late; 0: none is
    next_bytes: int = 0
    turn: int = 0  # the stamp at which it last had more than its even share
    in_flight: int = 0  # for `view_of`, as is the next one
    waiting: int = 0
    answered: int = 0  # the id of its last question
    answer: Answer | None = None


@dataclass(slots=True)
class Pool:
    """All that a store remembers for one key. A new one has never been used."""

    rates: list[PoolRate] = field(default_factory=list)
    limits: PoolLimits = field(default_factory=PoolLimits)
    units: list[str] = field(default_factory=list)  # what each rate counts
    version: int = 0  # of rates and limits
    members: dict[str, MemberState] = field(default_factory=dict)
    window: PoolWindow = field(default_factory=PoolWindow)
    stamp: int = 0  # the last one given out: a number that only grows
    now: int = 0  # the latest time it was asked at
    ahead: int = 0  # of the store's clock: grows when that clock is set back

    def packed(self) -> list[Any]:
        """Return what `unpacked` reads, made of lists, numbers and texts."""
        return [
            LAYOUT,
            [_fields(rate) for rate in self.rates],
            self.limits,
            self.units,
            self.version,
            {name: _fields(member) for name, member in self.members.items()},
            _fields(self.window),
            self.stamp,
            self.now,
            self.ahead,
        ]

    @classmethod
    def unpacked(cls, packed: list[Any]) -> Pool:
        """Read what `packed` wrote; ValueError if another version of headgate did."""
        if not isinstance(packed, list) or packed[:1] != [LAYOUT]:
            raise ValueError("not a pool of this version of headgate")
        _, rates, limits, units, version, members, window, *times = packed
        return cls(
            [PoolRate(*rate) for rate in rates],
            PoolLimits(*limits),
            units,
            version,
            {name: MemberState(*member) for name, member in members.items()},
            PoolWindow(*window),
            *times,
        )

    def as_of(self, now: int) -> Pool:
        """Prepare it for an onlooker: without members that have expired by then, and without answers."""
        self.advance(now)
        for member in self.members.values():
            member.answered, member.answer = 0, None
        return self

    def advance(self, now: int) -> None:
        """Go on to that time of the store's clock, and forget members whose lease has ended."""
        if now + self.ahead < self.now - SET_BACK:
            self.ahead = self.now - now
        self.now = max(now + self.ahead, self.now)
        for name in [name for name, member in self.members.items() if member.expires <= self.now]:
            del self.members[name]

    def next_stamp(self) -> int:
        """Return a number larger than any before, those of a pool that was forgotten included."""
        self.stamp = max(self.stamp + 1, self.now)
        return self.stamp

    def idle_for(self) -> int:
        """Return for how long from now the pool differs from a new one."""
        until = self.window.until
        ends = [self.now, *(member.expires for member in self.members.values())]
        if until is not None:
            ends.append(until + self.limits.throttled_for)
        for rate in self.rates:
            ends.append(rate.full_at + rate.time_for(rate.burst) - rate.tolerance())
            if until is not None and until != self.window.resumed:
                ends.append(until + rate.time_for(rate.burst))
        return max(ends) - self.now


def _fields(state: PoolRate | MemberState | PoolWindow) -> list[Any]:
    return [getattr(state, name) for name in state.__slots__]
