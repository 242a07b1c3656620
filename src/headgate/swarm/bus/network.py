"""What buses over a network have in common: the first connection, watchers, closing."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from ...errors import Closed, StoreError
from ...sharing.courier import COURIER
from ...sharing.store import without_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from .bus import Deliver, Subscription

# How long the first connection, and the confirmation of a subscription, may take in seconds.
CONNECT_TIMEOUT = 5.0


class NetworkBus:
    """A bus over a network. The courier does its I/O: a subclass has `_begin`, `_confirm` and `_end` for it.

    It connects when it is made, and raises StoreError if it cannot. After that it reconnects by itself.
    """

    settles = 0.5
    splits = False
    _client: Any = None
    _last_error: Exception | None = None  # why the first connection failed, as far as the client told

    def __init__(self, address: str, connect_timeout: float) -> None:
        self._watchers: list[Callable[[bool], object]] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            COURIER.wait_for(lambda: asyncio.wait_for(self._begin(), connect_timeout), connect_timeout + 1)
        except Exception as error:
            self.close()
            why = str(error) or f"no answer within {connect_timeout:g} s"
            if self._last_error is not None:
                why += f" ({self._last_error})"
            raise StoreError(f"bus={without_password(address)!r} cannot be reached: {why}") from error

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _confirm(self, subscription: Subscription) -> None:
        """Return when the subscription is in force."""
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError

    def subscribe_soon(self, subject: str, deliver: Deliver) -> Subscription:
        """Have `deliver` called, on the courier's thread, with every message on the subject. Never waits."""
        raise NotImplementedError

    def subscribe(self, subject: str, deliver: Deliver) -> Subscription:
        """Like `subscribe_soon`, and wait until the subscription is in force: from then on none is missed."""
        subscription = self.subscribe_soon(subject, deliver)
        try:
            COURIER.wait_for(
                lambda: asyncio.wait_for(self._confirm(subscription), CONNECT_TIMEOUT), CONNECT_TIMEOUT + 1
            )
        except Exception as error:
            raise StoreError(f"{subject!r} cannot be subscribed to: {error!r}") from error
        return subscription

    def watch(self, notify: Callable[[bool], object]) -> None:
        """Have `notify` called with False when the connection is lost, with True when it is back."""
        self._watchers.append(notify)

    def close(self) -> None:
        """Let published messages arrive, and disconnect. A second call does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed and self._client is not None:
            COURIER.send_last(self._end)

    def _tell(self, *, connected: bool) -> None:
        for notify in [] if self._closed else list(self._watchers):
            notify(connected)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the bus was closed", rule="closed")
