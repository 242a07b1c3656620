"""Pure. The rules of one agent's gate: its share of the rates, while its lease lasts."""

from __future__ import annotations

from ..gate.decision import REFUSED, Rules
from ..gate.rates import rule_for
from ..gate.window import Reentry, Window
from ..hints import AnyRate
from ..limits import REQUESTS, Rate
from .rounds import TurnRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..gate.slots import ConcurrencyRule

_NEVER = -(1 << 62)


class LeasedRules(Rules):
    """Admits until `expires_at` and counts the calls it admitted. `whole`: the share is all of the total."""

    __slots__ = ("admitted", "expires_at", "pause", "whole")

    def __init__(self, places: ConcurrencyRule, rates: Sequence[AnyRate]) -> None:
        self.pause = Window()
        super().__init__(
            window=self.pause, reentry=Reentry(self.pause, 0), places=places, rates=rates, final=True
        )
        self.expires_at = _NEVER
        self.whole = False
        self.admitted = 0

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        if now >= self.expires_at:
            return REFUSED  # e.g. in a process that was stopped, and whose share others have by now
        mode = super().enter(cost, now)
        if mode:
            self.admitted += cost[REQUESTS] or 1
        return mode

    def held_by(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        return ("share", None) if now >= self.expires_at else super().held_by(cost, now)

    def certain_wait(self, cost: tuple[int, ...], now: int) -> tuple[str, int] | None:
        # A waiting call makes the share grow, so a wait is certain only if there is no more to get.
        return super().certain_wait(cost, now) if self.whole and now < self.expires_at else None


def rule_of_share(rate: Rate, whole: Rate, columns: Mapping[str, int], turn: int) -> AnyRate:
    """The rule for a share of `whole`. If its share of the burst is less than a call, it goes in turns."""
    if rate.strict or whole.burst * whole.per_ns >= rate.per_ns:
        return rule_for(rate, columns)
    return TurnRule(rate, columns[rate.unit], turn)


def share_of_rate(rate: Rate, numerator: int, denominator: int) -> Rate:
    """That fraction of a rate. Fractions of a call are kept by a longer period for the same amount."""
    if numerator == denominator:
        return rate
    if rate.strict:
        amount = rate.amount * numerator // denominator
        if amount:
            return Rate.of_ns(amount, rate.per_ns, None, rate.unit, strict=True)
        per_ns = -(-rate.per_ns * denominator // (numerator * rate.amount))
        return Rate.of_ns(1, per_ns, None, rate.unit, strict=True)
    per_ns = -(-rate.per_ns * denominator // numerator)
    burst = max(1, rate.burst * numerator // denominator)
    return Rate.of_ns(rate.amount, per_ns, burst, rate.unit)
