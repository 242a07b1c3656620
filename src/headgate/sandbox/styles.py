"""How each API speaks: what a request asks for, and how answers, budgets and refusals are written.

Rules of this room: shapes only. Nothing is counted and nothing decided here; wall-clock time comes in as an
argument. Header names and bodies are those of the providers, so that their own SDKs see no difference.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from functools import lru_cache
from struct import pack
from time import gmtime
from typing import TYPE_CHECKING, Any, ClassVar

from ..arguments import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..limits import Rate

    Pairs = list[tuple[str, str]]

MODEL = "sandbox-1"  # the one that GET /models lists; any other name is served too
LONGEST_REPLY = 100_000  # tokens
_MOST_TOKENS = 10_000_000  # that a request may reserve
_TEXT = "the gate lets the water in as fast as the canal can take it and no faster so the fields stay green"
_WORDS = _TEXT.split()


@dataclass(slots=True)
class Request:
    """What came over the wire. Names of headers are lower-case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Ask:
    """What a request wants."""

    endpoint: str
    model: str = ""
    stream: bool = False
    with_usage: bool = False
    input_tokens: int = 0
    most_tokens: int | None = None  # what the request reserves for the answer
    wanted_tokens: int | None = None  # how long it asks the answer to be
    items: int = 0  # vectors
    width: int = 0  # of each
    base64: bool = False
    answer: tuple[int, Any] | None = None  # known without asking any limit


@dataclass(slots=True)
class Level:
    """Where one budget stands."""

    unit: str
    rate: Rate
    remaining: int
    reset: int  # nanoseconds until it is full


@dataclass(slots=True)
class Refusal:
    """Why a request is not served: what it asked of which budget, and how long until it would fit."""

    unit: str
    level: Level | None = None
    requested: int = 0
    wait: int | None = None  # None: no clock can tell
    most: int = 0  # for one that can never fit: what does


@dataclass(slots=True)
class Output:
    """The answer to a request: its identity, when it was made, and how much of it there is."""

    serial: int
    created: int  # seconds since 1970
    tokens: int = 0
    cut: bool = False  # by the request's own maximum

    def name(self, prefix: str) -> str:
        return f"{prefix}{self.serial:024x}"


def text(start: int, stop: int) -> str:
    """So many tokens of an answer: one word each."""
    return "".join(_WORDS[i % len(_WORDS)] + " " for i in range(start, stop))


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: object, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return head + encode(value) + b"\n\n"


def go_duration(ns: int) -> str:
    """As Go prints it, in whole milliseconds, rounded up: 20ms, 1.5s, 6m0s."""
    ms = -(-ns // 1_000_000)
    if ms == 0:
        return "0s"
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


@lru_cache(maxsize=64)
def http_date(seconds: int) -> str:
    day = gmtime(seconds)
    weekday = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[day.tm_wday]
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * day.tm_mon - 3 : 3 * day.tm_mon]
    clock = f"{day.tm_hour:02}:{day.tm_min:02}:{day.tm_sec:02}"
    return f"{weekday}, {day.tm_mday:02} {month} {day.tm_year} {clock} GMT"


