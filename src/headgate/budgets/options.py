"""BudgetOptions: what the plan of a budget book takes. Only annotations need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ..typing import Seconds


class BudgetOptions(TypedDict, total=False):
    """The limits of one tier or organisation, as the options of TokenBudget."""

    max_tokens_per_hour: int | None
    max_tokens_per_request: int | None
    windows: Mapping[Seconds, int] | None
    money: Mapping[Seconds, int] | None
    max_money_per_request: int | None
    limits: str | Sequence[str] | None
    timezone: str | None
