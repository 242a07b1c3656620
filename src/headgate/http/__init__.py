"""What HTTP responses say about limits, and adapters that make HTTP clients obey them.

The adapters are in `headgate.http.httpx` (httpx and httpx2), `.aiohttp`, `.requests` and `.anthropic`, each
of which needs its library. Importing this package loads none of them.
"""

from __future__ import annotations

from ..responses import parse_retry_after, read_signal
from ..responses.scopes import Scope
from ..responses.signals import Signal
from ..retries.classify import refusal_of
from .gates import Request, Target, per_credential, per_host, per_model

__all__ = [
    "Request",
    "Scope",
    "Signal",
    "Target",
    "parse_retry_after",
    "per_credential",
    "per_host",
    "per_model",
    "read_signal",
    "refusal_of",
]
