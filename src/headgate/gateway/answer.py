"""The two ends of an answer: what the API sends, and what the client gets of it, byte for byte."""

from __future__ import annotations

import zlib
from typing import Any

from aiohttp import ClientResponse, hdrs
from aiohttp.web import StreamResponse

from ..http.response import MOST_OF_ERROR, Answer, OpenResponse
from .guards import backward

# Fields that aiohttp adds to a response by itself.
_ADDED = (hdrs.CONTENT_TYPE, hdrs.DATE, hdrs.SERVER)
_RETRIED_BY_CLIENTS = (408, 409, 429)


class UpstreamAnswer(Answer):
    """A response of the API, which the gateway reads and passes on.

    `final` is whether the client is told not to retry by itself: the gateway has done so already.
    """

    response: ClientResponse

    def __init__(self, response: ClientResponse) -> None:
        super().__init__(response)
        self.final = False
        self.reading: OpenResponse | None = None
        self.start = b""  # of the body, if it was read to see what an error says
        self.whole = False  # whether that is all of the body
        self.failure: Exception | None = None

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def header_pairs(self) -> object:
        return self.response.raw_headers

    async def read_error(self) -> bytes | None:
        pieces: list[bytes] = []
        size = 0
        try:
            while size <= MOST_OF_ERROR:
                piece = await self.response.content.readany()
                if not piece:
                    self.whole = True
                    break
                pieces.append(piece)
                size += len(piece)
        except Exception as error:  # noqa: BLE001 - the client gets what there is, and then the same end
            self.failure = error
        self.start = b"".join(pieces)
        return self.start

    def watch(self, reading: OpenResponse) -> None:
        reading.keep()
        self.reading = reading

    def forbid_retries(self) -> None:
        self.final = self.status >= 500 or self.status in _RETRIED_BY_CLIENTS

    async def drop(self) -> None:
        self.release()

    def release(self) -> None:
        """Let the connection go: it is used again if the body was read to its end."""
        if self.reading is not None:
            self.reading.end()
        self.response.release()

    async def next_piece(self) -> bytes:
        """The next bytes of the body as they come; none at its end. Call `note` with them then."""
        if self.start:
            piece, self.start = self.start, b""
            return piece
        if self.failure is not None:
            raise self.failure
        if self.whole:
            return b""
        content = self.response.content
        piece = await content.readany()
        self.whole = content.at_eof()
        return piece

    def note(self, piece: bytes) -> None:
        """Read the usage in a piece; after the last one the place at the gate is given back."""
        reading = self.reading
        if reading is not None:
            reading.chunk(piece)
            if self.whole:
                reading.end(whole=True)

    async def rest(self) -> bytes:
        """What is left of the body."""
        pieces = []
        while piece := await self.next_piece():
            pieces.append(piece)
            self.note(piece)
        self.note(b"")
        return b"".join(pieces)

    @property
    def is_events(self) -> bool:
        return self.response.headers.get("content-type", "").lower().startswith("text/event-stream")

    def headers_for_client(self) -> list[tuple[str, str]]:
        response = self.response
        headers = backward(response.raw_headers, response.headers.get("connection", ""))
        if self.final and "x-should-retry" not in response.headers:
            headers.append(("x-should-retry", "false"))
        return headers


class RelayedResponse(StreamResponse):
    """A response to the client that has the fields it was given, and no other."""

    def __init__(
        self, status: int, reason: str | None, headers: list[tuple[str, str]], *, at_once: bool
    ) -> None:
        """`at_once`: the head is sent without waiting for the first piece of the body."""
        super().__init__(status=status, reason=reason)
        for name, value in headers:
            self.headers.add(name, value)
        self._send_headers_immediately = at_once

    async def _prepare_headers(self) -> None:
        headers = self.headers
        added = [name for name in _ADDED if name not in headers]
        await super()._prepare_headers()
        for name in added:
            headers.popall(name, None)


class Unpacked:
    """Unpacks a body piece by piece, for a client that was told that it is not packed."""

    def __init__(self, coding: str) -> None:
        self._inflate: Any = None
        if coding and coding.lower() != "identity":
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by its first bytes

    def __call__(self, piece: bytes) -> bytes:
        return piece if self._inflate is None else bytes(self._inflate.decompress(piece))
