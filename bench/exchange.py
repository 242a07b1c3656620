"""What a gate adds to one HTTP call: the estimate, the admission, limits and usage read from the response.

Each client sends over a transport that answers from memory, bare and through a gate that counts requests and
tokens and never holds a call back. The difference is what the gate costs. The request is a chat request of
2 KB; the answer has 1 KB, states its usage and has the usual headers, without and with those that state
limits, whose figures change from answer to answer. A stream has 1,000 events, and its cost is that of one.

Times are CPU time of the whole process: waiting for other programs does not count, and threads in the
background do. "Gate adds" compares the fastest twentieth of the calls, "median" the calls in the middle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack, ExitStack
from io import BytesIO
from itertools import count, cycle
from time import process_time_ns
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import httpx2
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from requests.adapters import BaseAdapter
from urllib3.response import HTTPResponse

from headgate import Dispatch
from headgate.http import aiohttp as gated_aiohttp
from headgate.http import httpx as gated_httpx
from headgate.http import requests as gated_requests
from measure import against, number, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

URL = "https://api.example/v1/chat/completions"
SENT = {"content-type": "application/json", "authorization": "Bearer sk-0123456789"}
TOOL = {
    "type": "function",
    "function": {
        "name": "find_orders",
        "description": "Finds the orders of a customer, the newest first.",
        "parameters": {
            "type": "object",
            "properties": {"customer": {"type": "string"}, "most": {"type": "integer", "minimum": 1}},
            "required": ["customer"],
        },
    },
}
QUESTION = {
    "model": "gpt-5",
    "temperature": 0.2,
    "max_completion_tokens": 300,
    "tools": [TOOL],
    "messages": [
        {"role": "system", "content": "You answer questions about orders. " * 22},
        {"role": "user", "content": "Where is the parcel that I ordered last week?\n" * 16},
        {"role": "assistant", "content": "It was sent on Tuesday."},
        {"role": "user", "content": "And when will it arrive?"},
    ],
}
BODY = json.dumps(QUESTION, separators=(",", ":")).encode()
REPLY = {
    "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
    "object": "chat.completion",
    "created": 1741570283,
    "model": "gpt-5-2026-08-07",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "It will probably arrive on Friday. " * 13,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 420,
        "completion_tokens": 90,
        "total_tokens": 510,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    },
    "service_tier": "default",
    "system_fingerprint": "fp_fc9f1d7035",
}
ANSWER = json.dumps(REPLY).encode()
EVENTS = [
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1741570283,"model":"gpt-5",'
    b'"choices":[{"index":0,"delta":{"content":" word %d"},"finish_reason":null}]}\n\n' % i
    for i in range(998)
]
EVENTS += [
    b'data: {"choices":[],"usage":{"prompt_tokens":420,"completion_tokens":998}}\n\n',
    b"data: [DONE]\n\n",
]

USUAL = [
    ("Date", "Mon, 16 Nov 2026 12:00:00 GMT"),
    ("Content-Type", "application/json"),
    ("Content-Length", str(len(ANSWER))),
    ("Connection", "keep-alive"),
    ("access-control-expose-headers", "X-Request-ID"),
    ("openai-organization", "org-1"),
    ("openai-processing-ms", "512"),
    ("openai-version", "2020-10-01"),
    ("x-request-id", "req_0123456789abcdef0123456789abcdef"),
    ("strict-transport-security", "max-age=31536000; includeSubDomains; preload"),
    ("cf-cache-status", "DYNAMIC"),
    ("x-content-type-options", "nosniff"),
    ("Server", "cloudflare"),
    ("CF-RAY", "91e4f2f0ab0cd2a1-AMS"),
    ("alt-svc", 'h3=":443"; ma=86400'),
]

# What is stated, and what the gate is configured for, is so much that no call waits.
MOST = 60_000_000
RATES = [f"{MOST}/minute", f"{1000 * MOST} tokens/minute"]
VARIANTS = 61


def openai_limits(i: int) -> list[tuple[str, str]]:
    return [
        ("x-ratelimit-limit-requests", "30000000"),
        ("x-ratelimit-limit-tokens", "15000000000"),
        ("x-ratelimit-remaining-requests", str(29_999_000 + i)),
        ("x-ratelimit-remaining-tokens", str(14_999_000_000 + 400 * i)),
        ("x-ratelimit-reset-requests", f"{2 + i}ms"),
        ("x-ratelimit-reset-tokens", f"{i // 40}.{i % 1000:03}s"),
    ]


def anthropic_limits(i: int) -> list[tuple[str, str]]:
    figures = {"requests": 30_000_000, "input-tokens": 10**10, "output-tokens": 10**10, "tokens": 2 * 10**10}
    return [
        (f"anthropic-ratelimit-{name}-{kind}", text)
        for name, limit in figures.items()
        for kind, text in (
            ("limit", str(limit)),
            ("remaining", str(limit - 1000 - i)),
            ("reset", f"2026-11-16T12:00:{i % 60:02}Z"),
        )
    ]


Headers = list[tuple[str, str]]
KINDS: dict[str, Callable[[int], Headers]] = {
    "no limit headers": lambda _i: [],
    "OpenAI's 6 limit headers": openai_limits,
    "Anthropic's 12": anthropic_limits,
}
TARGETS = {"no limit headers": 50.0, "OpenAI's 6 limit headers": 80.0}


class Far:
    """The far side: what it answers, one header list after the other."""

    def __init__(self, kind: str) -> None:
        self.pieces = EVENTS if kind == "stream" else [ANSWER]
        limits = KINDS.get(kind, KINDS["no limit headers"])
        lists = [USUAL + limits(i) for i in range(VARIANTS)]
        if kind == "stream":
            left_out = ("Content-Type", "Content-Length")
            lists = [
                [pair for pair in USUAL if pair[0] not in left_out] + [("Content-Type", "text/event-stream")]
            ]
        self.raw = cycle([[(n.encode(), v.encode()) for n, v in each] for each in lists])
        self.multi = cycle([CIMultiDictProxy(CIMultiDict(each)) for each in lists])
        self.plain = cycle([dict(each) for each in lists])


# -- one function for each client: a call over the far side, bare (no gate) or gated


def httpx_call(library: Any, far: Far, gate: Any, stack: ExitStack) -> Callable[[], object]:
    class Body(library.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from far.pieces

    class Inner(library.BaseTransport):
        def handle_request(self, _request: Any) -> Any:
            return library.Response(200, headers=next(far.raw), stream=Body())

    transport = Inner() if gate is BARE else gated_httpx.Transport(gate, inner=Inner())
    client = stack.enter_context(library.Client(transport=transport))
    if len(far.pieces) == 1:
        return lambda: client.post(URL, content=BODY, headers=SENT)

    def stream() -> None:
        with client.stream("POST", URL, content=BODY, headers=SENT) as response:
            for _ in response.iter_raw():
                pass

    return stream


async def httpx_call_async(
    library: Any, far: Far, gate: Any, stack: AsyncExitStack
) -> Callable[[], Awaitable[object]]:
    class Body(library.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in far.pieces:
                yield piece

    class Inner(library.AsyncBaseTransport):
        async def handle_async_request(self, _request: Any) -> Any:
            return library.Response(200, headers=next(far.raw), stream=Body())

    transport = Inner() if gate is BARE else gated_httpx.AsyncTransport(gate, inner=Inner())
    client = await stack.enter_async_context(library.AsyncClient(transport=transport))
    if len(far.pieces) == 1:
        return lambda: client.post(URL, content=BODY, headers=SENT)

    async def stream() -> None:
        async with client.stream("POST", URL, content=BODY, headers=SENT) as response:
            async for _ in response.aiter_raw():
                pass

    return stream


class _Protocol:
    """As much of a connection's protocol as the body of a response needs."""

    _reading_paused = False

    def resume_reading(self, **_: object) -> None: ...

    def pause_reading(self) -> None: ...


