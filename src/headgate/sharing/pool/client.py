"""PoolClient: how a member reaches the pool of its key. Everything but `greet` runs on the courier's loop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from functools import partial
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import WeakMethod, finalize

from ... import events, telling
from ...arguments import NS_PER_US, SECOND
from ...errors import StoreError
from ..courier import COURIER
from ..store import kind_of, open_store, plain_name
from .trips import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ...typing import Clock, Observer
    from ..store import AnyStore, Heard, Store
    from .heard import WindowNews
    from .question import Answer, Question

# How many seconds pass before a store that did not answer is tried again.
TRY_AGAIN = 0.25
# For how many seconds an answer that is late is waited for.
PATIENCE = 2.0
# The same for the first one: to connect takes several round trips.
_FIRST_PATIENCE = 9.0


def loop_time() -> float:
    """The time of the courier's loop in seconds, which passes in tests too."""
    return asyncio.get_running_loop().time()


class PoolClient:
    """The store of one member, its key there, and its name in the pool."""

    def __init__(
        self,
        store: AnyStore,
        key: str,
        clock: Clock,
        heard: Heard,
        observer: Callable[[], Observer | None] = lambda: None,
    ) -> None:
        self.key = key
        self.where, self.kind = plain_name(store), kind_of(store)
        self._given = store
        self._observer = observer  # finds the one of the moment
        self._clock = clock
        self._hear = _weakly(heard)
        self._unused: finalize[..., PoolClient] = finalize(self, bool)
        self.start_anew()

    def start_anew(self) -> None:
        """Be another member, with a connection of its own. In a forked child the store is the parent's."""
        self.name = f"{socket.gethostname()}-{os.getpid()}-{token_hex(6)}"
        self._numbers = count(1)
        self.trips = RoundTrips()
        self._store = open_store(self._given, self._clock, shared=True)
        self._unused.detach()
        own = self._store is not self._given
        self._part = partial(_part_with, self._store, self.key, self._hear, own=own)
        # A member that is dropped without being closed leaves no listener and no open store behind.
        self._unused = finalize(self, COURIER.send_last, self._part)
        self._unused.atexit = False
        self._born = 0  # of the pool, as last heard
        self._kept_until = 0  # until then the store should have that pool
        self.forgot = False  # by the last answer: the store has lost the pool, and began anew

    def next_number(self) -> int:
        """The id of the next question."""
        return next(self._numbers)

    async def ask(self, question: Question) -> Answer:
        """Put a question to the pool. `forgot` says whether it is another pool than before."""
        asked_at, members = self._clock.now(), None
        known = question["born"] = self._born if asked_at < self._kept_until else 0
        try:
            answer = await self._store.ask(self.key, question)
            members = answer["members"]
        finally:
            if self._observer() is not None:
                duration = (self._clock.now() - asked_at) / SECOND
                self.tell(events.StoreAsked, duration=duration, members=members)
        self._born, self._kept_until = answer["born"], asked_at + answer["kept"] * NS_PER_US
        self.forgot = known not in (0, self._born)
        return answer

    def tell_loss(self, why: str, on_loss: str) -> None:
        """Tell the log and the observer of the gate that the store cannot be asked."""
        logging.getLogger("headgate").warning(
            "%s cannot be asked (%s); %r goes on by on_loss=%r", self.where, why, self.key, on_loss
        )
        self.tell(events.StoreLost, reason=why)

    def tell(self, kind: Callable[..., events.Event], **facts: Any) -> None:
        """Tell the observer of the gate what happened to the store."""
        at = self._clock.seconds()
        telling.tell(self._observer(), kind(key=self.key, at=at, store=self.kind, **facts))

    async def ask_patiently(self, question: Question, slow: Callable[[str], None]) -> Answer:
        """Put a question to the pool. `slow(why)` is called if the answer is late, and may still come."""
        asked_at, patience = self._clock.now(), self.trips.patience / SECOND
        answering = asyncio.ensure_future(self.ask(question))
        try:
            # In two halves: if this process was stopped in the first, the answer may be there in the second.
            await asyncio.wait({answering}, timeout=patience / 2)
            done, _ = await asyncio.wait({answering}, timeout=patience / 2)
            if not done:
                slow(f"no answer within {patience:.2g} s")
            answer = await asyncio.wait_for(answering, PATIENCE)
        finally:
            answering.cancel()
        self.trips.note(self._clock.now() - asked_at)
        return answer

    async def say(self, question: Question | None) -> None:
        """Put a last question to the pool. What it tells is forgotten in time, too, if it cannot be asked."""
        if question is not None:
            with suppress(StoreError, TimeoutError):
                await asyncio.wait_for(self.ask(question), PATIENCE)

    async def listen(self) -> None:
        """Have `heard` called when another member changed the window or the limits."""
        await self._store.listen(self.key, self._hear)

    async def close(self) -> None:
        """Listen no longer, and close the store if it was opened for this member alone."""
        if self._unused.detach():
            await self._part()

    def greet(self, first: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ask for the first time, and listen from then on. Waits, to find out whether there is a store."""

        async def greet() -> None:
            # In one task: a store in memory has no moment in between, of which the news would not be heard.
            # Others call a new listener once, or when they first look.
            async with asyncio.timeout(_FIRST_PATIENCE):
                await first()
            await self.listen()

        try:
            COURIER.wait_for(greet, _FIRST_PATIENCE + 1)
        except BaseException as error:
            COURIER.send_last(self.close)
            if isinstance(error, TimeoutError):
                raise StoreError(f"{self.where} did not answer within {_FIRST_PATIENCE:g} s") from None
            raise


def _weakly(heard: Heard) -> Heard:
    """A listener that keeps nothing alive: a member that is no longer used goes although there is news."""
    weakly = WeakMethod(heard)

    def hear(news: WindowNews | None) -> None:
        listening = weakly()
        if listening is not None:
            listening(news)

    return hear


async def _part_with(store: Store, key: str, heard: Heard, *, own: bool) -> None:
    """Listen to a store no longer. Close it if it is the member's own."""
    try:
        await store.unlisten(key, heard)
    finally:
        if own:
            await store.close()
