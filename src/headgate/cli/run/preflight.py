"""What is settled before anything is sent: files, jobs, the key, the way to the API, and the limits.

Errors of a store are raised here, too, and never show its password.
"""

import asyncio
import os
import socket
import stat
import sys
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.request import getproxies, proxy_bypass

from ...dispatch.dispatch import Dispatch
from ...dispatch.shared_learner import is_automatic
from ...errors import InvalidConfig, StoreError
from ...gate.clock import SYSTEM
from ...limits import Rate
from ...sharing.pool.question import PoolLimits
from ...sharing.pool.state import Pool
from ...sharing.pool.view import view_of
from ...sharing.store import open_store, plain_name
from ...typing import Clock, Observer
from ..options import CommandError
from .errors import BadJob
from .errors_file import errors_beside
from .intake import CHOICES
from .jobs import Job, digest_of, quick_id, read_jobs
from .lines import Lines
from .options import RunOptions
from .packing import packing_of
from .seen import ANSWERED, FOUND, SeenIds
from .target import Target

_LOOK_AHEAD = 0.4  # seconds for finding bad lines before the first request is sent
_LOOK_FOR_CHANGES = 2.0  # seconds for finding jobs that have changed
_CONCURRENCY = 200
_MOST_CONCURRENCY = 10_000
_DELAY = 0.1  # seconds that a new connection may need: a request arrives that much after it left the gate
_TO_BE_FIRST = "or be the first there: --rate 500/minute, or --rate auto to learn the limits"
# For each host the environment variable that usually holds its key, and the header that carries it.
_USUAL = {
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
_HEADERS = {"authorization", "x-api-key", "api-key", "x-goog-api-key"}


def check_files(options: RunOptions, *, sends: bool = True) -> None:
    """Raise CommandError unless the files can be read and written, and are different ones."""
    output, errors = options.output, options.errors
    if options.from_stdin:
        if sys.stdin.isatty():
            raise CommandError("stdin is a terminal", "pipe jobs in, or name a file of them")
    else:
        for number, jobs in enumerate(options.jobs):
            _check_jobs_file(jobs)
            for other in (output, errors):
                if other is not None and _same_file(other, jobs):
                    raise CommandError(f"{other} is the file of jobs itself", "give another file with -o")
            if any(_same_file(other, jobs) for other in options.jobs[:number]):
                raise CommandError(f"{jobs} is named twice", "name each file of jobs once")
    if errors is None and options.answers is not None:
        errors = errors_beside(options.answers)
    if output is not None and errors is not None and _same_file(output, errors):
        hint = "give another one with --errors"
        raise CommandError("answers and failures cannot go to the same file", hint)
    if output is None and sys.stdout.isatty() and sends:
        raise CommandError("the answers would fill the terminal", "name a file with -o, or pipe them on")


def _check_jobs_file(jobs: Path) -> None:
    if str(jobs) == "-":
        raise CommandError("- stands for stdin and goes with no file", "name files, or pipe all jobs in")
    packing_of(jobs)
    try:
        found = jobs.stat()
        jobs.open("rb").close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CommandError(f"cannot read {jobs}: {why}", "name a file of jobs, or - for stdin") from None
    if not stat.S_ISREG(found.st_mode):
        raise CommandError(f"{jobs} is not a file", "pipe it in, and write - for JOBS")


def _same_file(one: Path, other: Path) -> bool:
    """Whether two names are of one file, by links or otherwise. It need not exist yet."""
    try:
        if stat.S_ISREG(one.stat().st_mode):
            return one.samefile(other)
    except OSError:
        pass
    return os.path.realpath(one) == os.path.realpath(other) and not one.is_char_device()


def check_jobs(options: RunOptions, target: Target, seconds: float = _LOOK_AHEAD) -> int | None:
    """Read jobs for a few seconds and raise the error of the first bad line.

    The number of jobs, if that was the whole file and no line is bad.
    """
    if options.from_stdin:
        return None
    jobs, late = 0, SYSTEM.seconds() + seconds
    prices = None if options.max_cost is None else options.price_list()
    with closing(Lines(options.jobs)) as lines:
        try:
            for jobs, job in enumerate(read_jobs(lines, target), 1):
                if isinstance(job, BadJob) and not options.skip_invalid:
                    raise job
                if prices is not None and isinstance(job, Job) and prices.get(job.shape.model) is None:
                    why = f"no price is known for the model {job.shape.model!r}"
                    raise CommandError(why, "give --price, or a list with --prices")
                if isinstance(job, BadJob) or (not jobs % 64 and SYSTEM.seconds() > late):
                    return None
        except (EOFError, OSError, ValueError) as error:
            if isinstance(error, BadJob):
                raise
            raise CommandError(f"{options.name} cannot be unpacked: {error}", "pack it again") from None
    if not jobs:
        raise CommandError(f"{options.name} has no jobs", "a file of jobs has one request a line")
    return jobs


def check_changed(options: RunOptions, known: SeenIds, seconds: float = _LOOK_FOR_CHANGES) -> int | None:
    """Raise CommandError if jobs have answers to other lines with the same ids.

    The number of jobs that have an answer; None if that is not known after these seconds.
    """
    if not len(known):
        return 0
    if options.from_stdin or options.changed is not None:
        return None
    answered: int | None = 0
    changed, first, late = 0, "", SYSTEM.seconds() + seconds
    with closing(Lines(options.jobs)) as lines:
        for number, line in enumerate(lines, 1):
            custom_id = quick_id(line.content)
            if custom_id is None:
                answered = None  # until the whole line is read
                continue
            seen = known.get(custom_id)
            if seen.marks == ANSWERED:
                known.add(custom_id, FOUND)
                answered = None if answered is None else answered + 1
            if seen.digest is not None and seen.digest != digest_of(line.content):
                changed += 1
                first = first or f"the first is {custom_id!r}, {line.where}"
            if not number % 256 and SYSTEM.seconds() > late:
                answered = None
                break
    if changed:
        jobs = f"{changed:,} jobs were" if changed > 1 else "a job was"
        raise CommandError(f"{jobs} answered when the line was another one; {first}", CHOICES)
    return answered


def reach(target: Target) -> None:
    """Raise CommandError if no connection to the API can be made. Behind a proxy this is not tried."""
    host = target.parts.hostname or ""
    port = target.parts.port or (443 if target.parts.scheme == "https" else 80)
    proxies = getproxies()
    if (target.parts.scheme in proxies or "all" in proxies) and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout=10).close()
    except socket.gaierror:
        hint = "check --to for a typing error, and the network"
        raise CommandError(f"no host is called {host!r}", hint) from None
    except ConnectionRefusedError:
        why = f"nothing listens at {host}:{port} (connection refused)"
        raise CommandError(why, "check --to, or start it") from None
    except OSError as error:
        why = f"cannot reach {host}:{port}: {error.strerror or error}"
        raise CommandError(why, "check --to, and the network") from None


