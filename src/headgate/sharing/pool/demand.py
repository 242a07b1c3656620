"""Pure. What a member of a pool asks for: batches for the callers in line and for those to come.

Times are nanoseconds on the member's own clock.
"""

from __future__ import annotations

from itertools import cycle
from operator import add, ge, le, sub
from typing import TYPE_CHECKING

from ...arguments import NS_PER_US, SECOND
from ...limits import BYTES
from .question import PoolLimits, empty_question, terms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...gate.decision import Rules
    from ...gate.supply import Demand, RateDemand
    from ...limits import Rate
    from .question import Question

# How long the pool remembers what a silent member holds, and how often one that holds something asks.
LEASE = 3 * SECOND
HEARTBEAT = SECOND
# How long units lie unused, and a member without calls stays, before both go back.
IDLE = 250_000_000
# One batch is what the whole rate earns in this time, or one call. All members together have no more than a
# tenth of the burst in one batch each, or than half of it if a question would be of more batches otherwise.
_BATCH = 10_000_000
_MOST_BATCHES = 128
# A member far away that has the whole rate for a while needs more of them: as many again for each so long a
# part of its trip, and no more than so many times as many.
_TRIP, _MOST_TIMES = 50_000_000, 8
# For how long a member keeps units ahead of its demand.
_AHEAD = 50_000_000
# The most that is said to remain, as far as it is told.
_MOST_STATED = 1 << 40
# How long before the last granted batch starts more are asked for, besides the round trip.
_EARLY = 20_000_000
# For how long beyond two round trips a member asks in advance while its callers wait.
_NEXT = 250_000_000


