"""One limit for a swarm of agents that talk over a bus: they share the total, and one's 429 slows all."""

from __future__ import annotations

from .limiter import DistributedLimiter
from .messages import CapacityUpdate
from .transport import SUBJECT_PREFIX

__all__ = ["SUBJECT_PREFIX", "CapacityUpdate", "DistributedLimiter"]
