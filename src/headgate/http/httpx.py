"""For httpx and httpx2: a transport that waits at a gate before it sends.

    httpx.Client(transport=Transport(dispatch))
    OpenAI(http_client=httpx2.Client(transport=Transport(dispatch)))

Rules of this room: one text for both libraries. A request says by its own class which of them it belongs to,
so a transport is of neither: it has the methods that clients call, and what it hands back is of the library
that asked.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from .exchange import MOST_OF_ERROR, Exchange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from types import ModuleType, TracebackType
    from typing import Self

    import httpx
    import httpx2

    from ..backoff import Backoff
    from ..retries.budget import RetryBudget
    from ..typing import Seconds
    from .exchange import Attempt, Estimate, Gates

    # To the type checker they are what each client asks for.
    class _Sync(httpx.BaseTransport, httpx2.BaseTransport): ...  # type: ignore[misc]  # twice the same

    class _Async(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport): ...  # type: ignore[misc]  # likewise
else:
    _Sync = _Async = object


class Transport(_Sync):
    """Sends by `inner`, no faster than the gate admits.

    `gate` is a Dispatch or a function of a `Request` that returns one; without it there is a Dispatch for
    every host, which learns its limits. `inner` is a transport of the same library; without it, one like
    the client's own, by way of the proxies that the environment names.

    With `retries` refusals and passing failures are tried again up to so many times, as soon as the gate and
    `backoff` allow, as far as `retry_budget` goes. `estimate` is a function of a `Request` that returns its
    tokens, or amounts by unit. After `lease` seconds an answer that nobody reads gives its place back.
    `timeout` is how long a request may wait at the gate before WaitTimeout is raised.
    """

    def __init__(
        self,
        gate: Gates = None,
        *,
        inner: httpx.BaseTransport | httpx2.BaseTransport | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        retry_budget: RetryBudget | None = None,
        estimate: Estimate | None = None,
        lease: Seconds = 600.0,
        timeout: Seconds | None = None,
    ) -> None:
        self._exchange = Exchange(
            gate,
            retries=retries,
            backoff=backoff,
            retry_budget=retry_budget,
            estimate=estimate,
            lease=lease,
            timeout=timeout,
        )
        self._inner: Any = inner
        self._made: dict[str, _Routes] = {}

    def handle_request(self, request: Any) -> Any:
        library = library_of(request)
        inner = self._inner if self._inner is not None else self._route(library, request)
        answer = self._exchange.run(
            request.method,
            str(request.url),
            request.headers,
            _body_of(library, request),
            lambda: HttpxAnswer(library, inner.handle_request(request)),
        )
        return answer.response

    def _route(self, library: ModuleType, request: Any) -> Any:
        routes = self._made.get(library.__name__)
        if routes is None:
            # Two that are made at the same moment have no connections yet: one of them is let go.
            routes = self._made.setdefault(library.__name__, _Routes(library, "HTTPTransport"))
        return routes.of(request.url)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        for routes in self._made.values():
            for transport in routes.transports:
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
        return f"<Transport of {self._exchange!r}>"


class AsyncTransport(_Async):
    """The same for async clients."""

    def __init__(
        self,
        gate: Gates = None,
        *,
        inner: httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        retry_budget: RetryBudget | None = None,
        estimate: Estimate | None = None,
        lease: Seconds = 600.0,
        timeout: Seconds | None = None,
    ) -> None:
        self._exchange = Exchange(
            gate,
            retries=retries,
            backoff=backoff,
            retry_budget=retry_budget,
            estimate=estimate,
            lease=lease,
            timeout=timeout,
        )
        self._inner: Any = inner
        self._made: dict[str, _Routes] = {}

    async def handle_async_request(self, request: Any) -> Any:
        library = library_of(request)
        inner = self._inner if self._inner is not None else self._route(library, request)

        async def send() -> AsyncHttpxAnswer:
            return AsyncHttpxAnswer(library, await inner.handle_async_request(request))

        answer = await self._exchange.run_async(
            request.method, str(request.url), request.headers, _body_of(library, request), send
        )
        return answer.response

    def _route(self, library: ModuleType, request: Any) -> Any:
        routes = self._made.get(library.__name__)
        if routes is None:
            routes = self._made.setdefault(library.__name__, _Routes(library, "AsyncHTTPTransport"))
        return routes.of(request.url)

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()
        for routes in self._made.values():
            for transport in routes.transports:
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
        return f"<AsyncTransport of {self._exchange!r}>"


def library_of(request: object) -> ModuleType:
    """httpx or httpx2, by where the class of the request, or one it derives from, was written."""
    for kind in type(request).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return sys.modules[name]
    raise TypeError(f"{request!r} is a request of neither httpx nor httpx2")


def _body_of(library: ModuleType, request: Any) -> bytes | None:
    """The body, if it is in memory."""
    try:
        body: bytes = request.content
    except library.RequestNotRead:
        return None
    return body


class _Routes:
    """What a client sends by if it is given nothing: a transport, and one for each proxy it is told of."""

    def __init__(self, library: ModuleType, kind: str) -> None:
        make = getattr(library, kind)
        # As many as the OpenAI and Anthropic SDKs allow: how many there are at once is the gate's business.
        limits = library.Limits(max_connections=1000, max_keepalive_connections=100)
        self._direct = make(limits=limits)
        self._by_pattern: list[tuple[Any, Any]] = []
        self.transports = [self._direct]
        try:
            from importlib import import_module  # noqa: PLC0415 - next to a connection pool, it is nothing

            utils = import_module(f"{library.__name__}._utils")
            proxies = utils.get_environment_proxies()
            patterns = {pattern: utils.URLPattern(pattern) for pattern in proxies}
        except (ImportError, AttributeError):  # it keeps these somewhere else by now
            return
        by_url = {
            url: make(limits=limits, proxy=library.Proxy(url))
            for url in set(proxies.values())
            if url is not None
        }
        self.transports += by_url.values()
        self._by_pattern = sorted(
            ((patterns[pattern], by_url.get(url)) for pattern, url in proxies.items()),
            key=lambda pair: pair[0],
        )

    def of(self, url: object) -> Any:
        for pattern, transport in self._by_pattern:
            if pattern.matches(url):
                return self._direct if transport is None else transport
        return self._direct


# -- answers


class HttpxAnswer:
    """A response of either library."""

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

    def read_error(self) -> bytes | None:
        response = self.response
        if response.is_closed:
            return self._content()
        kept = _streams_of(self._library).kept(response.stream)
        response.stream = kept
        kept.fill()
        return b"".join(kept.chunks)

    def watch(self, attempt: Attempt) -> None:
        self._watch(attempt, _streams_of(self._library).watched)

    def _watch(self, attempt: Attempt, watched: Any) -> None:
        response = self.response
        if response.is_closed:  # it was made with its content, or somebody has read it
            attempt.chunk(self._content() or b"")
            attempt.end(whole=True)
        else:
            attempt.keep()
            response.stream = watched(response.stream, attempt)

    def _content(self) -> bytes | None:
        try:
            content: bytes = self.response.content
        except self._library.ResponseNotRead:
            return None
        return content

    def forbid_retries(self) -> None:
        self.response.headers["x-should-retry"] = "false"

    def drop(self) -> None:
        self.response.close()


class AsyncHttpxAnswer(HttpxAnswer):
    async def read_error(self) -> bytes | None:  # type: ignore[override]  # the twin
        response = self.response
        if response.is_closed:
            return self._content()
        kept = _streams_of(self._library).kept_async(response.stream)
        response.stream = kept
        await kept.fill()
        return b"".join(kept.chunks)

    def watch(self, attempt: Attempt) -> None:
        self._watch(attempt, _streams_of(self._library).watched_async)

    async def drop(self) -> None:  # type: ignore[override]  # the twin
        await self.response.aclose()


class _Streams:
    """The streams of one library: its clients check that a response has one of theirs."""

    def __init__(self, library: ModuleType) -> None:
        self.watched: Any = type("Watched", (_Watched, library.SyncByteStream), {})
        self.watched_async: Any = type("WatchedAsync", (_WatchedAsync, library.AsyncByteStream), {})
        self.kept: Any = type("Kept", (_Kept, library.SyncByteStream), {})
        self.kept_async: Any = type("KeptAsync", (_KeptAsync, library.AsyncByteStream), {})


_streams_of = cache(_Streams)


class _Watched:
    """A body that tells an attempt what is read of it, and when that is over."""

    def __init__(self, inner: Any, attempt: Attempt) -> None:
        self._inner = inner
        self._attempt = attempt

    def __iter__(self) -> Iterator[bytes]:
        attempt = self._attempt
        try:
            for chunk in self._inner:
                attempt.chunk(chunk)
                yield chunk
            attempt.end(whole=True)
        finally:
            attempt.end()

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._attempt.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # a client that saw the stream before left things on it


class _WatchedAsync:
    """The same for async clients."""

    def __init__(self, inner: Any, attempt: Attempt) -> None:
        self._inner = inner
        self._attempt = attempt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        attempt = self._attempt
        stream = self._inner.__aiter__()
        try:
            async for chunk in stream:
                attempt.chunk(chunk)
                yield chunk
            attempt.end(whole=True)
        finally:
            attempt.end()
            close = getattr(stream, "aclose", None)  # a generator inside a generator is not closed by itself
            if close is not None:
                await close()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._attempt.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Kept:
    """The body of an error: its beginning has been read, and is read again as if it had not."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: Any = None
        self._error: Exception | None = None
        self.chunks: list[bytes] = []

    def fill(self) -> None:
        size = 0
        self._rest = iter(self._inner)
        try:
            for chunk in self._rest:
                self.chunks.append(chunk)
                size += len(chunk)
                if size > MOST_OF_ERROR:
                    return
        except Exception as error:  # noqa: BLE001 - whoever reads that far is told
            self._error = error
        self._rest = None
        self._inner.close()

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks
        if self._rest is not None:
            yield from self._rest
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _KeptAsync:
    """The same for async clients."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: Any = None
        self._error: Exception | None = None
        self.chunks: list[bytes] = []

    async def fill(self) -> None:
        size = 0
        self._rest = self._inner.__aiter__()
        try:
            async for chunk in self._rest:
                self.chunks.append(chunk)
                size += len(chunk)
                if size > MOST_OF_ERROR:
                    return
        except Exception as error:  # noqa: BLE001 - whoever reads that far is told
            self._error = error
        self._rest = None
        await self._inner.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk
        if self._rest is not None:
            async for chunk in self._rest:
                yield chunk
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
