"""Pure. The budgets a server keeps for its caller, as headers and error bodies state them.

Every source makes claims. Claims about one scope are merged, and the most restrictive figure is believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from . import wire
from .wire import Document, Fields, amount, at, entries, longest, readings


@dataclass(frozen=True, slots=True)
class Scope:
    """One budget that a server keeps for its caller; None stands for a figure it did not state."""

    name: str
    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None


_KIND = "(limit|remaining|reset)"
_DIMENSION = re.compile(rf"x-ratelimit-{_KIND}-(.+)")
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(.+)-(utilization|reset)")
_ANTHROPIC = re.compile(rf"anthropic-(?:ratelimit|(priority|fast))-(.+)-{_KIND}")
_BY_SIZE = re.compile(rf"(?:x-)?ratelimitbysize-{_KIND}(?:-minute|(-month))?")
_TOKEN_LIMIT = re.compile(rf"x-tokenlimit-{_KIND}")
_PLAIN = re.compile(rf"(?:(?:x-)?ratelimit|x-rate-limit)-{_KIND}")
_TRIAL = re.compile(r"x-trial-endpoint-call-(limit|remaining)")
_USED_OF = re.compile(r"([0-9]+)/([0-9]+)")


def scopes_of(fields: Fields, document: Document, present: int, provider: str) -> tuple[Scope, ...]:
    """What a response states about each budget; `present` is the server's time in nanoseconds."""
    # Groq's plain "requests" are requests per day.
    daily = provider.lower() == "groq" or any(field.startswith("x-groq-") for field in fields)
    claims = [*_body_claims(document, present, daily=daily)]
    if not any(age > 0 for age in readings(fields.get("age", ()), wire.number)):
        # The headers of a cached response describe the budget of an earlier caller.
        claims = [*_header_claims(fields, present, daily=daily), *claims]

    merged: dict[str, Scope] = {}
    for claim in claims:
        known = merged.get(claim.name, claim)
        merged[claim.name] = Scope(
            claim.name,
            _least(known.limit, claim.limit),
            _least(known.remaining, claim.remaining),
            longest((known.reset_after, claim.reset_after)),
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
            for item, parameters in wire.structured_list(values) or ():
                if _is_name(item):
                    yield _claim(_scope_name(item), "limit", [parameters.get("q", "")], present)


def _subject(field: str, plain: str, *, daily: bool) -> tuple[str, str] | None:
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


def _claim(name: str, kind: str, values: list[str], present: int) -> Scope:
    if kind == "reset":
        return Scope(name, reset_after=longest(readings(values, partial(wire.when, base=present))))
    if kind == "policies":  # in early drafts a list: the limit in force, then the policies behind it
        values = [wire.trimmed(re.split("[,;]", value)[0]) for value in values]
    counts = readings(values, wire.number)
    if kind == "utilization":
        used = longest(counts)
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


def _body_claims(document: Document, present: int, *, daily: bool) -> Iterator[Scope]:
    for violation in violations_in(document):
        yield Scope(_quota_name(violation), amount(violation.get("quotaValue")), 0)
    # OpenRouter repeats the headers here, for clients that lose them.
    repeated = wire.fields_of(at(document, "error", "metadata", "headers"))
    yield from _header_claims(repeated, present, daily=daily)
    cost = at(document, "extensions", "cost", "throttleStatus")
    yield Scope("cost", amount(at(cost, "maximumAvailable")), amount(at(cost, "currentlyAvailable")))


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
