"""Who sends a request: the tenant that it counts for, its priority, and how long it may wait.

Without any configuration agents share fairly: each has an id in its requests, or a connection of its own. A
subagent stands behind the person at the keyboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import NamedTuple

from aiohttp.web import BaseRequest

from .guards import Refusal

# Of Claude Code, and of Codex, whose subagents name the thread that started them, and older Codex.
_AGENT = "x-claude-code-agent-id"
_STARTED_BY, _THREAD = "x-codex-parent-thread-id", "thread-id"
_SESSIONS = ("x-claude-code-session-id", "session-id", "session_id")
_MOST_PRIORITY = 1_000
_LONGEST_NAME = 200


class Client(NamedTuple):
    """What a request says about itself. `timeout` is in seconds."""

    tenant: str
    priority: int
    timeout: float


def read_client(headers: Mapping[str, str], token: str, request: BaseRequest) -> Client | Refusal:
    """The client of a request; `token` is the name of its token, if it has one."""
    agent = headers.get(_AGENT) or (headers.get(_THREAD) if headers.get(_STARTED_BY) else None)
    tenant = token or headers.get("x-headgate-tenant") or agent
    tenant = tenant or next((headers[name] for name in _SESSIONS if headers.get(name)), "")
    if not tenant:
        peer = None if request.transport is None else request.transport.get_extra_info("peername")
        tenant = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else f"connection {id(request.transport)}"
    # One band behind for subagents. Lists and lookups cost little, and clients wait briefly for them.
    priority = -1 if agent else 1 if request.method in ("GET", "HEAD", "OPTIONS") else 0
    timeout = inf
    if (given := headers.get("x-headgate-priority")) is not None:
        number = _number(given)
        if number is None or number != int(number) or abs(number) > _MOST_PRIORITY:
            return Refusal(400, f"x-headgate-priority: {given[:40]!r} is not a whole number up to 1000")
        priority = int(number)
    if (given := headers.get("x-headgate-timeout")) is not None:
        number = _number(given)
        if number is None or number < 0:
            return Refusal(400, f"x-headgate-timeout: {given[:40]!r} is not a number of seconds")
        timeout = number
    return Client(tenant[:_LONGEST_NAME], priority, timeout)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
