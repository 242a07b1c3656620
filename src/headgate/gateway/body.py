"""The body of a request: read into memory to see what it costs, unless it is very long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from aiohttp.web import BaseRequest

# A longer body is sent on while it is read; its tokens are not counted, and it cannot be sent twice.
MOST_KEPT = 64 * 1024 * 1024
_PIECE_WITHIN = 60.0  # seconds
_AT_ONCE = 256 * 1024
_STREAM = re.compile(rb'"stream"\s{0,8}:\s{0,8}true\b')


class BodyStopped(TimeoutError):
    """The client has stopped sending in the middle of a body."""


class Body:
    """What a client sends. `known` is all of it, None if it is too long to be kept."""

    __slots__ = ("_request", "_start", "known")

    def __init__(self, request: BaseRequest, start: bytes, *, whole: bool) -> None:
        self._request = request
        self._start = start
        self.known = start if whole else None

    @property
    def length(self) -> int:
        return 0 if self.known is None else len(self.known)

    @property
    def is_in_slices(self) -> bool:
        """Whether it is known, and sent in several pieces."""
        return self.length > _AT_ONCE

    @property
    def asks_for_stream(self) -> bool:
        if self.known is None:
            return False
        headers = self._request.headers
        if headers.get("content-encoding", "identity") != "identity":  # Codex packs bodies by zstd
            return headers.get("accept", "") == "text/event-stream"
        return _STREAM.search(self.known) is not None

    def to_send(self) -> bytes | AsyncIterator[bytes] | None:
        """What is given to the HTTP client: a long body in pieces, between which others get their turn."""
        if self.known is None:
            return self._pieces()
        return _slices(self.known) if self.is_in_slices else self.known or None

    async def _pieces(self) -> AsyncIterator[bytes]:
        start, self._start = self._start, b""
        yield start
        while piece := await _next_piece(self._request):
            yield piece


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _AT_ONCE):
        yield body[start : start + _AT_ONCE]


async def _next_piece(request: BaseRequest) -> bytes:
    """What has come of a body; none at its end. BodyStopped is raised if its client stops sending."""
    content = request.content
    if content.is_eof():  # all of it is here, and nothing has to be waited for
        return await content.readany()
    try:
        async with asyncio.timeout(_PIECE_WITHIN):
            return await content.readany()
    except TimeoutError:
        raise BodyStopped("the body of the request did not come") from None


async def read_body(request: BaseRequest) -> Body:
    """The body of a request that is about to be sent on."""
    content = request.content
    if content.is_eof() and not content.total_bytes:
        return Body(request, b"", whole=True)
    pieces: list[bytes] = []
    size = 0
    while size <= MOST_KEPT:
        piece = await _next_piece(request)
        if not piece:
            return Body(request, b"".join(pieces), whole=True)
        pieces.append(piece)
        size += len(piece)
    return Body(request, b"".join(pieces), whole=False)
