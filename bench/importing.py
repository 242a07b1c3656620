"""What `import headgate` costs a program that starts: time, and modules.

Each import happens in a fresh interpreter, timed from inside, so that starting Python does not
count. All candidates take turns. Compiled bytecode is there, as it is from the second start on: it
is kept in a folder of our own, because an editable checkout may have none, or be told to write none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

from measure import number, table

NAMES = (
    "headgate",
    "headgate.Dispatch",
    "threading",
    "asyncio",
    "aiolimiter",
    "limits",
    "pyrate_limiter",
    "throttled",
)

PROGRAM = """
import sys, time
before = set(sys.modules)
start = time.perf_counter_ns()
{statement}
took = time.perf_counter_ns() - start
print(took, *sorted(set(sys.modules) - before))
"""


def fresh_import(name: str, bytecode: str) -> tuple[int, list[str]]:
    """Nanoseconds, and the modules that were loaded by it."""
    # What a public name needs is loaded when it is first asked for.
    statement = "from headgate import Dispatch" if name == "headgate.Dispatch" else f"import {name}"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    took, *loaded = answer.stdout.split()
    return int(took), loaded


def foreign(loaded: list[str]) -> list[str]:
    """Packages among them that do not come with Python."""
    packages = {module.partition(".")[0] for module in loaded}
    packages.discard("__mp_main__")  # what multiprocessing calls the main module
    return sorted(packages - set(sys.stdlib_module_names))


def main(*, times: int) -> None:
    took: dict[str, list[int]] = {name: [] for name in NAMES}
    loaded: dict[str, list[str]] = {}
    with TemporaryDirectory() as bytecode:
        for name in NAMES:
            fresh_import(name, bytecode)  # writes it
        for turn in range(times):
            for name in NAMES if turn % 2 == 0 else reversed(NAMES):
                nanoseconds, loaded[name] = fresh_import(name, bytecode)
                took[name].append(nanoseconds)

    ours = median(took["headgate.Dispatch"])
    print(f"Median of {times} fresh interpreters:")
    table(
        ("import", "ms", "best ms", "× Dispatch", "modules", "packages not of Python"),
        (
            (
                name,
                number(median(took[name]) / 1e6),
                number(min(took[name]) / 1e6),
                f"{median(took[name]) / ours:.2f}",
                len(loaded[name]),
                ", ".join(foreign(loaded[name])) or "none",
            )
            for name in NAMES
        ),
    )
    strangers = [name for name in foreign(loaded["headgate.Dispatch"]) if name != "headgate"]
    print(f"Not of Python and not headgate: {', '.join(strangers) or 'none'} (target: none).")
    standard = [module for module in loaded["headgate.Dispatch"] if not module.startswith("headgate")]
    print(f"Of Python, beyond what a bare interpreter has loaded: {', '.join(standard) or 'none'}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer interpreters: to see that it runs")
    main(times=3 if parser.parse_args().quick else 20)
