"""Lessons: what one member has learned about the limits, told to its pool, and what the others have.

Each lesson is all that is known. It is built on the newest one that the member has heard; the pool refuses it
if there is a newer one, and then the member goes on from that. A cut of the rates is refused only if another
one began an episode in between, so there is one cut for each episode, whichever member hears of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...arguments import NS_PER_US
from .episode import NO_PROBES, OTHERS_PROBES
from .question import terms_of

if TYPE_CHECKING:
    from ...limits import Rate
    from .question import Answer, PoolLimits, Question

_MOST_SUCCESSES = 1 << 50


class SharedLearner(Protocol):
    """What learns in the process of a member."""

    @property
    def automatic(self) -> bool:
        """Whether no rates are configured."""

    def lesson(self) -> tuple[str, tuple[Rate, ...], tuple[Rate, ...]]:
        """All that was learned as a text, the rates by it, and the rates before anything was learned."""

    def hear_lesson(self, text: str, age: int) -> None:
        """Go on from what another member learned so many nanoseconds ago."""

    def contradicts(self, text: str) -> bool:
        """Whether limits are configured here, and none were for the member that learned this."""

    def take_successes(self) -> int:
        """How many calls went well since the last time, as far as that teaches something."""

    def hear_successes(self, count: int) -> None:
        """So many calls of other members went well."""

    def hear_probes(self, probes: int) -> bool:
        """Which member sends probes. True: this one does, and calls go freely by now."""


class Lessons:
    """The lessons of one member. On the courier's loop."""

    def __init__(self, learner: SharedLearner) -> None:
        self.due = False  # the pool has not heard all that was learned
        self._learner = learner
        self._version = self._episode = 0  # of the lesson that was heard last
        self._successes: int | None = None  # of all members, as heard last
        self._cut = self._by_hand = False  # what is due
        self._probes, self._waiting = NO_PROBES, 0  # which member sends probes; callers, as told last

    def note(self, *, cut: bool = False, by_hand: bool = False) -> None:
        """Something was learned: a cut that began an episode, rates set by hand, or anything else."""
        self.due = True
        self._cut |= cut
        self._by_hand |= by_hand

    def rates(self) -> tuple[Rate, ...]:
        """The rates by all that was learned here."""
        return self._learner.lesson()[1]

    def ask(self, waiting: int) -> bool:
        """Whether there is something to tell, or callers wait for probes that another may not send."""
        return self.due or (self._probes == OTHERS_PROBES and waiting > 0 and not self._waiting)

    def hear_probes(self, probes: int, *, untold: bool = False) -> bool:
        """Hear which member sends probes, unless a signal is `untold`. True: calls go freely by now."""
        self._probes = probes
        return not untold and self._learner.hear_probes(probes)

    def write(self, question: Question, limits: PoolLimits) -> None:
        """Tell with this question what is due."""
        self._waiting = question["waiting"]
        question["lesson_version"] = self._version
        question["successes"] = self._learner.take_successes()
        if self.due:
            text, rates, configured = self._learner.lesson()
            version = -1 if self._by_hand else self._version
            question["lesson"] = [version, self._episode, self._cut, text]
            question["set"] = [terms_of(rates), limits, [rate.unit for rate in rates], terms_of(configured)]
            self.due = self._cut = self._by_hand = False

    def write_again(self, question: Question) -> None:
        """It is unknown whether the pool has heard this question: tell it with another one."""
        if question["lesson"] is not None:
            self.note(cut=question["lesson"][2], by_hand=question["lesson"][0] == -1)

    def read(self, question: Question, answer: Answer) -> None:
        """Hear what others have learned."""
        if answer["lesson"] and not self._version and self._learner.contradicts(answer["lesson"][1]):
            self.note(by_hand=True)  # limits that are configured are never raised by what is learned
        if answer["lesson"] and not self._by_hand:
            age, text = answer["lesson"]
            self._learner.hear_lesson(text, age * NS_PER_US)
            self.due = self._cut = False
        # The store has lost the pool, or it does not show yet that its rates are learned.
        if not answer["lesson_version"] and (self._version or self._learner.automatic):
            self.note()
        self._version, self._episode = answer["lesson_version"], answer["lesson_episode"]
        if self._successes is not None:
            others = (answer["successes"] - self._successes - question["successes"]) % _MOST_SUCCESSES
            if others < _MOST_SUCCESSES // 2:
                self._learner.hear_successes(others)
        self._successes = answer["successes"]
