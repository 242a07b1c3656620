"""`headgate run`: what people type, what they are told, and how it ends."""

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from urllib.request import urlopen

import pytest

from cli.commands import BODY, KEYLESS, headgate, headgate_alone, on_a_terminal, start, told
from headgate.cli.run.packing import packing_of
from headgate.sandbox import Sandbox
from patience import eventually

has_zstd = find_spec("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd") is not None


def batch(count, **more):
    return "".join(
        json.dumps({"custom_id": f"job-{n}", "url": "/v1/chat/completions", "body": {**BODY, **more}}) + "\n"
        for n in range(count)
    )


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


# -- running


def test_run_answers_a_file_and_sends_nothing_the_second_time(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 0, done.stderr
    assert {answer["custom_id"] for answer in read(answers)} == {f"job-{n}" for n in range(20)}
    assert re.search(r"^answered  20 in \d+ s$", done.stderr, re.MULTILINE)
    assert re.search(r"^requests  20$", done.stderr, re.MULTILINE)
    assert "100%  20/20" in done.stderr
    assert "\x1b" not in done.stderr
    before = answers.read_bytes()
    again = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert "20 answers were in" in again.stderr
    assert answers.read_bytes() == before


def test_run_reads_jobs_from_a_pipe_and_writes_answers_into_a_pipe(api):
    done = headgate_alone(
        "run", "-", "--to", f"{api.url}/v1/chat/completions", stdin=(json.dumps(BODY) + "\n") * 3
    )
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["id"] for line in done.stdout.splitlines()} == {"job_1", "job_2", "job_3"}


def test_run_sends_lines_of_an_anthropic_batch(jobs, answers):
    jobs.write_text(json.dumps({"custom_id": "a", "params": BODY}) + "\n")
    with Sandbox("anthropic") as api:
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 0, done.stderr
    assert read(answers)[0]["response"]["body"]["type"] == "message"


def test_metrics_are_served_while_it_runs(api, answers, tmp_path):
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(batch(12))
    command = ["run", jobs, "--to", api.url, "-o", answers, "--rate", "10/s burst 1", "--metrics", 0]
    with start(*command) as running:
        line = running.stderr.readline()
        url = re.fullmatch(r"metrics: (http://127\.0\.0\.1:\d+/metrics)\n", line)[1]
        text = ""

        def both_counted():
            nonlocal text
            with urlopen(url) as response:
                text = response.read().decode()
            return "headgate_requests_total{" in text and 'status="2xx"' in text

        eventually(both_counted, "calls and responses are counted")
        running.communicate()
    assert running.returncode == 0
    assert 'rule="requests/second",unit="requests"} 10.0' in text
    assert len(read(answers)) == 12


