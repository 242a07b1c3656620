"""What an exception says about the far side: slow down, broken, or a plain no.

Reading an exception never raises, whatever its attributes are. An exception that is not recognised counts as
a refusal of the request itself, which no retry helps. Client libraries are recognised by the names of their
classes, so that none has to be installed.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..errors import HeadgateError, Refused
from ..hints import Any, Iterator
from ..verdict import EXHAUSTED, REJECTED, Verdict, failed, overloaded, throttled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..responses.signals import Signal

# Lost connections and timeouts that libraries do not derive from ConnectionError or TimeoutError.
_CONNECTION_ERRORS = {
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
# What is said of a proxy.
_OF_PROXIES = {"ProxyError", "ClientHttpProxyError", "ProxyConnectionError"}
# The libraries that say so only of a proxy that has not connected: the request itself goes through it after
# that. Those upon urllib3 also say so when the line breaks after the proxy has passed the request on.
_CONNECT_FIRST = {"httpx", "httpx2", "httpcore", "aiohttp", "socks", "python_socks"}
# What http.client says of a proxy that does not connect, in an exception without a class of its own.
_NO_TUNNEL = "Tunnel connection failed"
# Errors that happen before anything is sent.
_BEFORE_SENDING = {
    "gaierror",
    "ConnectionRefusedError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionTimeout",
    "PoolTimeout",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ClientConnectorError",
    "ConnectionTimeoutError",
    "EndpointConnectionError",
}
# Errors about the certificate or the address. A retry repeats them, though some derive from those above.
_PERMANENT = {"SSLCertVerificationError", "CertificateError", "ClientConnectorCertificateError", "InvalidURL"}
_LONGEST_RETRY_AFTER = 31 * 86_400.0
# Where a response that an adapter made of a refusal has it. A server cannot write into the extensions.
REFUSAL = "headgate"
SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"}


def verdict_of(error: BaseException) -> Verdict:
    """The verdict on a call that raised this exception.

    >>> verdict_of(ConnectionResetError()).again
    True
    >>> verdict_of(ValueError("temperature")).kind
    'rejected'
    """
    try:
        return _verdict_of(error, 0)
    except Exception:  # noqa: BLE001 - reading an attribute of an exception may raise anything
        return REJECTED


def _verdict_of(error: BaseException, depth: int) -> Verdict:
    if isinstance(error, HeadgateError) or not isinstance(error, Exception) or refusal_of(error) is not None:
        return REJECTED  # headgate did not send it, or it was interrupted: the far side said nothing
    if isinstance(error, ExceptionGroup) and depth < 8:
        inside = [_verdict_of(one, depth + 1) for one in error.exceptions]
        if not all(verdict.again for verdict in inside):
            return REJECTED
        longest = max(
            (verdict.retry_after for verdict in inside if verdict.retry_after is not None), default=None
        )
        return failed(longest, may_have_run=any(verdict.may_have_run for verdict in inside))
    inner = _wrapped(error)
    if inner is not None and depth < 8:
        return _verdict_of(inner, depth + 1)
    refusal = _refusal_of_proxy(error)
    if refusal is not None:
        return _verdict_on_proxy(error, refusal)
    signal = _signal_of(error)
    if signal is not None:
        return _verdict_on(signal, error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _PERMANENT or ("SSLError" in names and _library(type(error)) in ("requests", "urllib3")):
        return REJECTED
    retry_after = _own_retry_after(error)
    if _is_unreachable(error):
        return failed(retry_after, may_have_run=False)
    if _is_of_connection(error):
        return failed(retry_after, may_have_run=not never_sent(error) and not _is_idempotent(error))
    return REJECTED if retry_after is None else throttled(retry_after)


def _is_of_connection(error: BaseException) -> bool:
    return isinstance(error, (ConnectionError, TimeoutError)) or any(
        kind.__name__ in _CONNECTION_ERRORS.get(_library(kind), ()) for kind in type(error).__mro__
    )


def _refusal_of_proxy(error: BaseException) -> BaseException | None:
    """What a proxy has refused, as the exception that says most about it; None if no proxy has.

    In an exception of an SDK only if that is about the connection.
    """
    found = None
    for each in _chain(error):
        if _is_of_proxy(each):
            found = each
        elif found is None and not _is_of_connection(each):
            return None
    return found


def _is_of_proxy(error: BaseException) -> bool:
    return any(kind.__name__ in _OF_PROXIES for kind in type(error).__mro__) or _has_no_tunnel(error)


def _has_no_tunnel(error: BaseException) -> bool:
    try:
        said = error.args[0] if isinstance(error, OSError) and error.args else None
        return isinstance(said, str) and said.startswith(_NO_TUNNEL)
    except Exception:  # noqa: BLE001 - reading an attribute of an exception may raise anything
        return False


def _verdict_on_proxy(error: BaseException, refusal: BaseException) -> Verdict:
    """A proxy that says no, or that wants a password, says so again."""
    status = _status_of(refusal)
    if status is None:  # the text begins with it: "407 Proxy Authentication Required"
        said = str(refusal).removeprefix(f"{_NO_TUNNEL}: ").partition(" ")[0]
        status = int(said) if len(said) == 3 and said.isdecimal() else None
    if is_permanent(refusal) or (status is not None and 400 <= status < 500 and status not in (408, 429)):
        return REJECTED
    return failed(_own_retry_after(refusal), may_have_run=not never_sent(error) and not _is_idempotent(error))


def refusal_of(error: object) -> Refused | None:
    """The refusal of a gate that an SDK turned into an error of its own; None if the server was asked.

    `error` is any exception, or a response. A refusal is returned as it is, and so is that of a response.
    Never raises.

    >>> from headgate import LineFull
    >>> refusal_of(LineFull("too many wait", rule="line"))
    LineFull('too many wait (line)')
    >>> refusal_of(ValueError("from the server")) is None
    True
    """
    if isinstance(error, Refused):
        return error
    try:
        extensions = getattr(getattr(error, "response", error), "extensions", None)
    except Exception:  # noqa: BLE001 - reading an attribute of an exception may raise anything
        return None
    refusal = extensions.get(REFUSAL) if isinstance(extensions, dict) else None
    return refusal if isinstance(refusal, Refused) else None


def _wrapped(error: BaseException) -> BaseException | None:
    """The exception inside a RetryError of tenacity or a URLError of urllib."""
    last = getattr(error, "last_attempt", None)
    if last is not None and callable(getattr(last, "exception", None)):
        found = last.exception()
    elif type(error).__name__ == "URLError":
        found = getattr(error, "reason", None)
    else:
        return None
    return found if isinstance(found, BaseException) else None


def _signal_of(error: BaseException) -> Signal | None:
    """What the HTTP response says that the exception carries, in its own attributes or as `response`."""
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
    if status is None and headers is None:
        return None
    from ..responses import parse_retry_after, read_signal  # noqa: PLC0415 - slow to import

    if status is None and parse_retry_after(headers, default=-1.0) < 0:
        return None
    read = _body_of(error, response) if body is None else body
    signal = read_signal(429 if status is None else status, headers, read)
    retry_after = _own_retry_after(error)
    if retry_after is not None and signal.retry_after is None and signal.should_retry is not False:
        return signal.waiting(retry_after)
    return signal


def _status_of(thing: object) -> int | None:
    for name in ("status_code", "status", "code"):
        status = getattr(thing, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return int(status) if 100 <= status <= 999 else None
    return None


def _body_of(error: BaseException, response: object) -> object:
    body = getattr(error, "body", None)
    if body is not None:
        return body
    try:
        content = getattr(response, "content", None)
    except Exception:  # noqa: BLE001 - the content of a stream that was not read raises
        content = None
    if isinstance(content, (bytes, str)):
        return content
    details = getattr(error, "details", None)  # google-genai keeps the parsed body there
    if not isinstance(details, dict):
        return None
    return details if "error" in details else {"error": details}


def _verdict_on(signal: Signal, error: BaseException) -> Verdict:
    reason, retry_after = signal.reason, signal.retry_after
    again = signal.should_retry is not False
    if reason in ("rate_limited", "concurrency", "quota_window"):
        return throttled(retry_after, again=again)
    if reason == "overloaded":
        return overloaded(retry_after, again=again)
    if reason in ("timeout", "server_error", "conflict"):
        return failed(retry_after, again=again, may_have_run=not _is_idempotent(error))
    if reason in ("quota_exhausted", "too_large"):
        return EXHAUSTED
    if signal.should_retry:  # a plain no, but a header says that another attempt is worth it
        return failed(retry_after, may_have_run=not _is_idempotent(error))
    return REJECTED


def _is_idempotent(error: BaseException) -> bool:
    """May the request be carried out twice, because of its method or its idempotency key?"""
    request = getattr(getattr(error, "response", None), "request", None)
    if request is None:
        try:
            request = getattr(error, "request", None) or getattr(error, "request_info", None)
        except RuntimeError:  # an error of httpx without a request raises when it is read
            return False
    method = getattr(request, "method", None)
    if isinstance(method, str) and method.upper() in SAFE_METHODS:
        return True
    headers = getattr(request, "headers", None)
    return headers is not None and any(str(name).lower() == "idempotency-key" for name in headers)


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_unreachable(error: BaseException) -> bool:
    """Is there no network, no route, or no answer of the name server for now?"""
    if not isinstance(error, OSError):
        return False
    if type(error).__name__ == "gaierror":
        from socket import EAI_AGAIN  # noqa: PLC0415 - loaded by the code that raised it

        return error.errno == EAI_AGAIN
    from errno import EHOSTUNREACH, ENETDOWN, ENETUNREACH  # noqa: PLC0415 - only when something failed

    return error.errno in (ENETDOWN, ENETUNREACH, EHOSTUNREACH)


def never_sent(error: BaseException) -> bool:
    """Did it, or an exception that it wraps, happen before anything was sent?"""
    if _any_is_named(error, _BEFORE_SENDING):
        return True
    return any(isinstance(each, Refused) or _is_of_unsent_proxy(each) for each in _chain(error))


def _is_of_unsent_proxy(error: BaseException) -> bool:
    """Is it about a proxy that has not connected, so that the request did not go through it?"""
    return _has_no_tunnel(error) or any(
        kind.__name__ in _OF_PROXIES and _library(kind) in _CONNECT_FIRST for kind in type(error).__mro__
    )


def is_permanent(error: BaseException) -> bool:
    """Is it, or an exception that it wraps, about the certificate or the address? No retry helps then."""
    return _any_is_named(error, _PERMANENT)


def _any_is_named(error: BaseException, names: set[str]) -> bool:
    return any(kind.__name__ in names for each in _chain(error) for kind in type(each).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that client libraries and SDKs have wrapped in it."""
    inner: BaseException | None = error
    for _ in range(8):
        if inner is None:
            return
        yield inner
        inner = _cause_of(inner)


