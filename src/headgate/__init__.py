"""One gate for everything that calls a rate-limited API: threads, event loops, one decision."""

from .backoff import Backoff
from .dispatch.backoff_window import BackoffWindow
from .dispatch.dispatch import Dispatch
from .dispatch.snapshot import DispatchSnapshot, RateLevel
from .dispatch.window_registry import WindowRegistry
from .errors import (
    BudgetExceeded,
    CapacityExhausted,
    CircuitBreakerOpen,
    Closed,
    CostTooLarge,
    HeadgateError,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    LineFull,
    Refused,
    StoreError,
    UnknownName,
    UnknownResource,
    WaitTimeout,
)
from .gate.admission import Admission, Permit
from .limits import Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .breaker.breaker import CircuitBreaker, CircuitState
    from .breaker.registry import BreakerRegistry
    from .budgets.book import BudgetBook
    from .budgets.budget import Reservation, TokenBudget
    from .client import ResilienceConfig, ResilientClient
    from .limiters.memory_limiter import MemoryLimiter
    from .limiters.rate_limiter import RateLimiter
    from .limiters.resource import Capacity
    from .responses import parse_retry_after
    from .retries.budget import RetryBudget
    from .retries.loop import retry, retry_with_backoff, retry_with_backoff_async, retrying
    from .swarm import CapacityUpdate, DistributedLimiter

__version__ = "0.1.0.dev0"

__all__ = [
    "Admission",
    "Backoff",
    "BackoffWindow",
    "BreakerRegistry",
    "BudgetBook",
    "BudgetExceeded",
    "Capacity",
    "CapacityExhausted",
    "CapacityUpdate",
    "CircuitBreaker",
    "CircuitBreakerOpen",
    "CircuitState",
    "Closed",
    "CostTooLarge",
    "Dispatch",
    "DispatchSnapshot",
    "DistributedLimiter",
    "HeadgateError",
    "InvalidCapacity",
    "InvalidConfig",
    "InvalidLimit",
    "InvalidWindow",
    "LineFull",
    "MemoryLimiter",
    "Permit",
    "Rate",
    "RateLevel",
    "RateLimiter",
    "Refused",
    "Reservation",
    "ResilienceConfig",
    "ResilientClient",
    "RetryBudget",
    "StoreError",
    "TokenBudget",
    "UnknownName",
    "UnknownResource",
    "WaitTimeout",
    "WindowRegistry",
    "parse_retry_after",
    "retry",
    "retry_with_backoff",
    "retry_with_backoff_async",
    "retrying",
]

# Loaded when first asked for: those who only limit a rate should not wait for the rest.
_LATER = {
    "BreakerRegistry": "breaker.registry",
    "BudgetBook": "budgets.book",
    "Capacity": "limiters.resource",
    "CapacityUpdate": "swarm",
    "CircuitBreaker": "breaker.breaker",
    "CircuitState": "breaker.breaker",
    "DistributedLimiter": "swarm",
    "MemoryLimiter": "limiters.memory_limiter",
    "RateLimiter": "limiters.rate_limiter",
    "Reservation": "budgets.budget",
    "ResilienceConfig": "client",
    "ResilientClient": "client",
    "RetryBudget": "retries.budget",
    "TokenBudget": "budgets.budget",
    "parse_retry_after": "responses",
    "retry": "retries.loop",
    "retry_with_backoff": "retries.loop",
    "retry_with_backoff_async": "retries.loop",
    "retrying": "retries.loop",
}


def __getattr__(name: str) -> object:
    room = _LATER.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - once for each name

    found = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
