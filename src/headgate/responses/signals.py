"""What a response says about limits.

Rules of this room: pure and total. No I/O, no logging, no state; the wall clock is read only when
`now` is left out. Nothing is raised, whatever comes in, and a doubt is never settled in favour of a
shorter wait. How things are written on the wire is known next door, in `wire`; here is what they mean.
"""

from __future__ import annotations

import math
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from . import wire
from .wire import Document, Fields, amount, at, entries, readings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Reason = Literal[
    "ok",
    "rate_limited",  # a short window
    "concurrency",  # too many in flight, or a locked object
    "overloaded",  # the provider's capacity, not our budget
    "quota_window",  # a window of an hour or more, which will reopen
    "quota_exhausted",  # money or tier: needs a human
    "too_large",  # this request can never fit
    "blocked",  # rejected for security
    "timeout",
    "server_error",
    "conflict",
    "client_error",
]


@dataclass(frozen=True, slots=True)
class Scope:
    """One budget the server keeps for us; None is what it did not say."""

    name: str
    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """What one response says: hold back or not, for how long, and whether to try again.

    `limited` asks to reduce pressure on this origin. `retry_after` is in seconds, None when the server
    gave no hint. `should_retry` is None when the response alone cannot tell.
    """

    limited: bool = False
    retry_after: float | None = None
    scopes: tuple[Scope, ...] = ()
    should_retry: bool | None = None
    reason: Reason = "ok"


def parse_retry_after(headers: object, *, default: float = 1.0, now: float | None = None) -> float:
    """Seconds to wait according to the headers, or *default* if they do not say. Zero means now.

    Dates are measured from the response's own Date, so a wrong local clock does not matter;
    *now*, in seconds since 1970, stands in where there is none.
    """
    fields = wire.fields_of(headers)
    hint = _header_hint(fields, _present(fields, now))
    return default if hint is None else hint


def read_signal(
    status: int,
    headers: object,
    body: object = None,
    *,
    now: float | None = None,
    provider: str | None = None,
) -> Signal:
    """Everything a response says about limits: its status, its headers and, on errors, its body.

    *headers* is a mapping, an iterable of pairs or any client library's headers object; *body* is
    bytes, text or parsed JSON. *provider* helps where two use one name differently (`"groq"`).
    """
    code = _status(status)
    fields = wire.fields_of(headers)
    reading = partial(_signal, code, fields, present=_present(fields, now), provider=wire.text_of(provider))
    try:
        return reading(_error_document(body, code))
    except Exception:  # noqa: BLE001 — a body object may raise anything when touched; the rest still holds
        return reading({})


def _signal(status: int, fields: Fields, document: Document, *, present: int, provider: str) -> Signal:
    status = status if status >= 400 else _status_inside(document) or status
    complaint = _Complaint(document, fields)
    hint = _header_hint(fields, present)
    scopes = _scopes(fields, document, present, provider)

    reason = _reason(status, complaint, scopes, hinted=hint is not None)
    limited = reason in _LIMITED
    if not limited:
        scopes = tuple(scope for scope in scopes if scope.limit != 0)  # zero: does not apply here
    if reason in _FINAL or not (limited or status >= 400):
        hint = None
    elif hint is None:
        hint = _body_hint(document)
        if hint is None and limited:
            hint = _longest(map(wire.spoken_wait, complaint.messages))
        if hint is None and limited:
            hint = _longest(scope.reset_after for scope in scopes if _holds_us_back(scope))
    if reason == "rate_limited" and hint is not None and hint >= 3_600:
        reason = "quota_window"
    should_retry = _should_retry(reason, status, complaint, fields, hinted=hint is not None)
    return Signal(limited, hint, scopes, should_retry, reason)


def _status(status: Any) -> int:
    with suppress(Exception):
        return int(status)
    return 200  # the status says nothing, so the rest must


def _status_inside(document: Document) -> int | None:
    """The status an error would have had, had the headers not left before it."""
    code = at(document, "error", "code")
    return next((status for status in (429, 502, 503, 529) if code in (status, str(status))), None)


def _error_document(body: object, status: int) -> Document:
    """The body, if it is to be listened to: a payload may talk about limits without meaning us."""
    document = wire.document_of(body)
    tells_of_error = document.get("error") or document.get("errors") or document.get("ok") is False
    return document if status >= 400 or tells_of_error or document.get("type") == "error" else {}


