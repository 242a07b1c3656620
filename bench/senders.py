"""The clients that goodput.py compares, each in a process of its own: `python senders.py '{"client": …}'`.

Every client has the same number of workers, which take the same jobs from one queue and put back what was
not answered. All but the OpenAI SDK send with the same httpx2 client, so that only what they do before a
call and after a refusal differs:

- OpenAI SDK: the real package, with `max_retries=10` instead of 2, so that few jobs have to be put back. It
  waits as long as Retry-After says, else 0.5, 1, 2 … 8 s less up to a quarter.
- tenacity: `wait_exponential_jitter(initial=1, max=60)`, ten attempts. It does not look at the response.
- sleep Retry-After: the worker sleeps as long as the header says, else 1 s, and sends again.
- aiolimiter: one limiter with the true limit and burst for all workers; after a refusal as above.
- aiolimiter × 2: two processes share the key, each with half of the workers and of the jobs. Each has a
  limiter that is set to the true limit, since neither process knows of the other.
- AIMD: calls are spaced evenly. The rate grows by one call a second each second, and a refusal halves it, at
  most once a second. It begins with the true rate and stays below it, or with 10 a second if that is unknown.
- headgate: `AsyncTransport(Dispatch(rates="3000/minute", pause=True), retries=10)`; `rates="auto"` if the
  limit is unknown.

The process says "ready", waits for a line on stdin, sends all jobs, and prints what it took as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import deque
from typing import Any, NamedTuple

import httpx2

from headgate import Rate

PATH = "/v1/chat/completions"
QUESTION: dict[str, Any] = {
    "model": "bench",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "How much water may come in?"}],
}
BODY = json.dumps(QUESTION).encode()
TRIES = 10


class Task(NamedTuple):
    """What a client is told on its command line."""

    client: str
    url: str
    jobs: int
    workers: int
    seconds: float  # it gives up after that
    limit: str | None = (
        None  # the limit that the API has, as a rate with its burst, if the client may know it
    )


class Sender:
    """Workers that post jobs by httpx2. A subclass says what happens around a call."""

    def __init__(self, task: Task) -> None:
        self.limit = None if task.limit is None else Rate.parse(task.limit)
        self.client = self.connect(task)

    def connect(self, task: Task) -> Any:
        return self.http(task)

    def http(self, task: Task, **options: Any) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"content-type": "application/json"}
        return httpx2.AsyncClient(
            base_url=task.url, limits=limits, timeout=60, headers=headers, trust_env=False, **options
        )

    async def post(self) -> httpx2.Response:
        reply: httpx2.Response = await self.client.post(PATH, content=BODY)
        return reply

    async def send(self) -> bool:
        """Send one job; False if it was given up."""
        raise NotImplementedError

    async def close(self) -> None:
        await self.client.aclose()


class OpenAISDK(Sender):
    def connect(self, task: Task) -> Any:
        import openai

        self.given_up = openai.APIError
        return openai.AsyncOpenAI(base_url=f"{task.url}/v1", api_key="any", max_retries=TRIES)

    async def send(self) -> bool:
        try:
            await self.client.chat.completions.create(**QUESTION)
        except self.given_up:
            return False
        return True

    async def close(self) -> None:
        await self.client.close()


class Tenacity(Sender):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import tenacity

        self.given_up = tenacity.RetryError
        self.retrying = tenacity.retry(
            wait=tenacity.wait_exponential_jitter(initial=1, max=60),
            stop=tenacity.stop_after_attempt(TRIES),
            retry=tenacity.retry_if_result(lambda reply: reply.status_code != 200),
        )(self.post)

    async def send(self) -> bool:
        try:
            await self.retrying()
        except self.given_up:
            return False
        return True


class SleepRetryAfter(Sender):
    async def send(self) -> bool:
        for _ in range(TRIES):
            reply = await self.post()
            if reply.status_code == 200:
                return True
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
        return False


class AioLimiter(SleepRetryAfter):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import aiolimiter

        assert self.limit is not None
        seconds = self.limit.burst * self.limit.per_ns / self.limit.amount / 1e9
        self.limiter = aiolimiter.AsyncLimiter(self.limit.burst, seconds)

    async def post(self) -> httpx2.Response:
        async with self.limiter:
            pass
        return await super().post()


class Aimd(Sender):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rate = 10.0 if self.limit is None else self.limit.amount / self.limit.per_ns * 1e9
        self.most = float("inf") if self.limit is None else self.rate
        self.next = self.cut_at = 0.0

    async def send(self) -> bool:
        for _ in range(TRIES):
            now = time.monotonic()
            self.next = max(now, self.next + 1 / self.rate)
            await asyncio.sleep(self.next - now)
            sent = time.monotonic()
            reply = await self.post()
            if reply.status_code == 200:
                self.rate = min(self.most, self.rate + 1 / self.rate)
                return True
            now = time.monotonic()
            if sent > self.cut_at and now >= self.cut_at + 1:
                self.rate = max(1.0, self.rate / 2)
                self.cut_at = now
        return False


class Headgate(Sender):
    def connect(self, task: Task) -> Any:
        from headgate import Dispatch
        from headgate.http.httpx import AsyncTransport

        rates = "auto" if self.limit is None else f"{self.limit.amount}/{self.limit.name.partition('/')[2]}"
        gate = Dispatch("bench", rates=rates, concurrency=task.workers, pause=True)
        return self.http(task, transport=AsyncTransport(gate, retries=TRIES))

    async def send(self) -> bool:
        return (await self.post()).status_code == 200


SENDERS: dict[str, type[Sender]] = {
    "headgate": Headgate,
    "OpenAI SDK": OpenAISDK,
    "tenacity": Tenacity,
    "sleep Retry-After": SleepRetryAfter,
    "aiolimiter": AioLimiter,
    "aiolimiter × 2": AioLimiter,
    "AIMD": Aimd,
}
NEED_A_LIMIT = frozenset({"aiolimiter", "aiolimiter × 2"})


async def work(sender: Sender, todo: deque[int], done: list[int]) -> None:
    while todo:
        job = todo.popleft()
        if await sender.send():
            done.append(job)
        else:
            todo.append(job)


async def run(task: Task) -> dict[str, float]:
    sender = SENDERS[task.client](task)
    todo, done = deque(range(task.jobs)), list[int]()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began, cpu = time.monotonic(), time.process_time()
    workers = [asyncio.create_task(work(sender, todo, done)) for _ in range(task.workers)]
    finished, late = await asyncio.wait(workers, timeout=task.seconds, return_when=asyncio.FIRST_EXCEPTION)
    figures = {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "answered": len(done),
    }
    for worker in late:
        worker.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for worker in finished:
        worker.result()  # raises what went wrong
    await sender.close()
    return figures


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # every refusal would be a line on the terminal
    print(json.dumps(asyncio.run(run(Task(**json.loads(sys.argv[1]))))), flush=True)