class Forecast:
    """How fast the callers of one member use each rate, and when it is worth asking for more."""

    __slots__ = ("_counted_at", "_in_vain", "_next", "_taken", "ahead", "ask_at", "provided_until", "trip")

    def __init__(self, rates: int, now: int) -> None:
        self.ask_at = 0  # before that moment the pool would grant nothing
        self.provided_until = 0  # the start of the last batch that was granted
        self.trip = 0  # how long a question and its answer travel
        self._counted_at = now
        self.restart(rates)

    def restart(self, rates: int) -> None:
        """The rates of the gate were replaced, and count from zero."""
        self.ahead = [0] * rates  # how many unused units of each rate to keep
        self._next = [0] * rates  # what callers may use of each in `_horizon`, if some wait now
        self._taken = [0] * rates
        self._in_vain = [0] * rates

    def ask_now(self) -> None:
        """The pool may grant more, and sooner, than it did last."""
        self.ask_at = self.provided_until = 0

    def hears_of_more(self, demand: Demand, rates: Sequence[Rate]) -> bool:
        """Whether callers wait and one was told that more remains than all members can have used since."""
        more = bool(demand.waiting) and any(
            have.stated is not None
            and have.stated[1] > 0
            and have.stated[0] * rate.per_ns > (demand.at - have.stated[2] + SECOND) * rate.amount
            for have, rate in zip(demand.rates, rates, strict=False)
        )
        if more:
            self.ask_now()
        return more

    def is_due(self, limits: PoolLimits, waited: int, *, holds: bool, resting: bool) -> bool:
        """Whether a question is due after that time without one, so that the pool does not forget the member.

        Where it holds no place and no byte, all that it might lose is its turn. And if callers that were
        refused have gone, and the member is `resting`, others need not wait for it.
        """
        gone = resting and self.ask_at > 0
        if gone:
            self.ask_now()
        most = max(HEARTBEAT + self.trip, HEARTBEAT if limits.places or limits.bytes else 2 * HEARTBEAT)
        return gone or (holds and waited >= most)

    def is_idle(self, now: int) -> bool:
        """Whether the demand was not measured for a while, because there was none."""
        return now - self._counted_at > IDLE

    def batches(
        self,
        demand: Demand,
        costs: Sequence[tuple[int, ...]],
        rates: Sequence[Rate],
        columns: Sequence[int],
        members: int,
        processes: int,
    ) -> list[list[int]]:
        """What waiting callers need beyond what is there or granted, and what will be wanted next.

        `members` have asked of late, and there may be as many `processes`.
        """
        now = demand.at
        if not demand.rates or now < self.ask_at:
            return []
        known = self._measure(demand.rates, rates, members, now)
        waits = [sum(cost[column] for cost in costs) for column in columns]
        if demand.waiting and not known:
            guesses = (self._guess(each, rate, members) for each, rate in zip(waits, rates, strict=True))
            self._next = list(map(max, self._next, guesses))
        expected = list(map(max, self.ahead, self._next)) if demand.waiting else self.ahead
        needs = [
            max(0, max(each, most) - have.units - have.scheduled)
            for have, most, each in zip(demand.rates, expected, waits, strict=True)
        ]
        if not any(needs):
            return []
        ask_at = self.provided_until - _EARLY - self.trip * 9 // 8
        if now < ask_at:
            self.ask_at = ask_at  # what was granted lasts until then
            return []
        count = _MOST_BATCHES
        if any(rate.burst < 2 * processes for rate in rates):
            count *= min(_MOST_TIMES, 1 + self.trip // _TRIP)
        most = [
            max(
                1,
                min(rate.amount * _BATCH // rate.per_ns, rate.burst // 10 // max(1, members)),
                min(-(-need // _MOST_BATCHES), rate.burst // 4, rate.burst // 2 // max(1, processes)),
            )
            for need, rate in zip(needs, rates, strict=True)
        ]
        if any(waits):
            calls = [[cost[column] for column in columns] for cost in costs]
            free = [have.units + have.scheduled for have in demand.rates]
            return _of_calls(calls, free, expected, most, count)
        count = min(count, max(-(-need // each) for need, each in zip(needs, most, strict=True)))
        return [
            [
                min(each, need // count + (piece < need % count))
                for need, each in zip(needs, most, strict=True)
            ]
            for piece in range(count)
        ]

    def _guess(self, waits: int, rate: Rate, members: int) -> int:
        """Return what callers may use in `_horizon` that have used nothing yet.

        If the store is so far away that those in line will be back by then, it is more than they wait for;
        but not more than an even part of the rate, or than all of it if the burst is so small that members
        use it one after the other.
        """
        part = rate.amount * self._horizon // rate.per_ns // (members if rate.burst > members > 1 else 1)
        return min(waits * 2 * self.trip // _NEXT, part)

    @property
    def _horizon(self) -> int:
        """For how long what is asked for now has to be enough: until the answer to the next question."""
        return 2 * self.trip + _NEXT

    def _measure(self, have: Sequence[RateDemand], rates: Sequence[Rate], members: int, now: int) -> bool:
        """Estimate how many units will be used in the time that units are kept ahead for.

        True if units were used since it was done last, or a moment ago.
        """
        elapsed = max(now - self._counted_at, 1)
        if elapsed < _AHEAD // 5:
            return True
        any_used = False
        horizon = self._horizon
        for i, (demand, rate) in enumerate(zip(have, rates, strict=True)):
            in_vain, self._in_vain[i] = demand.in_vain - self._in_vain[i], demand.in_vain
            self._next[i] = max(0, self._next[i] - 2 * in_vain)  # callers were expected that did not come
            used = demand.taken - self._taken[i]
            self._taken[i] = demand.taken
            any_used |= used > 0
            speed = used * _AHEAD // elapsed
            # All members together keep at most a tenth of the burst unused.
            most = rate.burst // 10 // max(1, members)
            self.ahead[i] = min(most, (self.ahead[i] + 2 * speed) // 2 if used else self.ahead[i] // 2)
            if used or elapsed > horizon:
                expected = 4 * used * horizon - self._next[i] * elapsed
                self._next[i] += expected // (elapsed + horizon)
        self._counted_at = now
        return any_used


def _of_calls(
    calls: Sequence[Sequence[int]],
    free: Sequence[int],
    expected: Sequence[int],
    most: Sequence[int],
    count: int,
) -> list[list[int]]:
    """Return batches of whole calls: of those that wait, and of as many more as are expected at these costs.

    `count`: no more batches than that.

    If a call was granted in several batches, it might never have all of them at once: those that start first
    go back, or their time ends, before the others have been earned. So what is `free` counts only where it is
    enough for a whole call.
    """
    used = [sum(column) for column in zip(*calls, strict=True)]
    rest = []
    for call in calls:
        if all(map(ge, free, call)):
            free = list(map(sub, free, call))
        else:
            rest.append(call)
    batches = _grouped(rest, most)
    groups = _grouped(calls, most)
    if len(groups) == 1:  # several of it are no more than a batch either
        times = min(limit // units for limit, units in zip(most, used, strict=True) if units)
        groups = [[units * max(1, times) for units in used]]
    for group in cycle(groups):
        if any(map(ge, used, expected)) or len(batches) >= count:
            break
        used = list(map(add, used, group))
        if all(map(ge, free, group)):
            free = list(map(sub, free, group))
        else:
            batches.append(group)
    return batches[:count]


def _grouped(calls: Sequence[Sequence[int]], most: Sequence[int]) -> list[list[int]]:
    """Put calls together, in their order, as long as they are not more than `most` of any rate."""
    groups: list[list[int]] = []
    for call in calls:
        together = list(map(add, groups[-1], call)) if groups else list(call)
        if groups and all(map(le, together, most)):
            groups[-1] = together
        elif any(call):
            groups.append(list(call))
    return groups


def limits_of(rules: Rules) -> PoolLimits:
    """The limits of a gate that its pool keeps, besides its rates."""
    places, weight = rules.places, rules.weight
    return PoolLimits(
        places=0 if places is None or places.limit is None else places.limit,
        throttled_places=0 if places is None or places.throttled_limit is None else places.throttled_limit,
        bytes=0 if weight is None else weight.budget,
        throttled_for=rules.throttled_for // NS_PER_US,
    )


def state_demand(
    member: str,
    rates: Sequence[Rate],
    limits: PoolLimits,
    demand: Demand,
    costs: Sequence[tuple[int, ...]],
) -> Question:
    """A question, without its number, that states the limits and what is used and wanted."""
    question = empty_question(
        member,
        0,
        lease=LEASE // NS_PER_US,
        rates=terms_of(rates),
        units=[rate.unit for rate in rates],
        limits=limits,
    )
    if demand.rates:
        question["returned"] = [rate.returned for rate in demand.rates]
    stated = [rate.stated for rate in demand.rates]
    if any(stated):
        question["stated"] = [[] if told is None else _age_statement(told, demand.at) for told in stated]
    load = [cost[BYTES] * demand.byte_penalty for cost in costs]
    # Callers that wait although a place is free wait for something else.
    free = demand.may_use[0] - demand.in_flight
    question |= {
        "uses": [demand.in_flight, demand.bytes_in_flight],
        "may_use": list(demand.may_use),
        "wants": [min(len(costs), free) if free else len(costs), sum(load)],
        "next_bytes": load[0] if load else 0,
        "waiting": demand.waiting,
        "waits_for_window": demand.waits_for_window,
    }
    return question


def leave_no_calls(question: Question) -> None:
    """Have a question tell that its member has no calls."""
    question |= {"uses": [0, 0], "may_use": [0, 0], "wants": [0, 0], "next_bytes": 0, "waiting": 0}


def spare_for(demand: Demand) -> list[int]:
    """Places and bytes for callers to come, if no other member wants them."""
    return [max(4, demand.in_flight // 4), max(1 << 20, demand.bytes_in_flight // 4)]


def _age_statement(stated: tuple[int, int, int], now: int) -> list[int]:
    remaining, allowed, sent = stated
    return [min(max(0, remaining), _MOST_STATED), allowed, -(-(now - sent) // NS_PER_US)]
