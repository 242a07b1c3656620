"""Pure. The style of Anthropic: messages and the counting of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from .formats import event, period_of, rfc3339, spans, text
from .reading import BadRequest, document_of, first_number, input_tokens, model_of, wanted_tokens
from .style import MODEL, Style
from .values import Ask, Charges, MeterLevel, Output, Pairs, Refusal, Request


class Anthropic(Style):
    name = "anthropic"
    units = ("requests", "input_tokens", "output_tokens")
    refusals_count = False

    _KINDS: ClassVar = {
        400: "invalid_request_error",
        402: "billing_error",
        404: "not_found_error",
        405: "invalid_request_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    failures: ClassVar = {
        "quota": (429, "You have reached your API usage limits.", "", "enforced_spend_limit_reached"),
        "overload": (529, "Overloaded", "", None),
    }

    def _read(self, request: Request, path: str) -> Ask:
        if path == "/models":
            made = {"display_name": "Sandbox 1", "created_at": "2027-01-15T08:00:00Z"}
            page = {"data": [{"type": "model", "id": MODEL, **made}], "has_more": False}
            return Ask("models", answer=(200, {**page, "first_id": MODEL, "last_id": MODEL}))
        if path not in ("/messages", "/messages/count_tokens"):
            return Ask("", answer=(404, self.error(404, f"Not found: {request.path[:200]}")))
        if request.method != "POST":
            return Ask("", answer=(405, self.error(405, "Method Not Allowed")))
        document = document_of(request)
        ask = Ask("messages", model_of(document), input_tokens=input_tokens(request))
        if path == "/messages/count_tokens":
            ask.endpoint = "count"
            ask.answer = (200, {"input_tokens": ask.input_tokens})
            return ask
        ask.most_tokens = first_number(document, ("max_tokens",))
        if ask.most_tokens is None:
            raise BadRequest("max_tokens: Field required")
        ask.stream = document.get("stream") is True
        ask.wanted_tokens = wanted_tokens(request, document)
        return ask

    def charges(self, ask: Ask) -> Charges:
        # Output is counted as it is produced; for admission one token of it must be left.
        tokens = ask.input_tokens
        return {"requests": (1, 1), "input_tokens": (tokens, tokens), "output_tokens": (1, 0)}

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        said: dict[str, Any] = {"type": kind or self._KINDS.get(status, "api_error"), "message": message}
        if code is not None:
            said["details"] = {"error_code": code}
        return {"type": "error", "error": said, "request_id": None}

    def identity(self, output: Output) -> Pairs:
        return [("request-id", output.name("req_")), ("anthropic-organization-id", "sandbox")]

    def budget(self, levels: Sequence[MeterLevel], wall: int) -> Pairs:
        pairs: Pairs = []
        shown = [(level.unit.replace("_", "-"), level) for level in levels]
        tokens = [level for level in levels if level.unit != "requests"]
        if tokens:  # the limit that is nearest to its end, under a common name
            shown.append(("tokens", min(tokens, key=lambda level: level.remaining / level.rate.amount)))
        for name, level in shown:
            remaining = level.remaining
            if level.unit != "requests" and level.rate.amount >= 10_000:
                remaining = round(remaining, -3)  # to the nearest thousand
            pairs += (
                (f"anthropic-ratelimit-{name}-limit", str(level.rate.amount)),
                (f"anthropic-ratelimit-{name}-remaining", str(remaining)),
                (f"anthropic-ratelimit-{name}-reset", rfc3339(wall + level.reset)),
            )
        return pairs

    def refusal(self, refusal: Refusal, ask: Ask, *, hint: bool) -> tuple[int, Any]:  # noqa: ARG002
        level = refusal.level
        if level is None:
            message = "Number of concurrent connections has exceeded your rate limit. Please try again later."
            if refusal.unit == "storm":
                message = "This request would exceed your organization's rate limit. Please try again later."
            return 429, self.error(429, message)
        limit = f"{level.rate.amount:,} {level.unit.replace('_', ' ')} per {period_of(level.rate)}"
        if refusal.most:
            amounts = f"Limit {refusal.most}, Requested {refusal.requested}."
            message = f"Request too large for your organization's rate limit of {limit}: {amounts}"
            return 413, self.error(413, message)
        message = f"This request would exceed your organization's rate limit of {limit} (model: {ask.model})."
        return 429, self.error(429, message)

    def stream_error(self, ask: Ask, output: Output) -> bytes:  # noqa: ARG002
        return event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})

    def _usage(self, ask: Ask, tokens: int) -> Any:
        return {
            "input_tokens": ask.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": tokens,
            "service_tier": "standard",
        }

    def _stop(self, output: Output) -> str:
        return "max_tokens" if output.cut else "end_turn"

    def _shell(self, ask: Ask, output: Output) -> dict[str, Any]:
        who = {"id": output.name("msg_"), "type": "message", "role": "assistant", "model": ask.model}
        return {**who, "content": [], "stop_reason": None, "stop_sequence": None}

    def reply(self, ask: Ask, output: Output) -> Any:
        return {
            **self._shell(ask, output),
            "content": [{"type": "text", "text": text(0, output.tokens)}],
            "stop_reason": self._stop(output),
            "usage": self._usage(ask, output.tokens),
        }

    def stream(self, ask: Ask, output: Output, width: int) -> Iterator[tuple[int, bytes]]:
        message = {**self._shell(ask, output), "usage": self._usage(ask, 1)}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        first = event({"type": "message_start", "message": message})
        yield 0, first + event(block) + event({"type": "ping"})
        for start, stop in spans(output.tokens, width):
            piece = {"type": "text_delta", "text": text(start, stop)}
            yield stop, event({"type": "content_block_delta", "index": 0, "delta": piece})
        delta = {"stop_reason": self._stop(output), "stop_sequence": None}
        last = {"type": "message_delta", "delta": delta, "usage": self._usage(ask, output.tokens)}
        end = event({"type": "content_block_stop", "index": 0}) + event(last)
        yield output.tokens, end + event({"type": "message_stop"})
