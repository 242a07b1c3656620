"""The libraries we stand beside, each with its in-memory backend and a limit that is far away.

A thousand million calls an hour, so that nothing is ever refused. What they remember of earlier
calls is thrown away between batches, which is their best case: a moving window that has seen a
million calls is slower than an empty one.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import aiolimiter
import limits
import limits.aio
import pyrate_limiter
import throttled
import throttled.asyncio

if TYPE_CHECKING:
    from collections.abc import Callable

FAR = 1_000_000_000


class Peer(NamedTuple):
    """One way to ask one library for one call."""

    name: str
    acquire: Callable[[], Any]
    clean: Callable[[], Any] | None = None
    close: Callable[[], Any] | None = None


def blocking() -> list[Peer]:
    """What a thread would call."""
    return [*_limits(limits), *_pyrate("try_acquire"), *_throttled(throttled)]


def awaitable() -> list[Peer]:
    """What a task would await. To be made inside the running loop."""
    bucket = aiolimiter.AsyncLimiter(FAR, 3600)
    return [
        Peer("aiolimiter", bucket.acquire),
        *_limits(limits.aio),
        *_pyrate("try_acquire_async"),
        *_throttled(throttled.asyncio),
    ]


def _limits(library: Any) -> list[Peer]:
    peers = []
    for strategy in ("FixedWindow", "SlidingWindowCounter", "MovingWindow"):
        storage = library.storage.MemoryStorage()
        limiter = getattr(library.strategies, f"{strategy}RateLimiter")(storage)
        hit = partial(limiter.hit, limits.RateLimitItemPerHour(FAR), "bench")
        peers.append(Peer(f"limits {strategy}", hit, storage.reset))
    return peers


def _pyrate(method: str) -> list[Peer]:
    rates = [pyrate_limiter.Rate(FAR, pyrate_limiter.Duration.HOUR)]
    window = pyrate_limiter.InMemoryBucket(rates)
    gcra = pyrate_limiter.StateBucket(rates, pyrate_limiter.GCRA())
    peers = []
    for name, bucket in (("sliding log", window), ("GCRA", gcra)):
        limiter = pyrate_limiter.Limiter(bucket)
        peers.append(Peer(f"pyrate-limiter {name}", getattr(limiter, method), bucket.flush, limiter.close))
    return peers


def _throttled(library: Any) -> list[Peer]:
    peers = []
    for name in ("token_bucket", "gcra"):
        limiter = library.Throttled(
            key="bench",
            using=name,
            quota=throttled.per_duration(timedelta(hours=1), FAR),
            store=library.MemoryStore(),
        )
        peers.append(Peer(f"throttled-py {name}", limiter.limit))
    return peers