def headers_for(options: RunOptions, target: Target) -> dict[str, str]:
    """The headers of every request, the key included.

    A key goes to the host that it belongs to and to no other, unless --key-env names it.
    """
    headers = dict(options.headers)
    host = target.parts.hostname or ""
    usual, header = _USUAL.get(host, ("", "authorization"))
    if header == "x-api-key" or "anthropic" in host:
        headers.setdefault("anthropic-version", "2023-06-01")
    if options.key_env is None and (_HEADERS & headers.keys() or "key=" in target.query or not usual):
        return headers
    name = options.key_env or usual
    key = os.environ.get(name, "").strip()
    if not key:
        raise CommandError(
            f"no key for {host}: the environment has no {name}",
            f"export {name}=..., or name another variable with --key-env, or give the header with --header",
        )
    if not key.isascii() or not key.isprintable():
        raise CommandError(f"the key in {name} has characters that no header can carry", "copy it again")
    headers[header] = f"Bearer {key}" if header == "authorization" else key
    return headers


# -- the limits


class RunGate(NamedTuple):
    """The gate of all jobs, how many may be in flight at once, and whether the rates are learned."""

    gate: Dispatch
    concurrency: int
    learns: bool


def make_gate(
    options: RunOptions, host: str, observer: Observer | None = None, *, clock: Clock = SYSTEM
) -> RunGate:
    """The gate for a run, by its options and by what the pool of its key knows."""
    if "auto" in options.rates and len(options.rates) > 1:
        raise CommandError("--rate auto stands alone", "give the rates, or none of them")
    if options.store is not None:
        return _shared(options, options.store, options.store_key or host, observer)
    if options.store_key is not None:
        raise CommandError("--store-key needs a store", "write e.g. --store sqlite:///limits.db")
    concurrency = options.concurrency or _CONCURRENCY
    auto = options.rates in ((), ("auto",))
    gate = Dispatch(
        host,
        rates="auto" if auto else options.rates,
        concurrency=concurrency,
        throttled_concurrency="adaptive",
        byte_budget=None,
        pause=True,
        observer=observer,
        clock=clock,
    )
    gate.expect_delay(_DELAY)
    return RunGate(gate, concurrency, auto)


