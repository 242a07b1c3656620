"""Pure. A style for any other API: every path is served, and budgets are told in plain headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...arguments import SECOND
from .formats import period_of, text
from .reading import hinted_number, input_tokens, wanted_tokens
from .style import Style
from .values import Ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .values import MeterLevel, Output, Pairs, Refusal, Request


class Plain(Style):
    name = "plain"
    units = ("requests", "tokens")
    refusals_count = False

    def _read(self, request: Request, path: str) -> Ask:  # noqa: ARG002
        ask = Ask("plain", input_tokens=input_tokens(request))
        if request.body:
            try:
                document = json.loads(request.body)
            except (ValueError, RecursionError):
                document = None
            if isinstance(document, dict):
                model = document.get("model")
                ask.model = model if isinstance(model, str) else ""
                ask.most_tokens = hinted_number(document.get("max_tokens")) or None
                ask.wanted_tokens = wanted_tokens(request, document)
        if ask.wanted_tokens is None:
            ask.wanted_tokens = wanted_tokens(request, {}) or 0
        return ask

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        said: dict[str, Any] = {"status": status, "message": message}
        if code or kind:
            said["code"] = code or kind
        return {"error": said}

    def budget(self, levels: Sequence[MeterLevel], wall: int) -> Pairs:  # noqa: ARG002
        return [
            (f"x-ratelimit-{fact}" + ("" if level.unit == "requests" else f"-{level.unit}"), str(value))
            for level in levels
            for fact, value in (
                ("limit", level.rate.amount),
                ("remaining", level.remaining),
                ("reset", -(-level.reset // SECOND)),
            )
        ]

    def refusal(self, refusal: Refusal, ask: Ask, *, hint: bool) -> tuple[int, Any]:  # noqa: ARG002
        level = refusal.level
        if refusal.unit == "concurrency":
            return 429, self.error(429, "Too many requests at once.", code="global-concurrency")
        if level is not None and refusal.most:
            message = f"Request too large: Limit {refusal.most}, Requested {refusal.requested}."
            return 413, self.error(413, message)
        limit = "" if level is None else f": {level.rate.amount} {level.unit} per {period_of(level.rate)}"
        return 429, self.error(429, f"Too many requests{limit}.", code="rate_limit_exceeded")

    def quota(self) -> tuple[int, Any]:
        return 402, self.error(402, "Insufficient balance.", code="payment_required")

    def overload(self) -> tuple[int, Any]:
        return 503, self.error(503, "Service unavailable.", code="temporarily_unavailable")

    def reply(self, ask: Ask, output: Output) -> Any:
        said = {"ok": True, "serial": output.serial, "tokens": ask.input_tokens}
        return {**said, "text": text(0, output.tokens)} if output.tokens else said
