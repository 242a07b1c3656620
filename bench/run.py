"""Runs the benchmarks, prints their tables, and writes them to RESULTS.md beside this file.

Each part is a program of its own and runs in its own process, so that none inherits the heap,
the threads or the loaded modules of another. A part prints Markdown; it is passed on as it comes.
RESULTS.md is only written by runs at full length: figures of a quick look would mislead. A part that runs
alone, by `--only`, replaces its own chapter and says when and where it was measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"

PARTS = {
    "goodput": "The same jobs through a limited API, beside other clients",
    "importing": "Import",
    "admission": "One admission, uncontended",
    "observers": "One admission that is observed",
    "waiters": "Fifty thousand waiters",
    "contention": "Sixty-four threads",
    "keys": "A million keys",
    "exchange": "One HTTP call",
    "gateway": "The gateway beside a direct call",
    "programs": "Four programs in three languages behind one gateway",
    "resilience": "Retries and circuit breakers, when nothing fails",
    "bulk": "`headgate run` beside bare aiohttp",
    "command": "`headgate run` through a limited API",
    "sharing": "A shared limit that is far away",
    "ceilings": "How far each store carries",
    "crowds": "A thousand members of one key, and a hundred thousand keys",
    "swarm": "A swarm while the API gives less",
}

PREFACE = """\
# Results

Written by `make bench`; what each part measures, and how, is said at the top of its file in `bench/`.
Ratios compare things measured in the same run and are what to quote; nanoseconds are this machine's.
A target that is missed is reported here and fails nothing: machines differ, and so do neighbours.
"""


def machine() -> str:
    """What it ran on, without saying where."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return "\n".join(
        (
            f"- {platform.python_implementation()} {platform.python_version()}, {platform.system()}",
            f"- {_processor()}, {os.cpu_count()} cores, load {load} before the start",
            f"- {datetime.now(UTC):%Y-%m-%d}",
        )
    )


def _processor() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name"))
    return next(models, platform.machine())


def run(part: str, *, quick: bool) -> tuple[str, int]:
    """Run one part, passing on what it prints as it comes. All of it, and the exit status."""
    command = [sys.executable, str(HERE / f"{part}.py"), *(["--quick"] if quick else [])]
    # A child that writes to a pipe would keep its tables to itself until the end.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines), process.returncode


def replace_chapter(results: str, title: str, text: str) -> str:
    """RESULTS.md with another text in one of its chapters, or with that chapter at the end."""
    preface, *chapters = results.split("\n## ")
    texts = dict(chapter.split("\n", 1) for chapter in chapters)
    texts[title] = f"\n{text.rstrip()}\n"
    order = [name for name in PARTS.values() if name in texts]
    order += [name for name in texts if name not in order]
    return "\n## ".join((preface, *(f"{name}\n{texts[name]}" for name in order)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, metavar="NAME", help=f"one part: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that everything works")
    arguments = parser.parse_args()

    chapters = [PREFACE, machine()]
    print(chapters[-1], flush=True)
    failed = []
    for part, title in PARTS.items():
        if arguments.only not in (None, part):
            continue
        print(f"\n## {title}\n", flush=True)
        began = time.monotonic()
        text, status = run(part, quick=arguments.quick)
        chapters.append(f"\n## {title}\n\n{text.rstrip()}")
        print(f"({part}: {time.monotonic() - began:.0f} s)", flush=True)
        if status:
            failed.append(part)
    if failed:
        print(f"error: {', '.join(failed)} did not run to the end; RESULTS.md is unchanged", file=sys.stderr)
        return 1
    if not arguments.quick:
        results = "\n".join(chapters) + "\n"
        if arguments.only is not None:
            before = RESULTS.read_text(encoding="utf-8")
            alone = f"Measured by itself:\n\n{chapters[1]}\n\n{text}"
            results = replace_chapter(before, PARTS[arguments.only], alone)
        RESULTS.write_text(results, encoding="utf-8")
        print("written to bench/RESULTS.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
