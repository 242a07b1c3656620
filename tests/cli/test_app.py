"""The command line: what people type, what they are told, and how it ends."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from headgate.cli.app import main
from headgate.cli.run.view import RunView, Use, why_it_waits
from headgate.dispatch.dispatch import DispatchSnapshot, RateLevel
from headgate.sandbox import Sandbox
from headgate.words import duration
from patience import eventually

KEYLESS = {name: text for name, text in os.environ.items() if not name.endswith("_API_KEY")}
BODY = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}


def batch(count, **more):
    return "".join(
        json.dumps({"custom_id": f"job-{n}", "url": "/v1/chat/completions", "body": {**BODY, **more}}) + "\n"
        for n in range(count)
    )


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def headgate(*args, env=None):
    """Run a command in this process."""
    without_keys = {name: None for name in os.environ if name not in KEYLESS}
    result = CliRunner().invoke(
        main, [*map(str, args)], prog_name="headgate", env={**without_keys, **(env or {})}
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def headgate_alone(*args, stdin=None):
    """Run a command in a process of its own, with real pipes."""
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, env=KEYLESS, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def jobs(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text(batch(20))
    return path


@pytest.fixture
def answers(tmp_path):
    return tmp_path / "answers.jsonl"


@pytest.fixture(scope="module")
def api():
    with Sandbox("openai", requests="60_000/minute", tokens="60_000_000/minute") as sandbox:
        yield sandbox


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(done):
    """The one error of a command that failed, and its hint."""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    error, _, hint = done.stderr[done.stderr.index("error: ") :].partition("hint: ")
    return error.strip(), hint.strip()


# -- running


def test_a_file_is_drained_and_the_same_command_again_sends_nothing(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 0, done.stderr
    assert {answer["custom_id"] for answer in read(answers)} == {f"job-{n}" for n in range(20)}
    assert "20 answered in" in done.stderr
    assert "100%  20/20" in done.stderr
    assert "\x1b" not in done.stderr
    before = answers.read_bytes()
    again = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert "20 were answered before" in again.stderr
    assert answers.read_bytes() == before


def test_pipes_on_both_sides(api):
    done = headgate_alone(
        "run", "-", "--to", f"{api.url}/v1/chat/completions", stdin=(json.dumps(BODY) + "\n") * 3
    )
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["id"] for line in done.stdout.splitlines()} == {"job_1", "job_2", "job_3"}


def test_anthropic_batches(jobs, answers):
    jobs.write_text(json.dumps({"custom_id": "a", "params": BODY}) + "\n")
    with Sandbox("anthropic") as api:
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 0, done.stderr
    assert read(answers)[0]["response"]["body"]["type"] == "message"


def test_progress_for_machines(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--json", "--rate", "60_000/minute")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert events[-1]["event"] == "end"
    assert (events[-1]["answered"], events[-1]["refused"], events[-1]["stopped"]) == (20, 0, None)
    assert events[-1]["uses"][0]["limit"] == 60_000


def test_quiet_says_nothing_when_all_is_well(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_failed_jobs_are_written_beside_the_answers_and_tried_again(jobs, answers):
    errors = answers.with_name("answers.errors.jsonl")
    with Sandbox("openai") as api:
        api.fault("error", status=400, count=2)
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
        assert done.returncode == 1
        assert "2 failed, see" in done.stderr
        assert len(read(errors)) == 2
        again = headgate("run", jobs, "--to", api.url, "-o", answers)
        assert again.returncode == 0, again.stderr
    assert not errors.exists()
    assert len(read(answers)) == 20


def test_headers_and_the_key_are_sent(jobs, answers):
    with Sandbox("openai", requests="1/hour", per_key=True) as api:
        jobs.write_text(batch(1))
        for key in ("one", "two"):  # each has a limit of its own
            answers.unlink(missing_ok=True)
            done = headgate(
                "run", jobs, "--to", api.url, "-o", answers, "--key-env", "MY_KEY", env={"MY_KEY": key}
            )
            assert done.returncode == 0, done.stderr
        assert api.report().admitted == 2


def test_a_budget_holds_over_several_runs(api, jobs, answers):
    command = ("run", jobs, "--to", api.url, "-o", answers, "--max-tokens", 400, "--concurrency", 2)
    first = headgate(*command)
    assert first.returncode == 3
    error, hint = told(first)
    assert "of 400 tokens are used" in error
    assert "Run the same command again" in hint
    count = len(read(answers))
    assert headgate(*command).returncode == 3
    assert len(read(answers)) == count
    assert sum(answer["response"]["body"]["usage"]["total_tokens"] for answer in read(answers)) <= 400


def test_a_dry_run_sends_nothing(jobs, answers):
    to = "https://api.openai.com"  # without a key, and without a network
    done = headgate("run", jobs, "--to", to, "--dry-run", "--rate", "10/minute burst 1", "--price", "1/2")
    assert done.returncode == 0, done.stderr
    assert "20 to send" in done.stdout
    assert "at most 400 tokens" in done.stdout
    assert "1:54, held by requests/minute" in done.stdout
    facts = json.loads(headgate("run", jobs, "--to", to, "--dry-run", "--json").stdout)
    assert (facts["jobs"], facts["output_tokens"], facts["seconds"]) == (20, 400, None)
    assert not answers.exists()


def test_a_dry_run_names_every_bad_line(jobs):
    jobs.write_text("oops\n" + batch(2) + "[]\n")
    done = headgate("run", jobs, "--to", "https://a.b", "--dry-run")
    assert done.returncode == 2
    assert "jobs.jsonl, line 1: not JSON" in done.stderr
    assert "jobs.jsonl, line 4: not an object" in done.stderr


# -- what is wrong is told once, and before anything is sent


@pytest.mark.parametrize(
    ("change", "options", "error", "hint"),
    [
        ("oops\n", {}, "jobs.jsonl, line 21: not JSON", "a line is"),
        (batch(1), {}, "`custom_id` 'job-0' has been used before", "one of its own"),
        ("", {"--to": "127.0.0.1:80"}, "does not say how to get there", "http://127.0.0.1:80"),
        ("", {"--to": "api.x.ai"}, "does not say how to get there", "https://api.x.ai"),
        ("", {"--to": "htp://127.0.0.1"}, "'htp' is not spoken here", "http or https"),
        ("", {"--to": "http://no-such.invalid"}, "no host is called 'no-such.invalid'", "typing error"),
        ("", {"--to": "http://127.0.0.1:9"}, "nothing listens at 127.0.0.1:9", "start it"),
        ("", {"--to": "https://api.openai.com"}, "has no OPENAI_API_KEY", "export OPENAI_API_KEY"),
        ("", {"--key-env": "NO_SUCH_KEY"}, "the environment has no NO_SUCH_KEY", "--header"),
        ("", {"-o": "no/such/folder/x"}, "no such file or directory", "mkdir -p"),
        ("", {"-o": "."}, "is a directory", "name a file"),
        ("", {"-o": "jobs.jsonl"}, "is the file of jobs itself", "another file"),
        ("", {"--errors": "no/such/x"}, "no such folder", "make it"),
        ("", {"--max-cost": "5"}, "--max-cost needs prices", "--price"),
        ("", {"--rate": "fast"}, "it has no period", ""),
        ("", {"--rate": "9 words/minute"}, "'words' is not counted; write requests, tokens", ""),
    ],
)  # fmt: skip
def test_one_clear_error(api, tmp_path, monkeypatch, jobs, answers, change, options, error, hint):
    monkeypatch.chdir(tmp_path)
    jobs.write_text(jobs.read_text() + change)
    before = api.report().requests
    given = {"--to": api.url, "-o": answers, **options}
    done = headgate("run", jobs, *(word for pair in given.items() for word in pair))
    assert api.report().requests == before
    assert done.returncode == 2
    if "--rate" in options:  # by click, as any wrong option
        assert error in done.stderr
        return
    said, advice = told(done)
    assert error in said
    assert hint in advice
    assert not answers.exists() or not answers.read_bytes()


def test_no_such_file_of_jobs_and_none_in_it(tmp_path, answers):
    missing = headgate("run", tmp_path / "none.jsonl", "--to", "http://127.0.0.1:9", "-o", answers)
    assert "cannot read" in told(missing)[0]
    (tmp_path / "empty.jsonl").write_text("\n\n")
    empty = headgate("run", tmp_path / "empty.jsonl", "--to", "http://127.0.0.1:9", "-o", answers)
    assert "has no jobs" in told(empty)[0]


def test_bad_lines_can_be_skipped(api, jobs, answers):
    jobs.write_text("oops\n" + jobs.read_text())
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--skip-invalid")
    assert done.returncode == 1
    assert len(read(answers)) == 20
    assert read(answers.with_name("answers.errors.jsonl"))[0]["custom_id"] == "line-1"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_an_output_without_permission(api, jobs, answers):
    answers.write_text("")
    answers.chmod(0o444)
    assert "permission denied" in told(headgate("run", jobs, "--to", api.url, "-o", answers))[0]


def test_a_full_disk_stops_the_run_with_one_error(api, jobs):
    done = headgate_alone("run", jobs, "--to", api.url, "-o", "/dev/full")
    assert done.returncode == 3
    assert "cannot write /dev/full: No space left on device" in told(done)[0]


def test_whoever_reads_the_answers_may_leave(api, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(batch(2_000))
    run = f"{sys.executable} -m headgate run {path} --to {api.url} --rate 60_000/minute --concurrency 4"
    command = f"{run} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=KEYLESS, check=False
    )
    assert len(done.stdout.splitlines()) == 1
    assert "the program that read the answers has ended" in told(done)[0]


def test_a_key_that_is_refused_is_told_once(jobs, answers):
    with Sandbox("openai") as api:
        api.fault("error", status=401)
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 3
    assert "does not accept the key: 401" in told(done)[0]


def test_the_key_is_never_shown(api, jobs, answers):
    options = ("--key-env", "MY_KEY", "--header", "x-other: sesame")
    done = headgate("run", jobs, "--to", api.url, "-o", answers, *options, env={"MY_KEY": "sk-sesame"})
    assert done.returncode == 0
    assert "sesame" not in done.stdout + done.stderr + answers.read_text()
    wrong = headgate("run", jobs, "--to", api.url, "-o", answers, "--header", "sesame\n: sesame-street")
    assert wrong.returncode == 2
    assert "street" not in wrong.stderr


# -- interrupting


def start(*args, stderr=subprocess.PIPE):
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    return subprocess.Popen(command, stderr=stderr, stdout=subprocess.PIPE, text=True, env=KEYLESS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_once_finishes_what_is_in_flight_and_says_how_to_go_on(jobs, answers, number):
    jobs.write_text(batch(500))
    with Sandbox("openai", first_token=0.4) as api:
        run = start(
            "run", jobs, "--to", api.url, "-o", answers, "--concurrency", 6, "--rate", "60_000/minute"
        )
        eventually(lambda: api.report().in_flight == 6, "six are in flight")
        run.send_signal(number)
        _, words = run.communicate(timeout=30)
        assert api.report().abandoned == 0
        assert len(read(answers)) == api.report().admitted
    assert run.returncode == 3
    assert "finishing what is in flight" in words
    assert "Run the same command again" in words
    assert "Traceback" not in words


def test_ctrl_c_twice_stops_at_once_and_loses_nothing(jobs, answers):
    jobs.write_text(batch(500))
    words = jobs.with_name("words.txt")
    with Sandbox("openai", first_token=0.01) as api, words.open("w") as stderr:
        options = ["--to", api.url, "-o", answers, "--concurrency", 8, "--rate", "6_000/minute"]
        run = start("run", jobs, *options, stderr=stderr)
        eventually(lambda: api.report().admitted >= 5, "five are answered")
        api.fault("slow_headers", seconds=30)
        eventually(lambda: api.report().faults.get("slow_headers") == 8, "all eight wait")
        run.send_signal(signal.SIGINT)
        eventually(lambda: "finishing what is in flight" in words.read_text(), "it heard the first")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=10)
        assert len(read(answers)) == api.report().admitted - api.report().abandoned
    assert run.returncode == 130
    assert "Traceback" not in words.read_text()


def test_ctrl_c_while_nothing_comes_down_the_pipe(api):
    run = subprocess.Popen(
        [sys.executable, "-m", "headgate", "run", "-", "--to", api.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=KEYLESS,
    )  # fmt: skip
    run.stdin.write(batch(1))
    run.stdin.flush()
    assert json.loads(run.stdout.readline())["custom_id"] == "job-0"
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=10)
    assert run.returncode == 3
    assert "Traceback" not in words
    assert "Fatal" not in words


# -- on a terminal


def on_a_terminal(*args, env=None):
    """What a terminal would have been sent."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    environment = {**KEYLESS, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **(env or {})}
    run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    return run.wait(timeout=10), shown.decode()


