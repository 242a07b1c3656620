"""Pure. What a shared pool looks like to an onlooker, in figures and in words.

It reads a pool as `look` of a store gives it, and changes nothing. Durations are integer microseconds from
the pool's `now`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...arguments import US_PER_S
from ...words import soon
from .question import rate_of_terms
from .state import BYTES, PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...limits import Rate
    from .state import AnyPoolRate, Pool


class RateView(NamedTuple):
    """`level` of `most` units could be taken now (negative: in debt), and one more in `next` µs."""

    rate: Rate
    level: int
    most: int
    next: int


class Use(NamedTuple):
    """How many places or bytes all members hold together, and the limit (0: none)."""

    held: int
    limit: int


class MemberView(NamedTuple):
    """One process: its calls in flight and in line, and the places and bytes that it holds for both.

    The pool forgets it if it asks nothing for `lease` µs.
    """

    name: str
    in_flight: int
    waiting: int
    places: int
    bytes: int
    lease: int

    def facts(self) -> dict[str, Any]:
        """The same by name, for JSON."""
        return self._asdict()


class PoolView(NamedTuple):
    """A pool at one moment. `waits` says in words what the next call waits for; empty: for nothing."""

    levels: tuple[RateView, ...]
    places: Use
    usual_places: int  # the limit of places when the pool is not throttled (0: none)
    bytes: Use
    window: int  # µs until its end
    throttled: int  # µs until the end of the tighter limits, which begin with the window
    members: tuple[MemberView, ...]
    waits: tuple[str, ...]

    def explained(self, waits: Iterable[str]) -> PoolView:
        """The same, with what the next call waits for."""
        return self._replace(waits=tuple(waits))

    @property
    def waiting(self) -> int:
        """Calls in line at all members together."""
        return sum(member.waiting for member in self.members)

    @property
    def in_flight(self) -> int:
        """Calls in flight at all members together."""
        return sum(member.in_flight for member in self.members)

    @property
    def usual_again(self) -> str:
        """How many places there are when the pool is throttled no more, and when; empty if it is not."""
        if self.places.limit == self.usual_places:
            return ""
        usual = f"{self.usual_places:,}" if self.usual_places else "any number of"
        return f"{usual} places in {soon(self.throttled / US_PER_S)}"


def view_of(pool: Pool) -> PoolView:
    """Return what there is to see of a pool."""
    now, limits, until = pool.now, pool.limits, pool.window.until
    places, tighter = limits.places, limits.throttled_places
    window = 0 if until is None else max(0, until - now)
    throttled = 0 if until is None else max(0, until + limits.throttled_for - now)
    if throttled and tighter:
        places = min(places, tighter) if places else tighter
    members = tuple(
        MemberView(
            name, each.in_flight, each.waiting, each.holds[PLACES], each.holds[BYTES], each.expires - now
        )
        for name, each in sorted(pool.members.items())
        if any(each.holds) or each.in_flight or each.waiting  # if not, it has left
    )
    seen = PoolView(
        levels=tuple(_rate_view(rate, unit, now) for rate, unit in zip(pool.rates, pool.units, strict=True)),
        places=Use(sum(member.places for member in members), places),
        usual_places=limits.places,
        bytes=Use(sum(member.bytes for member in members), limits.bytes),
        window=window,
        throttled=throttled,
        members=members,
        waits=(),
    )
    return seen.explained(_reasons(pool, seen))


def _rate_view(rate: AnyPoolRate, unit: str, now: int) -> RateView:
    return RateView(
        rate=rate_of_terms(rate.terms, unit),
        level=rate.most - rate.missing(now),
        most=rate.most,
        next=rate.fits_at(1, now) - now,
    )


def _reasons(pool: Pool, seen: PoolView) -> list[str]:
    """Return what the next call waits for, in words: the window, places, bytes, rates."""
    reasons = []
    if seen.window:
        reasons.append(f"window: {soon(seen.window / US_PER_S)} left")
    places, load = seen.places, seen.bytes
    if places.limit and seen.in_flight >= places.limit:
        reasons.append(f"concurrency: all {places.limit:,} places are taken{why_fewer(seen)}")
    elif places.limit and _wanted(pool, PLACES) and places.held >= places.limit:
        used = f"processes hold all {places.limit:,} places, {seen.in_flight:,} of them in use"
        reasons.append(f"concurrency: {used}{why_fewer(seen)}")
    if load.limit and _wanted(pool, BYTES) and load.held >= load.limit:
        reasons.append("bytes: as many as may be are in flight")
    if not seen.window:
        slow = sorted((level for level in seen.levels if level.next), key=lambda level: -level.next)
        reasons += [f"{level.rate.name}: next in {soon(level.next / US_PER_S)}" for level in slow]
    # A member was granted a batch for later, or none yet: a rate has less than its next call needs.
    heavy = any(member.last_start > pool.now or member.put_off for member in pool.members.values())
    if heavy and not reasons and seen.levels:
        scarce = min(seen.levels, key=lambda level: level.level / level.most)
        reasons.append(f"{scarce.rate.name}: {max(0, scarce.level):,} left, and the next call needs more")
    return reasons


def why_fewer(seen: PoolView) -> str:
    """Return why there are fewer places than usual, to be put behind their number; empty if there are not."""
    return f" (throttled by a backoff window; {seen.usual_again})" if seen.usual_again else ""


def _wanted(pool: Pool, kind: int) -> bool:
    """Return whether a member wants more places or bytes than it holds."""
    return any(member.wants[kind] > member.holds[kind] for member in pool.members.values())
