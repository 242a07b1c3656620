"""Pure. The budgets a server keeps for its caller, as headers and error bodies state them.

Every source makes claims. Claims about one scope are merged, and the most restrictive figure is believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from . import wire
from .wire import Document, Fields, Present, amount, at, entries, readings


class Scope(NamedTuple):
    """One budget that a server keeps for its caller; None stands for a figure it did not state.

    `name` is what it counts, e.g. "requests", `limit` how much the caller may use, `remaining` how much of it
    is left, and `reset_after` in how many seconds it is whole again. `period` is for how many seconds the
    limit is meant.

    >>> from headgate.http import read_signal
    >>> read_signal(200, {"x-ratelimit-limit-tokens": "9000", "x-ratelimit-remaining-tokens": "8000"}).scopes
    (Scope(name='tokens', limit=9000, remaining=8000, reset_after=None, period=None),)
    """

    name: str
    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    period: float | None = None


# The name of a scope, its limit, what remains of it, seconds until its reset, and the period of the limit.
_Claim: TypeAlias = tuple[str, float | None, float | None, float | None, float | None]

_KIND = "(limit|remaining|reset)"
_DIMENSION = re.compile(rf"x-ratelimit-{_KIND}-(.+)")
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(.+)-(utilization|reset)")
_ANTHROPIC = re.compile(rf"anthropic-(?:ratelimit|(priority|fast))-(.+)-{_KIND}")
_BY_SIZE = re.compile(rf"(?:x-)?ratelimitbysize-{_KIND}(?:-minute|(-month))?")
_TOKEN_LIMIT = re.compile(rf"x-tokenlimit-{_KIND}")
_PLAIN = re.compile(rf"(?:(?:x-)?ratelimit|x-rate-limit)-{_KIND}")
_WINDOW = re.compile(r"\s*([0-9]{1,15})\s*(?:;[^;]*)*?;\s*w=([1-9][0-9]{0,8})\s*(?:;.*)?", re.DOTALL)
_TRIAL = re.compile(r"x-trial-endpoint-call-(limit|remaining)")
_USED_OF = re.compile(r"([0-9]+)/([0-9]+)")


def scopes_of(fields: Fields, document: Document, present: Present, provider: str) -> tuple[Scope, ...]:
    """What a response states about each budget."""
    if not document and fields.keys() <= UNLIMITED:  # nearly always
        return ()
    daily = provider.lower() == "groq" or wire.GROQ in fields  # Groq's plain "requests" are those of a day
    claims: list[_Claim] = []
    if "age" not in fields or not any(age > 0 for age in readings(fields["age"], wire.number)):
        # The headers of a cached response describe the budget of an earlier caller.
        claims += _header_claims(fields, present, daily=daily)
    if document:
        claims += _body_claims(document, present, daily=daily)

    merged: dict[str, _Claim] = {}
    for claim in claims:
        known = merged.get(claim[0])
        merged[claim[0]] = claim if known is None else _both(known, claim)
    return tuple([Scope(*claim) for claim in merged.values() if _says_anything(claim)])


# Together's limits of tokens for a second. Its plain field beside these is meant for a second, too.
BY_SECOND = frozenset(f"x-tokenlimit-{kind}" for kind in ("limit", "remaining", "reset"))
_BESIDE = frozenset({"x-ratelimit-limit"})
# Fields whose meaning is not that of one figure for one scope, or that change what other fields mean.
SPECIAL = frozenset(
    {
        *BY_SECOND,
        *("age", wire.GROQ, "ratelimit", "ratelimit-policy", "x-ratelimit-resource"),
        "x-shopify-shop-api-call-limit",
    }
)
# Fields that are read for other reasons. A success without any other states no limits.
UNLIMITED = frozenset({"date", "age", "content-type", "content-encoding"})


def _both(one: _Claim, other: _Claim) -> _Claim:
    """What two claims about a scope say together: the most restrictive figures."""
    name, limit, remaining, reset, period = one
    _, other_limit, other_remaining, other_reset, other_period = other
    if limit is None or (other_limit is not None and other_limit < limit):
        limit, period = other_limit, other_period  # a period belongs to its limit
    elif limit == other_limit and other_period is not None:
        period = other_period if period is None else max(period, other_period)
    if remaining is None or (other_remaining is not None and other_remaining < remaining):
        remaining = other_remaining
    if reset is None or (other_reset is not None and other_reset > reset):
        reset = other_reset
    return name, limit, remaining, reset, period


def _says_anything(claim: _Claim) -> bool:
    _, limit, remaining, reset, _period = claim
    return limit is not None or remaining is not None or bool(reset)


def _header_claims(fields: Fields, present: Present, *, daily: bool) -> Iterator[_Claim]:
    plain = "requests"
    if "x-ratelimit-resource" in fields:
        resource = next(filter(None, fields["x-ratelimit-resource"]), "core")
        plain = plain if resource.lower() == "core" else _scope_name(resource)
    seconds = BY_SECOND | _BESIDE if not BY_SECOND.isdisjoint(fields) else frozenset()
    for field, values in fields.items():
        if subject := subject_of(field, plain, daily):
            claim = _claim(*subject, values, present)
            yield (*claim[:4], 1) if field in seconds and claim[1] is not None else claim
        elif field == "x-shopify-shop-api-call-limit":
            yield from _used_of_claims(values)
        elif field == "ratelimit":
            yield from _structured_claims(values, present)
        elif field == "ratelimit-policy":
            for item, parameters in wire.structured_list(values) or ():
                if _is_name(item):
                    name, limit, *_ = _claim(_scope_name(item), "limit", [parameters.get("q", "")], present)
                    yield name, limit, None, None, _seconds(parameters.get("w", ""))


@lru_cache(maxsize=1_024)
def subject_of(field: str, plain: str, daily: bool) -> tuple[str, str] | None:
    """The scope that a header field describes, and the kind of figure it holds."""
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


def _claim(name: str, kind: str, values: list[str], present: Present) -> _Claim:
    if kind == "reset":
        after = max(readings(values, partial(wire.when, present=present)), default=None)
        return name, None, None, after, None
    policies: list[str] = []
    if kind == "policies":  # in early drafts a list: the limit in force, then the policies behind it
        policies = [policy for value in values for policy in value.split(",")]
        values = [wire.trimmed(re.split("[,;]", value)[0]) for value in values]
    counts = readings(values, wire.number)
    if not counts:
        return name, None, None, None, None
    if kind == "utilization":
        return name, 1, max(0, round(1 - max(counts), 9)), None, None
    if kind == "remaining":
        return name, None, min(counts), None, None
    limit = min(counts)
    windows = [(int(match[1]), int(match[2])) for match in map(_WINDOW.fullmatch, policies) if match]
    # Only if the limit in force is the tightest in the long run: the others are not learned.
    tightest = min(windows, key=lambda window: window[0] / window[1], default=None)
    return name, limit, None, None, tightest[1] if tightest is not None and tightest[0] == limit else None


def _seconds(window: str) -> float | None:
    """The length of a window, in whole seconds."""
    length = wire.number(window)
    return length if length is not None and length >= 1 and length == int(length) else None


def _used_of_claims(values: list[str]) -> Iterator[_Claim]:
    for match in filter(None, map(_USED_OF.fullmatch, values)):
        used, limit = map(wire.number, match.groups())
        if used is not None and limit is not None:
            yield "requests", limit, max(0, limit - used), None, None


def _structured_claims(values: list[str], present: Present) -> Iterator[_Claim]:
    """RateLimit is a list of named items; one draft had a dictionary instead."""
    items = wire.structured_list(values)
    if items is None:
        for key, value in wire.structured_dictionary(values) or ():
            if key in ("limit", "remaining", "reset"):
                yield _claim("requests", key, [value], present)
        return
    for item, parameters in items:
        if _is_name(item):
            yield _claim(_scope_name(item), "remaining", [parameters.get("r", "")], present)
            yield _claim(_scope_name(item), "reset", [parameters.get("t", "")], present)


def _is_name(item: str) -> bool:
    """Whether an item is a string or a token: numbers in such a list are not names of policies."""
    return item[0] in '"*' or item[0].isalpha()


def _scope_name(text: str) -> str:
    return re.sub("[^a-z0-9_]", "_", text.strip('"').lower()[:64]) or "requests"


def _dimension(text: str, *, daily: bool) -> str:
    name = "_".join("requests" if part == "req" else part for part in _scope_name(text).split("_"))
    return "requests_day" if daily and name == "requests" else name.removesuffix("_minute")


def _body_claims(document: Document, present: Present, *, daily: bool) -> Iterator[_Claim]:
    for violation in violations_in(document):
        yield _quota_name(violation), amount(violation.get("quotaValue")), 0, None, None
    # OpenRouter repeats the headers here, for clients that lose them.
    repeated = wire.fields_of(at(document, "error", "metadata", "headers"))
    yield from _header_claims(repeated, present, daily=daily)
    cost = at(document, "extensions", "cost", "throttleStatus")
    yield "cost", amount(at(cost, "maximumAvailable")), amount(at(cost, "currentlyAvailable")), None, None


def violations_in(document: Document) -> list[Document]:
    """Google's QuotaFailure entries; other kinds of detail have violations without a quota."""
    details = entries(at(document, "error", "details"))
    found = [violation for detail in details for violation in entries(detail.get("violations"))]
    return [violation for violation in found if "quotaId" in violation or "quotaMetric" in violation]


def _quota_name(violation: Document) -> str:
    described = f"{violation.get('quotaId')} {violation.get('quotaMetric')}".lower().replace("_", "")
    unit = "tokens" if "token" in described else "requests"
    unit = "input_tokens" if "inputtoken" in described else unit
    return f"{unit}_day" if is_daily(violation) else unit


def is_daily(violation: Document) -> bool:
    return "perday" in str(violation.get("quotaId")).lower()
