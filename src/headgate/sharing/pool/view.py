"""Pure. How a shared pool stands, in figures and in words, for those who only look.

Rules of this room: it reads a state of `rules.pool` and changes nothing. Times are those of the state, in
integer microseconds; what goes out of here is measured from its `now`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...arguments import SECOND
from ...limits import Rate
from .answer import _fits_at

if TYPE_CHECKING:
    from .answer import State

_MICRO = 1_000


class Level(NamedTuple):
    """One rate: `level` units could go now (negative: in debt), of `most` at best; one more in `next` µs."""

    rate: Rate
    level: int
    most: int
    next: int


class Use(NamedTuple):
    """Places or bytes: how much is held by all together, of how much (0: no limit)."""

    held: int
    limit: int


class Member(NamedTuple):
    """One of those who share: how many of its calls are under way and how many wait, and the places and
    bytes that it holds for these and the next. Not heard of for `lease` µs, it is forgotten.
    """

    name: str
    under_way: int
    waiting: int
    places: int
    bytes: int
    lease: int


class Standing(NamedTuple):
    """All of it at one moment. `waits` says in words what the next call waits for; nothing: it may go."""

    levels: tuple[Level, ...]
    places: Use
    bytes: Use
    window: int  # µs that are left of it
    throttled: int  # µs that go by tighter rules, the window included
    members: tuple[Member, ...]
    waits: tuple[str, ...]

    @property
    def waiting(self) -> int:
        """Calls that wait, at all members together."""
        return sum(member.waiting for member in self.members)


def standing(pool: State) -> Standing:
    """Read a pool, as `look` of a store gives it."""
    now = pool["now"]
    levels = tuple(_level(rate, unit, now) for rate, unit in zip(pool["rates"], pool["units"], strict=True))
    places, tighter, most_bytes, tail = pool["limits"]
    until = pool["window"][0]
    window = 0 if until is None else max(0, until - now)
    throttled = 0 if until is None else max(0, until + tail - now)
    if throttled and tighter:
        places = min(places, tighter) if places else tighter
    members = tuple(
        Member(name=name, under_way=under_way, waiting=waiting, places=held, bytes=load, lease=expires - now)
        for name, (expires, _, held, load, *_, under_way, waiting) in sorted(pool["members"].items())
        if held or load or under_way or waiting  # if not, it has left
    )
    seen = Standing(
        levels=levels,
        places=Use(sum(member.places for member in members), places),
        bytes=Use(sum(member.bytes for member in members), most_bytes),
        window=window,
        throttled=throttled,
        members=members,
        waits=(),
    )
    known = pool["members"].values()
    # Somebody wants more places or bytes than it was given.
    short = any(member[4] > member[2] for member in known), any(member[5] > member[3] for member in known)
    # Somebody was given a moment in the future, or none yet: a rate has less than its call needs.
    heavy = any(member[1] > now or member[6] for member in known)
    return seen._replace(waits=tuple(_why(seen, short, heavy=heavy)))


def _level(rate: list[int], unit: str, now: int) -> Level:
    amount, period, burst, tat = rate[:4]
    most = burst - burst // 10
    return Level(
        rate=Rate(amount, period * _MICRO / SECOND, burst=burst, unit=unit),
        level=most - -(-max(0, tat - now) * amount // period),
        most=most,
        next=_fits_at(rate, 1, now) - now,
    )


def _why(seen: Standing, short: tuple[bool, bool], *, heavy: bool) -> list[str]:
    """What keeps the next one, in words: the window, places, bytes, rates."""
    why = []
    if seen.window:
        why.append(f"window: {soon(seen.window)} left")
    places, load = seen.places, seen.bytes
    under_way = sum(member.under_way for member in seen.members)
    if places.limit and (under_way >= places.limit or (short[0] and places.held >= places.limit)):
        tighter = f" for another {soon(seen.throttled)}" if seen.throttled and not seen.window else ""
        why.append(f"concurrency: all {places.limit} places are taken{tighter}")
    if load.limit and short[1] and load.held >= load.limit:
        why.append("bytes: as many as may be are under way")
    slow = sorted((level for level in seen.levels if level.next), key=lambda level: -level.next)
    why += [f"{level.rate.name}: next in {soon(level.next)}" for level in slow if not seen.window]
    if heavy and not why and seen.levels:
        scarce = min(seen.levels, key=lambda level: level.level / level.most)
        why.append(f"{scarce.rate.name}: {max(0, scarce.level):,} left, and the next call needs more")
    return why


def soon(microseconds: int) -> str:
    """As people say it, rounded up.

    >>> soon(400_000), soon(12_000_000), soon(95_000_000), soon(7_322_000_000)
    ('0.4 s', '12 s', '1:35', '2:02:02')
    """
    if microseconds < 9_950_000:
        return f"{max(1, -(-microseconds // 100_000)) / 10:.1f} s"
    whole = -(-microseconds // 1_000_000)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
