"""Pure. What a gate goes by while its store cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...gate.bucket import RateRule
from ...gate.leased import LeasedRate
from ...hints import AnyRate
from ...limits import share_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...limits import Rate


class CountedRate(RateRule):
    """A rate that remembers how much was taken, to tell the pool when the store is back."""

    __slots__ = ("taken",)

    def __init__(self, rate: Rate, column: int) -> None:
        super().__init__(rate, column)
        self.taken = 0

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        entered = super().enter(cost, now)
        if entered:
            self.taken += cost[self.column]
        return entered


def rates_without_store(
    rates: Sequence[Rate], columns: Mapping[str, int], on_loss: str, members: int, now: int
) -> list[AnyRate]:
    """By `on_loss`: no rates ("open"), rates that grant nothing ("closed"), or an equal share of each."""
    if on_loss == "open":
        return []
    if on_loss == "closed":
        return [LeasedRate(rate, columns[rate.unit]) for rate in rates]
    shares = [CountedRate(share_of(rate, members), columns[rate.unit]) for rate in rates]
    for share in shares:
        share.lower(0, now)  # how much was left is unknown: begin with nothing saved up
    return list(shares)


def used_without_store(rules: Sequence[AnyRate], rates: Sequence[Rate], members: int) -> list[int]:
    """How much of each rate to tell a pool that has filled up since: at most our part of a burst."""
    owed = [0] * len(rates)
    for i, (rule, rate) in enumerate(zip(rules, rates, strict=False)):
        if isinstance(rule, CountedRate):
            owed[i] = min(rule.taken, -(-rate.burst // max(1, members)))
            rule.taken = 0
    return owed
