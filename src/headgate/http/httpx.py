"""For httpx and httpx2: a transport that waits at a gate before it sends.

    httpx.Client(transport=Transport(dispatch))
    OpenAI(http_client=httpx2.Client(transport=Transport(dispatch)))

One text serves both libraries. The class of a request says which library it belongs to, so a transport
belongs to neither: it has the methods that clients call, and returns responses of the library that asked.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack
from urllib.request import getproxies, proxy_bypass

from .answers import MOST_OF_ERROR, Reading
from .exchange import GatedSender
from .gates import Gates
from .options import SendOptions

if TYPE_CHECKING:
    import httpx
    import httpx2

    InnerTransport: TypeAlias = httpx.BaseTransport | httpx2.BaseTransport
    AsyncInnerTransport: TypeAlias = httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport

    # To the type checker our transports are what the clients of both libraries ask for.
    class _Sync(httpx.BaseTransport, httpx2.BaseTransport): ...  # type: ignore[misc]  # twice the same

    class _Async(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport): ...  # type: ignore[misc]  # twice the same
else:
    InnerTransport = AsyncInnerTransport = Any  # one library may be missing
    _Sync = _Async = object


class Transport(_Sync):
    """Sends by `inner`, no faster than the gate admits.

    `gate` is a Dispatch or a function of a `Request` that returns one; without it there is a Dispatch for
    every host, which learns its limits. `inner` is a transport of the same library; without it, one like
    the client's own, by way of the proxies that the environment names. The options are those of
    `headgate.http.options.SendOptions`.
    """

    def __init__(
        self, gate: Gates = None, *, inner: InnerTransport | None = None, **options: Unpack[SendOptions]
    ) -> None:
        self._sender = GatedSender(gate, **options)
        self._inner: Any = inner
        self._routes = _Routes("HTTPTransport")

    def handle_request(self, request: Any) -> Any:
        library = library_of(request)
        inner = self._inner if self._inner is not None else self._routes.to(library, request.url)
        answer = self._sender.run(
            request.method,
            str(request.url),
            request.headers,
            _body_of(library, request),
            lambda: HttpxAnswer(library, inner.handle_request(request)),
        )
        return answer.response

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        for transport in self._routes.transports():
            transport.close()

    def __enter__(self) -> Self:
        if self._inner is not None:
            self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        tb: TracebackType | None = None,
    ) -> None:
        if self._inner is not None:
            self._inner.__exit__(kind, error, tb)
        else:
            self.close()

    def __repr__(self) -> str:
        return f"<Transport of {self._sender!r}>"


class AsyncTransport(_Async):
    """A transport for async clients; the arguments are those of `Transport`."""

    def __init__(
        self, gate: Gates = None, *, inner: AsyncInnerTransport | None = None, **options: Unpack[SendOptions]
    ) -> None:
        self._sender = GatedSender(gate, **options)
        self._inner: Any = inner
        self._routes = _Routes("AsyncHTTPTransport")

    async def handle_async_request(self, request: Any) -> Any:
        library = library_of(request)
        inner = self._inner if self._inner is not None else self._routes.to(library, request.url)

        async def send() -> AsyncHttpxAnswer:
            return AsyncHttpxAnswer(library, await inner.handle_async_request(request))

        answer = await self._sender.run_async(
            request.method, str(request.url), request.headers, _body_of(library, request), send
        )
        return answer.response

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()
        for transport in self._routes.transports():
            await transport.aclose()

    async def __aenter__(self) -> Self:
        if self._inner is not None:
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        tb: TracebackType | None = None,
    ) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, tb)
        else:
            await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncTransport of {self._sender!r}>"


def library_of(message: object) -> ModuleType:
    """httpx or httpx2, by the class of a request or response or by a class that it derives from."""
    for kind in type(message).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return sys.modules[name]
    raise TypeError(f"{message!r} is a request of neither httpx nor httpx2")


def _body_of(library: ModuleType, request: Any) -> bytes | None:
    """The body, if it is in memory."""
    try:
        body: bytes = request.content
    except library.RequestNotRead:
        return None
    return body


class _Routes:
    """The transports that a client would have made by itself: one for each library and proxy."""

    # Origins whose transport is remembered. Asking the environment takes longer than a lookup.
    _MOST_ORIGINS = 1_024

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._by_origin: dict[tuple[ModuleType, str, str], Any] = {}
        self._by_proxy: dict[tuple[ModuleType, str | None], Any] = {}

    def transports(self) -> list[Any]:
        return list(self._by_proxy.values())

    def to(self, library: ModuleType, url: Any) -> Any:
        origin = (library, url.scheme, url.netloc)
        transport = self._by_origin.get(origin)
        if transport is None:
            route = (library, proxy_for(url))
            transport = self._by_proxy.get(route)
            if transport is None:
                # Of two that are made at the same moment neither has a connection yet, and one is dropped.
                transport = self._by_proxy.setdefault(route, self._make(*route))
            if len(self._by_origin) >= self._MOST_ORIGINS:
                self._by_origin.clear()
            self._by_origin[origin] = transport
        return transport

    def _make(self, library: ModuleType, proxy: str | None) -> Any:
        # As many connections as the OpenAI and Anthropic SDKs allow: the gate limits how many are in use.
        limits = library.Limits(max_connections=1000, max_keepalive_connections=100)
        make = getattr(library, self._kind)
        return make(limits=limits, proxy=None if proxy is None else library.Proxy(proxy))


def proxy_for(url: Any) -> str | None:
    """The proxy that the environment, or the system, names for a URL."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.netloc.decode("ascii")) or proxy_bypass(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


