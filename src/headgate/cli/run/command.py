"""One `headgate run`, from its options to its exit status.

Rules of this room: whatever can be found wrong is found before anything is sent. Interrupts come in here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import stat
import sys
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import getproxies, proxy_bypass

from ... import events
from ...responses.usage import usage_of
from .errors import Wrong
from .jobs import Lines, Pipe, Target, check
from .journal import Failures, Journal, answers_in
from .limits import make_gate
from .progress import Meter, duration, look, progress_for
from .runner import Runner, Settings
from .spending import Spending, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ...dispatch.dispatch import Dispatch
    from ...limits import Rate
    from .progress import Progress
    from .runner import Outcome
    from .seen import SeenIds
    from .spending import Price

ALL_ANSWERED, SOME_FAILED, WRONG_USAGE, STOPPED_EARLY, STOPPED_AT_ONCE = 0, 1, 2, 3, 130

_LOOK_AHEAD = 0.4  # seconds to look for bad lines before the first request is sent
_FRAME = 1 / 8
_CONNECT = 10.0

# Whose key is where, and how it is sent. A key goes to no other host unless --key-env says so.
_KEYS = {
    "api.openai.com": ("OPENAI_API_KEY", "authorization"),
    "api.anthropic.com": ("ANTHROPIC_API_KEY", "x-api-key"),
    "api.mistral.ai": ("MISTRAL_API_KEY", "authorization"),
    "api.groq.com": ("GROQ_API_KEY", "authorization"),
    "api.deepseek.com": ("DEEPSEEK_API_KEY", "authorization"),
    "api.together.xyz": ("TOGETHER_API_KEY", "authorization"),
    "api.cohere.com": ("CO_API_KEY", "authorization"),
    "api.x.ai": ("XAI_API_KEY", "authorization"),
    "openrouter.ai": ("OPENROUTER_API_KEY", "authorization"),
    "generativelanguage.googleapis.com": ("GEMINI_API_KEY", "x-goog-api-key"),
}
_CREDENTIALS = {"authorization", "x-api-key", "api-key", "x-goog-api-key"}
_ANTHROPIC_VERSION = "2023-06-01"


class Order(NamedTuple):
    """What was asked for on the command line."""

    jobs: Path
    to: str
    output: Path | None = None
    errors: Path | None = None
    headers: tuple[tuple[str, str], ...] = ()
    key_env: str | None = None
    rates: tuple[Rate | str, ...] = ()
    concurrency: int | None = None
    store: str | None = None
    store_key: str | None = None
    settings: Settings = Settings()
    max_tokens: int | None = None
    max_cost: float | None = None
    price: Price | None = None
    skip_invalid: bool = False
    as_json: bool = False
    quiet: bool = False

    @property
    def from_stdin(self) -> bool:
        return str(self.jobs) == "-"

    @property
    def to_stdout(self) -> bool:
        return self.output is None or str(self.output) == "-"

    @property
    def name(self) -> str:
        return "stdin" if self.from_stdin else self.jobs.name


def drain(order: Order) -> int:
    """Send them all. The exit status."""
    target = Target(order.to)
    check_files(order)
    headers = headers_for(order, target)
    if order.max_cost is not None and order.price is None:
        raise Wrong(
            "--max-cost needs prices", "write e.g. --price 0.15/0.60, for a million tokens in and out"
        )
    total = None
    if not order.from_stdin:
        checked = check(order.jobs, target, seconds=_LOOK_AHEAD)
        if checked.bad and not order.skip_invalid:
            raise checked.bad[0]
        if checked.whole and not checked.jobs:
            raise Wrong(f"{order.jobs} has no jobs", "it is empty")
        total = checked.jobs if checked.whole else None
    reach(target)
    ears = _Ears()
    gate, concurrency = make_gate(order, target.host, ears)
    settings = order.settings._replace(concurrency=concurrency)
    with closing(gate), _without_warnings():
        return _write_answers(order._replace(settings=settings), target, headers, gate, ears, total)


def _write_answers(
    order: Order, target: Target, headers: dict[str, str], gate: Dispatch, ears: _Ears, total: int | None
) -> int:
    before = _Before()
    journal = _open_journal(order, before)
    failures = None
    try:
        if order.errors is not None:
            failures = Failures(order.errors)
        elif journal.resumable:
            assert order.output is not None
            failures = Failures(order.output.with_suffix(".errors.jsonl"))
        spending = Spending(
            max_tokens=order.max_tokens, max_cost=order.max_cost, price=order.price, spent=before.spent
        )
        return asyncio.run(_drain(order, target, headers, gate, ears, journal, failures, spending, total))
    finally:
        journal.close()
        if failures is not None:
            failures.close()


class _Ears:
    """Hears what happens at the gate: figures for the meter, and what people should know."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.tell: Callable[[str], object] = lambda _text: None

    def __call__(self, event: events.Event) -> None:
        self.meter(event)
        if isinstance(event, events.StoreLost):
            self.tell(f"the store is lost: {event.reason}; going on with this run's part of the limits")
        elif isinstance(event, events.StoreRegained):
            self.tell("the store is back: going on with everybody else")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """What the log is warned of is told here in other ways; errors are still written there."""
    log = logging.getLogger("headgate")

    def is_an_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log.addFilter(is_an_error)
    try:
        yield
    finally:
        log.removeFilter(is_an_error)


