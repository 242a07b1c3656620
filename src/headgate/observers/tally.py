"""Counts of what happens at gates, for all kinds of metrics.

Counters and sums are kept here and read when metrics are collected; to count one call takes a lock and a few
additions. What a gate holds at the moment is read from the gate itself, at the same time.

The locks may be taken twice by one thread: a finalizer of the user's that makes a call may run at any moment.
"""

from __future__ import annotations

from _thread import RLock
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from .. import events, telling
from ..dispatch.snapshot import DispatchSnapshot, snapshot_of
from ..gate.forks import living, reset_in_child
from ..gate.gate import Gate

# Upper bounds of the buckets of durations, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BOUNDS, _STORE_BOUNDS = (tuple(round(bound * 1e9) for bound in of) for of in (BUCKETS, STORE_BUCKETS))

# Counts of these begin with 0, so that the first one is seen as a change. Others begin when they happen.
_USUAL_REASONS = ("rate_limited", "concurrency", "overloaded", "quota_window")

# How many tenants, reasons and gates have a name of their own in metrics. All later ones are `OTHER`.
MOST_TENANTS, MOST_REASONS, MOST_GATES = 100, 100, 1_000
OTHER = "other"


class Names:
    """Names for labels, a bounded number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, str] = {}

    def of(self, thing: Hashable) -> str:
        """The name of a thing, or `other` if there are too many by now."""
        name = self._known.get(thing)
        if name is None:
            name = str(thing) if len(self._known) < self._most else OTHER
            if name is not OTHER:
                self._known[thing] = name
        return name


class Durations:
    """A histogram: how many were in each bucket, and nanoseconds in all."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...] = _BOUNDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, duration: int) -> None:
        """Count one of that many nanoseconds."""
        self.counts[bisect_left(self._bounds, duration)] += 1
        self.sum += duration


