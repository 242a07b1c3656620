"""Jobs in, answers out, against the sandbox on a port: nothing lost, nothing twice, whatever goes wrong."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time

import pytest

from headgate import Dispatch
from headgate.cli.run.jobs import Lines, Target
from headgate.cli.run.journal import Journal
from headgate.cli.run.options import Settings
from headgate.cli.run.outcome import Stop
from headgate.cli.run.replies import no_reply, read_reply
from headgate.cli.run.runner import Runner
from headgate.cli.run.spending import Price, Spending, Tokens, likely_tokens
from headgate.responses.estimate import TokenStats, read_shape
from headgate.responses.usage import Usage
from headgate.sandbox import Sandbox
from patience import eventually

pytestmark = pytest.mark.alone

FAST = {"concurrency": 16, "retries": 3, "timeout": 20.0, "patience": 60.0}


def write_jobs(path, count, **body):
    with path.open("w") as file:
        for number in range(count):
            messages = [{"role": "user", "content": f"question {number}"}]
            document = {
                "custom_id": f"job-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "max_tokens": 20, "messages": messages, **body},
            }
            print(json.dumps(document), file=file)
    return path


def answers(path):
    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def answered_ids(path):
    return sorted(document["custom_id"] for document in answers(path))


async def until(condition):
    while not condition():  # noqa: ASYNC110 - figures have no events
        await asyncio.sleep(0.005)


def names(count):
    return sorted(f"job-{number}" for number in range(count))


class Run:
    """One run in this process."""

    def __init__(
        self, tmp_path, url, count=40, *, rates="100_000/minute", spending=None, during=None, **settings
    ):
        self.path = tmp_path / "answers.jsonl"
        self.jobs = tmp_path / "jobs.jsonl"
        if not self.jobs.exists():
            write_jobs(self.jobs, count)
        self.failures, self.told = [], []
        self._make = (url, rates, spending, during, Settings(**{**FAST, **settings}))
        asyncio.run(self._main())

    async def _main(self):
        url, rates, spending, during, settings = self._make
        self.gate = Dispatch(
            "api", rates=rates, concurrency=settings.concurrency, pause=True, throttled_concurrency="adaptive"
        )
        journal, source = Journal.open(self.path), Lines(self.jobs)
        self.runner = Runner(
            source,
            Target(url),
            self.gate,
            journal,
            settings=settings,
            spending=spending,
            failures=lambda line: self.failures.append(json.loads(line)),
            tell=self.told.append,
        )
        script = None if during is None else asyncio.create_task(during(self.runner))
        self.outcome = await self.runner.run()
        if script is not None:
            await script
        self.tally = self.outcome.tally
        journal.close()
        source.close()


def test_every_job_is_answered_once_and_nobody_is_told_429(tmp_path):
    with Sandbox("openai", requests="12_000/minute burst 100", tokens="1_000_000/minute") as api:
        run = Run(tmp_path, api.url, 300, rates=["12_000/minute burst 10", "1_000_000 tokens/minute"])
        assert api.report().refused == 0
    assert answered_ids(run.path) == names(300)
    assert run.outcome.stop is None
    assert (run.tally.answered, run.tally.failed, run.tally.sent) == (300, 0, 300)
    assert run.tally.total == 300


def test_limits_are_learned_from_the_first_answers(tmp_path):
    with Sandbox("openai", requests="12_000/minute", tokens="1_000_000/minute") as api:
        run = Run(tmp_path, api.url, 200, rates="auto")
        assert api.report().refused == 0
    assert answered_ids(run.path) == names(200)
    assert {rate.limit for rate in run.gate.snapshot().rates} == {12_000, 1_000_000}


def test_what_has_an_answer_is_not_sent_again(tmp_path):
    with Sandbox("openai") as api:
        Run(tmp_path, api.url, 30)
        api.reset_report()
        with (tmp_path / "jobs.jsonl").open("a") as file:
            print(
                json.dumps(
                    {
                        "custom_id": "new",
                        "url": "/v1/chat/completions",
                        "body": {"model": "m", "messages": []},
                    }
                ),
                file=file,
            )
        run = Run(tmp_path, api.url)
        assert api.report().requests == 1
    assert (run.tally.kept, run.tally.answered) == (30, 1)
    assert answered_ids(run.path) == sorted([*names(30), "new"])


def test_a_storm_of_429_is_waited_out_and_costs_no_job_its_retries(tmp_path):
    with Sandbox("openai") as api:
        api.fault("storm", count=25, retry_after=0.1)
        run = Run(tmp_path, api.url, 60, retries=0)
    assert answered_ids(run.path) == names(60)
    assert run.tally.refused == 25
    assert run.failures == []


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
def test_what_may_pass_is_tried_again(tmp_path, fault):
    kind = fault.pop("kind")
    with Sandbox("openai") as api:
        api.fault(kind, count=5, **fault)
        run = Run(tmp_path, api.url, 20)
    assert answered_ids(run.path) == names(20)
    assert run.tally.retried == 5
    assert all(document["response"]["body"]["choices"] for document in answers(run.path))


def test_what_will_not_pass_is_written_down_and_the_rest_goes_on(tmp_path):
    with Sandbox("openai") as api:
        api.fault("error", status=400, count=4)
        run = Run(tmp_path, api.url, 30, concurrency=4)
    assert run.tally.failed == 4
    assert run.tally.sent == 30
    assert sorted(answered_ids(run.path) + [failure["custom_id"] for failure in run.failures]) == names(30)
    assert all(failure["error"]["code"] == "rejected" for failure in run.failures)
    assert all(failure["response"]["status_code"] == 400 for failure in run.failures)


def test_a_job_that_keeps_failing_by_itself_is_given_up(tmp_path):
    write_jobs(tmp_path / "jobs.jsonl", 10)
    with (tmp_path / "jobs.jsonl").open("a") as file:
        body = {"model": "broken", "messages": []}
        print(json.dumps({"custom_id": "bad", "url": "/v1/chat/completions", "body": body}), file=file)
    with Sandbox("openai") as api:
        api.fault("error", model="broken")
        run = Run(tmp_path, api.url, retries=1)
    assert [failure["custom_id"] for failure in run.failures] == ["bad"]
    assert run.failures[0]["response"]["status_code"] == 500
    assert answered_ids(run.path) == names(10)


def test_if_the_first_jobs_all_fail_the_rest_is_not_tried(tmp_path):
    with Sandbox("openai") as api:
        api.fault("error", status=404)
        run = Run(tmp_path, api.url, 500, concurrency=4)
        assert api.report().requests < 40
    assert run.outcome.stop.reason == "refused"
    assert "404" in run.outcome.stop.why


def test_a_key_that_is_not_accepted_stops_the_run_at_once(tmp_path):
    with Sandbox("openai") as api:
        api.fault("error", status=401)
        run = Run(tmp_path, api.url, 500, concurrency=2)
        assert api.report().requests <= 4
    assert "key" in run.outcome.stop.why
    assert run.failures == []  # they are for the next run


def test_an_empty_account_stops_the_run_and_no_job_is_lost(tmp_path):
    with Sandbox("openai") as api:

        async def spend_all(runner):
            await until(lambda: runner.tally.answered >= 10)
            api.fault("quota")

        run = Run(tmp_path, api.url, 2_000, rates="6_000/minute", during=spend_all)
        assert run.outcome.stop.reason == "quota"
        assert run.failures == []
        api.clear_faults()
        jobs = tmp_path / "jobs.jsonl"
        jobs.write_text("".join(jobs.read_text().splitlines(keepends=True)[:200]))
        run = Run(tmp_path, api.url)
    assert run.tally.kept > 0
    assert set(names(200)) <= set(answered_ids(run.path))


def test_when_everything_fails_everybody_waits_and_no_job_is_blamed(tmp_path):
    """An outage of a second in the middle, longer than any job's retries."""
    with Sandbox("openai") as api:

        async def break_down(runner):
            await until(lambda: runner.tally.answered >= 20)
            api.fault("error", duration=1.0)

        options = {"rates": "12_000/minute", "retries": 2, "concurrency": 32, "during": break_down}
        run = Run(tmp_path, api.url, 400, **options)
    assert answered_ids(run.path) == names(400)
    assert run.failures == []
    assert any("all jobs wait" in text for text in run.told)