async def _drain(
    order: Order,
    target: Target,
    headers: dict[str, str],
    gate: Dispatch,
    ears: _Ears,
    journal: Journal,
    failures: Failures | None,
    spending: Spending,
    total: int | None,
) -> int:
    loop = asyncio.get_running_loop()
    meter = ears.meter
    _make_room_for(order.settings.concurrency)
    source: Lines | Pipe = Pipe(0, "stdin", loop) if order.from_stdin else Lines(order.jobs)
    progress = progress_for(
        sys.stderr, f"{order.name} → {target.host}", as_json=order.as_json, quiet=order.quiet
    )
    # What the courier has to tell, it tells from a thread of its own.
    ears.tell = lambda text: loop.call_soon_threadsafe(progress.tell, text)
    if journal.mended:
        progress.tell(f"{journal.name}: a torn line at its end was taken off, {journal.mended} bytes")
    runner = Runner(
        source,
        target,
        gate,
        journal,
        settings=order.settings,
        headers=headers,
        failures=None if failures is None else failures.write,
        spending=spending,
        told=progress.tell,
    )
    runner.tally.total = total
    at_once = _hear_interrupts(loop, runner, progress)
    watching = asyncio.create_task(_watch(runner, meter, progress, source))
    outcome = None
    try:
        outcome = await runner.run()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        source.close()
        progress.end(look(runner, meter), outcome)
    with suppress(OSError):
        journal.sync()
    return _conclude(order, outcome, journal, failures, progress, at_once=bool(at_once))


