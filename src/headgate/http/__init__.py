"""What HTTP responses say about limits, in values the rest of the house understands."""

from __future__ import annotations

from .signals import Scope, Signal, parse_retry_after, read_signal

__all__ = ["Scope", "Signal", "parse_retry_after", "read_signal"]
