"""`headgate run`: its options, and how it ends."""

import sys
from pathlib import Path
from typing import Any

import click

from ...errors import InvalidLimit
from ..options import HEADER, PRICE, RATE, Command, CommandError, section

_where, _limits, _trouble, _showing = map(section, ("Where", "Limits", "Trouble", "Showing"))
_FILE = click.Path(path_type=Path)
_FILE_OR_DASH = click.Path(path_type=Path, allow_dash=True)
_MORE_THAN_ZERO = click.FloatRange(0, min_open=True)
_UP_TO_A_DAY = click.FloatRange(0, 86_400, min_open=True)
_PORT = click.IntRange(0, 65_535)
_FORMATS = click.Choice(["openai", "anthropic", "gemini"])
_CHANGED = click.Choice(["send", "keep"])
_RATES = "e.g. 500/minute, '200_000 tokens/minute'. Repeatable.  [default: auto, as answers tell]"
_MAX_TOKENS = "Stop before more tokens are used, by all runs of the command together."
_CHANGES = "send or keep: what happens to jobs that have changed since they were answered."
_STORE = "Share the limits with everything that uses the same store: sqlite:///limits.db, redis://host/0, postgresql://host/db."


@click.command(cls=Command, short_help="Send a file of requests, as fast as the limits allow.")
@click.argument("jobs", type=_FILE_OR_DASH, nargs=-1, required=True)
@_where("--to URL", "The API, e.g. https://api.openai.com; paths of jobs are joined to it.", required=True)
@_where("-o, --output FILE", "Answers, one a line. With none: stdout, if piped.", _FILE_OR_DASH)
@_where("--errors FILE", "Jobs that failed.  [default: OUTPUT.errors.jsonl]", _FILE)
@_where(
    "--header 'NAME: VALUE'", "Sent with every request. Repeatable.", HEADER, name="headers", multiple=True
)
@_where("--key-env NAME", "The environment variable that holds the key. Well-known APIs have a usual one.")
@_where("--format SHAPE", "The shape of answers: openai, anthropic or gemini.", _FORMATS, default="openai")
@_limits("--rate RATE", _RATES, RATE, name="rates", multiple=True)
@_limits("--concurrency N", "Requests in flight at once, at most.  [default: 200]", click.IntRange(1, 10_000))
@_limits("--store URL", _STORE)
@_limits("--store-key NAME", "The name to share them under.  [default: the host of --to]")
@_limits("--max-tokens N", _MAX_TOKENS, click.IntRange(1))
@_limits("--max-cost AMOUNT", "Stop before it costs more than this.", _MORE_THAN_ZERO)
@_limits("--price IN/OUT", "Prices of a million tokens, e.g. 0.15/0.60.", PRICE)
@_limits("--prices FILE", "Prices by model, as JSON.  [default: those that are shipped]", _FILE)
@_trouble(
    "--retries N", "Tries after the first for a job that fails by itself.", click.IntRange(0, 100), default=5
)
@_trouble("--timeout SECONDS", "For one answer, from sending to its last byte.", _UP_TO_A_DAY, default=600)
@_trouble(
    "--patience SECONDS",
    "The longest wait, without a success or because the API asks for it.",
    _MORE_THAN_ZERO,
    default=600,
)
@_trouble("--skip-invalid", "Count bad lines as failed jobs instead of refusing to start.")
@_trouble(
    "--changed CHOICE",
    _CHANGES,
    _CHANGED,
)
@_trouble("--retry-failed", "Send only the jobs that failed in earlier runs.")
@_showing("--dry-run", "Check every line, estimate tokens, time and cost, and send nothing.")
@_showing("--json", "Progress as JSON lines on stderr; the estimate as JSON on stdout.", name="as_json")
@_showing("--metrics PORT", "Serve metrics for Prometheus on this machine; 0 takes a free port.", _PORT)
@_showing("-q, --quiet", "Trouble only.")
def run(jobs: tuple[Path, ...], **options: Any) -> None:
    """Send every request in JOBS, as fast as the limits allow and no faster.

    \b
    headgate run requests.jsonl --to https://api.openai.com -o answers.jsonl
    headgate run requests.jsonl --to https://api.anthropic.com --rate 50/minute -o answers.jsonl
    generate | headgate run - --to http://127.0.0.1:8000/v1/chat/completions | use

    JOBS have one JSON object a line: batch lines of OpenAI, Anthropic or Gemini, or bare bodies; - is stdin.
    Answers are written as they come, in the shape of OpenAI's batches. To go on after anything, run the same
    command again: what has an answer is not sent again. Ctrl-C once finishes what is in flight, twice stops
    at once.

    Exit status: 0 all answered, 1 some failed, 2 wrong usage (nothing was sent), 3 stopped early, 130 stopped
    at once.
    """
    from .execute import execute  # noqa: PLC0415 - with aiohttp and more, which --help can do without
    from .forecast import dry_run  # noqa: PLC0415
    from .options import RunOptions, Settings  # noqa: PLC0415

    settings = Settings(**{name: options.pop(name) for name in ("retries", "timeout", "patience")})
    only_estimate = options.pop("dry_run")
    chosen = RunOptions(jobs=jobs, settings=settings, **options)
    try:
        sys.exit(dry_run(chosen, sys.stdout, sys.stderr) if only_estimate else execute(chosen))
    except InvalidLimit as error:
        raise CommandError(str(error)) from None
