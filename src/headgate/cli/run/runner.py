"""Jobs in, answers out, no faster than the gate admits.

Rules of this room: nothing is held but what is under way, so that memory does not grow with the file. Retries
are decided here and nowhere else. An answer is written the moment it is whole; a job that has none is either
written down as failed or left for the next run, and never both.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn
from urllib.request import getproxies

import httpx2

from ...backoff import Backoff
from ...errors import HeadgateError
from ...gate.clock import default_random
from ...http.exchange import GatedSender
from ...http.httpx import AsyncHttpxAnswer
from .errors import BadJob
from .jobs import Lines, Pipe, quick_id, read_job, twice
from .journal import answer_line, failure_line
from .replies import no_reply, read_reply
from .spending import Spending, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ...dispatch.dispatch import Dispatch
    from .jobs import Job, Target
    from .journal import Journal
    from .replies import Reply, Trouble

# A pool of httpx2 looks at all its connections for every request: several small ones are faster.
_WORKERS_A_CLIENT = 20
_SPARE_WORKERS = 16  # so that somebody stands at the gate when a place comes free
_BACKOFF = Backoff(0.5, cap=30, jitter=("factor", 0.5))
_OUTAGE = Backoff(1, cap=60, jitter=("factor", 0.25))
# So many jobs that fail one after the other, with no success between them, are not each other's neighbours by
# chance: the far side is down, or everything about them is wrong.
_ALIKE = 10
_SYNC_EVERY = 2.0
_MOST_URLS = 1_000
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": "headgate",
}
_RATE_OVER = 30.0  # seconds over which the present speed is measured

_KEY_HINT = "name the variable that holds it: --key-env NAME"

Stopped = Literal["interrupted", "budget", "quota", "refused", "unreachable", "output"]


class Settings(NamedTuple):
    """How a run goes about it. Times are in seconds."""

    concurrency: int = 200
    retries: int = 5
    timeout: float = 600.0
    patience: float = 600.0  # without a single success


class Tally:
    """How it goes, in figures. `total` is None as long as nobody has counted."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.total: int | None = None
        self.read = 0  # lines that were jobs, or should have been
        self.kept = 0  # answered by an earlier run
        self.answered = 0
        self.failed = 0
        self.sent = 0  # requests
        self.refused = 0  # of these, 429 and the like
        self.retried = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self._recent: deque[tuple[float, int, int]] = deque()

    @property
    def seconds(self) -> float:
        return monotonic() - self.began

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.failed

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def speed(self) -> tuple[float, float]:
        """Answers and tokens a second, lately."""
        now = monotonic()
        recent = self._recent
        if not recent or now - recent[-1][0] >= 0.25:
            recent.append((now, self.answered + self.failed, self.tokens))
        while len(recent) > 2 and now - recent[0][0] > _RATE_OVER:
            recent.popleft()
        then, answered, tokens = recent[0]
        elapsed = now - then
        if elapsed < 1:
            return 0.0, 0.0
        return (self.answered + self.failed - answered) / elapsed, (self.tokens - tokens) / elapsed

    def left(self) -> float | None:
        """Seconds to go at this speed, if one can tell."""
        speed = self.speed()[0]
        if self.total is None or speed <= 0:
            return None
        return max(0, self.total - self.done) / speed


class Outcome(NamedTuple):
    """How it ended. `stopped` is None if every job was tried; if not, `why` and `hint` say more."""

    tally: Tally
    stopped: Stopped | None
    why: str = ""
    hint: str = ""


class _Stop(Exception):
    """This job is left for another run."""


