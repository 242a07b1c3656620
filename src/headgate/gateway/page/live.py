"""The live page over HTTP: the page itself, and its server-sent events.

Nothing is looked at while no browser shows the page.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files

from aiohttp.web import BaseRequest, StreamResponse

from ...gate.clock import SYSTEM
from ..answer import RelayedResponse
from ..keys import COOKIE
from .view import Document

EVERY = 1.0  # seconds between two looks
_RETRY_MS = 1_000
_MOST_WATCHERS = 64


class LivePage:
    """Answers requests for the page and for its events. `look` makes the document that is shown."""

    def __init__(self, look: Callable[[], Awaitable[Document]], *, every: float = EVERY) -> None:
        self._look = look
        self._every = every
        self._html, self._policy = _page()
        self._seen: tuple[float, bytes] | None = None
        self._looking = asyncio.Lock()
        self._over = asyncio.Event()
        self.watchers = 0

    def end(self) -> None:
        """End the events of every browser: what they look at is being stopped."""
        self._over.set()

    async def page(self, request: BaseRequest, *, cookie: str = "") -> StreamResponse:
        """The page. With a cookie, the browser keeps it and asks again without what it was exchanged for."""
        if cookie:
            kept = f"{COOKIE}={cookie}; Path=/.headgate/; HttpOnly; SameSite=Strict"
            return await _send(request, 303, b"", [("Location", "/.headgate/ui"), ("Set-Cookie", kept)])
        head = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", self._policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ]
        return await _send(request, 200, self._html, head)

    async def events(self, request: BaseRequest) -> StreamResponse:
        """The document, whole, again and again until the browser leaves."""
        if self.watchers >= _MOST_WATCHERS:
            return await _send(request, 503, b"", [("Retry-After", "10")])
        head = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")]
        response = RelayedResponse(200, None, head, at_once=True)
        self.watchers += 1
        try:
            await response.prepare(request)
            await response.write(b"retry: %d\n\n" % _RETRY_MS)
            while not self._over.is_set():
                await response.write(b"data: %b\n\n" % await self._document())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), self._every)
            await response.write_eof()
        except ConnectionError:
            pass  # the browser has gone
        finally:
            self.watchers -= 1
        return response

    async def _document(self) -> bytes:
        """The document of now. Several browsers see the same one."""
        async with self._looking:
            now = SYSTEM.seconds()
            if self._seen is None or now - self._seen[0] >= self._every * 0.9:
                self._seen = (now, json.dumps(await self._look()).encode())
            return self._seen[1]


def _page() -> tuple[bytes, str]:
    """The HTML, and the policy that allows its own script and style and nothing else."""
    text = files(__package__).joinpath("page.html").read_text("utf-8")
    script = _digest(text, "<script>", "</script>")
    style = _digest(text, "<style>", "</style>")
    policy = (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _digest(text: str, start: str, end: str) -> str:
    inside = text[text.index(start) + len(start) : text.index(end)]
    return b64encode(sha256(inside.encode()).digest()).decode()


async def _send(
    request: BaseRequest, status: int, body: bytes, head: list[tuple[str, str]]
) -> StreamResponse:
    head = [*head, ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    response = RelayedResponse(status, None, head, at_once=False)
    await response.prepare(request)
    await response.write_eof(b"" if request.method == "HEAD" else body)
    return response
