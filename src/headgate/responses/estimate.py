"""Pure. How many tokens a request will be counted for, judged before it is sent.

A body may hold any bytes: parts that are not understood are left out, and nothing is raised. Providers count
by different rules (`RequestShape.style`); what they counted in the end is learned by host and model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from .usage import Usage
from .wire import parsed

Style: TypeAlias = Literal["openai", "anthropic", "gemini", "sum", "free"]

TOKENS, INPUT, OUTPUT = "tokens", "input_tokens", "output_tokens"

# The largest body that is parsed, and how much of the beginning and end of a larger one is searched.
_LARGEST = 1 << 20
_EDGE = 1 << 16

# The estimate for an image or a file of any size: its encoded bytes say nothing about its tokens.
_MEDIA_TOKENS = 1_200
_MEDIA = re.compile(
    rb'(?:;base64,|"(?:data|file_data|b64_json|bytes)"\s{0,8}:\s{0,8}")[\w+/=-]{256,}', re.ASCII
)
_FRAME_TOKENS = 4  # around every message
_ASCII = bytes(range(128))

# The assumed length of an answer until one has been seen.
_USUAL_OUTPUT = 1_024

_MAX_OUTPUT_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
_MAX_KEYS = (*_MAX_OUTPUT_KEYS, "maxOutputTokens", "maxTokens")
_PROMPTS = frozenset({"messages", "input", "prompt", "contents"})
# What a path is for, by its end.
_ENDS = {
    **dict.fromkeys(("/count_tokens", "/input_tokens", ":countTokens"), "counting"),
    "/chat/completions": "chat",
    **dict.fromkeys(("/completions", "/responses", "/embeddings"), "generation"),
    "/messages": "messages",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
    ":embedContent": "gemini",
    ":batchEmbedContents": "gemini",
}
# Hosts of OpenAI-compatible APIs that count the requested output in addition to the input.
_ADDING_HOSTS = ("azure.com", "groq.com")

_MODEL_KEY = re.compile(rb'"model"\s{0,8}:\s{0,8}"([^"\\]{1,200})"')
_MAX_KEY = re.compile(rb'"(?:%s)"\s{0,8}:\s{0,8}([0-9]{1,9})\b' % "|".join(_MAX_OUTPUT_KEYS).encode())
_ROLE_KEY = re.compile(rb'"role"\s{0,8}:')
_PROMPT_KEY = re.compile(rb'"(%s)"\s{0,8}:\s{0,8}[\["{]' % "|".join(sorted(_PROMPTS)).encode())
_MODEL_IN_PATH = re.compile(r"/(?:models|model|deployments|engines)/([^/:]+)")


class RequestShape(NamedTuple):
    """What a request asks for.

    `input` is the estimate of its own tokens without anything learned. `max_output` is what the request
    allows the answer, None if it does not say. `generates` is whether it calls a model, so that sending it
    twice does no harm.
    """

    style: Style = "free"
    model: str | None = None
    input: int = 0
    max_output: int | None = None
    generates: bool = False


NO_SHAPE = RequestShape()


def read_shape(method: str, host: str, path: str, body: bytes | None) -> RequestShape:
    """What a request asks for, by its path and its body.

    >>> read_shape("POST", "api.openai.com", "/v1/chat/completions", b'{"max_tokens": 50}').style
    'openai'
    """
    if not body or (body[0] not in b"{[" and body[:64].lstrip()[:1] not in (b"{", b"[")):
        return NO_SHAPE
    document = parsed(body) if len(body) <= _LARGEST else _edges(body)
    return shape_of(method, host, path, body, document if isinstance(document, dict) else {})


def shape_of(method: str, host: str, path: str, body: bytes, document: Mapping[str, Any]) -> RequestShape:
    """What a request asks for, by its path and by the document that was encoded as its body."""
    route = _route(method, path)
    if route is None:
        return NO_SHAPE
    kind, model_in_path = route
    model = document.get("model")
    if not isinstance(model, str) or not model:
        model = model_in_path
    prompted = not _PROMPTS.isdisjoint(document)
    style: Style = "sum"
    generates = True
    if kind == "counting":
        return RequestShape(model=model, generates=True)
    if kind == "chat" or (kind == "generation" and model is not None and prompted):
        style = "sum" if host.partition(":")[0].endswith(_ADDING_HOSTS) else "openai"
    elif kind == "messages" and model is not None and "messages" in document:
        style = "anthropic"
    elif kind == "gemini":
        style = "gemini"
    else:
        generates = model is not None and prompted
    messages = document.get("messages") or document.get("contents") or document.get("input")
    count = len(messages) if isinstance(messages, list) else 1
    tokens = estimate_tokens(body, count, media=not _is_only_text(messages))
    return RequestShape(style, model, tokens, _max_output(document, style), generates)


@lru_cache(maxsize=1_024)
def _route(method: str, path: str) -> tuple[str, str | None] | None:
    """What a path is for, by its end, and the model that it names; None if it generates nothing."""
    if method.upper() not in ("POST", "PUT", "PATCH"):
        return None
    path = path.partition("?")[0].rstrip("/")
    named = _MODEL_IN_PATH.search(path)
    ends = (end for end in _ENDS if path.endswith(end))
    return next((_ENDS[end] for end in ends), ""), named[1] if named else None


def _is_only_text(messages: object) -> bool:
    """Whether no message can hold an image or a file: each of them has a text for its content."""
    if not isinstance(messages, list):
        return False
    for message in messages:
        if type(message) is not dict or type(message.get("content")) is not str:
            return False
    return True


def estimate_tokens(body: bytes, messages: int = 0, *, media: bool = True) -> int:
    """Roughly how many tokens these bytes are: four to a token, three where they are not ASCII.

    `media` is whether there may be images or files among them.

    >>> estimate_tokens(b"x" * 4_000)
    1000
    """
    text, files = body, 0
    # One of these is in every body with a file, and searching for them takes half the time of the pattern.
    if media and (b";base64," in body or b'data"' in body or b'"b64_json"' in body or b'"bytes"' in body):
        text, files = _MEDIA.subn(b"", body)
    escaped = text.count(b"\\u")  # six bytes that stand for a letter of three
    others = 3 * escaped
    if not text.isascii():
        others += len(text.translate(None, _ASCII))
    ascii_bytes = len(text) - others - 3 * escaped
    words = max(0, (3 * ascii_bytes + 4 * others + 11) // 12)
    return words + files * _MEDIA_TOKENS + messages * _FRAME_TOKENS


def _edges(body: bytes) -> dict[str, Any]:
    """The keys at both ends of a body too large to parse.

    Keys inside strings do not match: their quotes are escaped.
    """
    edges = body[:_EDGE] + b" " + body[-_EDGE:]
    found: dict[str, Any] = {}
    if match := _MODEL_KEY.search(edges):
        found["model"] = match[1].decode("utf-8", "replace")
    if match := _MAX_KEY.search(edges):
        found["max_tokens"] = int(match[1])
    if match := _PROMPT_KEY.search(edges):
        found[match[1].decode()] = [None] * len(_ROLE_KEY.findall(body))
    return found


def _max_output(document: Mapping[str, Any], style: Style) -> int | None:
    most = None
    for holder in (document, document.get("generationConfig"), document.get("inferenceConfig")):
        if most is None and isinstance(holder, dict):
            for key in _MAX_KEYS:
                if key in holder and _is_count(holder[key]):
                    most = int(holder[key])
                    break
    if most is not None and style == "sum" and _is_count(document.get("best_of")):
        most *= max(1, document["best_of"])
    return most


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= 10**9


def reservation(shape: RequestShape, ratio: float, output: int) -> dict[str, int]:
    """The amounts to reserve before sending, by unit; `ratio` and `output` come from `TokenStats`."""
    if shape.style == "openai":
        ratio = max(1.0, ratio)  # OpenAI counts its own estimate, even if less was used
    own = -int(-shape.input * ratio // 1)
    answer = output if shape.generates else 0
    if shape.max_output is not None and shape.style != "anthropic":
        answer = shape.max_output
    if shape.style == "openai":
        total = max(own, shape.max_output or 0)
    else:
        total = own if shape.style == "gemini" else own + answer  # Gemini counts the input only
    return {TOKENS: total, INPUT: own, OUTPUT: answer}


def settlement(style: Style, reserved: Mapping[str, int], usage: Usage) -> dict[str, int]:
    """The amounts that a finished request cost, by unit."""
    # The rest of an answer that broke off is unknown, so at least the reservation is kept.
    output = usage.output if usage.final else max(usage.output, reserved.get(OUTPUT, 0))
    total = usage.input + output
    if style == "openai":
        total = max(reserved.get(TOKENS, 0), total)  # OpenAI never gives back what it reserved
    elif style == "gemini":
        total = usage.input
    elif not usage.final:
        total = max(total, reserved.get(TOKENS, 0))
    return {TOKENS: total, INPUT: usage.input, OUTPUT: output}


class TokenStats:
    """What calls of each host and model cost, compared with their estimates.

    Threads write without a lock: an entry is replaced as a whole, and losing one in a race changes an average
    only slightly.
    """

    _MOST_MODELS = 1_024
    _LEAST_RATIO, _MOST_RATIO = 0.5, 4.0

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[float, float | None]] = {}

    def ratio(self, host: str, model: str | None) -> float:
        """Counted input tokens per estimated token."""
        return self.expect(host, model, None)[0]

    def output(self, host: str, model: str | None, most: int | None) -> int:
        """The likely length of an answer: about three of four were shorter."""
        return self.expect(host, model, most)[1]

    def expect(self, host: str, model: str | None, most: int | None) -> tuple[float, int]:
        """What `ratio` and `output` return."""
        ratio, likely = self._known.get((host, model), (1.0, None))
        predicted = _USUAL_OUTPUT if likely is None else round(likely)
        return ratio, predicted if most is None else min(predicted, most)

    def learn(self, host: str, model: str | None, estimated: int, usage: Usage) -> None:
        """Include the usage of a finished call."""
        known = self._known.get((host, model))
        ratio, likely = (None, None) if known is None else known
        if estimated > 0 and usage.input > 0:
            seen = usage.input / estimated
            ratio = seen if ratio is None else ratio + 0.2 * (seen - ratio)
        ratio = min(max(ratio or 1.0, self._LEAST_RATIO), self._MOST_RATIO)
        if usage.final:
            output = float(usage.output)
            # Steps of 0.3 up and 0.1 down settle where three of four answers are shorter.
            step = 0.3 if likely is None or output > likely else 0.1
            likely = output if likely is None else likely + step * (output - likely)
        while len(self._known) >= self._MOST_MODELS and (host, model) not in self._known:
            self._known.pop(next(iter(self._known)), None)
        self._known[host, model] = (ratio, likely)