class GateTally(telling.CallMeter):
    """What was counted at the gates of one name."""

    __slots__ = (
        "_owner",
        "_plain",
        "_plain_count",
        "_straight",
        "_tells_apart",
        "_units",
        "estimated",
        "holds",
        "lock",
        "name",
        "requests",
        "used",
        "waits",
    )

    def __init__(self, owner: Tally, name: str) -> None:
        self._owner = owner
        self._tells_apart = owner.tenants
        self.name = name
        self.start_anew()

    def start_anew(self) -> None:
        """Nothing has happened yet."""
        self.lock = RLock()
        self._straight = 0  # calls that were admitted without waiting, if tenants are not told apart
        self.requests: dict[tuple[str, ...], int] = {}  # the others, by result, rule and tenant
        self.waits: dict[tuple[str, ...], Durations] = {}  # by result and rule
        self.holds = Durations()
        self._plain: tuple[int, ...] | None = None  # the cost of calls that cost one request ...
        self._plain_count = 0  # ... and how many of them there were
        self._units: tuple[str, ...] = ()
        self.estimated: list[int] = []  # units of the other calls
        self.used: list[int] = []

    def admitted(self, waited: int, rule: str | None, tenant: Hashable) -> None:
        if rule is None and not self._tells_apart:
            with self.lock:
                self._straight += 1
        else:
            self.count("admitted", rule, tenant, waited)

    def settled(
        self, held: int, units: Iterable[str], cost: tuple[int, ...], actual: tuple[int, ...]
    ) -> None:
        owner, holds = self._owner, self.holds
        if owner.keeps_durations:
            bucket = bisect_left(_BOUNDS, held)
            if cost is actual and cost is self._plain:  # most often, and in few steps
                with self.lock:
                    holds.counts[bucket] += 1
                    holds.sum += held
                    self._plain_count += 1
                return
            with self.lock:
                holds.counts[bucket] += 1
                holds.sum += held
        else:
            owner.was_held(self.name, held)
        self._add_units(tuple(units), cost, actual)

    def _add_units(self, units: tuple[str, ...], cost: tuple[int, ...], actual: tuple[int, ...]) -> None:
        with self.lock:
            more = len(units) - len(self._units)
            if more > 0:
                self.estimated += [0] * more
                self.used += [0] * more
                self._units = units
            for column, amount in enumerate(cost):
                self.estimated[column] += amount
            for column, amount in enumerate(actual):
                self.used[column] += amount
            if self._plain is None and cost[0] == 1 and not any(cost[1:]):
                self._plain = cost

    def count(self, result: str, rule: str | None, tenant: Hashable, waited: int) -> None:
        """Count a call that waited or was refused, or one of a tenant."""
        owner = self._owner
        labels = result, rule or "none"
        by_tenant = (*labels, owner.name_of_tenant(tenant)) if self._tells_apart else labels
        with self.lock:
            self.requests[by_tenant] = self.requests.get(by_tenant, 0) + 1
            if waited and owner.keeps_durations:
                durations = self.waits.get(labels)
                if durations is None:
                    durations = self.waits[labels] = Durations()
                durations.add(waited)
        if waited:
            owner.has_waited(self.name, *labels, waited)

    def counted(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """How many calls there were, by result, rule and perhaps tenant."""
        with self.lock:
            counts, straight = dict(self.requests), self._straight
        if not self._tells_apart:
            yield ("admitted", "none"), straight
        yield from counts.items()

    def units(self) -> list[tuple[str, int, int]]:
        """Units, how many of them were estimated, and how many were used."""
        with self.lock:
            plain = [self._plain_count] + [0] * len(self._units)
            columns = zip(self._units, self.estimated, self.used, plain, strict=False)
            return [(unit, guess + more, used + more) for unit, guess, used, more in columns]


class Level(NamedTuple):
    """How much of a limit is there."""

    rule: str
    unit: str
    limit: int
    available: int


class GateState(NamedTuple):
    """The gates of one name, at the moment."""

    waiting: dict[int, int]  # by priority
    in_flight: int
    window: float
    levels: dict[tuple[str, str], Level]


class Tally(telling.Meter):
    """Counts calls and events. A subclass says where the durations go, and how all of it is exported."""

    # Whether this class keeps histograms; a library of metrics may do that itself.
    keeps_durations: ClassVar[bool] = True

    def __init__(self, *, tenants: bool = False) -> None:
        self.tenants = tenants
        self._lock = RLock()
        self._gates, self._reasons, self._tenants = (
            Names(MOST_GATES),
            Names(MOST_REASONS),
            Names(MOST_TENANTS),
        )
        self.by_name: dict[str, GateTally] = {}
        self.windows: dict[tuple[str, str], int] = {}  # by gate and reason
        self.responses: dict[tuple[str, str, str], int] = {}  # by gate, class of the status, reason
        self.lost: dict[tuple[str, str], int] = {}  # by gate and kind of store, as those below
        self.up: dict[tuple[str, str], int] = {}
        self.members: dict[tuple[str, str], int] = {}
        self.asked: dict[tuple[str, str], Durations] = {}
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: nothing has happened yet."""
        self._lock = RLock()
        for tally in self.by_name.values():
            tally.start_anew()
        for counts in (self.windows, self.responses, self.lost, self.up, self.members, self.asked):
            counts.clear()

    # -- counting

    def of_gate(self, key: Hashable) -> GateTally:
        with self._lock:
            name = self._gates.of(key)
            tally = self.by_name.get(name)
            if tally is None:
                tally = self.by_name[name] = GateTally(self, name)
            return tally

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Refused):
            self.of_gate(event.key).count("refused", event.rule, event.tenant, round(event.waited * 1e9))
        elif isinstance(event, events.Cancelled):
            self.of_gate(event.key).count("cancelled", event.rule, event.tenant, round(event.waited * 1e9))
        elif isinstance(event, events.Admitted):  # by a limiter, for a key that has no gate
            self.of_gate(event.key).admitted(round(event.waited * 1e9), event.rule, event.tenant)
        elif isinstance(event, events.WindowSet):
            self._add(self.windows, event, self._reasons.of(event.reason or "none"))
        elif isinstance(event, events.ResponseObserved):
            status = "none" if event.status is None else f"{event.status // 100}xx"
            self._add(self.responses, event, status, event.reason)
        elif isinstance(event, events.StoreAsked):
            self._asked(event)
        elif isinstance(event, events.StoreLost):
            self._add(self.lost, event, event.store)
            self.up[self.name_of(event.key), event.store] = 0
        elif isinstance(event, events.StoreRegained):
            self.up[self.name_of(event.key), event.store] = 1

    def _asked(self, event: events.StoreAsked) -> None:
        labels = self.name_of(event.key), event.store
        if event.members is not None:
            self.members[labels] = event.members
            self.up.setdefault(labels, 1)
        with self._lock:
            self.asked.setdefault(labels, Durations(_STORE_BOUNDS)).add(round(event.duration * 1e9))
            self.lost.setdefault(labels, 0)
        self.was_asked(*labels, event.duration)

    def _add(self, counts: dict[Any, int], event: events.Event, *labels: str) -> None:
        with self._lock:
            by = (self._gates.of(event.key), *labels)
            counts[by] = counts.get(by, 0) + 1

    def name_of(self, key: Hashable) -> str:
        """The name of a gate in labels."""
        with self._lock:
            return self._gates.of(key)

    def name_of_tenant(self, tenant: Hashable) -> str:
        """The name of a tenant in labels."""
        with self._lock:
            return "none" if tenant is None else self._tenants.of(tenant)

    def _begin_with_zero(self, gate: str) -> None:
        with self._lock:
            for reason in _USUAL_REASONS:
                self.windows.setdefault((gate, reason), 0)
                self.responses.setdefault((gate, "4xx", reason), 0)
            self.responses.setdefault((gate, "2xx", "ok"), 0)

    # -- for subclasses that pass durations on

    def has_waited(self, gate: str, result: str, rule: str, waited: int) -> None:
        """A call waited that many nanoseconds."""

    def was_held(self, gate: str, held: int) -> None:
        """A call took that many nanoseconds."""

    def was_asked(self, gate: str, store: str, seconds: float) -> None:
        """A store took that many seconds to answer."""

    # -- reading

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels of requests."""
        return ("gate", "result", "rule", "tenant") if self.tenants else ("gate", "result", "rule")

    def requests(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """How many calls there were, by `label_names`."""
        for name, tally in list(self.by_name.items()):
            for labels, count in tally.counted():
                yield (name, *labels), count

    def units(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """How many units calls took, by gate, unit, and whether that was estimated or actual."""
        for name, tally in list(self.by_name.items()):
            for unit, estimated, actual in tally.units():
                if estimated or actual:
                    yield (name, unit, "estimated"), estimated
                    yield (name, unit, "actual"), actual

    def states(self) -> dict[str, GateState]:
        """How the gates stand that are observed by this, by name."""
        states: dict[str, GateState] = {}
        for gate in living(Gate):
            if self in telling.each_of(gate.observer):
                name = self.name_of(gate.key)
                if gate.rules.window is not None:
                    self._begin_with_zero(name)
                state = states.setdefault(name, GateState({}, 0, 0.0, {}))
                states[name] = _added(state, snapshot_of(gate))
        return states


def _added(state: GateState, seen: DispatchSnapshot) -> GateState:
    """The state of several gates of one name, with one more."""
    waiting, levels = dict(state.waiting), dict(state.levels)
    for priority, count in seen.waiting_by_priority:
        waiting[priority] = waiting.get(priority, 0) + count
    for level in _levels(seen):
        known = levels.get((level.rule, level.unit))
        # Of several gates the one that has less; most often there is one.
        levels[level.rule, level.unit] = level if known is None else min(known, level, key=_free)
    in_flight = state.in_flight + (seen.in_flight or 0)
    return GateState(waiting, in_flight, max(state.window, seen.window_remaining), levels)


def _free(level: Level) -> int:
    return level.available


def _levels(seen: DispatchSnapshot) -> Iterator[Level]:
    for rate in seen.rates:
        yield Level(rate.name, rate.unit, rate.limit, rate.level)
    if seen.concurrency is not None:
        yield Level("concurrency", "calls", seen.concurrency, seen.concurrency - (seen.in_flight or 0))
    if seen.byte_budget is not None:
        yield Level("bytes", "bytes", seen.byte_budget, seen.byte_budget - (seen.bytes_in_flight or 0))
