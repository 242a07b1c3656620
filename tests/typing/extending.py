"""Names of headgate.typing for programs that bring their own clock, store or observer. Checked by mypy."""

from datetime import timedelta
from typing import assert_type

from headgate import Dispatch, MemoryLimiter, Rate
from headgate.events import Event
from headgate.testing import ManualClock, MemoryStore, Recorder
from headgate.typing import Bus, Clock, Jitter, Observer, Rates, Seconds, Store


def own_function(rates: Rates, timeout: Seconds, observer: Observer, clock: Clock) -> Dispatch:
    assert_type(clock.now(), int)
    dispatch = Dispatch("api", rates=rates, observer=observer, clock=clock)
    dispatch.admit(timeout=timeout)
    return dispatch


def what_is_accepted(jitter: Jitter = ("factor", 0.25)) -> None:
    def observe(event: Event) -> None: ...

    clock: Clock = ManualClock()
    store: Store = MemoryStore()
    own_function("5/s", 1, observe, clock)
    own_function([Rate(5, 1), "5/minute"], timedelta(seconds=1), Recorder(), clock)
    own_function("5/s", "1", observe, clock)  # type: ignore[arg-type]
    Dispatch("api", store=store)
    MemoryLimiter(clock=object())  # type: ignore[arg-type]


def bus_methods(bus: Bus) -> None:
    assert_type(bus.splits, bool)
    bus.publish("subject", b"data")
