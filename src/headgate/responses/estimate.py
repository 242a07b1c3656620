"""Pure. How many tokens a request will be counted for, judged before it is sent.

Rules of this room: pure and total. A body is bytes that somebody else wrote: what is not understood is left
out, nothing is raised. Providers count by different rules (`Shape.style`), and what they turned out to count
is learned by host and model.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

from ..frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from .usage import Usage

    Style: TypeAlias = Literal["openai", "anthropic", "gemini", "sum", "free"]

TOKENS, INPUT, OUTPUT = "tokens", "input_tokens", "output_tokens"

# The largest body that is parsed to find out what is in it; of a larger one only the beginning and the end
# are looked at.
_LARGEST = 1 << 20
_EDGE = 1 << 16

# An image or a file, whatever its size: encoded, it has a multiple of the bytes it has tokens.
_MEDIA_TOKENS = 1_200
_MEDIA = re.compile(
    rb'(?:;base64,|"(?:data|file_data|b64_json|bytes)"\s{0,8}:\s{0,8}")[\w+/=-]{256,}', re.ASCII
)
_FRAME_TOKENS = 4  # around every message
_ASCII = bytes(range(128))

# What is taken for an answer's length as long as none has been seen.
_USUAL_OUTPUT = 1_024

_MOST_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
_PROMPTS = ("messages", "input", "prompt", "contents")
_COUNTING = ("/count_tokens", "/input_tokens", ":countTokens")
_GEMINI = (":generateContent", ":streamGenerateContent", ":embedContent", ":batchEmbedContents")
# Compatible with OpenAI in all but this: they count what was asked for on top of the estimate.
_ADDING_HOSTS = ("azure.com", "groq.com")

_MODEL_KEY = re.compile(rb'"model"\s{0,8}:\s{0,8}"([^"\\]{1,200})"')
_MOST_KEY = re.compile(rb'"(?:%s)"\s{0,8}:\s{0,8}([0-9]{1,9})\b' % "|".join(_MOST_OUTPUT).encode())
_ROLE_KEY = re.compile(rb'"role"\s{0,8}:')
_PROMPT_KEY = re.compile(rb'"(%s)"\s{0,8}:\s{0,8}[\["{]' % "|".join(_PROMPTS).encode())
_MODEL_IN_PATH = re.compile(r"/(?:models|model|deployments|engines)/([^/:]+)")


class Shape(Frozen):
    """What a request asks for.

    `input` is the estimate of its own tokens, before anything was learned; `most_output` what it allows the
    answer, None if it does not say. `generates`: a model is called, so that doing it twice does no harm.
    """

    __slots__ = ("generates", "input", "model", "most_output", "style")
    style: Style
    model: str | None
    input: int
    most_output: int | None
    generates: bool


_NOTHING = Shape(style="free", model=None, input=0, most_output=None, generates=False)


def read_shape(method: str, host: str, path: str, body: bytes | None) -> Shape:
    """What a request asks for, by its path and its body.

    >>> read_shape("POST", "api.openai.com", "/v1/chat/completions", b'{"max_tokens": 50}').style
    'openai'
    """
    if method.upper() not in ("POST", "PUT", "PATCH") or not body:
        return _NOTHING
    if body[:64].lstrip()[:1] not in (b"{", b"["):
        return _NOTHING
    path = path.partition("?")[0].rstrip("/")
    document = _document(body)
    model = document.get("model")
    if not isinstance(model, str) or not model:
        named = _MODEL_IN_PATH.search(path)
        model = named[1] if named else None
    style, generates = _style(host, path, document, model)
    if style == "free":
        return Shape(style="free", model=model, input=0, most_output=None, generates=True)
    messages = document.get("messages") or document.get("contents") or document.get("input")
    return Shape(
        style=style,
        model=model,
        input=estimate_tokens(body, len(messages) if isinstance(messages, list) else 1),
        most_output=_most_output(document, style),
        generates=generates,
    )


def estimate_tokens(body: bytes, messages: int = 0) -> int:
    """Roughly how many tokens these bytes are: four to a token, three where they are not ASCII.

    >>> estimate_tokens(b"x" * 4_000)
    1000
    """
    text = body
    media = 0
    if len(body) > 256 and b'"' in body:
        text, media = _MEDIA.subn(b"", body)
    escaped = text.count(b"\\u")  # six bytes that stand for a letter of three
    others = len(text.translate(None, _ASCII)) + 3 * escaped
    ascii_bytes = len(text) - others - 3 * escaped
    words = max(0, (3 * ascii_bytes + 4 * others + 11) // 12)
    return words + media * _MEDIA_TOKENS + messages * _FRAME_TOKENS


def _style(host: str, path: str, document: Mapping[str, Any], model: str | None) -> tuple[Style, bool]:
    if path.endswith(_COUNTING):
        return "free", True
    prompted = any(key in document for key in _PROMPTS)
    if path.endswith("/chat/completions") or (
        model is not None and prompted and path.endswith(("/completions", "/responses", "/embeddings"))
    ):
        adds = host.partition(":")[0].endswith(_ADDING_HOSTS)
        return ("sum" if adds else "openai"), True
    if model is not None and path.endswith("/messages") and "messages" in document:
        return "anthropic", True
    if path.endswith(_GEMINI):
        return "gemini", True
    return "sum", model is not None and prompted


def _document(body: bytes) -> Mapping[str, Any]:
    """What of the body matters here."""
    if len(body) > _LARGEST:
        return _edges(body)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _edges(body: bytes) -> Mapping[str, Any]:
    """The same of a body too large to parse. A key inside a string has its quotes escaped: it is no match."""
    edges = body[:_EDGE] + b" " + body[-_EDGE:]
    found: dict[str, Any] = {}
    if match := _MODEL_KEY.search(edges):
        found["model"] = match[1].decode("utf-8", "replace")
    if match := _MOST_KEY.search(edges):
        found["max_tokens"] = int(match[1])
    if match := _PROMPT_KEY.search(edges):
        found[match[1].decode()] = [None] * len(_ROLE_KEY.findall(body))
    return found


def _most_output(document: Mapping[str, Any], style: Style) -> int | None:
    holders = (document, document.get("generationConfig"), document.get("inferenceConfig"))
    for holder in holders:
        if not isinstance(holder, dict):
            continue
        for key in (*_MOST_OUTPUT, "maxOutputTokens", "maxTokens"):
            most = _count(holder.get(key))
            if most is not None:
                times = _count(document.get("best_of")) if style == "sum" else None
                return most * max(1, times or 1)
    return None


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9:
        return value
    return None


# What to reserve, and what to settle for


def reservation(shape: Shape, ratio: float, output: int) -> dict[str, int]:
    """What to take before sending, by unit: `ratio` and `output` are what was learned."""
    if shape.style == "openai":
        ratio = max(1.0, ratio)  # it counts by an estimate of its own, which facts do not lower
    own = -int(-shape.input * ratio // 1)
    most = shape.most_output
    if not shape.generates:
        output = 0
    if shape.style == "openai":
        total = max(own, most or 0)
    elif shape.style == "anthropic":
        total = own + output
    elif shape.style == "gemini":
        total = own  # nothing else counts there
    else:
        total = own + (output if most is None else most)
    answer = output if most is None or shape.style == "anthropic" else most
    return {TOKENS: total, INPUT: own, OUTPUT: answer}


def settlement(style: Style, reserved: Mapping[str, int], usage: Usage) -> dict[str, int]:
    """What it was, by unit, when this is what was used."""
    # An answer that broke off was longer than what has been heard of it.
    output = usage.output if usage.final else max(usage.output, reserved.get(OUTPUT, 0))
    total = usage.input + output
    if style == "openai":
        total = max(reserved.get(TOKENS, 0), total)  # what was reserved there is never given back
    elif style == "gemini":
        total = usage.input
    elif not usage.final:
        total = max(total, reserved.get(TOKENS, 0))
    return {TOKENS: total, INPUT: usage.input, OUTPUT: output}


class Lessons:
    """What was counted for calls of a host and a model, beside what had been estimated.

    Written by any thread without a lock: an entry is replaced as a whole, and one that is lost in a race
    would have moved an average by a little.
    """

    __slots__ = ("_known",)

    _MOST = 1_024  # models that are remembered
    _LEAST_RATIO, _MOST_RATIO = 0.5, 4.0

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[float, float | None]] = {}

    def ratio(self, host: str, model: str | None) -> float:
        """How many tokens were counted for each that was estimated."""
        return self._known.get((host, model), (1.0, None))[0]

    def output(self, host: str, model: str | None, most: int | None) -> int:
        """How long an answer is likely to be: longer than most have been."""
        likely = self._known.get((host, model), (1.0, None))[1]
        predicted = _USUAL_OUTPUT if likely is None else round(likely)
        return predicted if most is None else min(predicted, most)

    def learn(self, host: str, model: str | None, estimated: int, usage: Usage) -> None:
        """One call is over."""
        known = self._known.get((host, model))
        ratio, likely = (None, None) if known is None else known
        if estimated > 0 and usage.input > 0:
            seen = usage.input / estimated
            ratio = seen if ratio is None else ratio + 0.2 * (seen - ratio)
        ratio = min(max(ratio or 1.0, self._LEAST_RATIO), self._MOST_RATIO)
        if usage.final:
            output = float(usage.output)
            # Up quickly and down slowly comes to rest where three of four answers are shorter.
            step = 0.3 if likely is None or output > likely else 0.1
            likely = output if likely is None else likely + step * (output - likely)
        while len(self._known) >= self._MOST and (host, model) not in self._known:
            self._known.pop(next(iter(self._known)), None)
        self._known[host, model] = (ratio, likely)
