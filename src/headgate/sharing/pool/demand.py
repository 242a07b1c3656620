"""Pure. What a member of a pool asks for: batches for the callers in line and for those to come.

Times are nanoseconds on the member's own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...arguments import NS_PER_US, SECOND
from ...limits import BYTES
from .question import PoolLimits, empty_question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...gate.supply import Demand, RateDemand
    from ...limits import Rate
    from .question import Question

# How long the pool remembers what a silent member holds, and how often one that holds something asks.
LEASE = 3 * SECOND
HEARTBEAT = SECOND
# How long units lie unused, and a member without calls stays, before both go back.
IDLE = 250_000_000
# One batch is what the whole rate earns in this time, and no more than a twentieth of its burst.
_BATCH = 40_000_000
_MOST_BATCHES = 8
# For how long a member keeps units ahead of its demand.
_AHEAD = 50_000_000
# How long before the last granted batch starts more are asked for.
_EARLY = 20_000_000


class Forecast:
    """How fast the callers of one member use each rate, and when it is worth asking for more."""

    __slots__ = ("_counted_at", "_taken", "ahead", "ask_at", "provided_until")

    def __init__(self, rates: int, now: int) -> None:
        self.ask_at = 0  # before that moment the pool would grant nothing
        self.provided_until = 0  # the start of the last batch that was granted
        self._counted_at = now
        self.restart(rates)

    def restart(self, rates: int) -> None:
        """The rates of the gate were replaced, and count from zero."""
        self.ahead = [0] * rates  # how many unused units of each rate to keep
        self._taken = [0] * rates

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
    ) -> list[list[int]]:
        """What waiting callers need beyond what is there or granted, and what will be wanted next."""
        now = demand.at
        if not demand.rates or now < self.ask_at:
            return []
        self._measure(demand.rates, rates, members, now)
        needs = [
            max(0, max(sum(cost[column] for cost in costs), ahead) - have.units - have.scheduled)
            for have, ahead, column in zip(demand.rates, self.ahead, columns, strict=True)
        ]
        if not any(needs):
            return []
        if now < self.provided_until - _EARLY:
            self.ask_at = self.provided_until - _EARLY  # what was granted lasts until then
            return []
        most = [
            max(
                1,
                max((cost[column] for cost in costs), default=1),  # the heaviest call fits into one batch
                min(rate.amount * _BATCH // rate.per_ns, rate.burst // 20),
            )
            for rate, column in zip(rates, columns, strict=True)
        ]
        count = min(_MOST_BATCHES, max(-(-need // each) for need, each in zip(needs, most, strict=True)))
        return [
            [
                min(each, need // count + (piece < need % count))
                for need, each in zip(needs, most, strict=True)
            ]
            for piece in range(count)
        ]

    def _measure(self, have: Sequence[RateDemand], rates: Sequence[Rate], members: int, now: int) -> None:
        """Estimate how many units will be used in the time that units are kept ahead for."""
        elapsed = max(now - self._counted_at, 1)
        if elapsed < _AHEAD // 5:
            return
        for i, (demand, rate) in enumerate(zip(have, rates, strict=True)):
            used = demand.taken - self._taken[i]
            self._taken[i] = demand.taken
            speed = used * _AHEAD // elapsed
            # All members together keep at most a tenth of the burst unused.
            most = rate.burst // 10 // max(1, members)
            self.ahead[i] = min(most, (self.ahead[i] + 2 * speed) // 2 if used else self.ahead[i] // 2)
        self._counted_at = now


def terms_of(rates: Sequence[Rate]) -> list[list[int]]:
    """The rates as a question states them."""
    return [[rate.amount, rate.per_ns // NS_PER_US, rate.burst] for rate in rates]


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
    load = [cost[BYTES] * demand.byte_penalty for cost in costs]
    question |= {
        "uses": [demand.in_flight, demand.bytes_in_flight],
        "wants": [len(costs), sum(load)],
        "next_bytes": load[0] if load else 0,
        "waiting": demand.waiting,
        "waits_for_window": demand.waits_for_window,
    }
    return question


def spare_for(demand: Demand) -> list[int]:
    """Places and bytes for callers to come, if no other member wants them."""
    return [max(4, demand.in_flight // 4), max(1 << 20, demand.bytes_in_flight // 4)]
