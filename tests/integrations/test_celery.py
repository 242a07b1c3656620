"""Forked workers of Celery share one limit by a store, in both patterns of docs/integrations.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.test_page import FRAMEWORKS, PATHS

pytestmark = pytest.mark.skipif(
    not FRAMEWORKS.exists(), reason="the frameworks are not installed: make install"
)
RATE = 10  # a second


def test_forked_workers_of_celery_share_one_limit(tmp_path):
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("celery_work.py")), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert len(said["seen"]) == 24
    assert len({pid for pid, _at in said["seen"]}) == 2, "both workers had tasks"
    times = sorted(at for _pid, at in said["seen"])
    # At 10 a second with a burst of 1, n calls take (n - 1) / 10 s; a task notes the time a little later.
    assert times[-1] - times[0] >= (len(times) - 1) / RATE - 0.2
    assert said["worker"] == 0
