"""Every block of docs/integrations.md runs, with the real frameworks and a local API."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.run_page import PAGE, sections

FRAMEWORKS = Path(sys.prefix) / "integrations"
pytestmark = pytest.mark.skipif(
    not FRAMEWORKS.exists(), reason="the frameworks are not installed: make install"
)


@pytest.fixture(scope="module")
def outcomes():
    """What each block said, by its line. One process imports all frameworks once."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_page.py"))],
        env=os.environ | {"PYTHONPATH": str(FRAMEWORKS), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"section"')]
    assert said, ran.stderr
    return {outcome["line"]: outcome for outcome in said}


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, id=f"{heading or 'start'}-{line}") for heading, line, _ in sections(PAGE)],
)
def test_a_block_of_the_page_runs_with_the_real_framework(outcomes, line):
    assert line in outcomes, "the page ended before it"
    assert outcomes[line]["error"] is None, outcomes[line]["error"]
