"""A server, its replies and callers of both kinds for tests of headgate.http, without a client library."""

import asyncio
import json

from headgate import Backoff, Dispatch
from headgate.testing import ManualClock, Recorder

URL = "https://api.example/v1/chat/completions"
BODY = json.dumps(
    {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
).encode()
MESSAGES = "https://api.example/v1/messages"
USAGE = json.dumps({"usage": {"input_tokens": 30, "output_tokens": 12}}).encode()
SECOND_BACKOFF = Backoff(1, cap=60)


class Reply:
    """A response without a library. Its body is complete, or a stream that the test feeds."""

    def __init__(self, status=200, body=b"{}", *, stream=False, **headers):
        self.status = status
        self.body = body
        self.stream = stream
        self.headers = {"content-type": "application/json"}
        self.headers |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
        self.reading = None
        self.dropped = False
        self.final = False

    @property
    def header_pairs(self):
        return self.headers

    def read_error(self):
        return self.body

    def watch(self, reading):
        self.reading = reading
        if self.stream:
            reading.keep()
        else:
            reading.chunk(self.body)
            reading.end(whole=True)

    def forbid_retries(self):
        self.final = True

    def drop(self):
        self.dropped = True


class AsyncReply:
    """A Reply for tasks."""

    def __init__(self, reply):
        self.reply = reply
        self.status, self.headers, self.header_pairs = reply.status, reply.headers, reply.header_pairs
        self.watch, self.forbid_retries = reply.watch, reply.forbid_retries

    async def read_error(self):
        return self.reply.read_error()

    async def drop(self):
        self.reply.drop()


class FarSide:
    """A server that replies or raises one outcome after the other, and records the times of the requests."""

    def __init__(self, clock, *outcomes):
        self.clock = clock
        self.outcomes = list(outcomes)
        self.asked_at = []

    def send(self):
        self.asked_at.append(self.clock.seconds())
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class World:
    def __init__(self, colour):
        self.colour = colour
        self.clock = ManualClock(auto_advance=True)
        self.seen = Recorder()

    def gate(self, *rates, **options):
        return Dispatch("api", rates=rates, clock=self.clock, observer=self.seen, **options)

    def ask(self, exchange, far_side, url=URL, body=BODY, method="POST", headers=None):
        headers = {} if headers is None else headers
        if self.colour == "sync":
            return exchange.run(method, url, headers, body, far_side.send)

        async def send():
            return AsyncReply(far_side.send())

        async def main():
            return (await exchange.run_async(method, url, headers, body, send)).reply

        return asyncio.run(main())


def levels(gate):
    return {rate.unit: rate.level for rate in gate.snapshot().rates}