# -- responses


class _AnyHttpxAnswer:
    """A response of either library."""

    _stream_kind: str

    def __init__(self, library: ModuleType, response: Any) -> None:
        self._library = library
        self.response = response

    @property
    def status(self) -> int:
        return int(self.response.status_code)

    @property
    def headers(self) -> Mapping[str, str]:
        headers: Mapping[str, str] = self.response.headers
        return headers

    def watch(self, reading: Reading) -> None:
        response = self.response
        if response.is_closed:  # it was made with its content, or has been read
            reading.chunk(self._content() or b"")
            reading.end(whole=True)
        else:
            reading.keep()
            watched, _ = _streams_of(self._library, self._stream_kind)
            response.stream = watched(response.stream, reading)

    def forbid_retries(self) -> None:
        self.response.headers["x-should-retry"] = "false"

    def _content(self) -> bytes | None:
        try:
            content: bytes = self.response.content
        except self._library.ResponseNotRead:
            return None
        return content

    def _replayed(self) -> _Replayed:
        """Replace the body by one whose beginning can be read twice."""
        _, replayed = _streams_of(self._library, self._stream_kind)
        stream: _Replayed = replayed(self.response.stream)
        self.response.stream = stream
        return stream


class HttpxAnswer(_AnyHttpxAnswer):
    _stream_kind = "SyncByteStream"

    def read_error(self) -> bytes | None:
        return self._content() if self.response.is_closed else self._replayed().fill()

    def drop(self) -> None:
        self.response.close()


class AsyncHttpxAnswer(_AnyHttpxAnswer):
    _stream_kind = "AsyncByteStream"

    async def read_error(self) -> bytes | None:
        return self._content() if self.response.is_closed else await self._replayed().fill_async()

    async def drop(self) -> None:
        await self.response.aclose()


@cache
def _streams_of(library: ModuleType, kind: str) -> tuple[Any, Any]:
    """Our streams as classes of one library: its clients check that a response has one of theirs."""
    stream = getattr(library, kind)
    return type("Watched", (_Watched, stream), {}), type("Replayed", (_Replayed, stream), {})


class _Wrapped:
    """A body around the body that the library gave; it is read in a thread or in a task."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # clients keep attributes of their own on a stream


class _Watched(_Wrapped):
    """A body that tells what is read of it, and when that ends."""

    def __init__(self, inner: Any, reading: Reading) -> None:
        super().__init__(inner)
        self._reading = reading

    def __iter__(self) -> Iterator[bytes]:
        reading = self._reading
        try:
            for chunk in self._inner:
                reading.chunk(chunk)
                yield chunk
            reading.end(whole=True)
        finally:
            reading.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reading = self._reading
        stream = self._inner.__aiter__()
        try:
            async for chunk in stream:
                reading.chunk(chunk)
                yield chunk
            reading.end(whole=True)
        finally:
            reading.end()
            close = getattr(stream, "aclose", None)  # a generator does not close the one inside it
            if close is not None:
                await close()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._reading.end()

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            self._reading.end()


class _Replayed(_Wrapped):
    """The body of an error: its beginning has been read, and its caller reads it again from the start."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._rest: Any = None
        self._error: Exception | None = None
        self._chunks: list[bytes] = []
        self._size = 0

    def fill(self) -> bytes:
        self._rest = iter(self._inner)
        try:
            for chunk in self._rest:
                if self._add(chunk):
                    return b"".join(self._chunks)
        except Exception as error:  # noqa: BLE001 - a caller who reads that far gets it
            self._error = error
        self._rest = None
        self._inner.close()
        return b"".join(self._chunks)

    async def fill_async(self) -> bytes:
        self._rest = self._inner.__aiter__()
        try:
            async for chunk in self._rest:
                if self._add(chunk):
                    return b"".join(self._chunks)
        except Exception as error:  # noqa: BLE001 - a caller who reads that far gets it
            self._error = error
        self._rest = None
        await self._inner.aclose()
        return b"".join(self._chunks)

    def _add(self, chunk: bytes) -> bool:
        """Keep a chunk. True if these are enough."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        return self._size > MOST_OF_ERROR

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._rest is not None:
            yield from self._rest
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._rest is not None:
            async for chunk in self._rest:
                yield chunk
        if self._error is not None:
            raise self._error
