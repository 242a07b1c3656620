"""Runner: every job is answered once, and failures are judged as documented."""

import asyncio
import json
import re
from contextlib import closing

import pytest

from cli.run.job_files import InlineWriter, answered_ids, answers_of, job_ids, write_jobs
from cli.run.virtual_run import SETTINGS, Run, until
from headgate import Dispatch
from headgate.cli.run.errors import Stop
from headgate.cli.run.journal import Journal
from headgate.cli.run.lines import Lines
from headgate.cli.run.options import Settings
from headgate.cli.run.replies import ApiHealth
from headgate.cli.run.runner import Runner
from headgate.cli.run.spending import Spending
from headgate.cli.run.target import Target
from headgate.cli.run.wire import AiohttpWire, RawReply
from headgate.sandbox import Sandbox
from headgate.testing import run

# -- all is well


def test_every_job_is_answered_once_without_a_429_and_at_the_rate(tmp_path):
    done = Run(
        tmp_path,
        300,
        api={"requests": "1_200/minute burst 10", "tokens": "1_000_000/minute"},
        rates=["1_200/minute burst 10", "1_000_000 tokens/minute"],
    )
    assert done.api.report().refused == 0
    assert answered_ids(done.path) == job_ids(300)
    assert done.stop is None
    assert (done.tally.answered, done.tally.failed, done.tally.sent) == (300, 0, 300)
    assert done.tally.total == 300
    assert 290 / 20 <= done.seconds < 300 / 20


def test_rates_are_learned_from_the_first_answers(tmp_path):
    done = Run(tmp_path, 200, api={"requests": "12_000/minute", "tokens": "1_000_000/minute"}, rates="auto")
    assert done.api.report().refused == 0
    assert answered_ids(done.path) == job_ids(200)
    assert {rate.limit for rate in done.gate.snapshot().rates} == {12_000, 1_000_000}


def test_a_second_run_sends_only_jobs_without_an_answer(tmp_path):
    Run(tmp_path, 30)
    new = {"custom_id": "new", "url": "/v1/chat/completions", "body": {"model": "m", "messages": []}}
    with (tmp_path / "jobs.jsonl").open("a") as file:
        print(json.dumps(new), file=file)
    done = Run(tmp_path)
    assert done.api.report().requests == 1
    assert (done.tally.kept, done.tally.answered) == (30, 1)
    assert answered_ids(done.path) == sorted([*job_ids(30), "new"])


# -- failures of the API


def test_a_storm_of_429_is_waited_out_and_costs_no_job_its_retries(tmp_path):
    done = Run(tmp_path, 60, retries=0, before=lambda api: api.fault("storm", count=25, retry_after=0.1))
    assert answered_ids(done.path) == job_ids(60)
    assert done.tally.refused == 25
    assert done.failures == []


def test_a_storm_of_25_refusals_from_a_real_api_costs_no_job_its_retries(tmp_path):
    source = Lines([write_jobs(tmp_path / "jobs.jsonl", 60)])
    gate = Dispatch(
        "api", rates="100_000/minute", concurrency=16, pause=True, throttled_concurrency="adaptive"
    )
    settings = Settings(**{**SETTINGS, "retries": 0})

    async def main(target):
        wire = AiohttpWire(target, timeout=20.0, headers={})
        runner = Runner(source, target, gate, journal, wire, settings=settings)
        await runner.run()
        return runner.tally

    with Sandbox("openai") as api, closing(Journal.open(tmp_path / "answers.jsonl")) as journal:
        api.fault("storm", count=25, retry_after=0.1)
        tally = asyncio.run(main(Target(api.url)))
    assert answered_ids(tmp_path / "answers.jsonl") == job_ids(60)
    assert tally.refused == 25
    assert tally.failed == 0


def test_a_retry_after_within_the_patience_is_waited_for_and_told_once(tmp_path):
    plan = {"count": 5, "retry_after": 3_600}
    done = Run(tmp_path, 30, patience=4_000, before=lambda api: api.fault("storm", **plan))
    assert answered_ids(done.path) == job_ids(30)
    assert done.seconds > 3_600
    (told,) = done.told
    assert re.match(r"all jobs wait \d+:\d\d:\d\d, until [\d-]* ?\d\d:\d\d:\d\d: told to", told), told


