"""Pure. Reduction: rates that are cut once per episode and then recover.

A cut never raises an amount and never takes it below one. Every amount grows back to its original value, in
whole steps, however small it is.
"""

from __future__ import annotations

from ..hints import Sequence
from ..limits import Rate, rate_of


class Reduction:
    """Rates that were cut and are growing back.

    After every `interval` since the cut each amount is multiplied by `growth` (a ratio of integers), and
    grows by at least one, until it is the original amount again.
    """

    __slots__ = ("_cut_at", "_cut_to", "_growth", "_interval", "original")

    def __init__(
        self,
        rates: Sequence[Rate],
        *,
        factor: tuple[int, int],
        growth: tuple[int, int],
        interval: int,
        now: int,
    ) -> None:
        self.original = tuple(rates)
        self._growth = growth
        self._interval = interval
        self._cut_to = [cut_by(rate.amount, factor) for rate in rates]
        self._cut_at = now

    def cut_again(self, factor: tuple[int, int], now: int) -> bool:
        """Cut the rates in force now, unless the announcement belongs to the episode of the last cut.

        It does if it comes before the first step of the recovery. True if the rates were cut.
        """
        if now - self._cut_at < self._interval:
            return False
        self._cut_to = [cut_by(rate.amount, factor) for rate in self.rates(now)]
        self._cut_at = now
        return True

    def rates(self, now: int) -> tuple[Rate, ...]:
        """The rates in force now. Bursts are cut and grow with the amounts."""
        steps = max(0, now - self._cut_at) // self._interval
        return tuple(
            rate_of(rate, min(rate.amount, grow_by(amount, self._growth, steps, rate.amount)))
            for rate, amount in zip(self.original, self._cut_to, strict=True)
        )


def cut_by(amount: int, factor: tuple[int, int]) -> int:
    """That fraction of an amount, at least one."""
    return max(1, amount * factor[0] // factor[1])


def grow_by(amount: int, growth: tuple[int, int], steps: int, enough: int) -> int:
    """Multiply `steps` times, growing by at least one each time; stop at the step that reaches `enough`."""
    while steps and amount < enough:
        amount = max(amount + 1, amount * growth[0] // growth[1])
        steps -= 1
    return amount
