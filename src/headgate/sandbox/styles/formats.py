"""Pure. How texts, times and events are written in answers. The wall-clock time is an argument."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from ...arguments import SECOND
from ...limits import Rate

_TEXT = "the gate lets the water in as fast as the canal can take it and no faster so the fields stay green"
_WORDS = _TEXT.split()


def text(start: int, stop: int) -> str:
    """The tokens from *start* to *stop* of an answer, one word each."""
    return "".join(_WORDS[i % len(_WORDS)] + " " for i in range(start, stop))


def spans(tokens: int, width: int) -> Iterator[tuple[int, int]]:
    """The start and the stop of each piece of an answer."""
    return ((start, min(start + width, tokens)) for start in range(0, tokens, max(1, width)))


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: dict[str, Any], *, named: bool = True) -> bytes:
    """A server-sent event, named by the type of its value or without a name."""
    name = f"event: {value['type']}\n" if named else ""
    return name.encode() + b"data: " + encode(value) + b"\n\n"


def go_duration(ns: int) -> str:
    """As Go prints it, in whole milliseconds, rounded up: 20ms, 1.5s, 6m0s."""
    ms = -(-ns // 1_000_000)
    if ms == 0:
        return "0s"
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


@lru_cache(maxsize=64)
def http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def rfc3339(ns: int) -> str:
    """A moment in whole seconds, rounded up."""
    return datetime.fromtimestamp(-(-ns // SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def period_of(rate: Rate) -> str:
    """The name of a period: minute, or 250ms."""
    return rate.name.partition("/")[2]
