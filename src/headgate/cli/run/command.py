"""`headgate run`: its options, and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ...errors import InvalidLimit
from ..options import Command, CommandError, HeaderType, PriceType, RateType, section

_where, _limits, _trouble, _showing = map(section, ("Where", "Limits", "Trouble", "Showing"))
_FILE = click.Path(path_type=Path)
_FILE_OR_DASH = click.Path(path_type=Path, allow_dash=True)
_COUNT = click.IntRange(1)
_MORE_THAN_ZERO = click.FloatRange(0, min_open=True)


@click.command(cls=Command, short_help="Send a file of requests, as fast as the limits allow.")
@click.argument("jobs", type=_FILE_OR_DASH)
@_where("--to", required=True, metavar="URL", help="The API. Paths of jobs are joined to it.")
@_where(
    "-o",
    "--output",
    type=_FILE_OR_DASH,
    metavar="FILE",
    help="Answers, one a line. With none: stdout, if piped.",
)
@_where("--errors", type=_FILE, metavar="FILE", help="Jobs that failed.  [default: OUTPUT.errors.jsonl]")
@_where(
    "--header",
    "headers",
    type=HeaderType(),
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Sent with every request. Repeatable.",
)
@_where(
    "--key-env",
    metavar="NAME",
    help="The environment variable that holds the key. Well-known APIs have a usual one.",
)
@_limits(
    "--rate",
    "rates",
    type=RateType(),
    multiple=True,
    metavar="RATE",
    help="e.g. 500/minute, '200_000 tokens/minute'. Repeatable.  [default: auto, as answers tell]",
)
@_limits(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Requests in flight at once, at most.  [default: 200]",
)
@_limits(
    "--store",
    metavar="URL",
    help="Share the limits with everything that uses the same store: sqlite:///limits.db, redis://host/0.",
)
@_limits("--store-key", metavar="NAME", help="The name to share them under.  [default: the host of --to]")
@_limits(
    "--max-tokens",
    type=_COUNT,
    metavar="N",
    help="Stop before more tokens are used, by all runs of the command together.",
)
@_limits(
    "--max-cost", type=_MORE_THAN_ZERO, metavar="AMOUNT", help="Stop before it costs more. Needs --price."
)
@_limits("--price", type=PriceType(), metavar="IN/OUT", help="Of a million tokens, e.g. 0.15/0.60.")
@_trouble(
    "--retries",
    type=click.IntRange(0, 100),
    default=5,
    metavar="N",
    help="Tries after the first for a job that fails by itself.",
)
@_trouble(
    "--timeout",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=600,
    metavar="SECONDS",
    help="For one answer, from sending to its last byte.",
)
@_trouble(
    "--patience",
    type=_MORE_THAN_ZERO,
    default=600,
    metavar="SECONDS",
    help="Without a single success before the run stops.",
)
@_trouble("--skip-invalid", is_flag=True, help="Count bad lines as failed jobs instead of refusing to start.")
@_showing(
    "--dry-run", is_flag=True, help="Check every line, estimate tokens, time and cost, and send nothing."
)
@_showing(
    "--json",
    "as_json",
    is_flag=True,
    help="Progress as JSON lines on stderr; the estimate as JSON on stdout.",
)
@_showing("-q", "--quiet", is_flag=True, help="Trouble only.")
def run(jobs: Path, **options: Any) -> None:
    """Send every request in JOBS, as fast as the limits allow and no faster.

    \b
    headgate run requests.jsonl --to https://api.openai.com -o answers.jsonl
    headgate run requests.jsonl --to https://api.anthropic.com --rate 50/minute -o answers.jsonl
    generate | headgate run - --to http://127.0.0.1:8000/v1/chat/completions | use

    JOBS has one JSON object a line: OpenAI's batch lines, Anthropic's, or bare bodies; - is stdin. Answers
    are written as they come, in the shape of OpenAI's batches. To go on after anything, run the same command
    again: what has an answer is not sent again. Ctrl-C once finishes what is in flight, twice stops at once.

    Exit status: 0 all answered, 1 some failed, 2 wrong usage (nothing was sent), 3 stopped early, 130 stopped
    at once.
    """
    from .errors import RunError  # noqa: PLC0415 - with httpx2 and more, which --help can do without
    from .execute import execute  # noqa: PLC0415
    from .forecast import dry_run  # noqa: PLC0415
    from .options import RunOptions, Settings  # noqa: PLC0415
    from .outcome import ExitStatus  # noqa: PLC0415

    settings = Settings(**{name: options.pop(name) for name in ("retries", "timeout", "patience")})
    only_estimate = options.pop("dry_run")
    chosen = RunOptions(jobs=jobs, settings=settings, **options)
    try:
        sys.exit(dry_run(chosen, sys.stdout, sys.stderr) if only_estimate else execute(chosen))
    except (RunError, InvalidLimit) as error:
        raise CommandError(str(error), getattr(error, "hint", "")) from None
    except KeyboardInterrupt:  # before anything was sent
        sys.exit(ExitStatus.STOPPED_AT_ONCE)
