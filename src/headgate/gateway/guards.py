"""Pure. Which requests are refused before anything else is done with them, and which headers travel on.

Web pages can send requests to a local port. They cannot choose `Host` and `Origin`, so both are checked on
every path, those of the gateway itself included.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

# Fields of one connection (RFC 9110, 7.6.1), and `Expect`, which the gateway answers itself.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    }
)
# What says where a client is, and what browsers add by themselves.
_OF_THE_CLIENT = frozenset({"host", "cookie", "cookie2", "forwarded", "x-real-ip"})
_OF_THE_CLIENT_PREFIXES = ("proxy-", "x-forwarded-", "x-headgate")
_OF_THE_SERVER = frozenset({"set-cookie", "set-cookie2"})
_OF_THE_SERVER_PREFIXES = ("proxy-", "x-headgate")

# Content codings that the gateway can read, to count the tokens that an answer says it used.
_CODINGS = ("gzip", "deflate", "identity", "x-gzip")

# A segment that leads upwards. Some servers drop control characters and spaces, cut a segment off at `;`, or
# a path at a zero byte, a `?` or a `#` that they have decoded.
_UPWARDS = re.compile(r"(?:^|[/\\])[\s\x00-\x1f\x7f-\x9f]*(?:\.[\s\x00-\x1f\x7f-\x9f]*){2}(?:[/\\;?#\x00]|$)")
_MOST_DECODINGS = 8


class Refusal(NamedTuple):
    """Why a request is not answered: an HTTP status and a sentence."""

    status: int
    message: str


def refusal_of(
    method: str, target: str, headers: Mapping[str, str], hosts: Collection[str]
) -> Refusal | None:
    """Why this request is refused, whatever its path is; None if it may go on.

    `hosts` are the names of the gateway besides the local ones.

    >>> refusal_of("POST", "/v1/messages", {"host": "evil.example"}, ())
    Refusal(status=421, message="this gateway is not 'evil.example'")
    """
    host = headers.get("host", "")
    if method == "CONNECT" or not target.startswith("/"):
        return Refusal(400, "this gateway takes paths only: a request cannot say which host it goes to")
    if "content-length" in headers and "transfer-encoding" in headers:
        return Refusal(400, "Content-Length and Transfer-Encoding exclude each other")
    if not _is_ours(host, hosts):
        return Refusal(421, f"this gateway is not {host[:100]!r}")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return Refusal(403, "a page of another site cannot use this gateway")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return Refusal(403, "a page of another origin cannot use this gateway")
    return None


def _is_ours(host: str, hosts: Collection[str]) -> bool:
    name = hostname(host)
    return name in LOCAL or name in hosts


def hostname(host: str) -> str:
    """The name or address in a `Host` field or a listening address, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect to that address."""
    return address in LOCAL or address.startswith(("127.", "unix:"))


def climbs(path: str) -> bool:
    """Whether a path has a segment that leads upwards, as any server may read it.

    Servers decode a path once or more. One that is encoded more than a few times counts as leading upwards.

    >>> climbs("/v1/../other"), climbs("/v1/%2e%2E%2fother"), climbs("/v1/..;/other"), climbs("/v1/a..b")
    (True, True, True, False)
    """
    if "." not in path and "%" not in path:
        return False
    for _ in range(_MOST_DECODINGS):
        if _UPWARDS.search(path):
            return True
        before, path = path, unquote(path)
        if path == before:
            return False
    return True


def wants_upgrade(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for another protocol, such as a WebSocket."""
    return "upgrade" in headers and "upgrade" in headers.get("connection", "").lower()


def onward(pairs: Iterable[tuple[bytes, bytes]], connection: str) -> list[tuple[str, str]]:
    """The headers of a request that are sent to the API, in their order and case.

    `connection` is the field of that name: it lists further fields that end here.
    """
    listed = _listed(connection)
    kept = []
    for raw_name, raw_value in pairs:
        name = raw_name.decode("ascii", "surrogateescape")
        lower = name.lower()
        if lower in _HOP_BY_HOP or lower in _OF_THE_CLIENT or lower in listed:
            continue
        if lower.startswith(_OF_THE_CLIENT_PREFIXES):
            continue
        value = _text(raw_value)
        if lower == "accept-encoding":
            value = readable_codings(value)
        kept.append((name, value))
    return kept


def backward(pairs: Iterable[tuple[bytes, bytes]], connection: str) -> list[tuple[str, str]]:
    """The headers of an answer that are sent to the client, in their order and case."""
    listed = _listed(connection)
    kept = []
    for raw_name, raw_value in pairs:
        name = raw_name.decode("ascii", "surrogateescape")
        lower = name.lower()
        if lower in _HOP_BY_HOP or lower in _OF_THE_SERVER or lower in listed:
            continue
        if lower.startswith(_OF_THE_SERVER_PREFIXES):
            continue
        kept.append((name, _text(raw_value)))
    return kept


def _text(value: bytes) -> str:
    """The value of a field; one that is not UTF-8 becomes UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _listed(connection: str) -> frozenset[str]:
    if not connection or connection.lower() in ("keep-alive", "close"):
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(","))


def readable_codings(accepted: str) -> str:
    """The content codings that a client accepts, without those in which usage cannot be read.

    >>> readable_codings("gzip, deflate, br, zstd")
    'gzip, deflate'
    """
    parts = accepted.split(",")
    kept = [part.strip() for part in parts if part.partition(";")[0].strip().lower() in _CODINGS]
    if len(kept) == len(parts):
        return accepted
    return ", ".join(kept) or "identity"
