"""Judges what processes did by the files that they wrote, also those of processes that were killed."""

import struct
from bisect import bisect
from typing import NamedTuple

RECORD = struct.Struct("<dq")


class Verdict(NamedTuple):
    """The worst excess over any stretch of time, and that stretch; the most calls at once; all admissions."""

    excess: float
    stretch: tuple[float, float]
    most_inside: int
    admitted: list[float]

    def between(self, begin, end):
        """Return how many calls were admitted in that time."""
        return sum(begin <= at < end for at in self.admitted)


def judge(logs, rate, burst, deaths, begun=0.0):
    """Read the files. `deaths` says when the process of a file was killed: then its calls were over.

    The times of the verdict are those since the moment `begun`.
    """
    changes = []
    for log in logs:
        content = log.read_bytes()
        inside = 0
        for at, change in RECORD.iter_unpack(content[: len(content) // RECORD.size * RECORD.size]):
            changes.append((at - begun, change))
            inside += change
        if log in deaths:
            changes += [(deaths[log] - begun, -1)] * inside
    changes.sort()
    admitted = [at for at, change in changes if change > 0]
    inside = most = 0
    for _, change in changes:
        inside += change
        most = max(most, inside)
    excess, *stretch = worst_stretch(admitted, rate, burst)
    return Verdict(excess, tuple(stretch), most, admitted)


def worst_excess(times, rate, burst):
    """Return the most that any stretch of time held beyond burst + rate * its length."""
    return worst_stretch(times, rate, burst)[0]


def worst_stretch(times, rate, burst):
    """Return that, and the begin and the end of the stretch."""
    lowest, begin, worst = float("inf"), 0.0, (float("-inf"), 0.0, 0.0)
    for i, at in enumerate(times):
        if i - rate * at < lowest:
            lowest, begin = i - rate * at, at
        worst = max(worst, (i + 1 - rate * at - lowest - burst, begin, at))
    return worst


def use_of(times, rate, early, late):
    """Return the part of a rate that was used between a moment of `early` and one of `late`.

    Of the early moments it takes the one at which least was saved up: what is saved up is used later, and is
    no use of the rate in between. Of the late ones too, so that a machine that stands still in the end does
    not count: what its processes could not use by then they would have used a moment later.
    """

    def saved_up(at):
        return rate * at - bisect(times, at)

    begin, end = (
        min((low + (high - low) * n / 100 for n in range(101)), key=saved_up) for low, high in (early, late)
    )
    return 1 - (saved_up(end) - saved_up(begin)) / (rate * (end - begin))