def test_a_terminal_gets_a_picture_with_colours_unless_it_wants_none(jobs, answers):
    jobs.write_text(batch(120))
    with Sandbox("openai", requests="6_000/minute", tokens="600_000/minute") as api:
        status, shown = on_a_terminal("run", jobs, "--to", api.url, "-o", answers)
        assert status == 0
        assert "jobs.jsonl → 127.0.0.1" in shown
        assert re.search(r"120 of 120", shown)
        assert "in flight" in shown
        assert "429s" in shown
        assert re.search(r"\x1b\[[0-9;]*3[0-9]", shown)
        answers.unlink()
        status, plain = on_a_terminal("run", jobs, "--to", api.url, "-o", answers, env={"NO_COLOR": "1"})
    assert status == 0
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|38;)[0-9;]*m", plain)


def test_answers_do_not_fill_a_terminal(api, jobs):
    status, shown = on_a_terminal("run", jobs, "--to", api.url)
    assert status == 2
    assert "the answers would fill the terminal" in shown


SNAPSHOT = {
    "backoff_active": False, "in_flight": 7, "throttled_in_flight": 0, "bytes_in_flight": None,
    "waiting": 3, "concurrency": 7, "throttled_concurrency": None, "byte_budget": None,
    "rates": (RateLevel(name="tokens/minute", unit="tokens", limit=100, per=60.0, burst=1, level=0),),
}  # fmt: skip