def _shared(options: RunOptions, store: str, key: str, observer: Observer | None) -> RunGate:
    """A gate that shares the pool of this key. Limits that the command does not give stay as they are."""
    if store.partition(":")[0] == "memory":
        raise CommandError(
            "--store memory: is inside one process: no other could share it",
            "write sqlite:///limits.db for this machine, redis://host/0 or postgresql://host/db for several",
        )
    try:
        pool = asyncio.run(_look(store, key))
    except InvalidConfig as error:
        raise CommandError(f"--store {str(error).removeprefix('store=')}") from None
    except StoreError as error:
        if not options.rates:
            raise CommandError(str(error), f"check --store, {_TO_BE_FIRST}") from None
        pool = None  # a file that does not exist yet; if it is worse, Dispatch raises it below
    if pool is None and not options.rates:
        raise CommandError(
            f"{plain_name(store)} knows no limits for {key!r}",
            f"check --store and --store-key, {_TO_BE_FIRST}",
        )
    limits = PoolLimits(_CONCURRENCY, throttled_for=10_000_000) if pool is None else pool.limits
    concurrency = options.concurrency or limits.places or None
    rates = _rates(options, pool, key)
    try:
        gate = Dispatch(
            key,
            rates=rates,
            concurrency=concurrency,
            throttled_concurrency=limits.throttled_places or ("adaptive" if concurrency else None),
            byte_budget=limits.bytes or None,
            backoff_window=limits.throttled_for / 1e6,
            pause=True,
            store=store,
            observer=observer,
        )
    except StoreError as error:
        file = store.startswith("sqlite:")
        hint = "it takes a file of its own, in a folder that exists" if file else "check --store, or start it"
        raise CommandError(str(error), hint) from None
    gate.expect_delay(_DELAY)
    return RunGate(gate, min(concurrency or _CONCURRENCY, _MOST_CONCURRENCY), rates == "auto")


async def _look(url: str, key: str) -> Pool | None:
    store = open_store(url, SYSTEM)
    try:
        return await store.look(key)
    finally:
        await store.close()


def _rates(options: RunOptions, pool: Pool | None, key: str) -> list[Rate] | Literal["auto"]:
    """The given rates, in the order of the rates in the pool; or those of the pool, if none are given."""
    given = [rate for rate in options.rates if not isinstance(rate, str)]
    learn = "auto" in options.rates
    if pool is None:
        return "auto" if learn else given
    there, learned = view_of(pool), is_automatic(pool.lesson.text)
    in_force = [level.rate for level in there.levels]
    if not options.rates:
        return "auto" if learned else in_force
    if learn and not learned:
        theirs = ", ".join(map(str, in_force)) or "no rates"
        hint = "leave out --rate to go by the same, or write another --store-key"
        raise CommandError(f"limits are configured for {key!r} in the store: {theirs}", hint)
    if learn:
        return "auto"
    units = [rate.unit for rate in in_force]
    if sorted(units) == sorted(rate.unit for rate in given):
        return sorted(given, key=lambda rate: units.index(rate.unit))
    if there.members:
        raise CommandError(
            f"{key!r} is shared by others that count {' and '.join(units) or 'nothing'}",
            f"leave out --rate to go by theirs ({', '.join(map(str, in_force)) or 'none'}), or give as many",
        )
    return given
