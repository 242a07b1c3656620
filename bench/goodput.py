"""How soon jobs are done through an API that limits them, and how often it refuses on the way.

Real time on loopback: the API is `headgate sandbox` in a process of its own, and each client of senders.py
sends the same jobs with 64 workers from another process. "× ideal" is the time from the start to the last
answer, beside that of a client which has 64 workers too and knows at every moment what the API will admit;
it is computed from the limits, with the arithmetic of the API. 429s are those that the API has counted. CPU
is that of the client's process. "Machine late" is how much later than it asked for a process that does
nothing else was woken at worst: where that is more than a few milliseconds, times and 429s are the machine's.

headgate runs three times with nothing else under way, and its worst figures are shown. The other clients
run once, two at a time, each with an API of its own. A client that takes three times the ideal is stopped.

The API states its limits as OpenAI does. Its bucket holds the calls of one second, unless it is "full": then
it holds those of a minute. A fixed window is a minute, and 48 s old when the first call comes; without
headers it is 5 s, and 1 s old. "No headers" leaves out Retry-After, too. In the outage every call gets a 503
without Retry-After. A call that is refused costs nothing: at OpenAI it costs a call, and clients that send
again too soon would wait even longer.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.request import Request, urlopen

from headgate.sandbox.meters import meter_for, read_rate
from measure import table
from senders import NEED_A_LIMIT, SENDERS, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
WORKERS = 64
ANSWER = 0.1  # seconds that the API takes for an answer
PATIENCE = 3  # times the ideal
SECOND = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An API, what its clients know about it, and what is asked of headgate."""

    name: str
    jobs: int = 600
    requests: str = "3000/minute burst 50"
    kind: str = "bucket"
    known: bool = True
    headers: bool = True
    start_empty: bool = False
    window_age: float | None = None
    jitter: float = 0.0
    cut: tuple[float, float, str] | None = None  # from when, for how long, to which limit
    outage: tuple[float, float] | None = None  # from when, for how long
    most_time: float | None = None  # over ideal
    most_refused: float | None = None  # 429s per job

    @property
    def limit(self) -> str | None:
        """The limit as clients know it, with its burst."""
        rate = read_rate(self.requests, "requests", self.kind)
        return f"{rate.amount}/{rate.name.partition('/')[2]} burst {rate.burst}" if self.known else None

    @property
    def options(self) -> list[str]:
        """The arguments of `headgate sandbox`."""
        flags = {
            "--free-refusals": True,
            "--start-empty": self.start_empty,
            "--no-headers": not self.headers,
            "--no-retry-after": not self.headers,
        }
        values = {
            "--requests": self.requests,
            "--kind": self.kind,
            "--window-age": self.window_age,
            "--jitter": self.jitter,
            "--first-token": ANSWER,
        }
        pairs = [(name, str(value)) for name, value in values.items() if value is not None]
        return [flag for flag, on in flags.items() if on] + [text for pair in pairs for text in pair]


FULL = {"requests": "600/minute", "jobs": 700}
FIXED = {"requests": "600/minute", "jobs": 650, "kind": "fixed", "window_age": 48.0}

SCENARIOS = [
    Scenario(name="known", most_time=1.02, most_refused=0),
    Scenario(name="known, no headers", headers=False, most_time=1.02, most_refused=0),
    Scenario(name="known, full bucket", **FULL, most_time=1.02, most_refused=0),
    Scenario(name="known, fixed window", **FIXED, most_time=1.02, most_refused=0),
    Scenario(name="unknown", known=False, most_time=1.03, most_refused=0.005),
    Scenario(name="unknown, full bucket", **FULL, known=False, most_time=1.03, most_refused=0.005),
    Scenario(name="unknown, fixed window", **FIXED, known=False, most_time=1.03, most_refused=0.005),
    Scenario(name="unknown, no headers", known=False, headers=False),
    Scenario(
        name="unknown, fixed window, no headers",
        **{**FIXED, "requests": "250/5s", "jobs": 800, "window_age": 1.0},
        known=False,
        headers=False,
    ),
    Scenario(
        name="cut to half for 10 s", cut=(3, 10, "1500/minute burst 25"), most_time=1.03, most_refused=0.01
    ),
    Scenario(name="outage of 6 s", outage=(3, 6), most_time=1.03, most_refused=0.01),
    Scenario(name="started empty", start_empty=True, most_time=1.03, most_refused=0.01),
    Scenario(name="jitter of 50 ms", jitter=0.05, most_time=1.03, most_refused=0.005),
]


