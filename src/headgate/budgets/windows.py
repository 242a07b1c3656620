"""Pure. Allowances over sliding windows: what was used, what is left, when more would fit.

Rules of this room: a cost is a pair, tokens and money, both whole numbers. What was used is a
fact: a change of plan neither adds to it nor takes from it. Every answer is about one moment.
"""

from __future__ import annotations

from ..gate.strict import StrictRule
from ..limits import Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    Cost: TypeAlias = tuple[int, int]
    Saved: TypeAlias = list[tuple[int, int, list[int]]]  # column, period, what its window remembers

TOKENS, MONEY = 0, 1
UNITS = ("tokens", "money")


class Limit:
    """So much of one column in any stretch of the rate's period. An amount of None: only counted."""

    __slots__ = ("amount", "column", "rate")

    def __init__(self, amount: int | None, column: int, rate: Rate) -> None:
        self.amount = amount
        self.column = column
        self.rate = rate

    @property
    def key(self) -> tuple[int, int]:
        """What makes it the same window under another plan."""
        return self.column, self.rate.per_ns

    @property
    def name(self) -> str:
        """Unit and period, e.g. `money/day`: how errors call this limit."""
        return f"{UNITS[self.column]}/{self.rate.name.partition('/')[2]}"


class Plan:
    """What a budget allows: at most so much in one request, and so much in each window."""

    __slots__ = ("caps", "limits")

    def __init__(self, caps: tuple[int | None, int | None], limits: Iterable[Limit]) -> None:
        self.caps = caps
        self.limits = tuple(limits)

    def counting(self, limits: Iterable[Limit]) -> Plan:
        """The same plan, which also counts over the periods of those limits without limiting them."""
        mine = {limit.key: limit for limit in self.limits}
        for limit in limits:
            mine.setdefault(limit.key, Limit(None, limit.column, limit.rate))
        return Plan(self.caps, mine.values())


class Shortage:
    """The limit a cost does not fit: what is left of it, and at what moment the cost would fit."""

    __slots__ = ("at", "column", "limit", "name", "remaining")

    def __init__(self, name: str, column: int, limit: int, remaining: int, at: int | None) -> None:
        self.name = name
        self.column = column
        self.limit = limit
        self.remaining = remaining
        self.at = at  # None: never

    def outlasts(self, other: Shortage | None) -> bool:
        """Does this one stand in the way for longer?"""
        if other is None:
            return True
        return other.at is not None and (self.at is None or self.at > other.at)


class Allowance:
    """What one budget may use, and what it has used."""

    __slots__ = ("_rules", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._rules = [StrictRule(limit.rate, limit.column) for limit in plan.limits]

    # -- questions

    def shortage(self, cost: Cost, now: int) -> Shortage | None:
        """What stands in the way of this cost for the longest time, or None: it fits."""
        for column, cap in enumerate(self.plan.caps):
            if cap is not None and cost[column] > cap:
                return Shortage(f"{UNITS[column]}/request", column, cap, cap, None)
        worst = None
        for limit, rule in zip(self.plan.limits, self._rules, strict=True):
            if limit.amount is None:
                continue
            need, used = cost[limit.column], rule.used(now)
            if used + need <= limit.amount:
                continue
            at = None if need > limit.amount else rule.down_to(limit.amount - need, now)
            found = Shortage(limit.name, limit.column, limit.amount, max(0, limit.amount - used), at)
            if found.outlasts(worst):
                worst = found
        return worst

    def fits(self, cost: Cost, now: int, besides: Cost = (0, 0)) -> bool:
        """Is there room for this cost in one request, and besides what else is known in every window?"""
        for column, cap in enumerate(self.plan.caps):
            if cap is not None and cost[column] > cap:
                return False
        return all(
            limit.amount is None
            or rule.used(now) + besides[limit.column] + cost[limit.column] <= limit.amount
            for limit, rule in zip(self.plan.limits, self._rules, strict=True)
        )

    def left(self, column: int, now: int) -> int | None:
        """The least that any window has left, negative if overdrawn. None: no window limits it."""
        return min(
            (
                limit.amount - rule.used(now)
                for limit, rule in zip(self.plan.limits, self._rules, strict=True)
                if limit.amount is not None and limit.column == column
            ),
            default=None,
        )

    def idle(self, now: int) -> bool:
        """Does nothing count any more?"""
        return not any(rule.used(now) for rule in self._rules)

    # -- changes

    def charge(self, cost: Cost, now: int) -> None:
        """Count this cost in every window, whether or not it fits."""
        for rule in self._rules:
            rule.charge(cost[rule.column], now)

    def settle(self, estimate: Cost, actual: Cost, taken_at: int, now: int) -> None:
        """Replace what was charged at `taken_at` by what it was, where it still counts."""
        for rule in self._rules:
            rule.settle(estimate[rule.column], actual[rule.column], taken_at, now)

    def retune(self, plan: Plan) -> None:
        """Go by another plan. What was used stays used, as far back as it is known."""
        known = self._rules
        self.plan = plan
        self._rules = [_following(limit, known) for limit in plan.limits]

    def mend(self) -> None:
        """After a change that was broken off half way."""
        for rule in self._rules:
            rule.mend()

    # -- beyond the life of a process

    @classmethod
    def after(cls, saved: Saved, plan: Plan, now: int) -> Allowance:
        """Go on from what was saved, perhaps under another plan. ValueError: that was never saved.

        Windows of which this plan knows nothing go on being counted, for those who know them.
        """
        rules = _read_saved(saved, now)
        allowance = cls(plan.counting([Limit(None, rule.column, rule.rate) for rule in rules]))
        allowance._rules = [_following(limit, rules) for limit in allowance.plan.limits]
        return allowance

    def saved(self, now: int) -> Saved:
        """Every window of which anything still counts, in plain integers."""
        return [(rule.column, rule.rate.per_ns, rule.saved()) for rule in self._rules if rule.used(now)]

    @property
    def latest(self) -> int:
        """When it was last charged: nothing can be charged before that any more."""
        return max((rule._latest for rule in self._rules), default=0)

    def forgotten_at(self) -> int:
        """From when on nothing of what was used so far counts."""
        return max((rule._latest + rule.rate.per_ns for rule in self._rules), default=0)


def binding(levels: Sequence[Allowance], cost: Cost, now: int) -> tuple[int, Shortage] | None:
    """Which level refuses this cost for the longest time, and why. None: it fits everywhere."""
    worst = None
    for i, level in enumerate(levels):
        found = level.shortage(cost, now)
        if found is not None and found.outlasts(None if worst is None else worst[1]):
            worst = i, found
    return worst


def _following(limit: Limit, known: Sequence[StrictRule]) -> StrictRule:
    rule = StrictRule(limit.rate, limit.column)
    same = [old for old in known if old.column == limit.column]
    # The same window, or the shortest that reaches as far back, or the one that reaches furthest.
    longer = [old for old in same if old.rate.per_ns >= limit.rate.per_ns]
    if longer:
        rule.carry_on(min(longer, key=lambda old: old.rate.per_ns))
    elif same:
        rule.carry_on(max(same, key=lambda old: old.rate.per_ns))
    return rule


def _read_saved(saved: Saved, now: int) -> list[StrictRule]:
    rules: list[StrictRule] = []
    for column, per_ns, state in saved:
        if column not in (TOKENS, MONEY) or per_ns < 1:
            raise ValueError(f"no window counts column {column} over {per_ns} ns")
        rule = StrictRule(Rate.of_ns(1, per_ns, None, "tokens", strict=True), column)
        rule.restore(state, now)
        rules.append(rule)
    return rules
