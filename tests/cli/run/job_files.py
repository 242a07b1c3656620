"""Files of jobs and of answers, and runs without a network, for the tests of `headgate run`."""

import asyncio
import json

from headgate.cli.run.wire import RawReply
from headgate.testing import FakeProvider


def write_jobs(path, count, **body):
    with path.open("w") as file:
        for number in range(count):
            messages = [{"role": "user", "content": f"question {number}"}]
            document = {
                "custom_id": f"job-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "max_tokens": 20, "messages": messages, **body},
            }
            print(json.dumps(document), file=file)
    return path


def job_ids(count):
    return sorted(f"job-{number}" for number in range(count))


def answers_of(path):
    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def answered_ids(path):
    return sorted(document["custom_id"] for document in answers_of(path))


def count_answers(path):
    """How many whole lines there are by now, while a run may be writing one more."""
    return path.read_bytes().count(b"\n")


class InlineWriter:
    """Writes each line when it comes: where time is virtual, a thread would run outside of it."""

    busy = False
    unwritten = 0

    def put(self, sink, content, written):
        try:
            sink.write(content)
        except OSError as error:
            written(content, error)
        else:
            written(content, None)

    async def drained(self):
        pass

    def close(self):
        pass


class Network:
    """Carries requests to an API in virtual time, until it is cut.

    A request takes a while, so that all requests in flight are refused together and not one after the other.
    """

    def __init__(self, api: FakeProvider, timeout=20.0):
        self.api = api
        self.cut = False
        self._timeout = timeout

    async def send(self, method, url, body):
        if self.cut:
            raise ConnectionRefusedError("connection refused")
        async with asyncio.timeout(self._timeout):
            await asyncio.sleep(0.01)
            path = "/" + url.split("/", 3)[3]
            reply = await self.api.call_async(method, path, headers=(), body=body or b"")
        return RawReply(reply.status, dict(reply.headers), reply.body)

    async def close(self):
        pass