class Result(NamedTuple):
    """What one run took. The names are those of the columns."""

    over_ideal: float
    refused: float  # 429s per job
    failed: float  # 5xx per job
    cpu: float  # milliseconds per job
    late: float  # milliseconds: how late the machine woke a sleeping process
    all_answered: bool = True

    def __str__(self) -> str:
        return f"{self.time} · {self.refusals}"

    @property
    def time(self) -> str:
        return f"{self.over_ideal:.3f}" if self.all_answered else f"> {PATIENCE}"

    @property
    def refusals(self) -> str:
        return f"{self.refused:.3f}" if self.refused else "0"


# -- what is ideal


def ideal(scenario: Scenario) -> float:
    """Seconds from the first call to the last answer, if every call is sent when the API will admit it."""
    rate = read_rate(scenario.requests, "requests", scenario.kind)
    meter = meter_for(rate, scenario.kind, 0, round((scenario.window_age or 0) * SECOND))
    if scenario.start_empty:
        meter.take(meter.most, 0)
    changes = []
    if scenario.cut is not None:
        start, duration, limit = scenario.cut
        lower = read_rate(limit, "requests", scenario.kind)
        changes = [(round(start * SECOND), lower), (round((start + duration) * SECOND), rate)]
    down, length = scenario.outage or (0, 0)
    outage = range(round(down * SECOND), round((down + length) * SECOND))
    free = [0] * min(WORKERS, scenario.jobs)  # when each worker can send again
    heapify(free)
    now = 0
    for _ in range(scenario.jobs):
        now = max(now, heappop(free))
        while True:
            while changes and changes[0][0] <= now:
                at, changed = changes.pop(0)
                meter.retune(changed, at)
            if now in outage:
                now = outage.stop
                continue
            wait = meter.wait(1, now)
            if wait == 0:
                break
            assert wait is not None
            now = min(now + wait, changes[0][0] if changes else now + wait)
        meter.take(1, now)
        heappush(free, now + round(ANSWER * SECOND))
    return max(free) / SECOND


# -- one run


def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{url}/__sandbox/{path}", data, method=method), timeout=30) as reply:
        return json.load(reply)


@contextmanager
def sandbox(scenario: Scenario) -> Iterator[str]:
    """The API in a process of its own, and its address."""
    command = [sys.executable, "-m", "headgate", "sandbox", *scenario.options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    ) as api:
        try:
            assert api.stdout is not None
            yield api.stdout.readline().strip()
        finally:
            api.send_signal(signal.SIGINT)


