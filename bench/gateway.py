"""What the gateway adds to a call: latency, calls a second on one core, streams, and memory of held clients.

An API on raw sockets, the gateway of `headgate serve` and the clients are three processes on this machine.
The request is a chat request of 2 KB and the answer has 1 KB with its usage; the gate counts requests and
tokens and holds nothing back. Direct calls and calls through the gateway take turns. CPU time of the gateway
is read from the system, so that "on one core" does not depend on what else runs here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

from measure import number, table

_TICK = os.sysconf("SC_CLK_TCK")
_REQUEST = json.dumps(
    {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hello " * 330}]}
).encode()
_USAGE = {"prompt_tokens": 400, "completion_tokens": 60, "total_tokens": 460}
_ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 800}}],
        "usage": _USAGE,
    }
).encode()
_EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nx-ratelimit-limit-requests: 6000000\r\n"
_RATES = ("--rate", "6_000_000/minute burst 100000", "--rate", "6_000_000_000 tokens/minute burst 100000000")


# -- the API


class _Api(asyncio.Protocol):
    """Answers each request as soon as it is whole; /stream/EVENTS/PAUSE_MS streams, /hang never answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer = transport, b""
        self.reply = _HEAD.encode() + b"Content-Length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length :]
            path = head.split(b" ", 2)[1]
            if path.startswith(b"/stream/"):
                events, pause = map(int, path.split(b"/")[2:4])
                self.task = asyncio.ensure_future(self._stream(events, pause / 1000))
            elif path != b"/hang":
                self.transport.write(self.reply)

    async def _stream(self, events: int, pause: float) -> None:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head.encode())
        chunk = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
        began = time.monotonic()
        for event in range(events):
            self.transport.write(chunk)
            ahead = began + (event + 1) * pause - time.monotonic()
            await asyncio.sleep(max(0.0, ahead))
        self.transport.write(b"0\r\n\r\n")


