"""Runs against the sandbox on a port: what a real client makes of a broken connection, and kill -9."""

import asyncio
import gzip
import json
import random
import signal
import subprocess
import sys
import time

import pytest

from cli.run.job_files import answered_ids, answers_of, job_ids, write_jobs
from headgate import Dispatch
from headgate.cli.run.journal import Journal
from headgate.cli.run.lines import Lines
from headgate.cli.run.options import Settings
from headgate.cli.run.runner import Runner
from headgate.cli.run.target import Target
from headgate.cli.run.wire import AiohttpWire
from headgate.sandbox import Sandbox
from patience import eventually


def answer_all(jobs, path, url):
    """Run all jobs of a file; the tally."""

    async def main():
        gate = Dispatch("api", rates="100_000/minute", concurrency=16, pause=True)
        journal, source, target = Journal.open(path), Lines([jobs]), Target(url)
        settings = Settings(concurrency=16, retries=3, timeout=20.0, patience=60.0)
        wire = AiohttpWire(target, timeout=settings.timeout, headers={})
        runner = Runner(source, target, gate, journal, wire, settings=settings)
        await runner.run()
        journal.close()
        source.close()
        return runner.tally

    return asyncio.run(main())


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "error", "status": 500},
        {"kind": "html", "status": 502},
        {"kind": "reset"},
        {"kind": "reset", "at": "body"},
        {"kind": "truncate"},
        {"kind": "truncate", "clean": True},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_a_job_is_sent_again_after_a_failure_that_may_pass(tmp_path, fault):
    jobs, path = write_jobs(tmp_path / "jobs.jsonl", 20), tmp_path / "answers.jsonl"
    details = {**fault}
    with Sandbox("openai") as api:
        api.fault(details.pop("kind"), count=5, **details)
        tally = answer_all(jobs, path, api.url)
    assert answered_ids(path) == job_ids(20)
    assert tally.retried == 5
    assert all(document["response"]["body"]["choices"] for document in answers_of(path))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_killed_25_times_and_run_again_every_job_is_answered_exactly_once(tmp_path, suffix):
    """kill -9 at random moments tears no line, loses no answer and repeats none."""
    dice = random.Random(8)
    count, kills, places = 2_500, 25, 16
    jobs, path = write_jobs(tmp_path / "jobs.jsonl", count), tmp_path / f"answers.jsonl{suffix}"
    # So slow that no run answers all jobs before it is killed, even if other programs keep this test waiting.
    with Sandbox("openai", first_token=0.04, spread=0.5) as api:
        command = [sys.executable, "-m", "headgate", "run", str(jobs), "--to", api.url, "-o", str(path)]
        command += ["--rate", "60_000/minute", "--concurrency", str(places), "-q"]
        killed = 0
        for _ in range(kills):
            size = size_of(path)
            run = subprocess.Popen(command)
            eventually(lambda run=run, size=size: run.poll() is not None or size_of(path) > size, "it writes")
            time.sleep(dice.random() * 0.03)
            run.send_signal(signal.SIGKILL)
            killed += run.wait() == -signal.SIGKILL
        assert killed >= kills - 3
        assert subprocess.run(command, check=False).returncode == 0
        requests = api.report().requests
    lines = (gzip.decompress(path.read_bytes()) if suffix else path.read_bytes()).splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in lines) == job_ids(count)
    # Only what was under way at a kill was sent again: in flight, or answered and not yet written.
    assert requests <= count + kills * 2 * places


def size_of(path):
    return path.stat().st_size if path.exists() else 0
