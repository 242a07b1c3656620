"""Pure. A pool: the rates, places, bytes and the backoff window that the members of one key share.

Times are the store's, in integer microseconds. `packed` is what stores keep: lists without names, in the
order that `scripts/state.lua` gives too. LAYOUT is another number whenever that order or its meaning changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from .episode import PoolLesson, PoolWindow
from .flow import pass_by
from .question import Answer, PoolLimits
from .rate import BUCKET, STRICT, PoolRate
from .strict import StrictPoolRate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AnyPoolRate = PoolRate | StrictPoolRate

LAYOUT = 19

# A store's clock that goes back by less stands still until it has caught up; by more, it has been set.
SET_BACK = 1_000_000

# For how many µs a store keeps a pool after `idle_for` has passed.
KEPT_IDLE = 60_000_000

# Indices of what a member holds, uses and wants.
PLACES, BYTES = 0, 1


@dataclass(slots=True)
class MemberState:
    """What a pool knows of one member."""

    expires: int = 0
    last_start: int = 0  # of the batches granted to it
    served: int = 0  # what was granted to it, as time of the rate
    short_until: int = 0  # it was granted less than it asked for, and is expected to ask again by then
    reach: int = 0  # how long its questions and their answers travel
    back: int = 0  # of this the answers
    holds: list[int] = field(default_factory=lambda: [0, 0])
    wants: list[int] = field(default_factory=lambda: [0, 0])
    # [until, part]: parts of the rates that are kept for it, the first one from now on; and the largest batch
    # of these, as time of the rate.
    flows: list[list[int]] = field(default_factory=list)
    lump: int = 0
    gap: int = 0  # by how much later it may use units, if it has shifts of its own (shift.py)
    content: int = 0  # 1: its callers in line were few, and there was a batch for each of them
    # Since when a batch is put off because it starts too late, or from when on there are units that others
    # may have first. 0: none is.
    put_off: int = 0
    next_bytes: int = 0
    turn: int = 0  # the stamp at which it last had more than its even share
    crowded: int = 0  # 1: it was told, or called to hear, that others want what it holds
    in_flight: int = 0  # for `view_of`, as is the next one
    waiting: int = 0
    answered: int = 0  # the id of its last question
    answer: Answer | None = None


@dataclass(slots=True)
class Pool:
    """All that a store remembers for one key. A new one has never been used."""

    rates: list[AnyPoolRate] = field(default_factory=list)
    limits: PoolLimits = field(default_factory=PoolLimits)
    units: list[str] = field(default_factory=list)  # what each rate counts
    version: int = 0  # of rates and limits
    members: dict[str, MemberState] = field(default_factory=dict)
    window: PoolWindow = field(default_factory=PoolWindow)
    stamp: int = 0  # the last one given out: a number that only grows
    now: int = 0  # the latest time it was asked at
    ahead: int = 0  # of the store's clock: grows when that clock is set back
    called: int = 0  # the stamp at which members that were silent were last called to ask
    lesson: PoolLesson = field(default_factory=PoolLesson)
    configured: list[list[int]] = field(default_factory=list)  # terms of the rates before others were learned
    raised: int = 0  # the stamp at which a rate was last found to have much more than it had
    born: int = 0  # when it was asked first
    grants_from: int = 0  # before that time nothing is granted: members of a lost pool tell what they use
    # By process: until when it counts as present, its parts of the rates and places without the store, and
    # when it should have asked again (parts.py).
    present: dict[str, list[int]] = field(default_factory=dict)
    parts: int = 0  # into which all is divided then; 0: no process has asked yet
    parts_until: int = 0  # before that time there are not fewer
    # [until, part] in turn: what of the rates is kept for flows at least (flow.py).
    beside: list[list[int]] = field(default_factory=list)
    granted_until: int = 0  # so long members may use what a lost pool had granted them, by `granted_for`
    apart: str = ""  # the member far away whose shift it is; empty: that of all near ones (shift.py)
    prepaid: int = 0  # what was counted of this shift before it was granted, as time of the rate
    # The reunion of members that could not ask (reunion.py): since when one has told that, and until when. 0:
    # none has, or there is none.
    reunion_from: int = 0
    reunion_until: int = 0
    # From when until when questions came without a gap.
    asked_from: int = 0
    asked_until: int = 0

    @property
    def grants_after(self) -> int:
        """Before that moment nothing is granted."""
        return max(self.grants_from, self.reunion_until)

    @property
    def news(self) -> tuple[int, ...]:
        """What the listeners of a key are told to ask for when it has changed."""
        return self.window.generation, self.version, self.called, self.born, self.lesson.version

    def packed(self) -> list[Any]:
        """Return what `unpacked` reads, made of lists, numbers and texts."""
        return [
            LAYOUT,
            [_fields(rate) for rate in self.rates],
            list(self.limits),
            self.units,
            self.version,
            {name: _fields(member) for name, member in self.members.items()},
            _fields(self.window),
            self.stamp,
            self.now,
            self.ahead,
            self.called,
            _fields(self.lesson),
            self.configured,
            self.raised,
            self.born,
            self.grants_from,
            self.present,
            self.parts,
            self.parts_until,
            self.beside,
            self.granted_until,
            self.apart,
            self.prepaid,
            self.reunion_from,
            self.reunion_until,
            self.asked_from,
            self.asked_until,
        ]

    @classmethod
    def unpacked(cls, packed: list[Any]) -> Pool:
        """Read what `packed` wrote; ValueError if another version of headgate did."""
        if not isinstance(packed, list) or packed[:1] != [LAYOUT]:
            raise ValueError(
                "the pool was made by another version of headgate; end the processes of the other version "
                "and wait a minute, or write another key"
            )
        _, rates, limits, units, version, members, window, *others = packed
        stamp, now, ahead, called, lesson, learned_from, *times = others
        return cls(
            [_KINDS[rate[3]](*rate) for rate in rates],
            PoolLimits(*limits),
            units,
            version,
            {name: MemberState(*member) for name, member in members.items()},
            PoolWindow(*window),
            *(stamp, now, ahead, called),
            PoolLesson(*lesson),
            learned_from,
            *times,
        )

    def as_of(self, now: int) -> Pool:
        """Prepare it for an onlooker: without members that have expired by then, answers and parts."""
        self.advance(now)
        self.present, self.parts, self.parts_until = {}, 0, 0
        for member in self.members.values():
            member.answered, member.answer = 0, None
        return self

    def advance(self, now: int) -> None:
        """Go on to that time of the store's clock, and forget members whose lease has ended."""
        if now + self.ahead < self.now - SET_BACK:
            self.ahead = self.now - now
        before, self.now = self.now, max(now + self.ahead, self.now)
        pass_by(self, before)
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
            ends.append(rate.idle_from())
            if until is not None and until != self.window.resumed:
                ends.append(rate.idle_after(until))
        return max(ends) - self.now


_KINDS: Sequence[type[AnyPoolRate]] = (PoolRate, PoolRate, StrictPoolRate)


def pool_rate(terms: Sequence[int], stamp: int) -> AnyPoolRate:
    """Return a new rate of these terms. What was taken before the stamp cannot be returned to it."""
    amount, period, burst, kind = (*terms, BUCKET)[:4]
    if kind == STRICT:
        return StrictPoolRate(amount, period, burst, gone=stamp)
    return PoolRate(amount, period, burst, kind, full_stamp=stamp)


_FIELDS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__slots__)
    for kind in (PoolRate, StrictPoolRate, MemberState, PoolWindow, PoolLesson)
}


def _fields(state: AnyPoolRate | MemberState | PoolWindow | PoolLesson) -> list[Any]:
    return [*_FIELDS[type(state)](state)]
