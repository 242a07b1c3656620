"""One `headgate run`, from its options to its exit status.

Everything that can be found wrong beforehand is found before anything is sent.
"""

import asyncio
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from urllib.request import getproxies, proxy_bypass

import click

from ... import events
from ..metrics import metrics_at
from ..options import CommandError
from ..system import allow_connections, on_stop_signals
from .direct import DirectWire
from .errors import ExitStatus, Stop
from .errors_file import ErrorsFile, errors_beside
from .journal import Journal
from .lines import Lines, Pipe
from .options import RunOptions
from .preflight import check_changed, check_files, check_jobs, headers_for, make_gate, reach
from .progress import Progress, progress_for
from .runner import Runner
from .spending import Spending, UnknownPrice
from .summary import Ending
from .target import Target
from .wire import AiohttpWire, Wire

_FRAME = 1 / 8  # seconds between two looks at the run


def execute(options: RunOptions) -> int:
    """Send every job. The exit status."""
    target = Target(options.to)
    check_files(options)
    headers = headers_for(options, target)
    prices = options.price_list()
    total = check_jobs(options, target)
    reach(target)
    observer = _StoreObserver()
    gate, concurrency, learns = make_gate(
        options, target.host, observer if options.store is not None else None
    )
    spending = Spending(max_tokens=options.max_tokens, max_cost=options.max_cost, prices=prices)
    with ExitStack() as stack:
        stack.enter_context(closing(gate))
        journal, errors = _files(options, spending, stack)
        kept = check_changed(options, journal.known)
        # The progress shows what headgate's warnings would say.
        logging.getLogger("headgate").addFilter(_is_an_error)
        stack.callback(logging.getLogger("headgate").removeFilter, _is_an_error)
        if options.metrics is not None:
            url = stack.enter_context(metrics_at(options.metrics))
            told = json.dumps({"event": "metrics", "url": url}) if options.as_json else f"metrics: {url}"
            click.echo(told, err=True)
        make_runner = partial(
            Runner,
            target=target,
            gate=gate,
            journal=journal,
            settings=options.settings.with_concurrency(concurrency),
            errors=errors,
            spending=spending,
            total=None if options.retry_failed else total,
            kept=None if options.retry_failed else kept,
            shape=options.format,
            changed=options.changed,
            only_failed=options.retry_failed,
            learns=learns,
        )
        make_wire = partial(_wire_to(target), target, timeout=options.settings.timeout, headers=headers)
        allow_connections(concurrency)
        _tune_python()
        return asyncio.run(_run(options, target.host, make_runner, make_wire, observer, journal, errors))


def _wire_to(target: Target) -> Callable[..., Wire]:
    """The kind of connections that lead to an address: by way of a proxy, or straight."""
    proxies, host = getproxies(), target.parts.hostname or ""
    proxy = proxies.get(target.parts.scheme) or proxies.get("all")
    return AiohttpWire if proxy and not proxy_bypass(host) else DirectWire


def _files(options: RunOptions, spending: Spending, stack: ExitStack) -> tuple[Journal, ErrorsFile | None]:
    """The files of answers and of failures, which are closed by `stack`."""
    answers, path = options.answers, options.errors
    if answers is None:
        journal = Journal(1, "stdout")
    else:
        try:
            journal = Journal.open(answers, each=spending.add_answer if spending.counts else None)
        except UnknownPrice as error:
            raise CommandError(f"{answers}: {error}", "give --price, or a list with --prices") from None
        if path is None and journal.resumable:
            path = errors_beside(answers)
    stack.callback(journal.close)
    if path is None:
        if options.retry_failed:
            raise CommandError("--retry-failed needs a file of failures", "name it with --errors")
        return journal, None
    if options.retry_failed and not path.exists():
        raise CommandError(f"no job has failed: there is no {path}", "leave out --retry-failed")
    errors = ErrorsFile(path, answers)
    stack.callback(errors.close)
    return journal, errors


def _tune_python() -> None:
    """Have Python do what suits one event loop with many short-lived objects and a thread that writes."""
    gc.freeze()  # what was loaded stays
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(0.001)  # seconds that the thread waits for its turn


def _is_an_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


class _StoreObserver:
    """Passes to `tell` what people should know about the store."""

    tell: Callable[[str], object] = staticmethod(lambda _text: None)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.StoreLost):
            self.tell(f"the store is lost: {event.reason}; going on with this run's part of the limits")
        elif isinstance(event, events.StoreRegained):
            self.tell("the store is back: the limits are shared again")
        elif isinstance(event, events.StoreForgot):
            self.tell("the store has lost what it knew: what was used before is not known there")


async def _run(
    options: RunOptions,
    host: str,
    make_runner: Callable[..., Runner],
    make_wire: Callable[[], Wire],
    observer: _StoreObserver,
    journal: Journal,
    errors: ErrorsFile | None,
) -> int:
    loop = asyncio.get_running_loop()
    source: Lines | Pipe = Pipe(0, "stdin", loop) if options.from_stdin else Lines(options.jobs)
    title = f"{options.name} → {host}"
    progress = progress_for(sys.stderr, title, as_json=options.as_json, quiet=options.quiet)
    # The courier calls the observer from its own thread.
    observer.tell = lambda text: loop.call_soon_threadsafe(progress.tell, text)
    if journal.repaired:
        progress.tell(f"{journal.name}: a torn line at its end was taken off, {journal.repaired} bytes")
    runner = make_runner(source, wire=make_wire(), tell=progress.tell)
    on_stop_signals(partial(_interrupt, runner, progress))
    watching = asyncio.create_task(_watch(runner, progress, source))
    stop, ended = None, False
    try:
        stop = await runner.run()
        ended = True
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        source.close()
        view = runner.view()
        before = journal.before if journal.resumable else None
        ending = Ending(view, stop, journal.name, before, None if errors is None else str(errors.path))
        progress.end(view, ending.facts() if ended else {})
    with suppress(OSError):
        journal.sync()
    if options.from_stdin and stop is None and not runner.tally.read:
        progress.tell("stdin had no jobs")
    if not options.as_json:
        for line in ending.lines(quiet=options.quiet):
            progress.tell(line)
    if stop is not None:
        return ExitStatus.STOPPED_AT_ONCE if runner.abandoned else ExitStatus.STOPPED_EARLY
    return ExitStatus.SOME_FAILED if runner.tally.failed else ExitStatus.ALL_ANSWERED


async def _watch(runner: Runner, progress: Progress, source: Lines | Pipe) -> None:
    counting = None
    if runner.tally.total is None and isinstance(source, Lines):
        counting = asyncio.create_task(asyncio.to_thread(source.count))
    while True:
        if runner.tally.total is None and counting is not None and counting.done():
            runner.tally.total = counting.result()
        progress.show(runner.view())
        await asyncio.sleep(_FRAME)


def _interrupt(runner: Runner, progress: Progress, signal_number: int) -> None:
    """The first Ctrl-C lets requests in flight finish, the second stops at once."""
    if runner.stopping:
        runner.abandon()
    else:
        name = "Ctrl-C" if signal_number == signal.SIGINT else "a signal"
        runner.stop(Stop("interrupted", f"stopped by {name}"))
        progress.tell("finishing what is in flight; Ctrl-C again to stop at once")
