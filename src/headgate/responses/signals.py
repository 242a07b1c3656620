"""Pure. What a response says about limits: the reason, the wait and whether a retry may help.

These functions accept any input and raise nothing. A doubt is never settled in favour of a shorter wait.
How values are written on the wire is the subject of `wire`; this file decides what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

from . import wire
from .scopes import Scope, is_daily, scopes_of, violations_in
from .wire import Document, Fields, Present, amount, at, entries, longest, readings

Reason = Literal[
    "ok",
    "rate_limited",  # a short window
    "concurrency",  # too many in flight, or a locked object
    "overloaded",  # the provider's capacity, not our budget
    "quota_window",  # a window of an hour or more, which ends by itself
    "quota_exhausted",  # money or tier: needs a human
    "too_large",  # this request can never fit
    "blocked",  # rejected for security
    "timeout",
    "server_error",
    "conflict",
    "client_error",
]


class Signal(NamedTuple):
    """What one response says: hold back or not, for how long, and whether to try again.

    `limited` asks to reduce pressure on this origin. `retry_after` is in seconds, None when the server stated
    none. `should_retry` is None when the response alone cannot tell. `from_reset` says that the wait is the
    reset of a used-up budget, because the server did not say when to come back. `scopes` has a `Scope` for
    each budget that it states, and `reason` is a word for what it says, "ok" for nothing.

    >>> from headgate.http import read_signal
    >>> signal = read_signal(429, {"Retry-After": "7"})
    >>> signal.limited, signal.retry_after, signal.reason
    (True, 7.0, 'rate_limited')
    """

    limited: bool = False
    retry_after: float | None = None
    scopes: tuple[Scope, ...] = ()
    should_retry: bool | None = None
    reason: Reason = "ok"
    from_reset: bool = False

    def waiting(self, seconds: float) -> Signal:
        """The same signal, with a wait of that many `seconds` that was stated elsewhere."""
        return self._replace(retry_after=seconds)


# What is said by a response without an error that states no limits.
SUCCESS = Signal()


def retry_after_of(headers: object, now: object) -> float | None:
    """Seconds to wait according to the headers, None if they do not say."""
    fields = wire.fields_of(headers)
    return _retry_after_in_headers(fields, Present(fields.get("date", ()), now))


def signal_of(status: object, headers: object, body: object, *, now: object, provider: object) -> Signal:
    """What `headgate.responses.read_signal` returns at the wall-clock time `now`."""
    code = _status(status)
    fields = wire.fields_of(headers)
    if body is None and code < 400:
        return success_of(code, fields, now, wire.text_of(provider))
    present = Present(fields.get("date", ()), now)
    read = partial(_signal, code, fields, present=present, provider=wire.text_of(provider))
    try:
        return read(_error_document(body, code))
    except Exception:  # noqa: BLE001 - a body object may raise anything when touched; the rest still holds
        return read({})


def success_of(status: int, fields: Fields, now: object, provider: str = "") -> Signal:
    """What a response says that is not an error, by its headers alone."""
    present = Present(fields.get("date", ()), now)
    if not STEERING.isdisjoint(fields):
        return _signal(status, fields, {}, present=present, provider=provider)
    scopes = scopes_of(fields, {}, present, provider)
    return Signal(scopes=_applying(scopes)) if scopes else SUCCESS


# The fields beside those of scopes that mean something in a success.
_STEERING_FIELDS = ("x-should-retry", "stripe-should-retry")
_CODE_FIELDS = ("stripe-rate-limited-reason", "x-amzn-errortype")
STEERING = frozenset(_STEERING_FIELDS + _CODE_FIELDS)


def _signal(status: int, fields: Fields, document: Document, *, present: Present, provider: str) -> Signal:
    status = status if status >= 400 else _status_inside(document) or status
    details = _ErrorDetails(document, fields)
    retry_after = _retry_after_in_headers(fields, present)
    scopes = scopes_of(fields, document, present, provider)

    reason = _reason(status, details, scopes, stated=retry_after is not None)
    limited = reason in _LIMITED
    if not limited:
        scopes = _applying(scopes)
    from_reset = False
    if reason in _FINAL or not (limited or status >= 400):
        retry_after = None
    elif retry_after is None:
        retry_after = _retry_after_in_body(document)
        if retry_after is None and limited:
            retry_after = longest(map(wire.spoken_wait, details.messages))
        if retry_after is None and limited:
            retry_after = longest(scope.reset_after for scope in scopes if _may_hold_back(scope))
            from_reset = retry_after is not None
    if reason == "rate_limited" and retry_after is not None and retry_after >= 3_600:
        reason = "quota_window"
    should_retry = _should_retry(reason, status, details, fields, stated=retry_after is not None)
    return Signal(limited, retry_after, scopes, should_retry, reason, from_reset)


def _applying(scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """The scopes of an admitted call: a limit of zero marks a budget that does not apply to it."""
    return tuple([scope for scope in scopes if scope.limit != 0])


def _status(status: Any) -> int:
    if type(status) is int:  # nearly always
        return status
    with suppress(Exception):
        return int(status)
    return 200  # the status says nothing, so the rest must


def _status_inside(document: Document) -> int | None:
    """The status inside the body of an error that came after the headers had been sent."""
    code = at(document, "error", "code")
    return next((status for status in (429, 502, 503, 529) if code in (status, str(status))), None)


def _error_document(body: object, status: int) -> Document:
    """The body, if it is an error: the payload of a success may mention limits without stating ours."""
    document = wire.document_of(body)
    tells_of_error = document.get("error") or document.get("errors") or document.get("ok") is False
    return document if status >= 400 or tells_of_error or document.get("type") == "error" else {}


# How long to wait

_MILLISECOND_FIELDS = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after")
_OTHER_DELAY_FIELDS = ("x-retry-after", "x-ratelimit-retry-after")


def _retry_after_in_headers(fields: Fields, present: Present) -> float | None:
    """The first kind of field that states a wait decides; within a kind, the longest wait."""
    delay = partial(wire.delay, present=present)
    kinds: tuple[tuple[tuple[str, ...], Callable[[str], float | None]], ...] = (
        (_MILLISECOND_FIELDS, wire.milliseconds),
        (("retry-after",), delay),
        (_OTHER_DELAY_FIELDS, delay),
    )
    for names, read in kinds:
        retry_after = longest(wait for name in names for wait in readings(fields.get(name, ()), read))
        if retry_after is not None:
            return retry_after
    return None


def _retry_after_in_body(document: Document) -> float | None:
    amounts = (
        amount(at(document, "error", "availability", "retry_after")),
        amount(document.get("retry_after")),
        _restore_time(at(document, "extensions", "cost")),
    )
    waits: list[float | None] = [min(float(wait), wire.LONGEST) for wait in amounts if wait is not None]
    for detail in entries(at(document, "error", "details")):
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            waits.append(wire.duration(delay))
    return longest(waits)


def _restore_time(cost: object) -> float | None:
    """Shopify: how long until the bucket has refilled to the cost of the query."""
    requested = amount(at(cost, "requestedQueryCost"))
    available = amount(at(cost, "throttleStatus", "currentlyAvailable"))
    rate = amount(at(cost, "throttleStatus", "restoreRate"))
    if requested is None or available is None or not rate:
        return None
    return max(0.0, (requested - available) / rate)


def _may_hold_back(scope: Scope) -> bool:
    """Whether a scope can be why a call was refused: it is used up, or states nothing but its reset."""
    return scope.remaining == 0 or (scope.limit is None and scope.remaining is None)


# The reason

_LIMITED = frozenset(
    {"rate_limited", "concurrency", "overloaded", "quota_window", "quota_exhausted", "too_large", "blocked"}
)
_FINAL = frozenset({"quota_exhausted", "too_large"})  # no wait helps


def _each(words: str) -> frozenset[str]:
    return frozenset(words.split())


_EXHAUSTED_CODES = _each("""
    insufficient_quota billing_hard_limit_reached billing_not_active credit_balance_exhausted
    usage_limit_exceeded project_spend_limit_exceeded organization_spend_limit_exceeded
    organization_usage_limit_exceeded access_terminated billing_error enforced_spend_limit_reached
    payment_required
