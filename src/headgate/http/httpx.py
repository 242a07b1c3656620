"""For httpx and httpx2: a transport that waits at a gate before it sends.

    OpenAI(http_client=client())
    httpx.Client(transport=Transport(dispatch))

One text serves both libraries. The class of a request says which library it belongs to, so a transport
belongs to neither: it has the methods that clients call, and returns responses of the library that asked.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, Unpack
from urllib.request import getproxies, proxy_bypass

from ..errors import InvalidConfig, Refused, UnknownName
from ..retries.classify import REFUSAL
from .exchange import GatedSender, SendOptions, check_transport
from .gates import Gates, Target
from .refusals import response_to, wraps_exceptions
from .response import MOST_OF_ERROR, Answer, OpenResponse

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


T = TypeVar("T")
Refusals: TypeAlias = Literal["auto", "raise", "respond"]


class _Gated(Generic[T]):
    """What both transports share; `_kind` names the class of the transports that the library has."""

    _kind: str

    def __init__(
        self,
        gate: Gates = None,
        *,
        inner: T | None = None,
        refusals: Refusals = "auto",
        **options: Unpack[SendOptions],
    ) -> None:
        if refusals not in ("auto", "raise", "respond"):
            raise InvalidConfig(f'refusals={refusals!r} is unknown; write "auto", "raise" or "respond"')
        check_transport(inner, self._kind)
        self._refusals = refusals
        self._sender = GatedSender(gate, **options)
        self._inner: Any = inner
        self._routes = _Routes(self._kind)

    def _to(self, library: ModuleType, request: Any) -> Any:
        """The transport that sends a request."""
        return self._routes.to(library, request.url) if self._inner is None else self._inner

    def _transports(self) -> list[Any]:
        return self._routes.transports() if self._inner is None else [self._inner]

    def _refused(self, refusal: Refused | UnknownName, library: ModuleType, request: Any) -> Any:
        """The response that a refused request gets, or the refusal is raised."""
        if self._refusals == "raise" or (self._refusals == "auto" and not wraps_exceptions(request.headers)):
            raise refusal
        return response_to(refusal, library, request)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._sender!r}>"


class Transport(_Gated[InnerTransport], _Sync):
    """A transport for clients of httpx and httpx2. It sends by `inner`, no faster than the gate admits.

    `gate` is a Dispatch, a FirstFree, or a function of a `Request` that returns one; without it there is a
    Dispatch for every host, which learns its limits. `inner` is a transport of the same library; without it,
    one like the client's own, by way of the proxies that the environment names.

    If the gate refuses a request, its exception is raised. An SDK that would hide it behind an
    APIConnectionError (OpenAI's, Anthropic's, recognised by their headers) gets a response with status 429
    instead, and raises its RateLimitError with the sentence of the gate; `headgate.http.refusal_of(error)`
    is the exception. In the same way a model without a price, in the budget of its block, is answered by
    status 400. `refusals="raise"` and `refusals="respond"` decide it for all requests.

    The other options are those of `headgate.http.exchange.SendOptions`. Raises InvalidConfig, InvalidCapacity
    or InvalidWindow for arguments that cannot work, and TypeError for an option that there is not.

    >>> import httpx
    >>> from headgate import Dispatch
    >>> with httpx.Client(transport=Transport(Dispatch("api", rates="500/minute"))) as http:
    ...     pass  # http.get(...) waits at the gate
    """

    _kind = "HTTPTransport"

    def handle_request(self, request: Any) -> Any:
        library = library_of(request)
        inner = self._to(library, request)

        def send(target: Target | None = None) -> HttpxAnswer:
            if target is None:
                return HttpxAnswer(library, inner.handle_request(request))
            sent = _directed(library, request, target)
            return HttpxAnswer(library, self._to(library, sent).handle_request(sent))

        try:
            answer = self._sender.run(
                request.method,
                str(request.url),
                request.headers,
                _body_of(library, request),
                send,
            )
        except (Refused, UnknownName) as refusal:
            return self._refused(refusal, library, request)
        return answer.response

    def close(self) -> None:
        for transport in self._transports():
            transport.close()

    def __enter__(self) -> Self:
        if self._inner is not None:
            self._inner.__enter__()
        return self

    def __exit__(self, *raised: object, **named: Any) -> None:
        if self._inner is not None:
            self._inner.__exit__(*raised, **named)
        else:
            self.close()


class AsyncTransport(_Gated[AsyncInnerTransport], _Async):
    """A transport for async clients of httpx and httpx2; the arguments are those of `Transport`.

    They are `gate`, `inner`, an async transport, `refusals` and `headgate.http.exchange.SendOptions`.

    >>> import httpx
    >>> http = httpx.AsyncClient(transport=AsyncTransport())
    """

    _kind = "AsyncHTTPTransport"

    async def handle_async_request(self, request: Any) -> Any:
        library = library_of(request)
        inner = self._to(library, request)

        async def send(target: Target | None = None) -> AsyncHttpxAnswer:
            if target is None:
                return AsyncHttpxAnswer(library, await inner.handle_async_request(request))
            sent = _directed(library, request, target)
            return AsyncHttpxAnswer(library, await self._to(library, sent).handle_async_request(sent))

        try:
            answer = await self._sender.run_async(
                request.method, str(request.url), request.headers, _body_of(library, request), send
            )
        except (Refused, UnknownName) as refusal:
            return self._refused(refusal, library, request)
        return answer.response

    async def aclose(self) -> None:
        for transport in self._transports():
            await transport.aclose()

    async def __aenter__(self) -> Self:
        if self._inner is not None:
            await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: object, **named: Any) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(*raised, **named)
        else:
            await self.aclose()


def client(
    gate: Gates = None,
    *,
    library: ModuleType | None = None,
    inner: InnerTransport | None = None,
    refusals: Refusals = "auto",
    **options: Unpack[SendOptions],
) -> Any:
    """A client that waits at a gate, for an SDK: `OpenAI(http_client=client())`.

    Without a `gate` there is one for every host and model, which learns its limits. The client belongs to
    httpx2 if that is installed, else to httpx; `library=httpx` is for SDKs that accept only such a client. It
    follows redirects as the clients of the SDKs do, and has the time-outs that its library gives to every
    client: SDKs see that, and go by their own. `inner`, `refusals`, the further options and the exceptions
    are those of `Transport`.

    >>> client().follow_redirects
    True
    """
    transport = Transport(gate, inner=inner, refusals=refusals, **options)
    return _installed(library).Client(transport=transport, follow_redirects=True)


def async_client(
    gate: Gates = None,
    *,
    library: ModuleType | None = None,
    inner: AsyncInnerTransport | None = None,
    refusals: Refusals = "auto",
    **options: Unpack[SendOptions],
) -> Any:
    """An async client that waits at a gate: `AsyncOpenAI(http_client=async_client())`.

    `gate`, `library`, `inner`, `refusals` and the further options are those of `client`.

    >>> async_client().follow_redirects
    True
    """
    transport = AsyncTransport(gate, inner=inner, refusals=refusals, **options)
    return _installed(library).AsyncClient(transport=transport, follow_redirects=True)


def _installed(library: ModuleType | None) -> Any:
    if library is not None:
        if not isinstance(library, ModuleType) or not hasattr(library, "AsyncHTTPTransport"):
            raise InvalidConfig(f"library={library!r} is neither httpx nor httpx2; write library=httpx")
        return library
    for name in ("httpx2", "httpx"):
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise InvalidConfig('neither httpx2 nor httpx is installed; run: pip install "headgate[httpx2]"')


def library_of(message: object) -> ModuleType:
    """httpx or httpx2, by the class of a request or response or by a class that it derives from."""
    kind: Any = type(message)
    library = _library_of_kind(kind)
    if library is None:
        raise TypeError(f"{message!r} is a request of neither httpx nor httpx2")
    return library


@lru_cache(maxsize=64)
def _library_of_kind(kind: type) -> ModuleType | None:
    names = (ancestor.__module__.partition(".")[0] for ancestor in kind.__mro__)
    return next((sys.modules[name] for name in names if name in ("httpx", "httpx2")), None)


def _directed(library: ModuleType, request: Any, target: Target) -> Any:
    """The request as it is sent to a target."""
    url = target.url_of(str(request.url))
    headers = library.Headers(request.headers)
    headers.update(target.headers_for(url))
    return library.Request(
        request.method, url, headers=headers, stream=request.stream, extensions=request.extensions
    )


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


class _AnyHttpxAnswer(Answer):
    """A response of either library. Raises what a gate further inside refused: the server said nothing."""

    _stream_kind: str
    status = 200

    def __init__(self, library: ModuleType, response: Any) -> None:
        if REFUSAL in response.extensions:
            raise response.extensions[REFUSAL]
        self.response = response
        self.status = response.status_code
        self._library = library

    @property
    def header_pairs(self) -> object:
        return self.response.headers.raw

    def watch(self, reading: OpenResponse) -> None:
        response = self.response
        if response.is_closed:  # it was made with its content, or has been read
            reading.chunk(self._content() or b"")
            reading.end(whole=True)
        else:
            reading.keep()
            watched, _ = _streams_of(self._library, self._stream_kind)
            response.stream = watched(response.stream, reading)

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

    def __init__(self, inner: Any, reading: OpenResponse) -> None:
        self._inner = inner
        self._reading = reading

    def __iter__(self) -> Iterator[bytes]:
        return self._reading.passed_on(self._inner)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reading = self._reading
        stream = self._inner.__aiter__()
        try:
            async for chunk in stream:
                reading.chunk(chunk)
                yield chunk
            reading.end(whole=True)
        finally:
            if reading.is_open:
                reading.end()
            close = getattr(stream, "aclose", None)  # a generator does not close the one inside it
            if close is not None:
                await close()

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            if self._reading.is_open:
                self._reading.end()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if self._reading.is_open:
                self._reading.end()


class _Replayed(_Wrapped):
    """The body of an error: its beginning has been read, and its caller reads it again from the start."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._start = bytearray()
        self._rest: Any = None
        self._error: Exception | None = None

    def fill(self) -> bytes:
        self._rest = iter(self._inner)
        try:
            for chunk in self._rest:
                self._start += chunk
                if len(self._start) > MOST_OF_ERROR:
                    return bytes(self._start)
        except Exception as error:  # noqa: BLE001 - a caller who reads that far gets it
            self._error = error
        self._rest = None
        self._inner.close()
        return bytes(self._start)

    async def fill_async(self) -> bytes:
        self._rest = self._inner.__aiter__()
        try:
            async for chunk in self._rest:
                self._start += chunk
                if len(self._start) > MOST_OF_ERROR:
                    return bytes(self._start)
        except Exception as error:  # noqa: BLE001 - a caller who reads that far gets it
            self._error = error
        self._rest = None
        await self._inner.aclose()
        return bytes(self._start)

    def __iter__(self) -> Iterator[bytes]:
        yield bytes(self._start)
        if self._rest is not None:
            yield from self._rest
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield bytes(self._start)
        if self._rest is not None:
            async for chunk in self._rest:
                yield chunk
        if self._error is not None:
            raise self._error
