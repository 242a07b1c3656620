"""Every program in examples/ runs against the sandbox, and stays below the limits that it enforces."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from headgate.sandbox import Sandbox

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def api():
    with Sandbox("openai", requests="600/minute", tokens="100_000/minute") as sandbox:
        yield sandbox


def run(api, program, *arguments, **variables):
    """What the program prints, with the sandbox in place of the API."""
    environment = {**os.environ, "OPENAI_BASE_URL": api.url, "OPENAI_API_KEY": "any", **variables}
    done = subprocess.run(
        [sys.executable, EXAMPLES / program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert api.report().refused == 0
    return done.stdout


def test_ten_agents_share_one_key(api):
    assert run(api, "ten_agents.py").startswith("30 answers in ")
    assert api.report().admitted == 30


def test_a_nightly_file_is_sent_once(api, tmp_path):
    for _ in range(2):
        shown = run(api, "nightly_file.py", api.url, tmp_path / "answers.jsonl")
        assert shown.endswith("20 answers, exit status 0\n")
    answered = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {each["custom_id"] for each in answered} == {f"document {number}" for number in range(20)}
    assert api.report().admitted == 20


def test_users_of_a_server_share_one_key_fairly(api, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    module = loaded("fair_users.py")
    with TestClient(module.app) as client:
        replies = [
            client.get("/ask", params={"question": "why?"}, headers={"x-user": user})
            for user in ("ann", "bob", "ann")
        ]
        assert [reply.status_code for reply in replies] == [200, 200, 200]
        assert replies[0].json()["user"] == "ann"
        assert "ratelimit" in replies[0].headers
        late = [client.get("/nowhere").status_code, client.get("/ask").status_code]
        assert late == [404, 422]
    assert module.gate.snapshot().totals.admitted == 3
    assert module.gate.snapshot().in_flight == 0


def loaded(program):
    spec = spec_from_file_location(program.removesuffix(".py"), EXAMPLES / program)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_several_processes_share_one_limit(api):
    assert run(api, "several_processes.py") == "4 processes, 0 failed\n"
    assert api.report().admitted == 20


def test_several_keys_are_used_as_they_have_room(api):
    shown = run(api, "several_keys.py")
    assert shown.startswith("20 answers, calls by key: ")
    calls = ast.literal_eval(shown.partition("key: ")[2])
    assert set(calls) == {0, 1}
    assert sum(calls.values()) == 20


def test_a_budget_ends_the_calls_of_a_user(api):
    first, second = run(api, "budgets.py").splitlines()
    assert first.startswith("after ")
    assert "do not fit the budget" in first
    assert second.endswith("tokens left")
    assert 0 < api.report().admitted < 30


def test_a_stream_holds_its_place_until_it_ends(api):
    pieces, _, rest = run(api, "streaming.py").partition(" ")
    assert int(pieces) > 1
    assert rest == "pieces; 1 call in flight meanwhile, 0 afterwards\n"


def test_code_that_waits_is_tested_on_a_clock_that_is_moved(api):
    shown = run(api, "testing_with_manual_clock.py").splitlines()
    assert len(shown) == 3
    assert all(line.startswith("passed: ") for line in shown)


def test_the_notebook_runs_from_the_first_cell_to_the_last(capsys):
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    namespace = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "outputs are those of one machine"
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "0"
    assert "12 0" in shown


def test_every_file_is_in_the_list_of_examples():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.is_file() and path.name != "README.md":
            assert f"]({path.name})" in listed, path.name


def test_every_program_is_run_by_a_test_of_this_file():
    text = Path(__file__).read_text(encoding="utf-8")
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        assert f'"{path.name}"' in text, path.name
