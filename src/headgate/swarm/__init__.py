"""One limit for a swarm of agents that talk over a bus: they share the total, and one's 429 slows all."""

from __future__ import annotations

from ..sharing.letters import CapacityUpdate
from .limiter import DistributedLimiter
from .post import SUBJECT_PREFIX

__all__ = ["SUBJECT_PREFIX", "CapacityUpdate", "DistributedLimiter"]
