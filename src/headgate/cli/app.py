"""The command line: `headgate run`, `headgate watch`, `headgate sandbox`, `headgate demo`.

Rules of this room: answers on stdout, words on stderr. An error is one line with what is wrong and one with
what to do.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidLimit, StoreError
from ..limits import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Complaint(click.ClickException):
    """What is wrong, and what to do about it."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: Any = None) -> None:
        out = file or sys.stderr
        click.echo(click.style("error: ", fg="red", bold=True) + self.message, file=out)
        if self.hint:
            click.echo("\n" + click.style("hint: ", fg="cyan") + self.hint, file=out)


# -- options by subject


class _Option(click.Option):
    def __init__(self, *args: Any, subject: str = "Other", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subject = subject

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # an error tells it to who needs it
        return extra


class _Command(click.Command):
    """Lists its options under what they are about."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        subjects: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=lambda param: not hasattr(param, "subject")):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                subjects.setdefault(getattr(param, "subject", "Other"), []).append(record)
        for subject, records in subjects.items():
            with formatter.section(subject):
                formatter.write_dl(records)


class _Commands(click.Group):
    """Lists what people come for first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(self.commands)


def _option(*names: str, subject: str, **details: Any) -> Callable[[Any], Any]:
    return click.option(*names, cls=_Option, subject=subject, **details)


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # generic since click 8.4


_COUNTED = ("requests", "tokens", "input_tokens", "output_tokens", "bytes")


class _RateType(_Type):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value == "auto":
            return value
        try:
            rate = Rate.parse(value)
        except InvalidLimit as error:
            self.fail(str(error), param, ctx)
        if rate.unit not in _COUNTED:
            self.fail(f"{rate.unit!r} is counted by nobody; write {', '.join(_COUNTED)}", param, ctx)
        return rate


class _PriceType(_Type):
    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .run.spending import Price  # noqa: PLC0415 - loads asyncio

        if not isinstance(value, str):
            return value
        own, slash, output = value.partition("/")
        try:
            price = Price(float(own), float(output if slash else own))
        except ValueError:
            price = Price(-1, -1)
        if not (0 <= price.input < 1e9 and 0 <= price.output < 1e9):
            self.fail(
                f"{value!r} is no price; write that of a million tokens, in and out: 0.15/0.60", param, ctx
            )
        return price


class _HeaderType(_Type):
    name = "header"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        name, colon, content = value.partition(":")
        legal = name.strip() and all(c.isalnum() or c in "-_" for c in name.strip()) and name.isascii()
        if not colon or not legal or not (name + content).isprintable():
            self.fail(f"{name!r} is no header; write 'Name: value'", param, ctx)  # not its value: a secret
        return name.strip().lower(), content.strip()


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 108}


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(None, "-V", "--version", package_name="headgate", prog_name="headgate")
def main() -> None:
    """One gate for everything that calls a rate-limited API.

    \b
    headgate run requests.jsonl --to https://api.openai.com -o answers.jsonl
    headgate watch sqlite:///limits.db
    headgate sandbox --requests 600/minute --tokens 100_000/minute
    headgate demo
    """


# -- headgate run


