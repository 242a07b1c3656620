"""The sandbox without sockets, for tests in virtual time. It waits on its clock and on nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Self, Unpack

from ..errors import InvalidConfig
from ..gate.clock import SYSTEM, sleep, sleep_async
from ..typing import Clock
from .control import ROOT
from .live import Live, LiveScenario, Options
from .provider import Provider
from .steps import Cut, Data, Head, Pause, Scenario, Step, Steps
from .styles.formats import encode
from .styles.values import Request


class Reply:
    """What came back: `status`, `headers` as a list of pairs, and the body.

    A plain answer is all there. A streamed one is iterated over, `for` or `async for`, and stays in flight
    until it is read to the end or closed; `with` and `async with` close it.
    """

    def __init__(self, scenario: LiveScenario, head: Head) -> None:
        self.status = head.status
        self.headers = head.headers
        self.streamed = head.length is None
        self._scenario = scenario
        self._read = b""
        self._over = False

    @property
    def body(self) -> bytes:
        """The part of the body that has been read; all of it unless the answer is streamed."""
        return self._read

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._next()) is not None:
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self._next_async()) is not None:
            yield chunk

    def read(self) -> bytes:
        """The whole body. Waits until all of it has come."""
        while self._next() is not None:
            pass
        return self._read

    async def read_async(self) -> bytes:
        """The whole body. The running task waits until all of it has come."""
        while await self._next_async() is not None:
            pass
        return self._read

    def close(self) -> None:
        """End the call, whether more would come or not."""
        self._over = True
        self._scenario.close()

    def _next(self) -> bytes | None:
        try:
            return None if self._over else self._take(_next_step(self._scenario))
        except BaseException:
            self.close()
            raise

    async def _next_async(self) -> bytes | None:
        try:
            return None if self._over else self._take(await _next_step_async(self._scenario))
        except BaseException:
            self.close()
            raise

    def _take(self, step: Step | None) -> bytes | None:
        if isinstance(step, Data):
            self._read += step.data
            return step.data
        self.close()
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
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

    A connection that is cut raises ConnectionError, as it does in a client.
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
        scenario = self._scenario(_request(method, path, headers, body, json))
        try:
            reply = _reply(scenario, _next_step(scenario))
        except BaseException:
            scenario.close()
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
        """Send a request; the running task waits for the answer, or for the head of it if it is streamed."""
        scenario = self._scenario(_request(method, path, headers, body, json))
        try:
            reply = _reply(scenario, await _next_step_async(scenario))
        except BaseException:
            scenario.close()
            raise
        if not reply.streamed:
            await reply.read_async()
        return reply

    def _scenario(self, request: Request) -> LiveScenario:
        if not request.path.startswith(ROOT):
            return self.open(request)
        status, body = self.control(request)

        def steps() -> Steps:
            yield Head(status, [], len(body))
            yield Data(body)

        return self.on_clock(Scenario(steps()))

    def __repr__(self) -> str:
        return f"<FakeProvider {self.provider.style.name}, {self._clock!r}>"


def _next_step(scenario: LiveScenario) -> Step | None:
    """The next step that a client notices. Pauses are slept through, and a cut connection raises."""
    while isinstance(step := scenario.step(), Pause):
        left = step.until - scenario.clock.now()
        if left > 0:
            sleep(scenario.clock, left)
    return _noticed(step)


async def _next_step_async(scenario: LiveScenario) -> Step | None:
    """The next step that a client notices. The running task sleeps through pauses, and a cut raises."""
    while isinstance(step := scenario.step(), Pause):
        left = step.until - scenario.clock.now()
        if left > 0:
            await sleep_async(scenario.clock, left)
    return _noticed(step)


def _noticed(step: Step | None) -> Step | None:
    if isinstance(step, Cut):
        raise ConnectionResetError("connection reset by peer") if step.reset else ConnectionError("cut short")
    return step


def _reply(scenario: LiveScenario, head: Step | None) -> Reply:
    assert isinstance(head, Head)  # a scenario that is not cut begins with it
    return Reply(scenario, head)


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
