"""A gateway, an API that records what it gets, and a client of raw bytes, for tests of the gateway."""

import asyncio
import contextlib
import json
import socket
import threading
import time

from headgate.gateway.app import Gateway
from headgate.gateway.settings import Settings, rates_of
from headgate.gateway.upstreams import upstream


class Loop:
    """An event loop in a thread. Tests of clients that block need one."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine, timeout=20):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def close(self):
        async def drop_tasks():
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)  # for transports to end

        self.run(drop_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


class Recorded:
    """One request as it came over the wire."""

    def __init__(self, head, body):
        self.line, *fields = head.decode("latin-1").split("\r\n")
        self.method, self.target, self.version = self.line.split(" ", 2)
        self.pairs = [tuple(field.split(": ", 1)) for field in fields if field]
        self.headers = {name.lower(): value for name, value in self.pairs}
        self.body = body
        self.at = time.monotonic()


def reply(body=b"{}", status="200 OK", content_type="application/json", *fields):
    """The bytes of a response with a length."""
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
    if content_type:
        head.append(f"Content-Type: {content_type}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


class RecordingApi:
    """A server that keeps every request and answers by `answer(request)`: bytes, or a list of pieces.

    A number among the pieces is a pause in seconds; None closes the connection.
    """

    def __init__(self, answer=None):
        self.requests = []
        self.answer = answer or (lambda request: reply())
        self._server = None
        self._writers = set()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def close(self):
        self._server.close()
        for writer in [*self._writers]:
            writer.transport.abort()
        await asyncio.sleep(0)  # for the transports to end

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            await self._answer_all(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer_all(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                request = Recorded(head, b"")
                if request.headers.get("transfer-encoding") == "chunked":
                    request.body = await read_chunks(reader)
                else:
                    request.body = await reader.readexactly(int(request.headers.get("content-length", 0)))
                self.requests.append(request)
                answer = self.answer(request)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    if piece is None:
                        return
                    if isinstance(piece, asyncio.Event):
                        await piece.wait()
                    elif isinstance(piece, (int, float)):
                        await asyncio.sleep(piece)
                    else:
                        writer.write(piece)
                        await writer.drain()


async def read_chunks(reader):
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


class Rig:
    """A gateway in front of a recording API."""

    def __init__(self, answer=None, **settings):
        self.loop = Loop()
        self.api = RecordingApi(answer)
        self.loop.run(self.api.start())
        keys = settings.pop("keys", None)
        if "rates" in settings:
            settings["rates"] = rates_of(settings["rates"])
        settings.setdefault("upstreams", (upstream("", self.api.url),))
        settings.setdefault("listen", "127.0.0.1:0")

        async def start():
            gateway = Gateway(Settings(**settings), keys=keys)
            await gateway.start()
            return gateway

        self.gateway = self.loop.run(start())
        self.url = self.gateway.url
        self.port = int(self.url.rpartition(":")[2])

    def close(self):
        self.loop.run(self.gateway.close())
        self.loop.run(self.api.close())
        self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    @property
    def last(self):
        return self.api.requests[-1]

    def raw(self, data, timeout=5):
        """Send bytes and read one response: (status line, header pairs, body as framed)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(data)
            return read_response(connection, data.split(b" ", 1)[0])

    def ask(self, method, target, headers=(), body=b"", host=None):
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}", *headers]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        return self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)


class Response:
    def __init__(self, status, pairs, body):
        self.status, self.pairs, self.body = status, pairs, body
        self.headers = {name.lower(): value for name, value in pairs}

    def json(self):
        return json.loads(self.body)


def read_response(connection, method=b"GET"):
    file = connection.makefile("rb")
    while True:
        status = int(file.readline().split(b" ", 2)[1])
        pairs = []
        while (line := file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").rstrip("\r\n").partition(": ")
            pairs.append((name, value))
        if status >= 200:
            break
    headers = {name.lower(): value for name, value in pairs}
    if method == b"HEAD" or status in (204, 304):
        body = b""
    elif headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
    elif "content-length" in headers:
        body = file.read(int(headers["content-length"]))
    else:
        body = file.read()
    return Response(status, pairs, body)
