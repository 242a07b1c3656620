"""What buses over a network have in common: the courier connects, publishes and subscribes for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ...errors import Closed, StoreError
from ...sharing.courier import COURIER
from ...sharing.store import without_password
from .bus import Deliver, Message, Subscription, check_subject

# How long the first connection may take in seconds, and after how many a warning says that it takes long.
CONNECT_TIMEOUT, _SAY_SO = 2.0, 0.5
# How long the confirmation of a subscription may take.
_CONFIRM_TIMEOUT = 5.0


class NetworkBus:
    """A bus over a network. Its subclasses have the coroutine methods declared below; the courier runs them.

    It connects when it is made, and raises StoreError if it cannot. After that it reconnects by itself.
    """

    settles = 0.5
    splits = False
    _client: Any = None
    _last_error: Exception | None = None  # why the first connection failed, as far as the client told
    _connect: Callable[[], Coroutine[Any, Any, None]]
    _publish: Callable[[str, bytes, bool], Coroutine[Any, Any, None]]
    _subscribe: Callable[[Subscription], Coroutine[Any, Any, None]]
    _confirm: Callable[[Subscription], Coroutine[Any, Any, None]]  # returns when it is in force
    _unsubscribe: Callable[[Subscription], Coroutine[Any, Any, None]]
    _recall: Callable[[str], Coroutine[Any, Any, bytes | None]]  # returns the retained data of a subject
    _disconnect: Callable[[], Coroutine[Any, Any, None]]

    def __init__(self, address: str, connect_timeout: float) -> None:
        self._watchers: list[Callable[[bool], object]] = []
        self._underway: set[asyncio.Task[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        try:
            COURIER.wait_for(lambda: self._connect_within(connect_timeout, address), connect_timeout + 1)
        except Exception as error:
            self.close()
            why = str(error) or f"no answer within {connect_timeout:g} s"
            if self._last_error is not None:
                why += f" ({self._last_error})"
            raise StoreError(f"bus={without_password(address)!r} cannot be reached: {why}") from error

    async def _connect_within(self, seconds: float, address: str) -> None:
        def say_so() -> None:
            logging.getLogger("headgate").warning(
                "bus=%r does not answer yet%s; it is tried for %g s",
                without_password(address),
                "" if self._last_error is None else f" ({self._last_error})",
                seconds,
            )

        takes_long = asyncio.get_running_loop().call_later(_SAY_SO, say_so)
        try:
            await asyncio.wait_for(self._connect(), seconds)
        finally:
            takes_long.cancel()

    def publish(self, subject: str, data: bytes, *, retain: bool = False) -> None:
        check_subject(subject)
        self._raise_if_closed()
        self._soon(lambda: self._publish(subject, data, retain))

    def subscribe_soon(self, subject: str, deliver: Deliver) -> Subscription:
        """Have `deliver` called, on the courier's thread, with every message on the subject. Never waits."""
        self._raise_if_closed()
        subscription = Subscription(
            subject, deliver, lambda: self._soon(lambda: self._unsubscribe(subscription))
        )
        self._soon(lambda: self._subscribe(subscription))
        return subscription

    def subscribe(self, subject: str, deliver: Deliver) -> Subscription:
        """Like `subscribe_soon`, and wait until the subscription is in force: from then on none is missed."""
        subscription = self.subscribe_soon(subject, deliver)
        try:
            COURIER.wait_for(
                lambda: asyncio.wait_for(self._confirm(subscription), _CONFIRM_TIMEOUT), _CONFIRM_TIMEOUT + 1
            )
        except Exception as error:
            raise StoreError(f"{subject!r} cannot be subscribed to: {error!r}") from error
        return subscription

    def recall(self, subject: str, deliver: Deliver) -> None:
        async def look() -> None:
            data = await self._recall(subject)
            if data:
                deliver(Message(subject, data))

        self._soon(look)

    def watch(self, notify: Callable[[bool], object]) -> None:
        self._watchers.append(notify)

    def close(self) -> None:
        """Let published messages arrive, and disconnect. A second call does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True

        async def end() -> None:
            await asyncio.gather(*list(self._underway), return_exceptions=True)
            await self._disconnect()

        if not closed and self._client is not None:
            COURIER.send_last(lambda: self._attempt(end))

    def _soon(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def track() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._underway.add(task)
            try:
                await self._attempt(act)
            finally:
                self._underway.discard(task)

        COURIER.send(track)

    async def _attempt(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await act()
        except Exception as error:  # noqa: BLE001 - later messages say it again, and a lost bus says that it is
            logging.getLogger("headgate").debug("the bus failed: %r", error)

    def _tell(self, *, connected: bool) -> None:
        for notify in [] if self._closed else list(self._watchers):
            notify(connected)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the bus was closed", rule="closed")
