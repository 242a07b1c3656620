"""`headgate exec` runs a program whose calls wait, and is not noticed otherwise."""

import json
import os
import signal
import subprocess
import sys

import pytest

from cli.commands import KEYLESS, headgate, on_a_terminal
from headgate.sandbox import Sandbox

PROGRAM = """
import json, os, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor

def ask(number):
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": str(number)}]})
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code

with ThreadPoolExecutor(60) as pool:
    statuses = list(pool.map(ask, range(60)))
print(json.dumps(statuses))
sys.exit(7)
"""
KEY = "sk-the-real-key"


def exec_(*args, env=None, **options):
    command = [sys.executable, "-m", "headgate", "exec", *args]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**KEYLESS, **(env or {})},
        check=False,
        **options,
    )


def start(*args, **options):
    command = [sys.executable, "-m", "headgate", "exec", *args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=KEYLESS, **options
    )


def test_none_of_sixty_calls_is_refused_by_an_api_that_would_refuse_39_of_them():
    limits = {"requests": "1200/minute burst 21", "refusals_count": False}
    with Sandbox("openai", **limits) as api:
        env = {**KEYLESS, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{api.url}/v1"}
        bare = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False
        )
        assert json.loads(bare.stdout).count(429) >= 30, "the program alone is refused"
    with Sandbox("openai", **limits) as api:
        done = exec_("--to", api.url, "--", sys.executable, "-c", PROGRAM, env={"OPENAI_API_KEY": KEY})
        assert json.loads(done.stdout) == [200] * 60
        assert done.returncode == bare.returncode == 7
        assert done.stderr.startswith("headgate: 60 calls, ")
        assert done.stderr.count("\n") == 1
        assert ", 0 refused" in done.stderr
        assert api.report().admitted == 60


def test_the_program_gets_tokens_and_the_api_gets_the_keys(tmp_path):
    script = tmp_path / "ask.py"
    script.write_text(
        "import os, json, urllib.request as u\n"
        "key = os.environ['OPENAI_API_KEY']\n"
        "print(key)\n"
        "url = os.environ['OPENAI_BASE_URL'] + '/models'\n"
        "print(u.urlopen(u.Request(url, headers={'authorization': 'Bearer ' + key})).status)\n"
    )
    with Sandbox("openai") as api:
        done = exec_("--to", api.url, "--", sys.executable, str(script), env={"OPENAI_API_KEY": KEY})
    token, status = done.stdout.split()
    assert token.startswith("sk-headgate-")
    assert KEY not in done.stdout + done.stderr
    assert status == "200"


def test_variables_lead_to_the_gateway_and_the_rest_of_the_environment_stays(tmp_path):
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    given = {"ANTHROPIC_API_KEY": KEY, "OWN": "1", "ENABLE_TOOL_SEARCH": "false", "NO_PROXY": "intra.example"}
    done = exec_("--", sys.executable, "-c", code, env=given)
    seen = json.loads(done.stdout)
    gateway = seen["OPENAI_BASE_URL"].removesuffix("/openai/v1")
    assert gateway.startswith("http://127.0.0.1:")
    expected = {
        "OPENAI_API_BASE": "/openai/v1",
        "ANTHROPIC_BASE_URL": "/anthropic",
        "ANTHROPIC_API_BASE": "/anthropic",
        "GOOGLE_GEMINI_BASE_URL": "/gemini",
        "GEMINI_API_BASE": "/gemini",
        "GROQ_BASE_URL": "/groq",
        "CO_API_URL": "/cohere",
        "MISTRAL_API_BASE": "/mistral/v1",
        "XAI_API_BASE": "/xai/v1",
        "OPENROUTER_API_BASE": "/openrouter/v1",
    }
    assert {name: seen[name] for name in expected} == {
        name: gateway + path for name, path in expected.items()
    }
    assert seen["ANTHROPIC_API_KEY"].startswith("sk-headgate-")
    assert "OPENAI_API_KEY" not in seen, "a login that is not a key passes through"
    assert (seen["OWN"], seen["ENABLE_TOOL_SEARCH"]) == ("1", "false")
    assert seen["NO_PROXY"] == "intra.example,127.0.0.1,localhost"


ENDINGS = {
    "false": (["false"], 1),
    "killed": (["sh", "-c", "kill -9 $$"], 137),
    "not found": (["/nonexistent/program"], 127),
    "not a program": (["/"], 126),
}


@pytest.fixture(scope="module")
def endings():
    """Programs that end in different ways, all run at the same time."""
    running = {name: start("--", *command) for name, (command, _status) in ENDINGS.items()}
    for process in running.values():
        process.communicate(timeout=30)
    return running


@pytest.mark.parametrize("name", ENDINGS)
def test_the_exit_status_is_that_of_the_program(endings, name):
    assert endings[name].returncode == ENDINGS[name][1]