@main.command(cls=_Command, short_help="Send a file of requests, as fast as the limits allow.")
@click.argument("jobs", type=click.Path(allow_dash=True, path_type=Path))
@_option(
    "--to", subject="Where", required=True, metavar="URL", help="The API. Paths of jobs are joined to it."
)
@_option(
    "-o",
    "--output",
    subject="Where",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Answers, one a line. With none: stdout, if piped.",
)
@_option(
    "--errors",
    subject="Where",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Jobs that failed.  [default: OUTPUT.errors.jsonl]",
)
@_option(
    "--header",
    "headers",
    subject="Where",
    type=_HeaderType(),
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Sent with every request. Repeatable.",
)
@_option(
    "--key-env",
    subject="Where",
    metavar="NAME",
    help="The environment variable that holds the key. Well-known APIs have a usual one.",
)
@_option(
    "--rate",
    "rates",
    subject="Limits",
    type=_RateType(),
    multiple=True,
    metavar="RATE",
    help="e.g. 500/minute, '200_000 tokens/minute'. Repeatable.  [default: auto, as answers tell]",
)
@_option(
    "--concurrency",
    subject="Limits",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Requests under way at once, at most.  [default: 200]",
)
@_option(
    "--store",
    subject="Limits",
    metavar="URL",
    help="Share them with whoever uses the same: sqlite:///limits.db, redis://host/0.",
)
@_option(
    "--store-key",
    subject="Limits",
    metavar="NAME",
    help="Under which name they are shared.  [default: the host of --to]",
)
@_option(
    "--max-tokens",
    subject="Limits",
    type=click.IntRange(1),
    metavar="N",
    help="Stop before more tokens are used, by all runs of the command together.",
)
@_option(
    "--max-cost",
    subject="Limits",
    type=click.FloatRange(0, min_open=True),
    metavar="AMOUNT",
    help="Stop before it costs more. Needs --price.",
)
@_option(
    "--price",
    subject="Limits",
    type=_PriceType(),
    metavar="IN/OUT",
    help="Of a million tokens, e.g. 0.15/0.60.",
)
@_option(
    "--retries",
    subject="Trouble",
    type=click.IntRange(0, 100),
    default=5,
    show_default=True,
    metavar="N",
    help="Tries after the first for a job that fails by itself.",
)
@_option(
    "--timeout",
    subject="Trouble",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="For one answer, from sending to its last byte.",
)
@_option(
    "--patience",
    subject="Trouble",
    type=click.FloatRange(0, min_open=True),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Without a single success before the run stops.",
)
@_option(
    "--skip-invalid",
    subject="Trouble",
    is_flag=True,
    help="Count bad lines as failed jobs instead of refusing to start.",
)
@_option(
    "--dry-run",
    subject="Showing",
    is_flag=True,
    help="Check every line, estimate tokens, time and cost, and send nothing.",
)
@_option(
    "--json",
    "as_json",
    subject="Showing",
    is_flag=True,
    help="Progress as JSON lines on stderr; the estimate as JSON on stdout.",
)
@_option("-q", "--quiet", subject="Showing", is_flag=True, help="Trouble only.")
def run(jobs: Path, **options: Any) -> None:
    """Send every request in JOBS, as fast as the limits allow and no faster.

    \b
    headgate run requests.jsonl --to https://api.openai.com -o answers.jsonl
    headgate run requests.jsonl --to https://api.anthropic.com --rate 50/minute -o answers.jsonl
    generate | headgate run - --to http://127.0.0.1:8000/v1/chat/completions | use

    JOBS has one JSON object a line: OpenAI's batch lines, Anthropic's, or bare bodies; - is stdin. Answers
    are written as they come, in the shape of OpenAI's batches. To go on after anything, run the same command
    again: what has an answer is not sent again. Ctrl-C once finishes what is under way, twice stops at once.

    Exit status: 0 all answered, 1 some failed, 2 wrong usage (nothing was sent), 3 stopped early, 130 stopped
    at once.
    """
    from .run.command import STOPPED_AT_ONCE, Order, drain  # noqa: PLC0415 - loads httpx2, which --help can do without
    from .run.errors import Wrong  # noqa: PLC0415
    from .run.forecast import dry_run  # noqa: PLC0415
    from .run.runner import Settings  # noqa: PLC0415

    settings = Settings(**{name: options.pop(name) for name in ("retries", "timeout", "patience")})
    dry = options.pop("dry_run")
    order = Order(jobs=jobs, settings=settings, **options)
    try:
        sys.exit(dry_run(order, sys.stdout, sys.stderr) if dry else drain(order))
    except (Wrong, InvalidLimit) as error:
        raise Complaint(str(error), getattr(error, "hint", "")) from None
    except KeyboardInterrupt:  # before anything was sent
        sys.exit(STOPPED_AT_ONCE)


# -- headgate watch


