"""Every block of the pages about frameworks runs, with the real frameworks and a local API."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.run_page import PAGES, sections

FRAMEWORKS = Path(sys.prefix) / "integrations"
PATHS = os.pathsep.join([str(FRAMEWORKS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
pytestmark = pytest.mark.skipif(
    not FRAMEWORKS.exists(), reason="the frameworks are not installed: make install"
)


@pytest.fixture(scope="module")
def outcomes():
    """What each block said, by its page and line. One process imports all frameworks once."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_page.py"))],
        env=os.environ | {"PYTHONPATH": PATHS, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"section"')]
    assert said, ran.stderr
    return {(outcome["page"], outcome["line"]): outcome for outcome in said}


@pytest.mark.parametrize(
    "place",
    [
        pytest.param((page.name, block.line), id=f"{page.stem}-{block.heading or 'start'}-{block.line}")
        for page in PAGES
        for block in sections(page)
    ],
)
def test_a_block_of_a_page_runs_with_the_real_framework(outcomes, place):
    assert place in outcomes, "the page ended before it"
    assert outcomes[place]["error"] is None, outcomes[place]["error"]