def test_a_port_for_metrics_that_is_taken_is_an_error_and_nothing_is_sent(api, jobs, answers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = headgate("run", jobs, "--to", api.url, "-o", answers, "--metrics", port)
    assert done.returncode == 2
    error, hint = told(done)
    assert f"--metrics {port}: Address already in use" in error
    assert hint == "write another port, or 0 for a free one"


def test_json_progress_is_one_object_a_line(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--json", "--rate", "60_000/minute")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert events[-1]["event"] == "end"
    assert (events[-1]["answered"], events[-1]["refused"], events[-1]["stopped"]) == (20, 0, None)
    assert events[-1]["uses"][0]["limit"] == 60_000


def test_quiet_prints_nothing_if_every_job_is_answered(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_failed_jobs_are_written_beside_the_answers_and_tried_again(jobs, answers):
    errors = answers.with_name("answers.errors.jsonl")
    with Sandbox("openai") as api:
        api.fault("error", status=400, count=2)
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
        assert done.returncode == 1
        assert "2 (2 rejected), see" in done.stderr
        assert len(read(errors)[1:]) == 2
        again = headgate("run", jobs, "--to", api.url, "-o", answers)
        assert again.returncode == 0, again.stderr
    assert not errors.exists()
    assert len(read(answers)) == 20


def test_the_key_of_key_env_is_sent(jobs, answers):
    with Sandbox("openai", requests="1/hour", per_key=True) as api:
        jobs.write_text(batch(1))
        for key in ("one", "two"):  # each has a limit of its own
            answers.unlink(missing_ok=True)
            done = headgate(
                "run", jobs, "--to", api.url, "-o", answers, "--key-env", "MY_KEY", env={"MY_KEY": key}
            )
            assert done.returncode == 0, done.stderr
        assert api.report().admitted == 2


def test_max_tokens_counts_the_tokens_of_earlier_runs(api, jobs, answers):
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


def test_a_dry_run_estimates_and_sends_nothing(jobs, answers):
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


# -- files that the command must not touch


@pytest.mark.parametrize("link", ["name", "symbolic", "hard", "dangling"])
def test_answers_and_failures_are_never_one_file_whatever_it_is_called(api, jobs, answers, link):
    other = answers.with_name("other.jsonl")
    (answers.parent / "sub").mkdir()
    if link == "name":
        other = answers.parent / "sub" / ".." / answers.name
    elif link == "dangling":
        other.symlink_to(answers)
    before = b""
    if link != "dangling":
        headgate("run", jobs, "--to", api.url, "-o", answers)
        before = answers.read_bytes()
    if link == "symbolic":
        other.symlink_to(answers)
    elif link == "hard":
        other.hardlink_to(answers)
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--errors", other)
    assert done.returncode == 2
    assert "cannot go to the same file" in told(done)[0]
    assert not before or answers.read_bytes() == before


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_the_file_of_jobs_is_recognised_by_any_name(api, jobs, answers, link):
    other, before = answers.with_name("other.jsonl"), jobs.read_bytes()
    other.symlink_to(jobs) if link == "symbolic" else other.hardlink_to(jobs)
    for options in (["-o", other], ["-o", answers, "--errors", other]):
        done = headgate("run", jobs, "--to", api.url, *options)
        assert "is the file of jobs itself" in told(done)[0]
    assert jobs.read_bytes() == before


def test_old_answers_given_as_the_file_of_failures_are_left_as_they_are(api, jobs, answers):
    old = answers.with_name("old-answers.jsonl")
    headgate("run", jobs, "--to", api.url, "-o", old)
    before = old.read_bytes()
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--errors", old)
    assert done.returncode == 2
    assert "does not hold the failures of these answers" in told(done)[0]
    assert old.read_bytes() == before


def test_two_shards_have_two_files_of_failures(jobs, answers):
    jobs.write_text(batch(3))
    parts = [answers.with_name(f"part.{n}") for n in (1, 2)]
    with Sandbox("openai") as api:
        for part in parts:
            api.fault("error", status=400, count=1)
            assert headgate("run", jobs, "--to", api.url, "-o", part).returncode == 1
    assert [len(read(part.with_name(f"{part.name}.errors.jsonl"))[1:]) for part in parts] == [1, 1]


def test_another_file_of_jobs_with_the_same_ids_is_refused_before_anything_is_sent(api, jobs, answers):
    headgate("run", jobs, "--to", api.url, "-o", answers)
    jobs.write_text(batch(30, model="another"))
    before, lines = api.report().requests, answers.read_bytes()
    done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 2
    error, hint = told(done)
    assert "20 jobs were answered when the line was another one; the first is 'job-0'" in error
    assert "--changed send" in hint
    assert "--changed keep" in hint
    assert (api.report().requests, answers.read_bytes()) == (before, lines)
    assert headgate("run", jobs, "--to", api.url, "-o", answers, "--changed", "keep").returncode == 0
    assert api.report().requests == before + 10


def test_packed_files_in_and_out(api, tmp_path):
    jobs, more, answers = tmp_path / "jobs.jsonl.gz", tmp_path / "more.jsonl", tmp_path / "answers.jsonl.gz"
    jobs.write_bytes(gzip.compress(batch(5).encode()))
    more.write_text(batch(7).replace("job-", "more-"))
    done = headgate("run", jobs, more, "--to", api.url, "-o", answers)
    assert done.returncode == 0, done.stderr
    lines = gzip.decompress(answers.read_bytes()).splitlines()
    assert len({json.loads(line)["custom_id"] for line in lines}) == 12
    assert "12 answers were in" in headgate("run", jobs, more, "--to", api.url, "-o", answers).stderr


def test_a_packed_file_of_jobs_that_is_damaged_is_an_error(api, tmp_path, answers):
    jobs = tmp_path / "jobs.jsonl.gz"
    jobs.write_bytes(gzip.compress(batch(50).encode())[:-20])
    done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert "cannot be unpacked" in told(done)[0]


@pytest.mark.parametrize(("shape", "key"), [("anthropic", "result"), ("gemini", "response")])
def test_answers_in_the_shape_of_other_providers_are_known_to_the_next_run(api, jobs, answers, shape, key):
    command = ("run", jobs, "--to", api.url, "-o", answers, "--format", shape)
    assert headgate(*command).returncode == 0
    assert all(key in answer for answer in read(answers))
    assert "20 answers were in" in headgate(*command).stderr


def test_a_file_that_is_not_utf8_is_an_error_that_says_so(api, jobs, answers):
    jobs.write_bytes(batch(2).encode("utf-16"))
    assert told(headgate("run", jobs, "--to", api.url, "-o", answers)) == (
        "error: jobs.jsonl, line 1: not UTF-8", "save the file as UTF-8"
    )  # fmt: skip


def test_lines_of_windows_programs_are_read_as_any_others(api, jobs, answers):
    jobs.write_bytes(b"\xef\xbb\xbf" + batch(3).replace("\n", "\r\n").encode())
    assert headgate("run", jobs, "--to", api.url, "-o", answers).returncode == 0
    assert len(read(answers)) == 3
    jobs.write_text(batch(3))  # the same jobs, for answers have their digests
    assert "3 answers were in" in headgate("run", jobs, "--to", api.url, "-o", answers).stderr


def test_a_pipe_without_jobs_is_told(api, answers):
    done = headgate_alone("run", "-", "--to", api.url, "-o", answers, stdin="\n")
    assert done.returncode == 0
    assert "stdin had no jobs" in done.stderr


def test_jobs_of_a_pipe_that_have_an_answer_are_not_sent_again(api, answers):
    before = api.report().requests
    for count in (4, 6):
        done = headgate_alone("run", "-", "--to", api.url, "-o", answers, stdin=batch(count))
        assert done.returncode == 0, done.stderr
    assert len(read(answers)) == 6
    assert api.report().requests == before + 6


@pytest.mark.skipif(not has_zstd, reason="backports.zstd is not installed")
def test_files_packed_by_zstd_in_and_out(api, tmp_path):
    jobs, answers = tmp_path / "jobs.jsonl.zst", tmp_path / "answers.jsonl.zst"
    jobs.write_bytes(packing_of(jobs).pack(batch(5).encode()))
    for told_of in ("answered  5", "5 answers were in"):
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
        assert done.returncode == 0, done.stderr
        assert told_of in done.stderr
    with packing_of(answers).open(answers) as file:
        assert len(file.readlines()) == 5


def test_a_list_of_prices_replaces_the_one_that_is_shipped(api, jobs, answers, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"date": "2026-01-01", "models": {"m": [1_000, 1_000]}}))
    options = ("--prices", prices, "--max-cost", 0.4, "--concurrency", 1)
    done = headgate("run", jobs, "--to", api.url, "-o", answers, *options)
    assert done.returncode == 3
    used = sum(answer["response"]["body"]["usage"]["total_tokens"] for answer in read(answers))
    assert 0.2 < used / 1_000 <= 0.4
    assert f"cost      {used / 1_000:.4f}" in done.stderr
    assert "with a larger budget" in told(done)[1]


def test_retry_failed_sends_the_jobs_that_failed_and_no_others(jobs, answers):
    with Sandbox("openai") as api:
        api.fault("error", status=400, count=3)
        assert headgate("run", jobs, "--to", api.url, "-o", answers, "--concurrency", 1).returncode == 1
        jobs.write_text(batch(30))
        before = api.report().requests
        done = headgate("run", jobs, "--to", api.url, "-o", answers, "--retry-failed")
        assert done.returncode == 0, done.stderr
        assert api.report().requests == before + 3
    assert "100%  3/3" in done.stderr
    assert len(read(answers)) == 20


def test_a_wait_of_a_year_ends_the_run_at_once_and_is_told_in_quiet_too(jobs, answers):
    with Sandbox("openai") as api:
        api.fault("storm", count=1, retry_after=366 * 86_400)
        done = headgate("run", jobs, "--to", api.url, "-o", answers, "-q")
    assert done.returncode == 3
    error, hint = told(done)
    assert re.search(
        r"127\.0\.0\.1:\d+ asks to wait a month or longer, longer than --patience 600: 429", error
    )
    assert "run it again then" in hint


def test_a_long_wait_is_told_once_in_quiet_too(jobs, answers):
    with Sandbox("openai") as api:
        api.fault("storm", count=1, retry_after=5.5)
        done = headgate("run", jobs, "--to", api.url, "-o", answers, "-q")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"all jobs wait 5\.\d s, until \d\d:\d\d:\d\d: told to slow down \(429: .*\)", line)


