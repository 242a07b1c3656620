"""How a Dispatch stands at one instant, as values."""

from __future__ import annotations

from ..arguments import SECOND
from ..frozen import Frozen
from ..hints import AnyRate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gate.decision import Rules
    from ..gate.waiting import WaitingCallers


class RateLevel(Frozen):
    """How one rate stands: `level` units could go now (negative: in debt), of `burst` at most."""

    __slots__ = ("burst", "level", "limit", "name", "per", "unit")
    name: str
    unit: str
    limit: int
    per: float
    burst: int
    level: int


class DispatchSnapshot(Frozen):
    """How a Dispatch stands at one instant. What nothing limits is None.

    `binding` is the rule the first in line waits for and `next_at` the moment, on the clock
    of the Dispatch, at which it looks again; None if a call has to finish first.
    """

    __slots__ = (
        "backoff_active",
        "binding",
        "byte_budget",
        "bytes_in_flight",
        "concurrency",
        "in_flight",
        "next_at",
        "rates",
        "throttled_concurrency",
        "throttled_in_flight",
        "waiting",
    )
    backoff_active: bool
    in_flight: int | None
    throttled_in_flight: int | None
    bytes_in_flight: int | None
    waiting: int
    concurrency: int | None
    throttled_concurrency: int | None
    byte_budget: int | None
    binding: str | None
    next_at: float | None
    rates: tuple[RateLevel, ...]


def take_snapshot(rules: Rules, callers: WaitingCallers, now: int) -> DispatchSnapshot:
    """Under the lock of a gate: how it stands."""
    places, weight, line = rules.places, rules.weight, callers.line
    binding: str | None = None
    look_at: int | None = None
    first = line.first()
    if first is not None:
        binding, look_at = callers.held_by(rules, first.cost, now)
        if binding is None:  # it is due, and its alarm is about to ring
            binding, look_at = callers.binding, callers.next_look
    return DispatchSnapshot(
        backoff_active=rules.throttled(now) or (rules.window is not None and rules.window.active(now)),
        in_flight=None if places is None else places.in_flight,
        throttled_in_flight=None if places is None else places.throttled_in_flight,
        bytes_in_flight=None if weight is None else weight.in_flight,
        waiting=line.waiting,
        concurrency=None if places is None else places.limit,
        throttled_concurrency=rules.throttled_places(now),
        byte_budget=None if weight is None else weight.budget,
        binding=binding,
        next_at=None if look_at is None else look_at / SECOND,
        rates=tuple(_level_of(rule, now) for rule in rules.rates),
    )


def _level_of(rule: AnyRate, now: int) -> RateLevel:
    rate = rule.rate
    return RateLevel(
        name=rule.name,
        unit=rate.unit,
        limit=rate.amount,
        per=rate.per,
        burst=getattr(rule, "burst", rate.burst),
        level=rule.level(now),
    )
