"""Who sends a request: the tenant that it counts for, its priority, and how long it may wait.

Without any configuration agents share fairly: each has an id in its requests, or a connection of its own. A
subagent stands behind the person at the keyboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import inf, isfinite
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp.web import BaseRequest

from .guards import Refusal

# Of Claude Code, and of Codex, whose subagents name the thread that started them, and older Codex.
_AGENT = "x-claude-code-agent-id"
_STARTED_BY, _THREAD = "x-codex-parent-thread-id", "thread-id"
_SESSIONS = ("x-claude-code-session-id", "session-id", "session_id")
_MOST_PRIORITY = 1_000
# How long the name of a tenant may be, and how many characters of a longer one tell it from others.
_LONGEST_NAME = 200
_DIGEST = 16


class Client(NamedTuple):
    """What a request says about itself. `timeout` is in seconds."""

    tenant: str
    priority: int
    timeout: float


def read_client(headers: Mapping[str, str], token: str, request: BaseRequest) -> Client | Refusal:
    """The client of a request; `token` is the name of its token, if it has one."""
    agent = headers.get(_AGENT) or (headers.get(_THREAD) if headers.get(_STARTED_BY) else None)
    tenant = token or plain_tenant(headers.get("x-headgate-tenant", "")) or agent
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
    return Client(_shortened(tenant), priority, timeout)


def plain_tenant(encoded: str) -> str:
    """The tenant that `headgate.integrations.gateway` has encoded in a header, as it can be shown.

    One with characters that cannot be shown, or with a `%`, stays encoded: other tenants stay others.

    >>> plain_tenant("Jos%C3%A9"), plain_tenant("two%0Alines"), plain_tenant("a%2520b")
    ('José', 'two%0Alines', 'a%2520b')
    """
    if "%" not in encoded:
        return encoded
    try:
        plain = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        return encoded
    return plain if plain.isprintable() and "%" not in plain else encoded


def _shortened(tenant: str) -> str:
    """A name of bounded length. A digest of what is left out keeps names apart that begin alike."""
    if len(tenant) <= _LONGEST_NAME:
        return tenant
    digest = blake2b(tenant.encode("utf-8", "surrogateescape"), digest_size=_DIGEST // 2).hexdigest()
    return f"{tenant[: _LONGEST_NAME - _DIGEST - 1]}…{digest}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
