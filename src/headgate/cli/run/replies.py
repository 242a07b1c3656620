"""Pure. What a reply means for its job, and what the failures of jobs say about the API.

Nothing that comes back makes these functions raise.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NoReturn

from ...backoff import Backoff
from ...responses import read_signal
from ...responses.signals import Signal
from ...responses.usage import Usage, usage_of
from ...retries.classify import is_permanent, never_sent
from ...words import duration
from .errors import Stop

Kind = Literal[
    "refused",  # by a limit, which all jobs share
    "quota",  # the account has nothing left
    "key",  # the key is not accepted
    "forbidden",  # the key may not do this
    "rejected",  # this job will never be accepted
    "failed",  # this job may succeed the next time
    "unreachable",  # no connection: nothing was sent
    "certificate",  # the certificate of the host cannot be trusted
]
_LONGEST_MESSAGE = 300
# A pause is a fraction of the time that an outage has lasted, so that its end is noticed soon after.
_OUTAGE = Backoff(0.5, cap=30, factor=1.25, jitter=("factor", 0.25))
# If this number of jobs fail one after the other, with no success between them, either the API is down or
# something is wrong with all of them.
_ALIKE = 10
# If the API does not accept the key for this number of jobs in a row, it was revoked.
_REVOKED = 5
_KEY_HINT = "name the variable that holds it: --key-env NAME"
_JOBS_HINT = "it is not one job, so check --to, and the file"


class Trouble(NamedTuple):
    kind: Kind
    message: str
    retry_after: float | None = None


def said_by(trouble: Trouble | None) -> str:
    """Why calls are held back after this trouble, in words."""
    if trouble is None or trouble.kind == "refused":
        return "told to slow down" + (f" ({trouble.message})" if trouble else "")
    return trouble.message


class Reply(NamedTuple):
    """What came back. `body` is JSON in UTF-8 if there is no trouble; `document` is the same, parsed."""

    status: int | None
    request_id: str
    body: bytes
    document: Any
    usage: Usage | None
    trouble: Trouble | None
    signal: Signal | None = None  # what a response says about limits


def read_reply(
    status: int, headers: Mapping[str, str], body: bytes, *, pairs: object = None, generates: bool = False
) -> Reply:
    """Read a response. `generates`: a model was called, whose answers are JSON and never empty.

    `pairs` are the headers in the form that is read fastest, if there is one.
    """
    request_id = headers.get("x-request-id") or headers.get("request-id") or ""
    if status >= 400:
        text, document, _ = _parsed(body)
        signal = read_signal(status, headers, body)
        return Reply(status, request_id, text, document, None, _trouble(status, signal, document), signal)
    signal = read_signal(status, pairs or headers)
    if not body and status < 300 and not generates:
        return Reply(status, request_id, b"null", None, None, None, signal)  # a 204, for example
    text, document, is_json = _parsed(body)
    usage = trouble = None
    if status >= 300:
        where = headers.get("location") or "somewhere else"
        trouble = Trouble("rejected", f"{status}: it has moved to {where[:120]}; give that as --to")
    elif isinstance(document, dict):
        usage = usage_of(document.get("usage") or document.get("usageMetadata"))
        if document.get("error"):
            inside = read_signal(status, headers, document)
            if inside.reason != "ok":
                signal, trouble = inside, _trouble(status, inside, document)
    elif not is_json:
        trouble = _not_an_answer(status, headers.get("content-type") or "json", body, generates=generates)
    return Reply(status, request_id, text, document, usage, trouble, signal)


def _not_an_answer(status: int, kind: str, body: bytes, *, generates: bool) -> Trouble | None:
    """What is wrong with a success whose body is not JSON; None if it may be what was asked for."""
    start = body[:512].lstrip().lower()
    if "html" in kind.lower() or start.startswith((b"<!doctype html", b"<html")):
        return Trouble("failed", f"{status}, but the body is a web page")
    if "json" in kind.lower():
        return Trouble("failed", f"{status}, but the body is not the JSON it says it is")
    return Trouble("failed", f"{status}, but the body is not JSON") if generates else None


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
        document = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        document = None
    else:
        return body, document, True
    try:
        document = json.loads(body, parse_constant=_not_json)  # it may be in another encoding
    except (ValueError, RecursionError):
        said = body.decode("utf-8", "replace")
        return json.dumps(said).encode(), said, False
    return json.dumps(document).encode(), document, True


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


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
    elif status in (401, 403):
        kind = "key" if status == 401 else "forbidden"
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


# -- what failures say about the API


class Judgement(NamedTuple):
    """What follows from a failure.

    `own`: it is a failure of this job alone. Otherwise the job is tried again when the gate admits it, after
    `hold` seconds in which all jobs wait if that is given. `outage`: no job succeeds any more, and this is
    the first failure that shows it. `stop`: the run ends.
    """

    own: bool = False
    hold: float | None = None
    stop: Stop | None = None
    outage: bool = False


class ApiHealth:
    """What the failures since the last success say about the API. `proven`: a job has succeeded already.

    `since` is the first failure after the last success.
    """

    def __init__(self, host: str, patience: float, *, proven: bool) -> None:
        self._host = host
        self._patience = patience
        self._proven = proven
        self._held_until = 0.0
        # Since the last success:
        self.since: float | None = None
        self._outage = False
        self._holds = 0
        self._rejected: set[object] = set()  # jobs that failed for good
        self._failed: set[object] = set()  # jobs that may succeed the next time
        self._keys = 0  # times that the key was not accepted

    def succeeded(self) -> None:
        """A job was answered."""
        self._proven = True
        if self.since is not None:
            self.since = None
            self._rejected.clear()
            self._failed.clear()
            self._keys = self._holds = 0
            self._outage = False

    def judge(self, job: object, trouble: Trouble, now: float, random: float) -> Judgement:
        """Note that a job has failed, and say what follows. `random` is between 0 and 1."""
        if self.since is None:
            self.since = now
        self._keys += trouble.kind in ("key", "forbidden")
        if (stop := self._hopeless(trouble)) is not None:
            return Judgement(stop=stop)
        hold, outage = None, trouble.kind in ("unreachable", "certificate")
        if not outage and trouble.kind != "refused":
            (self._failed if trouble.kind == "failed" else self._rejected).add(job)
            if not self._proven and len(self._failed | self._rejected) >= _ALIKE:
                why = f"none of the first {_ALIKE} jobs succeeded; the last: {trouble.message}"
                return Judgement(stop=Stop("refused", why, _JOBS_HINT))
            if trouble.kind != "failed" or len(self._failed) < _ALIKE:
                return Judgement(own=True)
            hold, outage = self._hold(now, random, self.since), True
        if now > self.since + self._patience:
            why = f"no answer for {duration(now - self.since)}; the last was {trouble.message}"
            return Judgement(stop=Stop("unreachable", why))
        first = outage and not self._outage
        self._outage = self._outage or outage
        return Judgement(hold=hold, outage=first)

    def _hopeless(self, trouble: Trouble) -> Stop | None:
        """The reason to end the run at once, if this is one."""
        kind, host = trouble.kind, self._host
        if kind == "quota":
            return Stop("quota", f"the account has nothing left: {trouble.message}", "add to it, or wait")
        if kind == "key" and not self._proven:
            return Stop("refused", f"{host} does not accept the key: {trouble.message}", _KEY_HINT)
        if kind in ("key", "forbidden") and self._keys >= _REVOKED:
            why = f"{host} has not accepted the key {_REVOKED} times in a row: {trouble.message}"
            return Stop("refused", why, _KEY_HINT)
        if kind == "certificate" and not self._proven:
            return Stop("unreachable", f"{host} cannot be trusted: {trouble.message}", "check --to")
        return None

    def _hold(self, now: float, random: float, since: float) -> float | None:
        """How long all jobs wait; None if they wait already. Jobs have failed `since` then."""
        if now < self._held_until:
            return None
        wait = _OUTAGE.delay_ns(self._holds, random, None) / 1e9
        # The last try comes before the patience ends.
        wait = min(wait, max(0.5, 0.9 * (since + self._patience - now)))
        self._holds += 1
        self._held_until = now + wait
        return wait
