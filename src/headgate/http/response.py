"""A response: how an adapter shows it to the sender, and how it holds its place while it is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol
from weakref import ref

from ..arguments import SECOND
from ..gate.admission import Permit
from ..gate.forks import reset_in_child
from ..responses.estimate import TOKENS
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

    @property
    def header_pairs(self) -> object:
        """The headers in the form that is read fastest: names and values, repeated fields apart."""
        return self.headers

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


class Answered(Protocol):
    """The call that a response answers."""

    @property
    def name(self) -> str: ...

    @property
    def asks_for_model(self) -> bool:
        """Whether the response has to say which model it is from."""

    def cost_of(self, usage: Usage | None, model: str | None) -> dict[str, int] | None:
        """What a usage costs, None if the estimate stands. `model` is what the response calls its model."""

    def observe_error(self, document: Mapping[str, Any]) -> None:
        """Learn from an error inside the body."""


class OpenResponse:
    """A successful response until its body ends: it holds the permit. Its methods may be called repeatedly.

    `leases` ends it if its caller forgets it.
    """

    __slots__ = ("__weakref__", "_call", "_leases", "_now", "_permit", "_reader", "is_open", "read_at")

    def __init__(
        self, call: Answered, permit: Permit, leases: Leases, content_type: str, content_encoding: str
    ) -> None:
        self.is_open = True
        self._permit = permit
        self._call = call
        self._leases = leases
        self._now = leases.clock.now
        self._reader = UsageReader(content_type, content_encoding, names_model=call.asks_for_model)
        self.read_at = 0  # when its caller last read of it

    def keep(self) -> None:
        """The response goes to a caller, who may hold it without reading it."""
        if self.is_open:
            self.read_at = self._now()
            self._leases.add(self, self._permit)

    def chunk(self, data: bytes) -> None:
        """The caller has read *data*."""
        if self.is_open:
            self.read_at = self._now()
            self._reader.feed(data)

    def end(self, *, whole: bool = False) -> None:
        """The body was read, closed or broken off; `whole` if nothing of it is missing."""
        if not self.is_open:
            return
        reader = self._reader
        if whole:
            reader.finish()
        self._settle()
        if reader.error is not None:
            self._call.observe_error(reader.error)

    def passed_on(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces of the body, each noted as the caller reads it."""
        try:
            for piece in pieces:
                self.chunk(piece)
                yield piece
            self.end(whole=True)
        finally:
            if self.is_open:
                self.end()

    def __del__(self) -> None:
        if self.is_open:
            self._permit.leave(self._close())

    def _settle(self) -> None:
        cost = self._close()
        tokens = cost.pop(TOKENS, None) if cost else None
        self._permit.settle(tokens=tokens, cost=cost or None)

    def _close(self) -> dict[str, int] | None:
        """Count the response as ended. Returns what it cost, None if the estimate stands."""
        self.is_open = False
        self._leases.remove(self)
        return self._call.cost_of(self._reader.usage, self._reader.model)

    def abandon(self, lease: int) -> None:
        """Give the place back: the caller has neither read nor closed the response for a long time."""
        if not self.is_open:
            return
        self._settle()
        logging.getLogger("headgate").warning(
            "%s: the response has been neither read nor closed for %g s; its place has been given back. "
            "Close responses, e.g. by `with`, or give the adapter a longer lease=",
            self._call.name,
            lease / SECOND,
        )


class Leases:
    """The open responses of one sender, each abandoned unless it is read every `duration` nanoseconds.

    One timer serves all of them. A response is referred to weakly, so that one that is garbage ends at once;
    its permit is kept alive until then: the collector must not finalize it before the response. Responses
    end in finalizers too, so nothing here waits for a lock.
    """

    def __init__(self, clock: Clock, duration: int) -> None:
        self.clock = clock
        self._duration = duration
        # However many responses end one after the other, they are not all looked at each time.
        self._pause = duration // 64
        self.after_fork()
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: the responses belong to the parent, and the timer stayed there."""
        self._open: dict[int, tuple[ref[OpenResponse], Permit]] = {}
        self._due: int | None = None  # when the timer looks; None if none is set

    def add(self, response: OpenResponse, permit: Permit) -> None:
        self._open[id(response)] = (ref(response), permit)
        if self._due is None:
            self._look_at(response.read_at + self._duration)

    def remove(self, response: OpenResponse) -> None:
        self._open.pop(id(response), None)

    def _look_at(self, moment: int) -> None:
        self._due = moment
        self.clock.call_at(moment, self._look)

    def _look(self) -> None:
        """Abandon the responses that were not read in time, and look again when the next one may be."""
        now = self.clock.now()
        if self._due is None or now < self._due:
            return  # two threads have set a timer, and the other one looks
        self._due = None  # before the responses are read: one that is added from now on sets a timer
        earliest = None
        for reference, _permit in self._open.copy().values():  # a copy in one step: finalizers change it
            response = reference()
            if response is None:
                continue
            until = response.read_at + self._duration
            if until <= now:
                response.abandon(self._duration)
            else:
                earliest = until if earliest is None else min(earliest, until)
        if earliest is not None:
            self._look_at(max(earliest, now + self._pause))
