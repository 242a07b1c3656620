"""How fast and how politely a Dispatch goes, in virtual time.

    python tests/goodput/rig.py [-s RUNS] [-t SECONDS] [-r SCENARIOS] [-o OUTAGES] [part of a name ...]

prints the figures of the scenarios, the worst of so many runs, and with -t what happened in every stretch of
so many seconds. With -r the scenarios are random ones, with -o random outages. PYTHONPATH says which tree is
judged. The figures:

    over      the time over that of a client that knows everything
    429s      refusals for each job
    use       what was used of the limit after the first ten minutes, less what the neighbour took
    refused   the part of the calls that was refused in that time
    regained  seconds from the end of a drop until 90 % of the limit is used
    waited    seconds from the first refusal until a call that is sent after it succeeds
    probes    calls that were sent into an outage after the first answer that told of it
    late      seconds from the end of an outage until the next call arrives
    above     calls that left the gate although the configured burst or strict rate did not allow them
"""

import argparse
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from time import process_time
from unittest.mock import patch

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import headgate
from goodput.api import Api, ideal_end, room
from goodput.scenarios import AT_LEAST, SCENARIOS, random_outage, random_scenario
from headgate import Dispatch
from headgate.arguments import SECOND
from headgate.errors import HeadgateError
from headgate.http import read_signal
from headgate.limits import read_rates
from headgate.sandbox.meters import meter_for
from headgate.sharing.courier import COURIER
from headgate.testing import MemoryStore, run

COUNTED_FROM = 600.0  # seconds; what a client learns before is its start
STRETCH = 10 * SECOND

capacity = cache(room)  # several scenarios have the same limits


@dataclass(slots=True)
class Call:
    """One request: when it was sent, when it arrived, and what it was answered when."""

    sent: int
    arrived: int = 0
    status: int = 0
    answered: int = 0


def between(bounds, dice):
    low, high = bounds
    return round(SECOND * (low if low == high else dice.uniform(low, high)))


class DelayedStore(MemoryStore):
    """A store that needs a millisecond of virtual time for an answer."""

    async def ask(self, key, question):
        await asyncio.sleep(0.0005)
        answer = await super().ask(key, question)
        await asyncio.sleep(0.0005)
        return answer


@contextmanager
def courier_on(loop):
    """Let the courier work on a loop of virtual time instead of its own, and number its members."""

    def wait_for(errand, timeout):
        with ThreadPoolExecutor(1) as elsewhere:  # virtual time stands still while a member greets its store
            return elsewhere.submit(asyncio.run, errand()).result(timeout)

    COURIER.retire()
    numbers = count()
    with (
        patch.object(COURIER, "_loop", loop),
        patch.object(COURIER, "wait_for", wait_for),
        patch("headgate.sharing.pool.client.token_hex", lambda _: f"{next(numbers)}"),
    ):
        yield


