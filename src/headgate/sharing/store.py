"""Where a pool is kept, and how it is asked.

Rules of this room: a store answers questions of `rules.pool`, one at a time for each key, by its own clock,
and remembers across restarts if it can. It raises StoreError and nothing else, without its password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from ..rules.pool import answer, new_pool
from ..waiting import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ..rules.pool import Answer, Question, State
    from ..waiting import Clock

    class Store(Protocol):
        """One place where pools are kept. Its methods run on the courier's loop."""

        async def ask(self, key: str, question: Question) -> Answer:
            """Put a question to the pool of that key."""

        async def listen(self, key: str, heard: Callable[[], None]) -> None:
            """Call that whenever somebody else has changed the window or the limits of the key."""

        async def close(self) -> None:
            """Let go of whatever is held."""


class MemoryStore:
    """Pools in this process, for tests and for parts of one program that do not know each other."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._pools: dict[str, State] = {}
        self._listeners: dict[str, list[Callable[[], None]]] = {}

    async def ask(self, key: str, question: Question) -> Answer:
        pool = self._pools.setdefault(key, new_pool())
        before = (pool["window"][3], pool["version"])
        given = answer(pool, question, self._clock.now() // 1000)
        if (pool["window"][3], pool["version"]) != before:
            for heard in self._listeners.get(key, ()):
                heard()
        return given

    async def listen(self, key: str, heard: Callable[[], None]) -> None:
        self._listeners.setdefault(key, []).append(heard)

    async def close(self) -> None:
        pass


def plain_name(store: object) -> str:
    """What to call a store in messages: its URL without the password."""
    if not isinstance(store, str):
        return f"the store {store!r}"
    head, at, tail = store.partition("?")[0].rpartition("@")
    if not at:
        return tail
    scheme, slashes, user = head.partition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}{':***' if ':' in user else ''}@{tail}"


_memory: dict[str, MemoryStore] = {}


def open_store(url: Store | str, clock: Clock) -> Store:
    """The store of that URL: `memory:`, `sqlite:///path`, `redis://host/0` or `valkey://host/0`."""
    if not isinstance(url, str):
        if hasattr(url, "ask") and hasattr(url, "listen"):
            return url  # one that somebody made
        raise InvalidConfig(f'store={url!r} is not a store; write e.g. store="sqlite:///limits.db"')
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return _memory.setdefault(url, MemoryStore(clock))
    if scheme == "sqlite":
        from .sqlite import SqliteStore  # noqa: PLC0415 - only those who use it

        return SqliteStore(url)
    if scheme in ("redis", "rediss", "valkey", "valkeys", "unix"):
        from .redis import RedisStore  # noqa: PLC0415 - only those who use it

        return RedisStore(url)
    raise InvalidConfig(
        f"store={scheme + ':…'!r}: {scheme!r} is not a kind of store; write memory:, sqlite:///path, "
        "redis://host/0 or valkey://host/0"
    )
