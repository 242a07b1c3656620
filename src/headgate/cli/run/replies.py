"""What a reply means for its job: an answer, a failure of this job, or trouble that all jobs share.

Nothing that comes back makes these functions raise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ...responses import read_signal
from ...responses.signals import Signal
from ...responses.usage import Usage, usage_of
from ...retries.classify import is_permanent, never_sent

Kind = Literal[
    "refused",  # by a limit, which all jobs share
    "quota",  # the account has nothing left
    "key",  # the key is not accepted
    "rejected",  # this job will never be accepted
    "failed",  # this job may succeed the next time
    "unreachable",  # no connection: nothing was sent
    "certificate",  # the certificate of the host cannot be trusted
]
_LONGEST_MESSAGE = 300


class Trouble(NamedTuple):
    kind: Kind
    message: str
    retry_after: float | None = None


class Reply(NamedTuple):
    """What came back. `body` is JSON in UTF-8 if there is no trouble; `document` is the same, parsed."""

    status: int | None
    request_id: str
    body: bytes
    document: Any
    usage: Usage | None
    trouble: Trouble | None


def read_reply(status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    """Read a response."""
    request_id = headers.get("x-request-id") or headers.get("request-id") or ""
    text, document, is_json = _parsed(body)
    usage = None
    if isinstance(document, dict):
        usage = usage_of(document.get("usage") or document.get("usageMetadata"))
    trouble: Trouble | None
    if 300 <= status < 400:
        where = headers.get("location") or "somewhere else"
        trouble = Trouble("rejected", f"{status}: it has moved to {where[:120]}; give that as --to")
    elif status >= 400:
        trouble = _trouble(status, read_signal(status, headers, body), document)
    else:
        trouble = None
        if isinstance(document, dict) and document.get("error"):
            signal = read_signal(status, headers, document)
            if signal.reason != "ok":
                trouble = _trouble(status, signal, document)
        if trouble is None and not is_json and "json" in (headers.get("content-type") or "json").lower():
            trouble = Trouble("failed", f"{status}, but the body is not the JSON it says it is")
    return Reply(status, request_id, text, document, usage, trouble)


def no_reply(error: BaseException, timeout: float) -> Reply:
    """Read an exception that came instead of a response."""
    kind: Kind = "failed"
    if isinstance(error, TimeoutError):
        message = f"no answer within {timeout:g} s"
    else:
        message = str(error).strip() or type(error).__name__
        if is_permanent(error):
            kind = "certificate"
        elif never_sent(error):
            kind, message = "unreachable", f"cannot connect: {message}"
        else:
            message = f"the connection broke: {message}"
    return Reply(None, "", b"", None, None, Trouble(kind, message[:_LONGEST_MESSAGE]))


def _parsed(body: bytes) -> tuple[bytes, Any, bool]:
    """The body as JSON in UTF-8, the parsed document, and whether the body was JSON."""
    try:
        document = json.loads(body)
        body.decode()
    except (ValueError, RecursionError):
        pass
    else:
        if b"\0" not in body and not body.startswith(b"\xef\xbb\xbf"):
            return body, document, True
        return json.dumps(document).encode(), document, True  # it was in another encoding
    said = body.decode("utf-8", "replace")
    return json.dumps(said).encode(), said, False


def _trouble(status: int, signal: Signal, document: Any) -> Trouble:
    said = _said(document)
    message = f"{status}: {said}" if said else str(status)
    kind: Kind
    if signal.reason == "quota_exhausted":
        kind = "quota"
    elif signal.reason == "too_large":
        kind = "rejected"
    elif signal.limited:
        kind = "refused"
    elif status == 401:
        kind = "key"
    elif signal.should_retry or signal.reason == "conflict":
        kind = "failed"
    else:
        kind = "rejected"
    return Trouble(kind, message[:_LONGEST_MESSAGE], signal.retry_after)


def _said(document: Any) -> str:
    """The message in the body of an error."""
    for key in ("error", "message", "detail"):
        if isinstance(document, dict) and document.get(key):
            document = document[key]
    if isinstance(document, dict):
        return ""
    return " ".join(str(document or "").split())[:200]
