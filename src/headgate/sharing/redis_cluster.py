"""A Valkey or Redis cluster: which primary has a key, and what to do when that changes.

Commands for several primaries are sent at once, those of one together. After a failover or while slots move,
the servers say so, or do not answer; then the map of slots is read again, from any server that answers.
"""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .courier import stop
from .redis_address import close_client
from .redis_connection import Listener, Node, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from redis.asyncio import Redis

    from .redis_address import Address, Host
    from .redis_connection import AnyListener, Command, Heard, Times

_SLOTS = 16_384
# What a server answers for a key that another one has, or will have in a moment.
_ELSEWHERE = ("MOVED", "TRYAGAIN", "READONLY")
# How often a command is sent in all, while its slot is found elsewhere each time.
_TRIES = 4
# How many seconds pass before a command is sent again to a cluster that is about to change.
_PAUSE = 0.02
# How often the map of slots is read while a server cannot be listened to.
_LOOK_AGAIN = 0.5


def slot_of(key: bytes) -> int:
    """Return the slot of a key: by the part in its first braces, if there is one."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return crc_hqx(key[start + 1 : end] if 0 <= start < end - 1 else key, 0) % _SLOTS


class Cluster:
    """The primaries of a cluster, each with its own connections."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._nodes: dict[Host, Node] = {}
        self._firsts: list[int] = []  # the first slot of every range, in order
        self._ranges: list[tuple[int, Host]] = []  # its last slot, and the primary
        self._stale = True
        self._silent: Host | None = None  # the server that did not answer last
        self._loading: asyncio.Task[None] | None = None
        self.map_changed: Callable[[], object] = int

    def home(self, key: bytes) -> Host | None:
        """Return the primary of a key; None if it is not known."""
        slot = slot_of(key)
        place = bisect_right(self._firsts, slot) - 1
        if place < 0 or slot > self._ranges[place][0]:
            return None
        return self._ranges[place][1]

    def lane(self, key: bytes) -> Hashable:
        return self.home(key)

    def client(self, host: Host) -> Redis:
        return self._node(host).client

    async def clients(self) -> list[Redis]:
        await self.load()
        return [self.client(host) for host in dict.fromkeys(host for _, host in self._ranges)]

    def listener(self, wanted: Callable[[], Sequence[bytes]], heard: Heard, times: Times) -> AnyListener:
        return ShardListener(self, wanted, heard, times)

    async def close(self) -> None:
        if self._loading is not None:
            await stop(self._loading)
        for node in self._nodes.values():
            await close_client(node.client)

    def _node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            node = self._nodes[host] = Node(self._address.client(host), self._address.shown)
        return node

    # -- sending

    async def send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        from redis import exceptions  # noqa: PLC0415 - an extra

        replies: list[Any] = [None] * len(commands)
        left, lost_before = list(range(len(commands))), False
        for attempt in range(_TRIES):
            if self._stale:
                await self.load()
            homes: dict[Host | None, list[int]] = {}
            for i in left:
                homes.setdefault(self.home(commands[i][0]), []).append(i)
            await asyncio.gather(
                *(self._send_to(host, commands, indices, replies) for host, indices in homes.items())
            )
            moved = [i for i in left if code_of(replies[i]) in _ELSEWHERE]
            lost = [i for i in left if _is_lost(replies[i])]
            slow = any(isinstance(replies[i], exceptions.TimeoutError) for i in left)
            if moved or lost or slow or any(code_of(replies[i]) == "CLUSTERDOWN" for i in left):
                self._stale = True
            # Sent again because its connection was lost, and lost once more: the server is down.
            left = moved + (lost if not lost_before else [])
            lost_before = lost_before or bool(lost)
            if not left or attempt == _TRIES - 1:
                break
            if attempt:
                await asyncio.sleep(_PAUSE)
        unreached = [
            reply for reply in replies if _is_lost(reply) or isinstance(reply, exceptions.TimeoutError)
        ]
        if unreached and len(unreached) == len(replies):
            raise unreached[0]
        return replies

    async def _send_to(
        self,
        host: Host | None,
        commands: Sequence[tuple[bytes, Command]],
        indices: Sequence[int],
        replies: list[Any],
    ) -> None:
        from redis import exceptions  # noqa: PLC0415 - an extra

        if host is None:
            down = exceptions.ClusterDownError("CLUSTERDOWN no server has the slot of this key")
            given: list[Any] = [down] * len(indices)
        else:
            try:
                given = await self._node(host).send([commands[i][1] for i in indices])
            except (exceptions.RedisError, OSError) as error:
                self._silent = host
                given = [error] * len(indices)
        for i, reply in zip(indices, given, strict=True):
            replies[i] = reply
            if code_of(reply) == "ASK":  # this key has moved already, others of its slot have not
                replies[i] = await self._ask_there(reply, commands[i][1])

    async def _ask_there(self, moving: Any, command: Command) -> Any:
        from redis import exceptions  # noqa: PLC0415 - an extra

        name, _, port = str(moving).rpartition(" ")[2].rpartition(":")  # ASK, the slot, and where it goes
        host = self._reachable((name, int(port)))
        try:
            return (await self._node(host).send([("ASKING",), command]))[1]
        except exceptions.RedisError as error:
            return error

    # -- the map of slots

    async def load(self) -> None:
        """Read the map of slots, from any server. Callers at the same time share one reading."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        from redis import exceptions  # noqa: PLC0415 - an extra

        trouble: Exception = exceptions.ConnectionError("no server of the cluster is known")
        known = dict.fromkeys([*(host for _, host in self._ranges), *self._address.hosts])
        # The server that has just failed is asked last: it may take a whole time-out.
        for host in sorted(known, key=lambda host: host == self._silent):
            try:
                (ranges,) = await self._node(host).send([("CLUSTER", "SLOTS")])
            except (exceptions.RedisError, OSError) as error:
                trouble = error
                continue
            if isinstance(ranges, exceptions.ResponseError):
                trouble = ranges
            elif self._read(ranges, host):
                await self._close_others()
                return
        raise trouble

    async def _close_others(self) -> None:
        """Close the connections to servers that have no slots any more."""
        needed = {*(host for _, host in self._ranges), *self._address.hosts}
        for host in self._nodes.keys() - needed:
            await close_client(self._nodes.pop(host).client)

    def _read(self, ranges: Any, asked: Host) -> bool:
        """Take over a map of slots; false if it is empty: that server does not belong to a cluster yet."""
        found: dict[int, tuple[int, Host]] = {}
        for first, last, primary in _primaries(ranges):
            name = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
            named = name not in (None, "", "?")  # else it is where it was asked
            found[int(first)] = (int(last), self._reachable((name if named else asked[0], int(primary[1]))))
        if not found:
            return False
        firsts = sorted(found)
        changed = [found[first] for first in firsts] != self._ranges
        self._firsts, self._ranges, self._stale = firsts, [found[first] for first in firsts], False
        if changed:
            self.map_changed()
        return True

    def _reachable(self, host: Host) -> Host:
        return host if self._address.remap is None else self._address.remap(host)


def _primaries(ranges: Any) -> list[tuple[Any, Any, Any]]:
    """First slot, last slot and primary of each range; some versions of redis-py have parsed them."""
    if isinstance(ranges, dict):
        return [(first, last, entry["primary"]) for (first, last), entry in ranges.items()]
    return [(entry[0], entry[1], entry[2]) for entry in ranges]


def _is_lost(reply: Any) -> bool:
    """Whether this is a lost connection, and not the refusal of a server that was reached."""
    from redis import exceptions  # noqa: PLC0415 - an extra

    refusals = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.BusyLoadingError)
    return isinstance(reply, exceptions.ConnectionError | OSError) and not isinstance(reply, refusals)


class ShardListener:
    """Listens on every primary that has a channel, and elsewhere when the map of slots changes."""

    def __init__(
        self, cluster: Cluster, wanted: Callable[[], Sequence[bytes]], heard: Heard, times: Times
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._heard = heard
        self._times = times
        self._listeners: dict[Host, tuple[Listener, asyncio.Task[None]]] = {}
        self._look_again = asyncio.Event()

    async def run(self) -> None:
        """Listen until this task is cancelled."""
        self._cluster.map_changed = self._look_again.set
        pause = 0.05
        try:
            while True:
                self._look_again.clear()
                try:
                    if None in {self._cluster.home(channel) for channel in self._wanted()}:
                        await self._cluster.load()
                    await self._divide()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._look_again.wait(), _LOOK_AGAIN if self._lost() else None)
                    pause = 0.05
                    if self._lost():
                        await self._cluster.load()
                except Exception:  # noqa: BLE001 - whatever it was, the cluster is asked again
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 0.5)
        finally:
            await stop(*(task for _, task in self._listeners.values()))

    async def subscribe(self, channel: bytes) -> None:
        """Listen on another channel, which `wanted` lists by now."""
        home = self._cluster.home(channel)
        if home in self._listeners:
            await self._listeners[home][0].subscribe(channel)
        else:
            self._look_again.set()

    async def unsubscribe(self, channel: bytes) -> None:
        """Listen no longer on a channel, which `wanted` does not list any more."""
        home = self._cluster.home(channel)
        if home in self._listeners:
            await self._listeners[home][0].unsubscribe(channel)
        self._look_again.set()  # a server without a channel needs no listener

    def _lost(self) -> bool:
        return any(not listener.connected for listener, _ in self._listeners.values())

    async def _divide(self) -> None:
        """Have one listener for every primary that has a channel, and no others."""
        homes = {self._cluster.home(channel) for channel in self._wanted()} - {None}
        for gone in self._listeners.keys() - homes:
            _, task = self._listeners.pop(gone)
            await stop(task)
        for host in homes - self._listeners.keys():
            if host is not None:
                listener = Listener(
                    self._cluster.client(host),
                    partial(self._channels_of, host),
                    self._heard,
                    self._times,
                    changed=lambda connected: None if connected else self._look_again.set(),
                    sharded=True,
                )
                self._listeners[host] = listener, asyncio.create_task(listener.run())
        for home, (listener, _) in self._listeners.items():
            for channel in self._channels_of(home):
                if channel not in listener.channels:
                    await listener.subscribe(channel)

    def _channels_of(self, host: Host) -> list[bytes]:
        return [channel for channel in self._wanted() if self._cluster.home(channel) == host]
