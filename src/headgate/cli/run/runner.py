"""Jobs in, answers out, no faster than the gate admits.

Only jobs in flight are held, so that memory does not grow with the bodies in the file. Retries are decided
here and nowhere else. An answer is written the moment it is complete; a job without an answer is either
written down as failed or left for the next run, never both.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress

import httpx2

from ...backoff import Backoff
from ...dispatch.dispatch import Dispatch
from ...gate.clock import SYSTEM, default_random
from ...typing import Clock
from .errors import BadJob, Stop
from .jobs import Job, Lines, Pipe, Target, quick_id, read_job, twice
from .journal import Journal, answer_line, failure_line
from .options import Settings
from .progress import Meter, RunView, Tally, Use, why_it_waits
from .replies import ApiHealth, Reply
from .sender import Sender
from .spending import NO_TOKENS, Spending, Tokens, likely_tokens

# A pool of httpx2 looks at all its connections for every request: several small ones are faster.
_WORKERS_PER_CLIENT = 20
_SPARE_WORKERS = 16  # these wait at the gate while all places are taken
_BACKOFF = Backoff(0.5, cap=30, jitter=("factor", 0.5))
_SYNC_EVERY = 2.0
_MAKE_ROOM = "make room, and go on"


class _Stopped(Exception):
    """The run is ending: this job is left for another run."""


class Runner:
    """One run. `tell` is given a text for everything that people should hear at once."""

    def __init__(
        self,
        source: Lines | Pipe,
        target: Target,
        gate: Dispatch,
        journal: Journal,
        *,
        settings: Settings,
        headers: Mapping[str, str] | None = None,
        failures: Callable[[bytes], None] | None = None,
        spending: Spending | None = None,
        tell: Callable[[str], None] | None = None,
        total: int | None = None,
        clock: Clock = SYSTEM,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self.tally = Tally(clock)
        self.tally.total = total
        self.abandoned = False
        self._gate = gate
        self._spending = spending or Spending()
        self._trouble = ""  # the last message of a failure
        self._source = source
        self._lines: Iterator[tuple[int, bytes]] | None = iter(source) if isinstance(source, Lines) else None
        self._target = target
        self._journal = journal
        self._settings = settings
        self._failures = failures
        self._tell = tell or (lambda _text: None)
        self._sender = Sender(
            target, gate, timeout=settings.timeout, headers=headers or {}, transport=transport
        )
        self._health = ApiHealth(target.host, settings.patience, proven=bool(journal.known))
        self._unwritten: list[bytes] = []
        self._exhausted = False  # the source has no more lines
        self._stopping = asyncio.Event()
        self._stop: Stop | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._at_the_gate: set[asyncio.Task[None]] = set()

    # -- from outside

    def stop(self, stop: Stop) -> None:
        """Send nothing more; requests in flight may finish. The first reason counts."""
        if self._stop is None:
            self._stop = stop
            self._stopping.set()
            self._spending.changed.set()
            # Workers at the gate leave it. The gate stays open for requests in flight, because the processes
            # that share it must know of those.
            for worker in self._at_the_gate:
                worker.cancel()

    def abandon(self) -> None:
        """Do not wait for requests in flight either."""
        self.abandoned = True
        for worker in tuple(self._workers):
            worker.cancel()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def view(self, meter: Meter) -> RunView:
        """How the run stands. Looking changes nothing."""
        tally, now = self.tally, self._gate.snapshot()
        rates = meter.rates()
        speed, tokens = tally.speed()
        return RunView(
            tally=tally,
            in_flight=now.in_flight or 0,
            concurrency=now.concurrency or 0,
            speed=speed,
            tokens_per_minute=tokens * 60,
            cost=self._spending.cost,
            left=tally.left(speed),
            uses=tuple(
                Use(rate.unit, rate.name.partition("/")[2], rates.get(rate.unit, 0.0) * rate.per, rate.limit)
                for rate in now.rates
            ),
            waits=why_it_waits(now, self._clock.seconds(), self._trouble),
            stopping=self.stopping,
        )

    async def run(self) -> Stop | None:
        """Send jobs until all are done, or until the run is stopped: then the reason is returned."""
        self.tally.began = self._clock.seconds()
        syncing = asyncio.create_task(self._sync())
        try:
            async with AsyncExitStack() as clients:
                await self._start_workers(clients)
                await self._wait_for_workers()
        finally:
            syncing.cancel()
            with suppress(asyncio.CancelledError):
                await syncing
        self._write_the_unwritten()
        return self._stop

    async def _start_workers(self, clients: AsyncExitStack) -> None:
        concurrency = self._settings.concurrency
        for number in range(concurrency + min(_SPARE_WORKERS, concurrency)):
            if number % _WORKERS_PER_CLIENT == 0:
                client = await clients.enter_async_context(self._sender.client())
            self._workers.add(asyncio.create_task(self._work(client)))
            if number % 8 == 7:
                await asyncio.sleep(0)  # the first request does not wait for the last worker
            if self._exhausted or self.stopping:
                break

    async def _wait_for_workers(self) -> None:
        crash: BaseException | None = None
        while self._workers:
            done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
            self._workers -= done
            for worker in done:
                if not worker.cancelled() and worker.exception() is not None and crash is None:
                    crash = worker.exception()
                    self.abandon()
        if crash is not None:
            raise crash

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_EVERY)
            with suppress(OSError):  # writing raises the same, and the run stops then
                await asyncio.to_thread(self._journal.sync)

    # -- one job after the other

    async def _work(self, client: httpx2.AsyncClient) -> None:
        with suppress(_Stopped):
            while not self.stopping:
                job = await self._next()
                if job is None:
                    return
                await self._do(job, client)

    async def _next(self) -> Job | None:
        """The next job without an answer, or None."""
        passed = 0
        while not self._exhausted:
            item = next(self._lines, None) if self._lines is not None else await self._piped()
            if item is None:
                self._exhausted = True
                self.tally.total = self.tally.read
                break
            self.tally.read += 1
            job = self._read(*item)
            if job is not None:
                return job
            passed += 1
            if passed % 256 == 0:
                await asyncio.sleep(0)
                if self.stopping:
                    return None
        return None

    def _read(self, number: int, line: bytes) -> Job | None:
        """The job of a line; None if the line is bad or the job has an answer."""
        known, custom_id = self._journal.known, quick_id(line)
        if custom_id is not None and custom_id in known and not known.was_read(custom_id):
            known.read(custom_id)
            self.tally.kept += 1
            return None
        where = f"{self._source.name}, line {number}"
        try:
            job = read_job(line, where, number, self._target)
            answered = job.custom_id in known
            if not known.read(job.custom_id):
                raise twice(where, job.custom_id)
        except BadJob as error:
            self._tell(f"{error}; it is not sent")
            self._fail(number, error.custom_id or f"line-{number}", "bad_job", error.complaint)
            return None
        if answered:
            self.tally.kept += 1
            return None
        return job

    async def _piped(self) -> tuple[int, bytes] | None:
        assert isinstance(self._source, Pipe)
        item = asyncio.ensure_future(self._source.next())
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((item, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not item.done():
            item.cancel()
            raise _Stopped
        return item.result()

    # -- one job

    async def _do(self, job: Job, client: httpx2.AsyncClient) -> None:
        """Send a job until it has an answer, or has failed for good."""
        failures = 0
        while True:
            reserved = await self._reserve(job)
            reply = None
            try:
                reply = await self._send(job, client)
            finally:
                self._spending.settle(reserved, None if reply is None else reply.usage)
            trouble = reply.trouble
            if trouble is None:
                self._answer(job, reply)
                return
            self._trouble = trouble.message
            if trouble.kind == "refused":
                self.tally.refused += 1
            judgement = self._health.judge(job.number, trouble, self._clock.seconds(), default_random())
            if judgement.stop is not None:
                self.stop(judgement.stop)
                raise _Stopped
            if judgement.hold is not None:
                self._gate.set_backoff(judgement.hold, reason=trouble.message)
                self._tell(f"{trouble.message}; all jobs wait {judgement.hold:.1f} s")
            if not judgement.own:
                self.tally.retried += 1
                continue
            failures += 1
            if trouble.kind != "failed" or failures > self._settings.retries:
                self._fail(job.number, job.custom_id, trouble.kind, trouble.message, reply)
                return
            self.tally.retried += 1
            wait = _BACKOFF.delay_ns(failures - 1, default_random(), None) / 1e9
            await self._pause(max(wait, min(trouble.retry_after or 0.0, self._settings.patience)))

    async def _send(self, job: Job, client: httpx2.AsyncClient) -> Reply:
        if self.stopping:
            raise _Stopped
        worker = asyncio.current_task()
        assert worker is not None

        def sent() -> None:
            self._at_the_gate.discard(worker)
            self.tally.sent += 1

        self._at_the_gate.add(worker)
        try:
            return await self._sender.send(job, client, sent)
        finally:
            self._at_the_gate.discard(worker)

    async def _reserve(self, job: Job) -> Tokens:
        """Wait until the budget has room for the job; stop the run if it never will."""
        spending = self._spending
        wanted = NO_TOKENS
        if spending.limited:
            wanted = likely_tokens(job.shape, self._target.host, self._sender.stats)
        while not spending.reserve(wanted):
            if not spending.in_flight:
                self.stop(Stop("budget", spending.why_not(wanted), "to go on, give more"))
                raise _Stopped
            spending.changed.clear()
            await spending.changed.wait()
            if self.stopping:
                raise _Stopped
        return wanted

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        if self.stopping:
            raise _Stopped

    # -- writing

    def _answer(self, job: Job, reply: Reply) -> None:
        self._health.succeeded()
        if self._write(answer_line(job, reply.status or 200, reply.request_id, reply.body)):
            self.tally.answered += 1
        if reply.usage is not None:
            self.tally.input_tokens += reply.usage.input
            self.tally.output_tokens += reply.usage.output

    def _fail(self, number: int, custom_id: str, code: str, message: str, reply: Reply | None = None) -> None:
        self.tally.failed += 1
        if self._failures is None:
            return
        try:
            self._failures(failure_line(number, custom_id, code, message, reply))
        except OSError as error:
            self._failures = None
            self.stop(Stop("output", f"failures cannot be written: {error.strerror}", _MAKE_ROOM))

    def _write(self, line: bytes) -> bool:
        try:
            self._journal.write(line)
        except OSError as error:
            self._unwritten.append(line)
            stop = Stop("output", f"cannot write {self._journal.name}: {error.strerror}", _MAKE_ROOM)
            if isinstance(error, BrokenPipeError):
                stop = Stop("output", "the program that read the answers has ended")
            self.stop(stop)
            return False
        return True

    def _write_the_unwritten(self) -> None:
        """Try once more to write what the disk had no room for."""
        for number, line in enumerate(self._unwritten):
            try:
                self._journal.write(line)
            except OSError:
                lost = len(self._unwritten) - number
                assert self._stop is not None
                why = f"{self._stop.why}; {lost} answers had no room and will be asked for again"
                self._stop = self._stop._replace(why=why)
                return
            self.tally.answered += 1
