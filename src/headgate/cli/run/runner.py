"""Jobs in, answers out, no faster than the gate admits.

Only jobs in flight are held, so that memory does not grow with the bodies in the file. Retries are decided
here and nowhere else. Workers take no more jobs while many answers are waiting to be written. A job without
an answer is either written down as failed or left for the next run, never both.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ...backoff import Backoff
from ...dispatch.dispatch import Dispatch
from ...errors import CostTooLarge
from ...gate.clock import SYSTEM, default_random
from ...typing import Clock
from ...words import duration
from .answers import Format, answer_line, failure_line
from .errors import BadJob, Stop
from .errors_file import ErrorsFile
from .intake import Changed, ChangedJob, Intake
from .jobs import Job
from .journal import Journal
from .lines import Line, Lines, Pipe
from .options import Settings
from .progress import LONG_WAIT, RunView, Speed, Tally, Use, until, why_it_waits
from .replies import ApiHealth, Reply, Trouble, said_by
from .seen import ANSWERED
from .sender import Sender
from .spending import NO_TOKENS, Spending, Tokens, UnknownPrice, likely_tokens
from .target import Target
from .wire import Wire
from .writer import Sink, Writer

_MOST_UNWRITTEN = 64  # answers: a crash loses no more than these, and no more than may be in flight
_BACKOFF = Backoff(0.5, cap=30, jitter=("factor", 0.5))
_SYNC_EVERY = 2.0
_LIMITS_OVER = 15.0  # seconds over which the use of a limit is measured
_LOOK_EVERY = 0.25  # how often it is looked what jobs wait for
_LAST_WRITES = 1.0  # seconds for a pipe to take what is left, if the run stops at once
_MONTH = 30 * 86_400.0
_KEY = ("key", "forbidden")
_MAKE_ROOM = "make room, and go on"


class _Stopped(Exception):
    """The run is ending: this job is left for another run."""


class Runner:
    """One run. `tell` is given a text for everything that people should hear at once.

    `total` is the number of jobs and `kept` the number of those that have an answer, if they are known.
    """

    def __init__(
        self,
        source: Lines | Pipe,
        target: Target,
        gate: Dispatch,
        journal: Journal,
        wire: Wire,
        *,
        settings: Settings,
        errors: ErrorsFile | None = None,
        spending: Spending | None = None,
        tell: Callable[[str], None] | None = None,
        total: int | None = None,
        kept: int | None = None,
        shape: Format = "openai",
        changed: Changed | None = None,
        only_failed: bool = False,
        learns: bool = False,
        clock: Clock = SYSTEM,
        writer: Callable[[], Writer] = Writer,
    ) -> None:
        self._clock = clock
        self.tally = Tally(clock)
        self.tally.total = total
        self.tally.kept = kept or 0
        self.abandoned = False
        self._gate = gate
        self._learns = learns  # the rates of the gate are those that the API tells
        self._spending = spending or Spending()
        self._trouble: Trouble | None = None  # the last one
        self._target = target
        self._journal = journal
        self._settings = settings
        self._errors = errors
        self._shape = shape
        self._tell = tell or (lambda _text: None)
        self._wire = wire
        self._sender = Sender(gate, wire, target.host, timeout=settings.timeout, learns=learns)
        self._counted = Speed(clock, _LIMITS_OVER)
        self._health = ApiHealth(target.host, settings.patience, proven=bool(len(journal.known)))
        self._intake = Intake(
            source,
            target,
            journal.known,
            self.tally,
            bad=self._bad_line,
            failed=errors.failed if only_failed and errors is not None else None,
            changed=changed,
            counts_kept=kept is None,
        )
        self._make_writer = writer
        self._writer: Writer | None = None
        self._unwritten: list[tuple[Sink, bytes]] = []
        self._stopping = asyncio.Event()
        self._stop: Stop | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._at_the_gate: set[asyncio.Task[None]] = set()
        self._paused = 0  # workers that wait before they send their job again

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

    def view(self) -> RunView:
        """How the run stands. Looking changes nothing."""
        tally, now, at = self.tally, self._gate.snapshot(), self._clock.seconds()
        rates = self._counted.of(self._sender.counted)
        held = max(0.0, (now.next_at or at) - at) if now.binding == "window" else 0.0
        speed, tokens = tally.speed(paused=bool(held))
        waits = why_it_waits(now, at, said_by(self._trouble))
        if not waits and self._writer is not None and self._writer.busy and not self._journal.resumable:
            waits = f"waiting for the reader of {self._journal.name}"
        if self.stopping:
            waits = "stopping: waiting for what is in flight" if now.in_flight else ""
        left = None if self.stopping else tally.left(speed)
        knows_limits = not self._learns or tally.done > tally.kept or bool(tally.refused)
        return RunView(
            tally=tally,
            in_flight=now.in_flight or 0,
            concurrency=now.concurrency or 0,
            speed=speed,
            tokens_per_minute=tokens * 60,
            cost=self._spending.cost,
            left=None if left is None else left + held,
            uses=tuple(
                Use(
                    rate.unit,
                    rate.name.partition("/")[2],
                    min(rates.get(rate.unit, 0.0) * rate.per, float(rate.limit)),
                    rate.limit,
                )
                for rate in (now.rates if knows_limits else ())
            ),
            waits=waits,
            stopping=self.stopping,
        )

    async def run(self) -> Stop | None:
        """Send jobs until all are done, or until the run is stopped: then the reason is returned."""
        self.tally.began = self._clock.seconds()
        writer = self._writer = self._make_writer()
        beside = [asyncio.create_task(act()) for act in (self._sync, self._mind_waits)]
        try:
            await self._start_workers()
            await self._wait_for_workers()
            # A pipe may never take the rest.
            patient = self._journal.resumable or not self.abandoned
            with suppress(TimeoutError):
                await asyncio.wait_for(writer.drained(), None if patient else _LAST_WRITES)
        finally:
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            writer.close()
            await self._wire.close()
        self._write_the_unwritten()
        if self._errors is not None:
            self._errors.finish(self._journal.known)
        return self._stop

    async def _start_workers(self) -> None:
        for number in range(self._settings.concurrency):
            self._start_worker()
            if number % 8 == 7:
                await asyncio.sleep(0)  # the first request does not wait for the last worker
            if self._intake.exhausted or self.stopping:
                break

    def _start_worker(self) -> None:
        self._workers.add(asyncio.create_task(self._work()))

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

    async def _mind_waits(self) -> None:
        """Tell people of a long wait, once, and stop the run if it is longer than its patience."""
        told = False
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now, at = self._gate.snapshot(), self._clock.seconds()
            theirs = now.binding == "window" or (self._learns and now.binding is not None)
            if self.stopping or not theirs or now.next_at is None:
                told = False
                continue
            wait, patience = now.next_at - at, self._settings.patience
            without = at - (self._health.since or at)  # a success
            if wait > patience or without > patience:
                host = self._target.host
                asked = f"{host} asks to wait {duration(wait)}, until {until(wait)}"
                hint = f"run it again then, or give --patience {max(wait, without) + 60:.0f}"
                if wait > _MONTH:  # what it asks for may be longer, and is cut off where it is read
                    asked, hint = f"{host} asks to wait a month or longer", "run it again then"
                elif wait <= patience:
                    asked = f"no answer for {duration(without)}"
                because = f": {self._trouble.message}" if self._trouble else ""
                self.stop(Stop("unreachable", f"{asked}, longer than --patience {patience:g}{because}", hint))
            elif wait >= LONG_WAIT and not told:
                told = True
                self._tell(why_it_waits(now, at, said_by(self._trouble)))

    # -- one job after the other

    async def _work(self) -> None:
        writer, worker = self._writer, asyncio.current_task()
        assert writer is not None
        assert worker is not None
        most = min(_MOST_UNWRITTEN, self._settings.concurrency)
        with suppress(_Stopped):
            while not self._stopping.is_set():
                if writer.unwritten >= most:
                    await writer.room(most)
                try:
                    job = await self._intake.next(self._stopping)
                except ChangedJob as error:
                    self.stop(error.stop)
                    return
                if job is None:
                    return
                await self._do(job, worker)
                if len(self._workers) - self._paused > self._settings.concurrency:
                    return  # it stood in for a worker that waited

    def _bad_line(self, line: Line, error: BadJob) -> None:
        self._tell(f"{error}; it is not sent")
        self._fail(line.number, error.custom_id or f"line-{line.number}", "bad_job", error.complaint)

    async def _do(self, job: Job, worker: asyncio.Task[None]) -> None:
        """Send a job until it has an answer, or has failed for good."""
        failures, spending = 0, self._spending
        while True:
            wanted = await self._reserve(job) if spending.limited else NO_TOKENS
            reply = None
            try:
                reply = await self._send(job, worker)
            except CostTooLarge as error:  # it was not sent, so the API has not failed
                self._fail(job.number, job.custom_id, "rejected", str(error))
                return
            finally:
                if spending.counts:
                    spending.settle(wanted, None if reply is None else reply.usage, job.shape.model)
            trouble = reply.trouble
            if trouble is None:
                self._answer(job, reply)
                return
            self._trouble = trouble
            if trouble.kind == "refused":
                self.tally.refused += 1
            judgement = self._health.judge(job.custom_id, trouble, self._clock.seconds(), default_random())
            if judgement.stop is not None or (self.stopping and trouble.kind in _KEY):
                if judgement.stop is not None:
                    self.stop(judgement.stop)
                raise _Stopped
            if judgement.hold is not None:
                self._gate.set_backoff(judgement.hold, reason=trouble.message)
            if judgement.outage:
                self._tell(f"{trouble.message}; all jobs wait, and single ones try again")
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

    async def _send(self, job: Job, worker: asyncio.Task[None]) -> Reply:
        """Send a job when the gate admits it. Only a worker at the gate leaves when the run stops.

        Raises CostTooLarge for a job that the limits can never admit.
        """
        if self.stopping:
            raise _Stopped
        self._at_the_gate.add(worker)
        try:
            admitted = await self._sender.admitted(job)
        finally:
            self._at_the_gate.discard(worker)
        self.tally.sent += 1
        return await self._sender.send(admitted)

    async def _reserve(self, job: Job) -> Tokens:
        """Wait until the budget has room for the job; stop the run if it never will."""
        spending = self._spending
        wanted = likely_tokens(job.shape, self._target.host, self._sender.stats)
        model = job.shape.model
        while not self._has_room(wanted, model):
            if not spending.in_flight:
                self.stop(Stop("budget", spending.why_not(wanted, model)))
                raise _Stopped
            spending.changed.clear()
            await spending.changed.wait()
            if self.stopping:
                raise _Stopped
        return wanted

    def _has_room(self, wanted: Tokens, model: str | None) -> bool:
        try:
            return self._spending.reserve(wanted, model)
        except UnknownPrice as error:
            self.stop(Stop("budget", str(error), "give --price, or a list with --prices"))
            raise _Stopped from None

    async def _pause(self, seconds: float) -> None:
        """Wait before a job is sent again; another worker takes the place meanwhile."""
        self._paused += 1
        if not self._intake.exhausted:
            self._start_worker()
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            self._paused -= 1
        if self.stopping:
            raise _Stopped

    # -- writing

    def _answer(self, job: Job, reply: Reply) -> None:
        """Have an answer written. It counts when it is."""
        self._health.succeeded()
        line = answer_line(job, reply.status or 200, reply.request_id, reply.body, self._shape)
        usage = reply.usage
        if usage is not None:
            self.tally.input_tokens += usage.input
            self.tally.output_tokens += usage.output
        if self._errors is not None and len(self._errors.failed):
            self._journal.known.add(job.custom_id, ANSWERED)
        assert self._writer is not None
        self._writer.put(self._journal, line, self._answer_written)

    def _answer_written(self, line: bytes, error: BaseException | None) -> None:
        if error is None:
            self.tally.answered += 1
        else:
            self._not_written(self._journal, line, error)

    def _fail(self, number: int, custom_id: str, code: str, message: str, reply: Reply | None = None) -> None:
        self.tally.failures[code] += 1
        errors = self._errors
        if errors is None:
            return

        def written(line: bytes, error: BaseException | None) -> None:
            if error is not None:
                self._not_written(errors, line, error)

        assert self._writer is not None
        self._writer.put(errors, failure_line(number, custom_id, code, message, reply), written)

    def _not_written(self, sink: Sink, line: bytes, error: BaseException) -> None:
        """Keep a line that could not be written, and stop."""
        self._unwritten.append((sink, line))
        name = self._journal.name if sink is self._journal else "the file of failures"
        if isinstance(error, OSError):
            stop = Stop("output", f"cannot write {name}: {error.strerror or error}", _MAKE_ROOM)
        else:
            said = ": ".join(filter(None, (type(error).__name__, str(error))))
            stop = Stop("output", f"cannot write {name}: {said}", "run it again to go on")
        if isinstance(error, BrokenPipeError):
            stop = Stop("output", "the program that read the answers has ended")
        self.stop(stop)

    def _write_the_unwritten(self) -> None:
        """Try once more to write what could not be written."""
        lost, why_lost = 0, "had no room"
        for sink, line in self._unwritten:
            try:
                sink.write(line)
            except Exception as error:  # noqa: BLE001 - the run has ended, and says that answers are lost
                lost += sink is self._journal
                if not isinstance(error, OSError):
                    why_lost = "could not be written"
            else:
                self.tally.answered += sink is self._journal
        if lost and self._journal.resumable:
            stop = self._stop
            assert stop is not None
            why = f"{stop.why}; {lost} answers {why_lost} and will be asked for again"
            self._stop = Stop(stop.reason, why, stop.hint)
