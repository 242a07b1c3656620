"""What `store=` takes: a URL, a store, a client of redis-py. Checked by mypy, not run."""

import redis
import redis.asyncio

from headgate import BackoffWindow, CircuitBreaker, Dispatch, TokenBudget
from headgate.testing import MemoryStore
from headgate.typing import AnyStore


def everything(
    one: redis.Redis,
    other: redis.asyncio.Redis,
    many: redis.asyncio.RedisCluster,
) -> None:
    places: list[AnyStore] = ["redis+cluster://host", MemoryStore(), one, other, many]
    for store in places:
        Dispatch("key", store=store)
        BackoffWindow(store=store, key="key")
        CircuitBreaker(store=store, key="key")
        TokenBudget(10, store=store, key="key")