def _cause_of(error: BaseException) -> BaseException | None:
    """The exception that another one wraps."""
    try:
        if error.__cause__ is not None:
            return error.__cause__
        if error.args:
            first = error.args[0]  # requests wraps what urllib3 raised
            cause = getattr(first, "reason", first)
            if isinstance(cause, BaseException):
                return cause
        words = getattr(error, "kwargs", None)  # urllib3 before 2.0 and botocore keep it in these only
        cause = words.get("error") if isinstance(words, dict) else getattr(error, "original_error", None)
        return cause if isinstance(cause, BaseException) else None
    except Exception:  # noqa: BLE001 - reading an attribute of an exception may raise anything
        return None


def retry_after_of(error: BaseException, verdict: Verdict) -> int | None:
    """Nanoseconds that the far side asked to wait, by the verdict or else by the exception itself."""
    seconds = _own_retry_after(error) if verdict.retry_after is None else verdict.retry_after
    return None if seconds is None else round(seconds * SECOND)


def _own_retry_after(error: BaseException) -> float | None:
    """The attribute `retry_after` of an exception in seconds: a number, a timedelta, or text of a header.

    Exceptions of Google's API clients have a RetryInfo among their `details` instead.
    """
    try:
        value: Any = getattr(error, "retry_after", None)
        if value is None:
            value = _google_retry_delay(getattr(error, "details", None))
        if isinstance(value, str):
            from ..responses import parse_retry_after  # noqa: PLC0415 - slow to import

            value = parse_retry_after({"retry-after": value}, default=-1.0)
        elif hasattr(value, "total_seconds"):
            value = value.total_seconds()
    except Exception:  # noqa: BLE001 - reading an attribute of an exception may raise anything
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        return None
    return float(min(value, _LONGEST_RETRY_AFTER))


def _google_retry_delay(details: object) -> float | None:
    """The longest `retry_delay` in a list of messages of google.rpc, in seconds."""
    delays = [getattr(each, "retry_delay", None) for each in details] if isinstance(details, list) else []
    return max((each.seconds + each.nanos / SECOND for each in delays if each is not None), default=None)
