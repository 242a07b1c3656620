"""What ties a window to the pool of its key: what is signalled here is heard everywhere, and the other way.

Rules of this room: it runs on the courier's loop, takes no part in the pool's limits, and holds nothing
there. What cannot be told is told again until it is over.
"""

from __future__ import annotations

import asyncio
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import ref

from ...arguments import NS_PER_US
from ...errors import StoreError
from ..courier import COURIER
from ..store import open_store, plain_name
from .question import CLEARED, empty_question, window_left

if TYPE_CHECKING:
    from ...dispatch.backoff_window import BackoffWindow
    from ..store import Store
    from .question import Question

_GREETING = 2.0  # seconds to find out whether there is a store at all
_TRY_AGAIN = 0.25


class WindowTie:
    """One window's tie to the pool of that key."""

    def __init__(self, window: BackoffWindow, store: Store | str, key: str) -> None:
        self._window = ref(window)  # a window that nobody uses any more goes, whoever still has news for it
        self._clock = window._clock
        self._where = store
        self._store = open_store(store, window._clock)
        self._key = key
        self._member = token_hex(8)
        self._numbers = count(1)
        self._generation = 0  # as last heard
        self._listening = False  # to what follows from what was heard
        self._untold: int | None = None  # an end that the others have not heard of, or CLEARED
        self._telling = False

    def start(self) -> None:
        """Hear how it stands. Waits: is there a store at all?"""

        async def greet() -> None:
            await asyncio.wait_for(self._ask(None), _GREETING)
            await self._listen()

        try:
            COURIER.wait_for(greet, _GREETING + 1)
        except TimeoutError:
            where = plain_name(self._where)
            raise StoreError(f"{where} did not answer within {_GREETING:g} s") from None

    def tell(self, until: int | None) -> None:
        """The window now ends then, or was cleared: everybody is to hear it. Never waits."""
        if not (self._listening and COURIER.here):  # other threads may have news of their own meanwhile
            self._untold = CLEARED if until is None else until
            COURIER.soon(self._stir)

    # -- on the courier's loop

    async def _listen(self) -> None:
        tie = ref(self)

        def heard() -> None:
            this = tie()
            if this is not None:
                COURIER.start(this._hear)

        await self._store.listen(self._key, heard)

    def _stir(self) -> None:
        if not self._telling:
            self._telling = True
            COURIER.start(self._tell)

    async def _tell(self) -> None:
        try:
            while (until := self._untold) is not None:
                self._untold = None
                left = window_left(until, self._clock.now())
                if left is None:
                    continue  # it is over, for everybody
                try:
                    await self._ask(left)
                except StoreError:
                    if self._untold is None:
                        self._untold = until
                    await asyncio.sleep(_TRY_AGAIN)
        finally:
            self._telling = False

    async def _hear(self) -> None:
        try:
            await self._ask(None)
        except StoreError:
            await asyncio.sleep(_TRY_AGAIN)
            if not self._telling:
                COURIER.start(self._hear)

    async def _ask(self, pause: int | None) -> None:
        given = await self._store.ask(self._key, self._question(pause))
        remaining, generation = given["window_left"], given["window_generation"]
        window = self._window()
        if generation == self._generation or window is None:
            return
        self._generation = generation
        if pause is not None:
            return  # our own
        until, now = window._window.until, self._clock.now()
        here = 0 if until is None else max(0, until - now)
        self._listening = True  # what follows is no news to the others
        try:
            if remaining * NS_PER_US > here:
                window._signal(remaining * NS_PER_US, "shared", None)
            elif remaining == 0 and here:
                window.clear()
        finally:
            self._listening = False

    def _question(self, pause: int | None) -> Question:
        """One that says how long nobody should go, and wants nothing."""
        question = empty_question(self._member, next(self._numbers))
        question["window"] = pause
        return question

    def after_fork(self) -> None:
        """In a forked child: another member, with a connection of its own."""
        self._member = token_hex(8)
        self._store = open_store(self._where, self._clock)
        self._telling = self._listening = False
        COURIER.send(self._listen)
