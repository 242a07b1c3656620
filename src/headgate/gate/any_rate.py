"""AnyRate: what every rate of a gate can be asked."""

from __future__ import annotations

from typing import Protocol

from ..limits import Rate


class AnyRate(Protocol):
    """What every rate of a gate can be asked. Costs are tuples of units; times are nanoseconds."""

    rate: Rate
    column: int  # of a cost: the units that this rate counts
    name: str

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and return 1, or change nothing and return 0."""

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Return whether `enter` would take it."""

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """Return when the cost could be taken; FAR_OFF from now if that is unknown."""

    def slack(self, cost: tuple[int, ...], now: int) -> int:
        """Return how much later than that it may be taken with the rate still fully used."""

    def refusal(self, cost: tuple[int, ...]) -> str | None:
        """Return why the cost can never be taken, or None."""

    def settle(self, estimate: int, actual: int, taken_at: int, now: int) -> None:
        """Replace what was estimated at `taken_at` by the actual units."""

    def give_back(self, amount: int, now: int) -> None:
        """Put units back that were taken."""

    def level(self, now: int) -> int:
        """Return how many units could be taken at once."""

    def full(self, now: int) -> bool:
        """Return whether nothing is missing."""

    def lower(self, level: int, now: int) -> None:
        """Leave at most this many units. That is not usage: a rate that follows this one may have more."""

    def hold_until(self, at: int, now: int, units: int = 1) -> None:
        """Leave nothing before that moment, and this many units then."""

    def follow(self, old: AnyRate, now: int) -> None:
        """Count what the rate that this one replaces has used, and go by what was said to it."""