""")
_SERVICE_QUOTA = "servicequotaexceededexception"  # soft: may be raised on request, may never be lifted
_WINDOW_CODES = _each("""
    quota_exceeded quotaexceeded dailylimitexceeded openrouter_free_tier_daily request_limit_exceeded
""") | {_SERVICE_QUOTA}
_OVERLOAD_CODES = _each("""
    overloaded_error server_overloaded slow_down provider_overloaded service_tier_capacity_exceeded 3505
    capacity_exceeded capacity_exhausted temporarily_unavailable service_overload flex_unavailable
    resource_unavailable unavailable modelnotreadyexception upstream_provider_shared_pool
    temporary-reduced-capacity
""")
_CONCURRENCY_CODES = _each("lock_timeout global-concurrency endpoint-concurrency")
_RATE_PROBLEMS = _each("quota-exceeded abnormal-usage-detected")
_RATE_CODES = _each("""
    rate_limit_exceeded rate_limit_error rate_limited ratelimited rate_limit resource_exhausted throttled
    ramp_limit_exceeded dynamic_request_limited dynamic_token_limited ratelimitexceeded
    userratelimitexceeded too_many_requests 1300

    throttling throttlingexception throttledexception requestthrottled requestthrottledexception
    toomanyrequestsexception provisionedthroughputexceededexception transactioninprogressexception
    requestlimitexceeded bandwidthlimitexceeded limitexceededexception slowdown priorrequestnotcomplete
    ec2throttledexception
