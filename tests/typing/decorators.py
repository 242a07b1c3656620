"""Decorators and callers keep the signature of the function they are given. Checked by mypy, never run."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, assert_type

from headgate import (
    CircuitBreaker,
    Dispatch,
    RateLimiter,
    ResilientClient,
    call_options,
    retry,
    retry_with_backoff,
    retry_with_backoff_async,
)

limiter = RateLimiter(60)
breaker = CircuitBreaker()
client = ResilientClient()
dispatch = Dispatch("api")


def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


async def fetch_async(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


def ready() -> int:
    return 1


async def ready_async() -> int:
    return 1


def decorators_keep_sync_functions() -> None:
    assert_type(limiter(fetch)("x", tries=2), bytes)
    assert_type(breaker(fetch)("x", tries=2), bytes)
    assert_type(client(fetch)("x", tries=2), bytes)
    assert_type(retry()(fetch)("x", tries=2), bytes)
    assert_type(call_options(tenant="ann")(fetch)("x", tries=2), bytes)


async def decorators_keep_async_functions() -> None:
    assert_type(await limiter(fetch_async)("x", tries=2), bytes)
    assert_type(await breaker(fetch_async)("x", tries=2), bytes)
    assert_type(await client(fetch_async)("x", tries=2), bytes)
    assert_type(await retry()(fetch_async)("x", tries=2), bytes)
    assert_type(await call_options(tenant="ann")(fetch_async)("x", tries=2), bytes)
    coming: Coroutine[Any, Any, bytes] = limiter(fetch_async)("x")
    await coming


def decorators_refuse_wrong_arguments() -> None:
    limiter(fetch)(5)  # type: ignore[arg-type]
    breaker(fetch)("x", tries="2")  # type: ignore[arg-type]
    client(fetch)()  # type: ignore[call-arg]
    retry()(fetch)("x", unknown=1)  # type: ignore[call-arg]


def decorators_refuse_what_is_not_a_function() -> None:
    limiter(5)  # type: ignore[arg-type]
    breaker("fetch")  # type: ignore[arg-type]
    client(None)  # type: ignore[arg-type]
    retry()(5)  # type: ignore[arg-type]


class Service:
    @limiter
    def limited(self, n: int) -> str:
        return str(n)

    @breaker
    async def guarded(self, n: int) -> str:
        return str(n)

    @retry(max_retries=2)
    def retried(self, n: int) -> str:
        return str(n)

    @client
    async def resilient(self, n: int) -> str:
        return str(n)


async def decorated_methods_keep_their_signature(service: Service) -> None:
    assert_type(service.limited(1), str)
    assert_type(await service.guarded(1), str)
    assert_type(service.retried(1), str)
    assert_type(await service.resilient(1), str)


def callers_return_what_the_function_returns() -> None:
    assert_type(dispatch.with_rate_limit(10, ready), int)
    assert_type(breaker.call(fetch, "x", tries=2), bytes)
    assert_type(client.call(fetch, "x", tries=2), bytes)
    assert_type(retry_with_backoff(ready), int)
    breaker.call(fetch, 5)  # type: ignore[arg-type]
    client.call(fetch, "x", unknown=1)  # type: ignore[call-arg]


async def async_callers_return_what_is_awaited() -> None:
    assert_type(await dispatch.with_rate_limit_async(10, ready_async), int)
    assert_type(await breaker.call_async(fetch_async, "x", tries=2), bytes)
    assert_type(await client.call_async(fetch_async, "x", tries=2), bytes)
    assert_type(await retry_with_backoff_async(ready_async), int)
    await dispatch.with_rate_limit_async(10, ready)  # type: ignore[arg-type]
    await breaker.call_async(fetch, "x")  # type: ignore[arg-type]


async def async_callers_take_any_awaitable(soon: Callable[[], Awaitable[int]]) -> None:
    assert_type(await retry_with_backoff_async(soon), int)
    assert_type(await client.call_async(soon), int)
