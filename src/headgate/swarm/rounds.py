"""Pure. A rate so small that its burst is less than one call: whoever has it goes in turns.

Rules of this room: as for every rate. Five hundred who may each go once in five seconds, and were idle, must
not go at the same moment: their bursts are one burst.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..gate.bucket import RateRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gate.decision import AnyRate
    from ..limits import Rate

# A round of all who go in turns, in as many parts as turns are counted by.
ROUND = 1_000_000
# From one round to the next, turns move on by so many of them: nobody is always the first.
_MOVES_ON = 618_034
# A new round begins so long after its cut, at least. By then all have heard of it, and the API, which had
# nothing left, has a call or two in hand for those who come a little early.
_HEARD = SECOND // 10
_LONG_AGO = -(1 << 256)


def turn_in(number: int, place: int) -> int:
    """Where in the round of that number whoever has that place comes, of ROUND."""
    return (place + number * _MOVES_ON) % ROUND


class TurnRule(RateRule):
    """One call at a time, at moments that are evenly spaced; `turn`, of ROUND, is where they begin.

    A turn is kept for whoever asked before it came, until the next one; one that nobody waited for is gone.
    """

    __slots__ = ("_asked", "_phase")

    def __init__(self, rate: Rate, column: int, turn: int) -> None:
        super().__init__(rate, column)
        self._phase = self._cost * turn // ROUND
        self._earned = self._phase  # the next turn, in ticks; or one that is over
        self._asked = _LONG_AGO  # when somebody last did

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost if it fits now and answer 1, or change nothing and answer 0."""
        if not self.fits(cost, now):
            return 0
        amount = cost[self.column]
        if amount:
            self._earned = self._turn_after(now * self._scale + 1) + (amount - 1) * self._cost
        return 1

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        """Would `enter` take it?"""
        need = cost[self.column] * self._cost
        if need > self._most:
            return False
        ticks = now * self._scale
        if not self._kept(ticks):
            self._earned = self._turn_after(ticks)
        self._asked = ticks
        return not need or self._earned <= ticks

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        """When could the cost be taken, if nobody else came? At or before now: at once."""
        return max(now, -(-self._earned // self._scale)) if cost[self.column] else now

    def slack(self, cost: tuple[int, ...], now: int) -> int:  # noqa: ARG002 - the question of every rate
        """How much lateness costs nothing: none, for others have their turns too."""
        return 0

    def lower(self, level: int, now: int) -> None:
        """At most so many units are left. Never raises what there is."""
        if level < 1:
            self._earned = self._turn_after(now * self._scale + 1)

    def level(self, now: int) -> int:
        """Units that could be taken at once: one or none."""
        ticks = now * self._scale
        return int(self._earned <= ticks and self._kept(ticks))

    def follow(self, old: AnyRate, now: int) -> None:
        """Continue where the rule this one replaces stands: as far from the next turn, in turns."""
        ticks = now * self._scale
        if not isinstance(old, TurnRule):
            super().follow(old, now)
            self._earned = max(self._earned, ticks) + self._phase
            return
        before = now * old._scale
        turn = old._earned if old._kept(before) else old._turn_after(before)
        self._earned = ticks - (before - turn) * self._cost // old._cost
        if old._asked >= turn - old._cost:
            self._asked = self._earned - self._cost

    def begin_round_after(self, cut_at: int, one_call: int) -> None:
        """A cut was heard of. Whoever went last may have gone just then: the next is a call of all later."""
        self.begin_round(cut_at + max(_HEARD, one_call))

    def begin_round(self, now: int) -> None:
        """All who share the rate begin anew at this moment, each where its turn is in the round.

        So those who came at different times, and have had different rates since, are evenly spaced again.
        Whole turns that somebody owes are still owed.
        """
        waits = self._asked >= self._earned - self._cost
        first = now * self._scale + self._phase
        owed = (self._earned - first) // self._cost - 1
        self._earned = first + max(0, owed) * self._cost
        if waits:
            self._asked = self._earned - self._cost

    def _kept(self, ticks: int) -> bool:
        """Is the next turn still to come, or has it come for somebody?"""
        return self._earned > ticks or self._asked >= self._earned - self._cost

    def _turn_after(self, ticks: int) -> int:
        """The first turn that is not before that moment."""
        return self._earned + max(0, -((self._earned - ticks) // self._cost)) * self._cost
