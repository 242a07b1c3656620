"""Programs in Python, JavaScript and a shell that share one key behind one gateway."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from programs import program

pytestmark = pytest.mark.alone

BENCH = Path(__file__).parents[2] / "bench"
CALLS = 60  # of each program


def test_four_programs_on_one_key_use_all_of_its_limit_and_see_no_refusal(monkeypatch):
    """The gateway is told no rate: it learns it from what the API answers."""
    program("curl", "curl")
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_programs", BENCH / "programs.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    best = 9.0
    for _round in range(3):  # a busy machine starts the programs late, and then the API idles between them
        seen, took = bench.race(CALLS, gateway=True)
        assert len(seen) == (4 if shutil.which("node") else 3)
        assert {name: statuses for name, statuses in seen.items() if statuses != [200] * CALLS} == {}
        best = min(best, took / ((len(seen) * CALLS - bench.BURST) / bench.RATE))
        if best <= 1.05:
            break
    assert best <= 1.05
