"""`headgate run` beside bare aiohttp: the same requests, the same number of connections, the same server.

The server is a process of its own that states no limits: one by aiohttp, as people write them, and one by
hand that takes hardly any time, so that the client alone is measured. Each candidate is a process too, and
sends a short file and a long one; the difference between the two is what is reported, so that loading Python
counts for neither. Bare aiohttp posts the same bytes, reads each body, parses nothing and writes nothing.
Rounds go forwards and backwards in turn, and the ratio is the median of those within a round.

Then a file of a million lines: how soon the first answer is written, and the most memory of the command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from measure import against, number, table

CONNECTIONS = 100
RATE = "60_000_000/minute"  # no limit that matters, given, so that none is looked for
SHORT, LONG = 1_000, 9_000
MESSAGE = {"role": "assistant", "content": "word " * 60}
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 60, "total_tokens": 100},
    }
).encode()  # fmt: skip
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_1\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
)


class Took(NamedTuple):
    """Seconds of the wall clock and of the processor."""

    wall: float
    cpu: float


# -- the server, and bare aiohttp, each in its own process


class Answering(asyncio.Protocol):
    """Answers every complete request at once, pipelined or not."""

    def connection_made(self, transport):
        self._transport = transport
        self._got = b""

    def data_received(self, data):
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._got) < end + 4 + length:
                return
            self._got = self._got[end + 4 + length :]
            self._transport.write(RESPONSE)


async def serve_by_aiohttp():
    from aiohttp import web

    async def answer(request):
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json", headers={"x-request-id": "req_1"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def serve():
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def bare(path, url):
    from aiohttp import ClientSession, TCPConnector

    bodies = iter(bodies_beside(Path(path)).read_bytes().splitlines())
    headers = {"content-type": "application/json"}

    async def work(session):
        for body in bodies:
            async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                assert len(await response.read()) == len(ANSWER)

    async with ClientSession(connector=TCPConnector(limit=CONNECTIONS)) as session:
        await asyncio.gather(*(work(session) for _ in range(CONNECTIONS)))


# -- measuring


def bodies_beside(path):
    """The bodies of a file of jobs, one a line: bare aiohttp has nothing to parse."""
    return path.with_suffix(".bodies")


def write_jobs(path, count):
    with path.open("w") as file, bodies_beside(path).open("w") as bodies:
        for n in range(count):
            content = f"Classify the review number {n}: " + "it was fine and it worked as promised. " * 5
            body = {"model": "m", "max_tokens": 60, "messages": [{"role": "user", "content": content}]}
            url = "/v1/chat/completions"
            print(json.dumps(body), file=bodies)
            print(
                json.dumps({"custom_id": f"job-{n}", "method": "POST", "url": url, "body": body}), file=file
            )
    return path


def took(command):
    began = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0, command
    return Took(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


def for_one(command, files):
    """What one request takes: the long file less the short one."""
    short, long = (took(command(path)) for path in files)
    return Took(*((b - a) / (LONG - SHORT) for a, b in zip(short, long, strict=True)))


def side_by_side(url, folder, rounds, server):
    files = [write_jobs(folder / f"jobs-{count}.jsonl", count) for count in (SHORT, LONG)]

    def command(path):
        output = folder / "answers.jsonl"
        output.unlink(missing_ok=True)
        words = ["run", path, "--to", url, "-o", output, "--concurrency", CONNECTIONS, "--rate", RATE, "-q"]
        return [sys.executable, "-m", "headgate", *map(str, words)]

    ways = {
        "bare aiohttp": lambda path: [sys.executable, __file__, "bare", str(path), url],
        "headgate run": command,
    }
    rounds_of = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            rounds_of[name].append(for_one(ways[name], files))
    floor, ours = rounds_of.values()
    ratio = median(theirs.wall / mine.wall for theirs, mine in zip(floor, ours, strict=True))
    cpu = min(mine.cpu for mine in ours) * 1e3
    rows = []
    for name, each in rounds_of.items():
        fastest, cheapest = min(one.wall for one in each), min(one.cpu for one in each)
        row = [name, f"{1 / fastest:,.0f}", f"{cheapest * 1e3:.3f}", "", ""]
        if name == "headgate run":
            row[3] = f"{ratio:.2f}, {against(ratio, 0.75, at_most=False)}"
            row[4] = against(cpu, 0.35)
        rows.append(row)
    table(
        (
            f"{CONNECTIONS} connections, {server}",
            "requests/s, best",
            "CPU ms each, best",
            "throughput",
            "CPU",
        ),
        rows,
    )


def a_million(url, folder, count):
    jobs, output = write_jobs(folder / "many.jsonl", count), folder / "many.answers.jsonl"
    words = ["run", jobs, "--to", url, "-o", output, "--concurrency", CONNECTIONS, "--rate", RATE, "-q"]
    began = time.perf_counter()
    run = subprocess.Popen([sys.executable, "-m", "headgate", *map(str, words)])
    while not output.exists() or not output.stat().st_size:
        time.sleep(0.005)
    first = time.perf_counter() - began
    _, status, usage = os.wait4(run.pid, 0)
    run.returncode = status
    seconds, most = time.perf_counter() - began, usage.ru_maxrss / 1024
    with output.open("rb") as file:
        answers = sum(1 for _ in file)
    again = subprocess.Popen([sys.executable, "-m", "headgate", *map(str, words)])
    _, _, resumed = os.wait4(again.pid, 0)
    again.returncode = 0
    table(
        (f"{count:,} lines", "figure", "target"),
        [
            ("answers", f"{answers:,}", "met" if answers == count and not status else "MISSED"),
            ("first answer, s", number(first), against(first, 3)),
            ("most memory, MB", number(most), against(most, 80)),
            ("most memory when all are answered, MB", number(resumed.ru_maxrss / 1024), ""),
            ("all, s", number(seconds), ""),
        ],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--lines", type=int, default=None)
    options = parser.parse_args()
    if options.words[:1] == ["serve"]:
        asyncio.run(serve_by_aiohttp() if options.words[1:] == ["aiohttp"] else serve())
    elif options.words[:1] == ["bare"]:
        asyncio.run(bare(*options.words[1:]))
    else:
        rounds = 2 if options.quick else 6
        lines = options.lines if options.lines is not None else 20_000 if options.quick else 1_000_000
        with tempfile.TemporaryDirectory() as folder:
            with serving("aiohttp") as url:
                side_by_side(url, Path(folder), rounds, "server by aiohttp")
            with serving() as url:
                side_by_side(url, Path(folder), rounds, "server by hand")
                if lines:
                    a_million(url, Path(folder), lines)


@contextmanager
def serving(*words):
    server = subprocess.Popen([sys.executable, __file__, "serve", *words], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
