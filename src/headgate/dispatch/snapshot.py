"""How a Dispatch stands at one instant, as values."""

from __future__ import annotations

from ..arguments import SECOND
from ..frozen import Frozen
from ..hints import Any, AnyRate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gate.decision import Rules
    from ..gate.gate import Gate
    from ..gate.waiting import WaitingCallers


class RateLevel(Frozen):
    """How one rate of a gate stands at one instant, in a `DispatchSnapshot`.

    `name` is its unit and period, e.g. "requests/minute". It allows `limit` units of `unit` in `per` seconds,
    and `burst` of them at most at once. `level` units could go now; the level is negative after a call that
    cost more than was there.

    >>> from headgate import Dispatch
    >>> (rate,) = Dispatch("api", rates="600/minute").snapshot().rates
    >>> rate.name, rate.level, rate.burst
    ('requests/minute', 10, 10)
    """

    __slots__ = ("burst", "level", "limit", "name", "per", "unit")
    name: str
    unit: str
    limit: int
    per: float
    burst: int
    level: int


def facts_of_rate(rate: RateLevel) -> dict[str, Any]:
    """How a rate stands, as plain data for pages and other programs."""
    return {
        "name": rate.name,
        "unit": rate.unit,
        "limit": rate.limit,
        "per": rate.per,
        "burst": rate.burst,
        "level": rate.level,
    }


class Totals(Frozen):
    """What happened at a Dispatch since it was made, in this process.

    Of `admitted` calls `waited` had to wait, `seconds_waited` together. `refused` calls got an error of
    headgate, `cancelled` ones were given up while they waited. Of `responses` that were given to `observe`,
    `limited` ones said "slow down". `windows` counts the backoff windows that started.

    >>> from headgate import Dispatch
    >>> api = Dispatch("api")
    >>> with api.admit():
    ...     pass
    >>> api.snapshot().totals.admitted
    1
    """

    __slots__ = (
        "admitted",
        "cancelled",
        "limited",
        "refused",
        "responses",
        "seconds_waited",
        "waited",
        "windows",
    )
    admitted: int
    waited: int
    seconds_waited: float
    refused: int
    cancelled: int
    responses: int
    limited: int
    windows: int


class DispatchSnapshot(Frozen):
    """How a Dispatch stands at one instant, as `api.snapshot()` returns it. What nothing limits is None.

    `in_flight` calls hold a place, of `concurrency`. `throttled_in_flight` of them were admitted under the
    tighter rules, of `throttled_concurrency`. `bytes_in_flight` is their size, of `byte_budget`. `rates` has
    a `RateLevel` for each rate, and `totals` is a `Totals`.

    `backoff_active` says whether the tighter rules hold, and `window_remaining` in how many seconds the
    backoff window ends (0.0: none is active).

    `waiting` is how many callers wait, and `waiting_by_priority` has pairs of a priority and how many wait.
    `binding` is the rule the first in line waits for and `next_at` the moment, on the clock
    of the Dispatch, at which it looks again; None if a call has to finish first.

    >>> from headgate import Dispatch
    >>> api = Dispatch("api", concurrency=1)
    >>> with api.admit():
    ...     now = api.snapshot()
    >>> now.in_flight, now.waiting, now.binding
    (1, 0, None)
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
        "totals",
        "waiting",
        "waiting_by_priority",
        "window_remaining",
    )
    backoff_active: bool
    in_flight: int | None
    throttled_in_flight: int | None
    bytes_in_flight: int | None
    waiting: int
    waiting_by_priority: tuple[tuple[int, int], ...]
    window_remaining: float
    concurrency: int | None
    throttled_concurrency: int | None
    byte_budget: int | None
    binding: str | None
    next_at: float | None
    rates: tuple[RateLevel, ...]
    totals: Totals


def take_snapshot(
    rules: Rules, callers: WaitingCallers, now: int, calls: tuple[int, int, int], responses: tuple[int, int]
) -> DispatchSnapshot:
    """Under the lock of a gate: how it stands.

    `calls` are those admitted, refused and cancelled; `responses` are all, and those that said "slow down".
    """
    places, weight, line, window = rules.places, rules.weight, callers.line, rules.window
    binding: str | None = None
    look_at: int | None = None
    first = line.first()
    if first is not None:
        binding, look_at = callers.held_by(rules, first.cost, now)
        if binding is None:  # it is due, and its alarm is about to ring
            binding, look_at = callers.binding, callers.next_look
    return DispatchSnapshot(
        backoff_active=rules.throttled(now) or (window is not None and window.active(now)),
        in_flight=None if places is None else places.in_flight,
        throttled_in_flight=None if places is None else places.throttled_in_flight,
        bytes_in_flight=None if weight is None else weight.in_flight,
        waiting=line.waiting,
        waiting_by_priority=line.waiting_by_priority(),
        window_remaining=0.0 if window is None else max(0, (window.until or now) - now) / SECOND,
        concurrency=None if places is None else places.limit,
        throttled_concurrency=rules.throttled_places(now),
        byte_budget=None if weight is None else weight.budget,
        binding=binding,
        next_at=None if look_at is None else look_at / SECOND,
        rates=tuple(_level_of(rule, now) for rule in rules.rates),
        totals=Totals(
            admitted=calls[0],
            waited=callers.granted,
            seconds_waited=callers.waited / SECOND,
            refused=calls[1],
            cancelled=calls[2],
            responses=responses[0],
            limited=responses[1],
            windows=0 if window is None else window.started,
        ),
    )


def snapshot_of(gate: Gate) -> DispatchSnapshot:
    """How any gate stands; a Dispatch says it by itself."""
    if hasattr(gate, "snapshot"):
        seen: DispatchSnapshot = gate.snapshot()
        return seen
    return gate.look(lambda now: take_snapshot(gate.rules, gate.callers, now, gate.totals(), (0, 0)))


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
