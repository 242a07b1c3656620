"""Claude Code and Codex themselves behind `headgate exec`, where they are installed.

They run in a network that has no way out, so they reach the API of the test and nothing else.

    npm install --prefix /tmp/agents @anthropic-ai/claude-code @openai/codex
    PATH=/tmp/agents/node_modules/.bin:$PATH .venv/bin/python -m pytest tests/gateway/test_agents.py
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import KEYLESS

pytestmark = pytest.mark.alone

QUIET = {
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
KEY = "sk-the-real-key"
AGENTS = {
    "claude": ("ANTHROPIC_API_KEY", ["-p", "say hello"], "/v1/messages"),
    "codex": ("CODEX_API_KEY", ["exec", "--skip-git-repo-check", "say hello"], "/v1/responses"),
}


@pytest.mark.parametrize("name", AGENTS)
def test_two_agents_on_one_key_get_their_answers_from_an_api_that_refuses_one_of_them(name, tmp_path):
    variable, arguments, path = AGENTS[name]
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    cut_off = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*cut_off, "true"], check=False).returncode:
        pytest.skip("a network of its own cannot be made here: unshare is missing or not allowed")
    here = Path(__file__).parent
    environment = {
        **KEYLESS,
        **QUIET,
        variable: KEY,
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [*cut_off, sys.executable, str(here / "agents.py"), program, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    for run in seen["runs"]:
        assert run["status"] == 0, run
        assert run["out"].strip() == "hello"
        assert "headgate: 1 call" in run["err"]
        assert ", 0 refused" in run["err"]
    calls = [each for each in seen["requests"] if each["target"].partition("?")[0] == path]
    assert [each["status"] for each in calls].count(200) == 2
    assert {429} <= {each["status"] for each in calls}, "the API refused one of them"
    credentials = [each["headers"].get("x-api-key") or each["headers"]["authorization"] for each in calls]
    assert all(KEY in credential for credential in credentials), "the gateway put the key in"
