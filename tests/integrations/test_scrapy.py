"""Requests of Scrapy wait at a gate, and a refusal of the site holds all of them back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.test_page import FRAMEWORKS, PATHS

pytestmark = pytest.mark.skipif(
    not (FRAMEWORKS / "scrapy").exists(), reason="Scrapy is not installed: make install"
)


def test_requests_of_a_spider_pass_the_gate_and_a_refusal_holds_all_of_them_back():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("spider.py"))],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    attempts = 3  # of the request to a server that is not there
    assert said["hits"] == 21, "one was refused, and Scrapy sent it again"
    assert said["admitted"] == said["settled"] == 21 + attempts
    assert said["in flight"] == 0
    assert said["took"] >= 0.95 * 20 / 20
    assert said["longest pause"] >= 0.95, "the Retry-After of one response"
    assert said["failures"] == ["DownloadConnectionRefusedError"]