class Runner:
    """One run. `told` hears what people should hear at once: a text for each thing that happens."""

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
        told: Callable[[str], None] | None = None,
    ) -> None:
        self.tally = Tally()
        self.gate = gate
        self.spending = spending or Spending()
        self.trouble = ""  # the last there was
        self._source = source
        self._lines: Iterator[tuple[int, bytes]] | None = iter(source) if isinstance(source, Lines) else None
        self._target = target
        self._journal = journal
        self._fresh = not len(journal.known)  # nothing has ever succeeded
        self._settings = settings
        self._headers = httpx2.Headers({**_HEADERS, **(headers or {})})
        self._times = httpx2.Timeout(settings.timeout, connect=min(30.0, settings.timeout)).as_dict()
        self._urls: dict[str, httpx2.URL] = {}
        self._failures = failures
        self._told = told or (lambda _text: None)
        self._sender = GatedSender(gate)
        self._unwritten: list[bytes] = []
        self._over = False  # the source has no more
        self._stopping = asyncio.Event()
        self._outcome: tuple[Stopped, str, str] | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._at_the_gate: set[asyncio.Task[None]] = set()
        # Since the last success:
        self._rejected: set[int] = set()  # jobs that were, for good
        self._troubled: set[int] = set()  # jobs that failed, perhaps not for good
        self._trouble_began: float | None = None
        self._asked_until = 0.0  # the far side wants to be left alone for long
        self._outages = 0
        self._outage_until = 0.0

    # -- from outside

    def stop(self, stopped: Stopped, why: str, hint: str = "") -> None:
        """Send nothing more; what is under way may finish. Of several reasons the first counts."""
        if self._outcome is None:
            self._outcome = (stopped, why, hint)
            self._stopping.set()
            self.spending.changed.set()
            # Who waits at the gate leaves. It stays open for those inside: others who share it must know.
            for worker in self._at_the_gate:
                worker.cancel()

    def abandon(self) -> None:
        """Do not wait for what is under way either."""
        for worker in tuple(self._workers):
            worker.cancel()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> Outcome:
        """Until all is done, or it is stopped."""
        tally = self.tally
        tally.began = monotonic()
        count = self._settings.concurrency + min(_SPARE_WORKERS, self._settings.concurrency)
        syncing = asyncio.create_task(self._sync())
        crash: BaseException | None = None
        try:
            async with AsyncExitStack() as clients:
                verify = self._trust()
                client = None
                for number in range(count):
                    if number % _WORKERS_A_CLIENT == 0:
                        client = await clients.enter_async_context(self._client(verify))
                    assert client is not None
                    worker = asyncio.create_task(self._work(client))
                    self._workers.add(worker)
                    if number % 8 == 7:
                        await asyncio.sleep(0)  # the first request does not wait for the last worker
                    if self._over or self.stopping:
                        break
                while self._workers:
                    done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
                    self._workers -= done
                    for worker in done:
                        if not worker.cancelled() and worker.exception() is not None and crash is None:
                            crash = worker.exception()
                            self.abandon()
        finally:
            syncing.cancel()
            with suppress(asyncio.CancelledError):
                await syncing
        if crash is not None:
            raise crash
        self._write_the_unwritten()
        if self._outcome is None:
            return Outcome(tally, None)
        return Outcome(tally, *self._outcome)

    def _trust(self) -> ssl.SSLContext:
        """One for all clients: to read the certificates takes a while."""
        if self._target.parts.scheme == "https" or getproxies():
            return ssl.create_default_context()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nobody will ask it

    def _client(self, verify: ssl.SSLContext) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60)
        return httpx2.AsyncClient(limits=limits, verify=verify)

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_EVERY)
            with suppress(OSError):  # writing tells the same, and is listened to
                await asyncio.to_thread(self._journal.sync)

    # -- one after the other

    async def _work(self, client: httpx2.AsyncClient) -> None:
        while not self.stopping:
            try:
                job = await self._next()
                if job is None:
                    return
                await self._do(job, client)
            except _Stop:
                return

    async def _next(self) -> Job | None:
        """The next job that has no answer yet, or None."""
        passed = 0
        while not self._over:
            item = next(self._lines, None) if self._lines is not None else await self._piped()
            if item is None:
                self._over = True
                self.tally.total = self.tally.read
                break
            number, line = item
            self.tally.read += 1
            ids = self._journal.known
            name = quick_id(line)
            if name is None or name not in ids or ids.was_read(name):
                job = self._read(number, line)
                if job is not None:
                    return job
            else:
                ids.read(name)
                self.tally.kept += 1
            passed += 1
            if passed % 256 == 0:
                await asyncio.sleep(0)
                if self.stopping:
                    return None
        return None

    def _read(self, number: int, line: bytes) -> Job | None:
        """The job of a line, if it is one and has no answer yet."""
        where = f"{self._source.name}, line {number}"
        try:
            job = read_job(line, where, number, self._target)
            known = job.custom_id in self._journal.known
            if not self._journal.known.read(job.custom_id):
                raise twice(where, job.custom_id)
        except BadJob as error:
            self._told(f"{error}; it is not sent")
            self._fail(number, error.custom_id or f"line-{number}", "bad_job", error.complaint)
            return None
        if known:
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
            raise _Stop
        return item.result()

    # -- one

    async def _do(self, job: Job, client: httpx2.AsyncClient) -> None:
        """Send it until there is an answer, or no hope."""
        failures = 0
        while True:
            reserved = await self._reserve(job)
            reply = None
            try:
                reply = await self._send(job, client)
            finally:
                self.spending.settle(reserved, None if reply is None else reply.usage, job)
            if reply.trouble is None:
                self._answer(job, reply)
                return
            self.trouble = reply.trouble.message
            if not self._blames(job, reply.trouble):
                self.tally.retried += 1
                continue
            failures += 1
            if reply.trouble.kind != "failed" or failures > self._settings.retries:
                self._fail(job.number, job.custom_id, reply.trouble.kind, reply.trouble.message, reply)
                return
            self.tally.retried += 1
            wait = _BACKOFF.delay_ns(failures - 1, default_random(), None) / 1e9
            await self._pause(max(wait, min(reply.trouble.retry_after or 0.0, self._settings.patience)))

    async def _send(self, job: Job, client: httpx2.AsyncClient) -> Reply:
        if self.stopping:
            raise _Stop
        request = self._request(job)
        deadline = 0.0  # the time at the gate does not count
        worker = asyncio.current_task()
        assert worker is not None
        self._at_the_gate.add(worker)

        async def send() -> AsyncHttpxAnswer:
            nonlocal deadline
            self._at_the_gate.discard(worker)
            self.tally.sent += 1
            deadline = asyncio.get_running_loop().time() + self._settings.timeout
            async with asyncio.timeout_at(deadline):
                return AsyncHttpxAnswer(httpx2, await client.send(request, stream=True))

        try:
            answer = await self._sender.run_async(
                job.method, job.url, request.headers, job.body or None, send
            )
            response = answer.response
            try:
                async with asyncio.timeout_at(deadline):
                    body = await response.aread()
            finally:
                await response.aclose()
        except HeadgateError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a client raises is what became of the job
            return no_reply(error, self._settings.timeout)
        finally:
            self._at_the_gate.discard(worker)
        return read_reply(response.status_code, response.headers, body)

    def _request(self, job: Job) -> httpx2.Request:
        """What the client would build, without asking it about everything again for each."""
        url = self._urls.get(job.url)
        if url is None:
            if len(self._urls) >= _MOST_URLS:
                self._urls.clear()
            url = self._urls[job.url] = httpx2.URL(job.url)
        return httpx2.Request(
            job.method,
            url,
            headers=self._headers,
            content=job.body or None,
            extensions={"timeout": self._times},
        )

    # -- what became of it

    def _answer(self, job: Job, reply: Reply) -> None:
        self._fresh = False
        self._troubled.clear()
        self._rejected.clear()
        self._trouble_began = None
        self._outages = 0
        if self._write(answer_line(job, reply.status or 200, reply.request_id, reply.body)):
            self.tally.answered += 1
        if reply.usage is not None:
            self.tally.input_tokens += reply.usage.input
            self.tally.output_tokens += reply.usage.output

    def _blames(self, job: Job, trouble: Trouble) -> bool:
        """Is it the job's own? If not, everybody waits at the gate, and it is tried again."""
        now = monotonic()
        if self._trouble_began is None:
            self._trouble_began = now
        kind, host = trouble.kind, self._target.host
        if kind == "quota":
            self._halt("quota", f"the account has nothing left: {trouble.message}", "add to it, or wait")
        if kind == "key" and self._fresh:
            self._halt("refused", f"{host} does not accept the key: {trouble.message}", _KEY_HINT)
        if kind == "certificate" and self._fresh:
            self._halt("unreachable", f"{host} cannot be trusted: {trouble.message}", "check --to")
        if kind == "refused":
            self.tally.refused += 1
            if trouble.retry_after is not None and trouble.retry_after > self._settings.patience:
                self._asked_until = max(self._asked_until, now + trouble.retry_after)
        elif kind in ("unreachable", "certificate"):
            self._hold_everybody(trouble, now)
        else:
            alike = self._troubled if kind == "failed" else self._rejected
            alike.add(job.number)
            if self._fresh and len(self._troubled | self._rejected) >= _ALIKE:
                self._halt(
                    "refused",
                    f"the first {_ALIKE} jobs failed, the last with {trouble.message}",
                    "nothing has succeeded yet, so it is not this one job: check --to, and the file",
                )
            if kind != "failed" or len(self._troubled) < _ALIKE:
                return True
            self._hold_everybody(trouble, now)
        if now > max(self._trouble_began, self._asked_until) + self._settings.patience:
            elapsed = now - self._trouble_began
            self._halt("unreachable", f"no answer for {elapsed:.0f} s; the last was {trouble.message}", "")
        return False

    def _halt(self, stopped: Stopped, why: str, hint: str) -> NoReturn:
        self.stop(stopped, why, hint)
        raise _Stop

    def _hold_everybody(self, trouble: Trouble, now: float) -> None:
        if now < self._outage_until:
            return  # they know
        wait = _OUTAGE.delay_ns(self._outages, default_random(), None) / 1e9
        self._outages += 1
        self._outage_until = now + wait
        self.gate.set_backoff(wait, reason=trouble.message)
        self._told(f"{trouble.message}; everybody waits {wait:.1f} s")

    def _fail(self, number: int, custom_id: str, code: str, message: str, reply: Reply | None = None) -> None:
        self.tally.failed += 1
        if self._failures is None:
            return
        try:
            self._failures(failure_line(number, custom_id, code, message, reply))
        except OSError as error:
            self._failures = None
            self.stop("output", f"failures cannot be written: {error.strerror}", "make room, and go on")

    def _write(self, line: bytes) -> bool:
        try:
            self._journal.write(line)
        except OSError as error:
            self._unwritten.append(line)
            if isinstance(error, BrokenPipeError):
                self.stop("output", "nobody reads the answers any longer")
            else:
                self.stop(
                    "output", f"cannot write {self._journal.name}: {error.strerror}", "make room, and go on"
                )
            return False
        return True

    def _write_the_unwritten(self) -> None:
        """The disk was full. By now there may be room."""
        for number, line in enumerate(self._unwritten):
            try:
                self._journal.write(line)
            except OSError:
                lost = len(self._unwritten) - number
                assert self._outcome is not None
                stopped, why, hint = self._outcome
                self._outcome = (
                    stopped,
                    f"{why}; {lost} answers had no room and will be asked for again",
                    hint,
                )
                return
            self.tally.answered += 1

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        if self.stopping:
            raise _Stop

    # -- what it may cost

    async def _reserve(self, job: Job) -> Tokens:
        spending = self.spending
        wanted = spending.estimate(job) if spending.limited else Tokens(0, 0)
        while not spending.reserve(wanted):
            if not spending.under_way:
                self._halt("budget", spending.why_not(wanted), "to go on, give more")
            spending.changed.clear()
            await spending.changed.wait()
            if self.stopping:
                raise _Stop
        return wanted
