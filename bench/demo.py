"""Three hundred calls to an API that allows 80 a second and breaks down halfway.

A small HTTP server on this machine plays the API: it counts requests in a token bucket, answers
429 with Retry-After to what is too much, and once, in the middle, refuses everything for a second.
Eight threads and an event loop call it at the same time: first through one shared Dispatch,
then the way it is often done, by trying again a little later. Nothing is simulated but the API.

Exit status: 0 if every job was answered, 1 if not.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from headgate import BackoffWindow, Dispatch
from headgate.events import WindowSet
from headgate.http import parse_retry_after
from headgate.verdict import throttled
from measure import table

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message
    from typing import Self

    from headgate.events import Event

HOST = "127.0.0.1"
JOBS = 300  # half of them by threads, half by tasks
THREADS = 8
RATE, BURST = 80, 20  # what the API allows
OUTAGE_AFTER, OUTAGE = 150, 1.0  # so many answers, so many seconds
WORK = 0.04  # seconds the API takes for an answer
PATIENCE = 30.0  # seconds after which a job is given up
RETRY_DELAY = 0.25  # of the callers without a gate


# -- the API


class Api(ThreadingHTTPServer):
    """Knows how many it has let through, and whom to send away."""

    request_queue_size = 512  # a crowd that connects at once must reach us to be refused
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), Answer)
        self.port = self.server_address[1]
        self.answered = self.refused = 0
        self._lock = threading.Lock()
        self._level, self._seen = float(BURST), time.monotonic()
        self._outage_ends: float | None = None

    def allows(self) -> bool:
        """Judge one request, and count it."""
        with self._lock:
            now = time.monotonic()
            self._level = min(BURST, self._level + (now - self._seen) * RATE)
            self._seen = now
            if self._outage_ends is None and self.answered == OUTAGE_AFTER:
                self._outage_ends = now + OUTAGE
            if self._level < 1 or (self._outage_ends is not None and now < self._outage_ends):
                self.refused += 1
                return False
            self._level -= 1
            self.answered += 1
            return True

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        if self.server.allows():
            time.sleep(WORK)
            self.send_response(200)
        else:
            self.send_response(429)
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass  # the demo has its own way of telling


# -- calling it, in both worlds


def fetch(port: int, job: int) -> tuple[int, Message]:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    try:
        connection.request("GET", f"/jobs/{job}")
        response = connection.getresponse()
        return response.status, response.headers
    finally:
        connection.close()


async def fetch_async(port: int, job: int) -> tuple[int, Message]:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"GET /jobs/{job} HTTP/1.0\r\n\r\n".encode())
        answer = io.BytesIO(await reader.read())
    finally:
        writer.close()
        await writer.wait_closed()
    return int(answer.readline().split()[1]), http.client.parse_headers(answer)


# -- with a gate


class Gated:
    """Everybody asks the gate; whoever is refused tells it, and then nobody goes for a while."""

    def __init__(self, port: int, status: Status) -> None:
        self.port = port
        self._status = status
        # Our bursts are half of what the API allows: on the way there, calls bunch up a little.
        self.gate = Dispatch(
            "api",
            rates=f"{RATE}/s burst {BURST // 2}",
            concurrency=32,
            window=BackoffWindow(spread=0.2),
            pause=True,
            backoff_window=1.0,
            observer=self.hear,
        )

    def call(self, job: int) -> bool:
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            with self.gate.admit(timeout=PATIENCE) as permit:
                status, headers = fetch(self.port, job)
                if status == 200:
                    return True
                permit.settle(verdict=throttled(parse_retry_after(headers)))
        return False

    async def call_async(self, job: int) -> bool:
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            async with self.gate.admit(timeout=PATIENCE) as permit:
                status, headers = await fetch_async(self.port, job)
                if status == 200:
                    return True
                permit.settle(verdict=throttled(parse_retry_after(headers)))
        return False

    def hear(self, event: Event) -> None:
        if isinstance(event, WindowSet):
            self._status.tell(f"the API said 429: nobody goes for {event.duration:.1f} s")

    def describe(self) -> str:
        now = self.gate.snapshot()
        held = f"held by {now.binding}" if now.binding else "letting in" if now.waiting else "free"
        return f"{now.in_flight:3} in flight   {now.waiting:3} waiting   {held}"


# -- and without


class Ungated:
    """Everybody for themselves: call, and if refused call again a little later."""

    def __init__(self, port: int, _status: Status) -> None:
        self.port = port

    def call(self, job: int) -> bool:
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            if fetch(self.port, job)[0] == 200:
                return True
            time.sleep(RETRY_DELAY)
        return False

    async def call_async(self, job: int) -> bool:
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            if (await fetch_async(self.port, job))[0] == 200:
                return True
            await asyncio.sleep(RETRY_DELAY)
        return False

    def describe(self) -> str:
        return ""


# -- showing it


class Status:
    """One line that keeps changing in a terminal; a line each half second anywhere else."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._live = sys.stdout.isatty()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._describe: Callable[[], str] = str
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def follow(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._show()
        if self._live:
            print()

    def tell(self, what: str) -> None:
        """Something happened that is worth a line of its own."""
        with self._lock:
            print(f"{self._clear()}  {self._elapsed()}   {what}", flush=True)

    def _watch(self) -> None:
        while not self._over.wait(0.1 if self._live else 0.5):
            self._show()

    def _show(self) -> None:
        api = self._api
        filled = 24 * api.answered // JOBS
        text = (
            f"  {self._elapsed()}   {'█' * filled}{'·' * (24 - filled)} {api.answered:3}/{JOBS}"
            f"   {api.refused:4} × 429   {self._describe()}"
        )
        with self._lock:
            print(self._clear() + text.rstrip(), end="" if self._live else "\n", flush=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:4.1f} s"

    def _clear(self) -> str:
        return "\r\x1b[2K" if self._live else ""


# -- the two runs


class Outcome(NamedTuple):
    answered: int  # jobs
    sent: int  # requests
    refused: int
    seconds: float


def drive(kind: type[Gated | Ungated]) -> Outcome:
    """Do all jobs, half in threads and half in tasks, at the same time."""
    with Api() as api:
        status = Status(api)
        caller = kind(api.port, status)

        async def tasks() -> list[bool]:
            return await asyncio.gather(*(caller.call_async(job) for job in range(JOBS // 2, JOBS)))

        began = time.monotonic()
        status.follow(caller.describe)
        with ThreadPoolExecutor(THREADS) as pool:
            in_threads = pool.map(caller.call, range(JOBS // 2))
            results = [*asyncio.run(tasks()), *in_threads]
        seconds = time.monotonic() - began
        status.close()
        return Outcome(sum(results), api.answered + api.refused, api.refused, seconds)


def main() -> int:
    print(f"An API that allows {RATE} calls a second, {BURST} at once, and fails for {OUTAGE:g} s halfway.")
    print(f"{JOBS} jobs, from {THREADS} threads and {JOBS // 2} asyncio tasks at the same time.\n")
    print("Through one headgate.Dispatch:")
    gated = drive(Gated)
    print(f"\nWithout it, trying again every {RETRY_DELAY} s:")
    ungated = drive(Ungated)

    # The bucket is full at the start, and again after the outage.
    ideal = (JOBS - 2 * BURST) / RATE + OUTAGE + WORK
    table(
        ("", "jobs answered", "requests sent", "429s", "seconds", "× ideal"),
        (
            (
                name,
                f"{run.answered}/{JOBS}",
                run.sent,
                run.refused,
                f"{run.seconds:.1f}",
                f"{run.seconds / ideal:.2f}",
            )
            for name, run in (("with headgate", gated), ("trying again", ungated))
        ),
    )
    print(f"Ideal: {ideal:.1f} s, if the API were never idle while it allows calls, and never refused one.")
    return 0 if gated.answered == ungated.answered == JOBS else 1


if __name__ == "__main__":
    sys.exit(main())
