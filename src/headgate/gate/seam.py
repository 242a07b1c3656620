"""Seam: what one gate and its supply tell each other. Only a gate that is shared loads it."""

from __future__ import annotations

from collections import deque

from ..hints import Any, Sequence
from .decision import Rules
from .line import Line
from .supply import (
    Demand,
    Grant,
    Supply,
    apply_grant,
    drop_batches,
    expire,
    is_low,
    leased,
    read_demand,
    take_over,
)
from .window import WindowSignal

# Left for the guard, in place of a permit, when a caller took one of the last units that were granted.
LOW = (None, None)


class Seam:
    """Between the rules of a gate and its supply. All but `tell` is called under the lock of the gate.

    News of the window goes out only if the change was made in this process: if two gates of one window told
    each other's news, each of them would find the end a little later, and the window would never end.
    """

    __slots__ = ("_heard", "_pending", "_rules", "_supply", "_told", "length", "low", "returned")

    def __init__(self, supply: Supply, rules: Rules, pending: deque[Any]) -> None:
        """`pending` is what was left for the guard of the gate."""
        window = rules.window
        self._supply = supply
        self._rules = rules
        self._pending = pending
        self.length = 0  # how many columns the gate counts
        self.low = False  # the supply is to hear that units run out ...
        self.returned: bool | None = None  # ... or that a call is over, and whether its cost was corrected
        # The state of the window that was heard last, and that which the supply was told last.
        self._heard = None if window is None else window.state
        self._told = None if window is None else window.signalled

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """The way in by what was granted: take the cost and answer the mode, or answer 0."""
        rules = self._rules
        if not cost:
            return 0
        if now >= rules.valid_until:  # this process was stopped, or what it is shared through is slow
            expire(rules)
        cost += (0,) * (self.length - len(cost))
        low, pending = is_low(rules, cost), self._pending
        mode = rules.enter(cost, now)
        # Without a call from here on: what was taken is not written down yet.
        if mode and low:
            pending += (LOW,)
        return mode

    def demand(
        self, line: Line, now: int, *, leaving: bool = False, keeps: Sequence[int] | None = None
    ) -> Demand:
        """What the gate holds, and what its callers want."""
        return read_demand(self._rules, line, now, leaving=leaving, keeps=keeps)

    def replace(self, grant: Grant, now: int) -> list[int]:
        """The rates of a grant are about to replace those in force. Answers what these owe."""
        owed = [rate.owed for rate in leased(self._rules)]
        if grant.keeps_units:
            take_over(self._rules, grant.rates or (), now)
        return owed

    def apply(self, grant: Grant, now: int, *, idle: bool) -> None:
        """Go by a grant, apart from its rates."""
        apply_grant(self._rules, grant, now, idle=idle)

    def wait_for(self, *, callers: bool) -> None:
        """The line has become empty, or is so no longer. What was granted is left for callers in line."""
        for rate in leased(self._rules):
            rate.wait_for(callers=callers)

    def hear_window(self, now: int) -> WindowSignal | None:
        """The window has changed. Answers the news for the supply, if there is any."""
        rules, window = self._rules, self._rules.window
        if window is None:
            return None
        if self._heard != window.state:
            self._heard = window.state
            drop_batches(rules, now)
        if self._told == window.signalled:
            return None
        self._told = window.signalled
        return window.signal(now, rules.probes)

    def tell(self) -> None:
        """After the lock: tell the supply what was noted under it."""
        if self.low:
            self.low = False
            self._supply.wanted(None)
        if self.returned is not None:
            corrected, self.returned = self.returned, None
            self._supply.returned(corrected=corrected)