def test_a_run_without_any_success_ends_when_its_patience_does(tmp_path):
    with Sandbox("openai") as api:

        async def break_down(runner):
            await until(lambda: runner.tally.answered >= 5)
            api.fault("error")

        run = Run(tmp_path, api.url, 5_000, retries=0, concurrency=32, patience=0.5, during=break_down)
    assert run.outcome.stop.reason == "unreachable"
    assert "500" in run.outcome.stop.why


def test_nobody_there_any_longer(tmp_path):
    with Sandbox("openai") as api:
        url = api.url

        async def go_away(runner):
            await until(lambda: runner.tally.answered >= 5)
            await asyncio.to_thread(api.stop)

        run = Run(tmp_path, url, 5_000, patience=0.5, concurrency=8, retries=100, during=go_away)
    assert run.outcome.stop.reason == "unreachable"
    assert len(answered_ids(run.path)) == run.tally.answered


def test_bad_lines_met_on_the_way_are_failures_with_their_line(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.jsonl", 3)
    jobs.write_text(jobs.read_text() + "oops\n" + jobs.read_text().splitlines()[0] + "\n")
    with Sandbox("openai") as api:
        run = Run(tmp_path, api.url)
    assert answered_ids(run.path) == names(3)
    assert [failure["error"]["code"] for failure in run.failures] == ["bad_job", "bad_job"]
    assert "jobs.jsonl, line 4: not JSON" in run.told[0]
    assert "line 5: `custom_id` 'job-0' has been used before" in run.told[1]


def test_stopping_lets_what_is_in_flight_finish(tmp_path):
    with Sandbox("openai", first_token=0.3) as api:

        async def stop(runner):
            await until(lambda: runner.tally.sent >= 8)
            runner.stop(Stop("interrupted", "enough"))

        run = Run(tmp_path, api.url, 500, concurrency=8, during=stop)
        assert api.report().abandoned == 0
    assert run.outcome.stop.reason == "interrupted"
    assert run.tally.answered == run.tally.sent == 8


def test_stopping_at_once_loses_nothing_that_was_answered(tmp_path):
    with Sandbox("openai", first_token=0.05) as api:

        async def stop(runner):
            await until(lambda: runner.tally.answered >= 8)
            runner.stop(Stop("interrupted", "enough"))
            runner.abandon()

        run = Run(tmp_path, api.url, 500, concurrency=8, during=stop)
    assert len(answered_ids(run.path)) == run.tally.answered >= 8


def test_the_budget_is_never_passed_and_counts_what_is_in_flight(tmp_path):
    with Sandbox("openai", first_token=0.02) as api:
        run = Run(tmp_path, api.url, 200, spending=Spending(max_tokens=1_000))
    assert run.outcome.stop.reason == "budget"
    used = sum(document["response"]["body"]["usage"]["total_tokens"] for document in answers(run.path))
    assert 900 < used <= 1_000
    assert used == run.tally.tokens
    assert "of 1,000 tokens are used" in run.outcome.stop.why


def test_money_is_counted_by_its_prices():
    spending = Spending(max_cost=1.0, price=Price(1.0, 10.0), spent=Tokens(200_000, 0))
    assert spending.cost == pytest.approx(0.2)
    assert not spending.reserve(Tokens(0, 90_000))
    assert spending.reserve(Tokens(0, 80_000))
    assert not spending.reserve(Tokens(0, 1))
    assert "0.2000 of 1 is spent" in spending.why_not(Tokens(0, 1))
    spending.settle(Tokens(0, 80_000), Usage(input=0, output=10_000, final=True))
    assert spending.cost == pytest.approx(0.3)
    assert spending.reserve(Tokens(0, 70_000))


def test_a_job_without_max_tokens_is_expected_to_answer_as_earlier_jobs_did():
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    shape, stats = read_shape("POST", "a.b", "/v1/chat/completions", body), TokenStats()
    first = likely_tokens(shape, "a.b", stats)
    assert first.output == 1_024
    for _ in range(20):
        stats.learn("a.b", "m", shape.input, Usage(input=first.input, output=100, final=True))
    assert likely_tokens(shape, "a.b", stats) == Tokens(first.input, 100)


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (200, {"content-type": "application/json"}, b'{"a": 1}', None),
        (200, {"content-type": "application/json"}, b'{"a": 1', "failed"),
        (200, {"content-type": "text/plain"}, b"fine", None),
        (200, {}, b'{"error": {"code": 429, "message": "slow down"}}', "refused"),
        (200, {}, b'{"error": null, "output": []}', None),
        (201, {}, b"{}", None),
        (308, {"location": "https://elsewhere"}, b"", "rejected"),
        (400, {}, b'{"error": {"message": "no"}}', "rejected"),
        (401, {}, b"", "key"),
        (402, {}, b"", "quota"),
        (404, {}, b"<html>", "rejected"),
        (408, {}, b"", "failed"),
        (429, {"retry-after": "3"}, b"", "refused"),
        (429, {}, b'{"error": {"code": "insufficient_quota"}}', "quota"),
        (500, {}, b"", "failed"),
        (529, {}, b"", "refused"),
    ],
)
def test_what_a_reply_means(status, headers, body, kind):
    reply = read_reply(status, headers, body)
    assert (reply.trouble and reply.trouble.kind) == kind
    if kind is None:
        json.loads(reply.body)


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\xff", b"\0", b""])
def test_a_body_in_any_encoding_is_kept_as_utf8(body):
    json.loads(read_reply(200, {"content-type": "text/plain"}, body).body.decode("utf-8"))