def start(task: Task) -> subprocess.Popen[str]:
    """A client that is ready to begin."""
    client = subprocess.Popen(
        [sys.executable, str(HERE / "senders.py"), json.dumps(task._asdict())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert client.stdout is not None
    if client.stdout.readline().strip() != "ready":
        raise SystemExit(f"error: {task.client} did not start")
    return client


class Watch:
    """Sleeps a little again and again, and notes how late it was woken."""

    def __enter__(self) -> Self:
        self.late = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.is_set():
            asleep = time.monotonic()
            time.sleep(0.005)
            self.late = max(self.late, time.monotonic() - asleep - 0.005)

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def measure(scenario: Scenario, client: str) -> Result:
    """Send the jobs of a scenario by a client."""
    best = ideal(scenario)
    parts = 2 if client.endswith("× 2") else 1
    with ExitStack() as stack:
        url = stack.enter_context(sandbox(scenario))
        task = Task(
            client=client,
            url=url,
            jobs=scenario.jobs // parts,
            workers=WORKERS // parts,
            seconds=best * PATIENCE,
            limit=scenario.limit,
        )
        processes = [stack.enter_context(start(task)) for _ in range(parts)]
        if scenario.cut is not None:
            after, duration, limit = scenario.cut
            ask(url, "PUT", "limits", {"requests": limit, "after": after, "duration": duration})
        if scenario.outage is not None:
            after, duration = scenario.outage
            ask(url, "POST", "faults", {"kind": "error", "status": 503, "after": after, "duration": duration})
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        with Watch() as watch:
            outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"error: {client} did not run to the end")
        figures = [json.loads(output) for output in outputs]
        report = ask(url, "GET", "report")
    jobs, by_status = scenario.jobs, {int(status): n for status, n in report["by_status"].items()}
    return Result(
        over_ideal=max(figure["seconds"] for figure in figures) / best,
        refused=by_status.get(429, 0) / jobs,
        failed=sum(n for status, n in by_status.items() if status >= 500) / jobs,
        cpu=1000 * sum(figure["cpu"] for figure in figures) / jobs,
        late=1000 * watch.late,
        all_answered=sum(figure["answered"] for figure in figures) == jobs,
    )


def worst(results: list[Result]) -> Result:
    """The worst of each figure."""
    figures = [max(values) for values in zip(*(result[:-1] for result in results), strict=True)]
    return Result(*figures, all_answered=all(result.all_answered for result in results))


# -- all runs


def able(client: str, scenario: Scenario) -> bool:
    return scenario.known or client not in NEED_A_LIMIT


def compare(scenarios: list[Scenario], clients: list[str], runs: int) -> dict[tuple[str, str], Result]:
    """Every client in every scenario; headgate alone, and several times."""
    results = {}
    for scenario in scenarios:
        if "headgate" in clients:
            several = [measure(scenario, "headgate") for _ in range(runs)]
            results[scenario.name, "headgate"] = worst(several)
            each = ", ".join(f"{result} ({result.late:.0f} ms late)" for result in several)
            told(f"{scenario.name}: headgate {each}")
        others = [client for client in clients if client != "headgate" and able(client, scenario)]
        with ThreadPoolExecutor(2) as lanes:
            measured = lanes.map(lambda client, scenario=scenario: measure(scenario, client), others)
            for client, result in zip(others, measured, strict=True):
                results[scenario.name, client] = result
                told(f"{scenario.name}: {client} {result}")
    return results


def told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def verdict(scenario: Scenario, result: Result) -> str:
    if scenario.most_time is None or scenario.most_refused is None:
        return ""
    met = (
        result.all_answered
        and round(result.over_ideal, 3) <= scenario.most_time
        and result.refused <= scenario.most_refused
    )
    return f"≤ {scenario.most_time:g} · {scenario.most_refused:g} {'met' if met else 'MISSED'}"


def show(
    scenarios: list[Scenario], clients: list[str], results: dict[tuple[str, str], Result], runs: int
) -> None:
    if "headgate" in clients:
        print(f"headgate, the worst of {runs} runs:")
        rows = []
        for scenario in scenarios:
            result = results[scenario.name, "headgate"]
            figures = (f"{ideal(scenario):.2f}", result.time, result.refusals, f"{result.failed:.3f}")
            rest = (f"{result.cpu:.2f}", f"{result.late:.0f} ms", verdict(scenario, result))
            rows.append((scenario.name, scenario.jobs, *figures, *rest))
        columns = ("limits", "jobs", "ideal s", "× ideal", "429s per job", "5xx per job", "CPU ms per job")
        table((*columns, "machine late", "target"), rows)
    if len(clients) > 1:
        cells = {key: (str(result), f"{result.cpu:.1f}") for key, result in results.items()}
        for which, title in enumerate(("Time over ideal · 429s per job", "CPU milliseconds per job")):
            print(f"{title} (–: the client needs to know the limit):")
            rows = [
                (
                    scenario.name,
                    *(cells.get((scenario.name, client), ("–", "–"))[which] for client in clients),
                )
                for scenario in scenarios
            ]
            table(("limits", *clients), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two scenarios and 150 jobs, to see that it runs"
    )
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", choices=names, action="append", metavar="NAME", help=f"of {names}")
    parser.add_argument("--client", choices=SENDERS, action="append", metavar="NAME", help=f"of {[*SENDERS]}")
    parser.add_argument("--runs", type=int, default=3, help="of headgate; the worst is shown (3)")
    arguments = parser.parse_args()
    clients = [client for client in SENDERS if client in (arguments.client or SENDERS)]
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in (arguments.scenario or names)]
    runs = arguments.runs
    if arguments.quick:
        runs = 1
        scenarios = [replace(scenario, jobs=150) for scenario in scenarios[:1] + scenarios[10:11]]
    results = compare(scenarios, clients, runs)
    show(scenarios, clients, results, runs)


if __name__ == "__main__":
    main()
