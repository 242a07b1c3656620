"""The sandbox without sockets, for tests in virtual time. It waits on its clock and on nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

from ..errors import InvalidConfig
from ..gate.clock import sleep, sleep_async
from ..gate.closing import Closing
from ..typing import Clock
from .control import ROOT
from .live import Live, LiveScenario
from .steps import Cut, Data, Head, Pause, Scenario, Step, Steps
from .styles.formats import encode
from .styles.values import Request

T = TypeVar("T")

# What sync and async callers have in common: it yields the nanoseconds to sleep, and returns a result.
Waits: TypeAlias = Generator[int, None, T]


class Sent(TypedDict, total=False):
    """What a request carries: *body*, or *json* to be encoded."""

    headers: Mapping[str, str] | Iterable[tuple[str, str]]
    body: bytes | str | None
    json: Any


class Reply(Closing):
    """What came back from a `FakeProvider`: `status`, `headers` as a list of pairs, and the body.

    A plain answer is all there. A streamed one is iterated over, `for` or `async for`, and stays in flight
    until it is read to the end or closed; `with` and `async with` close it. Only `call` and `call_async` make
    one.

    >>> reply = FakeProvider("plain").call("GET", "/greeting")
    >>> reply.status, len(reply.body) > 0
    (200, True)
    """

    def __init__(self, scenario: LiveScenario, head: Head) -> None:
        self.status = head.status
        self.headers = head.headers
        self.streamed = head.length is None
        self.body = b""  # the part that has been read; all of it unless the answer is streamed
        self._scenario = scenario
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := _sleep_through(self._scenario.clock, self._next())) is not None:
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await _sleep_through_async(self._scenario.clock, self._next())) is not None:
            yield chunk

    def read(self) -> bytes:
        """The whole body. Waits until all of it has come."""
        for _ in self:
            pass
        return self.body

    async def read_async(self) -> bytes:
        """The whole body. The running task waits until all of it has come."""
        async for _ in self:
            pass
        return self.body

    def close(self) -> None:
        """End the call, whether more would come or not."""
        self._over = True
        self._scenario.close()

    def _next(self) -> Waits[bytes | None]:
        if self._over:
            return None
        try:
            step = yield from _next_step(self._scenario)
        except BaseException:
            self.close()
            raise
        if isinstance(step, Data):
            self.body += step.data
            return step.data
        self.close()
        return None

    def __repr__(self) -> str:
        return f"<Reply {self.status}, {len(self.body)} bytes{' so far' * self.streamed}>"


class FakeProvider(Live):
    """An API in virtual time: the limits, latencies and faults of the sandbox, and no sockets.

    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock(auto_advance=True)
    >>> api = FakeProvider("plain", requests="2/minute", first_token=0.5, clock=clock)
    >>> [api.call("GET", "/").status for _ in range(3)]
    [200, 200, 429]
    >>> clock.seconds(), api.report().refused
    (1.0, 1)

    `style` and the options are those of `Provider`, or `style` is a Provider. `clock` is the clock of the
    program under test. A connection that is cut raises ConnectionError, as it does in a client. Raises
    InvalidConfig for options that cannot work.
    """

    def call(self, method: str, path: str, **sent: Unpack[Sent]) -> Reply:
        """Send a request and wait for the answer, a `Reply`, or for the head of it if it is streamed.

        `method` and `path` are e.g. "POST" and "/v1/chat/completions"; `headers=`, and `body=` or `json=`,
        are what it carries. Raises ConnectionError if a fault cuts the connection.

        >>> FakeProvider("plain").call("GET", "/", headers={"accept": "*/*"}).status
        200
        """
        reply = _sleep_through(self._clock, self._send(_request(method, path, **sent)))
        if not reply.streamed:
            reply.read()
        return reply

    async def call_async(self, method: str, path: str, **sent: Unpack[Sent]) -> Reply:
        """Send a request; the running task waits for the answer, or for the head of it if it is streamed.

        `method`, `path` and what it carries are those of `call`.
        """
        reply = await _sleep_through_async(self._clock, self._send(_request(method, path, **sent)))
        if not reply.streamed:
            await reply.read_async()
        return reply

    def _send(self, request: Request) -> Waits[Reply]:
        if request.path.startswith(ROOT):
            scenario = self.on_clock(Scenario(_said(*self.control(request))))
        else:
            scenario = self.open(request)
        try:
            head = yield from _next_step(scenario)
        except BaseException:
            scenario.close()
            raise
        assert isinstance(head, Head)  # a scenario that is not cut begins with it
        return Reply(scenario, head)

    def __repr__(self) -> str:
        return f"<FakeProvider {self.provider.style.name}, {self._clock!r}>"


def _sleep_through(clock: Clock, waits: Waits[T]) -> T:
    try:
        while True:
            sleep(clock, next(waits))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the generator returned
    finally:
        waits.close()


async def _sleep_through_async(clock: Clock, waits: Waits[T]) -> T:
    try:
        while True:
            await sleep_async(clock, next(waits))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the generator returned
    finally:
        waits.close()


def _next_step(scenario: LiveScenario) -> Waits[Step | None]:
    """The next step that a client notices. Pauses are slept through, and a cut connection raises."""
    while isinstance(step := scenario.step(), Pause):
        left = step.until - scenario.clock.now()
        if left > 0:
            yield left
    if isinstance(step, Cut):
        raise ConnectionResetError("connection reset by peer") if step.reset else ConnectionError("cut short")
    return step


def _said(status: int, body: bytes) -> Steps:
    yield Head(status, [], len(body))
    yield Data(body)


def _request(
    method: str,
    path: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: bytes | str | None = None,
    json: Any = None,
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