def test_options_of_the_program_are_left_to_it():
    done = exec_("sh", "-c", 'echo "$@"', "sh", "--rate", "x", "-h", "--", "y")
    assert done.stdout == "--rate x -h -- y\n"


def test_stdin_and_stderr_are_those_of_the_program():
    done = exec_("--", "sh", "-c", "cat; echo trouble >&2", input="given")
    assert done.stdout == "given"
    assert done.stderr == "trouble\nheadgate: no call came to the gateway\n"


READY = "trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.02; done"


def test_signals_to_the_gateway_reach_the_program():
    running = {name: start("--", "sh", "-c", READY.format(name=name)) for name in ("TERM", "HUP", "USR1")}
    for name, process in running.items():
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
    for process in running.values():
        out, _err = process.communicate(timeout=20)
        assert (out, process.returncode) == ("got\n", 5)


def test_ctrl_c_is_for_the_program_which_decides_what_it_means():
    process = start("--", "sh", "-c", READY.format(name="INT"), start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("got\n", 5)
    assert "Traceback" not in err


def test_a_program_that_ctrl_c_ends_gives_status_130():
    process = start("--", "sh", "-c", "echo ready; exec sleep 20", start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_a_program_started_with_ctrl_c_ignored_still_ignores_it():
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    done = exec_(
        "--", sys.executable, "-c", code, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    assert done.stdout == "True\n"


def test_the_program_has_the_terminal():
    status, seen = on_a_terminal("exec", "--", "sh", "-c", "test -t 0 && test -t 1 && echo terminal")
    assert status == 0
    assert seen.startswith("terminal")


def test_codex_gets_the_flag_that_it_needs(tmp_path):
    codex = tmp_path / "codex"
    codex.write_text('#!/bin/sh\necho "$@"\n')
    codex.chmod(0o755)
    done = exec_("--", str(codex), "exec", "hello")
    flag, option, *rest = done.stdout.split()
    assert flag == "-c"
    assert option.startswith('openai_base_url="http://127.0.0.1:')
    assert option.endswith('/openai/v1"')
    assert rest == ["exec", "hello"]


def test_a_gateway_that_cannot_start_is_an_error_and_the_program_is_not_started(tmp_path):
    done = exec_("--store", f"sqlite:///{tmp_path}/no/such/folder/x.db", "--rate", "5/s", "--", "echo", "ran")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_two_programs_share_a_limit_by_a_store(tmp_path):
    program = PROGRAM.replace("60", "12").replace("sys.exit(7)", "")
    with Sandbox("openai", requests="1440/minute burst 8", refusals_count=False) as api:
        command = [sys.executable, "-m", "headgate", "exec", "--to", api.url, "--rate", "1200/minute burst 2"]
        command += ["--store", f"sqlite:///{tmp_path}/limits.db", "--", sys.executable, "-c", program]
        env = {**KEYLESS, "OPENAI_API_KEY": KEY}
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
        for process in both:
            out, _ = process.communicate(timeout=30)
            assert json.loads(out) == [200] * 12
        report = api.report()
    assert (report.admitted, report.refused) == (24, 0)


@pytest.mark.parametrize(
    ("said", "key", "path"),
    [
        ("Logged in using ChatGPT", "", "/chatgpt"),
        ("Logged in using ChatGPT", "sk-c", "/openai/v1"),
        ("Logged in using an API key - sk-***", "", "/openai/v1"),
        ("Not logged in", "", "/openai/v1"),
    ],
)
def test_codex_is_led_to_the_api_of_its_login(tmp_path, said, key, path):
    codex = tmp_path / "codex"
    codex.write_text(f'#!/bin/sh\n[ "$1 $2" = "login status" ] && echo "{said}" >&2 && exit 1\necho "$@"\n')
    codex.chmod(0o700)
    done = exec_("--", str(codex), "exec", "hi", env={"CODEX_API_KEY": key})
    flag, _, rest = done.stdout.partition(" exec ")
    assert flag.startswith('-c openai_base_url="http://127.0.0.1:')
    assert flag.endswith(f'{path}"')
    assert rest == "hi\n"


def test_calls_that_were_turned_away_are_told_with_the_reason():
    script = """
import os, urllib.error, urllib.request
for _ in range(2):
    try:
        urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/models")
    except urllib.error.HTTPError as error:
        print(error.code)
"""
    done = exec_("--", sys.executable, "-c", script, env={"OPENAI_API_KEY": KEY})
    assert done.stdout == "401\n401\n"
    assert done.stderr.startswith(
        "headgate: 0 calls, 0 refused, 2 turned away: this gateway asks for its token"
    )


def test_the_help_says_where_each_command_listens():
    for command, default in (("exec", "a free port"), ("serve", "127.0.0.1:8429")):
        done = headgate(command, "--help")
        assert f"[default: {default}]" in " ".join(done.stdout.split()), command
