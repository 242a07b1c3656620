"""How good the tests of the pure rules are: `make quality`.

    python bench/quality.py coverage              branches of files that begin with `Pure.`, and in total
    python bench/quality.py mutants               wrong versions of some rules that the tests notice, by file
    python bench/quality.py mutants gate/slots    of one file

Coverage is measured with the tests of the rooms that have such files. It fails for a file with fewer than
95 % of its branches. The files and tests for mutants are in pyproject.toml; `mutmut show NAME` shows one.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "headgate"
LEAST_BRANCHES = 95.0
ROOMS = (
    *("gate", "dispatch", "limiters", "retries", "breaker", "budgets", "responses", "http"),
    *("sharing", "stores", "swarm", "sandbox", "gateway", "cli/run"),
)
# How many rooms are tested at the same time: most of their tests wait.
ROOMS_AT_ONCE = 3
NO_TESTS = 5  # what pytest returns for a room whose tests all have to be alone
# Neither is wrong: a mutant that no test reaches, and one that was not tried.
UNTRIED = ("no tests", "not checked", "skipped")


def pure_files() -> list[Path]:
    return [
        path
        for path in sorted(HOUSE.rglob("*.py"))
        if (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").startswith("Pure.")
    ]


def coverage() -> int:
    root_tests = [str(path) for path in sorted(ROOT.glob("tests/test_*.py"))]
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(ROOMS_AT_ONCE) as rooms:
        data, report = Path(directory) / "data", Path(directory) / "report.json"
        parts = {Path(directory) / f"part-{i}": [f"tests/{room}"] for i, room in enumerate(ROOMS)}
        parts[Path(directory) / "part-root"] = root_tests
        failed = max(rooms.map(run_covered, parts.values(), parts))
        tool = [sys.executable, "-m", "coverage"]
        subprocess.run(
            [*tool, "combine", "-q", f"--data-file={data}", *filter(Path.exists, parts)], cwd=ROOT, check=True
        )
        subprocess.run([*tool, "json", "-q", f"--data-file={data}", "-o", report], cwd=ROOT, check=True)
        measured = json.loads(report.read_text())["files"]
    return int(bool(print_coverage(measured) or failed))


def run_covered(tests: list[str], data: Path) -> int:
    """Run these tests and write which branches of the pure files they take. Return 1 if a test failed."""
    files = ",".join(str(path) for path in pure_files())
    measure = ["-m", "coverage", "run", "--branch", f"--include={files}", f"--data-file={data}"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not alone", *tests]
    done = subprocess.run(
        [sys.executable, *measure, *pytest], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode in (0, NO_TESTS):
        return 0
    print(done.stdout + done.stderr, flush=True)
    return 1


def print_coverage(measured: dict) -> bool:
    """Print a line for each file. True: one of them has less than it should have."""
    print(f"{'branches':>9} {'missed':>7} {'lines missed':>13}  file")
    taken = total = 0
    too_few = False
    for path in pure_files():
        name = path.relative_to(ROOT).as_posix()
        if name not in measured:
            print(f"{'none':>9} {'':>7} {'all':>13}  {name}")
            too_few = True
            continue
        figures = measured[name]["summary"]
        taken, total = taken + figures["covered_branches"], total + figures["num_branches"]
        share = (
            100 * figures["covered_branches"] / figures["num_branches"] if figures["num_branches"] else 100
        )
        too_few = too_few or share < LEAST_BRANCHES
        print(f"{share:8.1f}% {figures['missing_branches']:7} {figures['missing_lines']:13}  {name}")
    share = 100 * taken / total
    print(f"{share:8.1f}% {total - taken:7} {'':13}  in total, of {total} branches")
    return too_few


def mutants(names: list[str]) -> int:
    chosen = [f"headgate.{name.removesuffix('.py').replace('/', '.')}.*" for name in names]
    command = [sys.executable, "-m", "mutmut"]
    log = ROOT / "build" / "mutants.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as output:
        done = subprocess.run([*command, "run", *chosen], cwd=ROOT, stdout=output, stderr=output, check=False)
    results = subprocess.run(
        [*command, "results", "--all", "true"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    counts: dict[str, Counter[str]] = {}
    for line in results.splitlines():
        name, _, what = line.strip().partition(": ")
        if name.startswith("headgate."):
            counts.setdefault(name.partition(".x")[0].removeprefix("headgate."), Counter())[what] += 1
    if done.returncode and not counts:
        print(f"mutmut failed: {log}", file=sys.stderr)
        return 1
    print(f"{'noticed':>8} {'survived':>9} {'unreached':>10}  file")
    everything: Counter[str] = Counter()
    for name, count in sorted(counts.items()):
        if count.total() > count["not checked"]:
            print_score(count, name.replace(".", "/") + ".py")
            everything += count
    print_score(everything, "in total")
    return 0


def print_score(count: Counter[str], name: str) -> None:
    """What was noticed: a test failed, or never ended, or the program crashed."""
    tried = sum(number for what, number in count.items() if what not in UNTRIED)
    share = 100 * (tried - count["survived"]) / max(tried, 1)
    print(f"{share:7.1f}% {count['survived']:9} {count['no tests']:10}  {name}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    if what not in ("coverage", "mutants"):
        raise SystemExit(__doc__)
    raise SystemExit(coverage() if what == "coverage" else mutants(rest))
