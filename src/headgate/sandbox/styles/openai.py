"""Pure. The style of OpenAI: chat completions, responses and embeddings."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from struct import pack
from typing import Any, ClassVar

from ...arguments import SECOND
from .formats import event, go_duration, period_of, spans, text
from .reading import document_of, first_number, input_tokens, model_of, wanted_tokens
from .style import MODEL, Style
from .values import Ask, MeterLevel, Output, Pairs, Refusal, Request

# The facts of a response that are the same in all.
_TOOLS = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
_OPTIONS = {"store": False, "temperature": 1.0, "top_p": 1.0, "truncation": "disabled", "metadata": {}}
_ABSENT = {"error": None, "instructions": None, "previous_response_id": None, "user": None}
_FORMAT = {"reasoning": {"effort": None, "summary": None}, "text": {"format": {"type": "text"}}}
_FIXED: dict[str, Any] = {"object": "response", **_TOOLS, **_OPTIONS, **_ABSENT, **_FORMAT}

_SHORT = {60 * SECOND: "min", SECOND: "second", 3600 * SECOND: "hour", 86400 * SECOND: "day"}


class OpenAI(Style):
    name = "openai"
    units = ("requests", "tokens")
    refusals_count = True

    _ENDPOINTS: ClassVar = {
        "/chat/completions": "chat",
        "/responses": "responses",
        "/embeddings": "embeddings",
        "/responses/input_tokens": "count",
    }
    _RESERVE: ClassVar = {
        "chat": ("max_completion_tokens", "max_tokens"),
        "responses": ("max_output_tokens",),
    }
    failures: ClassVar = {
        "quota": (
            429,
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        "overload": (503, "Slow down", "", "slow_down"),
    }

    def _read(self, request: Request, path: str) -> Ask:
        if path == "/models" or path.startswith("/models/"):
            facts = {"object": "model", "created": 1_800_000_000, "owned_by": "sandbox"}
            model = {"id": path[8:] or MODEL, **facts}
            listed = {"object": "list", "data": [model]}
            return Ask("models", answer=(200, listed if path == "/models" else model))
        endpoint = self._ENDPOINTS.get(path)
        if endpoint is None:
            message = f"Invalid URL ({request.method} {request.path[:200]})"
            return Ask("", answer=(404, self.error(404, message)))
        if request.method != "POST":
            message = f"Not allowed to {request.method} on {path}."
            return Ask("", answer=(405, self.error(405, message, code="method_not_supported")))
        document = document_of(request)
        ask = Ask(endpoint, model_of(document), input_tokens=input_tokens(request))
        if endpoint == "count":
            ask.answer = (200, {"object": "response.input_tokens", "input_tokens": ask.input_tokens})
        elif endpoint == "embeddings":
            inputs = document.get("input")
            many = isinstance(inputs, list) and not (inputs and isinstance(inputs[0], int))
            ask.items = min(len(inputs), 2048) if many and isinstance(inputs, list) else 1
            ask.width = min(first_number(document, ("dimensions",)) or 8, 4096)
            ask.base64 = document.get("encoding_format") == "base64"
        else:
            ask.stream = document.get("stream") is True
            options = document.get("stream_options")
            ask.with_usage = isinstance(options, dict) and options.get("include_usage") is True
            ask.most_tokens = first_number(document, self._RESERVE[endpoint])
            ask.wanted_tokens = wanted_tokens(request, document)
        return ask

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def identity(self, output: Output) -> Pairs:
        return [("x-request-id", output.name("req_")), ("openai-version", "2020-10-01")]

    def budget(self, levels: Sequence[MeterLevel], wall: int) -> Pairs:  # noqa: ARG002
        return [
            (f"x-ratelimit-{fact}-{level.unit}", value)
            for level in levels
            for fact, value in (
                ("limit", str(level.rate.amount)),
                ("remaining", str(level.remaining)),
                ("reset", go_duration(level.reset)),
            )
        ]

    def advice(self, wait: int) -> Pairs:
        ms = max(1, -(-wait // 1_000_000))
        return [("retry-after-ms", str(ms)), ("retry-after", str(-(-ms // 1000)))]

    def refusal(self, refusal: Refusal, ask: Ask, *, hint: bool) -> tuple[int, Any]:
        level = refusal.level
        if level is None:
            kind, message = "rate_limit_error", "You have exceeded the concurrency limit"
            if refusal.unit == "storm":
                kind, message = "requests", f"Rate limit reached for {ask.model or 'requests'}"
            if hint and refusal.wait is not None:
                message += f". Please try again in {go_duration(refusal.wait)}."
            return 429, self.error(429, message, kind=kind, code="rate_limit_exceeded")
        period = _SHORT.get(level.rate.per_ns, period_of(level.rate))
        short = f" ({level.unit[0].upper()}P{period[0].upper()})" if period in _SHORT.values() else ""
        limit = f"for {ask.model} on {level.unit} per {period}{short}: Limit"
        if refusal.most:
            message = (
                f"Request too large {limit} {refusal.most}, Requested {refusal.requested}. "
                "The input or output tokens must be reduced in order to run successfully."
            )
        else:
            used = level.rate.amount - level.remaining
            amounts = f"{level.rate.amount}, Used {used}, Requested {refusal.requested}."
            again = f" Please try again in {go_duration(refusal.wait)}." if hint and refusal.wait else ""
            message = f"Rate limit reached {limit} {amounts}{again}"
        return 429, self.error(429, message, kind=level.unit, code="rate_limit_exceeded")

    def stream_error(self, ask: Ask, output: Output) -> bytes:
        message = "The server is currently overloaded. Please try again later."
        if ask.endpoint == "responses":
            said = {"type": "error", "code": "server_overloaded", "message": message, "param": None}
            return event({**said, "sequence_number": output.tokens + 8})
        return event(self.error(503, message, code="server_overloaded"), named=False)

    def reply(self, ask: Ask, output: Output) -> Any:
        if ask.endpoint == "embeddings":
            vector = [((i * 37 + output.serial) % 101 - 50) / 512 for i in range(ask.width)]
            shown = b64encode(pack(f"<{ask.width}f", *vector)).decode() if ask.base64 else vector
            listed = [{"object": "embedding", "index": i, "embedding": shown} for i in range(ask.items)]
            usage = {"prompt_tokens": ask.input_tokens, "total_tokens": ask.input_tokens}
            return {"object": "list", "data": listed, "model": ask.model, "usage": usage}
        if ask.endpoint == "responses":
            return _response(ask, output, _status(output))
        content = text(0, output.tokens)
        message: Any = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(output)}
        return {**_chat("chat.completion", ask, output, [choice]), "usage": _chat_usage(ask, output)}

    def stream(self, ask: Ask, output: Output, width: int) -> Iterator[tuple[int, bytes]]:
        return (_stream_chat if ask.endpoint == "chat" else _stream_response)(ask, output, width)


def _stream_chat(ask: Ask, output: Output, width: int) -> Iterator[tuple[int, bytes]]:
    yield 0, _chunk(ask, output, {"role": "assistant", "content": "", "refusal": None})
    for start, stop in spans(output.tokens, width):
        yield stop, _chunk(ask, output, {"content": text(start, stop)})
    end = _chunk(ask, output, {}, finish=_finish(output))
    if ask.with_usage:
        end += _chunk(ask, output, None, usage=_chat_usage(ask, output))
    yield output.tokens, end + b"data: [DONE]\n\n"


def _stream_response(ask: Ask, output: Output, width: int) -> Iterator[tuple[int, bytes]]:
    response = _response(ask, output, "in_progress")
    item = {**_message(output, ""), "status": "in_progress", "content": []}
    place = {"item_id": output.name("msg_"), "output_index": 0, "content_index": 0}
    yield (
        0,
        _events(
            0,
            ("response.created", {"response": response}),
            ("response.in_progress", {"response": response}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.content_part.added", {**place, "part": _part("")}),
        ),
    )
    for start, stop in spans(output.tokens, width):
        facts = {**place, "logprobs": [], "delta": text(start, stop)}
        yield stop, _events(4 + start, ("response.output_text.delta", facts))
    whole, status = text(0, output.tokens), _status(output)
    yield (
        output.tokens,
        _events(
            4 + output.tokens,
            ("response.output_text.done", {**place, "text": whole, "logprobs": []}),
            ("response.content_part.done", {**place, "part": _part(whole)}),
            ("response.output_item.done", {"output_index": 0, "item": _message(output, whole)}),
            (f"response.{status}", {"response": _response(ask, output, status)}),
        ),
    )


def _events(number: int, *events: tuple[str, dict[str, Any]]) -> bytes:
    """Events of a streamed response, numbered from *number* on."""
    return b"".join(
        event({"type": name, "sequence_number": number + i, **facts})
        for i, (name, facts) in enumerate(events)
    )


def _status(output: Output) -> str:
    return "incomplete" if output.cut else "completed"


def _finish(output: Output) -> str:
    return "length" if output.cut else "stop"


def _chat_usage(ask: Ask, output: Output) -> Any:
    return {
        "prompt_tokens": ask.input_tokens,
        "completion_tokens": output.tokens,
        "total_tokens": ask.input_tokens + output.tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _chat(kind: str, ask: Ask, output: Output, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": output.name("chatcmpl-"),
        "object": kind,
        "created": output.created,
        "model": ask.model,
        "service_tier": "default",
        "system_fingerprint": "fp_sandbox",
        "choices": choices,
    }


def _chunk(ask: Ask, output: Output, delta: Any, *, finish: str | None = None, usage: Any = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    chunk = _chat("chat.completion.chunk", ask, output, [] if delta is None else [choice])
    if ask.with_usage:
        chunk["usage"] = usage  # null in every chunk but the last
    return event(chunk, named=False)


def _part(content: str) -> Any:
    return {"type": "output_text", "text": content, "annotations": [], "logprobs": []}


def _message(output: Output, content: str) -> Any:
    return {
        "type": "message",
        "id": output.name("msg_"),
        "status": "completed",
        "role": "assistant",
        "content": [_part(content)],
    }


def _response(ask: Ask, output: Output, status: str) -> Any:
    done = status != "in_progress"
    usage = {
        "input_tokens": ask.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": ask.input_tokens + output.tokens,
    }
    return {
        **_FIXED,
        "id": output.name("resp_"),
        "created_at": output.created,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "max_output_tokens": ask.most_tokens,
        "model": ask.model,
        "output": [_message(output, text(0, output.tokens))] if done else [],
        "usage": usage if done else None,
    }
