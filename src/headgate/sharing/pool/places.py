"""Pure. Which places and bytes a member of a pool asks for, keeps for a moment, and gives back.

Places and bytes are lists of two numbers, in this order. Times are nanoseconds on the member's own clock.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING

from ...gate.supply import Grant
from .demand import IDLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...backoff import Backoff
    from .question import Answer, PoolLimits, Question

_SOONEST = 1_000_000


class HeldPlaces:
    """What was granted to one member.

    While other members want places, those of calls that ended a moment ago are kept for the next callers: to
    give them away and to ask for them again would leave them unused for longer.
    """

    __slots__ = (
        "_in_vain",
        "_kept",
        "_kept_at",
        "_pace",
        "_told",
        "crowded",
        "ended",
        "granted",
        "turn",
        "valid_until",
    )

    def __init__(self, granted: list[int], pace: Backoff) -> None:
        self.granted = granted
        self.valid_until = 0  # no place and no byte may be used later
        self.crowded = False  # other members want more
        self.turn = 0  # how long to wait before asking again, while that is so
        self.ended = 0  # calls since `asks` was called
        self._pace = pace
        self._in_vain = 0  # answers in a row that granted nothing to waiting callers
        self._told = [0, 0]  # what may be in use, as the pool has heard
        self._kept = [0, 0]  # the most that was in use within the last moment ...
        self._kept_at = [0, 0]  # ... and when

    def keeps(self, waited: int) -> list[int] | None:
        """What to keep without callers that wait for it; None: all. `waited`: since the pool was asked."""
        return self._kept if self.crowded and waited >= self.turn else None

    def asks(self, question: Question, limits: Sequence[int], now: int, waited: int, *, going: bool) -> bool:
        """Whether the pool should hear what is used and wanted. Adds what is kept to the question.

        `going`: the member has no more calls.
        """
        kinds = [kind for kind, limit in enumerate(limits) if limit]
        uses, wants = question["uses"], question["wants"]
        wanting = any(uses[kind] + wants[kind] > self.granted[kind] for kind in kinds)
        ended, self.ended = self.ended, 0
        self._note([min(uses[0] + ended, self.granted[0]), uses[1]], now)
        if not going:
            wants = question["wants"] = [
                max(want, kept - use) for use, want, kept in zip(uses, wants, self._kept, strict=True)
            ]
        if not self.crowded:
            return wanting or (going and any(self.granted[kind] > uses[kind] for kind in kinds))
        if waited < self.turn:
            return False  # it is the turn of other members
        spared = any(self.granted[kind] > uses[kind] + wants[kind] for kind in kinds)
        return wanting or spared or any(self._told[kind] > question["may_use"][kind] for kind in kinds)

    def tell(self, question: Question) -> None:
        """The question is asked."""
        self._told = question["may_use"]

    def take(self, question: Question, answer: Answer, random: float, until: int, now: int) -> None:
        """The question was answered: what was granted may be used until then."""
        self.valid_until = until
        self.crowded = answer["crowded"]
        self.granted = [answer["places"], answer["bytes"]]
        wanted = list(map(add, question["uses"], question["wants"]))
        self._note(map(min, self.granted, wanted), now)
        in_vain = self.granted[0] < wanted[0] and self.granted[0] <= question["uses"][0]
        self._in_vain = self._in_vain + 1 if in_vain else 0
        self.turn = max(self._pace.delay_ns(max(0, self._in_vain - 1), random, self.turn), _SOONEST)

    def grant(self, limits: PoolLimits) -> Grant:
        """What the gate may use."""
        places, load = self.granted
        return Grant(
            places=places if limits.places else None,
            bytes=load if limits.bytes else None,
            all_bytes=limits.bytes or None,
            valid_until=self.valid_until,
        )

    def _note(self, uses: Iterable[int], now: int) -> None:
        for kind, use in enumerate(uses):
            if use >= self._kept[kind] or now - self._kept_at[kind] > IDLE:
                self._kept[kind], self._kept_at[kind] = use, now
