"""`headgate sandbox`: an API with limits on this machine."""

import asyncio
import errno
import os
import sys
from typing import Any

import click

from ..errors import InvalidLimit
from ..gate.clock import SYSTEM
from .options import FAULT, Command, CommandError, section
from .system import until_stopped

_what, _limits, _answers, _faults = map(section, ("What", "Limits", "Answers", "Bad days"))
_STYLE = click.Choice(("openai", "anthropic", "plain"))
_KIND = click.Choice(("bucket", "fixed", "sliding"))
_NOT_NEGATIVE = click.FloatRange(0)
_MORE_THAN_ZERO = click.FloatRange(0, min_open=True)
_FAULTS = "e.g. storm,after=10,duration=5 or error,status=500,probability=0.01. Repeatable."


@click.command(cls=Command, short_help="A local API with limits, to try things on.")
@_what("--style", "Whose endpoints, headers and errors.", _STYLE, default="openai")
@_what("--host NAME", "Where to listen.", default="127.0.0.1")
@_what("--port N", "0 for a free one.", click.IntRange(0, 65_535), default=0)
@_limits("--requests RATE", "e.g. 600/minute.")
@_limits("--tokens RATE", "e.g. 100_000/minute.")
@_limits("--input-tokens RATE", "For --style anthropic.")
@_limits("--output-tokens RATE", "For --style anthropic.")
@_limits("--concurrency N", "Requests in flight at once.", click.IntRange(1))
@_limits("--kind", "How they are counted.", _KIND, default="bucket")
@_limits("--per-key", "For each API key.")
@_limits("--per-model", "For each model.")
@_limits("--start-empty", "The first request finds nothing left.")
@_limits(
    "--window-age SECONDS",
    "Of the first window of --kind fixed.  [default: by the wall clock]",
    _NOT_NEGATIVE,
)
@_limits("--free-refusals", "A refused request costs nothing, in any style.")
@_limits("--no-headers", "Do not tell where limits stand.")
@_limits("--no-retry-after", "Do not tell when to come back.")
@_answers("--jitter SECONDS", "Until a request arrives, at most.", _NOT_NEGATIVE, default=0)
@_answers("--first-token SECONDS", "Until an answer begins.", _NOT_NEGATIVE, default=0.005)
@_answers("--spread SIGMA", "How much that varies (lognormal).", _NOT_NEGATIVE, default=0)
@_answers("--tokens-per-second N", "How fast it goes on.  [default: at once]", _MORE_THAN_ZERO)
@_answers("--reply-tokens N", "Its length, on average.", click.IntRange(1), default=16)
@_answers("--seed N", "Of everything that is drawn at random.", int, default=0)
@_faults("--fault KIND[,DETAIL=VALUE]...", _FAULTS, FAULT, name="faults", multiple=True)
def sandbox(**options: Any) -> None:
    """Serve an API that limits its callers as real ones do, until Ctrl-C; then tell what it saw.

    \b
    headgate sandbox --port 8000 --requests 600/minute --tokens 100_000/minute
    headgate sandbox --style anthropic --requests 50/minute --fault overload,after=30,duration=10

    No key is needed, nothing is charged, and the official SDKs work against it: give them the address as
    base_url. Its answers to GET /__sandbox/report, /limits and /faults are for other programs.
    """
    from ..sandbox.provider import Provider  # noqa: PLC0415 - loads what --help can do without
    from ..sandbox.server import serve  # noqa: PLC0415

    host, port, faults = options.pop("host"), options.pop("port"), options.pop("faults")
    options["refusals_count"] = False if options.pop("free_refusals") else None
    options["headers"] = not options.pop("no_headers")
    options["retry_after"] = not options.pop("no_retry_after")
    try:
        provider = Provider(options.pop("style"), **options)
    except InvalidLimit as error:
        name, equals, rest = str(error).partition("=")  # as an argument is written in Python
        said = f"--{name.replace('_', '-')} {rest}" if equals and name in options else str(error)
        raise CommandError(said) from None

    def started(url: str) -> None:
        for fault in faults:  # the seconds of a fault count from here
            provider.fault(fault, SYSTEM.now())
        click.echo(url)
        limits = ", ".join(
            f"{value} {unit}" if unit == "concurrency" else f"{unit} {value}"
            for unit, value in provider.limits().items()
            if value
        )
        click.echo(f"{provider.style.name}, {limits or 'no limits'}; Ctrl-C to stop", err=True)

    try:
        status = asyncio.run(until_stopped(serve(provider, host, port, started=started)))
    except OSError as error:
        # asyncio writes a long text of its own into `strerror`, but keeps a positive `errno`.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        hint = "choose another --port, or 0 for a free one" if taken else "--host is a name of this machine"
        raise CommandError(f"cannot listen on {host}:{port}: {str(why).lower()}", hint) from None
    report = provider.report()
    requests = "1 request" if report.requests == 1 else f"{report.requests:,} requests"
    click.echo(
        f"\n{requests}: {report.admitted:,} let through, {report.refused:,} refused; "
        f"{report.tokens:,} tokens charged; {report.peak_in_flight} at once at most",
        err=True,
    )
    sys.exit(status)
