"""One gate for everything that calls a rate-limited API: threads, event loops, one decision."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import events as events
    from . import observers as observers
    from .backoff import Backoff
    from .breaker.breaker import CircuitBreaker, CircuitState
    from .breaker.registry import BreakerRegistry
    from .budgets.budget import BudgetBook, Reservation, TokenBudget
    from .budgets.prices import Prices
    from .client import ResilienceConfig, ResilientClient
    from .dispatch.backoff_window import BackoffWindow
    from .dispatch.dispatch import Dispatch
    from .dispatch.options import call_options
    from .dispatch.snapshot import DispatchSnapshot, RateLevel, Totals
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
    from .gate.first_free import FirstFree
    from .limiters.memory_limiter import MemoryLimiter
    from .limiters.rate_limiter import RateLimiter
    from .limiters.resource import Acquisition, Capacity
    from .limits import Rate
    from .mapping import map, map_async  # noqa: A004 - it does what the built-in function does
    from .observers.everything import observe_all
    from .publishing import publish
    from .responses import parse_retry_after
    from .retries.budget import RetryBudget
    from .retries.loop import retry, retry_with_backoff, retry_with_backoff_async, retrying
    from .swarm import CapacityUpdate, DistributedLimiter

__version__ = "0.1.0"

__all__ = [
    "Acquisition",
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
    "FirstFree",
    "HeadgateError",
    "InvalidCapacity",
    "InvalidConfig",
    "InvalidLimit",
    "InvalidWindow",
    "LineFull",
    "MemoryLimiter",
    "Permit",
    "Prices",
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
    "Totals",
    "UnknownName",
    "UnknownResource",
    "WaitTimeout",
    "WindowRegistry",
    "call_options",
    "map",
    "map_async",
    "observe_all",
    "parse_retry_after",
    "publish",
    "retry",
    "retry_with_backoff",
    "retry_with_backoff_async",
    "retrying",
]

# The modules of the public names, each loaded when a name of it is first asked for.
_MODULES = {
    "backoff": "Backoff",
    "breaker.breaker": "CircuitBreaker CircuitState",
    "breaker.registry": "BreakerRegistry",
    "budgets.budget": "BudgetBook Reservation TokenBudget",
    "budgets.prices": "Prices",
    "client": "ResilienceConfig ResilientClient",
    "dispatch.backoff_window": "BackoffWindow",
    "dispatch.dispatch": "Dispatch",
    "dispatch.options": "call_options",
    "dispatch.snapshot": "DispatchSnapshot RateLevel Totals",
    "dispatch.window_registry": "WindowRegistry",
    "errors": (
        "BudgetExceeded CapacityExhausted CircuitBreakerOpen Closed CostTooLarge HeadgateError "
        "InvalidCapacity InvalidConfig InvalidLimit InvalidWindow LineFull Refused StoreError "
        "UnknownName UnknownResource WaitTimeout"
    ),
    "gate.admission": "Admission Permit",
    "gate.first_free": "FirstFree",
    "limiters.memory_limiter": "MemoryLimiter",
    "limiters.rate_limiter": "RateLimiter",
    "limiters.resource": "Acquisition Capacity",
    "limits": "Rate",
    "mapping": "map map_async",
    "observers.everything": "observe_all",
    "publishing": "publish",
    "responses": "parse_retry_after",
    "retries.budget": "RetryBudget",
    "retries.loop": "retry retry_with_backoff retry_with_backoff_async retrying",
    "swarm": "CapacityUpdate DistributedLimiter",
}


# Modules that `import headgate` does not bring along, as people write them.
_IMPORTED_BY_THEMSELVES = (
    "http.httpx integrations.fastapi gateway.app sandbox swarm tenacity testing typing verdict errors"
)


def __getattr__(name: str) -> object:
    # By `__import__`, because loading `importlib` takes as long as loading three modules of headgate.
    if name in ("events", "observers"):
        return __import__(f"{__name__}.{name}", fromlist=[name])
    for module, names in _MODULES.items():
        if name in names.split():
            found = globals()[name] = getattr(__import__(f"{__name__}.{module}", fromlist=[name]), name)
            return found
    for module in _IMPORTED_BY_THEMSELVES.split():
        if module.partition(".")[0] == name:
            raise AttributeError(f"{__name__}.{name} is not loaded; write e.g. import {__name__}.{module}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
