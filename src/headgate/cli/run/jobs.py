"""What is to be sent: one JSON object a line, in any of four shapes.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    OpenAI's batches
    {"custom_id": "a", "params": {...}}                                                   Anthropic's batches
    {"key": "a", "request": {...}}                                                        Gemini's batches
    {"model": "...", "messages": [...]}                                                   a bare body

A line is read when a worker asks for it and forgotten when the job is done, so that a file may have any
length. A body is parsed once and sent as it is written in the line. An error names the file and the line.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit
from zlib import crc32

from ...responses.estimate import NO_SHAPE, RequestShape, shape_of
from .errors import BadJob
from .lines import Line
from .seen import READ, SeenIds
from .target import Target

METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE")
_LONGEST_ID = 512
_SHAPES = (
    'a line is {"custom_id", "method", "url", "body"}, {"custom_id", "params"}, {"key", "request"}, '
    "or the body of a request by itself"
)
_ONE_A_LINE = (
    "every job is one object on one line of its own: jq -c '.[]' makes them of an array, jq -c . of objects"
)
_FIRST_ID = re.compile(rb'\s*\{\s*"(?:custom_id|key)"\s*:\s*"([^"\\]{1,512})"\s*,')
_USUAL = re.compile(
    r'\{"custom_id": ?"([^"\\\x00-\x1f]{1,512})", ?"method": ?"([A-Z]+)", ?'
    r'"url": ?"([^"\\\x00-\x1f]+)", ?"body": ?(?=\{)'
)
_PATH = re.compile(r"/[\w\-.~:/?#\[\]@!$&'()*+,;=%]*", re.ASCII)
_skip_space = re.compile(r"[ \t\r\n]*").match


class Job(NamedTuple):
    """One request. `number` is its line, `body` the bytes that are sent, and `shape` what these ask for.

    `digest` tells the line from others with the same custom_id.
    """

    number: int
    custom_id: str
    method: str
    url: str
    body: bytes
    shape: RequestShape
    digest: int = 0


# -- the parts of a line


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_not_json)
_value_at = _DECODER.raw_decode


class _Part(NamedTuple):
    """A value in a line, and where it stands there."""

    value: Any
    start: int
    end: int


def _parts(text: str) -> dict[str, _Part]:
    """The members of the JSON object in a line. Raises what JSON raises if the line is not an object."""
    parts: dict[str, _Part] = {}
    at = _after_space(text, 0)
    if not text.startswith("{", at):
        raise ValueError(f"not an object, but {_named(_DECODER.decode(text))}")
    at = _after_space(text, at + 1)
    while text.startswith('"', at):
        key, at = _value_at(text, at)
        at = _after_space(text, at)
        if not text.startswith(":", at):
            break
        value, end = _value_at(text, start := _after_space(text, at + 1))
        parts[key] = _Part(value, start, end)
        at = _after_space(text, end)
        if not text.startswith(",", at):
            if text.startswith("}", at) and _after_space(text, at + 1) == len(text):
                return parts
            break
        at = _after_space(text, at + 1)
    _DECODER.decode(text)  # this says what is wrong
    return parts  # an empty object


def _after_space(text: str, at: int) -> int:
    found = _skip_space(text, at)
    assert found is not None
    return found.end()


class _Reader:
    """Reads the job of one line."""

    def __init__(self, line: Line, target: Target) -> None:
        self._line = line
        self._target = target
        self.digest = crc32(line.content.strip())
        try:
            self._text = line.content.decode()
        except UnicodeDecodeError:
            raise self._bad("not UTF-8", "save the file as UTF-8") from None
        try:
            self._parts = _parts(self._text)
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "nested too deeply"
            hint = _ONE_A_LINE if self._text.strip()[:1] == "[" or self._text.strip() == "{" else _SHAPES
            raise self._bad(why if why.startswith("not an") else f"not JSON ({why})", hint) from None

    def job(self) -> Job:
        parts = self._parts
        if len(parts.keys() & {"custom_id", "url", "body"}) >= 2:
            return self._openai()
        target = self._target
        if "params" in parts and "custom_id" in parts:
            address = target.whole if target.has_path else target.join("/v1/messages")
            return self._job(self._id("custom_id"), "POST", address, "params")
        if "key" in parts and "request" in parts:
            custom_id = self._id("key")
            return self._job(custom_id, "POST", self._gemini_address(custom_id), "request")
        if "custom_id" in parts:
            given = parts["custom_id"].value
            why = "it has a `custom_id`, but neither `body` nor `params`"
            raise self._bad(why, _SHAPES, given if isinstance(given, str) else None)
        if not parts:
            raise self._bad("the object is empty", _SHAPES)
        return self._bare()

    def _bare(self) -> Job:
        target, line = self._target, self._line
        if not target.has_path:
            raise self._bad(
                "a body by itself does not say where it goes, and --to has no path either",
                f"write the whole address, e.g. --to {target.join('/v1/chat/completions')}",
            )
        # The content is part of the id, so that the answer to a line does not count after an edit.
        custom_id = f"{line.prefix}line-{line.number}-{self.digest:08x}"
        body = {key: part.value for key, part in self._parts.items()}
        return self._checked(custom_id, "POST", target.whole, body, line.content.strip())

    def _openai(self) -> Job:
        parts, target = self._parts, self._target
        custom_id = self._id("custom_id")
        method = parts["method"].value if "method" in parts else "POST"
        if not isinstance(method, str) or method.upper() not in METHODS:
            hint = f"write one of {', '.join(METHODS)}"
            raise self._bad(f"`method` is {_named(method)}", hint, custom_id)
        method = method.upper()
        url = parts["url"].value if "url" in parts else None
        address = target.whole if url is None and target.has_path else self._address(url, custom_id)
        if "body" not in parts or parts["body"].value is None:
            if method in ("GET", "DELETE"):
                return Job(self._line.number, custom_id, method, address, b"", NO_SHAPE, self.digest)
            if "body" not in parts:
                raise self._bad("it has no `body`", f"a {method} needs one: write an object", custom_id)
        return self._job(custom_id, method, address, "body")

    def _id(self, key: str) -> str:
        given = self._parts[key].value if key in self._parts else None
        if not isinstance(given, str) or not given:
            if key in self._parts:
                raise self._bad(f"`{key}` is {_named(given)}", "write a text that no other line has")
            raise self._bad(f"it has no `{key}`", "every line needs one that no other line has")
        if len(given) > _LONGEST_ID:
            raise self._bad(f"`{key}` has {len(given)} characters", f"write at most {_LONGEST_ID}")
        return given

    def _address(self, url: object, custom_id: str) -> str:
        hint, target = 'write a path, e.g. "url": "/v1/chat/completions"', self._target
        if not isinstance(url, str) or not url:
            why = "it has no `url`" if url is None else f"`url` is {_named(url)}"
            raise self._bad(why, hint, custom_id)
        known = target.joined.get(url)
        if known is not None:
            return known
        path = url
        if "://" in url:
            parts = urlsplit(url)
            if f"{parts.scheme}://{parts.netloc.lower()}" != f"{target.parts.scheme}://{target.host}":
                # The key belongs to one host and must not reach another that is named in the file.
                raise self._bad(f"`url` goes to {parts.netloc}, and --to is {target.host}", hint, custom_id)
            path = parts.path + (f"?{parts.query}" if parts.query else "")
        if not _PATH.fullmatch(path) or path.startswith("//"):
            raise self._bad(f"`url` is {path[:80]!r}, which is not a path", hint, custom_id)
        return target.remember(url, target.join(path))

    def _gemini_address(self, custom_id: str) -> str:
        target, request = self._target, self._parts["request"].value
        if target.has_path:
            return target.whole
        model = request.get("model") if isinstance(request, dict) else None
        path = f"/v1beta/models/{str(model).removeprefix('models/')}:generateContent"
        if not isinstance(model, str) or not _PATH.fullmatch(path):
            hint = f"write the whole address: --to {target.join('/v1beta/models/MODEL:generateContent')}"
            raise self._bad("a line of Gemini's batches does not name its model", hint, custom_id)
        return target.join(path)

    def _job(self, custom_id: str, method: str, url: str, key: str) -> Job:
        body, start, end = self._parts[key]
        if not isinstance(body, dict):
            raise self._bad(f"`{key}` is {_named(body)}", "write an object", custom_id)
        text, content = self._text, self._line.content
        as_written = content[start:end] if len(text) == len(content) else text[start:end].encode()
        return self._checked(custom_id, method, url, body, as_written)

    def _checked(self, custom_id: str, method: str, url: str, body: dict[str, Any], as_written: bytes) -> Job:
        if body.get("stream"):
            why, hint = "`stream` is set, and an answer is kept whole", "leave `stream` out of the body"
            raise self._bad(why, hint, custom_id)
        target = self._target
        shape = shape_of(method, target.host, target.path_of(url), as_written, body)
        return Job(self._line.number, custom_id, method, url, as_written, shape, self.digest)

    def _bad(self, why: str, hint: str, custom_id: str | None = None) -> BadJob:
        return BadJob(self._line.where, why, hint, custom_id)


def read_job(line: Line, target: Target) -> Job:
    """Read one line. Raises BadJob if the line is not a job."""
    return _usual(line, target) or _Reader(line, target).job()


def _usual(line: Line, target: Target) -> Job | None:
    """The job of a line as OpenAI's batches have it, to an address that was read before; None otherwise."""
    try:
        text = line.content.decode()
        head = _USUAL.match(text)
        if head is None:
            return None
        start = head.end()
        body, end = _value_at(text, start)
    except (ValueError, RecursionError):
        return None
    custom_id, method, url = head.groups()
    address = target.joined.get(url)
    if address is None or method not in METHODS or text[end:].strip() != "}" or body.get("stream"):
        return None
    content = line.content
    as_written = content[start:end] if len(text) == len(content) else text[start:end].encode()
    shape = shape_of(method, target.host, target.path_of(address), as_written, body)
    return Job(line.number, custom_id, method, address, as_written, shape, digest_of(content))


def quick_id(line: bytes) -> str | None:
    """The id of a line that begins with it, as most lines do, without parsing the rest."""
    found = _FIRST_ID.match(line)
    try:
        return found[1].decode() if found else None
    except UnicodeDecodeError:
        return None


def digest_of(line: bytes) -> int:
    """What tells a line from others with the same id."""
    return crc32(line.strip())


def _named(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def read_jobs(lines: Iterable[Line], target: Target) -> Iterator[Job | BadJob]:
    """The jobs of numbered lines; the error of a line that is bad or repeats a custom_id."""
    used = SeenIds()
    for line in lines:
        try:
            job = read_job(line, target)
        except BadJob as error:
            yield error
            continue
        yield twice(line.where, job.custom_id) if used.add(job.custom_id, READ).marks else job


def twice(where: str, custom_id: str) -> BadJob:
    """The error for a custom_id that another line has used."""
    hint = "answers are told apart by it: give every line one of its own"
    return BadJob(where, f"`custom_id` {custom_id[:80]!r} has been used before", hint, custom_id)
