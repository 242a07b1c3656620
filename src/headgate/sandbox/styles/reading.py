"""Pure. How the body and the headers of a request are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .values import Request

_MOST_TOKENS = 10_000_000  # that a request may reserve


class BadRequest(Exception):
    """The request cannot be understood."""


def document_of(request: Request) -> dict[str, Any]:
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError):
        raise BadRequest("We could not parse the JSON body of your request.") from None
    if not isinstance(document, dict):
        raise BadRequest("The body of your request must be a JSON object.")
    return document


def _whole_number(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise BadRequest(f"{what}: {value!r:.40} is not a whole number from 1 to {_MOST_TOKENS}.")
    return value


def first_number(document: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        if document.get(name) is not None:
            return _whole_number(document[name], name)
    return None


def hinted_number(value: object) -> int | None:
    """A hint, as a number or as text: metadata is often text only."""
    digits = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None


def input_tokens(request: Request) -> int:
    """A token for every four bytes, unless the request says otherwise."""
    said = hinted_number(request.headers.get("x-sandbox-tokens", ""))
    return -(-len(request.body) // 4) if said is None else said


def wanted_tokens(request: Request, document: Mapping[str, Any]) -> int | None:
    metadata = document.get("metadata")
    said = metadata.get("sandbox_output_tokens") if isinstance(metadata, dict) else None
    return hinted_number(request.headers.get("x-sandbox-output-tokens", said))


def model_of(document: Mapping[str, Any]) -> str:
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("you must provide a model parameter")
    return model[:200]


def key_of(request: Request) -> str:
    """The API key of a request, which tells one customer from another."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.headers.get("x-api-key", bearer) or "anonymous"