def _make_room_for(connections: int) -> None:
    """As many files may be open as there are connections, and some more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _watch(runner: Runner, meter: Meter, progress: Progress, source: Lines | Pipe) -> None:
    counting = None
    if runner.tally.total is None and isinstance(source, Lines):
        counting = asyncio.create_task(asyncio.to_thread(source.count))
    while True:
        if counting is not None and counting.done():
            if runner.tally.total is None:
                runner.tally.total = counting.result()
            counting = None
        progress.show(look(runner, meter))
        await asyncio.sleep(_FRAME)


def _hear_interrupts(loop: asyncio.AbstractEventLoop, runner: Runner, progress: Progress) -> list[int]:
    """Once: finish what is under way. Twice: stop. What is returned is not empty if it was twice."""
    at_once: list[int] = []

    def heard(number: int) -> None:
        if not runner.stopping:
            name = "Ctrl-C" if number == signal.SIGINT else "a signal"
            runner.stop("interrupted", f"stopped by {name}")
            progress.tell("finishing what is under way; Ctrl-C again to stop at once")
        else:
            at_once.append(number)
            runner.abandon()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard, number)
    return at_once


def _conclude(
    order: Order,
    outcome: Outcome,
    journal: Journal,
    failures: Failures | None,
    progress: Progress,
    *,
    at_once: bool,
) -> int:
    tally = outcome.tally
    status = SOME_FAILED if tally.failed else ALL_ANSWERED
    lines = []
    if outcome.stopped is not None:
        status = STOPPED_AT_ONCE if at_once else STOPPED_EARLY
        lines.append(f"{'stopped' if outcome.stopped == 'interrupted' else 'error'}: {outcome.why}")
    if not order.quiet or outcome.stopped is not None:
        words = f"{tally.answered:,} answered in {duration(tally.seconds)}"
        if tally.kept:
            words += f", {tally.kept:,} were answered before"
        if tally.failed:
            where = f", see {failures.path}" if failures is not None else ""
            words += f", {tally.failed:,} failed{where}"
        lines.append(words + ".")
    if outcome.stopped is not None:
        hint = f"{outcome.hint}. " if outcome.hint else ""
        if journal.resumable:
            hint += "Run the same command again to go on: what has an answer is not sent again"
        if hint:
            lines.append(f"hint: {hint.removesuffix('. ')}")
    if order.as_json:
        return status
    for line in lines:
        progress.tell(line)
    return status


# -- before anything is sent


class _Before:
    """What earlier runs have spent."""

    def __init__(self) -> None:
        self.spent = Tokens(0, 0)

    def __call__(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, AttributeError):
            body = json.loads(line)["response"]["body"]
            usage = usage_of(body.get("usage") or body.get("usageMetadata"))
            if usage is not None:
                self.spent = Tokens(self.spent.input + usage.input, self.spent.output + usage.output)


def check_files(order: Order, *, dry: bool = False) -> None:
    """Can they be read, and are they not the same?"""
    if not order.from_stdin:
        try:
            found = order.jobs.stat()
            order.jobs.open("rb").close()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise Wrong(f"cannot read {order.jobs}: {why}", "name a file of jobs, or - for stdin") from None
        if not stat.S_ISREG(found.st_mode):
            raise Wrong(f"{order.jobs} is not a file", "pipe it in, and write - for JOBS")
        for other in (order.output, order.errors):
            with suppress(OSError):
                if other is not None and other.samefile(order.jobs):
                    raise Wrong(f"{other} is the file of jobs itself", "give another file with -o")
    if order.output is not None and order.output == order.errors:
        raise Wrong("answers and failures cannot go to the same file", "give another one with --errors")
    if order.from_stdin and sys.stdin.isatty():
        raise Wrong("stdin is a terminal", "pipe jobs in, or name a file of them")
    if order.output is None and sys.stdout.isatty() and not dry:
        raise Wrong("the answers would fill the terminal", "name a file with -o, or pipe them on")


def source_of(order: Order) -> Iterable[tuple[int, bytes]]:
    """The lines of the jobs, for who may wait for them."""
    if not order.from_stdin:
        return Lines(order.jobs)
    return ((number, line) for number, line in enumerate(sys.stdin.buffer, 1) if not line.isspace())


def answered_before(order: Order) -> SeenIds | None:
    """What the output says is answered, without touching it."""
    if order.to_stdout or order.output is None or not order.output.is_file():
        return None
    return answers_in(order.output)


def _open_journal(order: Order, before: _Before) -> Journal:
    if order.to_stdout:
        return Journal.on(1, "stdout")
    assert order.output is not None
    limited = order.max_tokens is not None or order.max_cost is not None or order.price is not None
    return Journal.open(order.output, each=before if limited else None)


def headers_for(order: Order, target: Target) -> dict[str, str]:
    """What is sent with every request, the key included."""
    headers = dict(order.headers)
    host = target.parts.hostname or ""
    usual, field = _KEYS.get(host, ("", "authorization"))
    if field == "x-api-key" or "anthropic" in host:
        headers.setdefault("anthropic-version", _ANTHROPIC_VERSION)
    if order.key_env is None and (_CREDENTIALS & headers.keys() or "key=" in target.query or not usual):
        return headers
    name = order.key_env or usual
    key = os.environ.get(name, "").strip()
    if not key:
        raise Wrong(
            f"no key for {host}: the environment has no {name}",
            f"export {name}=..., or name another variable with --key-env, or give the header with --header",
        )
    if not key.isascii() or not key.isprintable():
        raise Wrong(f"the key in {name} has characters that no header can carry", "copy it again")
    headers[field] = f"Bearer {key}" if field == "authorization" else key
    return headers


def reach(target: Target) -> None:
    """Is anybody there? Asked before anything is sent, unless a proxy stands between."""
    host = target.parts.hostname or ""
    port = target.parts.port or (443 if target.parts.scheme == "https" else 80)
    proxies = getproxies()
    if (target.parts.scheme in proxies or "all" in proxies) and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout=_CONNECT).close()
    except socket.gaierror:
        raise Wrong(f"no host is called {host!r}", "check --to for a typing error, and the network") from None
    except ConnectionRefusedError:
        raise Wrong(
            f"nobody listens at {host}:{port} (connection refused)", "check --to, or start it"
        ) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise Wrong(f"cannot reach {host}:{port}: {why}", "check --to, and the network") from None
