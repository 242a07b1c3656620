"""What is to be sent: one JSON object a line, in any of three shapes.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    OpenAI's batches
    {"custom_id": "a", "params": {...}}                                                   Anthropic's batches
    {"model": "...", "messages": [...]}                                                   a bare body

A line is read when a worker asks for it and forgotten when the job is done, so that a file may have any
length. An error names the file and the number of the line.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit
from zlib import crc32

from ...responses.estimate import NO_SHAPE, RequestShape, shape_of
from .errors import BadJob, BadTarget

METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE")
_LONGEST_ID = 512
_LONGEST_LINE = 64 << 20
_CHUNK = 1 << 18
_SHAPES = (
    'a line is {"custom_id", "method", "url", "body"}, {"custom_id", "params"}, '
    "or the body of a request by itself"
)
# The last segment of an address to which paths are to be added, as in `base_url=` of the SDKs.
_BASE = re.compile(r"v\d+(?:alpha|beta)?\d*|api|openai|inference")
_FIRST_ID = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*"([^"\\]{1,512})"\s*,')
_PATH = re.compile(r"/[\w\-.~:/?#\[\]@!$&'()*+,;=%]*", re.ASCII)


class Job(NamedTuple):
    """One request. `number` is its line, `body` the bytes that are sent, and `shape` what these ask for."""

    number: int
    custom_id: str
    method: str
    url: str
    body: bytes
    shape: RequestShape


class Target:
    """The address given as --to, joined with the path of a job.

    >>> Target("https://api.example.com/v1").join("/v1/chat/completions")
    'https://api.example.com/v1/chat/completions'
    """

    def __init__(self, to: str) -> None:
        self.parts = _checked_url(to)
        self.host = self.parts.netloc.rpartition("@")[2].lower()
        self._root = f"{self.parts.scheme}://{self.host}"
        self._segments = [segment for segment in self.parts.path.split("/") if segment]
        self.has_path = bool(self._segments) and not _BASE.fullmatch(self._segments[-1])
        self.query = f"?{self.parts.query}" if self.parts.query else ""

    @property
    def whole(self) -> str:
        """The address as it was given."""
        return self._root + "/" + "/".join(self._segments) + self.query

    def join(self, path: str) -> str:
        """The address for a path. Segments that end one and begin the other appear once: `/v1` above."""
        path, mark, query = path.partition("?")
        segments = path.strip("/").split("/")
        base = self._segments
        for shared in range(min(len(base), len(segments)), 0, -1):
            if base[-shared:] == segments[:shared]:
                base = base[:-shared]
                break
        return self._root + "/" + "/".join([*base, *segments]) + (mark + query or self.query)


def _checked_url(to: str) -> SplitResult:
    example = "https://api.openai.com"
    try:
        parts = urlsplit(to.strip())
        port = parts.port
    except ValueError as error:
        raise BadTarget(f"--to {to!r} is not a URL: {error}", f"write e.g. {example}") from None
    if parts.scheme not in ("http", "https"):
        if "://" not in to:
            address = to.lstrip("/")
            scheme = "http" if address.startswith(("localhost", "127.")) else "https"
            raise BadTarget(f"--to {to!r} does not say how to get there", f"write {scheme}://{address}")
        raise BadTarget(
            f"--to {to!r}: {parts.scheme!r} is not spoken here", f"write http or https: {example}"
        )
    name = parts.hostname or ""
    if not name or port == 0 or any(c.isspace() or ord(c) < 33 for c in to.strip()):
        raise BadTarget(f"--to {to!r} names no host", f"write e.g. {example}")
    if parts.username is not None:
        raise BadTarget("--to has a password in it", "give it by --header, or a key by --key-env")
    if parts.fragment:
        raise BadTarget(f"--to {to!r} has a fragment (#), which no server sees", "leave it out")
    return parts


# -- one line


def read_job(line: bytes, where: str, number: int, target: Target) -> Job:
    """Read one line. Raises BadJob if the line is not a job."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = f"not JSON ({error})" if isinstance(error, ValueError) else "not JSON (nested too deeply)"
        raise BadJob(where, why, _SHAPES) from None
    if not isinstance(document, dict):
        raise BadJob(where, f"not an object, but {_named(document)}", _SHAPES)
    if "body" in document and ("url" in document or "custom_id" in document):
        return _openai(document, where, number, target)
    if "params" in document and "custom_id" in document:
        custom_id = _custom_id(document, where)
        address = target.whole if target.has_path else target.join("/v1/messages")
        return _job(number, custom_id, "POST", address, document["params"], where, target, "params")
    if "custom_id" in document:
        given = document["custom_id"]
        why = "it has a `custom_id`, but neither `body` nor `params`"
        raise BadJob(where, why, _SHAPES, given if isinstance(given, str) else None)
    if not document:
        raise BadJob(where, "the object is empty", _SHAPES)
    if not target.has_path:
        raise BadJob(
            where,
            "a body by itself does not say where it goes, and --to has no path either",
            f"write the whole address, e.g. --to {target.join('/v1/chat/completions')}",
        )
    # The content is part of the id, so that the answer to a line does not count for the line after an edit.
    custom_id = f"line-{number}-{crc32(line.strip()):08x}"
    return _job(number, custom_id, "POST", target.whole, document, where, target, "body")


def quick_id(line: bytes) -> str | None:
    """The custom_id of a line that begins with it, as most lines do, without parsing the rest."""
    found = _FIRST_ID.match(line)
    try:
        return found[1].decode() if found else None
    except UnicodeDecodeError:
        return None


