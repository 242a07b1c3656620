"""How many calls and bytes may be in flight at a Dispatch: its arguments, read into rules."""

from __future__ import annotations

from ..arguments import positive_int
from ..errors import InvalidCapacity, InvalidConfig
from ..gate.slots import ConcurrencyRule, WeightRule
from ..hints import Literal


def places_of(
    concurrency: int | None, throttled: int | Literal["adaptive"] | None, regrow: int
) -> ConcurrencyRule | None:
    if concurrency is not None:
        positive_int(concurrency, "concurrency", example=400)
    if throttled == "adaptive":
        if concurrency is None:
            raise InvalidConfig(
                'throttled_concurrency="adaptive" needs a concurrency to adapt; write concurrency=400'
            )
        return ConcurrencyRule(concurrency, None, adaptive=True, regrow=regrow)
    if isinstance(throttled, str):
        raise InvalidCapacity(
            f'throttled_concurrency={throttled!r} is not a whole number; write one, "adaptive" or None'
        )
    if throttled is not None:
        positive_int(throttled, "throttled_concurrency", example=10)
    if concurrency is None and throttled is None:
        return None
    return ConcurrencyRule(concurrency, throttled)


def weight_of(budget: int | None, penalty: int) -> WeightRule | None:
    positive_int(penalty, "byte_penalty_multiplier", example=20)
    if budget is None:
        return None
    return WeightRule(positive_int(budget, "byte_budget", example=5 * 1024 * 1024), penalty)
