"""One gate for everything that calls a rate-limited API: threads, event loops, one decision."""

from .backoff_window import BackoffWindow, WindowRegistry
from .dispatch import Dispatch, DispatchSnapshot, RateLevel
from .errors import (
    CapacityExhausted,
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
from .limiters import Capacity, MemoryLimiter, RateLimiter
from .limits import Rate
from .permit import Admission, Permit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .http.signals import parse_retry_after

__version__ = "0.1.0.dev0"

__all__ = [
    "Admission",
    "BackoffWindow",
    "Capacity",
    "CapacityExhausted",
    "Closed",
    "CostTooLarge",
    "Dispatch",
    "DispatchSnapshot",
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
    "StoreError",
    "UnknownName",
    "UnknownResource",
    "WaitTimeout",
    "WindowRegistry",
    "parse_retry_after",
]


def __getattr__(name: str) -> object:
    # Reading headers needs regular expressions; those who never do should not wait for them.
    if name == "parse_retry_after":
        from .http.signals import parse_retry_after  # noqa: PLC0415

        return parse_retry_after
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
