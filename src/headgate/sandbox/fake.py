"""The sandbox without sockets, for tests in virtual time.

Rules of this room: it waits on its clock and on nothing else. The twins stand next to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfig
from ..gate.clock import SYSTEM, sleep, sleep_async
from .control import ROOT
from .live import Live
from .provider import Cut, Data, Exchange, Head, Pause
from .styles import Request, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, Unpack

    from ..typing import Clock
    from .live import Options
    from .provider import Provider, Step, Steps


class Reply:
    """What came back: `status`, `headers` as a list of pairs, and the body.

    A plain answer is all there. A streamed one is iterated over, `for` or `async for`, and holds its place
    until it is read to the end or closed; `with` and `async with` close it.
    """

    def __init__(self, provider: FakeProvider, exchange: Exchange, head: Head) -> None:
        self.status = head.status
        self.headers = head.headers
        self.streamed = head.length is None
        self._provider = provider
        self._exchange = exchange
        self._read = b""
        self._over = False

    @property
    def body(self) -> bytes:
        """All of it that has been read: of an answer that is not streamed, all there is."""
        return self._read

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._next()) is not None:
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self._next_async()) is not None:
            yield chunk

    def read(self) -> bytes:
        """The whole body, waiting for what is missing."""
        while self._next() is not None:
            pass
        return self._read

    async def read_async(self) -> bytes:
        while await self._next_async() is not None:
            pass
        return self._read

    def close(self) -> None:
        """Leave, whether there is more or not."""
        self._over = True
        self._provider._close(self._exchange)

    def _next(self) -> bytes | None:
        try:
            while not self._over:
                step = self._provider._step(self._exchange)
                if isinstance(step, Pause):
                    self._provider._sleep_until(step.until)
                elif (chunk := self._take(step)) is not None:
                    return chunk
        except BaseException:
            self.close()
            raise
        return None

    async def _next_async(self) -> bytes | None:
        try:
            while not self._over:
                step = self._provider._step(self._exchange)
                if isinstance(step, Pause):
                    await self._provider._sleep_until_async(step.until)
                elif (chunk := self._take(step)) is not None:
                    return chunk
        except BaseException:
            self.close()
            raise
        return None

    def _take(self, step: Step | None) -> bytes | None:
        if isinstance(step, Data):
            self._read += step.data
            return step.data
        _heed(step)
        self.close()
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reply {self.status}, {len(self._read)} bytes{' so far' * self.streamed}>"


class FakeProvider(Live):
    """An API in virtual time: the limits, latencies and faults of the sandbox, and no sockets.

    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock(auto_advance=True)
    >>> api = FakeProvider("plain", requests="2/minute", first_token=0.5, clock=clock)
    >>> [api.call("GET", "/").status for _ in range(3)]
    [200, 200, 429]
    >>> clock.seconds(), api.report().refused
    (1.0, 1)

    A connection that is cut raises ConnectionError, as a client's would in the end.
    """

    def __init__(
        self, style: str | Provider = "openai", *, clock: Clock = SYSTEM, **options: Unpack[Options]
    ) -> None:
        super().__init__(style, clock=clock, **options)

    def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes | str | None = None,
        json: Any = None,
    ) -> Reply:
        """Send a request and wait for the answer, or for the head of it if it is streamed."""
        request = _request(method, path, headers, body, json)
        if request.path.startswith(ROOT):
            return self._controlled(request)
        exchange = self._open(request)
        try:
            while True:
                step = self._step(exchange)
                if isinstance(step, Pause):
                    self._sleep_until(step.until)
                elif isinstance(step, Head):
                    break
                else:
                    _heed(step)
            reply = Reply(self, exchange, step)
        except BaseException:
            self._close(exchange)
            raise
        if not reply.streamed:
            reply.read()
        return reply

    async def call_async(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes | str | None = None,
        json: Any = None,
    ) -> Reply:
        """The same for the running task."""
        request = _request(method, path, headers, body, json)
        if request.path.startswith(ROOT):
            return self._controlled(request)
        exchange = self._open(request)
        try:
            while True:
                step = self._step(exchange)
                if isinstance(step, Pause):
                    await self._sleep_until_async(step.until)
                elif isinstance(step, Head):
                    break
                else:
                    _heed(step)
            reply = Reply(self, exchange, step)
        except BaseException:
            self._close(exchange)
            raise
        if not reply.streamed:
            await reply.read_async()
        return reply

    def _controlled(self, request: Request) -> Reply:
        status, body = self._control(request)

        def steps() -> Steps:
            yield Data(body)

        reply = Reply(self, Exchange(steps(), lambda _finished, _now: None), Head(status, [], len(body)))
        reply.read()
        return reply

    def _sleep_until(self, moment: int) -> None:
        left = moment - self._clock.now()
        if left > 0:
            sleep(self._clock, left)

    async def _sleep_until_async(self, moment: int) -> None:
        left = moment - self._clock.now()
        if left > 0:
            await sleep_async(self._clock, left)

    def __repr__(self) -> str:
        return f"<FakeProvider {self.provider.style.name}, {self._clock!r}>"


def _heed(step: Step | None) -> None:
    """What a client would notice of a connection that ends early."""
    if isinstance(step, Cut):
        raise ConnectionResetError("connection reset by peer") if step.reset else ConnectionError("cut short")


def _request(
    method: str,
    path: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    body: bytes | str | None,
    json: Any,
) -> Request:
    if body is not None and json is not None:
        raise InvalidConfig("body= and json=: a request has one body; leave out one of them")
    if not path.startswith("/"):
        raise InvalidConfig(f'path={path!r} is not a path; write e.g. "/v1/chat/completions"')
    if json is not None:
        body = encode(json)
    elif isinstance(body, str):
        body = body.encode()
    pairs = headers.items() if hasattr(headers, "items") else headers
    return Request(method.upper(), path, {name.lower(): value for name, value in pairs}, body or b"")
