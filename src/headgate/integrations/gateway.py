"""Tell a gateway of headgate what `headgate.call_options` says: tenant, priority and time-out of a call.

from headgate.integrations.gateway import tell_gateway

hook = tell_gateway("http://127.0.0.1:8429")
http = httpx2.Client(event_hooks={"request": [hook]})      # AsyncClient takes the same hook
client = OpenAI(base_url="http://127.0.0.1:8429/v1", http_client=http)

A request to any other scheme, host or port is left as it is, so a provider never sees these headers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from ..arguments import SECOND, seconds_to_ns
from ..dispatch.options import current_options
from ..errors import InvalidConfig

_MOST_PRIORITY = 1_000  # of a gateway, in both directions
_PORTS = {"http": 80, "https": 443}
_PLAIN = " !#$&'()*+,/:;=?@[]^`{|}\"<>\\"  # besides letters and digits; `%` is not, so that names stay apart


class _Url(Protocol):
    @property
    def scheme(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int | None: ...


class _Request(Protocol):
    @property
    def url(self) -> _Url: ...
    @property
    def headers(self) -> Any: ...


_NAMES = ("x-headgate-tenant", "x-headgate-priority", "x-headgate-timeout")


def gateway_headers() -> dict[str, str]:
    """The options in force as headers of a request to a gateway; empty if there are none.

    Give them to requests to a gateway and to no others, for clients that have no hooks:
    `client.messages.create(..., extra_headers=gateway_headers())`.

    A gateway passes redirects of the API on. A client that follows them repeats these headers to the server
    that it is led to: httpx, requests and the SDKs take `Authorization` away there and nothing else. Where
    the API redirects to other servers, give the client `tell_gateway` as a hook, which takes these headers
    away too, or have it follow no redirects.

    >>> from headgate import call_options
    >>> with call_options(tenant="ann", priority=5, timeout=2.0):
    ...     gateway_headers()
    {'x-headgate-tenant': 'ann', 'x-headgate-priority': '5', 'x-headgate-timeout': '2'}
    """
    options = current_options()
    if options is None:
        return {}
    headers = {}
    if options.tenant is not None and (name := str(options.tenant)):
        headers["x-headgate-tenant"] = quote(name.strip(), safe=_PLAIN)
    if options.priority:
        headers["x-headgate-priority"] = str(max(-_MOST_PRIORITY, min(_MOST_PRIORITY, options.priority)))
    if options.timeout is not None:
        headers["x-headgate-timeout"] = f"{seconds_to_ns(options.timeout, 'timeout') / SECOND:g}"
    return headers


class tell_gateway:  # noqa: N801 - it is used like a function
    """A hook for clients of httpx and httpx2, sync and async: requests to the gateway `url` get headers.

    The headers say the tenant, the priority and the time-out of `headgate.call_options`. Requests to any
    other server are sent without them. Raises InvalidConfig if `url` is not the address of a gateway.

    >>> hook = tell_gateway("http://127.0.0.1:8429")
    >>> options = {"event_hooks": {"request": [hook]}}  # for Client and AsyncClient: httpx2.Client(**options)
    """

    __slots__ = ("_origin",)

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._origin = _origin(parts.scheme, parts.hostname, parts.port)
        except ValueError:
            self._origin = ("", "", None)
        if self._origin[0] not in _PORTS or not self._origin[1]:
            raise InvalidConfig(f"{url!r} is not the address of a gateway; write e.g. http://127.0.0.1:8429")

    def __call__(self, request: _Request) -> _Done:
        url = request.url
        if _origin(url.scheme, url.host, url.port) == self._origin:
            request.headers.update(gateway_headers())
        else:  # perhaps the gateway passed on a redirect, and the client its headers
            for name in _NAMES:
                request.headers.pop(name, None)
        return _DONE

    def __repr__(self) -> str:
        scheme, host, port = self._origin
        return f"tell_gateway('{scheme}://{host}:{port}')"


def _origin(scheme: str, host: str | None, port: int | None) -> tuple[str, str, int | None]:
    return scheme, (host or "").lower(), port or _PORTS.get(scheme)


class _Done:
    """What a hook returns: an async client awaits it, another one does not."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()