def _present(fields: Fields, now: float | None) -> int:
    """The server's present in nanoseconds: its own Date if that is believable, else ours.

    Measuring dates from it cancels the error of the local clock. Of several, the earliest waits longest.
    """
    here = 0  # for a `now` that is no number: every date is then far off, which errs towards waiting
    with suppress(Exception):
        local = time.time() if now is None else float(now)
        whole = math.floor(local)
        here = whole * wire.SECOND + math.floor((local - whole) * wire.SECOND)
    dates = (wire.http_date(text, here) for text in fields.get("date", ()))
    return min((date for date in dates if date is not None and abs(date - here) <= wire.DAY), default=here)


# How long to wait

_MILLISECOND_FIELDS = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after")
_OTHER_DELAY_FIELDS = ("x-retry-after", "x-ratelimit-retry-after")


def _header_hint(fields: Fields, present: int) -> float | None:
    """The first kind of field with an answer wins; within a kind, the longest."""
    delay = partial(wire.delay, base=present)
    kinds: tuple[tuple[tuple[str, ...], Callable[[str], float | None]], ...] = (
        (_MILLISECOND_FIELDS, wire.milliseconds),
        (("retry-after",), delay),
        (_OTHER_DELAY_FIELDS, delay),
    )
    for names, read in kinds:
        hint = _longest(wait for name in names for wait in readings(fields.get(name, ()), read))
        if hint is not None:
            return hint
    return None


def _body_hint(document: Document) -> float | None:
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
    return _longest(waits)


def _restore_time(cost: object) -> float | None:
    """Shopify: how long until the bucket has refilled to the cost of the query."""
    requested = amount(at(cost, "requestedQueryCost"))
    available = amount(at(cost, "throttleStatus", "currentlyAvailable"))
    rate = amount(at(cost, "throttleStatus", "restoreRate"))
    if requested is None or available is None or not rate:
        return None
    return max(0.0, (requested - available) / rate)


def _holds_us_back(scope: Scope) -> bool:
    """Spent, or nothing but a reset. A scope with budget left says nothing about this refusal."""
    return scope.remaining == 0 or (scope.limit is None and scope.remaining is None)


def _longest(waits: Iterable[float | None]) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


# What budgets the server keeps. Every source makes claims; claims on one scope are merged.

_KIND = "(limit|remaining|reset)"
_DIMENSION = re.compile(rf"x-ratelimit-{_KIND}-(.+)")
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(.+)-(utilization|reset)")
_ANTHROPIC = re.compile(rf"anthropic-(?:ratelimit|(priority|fast))-(.+)-{_KIND}")
_BY_SIZE = re.compile(rf"(?:x-)?ratelimitbysize-{_KIND}(?:-minute|(-month))?")
_TOKEN_LIMIT = re.compile(rf"x-tokenlimit-{_KIND}")
_PLAIN = re.compile(rf"(?:(?:x-)?ratelimit|x-rate-limit)-{_KIND}")
_TRIAL = re.compile(r"x-trial-endpoint-call-(limit|remaining)")
_USED_OF = re.compile(r"([0-9]+)/([0-9]+)")


def _scopes(fields: Fields, document: Document, present: int, provider: str) -> tuple[Scope, ...]:
    """What each budget holds. Where claims differ, the most restrictive is believed."""
    # Groq's plain "requests" are requests per day.
    daily = provider.lower() == "groq" or any(field.startswith("x-groq-") for field in fields)
    claims = [*_body_claims(document, present, daily=daily)]
    if not any(age > 0 for age in readings(fields.get("age", ()), wire.number)):
        # A cached response would tell of the budget somebody had some time ago.
        claims = [*_header_claims(fields, present, daily=daily), *claims]

    merged: dict[str, Scope] = {}
    for claim in claims:
        known = merged.get(claim.name, claim)
        merged[claim.name] = Scope(
            claim.name,
            _least(known.limit, claim.limit),
            _least(known.remaining, claim.remaining),
            _longest((known.reset_after, claim.reset_after)),
        )
    return tuple(scope for scope in merged.values() if _says_anything(scope))


