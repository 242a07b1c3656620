"""What an exception says about the far side: slow down, broken, or simply no.

Rules of this room: total. Whatever an exception is made of, reading it raises nothing; what nobody
recognises is a refusal of the request itself, which no retry mends. Client libraries are known by name,
so that none has to be installed.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..errors import HeadgateError
from ..verdict import EXHAUSTED, REJECTED, failed, overloaded, throttled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..responses.signals import Signal
    from ..verdict import Verdict

# Failures on the way that other libraries do not derive from ConnectionError or TimeoutError.
_ON_THE_WAY = {
    "httpx": {"TimeoutException", "NetworkError", "RemoteProtocolError"},
    "httpx2": {"TimeoutException", "NetworkError", "RemoteProtocolError"},
    "httpcore": {"TimeoutException", "NetworkError", "RemoteProtocolError"},
    "requests": {"ConnectionError", "Timeout", "ChunkedEncodingError"},
    "urllib3": {"TimeoutError", "ProtocolError", "NewConnectionError"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "openai": {"APIConnectionError"},
    "anthropic": {"APIConnectionError"},
    "http": {"IncompleteRead", "BadStatusLine"},
    "redis": {"ConnectionError", "TimeoutError"},
    "botocore": {"ConnectionError", "HTTPClientError"},
    "grpc": {"FutureTimeoutError"},
}
# Those of them, and of the builtins, that happen before anything is sent.
_BEFORE_SENDING = {
    "ConnectionRefusedError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionTimeout",
    "PoolTimeout",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ClientConnectorError",
    "ConnectionTimeoutError",
}
# Of the certificate or the address: the same the next time, though they derive from those above.
_FOR_GOOD = {"SSLCertVerificationError", "CertificateError", "ClientConnectorCertificateError", "InvalidURL"}
_LONGEST_WAIT = 31 * 86_400.0
SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"}


def verdict_of(error: BaseException) -> Verdict:
    """What became of a call that raised this.

    >>> verdict_of(ConnectionResetError()).again
    True
    >>> verdict_of(ValueError("temperature")).kind
    'rejected'
    """
    try:
        return _verdict_of(error, 0)
    except Exception:  # noqa: BLE001 - an exception may be made of anything, and touching it raise
        return REJECTED


def _verdict_of(error: BaseException, depth: int) -> Verdict:
    if isinstance(error, HeadgateError) or not isinstance(error, Exception):
        return REJECTED  # not sent, or told to stop: either way the far side said nothing
    if isinstance(error, ExceptionGroup) and depth < 8:
        inside = [_verdict_of(one, depth + 1) for one in error.exceptions]
        if not all(verdict.again for verdict in inside):
            return REJECTED
        told = max(
            (verdict.retry_after for verdict in inside if verdict.retry_after is not None), default=None
        )
        return failed(told, may_have_run=any(verdict.may_have_run for verdict in inside))
    inner = _wrapped(error)
    if inner is not None and depth < 8:
        return _verdict_of(inner, depth + 1)
    signal = _signal_of(error)
    if signal is not None:
        return _verdict_on(signal, error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _FOR_GOOD or ("SSLError" in names and _root(type(error)) in ("requests", "urllib3")):
        return REJECTED
    told = asked_to_wait(error)
    if _is_no_way_there(error):
        return failed(told, may_have_run=False)
    if isinstance(error, (ConnectionError, TimeoutError)) or _known_by_name(error):
        return failed(told, may_have_run=not names & _BEFORE_SENDING and not _is_safe(error))
    return REJECTED if told is None else throttled(told)


def _wrapped(error: BaseException) -> BaseException | None:
    """What a wrapper was put around: tenacity's RetryError, urllib's URLError."""
    last = getattr(error, "last_attempt", None)
    if last is not None and callable(getattr(last, "exception", None)):
        found = last.exception()
    elif type(error).__name__ == "URLError":
        found = getattr(error, "reason", None)
    else:
        return None
    return found if isinstance(found, BaseException) else None


def _signal_of(error: BaseException) -> Signal | None:
    """What the response says that the exception carries, in itself or as `response`."""
    response, body = getattr(error, "response", None), None
    if isinstance(response, dict):  # botocore
        about = response.get("ResponseMetadata") or {}
        status, headers = about.get("HTTPStatusCode"), about.get("HTTPHeaders")
        body = {"__type": (response.get("Error") or {}).get("Code")}
    else:
        status, headers = _status_of(response), getattr(response, "headers", None)
    if status is None:
        status = _status_of(error)
    if headers is None:
        headers = getattr(error, "headers", None)
    if status is None and not _asks_to_wait(headers):
        return None
    from ..responses import read_signal  # noqa: PLC0415 - slow to import

    read = _body_of(error, response) if body is None else body
    signal = read_signal(429 if status is None else status, headers, read)
    told = asked_to_wait(error)
    if told is not None and signal.retry_after is None and signal.should_retry is not False:
        from dataclasses import replace  # noqa: PLC0415 - loaded by the line above

        return replace(signal, retry_after=told)
    return signal


def _status_of(thing: object) -> int | None:
    for name in ("status_code", "status", "code"):
        status = getattr(thing, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return int(status) if 100 <= status <= 999 else None
    return None


def _asks_to_wait(headers: object) -> bool:
    if headers is None:
        return False
    from ..responses import parse_retry_after  # noqa: PLC0415 - as above

    return parse_retry_after(headers, default=-1.0) >= 0


def _body_of(error: BaseException, response: object) -> object:
    body = getattr(error, "body", None)
    if body is not None:
        return body
    try:
        content = getattr(response, "content", None)
    except Exception:  # noqa: BLE001 - a stream that was not read yet says so by raising
        return None
    return content if isinstance(content, (bytes, str)) else None


def _verdict_on(signal: Signal, error: BaseException) -> Verdict:
    reason, told = signal.reason, signal.retry_after
    again = signal.should_retry is not False
    if reason in ("rate_limited", "concurrency", "quota_window"):
        return throttled(told, again=again)
    if reason == "overloaded":
        return overloaded(told, again=again)
    if reason in ("timeout", "server_error", "conflict"):
        return failed(told, again=again, may_have_run=not _is_safe(error))
    if reason in ("quota_exhausted", "too_large"):
        return EXHAUSTED
    # A plain no, unless the far side says by a header that another try is worth it.
    return failed(told, may_have_run=not _is_safe(error)) if signal.should_retry else REJECTED


def _is_safe(error: BaseException) -> bool:
    """Would doing it twice be the same as once: by its method, or by a key that the far side knows it by?"""
    request = getattr(getattr(error, "response", None), "request", None)
    if request is None:
        try:
            request = getattr(error, "request", None) or getattr(error, "request_info", None)
        except RuntimeError:  # httpx raises when there is none
            return False
    method = getattr(request, "method", None)
    if isinstance(method, str) and method.upper() in SAFE_METHODS:
        return True
    headers = getattr(request, "headers", None)
    return headers is not None and any(str(name).lower() == "idempotency-key" for name in headers)


def _known_by_name(error: BaseException) -> bool:
    return any(kind.__name__ in _ON_THE_WAY.get(_root(kind), ()) for kind in type(error).__mro__)


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_no_way_there(error: BaseException) -> bool:
    """No network, no route, or no answer of the name server for now."""
    if not isinstance(error, OSError):
        return False
    if type(error).__name__ == "gaierror":
        from socket import EAI_AGAIN  # noqa: PLC0415 - whoever raised it has loaded it

        return error.errno == EAI_AGAIN
    from errno import EHOSTUNREACH, ENETDOWN, ENETUNREACH  # noqa: PLC0415 - only when something failed

    return error.errno in (ENETDOWN, ENETUNREACH, EHOSTUNREACH)


def never_sent(error: BaseException) -> bool:
    """Did it, or an exception that it wraps, happen before anything was sent?"""
    return _any_is_named(error, _BEFORE_SENDING)


def is_permanent(error: BaseException) -> bool:
    """Is it, or an exception that it wraps, about the certificate or the address? No retry helps then."""
    return _any_is_named(error, _FOR_GOOD)


def _any_is_named(error: BaseException, names: set[str]) -> bool:
    return any(kind.__name__ in names for each in _chain(error) for kind in type(each).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what client libraries and SDKs have wrapped in it."""
    inner: object = error
    for _ in range(8):
        if not isinstance(inner, BaseException):
            return
        yield inner
        cause = inner.__cause__
        if cause is None and inner.args:
            first = inner.args[0]  # requests wraps what urllib3 raised
            cause = getattr(first, "reason", first)
        inner = cause


def retry_after_of(error: BaseException, verdict: Verdict) -> int | None:
    """Nanoseconds that the far side asked to wait, by the verdict or else by the exception itself."""
    seconds = asked_to_wait(error) if verdict.retry_after is None else verdict.retry_after
    return None if seconds is None else round(seconds * SECOND)


def asked_to_wait(error: BaseException) -> float | None:
    """What an exception says itself in `retry_after`: seconds, a timedelta, or as a header would."""
    try:
        told: Any = getattr(error, "retry_after", None)
        if isinstance(told, str):
            from ..responses import parse_retry_after  # noqa: PLC0415 - as above

            told = parse_retry_after({"retry-after": told}, default=-1.0)
        elif hasattr(told, "total_seconds"):
            told = told.total_seconds()
    except Exception:  # noqa: BLE001 - it may be made of anything
        return None
    if isinstance(told, bool) or not isinstance(told, (int, float)) or not told >= 0:
        return None
    return min(float(told), _LONGEST_WAIT)
