"""DispatchLearner: what the learner of a Dispatch tells those of other processes, and what they tell it."""

from __future__ import annotations

import json

from ..gate.decision import FAR_OFF
from ..gate.window import Probes
from ..hints import later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gate.gate import Gate
    from ..limits import Rate
    from .learning import Learner
else:
    Gate = later("headgate.gate.gate", "Gate")
    Learner = later("headgate.dispatch.learning", "Learner")
    Rate = later("headgate.limits", "Rate")

# As in sharing/pool/episode.py.
_NO_PROBES, _OWN_PROBES = 0, 1


def is_automatic(lesson: str) -> bool:
    """Whether this was learned without configured rates; also for a pool in which nothing was learned yet."""
    return bool(lesson) and json.loads(lesson)["configured"] is None


class DispatchLearner:
    """A learner that learns together with those of other processes. It may be called from any thread."""

    def __init__(self, gate: Gate, learner: Learner) -> None:
        self._gate = gate
        self._learner = learner
        self._held = Probes(FAR_OFF, 0, 0)  # while another process sends the probes

    @property
    def automatic(self) -> bool:
        """Whether no rates are configured."""
        return self._learner.automatic

    def lesson(self) -> tuple[str, tuple[Rate, ...], tuple[Rate, ...]]:
        """All that was learned as a text, the rates by it, and the rates before anything was learned."""
        learner = self._learner
        saved = self._gate.look(lambda now: (learner.saved(now), learner.rates, learner.configured))
        return json.dumps(saved[0], separators=(",", ":")), saved[1], saved[2]

    def hear_lesson(self, text: str, age: int) -> None:
        """Go on from what another process learned so many nanoseconds ago."""
        saved = json.loads(text)
        self._gate.look(lambda now: self._learner.restore(saved, now - age))

    def contradicts(self, text: str) -> bool:
        """Whether limits are configured here, and none were for the process that learned this."""
        return not self._learner.automatic and is_automatic(text)

    def take_successes(self) -> int:
        """How many calls went well since the last time, as far as that teaches something."""
        return self._gate.look(lambda _now: self._learner.take_successes())

    def hear_successes(self, count: int) -> None:
        """So many calls of other processes went well."""
        ramp = self._learner.ramp
        if count and ramp is not None:
            self._gate.look(lambda _now: ramp.count(count))

    def hear_probes(self, probes: int) -> bool:
        """Which process sends probes. True: this one does, and calls go freely by now."""
        rules = self._gate.rules
        if (rules.probes is None) == (probes == _NO_PROBES) and rules.probes is not self._held:
            if probes == _OWN_PROBES:
                return rules.probes is not None and rules.probes.over
            if probes == _NO_PROBES:
                return False

        def follow(now: int) -> None:
            before, window = rules.probes, rules.window
            if probes == _NO_PROBES:
                rules.probes = None
            elif probes != _OWN_PROBES:
                rules.probes = self._held
            elif before is None or before is self._held:
                until = None if window is None else window.until
                rules.probes = self._learner.episodes.probes(now, max(now, until or now))
            if rules.probes is not before:
                self._gate.follow_rules()

        self._gate.change(follow)
        return False