def test_retry_failed_needs_failures(api, jobs, answers):
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--retry-failed")
    assert "no job has failed" in told(done)[0]


# -- what is wrong is told once, and before anything is sent


@pytest.mark.parametrize(
    ("change", "options", "error", "hint"),
    [
        ("oops\n", {}, "jobs.jsonl, line 21: not JSON", "a line is"),
        ("[\n", {}, "jobs.jsonl, line 21: not JSON", "jq -c '.[]'"),
        ("{\n", {}, "jobs.jsonl, line 21: not JSON", "on one line of its own"),
        ("", {"-o": "/proc/x.jsonl"}, "no such file or directory", "another file"),
        (batch(1), {}, "`custom_id` 'job-0' has been used before", "one of its own"),
        ("", {"--to": "127.0.0.1:80"}, "does not say how to get there", "http://127.0.0.1:80"),
        ("", {"--to": "api.x.ai"}, "does not say how to get there", "https://api.x.ai"),
        ("", {"--to": "openai"}, "does not say how to get there", "https://api.openai.com"),
        ("", {"--to": "Anthropic"}, "does not say how to get there", "https://api.anthropic.com"),
        ("", {"--to": "htp://127.0.0.1"}, "'htp' is not a protocol of this command", "http or https"),
        ("", {"--to": "http://no-such.invalid"}, "no host is called 'no-such.invalid'", "typing error"),
        ("", {"--to": "http://127.0.0.1:9"}, "nothing listens at 127.0.0.1:9", "start it"),
        ("", {"--to": "https://api.openai.com"}, "has no OPENAI_API_KEY", "export OPENAI_API_KEY"),
        ("", {"--key-env": "NO_SUCH_KEY"}, "the environment has no NO_SUCH_KEY", "--header"),
        ("", {"-o": "no/such/folder/x"}, "no such file or directory", "mkdir -p"),
        ("", {"-o": "."}, "is a directory", "name a file"),
        ("", {"-o": "jobs.jsonl"}, "is the file of jobs itself", "another file"),
        ("", {"--errors": "no/such/x"}, "no such folder", "make it"),
        ("", {"--max-cost": "5"}, "no price is known for the model 'm'", "--prices"),
        ("", {"--prices": "jobs.jsonl"}, "is not a list of prices", "models"),
        ("", {"--rate": "fast"}, "it has no period", ""),
        ("", {"--rate": "9 words/minute"}, "'words' is not counted; write requests, tokens", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_one_error_with_a_hint_before_anything_is_sent(
    api, tmp_path, monkeypatch, jobs, answers, change, options, error, hint
):
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


def test_a_missing_or_empty_file_of_jobs_is_an_error(tmp_path, answers):
    missing = headgate("run", tmp_path / "none.jsonl", "--to", "http://127.0.0.1:9", "-o", answers)
    assert "cannot read" in told(missing)[0]
    (tmp_path / "empty.jsonl").write_text("\n\n")
    empty = headgate("run", tmp_path / "empty.jsonl", "--to", "http://127.0.0.1:9", "-o", answers)
    assert "has no jobs" in told(empty)[0]


def test_skip_invalid_counts_bad_lines_as_failed_jobs(api, jobs, answers):
    jobs.write_text("oops\n" + jobs.read_text())
    done = headgate("run", jobs, "--to", api.url, "-o", answers, "--skip-invalid")
    assert done.returncode == 1
    assert len(read(answers)) == 20
    assert read(answers.with_name("answers.errors.jsonl"))[1]["custom_id"] == "line-1"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_an_output_without_permission_to_write_is_an_error(api, jobs, answers):
    answers.write_text("")
    answers.chmod(0o444)
    assert "permission denied" in told(headgate("run", jobs, "--to", api.url, "-o", answers))[0]


def test_a_full_disk_stops_the_run_with_one_error(api, jobs):
    done = headgate_alone("run", jobs, "--to", api.url, "-o", "/dev/full")
    assert done.returncode == 3
    assert "cannot write /dev/full: No space left on device" in told(done)[0]


def test_run_stops_if_the_reader_of_the_answers_ends(api, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(batch(2_000))
    run = f"{sys.executable} -m headgate run {path} --to {api.url} --rate 60_000/minute --concurrency 4"
    command = f"{run} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=KEYLESS, check=False
    )
    assert len(done.stdout.splitlines()) == 1
    assert "the program that read the answers has ended" in told(done)[0]


def test_a_refused_key_is_one_error(jobs, answers):
    with Sandbox("openai") as api:
        api.fault("error", status=401)
        done = headgate("run", jobs, "--to", api.url, "-o", answers)
    assert done.returncode == 3
    assert "does not accept the key: 401" in told(done)[0]


def test_no_output_shows_the_key(api, jobs, answers):
    options = ("--key-env", "MY_KEY", "--header", "x-other: sesame")
    done = headgate("run", jobs, "--to", api.url, "-o", answers, *options, env={"MY_KEY": "sk-sesame"})
    assert done.returncode == 0
    assert "sesame" not in done.stdout + done.stderr + answers.read_text()
    wrong = headgate("run", jobs, "--to", api.url, "-o", answers, "--header", "sesame\n: sesame-street")
    assert wrong.returncode == 2
    assert "street" not in wrong.stderr


# -- interrupting


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_ctrl_c_lets_requests_in_flight_finish(jobs, answers, number):
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


def test_the_second_ctrl_c_stops_at_once_and_loses_no_answer(jobs, answers):
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


def test_ctrl_c_ends_a_run_that_waits_for_a_pipe(api):
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


def test_progress_on_a_terminal_has_colours_except_with_no_color(jobs, answers):
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


def test_answers_to_a_terminal_are_an_error(api, jobs):
    status, shown = on_a_terminal("run", jobs, "--to", api.url)
    assert status == 2
    assert "the answers would fill the terminal" in shown
