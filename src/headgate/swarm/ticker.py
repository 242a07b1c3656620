"""When something is due: by the limiter's clock if that can ring, by the courier's loop otherwise."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from ..arguments import SECOND
from ..sharing.courier import COURIER

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..typing import Clock


class Ticker:
    """Calls a method when it is time. That is no reason to keep its object alive."""

    def __init__(self, clock: Clock, tick: Callable[[], Any]) -> None:
        self._tick = WeakMethod(tick)
        self._now = clock.now
        # Virtual time rings by itself: real time would not reach it.
        self._call_at: Callable[[int, Callable[[int], Any]], Any] | None = getattr(clock, "_call_at", None)
        self._at: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    @property
    def virtual(self) -> bool:
        return self._call_at is not None

    def set(self, at: int) -> None:
        """Ring then, or earlier if told so already."""
        at = max(at, self._now() + 1)
        if self._at is not None and self._at <= at:
            return
        self._at = at
        if self._call_at is not None:
            self._call_at(at, self._ring)
        else:
            COURIER.soon(self._arm)

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._at is not None:
            left = max(0, self._at - self._now()) / SECOND
            self._handle = asyncio.get_running_loop().call_later(left, self._ring, self._at)

    def _ring(self, at: int) -> None:
        if self._at == at:
            self._at = None
            tick = self._tick()
            if tick is not None:
                tick()
