"""How soon `headgate run` has sent a file of jobs through a limited API, and how often it is refused.

The scenarios and the targets are those of goodput.py, and so is the API: `headgate sandbox` in a process of
its own. The command is the one that people type, with `--rate 3000/minute` where the limit is known and
without `--rate` where it is not. "× ideal" is the time from its first look at the jobs to the last answer on
the disk, beside that of a client which knows at every moment what the API will admit. Cuts and outages are
counted from the first request. Of several runs the worst is shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from goodput import (
    PATIENCE,
    SCENARIOS,
    WORKERS,
    Result,
    Scenario,
    Watch,
    ask,
    ideal,
    sandbox,
    told,
    verdict,
    worst,
)
from headgate.sandbox.meters import read_rate
from measure import table
from senders import PATH, QUESTION


def write_jobs(path: Path, count: int) -> Path:
    with path.open("w") as file:
        for number in range(count):
            print(json.dumps({"custom_id": f"job-{number}", "url": PATH, "body": QUESTION}), file=file)
    return path


def measure(scenario: Scenario, folder: Path) -> Result:
    """Send the jobs of a scenario by the command."""
    jobs, answers = write_jobs(folder / "jobs.jsonl", scenario.jobs), folder / "answers.jsonl"
    answers.unlink(missing_ok=True)
    with sandbox(scenario) as url:
        words = ["run", jobs, "--to", url, "-o", answers, "--concurrency", WORKERS, "--json"]
        if scenario.known:
            rate = read_rate(scenario.requests, "requests", scenario.kind)
            words += ["--rate", f"{rate.amount}/{rate.name.partition('/')[2]}"]
        command = [sys.executable, "-m", "headgate", *map(str, words)]
        with Watch() as watch, subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as run:
            if scenario.cut is not None or scenario.outage is not None:
                while not ask(url, "GET", "report")["requests"]:
                    time.sleep(0.005)
            if scenario.cut is not None:
                after, duration, limit = scenario.cut
                ask(url, "PUT", "limits", {"requests": limit, "after": after, "duration": duration})
            if scenario.outage is not None:
                after, duration = scenario.outage
                ask(
                    url,
                    "POST",
                    "faults",
                    {"kind": "error", "status": 503, "after": after, "duration": duration},
                )
            try:
                _, progress = run.communicate(timeout=PATIENCE * ideal(scenario) + 30)
            except subprocess.TimeoutExpired:
                run.kill()
                raise SystemExit(f"error: {scenario.name} takes too long") from None
        end = json.loads(progress.splitlines()[-1])
        report = ask(url, "GET", "report")
    by_status = {int(status): n for status, n in report["by_status"].items()}
    return Result(
        over_ideal=end["seconds"] / ideal(scenario),
        refused=by_status.get(429, 0) / scenario.jobs,
        failed=sum(n for status, n in by_status.items() if status >= 500) / scenario.jobs,
        cpu=0.0,
        late=1000 * watch.late,
        all_answered=end["answered"] == scenario.jobs,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two scenarios and 150 jobs, to see that it runs"
    )
    names = [scenario.name for scenario in SCENARIOS if scenario.most_time is not None]
    parser.add_argument("--scenario", choices=names, action="append", metavar="NAME", help=f"of {names}")
    parser.add_argument("--runs", type=int, default=3, help="the worst is shown (3)")
    arguments = parser.parse_args()
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in (arguments.scenario or names)]
    runs = arguments.runs
    if arguments.quick:
        runs, scenarios = 1, [replace(scenario, jobs=150) for scenario in (scenarios[0], scenarios[-1])]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for scenario in scenarios:
            results = [measure(scenario, Path(folder)) for _ in range(runs)]
            told(
                f"{scenario.name}: {', '.join(f'{result} ({result.late:.0f} ms late)' for result in results)}"
            )
            result = worst(results)
            figures = (f"{ideal(scenario):.2f}", result.time, result.refusals, f"{result.failed:.3f}")
            rows.append(
                (scenario.name, scenario.jobs, *figures, f"{result.late:.0f} ms", verdict(scenario, result))
            )
    print(f"`headgate run`, the worst of {runs} runs:")
    columns = (
        "limits",
        "jobs",
        "ideal s",
        "× ideal",
        "429s per job",
        "5xx per job",
        "machine late",
        "target",
    )
    table(columns, rows)


if __name__ == "__main__":
    main()
