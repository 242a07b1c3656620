"""Pure. How many tokens a request will be counted for, judged before it is sent.

A body may hold any bytes: parts that are not understood are left out, and nothing is raised. Providers count
by different rules (`RequestShape.style`); what they counted in the end is learned by host and model.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
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
    if not body:
        return NO_SHAPE
    if body[0] not in b"{[":
        body = body.removeprefix(BOM_UTF8)
        if body[:64].lstrip()[:1] not in (b"{", b"["):
            return NO_SHAPE
    document = parsed(body) if len(body) <= _LARGEST else _edges(body)
    return shape_of(method, host, path, body, document if isinstance(document, dict) else {})


def shape_of(method: str, host: str, path: str, body: bytes, document: Mapping[str, Any]) -> RequestShape:
    """What a request asks for, by its path and by the document that was encoded as its body."""
    route = _route(method, host, path)
    if route is None:
        return NO_SHAPE
    kind, model_in_path, adds = route
    model = document.get("model")
    if not isinstance(model, str) or not model:
        model = model_in_path
    style: Style = "sum"
    generates = True
    if kind == "counting":
        return RequestShape(model=model, generates=True)
    if kind == "chat" or (kind == "generation" and model is not None and not _PROMPTS.isdisjoint(document)):
        style = "sum" if adds else "openai"
    elif kind == "messages" and model is not None and "messages" in document:
        style = "anthropic"
    elif kind == "gemini":
        style = "gemini"
    else:
        generates = model is not None and not _PROMPTS.isdisjoint(document)
    messages = document.get("messages") or document.get("contents") or document.get("input")
    count, media, escapes = 1, True, True
    if isinstance(messages, list):
        count, media, escapes = len(messages), False, False
        for message in messages:
            content = message.get("content") if type(message) is dict else None
            if type(content) is not str:
                media = escapes = True
                break
            # A text is neither an image nor a file, and one in ASCII has no letters to be escaped.
            escapes = escapes or not content.isascii()
    tokens = estimate_tokens(body, count, media=media, escapes=escapes)
    return RequestShape(style, model, tokens, _max_output(document, style), generates)


@lru_cache(maxsize=1_024)
def _route(method: str, host: str, path: str) -> tuple[str, str | None, bool] | None:
    """What a path is for, by its end, the model that it names, and whether the host adds requested output.

    None if a request there generates nothing.
    """
    if method.upper() not in ("POST", "PUT", "PATCH"):
        return None
    path = path.partition("?")[0].rstrip("/")
    named = _MODEL_IN_PATH.search(path)
    kind = next((_ENDS[end] for end in _ENDS if path.endswith(end)), "")
    return kind, named[1] if named else None, host.partition(":")[0].endswith(_ADDING_HOSTS)


def estimate_tokens(body: bytes, messages: int = 0, *, media: bool = True, escapes: bool = True) -> int:
    """Roughly how many tokens these bytes are: four to a token, three where they are not ASCII.

    `media` is whether there may be images or files among them, `escapes` whether letters as `\\u00e9`.

    >>> estimate_tokens(b"x" * 4_000)
    1000
    """
    text, files = body, 0
    # One of these is in every body with a file, and searching for them takes half the time of the pattern.
    if media and (b";base64," in body or b'data"' in body or b'"b64_json"' in body or b'"bytes"' in body):
        text, files = _MEDIA.subn(b"", body)
    escaped = 0  # six bytes that stand for a letter of three
    if escapes and b"\\" in text:
        escaped = text.count(b"\\u")
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
    most = _first_count(document)
    for key in ("generationConfig", "inferenceConfig"):
        if most is None and isinstance(holder := document.get(key), dict):
            most = _first_count(holder)
    if most is not None and style == "sum" and _is_count(document.get("best_of")):
        most *= max(1, document["best_of"])
    return most


def _first_count(holder: Mapping[str, Any]) -> int | None:
    for key in _MAX_KEYS:
        if key in holder and _is_count(holder[key]):
            return int(holder[key])
    return None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= 10**9


def reservation(shape: RequestShape, ratio: float, output: int) -> dict[str, int]:
    """The amounts to reserve before sending, by unit; `ratio` and `output` come from `TokenStats`."""
    style, _, own, most, generates = shape
    if style == "openai":
        ratio = max(1.0, ratio)  # OpenAI counts its own estimate, even if less was used
    if ratio != 1.0:
        own = -int(-own * ratio // 1)
    answer = output if generates else 0
    if most is not None and style != "anthropic":
        answer = most
    total = own  # Gemini counts the input only
    if style == "openai":
        total = max(own, most or 0)
    elif style != "gemini":
        total += answer
    return {TOKENS: total, INPUT: own, OUTPUT: answer}


def settlement(style: Style, reserved: Mapping[str, int], usage: Usage) -> dict[str, int]:
    """The amounts that a finished request cost, by unit."""
    own, output, final, _, _ = usage
    if not final:  # the rest of an answer that broke off is unknown, so at least the reservation is kept
        output = max(output, reserved.get(OUTPUT, 0))
    total = own + output
    if style == "gemini":
        total = own
    elif style == "openai" or not final:  # OpenAI never gives back what it reserved
        total = max(total, reserved.get(TOKENS, 0))
    return {TOKENS: total, INPUT: own, OUTPUT: output}


# -- in the units that a gate counts; `counted` has the largest possible cost in each of them

COUNTED = (TOKENS, INPUT, OUTPUT)


def reserved_at(
    counted: Mapping[str, int], host: str, shape: RequestShape, stats: TokenStats
) -> dict[str, int]:
    """What a request will probably cost. A guess above the largest possible cost is cut to it.

    The server may decide about such a request.
    """
    if shape.style == "free" or counted.keys().isdisjoint(COUNTED):
        return {}
    guess = reservation(shape, *stats.expect(host, shape.model, shape.max_output))
    for unit in COUNTED:
        if unit not in counted:
            del guess[unit]
        elif guess[unit] > counted[unit]:
            guess[unit] = counted[unit]
    return guess


def cost_of_usage(
    counted: Mapping[str, int],
    host: str,
    shape: RequestShape,
    stats: TokenStats,
    reserved: Mapping[str, int],
    usage: Usage,
) -> dict[str, int]:
    """What a response says that its request has cost; the next estimates are better for it."""
    stats.learn(host, shape.model, shape.input, usage)
    costs = settlement(shape.style, reserved, usage)
    for unit in COUNTED:
        if unit not in counted:
            del costs[unit]
    return costs


def cost_of_error(counted: Mapping[str, int], status: int, *, limited: bool) -> dict[str, int] | None:
    """What a request cost that was answered by an error; None: it may have run, so the estimate stands."""
    if status >= 500 and not limited:
        return None
    return {unit: 0 for unit in counted if unit in COUNTED}


# Of counted to estimated tokens.
_LEAST_RATIO, _MOST_RATIO = 0.5, 4.0


class TokenStats:
    """What calls of each host and model cost, compared with their estimates.

    Threads write without a lock: an entry is replaced as a whole, and losing one in a race changes an average
    only slightly.
    """

    _MOST_MODELS = 1_024

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
        own, output, final, _, _ = usage
        key = (host, model)
        known = self._known.get(key)
        ratio, likely = (None, None) if known is None else known
        if estimated > 0 and own > 0:
            seen = own / estimated
            ratio = seen if ratio is None else ratio + 0.2 * (seen - ratio)
        if ratio is None:
            ratio = 1.0
        elif not _LEAST_RATIO <= ratio <= _MOST_RATIO:
            ratio = min(max(ratio, _LEAST_RATIO), _MOST_RATIO)
        if final:
            # Steps of 0.3 up and 0.1 down settle where three of four answers are shorter.
            step = 0.3 if likely is None or output > likely else 0.1
            likely = float(output) if likely is None else likely + step * (output - likely)
        while known is None and len(self._known) >= self._MOST_MODELS:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = (ratio, likely)
