"""For requests: an adapter that waits at a gate before it sends.

    session.mount("https://", Adapter(dispatch))

The response of urllib3 is passed on with its own methods; only reading it is watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO, RawIOBase
from typing import Any, Unpack, cast

from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.response import HTTPResponse

from ..errors import InvalidConfig
from ..gate.closing import Closing
from .exchange import GatedSender, SendOptions
from .gates import Gates, Target
from .response import MOST_OF_ERROR, Answer, OpenResponse


class Adapter(BaseAdapter):
    """An adapter for requests. It sends by `inner`, or an HTTPAdapter, no faster than the gate admits.

    `gate` is that of `headgate.http.httpx.Transport`. The options are `headgate.http.exchange.SendOptions`.
    If the gate refuses a request, its exception is raised. Raises InvalidConfig, InvalidCapacity or
    InvalidWindow for arguments that cannot work.

    >>> import requests
    >>> with requests.Session() as session:
    ...     session.mount("https://", Adapter())
    """

    def __init__(
        self, gate: Gates = None, *, inner: BaseAdapter | None = None, **options: Unpack[SendOptions]
    ) -> None:
        if inner is not None and not isinstance(inner, BaseAdapter):
            raise InvalidConfig(f"inner={inner!r} is not an adapter; write e.g. inner=HTTPAdapter()")
        super().__init__()
        self._sender = GatedSender(gate, **options)
        self._inner = HTTPAdapter() if inner is None else inner

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        assert request.method is not None  # it was prepared
        assert request.url is not None
        answer = self._sender.run(
            request.method,
            request.url,
            cast("Mapping[str, str]", request.headers),  # values may be bytes
            _body_of(request),
            lambda target=None: _Answer(self._inner.send(_directed(request, target), *args, **kwargs)),
        )
        # Authentication sends again by this connection, and must pass the gate too.
        answer.response.connection = self
        response: Response = answer.response
        return response

    def close(self) -> None:
        """Close the adapter that sends."""
        self._inner.close()

    def __repr__(self) -> str:
        return f"<Adapter of {self._sender!r}>"


def _directed(request: PreparedRequest, target: Target | None) -> PreparedRequest:
    """The request as it is sent to a target."""
    if target is None:
        return request
    assert request.url is not None
    sent = request.copy()
    sent.url = target.url_of(request.url)
    sent.headers.update(
        {name: value for name, value in target.headers_for(sent.url).items() if name != "host"}
    )
    return sent


def _body_of(request: PreparedRequest) -> bytes | None:
    """The body, if it is in memory."""
    body: Any = request.body
    if isinstance(body, str):
        return body.encode("utf-8")
    return bytes(body) if isinstance(body, (bytes, bytearray)) else None


class _Answer(Answer):
    @property
    def header_pairs(self) -> object:
        # Of a plain dictionary reading by `items` would look every name up again.
        headers = self.response.headers
        return tuple(headers.lower_items()) if isinstance(headers, CaseInsensitiveDict) else headers

    def read_error(self) -> bytes | None:
        response = self.response
        raw = response.raw
        if self._is_read():
            return self._content()
        if not isinstance(raw, HTTPResponse):
            return None
        body: RawIOBase | BytesIO
        try:
            start = raw.read(MOST_OF_ERROR + 1, decode_content=False)
        except Exception as error:  # noqa: BLE001 - a caller who reads the body gets it
            start, body = b"", _Rest(b"", raw, error)
        else:
            if len(start) > MOST_OF_ERROR:
                body = _Rest(start, raw, None)
            else:
                body = BytesIO(start)
                raw.release_conn()
        response.raw = HTTPResponse(
            body=body,
            headers=raw.headers,
            status=raw.status,
            version=raw.version,
            reason=raw.reason,
            preload_content=False,
            decode_content=False,
            original_response=getattr(raw, "_original_response", None),  # requests reads cookies from it
            request_method=response.request.method,
        )
        return start

    def watch(self, reading: OpenResponse) -> None:
        if self._is_read():
            reading.chunk(self._content())
            reading.end(whole=True)
        else:
            reading.keep()
            self.response.raw = _Raw(self.response.raw, reading)

    def _is_read(self) -> bool:
        """Whether the inner adapter has read the body, or made the response without one."""
        raw = self.response.raw
        return raw is None or bool(getattr(raw, "closed", False))

    def _content(self) -> bytes:
        try:
            return self.response.content or b""
        except Exception:  # noqa: BLE001 - a caller who reads the body gets it
            return b""


class _Raw(Closing):
    """The response of urllib3, which tells what is read of it and when that ends."""

    def __init__(self, raw: Any, reading: OpenResponse) -> None:
        self._raw = raw
        self._reading = reading

    def read(self, *args: Any, **kwargs: Any) -> bytes:
        return self._noted(self._raw.read(*args, **kwargs))

    def read1(self, *args: Any, **kwargs: Any) -> bytes:
        return self._noted(self._raw.read1(*args, **kwargs))

    def readinto(self, buffer: Any) -> int:
        size = int(self._raw.readinto(buffer))
        self._noted(bytes(memoryview(buffer)[:size]))
        return size

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._reading.passed_on(self._raw.stream(*args, **kwargs))

    def read_chunked(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._reading.passed_on(self._raw.read_chunked(*args, **kwargs))

    def drain_conn(self) -> None:
        self._over(self._raw.drain_conn)

    def release_conn(self) -> None:
        self._over(self._raw.release_conn)

    def close(self) -> None:
        self._over(self._raw.close)

    def _noted(self, data: bytes) -> bytes:
        self._reading.chunk(data)
        if not data or getattr(self._raw, "closed", False):
            self._reading.end(whole=True)
        return data

    def _over(self, act: Any) -> None:
        try:
            act()
        finally:
            self._reading.end()

    def __iter__(self) -> Iterator[bytes]:
        return self._reading.passed_on(iter(self._raw))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Rest(RawIOBase):
    """The body of an error that is long or broken: its beginning has been read, and is read again."""

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
