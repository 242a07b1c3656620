"""What decorators that retry take. Only annotations need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict

from ..events import Retrying
from ..typing import Clock, Seconds
from .budget import RetryBudget

Exceptions: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] | None
OnRetry: TypeAlias = Callable[[Retrying], Any]


class RetryOptions(TypedDict, total=False):
    """What `retry`, `retrying` and `retry_with_backoff` take besides the options about delays."""

    idempotent: bool
    deadline: Seconds | None
    retry_budget: RetryBudget | None
    on_retry: OnRetry | None
    clock: Clock
    random: Callable[[], float]
