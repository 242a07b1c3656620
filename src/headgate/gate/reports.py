"""What a gate reports: the events of one call, and the warning about a dropped permit."""

from __future__ import annotations

from .. import events
from ..hints import Hashable, Iterable
from .admission import Permit
from .line import Ticket


def admitted(key: Hashable, permit: Permit, rule: str | None, tenant: Hashable) -> events.Admitted:
    return events.Admitted(
        key=key,
        at=permit.taken_at / 1e9,
        waited=permit.waited,
        rule=rule,
        throttled=permit.throttled,
        tenant=tenant,
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
