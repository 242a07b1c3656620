"""One limit for a swarm of agents on a message bus: they share the total, and one agent's 429 slows all."""

from __future__ import annotations

from .limiter import DistributedLimiter
from .transport import SUBJECT_PREFIX
from .update import CapacityUpdate

__all__ = ["SUBJECT_PREFIX", "CapacityUpdate", "DistributedLimiter"]