async def _serve_api() -> None:
    server = await asyncio.get_running_loop().create_server(_Api, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# -- processes


class _Process:
    """A server in a process of its own; its last word on the first line is its port."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().rpartition(":")[2])

    def cpu(self) -> float:
        """Seconds of CPU time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def memory(self) -> float:
        """Resident memory in MB."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _gateway(api: _Process, *options: str) -> _Process:
    to = f"http://127.0.0.1:{api.port}"
    return _Process("-m", "headgate", "serve", "--to", to, "--listen", "127.0.0.1:0", *_RATES, *options)


# -- clients


class _Client(asyncio.Protocol):
    """Sends one request after the other over one connection, and reads answers with a length."""

    def __init__(self) -> None:
        self.got = 0
        self.waiter: asyncio.Future[None] | None = None
        self.size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.got:
            end = data.find(b"\r\n\r\n")
            at = data.lower().find(b"content-length:")
            self.size = end + 4 + int(data[at + 15 :].split(b"\r\n", 1)[0])
        self.got += len(data)
        if self.got >= self.size and self.waiter is not None:
            self.got = 0
            self.waiter.set_result(None)

    async def call(self, request: bytes) -> float:
        self.waiter = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self.transport.write(request)
        await self.waiter
        return time.perf_counter() - began


def _request(port: int) -> bytes:
    fields = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nAuthorization: Bearer k"
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\nContent-Length: {len(_REQUEST)}\r\n\r\n"
    return head.encode() + _REQUEST


async def _connected(port: int) -> _Client:
    _transport, client = await asyncio.get_running_loop().create_connection(_Client, "127.0.0.1", port)
    return client


async def _latency(ports: tuple[int, ...], calls: int, rate: float) -> list[list[float]]:
    """Milliseconds of calls at that rate, which go to each port in turn."""
    clients = [await _connected(port) for port in ports]
    requests = [_request(port) for port in ports]
    times: list[list[float]] = [[] for _ in ports]
    for client, request in zip(clients, requests, strict=True):
        for _ in range(50):
            await client.call(request)
    began = time.monotonic()
    for turn in range(calls):
        for which, client in enumerate(clients):
            times[which].append(1e3 * await client.call(requests[which]))
        ahead = began + (turn + 1) / rate - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)
    for client in clients:
        client.transport.close()
    return [sorted(each) for each in times]


async def _throughput(port: int, connections: int, seconds: float) -> tuple[int, float]:
    clients = [await _connected(port) for _ in range(connections)]
    request, until, done = _request(port), time.monotonic() + seconds, 0

    async def work(client: _Client) -> None:
        nonlocal done
        while time.monotonic() < until:
            await client.call(request)
            done += 1

    began = time.monotonic()
    await asyncio.gather(*map(work, clients))
    took = time.monotonic() - began
    for client in clients:
        client.transport.close()
    return done, took


async def _streams(port: int, streams: int, events: int, pause_ms: int) -> float:
    """Events a second that clients read."""
    fields = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer k\r\nConnection: close"
    request = f"GET /stream/{events}/{pause_ms} HTTP/1.1\r\n{fields}\r\n\r\n".encode()

    async def read() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        seen = 0
        rest = b""
        while not (rest := rest + await reader.read(65_536)).endswith(b"0\r\n\r\n"):
            seen += rest.count(b"data: ")
            rest = rest[-6:] if not rest.endswith(b"data: ") else b""
        seen += rest.count(b"data: ")
        writer.close()
        return seen

    began = time.monotonic()
    seen = sum(await asyncio.gather(*(read() for _ in range(streams))))
    assert seen >= streams * events, (seen, streams * events)
    return streams * events / (time.monotonic() - began)


def _held(api: _Process, clients: int) -> tuple[float, float]:
    """Memory of the gateway in MB, before and while that many clients are held."""
    gateway = _gateway(api, "--concurrency", "1", "--patience", "1", "--max-wait", "3600")
    try:
        sockets = []
        for number_ in range(clients + 1):
            path = "/hang" if number_ == 0 else "/v1/chat/completions"
            request = _request(gateway.port).replace(b"/v1/chat/completions", path.encode(), 1)
            if number_ == 1:
                before = gateway.memory()
            connection = socket.create_connection(("127.0.0.1", gateway.port))
            connection.sendall(
                request.replace(b"Content-Type", b"x-stainless-lang: python\r\nContent-Type", 1)
            )
            sockets.append(connection)
            if number_ == 0:
                time.sleep(0.5)
        time.sleep(4)
        after = gateway.memory()
        for connection in sockets:
            connection.close()
    finally:
        gateway.close()
    return before, after


def _percentile(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(part * len(times)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--held", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few calls, once: to see that it runs")
    parser.add_argument("--api", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.calls, options.seconds, options.held, options.repeat = 200, 1.0, 100, 1
    if options.api:
        asyncio.run(_serve_api())
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    api = _Process(__file__, "--api")
    gateway = _gateway(api)
    rows = []
    try:
        best = None
        for _ in range(options.repeat):
            direct, through = asyncio.run(_latency((api.port, gateway.port), options.calls, 200))
            found = [_percentile(through, part) - _percentile(direct, part) for part in (0.5, 0.99)]
            best = found if best is None else [min(pair) for pair in zip(best, found, strict=True)]
        rows.append(("added to a call at 200 calls/s, p50", f"{best[0]:.2f} ms", "≤ 1 ms"))
        rows.append(("added to a call at 200 calls/s, p99", f"{best[1]:.2f} ms", "≤ 5 ms"))
        per_call = []
        for _ in range(options.repeat):
            before = gateway.cpu()
            done, took = asyncio.run(_throughput(gateway.port, 32, options.seconds))
            per_call.append(((gateway.cpu() - before) / done, done / took))
        cpu, rate = min(per_call)
        rows.append(("CPU time of the gateway for a call, tokens counted", f"{cpu * 1e6:.0f} µs", ""))
        rows.append(("calls a second on one core, by CPU time", number(1 / cpu), "≥ 2,000"))
        rows.append(("calls a second as measured, 32 connections", number(rate), ""))
        shares = []
        for _ in range(options.repeat):
            direct_rate = asyncio.run(_streams(api.port, 100, 100, 20))
            shares.append((asyncio.run(_streams(gateway.port, 100, 100, 20)) / direct_rate, direct_rate))
        rows.append(("100 streams of 50 events/s, throughput over direct", f"{max(shares)[0]:.2f}", "≥ 0.90"))
        low, high = _held(api, options.held)
        rows.append((f"memory for {options.held:,} held clients", f"{high - low:.1f} MB", "≤ 60 MB"))
        rows.append(("memory of the gateway before", f"{low:.1f} MB", ""))
    finally:
        gateway.close()
        api.close()
    table(("", "measured", "wanted"), rows)


if __name__ == "__main__":
    main()
