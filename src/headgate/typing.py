"""Names for annotations: what public signatures of headgate accept.

>>> from headgate.typing import Clock, Observer, Rates, Seconds
>>> def make(rates: Rates, timeout: Seconds, observer: Observer, clock: Clock) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar

from .events import Event
from .limits import Rate

if TYPE_CHECKING:
    from .sharing.store import AnyStore, RedisClient, Store
    from .swarm.bus.bus import Bus

__all__ = [
    "AnyStore",
    "Bus",
    "Clock",
    "Jitter",
    "Observer",
    "Rates",
    "RedisClient",
    "Seconds",
    "Store",
    "Timer",
]

Seconds: TypeAlias = float | timedelta
Rates: TypeAlias = Rate | str | Iterable[Rate | str]
Jitter: TypeAlias = str | tuple[str, float] | tuple[str, float, float]
Observer: TypeAlias = Callable[[Event], object]

# For the functions that headgate decorates or calls.
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Timer(Protocol):
    """Something that will be done at a moment, unless it is cancelled."""

    def cancel(self) -> None:
        """Do not do at that moment what was to be done. Never waits: finalizers may call it."""


class Parker(Protocol):
    """Where one waiting caller sleeps."""

    @property
    def world(self) -> Any:
        """The event loop without which its alarm does not ring; None if it rings by itself."""

    @property
    def wakeups(self) -> Any:
        """What wakes the sleepers of one event loop together; None for a thread."""

    def wake(self) -> bool:
        """End the sleep. False: the sleeper can no longer be reached."""

    def alarm(self, at: int) -> bool:
        """Ring at that moment, or earlier if an earlier alarm is set. False: it will never ring."""

    def retire(self) -> None:
        """The sleep is over: no more alarms."""


class ThreadParking(Parker, Protocol):
    """Where a thread sleeps."""

    def park(self) -> None:
        """Sleep until woken."""


class LoopParking(Parker, Protocol):
    """Where a task sleeps."""

    @property
    def alarm_at(self) -> int | None:
        """When its alarm rings; None if there is none to end by `retire`."""

    def __await__(self) -> Generator[object, None, None]:
        """Sleep until woken."""


class Clock(Protocol):
    """Everything that waits or reads time does it through a clock; `headgate.testing.ManualClock` is one."""

    quantum: int  # how late a timer may be, in nanoseconds, so that fewer timers are needed

    def now(self) -> int:
        """The time in nanoseconds since some fixed moment."""

    def seconds(self) -> float:
        """The time in seconds since the fixed moment from which `now` counts."""

    def wall(self) -> int:
        """Nanoseconds since 1970 by the wall clock, which may be put back. Only budgets by calendar ask."""

    def thread_parker(self, ring: Callable[[Any], object], ticket: object) -> ThreadParking:
        """A place for the calling thread to sleep; its alarm calls `ring(ticket)`."""

    def loop_parker(self, ring: Callable[[Any], object], ticket: object) -> LoopParking:
        """A place for the running task to sleep; its alarm calls `ring(ticket)`."""

    def call_at(self, at: int, act: Callable[[], object]) -> Timer:
        """Have `act()` called at the moment `at`, in nanoseconds. Never waits: finalizers may call it."""


# Found when first asked for: they are loaded with everything that a store or a bus needs.
_LATER = {"Bus": "swarm.bus.bus", **dict.fromkeys(("AnyStore", "RedisClient", "Store"), "sharing.store")}


def __getattr__(name: str) -> object:
    room = _LATER.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - once for each name

    return getattr(import_module(f"headgate.{room}"), name)
