"""Pure. What a pool remembers of refusals: the backoff window, which member probes, and what was learned.

Times are the store's, in integer microseconds. The script for Valkey and Redis decides the same, step by
step: `tests/stores` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...gate.window import WindowSignal

# Manners of a window: a usual one; one after which calls come back at the full rate at once; and one in which
# single calls go as probes until one of them goes well.
USUAL, GENTLE, PROBING = 0, 1, 2
# What a member is told of probes: there are none, it sends them, or another member does.
NO_PROBES, OWN_PROBES, OTHERS_PROBES = 0, 1, 2

# The duration of a signal that clears the window, and of one that clears it only if it waits for probes.
CLEARED, ENDED = -1, -2

_MOST_SUCCESSES = 1 << 50


def manner_of(signal: WindowSignal) -> int:
    """Return in which manner a window of this process is."""
    if not signal.gentle:
        return USUAL
    return GENTLE if signal.probes is None else PROBING


class _Holder(Protocol):
    in_flight: int
    waiting: int


@dataclass(slots=True)
class PoolWindow:
    """The backoff window of a pool. One member at a time may send probes: the one named `prober`."""

    until: int | None = None  # its end; None: there never was one
    generation: int = 0  # another number with each signal
    resumed: int | None = None  # the end after which the rates have begun to earn again
    gentle: int = 0
    probing: int = 0  # 1: calls wait until a probe goes well, however long the window is over
    prober: str = ""

    def signal(self, duration: int, manner: int, who: str, now: int, next_stamp: Callable[[], int]) -> None:
        """Start, extend or clear the window. A signal never makes it shorter, unless it clears it."""
        if not duration or (duration == ENDED and not self.gentle and not self.probing):
            return
        probing, later = int(duration > 0 and manner == PROBING), True
        if duration < 0:
            self.until = now if self.until is None else min(self.until, now)
        else:
            active = self.until is not None and now < self.until
            self.gentle = int(manner != USUAL and (self.gentle == 1 or not active))
            later = self.until is None or now + duration > self.until
            if later:
                self.until = now + duration
        if not later and probing == self.probing:
            return
        if not probing:
            self.prober = ""
        elif not self.probing:
            self.prober = who
        self.probing = probing
        self.generation = next_stamp()

    def assign(self, who: str, waiting: int, in_flight: int, members: Mapping[str, _Holder]) -> int:
        """Say which member sends probes: this one, if the one that did has gone or has no calls."""
        if not self.probing:
            return NO_PROBES
        holder = members.get(self.prober)
        if self.prober == who:
            busy = waiting or in_flight
        else:
            busy = holder is not None and (holder.waiting or holder.in_flight)
        if not busy and waiting:
            self.prober = who
        return OWN_PROBES if self.prober == who else OTHERS_PROBES


@dataclass(slots=True)
class PoolLesson:
    """What the members of a pool have learned together, as a text that they read and the pool does not."""

    version: int = 0  # another number with each lesson; 0: none was learned
    episode: int = 0  # the version that began the last episode of refusals
    at: int = 0  # when it was told
    text: str = ""
    successes: int = 0  # calls of all members that went well, counted while that teaches something

    def hear(self, lesson: Sequence[Any], now: int, next_stamp: Callable[[], int]) -> bool:
        """A member has learned more: [version, episode, cut, text]. False: it did not know of the newest.

        A cut is heard unless another one began an episode since. Version -1 is heard in any case.
        """
        version, episode, cut, text = lesson
        if version not in (-1, self.version) and not (cut and episode == self.episode):
            return False
        self.version = next_stamp()
        if cut:
            self.episode = self.version
        self.at, self.text = now, text
        return True

    def count(self, successes: int) -> None:
        """So many more calls went well."""
        self.successes = (self.successes + successes) % _MOST_SUCCESSES
