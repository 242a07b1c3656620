"""Stores that record clients of this process use, and which of the clients listen to which group.

A store that a URL names is opened once, for as long as a client uses it. It calls one listener for each group
that has clients, however many these are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary, finalize, ref

from ...errors import InvalidConfig, StoreError
from ...gate.forks import never_free
from ...typing import Clock
from ..courier import COURIER
from ..memory import MemoryStore
from ..pool.heard import WindowNews
from ..store import AnyStore, Heard, Store, is_client, open_store


class Listens(Protocol):
    def look_again(self) -> None:
        """Another member has changed something."""


class _Group:
    """The clients that listen to one group, by id. Any thread adds and drops while another calls them."""

    def __init__(self) -> None:
        self.clients: dict[int, ref[Listens]] = {}

    def changed(self, _news: WindowNews | None) -> None:
        """What the store calls."""
        for each in list(self.clients.values()):
            listening = each()
            if listening is not None:
                listening.look_again()


class OpenStore:
    """A store, and the clients that listen for changes of each of its groups."""

    def __init__(self, store: Store, *, own: bool = False) -> None:
        """`own`: it was opened here, and is closed when no client uses it any more."""
        self.store = store
        self.pid = os.getpid()
        self.at_once = isinstance(store, MemoryStore)  # it answers in the thread of the caller
        self._groups: dict[str, _Group] = {}
        self._left: deque[str] = deque()  # groups that a client has left; finalizers append to it
        finalize(self, _part_with, store, self._groups, self.pid, own=own).atexit = False

    def add_listener(self, name: str, client: Listens) -> Heard | None:
        """Have a client listen to a group. Returns what the store has to call, for the first of a group."""
        self._tidy()
        group = self._groups.setdefault(name, _Group())
        first, place, clients, left = not group.clients, id(client), group.clients, self._left

        def gone(_client: object) -> None:
            clients.pop(place, None)
            left.append(name)

        clients[place] = ref(client, gone)
        self._groups.setdefault(name, group)  # it was perhaps tidied away in between
        return group.changed if first else None

    def drop_listener(self, name: str, client: Listens) -> None:
        """A client listens to a group no longer."""
        group = self._groups.get(name)
        if group is not None:
            group.clients.pop(id(client), None)
            self._left.append(name)
        self._tidy()

    def _tidy(self) -> None:
        """Have the store call no listeners of groups that all clients have left. Not from a finalizer."""
        while self._left:
            try:
                name = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            group = self._groups.get(name)
            if group is None or group.clients:
                continue
            if self.at_once:
                drive(self._silence(name, group))
            else:
                COURIER.send(partial(self._silence, name, group))

    async def _silence(self, name: str, group: _Group) -> None:
        if group.clients:
            return
        self._groups.pop(name, None)
        with suppress(StoreError):  # it was closed
            await self.store.unlisten(name, group.changed)
        if group.clients:  # one has come in between
            self._groups.setdefault(name, group)
            await self.store.listen(name, group.changed)
            group.changed(None)


# By URL or client; those in memory also by their clock, which they keep alive.
_open: WeakValueDictionary[tuple[Any, int], OpenStore] = WeakValueDictionary()


def hold(where: AnyStore, clock: Clock) -> OpenStore:
    """The open store of that URL, or of a store that the caller made."""
    if not isinstance(where, str) and not is_client(where):
        store = open_store(where, clock)
        if not hasattr(store, "swap"):
            raise InvalidConfig(f"store={where!r} keeps no records: it has no method `swap`")
        return OpenStore(store)
    place = (where, id(clock) if isinstance(where, str) and where.startswith("memory:") else 0)
    held = _open.get(place)
    if held is None or held.pid != os.getpid():
        held = _open[place] = OpenStore(open_store(where, clock, shared=True), own=True)
    return held


def _part_with(store: Store, groups: dict[str, _Group], pid: int, *, own: bool) -> None:
    """No client uses an OpenStore any more. A finalizer: a store in memory is only left a note."""
    listening: list[tuple[str, Heard]] = [(name, group.changed) for name, group in groups.items()]
    if isinstance(store, MemoryStore):
        for name, changed in listening:
            drive(store.unlisten(name, changed))
    elif pid != os.getpid():
        if own:
            never_free(store)  # in a forked child: the connections are the parent's
    elif own or listening:
        COURIER.send_last(partial(_end, store, listening, own=own))


async def _end(store: Store, listening: list[tuple[str, Heard]], *, own: bool) -> None:
    for name, changed in listening:
        with suppress(StoreError):
            await store.unlisten(name, changed)
    if own:
        await store.close()


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a store in memory does not wait")
