"""Pools and records in memory: for tests, and for parts of one process that share a key."""

from __future__ import annotations

import marshal
from _thread import allocate_lock
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import finalize, proxy

from ..arguments import NS_PER_US
from ..errors import StoreError
from ..gate.clock import SYSTEM, read_clock
from ..gate.forks import reset_in_child
from ..typing import Clock
from .pool.answer import answer
from .pool.heard import WindowNews, news_of
from .pool.question import Answer, Question
from .pool.state import KEPT_IDLE, Pool
from .store import Changes, Heard, Records, add_listener, drop_listener, tell_all, texts_to_write

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

# With fewer entries than this, expired ones are not looked for.
_FEW = 64


class _Expiring(Generic[K, V]):
    """Values by key, each until its time is over. Memory is bounded by twice the values that are alive."""

    def __init__(self) -> None:
        self._kept: dict[K, tuple[V, int]] = {}
        self._sweep_at = _FEW

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, now: int) -> V | None:
        value, expires = self._kept.get(key, (None, 0))
        return value if now < expires else None

    def put(self, key: K, value: V, now: int, keep: int) -> None:
        self._kept[key] = (value, now + keep)
        if len(self._kept) > self._sweep_at:
            self._kept = {key: kept for key, kept in self._kept.items() if kept[1] > now}
            self._sweep_at = max(_FEW, 2 * len(self._kept))

    def keys(self, now: int) -> list[K]:
        return [key for key, (_, expires) in self._kept.items() if now < expires]


class MemoryStore:
    """A store in this process, by the clock that is given: `store="memory:"` for tests on virtual time.

    >>> from headgate import Dispatch
    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock()
    >>> store = MemoryStore(clock)
    >>> with Dispatch("api", rates="5/s", store=store, clock=clock) as one:
    ...     one.key
    'api'
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = read_clock(clock)
        self._pools: _Expiring[str, bytes] = _Expiring()  # copies, so that an error changes nothing
        self._records: _Expiring[tuple[str, str], tuple[str, str]] = _Expiring()
        self._listeners: dict[str, list[Heard]] = {}
        self._leaving: deque[tuple[str, Heard]] = deque()  # listeners that are not to be called
        self.after_fork()
        reset_in_child(self, first=True)

    def after_fork(self) -> None:
        self._lock = allocate_lock()  # of records and listeners: any thread may call `swap`

    def _now(self) -> int:
        return self._clock.now() // NS_PER_US

    async def ask(self, key: str, question: Question) -> Answer:
        now = self._now()
        pool = self._pool(key, now) or Pool()
        before = pool.news
        try:
            given = answer(pool, question, now)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"memory: {error!r}") from error
        self._pools.put(key, marshal.dumps(pool.packed()), now, pool.idle_for() + KEPT_IDLE)
        if pool.news != before:
            self._tell(key, news_of(given))
        return given

    def _pool(self, key: str, now: int) -> Pool | None:
        state = self._pools.get(key, now)
        return None if state is None else Pool.unpacked(marshal.loads(state))  # noqa: S302 - written above

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        with self._lock:
            now = self._now()
            current = {name: self._records.get((group, name), now) or ("", "") for name in changes}
            texts = texts_to_write(changes, current, mark)
            for name, (text, keep) in (texts or {}).items():
                current[name] = (mark, text)
                self._records.put((group, name), current[name], now, keep)
        if texts:
            self._tell(group)
        return Records(now, texts is not None, current, self._clock.wall() // NS_PER_US - now)

    async def listen(self, key: str, heard: Heard) -> None:
        with self._lock:
            self._dismiss_locked()
            add_listener(self._listeners, key, heard)

    async def unlisten(self, key: str, heard: Heard) -> None:
        """Call that listener of that key no longer. Waits for no lock: finalizers may call this."""
        self._leaving.append((key, heard))

    def _tell(self, key: str, news: WindowNews | None = None) -> None:
        if self._leaving:
            with self._lock:
                self._dismiss_locked()
        tell_all(self._listeners.get(key, ()), news)

    def _dismiss_locked(self) -> None:
        while self._leaving:
            drop_listener(self._listeners, *self._leaving.popleft())

    async def keys(self) -> list[str]:
        return self._pools.keys(self._now())

    async def look(self, key: str) -> Pool | None:
        now = self._now()
        pool = self._pool(key, now)
        return None if pool is None else pool.as_of(now)

    async def close(self) -> None:
        pass


# One for each URL and clock, because the times of a pool are times of one clock. It goes with its clock.
_stores: dict[tuple[str, int], MemoryStore] = {}


def memory_store(url: str, clock: Clock) -> MemoryStore:
    """Return the store that this URL and this clock have in this process."""
    place = url, id(clock)
    store = _stores.get(place)
    if store is None:
        try:
            finalize(clock, _stores.pop, place, None).atexit = False
            store = MemoryStore(proxy(clock))
        except TypeError:  # its class has slots without __weakref__
            store = MemoryStore(clock)
        store = _stores.setdefault(place, store)
    return store
