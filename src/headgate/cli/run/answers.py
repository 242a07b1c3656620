"""Pure. The lines of answers and of failures: how they are written, and how they are recognised later."""

import json
import re
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, NamedTuple, TypeAlias

from .jobs import Job
from .replies import Reply

Format: TypeAlias = Literal["openai", "anthropic", "gemini"]

_OPENAI = (
    b'{"id": "job_%d", "custom_id": %b, "digest": "%08x", '
    b'"response": {"status_code": %d, "request_id": %b, "body": %b}, "error": null}\n'
)
_ANTHROPIC = b'{"custom_id": %b, "digest": "%08x", "result": {"type": "succeeded", "message": %b}}\n'
_GEMINI = b'{"key": %b, "digest": "%08x", "response": %b}\n'
_FAILURE = b'{"id": "job_%d", "custom_id": %b, "response": %b, "error": {"code": %b, "message": %b}}\n'
_RESPONSE = b'{"status_code": %d, "request_id": %b, "body": %b}'
# A line as it is written above. Any other line is parsed.
_OURS = re.compile(
    rb'\{(?:"id": "job_[0-9]+", "custom_id"|"custom_id"|"key"): ("(?:[^"\\]|\\.)*"), '
    rb'"digest": "([0-9a-f]{8})", "(?:response|result)": \{'
)
_RESULTS = ("response", "result", "error")
# How the lines above begin.
_BEGINNINGS = (b'{"id": "job_', b'{"custom_id": "', b'{"key": "')


class Recorded(NamedTuple):
    """What a line records: the job, the digest of its line if there is one, and whether it was answered."""

    custom_id: str
    digest: int | None
    answered: bool


def answer_line(job: Job, status: int, request_id: str, body: bytes, shape: Format = "openai") -> bytes:
    """An answer in the shape of a provider's batches. `body` is JSON; only its line breaks are removed."""
    name, body = _text(job.custom_id), body.strip().translate(None, b"\r\n")
    if shape == "anthropic":
        return _ANTHROPIC % (name, job.digest, body)
    if shape == "gemini":
        return _GEMINI % (name, job.digest, body)
    return _OPENAI % (job.number, name, job.digest, status, _text(request_id), body)


def failure_line(number: int, custom_id: str, code: str, message: str, reply: Reply | None) -> bytes:
    """The failure of a job, in the shape of OpenAI's batches."""
    response = b"null"
    if reply is not None and reply.status is not None:
        body = reply.body.strip().translate(None, b"\r\n")
        response = _RESPONSE % (reply.status, _text(reply.request_id), body)
    return _FAILURE % (number, _text(custom_id), response, _text(code), _text(message))


def _text(value: str) -> bytes:
    return encode_basestring_ascii(value).encode()


def recorded_in(line: bytes) -> Recorded | None:
    """What a line of answers records; None if it is not such a line."""
    ours = _OURS.match(line)
    if ours is not None and line.endswith(b"}\n"):
        return Recorded(json.loads(ours[1]), int(ours[2], 16), answered=True)
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    custom_id = document.get("custom_id", document.get("key"))
    if not isinstance(custom_id, str) or not any(isinstance(document.get(key), dict) for key in _RESULTS):
        return None
    try:
        digest = int(document["digest"], 16) & 0xFFFFFFFF
    except (KeyError, TypeError, ValueError):
        digest = None
    return Recorded(custom_id, digest, answered=_succeeded(document))


def body_in(document: dict[str, Any]) -> Any:
    """The body of the response in a line of answers, in any of the three shapes; None if there is none."""
    response, result = document.get("response"), document.get("result")
    if isinstance(response, dict):
        return response.get("body") if "status_code" in response else response
    if isinstance(result, dict) and isinstance(result.get("type"), str):
        return result.get("message", {})
    return None


def _succeeded(document: dict[str, Any]) -> bool:
    response, result = document.get("response"), document.get("result")
    if isinstance(result, dict):
        return result.get("type") == "succeeded"
    if document.get("error") is not None or not isinstance(response, dict):
        return False
    status = response.get("status_code", 200)
    return isinstance(status, int) and 200 <= status < 300


def begins_an_answer(torn: bytes) -> bool:
    """Whether the bytes are the beginning of a line that was being written, perhaps with zeros after it."""
    start = torn.rstrip(b"\0")
    return not start or any(start.startswith(beginning[: len(start)]) for beginning in _BEGINNINGS)


def failed_in(line: bytes) -> str | None:
    """The custom_id in a line of failures; None if it is not such a line."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.keys() != {"id", "custom_id", "response", "error"}:
        return None
    custom_id, error = document["custom_id"], document["error"]
    if not isinstance(custom_id, str) or not isinstance(error, dict) or error.keys() != {"code", "message"}:
        return None
    return custom_id
