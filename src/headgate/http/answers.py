"""How an adapter shows its responses to the exchange: each client library has its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

# How much of the body of an error is read, in bytes, to see what it says.
MOST_OF_ERROR = 65_536


class Reading(Protocol):
    """What an adapter tells while the body of a successful response is read. Calls may be repeated."""

    def keep(self) -> None:
        """The response goes to a caller, who may hold it without reading it."""

    def chunk(self, data: bytes) -> None:
        """The caller has read *data*."""

    def end(self, *, whole: bool = False) -> None:
        """The body was read, closed or broken off; `whole` if nothing of it is missing."""


class _Response(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def watch(self, reading: Reading) -> None:
        """Tell `reading` from now on what is read of the body and when that ends."""

    def forbid_retries(self) -> None:
        """Tell the client that sends through the adapter not to retry by itself."""


class Answer(_Response, Protocol):
    """A response of a client library that runs in threads."""

    def read_error(self) -> bytes | None:
        """The raw body, up to MOST_OF_ERROR. The caller can still read all of it."""

    def drop(self) -> None:
        """Release the response: it will not be read."""


class AsyncAnswer(_Response, Protocol):
    """A response of an asyncio client library; the methods are those of Answer."""

    async def read_error(self) -> bytes | None: ...

    async def drop(self) -> None: ...
