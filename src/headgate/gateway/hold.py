"""Pure. How to keep a client waiting: what each tolerates while its call stands in line.

Clients break in different ways when they are held. Comments in a stream of events are ignored by most SDKs,
but google-genai takes them for JSON. `event: ping` belongs to Anthropic's streams, and other SDKs take it for
a piece of the answer. Newlines in front of a JSON body hide the status of an error, so they are never sent.
The interim response `102 Processing` leaves the status open; httpx, aiohttp and Node skip it, but requests
takes it for the answer. A client that is not known to tolerate anything is held in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from .dialects import Dialect

EVENTS_EVERY, INTERIM_EVERY = 10.0, 15.0  # seconds
_SHORTEST = 0.05

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
COMMENT = b": waiting\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'

# Beginnings of `User-Agent`, in lower case, of clients that skip interim responses.
_SKIP_INTERIM = ("python-httpx", "node", "undici", "google-genai-sdk")
_TAKE_IT_FOR_THE_ANSWER = ("requests", "urllib", "go-http", "curl", "java", "okhttp")


class Hold(NamedTuple):
    """How a client is kept: in silence, by interim responses, or by a stream of events that has begun.

    `every` is how many seconds lie between two signs of life, and `sign` is what is sent.
    """

    kind: Literal["silent", "interim", "events"]
    every: float = 0.0
    sign: bytes = b""


SILENT = Hold("silent")


def hold_for(
    dialect: Dialect, headers: Mapping[str, str], *, streams: bool, http_1_1: bool, patience: float
) -> Hold:
    """How to hold the client that sent a request, after `patience` seconds of silence.

    `streams` is whether the request asks for a stream of events.

    >>> hold_for("anthropic", {}, streams=True, http_1_1=True, patience=15).kind
    'events'
    >>> requests = {"user-agent": "python-requests/2.34"}
    >>> hold_for("openai", requests, streams=False, http_1_1=True, patience=15).kind
    'silent'
    """
    if not http_1_1:
        return SILENT
    if streams and dialect in ("openai", "responses", "anthropic"):
        sign = PING if dialect == "anthropic" else COMMENT
        return Hold("events", _between(patience, EVENTS_EVERY), sign)
    if skips_interim(headers):
        return Hold("interim", _between(patience, INTERIM_EVERY), INTERIM)
    return SILENT


def skips_interim(headers: Mapping[str, str]) -> bool:
    """Whether a client is known to skip `102 Processing` and to wait for the final response."""
    agent = headers.get("user-agent", "").lower()
    if any(name in agent for name in _TAKE_IT_FOR_THE_ANSWER):
        return False
    if headers.get("x-stainless-lang", "").lower() in ("python", "js"):
        return True
    return agent.startswith(_SKIP_INTERIM) or " aiohttp/" in agent


def _between(patience: float, usual: float) -> float:
    """Seconds between two signs of life: a patience that is shorter than usual is one of the client."""
    return max(_SHORTEST, min(usual, patience))
