"""What a store is, and how a URL becomes one.

A store keeps pools and records. It answers the questions to one pool one after the other, by a clock of its
own, and remembers across restarts if it can. A record is a text that the store does not read: it only makes
sure that no member overwrites a text that it has not seen. A store raises StoreError and nothing else, and
shows no password.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from ..errors import InvalidConfig
from .pool.heard import WindowNews
from .pool.question import Answer, Question
from .pool.state import Pool

if TYPE_CHECKING:
    from ..typing import Clock

K = TypeVar("K", bound=Hashable)

# A listener: it is told what a change says of the window, or None.
Heard: TypeAlias = Callable[[WindowNews | None], None]

# By name: the mark that was seen (None: any), the text to write (None: only read), and for how many µs to
# keep it.
Changes: TypeAlias = Mapping[str, tuple[str | None, str | None, int]]


class Records(NamedTuple):
    """What `swap` returns: the store's time in µs, whether all marks were as seen, mark and text by name.

    The wall clock of the store is `ahead` of its time, in µs: 0 where that is the time since 1970.
    """

    now: int
    swapped: bool
    current: dict[str, tuple[str, str]]
    ahead: int = 0


class Store(Protocol):
    """A place where pools and records are kept. Its methods run on the courier's loop."""

    async def ask(self, key: str, question: Question) -> Answer:
        """Put a question to the pool of that key."""

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        """Write all the texts under a new mark, if every record still has the mark that was seen.

        If not, write nothing. A record that does not exist has the mark "". The new mark must differ from all
        others; asked a second time by the same mark, the store does not write again.
        """

    async def listen(self, key: str, heard: Heard) -> None:
        """Have `heard` called when the window or limits of that key, or a record of that group, changed.

        It is called with what the change says of the window, or with None: then the listener asks.
        A store that answers over a wire calls a new listener once when it is sure to hear of later changes:
        something may have changed after the listener has asked. One that listens already listens once.
        """

    async def unlisten(self, key: str, heard: Heard) -> None:
        """Call that listener of that key no longer. One that does not listen is nothing to do."""

    async def keys(self) -> list[str]:
        """Return the keys of all pools. Changes nothing."""

    async def look(self, key: str) -> Pool | None:
        """Return a copy of the pool as it is now, or None if there is none. Changes nothing."""

    async def close(self) -> None:
        """Close files and connections."""


class RedisClient(Protocol):
    """A client of redis-py or valkey-py: sync or async, of one server, of a cluster or by sentinels."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""


# What `store=` takes: a store, its URL, or a client that tells where one is.
AnyStore: TypeAlias = Store | RedisClient | str


def texts_to_write(
    changes: Changes, current: Mapping[str, tuple[str, str]], mark: str
) -> dict[str, tuple[str, int]] | None:
    """Return texts and how long to keep them, by name; None if a record is not as it was seen.

    There are none if an earlier `swap` with the same mark wrote them.
    """
    given = {name: (text, keep) for name, (_, text, keep) in changes.items() if text is not None}
    new = {name: each for name, each in given.items() if current[name][0] != mark}
    as_seen = all(seen is None or current[name][0] == seen for name, (seen, _, _) in changes.items())
    return new if as_seen or (given and not new) else None


def add_listener(listeners: dict[K, list[Heard]], place: K, heard: Heard) -> None:
    """Note a listener of a place, once."""
    of_place = listeners.setdefault(place, [])
    if heard not in of_place:
        of_place.append(heard)


def drop_listener(listeners: dict[K, list[Heard]], place: K, heard: Heard) -> bool:
    """Note that one listens no longer. True if the place has no listener left by that."""
    of_place = listeners.get(place, [])
    if heard not in of_place:
        return False
    of_place.remove(heard)
    if not of_place:
        del listeners[place]
    return not of_place


def tell_all(listeners: Iterable[Heard], news: WindowNews | None = None) -> None:
    """Call all listeners. One that raises does not silence the others."""
    for heard in tuple(listeners):
        try:
            heard(news)
        except Exception:
            logging.getLogger("headgate").exception("a listener of a store failed")


def plain_name(store: object) -> str:
    """Return what messages call a store: its URL without the password."""
    if is_client(store):
        from .redis_address import name_of_client  # noqa: PLC0415 - a process loads only the stores it uses

        return name_of_client(store)
    if not isinstance(store, str):
        return f"the store {store!r}"
    return store if store.startswith(("memory:", "sqlite:")) else without_password(store)


def is_client(given: object) -> bool:
    """Whether it looks like a client of redis-py or valkey-py: sync or async, of one server or a cluster."""
    return hasattr(given, "execute_command") and (
        hasattr(given, "connection_pool") or hasattr(given, "nodes_manager")
    )


def kind_of(store: object) -> str:
    """Return what metrics call a store: the scheme of its URL, or the name of its class without `Store`."""
    if isinstance(store, str):
        return store.partition(":")[0]
    return type(store).__name__.removesuffix("Store").lower()


def without_password(url: str) -> str:
    """Return a URL without its user, who may be a password, and without its options, which may hold one."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "…"
    ends = [rest.find(sign) for sign in "/?#" if sign in rest]
    end = min(ends, default=len(rest))
    where, path = rest[:end], rest[end:]
    if "@" in path:  # the password has a / ? or # in it, and its end cannot be found
        return f"{scheme}://…"
    host = where.rpartition("@")[2]
    return f"{scheme}://{host}{path.partition('?')[0].partition('#')[0]}"


def open_store(url: AnyStore, clock: Clock, *, shared: bool = False) -> Store:
    """Return the store of that URL, e.g. `memory:`, `sqlite:///path`, `redis://host/0`, `redis+cluster://host`.

    A store is returned as it is. Of a client of redis-py or valkey-py, the store of its servers is returned.
    If it is `shared`, all members on the courier's loop have connections to PostgreSQL in common.
    """
    if not isinstance(url, str):
        if hasattr(url, "ask") and hasattr(url, "listen"):
            if not hasattr(url, "unlisten"):
                raise InvalidConfig(
                    f"store={url!r} has no method `unlisten`: a gate that is closed listens no longer"
                )
            return cast("Store", url)
        if is_client(url):
            from .redis import RedisStore  # noqa: PLC0415 - a process loads only the stores it uses

            return RedisStore(url)
        raise InvalidConfig(f'store={url!r} is not a store; write e.g. store="sqlite:///limits.db"')
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise InvalidConfig(f"store={url!r} is not the URL of a store; for a file write sqlite:///{url}")
    if scheme == "memory":
        from .memory import memory_store  # noqa: PLC0415 - a process loads only the stores it uses

        return memory_store(url, clock)
    if scheme == "sqlite":
        from .sqlite import SqliteStore  # noqa: PLC0415 - as above

        return SqliteStore(url)
    if scheme.partition("+")[0] in ("redis", "rediss", "valkey", "valkeys", "unix"):
        from .redis import RedisStore  # noqa: PLC0415 - as above

        return RedisStore(url)
    if scheme in ("postgresql", "postgres"):
        from .postgres import PostgresStore  # noqa: PLC0415 - as above

        return PostgresStore.shared(url) if shared else PostgresStore(url)
    raise InvalidConfig(
        f"store={scheme + ':…'!r}: {scheme!r} is not a kind of store; write memory:, sqlite:///path, "
        "redis://host/0, redis+cluster://host, redis+sentinel://host/name or postgresql://host/database"
    )