def _says_anything(scope: Scope) -> bool:
    return scope.limit is not None or scope.remaining is not None or bool(scope.reset_after)


def _least(*amounts: float | None) -> float | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _header_claims(fields: Fields, present: int, *, daily: bool) -> Iterator[Scope]:
    resource = next(filter(None, fields.get("x-ratelimit-resource", ())), "core")
    plain = "requests" if resource.lower() == "core" else _scope_name(resource)
    for field, values in fields.items():
        if subject := _subject(field, plain, daily=daily):
            yield _claim(*subject, values, present)
        elif field == "x-shopify-shop-api-call-limit":
            yield from _used_of_claims(values)
        elif field == "ratelimit":
            yield from _structured_claims(values, present)
        elif field == "ratelimit-policy":
            for item, said in wire.structured_list(values) or ():
                if _is_name(item):
                    yield _claim(_scope_name(item), "limit", [said.get("q", "")], present)


def _subject(field: str, plain: str, *, daily: bool) -> tuple[str, str] | None:
    """Which scope a field is about, and what it tells of it."""
    if match := _DIMENSION.fullmatch(field):
        return _dimension(match[2], daily=daily), match[1]
    if match := _UNIFIED.fullmatch(field):
        return f"unified_{_scope_name(match[1])}", match[2]
    if match := _ANTHROPIC.fullmatch(field):
        tier = f"{match[1]}_" if match[1] else ""
        return tier + _scope_name(match[2]), match[3]
    if match := _BY_SIZE.fullmatch(field):
        return "tokens_month" if match[2] else "tokens", match[1]
    if match := _TOKEN_LIMIT.fullmatch(field):
        return "tokens", match[1]
    if match := _PLAIN.fullmatch(field):
        return plain, "policies" if match[1] == "limit" else match[1]
    if match := _TRIAL.fullmatch(field):
        return "requests", match[1]
    return ("requests_month", "limit") if field == "x-endpoint-monthly-call-limit" else None


def _claim(name: str, kind: str, values: list[str], present: int) -> Scope:
    if kind == "reset":
        return Scope(name, reset_after=_longest(readings(values, partial(wire.when, base=present))))
    if kind == "policies":  # in early drafts a list: the limit in force, then the policies behind it
        values = [wire.trimmed(re.split("[,;]", value)[0]) for value in values]
    counts = readings(values, wire.number)
    if kind == "utilization":
        used = _longest(counts)
        return Scope(name) if used is None else Scope(name, 1, max(0, round(1 - used, 9)))
    return Scope(name, remaining=_least(*counts)) if kind == "remaining" else Scope(name, _least(*counts))


def _used_of_claims(values: list[str]) -> Iterator[Scope]:
    for match in filter(None, map(_USED_OF.fullmatch, values)):
        used, limit = map(wire.number, match.groups())
        if used is not None and limit is not None:
            yield Scope("requests", limit, max(0, limit - used))


def _structured_claims(values: list[str], present: int) -> Iterator[Scope]:
    """RateLimit is a list of named items; one draft had a dictionary instead."""
    items = wire.structured_list(values)
    if items is None:
        for key, value in wire.structured_dictionary(values) or ():
            if key in ("limit", "remaining", "reset"):
                yield _claim("requests", key, [value], present)
        return
    for item, said in items:
        if _is_name(item):
            yield _claim(_scope_name(item), "remaining", [said.get("r", "")], present)
            yield _claim(_scope_name(item), "reset", [said.get("t", "")], present)


def _is_name(item: str) -> bool:
    """A string or a token. Numbers in such a list only inform."""
    return item[0] in '"*' or item[0].isalpha()


def _scope_name(text: str) -> str:
    return re.sub("[^a-z0-9_]", "_", text.strip('"').lower()[:64]) or "requests"


def _dimension(text: str, *, daily: bool) -> str:
    name = "_".join("requests" if part == "req" else part for part in _scope_name(text).split("_"))
    return "requests_day" if daily and name == "requests" else name.removesuffix("_minute")


