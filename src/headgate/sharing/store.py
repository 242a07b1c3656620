"""Where pools and records are kept, and how they are asked.

Rules of this room: a store answers questions of `rules.pool`, one at a time for each key, by its own clock,
and remembers across restarts if it can. A record is a text whose meaning is somebody else's: the store only
sees to it that nobody writes over what he has not seen. It raises StoreError and nothing else, without its
password.
"""

from __future__ import annotations

import logging
from _thread import allocate_lock
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidConfig, StoreError
from ..gate.clock import SYSTEM
from .pool.answer import answer
from .pool.state import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol, TypeAlias

    from ..typing import Clock
    from .pool.question import Answer, Question

    # By name: the mark that was seen (None: whatever it is), the text to write (None: only look), and for how
    # many µs to keep it.
    Changes: TypeAlias = Mapping[str, tuple[str | None, str | None, int]]

    class Store(Protocol):
        """One place where pools and records are kept. Its methods run on the courier's loop."""

        async def ask(self, key: str, question: Question) -> Answer:
            """Put a question to the pool of that key."""

        async def swap(self, group: str, changes: Changes, mark: str) -> Records:
            """If every record of the group still has the mark that was seen, write all the texts, under a
            new mark that is like no other; if not, write nothing. A record that is not there has the mark "".
            Asked again by the same mark, it is written once.
            """

        async def listen(self, key: str, heard: Callable[[], None]) -> None:
            """Call that whenever somebody has changed the window or the limits of the key, or a record of
            the group of that name."""

        async def keys(self) -> list[str]:
            """Of all pools there are. Changes nothing, as `look` does."""

        async def look(self, key: str) -> Pool | None:
            """The pool of that key as it is now, for those who only look; None if there is none."""

        async def close(self) -> None:
            """Let go of whatever is held."""


class Records(NamedTuple):
    """What a store says of records: its time in µs, were all as seen, mark and text of each by now."""

    now: int
    swapped: bool
    current: dict[str, tuple[str, str]]


def as_seen(changes: Changes, current: Mapping[str, tuple[str, str]], mark: str) -> bool:
    """May these changes be made? Also if they have been, and somebody asks once more."""
    if all(seen is None or current[name][0] == seen for name, (seen, _, _) in changes.items()):
        return True
    written = [name for name, (_, text, _) in changes.items() if text is not None]
    return bool(written) and all(current[name][0] == mark for name in written)


def tell_all(listeners: Iterable[Callable[[], None]]) -> None:
    """Call them all. What one of them raises is its own affair."""
    for heard in tuple(listeners):
        try:
            heard()
        except Exception:
            logging.getLogger("headgate").exception("one who listens to a store failed")


# Below so many records, nobody looks for those whose time is over.
_FEW = 64


class MemoryStore:
    """Pools and records in this process: for tests, and for parts of one program unknown to each other."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._pools: dict[str, Pool] = {}
        self._records: dict[tuple[str, str], tuple[str, str, int]] = {}
        self._sweep_at = _FEW
        self._lock = allocate_lock()  # of the records: whoever has no need of the courier comes by himself
        self._listeners: dict[str, list[Callable[[], None]]] = {}

    async def ask(self, key: str, question: Question) -> Answer:
        old = self._pools.get(key) or Pool()
        pool = old.copy()
        try:
            given = answer(pool, question, self._clock.now() // 1000)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"memory: {error!r}") from error
        self._pools[key] = pool
        if (pool.window.generation, pool.version) != (old.window.generation, old.version):
            tell_all(self._listeners.get(key, ()))
        return deepcopy(given)  # the pool keeps its own

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        wrote = False
        with self._lock:
            now = self._clock.now() // 1000
            current = {name: self._look_up(group, name, now) for name in changes}
            swapped = as_seen(changes, current, mark)
            for name, (_, text, keep) in changes.items():
                if swapped and text is not None and current[name][0] != mark:
                    self._records[group, name] = (mark, text, now + keep)
                    current[name] = (mark, text)
                    wrote = True
            if len(self._records) > self._sweep_at:
                self._records = {key: kept for key, kept in self._records.items() if kept[2] > now}
                self._sweep_at = max(_FEW, 2 * len(self._records))
        if wrote:
            tell_all(self._listeners.get(group, ()))
        return Records(now, swapped, current)

    def _look_up(self, group: str, name: str, now: int) -> tuple[str, str]:
        mark, text, expires = self._records.get((group, name), ("", "", 0))
        return (mark, text) if now < expires else ("", "")

    async def listen(self, key: str, heard: Callable[[], None]) -> None:
        self._listeners.setdefault(key, []).append(heard)

    async def keys(self) -> list[str]:
        return list(self._pools)

    async def look(self, key: str) -> Pool | None:
        pool = self._pools.get(key)
        return None if pool is None else pool.as_of(self._clock.now() // 1000)

    async def close(self) -> None:
        pass


def plain_name(store: object) -> str:
    """What to call a store in messages: its URL without the password."""
    if not isinstance(store, str):
        return f"the store {store!r}"
    return store if store.startswith(("memory:", "sqlite:")) else without_password(store)


def without_password(url: str) -> str:
    """The URL as it may be shown: no user, who may be a password, and no options, which may hold one."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "…"
    ends = [rest.find(sign) for sign in "/?#" if sign in rest]
    end = min(ends, default=len(rest))
    where, path = rest[:end], rest[end:]
    if "@" in path:  # a password with / ? or # in it: what is what cannot be told
        return f"{scheme}://…"
    host = where.rpartition("@")[2]
    return f"{scheme}://{host}{path.partition('?')[0].partition('#')[0]}"


_memory: dict[str, MemoryStore] = {}


def open_store(url: Store | str, clock: Clock) -> Store:
    """The store of that URL: `memory:`, `sqlite:///path`, `redis://host/0` or `valkey://host/0`."""
    if not isinstance(url, str):
        if hasattr(url, "ask") and hasattr(url, "listen"):
            return url  # one that somebody made
        raise InvalidConfig(f'store={url!r} is not a store; write e.g. store="sqlite:///limits.db"')
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise InvalidConfig(f"store={url!r} is not the URL of a store; for a file write sqlite:///{url}")
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