def rfc3339(ns: int) -> str:
    """A moment in whole seconds, rounded up."""
    day = gmtime(-(-ns // SECOND))
    clock = f"{day.tm_hour:02}:{day.tm_min:02}:{day.tm_sec:02}"
    return f"{day.tm_year}-{day.tm_mon:02}-{day.tm_mday:02}T{clock}Z"


def key_of(request: Request) -> str:
    """Whose request it is."""
    key = request.headers.get("x-api-key")
    if key is None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
    return key or "anonymous"


def period_of(rate: Rate) -> str:
    """How a period is called: minute, or 250ms."""
    return rate.name.partition("/")[2]


_SHORT = {60 * SECOND: "min", SECOND: "second", 3600 * SECOND: "hour", 86400 * SECOND: "day"}


class Wrong(Exception):
    """The request cannot be understood."""


class Style:
    """What all styles have in common: reading a JSON body, and delivering what was asked for."""

    name: ClassVar[str]
    units: ClassVar[tuple[str, ...]]  # what there can be a limit on
    refusals_count: ClassVar[bool]

    def read(self, request: Request) -> Ask:
        path = request.path.partition("?")[0].rstrip("/")
        try:
            return self._read(request, path)
        except Wrong as wrong:
            return Ask("", answer=(400, self.error(400, str(wrong))))

    def _read(self, request: Request, path: str) -> Ask:
        raise NotImplementedError

    def charges(self, ask: Ask) -> dict[str, tuple[int, int]]:
        """For each unit, what must be there and what is taken at admission."""
        tokens = max(ask.most_tokens or 0, ask.input_tokens)
        return {"requests": (1, 1), "tokens": (tokens, tokens)}

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        """The body of an error. *kind* is the provider's word for its type."""
        raise NotImplementedError

    def identity(self, output: Output) -> Pairs:
        """Headers that tell one answer from another."""
        return [("x-request-id", output.name("req_"))]

    def budget(self, levels: Sequence[Level], wall: int) -> Pairs:
        """Headers that say where the budgets stand."""
        raise NotImplementedError

    def advice(self, wait: int) -> Pairs:
        """Headers that say when to try again."""
        return [("retry-after", str(max(1, -(-wait // SECOND))))]

    def refusal(self, refusal: Refusal, ask: Ask, *, hint: bool) -> tuple[int, Any]:
        """Status and body for a request the limits do not allow."""
        raise NotImplementedError

    def quota(self) -> tuple[int, Any]:
        """Status and body when the money is gone."""
        raise NotImplementedError

    def overload(self) -> tuple[int, Any]:
        raise NotImplementedError

    def stream_error(self, ask: Ask, output: Output) -> bytes:
        raise NotImplementedError

    def reply(self, ask: Ask, output: Output) -> Any:
        """The whole answer."""
        raise NotImplementedError

    def begin(self, ask: Ask, output: Output) -> bytes:
        """What a stream opens with."""
        raise NotImplementedError

    def piece(self, ask: Ask, output: Output, start: int, stop: int) -> bytes:
        """The tokens from *start* to *stop* of a stream."""
        raise NotImplementedError

    def end(self, ask: Ask, output: Output) -> bytes:
        raise NotImplementedError


# Reading


def _document(request: Request) -> dict[str, Any]:
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Wrong("We could not parse the JSON body of your request.") from None
    if not isinstance(document, dict):
        raise Wrong("The body of your request must be a JSON object.")
    return document


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise Wrong(f"{what}: {value!r:.40} is not a whole number from 1 to {_MOST_TOKENS}.")
    return value


def _first(document: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        if document.get(name) is not None:
            return _count(document[name], name)
    return None


def _number(value: object) -> int | None:
    """A hint, as a number or as text: metadata is often text only."""
    digits = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None


def input_tokens(request: Request) -> int:
    """A token for every four bytes, unless the request says otherwise."""
    said = _number(request.headers.get("x-sandbox-tokens", ""))
    return -(-len(request.body) // 4) if said is None else said


def _wanted(request: Request, document: Mapping[str, Any]) -> int | None:
    metadata = document.get("metadata")
    said = metadata.get("sandbox_output_tokens") if isinstance(metadata, dict) else None
    return _number(request.headers.get("x-sandbox-output-tokens", said))


def _model(document: Mapping[str, Any]) -> str:
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise Wrong("you must provide a model parameter")
    return model[:200]


# OpenAI


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

    def _read(self, request: Request, path: str) -> Ask:
        path = path.removeprefix("/v1")
        if path == "/models" or path.startswith("/models/"):
            model = {
                "id": path[8:] or MODEL,
                "object": "model",
                "created": 1_800_000_000,
                "owned_by": "sandbox",
            }
            listed = {"object": "list", "data": [model]}
            return Ask("models", answer=(200, listed if path == "/models" else model))
        endpoint = self._ENDPOINTS.get(path)
        if endpoint is None:
            message = f"Invalid URL ({request.method} {request.path[:200]})"
            return Ask("", answer=(404, self.error(404, message)))
        if request.method != "POST":
            message = f"Not allowed to {request.method} on {path}."
            return Ask("", answer=(405, self.error(405, message, code="method_not_supported")))
        document = _document(request)
        ask = Ask(endpoint, _model(document), input_tokens=input_tokens(request))
        if endpoint == "count":
            ask.answer = (200, {"object": "response.input_tokens", "input_tokens": ask.input_tokens})
        elif endpoint == "embeddings":
            inputs = document.get("input")
            many = isinstance(inputs, list) and not (inputs and isinstance(inputs[0], int))
            ask.items = min(len(inputs), 2048) if many and isinstance(inputs, list) else 1
            ask.width = min(_first(document, ("dimensions",)) or 8, 4096)
            ask.base64 = document.get("encoding_format") == "base64"
        else:
            ask.stream = document.get("stream") is True
            options = document.get("stream_options")
            ask.with_usage = isinstance(options, dict) and options.get("include_usage") is True
            ask.most_tokens = _first(document, self._RESERVE[endpoint])
            ask.wanted_tokens = _wanted(request, document)
        return ask

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def identity(self, output: Output) -> Pairs:
        return [("x-request-id", output.name("req_")), ("openai-version", "2020-10-01")]

    def budget(self, levels: Sequence[Level], wall: int) -> Pairs:  # noqa: ARG002
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

    def quota(self) -> tuple[int, Any]:
        message = "You exceeded your current quota, please check your plan and billing details."
        return 429, self.error(429, message, kind="insufficient_quota", code="insufficient_quota")

    def overload(self) -> tuple[int, Any]:
        return 503, self.error(503, "Slow down", code="slow_down")

    def stream_error(self, ask: Ask, output: Output) -> bytes:
        message = "The server is currently overloaded. Please try again later."
        if ask.endpoint == "responses":
            said = {"type": "error", "code": "server_overloaded", "message": message, "param": None}
            return event({**said, "sequence_number": output.tokens + 8}, "error")
        return event(self.error(503, message, code="server_overloaded"))

    def reply(self, ask: Ask, output: Output) -> Any:
        if ask.endpoint == "embeddings":
            vector = [((i * 37 + output.serial) % 101 - 50) / 512 for i in range(ask.width)]
            shown = b64encode(pack(f"<{ask.width}f", *vector)).decode() if ask.base64 else vector
            listed = [{"object": "embedding", "index": i, "embedding": shown} for i in range(ask.items)]
            usage = {"prompt_tokens": ask.input_tokens, "total_tokens": ask.input_tokens}
            return {"object": "list", "data": listed, "model": ask.model, "usage": usage}
        if ask.endpoint == "responses":
            return _response(ask, output, "incomplete" if output.cut else "completed")
        content = text(0, output.tokens)
        message: Any = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        return {
            "id": output.name("chatcmpl-"),
            "object": "chat.completion",
            "created": output.created,
            "model": ask.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(output)}],
            "usage": _chat_usage(ask, output),
            "service_tier": "default",
            "system_fingerprint": "fp_sandbox",
        }

    def begin(self, ask: Ask, output: Output) -> bytes:
        if ask.endpoint == "chat":
            return _chunk(ask, output, {"role": "assistant", "content": "", "refusal": None})
        response = _response(ask, output, "in_progress")
        item = {**_message(output, ""), "status": "in_progress", "content": []}
        where = {"item_id": output.name("msg_"), "output_index": 0, "content_index": 0}
        return b"".join(
            event({"type": name, "sequence_number": number, **facts}, name)
            for number, (name, facts) in enumerate(
                [
                    ("response.created", {"response": response}),
                    ("response.in_progress", {"response": response}),
                    ("response.output_item.added", {"output_index": 0, "item": item}),
                    ("response.content_part.added", {**where, "part": _part("")}),
                ]
            )
        )

    def piece(self, ask: Ask, output: Output, start: int, stop: int) -> bytes:
        if ask.endpoint == "chat":
            return _chunk(ask, output, {"content": text(start, stop)})
        name = "response.output_text.delta"
        where = {"item_id": output.name("msg_"), "output_index": 0, "content_index": 0, "logprobs": []}
        return event({"type": name, "sequence_number": 4 + start, **where, "delta": text(start, stop)}, name)

    def end(self, ask: Ask, output: Output) -> bytes:
        if ask.endpoint == "chat":
            closing = _chunk(ask, output, {}, finish=_finish(output))
            if ask.with_usage:
                closing += _chunk(ask, output, None, usage=_chat_usage(ask, output))
            return closing + b"data: [DONE]\n\n"
        whole = text(0, output.tokens)
        status = "incomplete" if output.cut else "completed"
        where = {"item_id": output.name("msg_"), "output_index": 0, "content_index": 0}
        return b"".join(
            event({"type": name, "sequence_number": 4 + output.tokens + number, **facts}, name)
            for number, (name, facts) in enumerate(
                [
                    ("response.output_text.done", {**where, "text": whole, "logprobs": []}),
                    ("response.content_part.done", {**where, "part": _part(whole)}),
                    ("response.output_item.done", {"output_index": 0, "item": _message(output, whole)}),
                    (f"response.{status}", {"response": _response(ask, output, status)}),
                ]
            )
        )


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


def _chunk(ask: Ask, output: Output, delta: Any, *, finish: str | None = None, usage: Any = None) -> bytes:
    chunk = {
        "id": output.name("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": output.created,
        "model": ask.model,
        "service_tier": "default",
        "system_fingerprint": "fp_sandbox",
        "choices": [],
    }
    if delta is not None:
        chunk["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    if ask.with_usage:
        chunk["usage"] = usage  # null in every chunk but the last
    return event(chunk)


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
        "id": output.name("resp_"),
        "object": "response",
        "created_at": output.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": ask.most_tokens,
        "model": ask.model,
        "output": [_message(output, text(0, output.tokens))] if done else [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage if done else None,
        "user": None,
        "metadata": {},
    }


# Anthropic


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

    def _read(self, request: Request, path: str) -> Ask:
        path = path.removeprefix("/v1")
        if path == "/models":
            made = {"display_name": "Sandbox 1", "created_at": "2027-01-15T08:00:00Z"}
            page = {"data": [{"type": "model", "id": MODEL, **made}], "has_more": False}
            return Ask("models", answer=(200, {**page, "first_id": MODEL, "last_id": MODEL}))
        if path not in ("/messages", "/messages/count_tokens"):
            return Ask("", answer=(404, self.error(404, f"Not found: {request.path[:200]}")))
        if request.method != "POST":
            return Ask("", answer=(405, self.error(405, "Method Not Allowed")))
        document = _document(request)
        ask = Ask("messages", _model(document), input_tokens=input_tokens(request))
        if path == "/messages/count_tokens":
            ask.endpoint = "count"
            ask.answer = (200, {"input_tokens": ask.input_tokens})
            return ask
        ask.most_tokens = _first(document, ("max_tokens",))
        if ask.most_tokens is None:
            raise Wrong("max_tokens: Field required")
        ask.stream = document.get("stream") is True
        ask.wanted_tokens = _wanted(request, document)
        return ask

    def charges(self, ask: Ask) -> dict[str, tuple[int, int]]:
        # Output is counted as it is produced; to be let in, there must be some left.
        tokens = ask.input_tokens
        return {"requests": (1, 1), "input_tokens": (tokens, tokens), "output_tokens": (1, 0)}

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        said: dict[str, Any] = {"type": kind or self._KINDS.get(status, "api_error"), "message": message}
        if code is not None:
            said["details"] = {"error_code": code}
        return {"type": "error", "error": said, "request_id": None}

    def identity(self, output: Output) -> Pairs:
        return [("request-id", output.name("req_")), ("anthropic-organization-id", "sandbox")]

    def budget(self, levels: Sequence[Level], wall: int) -> Pairs:
        pairs: Pairs = []
        shown = [(level.unit.replace("_", "-"), level) for level in levels]
        tokens = [level for level in levels if level.unit != "requests"]
        if tokens:  # besides, the budget that is nearest to its end, under the common name
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

    def quota(self) -> tuple[int, Any]:
        message = "You have reached your API usage limits."
        return 429, self.error(429, message, code="enforced_spend_limit_reached")

    def overload(self) -> tuple[int, Any]:
        return 529, self.error(529, "Overloaded")

    def stream_error(self, ask: Ask, output: Output) -> bytes:  # noqa: ARG002
        said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return event(said, "error")

    def _usage(self, ask: Ask, tokens: int) -> Any:
        cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {
            "input_tokens": ask.input_tokens,
            **cache,
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

    def begin(self, ask: Ask, output: Output) -> bytes:
        message = {**self._shell(ask, output), "usage": self._usage(ask, 1)}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return (
            event({"type": "message_start", "message": message}, "message_start")
            + event(block, "content_block_start")
            + event({"type": "ping"}, "ping")
        )

    def piece(self, ask: Ask, output: Output, start: int, stop: int) -> bytes:  # noqa: ARG002
        delta = {"type": "text_delta", "text": text(start, stop)}
        return event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")

    def end(self, ask: Ask, output: Output) -> bytes:
        delta = {"stop_reason": self._stop(output), "stop_sequence": None}
        usage = self._usage(ask, output.tokens)
        return (
            event({"type": "content_block_stop", "index": 0}, "content_block_stop")
            + event({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
            + event({"type": "message_stop"}, "message_stop")
        )


# Anything else


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
                ask.most_tokens = _number(document.get("max_tokens")) or None
                ask.wanted_tokens = _wanted(request, document)
        if ask.wanted_tokens is None:
            ask.wanted_tokens = _wanted(request, {}) or 0
        return ask

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        said: dict[str, Any] = {"status": status, "message": message}
        if code or kind:
            said["code"] = code or kind
        return {"error": said}

    def budget(self, levels: Sequence[Level], wall: int) -> Pairs:  # noqa: ARG002
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


STYLES: dict[str, type[Style]] = {style.name: style for style in (OpenAI, Anthropic, Plain)}