def _body_claims(document: Document, present: int, *, daily: bool) -> Iterator[Scope]:
    for violation in _violations(document):
        yield Scope(_quota_name(violation), amount(violation.get("quotaValue")), 0)
    # OpenRouter repeats the headers here, for clients that lose them.
    repeated = wire.fields_of(at(document, "error", "metadata", "headers"))
    yield from _header_claims(repeated, present, daily=daily)
    cost = at(document, "extensions", "cost", "throttleStatus")
    yield Scope("cost", amount(at(cost, "maximumAvailable")), amount(at(cost, "currentlyAvailable")))


def _violations(document: Document) -> list[Document]:
    """Google's QuotaFailure entries; other kinds of detail have violations without a quota."""
    details = entries(at(document, "error", "details"))
    found = [violation for detail in details for violation in entries(detail.get("violations"))]
    return [violation for violation in found if "quotaId" in violation or "quotaMetric" in violation]


def _quota_name(violation: Document) -> str:
    described = f"{violation.get('quotaId')} {violation.get('quotaMetric')}".lower().replace("_", "")
    unit = "tokens" if "token" in described else "requests"
    unit = "input_tokens" if "inputtoken" in described else unit
    return f"{unit}_day" if _is_daily(violation) else unit


def _is_daily(violation: Document) -> bool:
    return "perday" in str(violation.get("quotaId")).lower()


# What kind of answer it is

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
_SERVICE_QUOTA = "servicequotaexceededexception"  # soft: may be raised on request, may never reopen
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


class _Complaint:
    """What the error says, wherever this provider puts it, in lower case."""

    __slots__ = ("codes", "messages", "violations")

    def __init__(self, document: Document, fields: Fields) -> None:
        self.codes = frozenset(_codes(document, fields))
        self.violations = _violations(document)
        speakers = [document, document.get("error"), *entries(document.get("errors"))]
        said = [document.get(key) for key in ("error", "detail", "Message")]
        said += [at(speaker, "message") for speaker in speakers]
        self.messages = [text[:2_000].lower() for text in said if isinstance(text, str)]


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
        *fields.get("stripe-rate-limited-reason", ()),
    ]
    for code in found:
        if isinstance(code, str):
            yield code.lower().rpartition("#")[2]  # problem types are URLs with the name at the end
        elif isinstance(code, int) and 0 <= code < 10**6:
            yield str(code)
    for code in [document.get("__type"), *fields.get("x-amzn-errortype", ())]:
        if isinstance(code, str):  # AWS: namespace#Name:uri
            yield code.lower().partition(":")[0].rpartition("#")[2]


def _reason(status: int, complaint: _Complaint, scopes: tuple[Scope, ...], *, hinted: bool) -> Reason:
    """The first rule that fits. Codes come before the status: a 429 can be many things."""
    codes, messages, violations = complaint.codes, complaint.messages, complaint.violations
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
    if not codes.isdisjoint(_WINDOW_CODES) or any(map(_is_daily, violations)):
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
    if status in (498, 503, 529):
        return "overloaded"
    if status == 403 and (
        hinted
        or any(scope.remaining == 0 for scope in scopes)
        or any("secondary rate limit" in text or "abuse detection" in text for text in messages)
    ):
        return "rate_limited"
    return _reason_by_status(status)


def _reason_by_status(status: int) -> Reason:
    if status == 430:
        return "blocked"
    if status in (408, 504, 522, 524):
        return "timeout"
    if status == 425 or status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "ok"


def _tells_of_spent_money(message: str) -> bool:
    return message.startswith("you have reached your specified") or "credit balance is too low" in message


def _tells_of_excess(message: str) -> bool:
    figures = (match.groups() for match in _ASKED_FOR.finditer(message))
    return message.startswith("request too large") or any(
        int(requested.replace(",", "")) > int(limit.replace(",", "")) for limit, requested in figures
    )


def _should_retry(
    reason: Reason, status: int, complaint: _Complaint, fields: Fields, *, hinted: bool
) -> bool | None:
    steering = [*fields.get("x-should-retry", ()), *fields.get("stripe-should-retry", ())]
    steering = [word.lower() for word in steering]
    if reason in _FINAL or "false" in steering:
        return False
    if "true" in steering:
        return True
    if reason == "client_error":
        return None if status == 499 else status == 413 and hinted
    if reason == "server_error":
        return status not in (501, 505) and status < 600
    if reason in ("ok", "blocked", "conflict") or _SERVICE_QUOTA in complaint.codes:
        return None
    return True
