"""Pure. A style for any other API: every path is served, and budgets are told in plain headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...arguments import SECOND
from .formats import period_of, text
from .reading import BadRequest, document_of, hinted_number, input_tokens, wanted_tokens
from .style import Style
from .values import Ask, MeterLevel, Output, Pairs, Refusal, Request


class Plain(Style):
    name = "plain"
    units = ("requests", "tokens")
    refusals_count = False

    failures: ClassVar = {
        "quota": (402, "Insufficient balance.", "", "payment_required"),
        "overload": (503, "Service unavailable.", "", "temporarily_unavailable"),
    }

    def _read(self, request: Request, path: str) -> Ask:  # noqa: ARG002
        try:
            document = document_of(request)
        except BadRequest:
            document = {}
        model = document.get("model")
        return Ask(
            "plain",
            model if isinstance(model, str) else "",
            input_tokens=input_tokens(request),
            most_tokens=hinted_number(document.get("max_tokens")) or None,
            wanted_tokens=wanted_tokens(request, document) or 0,
        )

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

    def reply(self, ask: Ask, output: Output) -> Any:
        said = {"ok": True, "serial": output.serial, "tokens": ask.input_tokens}
        return {**said, "text": text(0, output.tokens)} if output.tokens else said