@pytest.mark.parametrize(
    ("binding", "next_at", "words"),
    [
        (None, None, ""),
        ("tokens/minute", 11.8, "tokens/minute: next slot in 1.8 s"),
        ("tokens/minute", 10.05, "tokens/minute: at the limit"),
        ("tokens/minute", 110, "tokens/minute: next slot in 1:40"),
        ("window", 15.0, "told to slow down (429: easy): all jobs wait 5.0 s"),
        ("concurrency", None, "all 7 places are taken: waiting for an answer"),
    ],
)
def test_why_it_waits_in_words(binding, next_at, words):
    snapshot = DispatchSnapshot(binding=binding, next_at=next_at, **SNAPSHOT)
    assert why_it_waits(snapshot, 10.0, "429: easy") == words


def test_a_line_of_progress_says_it_all():
    view = RunView(
        seconds=60, total=200, kept=10, answered=88, failed=2, sent=95, refused=3, retried=4, in_flight=5,
        concurrency=8, speed=1.5, tokens=900, tokens_per_minute=1234.5, cost=None, left=66.7,
        uses=(Use("requests", "minute", 58.2, 60),), waits="requests/minute: next slot in 1.0 s",
        stopping=False,
    )  # fmt: skip
    assert view.line() == (
        " 50%  100/200  1.5/s  1,234 tokens/min  5 in flight  3 × 429  2 failed  1:07 left"
        "  requests/minute: next slot in 1.0 s"
    )
    json.dumps(view.facts())
    assert duration(3599.7) == "1:00:00"