@pytest.mark.parametrize(
    ("retry_after", "asked", "hint"),
    [
        (3_600, r"asks to wait [\d:]+, until .*, longer than --patience 60: 429", "--patience 36"),
        (366 * 86_400, "asks to wait a month or longer, longer than --patience 60: 429", "run it again then"),
    ],
)
def test_a_retry_after_longer_than_the_patience_ends_the_run_at_once(tmp_path, retry_after, asked, hint):
    plan = {"count": 5, "retry_after": retry_after}
    done = Run(tmp_path, 30, patience=60, before=lambda api: api.fault("storm", **plan))
    assert done.stop.reason == "unreachable"
    assert re.search(asked, done.stop.why)
    assert hint in done.stop.hint
    assert done.seconds < 2
    assert len(answered_ids(done.path)) == done.tally.answered
    assert done.failures == []


def test_the_time_left_includes_the_wait_that_the_api_asks_for(tmp_path):
    seen = []

    async def look(run):
        for _ in range(20):
            await asyncio.sleep(0.5)
            view = run.runner.view()
            if run.tally.refused:
                seen.append(view)

    def refuse(api):
        api.fault("storm", after=2, count=1, retry_after=3_600)

    options = {"rates": "6_000/minute", "patience": 4_000, "more": {"total": 3_000}}
    done = Run(tmp_path, 3_000, before=refuse, during=look, **options)
    assert len(answered_ids(done.path)) == 3_000
    assert all(3_600 < view.left < 3_660 for view in seen), [view.left for view in seen]
    assert all("told to slow down" in view.waits for view in seen)


def test_an_outage_makes_all_jobs_wait_and_fails_none(tmp_path):
    """The outage is longer than all retries of a job take."""

    async def break_down(run):
        await until(lambda: run.tally.answered >= 20)
        run.api.fault("error", duration=30.0)

    done = Run(tmp_path, 400, rates="12_000/minute", retries=2, concurrency=32, during=break_down)
    assert answered_ids(done.path) == job_ids(400)
    assert done.failures == []
    assert any("all jobs wait" in text for text in done.told)
    assert 30 < done.seconds < 70


def test_a_run_without_any_success_ends_after_its_patience(tmp_path):
    async def break_down(run):
        await until(lambda: run.tally.answered >= 5)
        run.api.fault("error")

    done = Run(tmp_path, 5_000, retries=0, concurrency=32, patience=100, during=break_down)
    assert done.stop.reason == "unreachable"
    assert "500" in done.stop.why
    assert 100 < done.seconds < 200


def test_a_run_ends_after_its_patience_if_the_api_has_gone(tmp_path):
    async def cut(run):
        await until(lambda: run.tally.answered >= 5)
        run.network.cut = True

    done = Run(tmp_path, 5_000, patience=100, concurrency=8, retries=100, during=cut)
    assert done.stop.reason == "unreachable"
    assert len(answered_ids(done.path)) == done.tally.answered
    assert 100 < done.seconds < 200


def test_an_empty_account_stops_the_run_and_no_job_is_lost(tmp_path):
    async def spend_all(run):
        await until(lambda: run.tally.answered >= 10)
        run.api.fault("quota")

    done = Run(tmp_path, 2_000, rates="6_000/minute", during=spend_all)
    assert done.stop.reason == "quota"
    assert done.failures == []
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("".join(jobs.read_text().splitlines(keepends=True)[:200]))
    again = Run(tmp_path)
    assert again.tally.kept > 0
    assert set(job_ids(200)) <= set(answered_ids(again.path))


def test_a_key_that_is_not_accepted_stops_the_run_at_once(tmp_path):
    done = Run(tmp_path, 500, concurrency=2, before=lambda api: api.fault("error", status=401))
    assert done.api.report().requests <= 4
    assert "key" in done.stop.why
    assert done.failures == []  # these jobs are for the next run


def test_the_run_stops_if_the_first_jobs_all_fail(tmp_path):
    done = Run(tmp_path, 500, concurrency=4, before=lambda api: api.fault("error", status=404))
    assert done.api.report().requests < 40
    assert done.stop.reason == "refused"
    assert "404" in done.stop.why


def test_a_key_that_is_revoked_midway_stops_the_run_after_a_few_refusals(tmp_path):
    async def revoke(run):
        await until(lambda: run.tally.answered >= 100)
        run.api.fault("error", status=401)

    done = Run(tmp_path, 1_000, concurrency=8, during=revoke)
    assert done.stop.reason == "refused"
    assert "5 times in a row" in done.stop.why
    assert done.tally.sent <= done.tally.answered + 5 + 8
    assert len(done.failures) == 4  # before it was clear
    again = Run(tmp_path, concurrency=8, before=lambda api: api.fault("error", status=403))
    assert again.stop.reason == "refused"
    assert again.tally.sent <= 5 + 8
    assert answered_ids(again.path) == answered_ids(done.path)


# -- failures of a job