@main.command(cls=_Command, short_help="Who shares limits in a store, and why others wait.")
@click.argument("store")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@_option(
    "--every",
    subject="Showing",
    type=click.FloatRange(0.05, 3600),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@_option("--once", subject="Showing", is_flag=True, help="Look once, and end.")
@_option("--json", "as_json", subject="Showing", is_flag=True, help="An object a line for each look.")
def watch(store: str, keys: tuple[str, ...], **options: Any) -> None:
    """Show who shares limits in STORE, what everybody holds, and why others wait; until Ctrl-C.

    \b
    headgate watch sqlite:///limits.db
    headgate watch redis://limits.internal/0 api.openai.com
    headgate watch redis://limits.internal/0 --once --json

    STORE is what programs give as store=, and `headgate run` as --store. Of all keys in it, or of those that
    are named: rates, places and bytes, the backoff window, and the processes that share them. Looking changes
    nothing.

    Exit status: 0, or 2 if the store cannot be read.
    """
    from .watch import watch as look  # noqa: PLC0415 - loads asyncio and what it shows with

    try:
        asyncio.run(_until_stopped(look(store, keys, sys.stdout, **options)))
    except (InvalidLimit, StoreError) as error:
        hint = "write STORE as those do who share by it, e.g. sqlite:///limits.db"
        raise Complaint(str(error).removeprefix("store="), hint) from None


# -- headgate sandbox


class _FaultType(_Type):
    name = "fault"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ..sandbox.faults import Fault  # noqa: PLC0415

        if not isinstance(value, str):
            return value
        kind, *rest = (part.strip() for part in value.split(","))
        details: dict[str, Any] = {}
        for part in rest:
            name, equals, text = part.partition("=")
            if not equals:
                self.fail(f"{part!r} says nothing; write e.g. storm,after=10,duration=5", param, ctx)
            details[name.strip().replace("-", "_")] = _figure(text.strip())
        try:
            return Fault(kind, **details)
        except (InvalidLimit, TypeError) as error:
            self.fail(str(error), param, ctx)


def _figure(text: str) -> Any:
    """A number, yes or no, or the text itself."""
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@main.command(cls=_Command, short_help="A local API with limits, to try things on.")
@_option(
    "--style",
    subject="What",
    type=click.Choice(["openai", "anthropic", "plain"]),
    default="openai",
    show_default=True,
    help="Whose endpoints, headers and errors.",
)
@_option(
    "--host", subject="What", default="127.0.0.1", show_default=True, metavar="NAME", help="Where to listen."
)
@_option(
    "--port",
    subject="What",
    type=click.IntRange(0, 65_535),
    default=0,
    metavar="N",
    help="0 for a free one.  [default: 0]",
)
@_option("--requests", subject="Limits", metavar="RATE", help="e.g. 600/minute.")
@_option("--tokens", subject="Limits", metavar="RATE", help="e.g. 100_000/minute.")
@_option("--input-tokens", subject="Limits", metavar="RATE", help="For --style anthropic.")
@_option("--output-tokens", subject="Limits", metavar="RATE", help="For --style anthropic.")
@_option(
    "--concurrency", subject="Limits", type=click.IntRange(1), metavar="N", help="Requests under way at once."
)
@_option(
    "--kind",
    subject="Limits",
    type=click.Choice(["bucket", "fixed", "sliding"]),
    default="bucket",
    show_default=True,
    help="How they are counted.",
)
@_option("--per-key", subject="Limits", is_flag=True, help="For each API key.")
@_option("--per-model", subject="Limits", is_flag=True, help="For each model.")
@_option("--no-headers", subject="Limits", is_flag=True, help="Do not tell where limits stand.")
@_option("--no-retry-after", subject="Limits", is_flag=True, help="Do not tell when to come back.")
@_option(
    "--first-token",
    subject="Answers",
    type=click.FloatRange(0),
    default=0.005,
    show_default=True,
    metavar="SECONDS",
    help="Until an answer begins.",
)
@_option(
    "--spread",
    subject="Answers",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    metavar="SIGMA",
    help="How much that varies (lognormal).",
)
@_option(
    "--tokens-per-second",
    subject="Answers",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="How fast it goes on.  [default: at once]",
)
@_option(
    "--reply-tokens",
    subject="Answers",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="Its length, on average.",
)
@_option(
    "--seed",
    subject="Answers",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Of everything that is drawn.",
)
@_option(
    "--fault",
    "faults",
    subject="Bad days",
    type=_FaultType(),
    multiple=True,
    metavar="KIND[,DETAIL=VALUE]...",
    help="e.g. storm,after=10,duration=5 or error,status=500,probability=0.01. Repeatable.",
)
def sandbox(**options: Any) -> None:
    """Serve an API that limits its callers as real ones do, until Ctrl-C; then tell what it saw.

    \b
    headgate sandbox --port 8000 --requests 600/minute --tokens 100_000/minute
    headgate sandbox --style anthropic --requests 50/minute --fault overload,after=30,duration=10

    No key is needed, nothing is charged, and the official SDKs work against it: give them the address as
    base_url. Its answers to GET /__sandbox/report, /limits and /faults are for other programs.
    """
    from ..gate.clock import SYSTEM  # noqa: PLC0415
    from ..sandbox.provider import Provider  # noqa: PLC0415
    from ..sandbox.server import serve  # noqa: PLC0415

    host, port, faults = options.pop("host"), options.pop("port"), options.pop("faults")
    options["headers"] = not options.pop("no_headers")
    options["retry_after"] = not options.pop("no_retry_after")
    try:
        provider = Provider(options.pop("style"), **options)
    except InvalidLimit as error:
        raise Complaint(str(error)) from None

    def started(url: str) -> None:
        for fault in faults:  # its seconds count from here
            provider.fault(fault, SYSTEM.now())
        click.echo(url)
        limits = ", ".join(
            f"{value} {unit}" if unit == "concurrency" else f"{unit} {value}"
            for unit, value in provider.limits().items()
            if value
        )
        click.echo(f"{provider.style.name}, {limits or 'no limits'}; Ctrl-C to stop", err=True)

    try:
        asyncio.run(_until_stopped(serve(provider, host, port, started=started)))
    except OSError as error:
        known = error.errno is not None and error.errno > 0  # what asyncio makes of it is long
        why = os.strerror(error.errno) if known else error.strerror  # type: ignore[arg-type]  # it is known
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        hint = "choose another --port, or 0 for a free one" if taken else "--host is a name of this machine"
        raise Complaint(f"cannot listen on {host}:{port}: {str(why).lower()}", hint) from None
    report = provider.report()
    click.echo(
        f"\n{report.requests:,} requests: {report.admitted:,} let through, {report.refused:,} refused; "
        f"{report.tokens:,} tokens charged; {report.peak_in_flight} at once at most",
        err=True,
    )


async def _until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(serving)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


# -- headgate demo


@main.command(cls=_Command, short_help="The same jobs three ways, and a picture of how it went.")
@_option(
    "--jobs",
    subject="What",
    type=click.IntRange(30, 100_000),
    default=600,
    show_default=True,
    metavar="N",
    help="How many.",
)
@_option(
    "--plot",
    subject="What",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("headgate-demo.png"),
    show_default=True,
    metavar="FILE",
    help="Where the picture goes.",
)
def demo(jobs: int, plot: Path) -> None:
    """Drain the same jobs three ways, side by side, through the same limited API on this machine.

    Without a gate, by trying again; with a limiter and retries as they are usually set up; and by headgate.
    Takes less than a minute and no network. Ends with a table and a picture.
    """
    from .demo.race import show  # noqa: PLC0415

    if not os.access(plot if plot.exists() else plot.parent, os.W_OK):  # better now than in half a minute
        why = "it may not be written" if plot.parent.is_dir() else f"there is no folder {plot.parent}"
        raise Complaint(f"the picture cannot be {plot}: {why}", "name another file with --plot")
    try:
        sys.exit(show(jobs, plot))
    except KeyboardInterrupt:
        sys.exit(130)


# -- headgate completion


@main.command(cls=_Command, short_help="Completion for bash, zsh and fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete headgate's commands and options.

    \b
    bash:  echo 'eval "$(headgate completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(headgate completion zsh)"' >> ~/.zshrc
    fish:  headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "headgate", "_HEADGATE_COMPLETE").source())


if __name__ == "__main__":
    main()
