"""Stores that are open: one for each URL, for as long as a record client of this process uses it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary, finalize

from ...errors import InvalidConfig
from ...gate.forks import never_free
from ..courier import COURIER
from ..store import Store, open_store

if TYPE_CHECKING:
    from ...typing import Clock


class OpenStore:
    """A store, and the clients that listen for changes of each of its groups."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pid = os.getpid()
        self.listeners: dict[str, WeakSet[Any]] = {}

    def listeners_of(self, group: str) -> tuple[WeakSet[Any], Callable[[], None] | None]:
        """The clients that listen to a group, and for the first of them what the store has to call."""
        if group in self.listeners:
            return self.listeners[group], None
        clients = self.listeners[group] = WeakSet()

        def changed() -> None:
            for client in list(clients):
                client.look_again()

        return clients, changed


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
