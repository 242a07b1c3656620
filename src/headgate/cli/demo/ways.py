"""Three ways to send the same jobs, each written as it would be outside of a demo."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from time import monotonic

import httpx2

from ...dispatch.dispatch import Dispatch
from ...gate.clock import SYSTEM
from ...responses import parse_retry_after
from ..run.figures import Tally
from ..run.jobs import Lines, Target
from ..run.journal import Journal
from ..run.options import Settings
from ..run.runner import Runner

REQUESTS, TOKENS = 3_600, 1_440_000  # the limits of the API, for a minute
PATH = "/v1/chat/completions"
_WORKERS = 64


class Way:
    """One way to send jobs: its name, how it works, and how far it has come.

    Unless it says otherwise, 64 workers take jobs from the file and try each of them ten times.
    """

    name = does = ""

    def __init__(self) -> None:
        self._random = Random(1).random  # noqa: S311 - the same in every demo
        self.tally = Tally(SYSTEM)

    async def send_all(self, jobs: Path, url: str) -> None:
        todo = (json.dumps(json.loads(line)["body"]).encode() for _, line in Lines(jobs))
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"content-type": "application/json"}
        async with httpx2.AsyncClient(
            base_url=url, limits=limits, timeout=60, headers=headers, trust_env=False
        ) as client:
            await asyncio.gather(*(self._work(todo, client) for _ in range(_WORKERS)))

    async def _work(self, todo: Iterator[bytes], client: httpx2.AsyncClient) -> None:
        for body in todo:
            for attempt in range(10):
                await self._wait_for_turn()
                self.tally.sent += 1
                reply = await client.post(PATH, content=body)
                if reply.status_code == 200:
                    self.tally.answered += 1
                    break
                await asyncio.sleep(self._delay(attempt, reply))

    async def _wait_for_turn(self) -> None:
        pass

    def _delay(self, attempt: int, reply: httpx2.Response) -> float:
        raise NotImplementedError


class Naive(Way):
    """Send, and after a failure wait a little longer each time and send again."""

    name = "trying again"
    does = "64 workers; after a failure wait 0.25, 0.5, 1 … 8 s, and at most 10 tries"

    def _delay(self, attempt: int, reply: httpx2.Response) -> float:  # noqa: ARG002 - it does not look at it
        return min(8.0, 0.25 * 2.0**attempt) * (0.5 + self._random())


class Usual(Way):
    """As careful programs do it: a limiter for the requests a minute, and retries that heed Retry-After."""

    name = "limiter and retries"
    does = "64 workers behind a limiter set to the requests a minute; retries heed Retry-After"
    _next = 0.0

    async def _wait_for_turn(self) -> None:
        now = monotonic()
        self._next = max(now, self._next + 60 / REQUESTS)
        await asyncio.sleep(self._next - now)

    def _delay(self, attempt: int, reply: httpx2.Response) -> float:
        wait = parse_retry_after(reply.headers, default=min(8.0, 0.5 * 2.0**attempt))
        return wait * (1 + 0.25 * self._random())


class Gated(Way):
    """As `headgate run --rate 3600/minute --rate '1_440_000 tokens/minute'` does it."""

    name = "headgate"
    does = "as `headgate run` does it, with --rate for requests and for tokens"

    async def send_all(self, jobs: Path, url: str) -> None:
        gate = Dispatch(
            "demo",
            rates=[f"{REQUESTS}/minute", f"{TOKENS} tokens/minute"],
            concurrency=_WORKERS,
            throttled_concurrency="adaptive",
            pause=True,
            byte_budget=None,
        )
        journal, source = Journal.open(jobs.with_suffix(".answers.jsonl")), Lines(jobs)
        with closing(journal), closing(source):
            runner = Runner(source, Target(url), gate, journal, settings=Settings(concurrency=_WORKERS))
            self.tally = runner.tally
            await runner.run()
