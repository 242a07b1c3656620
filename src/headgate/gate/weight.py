"""Pure. Bytes in flight.

Rules of this room: what is in flight never exceeds the budget, except that something larger
than the whole budget runs alone. What was charged is what is given back.
"""

from __future__ import annotations


class WeightRule:
    """A budget of bytes that calls hold while they run."""

    __slots__ = ("budget", "in_flight", "penalty", "whole")

    def __init__(self, budget: int, penalty: int) -> None:
        self.budget = self.whole = budget  # where it is shared, this process's part and all of it
        self.penalty = penalty  # a byte counts so often when it is admitted while throttled
        self.in_flight = 0

    def fits(self, weight: int) -> bool:
        return self.in_flight + min(weight, self.whole) <= self.budget
