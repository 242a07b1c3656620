"""What `with` and `async with` blocks and the looking methods give. Checked by mypy, never run."""

from typing import assert_type

from headgate import (
    Admission,
    BackoffWindow,
    Capacity,
    Dispatch,
    DispatchSnapshot,
    MemoryLimiter,
    Permit,
    Rate,
    RateLimiter,
    ResilientClient,
    WindowRegistry,
    retrying,
)
from headgate.events import Admitted, Event

dispatch = Dispatch("api", rates=["500/minute", Rate(10, 1)])
limiter = MemoryLimiter(rates="60/minute")


def sync_blocks() -> None:
    assert_type(dispatch.admit(tokens=5), Admission)
    with dispatch.admit(tokens=5, timeout=1.0) as permit:
        assert_type(permit, Permit)
        assert_type(permit.waited, float)
    with limiter.slot("api") as slot:
        assert_type(slot, Permit)
    with MemoryLimiter() as closing, Dispatch("closing") as gate, ResilientClient() as client:
        assert_type(closing, MemoryLimiter)
        assert_type(gate, Dispatch)
        assert_type(client, ResilientClient)
    for attempt in retrying():
        with attempt:
            assert_type(attempt.number, int)


async def async_blocks() -> None:
    async with dispatch.admit(cost={"images": 2}) as permit:
        assert_type(permit, Permit)
    async with limiter.slot("api", timeout=2) as slot:
        assert_type(slot, Permit)
    async with MemoryLimiter() as closing:
        assert_type(closing, MemoryLimiter)
    async for attempt in retrying():
        with attempt:
            assert_type(attempt.number, int)


def trying_and_looking(window: BackoffWindow, windows: WindowRegistry) -> None:
    assert_type(dispatch.try_admit(), Permit | None)
    assert_type(dispatch.snapshot(), DispatchSnapshot)
    assert_type(limiter.try_acquire("api"), bool)
    assert_type(limiter.get_capacity("api"), Capacity | None)
    assert_type(RateLimiter().try_acquire(), bool)
    assert_type(window.should_backoff(), bool)
    assert_type(windows.for_key("api"), BackoffWindow)
    assert_type(Rate.parse("5/s"), Rate)


def mistakes() -> None:
    dispatch.admit(1200)  # type: ignore[call-arg]
    dispatch.try_admit(1200)  # type: ignore[call-arg]
    dispatch.admit(timeout="1 s")  # type: ignore[arg-type]
    limiter.slot(5)  # type: ignore[arg-type]
    Rate("500/minute")  # type: ignore[arg-type]
    with limiter.slot("api") as slot:
        slot.settle(5)  # type: ignore[call-arg]


def observers_take_events() -> None:
    def observe(event: Event) -> None:
        if isinstance(event, Admitted):
            assert_type(event.waited, float)
            assert_type(event.rule, str | None)

    def wrong(event: str) -> None: ...

    Dispatch("api", observer=observe)
    Dispatch("api", observer=wrong)  # type: ignore[arg-type]
