"""A run of `headgate run` in virtual time, with everything that it leaves behind."""

import asyncio
import json

from cli.run.job_files import InlineWriter, Network, write_jobs
from headgate import Dispatch
from headgate.cli.run.errors_file import ErrorsFile
from headgate.cli.run.journal import Journal
from headgate.cli.run.lines import Lines
from headgate.cli.run.options import Settings
from headgate.cli.run.runner import Runner
from headgate.cli.run.spending import Spending
from headgate.cli.run.target import Target
from headgate.testing import FakeProvider, run

SETTINGS = {"concurrency": 16, "retries": 3, "timeout": 20.0, "patience": 60.0}


class Run:
    """One run of a file of jobs, with all its results.

    `before(run)` may plan faults of the API, and `during(run)` is a coroutine beside the run.
    """

    def __init__(
        self,
        tmp_path,
        count=40,
        *,
        api=None,
        rates="100_000/minute",
        spending=None,
        before=None,
        during=None,
        more=None,
        **settings,
    ):
        self.path = tmp_path / "answers.jsonl"
        self.errors = tmp_path / "errors.jsonl"
        self.jobs = tmp_path / "jobs.jsonl"
        if not self.jobs.exists():
            write_jobs(self.jobs, count)
        self.failures, self.told = [], []
        self._options = (api or {}, rates, spending or Spending(), before, during)
        self._settings = Settings(**{**SETTINGS, **settings})
        self._more = more or {}
        run(self._main)

    async def _main(self, clock):
        api, rates, spending, before, during = self._options
        concurrency = self._settings.concurrency
        self.api = FakeProvider("openai", clock=clock, **api)
        self.network = Network(self.api, self._settings.timeout)
        self.gate = Dispatch(
            "api",
            rates=rates,
            concurrency=concurrency,
            pause=True,
            throttled_concurrency="adaptive",
            clock=clock,
        )
        journal, source = Journal.open(self.path), Lines([self.jobs])
        errors = ErrorsFile(self.errors, self.path)
        self.runner = Runner(
            source,
            Target("http://api.example.com"),
            self.gate,
            journal,
            self.network,
            settings=self._settings,
            errors=errors,
            spending=spending,
            tell=self.told.append,
            learns=rates == "auto",
            clock=clock,
            writer=InlineWriter,
            **self._more,
        )
        self.tally = self.runner.tally
        if before is not None:
            before(self.api)
        script = None if during is None else asyncio.create_task(during(self))
        self.stop = await self.runner.run()
        if script is not None:
            await script
        self.seconds = self.tally.seconds
        if self.errors.exists():
            self.failures = [json.loads(line) for line in self.errors.read_text().splitlines()[1:]]
        errors.close()
        journal.close()
        source.close()


async def until(condition):
    while not condition():  # noqa: ASYNC110 - figures have no events
        await asyncio.sleep(0.005)
