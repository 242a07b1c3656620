"""Pure. The values between a gate and what it is shared through: demand goes out, grants come in.

A gate does not know how it is shared, nor by how many. It tells its `Supply` that callers want more,
that something came back and that its window changed, and it is given grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..hints import AnyRate
from ..limits import Columns
from .decision import Rules
from .leased import LeasedRate
from .line import Line
from .window import WindowSignal

# How many waiting callers of each priority a demand counts one by one.
_MOST_COSTS = 256


class Supply(Protocol):
    """What a gate is shared through. Called from any thread, never under a lock; never waits."""

    def wanted(self, cost: tuple[int, ...] | None) -> None:
        """Callers want more than was granted: one of `cost` that did not wait, or (None) those in line."""

    def returned(self, *, corrected: bool) -> None:
        """A call is over; `corrected` says whether its cost was another than estimated."""

    def signalled(self, signal: WindowSignal) -> None:
        """The window changed, by a signal that did not come from this supply."""

    def close(self) -> None:
        """The gate was closed."""

    def after_fork(self) -> None:
        """In a forked child: what was granted belongs to the parent."""


@dataclass(frozen=True, slots=True)
class RateDemand:
    """How one leased rate stands. `returned`, `owed` and `stated` are in one demand only."""

    units: int  # that may be used now
    scheduled: int  # granted for a later start
    taken: int  # since the rate was installed
    returned: list[list[int]]  # [units, stamp] that were granted and not needed
    owed: int  # used without a grant
    in_vain: int = 0  # granted to callers that had gone, since the rate was installed
    stated: tuple[int, int, int] | None = None  # what a call was told to remain, as for `LeasedRate.tell`


@dataclass(frozen=True, slots=True)
class Demand:
    """What a gate holds, and what its waiting callers want."""

    at: int
    costs: tuple[tuple[int, ...], ...]  # of waiting callers, in order, at most 256 of each priority
    waiting: int
    in_flight: int
    bytes_in_flight: int
    may_use: tuple[int, int]  # places and bytes that may be in use before the next grant
    byte_penalty: int  # how often a byte counts now
    waits_for_window: bool  # whether calls are held back while a window is active
    rates: tuple[RateDemand, ...]  # empty while the gate goes by rates of its own

    @property
    def inside(self) -> bool:
        """Whether a call is under way that holds a place or bytes."""
        return bool(self.in_flight or self.bytes_in_flight)

    @property
    def holds(self) -> bool:
        """Whether something was granted and not used, a caller waits, or a call is under way."""
        granted = any(rate.units or rate.scheduled for rate in self.rates)
        return bool(granted or self.waiting) or self.inside


@dataclass(frozen=True, slots=True)
class Batch:
    """Units of every rate that may be used from `start` on."""

    start: int
    stamp: int
    units: Sequence[int]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a gate is given. None: as it was."""

    batches: Sequence[Batch] = ()
    places: int | None = None
    bytes: int | None = None
    all_bytes: int | None = None  # of all members together: a larger call runs alone
    valid_until: int | None = None  # from then on no place and no byte may be used
    ahead: Sequence[int] | None = None  # how many unused units of each rate should be there
    members: int = 1  # that share the rates
    rests: bool = False  # no caller was in line when the batches were asked for: one is left for later
    return_unused: bool = False  # units beyond `ahead` go back
    rates: Sequence[AnyRate] | None = None  # to go by from now on
    columns: Columns | None = None  # that these rates count, if there are more than before
    keeps_units: bool = False  # of the rates that these replace
    sooner: int = 0  # by so much all batches start sooner that were granted before
    sooner_than: int | None = None  # batches with a smaller stamp that have not started are dropped


