"""What a run may cost, and what it has cost.

A job is sent only if the budget has room for the most it is likely to use: the input by its size and by what
was counted for earlier jobs, the output by the limit that the job sets, or by the usual length if it sets
none.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ...responses.estimate import RequestShape, TokenStats
from ...responses.usage import Usage, usage_of


class Price(NamedTuple):
    """The price of a million tokens."""

    input: float
    output: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class Tokens(NamedTuple):
    input: int
    output: int

    def plus(self, other: "Tokens") -> "Tokens":
        return Tokens(self.input + other.input, self.output + other.output)

    def minus(self, other: "Tokens") -> "Tokens":
        return Tokens(self.input - other.input, self.output - other.output)


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


@dataclass(kw_only=True, slots=True)
class Spending:
    """A budget for all jobs together: what was spent, and what the jobs in flight may still spend."""

    max_tokens: int | None = None
    max_cost: float | None = None
    price: Price | None = None
    spent: Tokens = NO_TOKENS
    in_flight: int = field(default=0, init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _reserved: Tokens = field(default=NO_TOKENS, init=False)

    @property
    def limited(self) -> bool:
        return self.max_tokens is not None or self.max_cost is not None

    @property
    def counts(self) -> bool:
        """Whether it matters what jobs use."""
        return self.limited or self.price is not None

    @property
    def cost(self) -> float | None:
        """The price of what was spent; None without prices."""
        return None if self.price is None else self.price.of(*self.spent)

    def add_answer(self, line: bytes) -> None:
        """Count the tokens of an answer in the journal, which an earlier run has spent."""
        with suppress(ValueError, TypeError, AttributeError):
            body = json.loads(line)["response"]["body"]
            usage = usage_of(body.get("usage") or body.get("usageMetadata"))
            if usage is not None:
                self.spent = self.spent.plus(Tokens(usage.input, usage.output))

    def reserve(self, wanted: Tokens) -> bool:
        """Set tokens aside for a job. False: the budget has no room for them."""
        if self.why_not(wanted):
            return False
        self._reserved = self._reserved.plus(wanted)
        self.in_flight += 1
        return True

    def settle(self, reserved: Tokens, usage: Usage | None) -> None:
        """Replace what was set aside for a job by what it has used."""
        if self.limited:
            self._reserved = self._reserved.minus(reserved)
            self.in_flight -= 1
        if usage is not None:
            self.spent = self.spent.plus(Tokens(usage.input, usage.output))
        self.changed.set()

    def why_not(self, wanted: Tokens) -> str:
        """Why the budget has no room for a job, in words; empty if it has room."""
        price, after = self.price, self.spent.plus(self._reserved).plus(wanted)
        if self.max_tokens is not None and sum(after) > self.max_tokens:
            used = f"{sum(self.spent):,} of {self.max_tokens:,} tokens are used"
            return f"{used}, and the next job may take {sum(wanted):,}"
        if self.max_cost is not None and price is not None and price.of(*after) > self.max_cost:
            used = f"{price.of(*self.spent):.4f} of {self.max_cost:g} is spent"
            return f"{used}, and the next job may cost {price.of(*wanted):.4f}"
        return ""
