"""Pools and records in Valkey or Redis, for a fleet.

Scripts decide, on the server and by its clock; this file only carries questions. One connection asks, for all
keys, and sends together what waits; another one listens. A question may reach the server twice and is decided
once, by its id. Every failure is a StoreError, in time and without the password.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from ..gate.forks import never_free, reset_in_child
from .courier import settle
from .pool.answer import AGAIN, FAR, HORIZON
from .pool.question import Answer
from .pool.rate import MOST_MARKS
from .pool.state import KEPT_IDLE, LAYOUT, SET_BACK, Pool
from .redis_connection import Listener, client_of, send_again_if_lost
from .store import Records, without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio import Redis

    from .pool.question import Question
    from .store import Changes

    # A script, its arguments, and the future of its reply.
    Request = tuple[str, tuple[Any, ...], asyncio.Future[Any]]


def _script(*names: str) -> str:
    """Return files of Lua as one script."""
    folder = Path(__file__).with_name("scripts")
    return "".join(folder.joinpath(name).read_text("utf-8") for name in names)


SCRIPT = _script("integers.lua", "state.lua", "pool.lua")
# What the script is given besides a question, in the order in which it reads them.
CONSTANTS = json.dumps([LAYOUT, HORIZON, FAR, AGAIN, SET_BACK, MOST_MARKS, KEPT_IDLE])
LOOK = _script("state.lua", "look.lua")
_RECORDS = _script("records.lua")
_NAMES = {
    script: sha1(script.encode(), usedforsecurity=False).hexdigest() for script in (SCRIPT, LOOK, _RECORDS)
}

# How many questions are sent together: the server does nothing else while it answers them.
_MOST_TOGETHER = 64
# After how many silent seconds the listener asks whether the server is still there.
_QUIET = 5.0


class RedisStore:
    """Pools and records in the Valkey or Redis server of that URL.

    A server that does not answer costs an `ask` at most `timeout` seconds, and `connect_timeout` more if it
    is not connected yet. Whether such a question was decided is unknown: ask again with the same id.
    """

    def __init__(self, url: str, *, timeout: float = 1.0, connect_timeout: float = 1.0) -> None:
        self.url = without_password(url)  # as it may be shown
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._client_of = client_of(url, "store", timeout=timeout, connect_timeout=connect_timeout)
        self._closed = False
        self._heard: dict[bytes, list[Callable[[], None]]] = {}
        self._start(None)
        reset_in_child(self, first=True)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._client: Redis | None = None
        self._waiting: list[Request] = []
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    def __repr__(self) -> str:
        return f"<RedisStore {self.url}{', closed' if self._closed else ''}>"

    async def ask(self, key: str, question: Question) -> Answer:
        asked = json.dumps(question, separators=(",", ":"))
        return read_answer(await self._run(SCRIPT, 1, _key(key), asked, CONSTANTS))

    async def swap(self, group: str, changes: Changes, mark: str) -> Records:
        facts = [
            fact
            for seen, text, keep in changes.values()
            for fact in (
                "*" if seen is None else seen,
                "" if text is None else max(1, -(-keep // 1000)),
                text or "",
            )
        ]
        keys = [_record(group, name) for name in changes]
        now, swapped, *found = await self._run(
            _RECORDS, len(keys), *keys, mark, _key(group) + b":news", *facts
        )
        marks, texts = map(_text, found[::2]), map(_text, found[1::2])
        current = {
            name: (by_now, given if swapped and given is not None else text)
            for (name, (_, given, _)), by_now, text in zip(changes.items(), marks, texts, strict=True)
        }
        return Records(int(now), bool(swapped), current)

    async def _run(self, script: str, *facts: Any) -> Any:
        """Run a script, in one round trip with all others that wait."""
        self._connect()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((script, facts, reply))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        try:
            async with asyncio.timeout(self._timeout + self._connect_timeout):
                return await reply
        except TimeoutError:
            raise self._unanswered() from None

    async def listen(self, key: str, heard: Callable[[], None]) -> None:
        """Have `heard` called when the window, the limits or a record has changed, or may have without news.

        Returns at once. The first call of `heard` says that the connection is there, and so does one after
        every reconnection.
        """
        channel = _key(key) + b":news"
        known = channel in self._heard
        self._heard.setdefault(channel, []).append(heard)
        self._connect()
        if self._listener is not None and not known:
            await self._listener.subscribe(channel)

    async def keys(self) -> list[str]:
        """Return the keys of all pools. Reads all keys of the server, a few at a time."""
        self._connect()
        try:
            found = [key async for key in self._redis.scan_iter(match=_key("*"), count=1_000)]
        except Exception as error:
            raise self._why(error) from error
        return sorted({_name_of(key) for key in found})

    async def look(self, key: str) -> Pool | None:
        seen = await self._run(LOOK, 1, _key(key), LAYOUT)
        if seen is None:
            return None
        layout, rates, limits, units, version, members, *others, now = seen
        units = [_text(unit) for unit in units]
        members = {_text(name): member for name, member in members}
        return Pool.unpacked([layout, rates, limits, units, version, members, *others]).as_of(now)

    async def close(self) -> None:
        """Close the connections. Questions that wait for an answer get a StoreError."""
        if self._closed:
            return
        self._closed = True
        tasks = [task for task in (self._sending, self._listening) if task is not None]
        client, waiting = self._client, self._waiting
        here = self._loop is asyncio.get_running_loop()
        self._start(self._loop)
        self._fail(waiting)
        if not here:
            return  # the tasks are those of another loop, which has ended
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if client is not None:
            with suppress(Exception):  # the connection may be lost already
                await client.aclose()

    # -- connections

    def _connect(self) -> None:
        """Make a client and a listener for the running loop: connections cannot move to another loop."""
        if self._closed:
            raise self._is_closed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._start(loop)
        if self._client is None:
            self._client = self._client_of()
        if self._heard and self._listening is None:
            self._listener = Listener(
                self._client, lambda: list(self._heard), self._hear, quiet=_QUIET, timeout=self._timeout
            )
            self._listening = loop.create_task(self._listener.run())

    def after_fork(self) -> None:
        """Leave the connections to the parent: to close the copies would end them in its event loop too."""
        if self._loop is not None:
            never_free(vars(self).copy())
        self._start(None)

    # -- asking

    async def _send(self) -> None:
        """Send what waits, until nothing does."""
        batch: list[Request] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST_TOGETHER], self._waiting[_MOST_TOGETHER:]
                batch = [request for request in batch if not request[2].done()]  # some were cancelled
                replies = await self._ask_all(batch) if batch else []
                for (_, _, reply), given in zip(batch, replies, strict=True):
                    settle(reply, self._why(given) if isinstance(given, Exception) else given)
        except asyncio.CancelledError:
            self._fail(batch)
            raise
        except Exception as error:  # noqa: BLE001 - any error here means that none was answered
            # The questions that came in the meantime wait for the same server.
            waiting, self._waiting = self._waiting, []
            self._fail(batch + waiting, error)
        finally:
            if self._sending is asyncio.current_task():
                self._sending = None

    async def _ask_all(self, batch: Sequence[Request]) -> list[Any]:
        """Return the reply to each: a text or an exception. Raises if the server cannot be reached at all."""
        from redis import exceptions  # noqa: PLC0415 - an extra

        # Ids and marks make it safe to send a question twice.
        replies = await send_again_if_lost(lambda: self._pipeline("EVALSHA", batch))
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
        if unknown:
            again = await self._pipeline("EVAL", [batch[i] for i in unknown])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        if any(isinstance(reply, exceptions.ReadOnlyError) for reply in replies):
            # The primary has become a replica, and its name may lead to another server by now.
            await self._redis.connection_pool.disconnect()
        return replies

    async def _pipeline(self, command: str, batch: Sequence[Request]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for script, facts, _ in batch:
                pipeline.execute_command(command, script if command == "EVAL" else _NAMES[script], *facts)
            return await pipeline.execute(raise_on_error=False)

    @property
    def _redis(self) -> Redis:
        assert self._client is not None
        return self._client

    # -- listening

    def _hear(self, _kind: str, channel: bytes, _data: object) -> None:
        for heard in self._heard.get(channel, ()):
            asyncio.get_running_loop().call_soon(heard)

    # -- errors

    def _fail(self, requests: Sequence[Request], error: Exception | None = None) -> None:
        """Answer with that error, or that the store was closed."""
        for _, _, reply in requests:
            settle(reply, self._is_closed() if error is None else self._why(error))

    def _is_closed(self) -> StoreError:
        return StoreError(f"{self.url} was closed; nothing more can be asked there")

    def _unanswered(self) -> StoreError:
        return StoreError(f"{self.url} does not answer in time ({self._timeout:g} s)")

    def _why(self, error: Exception) -> StoreError:
        from redis import exceptions  # noqa: PLC0415 - as above

        words = str(error).rstrip(".")
        if isinstance(error, exceptions.TimeoutError):
            why = self._unanswered()
        elif isinstance(error, exceptions.AuthenticationError):
            why = StoreError(
                f"{self.url} does not let us in: {words}; write its user and password as "
                "redis://user:password@host/0, with %40 for @ and %2F for /"
            )
        elif isinstance(error, exceptions.MovedError):
            why = StoreError(
                f"{self.url} is one node of a cluster, and another has this key; "
                "write the URL of a server of its own"
            )
        elif isinstance(error, exceptions.ConnectionError):
            why = StoreError(f"{self.url} cannot be reached: {words}")
        else:
            why = StoreError(f"{self.url} cannot answer: {words}")
        why.__cause__ = error
        return why


def read_answer(reply: list[Any]) -> Answer:
    """Read what the script replies: the values of an answer, in the order of its fields."""
    given: Any = dict(zip(Answer.__annotations__, reply, strict=False))
    given["crowded"] = bool(given["crowded"])
    if "units" in given:
        given["units"] = [_text(unit) for unit in given["units"]]
    return given  # type: ignore[no-any-return]  # an Answer


def _key(key: str) -> bytes:
    return b"headgate:{%b}" % key.encode("utf-8", "surrogatepass")


def _record(group: str, name: str) -> bytes:
    """Return the key of a record. All records of a group are in one hash slot."""
    return b"headgate-record:{%b}:%b" % tuple(text.encode("utf-8", "surrogatepass") for text in (group, name))


def _text(reply: bytes | str) -> str:
    return reply if isinstance(reply, str) else reply.decode()  # the URL may have asked for decoded replies


def _name_of(key: bytes | str) -> str:
    if isinstance(key, str):  # the URL asked for decoded replies
        key = key.encode("utf-8", "surrogateescape")
    return key[len(_key("")) - 1 : -1].decode("utf-8", "surrogatepass")
