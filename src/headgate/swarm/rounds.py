"""Pure. A rate so small that its burst is less than one call: agents that share it go in turns.

Rules of this room: as for every rate. Five hundred agents that may each go once in five seconds, and were
idle, must not all go at the same moment: their bursts are one burst.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..gate.bucket import RateRule
from ..hints import AnyRate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits import Rate

# A round of all agents that go in turns; places in it are numbers from 0 to ROUND.
ROUND = 1_000_000
# From one round to the next every place moves on by this much, so that no agent is always the first.
_MOVES_ON = 618_034
# A new round begins at least this long after its cut. By then all agents have heard of it, and the API, which
# had nothing left, has room again for calls that come a little early.
_HEARD = SECOND // 10
_NEVER = -(1 << 256)


def turn_in(number: int, place: int) -> int:
    """Where in the round of that number an agent with that place comes, from 0 to ROUND."""
    return (place + number * _MOVES_ON) % ROUND


class TurnRule(RateRule):
    """One call at a time, at evenly spaced moments; `turn`, from 0 to ROUND, is where they begin.

    A turn is kept until the next one if a caller asked before it came; otherwise it passes unused.
    """

    __slots__ = ("_asked", "_phase")

    def __init__(self, rate: Rate, column: int, turn: int) -> None:
        super().__init__(rate, column)
        self._phase = self.unit_ticks * turn // ROUND
        self.earned_at = self._phase  # the next turn, in ticks; or one that is over
        self._asked = _NEVER  # when a caller last asked

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and answer 1, or change nothing and answer 0."""
        if not self.fits(cost, now):
            return 0
        amount = cost[self.column]
        if amount:
            self.earned_at = self._turn_after(now * self.ticks_per_ns + 1) + (amount - 1) * self.unit_ticks
        return 1

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Whether `enter` would take it."""
        need = cost[self.column] * self.unit_ticks
        if need > self.most_ticks:
            return False
        ticks = now * self.ticks_per_ns
        if not self._kept(ticks):
            self.earned_at = self._turn_after(ticks)
        self._asked = ticks
        return not need or self.earned_at <= ticks

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """When the cost could be taken if no other caller came. At or before now: at once."""
        return max(now, -(-self.earned_at // self.ticks_per_ns)) if cost[self.column] else now

    def slack(self, cost: tuple[int, ...], now: int) -> int:  # noqa: ARG002 - the question of every rate
        """How late a caller may be without loss: not at all, for other agents have their turns too."""
        return 0

    def lower(self, level: int, now: int) -> None:
        """At most `level` units are left. Never raises what there is."""
        if level < 1:
            self.earned_at = self._turn_after(now * self.ticks_per_ns + 1)

    def level(self, now: int) -> int:
        """Units that could be taken at once: one or none."""
        ticks = now * self.ticks_per_ns
        return int(self.earned_at <= ticks and self._kept(ticks))

    def follow(self, old: AnyRate, now: int) -> None:
        """Continue where the rule this one replaces stands: as far from the next turn, in turns."""
        ticks = now * self.ticks_per_ns
        if not isinstance(old, TurnRule):
            super().follow(old, now)
            self.earned_at = max(self.earned_at, ticks) + self._phase
            return
        passed, one_turn, asked = old.next_turn(now)
        self.earned_at = ticks - passed * self.unit_ticks // one_turn
        if asked:
            self._asked = self.earned_at - self.unit_ticks

    def next_turn(self, now: int) -> tuple[int, int, bool]:
        """How long ago the next turn was (negative: it is to come), how long one turn takes, in ticks; and
        whether a caller asked for it.
        """
        ticks = now * self.ticks_per_ns
        turn = self.earned_at if self._kept(ticks) else self._turn_after(ticks)
        return ticks - turn, self.unit_ticks, self._asked >= turn - self.unit_ticks

    def begin_round_after(self, cut_at: int, one_call: int) -> None:
        """Begin a round after a cut. A call may have gone at that moment: the next comes one call later."""
        self.begin_round(cut_at + max(_HEARD, one_call))

    def begin_round(self, now: int) -> None:
        """All agents that share the rate begin again at this moment, each where its turn is in the round.

        So agents that joined at different times, and had different rates since, are evenly spaced again.
        Whole turns that an agent owes are still owed.
        """
        waits = self._asked >= self.earned_at - self.unit_ticks
        first = now * self.ticks_per_ns + self._phase
        owed = (self.earned_at - first) // self.unit_ticks - 1
        self.earned_at = first + max(0, owed) * self.unit_ticks
        if waits:
            self._asked = self.earned_at - self.unit_ticks

    def _kept(self, ticks: int) -> bool:
        """Whether the next turn is still to come, or has come and a caller asked for it."""
        return self.earned_at > ticks or self._asked >= self.earned_at - self.unit_ticks

    def _turn_after(self, ticks: int) -> int:
        """The first turn that is not before that moment."""
        return self.earned_at + max(0, -((self.earned_at - ticks) // self.unit_ticks)) * self.unit_ticks