""")

_COUNT = r"([0-9]+(?:,[0-9]{3})*)"
_ASKED_FOR = re.compile(rf"limit:? {_COUNT}, ?(?:used:? ~?[0-9,]+, ?)?requested:? ~?{_COUNT}")


class _ErrorDetails:
    """What the error says, wherever this provider puts it, in lower case."""

    def __init__(self, document: Document, fields: Fields) -> None:
        self.codes = frozenset(_codes(document, fields))
        self.violations = violations_in(document)
        speakers = [document, document.get("error"), *entries(document.get("errors"))]
        texts = [document.get(key) for key in ("error", "detail", "Message")]
        texts += [at(speaker, "message") for speaker in speakers]
        self.messages = [text[:2_000].lower() for text in texts if isinstance(text, str)]


def _codes(document: Document, fields: Fields) -> Iterator[str]:
    error = document.get("error")
    found = [
        *(at(error, key) for key in ("code", "type", "status", "error_type")),
        at(error, "details", "error_code"),
        *(at(detail, "reason") for detail in entries(at(error, "details"))),
        *(at(error, "metadata", key) for key in ("error_type", "limit_source")),
        *(at(entry, "reason") for entry in entries(at(error, "errors"))),
        *(document.get(key) for key in ("code", "type", "error", "error_type", "errorCode")),
        *(at(entry, "extensions", "code") for entry in entries(document.get("errors"))),
        *fields.get(_CODE_FIELDS[0], ()),
    ]
    for code in found:
        if isinstance(code, str):
            yield code.lower().rpartition("#")[2]  # problem types are URLs with the name at the end
        elif isinstance(code, int) and 0 <= code < 10**6:
            yield str(code)
    for code in [document.get("__type"), *fields.get(_CODE_FIELDS[1], ())]:
        if isinstance(code, str):  # AWS: namespace#Name:uri
            yield code.lower().partition(":")[0].rpartition("#")[2]


def _reason(status: int, details: _ErrorDetails, scopes: tuple[Scope, ...], *, stated: bool) -> Reason:
    """The first rule that fits. Codes come before the status: a 429 can be many things."""
    codes, messages, violations = details.codes, details.messages, details.violations
    has_rate_code = not codes.isdisjoint(_RATE_CODES)
    if (
        status == 402
        or not codes.isdisjoint(_EXHAUSTED_CODES)
        or any(amount(violation.get("quotaValue")) == 0 for violation in violations)
        or (status in (400, 403) and any(map(_tells_of_spent_money, messages)))
    ):
        return "quota_exhausted"
    if (status in (413, 429) or has_rate_code) and any(map(_tells_of_excess, messages)):
        return "too_large"
    if not codes.isdisjoint(_WINDOW_CODES) or any(map(is_daily, violations)):
        return "quota_window"
    if not codes.isdisjoint(_OVERLOAD_CODES):
        return "overloaded"
    if not codes.isdisjoint(_CONCURRENCY_CODES):
        return "concurrency"
    if status == 409 and not has_rate_code:
        return "conflict"
    if status in (420, 429) or not codes.isdisjoint(_RATE_PROBLEMS):
        return "rate_limited"
    if has_rate_code and (status == 200 or status >= 400):
        return "rate_limited"
    if status == 403 and (
        stated
        or any(scope.remaining == 0 for scope in scopes)
        or any("secondary rate limit" in text or "abuse detection" in text for text in messages)
    ):
        return "rate_limited"
    if status in _REASONS:
        return _REASONS[status]
    return "server_error" if status >= 500 else "client_error" if status >= 400 else "ok"


_REASONS: dict[int, Reason] = {
    425: "server_error",
    430: "blocked",
    **dict.fromkeys((498, 503, 529), "overloaded"),
    **dict.fromkeys((408, 504, 522, 524), "timeout"),
}


def _tells_of_spent_money(message: str) -> bool:
    return message.startswith("you have reached your specified") or "credit balance is too low" in message


def _tells_of_excess(message: str) -> bool:
    figures = (match.groups() for match in _ASKED_FOR.finditer(message))
    return message.startswith("request too large") or any(
        int(requested.replace(",", "")) > int(limit.replace(",", "")) for limit, requested in figures
    )


def _should_retry(
    reason: Reason, status: int, details: _ErrorDetails, fields: Fields, *, stated: bool
) -> bool | None:
    steering = [word.lower() for name in _STEERING_FIELDS for word in fields.get(name, ())]
    if reason in _FINAL or "false" in steering:
        return False
    if "true" in steering:
        return True
    if reason == "client_error":
        return None if status == 499 else status == 413 and stated
    if reason == "server_error":
        return status not in (501, 505) and status < 600
    if reason in ("ok", "blocked", "conflict") or _SERVICE_QUOTA in details.codes:
        return None
    return True
