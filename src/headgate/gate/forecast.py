"""Pure. When a caller that stands behind a line could go, by the rates.

`behind_line` is about what is certain: a caller is refused for it, so it names no moment that is too late.
`expected` is what a refused caller is told: when it could go if it joined the line now.
"""

from __future__ import annotations

from ..hints import AnyRate, Mapping, Sequence
from .decision import FAR_OFF, Rules
from .line import WAITING, Ticket
from .waiting import WaitingCallers

# How many tickets are asked one by one whether they leave before they could go.
_MOST_ASKED = 64


def passes_at(rate: AnyRate, ahead: int, cost: tuple[int, ...], now: int) -> int:
    """When this cost could be taken at the earliest if that many units are taken before it."""
    own, limit = cost[rate.column], rate.rate
    if not ahead + own:
        return now
    if limit.strict:
        # In each further window there go at most as many as the rate allows.
        windows, rest = divmod(ahead + own - 1, limit.amount)
        return rate.earliest(_row(cost, rate.column, rest + 1), now) + windows * limit.per_ns
    # Before and after the bucket is full, one unit comes in the same time.
    units = ahead + min(own, limit.burst) - limit.burst
    if not own:  # it does not wait for the debt of the call before it, which may be a large one
        units = max(min(ahead, limit.burst) - limit.burst, ahead - max(limit.amount, limit.burst))
    full_at = rate.earliest(_row(cost, rate.column, limit.burst), now)
    if full_at >= now + FAR_OFF:  # it is not known: the units are granted from elsewhere
        units, full_at = ahead, now
    return max(now, full_at + units * limit.per_ns // limit.amount)


def _row(cost: tuple[int, ...], column: int, units: int) -> tuple[int, ...]:
    return (*cost[:column], units, *cost[column + 1 :])


def behind_line(
    rules: Rules, callers: WaitingCallers, ticket: Ticket, now: int, deadline: int
) -> tuple[str, int] | None:
    """The rate by which a caller that joined now would still wait at its deadline, and when it could go.

    None if it might go in time. Only callers of its own priority and tenant are sure to go before it. Those
    whose time is up before they could go will have left.
    """
    rates, line = rules.certain_rates(now), callers.line
    if not rates or not line.waiting or callers.may_go_elsewhere:
        return None
    line.count(rules.columns)
    flow = line.flow_of(ticket)
    if flow is None:
        return None
    load = flow.load
    binding, at = _latest(rates, load, ticket.cost, now)
    if at <= deadline:
        return None
    # If a rate holds the line and no other callers take turns with it, it is known which of its callers will
    # have left. Otherwise any of them may have left whose time is up by then.
    in_order = line.waiting == len(flow.tickets) - flow.gone
    by_rate = in_order and any(callers.binding == rate.name for rate in rules.rates)
    units = dict.fromkeys(load, 0)
    asked = 0
    for other in flow.tickets:
        if other.state != WAITING:
            continue
        asked += 1
        if asked > _MOST_ASKED:
            last = next(each for each in reversed(flow.tickets) if each.state == WAITING)
            before = {column: load[column] - last.cost[column] for column in load}
            on_time = last.deadline is None or _latest(rates, before, last.cost, now)[1] <= last.deadline
            return (binding, at) if by_rate and on_time else None
        leaves_at = other.deadline
        if leaves_at is not None and (
            _latest(rates, units, other.cost, now)[1] > leaves_at if by_rate else leaves_at <= deadline
        ):
            continue
        for column in units:
            units[column] += other.cost[column]
        if _latest(rates, units, ticket.cost, now)[1] > deadline:
            return binding, at
    return None


def expected(rules: Rules, callers: WaitingCallers, ticket: Ticket, now: int) -> tuple[str, int | None]:
    """What a caller would wait for if it joined the line now, and until when; None: until a call ends.

    A ticket that stands in line is counted as if it had left and came again.
    """
    cost, line = ticket.cost, callers.line
    rule, at = callers.held_by(rules, cost, now)
    if rule is not None and at is None:
        return rule, None
    start = now if at is None else at
    line.count(rules.columns)
    ahead = line.likely_ahead(ticket)
    by_rate = rule is None or any(rule == rate.name for rate in rules.rates)
    for rate in rules.rates:
        units = ahead.get(rate.column, 0)
        passes = passes_at(rate, units, cost, now)
        if not by_rate and units:  # the line begins to move when that other rule lets it
            passes = max(passes, start + units * rate.rate.per_ns // rate.rate.amount)
        if passes > start:
            rule, at, start = rate.name, passes, passes
    if rule is None:  # it would fit, but others stand before it
        return callers.binding or "line", callers.next_look
    return rule, at


def _latest(
    rates: Sequence[AnyRate], ahead: Mapping[int, int], cost: tuple[int, ...], now: int
) -> tuple[str, int]:
    binding, at = "", now
    for rate in rates:
        passes = passes_at(rate, ahead[rate.column], cost, now)
        if passes > at:
            binding, at = rate.name, passes
    return binding, at
