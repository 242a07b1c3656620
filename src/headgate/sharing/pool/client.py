"""PoolClient: how a member reaches the pool of its key. Everything but `greet` runs on the courier's loop."""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import WeakMethod

from ...errors import StoreError
from ..courier import COURIER
from ..store import open_store, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ...typing import Clock
    from ..store import Store
    from .question import Answer, Question

# How many seconds pass before a store that did not answer is tried again.
TRY_AGAIN = 0.25


class PoolClient:
    """The store of one member, its key there, and its name in the pool."""

    def __init__(self, store: Store | str, key: str, clock: Clock, heard: Callable[[], None]) -> None:
        self.key = key
        self.where = plain_name(store)
        self._given = store
        self._clock = clock
        self._heard = WeakMethod(heard)  # a member that is no longer used goes although there is news for it
        self.start_anew()

    def start_anew(self) -> None:
        """Be another member, with a connection of its own. In a forked child the store is the parent's."""
        self.name = f"{socket.gethostname()}-{os.getpid()}-{token_hex(6)}"
        self._numbers = count(1)
        self._store = open_store(self._given, self._clock)

    def next_number(self) -> int:
        """The id of the next question."""
        return next(self._numbers)

    async def ask(self, question: Question) -> Answer:
        """Put a question to the pool."""
        return await self._store.ask(self.key, question)

    async def listen(self) -> None:
        """Have `heard` called when another member changed the window or the limits."""
        weakly = self._heard

        def tell() -> None:
            heard = weakly()
            if heard is not None:
                heard()

        await self._store.listen(self.key, tell)

    async def close(self) -> None:
        """Close the store if it was opened for this member alone."""
        if isinstance(self._given, str):
            await self._store.close()

    def greet(self, first: Callable[[], Coroutine[Any, Any, None]], timeout: float) -> None:
        """Ask for the first time, and listen from then on. Waits, to find out whether there is a store."""

        async def greet() -> None:
            await asyncio.wait_for(first(), timeout)
            await self.listen()

        try:
            COURIER.wait_for(greet, timeout + 1)
        except BaseException as error:
            COURIER.send_last(self.close)
            if isinstance(error, TimeoutError):
                raise StoreError(f"{self.where} did not answer within {timeout:g} s") from None
            raise
