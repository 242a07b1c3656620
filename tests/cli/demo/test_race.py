"""The race of the demo in virtual time: who is done first, and who is refused."""

import pytest

from cli.run.job_files import InlineWriter, Network
from headgate.cli.demo.race import API, WAYS, Gated, Naive, ideal_seconds, write_jobs
from headgate.cli.run.target import Target
from headgate.testing import FakeProvider, run

JOBS = 600


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    """Every way, after it has sent its jobs."""
    jobs = tmp_path_factory.mktemp("demo") / "jobs.jsonl"
    write_jobs(jobs, JOBS)

    def race(kind):
        async def main(clock):
            way = kind(FakeProvider("openai", clock=clock, **API), clock=clock, writer=InlineWriter)
            await way.run(jobs, Target("http://api.example.com"), Network(way.api))
            return way

        return run(main)

    return {kind: race(kind) for kind in WAYS}


def refused(way):
    report = way.api.report()
    return report.requests - report.admitted


def test_every_way_gets_an_answer_to_every_job_and_none_is_faster_than_the_ideal(ways):
    assert [way.tally.answered for way in ways.values()] == [JOBS] * len(WAYS)
    assert min(way.seconds for way in ways.values()) >= ideal_seconds(JOBS)


def test_headgate_has_the_fewest_refusals(ways):
    assert min(ways.values(), key=refused) is ways[Gated]
    assert refused(ways[Gated]) < refused(ways[Naive]) / 10


def test_headgate_is_done_first_or_soon_after_the_first(ways):
    assert ways[Gated].seconds <= 1.01 * min(way.seconds for way in ways.values())
