"""What a gate reports: errors for refused callers, the events of a call, a warning of a dropped permit."""

from __future__ import annotations

from ..errors import CapacityExhausted, Closed, CostTooLarge, LineFull, Refused, WaitTimeout
from ..hints import Hashable, Iterable
from ..light import LazyModule
from .admission import Permit
from .decision import Rules
from .line import Ticket
from .waiting import WaitingCallers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import events
    from . import forecast
else:
    events = LazyModule("headgate.events")
    forecast = LazyModule("headgate.gate.forecast")


def load_events() -> None:
    """Load the events that are made under a lock, where nothing may be loaded."""
    _ = events.Waiting
    load_forecast()


def load_forecast() -> None:
    """Load what explains a wait, likewise: for a caller that may be refused, and for observers."""
    _ = forecast.behind_line, forecast.expected


# -- why a caller is refused: errors that name the rule and say when to come back


def closed(key: Hashable) -> Closed:
    """For every caller of a gate that was closed."""
    return Closed(f"the gate {key!r} was closed", rule="closed")


def too_large(rules: Rules, cost: tuple[int, ...]) -> CostTooLarge | None:
    """For a cost that no wait, however long, would let in; else None."""
    never = rules.refusal(cost)
    return None if never is None else CostTooLarge(never[0], rule=never[1])


def instead_of_waiting(
    ticket: Ticket,
    rules: Rules,
    callers: WaitingCallers,
    now: int,
    *,
    timeout: int | None,
    max_waiting: int | None,
) -> Refused | None:
    """Why the caller of this ticket may not even wait, or None."""
    line, cost = callers.line, ticket.cost
    if not line.waiting and rules.held_by(cost, now)[0] is None:
        return None  # it came free since the caller looked
    if timeout == 0:
        rule, after = _explain(rules, callers, ticket, now)
        return CapacityExhausted(
            "nothing is free and the caller would not wait", rule=rule, retry_after=after
        )
    if max_waiting is not None and line.waiting >= max_waiting:
        rule, after = _explain(rules, callers, ticket, now)
        return LineFull(f"{line.waiting} are waiting already", rule=rule, retry_after=after)
    if timeout is not None:
        hopeless = rules.certain_wait(cost, now)
        if (hopeless is None or hopeless[1] <= now + timeout) and line.waiting:
            hopeless = forecast.behind_line(rules, callers, ticket, now, now + timeout)
        if hopeless is not None and hopeless[1] > now + timeout:
            after = _explain(rules, callers, ticket, now)[1] or 0.0
            return WaitTimeout(
                f"no place can come free within {timeout / 1e9:g} s",
                rule=hopeless[0],
                retry_after=max(after, (hopeless[1] - now) / 1e9),
            )
    return None


def blocks_the_loop(rule: str | None) -> str:
    """For a caller that would wait in the thread of a running event loop."""
    return (
        f"this call has to wait ({rule}), and would block the event loop of this thread with all its tasks; "
        "write `async with`, or `await` the method whose name ends in _async, or call it in another thread: "
        "`await asyncio.to_thread(...)`"
    )


def timed_out(ticket: Ticket, rules: Rules, callers: WaitingCallers, now: int) -> WaitTimeout:
    """For a caller that has waited as long as it would."""
    rule, after = _explain(rules, callers, ticket, now)
    waited = f"waited {(now - ticket.joined_at) / 1e9:.1f} s for a place"
    return WaitTimeout(waited, rule=rule, retry_after=after)


def _explain(rules: Rules, callers: WaitingCallers, ticket: Ticket, now: int) -> tuple[str, float | None]:
    """What the caller of this ticket would wait for if it came again now, and for how many seconds."""
    rule, at = forecast.expected(rules, callers, ticket, now)
    return rule, None if at is None else max(0, at - now) / 1e9


# -- events


def admitted(key: Hashable, permit: Permit, rule: str | None, tenant: Hashable) -> events.Admitted:
    return events.Admitted(
        key=key,
        at=permit.taken_at / 1e9,
        waited=permit.waited,
        rule=rule,
        throttled=permit.throttled,
        tenant=tenant,
    )


def waiting(key: Hashable, ticket: Ticket, rules: Rules, callers: WaitingCallers, now: int) -> events.Waiting:
    rule, estimate = _explain(rules, callers, ticket, now)
    return events.Waiting(
        key=key,
        at=now / 1e9,
        rule=rule,
        position=callers.line.position(ticket),
        estimate=estimate,
        priority=ticket.priority,
        tenant=ticket.tenant,
    )


def cancelled(key: Hashable, ticket: Ticket, now: int) -> events.Cancelled:
    return events.Cancelled(
        key=key,
        at=now / 1e9,
        waited=max(0, now - ticket.joined_at) / 1e9,
        rule=ticket.rule,
        tenant=ticket.tenant,
    )


def refused(key: Hashable, ticket: Ticket, error: Exception, now: int) -> events.Refused:
    return events.Refused(
        key=key,
        at=now / 1e9,
        waited=(now - ticket.joined_at) / 1e9,
        rule=getattr(error, "rule", ""),
        error=type(error).__name__,
        tenant=ticket.tenant,
    )


def settled(
    key: Hashable, units: Iterable[str], permit: Permit, actual: tuple[int, ...] | None, now: int
) -> events.Settled:
    names = list(units)
    return events.Settled(
        key=key,
        at=now / 1e9,
        held=(now - permit.taken_at) / 1e9,
        cost=dict(zip(names, permit.cost, strict=False)),
        actual=dict(zip(names, actual or permit.cost, strict=False)),
    )


def warn_of_dropped_permit(key: Hashable) -> None:
    import warnings  # noqa: PLC0415 - only a mistake needs it

    warnings.warn(
        f"a permit of {key!r} was dropped without settle(); its place has been given back. "
        "Use `with gate.admit()`, or call permit.settle() when the call is over",
        ResourceWarning,
        stacklevel=4,
    )


def warn_of_debt(
    key: Hashable, units: Iterable[str], actual: tuple[int, ...], charged: tuple[int, ...]
) -> None:
    import logging  # noqa: PLC0415 - only a mistake needs it

    reduced = ", ".join(
        f"{told:,} {unit} are charged as {taken:,}"
        for unit, told, taken in zip(units, actual, charged, strict=False)
        if told != taken
    )
    logging.getLogger("headgate").warning(
        "settle() told %r a cost that is too large to be true: %s. The debt of one call is at most what its "
        "rate earns in a period or in ten minutes, or its burst. This is said once for each gate",
        key,
        reduced,
    )
