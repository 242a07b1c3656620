"""What a run may cost, and what it has cost.

A job is sent only if the budget has room for the most it is likely to use: the input by its size and by what
was counted for earlier jobs, the output by the limit that the job sets, or by the usual length if it sets
none.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from math import floor, log10
from typing import NamedTuple

from ...budgets.prices import Prices
from ...responses.estimate import RequestShape, TokenStats
from ...responses.usage import Usage, usage_of
from .answers import body_in


class Tokens(NamedTuple):
    input: int
    output: int


NO_TOKENS = Tokens(0, 0)


def likely_tokens(shape: RequestShape, host: str, stats: TokenStats) -> Tokens:
    """The most that a job is likely to use."""
    if shape.style == "free":
        return NO_TOKENS
    own = round(shape.input * max(1.0, stats.ratio(host, shape.model)))
    output = shape.max_output
    if output is None:
        output = stats.output(host, shape.model, None) if shape.generates else 0
    return Tokens(own, output)


def decimals(cost: float) -> int:
    """With how many decimals an amount of money is shown: four, or as many as show two digits of it.

    >>> decimals(12.5), decimals(0.0123), decimals(0.0000345)
    (4, 4, 6)
    """
    return 4 if cost <= 0 else min(12, max(4, 1 - floor(log10(cost))))


class UnknownPrice(Exception):
    """A budget of money cannot count a model whose price is not known."""

    def __init__(self, model: str | None) -> None:
        super().__init__(f"no price is known for the model {model!r}")


@dataclass(kw_only=True, slots=True)
class Spending:
    """A budget for all jobs together: what was spent, and what the jobs in flight may still spend.

    `prices` are those of models; with `max_cost` a model without a price raises UnknownPrice.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Prices | None = None
    tokens: int = field(default=0, init=False)
    in_flight: int = field(default=0, init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _cost: float = field(default=0.0, init=False)
    _reserved_tokens: int = field(default=0, init=False)
    _reserved_cost: float = field(default=0.0, init=False)

    @property
    def limited(self) -> bool:
        return self.max_tokens is not None or self.max_cost is not None

    @property
    def counts(self) -> bool:
        """Whether it matters what jobs use."""
        return self.limited or self.prices is not None

    @property
    def cost(self) -> float | None:
        """The price of what was spent; None without prices."""
        return None if self.prices is None else self._cost

    def add_answer(self, line: bytes) -> None:
        """Count the tokens of an answer in the journal, which an earlier run has spent."""
        with suppress(ValueError, TypeError, AttributeError):
            body = body_in(json.loads(line))
            usage = usage_of(body.get("usage") or body.get("usageMetadata"))
            if usage is not None:
                self._spend(usage, body.get("model") or body.get("modelVersion"))

    def reserve(self, wanted: Tokens, model: str | None = None) -> bool:
        """Set tokens aside for a job. False: the budget has no room for them."""
        if self.why_not(wanted, model):
            return False
        self._reserved_tokens += sum(wanted)
        self._reserved_cost += self._price(wanted, model)
        self.in_flight += 1
        return True

    def settle(self, reserved: Tokens, usage: Usage | None, model: str | None = None) -> None:
        """Replace what was set aside for a job by what it has used."""
        if self.limited:
            self._reserved_tokens -= sum(reserved)
            self._reserved_cost -= self._price(reserved, model)
            self.in_flight -= 1
        if usage is not None:
            self._spend(usage, model)
        self.changed.set()

    def _spend(self, usage: Usage, model: str | None) -> None:
        self.tokens += usage.input + usage.output
        self._cost += self._price(Tokens(usage.input + usage.beside, usage.output), model, usage.cached)

    def _price(self, tokens: Tokens, model: str | None, cached: int = 0) -> float:
        price = None if self.prices is None else self.prices.get(model)
        if price is not None:
            return price.of(*tokens, cached)
        if self.max_cost is not None and any(tokens):
            raise UnknownPrice(model)
        return 0.0

    def why_not(self, wanted: Tokens, model: str | None = None) -> str:
        """Why the budget has no room for a job, in words; empty if it has room."""
        if self.max_tokens is not None:
            after = self.tokens + self._reserved_tokens + sum(wanted)
            if after > self.max_tokens:
                used = f"{self.tokens:,} of {self.max_tokens:,} tokens are used"
                return f"{used}, and the next job may take {sum(wanted):,}"
        if self.max_cost is not None:
            price = self._price(wanted, model)
            if self._cost + self._reserved_cost + price > self.max_cost:
                digits = decimals(price)
                used = f"{self._cost:,.{digits}f} of {self.max_cost:g} is spent"
                return f"{used}, and the next job may cost {price:.{digits}f}"
        return ""