def test_what_no_reply_means():
    assert no_reply(TimeoutError(), 5).trouble.message == "no answer within 5 s"
    assert no_reply(ConnectionRefusedError("refused"), 5).trouble.kind == "unreachable"
    assert no_reply(ConnectionResetError("reset"), 5).trouble.kind == "failed"


def test_killed_at_random_moments_and_run_again_everything_is_answered_exactly_once(tmp_path):
    """kill -9, fifteen times: no torn line, no answer lost, none twice."""
    dice = random.Random(8)
    count, kills = 900, 15
    jobs, path = write_jobs(tmp_path / "jobs.jsonl", count), tmp_path / "answers.jsonl"
    with Sandbox("openai", first_token=0.01, spread=0.5) as api:
        command = [sys.executable, "-m", "headgate", "run", str(jobs), "--to", api.url, "-o", str(path)]
        command += ["--rate", "30_000/minute", "--concurrency", "24", "-q"]
        killed = 0
        for _ in range(kills):
            size = size_of(path)
            run = subprocess.Popen(command)
            eventually(lambda run=run, size=size: run.poll() is not None or size_of(path) > size, "it writes")
            time.sleep(dice.random() * 0.1)
            run.send_signal(signal.SIGKILL)
            killed += run.wait() == -signal.SIGKILL
        assert killed >= kills - 3
        assert subprocess.run(command, check=False).returncode == 0
        requests = api.report().requests
    assert answered_ids(path) == names(count)
    assert requests <= count + kills * 24  # what was in flight, and nothing else, was sent again