class Scripted:
    """A wire that answers every request with the same reply, and counts them."""

    def __init__(self, status, headers=(), body=b""):
        self.reply = RawReply(status, dict(headers), body)
        self.sent = []

    async def send(self, method, url, body):
        self.sent.append((method, body))
        await asyncio.sleep(0.01)
        return self.reply

    async def close(self):
        pass


def scripted(tmp_path, wire, *lines, **settings):
    """Run these lines against a scripted wire; the runner."""
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))

    async def main(clock):
        gate = Dispatch("api", concurrency=4, pause=True, clock=clock)
        with closing(Journal.open(tmp_path / "answers.jsonl")) as journal:
            runner = Runner(
                Lines([jobs]), Target("http://a.b"), gate, journal, wire,
                settings=Settings(concurrency=4, **settings), clock=clock, writer=InlineWriter,
            )  # fmt: skip
            runner.stopped = await runner.run()
        return runner

    return run(main)


def test_a_204_answers_a_delete_which_is_sent_once(tmp_path):
    wire = Scripted(204)
    done = scripted(tmp_path, wire, {"custom_id": "a", "method": "DELETE", "url": "/v1/files/7"})
    assert wire.sent == [("DELETE", None)]
    assert done.tally.answered == 1
    assert answers_of(tmp_path / "answers.jsonl")[0]["response"] == {
        "status_code": 204, "request_id": "", "body": None
    }  # fmt: skip
    again = scripted(tmp_path, wire, {"custom_id": "a", "method": "DELETE", "url": "/v1/files/7"})
    assert (again.tally.kept, len(wire.sent)) == (1, 1)


def test_a_web_page_is_not_an_answer(tmp_path):
    page = Scripted(200, {"content-type": "text/html"}, b"<html>maintenance</html>")
    body = {"model": "m", "messages": []}
    done = scripted(
        tmp_path, page, {"custom_id": "a", "url": "/v1/chat/completions", "body": body}, retries=2
    )
    assert (done.tally.answered, done.tally.failures) == (0, {"failed": 1})
    assert len(page.sent) == 3
    assert (tmp_path / "answers.jsonl").read_bytes() == b""


# -- jobs that have changed


def change_the_bodies(tmp_path, count):
    return write_jobs(tmp_path / "jobs.jsonl", count, model="another")


def test_jobs_that_have_changed_since_they_were_answered_stop_the_run(tmp_path):
    Run(tmp_path, 10)
    change_the_bodies(tmp_path, 10)
    done = Run(tmp_path)
    assert done.stop.reason == "changed"
    assert "'job-0' was answered when its line was another one" in done.stop.why
    assert "--changed send" in done.stop.hint
    assert done.api.report().requests == 0


def test_changed_jobs_are_sent_again_or_kept_as_it_is_chosen(tmp_path):
    Run(tmp_path, 10)
    change_the_bodies(tmp_path, 10)
    kept = Run(tmp_path, more={"changed": "keep"})
    assert (kept.tally.kept, kept.tally.sent) == (10, 0)
    sent = Run(tmp_path, more={"changed": "send"})
    assert (sent.tally.kept, sent.tally.sent) == (0, 10)
    assert Run(tmp_path).tally.kept == 10  # the later answers count


def test_only_failed_jobs_are_sent_if_that_is_asked_for(tmp_path):
    write_jobs(tmp_path / "jobs.jsonl", 20)
    refused = {"status": 400, "count": 3}
    first = Run(tmp_path, concurrency=1, before=lambda api: api.fault("error", **refused))
    failed = {failure["custom_id"] for failure in first.failures}
    assert len(failed) == 3
    write_jobs(tmp_path / "jobs.jsonl", 30)
    again = Run(tmp_path, more={"only_failed": True})
    assert (again.tally.sent, again.tally.total, again.failures) == (3, 3, [])
    assert failed <= set(answered_ids(again.path))
    assert Run(tmp_path).tally.sent == 10


def test_a_rejected_job_is_written_down_and_the_others_go_on(tmp_path):
    done = Run(tmp_path, 30, concurrency=4, before=lambda api: api.fault("error", status=400, count=4))
    assert done.tally.failed == 4
    assert done.tally.sent == 30
    failed = [failure["custom_id"] for failure in done.failures]
    assert sorted(answered_ids(done.path) + failed) == job_ids(30)
    assert all(failure["error"]["code"] == "rejected" for failure in done.failures)
    assert all(failure["response"]["status_code"] == 400 for failure in done.failures)


