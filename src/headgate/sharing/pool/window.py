"""WindowMember: what a backoff window without a gate is shared through, by the pool of its key.

It works on the courier's loop, takes no part in the pool's limits, and holds nothing there. A signal that
cannot be told is told again until its window is over.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from weakref import WeakMethod

from ...arguments import NS_PER_US
from ...errors import StoreError
from ...events import StoreForgot
from ...gate.forks import reset_in_child
from ...gate.window import WindowSignal
from ..courier import COURIER
from .client import TRY_AGAIN, PoolClient
from .episode import CLEARED, GENTLE, USUAL
from .heard import HeardWindow, heard_signal
from .question import empty_question

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...events import Event
    from ...gate.window import Window
    from ...typing import Clock
    from ..store import AnyStore
    from .heard import WindowNews


class WindowMember:
    """One window in the pool of its key."""

    def __init__(
        self,
        rule: Window,
        clock: Clock,
        hear: Callable[[WindowSignal], None],
        tell: Callable[[Event], None],
        store: AnyStore,
        key: str,
    ) -> None:
        self._rule = rule
        self._clock = clock
        self._hear_window = WeakMethod(hear)  # a window that is no longer used goes although there is news
        self._tell_event = WeakMethod(tell)
        self._pool = PoolClient(store, key, clock, self.hear)
        self._window = HeardWindow()
        self._told = rule.signalled  # the state of our window that was told last
        self._curious = False  # another member has changed something
        self._working = False
        self._asking = asyncio.Lock()
        self._closed = False

    def start(self) -> None:
        """Hear whether a window is active. Waits, to find out whether there is a store at all."""
        self._pool.greet(self._ask)
        reset_in_child(self)

    def hear_window(self) -> None:
        """The window has changed: tell the other members, unless the news came from a store. Never waits."""
        state = self._rule.signalled
        if state == self._told or self._closed:
            return
        self._told = state
        until = self._rule.signal(self._clock.now()).until
        self._window.leave(CLEARED if until is None else until, GENTLE if self._rule.gentle else USUAL)
        COURIER.soon(self._stir)

    def close(self) -> None:
        """Share the window no longer. What the pool has not heard yet is told before the store is closed."""
        if not self._closed:
            self._closed = True
            COURIER.send_last(self._leave)

    # -- on the courier's loop

    def hear(self, news: WindowNews | None = None) -> None:
        """Another member changed the window or the limits of the pool; `news` tells of the window."""
        if news is not None and not self._closed:
            trips, asking = self._pool.trips, self._asking.locked()
            until = self._window.told(news, self._rule.until, trips, self._clock.now(), asking=asking)
            if until is not None and (hear := self._hear_window()) is not None:
                hear(heard_signal(until, self, gentle=news.gentle))
        self._curious = True
        self._stir()

    def _stir(self) -> None:
        if not self._working and not self._closed:
            self._working = True
            COURIER.start(self._work)

    async def _work(self) -> None:
        """Tell and ask until the pool has heard all there is, and this member too."""
        try:
            while (self._curious or self._window.signal is not None) and not self._closed:
                try:
                    await self._tell()
                except StoreError:
                    self._curious = True
                    await asyncio.sleep(TRY_AGAIN)
        finally:
            self._working = False

    async def _leave(self) -> None:
        try:
            if self._window.signal is not None or self._asking.locked():
                await self._tell()
        except StoreError as error:
            logging.getLogger("headgate").warning(
                "%s cannot be asked (%s); other processes do not hear of the window of %r that was set last",
                self._pool.where,
                error,
                self._pool.key,
            )
        finally:
            await self._pool.close()

    async def _tell(self) -> None:
        """Tell the pool what it has not heard, and hear whether another member changed the window."""
        async with self._asking:
            self._curious = False
            try:
                await self._ask()
            except StoreError:
                self._window.tell_again()
                raise

    async def _ask(self) -> None:
        """Tell until when calls should be held back, and want nothing."""
        question = empty_question(self._pool.name, self._pool.next_number())
        asked_at = self._clock.now()
        self._window.write(question, self._rule.until, asked_at)
        question["manner"] = GENTLE if self._rule.gentle else USUAL  # which may have changed since
        answer = await self._pool.ask(question)
        forgot, own, now = self._pool.forgot, self._rule.until, self._clock.now()
        self._pool.trips.note(now - asked_at)
        self._pool.trips.moment_of(answer["at"] * NS_PER_US, asked_at, now)
        hear, tell = self._hear_window(), self._tell_event()
        if hear is None or tell is None:
            return
        if forgot:
            tell(StoreForgot(key=self._pool.key, at=self._clock.seconds(), store=self._pool.kind))
        signal = self._window.take(answer, own, asked_at, now, self, forgot=forgot)
        if signal is not None:
            hear(signal)
        self._window.tells_more()

    def after_fork(self) -> None:
        """In a forked child: another member, with a connection of its own."""
        self._pool.start_anew()
        self._working = False
        self._asking = asyncio.Lock()
        if not self._closed:
            COURIER.send(self._pool.listen)
