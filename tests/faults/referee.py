"""Judges what processes did by the files that they wrote, also those of processes that were killed."""

import struct
from typing import NamedTuple

RECORD = struct.Struct("<dq")


class Verdict(NamedTuple):
    """All admissions, in order; the worst excess over any stretch of time; the most calls at once."""

    admitted: list[float]
    excess: float
    most_inside: int

    def between(self, begin, end):
        """Return how many calls were admitted in that time."""
        return sum(begin <= at < end for at in self.admitted)


def judge(logs, rate, burst, deaths):
    """Read the files. `deaths` says when the process of a file was killed: then its calls were over."""
    changes = []
    for log in logs:
        content = log.read_bytes()
        inside = 0
        for at, change in RECORD.iter_unpack(content[: len(content) // RECORD.size * RECORD.size]):
            changes.append((at, change))
            inside += change
        if log in deaths:
            changes += [(deaths[log], -1)] * inside
    changes.sort()
    admitted = [at for at, change in changes if change > 0]
    inside = most = 0
    for _, change in changes:
        inside += change
        most = max(most, inside)
    return Verdict(admitted, worst_excess(admitted, rate, burst), most)


def worst_excess(times, rate, burst):
    """Return the most that any stretch of time held beyond burst + rate * its length."""
    lowest, worst = float("inf"), float("-inf")
    for i, at in enumerate(times):
        lowest = min(lowest, i - rate * at)
        worst = max(worst, i + 1 - rate * at - lowest - burst)
    return worst