# -- the other commands


def test_the_sandbox_serves_until_it_is_stopped_and_says_what_it_saw():
    run = start("sandbox", "--requests", "2/minute", "--fault", "error,status=503,count=1", "--seed", "1")
    url = run.stdout.readline().strip()
    done = headgate_alone(
        "run", "-", "--to", f"{url}/v1/chat/completions", "--retries", "0", stdin=json.dumps(BODY)
    )
    assert done.returncode == 0, done.stderr
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=10)
    assert run.returncode == 0
    assert "openai, requests 2/minute" in words
    assert "2 requests: 1 let through" in words


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--requests", "fast"], "it has no period"),
        (["--input-tokens", "5/s"], "the openai style counts"),
        (["--fault", "earthquake"], "earthquake"),
        (["--fault", "storm,loud"], "'loud' says nothing"),
        (["--fault", "storm,loud=1"], "loud"),
    ],
)
def test_a_sandbox_that_cannot_be(options, why):
    done = CliRunner().invoke(main, ["sandbox", *options])
    assert done.exit_code == 2
    assert why in done.output


def test_a_port_that_is_taken(api):
    port = api.url.rpartition(":")[2]
    error, hint = told(headgate("sandbox", "--port", port))
    assert error == f"error: cannot listen on 127.0.0.1:{port}: address already in use"
    assert "another --port" in hint
    assert "--host" in told(headgate("sandbox", "--host", "192.0.2.1"))[1]


def test_a_demo_whose_picture_cannot_be_written_does_not_begin(tmp_path):
    done = headgate("demo", "--plot", tmp_path / "no" / "such.png")
    assert done.returncode == 2
    error, hint = told(done)
    assert "there is no folder" in error
    assert "--plot" in hint


def test_a_demo_may_be_stopped(tmp_path):
    run = start("demo", "--plot", tmp_path / "demo.png")
    eventually(lambda: select.select([run.stdout], [], [], 0)[0], "it has begun")
    time.sleep(0.5)  # in the middle of it, when it says nothing
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "Traceback" not in words


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("wa", "watch"),
        ("run --sto", "--store"),
        ("watch --on", "--once"),
        ("sandbox --style an", "anthropic"),
    ],
)
def test_completion_offers_commands_and_options(typed, offered):
    words = ["headgate", *typed.split()]
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(
        main, prog_name="headgate", env={"_HEADGATE_COMPLETE": "bash_complete", **asked}
    )
    assert offered in done.output


def test_completion_for_each_shell():
    for shell in ("bash", "zsh", "fish"):
        done = CliRunner().invoke(main, ["completion", shell])
        assert done.exit_code == 0
        assert "_HEADGATE_COMPLETE" in done.output


def test_help_reads_well():
    done = CliRunner().invoke(main, ["run", "--help"])
    assert done.exit_code == 0
    for heading in ("Where:", "Limits:", "Trouble:", "Showing:", "Exit status:"):
        assert heading in done.output
    assert max(map(len, done.output.splitlines())) <= 110
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0
