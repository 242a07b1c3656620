"""ApiHealth: whether a failure is the job's own, an outage, or a reason to end the run."""

import pytest

from headgate.cli.run.replies import ApiHealth, Judgement, Trouble

FAILED = Trouble("failed", "500: oops")
REFUSED = Trouble("refused", "429: slow down")
UNREACHABLE = Trouble("unreachable", "cannot connect")


def health(*, proven=True):
    return ApiHealth("api.example.com", 60.0, proven=proven)


def judge(api, trouble, *, job=1, now=0.0):
    return api.judge(job, trouble, now, 0.5)


def test_a_failure_after_a_success_is_the_jobs_own():
    assert judge(health(), FAILED) == Judgement(own=True)
    assert judge(health(), Trouble("rejected", "400")) == Judgement(own=True)
    assert judge(health(), Trouble("key", "401")) == Judgement(own=True)


def test_a_refusal_is_not_the_jobs_own_and_holds_nothing_beyond_the_gate():
    assert judge(health(), REFUSED) == Judgement()


@pytest.mark.parametrize("kind", ["key", "certificate"])
def test_a_key_or_certificate_that_was_never_accepted_ends_the_run(kind):
    assert judge(health(proven=False), Trouble(kind, "no")).stop.reason in ("refused", "unreachable")
    assert judge(health(proven=True), Trouble(kind, "no")).stop is None


def test_ten_failures_in_a_row_hold_all_jobs_and_are_not_the_jobs_own():
    api = health()
    assert all(judge(api, FAILED, job=job).own for job in range(9))
    tenth = judge(api, FAILED, job=9)
    assert not tenth.own
    assert tenth.hold == pytest.approx(0.5, rel=0.3)
    assert tenth.outage


def test_a_success_between_failures_starts_the_count_again():
    api = health()
    for job in range(9):
        judge(api, FAILED, job=job)
    api.succeeded()
    assert judge(api, FAILED, job=9).own


def test_ten_failures_before_any_success_end_the_run():
    api = health(proven=False)
    judged = [judge(api, FAILED, job=job) for job in range(10)]
    assert judged[-1].stop.reason == "refused"
    assert all(judgement.own for judgement in judged[:-1])


def test_holds_grow_with_the_outage_and_do_not_overlap():
    api, now, holds = ApiHealth("api.example.com", 3_600.0, proven=True), 0.0, []
    for job in range(9):
        judge(api, FAILED, job=job)
    while now < 600:
        judged = judge(api, FAILED, job=9, now=now)
        assert judged.outage == (not holds)
        assert judge(api, FAILED, job=10, now=now).hold is None
        holds.append(judged.hold)
        now += judged.hold
        assert judged.hold <= now / 4 + 0.5  # the end of an outage is noticed within a fraction of it
    assert holds == sorted(holds)
    assert holds[-1] == pytest.approx(30, rel=0.3)
    assert len(holds) <= 40


def test_an_api_that_cannot_be_reached_is_an_outage_which_the_gate_waits_out():
    """It is told once, until a job succeeds."""
    api = health()
    assert judge(api, UNREACHABLE) == Judgement(outage=True)
    assert judge(api, UNREACHABLE, job=2, now=1.0) == Judgement()
    api.succeeded()
    assert judge(api, UNREACHABLE, now=2.0).outage


def test_patience_ends_the_run_also_if_the_api_asked_for_a_longer_wait():
    api = health()
    judge(api, REFUSED._replace(retry_after=1_000.0))
    assert judge(api, REFUSED, now=59.0).stop is None
    assert judge(api, REFUSED, now=61.0).stop.reason == "unreachable"
    assert "no answer for 1:01" in judge(api, REFUSED, now=61.0).stop.why


@pytest.mark.parametrize("kind", ["key", "forbidden"])
def test_a_key_that_is_refused_five_times_in_a_row_ends_the_run_whatever_was_answered_before(kind):
    api, refused = health(), Trouble(kind, "no")
    judged = [judge(api, refused, job=job) for job in range(5)]
    assert all(judgement == Judgement(own=True) for judgement in judged[:-1])
    assert judged[-1].stop.reason == "refused"
    assert "5 times in a row" in judged[-1].stop.why


def test_a_single_refused_key_among_successes_is_a_failure_of_its_job():
    api = health()
    for job in range(20):
        assert judge(api, Trouble("key", "401"), job=job) == Judgement(own=True)
        api.succeeded()
