"""Pure. Which rule keeps a rate, and how the rules of new rates go on where the old ones stood."""

from __future__ import annotations

from ..hints import AnyRate, Mapping, Sequence
from ..limits import COLUMNS, Rate
from .bucket import RateRule
from .strict import StrictRule


def rule_for(rate: Rate, columns: Mapping[str, int] = COLUMNS) -> RateRule | StrictRule:
    """The rule that keeps this rate, counting the column of its unit."""
    kind = StrictRule if rate.strict else RateRule
    return kind(rate, columns[rate.unit])


def successors(
    old: Sequence[AnyRate], rates: Sequence[Rate], columns: Mapping[str, int], now: int
) -> tuple[RateRule | StrictRule, ...]:
    """Rules for these rates, each going on where the old rule of its unit and period stood.

    A rate whose period is new follows a rule of its unit, if one is left over.
    """
    left = list(old)
    rules = [rule_for(rate, columns) for rate in rates]
    followed: dict[int, AnyRate] = {}
    for same_period in (True, False):
        for i, rule in enumerate(rules):
            if i in followed:
                continue
            for other in left:
                if other.column == rule.column and (other.rate.per_ns == rule.rate.per_ns or not same_period):
                    followed[i] = other
                    left.remove(other)
                    break
    for i, other in followed.items():
        rules[i].follow(other, now)
    return tuple(rules)
