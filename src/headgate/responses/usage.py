"""Pure. How many tokens a call used, as its response says: in a body, or piece by piece in a stream.

Bytes arrive in pieces of any size. Reading them raises nothing and keeps no more than is needed to find the
figures. A missing figure is None.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from .wire import parsed, raw_decode

# A body up to _WHOLE bytes is kept and parsed; only the end of a longer one is, where the figures are.
_WHOLE = 1 << 18
_TAIL = 1 << 16

_USAGE_KEY = re.compile(rb'"(usage|usageMetadata)"\s{0,8}:\s{0,8}(?=\{)')
_BRACE = ord("{")
_MODEL_KEY = re.compile(rb'"model(?:Version)?"\s{0,8}:\s{0,8}"([^"\\]{1,200})"')
_USAGE_KEYS = (b'"usage"', b'"usageMetadata"')
_NO_ERROR = re.compile(rb'"error"\s{0,8}:\s{0,8}null\b')
_EVENT_LINE = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf", b"\n", b"\r")


class Usage(NamedTuple):
    """Tokens that count against limits, without the cached ones that a provider does not count.

    `final` is whether the response was complete when it stated these figures. `cached` is how many tokens of
    the input were read from the provider's cache, and `beside` how many of those are not among `input`.
    """

    input: int
    output: int
    final: bool
    cached: int = 0
    beside: int = 0


def usage_of(given: object, *, final: bool = True) -> Usage | None:
    """The usage in a provider's own figures; None if there are none.

    >>> usage_of({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12})
    Usage(input=9, output=3, final=True, cached=0, beside=0)
    """
    if not isinstance(given, dict):
        return None
    figures: dict[str, Any] = given
    if "tokens" in figures and isinstance(figures["tokens"], dict):  # Cohere
        figures = figures["tokens"]
    own = _first(figures, _INPUT)
    output = _first(figures, _OUTPUT)
    if own is None:
        total = _first(figures, _TOTAL)
        if output is None and total is None:
            return None
        own = max(0, (total or 0) - (output or 0))
    if "cache_creation_input_tokens" in figures or "cacheWriteInputTokens" in figures:
        # Anthropic and Bedrock state tokens written to a cache beside `input_tokens`, and count them.
        own += _first(figures, _WRITTEN) or 0
    if "thoughtsTokenCount" in figures:
        output = (output or 0) + (_first(figures, _THOUGHTS) or 0)
    details = figures.get("prompt_tokens_details") or figures.get("input_tokens_details")
    if type(details) is dict:
        if not details.get("cached_tokens"):  # nearly always
            return Usage(own, output or 0, final)
        cached = _first(details, _CACHED)
    elif "cache_read_input_tokens" in figures or "cacheReadInputTokens" in figures:
        cached = _first(figures, _READ)
        if "prompt_tokens" not in figures:  # so do Anthropic and Bedrock state tokens read
            return Usage(own, output or 0, final, cached or 0, cached or 0)
    else:
        cached = _first(figures, _CACHED)
    return Usage(own, output or 0, final, min(cached or 0, own))


_INPUT = ("prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens")
_OUTPUT = ("completion_tokens", "output_tokens", "candidatesTokenCount", "outputTokens")
_TOTAL = ("total_tokens", "totalTokenCount", "totalTokens")
_WRITTEN = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_THOUGHTS = ("thoughtsTokenCount",)
_READ = ("cache_read_input_tokens", "cacheReadInputTokens")
_CACHED = ("cached_tokens", "cachedContentTokenCount", "prompt_cache_hit_tokens")


def _first(figures: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in figures:
            value = figures[name]
            if type(value) is int and 0 <= value <= 10**12:  # nearly always
                return value
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 10**12:
                return int(value)
    return None


class UsageReader:
    """Finds the usage in the bytes of one response while they are read.

    `usage` is what has been found so far, and `error` an error document inside a success. `model` is what the
    response calls its model, if it states a usage and `names_model` asks for it. The bytes may be compressed
    or not.
    """

    __slots__ = (
        "_buffer",
        "_complete",
        "_cut",
        "_figures",
        "_inflater",
        "_kind",
        "_names_model",
        "error",
        "model",
    )

    def __init__(self, content_type: str, content_encoding: str = "", *, names_model: bool = False) -> None:
        self.model: str | None = None
        self._names_model = names_model
        self._buffer = bytearray()
        self._cut = False  # whether the beginning of the buffer was dropped
        self._figures: dict[str, Any] = {}
        self._complete = False
        self.error: dict[str, Any] | None = None
        self._kind = _kind_of(content_type)
        self._inflater = _Inflater(content_encoding) if content_encoding else None

    @property
    def usage(self) -> Usage | None:
        return usage_of(self._figures, final=self._complete) if self._figures else None

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the response."""
        kind = self._kind
        if not kind or not chunk:
            return
        if self._inflater is not None:
            try:
                chunk = self._inflater.inflate(chunk)
            except (zlib.error, ValueError):  # not in the encoding that its header names
                self._kind = ""
                self._buffer.clear()
                return
        if kind == "lines":
            # Nearly always a whole event with a piece of text, which is not kept.
            if self._buffer or chunk[-1:] != b"\n" or _says_more(chunk):
                self._feed_lines(chunk)
            return
        self._buffer += chunk
        if len(self._buffer) > (_WHOLE if kind == "whole" else 2 * _TAIL):
            self._cut_to_tail()

    def finish(self) -> None:
        """Read what is left: the response is complete."""
        kind, self._kind = self._kind, ""
        if kind == "lines":
            self._read_line(bytes(self._buffer))
        elif kind == "tail" or self._cut:
            self._read_tail(self._buffer)
        elif kind:
            figures = None if self._names_model else _only_figures(self._buffer)
            if figures is None:
                self._read_whole()
            else:
                self._figures = figures
            self._complete = bool(self._figures)
        self._buffer.clear()

    def _cut_to_tail(self) -> None:
        if self._names_model and not self._cut:
            self._find_model(_MODEL_KEY.search(self._buffer))
        del self._buffer[:-_TAIL]
        self._cut = True

    def _read_whole(self) -> None:
        if b'"usage' in self._buffer or b'"error' in self._buffer:
            document = parsed(self._buffer)
            for part in document if isinstance(document, list) else [document]:  # Gemini's other stream
                self._read_document(part)

    def _read_tail(self, text: bytes | bytearray) -> None:
        """Take the last figures in *text*. Keys inside strings do not match: their quotes are escaped."""
        for match in reversed(list(_USAGE_KEY.finditer(text))):
            try:
                figures, _ = raw_decode(text[match.end() :].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            if usage_of(figures) is not None:
                self._figures.update(figures)
                self._complete = True
                if self._names_model and self.model is None:
                    self._find_model(max(_MODEL_KEY.finditer(text), key=re.Match.start, default=None))
                return

    def _find_model(self, found: re.Match[bytes] | None) -> None:
        if found is not None:
            self.model = found[1].decode("utf-8", "replace")

    def _feed_lines(self, chunk: bytes) -> None:
        buffer = self._buffer
        start = len(buffer)
        buffer += chunk
        end = buffer.rfind(b"\n", start)
        if end < 0:
            if len(buffer) > 2 * _WHOLE:
                self._cut_to_tail()
            return
        lines = bytes(buffer[: end + 1])
        del buffer[: end + 1]
        if self._cut or _says_more(lines):
            for line in lines.split(b"\n"):
                self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        cut, self._cut = self._cut, False
        if cut:
            self._read_tail(line)
            return
        if line.startswith(b"data:"):
            line = line[5:]
        line = line.strip()
        if line == b"[DONE]":
            self._complete = bool(self._figures)
        elif b"usage" in line or b'"error"' in line:
            if len(line) > _WHOLE:
                self._read_tail(line)
            else:
                self._read_document(parsed(line))

    def _read_document(self, document: object) -> None:
        """Take the figures and the error out of a document, an event or a chunk."""
        if not isinstance(document, dict):
            return
        if document.get("error") or document.get("errors") or document.get("type") == "error":
            self.error = document
        if self._names_model:
            self.model = _model_in(document) or self.model
        for figures, last in _figures_in(document):
            # Later figures include earlier ones and replace them; a figure that is not repeated stays.
            self._figures.update({name: value for name, value in figures.items() if value is not None})
            self._complete = self._complete or last


def _says_more(lines: bytes) -> bool:
    """Whether some lines of a stream may hold more than a piece of text."""
    return b"usage" in lines or b'"error"' in lines or b"[DONE]" in lines


@lru_cache(maxsize=256)
def _kind_of(content_type: str) -> str:
    """How a body of that type is read: "whole", by "lines", the "tail" only, or "" for not at all."""
    kinds = {
        "event-stream": "lines",
        "ndjson": "lines",
        "jsonl": "lines",
        "json": "whole",
        "amazon.eventstream": "tail",
    }
    return next((kind for name, kind in kinds.items() if name in content_type.lower()), "")


def _only_figures(body: bytearray) -> dict[str, Any] | None:
    """The figures of a document without parsing what stands before them; None if that is not possible.

    It is if the document is an object that names its usage once, at its outermost level, and no error, or one
    that is null: the figures, and what follows them up to the last brace, are a whole object then. In a
    string the key would not match, because its quotes would be escaped.
    """
    at = body.rfind(b'"usage')  # it nearly always stands at the end
    colon = body.find(b":", at, at + 32) if at >= 0 else -1
    if colon < 0 or (body[0] != _BRACE and body[:64].lstrip()[:1] != b"{"):
        return None
    if colon != at + 7 and body[at:colon].rstrip() not in _USAGE_KEYS:  # seven letters are `"usage"`
        return None
    if body.find(b'"usage', 0, at) >= 0:
        return None
    error = body.find(b'"error')
    if error >= 0 and (not _NO_ERROR.match(body, error) or body.find(b'"error', error + 1) >= 0):
        return None
    try:
        text = body[colon + 1 :].decode("utf-8").strip()
        figures, end = raw_decode(text)
        if type(figures) is not dict:
            return None
        # Nearly always nothing nested follows them.
        if text.find("}", end) == len(text) - 1 and not ("[" in text or "]" in text or "{" in text[end:]):
            return figures
        rest = '{"":0' + text[end:].lstrip()
        if raw_decode(rest)[1] != len(rest):
            return None
    except (ValueError, RecursionError):
        return None
    return figures


# Where an event may hold its usage, and whether that is final.
_HOLDERS = {
    "message": False,  # Anthropic's message_start
    "response": True,  # the last event of OpenAI's Responses API
    "delta": True,  # Cohere's message-end
    "x_groq": True,
}


def _figures_in(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The figures in a document, each with whether they are final."""
    for holder, last in _HOLDERS.items():
        inner = document.get(holder)
        if isinstance(inner, dict) and isinstance(inner.get("usage"), dict):
            yield inner["usage"], last
    if isinstance(document.get("usageMetadata"), dict):
        yield document["usageMetadata"], _gemini_finished(document)
    if isinstance(document.get("usage"), dict):
        # Anthropic's message_delta counts up to here. OpenAI's figures come once, in the last chunk; some
        # compatible servers repeat them in every chunk, and only those without an open choice are final.
        yield document["usage"], document.get("type") == "message_delta" or not _goes_on(document)


def _model_in(document: dict[str, Any]) -> str | None:
    """What a document or an event calls its model."""
    for holder in (document, document.get("message"), document.get("response")):
        if isinstance(holder, dict):
            name = holder.get("model") or holder.get("modelVersion")
            if isinstance(name, str) and name:
                return name
    return None


def _goes_on(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or "chunk" not in str(chunk.get("object")):
        return False
    return all(isinstance(choice, dict) and choice.get("finish_reason") is None for choice in choices)


def _gemini_finished(chunk: dict[str, Any]) -> bool:
    candidates = chunk.get("candidates")
    return isinstance(candidates, list) and any(
        isinstance(candidate, dict) and candidate.get("finishReason") for candidate in candidates
    )


def unpacked(body: bytes, content_encoding: str) -> bytes | None:
    """A whole body, uncompressed; None if zlib cannot do it."""
    try:
        return _Inflater(content_encoding).inflate(body)
    except (zlib.error, ValueError):
        return None


class _Inflater:
    """Unpacks gzip and deflate. Bytes that are not or no longer packed pass through unchanged."""

    _MOST_BYTES = 1 << 26  # a limit against decompression bombs

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.lower().strip()
        self._left = self._MOST_BYTES
        self._unpack: Any = _AS_IT_IS if self._encoding in ("", "identity") else None

    def inflate(self, chunk: bytes) -> bytes:
        """The uncompressed bytes. Raises zlib.error or ValueError if there are none."""
        if self._unpack is None:
            self._unpack = self._choose(chunk)
        if self._unpack is _AS_IT_IS:
            return chunk
        plain: bytes = self._unpack.decompress(chunk, self._left)
        self._left -= len(plain)
        if self._left <= 0:
            raise ValueError("too large to look at")
        return plain

    def _choose(self, first: bytes) -> Any:
        if first[:1] in (b"{", b"[") or first.startswith(_EVENT_LINE):
            return _AS_IT_IS
        if self._encoding in ("gzip", "x-gzip"):
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        if self._encoding == "deflate":
            bare = first[0] & 0x0F != 8
            return zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS)
        raise ValueError(self._encoding)


_AS_IT_IS = object()