async def aiohttp_call(far: Far, gate: Any, stack: AsyncExitStack) -> Callable[[], Awaitable[object]]:
    loop = asyncio.get_running_loop()
    protocol: Any = _Protocol()

    async def answer(
        request: aiohttp.ClientRequest, _handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = aiohttp.ClientResponse(
            request.method,
            request.url,
            writer=None,
            continue100=None,
            timer=None,
            request_info=request.request_info,
            traces=[],
            loop=loop,
            session=None,
            stream_writer=writer,
        )
        content = aiohttp.StreamReader(protocol, 2**16, loop=loop)
        response.status, response.reason = 200, "OK"
        # As aiohttp does when the head has come.
        response._headers, response._raw_headers = next(far.multi), tuple(next(far.raw))
        response.content = content
        if len(far.pieces) == 1:
            content.feed_data(ANSWER)
            content.feed_eof()
        else:
            for piece in far.pieces:  # each of them is read as it came, as a chunk
                content.begin_http_chunk_receiving()
                content.feed_data(piece)
                content.end_http_chunk_receiving()
            content.feed_eof()
        return response

    class Writer:
        output_size = 0

    writer: Any = Writer()
    middlewares = (answer,) if gate is BARE else (gated_aiohttp.middleware(gate), answer)
    session = await stack.enter_async_context(aiohttp.ClientSession(middlewares=middlewares))

    async def call() -> None:
        async with session.post(URL, data=BODY, headers=SENT) as response:
            if len(far.pieces) == 1:
                await response.read()
            else:
                async for _ in response.content.iter_chunks():
                    pass

    return call


def requests_call(far: Far, gate: Any, stack: ExitStack) -> Callable[[], object]:
    class Pieces(BytesIO):
        """Read as it came, piece by piece."""

        def __init__(self) -> None:
            super().__init__(far.pieces[0] if len(far.pieces) == 1 else b"")
            self.left = iter(far.pieces)

        def read(self, *size: Any) -> bytes:
            return super().read(*size) if len(far.pieces) == 1 else next(self.left, b"")

    class Inner(BaseAdapter):
        def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
            raw = HTTPResponse(
                body=Pieces(),
                headers=next(far.plain),
                status=200,
                preload_content=False,
                decode_content=False,
            )
            response = requests.Response()
            response.status_code = 200
            response.headers = requests.structures.CaseInsensitiveDict(raw.headers)
            response.raw = raw
            response.request, response.url = request, URL
            return response

        def close(self) -> None: ...

    session = stack.enter_context(requests.Session())
    session.trust_env = False
    session.mount("https://", Inner() if gate is BARE else gated_requests.Adapter(gate, inner=Inner()))
    if len(far.pieces) == 1:
        return lambda: session.post(URL, data=BODY, headers=SENT)

    def stream() -> None:
        with session.post(URL, data=BODY, headers=SENT, stream=True) as response:
            for _ in response.iter_content(1 << 16):
                pass

    return stream


BARE = object()
CLIENTS: dict[str, Any] = {
    "httpx2": lambda far, gate, stack: httpx_call(httpx2, far, gate, stack),
    "httpx2, async": lambda far, gate, stack: httpx_call_async(httpx2, far, gate, stack),
    "httpx": lambda far, gate, stack: httpx_call(httpx, far, gate, stack),
    "httpx, async": lambda far, gate, stack: httpx_call_async(httpx, far, gate, stack),
    "aiohttp": aiohttp_call,
    "requests": requests_call,
}
ASYNC = ("httpx2, async", "httpx, async", "aiohttp")

_names = count()


def known() -> Dispatch:
    """One gate whose rates are configured."""
    return Dispatch(f"known {next(_names)}", rates=RATES)


async def measure(client: str, kind: str, *, times: int) -> tuple[float, float, float]:
    """Microseconds of a bare call, and what a gate adds: in quiet moments, and in the middle of all.

    A bare call and a gated one take turns, so that both find the processor's caches as the other left them.
    """
    async with AsyncExitStack() as stack:
        with ExitStack() as plain:
            calls = [
                await CLIENTS[client](Far(kind), gate, stack)
                if client in ASYNC
                else CLIENTS[client](Far(kind), gate, plain)
                for gate in (BARE, known())
            ]
            took: tuple[list[int], list[int]] = ([], [])
            for turn in range(-times // 10, times):
                for which in (0, 1) if turn % 2 else (1, 0):
                    call = calls[which]
                    start = process_time_ns()
                    if client in ASYNC:
                        await call()
                    else:
                        call()
                    spent = process_time_ns() - start
                    if turn >= 0:  # until then caches and adaptive bytecode warm up
                        took[which].append(spent)
    bare, gated = map(sorted, took)
    quiet, middle = times // 20, times // 2
    return bare[quiet] / 1e3, (gated[quiet] - bare[quiet]) / 1e3, (gated[middle] - bare[middle]) / 1e3


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--client", choices=list(CLIENTS), action="append")
    arguments = parser.parse_args()
    times = 400 if arguments.quick else 5_000
    clients = arguments.client or list(CLIENTS)

    print("Microseconds of CPU for one call: the client alone, and what the gate adds to it.")
    rows = []
    for kind in KINDS:
        for client in clients:
            bare, quiet, middle = await measure(client, kind, times=times)
            target = against(quiet, TARGETS[kind]) if kind in TARGETS else ""
            rows.append((f"{client}: {kind}", *map(number, (bare, quiet, middle)), target))
    table(("client and answer", "client alone", "gate adds", "median", "target"), rows)

    print("Microseconds of CPU for one event of a stream.")
    rows = []
    for client in clients:
        figures = await measure(client, "stream", times=times // 20)
        rows.append((client, *(number(each / len(EVENTS)) for each in figures)))
    table(("client", "client alone", "gate adds", "median"), rows)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