def _openai(document: dict[str, Any], where: str, number: int, target: Target) -> Job:
    custom_id = _custom_id(document, where)
    method = document.get("method", "POST")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise BadJob(where, f"`method` is {_named(method)}", f"write one of {', '.join(METHODS)}", custom_id)
    url = document.get("url")
    address = target.whole if url is None and target.has_path else _address(url, where, custom_id, target)
    body = document["body"]
    if body is None and method.upper() in ("GET", "DELETE"):
        return Job(number, custom_id, method.upper(), address, b"", NO_SHAPE)
    return _job(number, custom_id, method.upper(), address, body, where, target, "body")


def _custom_id(document: dict[str, Any], where: str) -> str:
    given = document.get("custom_id")
    if not isinstance(given, str) or not given:
        if "custom_id" in document:
            raise BadJob(where, f"`custom_id` is {_named(given)}", "write a text that no other line has")
        raise BadJob(where, "it has no `custom_id`", "every line needs one that no other line has")
    if len(given) > _LONGEST_ID:
        raise BadJob(where, f"`custom_id` has {len(given)} characters", f"write at most {_LONGEST_ID}")
    return given


def _address(url: object, where: str, custom_id: str, target: Target) -> str:
    hint = 'write a path, e.g. "url": "/v1/chat/completions"'
    if not isinstance(url, str) or not url:
        why = "it has no `url`" if url is None else f"`url` is {_named(url)}"
        raise BadJob(where, why, hint, custom_id)
    if "://" in url:
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc.lower()}" != f"{target.parts.scheme}://{target.host}":
            # The key belongs to one host and must not reach another that is named in the file.
            raise BadJob(where, f"`url` goes to {parts.netloc}, and --to is {target.host}", hint, custom_id)
        url = parts.path + (f"?{parts.query}" if parts.query else "")
    if not _PATH.fullmatch(url) or url.startswith("//"):
        raise BadJob(where, f"`url` is {url[:80]!r}, which is not a path", hint, custom_id)
    return target.join(url)


def _job(
    number: int, custom_id: str, method: str, url: str, body: Any, where: str, target: Target, key: str
) -> Job:
    if not isinstance(body, dict):
        raise BadJob(where, f"`{key}` is {_named(body)}", "write an object", custom_id)
    if body.get("stream"):
        why, hint = "`stream` is set, and an answer is kept whole", "leave `stream` out of the body"
        raise BadJob(where, why, hint, custom_id)
    try:
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, escaped
        encoded = json.dumps(body, separators=(",", ":")).encode()
    shape = shape_of(method, target.host, urlsplit(url).path, encoded, body)
    return Job(number, custom_id, method, url, encoded, shape)


def _named(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


# -- a file of them


class Lines:
    """The lines of a file with their numbers, without the blank ones."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._file = path.open("rb", buffering=_CHUNK)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        readline = self._file.readline
        number = 0
        while line := readline(_LONGEST_LINE):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # the byte order mark of Windows programs
            if not line.isspace():
                yield number, line
        self.close()

    def count(self) -> int:
        """The number of lines, blank ones included. It reads the whole file: call it in another thread."""
        total, last = 0, b"\n"
        with self._path.open("rb", buffering=0) as file:
            while chunk := file.read(1 << 22):
                total += chunk.count(b"\n")
                last = chunk[-1:]
        return total + (last != b"\n")

    def close(self) -> None:
        self._file.close()


class Pipe:
    """The lines of a pipe. A thread reads them, because reading blocks and an event loop must not.

    At most `ahead` lines are held; then the program that writes into the pipe has to wait.
    """

    def __init__(self, fd: int, name: str, loop: asyncio.AbstractEventLoop, ahead: int = 64) -> None:
        self.name = name
        self._loop = loop
        self._lines: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(ahead)
        # A daemon thread does not keep the process from ending while no line comes.
        threading.Thread(target=self._read, args=(fd,), name="headgate-stdin", daemon=True).start()

    async def next(self) -> tuple[int, bytes] | None:
        """The next line, or None after the last."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)  # every caller finds the end
        return line

    def _read(self, fd: int) -> None:
        with open(fd, "rb", buffering=_CHUNK, closefd=False) as file, suppress(RuntimeError, CancelledError):
            with suppress(OSError):
                for number, line in enumerate(file, 1):
                    if not line.isspace():
                        self._hand_over((number, line))
            self._hand_over(None)

    def _hand_over(self, line: tuple[int, bytes] | None) -> None:
        """Wait until there is room for a line. Raises if the event loop has ended."""
        putting = self._lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except RuntimeError:
            putting.close()
            raise

    def close(self) -> None:
        pass


def read_jobs(lines: Iterable[tuple[int, bytes]], name: str, target: Target) -> Iterator[Job | BadJob]:
    """The jobs of numbered lines; the error of a line that is bad or repeats a custom_id."""
    used: set[str] = set()
    for number, line in lines:
        where = f"{name}, line {number}"
        try:
            job = read_job(line, where, number, target)
        except BadJob as error:
            yield error
            continue
        yield twice(where, job.custom_id) if job.custom_id in used else job
        used.add(job.custom_id)


def twice(where: str, custom_id: str) -> BadJob:
    """The error for a custom_id that another line has used."""
    hint = "answers are told apart by it: give every line one of its own"
    return BadJob(where, f"`custom_id` {custom_id[:80]!r} has been used before", hint, custom_id)
