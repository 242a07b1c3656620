"""Stores that are open: one for each URL, for as long as a record client of this process uses it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary, finalize

from ...errors import InvalidConfig
from ...gate.forks import never_free
from ..courier import COURIER
from ..store import open_store

if TYPE_CHECKING:
    from typing import Protocol

    from ...typing import Clock, Store

    class Listener(Protocol):
        def look_again(self) -> None: ...


class OpenStore:
    """A store, and the clients that listen for changes of each of its groups."""

    __slots__ = ("__weakref__", "listeners", "pid", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pid = os.getpid()
        self.listeners: dict[str, Listeners] = {}


class Listeners:
    """The clients that are told when a record of one group has changed. Called by the store."""

    __slots__ = ("clients",)

    def __init__(self) -> None:
        self.clients: WeakSet[Listener] = WeakSet()

    def __call__(self) -> None:
        for client in list(self.clients):
            client.look_again()


# By URL; those in memory also by their clock, which they keep alive.
_open: WeakValueDictionary[tuple[str, int], OpenStore] = WeakValueDictionary()


def hold(where: Store | str, clock: Clock) -> OpenStore:
    """The open store of that URL, or of a store that the caller made."""
    if not isinstance(where, str):
        store = open_store(where, clock)
        if not hasattr(store, "swap"):
            raise InvalidConfig(f"store={where!r} keeps no records: it has no method `swap`")
        return OpenStore(store)
    place = (where, id(clock) if where.startswith("memory:") else 0)
    held = _open.get(place)
    if held is None or held.pid != os.getpid():
        held = _open[place] = OpenStore(open_store(where, clock))
        finalize(held, _let_go, held.store, held.pid).atexit = False
    return held


def _let_go(store: Store, pid: int) -> None:
    if pid == os.getpid():
        COURIER.send_last(store.close)
    else:
        never_free(store)  # in a forked child: the connections are the parent's
