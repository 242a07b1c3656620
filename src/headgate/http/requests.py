"""For requests: an adapter that waits at a gate before it sends.

    session.mount("https://", Adapter(dispatch))

Rules of this room: what urllib3 hands up is passed on with its own methods; only its reading is watched.
"""

from __future__ import annotations

from io import BytesIO, RawIOBase
from typing import TYPE_CHECKING, Any

from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.response import HTTPResponse

from .exchange import MOST_OF_ERROR, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from requests import PreparedRequest, Response

    from ..backoff import Backoff
    from ..retries.budget import RetryBudget
    from ..typing import Seconds
    from .exchange import Attempt, Estimate, Gates


class Adapter(BaseAdapter):
    """Sends by `inner`, an HTTPAdapter unless you give another, no faster than the gate admits.

    The other arguments are those of `headgate.http.httpx.Transport`.
    """

    def __init__(
        self,
        gate: Gates = None,
        *,
        inner: BaseAdapter | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        retry_budget: RetryBudget | None = None,
        estimate: Estimate | None = None,
        lease: Seconds = 600.0,
        timeout: Seconds | None = None,
    ) -> None:
        super().__init__()
        self._exchange = Exchange(
            gate,
            retries=retries,
            backoff=backoff,
            retry_budget=retry_budget,
            estimate=estimate,
            lease=lease,
            timeout=timeout,
        )
        self._inner = HTTPAdapter() if inner is None else inner

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        def once() -> _Answer:
            return _Answer(
                self._inner.send(
                    request, stream=stream, timeout=timeout, verify=verify, cert=cert, proxies=proxies
                )
            )

        assert request.method is not None  # it was prepared
        assert request.url is not None
        answer = self._exchange.run(
            request.method, request.url, _headers_of(request), _body_of(request), once
        )
        # Authentication sends again by this, and must not go round the gate.
        answer.response.connection = self
        response: Response = answer.response
        return response

    def close(self) -> None:
        self._inner.close()

    def __repr__(self) -> str:
        return f"<Adapter of {self._exchange!r}>"


def _headers_of(request: PreparedRequest) -> dict[str, str]:
    return {
        name.lower(): value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }


def _body_of(request: PreparedRequest) -> bytes | None:
    """The body, if it is in memory."""
    body: Any = request.body
    if isinstance(body, str):
        return body.encode("utf-8")
    return bytes(body) if isinstance(body, (bytes, bytearray)) else None


class _Answer:
    def __init__(self, response: Response) -> None:
        self.response: Any = response

    @property
    def status(self) -> int:
        return int(self.response.status_code or 200)

    @property
    def headers(self) -> Mapping[str, str]:
        headers: Mapping[str, str] = self.response.headers
        return headers

    def read_error(self) -> bytes | None:
        response = self.response
        raw = response.raw
        if response._content_consumed or not isinstance(raw, HTTPResponse):
            return response.content if response._content_consumed else None
        body: RawIOBase | BytesIO
        try:
            said = raw.read(MOST_OF_ERROR + 1, decode_content=False)
        except Exception as error:  # noqa: BLE001 - whoever reads it is told
            said, body = b"", _Rest(b"", raw, error)
        else:
            if len(said) > MOST_OF_ERROR:
                body = _Rest(said, raw, None)
            else:
                body = BytesIO(said)
                raw.release_conn()
        response.raw = HTTPResponse(
            body=body,
            headers=raw.headers,
            status=raw.status,
            version=raw.version,
            reason=raw.reason,
            preload_content=False,
            decode_content=False,
            original_response=getattr(raw, "_original_response", None),
            request_method=response.request.method,
        )
        return said

    def watch(self, attempt: Attempt) -> None:
        response = self.response
        if response._content_consumed:
            attempt.chunk(response.content or b"")
            attempt.end(whole=True)
        else:
            attempt.keep()
            response.raw = _Raw(response.raw, attempt)

    def forbid_retries(self) -> None:
        self.response.headers["x-should-retry"] = "false"

    def drop(self) -> None:
        self.response.close()


class _Raw:
    """What urllib3 gave, as it is, except that an attempt is told what is read and when that is over."""

    def __init__(self, raw: Any, attempt: Attempt) -> None:
        self._raw = raw
        self._attempt = attempt

    def read(self, *args: Any, **kwargs: Any) -> bytes:
        return self._noted(self._raw.read(*args, **kwargs))

    def read1(self, *args: Any, **kwargs: Any) -> bytes:
        return self._noted(self._raw.read1(*args, **kwargs))

    def readinto(self, buffer: Any) -> int:
        size = int(self._raw.readinto(buffer))
        self._noted(bytes(memoryview(buffer)[:size]))
        return size

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._pieces(self._raw.stream(*args, **kwargs))

    def read_chunked(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._pieces(self._raw.read_chunked(*args, **kwargs))

    def drain_conn(self) -> None:
        self._over(self._raw.drain_conn)

    def release_conn(self) -> None:
        self._over(self._raw.release_conn)

    def close(self) -> None:
        self._over(self._raw.close)

    def _noted(self, data: bytes) -> bytes:
        self._attempt.chunk(data)
        if not data or getattr(self._raw, "closed", False):
            self._attempt.end(whole=True)
        return data

    def _pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        try:
            for piece in pieces:
                self._attempt.chunk(piece)
                yield piece
            self._attempt.end(whole=True)
        finally:
            self._attempt.end()

    def _over(self, act: Any) -> None:
        try:
            act()
        finally:
            self._attempt.end()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces(iter(self._raw))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Rest(RawIOBase):
    """The body of a long error: its beginning has been read, and is read again as if it had not."""

    def __init__(self, start: bytes, raw: HTTPResponse, error: Exception | None) -> None:
        self._start = start
        self._raw = raw
        self._error = error

    def read(self, size: int = -1, /) -> bytes:
        if self._error is not None:
            raise self._error
        if size is None or size < 0:
            start, self._start = self._start, b""
            return start + self._raw.read(decode_content=False)
        if self._start:
            piece, self._start = self._start[:size], self._start[size:]
            return piece
        return self._raw.read(size, decode_content=False)

    def close(self) -> None:
        self._raw.close()
        super().close()
