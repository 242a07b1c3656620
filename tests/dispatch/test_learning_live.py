"""A Dispatch that learns its limits from a simulated API, in virtual time."""

import asyncio
import json
import random

import pytest

from headgate import Dispatch
from headgate.http import read_signal
from headgate.testing import FakeProvider, run

BODY = json.dumps({"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}).encode()
TEN_A_SECOND = "600/minute burst 10"


class Drain:
    """Workers that call a simulated API until `calls` calls are done, or until a moment."""

    def __init__(self, *, rates, calls=300, workers=50, until=None, script=(), seed=1, **provider):
        self.calls, self.until, self.script = calls, until, script
        self.workers, self.rates, self.seed = workers, rates, seed
        self.provider = {"style": "openai", "requests": TEN_A_SECOND, **provider}
        self.done = []  # the moments of success
        self.sent = self.refused = self.lost = 0
        run(self._main)

    async def _main(self, clock):
        self.clock = clock
        self.api = FakeProvider(clock=clock, **self.provider)
        dice = random.Random(self.seed).random
        self.gate = Dispatch("api", rates=self.rates, pause=True, clock=clock, random=dice)
        for when, act in self.script:
            clock.at(when, lambda act=act: act(self.api))
        self.left = self.calls
        await asyncio.gather(*(self._work() for _ in range(self.workers)))
        self.report = self.api.report()
        self.seconds = clock.seconds()

    async def _work(self):
        while self.left and (self.until is None or self.clock.seconds() < self.until):
            self.left -= 1
            while not await self._call():
                pass

    async def _call(self):
        async with self.gate.admit(tokens=60):
            sent_at = self.clock.seconds()
            self.sent += 1
            try:
                reply = await self.api.call_async("POST", "/v1/chat/completions", body=BODY)
            except ConnectionError:
                self.lost += 1
                reply = None
        if reply is None:
            await asyncio.sleep(0.5)
            return False
        self.gate.observe(read_signal(reply.status, reply.headers, reply.body), sent_at=sent_at)
        if reply.status != 200:
            self.refused += 1
            return False
        self.done.append(self.clock.seconds())
        return True

    def rate(self, start, end):
        """Calls a second that were answered between two moments."""
        return sum(start < at <= end for at in self.done) / (end - start)

    def most_in_a_tenth(self, start, end):
        arrivals = [at for at in self.report.arrivals if start <= at < end]
        return max(sum(at <= other < at + 0.1 for other in arrivals) for at in arrivals)


def test_with_configured_limits_no_call_gets_a_429_and_the_rate_is_used():
    drain = Drain(rates=["600/minute"])
    assert drain.refused == 0
    assert 300 / drain.seconds >= 0.98 * 10


def test_with_a_token_limit_that_binds_no_call_gets_a_429_and_the_tokens_are_used():
    drain = Drain(rates=["600/minute", "12_000 tokens/minute"], tokens="12_000/minute burst 200")
    assert drain.refused == 0
    assert 300 * 60 / drain.seconds >= 0.98 * 200


@pytest.mark.parametrize("kind", ["bucket", "fixed", "sliding"])
@pytest.mark.parametrize("style", ["openai", "plain"])
def test_what_headers_say_remains_is_used_within_five_seconds(style, kind):
    drain = Drain(rates="auto", style=style, kind=kind, requests="600/minute")
    assert drain.refused < 3
    assert len(drain.done) == 300
    assert drain.seconds < 5


@pytest.mark.parametrize("style", ["openai", "plain"])
def test_headers_teach_the_rate_of_a_bucket_that_holds_little(style):
    drain = Drain(rates="auto", style=style)
    assert drain.refused < 3
    assert drain.rate(5, 25) >= 0.98 * 10


@pytest.mark.parametrize("retry_after", [True, False])
@pytest.mark.parametrize("limit", ["60/minute burst 5", TEN_A_SECOND, "3000/minute burst 50"])
def test_without_headers_the_rate_is_found_by_few_collisions(limit, retry_after):
    drain = Drain(rates="auto", requests=limit, headers=False, retry_after=retry_after)
    # Finding a limit of one a second takes a dozen refusals of these three hundred calls.
    assert drain.refused < (0.06 if limit == "60/minute burst 5" else 0.03) * drain.sent


HALVED = [
    (60, lambda api: api.set_limits(requests="300/minute burst 10")),
    (180, lambda api: api.set_limits(requests=TEN_A_SECOND)),
]


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize("rates", ["auto", ["600/minute"]])
def test_a_limit_that_is_halved_and_restored_is_followed_both_ways(rates, headers):
    drain = Drain(rates=rates, headers=headers, calls=10**6, until=330, script=HALVED)
    assert drain.refused <= 0.02 * drain.sent
    assert drain.rate(80, 180) >= 0.8 * 5
    back = next(at for at in range(180, 330) if drain.rate(at, at + 10) >= 0.9 * 10)
    assert back - 180 <= (1 if headers else 130)


@pytest.mark.parametrize(
    "fault",
    [
        ("reset", {}),
        ("overload", {}),
        ("storm", {"retry_after": 2}),
        ("error", {"status": 500}),
    ],
    ids=str,
)
def test_after_an_outage_nothing_is_lost_and_there_is_no_storm(fault):
    """Calls that waited come back at the rate, with the burst that it allows."""
    kind, details = fault
    drain = Drain(
        rates=["100/s"],
        requests="6000/minute burst 100",
        calls=1500,
        script=[(5, lambda api: api.fault(kind, duration=6, **details))],
    )
    assert len(drain.done) == 1500
    assert drain.most_in_a_tenth(11, drain.seconds) <= 100 + 1.5 * 10
    assert drain.report.in_flight == 0
    assert drain.gate.snapshot().in_flight == 0


def test_another_user_of_the_limit_is_noticed_by_what_responses_say_remains():
    """Half of the limit is used by another program."""

    async def main(clock):
        api = FakeProvider("openai", requests="600/minute burst 100", clock=clock)
        gate = Dispatch("api", rates="auto", pause=True, clock=clock, random=random.Random(1).random)
        sent = refused = 0

        async def other():
            while clock.seconds() < 120:
                await api.call_async("POST", "/v1/chat/completions", body=BODY)
                await asyncio.sleep(0.2)

        async def ours():
            nonlocal sent, refused
            while clock.seconds() < 120:
                async with gate.admit():
                    sent_at = clock.seconds()
                    reply = await api.call_async("POST", "/v1/chat/completions", body=BODY)
                gate.observe(read_signal(reply.status, reply.headers, reply.body), sent_at=sent_at)
                sent += 1
                refused += reply.status == 429

        await asyncio.gather(other(), *(ours() for _ in range(20)))
        assert sent > 400
        return refused / sent

    assert run(main) <= 0.05
