"""Which key a request is sent with, and in which header.

A key goes to the host that it belongs to and to no other, unless --key-env names it.
"""

from __future__ import annotations

import os

from .errors import RunError
from .jobs import Target
from .options import RunOptions

# For each host the environment variable that usually holds its key, and the header that carries it.
_USUAL = {
    "api.openai.com": ("OPENAI_API_KEY", "authorization"),
    "api.anthropic.com": ("ANTHROPIC_API_KEY", "x-api-key"),
    "api.mistral.ai": ("MISTRAL_API_KEY", "authorization"),
    "api.groq.com": ("GROQ_API_KEY", "authorization"),
    "api.deepseek.com": ("DEEPSEEK_API_KEY", "authorization"),
    "api.together.xyz": ("TOGETHER_API_KEY", "authorization"),
    "api.cohere.com": ("CO_API_KEY", "authorization"),
    "api.x.ai": ("XAI_API_KEY", "authorization"),
    "openrouter.ai": ("OPENROUTER_API_KEY", "authorization"),
    "generativelanguage.googleapis.com": ("GEMINI_API_KEY", "x-goog-api-key"),
}
_HEADERS = {"authorization", "x-api-key", "api-key", "x-goog-api-key"}
_ANTHROPIC_VERSION = "2023-06-01"


def headers_for(options: RunOptions, target: Target) -> dict[str, str]:
    """The headers of every request, the key included."""
    headers = dict(options.headers)
    host = target.parts.hostname or ""
    usual, header = _USUAL.get(host, ("", "authorization"))
    if header == "x-api-key" or "anthropic" in host:
        headers.setdefault("anthropic-version", _ANTHROPIC_VERSION)
    if options.key_env is None and (_HEADERS & headers.keys() or "key=" in target.query or not usual):
        return headers
    name = options.key_env or usual
    key = os.environ.get(name, "").strip()
    if not key:
        raise RunError(
            f"no key for {host}: the environment has no {name}",
            f"export {name}=..., or name another variable with --key-env, or give the header with --header",
        )
    if not key.isascii() or not key.isprintable():
        raise RunError(f"the key in {name} has characters that no header can carry", "copy it again")
    headers[header] = f"Bearer {key}" if header == "authorization" else key
    return headers
