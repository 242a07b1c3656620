"""Two Dispatches that share a store learn as one, in virtual time: limits, cuts, probes and their end."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from goodput.rig import DelayedStore, courier_on
from headgate import Dispatch
from headgate.http import read_signal
from headgate.testing import run

OK, FAILED, REFUSED = (read_signal(status, {}) for status in (200, 503, 429))
STATED = read_signal(
    200,
    {
        "x-ratelimit-limit-requests": "900",
        "x-ratelimit-remaining-requests": "800",
        "x-ratelimit-limit-tokens": "60000",
        "x-ratelimit-remaining-tokens": "50000",
    },
)
STATED_REQUESTS = read_signal(
    200, {"x-ratelimit-limit-requests": "900", "x-ratelimit-remaining-requests": "800"}
)


@asynccontextmanager
async def two_gates(clock, **options):
    store = DelayedStore(clock)
    with courier_on(asyncio.get_running_loop()):
        options = {"pause": True, "random": lambda: 0.5, "clock": clock, "store": store} | options
        gates = [Dispatch("api", **options) for _ in range(2)]
        yield gates
        for gate in gates:
            gate.close()
        await asyncio.sleep(1)


def limits(gate):
    return {rate.name: rate.limit for rate in gate.snapshot().rates}


async def send(gate, clock, signal):
    """One call, answered after 10 ms. When it was sent, in seconds."""
    async with gate.admit():
        sent = clock.seconds()
        await asyncio.sleep(0.01)
        gate.observe(signal(sent) if callable(signal) else signal, sent_at=sent)
    return sent


def test_limits_that_one_process_is_told_are_those_of_all():
    async def scenario(clock):
        async with two_gates(clock, rates="auto") as (one, other):
            await send(one, clock, STATED)
            await asyncio.sleep(0.05)
            assert limits(one) == limits(other) == {"requests/minute": 900, "tokens/minute": 60_000}
            async with other.admit(tokens=100):  # it counts tokens, too
                pass

    run(scenario)


def test_a_process_that_joins_goes_by_what_the_others_learned():
    async def scenario(clock):
        async with two_gates(clock, rates="auto") as (one, _):
            await send(one, clock, STATED)
            await asyncio.sleep(0.05)
            late = Dispatch("api", rates="auto", clock=clock, store=one.supply._pool._given)
            await asyncio.sleep(0.05)
            assert limits(late) == limits(one)
            late.close()

    run(scenario)


def test_refusals_that_both_processes_hear_cut_the_rate_once():
    async def scenario(clock):
        async with two_gates(clock, rates="auto") as gates:
            before = limits(gates[0])["requests/minute"]
            await asyncio.gather(*(send(gate, clock, REFUSED) for gate in gates))
            await asyncio.sleep(0.05)
            for gate in gates:
                assert limits(gate) == {"requests/minute": before // 2}

    run(scenario)


def test_the_rate_grows_by_the_calls_of_all_processes():
    """Each of them uses less than half of ten calls a second, and together they use more."""

    async def scenario(clock):
        async with two_gates(clock, rates="auto") as gates:
            for _ in range(6):
                await asyncio.gather(*(send(gate, clock, OK) for gate in gates))
                await asyncio.sleep(0.25)
            assert limits(gates[0])["requests/minute"] == limits(gates[1])["requests/minute"] == 1_200

    run(scenario)


@pytest.mark.parametrize("rates", ["auto", "100/s burst 10", ()])
def test_in_an_outage_one_process_sends_single_probes_and_the_first_success_lets_both_back(rates):
    async def scenario(clock):
        async with two_gates(clock, rates=rates) as gates:
            for _ in range(3):
                await send(gates[0], clock, FAILED)
            began = clock.seconds()
            sent, over = [], asyncio.Event()

            async def call(gate):
                while not over.is_set():
                    at = await send(gate, clock, lambda at: OK if at > began + 2 else FAILED)
                    sent.append((at - began, gates.index(gate)))

            await asyncio.sleep(0.005)
            tasks = [asyncio.ensure_future(call(gate)) for gate in gates for _ in range(3)]
            await asyncio.sleep(6)
            over.set()
            await asyncio.gather(*tasks)
            probes = [at for at, _ in sent if at <= 2]
            assert probes[0] < 0.6
            assert 2 <= len(probes) <= 5
            back = next(at for at, _ in sent if at > 2)
            # The other one hears of it within milliseconds. Of ten calls a second it has the sixth at the
            # latest: the first one and a turn of four belong to the process that sent the probe.
            soon = {gate for at, gate in sent if back < at < back + 0.501}
            assert soon == {0, 1}

    run(scenario)


def test_rates_that_are_set_by_hand_replace_what_was_learned():
    async def scenario(clock):
        async with two_gates(clock, rates="600/minute") as (one, other):
            one.set_rates("300/minute")
            await asyncio.sleep(0.05)
            assert limits(one) == limits(other) == {"requests/minute": 300}
            other.set_rates("600/minute")
            await asyncio.sleep(0.05)
            assert limits(one) == limits(other) == {"requests/minute": 600}

    run(scenario)


@pytest.mark.parametrize("stay", [True, False])
def test_limits_that_a_process_configures_replace_what_others_learned_without_any(stay):
    """Those that learned are still there, or left a moment ago."""

    async def scenario(clock):
        async with two_gates(clock, rates="auto") as gates:
            await send(gates[0], clock, STATED_REQUESTS)
            await asyncio.sleep(0.05)
            store = gates[0].supply._pool._given
            if not stay:
                for gate in gates:
                    gate.close()
                await asyncio.sleep(0.5)
            late = Dispatch("api", rates="300/minute", clock=clock, store=store)
            for _ in range(3):
                await asyncio.sleep(0.05)
                await send(late, clock, STATED_REQUESTS)
            for gate in [late, *(gates if stay else ())]:
                assert limits(gate) == {"requests/minute": 300}
            late.close()

    run(scenario)
