"""`headgate run` when it is interrupted early, when its reader stops, and when answers cannot be written."""

import asyncio
import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from cli.commands import KEYLESS, headgate, start, told
from cli.run.job_files import answered_ids, count_answers, job_ids, write_jobs
from cli.run.virtual_run import SETTINGS
from headgate import Dispatch
from headgate.cli.run.errors import Stop
from headgate.cli.run.journal import Journal
from headgate.cli.run.lines import Lines
from headgate.cli.run.options import Settings
from headgate.cli.run.runner import Runner
from headgate.cli.run.target import Target
from headgate.cli.run.wire import RawReply
from headgate.sandbox import Sandbox
from patience import eventually

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys
from headgate.cli import main

class CtrlC:
    def find_spec(self, name, *_):
        if name == sys.argv[0]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.argv = sys.argv[1:]
sys.meta_path.insert(0, CtrlC())
main()
"""


@pytest.mark.parametrize("module", ["click", "headgate.cli.run.execute", "aiohttp", "headgate.cli.run.wire"])
def test_ctrl_c_while_the_command_is_loading_ends_it_without_a_word(tmp_path, module):
    jobs = write_jobs(tmp_path / "jobs.jsonl", 3)
    command = ["run", str(jobs), "--to", "http://127.0.0.1:9", "-o", str(tmp_path / "answers.jsonl")]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING, module, *command],
        capture_output=True, text=True, timeout=60, env=KEYLESS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_reader_that_stops_for_longer_than_the_timeout_makes_no_request_be_sent_twice(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.jsonl", 400, max_tokens=300)
    with Sandbox("openai", first_token=0.01) as api:
        command = [sys.executable, "-m", "headgate", "run", str(jobs), "--to", api.url, "--timeout", "0.5"]
        run = subprocess.Popen(
            [*command, "--concurrency", "16", "--rate", "60_000/minute", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=KEYLESS, bufsize=0,
        )  # fmt: skip
        first = run.stdout.read(100)
        time.sleep(1.5)
        stalled = api.report()
        rest, words = run.communicate(timeout=30)
        requests = api.report().requests
    assert run.returncode == 0, words
    assert stalled.requests < 400  # the pipe was full, and no more jobs were sent
    assert stalled.in_flight == 0
    assert requests == 400
    assert len((first + rest).splitlines()) == 400
    events = [json.loads(line) for line in words.splitlines()]
    assert any("waiting for the reader of stdout" in event.get("waits", "") for event in events)


def limited_to(size):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_rerun_on_a_full_disk_sends_nothing(tmp_path):
    jobs, answers = write_jobs(tmp_path / "jobs.jsonl", 30), tmp_path / "answers.jsonl"
    with Sandbox("openai") as api:
        command = [sys.executable, "-m", "headgate", "run", str(jobs), "--to", api.url, "-o", str(answers)]
        subprocess.run([*command, "-q"], env=KEYLESS, check=True)
        lines = answers.read_bytes().splitlines(keepends=True)
        answers.write_bytes(b"".join(lines[:10]))
        before = api.report().requests
        full = subprocess.run(
            command, capture_output=True, text=True, env=KEYLESS, check=False, timeout=60,
            preexec_fn=limited_to(answers.stat().st_size),
        )  # fmt: skip
        assert api.report().requests == before
    assert full.returncode == 2
    assert "cannot write" in told(full)[0]
    assert answers.read_bytes() == b"".join(lines[:10])


def test_a_disk_that_fills_up_leaves_whole_answers_and_failures_and_loses_none(tmp_path):
    """Answers and failures stop fitting in the middle of a run; after it there is room again."""
    jobs, answers = write_jobs(tmp_path / "jobs.jsonl", 1_500, max_tokens=100), tmp_path / "answers.jsonl"
    with Sandbox("openai") as api:
        command = [sys.executable, "-m", "headgate", "run", str(jobs), "--to", api.url, "-o", str(answers)]
        command += ["--concurrency", "16", "--rate", "600_000/minute"]
        full = subprocess.run(
            command, capture_output=True, text=True, env=KEYLESS, check=False, timeout=60,
            preexec_fn=limited_to(300_000),
        )  # fmt: skip
        assert full.returncode == 3, full.stderr
        assert "had no room" in told(full)[0]
        kept = answered_ids(answers)
        sent = api.report().requests
        assert 0 < len(kept) <= sent
        assert sent - len(kept) <= 16 + 64  # what was under way
        assert headgate("run", jobs, "--to", api.url, "-o", answers, "-q").returncode == 0
    assert answered_ids(answers) == job_ids(1_500)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_failures_that_cannot_be_written_stop_the_run(tmp_path):
    jobs, answers = write_jobs(tmp_path / "jobs.jsonl", 20), tmp_path / "answers.jsonl"
    with Sandbox("openai") as api:
        api.fault("error", status=400, count=3)
        done = headgate("run", jobs, "--to", api.url, "-o", answers, "--errors", "/dev/full")
    assert done.returncode == 3
    assert "cannot write the file of failures" in told(done)[0]


def test_ctrl_c_is_named_once(tmp_path):
    jobs, answers = write_jobs(tmp_path / "jobs.jsonl", 400), tmp_path / "answers.jsonl"
    with Sandbox("openai", first_token=0.05) as api:
        headgate("run", jobs, "--to", api.url, "-o", answers, "-q", "--max-tokens", 2_000)
        before = len(answered_ids(answers))
        assert before > 10
        run = start("run", jobs, "--to", api.url, "-o", answers, "--rate", "60/minute")
        eventually(lambda: count_answers(answers) > before, "it goes on")
        run.send_signal(signal.SIGINT)
        _, words = run.communicate(timeout=30)
    assert run.returncode == 3
    assert words.count("stopped") == words.count("stopped by Ctrl-C") == 1
    assert f"{before} answers were in {answers} before" in words


class OneAnswer:
    """Carries requests to an API that gives every one the same answer."""

    async def send(self, _method, _url, _body):
        return RawReply(200, {"content-type": "application/json"}, b'{"usage": {"total_tokens": 3}}')

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("failure", "why"),
    [(MemoryError(), "MemoryError"), (RuntimeError("cannot pack it"), "RuntimeError: cannot pack it")],
)
def test_an_answer_that_cannot_be_packed_ends_the_run_and_says_why(tmp_path, monkeypatch, failure, why):
    def broken(_journal, _lines):
        raise failure

    path, source = tmp_path / "answers.jsonl", Lines([write_jobs(tmp_path / "jobs.jsonl", 40)])
    monkeypatch.setattr(Journal, "write", broken)

    async def main():
        gate = Dispatch("api", concurrency=2)
        settings = Settings(**{**SETTINGS, "concurrency": 2})
        runner = Runner(source, Target("http://a.test"), gate, journal, OneAnswer(), settings=settings)
        return await asyncio.wait_for(runner.run(), 20), runner.tally

    with closing(source), closing(Journal.open(path)) as journal:
        stop, tally = asyncio.run(main())
    lost = f"{tally.sent} answers could not be written and will be asked for again"
    assert stop == Stop("output", f"cannot write {path}: {why}; {lost}", "run it again to go on")
    assert tally.answered == 0
    assert 0 < tally.sent < 40
