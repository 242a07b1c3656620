"""A response that is held open and not read gives its place back after some time.

Responses end in finalizers too, so nothing here waits for a lock: renewing writes a number, and the clock's
timers are added and cancelled without waiting.
"""

from __future__ import annotations

from typing import Protocol
from weakref import ref

from ..typing import Clock


class Abandonable(Protocol):
    def abandon(self) -> None: ...


class ReadTimeout:
    """Abandons a response unless it is renewed every `duration` nanoseconds, or cancelled.

    The response is referred to weakly, so that one that is garbage ends at once. `holds` is kept alive
    until then: the collector must not finalize it before the response.
    """

    __slots__ = ("_clock", "_duration", "_holds", "_response", "_timer", "_until")

    def __init__(self, clock: Clock, duration: int, response: ref[Abandonable], holds: object) -> None:
        self._clock = clock
        self._duration = duration
        self._response: ref[Abandonable] | None = response
        self._holds = holds
        self._until = clock.now() + duration
        self._timer = clock.call_at(self._until, self._check)

    def renew(self) -> None:
        self._until = self._clock.now() + self._duration

    def cancel(self) -> None:
        self._response = None
        self._timer.cancel()

    def _check(self) -> None:
        """Abandon the response if it was not renewed; otherwise look again when its time is up."""
        if self._clock.now() < self._until:
            self._timer = self._clock.call_at(self._until, self._check)
            if self._response is None:  # cancelled since, with the timer before this one
                self._timer.cancel()
            return
        response = None if self._response is None else self._response()
        self.cancel()
        if response is not None:
            response.abandon()
