"""How fast and how politely a Dispatch goes, in virtual time.

    python tests/goodput/rig.py [-s SEEDS] [part of a name ...]

prints the figures of the scenarios; PYTHONPATH says which source tree is judged.
"""

import asyncio
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import headgate
from goodput.api import Api, ideal_end, room
from goodput.scenarios import SCENARIOS
from headgate import Dispatch
from headgate.arguments import SECOND
from headgate.http import read_signal
from headgate.testing import run

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


class Drive:
    """Callers of one Dispatch in one scenario, until the jobs are done or the time is over."""

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
        dice = Random(f"gate {self.seed}").random
        options = {"pause": True} | scenario.options
        self.gate = Dispatch("api", rates=scenario.rates, clock=clock, random=dice, **options)
        tasks = [asyncio.ensure_future(self._work()) for _ in range(scenario.callers)]
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
        self.gate.close()

    async def _work(self):
        while self._left is None or self._left > 0:
            if self._left is not None:
                self._left -= 1
            while await self._send() != 200:
                pass

    async def _send(self):
        gate, clock = self.gate, self._clock
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
            figures["over"] = float("inf") if self.unfinished else end / self.ideal
            figures["429s"] = sum(call.status == 429 for call in calls) / scenario.jobs
        else:
            figures |= self._sustained(calls)
        if scenario.limits.outages:
            figures |= self._after_outage(calls)
        if scenario.limits.empty:
            figures["waited"] = waited(calls)
        return figures

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


def waited(calls):
    """Seconds from the first refusal to the next call that is accepted."""
    heard = min((call.answered for call in calls if call.status == 429), default=None)
    if heard is None:
        return 0.0
    later = (call.arrived for call in calls if call.status == 200 and call.sent > heard)
    return (min(later, default=1 << 62) - heard) / SECOND


def worst(scenario, seeds=1):
    """The worst of each figure in as many runs."""
    runs = [Drive(scenario, seed).figures() for seed in range(1, seeds + 1)]
    return {name: (min if name == "use" else max)(figures[name] for figures in runs) for name in runs[0]}


def main(arguments):
    from time import process_time

    seeds = 1
    if arguments[:1] == ["-s"]:
        seeds = int(arguments[1])
        arguments = arguments[2:]
    print(f"judging {Path(headgate.__file__).parent}, {seeds} run(s) each, the worst is shown")
    missed = 0
    for name, scenario in SCENARIOS.items():
        if arguments and not any(word in name for word in arguments):
            continue
        began = process_time()
        figures = worst(scenario, seeds)
        failures = scenario.missed(figures)
        missed += bool(failures)
        shown = "  ".join(
            f"{figure} {value * 100:.2f} %" if figure in ("use", "refused") else f"{figure} {value:.4g}"
            for figure, value in figures.items()
        )
        mark = "MISSED" if failures else "ok    "
        print(f"{mark} {name:52} {shown}  ({process_time() - began:.1f} s)", flush=True)
        for failure in failures:
            print(f"         {failure}")
    print(f"{missed} scenario(s) below their bars")


if __name__ == "__main__":
    main(sys.argv[1:])
