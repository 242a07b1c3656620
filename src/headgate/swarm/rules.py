"""Pure. The rules of one agent's gate: its share of the rates, while its lease lasts.

If the burst of a share is less than one call, the agents that share the rate go in turns: five hundred agents
that may each go once in five seconds, and were idle, must not all go at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..arguments import SECOND
from ..gate.bucket import RateRule
from ..gate.decision import REFUSED, Rules, rule_for
from ..gate.slots import ConcurrencyRule
from ..gate.window import Reentry, Window
from ..hints import AnyRate
from ..limits import REQUESTS, Rate

NEVER = -(1 << 62)  # a moment before all others, in nanoseconds
# A round of all agents that go in turns; places in it are numbers from 0 to ROUND.
ROUND = 1_000_000
# From one round to the next every place moves on by this much, so that no agent is always the first.
_MOVES_ON = 618_034
# A new round begins at least this long after its cut. By then all agents have heard of it, and the API, which
# had nothing left, has room again for calls that come a little early.
_HEARD = SECOND // 10


def turn_in(number: int, place: int) -> int:
    """Where in the round of that number an agent with that place comes, from 0 to ROUND."""
    return (place + number * _MOVES_ON) % ROUND


class LeasedRules(Rules):
    """Admits until `expires_at` and counts the calls it admitted. `whole`: the share is all of the total."""

    __slots__ = ("admitted", "expires_at", "pause", "whole")

    def __init__(self, places: ConcurrencyRule, rates: Sequence[AnyRate]) -> None:
        self.pause = Window()
        super().__init__(
            window=self.pause, reentry=Reentry(self.pause, 0), places=places, rates=rates, final=True
        )
        self.expires_at = NEVER
        self.whole = False
        self.admitted = 0

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        if now >= self.expires_at:
            return REFUSED  # e.g. in a process that was stopped, and whose share others have by now
        mode = super().enter(cost, now)
        if mode:
            self.admitted += cost[REQUESTS] or 1
        return mode

    def held_by(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        return ("share", None) if now >= self.expires_at else super().held_by(cost, now)

    def certain_wait(self, cost: tuple[int, ...], now: int) -> tuple[str, int] | None:
        # A waiting call makes the share grow, so a wait is certain only if there is no more to get.
        return super().certain_wait(cost, now) if self.whole and now < self.expires_at else None

    def certain_rates(self, now: int) -> Sequence[AnyRate]:
        return super().certain_rates(now) if self.whole and now < self.expires_at else ()


class TurnRule(RateRule):
    """One call at a time, at evenly spaced moments; `turn`, from 0 to ROUND, is where they begin.

    A turn is kept until the next one if a caller asked before it came; otherwise it passes unused.
    """

    __slots__ = ("_asked", "_phase")

    def __init__(self, rate: Rate, column: int, turn: int) -> None:
        super().__init__(rate, column)
        self._phase = self.unit_ticks * turn // ROUND
        self.earned_at = self._phase  # the next turn, in ticks; or one that is over
        self._asked = NEVER << 200  # when a caller last asked, in ticks

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        if not self.fits(cost, now):
            return 0
        amount = cost[self.column]
        if amount:
            self.earned_at = self._turn_after(now * self.ticks_per_ns + 1) + (amount - 1) * self.unit_ticks
        return 1

    def fits(self, cost: tuple[int, ...], now: int) -> bool:
        need = cost[self.column] * self.unit_ticks
        if need > self.most_ticks:
            return False
        ticks = now * self.ticks_per_ns
        if not self._kept(ticks):
            self.earned_at = self._turn_after(ticks)
        self._asked = ticks
        return not need or self.earned_at <= ticks

    def earliest(self, cost: tuple[int, ...], now: int) -> int:
        return max(now, -(-self.earned_at // self.ticks_per_ns)) if cost[self.column] else now

    def slack(self, cost: tuple[int, ...], now: int) -> int:  # noqa: ARG002 - the question of every rate
        return 0  # a caller must not be late: other agents have their turns too

    def lower(self, level: int, now: int) -> None:
        if level < 1:
            self.earned_at = self._turn_after(now * self.ticks_per_ns + 1)

    def level(self, now: int) -> int:
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


def rule_of_share(rate: Rate, whole: Rate, columns: Mapping[str, int], turn: int) -> AnyRate:
    """The rule for a share of `whole`. If its share of the burst is less than a call, it goes in turns."""
    if rate.strict or whole.burst * whole.per_ns >= rate.per_ns:
        return rule_for(rate, columns)
    return TurnRule(rate, columns[rate.unit], turn)


def share_of_rate(rate: Rate, numerator: int, denominator: int) -> Rate:
    """That fraction of a rate. Fractions of a call are kept by a longer period for the same amount."""
    if numerator == denominator:
        return rate
    if rate.strict:
        amount = rate.amount * numerator // denominator
        if amount:
            return Rate.of_ns(amount, rate.per_ns, None, rate.unit, strict=True)
        per_ns = -(-rate.per_ns * denominator // (numerator * rate.amount))
        return Rate.of_ns(1, per_ns, None, rate.unit, strict=True)
    per_ns = -(-rate.per_ns * denominator // numerator)
    burst = max(1, rate.burst * numerator // denominator)
    return Rate.of_ns(rate.amount, per_ns, burst, rate.unit)
