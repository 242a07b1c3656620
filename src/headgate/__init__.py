"""One gate for everything that calls a rate-limited API: threads, event loops, one decision."""

from .backoff_window import BackoffWindow, WindowRegistry
from .dispatch import Dispatch, DispatchSnapshot, RateLevel
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
from .limits import Backoff, Rate
from .permit import Admission, Permit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .circuit_breaker import BreakerRegistry, CircuitBreaker, CircuitState
    from .http.signals import parse_retry_after
    from .limiters import Capacity, MemoryLimiter, RateLimiter
    from .resilient_client import ResilienceConfig, ResilientClient
    from .retries import RetryBudget, retry, retry_with_backoff, retry_with_backoff_async, retrying
    from .swarm import CapacityUpdate, DistributedLimiter
    from .token_budget import BudgetBook, Reservation, TokenBudget

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
    "BreakerRegistry": "circuit_breaker",
    "BudgetBook": "token_budget",
    "Capacity": "limiters",
    "CapacityUpdate": "swarm",
    "CircuitBreaker": "circuit_breaker",
    "CircuitState": "circuit_breaker",
    "DistributedLimiter": "swarm",
    "MemoryLimiter": "limiters",
    "RateLimiter": "limiters",
    "Reservation": "token_budget",
    "ResilienceConfig": "resilient_client",
    "ResilientClient": "resilient_client",
    "RetryBudget": "retries",
    "TokenBudget": "token_budget",
    "parse_retry_after": "http.signals",
    "retry": "retries",
    "retry_with_backoff": "retries",
    "retry_with_backoff_async": "retries",
    "retrying": "retries",
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