class Drive:
    """Callers in one scenario, until the jobs are done or the time is over."""

    def __init__(self, scenario, seed):
        self.scenario, self.seed = scenario, seed
        self.api = Api(scenario.limits, seed)
        self.calls = []
        self._delays = Random(f"delays {seed}")
        self._services = self._service_times()
        self._refusals = Random(f"refusals {seed}")
        self._silent = {}  # signals of answers without headers, by status
        self._left = scenario.jobs
        self.ideal = None
        if scenario.jobs is not None:
            self.ideal = ideal_end(
                scenario.limits,
                scenario.jobs,
                callers=scenario.callers,
                services=self._service_times(),
                delay=round(scenario.delay[0] * SECOND),
                seed=seed,
            )
        run(self._main)

    def _service_times(self):
        dice = Random(f"services {self.seed}")
        while True:
            yield between(self.scenario.service, dice)

    async def _main(self, clock):
        self._clock, scenario = clock, self.scenario
        self._loop = asyncio.get_running_loop()
        if scenario.members == 1:
            self.gates = [self._gate(1)]
            await self._call_until_done()
        else:
            store = DelayedStore(clock)
            with courier_on(self._loop):
                self.gates = [self._gate(number, store=store) for number in range(scenario.members)]
                await self._call_until_done()

    def _gate(self, number, **options):
        dice = Random(f"gate {number} {self.seed}").random
        # As the gates that the adapters make.
        options |= {"pause": True, "throttled_concurrency": "adaptive"} | self.scenario.options
        gate = Dispatch("api", rates=self.scenario.rates, clock=self._clock, random=dice, **options)
        gate.expect_delay(self.scenario.expected_delay)
        return gate

    async def _call_until_done(self):
        scenario = self.scenario
        tasks = [asyncio.ensure_future(self._work(number)) for number in range(scenario.callers)]
        patience = scenario.until
        if patience is None:
            patience = 10 * self.ideal / SECOND + 600  # a run that takes longer has failed
        done, late = await asyncio.wait(tasks, timeout=patience)
        self.unfinished = bool(late) and scenario.until is None
        for task in late:
            task.cancel()
        for task in done:
            task.result()
        await asyncio.gather(*late, return_exceptions=True)
        for gate in self.gates:
            gate.close()
        if scenario.members > 1:
            await asyncio.sleep(1)  # the members leave the pool

    async def _work(self, number):
        gate = self.gates[number % len(self.gates)]
        while self._left is None or self._left > 0:
            if self._left is not None:
                self._left -= 1
            while await self._send(gate) != 200:
                pass

    async def _send(self, gate):
        clock = self._clock
        async with gate.admit():
            call = Call(clock.now())
            self.calls.append(call)
            many, *bounds = self.scenario.cold
            delay = between(self.scenario.delay, self._delays)
            if len(self.calls) <= many:
                delay += between(bounds, self._delays)
            answer = self._loop.create_future()
            clock.call_at(call.sent + delay, lambda: self._arrive(call, answer))
            headers = await answer
            gate.observe(self._signal(call, headers), sent_at=call.sent / SECOND)
        return call.status

    def _arrive(self, call, answer):
        call.arrived = now = self._clock.now()
        call.status, headers = self.api.judge(now)
        if call.status == 200:
            service = next(self._services)
        else:
            service = between(self.scenario.refusal, self._refusals)
        call.answered = now + service
        self._clock.call_at(call.answered, lambda: answer.done() or answer.set_result(headers))

    def _signal(self, call, headers):
        if headers:
            return read_signal(call.status, headers, now=self.api.wall(call.answered))
        if call.status not in self._silent:
            self._silent[call.status] = read_signal(call.status, {})
        return self._silent[call.status]

    # -- figures

    def figures(self):
        """All figures that make sense for the scenario."""
        scenario, calls = self.scenario, [call for call in self.calls if call.status]
        figures = {}
        if self.ideal is not None:
            end = max(call.answered for call in calls)
            figures["time"] = end / SECOND
            figures["over"] = float("inf") if self.unfinished else end / max(1, self.ideal)
            figures["429s"] = sum(call.status == 429 for call in calls) / scenario.jobs
        else:
            figures |= self._sustained(calls)
        if scenario.limits.outages:
            figures |= self._after_outage(calls)
        if scenario.limits.empty:
            figures["waited"] = waited(calls)
        if scenario.rates != "auto" and ("burst" in scenario.rates or "strict" in scenario.rates):
            figures["above"] = above(scenario.rates, self.calls)
        return figures

    def timeline(self, seconds):
        """What happened in every stretch of so many seconds, as lines of text."""
        stretches = {}
        for call in self.calls:
            if call.status:
                stretches.setdefault(int(call.arrived // (seconds * SECOND)), []).append(call)
        for number, calls in sorted(stretches.items()):
            refused = [call for call in calls if call.status != 200]
            moments = " ".join(f"{call.arrived / SECOND:.2f}" for call in refused[:12])
            start = number * seconds
            yield f"{start:8g} s  {len(calls) - len(refused):6} accepted  {len(refused):4} refused  {moments}"

    def _sustained(self, calls):
        start, end = COUNTED_FROM, self.scenario.until
        counted = [call for call in calls if call.arrived >= start * SECOND]
        accepted = sum(call.status == 200 for call in counted)
        taken = sum(at >= start * SECOND for at in self.api.neighbours)
        figures = {
            "use": accepted / (capacity(replace(self.scenario.limits, neighbour=0), start, end) - taken),
            "refused": 1 - accepted / max(1, len(counted)),
        }
        if self.scenario.limits.changes:
            figures["regained"] = self._regained(calls)
        return figures

    def _regained(self, calls):
        """Seconds from the last change of the limit until 90 % of it is used over ten seconds."""
        changed = round(self.scenario.limits.changes[-1][0] * SECOND)
        rate = self.api.meter.rate
        enough = 0.9 * rate.amount * STRETCH / rate.per_ns
        moments = sorted(call.arrived for call in calls if call.status == 200 and call.arrived >= changed)
        first = 0
        for last, moment in enumerate(moments):
            while moments[first] <= moment - STRETCH:
                first += 1
            if last - first + 1 >= enough:
                return (moments[first] - changed) / SECOND
        return float("inf")

    def _after_outage(self, calls):
        end = self.scenario.limits.outages[0][1]
        failed = [call for call in calls if call.status not in (200, 429)]
        known = min((call.answered for call in failed), default=0)
        back = min((call.arrived for call in calls if call.arrived >= end * SECOND), default=None)
        return {
            "probes": sum(call.sent > known for call in failed),
            "late": float("inf") if back is None else back / SECOND - end,
        }


def above(text, calls):
    """How many calls left the gate although a configured burst or strict rate did not allow them."""
    (rate,) = read_rates(text)
    meter = meter_for(rate, "bucket", 0, 0)
    count = 0
    for call in calls:
        if meter.wait(1, call.sent):
            count += 1
        else:
            meter.take(1, call.sent)
    return count


def waited(calls):
    """Seconds from the first refusal to the next call that is accepted."""
    heard = min((call.answered for call in calls if call.status == 429), default=None)
    if heard is None:
        return 0.0
    later = (call.arrived for call in calls if call.status == 200 and call.sent > heard)
    return (min(later, default=1 << 62) - heard) / SECOND


def worst(scenario, runs=1):
    """The worst of each figure in as many runs."""
    found = [Drive(scenario, seed).figures() for seed in range(1, runs + 1)]
    return {name: (min if name in AT_LEAST else max)(figures[name] for figures in found) for name in found[0]}


def show(name, scenario, options):
    """Print the figures of a scenario. Answers whether it reached its bars."""
    began = process_time()
    try:
        figures = worst(scenario, options.runs)
    except HeadgateError as error:
        print(f"MISSED {name:52} {error!r}")
        return False
    missed = scenario.missed(figures)
    shown = "  ".join(
        f"{figure} {value * 100:.2f} %" if figure in ("use", "refused") else f"{figure} {value:.4g}"
        for figure, value in figures.items()
    )
    print(f"{'MISSED' if missed else 'ok    '} {name:52} {shown}  ({process_time() - began:.1f} s)")
    for failure in missed:
        print(f"         {failure}")
    if missed and (options.random or options.outages):
        print(f"         {scenario}")
    if options.timeline:
        print(*Drive(scenario, 1).timeline(options.timeline), sep="\n")
    sys.stdout.flush()
    return not missed


def main():
    parser = argparse.ArgumentParser(description="How fast and how politely a Dispatch goes.")
    parser.add_argument("-s", "--runs", type=int, default=1, help="the worst of so many runs is shown")
    parser.add_argument("-t", "--timeline", type=float, help="show every stretch of so many seconds")
    parser.add_argument("words", nargs="*", help="only scenarios whose name contains one of these")
    parser.add_argument("-r", "--random", type=int, default=0, help="so many random scenarios instead")
    parser.add_argument("-o", "--outages", type=int, default=0, help="so many random outages instead")
    options = parser.parse_args()
    print(f"judging {Path(headgate.__file__).parent}")
    random = [random_scenario(seed) for seed in range(options.random)]
    scenarios = random + [random_outage(seed) for seed in range(options.outages)] or SCENARIOS.values()
    chosen = [
        (scenario.name, scenario)
        for scenario in scenarios
        if not options.words or any(word in scenario.name for word in options.words)
    ]
    reached = sum(show(name, scenario, options) for name, scenario in chosen)
    print(f"{reached} of {len(chosen)} scenarios reach their bars")


if __name__ == "__main__":
    main()
