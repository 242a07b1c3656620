"""A response: how an adapter shows it to the sender, and how it holds its place while it is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import ref

from ..arguments import SECOND
from ..gate.admission import Permit
from ..responses.usage import Usage, UsageReader
from ..typing import Clock

# How much of the body of an error is read, in bytes, to see what it says.
MOST_OF_ERROR = 65_536


class Answer:
    """A response of a client library. In async adapters `read_error` and `drop` are coroutine functions."""

    def __init__(self, response: Any) -> None:
        self.response = response

    @property
    def status(self) -> int:
        return int(self.response.status_code or 200)

    @property
    def headers(self) -> Mapping[str, str]:
        headers: Mapping[str, str] = self.response.headers
        return headers

    def read_error(self) -> Any:
        """The raw body, up to MOST_OF_ERROR, or None. The caller can still read all of it."""
        raise NotImplementedError

    def watch(self, reading: OpenResponse) -> None:
        """Tell `reading` from now on what is read of the body and when that ends."""
        raise NotImplementedError

    def forbid_retries(self) -> None:
        """Tell the client that sends through the adapter not to retry by itself."""
        self.response.headers["x-should-retry"] = "false"

    def drop(self) -> Any:
        """Release the response: it will not be read."""
        self.response.close()


class OpenResponse:
    """A successful response until its body ends: it holds the permit. Its methods may be called repeatedly.

    `cost_of` says what a usage costs, None if the estimate stands; `observe_error` is given an error document
    inside the body.
    """

    _open = False

    def __init__(
        self,
        permit: Permit,
        headers: Mapping[str, str],
        *,
        name: str,
        clock: Clock,
        lease: int,
        cost_of: Callable[[Usage | None], dict[str, int] | None],
        observe_error: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._permit = permit
        self._name = name
        self._clock = clock
        self._lease = lease
        self._cost_of = cost_of
        self._observe_error = observe_error
        self._reader = UsageReader(headers.get("content-type") or "", headers.get("content-encoding") or "")
        self._timeout: ReadTimeout | None = None
        self._open = True

    def keep(self) -> None:
        """The response goes to a caller, who may hold it without reading it."""
        if self._open and self._timeout is None:
            self._timeout = ReadTimeout(self._clock, self._lease, ref(self), self._permit)

    def chunk(self, data: bytes) -> None:
        """The caller has read *data*."""
        if self._open:
            if self._timeout is not None:
                self._timeout.renew()
            self._reader.feed(data)

    def end(self, *, whole: bool = False) -> None:
        """The body was read, closed or broken off; `whole` if nothing of it is missing."""
        if not self._open:
            return
        if whole:
            self._reader.finish()
        self._permit.settle(cost=self._close())
        if self._reader.error is not None:
            self._observe_error(self._reader.error)

    def passed_on(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces of the body, each noted as the caller reads it."""
        try:
            for piece in pieces:
                self.chunk(piece)
                yield piece
            self.end(whole=True)
        finally:
            self.end()

    def __del__(self) -> None:
        if self._open:
            self._permit.leave(self._close())

    def _close(self) -> dict[str, int] | None:
        """Count the response as ended. Returns what it cost, None if the estimate stands."""
        self._open = False
        if self._timeout is not None:
            self._timeout.cancel()
        return self._cost_of(self._reader.usage)

    def abandon(self) -> None:
        """Give the place back: the caller has neither read nor closed the response for a long time."""
        if not self._open:
            return
        self._permit.settle(cost=self._close())
        logging.getLogger("headgate").warning(
            "%s: the response has been neither read nor closed for %g s; its place has been given back. "
            "Close responses, e.g. by `with`, or give the adapter a longer lease=",
            self._name,
            self._lease / SECOND,
        )


class ReadTimeout:
    """Abandons a response unless it is renewed every `duration` nanoseconds, or cancelled.

    The response is referred to weakly, so that one that is garbage ends at once. `holds` is kept alive
    until then: the collector must not finalize it before the response. Responses end in finalizers too, so
    nothing here waits for a lock: the clock's timers are added and cancelled without waiting.
    """

    def __init__(self, clock: Clock, duration: int, response: ref[OpenResponse], holds: object) -> None:
        self._clock = clock
        self._duration = duration
        self._response: ref[OpenResponse] | None = response
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
