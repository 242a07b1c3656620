"""A day of a gateway in virtual time: clients that are held are answered, refused, hang up or time out."""

import asyncio
import gc
import tracemalloc
from collections import Counter
from contextlib import suppress
from random import Random

from gateway.answers import answer_to
from gateway.rig import RecordingApi, reply
from headgate.gateway.app import Gateway
from headgate.gateway.settings import Settings, rates_of
from headgate.gateway.upstreams import upstream
from headgate.testing import run

HOUR = 3600
PER_HOUR = 130  # calls that come; the gateway lets 100 through
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
STREAM = CHAT[:-1] + b', "stream": true}'
KINDS = [
    ("/v1/messages", ["user-agent: claude-cli/2"], STREAM),  # kept by events
    ("/v1/responses", ["user-agent: codex_exec/0"], STREAM),  # kept by comments
    ("/v1/chat/completions", ["x-stainless-lang: python"], CHAT),  # kept by interim responses
    ("/v1/chat/completions", ["user-agent: python-requests/2"], CHAT),  # kept in silence
]
REFUSAL = b'{"error": {"message": "slow down"}}'


class Api(RecordingApi):
    """Takes some seconds for each call; refuses a few, sometimes for longer than a client may wait."""

    def __init__(self, random):
        super().__init__(self._answer)
        self._random = random
        self.answers = Counter()

    def _answer(self, request):
        self.requests.clear()
        chance = self._random.random()
        status = 429 if chance < 0.03 else 200
        self.answers[status] += 1
        if status == 429:
            seconds = 100 if chance < 0.01 else 20
            fields = ("application/json", f"Retry-After: {seconds}")
            return [1.0, closing(reply(REFUSAL, "429 Too Many Requests", *fields)), None]
        return [self._random.uniform(1, 20), closing(answer_to(request)), None]


def closing(answer):
    """An answer on a connection that ends: aiohttp keeps others for 15 s of real time."""
    return answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


class Day:
    """The clients, and what became of them."""

    def __init__(self, clock, gateway, random):
        self.clock, self.gateway, self._random = clock, gateway, random
        self.ends = Counter()
        self.sent = 0
        self._running = set()

    async def hours(self, hours):
        """Clients come for some hours; then all of them have their end."""
        for _ in range(round(hours * PER_HOUR)):
            await asyncio.sleep(self._random.expovariate(PER_HOUR / HOUR))
            task = asyncio.create_task(self._client())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            self.sent += 1
        await asyncio.gather(*self._running)
        # Connections that nothing uses are closed. The longest backoff window ends, and the lease of the last
        # response that was read in pieces: each of them has a timer.
        await asyncio.sleep(660)

    async def _client(self):
        random = self._random
        path, fields, body = random.choice(KINDS)
        fields = [*fields, f"x-headgate-tenant: tenant {self.sent}", "Host: localhost", "Connection: close"]
        if (chance := random.random()) < 0.2:
            fields.append(f"x-headgate-timeout: {random.uniform(1, 60):.1f}")
        leaves = random.uniform(0.1, 120) if chance > 0.8 else None
        port = int(self.gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "\r\n".join([f"POST {path} HTTP/1.1", *fields, f"Content-Length: {len(body)}", "", ""])
        writer.write(head.encode() + body)
        try:
            async with asyncio.timeout(leaves):
                self.ends[end_of(await reader.read())] += 1
        except TimeoutError:
            self.ends["hung up"] += 1
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def end_of(response):
    """What a client took for its answer."""
    while response.startswith(b"HTTP/1.1 102"):
        response = response.partition(b"\r\n\r\n")[2]
    head, _, body = response.partition(b"\r\n\r\n")
    if b"headgate waited" in body:
        return "refused in the stream" if head.startswith(b"HTTP/1.1 200") else "refused"
    if b"slow down" in body:
        return "refused by the API"
    assert b"hello" in body, response
    return "answered after signs of life" if b"x-headgate: waiting" in head else "answered"


class Held:
    """How much there is in this process of all that waiting needs."""

    def __init__(self, clock, gateway):
        for _ in range(3):
            gc.collect()
        gate = gateway.gates()[0]
        state = gate.snapshot()
        kept = [
            each for each in gc.get_objects() if not (isinstance(each, asyncio.Handle) and each.cancelled())
        ]
        self.objects = Counter(type(each).__name__ for each in kept)
        self.facts = {
            "tasks": len(asyncio.all_tasks()),
            "timers of the clock": clock.timers,
            "in flight": state.in_flight,
            "waiting": state.waiting,
            "waiting at the gateway": len(gateway.waiting),
            "requests": gateway.active,
            "gates": len(gateway.gates()),
            "windows": len(gateway.counts.windows),
            **{name: self.objects[name] for name in KEPT},
        }
        del kept
        self.bytes = tracemalloc.get_traced_memory()[0]  # with what this object takes


# What lives as long as a call: relays, admissions and permits, tickets in line, tenants, timers, connections.
KEPT = (
    "Relay",
    "GatewayCall",
    "GatewayAdmission",
    "Admission",
    "Permit",
    "Ticket",
    "Tenant",
    "UpstreamAnswer",
    "OpenResponse",
    "TimerHandle",
    "RelayedResponse",
    "BaseRequest",
    "RequestHandler",
    "StreamReader",
)


def test_24_hours_of_held_clients_in_virtual_time_leave_nothing_behind(caplog):
    caplog.set_level("ERROR", "headgate")  # what is logged is kept by pytest

    async def main(clock):
        random = Random(24)
        api = Api(random)
        await api.start()
        settings = Settings(
            upstreams=(upstream("", api.url),),
            listen="127.0.0.1:0",
            rates=rates_of(["100/hour burst 3"]),
            concurrency=2,
        )
        async with Gateway(settings, clock=clock) as gateway:
            day = Day(clock, gateway, random)
            await day.hours(3)
            Held(clock, gateway)  # looking at an object fills caches
            await day.hours(1)  # by now the page has as many steps as it keeps
            first, before = Held(clock, gateway), Held(clock, gateway)
            itself = before.bytes - first.bytes
            day.ends.clear()
            sent, began = day.sent, clock.seconds()
            await day.hours(24)
            after = Held(clock, gateway)
        await api.close()
        assert clock.seconds() - began >= 24 * HOUR * 0.95
        assert day.sent - sent == sum(day.ends.values()) == 24 * PER_HOUR
        kinds = {"refused", "refused in the stream", "answered", "answered after signs of life", "hung up"}
        assert {end for end, count in day.ends.items() if count > 100} >= kinds, day.ends
        assert api.answers[429] > 20
        assert after.facts == before.facts, day.ends
        assert (after.facts["tasks"], after.facts["in flight"], after.facts["waiting"]) == (1, 0, 0)
        grown = {name: more for name, more in (after.objects - before.objects).items() if more > 20}
        assert grown == {}, day.ends
        # What is left is bounded: the last errors, the waits of the last hour, free lists of the interpreter.
        assert after.bytes - before.bytes - itself < 30_000, "3,120 calls, so less than 10 bytes a call"

    gc.collect()
    gc.freeze()  # what earlier tests left is not counted: it may end meanwhile
    tracemalloc.start()
    try:
        run(main)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