def test_a_job_that_keeps_failing_by_itself_fails_after_its_retries(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.jsonl", 10)
    body = {"model": "broken", "messages": []}
    with jobs.open("a") as file:
        print(json.dumps({"custom_id": "bad", "url": "/v1/chat/completions", "body": body}), file=file)
    done = Run(tmp_path, retries=1, before=lambda api: api.fault("error", model="broken"))
    assert [failure["custom_id"] for failure in done.failures] == ["bad"]
    assert done.failures[0]["response"]["status_code"] == 500
    assert answered_ids(done.path) == job_ids(10)
    assert done.tally.sent == 12


def test_a_job_without_an_answer_in_time_is_tried_again(tmp_path):
    hang = {"seconds": 3_600, "count": 1}
    done = Run(tmp_path, 10, timeout=20, before=lambda api: api.fault("slow_headers", **hang))
    assert answered_ids(done.path) == job_ids(10)
    assert done.tally.retried == 1
    assert 20 < done.seconds < 25


def test_bad_lines_after_the_start_are_failures_with_their_line(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.jsonl", 3)
    jobs.write_text(jobs.read_text() + "oops\n" + jobs.read_text().splitlines()[0] + "\n")
    done = Run(tmp_path)
    assert answered_ids(done.path) == job_ids(3)
    assert [failure["error"]["code"] for failure in done.failures] == ["bad_job", "bad_job"]
    assert "jobs.jsonl, line 4: not JSON" in done.told[0]
    assert "line 5: `custom_id` 'job-0' has been used before" in done.told[1]


# -- stopping


def test_stopping_lets_requests_in_flight_finish(tmp_path):
    async def stop(run):
        await until(lambda: run.tally.sent >= 8)
        run.runner.stop(Stop("interrupted", "enough"))

    done = Run(tmp_path, 500, api={"first_token": 0.3}, concurrency=8, during=stop)
    assert done.api.report().abandoned == 0
    assert done.stop.reason == "interrupted"
    assert done.tally.answered == done.tally.sent == 8


def test_stopping_at_once_loses_no_answer(tmp_path):
    async def stop(run):
        await until(lambda: run.tally.answered >= 8)
        run.runner.stop(Stop("interrupted", "enough"))
        run.runner.abandon()

    done = Run(tmp_path, 500, api={"first_token": 0.05}, concurrency=8, during=stop)
    assert len(answered_ids(done.path)) == done.tally.answered >= 8


def test_the_budget_includes_requests_in_flight_and_is_never_passed(tmp_path):
    done = Run(tmp_path, 200, api={"first_token": 0.02}, spending=Spending(max_tokens=1_000))
    assert done.stop.reason == "budget"
    used = sum(document["response"]["body"]["usage"]["total_tokens"] for document in answers_of(done.path))
    assert 900 < used <= 1_000
    assert used == done.tally.tokens
    assert "of 1,000 tokens are used" in done.stop.why


def test_a_job_that_the_limits_can_never_admit_has_failed_and_the_others_go_on(tmp_path):
    write_jobs(tmp_path / "jobs.jsonl", 5)
    long = {"model": "m", "messages": [{"role": "user", "content": "x" * 30_000}]}
    with (tmp_path / "jobs.jsonl").open("a") as file:
        print(json.dumps({"custom_id": "long", "url": "/v1/chat/completions", "body": long}), file=file)
    done = Run(tmp_path, rates="20_000 bytes/minute")
    assert done.stop is None
    assert answered_ids(done.path) == job_ids(5)
    (failure,) = done.failures
    assert failure["custom_id"] == "long"
    assert "can never fit a limit of 20000 (bytes/minute)" in failure["error"]["message"]


def test_jobs_that_are_never_sent_say_nothing_about_the_api(tmp_path, monkeypatch):
    judge, judged = ApiHealth.judge, []

    def judge_and_note(health, *about):
        judged.append(about)
        return judge(health, *about)

    monkeypatch.setattr(ApiHealth, "judge", judge_and_note)
    write_jobs(tmp_path / "long.jsonl", 12, stop="x" * 30_000)
    write_jobs(tmp_path / "short.jsonl", 15)
    long, short = [(tmp_path / name).read_text().splitlines() for name in ("long.jsonl", "short.jsonl")]
    (tmp_path / "jobs.jsonl").write_text("\n".join([*long, *short[12:]]) + "\n")
    done = Run(tmp_path, rates="20_000 bytes/minute")
    assert done.stop is None
    assert answered_ids(done.path) == ["job-12", "job-13", "job-14"]
    assert sorted(failure["custom_id"] for failure in done.failures) == job_ids(12)
    assert (done.tally.sent, done.tally.failed) == (3, 12)
    assert judged == []