def read_demand(
    rules: Rules, line: Line, now: int, *, leaving: bool = False, keeps: Sequence[int] | None = None
) -> Demand:
    """How a gate stands.

    `leaving`: all units that it has go back. `keeps`: other gates want the places and bytes that no caller
    here waits for, so no more than are in use, or these, may be used before the next grant.
    """
    places, weight = rules.places, rules.weight
    if keeps is not None and not line.waiting:
        if places is not None and places.limit is not None:
            places.limit = min(places.limit, max(keeps[0], places.in_flight))
        if weight is not None:
            weight.budget = min(weight.budget, max(keeps[1], weight.in_flight))
    in_flight = 0 if places is None else places.in_flight
    bytes_in_flight = 0 if weight is None else weight.in_flight
    rates = []
    for rate in leased(rules):
        rate.release_due(now)
        if leaving:
            rate.return_unused(0, now)
        returned, owed = rate.report()
        stated, rate.stated = rate.stated, None
        scheduled, in_vain = rate.scheduled, rate.in_vain
        rates.append(RateDemand(rate.units, scheduled, rate.taken, returned, owed, in_vain, stated))
    return Demand(
        at=now,
        costs=_next_costs(rules, line, now),
        waiting=line.waiting,
        in_flight=in_flight,
        bytes_in_flight=bytes_in_flight,
        may_use=(
            in_flight if places is None or places.limit is None else max(in_flight, places.limit),
            0 if weight is None else max(bytes_in_flight, weight.budget),
        ),
        byte_penalty=weight.penalty if weight is not None and rules.throttled(now) else 1,
        waits_for_window=rules.reentry is not None,
        rates=tuple(rates),
    )


def _next_costs(rules: Rules, line: Line, now: int) -> tuple[tuple[int, ...], ...]:
    """What the waiting callers cost that are to go next: while probes go, only these, when they may go."""
    probes = rules.probes
    if probes is not None and now < probes.next_at:
        return ()
    costs = tuple(line.costs(_MOST_COSTS))
    return costs if probes is None else costs[: probes.left]


def apply_grant(rules: Rules, grant: Grant, now: int, *, idle: bool) -> None:
    """Go by a grant, apart from its `rates`. `idle`: no caller waits."""
    places, weight = rules.places, rules.weight
    rates = leased(rules)
    if grant.sooner:
        for rate in rates:
            rate.move(grant.sooner)
    if grant.sooner_than is not None:
        for rate in rates:
            rate.drop_scheduled(grant.sooner_than, now)
    for batch in grant.batches:
        for rate, units in zip(rates, batch.units, strict=False):
            if units:
                rate.grant(units, batch.start, batch.stamp)
    if grant.places is not None and places is not None:
        places.limit = grant.places
    if grant.bytes is not None and weight is not None:
        weight.budget = grant.bytes
        if grant.all_bytes is not None:
            weight.whole = grant.all_bytes
    if grant.valid_until is not None:
        rules.valid_until = grant.valid_until
    for i, (rate, ahead) in enumerate(zip(rates, grant.ahead or (), strict=False)):
        rate.ahead = ahead
        left = max((batch.units[i] for batch in grant.batches), default=0) if grant.rests else 0
        rate.keep(max(rate.rate.burst // 10 // grant.members, left))
        if grant.return_unused and idle:
            rate.return_unused(ahead, now)


def take_over(rules: Rules, rates: Sequence[AnyRate], now: int) -> None:
    """Have rates that replace others go on with the units that were granted to those."""
    for rate in rates:
        if isinstance(rate, LeasedRate):
            before = [old for old in leased(rules) if old.column == rate.column]
            if len(before) == 1:
                rate.follow(before[0], now)


def leased(rules: Rules) -> list[LeasedRate]:
    """The rates of a gate whose units are granted."""
    return [rate for rate in rules.rates if isinstance(rate, LeasedRate)]


def holds(rules: Rules, waiting: int) -> bool:
    """Whether something was granted and not used, a caller waits, or a call is under way."""
    granted = any(rate.units or rate.scheduled for rate in leased(rules))
    in_flight = (rules.places and rules.places.in_flight) or (rules.weight and rules.weight.in_flight)
    return bool(granted or in_flight or waiting)


def is_low(rules: Rules, cost: tuple[int, ...]) -> bool:
    """Whether more units should be asked for before they are needed, once this cost is taken."""
    return any(isinstance(rate, LeasedRate) and rate.low_after(cost) for rate in rules.rates)


def drop_batches(rules: Rules, now: int) -> None:
    """While a window holds calls back, drop what was granted for before its end."""
    window = rules.window
    if rules.reentry is not None and window is not None and window.until is not None and now < window.until:
        for rate in leased(rules):
            rate.hold_until(window.until, now)


def expire(rules: Rules) -> None:
    """What was granted may have gone to others: use no place and no byte before the next grant."""
    if rules.places is not None and rules.places.limit is not None:
        rules.places.limit = 0
    if rules.weight is not None:
        rules.weight.budget = 0
